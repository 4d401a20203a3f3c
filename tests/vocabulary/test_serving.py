"""Merged and expanded checkpoints where they are served: GGUF files, by the tools of the package `gguf`."""

from __future__ import annotations

import pytest
import torch
from builders.tiny_tokenizers import logits, model, tokenizer
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from hf_embinit import expand_vocabulary, merge_adapter, peft_config_for_new_tokens

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

NEW = [" zyxomma", " qorvex"]


def write_gguf(m, t, file) -> None:
    """A Llama and its tokenizer, every tensor under the name that `gguf` gives it."""
    config = m.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    names = t.convert_ids_to_tokens(list(range(config.vocab_size)))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([name or f"[PAD{i}]" for i, name in enumerate(names)])
    mapped = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in m.state_dict().items():
        data = tensor.float()
        for part, count in heads.items():  # llama.cpp's order of rotary pairs
            if part in name:
                data = data.view(count, 2, -1, data.shape[1]).transpose(1, 2).reshape(data.shape)
        writer.add_tensor(mapped.get_name(name, try_suffixes=(".weight",)), data.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("padded", [None, 64])
@pytest.mark.parametrize("merged", [False, True], ids=["expanded", "merged"])
def test_sizes_and_logits_come_back_from_gguf(merged, padded, tmp_path) -> None:
    t = tokenizer("byte_level")
    m = model("llama", len(t)).eval()
    new = expand_vocabulary(
        m, t, NEW, "mean_cov", prefixes=(), pad_to_multiple_of=padded, scale=0.1
    ).token_ids
    if merged:
        wrapped = get_peft_model(m, peft_config_for_new_tokens(m, new, target_modules=["q_proj"]))
        with torch.no_grad():
            for p in wrapped.parameters():
                p.add_(0.01 * p.requires_grad)
        m = merge_adapter(wrapped).eval()
    rows = (padded and 384) or 322
    write_gguf(m, t, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(str(tmp_path / "model.gguf"))
    shapes = {tensor.name: list(tensor.shape) for tensor in reader.tensors}
    assert shapes["token_embd.weight"] == shapes["output.weight"] == [16, rows]
    tokens = reader.fields["tokenizer.ggml.tokens"]
    assert len(tokens.data) == rows == int(reader.fields["llama.vocab_size"].parts[-1][0])
    assert bytes(tokens.parts[tokens.data[new[0]]]).decode() == t.convert_ids_to_tokens(new[0])
    again = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").eval()
    assert again.config.vocab_size == rows
    ids = torch.tensor([t(f"the{NEW[0]} and the{NEW[1]}")["input_ids"]])
    torch.testing.assert_close(logits(again, ids), logits(m, ids), atol=1e-5, rtol=1e-4)
