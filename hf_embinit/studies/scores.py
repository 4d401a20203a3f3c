"""The scores of a study's cells: its values by seed, from the records of its runs."""

from __future__ import annotations

import difflib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..records import lost_a_loss
from .files import PICKS
from .scheduling import Launch, outcome_of, read_result
from .study import Cell, Study


@dataclass
class Scores:
    """The scores of one cell: for each value, the numbers by seed."""

    cell: Cell
    by_seed: list[dict[int, float]]
    status: str
    """`finished`, or what the cell shows instead of numbers: `diverged`, `failed`, `not run`, ..."""
    errors: list[str] = field(default_factory=list)
    point: dict[str, Any] = field(default_factory=dict)
    """The grid point that is shown."""
    points: list[tuple[dict[str, Any], dict[int, float]]] = field(default_factory=list)
    """The first value of every grid point, by seed."""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Records of the runs behind the numbers, by name of the run."""


def gather(study: Study, launch: Launch) -> list[Scores]:
    """The scores of every cell of the table, from the records of its finished runs."""
    scores = [_scores(cell, launch) for cell in study.table]
    raw = {(s.cell.column, s.cell.row): [dict(by_seed) for by_seed in s.by_seed] for s in scores}
    scales = {(s.cell.column, s.cell.row): [value.scale for value in s.cell.values] for s in scores}
    for s in scores:
        for i, value in enumerate(s.cell.values):
            if value.relative_to is not None:
                place = (value.relative_to, s.cell.row)
                reference = raw.get(place, [{}] * len(s.by_seed))[i]
                base = mean(reference) / scales[place][i] if reference else 0.0
                s.by_seed[i] = {k: v / base for k, v in s.by_seed[i].items()} if base else {}
    return scores


def _scores(cell: Cell, launch: Launch) -> Scores:
    best: Scores | None = None
    points = []
    for point, runs in cell.points:
        outcomes = [outcome_of(run, launch) for run in runs]
        found = {r.seed: record for r in runs if (record := read_result(r, launch)) is not None}
        records = {run.name: found[run.seed] for run in runs if run.seed in found}
        by_seed: list[dict[int, float]] = [{} for _ in cell.values]
        for seed, record in found.items():
            for i, value in enumerate(cell.values):
                number = None if has_diverged(record) else field_value(record, value.field)
                if number is not None:
                    by_seed[i][seed] = value.scale * number
        states = {outcome.status for outcome in outcomes}
        order = ("finished", "running", "failed", "begun", "not run")
        status = next(state for state in order if state in states)
        errors = [f"{o.run.name}: {o.error}" for o in outcomes if o.error]
        diverged = [name for name, record in records.items() if has_diverged(record)]
        errors += [f"{name}: diverged, a loss was no finite number" for name in diverged]
        if status == "finished" and len(diverged) == len(records):
            status = "diverged"
        scores = Scores(cell, by_seed, status, errors, point, [], records)
        points.append((point, by_seed[0]))
        if best is None or _rank(scores, len(runs)) > _rank(best, len(runs)):
            best = scores
    assert best is not None
    best.points = points if len(points) > 1 else []
    return best


def _rank(scores: Scores, seeds: int) -> tuple[bool, float]:
    """Sort key of grid points: complete ones first, then by mean."""
    numbers = list(scores.by_seed[0].values())
    if not numbers:
        return (False, -math.inf)
    sign = -1 if scores.cell.values[0].better == "lower" else 1
    return (len(numbers) == seeds, sign * statistics.fmean(numbers))


def has_diverged(record: Mapping[str, Any]) -> bool:
    """Whether a loss of the run was NaN or infinite; its scores then do not count."""
    return bool(record.get("diverged")) or lost_a_loss(record.get("history", []), record.get("metrics", {}))


def field_value(record: Mapping[str, Any], path: str) -> float | None:
    """The number at `path` of a record (see `Value.field`); None where the record has none."""
    if path == "minutes_per_epoch":
        seconds = record.get("runtime", {}).get("train_seconds")
        epochs = (record.get("history") or [{}])[-1].get("epoch")
        return seconds / epochs / 60 if seconds and epochs else None
    steps = path.split("/")
    if steps[0] == "history" and len(steps) == 3 and steps[1] in PICKS:
        rows = [row for row in record.get("history", []) if row.get(steps[2]) is not None]
        if not rows:
            return None
        pick = max if steps[1].endswith("max") else min
        best = pick(rows, key=lambda row: row[steps[2]])
        return best["epoch"] if steps[1].startswith("epoch_of_") else best[steps[2]]
    value: Any = record
    for step in steps:
        if not isinstance(value, Mapping):
            return None
        key = step if step in value else next((k for k in value if fnmatchcase(k, step)), None)
        if key is None:
            return None
        value = value[key]
    return float(value) if isinstance(value, (int, float)) else None


def missing_fields(scores: Sequence[Scores]) -> list[str]:
    """A sentence on each field that no finished run of some cells has, with the nearest that they have."""
    without: dict[str, list[Scores]] = {}
    for s in scores:
        counted = [record for record in s.records.values() if not has_diverged(record)]
        for name in dict.fromkeys(value.field for value in s.cell.values):
            if counted and all(field_value(record, name) is None for record in counted):
                without.setdefault(name, []).append(s)
    sentences = []
    for name, cells in without.items():
        known = {path for s in cells for record in s.records.values() for path in _paths(record)}
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f": did you mean `{near[0]}`?" if near else "."
        places = ", ".join(f"{s.cell.column}/{s.cell.row}" for s in cells[:3])
        places += f" and {len(cells) - 3} more cells" if cells[3:] else ""
        sentences.append(f"No run of {places} has the field `{name}`{hint}")
    return sentences


def _paths(record: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The fields of a record that are numbers, as `Value.field` names them."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{above}{key}/")
        elif key == "history" and not above:
            names = {name for row in value for name in row}
            yield from (f"history/{pick}/{name}" for pick in PICKS for name in names)
        elif isinstance(value, (int, float)):
            yield f"{above}{key}"


def mean(by_seed: Mapping[int, float]) -> float:
    """The mean over seeds."""
    return statistics.fmean(by_seed.values())
