"""`recipes/chat_tokens.py` as a user starts it: from a chat template to answers of the merged checkpoint."""

from __future__ import annotations

import json

import pytest
import torch
from builders.recipes import run_recipe
from builders.tiny_tokenizers import logits, model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_embinit import load_adapter

pytest.importorskip("trl", reason="TRL is not installed")


def test_from_the_template_to_an_answer_after_the_merge(tmp_path) -> None:
    t = tokenizer("byte_level")
    t.save_pretrained(tmp_path / "base")
    model("llama", len(t) + 64, max_position_embeddings=256).save_pretrained(tmp_path / "base")
    out = tmp_path / "out"
    flags = ["--model", str(tmp_path / "base"), "--output_dir", str(out), "--init", "mean_cov:scale=auto"]
    flags += ["--max_steps", "3", "--batch_size", "2", "--max_train_samples", "16"]
    done = run_recipe("chat_tokens", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 control tokens: <|im_start|>, <|im_end|>" in done.stdout and "\ndog grass: " in done.stdout
    merged = AutoModelForCausalLM.from_pretrained(out / "merged")
    grown = AutoTokenizer.from_pretrained(out / "merged")
    assert merged.config.vocab_size == 384 and grown.eos_token == "<|im_end|>"
    assert merged.generation_config.eos_token_id == grown.eos_token_id
    events = [event["event"] for event in merged.config.embinit]
    assert events == ["resize", "merge_adapter"]
    rows = json.loads((out / "adapter" / "adapter_config.json").read_text())["trainable_token_indices"]
    assert {tuple(ids) for ids in rows.values()} == {(320, 321)}
    text = grown.apply_chat_template([{"role": "user", "content": "dog"}], return_dict=False)
    ids = torch.tensor([text])
    assert 320 in text and 321 in text
    again = load_adapter(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), out / "adapter").eval()
    torch.testing.assert_close(logits(merged.eval(), ids), logits(again, ids), atol=1e-4, rtol=1e-4)
