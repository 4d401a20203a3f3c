from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import tiny_models
from builders.fasttext_models import model as fasttext_bytes
from builders.retokenizing import bilingual, context_of, word_tokenizer
from builders.tiny_tokenizers import model, tokenizer

import hf_embinit
from hf_embinit.errors import DataNotFoundError, InvalidArgumentError
from hf_embinit.initializers import get_initializer
from hf_embinit.retokenize import Step, TokenTexts
from hf_embinit.retokenize.from_vectors import clp, focus, ofa, ramen, tokalign, wechsel
from hf_embinit.retokenize.spaces import encoder_space, has_vector, word_space
from hf_embinit.vectors import PretrainedVectors

OLD_WORDS, NEW_WORDS, PAIRS = bilingual()
OLD, NEW = word_tokenizer(OLD_WORDS), word_tokenizer(NEW_WORDS)
DICTIONARY = list(zip(OLD_WORDS, NEW_WORDS, strict=True))
COPYING = ("focus", "clp", "clp_plus", "ofa", "tokalign", "token_adapt", "omp", "common_interpolation")
"""Methods that copy shared tokens; `wechsel` and `ramen` do not, as published."""


def drawn(rows: int, width: int = 24, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def vectors(words: list[str], matrix: torch.Tensor | None = None) -> PretrainedVectors:
    return PretrainedVectors(list(words), drawn(len(words)) if matrix is None else matrix, "drawn")


def rotated() -> tuple[PretrainedVectors, PretrainedVectors]:
    """Vectors of the old words, and of the new ones in a space that is turned against it."""
    turn = torch.linalg.qr(drawn(24, seed=9))[0]
    return vectors(OLD_WORDS), vectors(NEW_WORDS, drawn(40) @ turn)


def given(init: str, words: list[str]) -> dict[str, Any]:
    """What a method needs, of these words."""
    texts = [" ".join(words[(i * j) % len(words)] for j in range(1, 8)) for i in range(1, 60)]
    return {"donor": vectors(words), "vectors": vectors(words), "texts": texts}


@pytest.mark.parametrize("init", COPYING)
def test_a_vocabulary_in_another_order_is_restored(init: str) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1)).tolist()
    new = word_tokenizer([OLD_WORDS[i] for i in order])
    context = context_of(new, OLD, **given(init, OLD_WORDS))
    made = get_initializer(init).fn(context)
    rows = made.or_else(context.role_copies()).apply(context.input_table)
    expected = context.input_table[[0, 1, 2, 3, *(4 + i for i in order)]]
    assert torch.equal(rows, expected)
    assert made.counts()["overlap"] == 40


@pytest.mark.parametrize("init", COPYING)
def test_a_new_word_that_lies_on_a_shared_one_takes_its_row(init: str) -> None:
    """In the helper space `new` is the word `en7` once more; in the text it stands where that stands."""
    words = [*OLD_WORDS, "new"]
    matrix = torch.cat([drawn(40), drawn(40)[7:8]])
    texts = [" ".join(f"en{(i * j) % 40}" for j in range(1, 9)) for i in range(1, 200)]
    texts += [text.replace("en7 ", "new ") for text in texts if "en7 " in text]
    context = context_of(
        word_tokenizer(words), OLD, donor=vectors(words, matrix), vectors=vectors(words, matrix), texts=texts
    )
    options = {"omp": {"k": 3}, "common_interpolation": {"k": 2}, "ofa": {"temperature": 0.01}}.get(init, {})
    made = get_initializer(init).fn(context, **options)
    if (
        init == "tokalign"
    ):  # its space is learnt from the text, in which `new` is unknown to the old tokenizer
        assert len(made.row(44)) == 1 and made.row(44)[0].value == 1
        return
    best = made.row(44)[0]
    assert best.id == 4 + 7 and made.step[44] == Step.METHOD
    assert init in ("clp", "token_adapt") or best.value > 0.5


@pytest.mark.parametrize("init", ["wechsel", "ofa", "ramen"])
def test_two_languages_are_joined_by_a_dictionary(init: str) -> None:
    context = context_of(NEW, OLD, vectors=rotated(), dictionary=DICTIONARY[:30])
    made = get_initializer(init).fn(context)
    assert [made.row(i)[0].id for i in range(4, 44)] == list(range(4, 44))
    assert context.report["dictionary_pairs"] == 30
    wrong = [(a, NEW_WORDS[(i + 5) % 40]) for i, (a, _) in enumerate(DICTIONARY)]
    other = get_initializer(init).fn(context_of(NEW, OLD, vectors=rotated(), dictionary=wrong))
    assert sum(other.row(i)[0].id == i for i in range(4, 44)) < 10


