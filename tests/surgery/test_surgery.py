"""Layers reversed and removed, to the bit: ties, caches, configs and reloading on many architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from builders.surgery_models import (
    ALL,
    BERT,
    GENERATING,
    HUB,
    TOKENS,
    VANILLAS,
    build,
    logits,
    same,
    stack_of,
    values,
)
from packaging.version import Version
from torch import nn

from hf_embinit import surgery
from hf_embinit.errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError
from hf_embinit.manifest import read_manifest


def moving(details: dict[str, Any], name: str, layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The part of a layer's values that moved with it."""
    path = VANILLAS[name][1] if name in VANILLAS else HUB[name][3]
    stay = [s.removeprefix(f"{path}.*.") for s in details.get("stay", [])]
    return {k: v for k, v in layer.items() if not any(k.startswith(f"{s}.") for s in stay)}


@pytest.mark.parametrize("name", ALL)
def test_reversed_to_the_bit(name: str, global_rng_untouched: None) -> None:
    model = build(name)
    before = [values(layer) for layer in stack_of(model, name)]
    everything, out = values(model), logits(model)
    assert surgery.apply(model, "reversed") is model
    details = read_manifest(model)[-1]
    after = [values(layer) for layer in stack_of(model, name)]
    for old, new in zip(reversed(before), after, strict=True):
        assert same(moving(details, name, old), moving(details, name, new))
    assert not torch.allclose(logits(model), out, atol=1e-4)
    surgery.apply(model, "reversed")
    assert same(values(model), everything)
    assert torch.equal(logits(model), out)


@pytest.mark.parametrize("spec", ["reversed", "remove_last_2", "remove_every_2", "keep_1,2"])
@pytest.mark.parametrize("name", ALL)
def test_save_and_reload(name: str, spec: str, tmp_path: Any) -> None:
    if (name, spec) == ("modernbert", "keep_1,2") and Version(transformers.__version__) < Version("5.17"):
        pytest.skip("transformers 5.16 builds no ModernBERT without a layer of full attention")
    model = surgery.apply(build(name), spec)
    size = len(stack_of(model, name))
    assert size == (4 if spec == "reversed" else 2)
    model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert len(stack_of(again, name)) == size
    assert torch.equal(logits(again.eval()), logits(model))
    assert {k: v for k, v in again.config.to_dict().items() if k != "_name_or_path"} == {
        k: v for k, v in model.config.to_dict().items() if k != "_name_or_path"
    } | {k: again.config.to_dict()[k] for k in ("dtype", "architectures")}


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ("remove_last_1", [0, 1, 2]),
        ("remove_last_3", [0]),
        ("remove_every_2", [0, 2]),
        ("remove_every_3", [0, 1, 3]),
        ("keep_0,3", [0, 3]),
        ("keep_2+reversed", [2]),
        ("remove_last_1+reversed", [2, 1, 0]),
    ],
)
@pytest.mark.parametrize("name", ["bert", "llama", "distilbert"])
def test_which_layers_are_left(name: str, spec: str, kept: list[int]) -> None:
    model = build(name)
    before = list(stack_of(model, name))
    surgery.apply(model, spec)
    assert [before.index(layer) for layer in stack_of(model, name)] == kept
    assert model.config.num_hidden_layers == len(kept)
    logits(model)


@pytest.mark.parametrize("spec", ["reversed", "remove_every_2", "keep_1,2"])
@pytest.mark.parametrize("name", GENERATING)
def test_generation_with_a_cache(name: str, spec: str) -> None:
    model = surgery.apply(build(name), spec)
    kwargs: dict[str, Any] = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    ids = torch.arange(3, 9)[None]
    outputs = [model.generate(ids, use_cache=cache, **kwargs) for cache in (True, False)]
    assert torch.equal(*outputs)
    indices = [
        [m.layer_idx for m in layer.modules() if hasattr(m, "layer_idx")] for layer in stack_of(model, name)
    ]
    assert all(set(found) <= {i} for i, found in enumerate(indices))


