"""Records of a matrix made into the paper's table: ours beside theirs, differences, ranks, provenance."""

from __future__ import annotations

import csv
import io
import itertools
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..errors import InvalidArgumentError
from .matrix import Cell, Study, selected
from .scheduling import Launch, look, read_result
from .study_files import Value

RESAMPLES = 10_000
"""Bootstrap samples of an interval."""


@dataclass
class Scores:
    """What the runs of a cell measured: for each value, the numbers by seed."""

    cell: Cell
    by_seed: list[dict[int, float]]
    status: str
    """`finished`, or what the cell shows in place of numbers."""
    errors: list[str] = field(default_factory=list)
    point: dict[str, Any] = field(default_factory=dict)
    """The grid point shown."""
    points: list[tuple[dict[str, Any], dict[int, float]]] = field(default_factory=list)
    """The first value of every grid point, by seed."""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the runs behind the numbers, by name of the run."""


def gather(study: Study, launch: Launch) -> list[Scores]:
    """The scores of every cell of the table, from the records of its finished runs."""
    scores = [_scores(cell, launch) for cell in study.table]
    raw = {(s.cell.column, s.cell.row): [dict(by_seed) for by_seed in s.by_seed] for s in scores}
    for s in scores:
        for i, value in enumerate(s.cell.values):
            if value.relative_to is not None:
                reference = raw.get((value.relative_to, s.cell.row), [{}] * len(s.by_seed))[i]
                s.by_seed[i] = {k: v / _mean(reference) for k, v in s.by_seed[i].items()} if reference else {}
    return scores


def _scores(cell: Cell, launch: Launch) -> Scores:
    best: Scores | None = None
    points = []
    for point, runs in cell.points:
        outcomes = [look(run, launch) for run in runs]
        found = {r.seed: record for r in runs if (record := read_result(r, launch)) is not None}
        records = {run.name: found[run.seed] for run in runs if run.seed in found}
        by_seed: list[dict[int, float]] = [{} for _ in cell.values]
        for seed, record in found.items():
            for i, value in enumerate(cell.values):
                number = field_value(record, value.field)
                if number is not None:
                    by_seed[i][seed] = value.scale * number
        states = {outcome.status for outcome in outcomes}
        order = ("finished", "running", "failed", "begun", "not run")
        status = next(state for state in order if state in states)
        errors = [f"{o.run.name}: {o.error}" for o in outcomes if o.error]
        scores = Scores(cell, by_seed, status, errors, point, [], records)
        points.append((point, by_seed[0]))
        if best is None or _rank(scores, len(runs)) > _rank(best, len(runs)):
            best = scores
    assert best is not None
    best.points = points if len(points) > 1 else []
    return best


def _rank(scores: Scores, seeds: int) -> tuple[bool, float]:
    """Complete grid points first, then the best mean."""
    numbers = list(scores.by_seed[0].values())
    if not numbers:
        return (False, -math.inf)
    sign = -1 if scores.cell.values[0].better == "lower" else 1
    return (len(numbers) == seeds, sign * statistics.fmean(numbers))


def field_value(record: Mapping[str, Any], path: str) -> float | None:
    """The number at `path` of a record (see `Value.field`); None where the record has none."""
    if path == "minutes_per_epoch":
        seconds, epochs = record["runtime"].get("train_seconds"), (record["history"] or [{}])[-1].get("epoch")
        return seconds / epochs / 60 if seconds and epochs else None
    steps = path.split("/")
    if steps[0] == "history" and len(steps) == 3:
        rows = [row for row in record["history"] if row.get(steps[2]) is not None]
        if not rows:
            return None
        pick = max if steps[1].endswith("max") else min
        best = pick(rows, key=lambda row: row[steps[2]])
        return best["epoch"] if steps[1].startswith("epoch_of_") else best[steps[2]]
    found: Any = record
    for step in steps:
        if not isinstance(found, Mapping):
            return None
        key = step if step in found else next((k for k in found if fnmatchcase(k, step)), None)
        if key is None:
            return None
        found = found[key]
    return float(found) if isinstance(found, (int, float)) else None


# --- differences and ranks ----------------------------------------------------------------------------------


def bootstrap_interval(numbers: Sequence[float], level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """The percentile interval of the mean over `RESAMPLES` resamples of `numbers`, drawn with `seed`."""
    if not numbers:
        raise InvalidArgumentError("no numbers to resample")
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(numbers, k=len(numbers))) for _ in range(RESAMPLES))
    tail = (1 - level) / 2
    return means[round(tail * (RESAMPLES - 1))], means[round((1 - tail) * (RESAMPLES - 1))]


def _compared(study: Study, scores: Sequence[Scores]) -> Iterable[tuple[Scores, Scores]]:
    """Pairs of cells that the paper compares: of one box, and of one column (or row)."""
    across = study.file.compare == "rows"
    parts = study.rows if across else study.columns
    for a, b in itertools.combinations(scores, 2):
        one, other = (a.cell.row, b.cell.row) if across else (a.cell.column, b.cell.column)
        same = (a.cell.column == b.cell.column) if across else (a.cell.row == b.cell.row)
        if same and parts[one].box == parts[other].box:
            yield a, b


def differences(study: Study, scores: Sequence[Scores]) -> list[list[str]]:
    """Rows `where, a - b, value, mean difference, interval, n` over the seeds that both of a pair have."""
    rows = []
    for a, b in _compared(study, scores):
        for i, value in enumerate(a.cell.values):
            if value.better is None or value != b.cell.values[i]:
                continue
            shared = sorted(a.by_seed[i].keys() & b.by_seed[i].keys())
            if not shared:
                continue
            deltas = [b.by_seed[i][seed] - a.by_seed[i][seed] for seed in shared]
            low, high = bootstrap_interval(deltas)
            digits = value.digits + 1
            interval = f"{low:+.{digits}f} to {high:+.{digits}f}" if len(deltas) > 1 else "one seed"
            where, first, second = (
                (study.columns[a.cell.column].title, a.cell.row, b.cell.row)
                if study.file.compare == "rows"
                else (study.rows[a.cell.row].title, a.cell.column, b.cell.column)
            )
            mean = f"{statistics.fmean(deltas):+.{digits}f}"
            rows.append([where, f"{second} - {first}", value.title, mean, interval, str(len(deltas))])
    return rows


def rank_agreement(study: Study, scores: Sequence[Scores]) -> tuple[float, int] | None:
    """Kendall's tau-b between our means and the paper's, and its number of pairs; None without a pair.

    Only cells that the paper compares make a pair, so it is 1 when every experiment orders its initialisers
    as the paper does, and -1 when each is the other way round.
    """
    agree, ours_differ, theirs_differ, pairs = 0, 0, 0, 0
    for a, b in _compared(study, scores):
        for i, value in enumerate(a.cell.values):
            theirs = (a.cell.paper[i][0], b.cell.paper[i][0])
            if value.better is None or None in theirs or not (a.by_seed[i] and b.by_seed[i]):
                continue
            ours = _sign(_mean(b.by_seed[i]) - _mean(a.by_seed[i]))
            paper = _sign(theirs[1] - theirs[0])  # type: ignore[operator]
            agree, pairs = agree + ours * paper, pairs + 1
            ours_differ, theirs_differ = ours_differ + ours * ours, theirs_differ + paper * paper
    if not ours_differ or not theirs_differ:
        return None
    return agree / math.sqrt(ours_differ * theirs_differ), pairs


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def _mean(by_seed: Mapping[int, float]) -> float:
    return statistics.fmean(by_seed.values())


# --- tables -------------------------------------------------------------------------------------------------


def _number(mean: float, sd: float | None, digits: int) -> str:
    return f"{mean:z.{digits}f}" if sd is None else f"{mean:z.{digits}f} ({sd:.{digits}f})"


def _ours(scores: Scores | None, i: int, digits: int, common_n: int | None) -> str:
    if scores is None:
        return "not run"
    numbers = list(scores.by_seed[i].values())
    if not numbers:
        return scores.status if scores.status != "finished" else "not measured"
    sd = statistics.stdev(numbers) if len(numbers) > 1 else None
    text = _number(statistics.fmean(numbers), sd, digits)
    return text if len(numbers) == common_n else f"{text}, n={len(numbers)}"


def _grid_of(
    study: Study, scores: Sequence[Scores]
) -> tuple[dict[tuple[str, str], Scores], dict[str, list[Value]]]:
    by_place = {(s.cell.column, s.cell.row): s for s in scores}
    shown = {c: next((s.cell.values for s in scores if s.cell.column == c), []) for c in study.columns}
    return by_place, shown


def _title(part: Any) -> str:
    return f"{part.box}: {part.title}" if part.box else part.title


def _common_n(scores: Sequence[Scores]) -> int | None:
    counts = {len(by_seed) for s in scores for by_seed in s.by_seed if by_seed}
    return counts.pop() if len(counts) == 1 else None


def _best(study: Study, scores: Sequence[Scores], of: Scores | None, i: int) -> bool:
    """Whether a cell has the best mean of its experiment."""
    if of is None or of.cell.values[i].better is None or not of.by_seed[i]:
        return False
    rivals = [
        p for pair in _compared(study, scores) if of in pair for p in pair if p is not of and p.by_seed[i]
    ]
    sign = -1 if of.cell.values[i].better == "lower" else 1
    return bool(rivals) and all(sign * _mean(of.by_seed[i]) > sign * _mean(r.by_seed[i]) for r in rivals)


def _layout(
    study: Study, scores: Sequence[Scores], bold: str, paper: str
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the printed table; `bold` and `paper` are formats of a best value and of theirs."""
    by_place, shown = _grid_of(study, scores)
    common = _common_n(scores)
    titles = {v.title for values in shown.values() for v in values}
    header = [""]
    for column, values in shown.items():
        name = _title(study.columns[column])
        one = len(titles) == 1 and len(values) <= 1
        header += [name if one else f"{name} {v.title}" for v in values] or [name]
    rows = []
    for row, part in study.rows.items():
        cells = [_title(part)]
        for column, values in shown.items():
            for i in range(len(values) or 1):
                s = by_place.get((column, row))
                value = s.cell.values[i] if s is not None else None
                left_out = study.file.without and selected(column, row, study.file.without)
                text = "" if left_out else _ours(s, i, value.digits if value else 1, common)
                if _best(study, scores, s, i):
                    text = bold.format(text)
                if s is not None and value is not None and s.cell.paper[i][0] is not None:
                    text += paper.format(s.cell.paper[i][2])
                cells.append(text)
        rows.append(cells)
    return header, rows


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return (
        "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines) + "\n"
    )


