"""A study's numbers as its page: ours beside the paper's, differences, ranks, provenance."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..display import markdown_table
from .comparisons import ENOUGH, MANY, VERDICTS, Difference, best, compared, differences, rank_agreement
from .files import Part, Value, selected
from .scores import Scores, mean, missing_fields
from .study import Study

_NOT_RUN = "–"
"""What a cell shows that was not run; a line below the table says so."""
_NOTHING = "Nothing of it was run yet."


def _number(mean: float, sd: float | None, digits: int) -> str:
    return f"{mean:z.{digits}f}" if sd is None else f"{mean:z.{digits}f} ({sd:.{digits}f})"


def _ours(scores: Scores | None, i: int, digits: int, common_n: int | None) -> str:
    if scores is None:
        return _NOT_RUN
    numbers = list(scores.by_seed[i].values())
    if not numbers:
        return {"finished": "not measured", "not run": _NOT_RUN}.get(scores.status, scores.status)
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


def labels(parts: Mapping[str, Part]) -> dict[str, str]:
    """The name of each column, or row, where all stand together: its title, with its box where others have
    that title, too; what is written in the study's file where that does not tell them apart."""
    titles, boxed = Counter(part.title for part in parts.values()), Counter(map(_title, parts.values()))
    return {
        name: part.title if titles[part.title] == 1 else _title(part) if boxed[_title(part)] == 1 else name
        for name, part in parts.items()
    }


def _common_n(scores: Sequence[Scores]) -> tuple[int | None, str]:
    """The number of seeds of most cells, which they need not repeat, and a phrase that says so."""
    counts = Counter(len(by_seed) for s in scores for by_seed in s.by_seed if by_seed)
    n, cells = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    if 2 * cells <= counts.total():
        return None, "n where it says so"
    every = cells == counts.total()
    return n, f"n = {n} in every cell that was run" if every else f"n = {n} where a cell does not say"


def _begun(study: Study, scores: Sequence[Scores]) -> tuple[list[str], list[str]]:
    """The columns and the rows of a study that have a run of ours; all of them while there is none."""
    begun = [s.cell for s in scores if s.status != "not run"]
    columns, rows = {cell.column for cell in begun}, {cell.row for cell in begun}
    return [c for c in study.columns if c in columns or not begun], [
        r for r in study.rows if r in rows or not begun
    ]


def _left_out(study: Study, scores: Sequence[Scores]) -> str:
    """One sentence on the columns and rows that the printed table has no room for, "" when it has all."""
    columns, rows = _begun(study, scores)
    missing = [_title(part) for name, part in study.columns.items() if name not in columns]
    missing += [_title(part) for name, part in study.rows.items() if name not in rows]
    theirs = " (their numbers in the paper: `table.csv`)" if study.file.paper else ""
    return f"Not run: {'; '.join(missing)}{theirs}." if missing else ""


def _of_the_same_runs(study: Study, scores: Sequence[Scores]) -> list[str]:
    """A sentence on each pair of compared cells that are the same numbers of the same runs."""
    return [
        f"{a.cell.column}/{a.cell.row} and {b.cell.column}/{b.cell.row} are the same runs."
        for a, b in compared(study, scores)
        if a.records and a.records.keys() == b.records.keys() and a.cell.values == b.cell.values
    ]


