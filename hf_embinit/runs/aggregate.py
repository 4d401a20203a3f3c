"""Records gathered into one table: a row a setting and initialiser, mean and sample sd over seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import DataNotFoundError
from .record import RESULTS_NAME, RunRecord, read_record

COLUMNS = {
    "test_bleu": "test BLEU",
    "test_bleu_tokenized": "test BLEU, own tokens",
    "validation_accuracy": "validation accuracy",
    "validation_accuracy_mismatched": "validation accuracy, mismatched",
    "validation_f1": "validation F1",
    "validation_matthews_correlation": "validation Matthews",
    "validation_pearsonr": "validation Pearson",
    "validation_spearmanr": "validation Spearman",
    "test_accuracy": "test accuracy",
    "test_f1": "test F1",
    "knn_peak": "peak KNN match",
    "knn_input_inner_product": "last KNN match",
    "kl_mean": "KL before training",
    "validation_bits_per_byte": "validation bits per byte",
    "test_bits_per_byte": "test bits per byte",
    "test_perplexity": "test perplexity",
    "validation_loss": "validation loss",
}
"""Metrics of a record that a table shows, in this order, where any record has them."""
_LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte", "kl_mean")
_SHARES = ("accuracy", "f1", "matthews", "pearsonr", "spearmanr", "knn", "kl_mean", "bits_per_byte")


def read_records(folder: str | Path) -> list[RunRecord]:
    """Every record below `folder`, by path. Raises `DataNotFoundError` when there is none."""
    paths = sorted(Path(folder).rglob(RESULTS_NAME))
    if not paths:
        raise DataNotFoundError(
            f"no {RESULTS_NAME} below {str(folder)!r}: give the folder of one or more finished runs"
        )
    return [read_record(path) for path in paths]


def results_table(records: Iterable[RunRecord]) -> str:
    """A Markdown table for each task: runs that differ in nothing but the seed share a row, `mean (sd)` over
    their n seeds. The rows of one setting stand together, the best by the first metric on top."""
    by_task: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        by_task[record.task].append(record)
    return "\n".join(_task_table(group) for group in by_task.values())


def _task_table(records: Sequence[RunRecord]) -> str:
    groups: dict[tuple, list[RunRecord]] = defaultdict(list)
    for record in records:
        epochs = record.arguments.get("num_train_epochs")
        samples = record.arguments.get("max_train_samples")
        model = record.arguments.get("model") or "vanilla"
        groups[record.dataset, model, record.tokenizer, epochs, samples, record.init].append(record)
    metrics = [m for m in COLUMNS if any(m in r.metrics for group in groups.values() for r in group)]
    models = any(model != "vanilla" for _, model, *_ in groups)
    header = ["data", *(["model"] if models else []), "tokenizer", "epochs", "init", "seeds"]
    rows = []
    for (dataset, model, tokenizer, epochs, samples, init), group in _best_first(groups, metrics):
        data = dataset if samples is None else f"{dataset}, first {samples}"
        cells = [data, *([_short(model)] if models else []), _short(tokenizer)]
        cells += [f"{epochs:g}" if epochs is not None else "", f"`{init}`", str(len(group))]
        for m in metrics:
            digits = 4 if any(share in m for share in _SHARES) else 2
            cells.append(_mean_sd([r.metrics[m] for r in group if m in r.metrics], digits))
        cells.append(_mean_sd([r.best_epoch for r in group if r.best_epoch is not None], 1))
        rows.append(cells)
    header += [*(COLUMNS[m] for m in metrics), "best epoch"]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _best_first(
    groups: Mapping[tuple, Sequence[RunRecord]], metrics: Sequence[str]
) -> list[tuple[tuple, Sequence[RunRecord]]]:
    """The groups, settings (all of a key but the initialiser) in the order in which they came."""
    settings = list(dict.fromkeys(key[:-1] for key in groups))

    def rank(item: tuple[tuple, Sequence[RunRecord]]) -> tuple[int, float]:
        key, group = item
        values = [r.metrics[metrics[0]] for r in group if metrics and metrics[0] in r.metrics]
        if not values:
            return settings.index(key[:-1]), float("inf")
        mean = statistics.fmean(values)
        return settings.index(key[:-1]), mean if metrics[0].endswith(_LOWER_IS_BETTER) else -mean

    return sorted(groups.items(), key=rank)


def _short(name: str) -> str:
    """A checkpoint's name without the folder that it lies in."""
    return name.rstrip("/").split("/")[-1]


def _mean_sd(values: Sequence[float], digits: int) -> str:
    if not values:
        return "not measured"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({statistics.stdev(values):.{digits}f})"