def markdown(study: Study, scores: Sequence[Scores], command: str, figures: Sequence[str] = ()) -> str:
    """The page of a study: table, differences, grids, rank agreement, errors, provenance."""
    header, rows = _layout(study, scores, "**{}**", " / {}")
    n = _common_n(scores)
    seeds = f"n = {n} in every cell that was run" if n else "n where it says so"
    parts = [
        f"# {study.title}\n",
        f"{study.file.source}. Each cell: ours / the paper's, mean (sd) over seeds; {seeds}.",
    ]
    if study.changes:
        parts[-1] += " Settings of these runs: " + "; ".join(f"`{text}`" for text in study.changes) + "."
    parts += [f"{study.file.note}" if study.file.note else "", markdown_table(header, rows)]
    agreement = rank_agreement(study, scores)
    if agreement is not None:
        tau, pairs = agreement
        parts.append(
            f"Rank agreement with the paper: **{tau:+.2f}** (Kendall's tau-b over "
            + (f"the {pairs} pairs that it compares)." if pairs > 1 else "the one pair that it compares).")
        )
    parts += [f"![{study.title}]({name})" for name in figures]
    deltas = differences(study, scores)
    if deltas:
        head = ["", "difference", "value", "mean", "95% bootstrap interval", "n"]
        parts += ["## Paired differences over the same seeds\n", markdown_table(head, deltas)]
    grids = [
        [f"{s.cell.column}/{s.cell.row}", ", ".join(f"{k} {v}" for k, v in point.items()),
         _number(_mean(by), statistics.stdev(by.values()) if len(by) > 1 else None, 2) if by else "not run",
         str(len(by)), "shown" if point == s.point and by else ""]
        for s in scores for point, by in s.points
    ]  # fmt: skip
    if grids:
        parts += ["## Grid\n", markdown_table(["cell", "settings", s_title(scores), "n", ""], grids)]
    errors = [error for s in scores for error in s.errors]
    if errors:
        parts += ["## Failed\n", "\n".join(f"- `{error}`" for error in errors)]
    parts += ["## Provenance\n", provenance(scores, command)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def s_title(scores: Sequence[Scores]) -> str:
    """Title of the value that grids are judged by."""
    return next((s.cell.values[0].title for s in scores if s.points), "")


def csv_table(study: Study, scores: Sequence[Scores]) -> str:
    """One line a value of a cell, with our and the paper's numbers unrounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "column",
            "row",
            "value",
            "status",
            "n",
            "mean",
            "sd",
            "paper_mean",
            "paper_sd",
            "seeds",
            "grid_point",
        ]
    )
    for s in scores:
        for i, value in enumerate(s.cell.values):
            numbers = list(s.by_seed[i].values())
            mean = statistics.fmean(numbers) if numbers else ""
            sd = statistics.stdev(numbers) if len(numbers) > 1 else ""
            paper = ["" if x is None else x for x in s.cell.paper[i][:2]]
            seeds = " ".join(map(str, s.by_seed[i]))
            point = " ".join(f"{k}={v}" for k, v in s.point.items())
            writer.writerow(
                [
                    s.cell.column,
                    s.cell.row,
                    value.title,
                    s.status,
                    len(numbers),
                    mean,
                    sd,
                    *paper,
                    seeds,
                    point,
                ]
            )
    return text.getvalue()


def latex_table(study: Study, scores: Sequence[Scores]) -> str:
    """The table for `booktabs`, the paper's numbers in gray (`xcolor`)."""
    header, rows = _layout(study, scores, r"\textbf{{{}}}", r" {{\color{{gray}}{}}}")

    def escape(text: str) -> str:
        return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&").replace("#", r"\#")

    lines = [f"% {study.title}, {study.file.source}; ours, then the paper's in gray"]
    lines += [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule"]
    lines += [" & ".join(escape(cell) for cell in header) + r" \\", r"\midrule"]
    box = None
    for part, cells in zip(study.rows.values(), rows, strict=True):
        if box is not None and part.box != box:
            lines.append(r"\midrule")
        box = part.box
        lines.append(" & ".join(escape(cell) for cell in cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def provenance(scores: Sequence[Scores], command: str) -> str:
    """What the numbers come from: command, commits, versions, devices, seeds, digests of the data."""
    records = list({name: record for s in scores for name, record in s.records.items()}.values())
    if not records:
        return f"- command: `{command}`\n- no run has finished"
    versions: dict[str, set[str]] = {}
    data: dict[str, set[str]] = {}
    for record in records:
        for name, version in record["versions"].items():
            versions.setdefault(name, set()).add(version)
        for name, split in (record.get("data") or {}).items():
            digest = f"{split['rows']:,} rows, {split['sha256']}"
            data.setdefault(f"{record['dataset']} {name}", set()).add(digest)
    commits = versions.pop("commit", set())
    lines = [
        f"- command: `{command}`",
        f"- commit: {', '.join(sorted(commits)) or 'not run from a checkout'}",
    ]
    dirty = sum(record["versions"].get("commit", "").endswith("-dirty") for record in records)
    if dirty:
        lines.append(
            f"- **{dirty} of {len(records)} runs come from a dirty tree: the commit is not their code**"
        )
    devices = {str(record["runtime"].get("device", "not recorded")) for record in records}
    lines.append(f"- device: {', '.join(sorted(devices))}")
    seeds = {seed for s in scores for by_seed in s.by_seed for seed in by_seed}
    lines.append(f"- seeds: {', '.join(map(str, sorted(seeds)))}; runs: {len(records)}")
    lines.append(
        "- versions: " + ", ".join(f"{k} {' and '.join(sorted(v))}" for k, v in sorted(versions.items()))
    )
    for name, digests in sorted(data.items()):
        lines.append(f"- data, {name}: {' and '.join(f'`{d}`' for d in sorted(digests))}")
    return "\n".join(lines)
