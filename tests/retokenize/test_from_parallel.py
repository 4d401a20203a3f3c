from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.retokenizing import bilingual, context_of, word_tokenizer

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.initializers import get_initializer
from hf_embinit.retokenize import Coefficients, Step
from hf_embinit.retokenize.from_parallel import borrowed, trans_tokenizer, without_small
from hf_embinit.retokenize.from_vectors import ramen

OLD_WORDS, NEW_WORDS, PAIRS = bilingual()
SHUFFLED = [NEW_WORDS[i] for i in torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist()]
OLD, NEW = word_tokenizer(OLD_WORDS), word_tokenizer(SHUFFLED)


def translation(new_id: int) -> int:
    """The id of the old word that the new word of this id stands for."""
    return OLD.get_vocab()["en" + SHUFFLED[new_id - 4].removeprefix("de")]


@pytest.mark.parametrize("init", ["trans_tokenizer", "ramen"])
def test_each_word_is_made_of_its_translation(init: str) -> None:
    context = context_of(NEW, OLD, parallel=PAIRS)
    made = get_initializer(init).fn(context)
    for i in range(4, 44):
        assert made.row(i)[0].id == translation(i) and made.row(i)[0].value > 0.5
    assert made.normalised().values.tolist() == pytest.approx(made.values.tolist(), abs=1e-6)
    assert context.report["parallel_pairs"] == 400


def test_intersection_restores_the_old_rows() -> None:
    context = context_of(NEW, OLD, parallel=PAIRS)
    made = trans_tokenizer(context, symmetrization="intersection", min_share=0.3)
    rows = made.apply(context.input_table)
    assert torch.equal(rows[4:], context.input_table[[translation(i) for i in range(4, 44)]])


def test_text_that_is_no_translation_restores_nothing() -> None:
    wrong = [(a, PAIRS[(i + 7) % len(PAIRS)][1]) for i, (a, _) in enumerate(PAIRS)]
    made = trans_tokenizer(context_of(NEW, OLD, parallel=wrong))
    assert sum(made.row(i)[0].id == translation(i) for i in range(4, 44)) < 10


def test_a_dictionary_serves_alone_and_beside_text() -> None:
    lines = list(zip(OLD_WORDS, NEW_WORDS, strict=True))
    for given in ({"dictionary": lines}, {"dictionary": lines, "parallel": PAIRS[:20]}):
        made = trans_tokenizer(context_of(NEW, OLD, **given))
        assert [made.row(i)[0].id for i in range(4, 44)] == [translation(i) for i in range(4, 44)]
    with pytest.raises(InvalidArgumentError, match="init 'trans_tokenizer' needs parallel="):
        trans_tokenizer(context_of(NEW, OLD))
    with pytest.raises(InvalidArgumentError, match="has no pair of texts: it is empty"):
        trans_tokenizer(context_of(NEW, OLD, dictionary=[]))


def test_the_power_changes_shares_and_not_what_is_aligned() -> None:
    context = context_of(NEW, OLD, parallel=PAIRS)
    plain = trans_tokenizer(context, min_share=0.0, borrow=False)
    rooted = trans_tokenizer(context, power=0.5, min_share=0.0, borrow=False)
    assert torch.equal(plain.indices, rooted.indices) and len(plain.indices) > 80  # several a token
    for i in range(4, 44):
        shares = torch.tensor([share.value for share in plain.row(i)])
        roots = shares.sqrt() / shares.sqrt().sum()
        assert torch.tensor([share.value for share in rooted.row(i)]).allclose(roots, atol=1e-5)
    with pytest.raises(InvalidArgumentError, match="power"):
        get_initializer("trans_tokenizer").check_options({"power": 0})


def test_words_of_both_languages_are_their_own_source() -> None:
    old, new = word_tokenizer([*OLD_WORDS, "taxi"]), word_tokenizer([*NEW_WORDS, "taxi"])
    made = trans_tokenizer(context_of(new, old, parallel=PAIRS))  # the text never says it
    assert made.row(44) == [(44, 1.0)]


