"""`recipes/classify.py` as a user starts it: small runs of the real command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from builders import tiny_tokenizers
from builders.recipes import (
    Done,
    interrupt_and_resume,
    refuses_to_run_again,
    run_in_two_processes,
    run_recipe,
    same_weights,
)
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
)

import hf_embinit
from hf_embinit.records.aggregate import results_table
from hf_embinit.records.record import RunRecord, read_record

COMMON = ["--num_train_epochs", "2", "--per_device_train_batch_size", "16", "--use_cpu"]
COMMON += ["--disable_tqdm", "true"]
SMALL = [*COMMON, "--d_model", "16", "--d_ff", "32", "--num_layers", "2", "--num_heads", "2"]
SAMPLES = ["--max_train_samples", "96", "--max_eval_samples", "16", "--max_predict_samples", "16"]


def classify(*arguments: str, **env: str) -> Done:
    return run_recipe("classify", *arguments, **env)


def write_rows(path: Path, rows: Sequence[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def reviews(count: int, start: int = 0, label: str = "label") -> list[dict]:
    words = ("film", "plot", "cast", "scene", "song")
    verdicts = ("dull", "fine")
    return [
        {
            "sentence": f"the {words[i % 5]} number {i} is {verdicts[i % 2]} and {words[i % 3]}",
            label: i % 2,
        }
        for i in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of one's own, with a test set."""
    path = tmp_path_factory.mktemp("reviews")
    for split, count, start in (("train", 96, 0), ("validation", 24, 100), ("test", 20, 200)):
        write_rows(path / f"{split}.jsonl", reviews(count, start))
    return path


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `data_dir` laid out as GLUE, labels of the test set hidden."""
    root = tmp_path_factory.mktemp("data")
    for split, count, start in (("train", 48, 0), ("validation", 12, 60)):
        write_rows(root / "glue" / "sst2" / f"{split}.jsonl", reviews(count, start))
        scores = [
            {"sentence1": row["sentence"], "sentence2": "a film", "label": i % 6 * 0.9}
            for i, row in enumerate(reviews(count, start))
        ]
        write_rows(root / "glue" / "stsb" / f"{split}.jsonl", scores)
    hidden = [{**row, "label": -1} for row in reviews(8, 80)]
    write_rows(root / "glue" / "sst2" / "test.jsonl", hidden)
    pairs = [
        {"premise": row["sentence"], "hypothesis": "it is fine", "label": row["label"]} for row in reviews(9)
    ]
    write_rows(root / "glue" / "mnli" / "validation_matched.jsonl", pairs)
    return root


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pre-trained BERT with its tokenizer."""
    path = tmp_path_factory.mktemp("bert")
    tokenizer = tiny_tokenizers.tokenizer("wordpiece")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory) -> tuple[Path, Done]:
    """One finished run of two epochs and what it printed."""
    path = tmp_path_factory.mktemp("runs") / "xavier"
    done = classify("--task", str(folder), *SMALL, "--output_dir", str(path), "--seed", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    return path, done


def predictions(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_run_folder_is_complete(finished, folder) -> None:
    path, done = finished
    record = read_record(path)
    assert (record.task, record.dataset, record.init) == ("classification", str(folder), "xavier")
    assert len(record.history) == 2
    assert {"train_loss", "validation_loss", "validation_accuracy"} <= set(record.history[0])
    assert {"test_accuracy", "test_f1", "test_loss", "validation_accuracy"} <= set(record.metrics)
    best = max(record.history, key=lambda row: row["validation_accuracy"])
    assert record.best_epoch == best["epoch"]
    assert record.metrics["validation_accuracy"] == best["validation_accuracy"]
    assert record.arguments["adam_beta2"] == 0.98 and record.arguments["learning_rate"] == 1e-4
    assert record.arguments["lr_scheduler_type"] == "constant"
    assert {split: about["rows"] for split, about in record.data.items()} == {
        "train": 96,
        "validation": 24,
        "test": 20,
    }
    rows = predictions(path / "test_predictions.jsonl")
    assert [row["row"] for row in rows] == list(range(20))
    assert rows[1]["text"] == reviews(1, 201)[0]["sentence"] and rows[1]["label"] == "1"
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert record.metrics["test_accuracy"] == pytest.approx(right / 20)
    for name in ("README.md", "figures/learning_curve.png", "figures/embedding_distribution_shared.png"):
        assert (path / name).stat().st_size > 100, name
    assert "The first of the test set" in (path / "README.md").read_text()
    for text in ("test_accuracy", str(path / "init"), "test_predictions.jsonl"):
        assert text in done.stdout


def test_the_kept_weights_give_the_recorded_predictions(finished) -> None:
    path, _ = finished
    model = AutoModelForSequenceClassification.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    for row in predictions(path / "test_predictions.jsonl")[:6]:
        with torch.no_grad():
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits
        assert model.config.id2label[int(logits.argmax())] == row["prediction"]
    (event,) = hf_embinit.read_manifest(path / "init")
    assert (event["event"], event["init"], event["seed"]) == ("initialize", "xavier", 3)


def test_a_finished_folder_is_refused(finished, folder) -> None:
    assert refuses_to_run_again("classify", "--task", str(folder), *SMALL, folder=finished[0])


def test_an_interrupted_run_resumes_to_the_same_weights(finished, folder, tmp_path) -> None:
    interrupt_and_resume("classify", "--task", str(folder), *SMALL, "--seed", "3", folder=tmp_path)
    assert same_weights(tmp_path, finished[0])
    assert read_record(tmp_path).metrics == read_record(finished[0]).metrics


def test_two_processes_count_each_text_once(folder, tmp_path) -> None:
    batches = ["--per_device_eval_batch_size", "5", "--output_dir", str(tmp_path)]
    printed = run_in_two_processes("classify", "--task", str(folder), *SMALL, *batches)
    record = read_record(tmp_path)
    assert record.runtime["world_size"] == 2
    assert record.history[-1]["step"] == 2 * 3  # 96 texts, 2 x 16 a step
    rows = predictions(tmp_path / "test_predictions.jsonl")
    assert [row["text"] for row in rows] == [row["sentence"] for row in reviews(20, 200)]
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert record.metrics["test_accuracy"] == pytest.approx(right / 20)
    assert printed.count("trained model:") == 1


def glue_run(tmp_path: Path, *arguments: str) -> RunRecord:
    done = classify(*arguments, *SAMPLES, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-3000:]
    return read_record(tmp_path / "run")


def test_glue_is_scored_on_its_validation_set(glue, tmp_path) -> None:
    record = glue_run(tmp_path, "--task", "sst2", "--data_dir", str(glue), *SMALL)
    assert not [name for name in record.metrics if name.startswith("test_")]
    assert record.metrics["validation_accuracy"] == max(row["validation_accuracy"] for row in record.history)
    rows = predictions(tmp_path / "run" / "validation_predictions.jsonl")
    assert len(rows) == 12 and {row["label"] for row in rows} == {"negative", "positive"}
    assert "The first of the validation set" in (tmp_path / "run" / "README.md").read_text()
    assert not (tmp_path / "run" / "test_predictions.jsonl").exists()
    table = results_table([record])
    assert "| validation accuracy |" in table and f"{record.metrics['validation_accuracy']:.3f}" in table


def test_embedded_pairs_are_scored_matched_and_mismatched(tmp_path) -> None:
    record = glue_run(tmp_path, "--task", "entailment", *SMALL)
    for split in ("validation", "test"):
        names = {f"{split}_accuracy", f"{split}_accuracy_mismatched"}
        assert names <= set(record.metrics)
    rows = predictions(tmp_path / "run" / "test_predictions.jsonl")
    assert [row["mismatched"] for row in rows] == [False] * 16 + [True] * 16
    for other, name in ((False, "test_accuracy"), (True, "test_accuracy_mismatched")):
        right = [row["label"] == row["prediction"] for row in rows if row["mismatched"] is other]
        assert record.metrics[name] == pytest.approx(sum(right) / 16)


def test_the_default_task_needs_no_data(tmp_path) -> None:
    record = glue_run(tmp_path, *SMALL, "--init", "xavier")
    assert record.dataset == "sentiment" and record.arguments["tokenizer"] == "words"


def test_a_taken_apart_encoder_is_fine_tuned(folder, bert, tmp_path) -> None:
    record = glue_run(
        tmp_path, "--task", str(folder), "--model", str(bert), *COMMON,
        "--surgery", "reversed+shuffled_embeddings+remove_last_1", "--bf16",
    )  # fmt: skip
    assert record.init == "reversed+shuffled_embeddings+remove_last_1"
    assert record.arguments["learning_rate"] == 2e-5 and record.arguments["weight_decay"] == 0.01
    assert record.arguments["d_model"] is None
    (stages,) = record.embedding_statistics.values()
    assert stages["after_scaling"] == stages["before_scaling"]  # BERT does not scale its input
    events = hf_embinit.read_manifest(tmp_path / "run")
    assert [event["surgery"] for event in events] == ["reversed", "shuffled_embeddings", "remove_last_1"]
    assert 0 < record.runtime["surgery_seconds"] < 60
    taken = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "init")
    pretrained = AutoModelForSequenceClassification.from_pretrained(bert)
    assert taken.config.num_hidden_layers == 3
    for new, old in ((0, 3), (1, 2), (2, 1)):
        ours, theirs = (m.bert.encoder.layer for m in (taken, pretrained))
        assert torch.equal(ours[new].output.dense.weight, theirs[old].output.dense.weight)
    ours, theirs = (m.get_input_embeddings().weight for m in (taken, pretrained))
    assert not torch.equal(ours, theirs)
    assert torch.equal(
        ours.sum(0).sort().values.round(decimals=3), theirs.sum(0).sort().values.round(decimals=3)
    )
    text = (tmp_path / "run" / "README.md").read_text()
    assert "changed by `reversed+shuffled_embeddings+remove_last_1`" in text and "zhang2021general" in text


def test_scores_are_predicted_where_labels_are_numbers(glue, bert, tmp_path) -> None:
    record = glue_run(tmp_path, "--task", "stsb", "--data_dir", str(glue), "--model", str(bert), *COMMON)
    assert record.init == "none"
    assert {"validation_spearmanr", "validation_pearsonr"} <= set(record.metrics)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert model.config.num_labels == 1 and model.config.problem_type == "regression"
    rows = predictions(tmp_path / "run" / "validation_predictions.jsonl")
    assert isinstance(rows[0]["prediction"], float) and "text_pair" in rows[0]
    assert "started from" in (tmp_path / "run" / "README.md").read_text()


def test_word_embeddings_of_a_pretrained_model_are_initialised_again(folder, bert, tmp_path) -> None:
    record = glue_run(tmp_path, "--task", str(folder), "--model", str(bert), *COMMON, "--init", "xavier")
    assert record.init == "xavier"
    ours, theirs = (
        AutoModelForSequenceClassification.from_pretrained(f) for f in (tmp_path / "run" / "init", bert)
    )
    assert not torch.equal(ours.get_input_embeddings().weight, theirs.get_input_embeddings().weight)
    layers = [m.bert.encoder.layer[0].output.dense.weight for m in (ours, theirs)]
    assert torch.equal(*layers)


def test_the_donors_tokenizer_reads_the_text(folder, bert, tmp_path) -> None:
    donor = tmp_path / "donor"
    tokenizer = tiny_tokenizers.tokenizer("wordpiece", 280)
    config = BertConfig.from_pretrained(bert, vocab_size=len(tokenizer))
    BertModel(config).save_pretrained(donor)
    tokenizer.save_pretrained(donor)
    glue_run(
        tmp_path, "--task", str(folder), "--model", str(bert), *COMMON,
        "--surgery", "donor_embeddings", "--donor", str(donor),
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    assert model.config.vocab_size == len(tokenizer) == len(AutoTokenizer.from_pretrained(tmp_path / "run"))


def bad_data(tmp_path: Path, **splits: Sequence[dict]) -> list[str]:
    rows = {"train": reviews(20), "validation": reviews(8), **splits}
    for split, values in rows.items():
        write_rows(tmp_path / "data" / f"{split}.jsonl", values)
    return ["--task", str(tmp_path / "data")]


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        ({"validation": [{"sentence": "a", "label": 2}]}, "row 0 of the validation split is 2, outside"),
        ({"train": [*reviews(4), {"sentence": "a", "label": None}]}, "row 4 of the train split has no label"),
        ({"train": [{"sentence": "a", "label": 0}]}, "one label only"),
        ({"train": []}, "is empty"),
        ({"test": [{"sentence": "a"}]}, "the test split has no column 'label'"),
        ({"test": [{"sentence": "a", "label": -1}]}, "the test split"),
        ({"validation": [{"sentence": None, "label": 1}]}, "row 0 of the validation split is None, not text"),
        ({"train": [{"body": "a", "label": 1}]}, "--text_columns"),
    ],
)
def test_data_that_cannot_be_learnt_from(tmp_path, splits, sentence) -> None:
    done = classify(*bad_data(tmp_path, **splits), *SMALL, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 1 and sentence in done.stderr, done.stderr[-2000:]
    assert not list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--task", "sts2"], "Unknown task 'sts2'. Did you mean: "),
        (["--task", "qqp"], "HF_EMBINIT_DATA to a folder that has it, in `glue/qqp`"),
        (["--task", "/nowhere/data"], "no folder here"),
        (["--surgery", "reverse"], "Unknown surgery 'reverse'. Did you mean: reversed"),
        (["--surgery", "donor_embeddings"], "needs donor="),
        (["--donor", "some/model"], "--surgery donor_embeddings, which reads it"),
        (["--model", "/nowhere/bert"], "--model '/nowhere/bert'"),
        (["--surgery", "donor_embeddings", "--donor", "/nowhere"], "--donor '/nowhere' is no folder here"),
        (["--text_columns", "body"], "--text_columns body: 'body' is not in the train split"),
    ],
)
def test_bad_input_is_one_clear_error(folder, tmp_path, arguments, sentence) -> None:
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    small = COMMON if "--model" in given else SMALL
    done = classify(
        *("--task", str(folder), *small, *arguments, "--output_dir", str(tmp_path / "run")),
        HF_EMBINIT_DATA="",
    )
    assert done.returncode in (1, 2)
    assert sentence in done.stderr, done.stderr[-2000:]
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_split_that_is_absent_is_named(glue, tmp_path) -> None:
    done = classify("--task", "mnli", "--data_dir", str(glue), *SMALL, "--output_dir", str(tmp_path))
    assert done.returncode == 1 and "has no train split; give --train_file" in done.stderr


