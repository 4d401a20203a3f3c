"""The plan of a study before it runs, and its page, tables and figures afterwards."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from ..records import is_finished, write_text
from .figures import Ranking, Sweep, plot_bars, plot_mean_curves, plot_rankings, plot_sweeps
from .scheduling import Launch, estimate_seconds, outcome_of
from .scores import Scores, gather, has_diverged
from .study import Study, list_studies, load_study
from .tables import csv_table, labels, latex_table, markdown


def list_text() -> str:
    """All studies, one a line: name, number of runs, title and source."""
    studies = [load_study(name) for name in list_studies()]
    return "\n".join(f"{s.name:<10} {len(s.runs):>4} runs  {s.title} ({s.file.source})" for s in studies)


def failures_text(study: Study, launch: Launch) -> str | None:
    """The runs of a study that failed, in a sentence with the way out; None when there are none."""
    failed = [run.name for run in study.runs if outcome_of(run, launch).status == "failed"]
    if not failed:
        return None
    shown = ", ".join(failed[:3]) + (" and others" if failed[3:] else "")
    return f"{len(failed)} of {len(study.runs)} runs failed: {shown}; --retry_failed runs them again"


def waiting_text(study: Study, launch: Launch) -> str | None:
    """The runs that read files of runs that are not finished, in a sentence; None without any."""
    waiting = [
        run.name
        for run in study.runs
        if outcome_of(run, launch).status in ("not run", "begun")
        and any(not is_finished(launch.folder_of(name)) for name in run.needs)
    ]
    if not waiting:
        return None
    shown = ", ".join(waiting[:3]) + (" and others" if waiting[3:] else "")
    return (
        f"{len(waiting)} of {len(study.runs)} runs read files of runs that are not finished, and wait: "
        f"{shown}; give the same command again once they are"
    )


def plan_text(study: Study, launch: Launch, *, workers: int = 1, all_runs: bool = False) -> str:
    """The runs of a study, the status of each, and an estimate of the time that is left.

    The estimate is from finished runs of the same cell or its neighbors, else from the paper, else unknown.
    """
    outcomes = {run.name: outcome_of(run, launch) for run in study.runs}
    seconds = estimate_seconds(study.runs, launch)
    paper = {run.name: cell.minutes for cell in study.cells for run in cell.runs if cell.minutes is not None}
    left = [name for name, outcome in outcomes.items() if outcome.status in ("not run", "begun")]
    states = Counter(outcome.status for outcome in outcomes.values())
    lines = [
        f"{study.name}: {study.title} ({study.file.source})",
        *(f"  {text}" for text in study.changes),
        f"  {len(study.cells)} cells, {len(outcomes)} runs: "
        + ", ".join(f"{n} {s}" for s, n in states.items()),
    ]
    if all_runs:
        for cell in study.cells:
            for run in cell.runs:
                guess, theirs = seconds[run.name], paper.get(run.name)
                time = f"{guess / 60:.1f} min" if guess else "time unknown"
                if not guess and theirs is not None:
                    time = f"{theirs:g} min on the paper's machine"
                lines.append(
                    f"  {cell.column}/{cell.row}  {outcomes[run.name].status:<8}  {time}  {run.name}"
                )
    known = [guess for name in left if (guess := seconds[name])]
    by_paper = [60 * paper[name] for name in left if not seconds[name] and name in paper]
    unknown = len(left) - len(known) - len(by_paper)
    if left:
        times = []
        if known:
            times.append(
                f"{_hours(sum(known) / workers)} for {len(known)} runs like finished ones, "
                f"{workers} at a time"
            )
        if by_paper:
            times.append(f"{_hours(sum(by_paper))} on the paper's machine for {len(by_paper)}, one at a time")
        if unknown:
            times.append(f"unknown for {unknown}")
        lines.append("  time left: " + "; ".join(times))
    return "\n".join(lines)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"


def write_study(study: Study, launch: Launch, folder: Path, command: str) -> str:
    """Writes `table.md`, `table.csv`, `table.tex` and the figure into `folder`.

    Returns the page and what was written, or why no figure of curves was.
    """
    scores = gather(study, launch)
    figures, told, figure = [], "", study.file.figure
    kinds = {
        "curves": _draw_curves, "bars": _draw_bars, "rankings": _draw_rankings, "sweeps": _draw_sweeps,
    }  # fmt: skip
    draw = kinds.get(figure.get("kind", ""))
    path = folder / "figures" / f"{study.name}.png"
    if draw is not None and draw(study, scores, path):
        figures.append(f"figures/{path.name}")
    elif draw is _draw_curves and any(s.records for s in scores):
        at = figure.get("x", "epoch")
        told = f"; no figure: no run that counts has {figure['metric']!r} by {at!r} in its history"
    page = markdown(study, scores, command, figures)
    write_text(folder / "table.csv", csv_table(study, scores))
    write_text(folder / "table.tex", latex_table(study, scores))
    write_text(folder / "table.md", page)
    return f"{page}\nwritten: {folder / 'table.md'}, table.csv, table.tex{told}"


def _draw_curves(study: Study, scores: list[Scores], path: Path) -> bool:
    metric, x = study.file.figure["metric"], study.file.figure.get("x", "epoch")
    columns, rows = labels(study.columns), labels(study.rows)
    panels: dict[str, dict[str, dict[int, list[dict]]]] = {}
    left_out = 0
    for s in scores:
        kept = [r for r in s.records.values() if not has_diverged(r)]
        left_out += len(s.records) - len(kept)
        histories = {
            r["arguments"]["seed"]: r["history"]
            for r in kept
            if any(row.get(metric) is not None and row.get(x) is not None for row in r.get("history", []))
        }
        if histories:
            panels.setdefault(columns[s.cell.column], {})[rows[s.cell.row]] = histories
    if panels:
        label = study.file.figure.get("label", metric)
        against = rows.get(study.file.figure.get("against", ""))  # a smoke run may be without it
        if against is not None:
            label = f"{label}, less that of {against}"
        lower = study.file.figure.get("better") == "lower"
        plot_mean_curves(
            panels, path, metric=metric, label=label, x=x, title=study.title,
            against=against, lower_is_better=lower, left_out=left_out,
        )  # fmt: skip
    return bool(panels)


def _draw_bars(study: Study, scores: list[Scores], path: Path) -> bool:
    """A group of bars for each box; of a study with several columns, for each box of each column."""
    title = study.file.figure["value"]
    groups: dict[str, dict[str, tuple[float, float | None, float | None]]] = {}
    columns = labels(study.columns)
    titles = Counter((part.box, part.title) for part in study.rows.values())
    for s in scores:
        i = next((i for i, value in enumerate(s.cell.values) if value.title == title), None)
        if i is not None and s.by_seed[i]:
            numbers = list(s.by_seed[i].values())
            sd = statistics.stdev(numbers) if len(numbers) > 1 else None
            part = study.rows[s.cell.row]
            parts = [part.box, columns[s.cell.column] if len(columns) > 1 else ""]
            group = groups.setdefault("\n".join(filter(None, parts)), {})
            name = part.title if titles[part.box, part.title] == 1 else s.cell.row
            group[name] = (statistics.fmean(numbers), sd, s.cell.paper[i][0])
    if groups:
        plot_bars(groups, path, label=title, legend=study.file.figure.get("legend"), title=study.title)
    return bool(groups)


def _draw_rankings(study: Study, scores: list[Scores], path: Path) -> bool:
    """A panel for each column in which two rows or more have one of the figure's values."""
    wanted = study.file.figure["values"]
    rankings, titles_of = [], labels(study.rows)
    for name, column in labels(study.columns).items():
        cells = [s for s in scores if s.cell.column == name]
        values = cells[0].cell.values if cells else []
        shown = [i for i, value in enumerate(values) if value.title in wanted and value.better]
        rows = {
            titles_of[s.cell.row]: [s.by_seed[i] for i in shown]
            for s in cells
            if shown and s.by_seed[shown[0]]
        }
        if len(rows) > 1:
            first = values[shown[0]]
            titles = [values[i].title for i in shown]
            rankings.append(Ranking(column, titles, str(first.better), rows, first.digits))
    if rankings:
        plot_rankings(rankings, path, title=study.title)
    return bool(rankings)


