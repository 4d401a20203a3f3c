"""The end of every run: figures, samples, card, and the record last."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..cards import CARD_SAMPLES, write_card
from ..manifest import read_manifest, row_ids
from ..records import RunRecord, samples_name, write_record
from ..tables import EmbeddingTables, input_positions, input_scale
from ..tasks import task_of
from .figures import plot_embedding_distribution, plot_learning_curve

_POSITION_TABLES = ("position_embeddings.weight", "embed_positions.weight", "wpe.weight")


def draw_tables(model: PreTrainedModel, folder: Path, init: str) -> None:
    """One figure for each input table without its padding row: values against Xavier's and the positions'.

    Positions are the model's own where it adds some, learned or fixed, else 5,000 sinusoidal ones.
    """
    tables = EmbeddingTables(model)
    learned = [p for name, p in model.named_parameters() if name.endswith(_POSITION_TABLES)]
    for table in tables.input_tables:
        positions: list[Tensor] = [p for p in learned if p.dim() == 2 and p.shape[1] == table.embedding_dim]
        fixed = input_positions(model, table)
        if not isinstance(fixed, str):
            positions.append(fixed.encodings * fixed.factor)
        plot_embedding_distribution(
            tables.read(table),
            folder / f"embedding_distribution_{table.side}.png",
            title=f"{init}: {table.side} embeddings [{table.num_embeddings}, {table.embedding_dim}]",
            rows=[row for row in range(table.num_embeddings) if row != table.padding_index],
            input_scale=input_scale(model, table),
            positions=positions[0] if positions else None,
        )


def draw_learning_curve(folder: Path, record: RunRecord) -> None:
    """Losses and scores by epoch."""
    if any("validation_loss" in row for row in record.history):
        task = task_of(record.task, record.metrics)
        titles = {name: task.metrics[name].title for name in task.drawn} if task else {}
        plot_learning_curve(
            record.history,
            folder / "figures" / "learning_curve.png",
            scores={f"validation_{name}": f"validation {title}" for name, title in titles.items()},
            best_epoch=record.best_epoch,
            title=record.title,
        )


def vector_digests(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The entries of a record's `data` for the vectors that were read for each table.

    They give the number of rows, their digest, their source and their `provenance`, None when it is unknown.
    """
    digests = {}
    for event in events:
        for table in event.get("tables", ()):
            source = table.get("source") or {}
            if source.get("digest"):
                digests[f"vectors, {table['side']}"] = {
                    "rows": len(row_ids(table["rows"])),
                    "sha256": source["digest"].removeprefix("sha256:"),
                    "name": source["name"],
                    "revision": source["revision"],
                    "provenance": source.get("provenance"),
                }
    return digests


def finish_run(
    folder: Path,
    record: RunRecord,
    samples: Sequence[Mapping[str, Any]],
    *,
    models: Sequence[str] = ("",),
    figures: Callable[[Path, RunRecord], None] | None = None,
) -> str:
    """Writes figures, samples, card and record into the run folder; returns the summary to print.

    `models` are the sub-folders of the run folder, and of its `init`, that hold the models. `figures` draws
    those of the run, the learning curve when it is None. The record is written last: a folder without
    `results.json` is an unfinished run.
    """
    (figures or draw_learning_curve)(folder, record)
    if samples:
        text = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        (folder / samples_name(record)).write_text(text, encoding="utf-8")
    events = read_manifest(folder / models[0])
    record.data |= vector_digests(events)
    write_card(folder, record, manifest=events, samples=samples[:CARD_SAMPLES])
    path = write_record(folder, record)
    lines = ["", record.title]
    if record.diverged:
        lines.append("  It diverged: a loss was no finite number. Try a lower --learning_rate.")
    rows = {**record.metrics, "best_epoch": record.best_epoch, **record.runtime}
    width = max(map(len, rows))
    for name, value in rows.items():
        if value is not None:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            signature = f"   {record.signature[name]}" if name in record.signature else ""
            lines.append(f"  {name:<{width}}  {shown}{signature}")
    lines += [
        *(f"trained model:      {folder / model}" for model in models),
        *(f"initialised model:  {folder / 'init' / model}" for model in models),
        f"record, card:       {path}, {folder / 'README.md'}",
        f"figures:            {folder / 'figures'}",
        *([f"predictions:        {folder / samples_name(record)}"] if samples else []),
    ]
    return "\n".join(lines)
