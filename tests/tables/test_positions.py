"""What models do to the rows of their input tables, read from them and measured in their first layer."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from builders.architectures import VOCAB, build, classes, logits_of
from torch import Tensor
from transformers import PreTrainedModel

from hf_embinit.initializers import InputPositions
from hf_embinit.tables import EmbeddingTables, input_positions, input_scale

LENGTH = 20
D = 32


def inputs_of_modules(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """Every `[LENGTH, D]` that a module of `model` is given for the text `ids` `[LENGTH]`, in order."""
    seen: list[Tensor] = []

    def look(module, args, kwargs) -> None:
        for x in (*args, *kwargs.values()):
            if isinstance(x, Tensor) and x.is_floating_point() and x.numel() == LENGTH * D and x.dim() == 3:
                seen.append(x.detach().reshape(LENGTH, D).clone())

    hooks = [m.register_forward_pre_hook(look, with_kwargs=True) for m in model.modules()]
    with torch.no_grad():
        logits_of(model, ids[None])
    for hook in hooks:
        hook.remove()
    return seen


def is_added(model: PreTrainedModel, expected: Tensor, ids: Tensor) -> bool:
    """Whether a module of `model` is given exactly `expected` `[LENGTH, D]`."""
    return any(torch.allclose(x, expected, atol=1e-4) for x in inputs_of_modules(model, ids))


def drawn(name: str, **overrides: object) -> tuple[PreTrainedModel, EmbeddingTables]:
    """A small model of the class, its input tables N(0, 1), so that no input looks like another."""
    model = build(name, **overrides).eval()
    tables = EmbeddingTables(model)
    generator = torch.Generator().manual_seed(0)
    for table in tables.input_tables:
        tables.write(table, torch.randn(tables.read(table).shape, generator=generator))
    return model, tables


@pytest.mark.parametrize(
    "name",
    [
        "CTRLLMHeadModel",
        "M2M100ForConditionalGeneration",
        "MarianMTModel",
        "MarianForCausalLM",
        "NllbMoeForConditionalGeneration",
        "PegasusForConditionalGeneration",
        "PegasusXForConditionalGeneration",
        "SeamlessM4TForTextToText",
        "SeamlessM4Tv2ForTextToText",
        "XGLMForCausalLM",
    ],
)
def test_fixed_positions_are_those_that_reach_the_first_layer(name) -> None:
    model, tables = drawn(name)
    ids = torch.arange(30, 30 + LENGTH)
    table = tables.input_tables[0]
    positions = input_positions(model, table)
    assert isinstance(positions, InputPositions) and positions.scale == input_scale(model, table)
    assert len(positions.encodings) >= 128 and positions.position_scale is None
    squares = positions.encodings.square().sum(1)
    assert torch.allclose(squares, torch.full_like(squares, D / 2), atol=1e-3)  # sines and cosines
    rows = positions.scale * tables.read(table)[ids]
    assert is_added(model, rows + positions.encodings[:LENGTH], ids)
    assert not is_added(model, rows + positions.encodings[1 : LENGTH + 1], ids)


def test_xglm_counts_from_its_own_offset_whatever_the_padding_token() -> None:
    model, tables = drawn("XGLMForCausalLM", pad_token_id=0)
    ids = torch.arange(30, 30 + LENGTH)
    positions = input_positions(model, tables.input_tables[0])
    rows = positions.scale * tables.read(tables.input_tables[0])[ids]
    assert is_added(model, rows + positions.encodings[:LENGTH], ids)


@pytest.mark.parametrize(
    "name",
    [
        *("BertForMaskedLM", "BartForConditionalGeneration", "DistilBertForMaskedLM", "GPT2LMHeadModel"),
        *("GPTJForCausalLM", "LlamaForCausalLM", "T5ForConditionalGeneration"),
    ],
)
def test_others_add_no_fixed_sines(name) -> None:
    model, tables = drawn(name)
    assert (
        input_positions(model, tables.input_tables[0])
        == f"{name} is not known to add fixed sines to its rows"
    )


def test_sines_that_turn_queries_are_not_added_to_rows() -> None:
    model, tables = drawn("RoFormerForMaskedLM", num_attention_heads=1)
    assert model.roformer.encoder.embed_positions.weight.shape[1] == D  # a head as wide as the rows
    assert isinstance(input_positions(model, tables.input_tables[0]), str)


def test_sines_that_are_trained_are_not_fixed() -> None:
    model, tables = drawn("FSMTForConditionalGeneration")
    trains = "FSMTForConditionalGeneration trains the sines that it adds"
    assert input_positions(model, tables.input_tables[0]) == trains
    positions = input_positions(model.requires_grad_(False), tables.input_tables[0])
    assert isinstance(positions, InputPositions) and len(positions.encodings) == 128


def test_sines_without_values_are_said_to_have_none() -> None:
    with torch.device("meta"):
        model = build("MarianMTModel")
    said = input_positions(model, EmbeddingTables(model).input_tables[0])
    assert said == "the sines that MarianMTModel adds are on the meta device, so they have no values here"


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("BertForMaskedLM", {}, 1.0),
        ("LlamaForCausalLM", {}, 1.0),
        ("BartForConditionalGeneration", {"scale_embedding": True}, math.sqrt(D)),
        ("BartForConditionalGeneration", {}, 1.0),
        ("MarianMTModel", {"scale_embedding": True}, math.sqrt(D)),
        ("BioGptForCausalLM", {}, math.sqrt(D)),
        ("CTRLLMHeadModel", {}, math.sqrt(D)),
        ("GemmaForCausalLM", {}, math.sqrt(D)),
        ("Gemma2ForCausalLM", {}, math.sqrt(D)),
        ("Gemma3ForCausalLM", {}, math.sqrt(D)),
        ("RecurrentGemmaForCausalLM", {}, math.sqrt(D)),
        ("T5GemmaForConditionalGeneration", {}, math.sqrt(D)),
        ("GraniteForCausalLM", {"embedding_multiplier": 12.0}, 12.0),
    ],
)
def test_the_factor_is_what_the_model_multiplies_by(name, overrides, expected) -> None:
    model, tables = drawn(name, **overrides)
    table = tables.input_tables[0]
    assert input_scale(model, table) == pytest.approx(expected, abs=1e-3)
    ids, others = torch.arange(30, 30 + LENGTH), torch.arange(100, 100 + LENGTH)
    assert int(others.max()) < VOCAB
    change = input_scale(model, table) * (tables.read(table)[ids] - tables.read(table)[others])
    inputs = zip(inputs_of_modules(model, ids), inputs_of_modules(model, others), strict=True)
    assert any(torch.allclose(x - y, change, atol=0.03) for x, y in inputs)


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    """The factor and the positions of every language model class, measured; those that cannot be built or
    measured are printed."""
    ids, others = torch.arange(30, 30 + LENGTH), torch.arange(100, 100 + LENGTH)
    wrong, unmeasured, with_sines = [], [], []
    for _, _, name in classes():
        try:
            model, tables = drawn(name)
            table = tables.input_tables[0]
            rows, other_rows = (tables.read(table).float()[text] for text in (ids, others))
            pairs = list(zip(inputs_of_modules(model, ids), inputs_of_modules(model, others), strict=False))
        except (Exception, SystemExit) as problem:
            unmeasured.append(f"{name}: {type(problem).__name__}")
            continue
        if table.embedding_dim != D:
            unmeasured.append(f"{name}: its rows have width {table.embedding_dim}")
            continue
        change = rows - other_rows
        factors = [
            (float((x - y).flatten() @ change.flatten() / change.square().sum()), x, y) for x, y in pairs
        ]
        linear = [f for f, x, y in factors if f > 0.1 and torch.allclose(x - y, f * change, atol=0.03)]
        if not linear:
            unmeasured.append(f"{name}: its rows are mixed at once")
        elif not any(abs(f - input_scale(model, table)) < 1e-2 for f in linear):
            wrong.append(f"{name}: {input_scale(model, table)} and not {linear[:3]}")
        scale, added = input_scale(model, table), []
        for f, x, y in factors:
            rest = x - scale * rows
            if abs(f - scale) < 1e-2 and torch.allclose(rest, y - scale * other_rows, atol=0.03):
                added.append(rest)
        squares = [rest.square().sum(1) for rest in added]
        sines = any(torch.allclose(s, torch.full_like(s, D / 2), atol=0.2) for s in squares)
        said = input_positions(model, table)
        if sines:
            with_sines.append(name)
        if sines == isinstance(said, str) and "trains the sines" not in str(said):
            wrong.append(f"{name}: sines {sines}, and {said}")
    with capsys.disabled():
        sys.stdout.write(f"\nsines: {with_sines}\nnot measured: {unmeasured}\n")
    assert not wrong and len(with_sines) > 10
