"""`hf-embinit merge`: base and adapter become a plain checkpoint with its tokenizer."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

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


def test_a_chat_template_alone_is_no_tokenizer(trained, tmp_path) -> None:
    for file in (tmp_path / "adapter").glob("*token*"):
        file.unlink()
    assert [file.name for file in (tmp_path / "adapter").glob("*.jinja")] == ["chat_template.jinja"]
    words = ["merge", str(tmp_path / "base"), str(tmp_path / "adapter")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([*words, "--output_dir", str(tmp_path / "merged")]) == 0
    assert len(AutoTokenizer.from_pretrained(tmp_path / "merged")) == 320  # the base's


def test_merge_opens_a_pickle_only_when_told(trained, tmp_path, capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained.save_pretrained(tmp_path / "pickled", safe_serialization=False)
    AutoTokenizer.from_pretrained(tmp_path / "adapter").save_pretrained(tmp_path / "pickled")
    assert (tmp_path / "pickled" / "adapter_model.bin").is_file()
    words = ["merge", str(tmp_path / "base"), str(tmp_path / "pickled"), "--output_dir", str(tmp_path / "o")]
    assert main(words) == 1 and "give --allow_pickle" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
    assert main([*words, "--allow_pickle"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "o").eval()
    ids = torch.tensor([[320, 5, 321]])
    assert torch.equal(logits(merged, ids), logits(trained, ids))


def test_merge_refuses_what_does_not_fit(trained, tmp_path, capsys) -> None:
    model("gpt2", 300).save_pretrained(tmp_path / "other")
    for base, adapter, said in (
        ("other", "adapter", "base has 300 rows, but"),
        ("base", "base", "base has no adapter_config.json: give an adapter that PEFT has saved"),
    ):
        words = ["merge", str(tmp_path / base), str(tmp_path / adapter), "--output_dir", str(tmp_path / "o")]
        assert main(words) == 1 and said in capsys.readouterr().err
        assert not (tmp_path / "o").exists()


def test_merge_says_what_an_adapter_lacks(trained, tmp_path, capsys) -> None:
    """Files that a copy has lost, a kind that a newer PEFT wrote, and a base that grew before training."""
    from peft import LoraConfig, get_peft_model

    def broken(name: str, source: str = "adapter"):
        return Path(shutil.copytree(tmp_path / source, tmp_path / name))

    (broken("cut") / "adapter_model.safetensors").write_bytes(b"xx")
    (broken("without rows") / "embinit.safetensors").unlink()
    config = json.loads((broken("newer") / "adapter_config.json").read_text())
    (tmp_path / "newer" / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "NOPE"}))
    grown = model("gpt2", 322)
    saved = {"target_modules": ["c_attn"], "modules_to_save": ["wte"], "fan_in_fan_out": True}
    get_peft_model(grown, LoraConfig(task_type="CAUSAL_LM", **saved)).save_pretrained(tmp_path / "alone")
    narrow = get_peft_model(model("gpt2", 322), LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    narrow.save_pretrained(tmp_path / "another")
    config = json.loads((tmp_path / "another" / "adapter_config.json").read_text())
    (tmp_path / "another" / "adapter_config.json").write_text(json.dumps(config | {"r": 4}))
    for adapter, said in (
        ("another", "): give an adapter's folder or Hub id, and the model that it was trained on"),
        ("cut", "cut/adapter_model.safetensors cannot be read: Error while deserializing header"),
        ("without rows", "without rows has embinit.json and no embinit.safetensors: it is not complete"),
        ("newer", "newer cannot be put on base: it lacks 'NOPE'. base is changed by now: load it anew"),
        (
            "alone",
            "): it was trained on a base with more rows: have its program call hf_embinit.save_vocabulary",
        ),
    ):
        words = ["merge", str(tmp_path / "base"), str(tmp_path / adapter)]
        assert main([*words, "--output_dir", str(tmp_path / "o")]) == 1
        *_, error = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ") and said in error, error
        assert not (tmp_path / "o").exists()