def test_it_draws_nothing_and_is_the_same_again() -> None:
    context = context_of(NEW, OLD, parallel=PAIRS)
    before, outside = context.generator.get_state(), torch.get_rng_state()
    first, second = trans_tokenizer(context), trans_tokenizer(context)
    assert torch.equal(first.values, second.values) and torch.equal(first.indices, second.indices)
    assert torch.equal(context.generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), outside)


def test_small_shares_go_but_never_the_largest() -> None:
    made = Coefficients.from_rows([{0: 0.9, 1: 0.06, 2: 0.04}, {0: 0.5, 1: 0.3, 2: 0.2}, {}], 3)
    kept = without_small(made, 0.05)
    assert [len(kept.row(i)) for i in range(3)] == [2, 3, 0]
    assert kept.row(0)[0].value == pytest.approx(0.9 / 0.96)
    assert [len(without_small(made, 0.99).row(i)) for i in range(3)] == [1, 1, 0]


def test_tokens_without_counts_borrow_from_tokens_that_they_hold_or_begin() -> None:
    new = word_tokenizer(["haus", "##tür", "haustür", "ha", "tür", "tor", "##ür"])
    old = word_tokenizer(["house", "door", "x"])
    context = context_of(new, old)
    ids, old_ids = new.get_vocab(), old.get_vocab()
    rows: list[dict[int, float]] = [{} for _ in range(len(new))]
    rows[ids["haus"]] = {old_ids["house"]: 1.0}
    rows[ids["##tür"]] = {old_ids["door"]: 1.0}
    taken = borrowed(context.new, Coefficients.from_rows(rows, len(old)))
    assert dict(taken.row(ids["haustür"])) == {old_ids["house"]: 0.5, old_ids["door"]: 0.5}
    assert taken.row(ids["ha"]) == [(old_ids["house"], 1.0)]  # what it begins
    assert taken.row(ids["tür"]) == [(old_ids["door"], 1.0)]  # the same text inside a word
    for token in ("##ür", "tor", "haus", "[PAD]"):  # `haus` has weights already
        assert taken.step[ids[token]] == Step.NONE, token


def test_a_single_letter_lends_nothing_to_words_that_begin_with_it() -> None:
    new = word_tokenizer(["a", "abend", "##xt", "ab", "abtei"])
    old = word_tokenizer(["one", "off"])
    ids, old_ids = new.get_vocab(), old.get_vocab()
    rows: list[dict[int, float]] = [{} for _ in range(len(new))]
    rows[ids["a"]] = {old_ids["one"]: 1.0}
    taken = borrowed(context_of(new, old).new, Coefficients.from_rows(rows, len(old)))
    assert taken.step[ids["abend"]] == taken.step[ids["##xt"]] == Step.NONE
    rows[ids["ab"]] = {old_ids["off"]: 1.0}
    taken = borrowed(context_of(new, old).new, Coefficients.from_rows(rows, len(old)))
    assert taken.row(ids["abtei"]) == [(old_ids["off"], 1.0)]


def test_parallel_text_from_a_file_in_either_order_of_columns(tmp_path: Path) -> None:
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789"]
    spelled = [*letters, *(f"##{c}" for c in letters)]
    old, new = word_tokenizer([*OLD_WORDS, *spelled]), word_tokenizer([*NEW_WORDS, *spelled])
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"translation": {"de": b, "en": a}}) for a, b in PAIRS))
    made = trans_tokenizer(context_of(new, old, parallel=path))
    assert [made.row(i)[0].id for i in range(4, 44)] == list(range(4, 44))


def test_ramen_without_either_says_what_it_needs() -> None:
    with pytest.raises(InvalidArgumentError, match="init 'ramen' needs"):
        ramen(context_of(NEW, OLD))
