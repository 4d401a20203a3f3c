"""An adapter merged while its base is copied: what loading, merging and saving gives.

Byte for byte, but for matrices that are merged by blocks: on some processors the product of a block of
columns differs from that of the whole in its last bit.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from builders.adapters import quietly, saved_base, stirred
from peft import LoraConfig, TrainableTokensConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import hf_embinit
from hf_embinit.__main__ import main
from hf_embinit.errors import UnsupportedModelError
from hf_embinit.vocabulary import adapters_on_disk, attach_adapter, carry_vocabulary

NEW = [" zyxomma", " qorvex"]
MODULES = {"gpt2": ("c_attn", "wte"), "llama": ("q_proj", "embed_tokens"), "bart": ("v_proj", "shared")}
CONFIGS = {
    "rows": lambda m, new, matrix, table: hf_embinit.peft_config_for_new_tokens(m, new),
    "trained rows": lambda m, new, matrix, table: TrainableTokensConfig(
        token_indices=[3, 8], target_modules=[table]
    ),
    "lora": lambda m, new, matrix, table: LoraConfig(
        target_modules=[matrix, "lm_head"], use_rslora=True, rank_pattern={"1": 3}, alpha_pattern={"0": 5}
    ),
    "table saved": lambda m, new, matrix, table: LoraConfig(target_modules=[matrix], modules_to_save=[table]),
    "head saved": lambda m, new, matrix, table: LoraConfig(
        target_modules=[matrix], modules_to_save=["lm_head"]
    ),
    "lora on the table": lambda m, new, matrix, table: LoraConfig(target_modules=[table, matrix]),
    "every matrix": lambda m, new, matrix, table: LoraConfig(target_modules="all-linear"),
    "positions": lambda m, new, matrix, table: LoraConfig(
        target_modules=["wpe" if hasattr(m.config, "n_embd") else "o_proj"]
    ),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that even these matrices are merged in several."""
    monkeypatch.setattr(adapters_on_disk, "_MERGED_BYTES", 2**9)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="peft")
        yield


def trained(kind: str, config: str, folder: Path, grow: bool = True, dtype=torch.float32) -> type:
    """Saves a base and a stirred adapter of it; gives the base's class."""
    m, t = saved_base(kind, folder / "base")
    m.to(dtype).save_pretrained(folder / "base")
    new = hf_embinit.expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids if grow else []
    wrapped = get_peft_model(m, CONFIGS[config](m, new, *MODULES[kind]))
    if grow:
        carry_vocabulary(wrapped)
    quietly(stirred(wrapped).save_pretrained, folder / "adapter")
    return type(m)


def merged_both_ways(folder: Path, base_class: type, grow: bool = True) -> None:
    attach = hf_embinit.load_adapter if grow else attach_adapter
    for name, base in (
        ("memory", base_class.from_pretrained(folder / "base")),
        ("disk", hf_embinit.open_checkpoint(folder / "base")),
    ):
        merged = hf_embinit.merge_adapter(quietly(attach, base, folder / "adapter"))
        hf_embinit.save_checkpoint(merged, folder / name)


def same_weights(loaded: dict[str, torch.Tensor], written: dict[str, torch.Tensor]) -> None:
    """The same tensors, and those that no product of LoRA is added to bit for bit."""
    assert list(loaded) == list(written)
    for name, tensor in loaded.items():
        torch.testing.assert_close(written[name], tensor, rtol=1e-6, atol=1e-7)
        assert "c_" in name or "wpe" in name or torch.equal(written[name], tensor), name


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_what_a_loaded_base_gives(kind: str, config: str, tmp_path: Path) -> None:
    """Tied and untied, with new tokens: the head that is trained apart gets a tensor of its own."""
    merged_both_ways(tmp_path, trained(kind, config, tmp_path))
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "memory" / name).read_bytes() == (tmp_path / "disk" / name).read_bytes(), name
    same_weights(*(load_file(tmp_path / way / "model.safetensors") for way in ("memory", "disk")))


@pytest.mark.parametrize(("kind", "dtype"), [("llama", torch.bfloat16), ("bart", torch.float32)])
def test_without_new_tokens(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    base_class = trained(kind, "lora", tmp_path, grow=False, dtype=dtype)
    merged_both_ways(tmp_path, base_class, grow=False)
    name = "model.safetensors"
    assert (tmp_path / "memory" / name).read_bytes() == (tmp_path / "disk" / name).read_bytes()
    assert (tmp_path / "base" / name).read_bytes() != (tmp_path / "disk" / name).read_bytes()


def test_the_command_on_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New rows and nothing else: files without a table are linked, and a head of its own is in the index."""
    base_class = trained("gpt2", "head saved", tmp_path)
    base = base_class.from_pretrained(tmp_path / "base")
    base.save_pretrained(tmp_path / "sharded", max_shard_size="16KB")
    command = ["merge", str(tmp_path / "sharded"), str(tmp_path / "adapter")]
    assert main([*command, "--output_dir", str(tmp_path / "o"), "--link", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["on_disk"] and told["rows"] == [320, 322] and not told["tie_word_embeddings"]
    merged_both_ways(tmp_path, base_class)
    expected = load_file(tmp_path / "memory" / "model.safetensors")
    index = json.loads((tmp_path / "o" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == expected.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in expected.values())
    assert index["metadata"]["total_parameters"] == sum(t.numel() for t in expected.values())
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "o").state_dict()
    same_weights(expected, {name: found[name] for name in expected})
    linked = [p for p in (tmp_path / "o").iterdir() if p.stat().st_nlink == 2]
    assert linked and all("c_attn" not in str(load_file(p).keys()) for p in linked)


def test_an_adapter_that_is_no_sum_for_each_tensor_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    m, _ = saved_base("llama", tmp_path / "base")
    wrapped = stirred(get_peft_model(m, LoraConfig(target_modules=["q_proj"], use_dora=True)))
    wrapped.save_pretrained(tmp_path / "adapter")
    opened = hf_embinit.open_checkpoint(tmp_path / "base")
    with pytest.raises(UnsupportedModelError, match=r"it has use_dora=True\): load its base with from_pre"):
        attach_adapter(opened, tmp_path / "adapter")
    command = [
        "merge",
        str(tmp_path / "base"),
        str(tmp_path / "adapter"),
        "--output_dir",
        str(tmp_path / "o"),
    ]
    assert main([*command, "--link"]) == 1 and not (tmp_path / "o").exists()
    assert main(command) == 0
    assert "loaded the base: " in capsys.readouterr().out
    expected = wrapped.merge_and_unload().state_dict()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "o").state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_matrix_that_the_files_hold_otherwise_is_said(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    trained("llama", "lora", tmp_path, grow=False)
    file = tmp_path / "base" / "model.safetensors"
    tensors = {k: t.clone() for k, t in load_file(file).items()}
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, file, {"format": "pt"})
    adapted = quietly(attach_adapter, hf_embinit.open_checkpoint(tmp_path / "base"), tmp_path / "adapter")
    with pytest.raises(UnsupportedModelError, match=f"the files hold {name}, which the adapter changes, in"):
        hf_embinit.merge_adapter(adapted)