def test_token_adapt_splits_the_rest_of_a_word_as_such() -> None:
    old, new = word_tokenizer(["cat", "s", "##s", "##x"]), word_tokenizer(["cat", "##sx"])
    context = context_of(new, old, vectors=vectors(["cat"]))
    ids = old.get_vocab()
    made = get_initializer("token_adapt").fn(context).row(new.get_vocab()["##sx"])
    assert {w.id for w in made} == {ids["##s"], ids["##x"]}


def test_wechsel_is_a_softmax_over_ten() -> None:
    made = wechsel(context_of(NEW, OLD, vectors=rotated(), dictionary=DICTIONARY))
    cosines = torch.nn.functional.cosine_similarity(drawn(40)[:, None], drawn(40)[None], dim=2)
    for i in (0, 17, 39):
        best, order = cosines[i].topk(10)
        weights = torch.softmax(best / 0.1, 0)
        found = made.row(4 + i)
        assert [w.id for w in found] == (4 + order).tolist()
        assert [w.value for w in found] == pytest.approx(weights.tolist(), abs=1e-4)


def test_tokens_without_a_vector_are_left_to_the_chain() -> None:
    new = word_tokenizer([*OLD_WORDS[:10], "new", "rare"])
    matrix = drawn(11)
    context = context_of(new, OLD, vectors=vectors([*OLD_WORDS[1:10], "new", "zzz"], matrix))
    made = focus(context)
    ids = new.get_vocab()
    assert made.step[ids["rare"]] == Step.NONE and made.step[ids["new"]] == Step.METHOD
    assert made.step[ids["en0"]] == Step.OVERLAP  # copied, and no anchor
    assert context.report["anchors"] == 9 and 4 not in [w.id for w in made.row(ids["new"])]


@pytest.mark.parametrize("init", ["focus", "clp", "clp_plus", "tokalign", "omp", "common_interpolation"])
def test_no_common_token_is_said(init: str) -> None:
    words = [*NEW_WORDS, *OLD_WORDS]
    texts = [pair[1] for pair in PAIRS]
    context = context_of(NEW, OLD, vectors=vectors(words), donor=vectors(words), texts=texts)
    with pytest.raises(InvalidArgumentError, match=rf"init '{init}': .*no token in common"):
        get_initializer(init).fn(context)


@pytest.mark.parametrize("init", ["clp", "clp_plus", "omp", "common_interpolation"])
def test_broken_rows_of_a_donor_count_as_none(init: str) -> None:
    words = [*OLD_WORDS, "new", "other"]
    matrix = drawn(42)
    matrix[3, 2], matrix[41, 0] = float("nan"), float("inf")
    context = context_of(word_tokenizer(words), OLD, donor=vectors(words, matrix))
    made = get_initializer(init).fn(context)
    assert context.report["donor_rows_not_finite"] == 2 and context.report["anchors"] == 39
    assert made.step[45] == Step.NONE and made.step[44] == Step.METHOD
    assert 4 + 3 not in [weight.id for weight in made.row(44)] and made.step[4 + 3] == Step.OVERLAP


def test_a_donor_of_another_vocabulary_is_said() -> None:
    import torch.nn as nn

    small = nn.Module()
    small.get_input_embeddings = lambda: nn.Embedding(5, 3)  # type: ignore[assignment]
    with pytest.raises(InvalidArgumentError, match="has 5 rows for 44 new tokens: it was made with another"):
        clp(context_of(NEW, OLD, donor=small))
    with pytest.raises(InvalidArgumentError, match="has 0 of the 40 new tokens that the old tokenizer lacks"):
        clp(context_of(NEW, OLD, donor=vectors(["x", "y"])))


def test_focus_trains_its_space_on_text_by_the_seed() -> None:
    words = [*OLD_WORDS[:30], "new"]
    texts = [f"en{i} en{i + 1} en{i + 2} new" for i in range(28)] * 5
    found = [focus(context_of(word_tokenizer(words), OLD, texts=texts, seed=s), dim=8) for s in (0, 0, 1)]
    assert torch.equal(found[0].values, found[1].values) and found[0].step[34] == Step.METHOD
    assert len(found[0].values) != len(found[2].values) or not torch.equal(found[0].values, found[2].values)
    with pytest.raises(InvalidArgumentError, match="init 'focus' needs vectors="):
        focus(context_of(word_tokenizer(words), OLD))


@pytest.mark.parametrize("init", ["focus", "tokalign"])
def test_a_text_too_short_to_train_vectors_on_is_said(init: str) -> None:
    old, new = tokenizer("wordpiece"), tokenizer("byte_level")
    with pytest.raises(InvalidArgumentError, match=r"texts= is too short: .* give more text"):
        hf_embinit.replace_tokenizer(model("gpt2", len(old)), old, new, init, texts=["a dog sleeps"])


