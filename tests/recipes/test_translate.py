"""`recipes/translate.py` as a user starts it: small runs of the real command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from builders.recipes import (
    Done,
    kill_and_resume,
    refuses_to_run_again,
    run_recipe,
    same_weights,
)
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_embinit
from hf_embinit.records.record import read_record

SMALL = [
    *("--max_train_samples", "192", "--max_eval_samples", "24", "--max_predict_samples", "24"),
    *("--d_model", "16", "--d_ff", "32", "--num_layers", "1", "--num_heads", "2"),
    *("--per_device_train_batch_size", "16", "--num_train_epochs", "2", "--max_target_length", "24"),
    *("--min_frequency", "1", "--use_cpu", "--disable_tqdm", "true"),
]


def translate(*arguments: str, **env: str) -> Done:
    return run_recipe("translate", *arguments, **env)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One finished run of two epochs and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "xavier"
    done = translate(*SMALL, "--output_dir", str(folder), "--seed", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stdout


def test_the_run_folder_is_complete(finished) -> None:
    folder, printed = finished
    record = read_record(folder)
    assert (record.task, record.dataset, record.init, record.seed) == ("translation", "captions", "xavier", 3)
    assert len(record.history) == 2
    assert {"train_loss", "validation_loss", "validation_bleu"} <= set(record.history[0])
    assert {"test_bleu", "test_bleu_tokenized", "test_loss"} <= set(record.metrics)
    assert record.best_epoch == min(record.history, key=lambda row: row["validation_loss"])["epoch"]
    assert "case:lc" in record.signature["test_bleu"] and "tok:13a" in record.signature["test_bleu"]
    assert "tok:none" in record.signature["test_bleu_tokenized"]
    assert record.runtime["tokens_per_second"] > 0 and record.runtime["world_size"] == 1
    names = set(record.embedding_statistics)
    assert len(names) == 2
    for statistics in record.embedding_statistics.values():
        before, after = statistics["before_scaling"]["std"], statistics["after_scaling"]["std"]
        assert after == pytest.approx(4 * before)  # sqrt(16)
        there = statistics["in_positions"]
        assert 0 < there["energy"] < 1 and 0 < there["dimensions"] <= 16
        assert 0 < abs(there["energy_after_training"] - there["energy"]) < 0.5
    for name in ("README.md", "test_predictions.jsonl", "figures/learning_curve.png"):
        assert (folder / name).stat().st_size > 100, name
    assert len(list((folder / "figures").glob("embedding_distribution_*.png"))) == 2
    rows = [json.loads(line) for line in (folder / "test_predictions.jsonl").read_text().splitlines()]
    assert [r["row"] for r in rows] == list(range(24))
    for text in ("test_bleu", "nrefs:1", str(folder / "init")):
        assert text in printed


def test_both_checkpoints_load_and_say_how_they_were_initialised(finished) -> None:
    folder, _ = finished
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trained = AutoModelForSeq2SeqLM.from_pretrained(folder)
    init = AutoModelForSeq2SeqLM.from_pretrained(folder / "init")
    assert not torch.equal(trained.get_input_embeddings().weight, init.get_input_embeddings().weight)
    for model in (folder, folder / "init", init):
        (event,) = hf_embinit.read_manifest(model)
        assert (event["event"], event["init"], event["seed"]) == ("initialize", "xavier", 3)
    ids = trained.generate(**tokenizer("Ein Hund schläft.", return_tensors="pt"), max_new_tokens=5)
    assert isinstance(tokenizer.decode(ids[0], skip_special_tokens=True), str)
    said = json.loads((folder / "test_predictions.jsonl").read_text().splitlines()[0])
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert f"inputs = tokenizer({json.dumps(said['source'], ensure_ascii=False)}" in code
    assert code.endswith(f"\n# {said['prediction']}\n")
    for model in (trained, init):  # a checkpoint generates as the run did
        assert model.generation_config.max_length == 24
    ids = trained.generate(**tokenizer(said["source"], return_tensors="pt"))
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == said["prediction"]


def test_a_finished_folder_is_refused(finished) -> None:
    assert refuses_to_run_again("translate", *SMALL, folder=finished[0])


def test_a_killed_run_resumes_to_the_same_weights(finished, tmp_path) -> None:
    kill_and_resume("translate", *SMALL, "--seed", "3", folder=tmp_path)
    assert same_weights(tmp_path, finished[0])
    assert len(read_record(tmp_path).history) == 2


def test_settings_file_flags_and_vectors(tmp_path) -> None:
    """A yaml file gives settings, a flag wins over it, and vectors from a file are looked up."""
    import yaml

    vectors = tmp_path / "v.txt"
    generator = torch.Generator().manual_seed(0)
    words = ["ein", "eine", "der", "die", "hund", "mann", ".", "a", "the", "dog", "man", "is", "in"]
    vectors.write_text(
        "".join(
            f"{w} {' '.join(f'{x:.4f}' for x in (3 * torch.randn(16, generator=generator)).tolist())}\n"
            for w in words
        )
    )
    settings = {"init": "glove_xavier", "vectors": str(vectors), "num_train_epochs": 1, "seed": 1}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(settings))
    given = ["--num_train_epochs", "1", "--seed", "5", "--output_dir", str(tmp_path / "r")]
    done = translate(str(tmp_path / "s.yaml"), *SMALL, *given)
    assert done.returncode == 0, done.stderr[-3000:]
    record = read_record(tmp_path / "r")
    assert (record.init, record.seed, len(record.history)) == ("glove_xavier", 5, 1)
    for coverage in record.coverage.values():
        assert 0 < coverage["types_found"] <= len(words)
    (event,) = hf_embinit.read_manifest(tmp_path / "r")
    assert event["tables"][0]["source"]["name"].endswith("v.txt")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--dataset", "multi30k"], "HF_EMBINIT_DATA"),
        (["--dataset", "captionz"], "captions, multi30k"),
        (["--data_dir", "/nowhere", "--dataset", "multi30k"], "--data_dir '/nowhere'"),
        (["--target_lang", "fr"], "--target_lang 'fr'"),
        (["missing.yaml"], "missing.yaml"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, sentence, tmp_path) -> None:
    done = translate(
        *[a for a in arguments if a.endswith(".yaml")],
        *SMALL,
        *[a for a in arguments if not a.endswith(".yaml")],
        *("--output_dir", str(tmp_path / "run")),
        HF_EMBINIT_DATA="",
    )
    assert done.returncode in (1, 2)
    assert sentence in done.stderr, done.stderr[-2000:]
    assert not (tmp_path / "run" / "results.json").exists()


def test_vectors_with_nan_are_refused_for_either_language(tmp_path) -> None:
    rows = {"hund": "1 " * 16, "dog": "nan " + "1 " * 15, ".": "2 " * 16}
    (tmp_path / "v.txt").write_text("".join(f"{word} {row.strip()}\n" for word, row in rows.items()))
    flags = ["--init", "glove", "--vectors", str(tmp_path / "v.txt"), "--output_dir", str(tmp_path / "run")]
    done = translate(*SMALL, *flags)
    assert done.returncode == 1 and "--target_vectors" in done.stderr and "'dog'" in done.stderr
    done = translate(*SMALL, *flags, "--source_lang", "en", "--target_lang", "de")
    assert done.returncode == 1 and "error: --vectors" in done.stderr and "NaN or infinity" in done.stderr
    assert not list((tmp_path / "run").glob("checkpoint-*"))
