"""`replace_tokenizer` in memory: rows, biases, ids, tokenizer; and what it refuses."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.retokenizing import dense, word_pieces
from builders.tiny_models import marian_with_two_vocabularies, spread
from builders.tiny_tokenizers import logits, model, tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    EncoderDecoderModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

import hf_embinit
from hf_embinit.errors import (
    DataNotFoundError,
    FileWriteError,
    InvalidArgumentError,
    UnknownNameError,
    UnsupportedModelError,
    VocabularyWarning,
)
from hf_embinit.initializers import list_initializers
from hf_embinit.manifest import read_manifest
from hf_embinit.retokenize import Coefficients, Step
from hf_embinit.tables import EmbeddingTables
from hf_embinit.tokens import canonical_form

FAMILY = {"gpt2": "byte_level", "llama": "sentencepiece_bpe", "bert": "wordpiece", "bart": "unigram"}
KINDS = list(FAMILY)


def made(kind: str, size: int = 500) -> tuple[Any, Any]:
    """A model with its tokenizer, ids of special tokens included."""
    words = tokenizer(FAMILY[kind], size)
    roles = {f"{role}_token_id": getattr(words, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    if kind == "bart":
        roles |= {"decoder_start_token_id": words.eos_token_id, "forced_eos_token_id": words.eos_token_id}
    return model(kind, len(words), **{k: v for k, v in roles.items() if kind in ("gpt2", "bart") or v}), words


def state(m: Any, *tokenizers: Any) -> Any:
    """All that an error must leave as it was."""
    config = [m.config.to_dict(), m.generation_config.to_dict() if m.can_generate() else None]
    texts = [(t.get_vocab(), t.chat_template, t.model_max_length, t.padding_side) for t in tokenizers]
    return copy.deepcopy([{k: v.clone() for k, v in m.state_dict().items()}, config, texts])


def assert_same(before: Any, after: Any) -> None:
    assert before[1:] == after[1:] and before[0].keys() == after[0].keys()
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])


def refuse(
    m: Any, old: Any, new: Any, message: str, error: Any = InvalidArgumentError, **options: Any
) -> None:
    """The replacement is an error in one line, and changes nothing."""
    before = state(m, old, new)
    with pytest.raises(error, match=message) as caught:
        hf_embinit.replace_tokenizer(m, **{"old_tokenizer": old, "new_tokenizer": new, **options})
    assert "\n" not in str(caught.value)
    assert_same(before, state(m, old, new))


@pytest.mark.parametrize("new_family", ["byte_level", "wordpiece", "unigram"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_and_bias_is_the_same_sums_of_its_own_rows(kind: str, new_family: str) -> None:
    m, old = made(kind)
    new = tokenizer(new_family, 400)
    if kind == "bart" and new.pad_token is None:
        new.add_special_tokens({"pad_token": "<pad>"})
    tables = EmbeddingTables(m)
    before = {t.name: tables.read(t).double().clone() for t in tables.own_tables}
    biases = [[b.double().clone() for b in tables.biases(t)] for t in tables.output_tables]
    tied = [t.tied_to for t in tables.output_tables]
    report = hf_embinit.replace_tokenizer(m, old, new, "fvt")
    tables = EmbeddingTables(m)
    assert tables.vocab_size() == len(new) == m.config.vocab_size
    assert [t.tied_to for t in tables.output_tables] == tied
    weights, drawn = dense(report.coefficients), report.coefficients.step >= Step.MEAN
    for t in tables.own_tables:
        assert torch.allclose(tables.read(t).double()[~drawn], (weights @ before[t.name])[~drawn], atol=1e-6)
    for t, old_biases in zip(tables.output_tables, biases, strict=True):
        for bias, old_bias in zip(tables.biases(t), old_biases, strict=True):
            assert torch.allclose(bias.double()[~drawn], (weights @ old_bias)[~drawn], atol=1e-6)
            assert torch.allclose(bias.double()[drawn], old_bias.mean(), atol=1e-5)
    assert sum(report.steps.values()) == len(new) and report.steps["overlap"] > 100
    assert torch.isfinite(logits(m, torch.arange(20)[None])).all()
    assert {f.code for f in hf_embinit.doctor(m, new)} <= {"equal_rows"}
    (event,) = read_manifest(m)
    assert event["event"] == "replace_tokenizer" and event["steps"] == report.steps


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tokenizer_changes_no_row_and_no_id(kind: str) -> None:
    m, words = made(kind)
    before, ids = state(m, words), torch.arange(30)[None]
    was = logits(m, ids)
    report = hf_embinit.replace_tokenizer(m, words, tokenizer(FAMILY[kind], 500))
    del m.config.embinit
    assert_same(before, state(m, words))
    assert torch.equal(was, logits(m, ids)) and set(report.steps) == {"copied", "overlap"}
    assert report.moved_ids == {}


def test_an_untied_output_has_pieces_of_its_own_pooled_apart() -> None:
    m, old = made("llama")
    new, tables = tokenizer("byte_level", 600), EmbeddingTables(m)
    head = tables.read(tables.output_tables[0]).clone()
    embedding = tables.read(tables.input_tables[0]).clone()
    options = {"input_pooling": "last", "output_pooling": "first"}
    report = hf_embinit.replace_tokenizer(m, old, new, "fvt", **options)
    side = report.sides["shared"]
    i = int((side.recipe.output.step == Step.PIECES).nonzero()[-1])
    pieces = old.backend_tokenizer.model.tokenize(side.new.tokens[i].replace("Ġ", "▁"))
    first, last = pieces[0].id, pieces[-1].id
    assert first != last
    assert torch.equal(m.get_output_embeddings().weight[i], head[first])
    assert torch.equal(m.get_input_embeddings().weight[i], embedding[last])
    assert side.explain(i, "output") == [(old.convert_ids_to_tokens(first), 1.0)]
    assert report.options == options


def test_a_tied_output_is_explained_by_the_rows_that_it_has(tmp_path: Path) -> None:
    m, old = made("bert")
    options = {"input_pooling": "last", "output_pooling": "first"}
    report = hf_embinit.replace_tokenizer(m, old, tokenizer("wordpiece", 600), "fvt", **options)
    side = report.sides["shared"]
    i = int((side.recipe.input.step == Step.PIECES).nonzero()[-1])
    assert side.explain(i, "output") == side.explain(i, "input")
    assert len(report.save(tmp_path)) == 1


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [1 / 2, 1 / 2]),
        ("first", [1, 0]),
        ("last", [0, 1]),
        ("length", [3 / 5, 2 / 5]),
        ("exponential", [1 / (1 + math.e**2), math.e**2 / (1 + math.e**2)]),
    ],
)
def test_weights_of_pieces(pooling: str, expected: list[float]) -> None:
    old, new = word_pieces("ele", "##ph", "a"), word_pieces("eleph", "a")
    m = model("bert", len(old))
    report = hf_embinit.replace_tokenizer(m, old, new, "fvt", input_pooling=pooling, output_pooling=pooling)
    found = dict(report.explain("eleph"))
    assert [found.get("ele", 0), found.get("##ph", 0)] == pytest.approx(expected, abs=1e-6)


def test_special_ids_follow_by_role_in_all_configurations() -> None:
    m, old = made("bart")
    m.generation_config.suppress_tokens = [old.eos_token_id, 77]
    m.generation_config.bad_words_ids = [[5, 6], [old.unk_token_id]]
    new = tokenizer("wordpiece", 400)
    tables = EmbeddingTables(m)
    padding = tables.read(tables.input_tables[0])[old.pad_token_id].clone()
    report = hf_embinit.replace_tokenizer(m, old, new)
    sep, pad = new.sep_token_id, new.pad_token_id
    assert m.config.eos_token_id == m.config.decoder_start_token_id == sep
    assert getattr(m.config, "forced_eos_token_id", sep) == sep  # 5.0 keeps it for generation alone
    assert m.config.pad_token_id == pad == m.get_input_embeddings().padding_idx
    assert sep in m.generation_config.suppress_tokens
    assert [new.unk_token_id] in m.generation_config.bad_words_ids
    assert all(i < len(new) for ids in m.generation_config.bad_words_ids for i in ids)
    assert torch.equal(m.get_input_embeddings().weight[pad], padding)
    assert report.moved_ids["BartConfig.eos_token_id"] == [old.eos_token_id, sep]


def test_a_decoder_that_starts_from_another_token_starts_from_the_same_row() -> None:
    old = tokenizer("unigram", 400)  # T5's: no token that begins a text
    new = tokenizer("sentencepiece_bpe", 400)
    assert new.pad_token is None and old.bos_token is None
    old.add_tokens([AddedToken("<begin>", special=True)])
    begin = old.convert_tokens_to_ids("<begin>")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    m = T5ForConditionalGeneration(
        T5Config(vocab_size=len(old), decoder_start_token_id=begin, tie_word_embeddings=True, **sizes)
    )
    m.generation_config.bad_words_ids = [[begin]]
    before = copy.deepcopy(m.state_dict())
    with pytest.raises(
        InvalidArgumentError, match=r"shifts its labels by T5Config\.pad_token_id, and the new"
    ):
        hf_embinit.replace_tokenizer(m, old, new)
    assert all(torch.equal(m.state_dict()[name], tensor) for name, tensor in before.items())
    new.add_special_tokens({"pad_token": "<pad>"})
    start = m.shared.weight[begin].detach().clone()
    report = hf_embinit.replace_tokenizer(m, old, new)
    assert m.config.decoder_start_token_id == new.bos_token_id
    assert torch.equal(m.shared.weight[new.bos_token_id], start)
    assert report.moved_ids["T5Config.decoder_start_token_id"] == [begin, new.bos_token_id]
    assert m.config.pad_token_id == new.pad_token_id
    assert m.generation_config.bad_words_ids is None  # what begins a text now is no bad word


def test_the_sides_of_an_encoder_decoder_are_replaced_one_by_one() -> None:
    encoder, decoder = model("bert", 320).bert, model("gpt2", 320, is_decoder=True, add_cross_attention=True)
    m = EncoderDecoderModel(encoder=encoder, decoder=decoder)
    with pytest.raises(InvalidArgumentError, match=r"of model\.encoder and of model\.decoder one by one"):
        hf_embinit.replace_tokenizer(m, tokenizer("wordpiece"), tokenizer("unigram", 400))


def test_the_doctor_finds_nothing_in_rows_that_a_method_made_alike() -> None:
    m, old = made("bert")
    new = tokenizer("unigram", 400)
    hf_embinit.replace_tokenizer(m, old, new)
    rows = m.get_input_embeddings().weight
    assert len(rows.unique(dim=0)) < len(rows)  # "o" and "▁o" are of the same piece
    assert "equal_rows" not in {finding.code for finding in hf_embinit.doctor(m, new)}


def test_the_new_tokenizer_takes_over_what_it_lacks() -> None:
    m, old = made("gpt2")
    old.chat_template, old.model_max_length, old.padding_side = "{{ messages }}<|endoftext|>", 77, "left"
    with_token, without = tokenizer("byte_level", 400), tokenizer("unigram", 400)
    report = hf_embinit.replace_tokenizer(copy.deepcopy(m), old, with_token)
    assert with_token.chat_template == old.chat_template and with_token.model_max_length == 77
    assert with_token.padding_side == "left" and any("chat_template" in note for note in report.notes)
    report = hf_embinit.replace_tokenizer(m, old, without)
    assert without.chat_template is None and "no '<|endoftext|>'" in str(report)


@pytest.mark.needs("transformers>=5.6")  # the vanilla models
def test_two_vocabularies_are_both_replaced() -> None:
    from hf_embinit.models import VanillaTransformerTokenizer

    def pair(count: int) -> VanillaTransformerTokenizer:
        english = ["a dog runs", "the dog sleeps", "a cat runs"][:count] * 2
        german = ["ein hund rennt", "der hund schläft", "eine katze rennt"][-count:] * 2
        return VanillaTransformerTokenizer.build(english, german, source_lang="en", target_lang="de")

    old, new = pair(3), pair(2)
    m = marian_with_two_vocabularies()
    spread(m)
    tables = EmbeddingTables(m)
    before = {t.name: tables.read(t).clone() for t in tables.own_tables}
    m.config.eos_token_id = m.generation_config.eos_token_id = 3
    report = hf_embinit.replace_tokenizer(m, old, new)
    assert set(report.sides) == {"source", "target"}
    tables = EmbeddingTables(m)
    for t in tables.own_tables:
        side = report.sides[t.side]
        assert len(tables.read(t)) == len(side.new)
        for i, token in enumerate(side.new.tokens):
            if token in side.old.ids:
                assert torch.equal(tables.read(t)[i], before[t.name][side.old.ids[token]])
    assert m.config.vocab_size == len(new.encoder) and m.config.decoder_vocab_size == len(new.target_encoder)
    with pytest.raises(
        InvalidArgumentError, match=r"new_tokenizer=.* has one vocabulary, but the model has two"
    ):
        hf_embinit.replace_tokenizer(m, new, tokenizer("byte_level"))


@pytest.mark.parametrize("init", ["random", "reinit", "vipi", "mean", "fvt"])
def test_methods_are_reproducible_and_leave_the_global_state_alone(init: str) -> None:
    results = []
    for seed in (0, 0, 1):
        m, old = made("llama")
        torch.manual_seed(5)
        with pytest.warns(VocabularyWarning) if init == "reinit" else _nothing():
            hf_embinit.replace_tokenizer(m, old, tokenizer("byte_level", 1400), init, seed=seed)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
        results.append(m.get_input_embeddings().weight.detach().clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2]) == (init in ("mean", "fvt", "vipi"))
    assert torch.isfinite(results[0]).all()


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_draws_have_the_moments_of_the_old_columns() -> None:
    m, old = made("gpt2")
    was = m.get_input_embeddings().weight.detach().clone()
    scale = torch.linspace(0.1, 3, was.shape[1])
    m.get_input_embeddings().weight.data.copy_(was * scale + 2)
    was = m.get_input_embeddings().weight.detach().clone()
    report = hf_embinit.replace_tokenizer(m, old, tokenizer("unigram", 2000), "random")
    rows = m.get_input_embeddings().weight[report.coefficients.step == Step.RANDOM]
    assert len(rows) > 500
    error = was.std(0) / len(rows) ** 0.5
    assert ((rows.mean(0) - was.mean(0)).abs() < 5 * error).all()
    assert ((rows.std(0) / was.std(0) - 1).abs() < 5 / (2 * len(rows)) ** 0.5).all()


@pytest.mark.filterwarnings("ignore:.*more than half")
@pytest.mark.parametrize("method", ["random", "reinit"])
def test_rows_beyond_what_the_dtype_holds_are_refused(method: str) -> None:
    m, old = made("gpt2")
    weight = m.half().get_input_embeddings().weight
    weight.data.mul_(2e4 / weight.float().std()).clamp_(-6e4, 6e4)
    assert bool(weight.isfinite().all())
    refuse(m, old, tokenizer("unigram", 1500), "made rows for .* NaN or infinite .float16.", init=method)


def test_reinit_draws_like_tokens_of_the_same_script_and_place() -> None:
    m, old = made("gpt2")
    texts = [canonical_form(t, "byte_level") for t in old.convert_ids_to_tokens(range(len(old)))]
    starts = torch.tensor([bool(form.word_start) for form in texts])
    m.get_input_embeddings().weight.data[starts] += 50
    with pytest.warns(VocabularyWarning, match="more than half"):
        report = hf_embinit.replace_tokenizer(m, old, tokenizer("unigram", 1500), "reinit")
    side = report.sides["shared"]
    drawn = (side.recipe.input.step == Step.RANDOM).nonzero().flatten().tolist()
    rows = m.get_input_embeddings().weight.detach().mean(1)
    latin = [
        i
        for i in drawn
        if (side.new.texts[i] or "").strip().isascii() and side.new.texts[i].strip().isalpha()
    ]
    assert len(latin) > 100
    assert all((rows[i] > 25) == side.new.forms[i].word_start for i in latin)


def test_vipi_takes_the_fewest_and_then_the_longest_pieces() -> None:
    old = word_pieces("a", "ab", "abc", "##bcd", "##cd", "##d", "##b", "##c")
    report = hf_embinit.replace_tokenizer(model("bert", len(old)), old, word_pieces("abcd", "a"), "vipi")
    # a|bcd and abc|d have a piece of three, ab|cd has not
    assert dict(report.explain("abcd")) == pytest.approx({"a": 0.25, "##bcd": 0.25, "abc": 0.25, "##d": 0.25})


@pytest.mark.parametrize("init", ["random", "reinit", "vipi", "fvt"])
def test_a_space_alone_and_half_a_character_have_a_row(init: str) -> None:
    old, new = tokenizer("wordpiece", 320), tokenizer("byte_level", 450)
    lm = model("bert", len(old))
    ids = new.get_vocab()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VocabularyWarning)  # most are at random
        report = hf_embinit.replace_tokenizer(lm, old, new, init)
    rows = lm.get_input_embeddings().weight
    for token in ("Ġ", "Ã"):
        assert torch.isfinite(rows[ids[token]]).all() and report.coefficients.step[ids[token]] != Step.NONE


def test_row_norm_gives_sums_the_norm_of_what_they_are_of() -> None:
    plain, old = made("gpt2")
    kept = copy.deepcopy(plain)
    was = plain.get_input_embeddings().weight.detach().clone()
    new = tokenizer("unigram", 700)
    hf_embinit.replace_tokenizer(plain, old, new, "fvt")
    report = hf_embinit.replace_tokenizer(kept, old, new, "fvt", row_norm=True)
    several = report.coefficients.step == Step.PIECES
    several &= report.coefficients.indptr.diff() > 1
    a, b = (m.get_input_embeddings().weight.detach() for m in (plain, kept))
    expected = (dense(report.coefficients) @ was.norm(dim=1).double())[several]
    assert torch.allclose(b[several].norm(dim=1).double(), expected, rtol=1e-5)
    assert (a[several].norm(dim=1) < b[several].norm(dim=1)).float().mean() > 0.95
    assert torch.equal(a[~several], b[~several])


def test_row_norm_is_an_average_where_weights_are_below_zero(tmp_path) -> None:
    lm, old = made("llama")
    norms = lm.get_input_embeddings().weight.detach().norm(dim=1)
    new = tokenizer("unigram", 700)
    donor = model("llama", len(new))
    donor.save_pretrained(tmp_path), new.save_pretrained(tmp_path)
    report = hf_embinit.replace_tokenizer(lm, old, new, "clp", donor=tmp_path, row_norm=True)
    assert float(report.coefficients.values.min()) < 0
    found = lm.get_input_embeddings().weight.detach().norm(dim=1)
    several = report.coefficients.indptr.diff() > 1
    weights = dense(report.coefficients).abs()[several]
    expected = weights @ norms.double() / weights.sum(1)
    assert torch.allclose(found[several].double(), expected, rtol=1e-4)


def test_padding_rows_of_the_matrix_are_the_mean() -> None:
    m, old = made("gpt2")
    mean = m.get_input_embeddings().weight.detach().double().mean(0)
    new = tokenizer("unigram", 401)
    hf_embinit.replace_tokenizer(m, old, new, pad_to_multiple_of=64)
    rows = m.get_input_embeddings().weight
    assert len(rows) == 448 == m.config.vocab_size
    assert torch.allclose(rows[len(new) :].double(), mean, atol=1e-5)


def test_auto_says_why_and_every_method_is_listed() -> None:
    m, old = made("gpt2")
    report = hf_embinit.replace_tokenizer(m, old, tokenizer("unigram", 400))
    assert report.init == "fvt" and "nothing but the tokenizers" in str(report)
    assert {"fvt", "random", "reinit", "vipi"} <= {r.name for r in list_initializers(purpose="tokenizer")}
    assert report.to_dict()["steps"]["shared"] == report.steps
    m, old = made("gpt2")  # text goes before vectors
    given = {"texts": ["a dog runs"], "vectors": "nowhere"}
    report = hf_embinit.replace_tokenizer(m, old, tokenizer("unigram", 400), **given)
    assert report.init == "align" and "picked since text was given" in str(report)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"init": "fvtt"}, "Unknown init 'fvtt'.*fvt"),
        ({"init": "xavier"}, "init 'xavier' makes no rows for another tokenizer: choose mean, "),
        (
            {"init": "tokens2words"},
            r"init 'tokens2words' makes rows that are there better: give refine='tokens2words'",
        ),
        ({"input_pooling": "max", "init": "fvt"}, "init 'fvt': input_pooling='max': expected"),
        ({"init": "fvt", "parallel": "a.jsonl"}, "init 'fvt' reads no parallel="),
        ({"old_tokenizer": tokenizer("byte_level", 900)}, "old_tokenizer has ids up to .* but the model has"),
        ({"match": "loose"}, "match='loose': expected 'canonical', 'fuzzy' or 'exact'"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of=0: expected a whole number of 1 or more"),
        ({"new_tokenizer": "gpt2"}, "new_tokenizer='gpt2': expected a tokenizer of transformers"),
        ({"pad_to_multiple_of": 10**12}, "1,000,000,000,000 rows need .* GiB are free: ask for fewer tokens"),
        ({"donor": model("llama", 300)}, "donor=LlamaForCausalLM has 300 rows for 400 new tokens"),
        ({"dictionary": []}, "dictionary= has no pair of texts: it is empty"),
        ({"parallel": [("zwei Hunde", "")]}, "parallel= has no pair of texts: it is empty"),
        ({"texts": []}, "texts= has no text"),
        (
            {"new_tokenizer": ByT5Tokenizer(), "texts": ["a dog"]},
            "ByT5Tokenizer does not say where",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    m, old = made("gpt2")
    new = tokenizer("unigram", 400)
    refuse(m, old, new, message, (InvalidArgumentError, UnknownNameError), **change)


def test_a_slow_tokenizer_serves_either_side() -> None:
    m, old = made("gpt2")
    report = hf_embinit.replace_tokenizer(m, old, ByT5Tokenizer())
    assert report.steps["overlap"] > 50 and "random" not in report.steps
    report = hf_embinit.replace_tokenizer(m, ByT5Tokenizer(), old)
    assert report.steps["overlap"] > 50 and report.steps["pieces"] > 200


def test_a_tokenizer_without_an_unknown_token_leaves_what_it_cannot_read_to_the_chain() -> None:
    def words(*known: str) -> PreTrainedTokenizerFast:
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        return PreTrainedTokenizerFast(tokenizer_object=backend)

    m, old, new = model("gpt2", 4), words("the", "dog", "cat", "runs"), words("the", "zorg", "blip")
    told = "cannot read 'zorg', as it has no unknown token"
    refuse(m, old, new, told, parallel=[("zorg", "zorg")])
    with pytest.warns(VocabularyWarning, match=r"more than half of the new rows are at random \(2 of 3\)"):
        report = hf_embinit.replace_tokenizer(m, old, new)
    assert report.steps == {"overlap": 1, "random": 2} and "1 overlap, 2 random" in str(report)


def test_a_donor_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    m, old = made("gpt2")
    m.save_pretrained(tmp_path)
    old.save_pretrained(tmp_path)
    new = tokenizer("unigram", 400)
    refuse(m, old, new, r"has 0 of the \d+ new tokens that the old", donor=str(tmp_path))


def test_a_donor_without_values_is_refused() -> None:
    m, old = made("gpt2")
    new = tokenizer("byte_level", 400)
    donor = model("llama", 400).to("meta")
    refuse(m, old, new, "donor=LlamaForCausalLM is on the meta device", donor=donor)


@pytest.mark.parametrize(
    ("donor", "kind", "words"),
    [
        (5, InvalidArgumentError, "donor=5: expected"),
        ("/nowhere", DataNotFoundError, "donor='/nowhere' is no file or folder here"),
    ],
)
def test_a_donor_that_is_none_is_named(donor: Any, kind: type[Exception], words: str) -> None:
    m, old = made("llama")
    with pytest.raises(kind, match=words):
        hf_embinit.replace_tokenizer(m, old, tokenizer("wordpiece"), "omp", donor=donor)


def test_a_report_is_asked_and_saved_where_it_can_be(tmp_path: Path) -> None:
    m, old = made("llama")
    report = hf_embinit.replace_tokenizer(m, old, tokenizer("wordpiece"), "mean")
    folder = tmp_path / "not" / "there"
    assert [file.is_file() for file in report.save(folder)] == [True]
    assert report.explain(7) == report.explain(7, side="shared")
    for wrong in ({"side": "x"}, {"side": True}, {"token": None}, {"token": 10**6}, {"token": "no such one"}):
        with pytest.raises(InvalidArgumentError):
            report.explain(**{"token": 7, **wrong})
    (tmp_path / "file").write_text("")
    for place in ("", None):
        with pytest.raises(InvalidArgumentError, match="folder="):
            report.save(place)
    with pytest.raises(FileWriteError, match="folder="):
        report.save(tmp_path / "file")
    for wrong in (tmp_path, tmp_path / "file" / "c.safetensors"):
        with pytest.raises(FileWriteError):
            report.coefficients.save(wrong)
    with pytest.raises(InvalidArgumentError, match="file=None"):
        Coefficients.load(None)


def test_tokenizers_without_a_common_token_are_refused() -> None:
    old, new = word_pieces("the", "cat"), word_pieces("der", "hund")
    m = model("bert", len(old))
    refuse(m, old, new, "no token in common, and 'fvt' finds no other source")


def test_an_old_row_that_is_not_finite_is_refused() -> None:
    m, old = made("gpt2")
    m.get_input_embeddings().weight.data[old.get_vocab()["Ġa"], 0] = float("nan")
    new = tokenizer("unigram", 400)
    before = state(m, old, new)
    with pytest.raises(InvalidArgumentError, match=r"NaN or infinite entries.*repair"):
        hf_embinit.replace_tokenizer(m, old, new)
    after = state(m, old, new)
    assert after[1:] == before[1:]
    assert all(torch.equal(before[0][k].nan_to_num(), after[0][k].nan_to_num()) for k in before[0])


def test_a_token_that_a_configuration_names_must_be_there() -> None:
    m, old = made("gpt2")
    old.add_special_tokens({"additional_special_tokens": ["<image>"]})
    hf_embinit.replace_tokenizer(m, tokenizer("byte_level", 500), old)
    m.config.image_token_id = old.convert_tokens_to_ids("<image>")
    new = tokenizer("unigram", 400)
    refuse(m, old, new, r"GPT2Config.image_token_id is \d+ \('<image>'\).*add it")
    new.add_special_tokens({"additional_special_tokens": ["<image>"]})
    hf_embinit.replace_tokenizer(m, old, new)
    assert m.config.image_token_id == new.convert_tokens_to_ids("<image>")


def test_positions_that_count_from_the_padding_id_need_the_same_one() -> None:
    from transformers import RobertaConfig, RobertaForMaskedLM

    old, new = tokenizer("unigram", 500), tokenizer("unigram", 400)
    config = RobertaConfig(
        vocab_size=len(old),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        pad_token_id=0,
    )
    m = RobertaForMaskedLM(config)
    spread(m)
    hf_embinit.replace_tokenizer(m, old, new)
    byte_level = tokenizer("byte_level")
    byte_level.add_special_tokens({"pad_token": "<pad>"})
    told = r"makes positions from its padding id 0.*the same id"
    refuse(m, new, byte_level, told, UnsupportedModelError)
    m.config.pad_token_id = m.roberta.embeddings.padding_idx = 1  # not the tokenizer's, as some checkpoints
    told = r"makes positions from its padding id 1.*become 0: give"
    refuse(m, new, tokenizer("unigram", 400), told, UnsupportedModelError)


@pytest.mark.needs("transformers>=5.6")  # before, configurations took anything
def test_a_configuration_that_needs_a_number_is_said_before_anything_is_written() -> None:
    from transformers import CwmConfig, CwmForCausalLM

    old, new = tokenizer("sentencepiece_bpe", 500), tokenizer("unigram", 400)
    old.add_special_tokens({"bos_token": "<s>"})
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 2}
    config = CwmConfig(vocab_size=len(old), num_key_value_heads=2, head_dim=8, bos_token_id=1, **sizes)
    m = CwmForCausalLM(config)
    refuse(m, old, new, r"CwmConfig\.bos_token_id has to be a number.*no bos token")
    new.add_special_tokens({"bos_token": "<s>"})
    other = copy.deepcopy(m)
    hf_embinit.replace_tokenizer(m, old, new)
    assert m.config.bos_token_id == new.bos_token_id
    pieces = tokenizer("wordpiece")
    hf_embinit.replace_tokenizer(other, old, pieces)  # what begins a text there is [CLS]
    assert other.config.bos_token_id == pieces.cls_token_id


def test_one_token_that_begins_and_ends_texts_and_is_unknown_becomes_what_begins_and_ends() -> None:
    m, old = made("gpt2")
    old.unk_token = old.eos_token  # as GPT-2 has it
    m.generation_config.bos_token_id = m.generation_config.eos_token_id = old.eos_token_id
    m.generation_config.bad_words_ids = [[old.eos_token_id]]
    new = word_pieces("a", "##b")
    hf_embinit.replace_tokenizer(m, old, new)
    for holder in (m.config, m.generation_config):
        assert (holder.bos_token_id, holder.eos_token_id) == (new.cls_token_id, new.sep_token_id)
    assert new.unk_token_id not in m.generation_config.bad_words_ids[0]
