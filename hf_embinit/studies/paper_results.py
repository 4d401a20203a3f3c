"""The numbers that a paper prints for a run like this one, from the study files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..records import RunRecord
from ..tasks import task_of
from .scores import field_value
from .study import RUN_PREFIX, Cell, Study, list_studies, load_study

_USUAL = {
    "label_smoothing_factor": 0.0,
    "weight_decay": 0.0,
    "gradient_accumulation_steps": 1,
    "generation_num_beams": 1,
}
"""Settings of the papers that neither a task nor a preset names."""
_SCORED_BY = ("per_device_eval_batch_size",)
"""Settings that change no number of a paper."""
_LIMITS = ("max_train_samples", "max_eval_samples", "max_predict_samples")
_FILES = ("train_file", "validation_file", "test_file")
_ORDINARY = {
    "freeze_embeddings": (None, False),
    "position_encoding": (None, "sinusoidal"),
    "position_scale": (None, 1),
    "surgery": (None,),
    "donor": (None,),
}
"""Values of these arguments in a cell that does not name them."""


@dataclass(frozen=True)
class PaperRow:
    """One number of a run beside the paper's."""

    what: str
    ours: float
    paper: str
    """As the paper prints it, with its standard deviation if it has one."""
    source: str


def paper_rows(record: RunRecord) -> list[PaperRow]:
    """What papers print for the data, the model and the initialiser of `record`; empty where none does.

    A cell of a study counts when its recipe is the record's, every argument of the cell has the same value in
    the record, and the record does not freeze embeddings, segment text or encode positions in another way
    than the cell. Cells that were searched over a grid have no settings to compare with, and are left out.
    """
    values, task = record.to_dict(), task_of(record.task, record.metrics)
    named = {key: values[key] for key in ("dataset", "init", "tokenizer")}
    arguments = {**values["arguments"], **named, "task": values["dataset"]}
    rows = []
    for study, cell in _printed_cells():
        ((point, runs),) = cell.points
        if point or task is None or runs[0].recipe != task.recipe or not _same(runs[0].arguments, arguments):
            continue
        for value, printed in zip(cell.values, cell.paper, strict=False):
            ours = field_value(values, value.field)
            if ours is not None and printed[0] is not None:
                column, row = study.columns[cell.column], study.rows[cell.row]
                measure = row.title if value.title == "value" else value.title
                what = f"{column.title}, {measure}"
                rows.append(PaperRow(what, value.scale * ours, printed[2], study.file.source))
    return rows


def other_settings(record: RunRecord) -> list[str]:
    """Settings in which a run differs from the paper's for its data (`num_train_epochs 5 instead of 20`).

    Vectors that were given by the user count among them.
    """
    arguments, task = record.arguments, task_of(record.task, record.metrics)
    if task is None or task.preset is None:
        return []
    preset = task.preset(record.dataset, arguments.get("model") or "vanilla", record.tokenizer)
    differences = [
        f"{key} {_shown(arguments[key])} instead of {_shown(usual)}"
        for key, usual in {**preset, **task.settings, **_USUAL, **preset}.items()
        if key not in (*_ORDINARY, *_SCORED_BY)  # which belong to the cell, or to no score
        and None not in (arguments.get(key), usual)
        and _plain(arguments[key]) != _plain(usual)
    ]
    others = (*_LIMITS, *_FILES, "vectors", "target_vectors")
    differences += [f"{key} {arguments[key]}" for key in others if arguments.get(key)]
    if (arguments.get("max_steps") or -1) > 0:
        differences.append(f"max_steps {arguments['max_steps']}")
    return differences


@cache
def _printed_cells() -> list[tuple[Study, Cell]]:
    """The cells that a paper prints numbers for."""
    studies = [load_study(name) for name in list_studies()]
    return [
        (study, cell) for study in studies for cell in study.cells if cell.paper and len(cell.points) == 1
    ]


def _same(arguments: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    if any(ours.get(key) not in usual for key, usual in _ORDINARY.items() if key not in arguments):
        return False
    return all(
        _plain(value) == _plain(ours.get(key)) and not str(value).startswith(RUN_PREFIX)
        for key, value in arguments.items()
    )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