def test_a_pretrained_model_takes_no_vanilla_flags(folder, bert, tmp_path) -> None:
    done = classify(
        "--task", str(folder), "--model", str(bert), *SMALL, "--output_dir", str(tmp_path / "run")
    )
    assert done.returncode == 1 and "--d_model 16 shapes a new vanilla model" in done.stderr


def test_a_tokenizer_and_a_length_that_do_not_fit(folder, bert, tmp_path) -> None:
    tiny_tokenizers.tokenizer("wordpiece", 400).save_pretrained(tmp_path / "larger")
    model = ["--task", str(folder), "--model", str(bert), *COMMON, "--output_dir", str(tmp_path / "run")]
    done = classify(*model, "--tokenizer", str(tmp_path / "larger"))
    assert done.returncode == 1 and "they do not belong together" in done.stderr
    done = classify(*model, "--max_length", "129")
    assert done.returncode == 1 and "--max_length 129 is more than the 128 positions" in done.stderr


def test_a_model_without_a_list_of_layers(folder, bert, tmp_path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "embedding_size": 8}
    AlbertModel(AlbertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "albert")
    tokenizer.save_pretrained(tmp_path / "albert")
    model = ["--model", str(tmp_path / "albert"), "--surgery", "reversed"]
    done = classify("--task", str(folder), *model, *COMMON, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 1 and "no list of layers" in done.stderr
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_run_that_diverges_says_so(folder, tmp_path) -> None:
    run = tmp_path / "run"
    done = classify("--task", str(folder), *SMALL, "--learning_rate", "1e30", "--output_dir", str(run))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "It diverged: a loss was no finite number. Try a lower --learning_rate." in done.stdout
    record = read_record(run)
    assert record.diverged and record.history[-1]["train_loss"] is None
    assert "**It diverged**" in (run / "README.md").read_text(encoding="utf-8")


def test_vectors_with_nan(folder, tmp_path) -> None:
    vectors = tmp_path / "v.txt"
    vectors.write_text("".join(f"{word} {'nan' if word == 'plot' else 1} " + "0.5 " * 14 + "2\n" for word in
                               ("film", "plot", "cast", "is", "the")))  # fmt: skip
    arguments = ["--task", str(folder), *SMALL, "--init", "glove", "--vectors", str(vectors)]
    done = classify(*arguments, "--output_dir", str(tmp_path / "run"))
    assert done.returncode == 1 and "NaN or infinity" in done.stderr and "'plot'" in done.stderr
    assert not list((tmp_path / "run").glob("checkpoint-*"))