def _layout(
    study: Study, scores: Sequence[Scores], bold: str, paper: str, escape: Callable[[str], str] = str
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the printed table; `bold` and `paper` are formats of a best value and of theirs, and
    `escape` makes any other text fit for what it is printed in."""
    by_place, shown = _grid_of(study, scores)
    columns, in_rows = _begun(study, scores)
    shown = {name: values for name, values in shown.items() if name in columns}
    common, _ = _common_n(scores)
    titles = {v.title for values in shown.values() for v in values}
    header = [""]
    for column, values in shown.items():
        name = _title(study.columns[column])
        one = len(titles) == 1 and len(values) <= 1
        header += [escape(name if one else f"{name} {v.title}") for v in values] or [escape(name)]
    rows = []
    for row in in_rows:
        cells = [escape(_title(study.rows[row]))]
        for column, values in shown.items():
            for i in range(len(values) or 1):
                s = by_place.get((column, row))
                value = s.cell.values[i] if s is not None else None
                left_out = study.file.without and selected(column, row, study.file.without)
                text = "" if left_out else escape(_ours(s, i, value.digits if value else 1, common))
                if best(study, scores, s, i):
                    text = bold.format(text)
                if s is not None and value is not None and s.cell.paper[i][0] is not None:
                    text += paper.format(escape(s.cell.paper[i][2]))
                cells.append(text)
        rows.append(cells)
    return header, rows


def markdown(study: Study, scores: Sequence[Scores], command: str, figures: Sequence[str] = ()) -> str:
    """The page of a study: table, differences, grids, rank agreement, errors, provenance."""
    header, rows = _layout(study, scores, "**{}**", " / {}")
    _, seeds = _common_n(scores)
    whose = "ours / the paper's, " if study.file.paper else ""
    parts = [
        f"# {study.title}\n",
        f"{study.file.source}. Each cell: {whose}mean (sd) over seeds; {seeds}.",
    ]
    if study.changes:
        parts[-1] += " Settings of these runs: " + "; ".join(f"`{text}`" for text in study.changes) + "."
    known = any(theirs[0] is not None for s in scores for theirs in s.cell.paper)
    begun = any(s.status != "not run" for s in scores)
    table = markdown_table(header, rows) if known or begun else _NOTHING
    gaps = any(cell.startswith(_NOT_RUN) for row in rows for cell in row)
    left_out = [f"{_NOT_RUN}: not run." if gaps and table != _NOTHING else "", _left_out(study, scores)]
    left_out += [*missing_fields(scores), *_of_the_same_runs(study, scores)]
    parts += [study.file.note or "", table, " ".join(filter(None, left_out))]
    parts += _agreement(study, scores)
    parts += [f"![{study.title}]({name})" for name in figures]
    deltas = differences(study, scores)
    if deltas:
        head = ["", "difference", "value", "mean", "95% t interval", "n"]
        head += ["the paper's", ""] if study.file.paper else []
        asked = ["power", "seeds"] if any(d.power is not None for d in deltas) else []
        parts += [
            "## Paired differences over the same seeds\n",
            f"From `{study.file.against}` and from the best." if study.file.against else "",
            _POWER if asked else "",
            markdown_table(
                [*head, *asked],
                [_difference(d)[: len(head)] + (_power(d) if asked else []) for d in deltas],
            ),
        ]
    points = [(s, point, by) for s in scores for point, by in s.points]
    run = [
        [f"{s.cell.column}/{s.cell.row}", ", ".join(f"{k} {v}" for k, v in point.items()),
         _number(mean(by), statistics.stdev(by.values()) if len(by) > 1 else None, 2),
         str(len(by)), "shown" if point == s.point else ""]
        for s, point, by in points if by
    ]  # fmt: skip
    if run:
        parts += ["## Grid\n", markdown_table(["cell", "settings", s_title(scores), "n", ""], run)]
    if len(run) < len(points):
        parts.append(f"{len(run)} of the {len(points)} settings of the grids were run.")
    errors = [error for s in scores for error in s.errors]
    if errors:
        parts += ["## Failed\n", "\n".join(f"- `{error}`" for error in errors)]
    parts += ["## Provenance\n", provenance(scores, command)]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _agreement(study: Study, scores: Sequence[Scores]) -> list[str]:
    """The sentences on how our order agrees with the paper's."""
    parts = []
    verdicts = [d.verdict for d in differences(study, scores) if d.verdict]
    if verdicts:
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in VERDICTS)
        parts.append(
            f"Differences that the paper prints: {counts} (one agrees when its 95% t interval over paired "
            "seeds lies on the paper's side of 0; it cannot be told when that holds 0, or with one seed)."
        )
    agreement = rank_agreement(study, scores)
    if agreement is not None:
        tau, pairs, interval = agreement
        said = (
            "no interval: a cell has one seed"
            if interval is None
            else "95% interval {:+.2f} to {:+.2f}".format(*interval)
        )
        over = f"the {pairs} pairs that it compares" if pairs > 1 else "the one pair that it compares"
        parts.append(f"Rank agreement with the paper: **{tau:+.2f}** ({said}; Kendall's tau-b over {over}).")
    return parts


def _difference(d: Difference) -> list[str]:
    interval = "one seed" if d.interval is None else "{:+.{n}f} to {:+.{n}f}".format(*d.interval, n=d.digits)
    paper = "" if d.paper is None else f"{d.paper:+z.{d.digits}f}"
    mean_delta = f"{statistics.fmean(d.deltas):+.{d.digits}f}"
    return [d.where, d.pair, d.value, mean_delta, interval, str(len(d.deltas)), paper, d.verdict]


_POWER = (
    "Power: the chance that so many seeds tell the sign of a difference as large as the paper's, by the "
    "standard deviation of these differences, which few seeds know badly. Seeds: how many have a power of "
    f"{ENOUGH:.0%}."
)


def _power(d: Difference) -> list[str]:
    if d.power is None:
        return ["", ""]
    return [f"{d.power:.0%}", f"over {MANY}" if d.seeds_needed is None else str(d.seeds_needed)]


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


_LATEX: dict[str, int | str | None] = {
    **{character: f"\\{character}" for character in "_%&#{}$"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}


def _in_latex(text: str) -> str:
    """Plain text as LaTeX prints it."""
    return text.translate(str.maketrans(_LATEX))


def latex_table(study: Study, scores: Sequence[Scores]) -> str:
    """The table for `booktabs`, the paper's numbers in gray (`xcolor`)."""
    header, rows = _layout(study, scores, r"\textbf{{{}}}", r" {{\color{{gray}}{}}}", _in_latex)
    _, seeds = _common_n(scores)
    lines = [f"% {study.title}, {study.file.source}; ours, then the paper's in gray; {seeds}"]
    lines += [r"\begin{tabular}{l" + "r" * (len(header) - 1) + "}", r"\toprule"]
    lines += [" & ".join(header) + r" \\", r"\midrule"]
    box = None
    for name, cells in zip(_begun(study, scores)[1], rows, strict=True):
        part = study.rows[name]
        if box is not None and part.box != box:
            lines.append(r"\midrule")
        box = part.box
        lines.append(" & ".join(cells) + r" \\")
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
            data.setdefault(f"{record.get('dataset', '')} {name}".strip(), set()).add(digest)
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
    devices = {str(record.get("runtime", {}).get("device", "not recorded")) for record in records}
    lines.append(f"- device: {', '.join(sorted(devices))}")
    seeds = {seed for s in scores for by_seed in s.by_seed for seed in by_seed}
    lines.append(f"- seeds: {', '.join(map(str, sorted(seeds)))}; runs: {len(records)}")
    lines.append(
        "- versions: " + ", ".join(f"{k} {' and '.join(sorted(v))}" for k, v in sorted(versions.items()))
    )
    for name, digests in sorted(data.items()):
        lines.append(f"- data, {name}: {' and '.join(f'`{d}`' for d in sorted(digests))}")
    return "\n".join(lines)
