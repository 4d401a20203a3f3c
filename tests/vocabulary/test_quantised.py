"""Quantised models grow, and equal logits, to the bit, come back from files, with and without adapters.

GPTQ, AWQ and HQQ are changed in their files, without a package that runs them: pip does not build gptqmodel,
which transformers 5.23 asks for for the first two, by itself; saved models of the third it does not load.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.adapters import stirred
from builders.tiny_tokenizers import logits, model, tokenizer
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from hf_embinit import expand_vocabulary, load_adapter, merge_adapter, peft_config_for_new_tokens
from hf_embinit.__main__ import main
from hf_embinit.errors import UnsupportedModelError

NEW = [" zyxomma", " qorvex"]
SIZES = {"gpt2": {"n_embd": 64}, "llama": {"hidden_size": 64, "intermediate_size": 64}}
"""Multiples of 32: what bitsandbytes packs 4-bit weights by on CPUs with AVX-512 BF16."""
PROJECTIONS = {"gpt2": "transformer.h.0.attn.c_attn", "llama": "model.layers.0.self_attn.q_proj"}


def four_bit():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)


def eight_bit():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    return BitsAndBytesConfig(load_in_8bit=True)


def int8():
    # not in the extra `dev`: transformers imports it where it is, seconds and warnings in every process
    pytest.importorskip("torchao", reason="torchao is not installed (pip install torchao==0.18.0)")
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


SCHEMES = {
    "bitsandbytes 4-bit": (four_bit, "Params4bit"),
    "bitsandbytes 8-bit": (eight_bit, "Int8Params"),
    "torchao int8": (int8, "Int8Tensor"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [pytest.param("gpt2", id="tied"), pytest.param("llama", id="untied")])
@pytest.mark.filterwarnings("ignore")
def test_rows_of_a_quantised_model_come_back(kind, scheme, tmp_path) -> None:
    make, stored_as = SCHEMES[scheme]
    quantisation = make()
    if (kind, scheme) == ("gpt2", "torchao int8"):
        pytest.skip("torchao quantises nn.Linear alone, which GPT-2 has none of beside its tied head")
    t = tokenizer("byte_level")
    model(kind, len(t), **SIZES[kind]).save_pretrained(tmp_path / "base")

    def base():
        return AutoModelForCausalLM.from_pretrained(
            tmp_path / "base", quantization_config=quantisation, device_map="cpu", dtype=torch.float32
        ).eval()

    m = base()
    assert type(m.get_submodule(PROJECTIONS[kind]).weight).__name__ == stored_as
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    targets = [PROJECTIONS[kind].rpartition(".")[2]]
    wrapped = stirred(get_peft_model(m, peft_config_for_new_tokens(m, new, target_modules=targets)))
    ids = torch.tensor([t(f"the{NEW[0]} and the{NEW[1]} see")["input_ids"]])
    before = logits(wrapped, ids)
    wrapped.save_pretrained(tmp_path / "adapter")

    loaded = load_adapter(base(), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, ids), before)
    merged = merge_adapter(load_adapter(base(), tmp_path / "adapter").eval())
    merged.save_pretrained(tmp_path / "merged")  # first: some CPUs have weights packed to run
    after = logits(merged, ids)  # the projection was quantised anew, the tables are what they were trained to
    assert (after - before).std() < 0.1 * before.std()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", device_map="cpu").eval()
    assert again.config.vocab_size == 322
    assert torch.equal(logits(again, ids), after)


@pytest.mark.filterwarnings("ignore")
def test_measuring_leaves_4_bit_weights_to_be_saved(tmp_path) -> None:
    """Some CPUs have weights packed to run, and bitsandbytes 0.50 saves those with scales out of order."""
    t = tokenizer("byte_level")
    model("llama", len(t), **SIZES["llama"]).save_pretrained(tmp_path / "base")
    saved = []
    for prefixes in ("generated", ()):
        m = AutoModelForCausalLM.from_pretrained(
            tmp_path / "base", quantization_config=four_bit(), device_map="cpu", dtype=torch.float32
        )
        report = expand_vocabulary(m, t if not saved else tokenizer("byte_level"), NEW, prefixes=prefixes)
        assert (report.shift is not None) is bool(prefixes) and not m.training
        m.save_pretrained(tmp_path / "grown")
        saved.append(load_file(tmp_path / "grown" / "model.safetensors"))
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


def compress(folder: Path) -> None:
    """Packs the linear layers of a checkpoint into 4 bits, as llm-compressor writes them for vLLM."""
    pytest.importorskip(
        "compressed_tensors",
        reason="compressed-tensors is not installed (pip install compressed-tensors==0.20.0)",
    )
    loaded = load_file(folder / "model.safetensors")  # of old versions, in the file that is written below
    tensors = {name: tensor.clone() for name, tensor in loaded.items()}
    for name in [name for name in loaded if "proj.weight" in name]:
        weight = tensors.pop(name)
        scale = weight.abs().amax(1, keepdim=True) / 7
        codes = ((weight / scale).round().clamp(-8, 7) + 8).long().view(len(weight), -1, 8)
        packed = (codes << (4 * torch.arange(8))).sum(-1)
        packed = torch.where(packed < 2**31, packed, packed - 2**32).int()
        tensors |= {f"{name}_packed": packed, f"{name}_scale": scale}
        tensors[f"{name}_shape"] = torch.tensor(weight.shape)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("scheme", [*SCHEMES, "compressed-tensors 4-bit"])
@pytest.mark.filterwarnings("ignore")
def test_a_quantised_model_grows_and_comes_back(scheme, tmp_path) -> None:
    make, stored_as = SCHEMES.get(scheme, (None, "weight_packed"))
    quantisation = {} if make is None else {"quantization_config": make()}
    t = tokenizer("byte_level")
    plain = model("llama", len(t), **SIZES["llama"])
    plain.save_pretrained(tmp_path / "base")
    if make is None:
        compress(tmp_path / "base")
    m = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", **quantisation, device_map="cpu", dtype=torch.float32
    ).eval()
    projection = m.get_submodule(PROJECTIONS["llama"])
    assert make is None or type(projection.weight).__name__ == stored_as
    assert make is not None or stored_as in dict(projection.named_parameters())
    ids = torch.tensor([t("the cat")["input_ids"]])
    torch.testing.assert_close(logits(m, ids), logits(plain, ids), atol=0.3, rtol=0)
    expand_vocabulary(m, t, NEW, "mean_cov", prefixes=())
    ids = torch.tensor([t(f"the{NEW[0]} and the{NEW[1]} see")["input_ids"]])
    before = logits(m, ids)
    m.save_pretrained(tmp_path / "grown")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "grown", device_map="cpu").eval()
    assert again.config.vocab_size == 322 and torch.equal(logits(again, ids), before)


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_head_is_refused_with_the_way_out(tmp_path) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    t = tokenizer("byte_level")
    model("llama", len(t), **SIZES["llama"]).save_pretrained(tmp_path)
    everything = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["nothing"])
    m = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=everything, device_map="cpu")
    with pytest.raises(UnsupportedModelError, match=r"lm_head.weight is quantised.*hf-embinit expand MODEL"):
        expand_vocabulary(m, t, NEW)
    assert NEW[0] not in t.get_vocab()


@pytest.mark.filterwarnings("ignore")
def test_a_head_of_torch_s_dynamic_quantisation_is_told_as_that() -> None:
    t = tokenizer("byte_level")
    m = model("llama", len(t), **SIZES["llama"])
    m = torch.ao.quantization.quantize_dynamic(m, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(UnsupportedModelError, match=r"the head of LlamaForCausalLM is quantised.*hf-embinit"):
        expand_vocabulary(m, t, NEW)
    assert NEW[0] not in t.get_vocab()


def packed(scheme: str, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a checkpoint has in the place of a linear layer's weight `[out, in]`: the names, shapes and
    dtypes that GPTQModel, AutoAWQ and hqq 0.2.8 write for 4 bits in groups of 16."""
    outputs, inputs = weight.shape
    codes = torch.arange(weight.numel() // 8, dtype=torch.int32) * 2_654_435
    if scheme == "gptq":
        return {
            f"{name}.qweight": codes.view(inputs // 8, outputs),
            f"{name}.qzeros": torch.full((inputs // 16, outputs // 8), 0x77777777, dtype=torch.int32),
            f"{name}.scales": weight.T.reshape(inputs // 16, 16, outputs).amax(1).half(),
            f"{name}.g_idx": torch.arange(inputs, dtype=torch.int32) // 16,
        }
    if scheme == "awq":
        return {
            f"{name}.qweight": codes.view(inputs, outputs // 8),
            f"{name}.qzeros": torch.full((inputs // 16, outputs // 8), 0x77777777, dtype=torch.int32),
            f"{name}.scales": weight.T.reshape(inputs // 16, 16, outputs).amax(1).half(),
        }
    settings = {"nbits": 4, "group_size": 16, "axis": 1, "view_as_float": False, "channel_wise": True}
    return {
        f"{name}.W_q": codes.view(torch.uint8).view(-1, 16)[: weight.numel() // 32].clone(),
        f"{name}.scale": weight.reshape(-1, 16).amax(1, keepdim=True).to(torch.bfloat16),
        f"{name}.zero": torch.full((weight.numel() // 16, 1), 7.5, dtype=torch.bfloat16),
        f"{name}.shape": torch.tensor(weight.shape),
        **{f"{name}.{key}": torch.tensor(value) for key, value in settings.items()},
    }


PACKED = {
    "gptq": {"bits": 4, "group_size": 16, "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
    "awq": {"bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"},
    "hqq": {"quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 16, "axis": 1}}},
}


@pytest.mark.parametrize("words", [("expand", "--tokens", *NEW), ("prune", "--keep", "Ġthe")])
@pytest.mark.parametrize("scheme", PACKED)
def test_a_packed_body_is_copied_without_the_package_that_runs_it(scheme, words, tmp_path, capsys) -> None:
    t = tokenizer("byte_level")
    folder, new = tmp_path / "model", tmp_path / "new"
    model("llama", len(t), **SIZES["llama"]).save_pretrained(folder)
    t.save_pretrained(folder)
    loaded = load_file(folder / "model.safetensors")  # of old versions, in the file that is written below
    tensors = {name: tensor.clone() for name, tensor in loaded.items()}
    for name in loaded:
        if "proj.weight" in name:
            tensors |= packed(scheme, name.removesuffix(".weight"), tensors.pop(name))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": scheme, **PACKED[scheme]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "quantize_config.json").write_text(json.dumps(PACKED[scheme]))  # GPTQ's own

    assert main([words[0], str(folder), *words[1:], "--output_dir", str(new)]) == 0, capsys.readouterr()
    made, tables = load_file(new / "model.safetensors"), ("model.embed_tokens.weight", "lm_head.weight")
    assert set(made) == set(tensors)
    for name in made:
        if name in tables:
            assert len(made[name]) == json.loads((new / "config.json").read_text())["vocab_size"] != len(t)
        else:
            assert made[name].dtype == tensors[name].dtype and torch.equal(made[name], tensors[name]), name
    kept = json.loads((new / "config.json").read_text())["quantization_config"]
    assert kept == config["quantization_config"]
    assert (new / "quantize_config.json").read_bytes() == (folder / "quantize_config.json").read_bytes()
