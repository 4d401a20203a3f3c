"""Text classification on GLUE, embedded corpora and folders of one's own: settings, encoding, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..measures import GLUE_METRICS, load_metric
from .data import data_digests
from .encoded import TextCollator, sort_by_length, token_counts
from .spec import LOSS, DataSpec, Score, TaskSpec, register_task
from .task_data import Outcome, TaskData, untimed

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

SENTENCE_COLUMNS = ("sentence", "text")
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("question1", "question2"),
)
"""Names under which the two texts of a pair are looked for in a folder of one's own."""


@dataclass(frozen=True)
class ClassificationTask(DataSpec):
    """A data set with a name; without labels a score is predicted (regression)."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of functions in `hf_embinit.measures.glue`; the first chooses the best epoch."""
        if self.name in GLUE_METRICS:
            return GLUE_METRICS[self.name]
        if not self.labels:
            return GLUE_METRICS["stsb"]
        return ("accuracy", "f1") if len(self.labels) == 2 else ("accuracy",)

    @property
    def label_settings(self) -> dict[str, Any]:
        """The settings of a classifier's config that describe the labels."""
        settings: dict[str, Any] = {
            "num_labels": len(self.labels) or 1,
            "problem_type": "single_label_classification" if self.labels else "regression",
        }
        if self.labels:
            settings["id2label"] = dict(enumerate(self.labels))
            settings["label2id"] = {label: i for i, label in enumerate(self.labels)}
        return settings


def _paper(epochs: int, *, d_model: int, num_heads: int = 8) -> dict[str, Any]:
    """Kim et al. 2024, Table 5 and section A.2."""
    return {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 128,
        "per_device_eval_batch_size": 128,
        "learning_rate": 1e-4,
        "d_model": d_model,
        "d_ff": 512,
        "num_layers": 3,
        "num_heads": num_heads,
    }


def _paper_presets(words: int, pieces: int) -> dict[str, dict[str, Any]]:
    """Settings for words and for sub-words, with Table 5's epochs."""
    return {
        "words": _paper(words, d_model=300, num_heads=10),
        "bert": _paper(pieces, d_model=768),
        "*": _paper(pieces, d_model=512),
    }


def _embedded(epochs: int, batch_size: int) -> dict[str, dict[str, Any]]:
    return {
        "*": {
            "num_train_epochs": epochs,
            "per_device_train_batch_size": batch_size,
            "per_device_eval_batch_size": 256,
            "learning_rate": 5e-4,
            "d_model": 128,
            "d_ff": 256,
            "num_layers": 2,
            "num_heads": 4,
        }
    }


GLUE_ID = "nyu-mll/glue"
NLI = ("entailment", "neutral", "contradiction")


def _glue(name: str, columns: tuple[str, ...], labels: tuple[str, ...]) -> ClassificationTask:
    presets = _paper_presets(*((9, 10) if name == "mnli" else (5, 5)))
    return ClassificationTask(name, GLUE_ID, columns=columns, labels=labels, presets=presets)


