"""`recipes/language_model.py` as a user starts it: small runs of the real command line."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from builders.recipes import (
    interrupt_and_resume,
    refuses_to_run_again,
    run_in_two_processes,
    run_recipe,
    same_weights,
    sharding_launcher,
)
from builders.tiny_tokenizers import model as tiny_model
from builders.tiny_tokenizers import texts, tokenizer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_embinit
from hf_embinit.measures.knn import knn_match_similarity
from hf_embinit.records.record import RunRecord, read_record
from hf_embinit.training.twins import log_schedule

SIZES = "--d_model 16 --d_ff 32 --num_layers 1 --num_heads 2"
WORDS = f"--tokenizer words --min_frequency 1 {SIZES}"
SMALL = "--block_size 16 --use_cpu --disable_tqdm true --per_device_train_batch_size 4 --num_train_epochs 2"
RATE = "--learning_rate 1e-2 --warmup_steps 0 --max_steps -1"
INPUT = "model.decoder.embed_tokens.weight"


def start(*arguments: str) -> tuple[int, str, str]:
    """Status, output and errors of the recipe."""
    done = run_recipe("language_model", *arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of a small run on a folder of data."""
    folder = tmp_path_factory.mktemp("texts")
    all_texts = texts()
    splits = {"train": all_texts[:120], "validation": all_texts[300:320], "test": all_texts[360:380]}
    for split, some in splits.items():
        rows = [json.dumps({"text": text}) + "\n" for text in some]
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    return f"{SMALL} {RATE} --dataset {folder}".split()


TWINS = "--twin_seeds 0 1 --seed 0 --dropout_rate 0 --knn_k 3"
ALONE = "--dropout_rate 0 --load_best_model_at_end false"
EMBEDDINGS = "--twin_seeds 2 3 --reinitialize_embeddings --freeze_rest --knn_k 3"


def run(folder: Path, *arguments: str) -> tuple[RunRecord, str]:
    status, out, err = start(*arguments, "--output_dir", str(folder))
    assert status == 0, err[-3000:]
    return read_record(folder), out


@pytest.fixture(scope="module")
def twins(flags, tmp_path_factory) -> Path:
    """Experiment 1: a finished run of two models."""
    folder = tmp_path_factory.mktemp("runs") / "twins"
    run(folder, *flags, *f"{WORDS} {TWINS}".split())
    return folder