def _draw_sweeps(study: Study, scores: list[Scores], path: Path) -> bool:
    """A panel for each column, from box to box, of the figure's rows, by the first value of the column."""
    boxes = list(dict.fromkeys(part.box for part in study.rows.values()))
    sweeps = []
    for name, column in study.columns.items():
        rows: dict[str, dict[str, dict[int, float]]] = {}
        cells = [s for s in scores if s.cell.column == name and s.by_seed and s.by_seed[0]]
        for s in cells:
            row = study.rows[s.cell.row]
            if row.title in study.file.figure["titles"]:
                rows.setdefault(row.title, {})[row.box] = s.by_seed[0]
        if rows:
            value = cells[0].cell.values[0]
            sweeps.append(Sweep(column.title, value.title, str(value.better), rows, value.digits))
    if sweeps:
        plot_sweeps(sweeps, boxes, path, title=study.title)
    return bool(sweeps)


def write_smoke_files(folder: Path) -> Path:
    """Writes small `vectors.txt`, `analogies.txt` and `tokenizer/` for smoke runs; returns the folder."""
    words = ["a", "the", "man", "woman", "child", "dog", "two", "in", "on", "and"]
    words += ["ein", "der", "die", "mann", "frau", "kind", "hund", "zwei", "auf", "und"]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(words), 16, generator=generator).tolist()
    lines = [" ".join([word, *(f"{x:.4f}" for x in row)]) for word, row in zip(words, rows, strict=True)]
    write_text(folder / "vectors.txt", "\n".join(lines) + "\n")
    write_text(folder / "analogies.txt", ": family\nman woman dog child\nwoman man child dog\n")
    pieces = {word: i for i, word in enumerate(["[UNK]", "##s", *words])}
    tokenizer = Tokenizer(WordPiece(pieces, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        folder / "tokenizer"
    )
    return folder
