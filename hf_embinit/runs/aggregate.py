"""Records gathered into one table: a row a setting and initialiser, mean and sample sd over seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import DataNotFoundError
from .record import RESULTS_NAME, RunRecord, read_record

COLUMNS = {
    "test_bleu": "test BLEU",
    "test_bleu_tokenized": "test BLEU, own tokens",
    "test_accuracy": "test accuracy",
    "validation_accuracy": "validation accuracy",
    "validation_accuracy_mismatched": "mismatched",
    "validation_f1": "validation F1",
    "validation_matthews_correlation": "validation Matthews",
    "validation_spearmanr": "validation Spearman",
    "validation_loss": "validation loss",
}
"""Metrics of a record that a table shows, in this order, where any record has them."""


def read_records(folder: str | Path) -> list[RunRecord]:
    """Every record below `folder`, by path. Raises `DataNotFoundError` when there is none."""
    paths = sorted(Path(folder).rglob(RESULTS_NAME))
    if not paths:
        raise DataNotFoundError(
            f"no {RESULTS_NAME} below {str(folder)!r}: give the folder of one or more finished runs"
        )
    return [read_record(path) for path in paths]


def results_table(records: Iterable[RunRecord]) -> str:
    """A Markdown table: runs that differ in nothing but the seed share a row, `mean (sd)` over their n
    seeds."""
    groups: dict[tuple, list[RunRecord]] = defaultdict(list)
    for record in records:
        epochs = record.arguments.get("num_train_epochs")
        samples = record.arguments.get("max_train_samples")
        groups[record.dataset, record.tokenizer, epochs, samples, record.init].append(record)
    metrics = [m for m in COLUMNS if any(m in r.metrics for group in groups.values() for r in group)]
    header = ["data", "tokenizer", "epochs", "init", "seeds", *(COLUMNS[m] for m in metrics), "best epoch"]
    rows = []
    for (dataset, tokenizer, epochs, samples, init), group in groups.items():
        data = dataset if samples is None else f"{dataset}, first {samples}"
        cells = [data, tokenizer, f"{epochs:g}" if epochs is not None else "", f"`{init}`", str(len(group))]
        cells += [_mean_sd([r.metrics[m] for r in group if m in r.metrics], _digits(m)) for m in metrics]
        cells.append(_mean_sd([r.best_epoch for r in group if r.best_epoch is not None], 1))
        rows.append(cells)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _digits(metric: str) -> int:
    return 2 if metric.endswith(("loss", "bleu", "bleu_tokenized")) else 3  # the others are 1 at most


def _mean_sd(values: Sequence[float], digits: int) -> str:
    if not values:
        return "not measured"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({statistics.stdev(values):.{digits}f})"