@pytest.fixture(scope="module")
def alone(flags, tmp_path_factory) -> tuple[Path, str]:
    """A run of one model, like the first of the twins, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    _, out = run(folder, *flags, *f"{WORDS} {ALONE} --seed 0".split())
    return folder, out


def test_one_model_leaves_a_complete_run_folder(alone) -> None:
    folder, printed = alone
    record = read_record(folder)
    assert (record.task, record.init, record.seed) == ("language_modeling", "xavier", 0)
    assert len(record.history) == 2 and record.best_epoch is None
    m = record.metrics
    for split in ("validation", "test"):
        assert m[f"{split}_perplexity"] == pytest.approx(math.exp(m[f"{split}_loss"]))
        assert m[f"{split}_word_perplexity"] > m[f"{split}_perplexity"]  # more tokens than words
    assert m["validation_loss"] == pytest.approx(record.history[-1]["validation_loss"], rel=1e-6)
    assert record.history[1]["validation_loss"] < record.history[0]["validation_loss"]
    trained = AutoModelForCausalLM.from_pretrained(folder)
    init = AutoModelForCausalLM.from_pretrained(folder / "init")
    assert not torch.equal(trained.get_input_embeddings().weight, init.get_input_embeddings().weight)
    assert len(AutoTokenizer.from_pretrained(folder)) == trained.config.vocab_size
    (event,) = hf_embinit.read_manifest(folder)
    assert (event["event"], event["init"], event["seed"]) == ("initialize", "xavier", 0)
    samples = [json.loads(line) for line in (folder / "test_predictions.jsonl").read_text().splitlines()]
    assert len(samples) == 10 and set(samples[0]) == {"prompt", "reference", "prediction"}
    for name in ("README.md", "figures/learning_curve.png", "figures/embedding_distribution_shared.png"):
        assert (folder / name).stat().st_size > 100, name
    assert "test_word_perplexity" in printed and str(folder / "init") in printed


def test_a_finished_folder_is_refused(alone, flags) -> None:
    assert refuses_to_run_again("language_model", *flags, folder=alone[0])


def test_each_twin_is_the_model_that_it_would_be_alone(twins, alone, flags, tmp_path) -> None:
    """Same data order, clipping and steps; nothing passes from one to the other."""
    run(tmp_path, *flags, *f"{WORDS} {ALONE} --seed 1 --data_seed 0".split())
    assert same_weights(twins / "twin-0", alone[0]) and same_weights(twins / "twin-1", tmp_path)


def test_twins_are_recorded_on_a_logarithmic_schedule(twins) -> None:
    record = read_record(twins)
    last = record.history[-1]["step"]
    assert [row["step"] for row in record.history] == log_schedule(last, 8)
    for row, place in ((record.history[0], "init/"), (record.history[-1], "")):
        models = [AutoModelForCausalLM.from_pretrained(twins / f"{place}twin-{seed}") for seed in (0, 1)]
        tables = [m.get_input_embeddings().weight[1:] for m in models]  # without padding
        for metric in ("inner_product", "cosine"):
            assert row[f"knn_input_{metric}"] == pytest.approx(knn_match_similarity(*tables, 3, metric))
        heads = [m.get_output_embeddings().weight[1:] for m in models]
        assert row["knn_output_inner_product"] == pytest.approx(knn_match_similarity(*heads, 3))
        for seed, table in zip((0, 1), tables, strict=True):
            assert row[f"std_seed{seed}"] == pytest.approx(float(table.std()), rel=1e-5)
            assert row[f"row_norm_mean_seed{seed}"] == pytest.approx(
                float(table.norm(dim=1).mean()), rel=1e-5
            )
    first, end = record.history[0], record.history[-1]
    assert "train_loss_seed0" not in first and end["validation_loss_seed1"] < first["validation_loss_seed1"]
    assert record.metrics["validation_loss_seed0"] == pytest.approx(end["validation_loss_seed0"], rel=1e-6)
    assert record.metrics["knn_input_inner_product"] == end["knn_input_inner_product"]
    for metric in ("inner_product", "cosine", "euclidean"):  # `tables` are those after the last step
        for k in (1, 100):
            match = knn_match_similarity(*tables, k, metric)
            assert record.metrics[f"knn_input_{metric}_k{k}"] == pytest.approx(match)
    perplexities = [record.metrics[f"test_perplexity_seed{seed}"] for seed in (0, 1)]
    assert record.metrics["test_perplexity"] == pytest.approx(sum(perplexities) / 2)
    assert (twins / "figures" / "trajectory.png").stat().st_size > 10_000
    samples = [json.loads(line) for line in (twins / "test_predictions.jsonl").read_text().splitlines()]
    assert set(samples[0]) == {"prompt", "reference", "twin-0", "twin-1"}


@pytest.mark.parametrize(
    "experiment",
    [
        f"{WORDS} --twin_seeds 0 1 --knn_k 3 --knn_tokens 40 --save_steps 10",
        f"{EMBEDDINGS} --model {{twin}} --save_steps 10",
        f"{EMBEDDINGS} --model {{twin}} --max_steps -1 --num_train_epochs 2 --save_strategy epoch",
    ],
)
def test_interrupted_twins_resume_to_the_same_results(experiment, twins, flags, tmp_path) -> None:
    arguments = [*flags, *experiment.format(twin=twins / "twin-0").split()]
    whole, _ = run(tmp_path / "whole", *arguments)
    folder = tmp_path / "interrupted"
    interrupt_and_resume("language_model", *arguments, folder=folder)
    pairs = sorted((tmp_path / "whole").glob("twin-*"))
    assert len(pairs) == 2 and all(same_weights(folder / twin.name, twin) for twin in pairs)
    resumed = read_record(folder)
    assert [untimed(row) for row in resumed.history] == [untimed(row) for row in whole.history]
    assert resumed.metrics == whole.metrics


def untimed(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if not key.endswith("_seconds")}


def test_new_embeddings_in_a_frozen_model(twins, flags, tmp_path) -> None:
    """Experiment 2: everything but the input tables is bit for bit the model that it came from."""
    record, _ = run(tmp_path, *flags, *f"{EMBEDDINGS} --model {twins / 'twin-0'}".split())
    before = load_file(twins / "twin-0" / "model.safetensors")
    for seed in (2, 3):
        start_, end = (
            load_file(tmp_path / place / f"twin-{seed}" / "model.safetensors") for place in ("init", "")
        )
        assert all(torch.equal(end[name], before[name]) for name in before if name != INPUT)
        assert not torch.equal(end[INPUT], start_[INPUT]) and not torch.equal(start_[INPUT], before[INPUT])
        assert record.metrics[f"frozen_tensors_unchanged_seed{seed}"] == len(before) - 1
        events = hf_embinit.read_manifest(tmp_path / f"twin-{seed}")
        assert [event["seed"] for event in events] == [0, seed]
    assert record.arguments["data_seed"] == record.seed + 1  # reshuffled
    assert "knn_output_inner_product" not in record.history[0]  # one frozen table, the same for both
    loss = [row["validation_loss_seed2"] for row in record.history]
    assert loss[-1] < loss[0]


def test_tied_twins_of_any_causal_lm(flags, tmp_path) -> None:
    t = tokenizer("byte_level")
    tiny_model("gpt2", len(t)).save_pretrained(tmp_path / "gpt2")
    t.save_pretrained(tmp_path / "gpt2")
    arguments = f"--model {tmp_path / 'gpt2'} --max_steps 6".split()
    record, _ = run(tmp_path / "kept", *flags, *arguments)
    assert record.init == "kept" and record.metrics["test_loss"] > 0
    _, _, err = start(*flags, *arguments, "--block_size", "65", "--output_dir", str(tmp_path / "long"))
    assert "--block_size 65: give a length from 2 to the 64 positions of the model" in err
    more = "--freeze_rest --twin_seeds 0 1 --knn_k 2 --save_steps 4 --init normal"
    record, _ = run(tmp_path / "twins", *flags, *arguments, *more.split())
    a, b = (AutoModelForCausalLM.from_pretrained(tmp_path / "twins" / f"twin-{i}") for i in (0, 1))
    for model in (a, b):
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert not torch.equal(a.get_input_embeddings().weight, b.get_input_embeddings().weight)
    assert torch.equal(a.transformer.wpe.weight, b.transformer.wpe.weight)
    assert "knn_output_inner_product" not in record.history[0]


@pytest.mark.data
def test_the_stories_model_is_fine_tuned(data_folder, flags, tmp_path) -> None:
    more = "--model models/stories260K --learning_rate 1e-3"
    record, _ = run(tmp_path / "kept", *flags, *more.split())
    losses = [row["validation_loss"] for row in record.history]
    assert losses[-1] < losses[0] < math.log(512)
    assert record.parameters == pytest.approx(260_000, rel=0.1) and record.init == "kept"


@pytest.mark.data
def test_gpt2_tokenizer_whole_and_compacted(data_folder, flags, tmp_path) -> None:
    """`gpt2` by name, all of its tokens or those of the training text; the pieces are the same."""
    arguments = [*flags, "--tokenizer", "gpt2", "--max_steps", "2"]
    run(tmp_path / "small", *arguments, "--min_frequency", "1")
    record, _ = run(tmp_path / "whole", *arguments)
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["vocab_size"] == 50257 and record.tokenizer == "gpt2"
    a, b = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("small", "whole"))
    text = "the man sees a dog"
    assert a.tokenize(text) == b.tokenize(text) and len(a) < 1000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--dataset storie", "captions, stories, wikitext-2-v1"),
        ("--tokenizer nobody/nothing", "--tokenizer 'nobody/nothing' is no folder here"),
        ("--tokenizer recipes", "--tokenizer 'recipes'"),
        ("--model nobody/nothing", "--model nobody/nothing is no folder here"),
        ("--freeze_rest", "--freeze_rest is for a trained model"),
        ("--init_options mode=rows --model {twin}", "--init_options ['mode=rows'] needs --init"),
        ("--reinitialize_embeddings", "--reinitialize_embeddings is for a trained model"),
        ("--min_frequency 2 --model {twin}", "--min_frequency 2 with --model"),
        ("--twin_seeds 1 1", "--twin_seeds 1 1: give two different seeds"),
        ("--twin_seeds 0 1 2", "--twin_seeds 0 1 2: give two different seeds"),
        ("--twin_seeds 0 1 --model {twin}", "would train the same model twice"),
        ("--model {twin} --tokenizer gpt2", "has another vocabulary than --model"),
        ("--twin_seeds 0 1 --knn_k 5000", "--knn_k 5000: each of the"),
        ("--twin_seeds 0 1 --knn_tokens 4 --knn_k 4", "--knn_k 4: each of the 4 tokens"),
        ("--twin_seeds 0 1 --gradient_checkpointing true", "--gradient_checkpointing with --twin_seeds"),
        ("--twin_seeds 0 1 --neftune_noise_alpha 5", "--neftune_noise_alpha with --twin_seeds"),
        ("--twin_seeds 0 1 --records_per_decade 0", "--records_per_decade 0"),
        ("--block_size 4999", "fewer than one block of 4999"),
        ("--train_file {empty}", "has no text"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, sentence, twins, flags, tmp_path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": " "}\n')
    given = arguments.format(twin=twins / "twin-0", empty=tmp_path / "empty.jsonl").split()
    if "gpt2" in given and not os.environ.get("HF_EMBINIT_DATA"):
        pytest.skip("the tokenizer is not here")
    words = [] if "--model" in given else WORDS.split()
    status, _, err = start(*flags, *words, *given, "--output_dir", str(tmp_path / "run"))
    assert status in (1, 2) and sentence in err, err[-2000:]
    assert not (tmp_path / "run" / "results.json").exists()


def test_two_sharded_processes_train_the_twins_of_one(twins, flags, tmp_path, monkeypatch) -> None:
    """With `--freeze_rest`, and with a last batch that the processes can share: 16 sequences in batches of 8.

    Another last batch is filled up with the first sequences where there are several processes, and from then
    on AdamW moves the tables apart by as much as it moves them.
    """
    launcher = sharding_launcher(tmp_path, monkeypatch)
    same = f"{EMBEDDINGS} --max_train_samples 23 --per_device_eval_batch_size 1".split()
    arguments = [*flags, *same, "--model", str(twins / "twin-0")]
    one, _ = run(tmp_path / "one", *arguments, "--per_device_train_batch_size", "8")
    two = tmp_path / "two"
    printed = run_in_two_processes("language_model", *arguments, "--output_dir", str(two), launcher=launcher)
    record = read_record(two)
    assert set((tmp_path / "sharded.txt").read_text().split("\n")) == {"FSDP 2", ""}
    assert record.runtime["world_size"] == 2 and printed.count("predictions:") == 1
    assert record.metrics["frozen_tensors_unchanged_seed3"] == one.metrics["frozen_tensors_unchanged_seed3"]
    assert [row["step"] for row in record.history] == [row["step"] for row in one.history]
    for row, other in zip(record.history, one.history, strict=True):
        for key in set(row) - {"record_seconds"}:
            assert row[key] == pytest.approx(other[key], rel=1e-4), key
    for name in ("twin-2", "twin-3"):
        folders = tmp_path / "one" / name, two / name
        whole, gathered = (load_file(folder / "model.safetensors") for folder in folders)
        assert whole.keys() == gathered.keys()
        for key, tensor in whole.items():
            torch.testing.assert_close(gathered[key], tensor, rtol=1e-3, atol=1e-5)
        assert not torch.equal(whole[INPUT], load_file(two / "init" / name / "model.safetensors")[INPUT])
        assert (folders[0] / "config.json").read_text() == (folders[1] / "config.json").read_text()
        assert {p.name for p in folders[0].iterdir()} == {p.name for p in folders[1].iterdir()}