def test_per_layer_lists_of_the_config_follow() -> None:
    model = build("gemma2")
    model_kinds = list(model.config.layer_types)
    modules = list(stack_of(model, "gemma2"))
    assert model_kinds[0] != model_kinds[1]
    surgery.apply(model, "reversed")
    assert model.config.layer_types == model_kinds[::-1]
    surgery.apply(model, "keep_0,1,3")
    assert model.config.layer_types == [model_kinds[3], model_kinds[2], model_kinds[0]]
    kinds = [layer.self_attn.sliding_window is not None for layer in stack_of(model, "gemma2")]
    assert kinds == [t == "sliding_attention" for t in model.config.layer_types]
    assert [modules.index(layer) for layer in stack_of(model, "gemma2")] == [3, 2, 0]


def test_lists_of_layer_indices_follow() -> None:
    config = transformers.Qwen3MoeConfig(
        **BERT, **TOKENS, num_key_value_heads=1, head_dim=8, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=8, mlp_only_layers=[0],
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    dense = model.model.layers[0].mlp
    surgery.apply(model, "reversed")
    assert model.config.mlp_only_layers == [3]
    assert model.model.layers[3].mlp is dense
    surgery.apply(model, "remove_last_1")
    assert model.config.mlp_only_layers == []


def test_t5s_relative_positions_stay_in_the_first_layer() -> None:
    model = build("t5")
    first, last = model.encoder.block[0], model.encoder.block[2]
    table = first.layer[0].SelfAttention.relative_attention_bias
    surgery.apply(model, "reversed")
    assert model.encoder.block[0] is last
    assert last.layer[0].SelfAttention.relative_attention_bias is table
    assert last.layer[0].SelfAttention.has_relative_attention_bias
    assert not hasattr(first.layer[0].SelfAttention, "relative_attention_bias")
    assert not first.layer[0].SelfAttention.has_relative_attention_bias
    stay = read_manifest(model)[-1]["stay"]
    assert "encoder.block.*.layer.0.SelfAttention.relative_attention_bias" in stay
    assert (model.encoder.config.num_layers, model.decoder.config.num_layers) == (3, 4)
    surgery.apply(model, "remove_last_1")
    assert (model.config.num_layers, model.config.num_decoder_layers) == (2, 3)
    assert (model.encoder.config.num_layers, model.decoder.config.num_layers) == (2, 3)


def test_modernberts_first_layer_lacks_a_norm() -> None:
    model = build("modernbert")
    first, last = model.model.layers[0], model.model.layers[3]
    norm = last.attn_norm
    surgery.apply(model, "reversed")
    assert isinstance(last.attn_norm, nn.Identity) and first.attn_norm is norm


def test_half_of_bert_base_has_66_of_110_million_parameters() -> None:
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig())
    assert round(model.num_parameters() / 1e6) == 109  # the thesis says 110
    assert model.num_parameters() == 109_482_240
    surgery.apply(model, "remove_every_2")
    assert model.num_parameters() == 66_955_008  # 109,482,240 - 6 * 7,087,872
    with torch.device("meta"):
        other = transformers.BertModel(transformers.BertConfig())
    assert surgery.apply(other, "remove_last_6").num_parameters() == 66_955_008


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "bart", "vanilla-seq2seq"])
def test_ties_stay(name: str) -> None:
    model = build(name)
    tied = {id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    names = {n for n, p in model.named_parameters()}
    surgery.apply(model, "reversed")
    assert {id(p) for n, p in model.named_parameters(remove_duplicate=False)} == tied
    assert {n for n, p in model.named_parameters()} == names
    if model.config.tie_word_embeddings:
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("spec", ["reversed", "remove_last_1"])
def test_albert_is_refused_with_a_reason(spec: str) -> None:
    config = transformers.AlbertConfig(**{**BERT, "embedding_size": 8})
    model = transformers.AlbertForMaskedLM(config)
    before = values(model)
    with pytest.raises(UnsupportedModelError, match=r"AlbertForMaskedLM.*num_hidden_layers=4.*share"):
        surgery.apply(model, spec)
    assert same(values(model), before) and read_manifest(model) == []


def test_a_model_that_is_not_its_configs_is_refused() -> None:
    model = build("bert")
    del model.bert.encoder.layer[3]
    with pytest.raises(UnsupportedModelError, match="not its config's"):
        surgery.apply(model, "reversed")


def test_what_the_user_set_on_modules_stays() -> None:
    model = build("bert").train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.37
    for parameter in model.bert.encoder.layer[0].parameters():
        parameter.requires_grad_(False)
    surgery.apply(model, "reversed")
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.37}
    assert model.training and all(m.training for m in model.modules())
    assert not any(p.requires_grad for p in model.bert.encoder.layer[3].parameters())
    assert all(p.requires_grad for p in model.bert.encoder.layer[0].parameters())