def test_clp_refuses_a_weight_for_every_pair_of_a_large_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*OLD_WORDS, *(f"n{i}" for i in range(10))]
    context = context_of(word_tokenizer(words), OLD, donor=vectors(words))
    made = clp(context)
    assert len(made.row(44)) == 40 and sum(w.value for w in made.row(44)) == pytest.approx(1, abs=1e-4)
    monkeypatch.setattr("hf_embinit.retokenize.from_vectors.MOST_WEIGHTS", 399)
    with pytest.raises(InvalidArgumentError, match="asks for 400 weights; give neighbors=100"):
        clp(context)
    assert len(clp(context, neighbors=5).row(44)) == 5


def test_tokalign_draws_its_pivots_by_the_generator() -> None:
    words = [*OLD_WORDS[:25], "new"]
    texts = [" ".join(f"en{(i * j) % 25}" for j in range(1, 9)) + " new" for i in range(1, 90)]
    context = context_of(word_tokenizer(words), OLD, texts=texts)
    before, outside = context.generator.get_state(), torch.get_rng_state()
    tokalign(context, dim=8, pivots=5)
    assert context.report["pivots"] == 5 and not torch.equal(context.generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), outside)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "init 'wechsel' needs vectors="),
        ({"vectors": [vectors(OLD_WORDS)]}, "vectors= has 1 sources: give one, or"),
        ({"vectors": rotated()}, "init 'wechsel' needs dictionary="),
        ({"vectors": rotated(), "dictionary": []}, "has no pair of texts: it is empty"),
        ({"vectors": rotated(), "dictionary": [("x", "y")]}, "no pair of its words is in 'drawn'"),
        ({"vectors": (rotated()[0], vectors(["a"], drawn(1, 3))), "dictionary": DICTIONARY}, "24 and 3 wide"),
        ({"vectors": vectors(["qq"])}, "no old token has a vector"),
    ],
)
def test_what_wechsel_cannot_use_is_said(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        wechsel(context_of(NEW, OLD, **more))


def test_ofa_and_ramen_take_the_words_that_hold_a_token() -> None:
    new = word_tokenizer(["ab", "##cd", "##ef"])
    old = word_tokenizer(["ab", "xcd", "xef"])
    matrix = torch.eye(4)[:, :4]
    given = vectors(["abcd", "abef", "xcd", "xef"], matrix)
    made = ofa(context_of(new, old, vectors=given), neighbors=1)
    assert made.row(4) == [(4, 1.0)]  # shared
    both = context_of(new, old, vectors=vectors(["abcd", "abef", "ab", "xcd"], matrix))
    ranked = ramen(both)  # `ab` is in the 1st, 2nd and 3rd word of four, the old `ab` in the 3rd alone
    # cosine 1/3 of the norm of (1, 1/2, 1/3); 0 to the old `xcd`; sparsemax of both
    cosine = (1 / 3) / (1 + 1 / 4 + 1 / 9) ** 0.5
    assert [w.id for w in ranked.row(4)] == [4, 5]
    assert ranked.row(4)[0].value == pytest.approx((1 + cosine) / 2, abs=1e-5)


def test_rows_that_are_not_finite_count_as_none(caplog: pytest.LogCaptureFixture) -> None:
    old, new = vectors(OLD_WORDS), vectors(NEW_WORDS)
    old.matrix[3], new.matrix[5] = math.inf, math.nan
    made = wechsel(context_of(NEW, OLD, vectors=(old, new), dictionary=DICTIONARY))
    assert made.values.isfinite().all() and (made.step == Step.METHOD).any()
    assert "1 of 40 rows have NaN or infinite entries and count as none" in caplog.text


def test_a_compressed_fasttext_model_gives_the_vectors_of_the_plain_one(tmp_path: Path) -> None:
    data = fasttext_bytes()
    for name, content in {"cc.bin": data, "cc.bin.gz": gzip.compress(data), "cc": data}.items():
        (tmp_path / name).write_bytes(content)
    tokens = TokenTexts(word_tokenizer(["haus", "never", "seen"]))
    plain, packed, bare = (word_space(tokens, tmp_path / n) for n in ("cc.bin", "cc.bin.gz", "cc"))
    assert has_vector(plain)[-3:].all() and torch.equal(plain, packed) and torch.equal(plain, bare)


def test_what_is_no_encoder_is_one_sentence_and_one_without_a_pooler_moves_no_random_state(
    tmp_path: Path, global_rng_untouched: None
) -> None:
    for name in ("/nope/there", str(tmp_path)):
        with pytest.raises(DataNotFoundError, match=f"^encoder={name!r} "):
            encoder_space(TokenTexts(OLD), name)
    with torch.random.fork_rng():
        tiny_models.bert(vocab_size=len(OLD)).save_pretrained(tmp_path)
    with pytest.raises(DataNotFoundError, match="has no tokenizer"):
        encoder_space(TokenTexts(OLD), tmp_path)
    OLD.save_pretrained(tmp_path)
    assert has_vector(encoder_space(TokenTexts(OLD), tmp_path)).sum() == len(OLD_WORDS)
