"""The end of every recipe: figures, samples, card, and the record last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..manifest import read_manifest
from ..tables import EmbeddingTables
from .card_text import scored_split
from .cards import write_card
from .figures import plot_embedding_distribution, plot_learning_curve
from .record import RunRecord, write_record
from .training import input_scale

_POSITION_TABLES = ("position_embeddings.weight", "embed_positions.weight", "wpe.weight")

CARD_SAMPLES = 5
"""How many of them a card shows."""


def draw_tables(model: PreTrainedModel, folder: Path, init: str) -> None:
    """One figure an input table: its values against Xavier's and the positions', padding row left out.

    Positions are the model's own table where it has learned one, else sinusoidal ones.
    """
    tables = EmbeddingTables(model)
    learned = [p for name, p in model.named_parameters() if name.endswith(_POSITION_TABLES)]
    for table in tables.input_tables:
        positions = [p for p in learned if p.dim() == 2 and p.shape[1] == table.embedding_dim]
        plot_embedding_distribution(
            tables.read(table),
            folder / f"embedding_distribution_{table.side}.png",
            title=f"{init}: {table.side} embeddings [{table.num_embeddings}, {table.embedding_dim}]",
            rows=[row for row in range(table.num_embeddings) if row != table.padding_index],
            input_scale=input_scale(model, table.embedding_dim),
            positions=positions[0] if positions else None,
        )


def samples_name(record: RunRecord) -> str:
    """The file in a run folder that holds the predictions: `test_predictions.jsonl`, or the validation
    set's."""
    return f"{scored_split(record)}_predictions.jsonl"


def test_scores(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What `trainer.predict` measured, without its timings."""
    timings = ("_runtime", "_per_second", "_preparation_time")
    return {k: v for k, v in metrics.items() if not k.endswith(timings)}


def vector_digests(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What stands in a record's `data` for the vectors behind each table: its rows, and their digest."""
    found = {}
    for event in events:
        for table in event.get("tables", ()):
            digest = (table.get("source") or {}).get("digest")
            if digest:
                rows = table["rows"][1] - table["rows"][0]
                found[f"vectors, {table['side']}"] = {"rows": rows, "sha256": digest.removeprefix("sha256:")}
    return found


def finish_run(
    folder: Path, record: RunRecord, samples: Sequence[Mapping[str, Any]], *, models: Sequence[str] = ("",)
) -> str:
    """Writes figures, samples, card and record into the run folder; gives the summary to print.

    `models` are the sub-folders of the run folder, and of its `init`, that hold the models. The record is
    written last: a folder without `results.json` is an unfinished run.
    """
    if any("validation_loss" in row for row in record.history):
        plot_learning_curve(
            record.history,
            folder / "figures" / "learning_curve.png",
            best_epoch=record.best_epoch,
            title=f"{record.task} on {record.dataset}, init {record.init}, seed {record.seed}",
        )
    with open(folder / samples_name(record), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    events = read_manifest(folder / models[0])
    record.data |= vector_digests(events)
    write_card(folder, record, manifest=events, samples=samples[:CARD_SAMPLES])
    path = write_record(folder, record)
    lines = ["", f"{record.task} on {record.dataset}, init {record.init}, seed {record.seed}"]
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
        f"predictions:        {folder / samples_name(record)}",
    ]
    return "\n".join(lines)