def test_the_record() -> None:
    model = surgery.apply(build("bert"), "reversed+remove_last_1", seed=7)
    first, second = read_manifest(model)
    assert first["event"] == second["event"] == "surgery"
    assert (first["surgery"], second["surgery"]) == ("reversed", "remove_last_1")
    assert first["seed"] == 7
    assert first["layers"] == {"bert.encoder.layer": [3, 2, 1, 0]}
    assert second["layers"] == {"bert.encoder.layer": [0, 1, 2]}
    assert model.bert.config is model.config


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("remove_last_0", "leave all"),
        ("remove_last_4", "leave none"),
        ("remove_every_1", "leave none"),
        ("remove_every_9", "leave all"),
        ("remove_every_0", "leave none"),
        ("keep_4", "no layer 4"),
        ("keep_1,1", "ascend"),
        ("", "joined by"),
        ("reversed+", "joined by"),
    ],
)
def test_bad_numbers(spec: str, says: str) -> None:
    model = build("bert")
    before = values(model)
    with pytest.raises(InvalidArgumentError, match=says):
        surgery.apply(model, spec)
    assert same(values(model), before)


@pytest.mark.parametrize(
    ("spec", "suggests"),
    [
        ("revresed", "reversed"),
        ("remove_last", "remove_last_<n>"),
        ("reversed+shufled_embeddings", "shuffled"),
    ],
)
def test_unknown_names_suggest(spec: str, suggests: str) -> None:
    model = build("bert")
    with pytest.raises(UnknownNameError, match="Did you mean.*" + suggests):
        surgery.apply(model, spec)
    assert read_manifest(model) == []


def test_options_and_check() -> None:
    surgery.check("reversed+clean")
    with pytest.raises(InvalidArgumentError, match="no option 'deep'; it has none"):
        surgery.check("reversed", deep=True)
    with pytest.raises(InvalidArgumentError, match="needs donor="):
        surgery.check("donor_embeddings")
    with pytest.raises(InvalidArgumentError, match="give tokenizer="):
        surgery.check("shuffled_embeddings")
    surgery.check("donor_embeddings+shuffled_embeddings", donor="somewhere")
    with pytest.raises(InvalidArgumentError, match="seed='x'"):
        surgery.apply(build("bert"), "reversed", seed="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("zeros+normal", {"std": -1.0}, "std=-1.0"),
        ("zeros+pretrained_shuffled", {"mode": "x", "vectors": "v.txt"}, "mode='x'"),
        ("zeros+pretrained_xavier", {}, "needs vectors="),
        ("zeros+pretrained_xavier", {"vectors": 3}, "vectors=3"),
    ],
)
def test_an_initialisers_options_are_checked_before_the_first_step(spec, options, says) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        surgery.check(spec, True, **options)
    model = build("bert")
    before = values(model)
    with pytest.raises(InvalidArgumentError, match=says if "pretrained" not in spec else None):
        surgery.apply(model, spec, **options)
    assert same(values(model), before)


def test_list() -> None:
    records = surgery.list()
    assert [r.name for r in records] == sorted(r.name for r in records)
    assert {
        "reversed", "remove_last_<n>", "remove_every_<k>", "keep_<i,j,...>", "clean", "clean_embeddings",
        "shuffled_embeddings", "donor_embeddings", "matched_variance", "matched_magnitude", "oracle",
    } == {r.name for r in records}  # fmt: skip
    assert all(r.summary and r.reference.startswith("Zhang 2021") for r in records)
