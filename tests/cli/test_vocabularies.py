"""`hf-embinit merge`: base and adapter become a plain checkpoint with its tokenizer."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from builders.tiny_tokenizers import logits, model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_embinit import expand_vocabulary, peft_config_for_new_tokens
from hf_embinit.__main__ import main

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def trained(tmp_path):
    """A base and an adapter of it with two more tokens, saved; and the PEFT model."""
    from peft import get_peft_model

    t = tokenizer("byte_level")
    base = model("gpt2", len(t))
    base.generation_config.max_new_tokens = 7
    base.generation_config.max_length = None
    base.save_pretrained(tmp_path / "base")
    t.save_pretrained(tmp_path / "base")
    m = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    new = expand_vocabulary(m, t, [" zyxomma", " qorvex"], "mean_cov", prefixes=()).token_ids
    t.chat_template = TEMPLATE
    wrapped = get_peft_model(m, peft_config_for_new_tokens(m, new, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for p in wrapped.parameters():
            if p.requires_grad:
                p += 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped.save_pretrained(tmp_path / "adapter")
    t.save_pretrained(tmp_path / "adapter")
    return wrapped.eval()


def test_merge(trained, tmp_path, capsys) -> None:
    folders = [str(tmp_path / name) for name in ("base", "adapter", "merged")]
    assert main(["merge", *folders[:2], "--output_dir", folders[2], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == [320, 322] and told["tie_word_embeddings"] is True
    assert [e["event"] for e in told["events"]] == ["expand_vocabulary", "merge_adapter"]
    merged = AutoModelForCausalLM.from_pretrained(folders[2]).eval()
    t = AutoTokenizer.from_pretrained(folders[2])
    ids = torch.tensor([t("the zyxomma and the qorvex")["input_ids"]])
    assert ids.max() == 321
    assert torch.equal(logits(merged, ids), logits(trained, ids))
    assert t.chat_template == TEMPLATE and merged.generation_config.max_new_tokens == 7


def test_merge_refuses_what_does_not_fit(trained, tmp_path, capsys) -> None:
    model("gpt2", 300).save_pretrained(tmp_path / "other")
    for base, adapter, said in (
        ("other", "adapter", "base has 300 rows, but"),
        ("base", "base", "cannot be loaded onto this base"),
    ):
        words = ["merge", str(tmp_path / base), str(tmp_path / adapter), "--output_dir", str(tmp_path / "o")]
        assert main(words) == 1 and said in capsys.readouterr().err
        assert not (tmp_path / "o").exists()
