"""Loading, encoding and scoring of classification tasks; the papers' settings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import tiny_tokenizers
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from transformers import AutoModelForSequenceClassification, BertConfig, RobertaConfig, TrainingArguments

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError, VectorFileError
from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerTokenizer,
)
from hf_embinit.tasks import (
    classification,
    classification_data,
    corpus_vectors,
    language_modeling,
    translation,
)
from hf_embinit.tasks.classification import (
    DATASETS,
    ClassificationData,
    classification_metrics,
    encode_texts,
    prediction_rows,
    preset,
)
from hf_embinit.tasks.classification_data import load_classification
from hf_embinit.tasks.classifiers import check_length, load_pretrained_classifier
from hf_embinit.tasks.data import first_samples
from hf_embinit.tasks.encoded import TextCollator, sort_by_length, token_counts
from hf_embinit.tasks.lengths import longest_input
from hf_embinit.tasks.spec import given_vectors
from hf_embinit.tasks.translation import preset as translation_preset
from hf_embinit.training import checks

GLUE = ("sst2", "mnli", "cola", "mrpc", "qnli", "qqp", "rte", "stsb", "wnli")


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pairs(count: int, word: str = "a") -> list[dict]:
    return [{"premise": f"{word} {i}", "hypothesis": "b", "label": i % 3} for i in range(count)]


@pytest.mark.parametrize(
    ("task", "tokenizer", "expected"),
    [
        ("sst2", "words", (5, 128, 1e-4, 300, 10)),
        ("sst2", "bert", (5, 128, 1e-4, 768, 8)),
        ("sst2", "t5", (5, 128, 1e-4, 512, 8)),
        ("mnli", "words", (9, 128, 1e-4, 300, 10)),
        ("mnli", "bert", (10, 128, 1e-4, 768, 8)),
        ("mnli", "t5", (10, 128, 1e-4, 512, 8)),
        ("./some/folder", "words", (5, 128, 1e-4, 300, 10)),
    ],
)
def test_presets_are_table_5(task, tokenizer, expected) -> None:
    names = ("num_train_epochs", "per_device_train_batch_size", "learning_rate", "d_model", "num_heads")
    settings = preset(task, "vanilla", tokenizer)
    assert tuple(settings[name] for name in names) == expected
    assert (settings["d_ff"], settings["num_layers"], settings["dropout_rate"]) == (512, 3, 0.1)
    adam = tuple(settings[name] for name in ("adam_beta1", "adam_beta2", "adam_epsilon"))
    assert adam == (0.9, 0.98, 1e-9) and settings["lr_scheduler_type"] == "constant"


@pytest.mark.parametrize(
    ("kind", "name"), [("WordPiece", "bert"), ("Unigram", "t5"), ("BPE", "gpt2"), (None, "gpt2")]
)
def test_presets_go_by_what_a_tokenizer_is_not_by_its_path(tmp_path, kind, name) -> None:
    folder = tmp_path / "words"  # a name that says something else
    folder.mkdir()
    if kind is not None:
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": kind, "vocab": {}}}))
    assert preset("sst2", "vanilla", str(folder)) == preset("sst2", "vanilla", name)
    translation = {"bert": "mbert", "t5": "mt5"}.get(name, name)
    assert translation_preset("multi30k", str(folder)) == translation_preset("multi30k", translation)
    assert preset("sst2", "vanilla", "words")["d_model"] == 300
    (folder / "tokenizer.json").write_text("{")
    assert preset("sst2", "vanilla", str(folder))["d_model"] == 512


def test_a_pretrained_model_is_fine_tuned_as_devlin_et_al() -> None:
    settings = preset("cola", "google-bert/bert-base-uncased")
    assert settings["learning_rate"] == 2e-5 and settings["per_device_train_batch_size"] == 32
    assert settings["num_train_epochs"] == 3 and settings["warmup_steps"] == 0.1
    assert "d_model" not in settings and "adam_beta2" not in settings


def test_best_epochs_are_chosen_by_the_metric_of_the_thesis() -> None:
    chosen = {name: DATASETS[name].metrics[0] for name in GLUE}
    assert chosen["cola"] == "matthews_correlation" and chosen["stsb"] == "spearmanr"
    assert chosen["mrpc"] == chosen["qqp"] == "f1"
    assert {chosen[name] for name in ("sst2", "mnli", "qnli", "rte", "wnli")} == {"accuracy"}
    assert all(DATASETS[name].hub_id == "nyu-mll/glue" for name in GLUE)


def test_mismatched_texts_follow_the_matched_ones(tmp_path) -> None:
    write(tmp_path / "mnli" / "train.jsonl", pairs(9))
    write(tmp_path / "mnli" / "validation_matched.jsonl", pairs(6, "m"))
    write(tmp_path / "mnli" / "validation_mismatched.jsonl", pairs(3, "mm"))
    task, data = load_classification("mnli", data_dir=str(tmp_path))
    assert task.labels == ("entailment", "neutral", "contradiction")
    assert set(data) == {"train", "validation"}
    assert data["train"].column_names == ["text", "text_pair", "label"]
    assert data["validation"]["mismatched"][:] == [False] * 6 + [True] * 3
    assert data["validation"]["text"][-1] == "mm 2"
    few = first_samples(data, {"validation": 2})["validation"]
    assert few["text"][:] == ["m 0", "m 1", "mm 0", "mm 1"]
    assert len(first_samples(data, {"train": 100})["train"]) == 9 == len(first_samples(data, {})["train"])

    logits = np.zeros((9, 3))
    logits[:6, 0] = 1  # right for a third of the matched
    logits[6:] = np.eye(3)  # right for all mismatched
    metrics = classification_metrics(task, data["validation"])
    found = metrics(SimpleNamespace(predictions=logits, label_ids=np.array(data["validation"]["label"][:])))
    assert found == pytest.approx({"accuracy": 1 / 3, "accuracy_mismatched": 1.0})


def test_matched_alone_is_scored_alone(tmp_path) -> None:
    write(tmp_path / "train.jsonl", pairs(6))
    write(tmp_path / "validation_matched.jsonl", pairs(3))
    task, data = load_classification("mnli", data_dir=str(tmp_path))
    assert "mismatched" not in data["validation"].column_names
    found = classification_metrics(task, data["validation"])(
        SimpleNamespace(predictions=np.eye(3), label_ids=np.arange(3))
    )
    assert found == {"accuracy": 1.0}


@pytest.mark.parametrize("layout", ["glue/rte", "rte", "."])
def test_where_the_files_of_a_glue_task_lie(tmp_path, monkeypatch, layout) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": i} for i in (0, 1)]
    for split in ("train", "validation"):
        write(tmp_path / layout / f"{split}.jsonl", rows)
    _, data = load_classification("rte", data_dir=str(tmp_path))
    assert len(data["train"]) == 2
    if layout == "glue/rte":
        monkeypatch.setenv("HF_EMBINIT_DATA", str(tmp_path))
        assert len(load_classification("rte")[1]["validation"]) == 2


def test_the_hub_comes_last_and_hidden_labels_are_left_out(monkeypatch) -> None:
    monkeypatch.delenv("HF_EMBINIT_DATA", raising=False)
    asked = []

    def load(hub_id, config=None, revision=None):
        asked.append((hub_id, config))
        names = ["entailment", "neutral", "contradiction"]
        features = Features(
            premise=Value("string"), hypothesis=Value("string"), label=ClassLabel(names=names)
        )
        known = Dataset.from_list(pairs(3), features=features)
        hidden = Dataset.from_list([{**row, "label": -1} for row in pairs(3)], features=features)
        names = ("train", "validation_matched", "validation_mismatched")
        return DatasetDict({**dict.fromkeys(names, known), "test_matched": hidden, "test_mismatched": hidden})

    monkeypatch.setattr(classification_data, "load_from_hub", load)
    _, data = load_classification("mnli")
    assert asked == [("nyu-mll/glue", "mnli")]
    assert set(data) == {"train", "validation"} and len(data["validation"]) == 6


def test_a_split_that_is_nowhere(tmp_path) -> None:
    write(tmp_path / "validation.jsonl", [{"question": "a", "sentence": "b", "label": 0}])
    with pytest.raises(DataNotFoundError, match=r"--task qnli: .* has no train split; give --train_file"):
        load_classification("qnli", data_dir=str(tmp_path))


def test_a_csv_folder_with_names_of_labels(tmp_path) -> None:
    (tmp_path / "train.csv").write_text("text,label\ngood film,pro\nbad film,con\n")
    (tmp_path / "dev.csv").write_text('text,label\n"fine, really",pro\n')
    task, data = load_classification(str(tmp_path))
    assert task.labels == ("con", "pro") and task.metrics == ("accuracy", "f1")
    assert data["train"]["label"][:] == [1, 0]
    assert data["validation"][0] == {"text": "fine, really", "label": 1}
    (tmp_path / "dev.csv").write_text("text,label\nfine,maybe\n")
    with pytest.raises(InvalidArgumentError, match=r"'maybe'; expected 0 \(con\), 1 \(pro\)"):
        load_classification(str(tmp_path))


def test_labels_in_digits_are_names_where_they_do_not_count_from_zero(tmp_path) -> None:
    def labels(train: list, validation: list) -> list[int]:
        for split, values in (("train", train), ("validation", validation)):
            write(tmp_path / f"{split}.jsonl", [{"text": "x", "label": value} for value in values])
        _, data = load_classification(str(tmp_path))
        return data["validation"]["label"][:]

    assert labels(["1", "2", "5"], ["5", "1"]) == [2, 0]
    assert labels(["1", "2", "5"], [5, 1]) == [2, 0]  # a file of numbers beside one of names
    assert labels(["0", "1", "2"], [2, 0]) == labels(["0", "1", "2"], ["2", "0"]) == [2, 0]
    assert labels(["con", "pro"], ["1", "0"]) == labels(["con", "pro"], [1, 0]) == [1, 0]
    for stranger in ("0", 0, "3"):
        with pytest.raises(
            InvalidArgumentError, match=rf"is {stranger!r}; expected 0 \(1\), 1 \(2\), 2 \(5\)"
        ):
            labels(["1", "2", "5"], [stranger])
    named = Dataset.from_dict(
        {"text": ["x"], "label": [1]},
        Features({"text": Value("string"), "label": ClassLabel(names=["1", "2"])}),
    )
    task = classification.ClassificationTask("stars", columns=("text",), labels=("1", "2"))
    assert classification_data._checked(named, "train", task)["label"][:] == [1]  # numbers of a ClassLabel


def test_whole_numbers_are_classes_of_their_own_and_none_is_made_up(tmp_path) -> None:
    """Stars begin at 1; a number that no text has is no class, and two numbers are two classes."""

    def task_of(*labels: int | None) -> classification.ClassificationTask:
        for split in ("train", "validation"):
            write(tmp_path / f"{split}.jsonl", [{"text": "x", "label": value} for value in labels])
        task, data = load_classification(str(tmp_path))
        assert [task.labels[i] for i in data["train"]["label"][:]] == [str(value) for value in labels]
        return task

    assert task_of(2, 1, 2).labels == ("1", "2")
    assert task_of(0, 1_000_000).labels == ("0", "1000000") and task_of(0, 1).metrics == ("accuracy", "f1")
    with pytest.raises(InvalidArgumentError, match=r"has one label only \(1\)"):
        task_of(1, 1)


def test_files_alone_are_a_task_of_any_name(tmp_path) -> None:
    rows = [{"text": "x", "label": "pro"}, {"text": "y", "label": "con"}]
    for split in ("a", "b"):
        write(tmp_path / f"{split}.jsonl", rows)
    files = {"train": str(tmp_path / "a.jsonl"), "validation": str(tmp_path / "b.jsonl")}
    for name in ("mine", str(tmp_path)):
        task, data = load_classification(name, files=files)
        assert task.labels == ("con", "pro") and set(data) == {"train", "validation"}
    with pytest.raises(
        InvalidArgumentError, match=r"'sentence'; .*own give them another --task than sentiment"
    ):
        load_classification("sentiment", files=files)
    (tmp_path / "empty.csv").write_text("text,label\n")
    with pytest.raises(InvalidArgumentError, match=r"empty\.csv' has no rows"):
        load_classification("mine", files={**files, "train": str(tmp_path / "empty.csv")})


def test_a_folder_of_scores_is_regression(tmp_path, caplog) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": 0.5 * i} for i in range(4)]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.jsonl", rows)
    task, data = load_classification(str(tmp_path))
    assert task.labels == () and task.metrics[0] == "spearmanr"
    assert data["train"]["label"][:] == [0, 0.5, 1, 1.5] and not caplog.text
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.jsonl", [{**row, "label": 2 * row["label"]} for row in rows])
    assert load_classification(str(tmp_path))[0].labels == ()
    assert "numbers with a point (0.0), so this is regression; write classes as 0, 1, ..." in caplog.text


@pytest.mark.parametrize("word", ["NA", "nan", "none"])
def test_a_word_among_scores_is_no_class(tmp_path, word) -> None:
    def load(*labels: str) -> tuple[str, ...]:
        for split in ("train", "dev"):
            (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(f"x,{one}\n" for one in labels))
        return load_classification(str(tmp_path))[0].labels

    with pytest.raises(InvalidArgumentError, match=f"row 3 of the train split .* has no number: .* '{word}'"):
        load("0.5", "1", "2.5", word)
    assert load("1", "2", word) == ("1", "2", word)  # stars and a word
    assert load("v1", word) == tuple(sorted(["v1", word])) and load("0.5", "1") == ()


def test_numbers_are_not_smoothed(tmp_path) -> None:
    args = TrainingArguments(str(tmp_path / "o"), label_smoothing_factor=0.1, use_cpu=True, report_to=[])
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.jsonl", [{"text": "a", "label": 0.5}, {"text": "b", "label": 1.5}])
    task, texts = load_classification(str(tmp_path))
    data = ClassificationData(task, texts, tiny_tokenizers.tokenizer("wordpiece"), max_length=8)
    with pytest.raises(InvalidArgumentError, match=r"--label_smoothing_factor 0.1: the labels are numbers"):
        checks.check_scores(args, data)


def test_text_columns_are_named_or_found(tmp_path) -> None:
    rows = [{"body": "x", "title": "y", "label": i} for i in (0, 1)]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.jsonl", rows)
    with pytest.raises(InvalidArgumentError, match="Name one or two by --text_columns"):
        load_classification(str(tmp_path))
    for given, problem in (
        (["body", "titel"], "'titel' is not in the train split"),
        (["body", "title", "body"], "give one column or two"),
        (["body", "body"], "give one column or two different ones; it has: body, title, label"),
        (["label"], "'label' is what the model predicts"),
        (
            ["body", "label"],
            "--text_columns body label: 'label' is what the model predicts, not a text; it has",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=problem):
            load_classification(str(tmp_path), text_columns=given)
    _, data = load_classification(str(tmp_path), text_columns=["title", "body"])
    assert data["train"][0] == {"text": "y", "text_pair": "x", "label": 0}


def test_files_override_splits(tmp_path) -> None:
    write(tmp_path / "a.jsonl", [{"sentence": "x", "label": i} for i in (0, 1)])
    files = dict.fromkeys(("train", "validation", "test"), str(tmp_path / "a.jsonl"))
    _, data = load_classification("sst2", files=files)
    assert [len(data[split]) for split in ("train", "validation", "test")] == [2, 2, 2]
    write(tmp_path / "hidden.jsonl", [{"sentence": "x", "label": -1}])
    with pytest.raises(InvalidArgumentError, match="no labels"):
        load_classification("sst2", files={**files, "test": str(tmp_path / "hidden.jsonl")})
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InvalidArgumentError, match="is empty"):
        load_classification("sst2", files={**files, "test": str(tmp_path / "empty.jsonl")})


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        (2, "label of row 1 of the validation split is 2, outside the range"),
        (-1, "is -1, outside the range; expected 0 .negative., 1 .positive."),
        (None, "row 1 of the validation split has no label"),
        (0.5, "is 0.5; expected"),
    ],
)
def test_labels_outside_the_range(tmp_path, label, sentence) -> None:
    write(tmp_path / "train.jsonl", [{"sentence": "x", "label": i} for i in (0, 1)])
    write(tmp_path / "validation.jsonl", [{"sentence": "x", "label": i} for i in (0, label)])
    with pytest.raises(InvalidArgumentError, match=sentence):
        load_classification("sst2", data_dir=str(tmp_path))


@pytest.mark.parametrize("task", ["sentiment", "entailment"])
def test_embedded_corpora(task) -> None:
    spec, data = load_classification(task)
    assert set(data) == {"train", "validation", "test"}
    assert len(data["train"]) > 5000
    assert set(data["train"]["label"][:]) == set(range(len(spec.labels)))
    if task == "entailment":
        other = np.array(data["test"]["mismatched"][:])
        assert 0.3 < other.mean() < 0.7


def test_encoding_pairs_and_collating() -> None:
    data = Dataset.from_dict({"text": ["a b", "a"], "text_pair": ["b", "b a a b"], "label": [1, 0]})
    tokenizer = VanillaTransformerTokenizer.build(["a b a b"], source_lang="en", min_frequency=1)
    encoded = encode_texts(data, tokenizer, max_length=16, desc="encoding")
    assert encoded["length"][:] == [5, 7] and encoded["labels"][:] == [1, 0]
    texts, ordered = sort_by_length(data, encoded)
    assert texts["row"][:] == [1, 0] and ordered["length"][:] == [7, 5]
    batch = TextCollator(tokenizer)([ordered[i] for i in range(2)])
    assert batch["input_ids"].shape == (2, 7) and batch["labels"].tolist() == [0, 1]
    assert "length" not in batch and batch["attention_mask"].sum().item() == 12
    counts = token_counts(encoded, "input_ids", len(tokenizer))
    assert sum(counts) == 12 and counts[tokenizer.eos_token_id] == 4
    task = DATASETS["rte"]
    rows = prediction_rows(task, texts, np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert [row["row"] for row in rows] == [0, 1]
    assert rows[0]["label"] == "not_entailment" and rows[0]["prediction"] == "entailment"


def test_vectors_of_an_embedded_corpus_are_its_own(monkeypatch) -> None:
    words = VanillaTransformerTokenizer.build(["good film"], source_lang="en", min_frequency=1)
    pieces = tiny_tokenizers.tokenizer("wordpiece")
    monkeypatch.setattr(corpus_vectors, "corpus_vectors", lambda corpus, dim: (corpus, dim))
    for task, dataset, language, corpus in (
        (classification.TASK, "sentiment", "en", "sentiment"),
        (translation.TASK, "captions", "de", "captions-de"),
        (language_modeling.TASK, "stories", "en", "captions-en"),
    ):
        assert task.default_vectors(dataset, "glove_xavier", words, language, dim=8) == (corpus, 8)
        assert task.default_vectors(dataset, "xavier", words, language, dim=8) is None
        assert task.default_vectors("sst2", "glove", words, language, dim=8) is None
        assert task.default_vectors(dataset, "glove", pieces, language, dim=8) is None


def test_given_vectors_are_finite_in_the_rows_that_are_read(tmp_path) -> None:
    words = VanillaTransformerTokenizer.build(["good film"], source_lang="en", min_frequency=1)
    path = tmp_path / "v.txt"
    path.write_text("good 1 2\nfilm nan 1\nother inf 1\n")
    with pytest.raises(VectorFileError, match="rows of 1 tokens of the text, such as 'film'"):
        given_vectors(str(path), words)
    path.write_text("good 1 2\nother inf 1\n")
    vectors = given_vectors(str(path), words)
    assert vectors is not None and vectors.tokens == ["good"]


def test_vectors_that_are_not_there_are_called_by_their_flag() -> None:
    words = VanillaTransformerTokenizer.build(["good film"], source_lang="en", min_frequency=1)
    for flag, target in (("--vectors", False), ("--target_vectors", True)):
        with pytest.raises(DataNotFoundError, match=rf"^{flag} 'nope.txt' is no file or folder here"):
            given_vectors("nope.txt", words, target=target)
    with pytest.raises(DataNotFoundError, match=r"give vectors= \(--vectors\) the path"):
        given_vectors("glove", words)


@pytest.mark.parametrize("init", ["bert", "bert_xavier", "mt5_shuffled", "xavier_t5"])
def test_an_initialiser_that_names_a_source_never_reads_another(init) -> None:
    """`bert` on an embedded corpus is BERT's vectors or an error, not the corpus's own GloVe."""
    words = VanillaTransformerTokenizer.build(["good film"], source_lang="en", min_frequency=1)
    assert classification.TASK.default_vectors("sentiment", init, words, "en", dim=8) is None


def test_a_decoder_without_padding_pads_with_its_end(tmp_path) -> None:
    tokenizer = tiny_tokenizers.tokenizer("byte_level")
    tiny_tokenizers.model("gpt2", len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, found = load_pretrained_classifier(str(tmp_path), num_labels=3)
    assert model.config.pad_token_id == found.pad_token_id == tokenizer.eos_token_id
    batch = found(["a dog", "two dogs in the snow"], padding=True, return_tensors="pt")
    assert model(**batch).logits.shape == (2, 3)


def longest_that_runs(model, lengths) -> int:
    def runs(length: int) -> bool:
        try:
            model(input_ids=torch.full((1, length), 5))
        except (RuntimeError, IndexError, ValueError):
            return False
        return True

    return max(length for length in lengths if runs(length))


def test_lengths_are_those_that_a_model_reads() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "max_position_embeddings": 34}
    for config in (RobertaConfig(**sizes, pad_token_id=1), BertConfig(**sizes, pad_token_id=0)):
        model = AutoModelForSequenceClassification.from_config(config).eval()
        most = longest_that_runs(model, range(28, 40))
        check_length(model, most)
        with pytest.raises(
            InvalidArgumentError, match=f"--max_length {most + 1} is more than the {most} pos"
        ):
            check_length(model, most + 1)
    sizes = {"vocab_size": 50, "d_model": 16, "num_heads": 2, "d_ff": 8, "num_layers": 1}
    for encoding in ("sinusoidal", "learned", "rotary", "relative", "none"):
        config = VanillaTransformerConfig(**sizes, position_encoding=encoding, max_position_embeddings=20)
        model = VanillaTransformerForSequenceClassification(config).eval()
        limit = longest_input(model)
        assert limit == (20 if encoding in ("sinusoidal", "learned") else None)
        assert longest_that_runs(model, (20, 30)) == (20 if limit else 30)


@pytest.mark.data
def test_vocabularies_of_sst2_are_those_of_table_5(data_folder) -> None:
    _, data = load_classification("sst2", data_dir=str(data_folder))
    assert len(data["train"]) == 67_349 and len(data["validation"]) == 872
    texts = data["train"]["text"][:]
    words = VanillaTransformerTokenizer.build(texts, source_lang="en")
    assert len(words) - 4 == 13_435
    folder = data_folder / "tokenizers" / "bert-base-uncased"
    assert len(VanillaTransformerTokenizer.build(texts, tokenizer=folder)) - 4 == 11_311


@pytest.mark.data
@pytest.mark.parametrize("task", GLUE)
def test_every_glue_task_that_is_there_loads(data_folder, task) -> None:
    folder = data_folder / "glue" / task
    if not (folder / "train.jsonl").is_file():
        with pytest.raises(DataNotFoundError, match=task):
            load_classification(task, data_dir=str(data_folder) if folder.is_dir() else None)
        return
    spec, data = load_classification(task, data_dir=str(data_folder))
    assert len(data["train"]) > len(data["validation"]) > 50
    assert ("text_pair" in data["train"].column_names) == (len(spec.columns) == 2)