DATASETS = {
    task.name: task
    for task in (
        ClassificationTask(
            "sentiment",
            columns=("sentence",),
            labels=("negative", "positive"),
            presets=_embedded(4, 64),
            text="sentiment",
        ),
        ClassificationTask(
            "entailment",
            columns=("premise", "hypothesis"),
            labels=NLI,
            presets=_embedded(8, 32),
            text="entailment",
        ),
        _glue("sst2", ("sentence",), ("negative", "positive")),
        _glue("mnli", ("premise", "hypothesis"), NLI),
        _glue("cola", ("sentence",), ("unacceptable", "acceptable")),
        _glue("mrpc", ("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
        _glue("qnli", ("question", "sentence"), ("entailment", "not_entailment")),
        _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate")),
        _glue("rte", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
        _glue("stsb", ("sentence1", "sentence2"), ()),
        _glue("wnli", ("sentence1", "sentence2"), ("not_entailment", "entailment")),
    )
}
"""Tasks by name. Epochs, batch sizes and widths of SST-2 and MNLI are Kim et al. 2024, Table 5, and SST-2's
are used for the rest of GLUE; `sentiment` and `entailment` are this package's own."""

FINE_TUNING = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 128,
    "learning_rate": 2e-5,
    "weight_decay": 0.01,
    "warmup_steps": 0.1,
    "lr_scheduler_type": "linear",
}
"""Settings for pre-trained models from Devlin et al. 2019 (sections 4.1, A.2 and A.3), since Zhang 2021 names
none. A `warmup_steps` below 1 is a share of all steps."""

VANILLA = {
    "position_encoding": "sinusoidal",
    "position_scale": 1.0,
    "norm_position": "post",
    "dropout_rate": 0.1,
    "freeze_embeddings": False,
    "min_frequency": 2,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
    "lr_scheduler_type": "constant",
}
"""Kim et al. 2024, section A.2."""


def preset(task: str, model: str = "vanilla", tokenizer: str = "words") -> dict[str, Any]:
    """The settings for a task, a model and a tokenizer; SST-2's for a task without a name."""
    if model != "vanilla":
        return dict(FINE_TUNING)
    return {**DATASETS.get(task, DATASETS["sst2"]).preset(tokenizer), **VANILLA}


def _correlation(name: str) -> Score:
    return Score(f"{name} correlation", name, digits=4)


TASK = register_task(
    TaskSpec(
        "classification",
        recipe="classify.py",
        datasets=DATASETS,
        metrics={
            "accuracy": Score("accuracy", digits=4),
            "accuracy_mismatched": Score("accuracy, mismatched", digits=4, hub_name="accuracy"),
            "f1": Score("F1", digits=4),
            "matthews_correlation": _correlation("Matthews"),
            "pearsonr": _correlation("Pearson"),
            "spearmanr": _correlation("Spearman"),
            "loss": LOSS,
        },
        columns=(
            "validation_accuracy",
            "validation_accuracy_mismatched",
            "validation_f1",
            "validation_matthews_correlation",
            "validation_pearsonr",
            "validation_spearmanr",
            "test_accuracy",
            "test_f1",
            "validation_loss",
        ),
        drawn=("matthews_correlation", "spearmanr", "f1", "accuracy"),
        auto_class="AutoModelForSequenceClassification",
        pipeline_tag="text-classification",
        settings=VANILLA,
        preset=preset,
        takes_models_apart=True,
    )
)


def encode_texts(data: Dataset, tokenizer: Any, *, max_length: int, desc: str) -> Dataset:
    """`data` encoded by the tokenizer, with `labels` and `length`, truncated to `max_length` tokens."""

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        texts = [batch[column] for column in ("text", "text_pair") if column in batch]
        encoded = dict(tokenizer(*texts, max_length=max_length, truncation=True))
        return {**encoded, "labels": batch["label"], "length": [len(ids) for ids in encoded["input_ids"]]}

    return data.map(encode, batched=True, remove_columns=data.column_names, desc=desc)


def predicted_labels(logits: Any, task: ClassificationTask) -> np.ndarray:
    """Labels `[n]` from logits `[n, labels]`, or scores `[n]` from `[n, 1]` for regression."""
    logits = np.asarray(logits[0] if isinstance(logits, tuple) else logits)
    return logits.argmax(-1) if task.labels else logits[:, 0]


def prediction_rows(task: ClassificationTask, data: Dataset, logits: Any) -> list[dict[str, Any]]:
    """One dict a text, in the file's order: its columns, `label` and `prediction` (names if any), `row`."""

    def name(label: Any) -> Any:
        return task.labels[label] if task.labels else label

    rows = []
    for row, answer in zip(data, predicted_labels(logits, task).tolist(), strict=True):
        place = row.pop("row")
        rows.append({**row, "label": name(row["label"]), "prediction": name(answer), "row": place})
    return sorted(rows, key=lambda row: row["row"])


def classification_metrics(task: ClassificationTask, data: Dataset) -> Callable[[Any], dict[str, float]]:
    """`compute_metrics` for a `Trainer` that evaluates on the texts of `data`, in their order.

    Where `data` has a column `mismatched` (MNLI's texts of other genres), its scores are those of the matched
    texts, and `<metric>_mismatched` those of the others.
    """
    metric = load_metric("glue")
    other = np.asarray(data["mismatched"][:], dtype=bool) if "mismatched" in data.column_names else None

    def scores(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        return metric.compute(predictions=predictions, references=labels, metrics=task.metrics) or {}

    def compute_metrics(prediction: Any) -> dict[str, float]:
        predictions = predicted_labels(prediction.predictions, task)
        labels = np.asarray(prediction.label_ids).reshape(-1)
        if other is None or other.all() or not other.any():
            return scores(predictions, labels)
        mismatched = scores(predictions[other], labels[other])
        return {
            **scores(predictions[~other], labels[~other]),
            **{f"{name}_mismatched": value for name, value in mismatched.items()},
        }

    return compute_metrics


class ClassificationData(TaskData):
    """Texts and their labels, encoded; validation and test sets longest first."""

    def __init__(
        self, task: ClassificationTask, data: Mapping[str, Dataset], tokenizer: Any, *, max_length: int
    ):
        self.task, self.tokenizer = task, tokenizer
        self.digests = data_digests(data)  # before the splits are put in another order
        self.texts, self.encoded = dict(data), {}
        for split, texts in data.items():
            encoded = encode_texts(texts, tokenizer, max_length=max_length, desc=f"encoding {split}")
            if split != "train":
                self.texts[split], encoded = sort_by_length(texts, encoded)
            self.encoded[split] = encoded
        self.train, self.validation = self.encoded["train"], self.encoded["validation"]
        self.compute_metrics = classification_metrics(task, self.texts["validation"])
        self.measured = task.metrics
        self.not_smoothed = None if task.labels else "the labels are numbers, not classes"

    def token_counts(self, model: PreTrainedModel) -> list[int]:
        """How often each id of the model's input table occurs in the training texts."""
        table: Any = model.get_input_embeddings()
        return token_counts(self.train, "input_ids", table.num_embeddings)

    def collator(self, model: Any) -> Any:
        """Pads texts that have one label each."""
        return TextCollator(self.tokenizer)

    def trained_tokens(self, trainer: Any) -> float:
        """Tokens of the training texts, times the epochs."""
        return sum(self.train["length"][:]) * trainer.state.epoch

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """Scores and predictions of the test set, or of the validation set when test labels are unknown."""
        split = "test" if "test" in self.texts else "validation"
        trainer.compute_metrics = classification_metrics(self.task, self.texts[split])
        predicted = trainer.predict(self.encoded[split], metric_key_prefix=split)
        rows = prediction_rows(self.task, self.texts[split], predicted.predictions)
        return Outcome(untimed(predicted.metrics), rows)
