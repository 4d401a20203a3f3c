"""Adapters of quantised models: equal logits, to the bit, after loading and after merging and reloading."""

from __future__ import annotations

import pytest
import torch
from builders.tiny_tokenizers import logits, model, tokenizer
from peft import get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

from hf_embinit import expand_vocabulary, load_adapter, merge_adapter, peft_config_for_new_tokens

NEW = [" zyxomma", " qorvex"]
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
    model(kind, len(t)).save_pretrained(tmp_path / "base")

    def base():
        return AutoModelForCausalLM.from_pretrained(
            tmp_path / "base", quantization_config=quantisation, device_map="cpu", dtype=torch.float32
        ).eval()

    m = base()
    assert type(m.get_submodule(PROJECTIONS[kind]).weight).__name__ == stored_as
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    targets = [PROJECTIONS[kind].rpartition(".")[2]]
    wrapped = get_peft_model(m, peft_config_for_new_tokens(m, new, target_modules=targets))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in wrapped.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator) / 10)
    ids = torch.tensor([t(f"the{NEW[0]} and the{NEW[1]} see")["input_ids"]])
    before = logits(wrapped.eval(), ids)
    wrapped.save_pretrained(tmp_path / "adapter")

    loaded = load_adapter(base(), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, ids), before)
    merged = merge_adapter(loaded)
    after = logits(merged, ids)  # the projection was quantised anew, the tables are what they were trained to
    torch.testing.assert_close(after, before, atol=0.2, rtol=0)
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", device_map="cpu").eval()
    assert again.config.vocab_size == 322
    assert torch.equal(logits(again, ids), after)
