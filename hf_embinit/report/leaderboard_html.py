"""The leaderboard as HTML: its filters, where each initialiser stands, a card for each setting."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..display import counted, printable
from ..records import Experiment, Setting, to_plain
from ..tasks import task_of
from .leaderboard import VERDICTS, Board, Row, arguments_of, boards, standings

_SHORT = {"ahead": "ahead", "level": "level", "behind": "behind", "unknown": "cannot tell"}


def safe(value: Any) -> str:
    """Text from elsewhere as HTML: on one line, nothing unprintable, no markup."""
    return html.escape(printable(" ".join(str(value).split())))


def leaderboard(
    settings: Sequence[Setting], places: Mapping[int, str], others: Sequence[str]
) -> tuple[str, str]:
    """The section of the leaderboard, and the sentences above it."""
    found = [(setting, boards(setting)) for setting in settings]
    found = [(setting, by_score) for setting, by_score in found if by_score]
    shown = [by_score[0] for _, by_score in found]
    tops = Counter(board.rows[0].verdict for board in shown)
    lead = (
        '<p class="lead">Which start of token embeddings is better, and by how much? '
        f"{counted(len(places), 'run')} in {counted(len(found), 'setting')}: in <b>{tops['ahead']}</b> "
        f"one initialiser is ahead of all others, in <b>{tops['level']}</b> the first cannot be told from "
        f"another, and in <b>{tops['unknown']}</b> nothing can be told, for want of seeds or of something "
        "to compare.</p>\n" + _findings(shown)
    )
    cards = "".join(_card(i, setting, by_score, places) for i, (setting, by_score) in enumerate(found))
    left = ""
    if others:
        names = ", ".join(f"<code>{safe(name)}</code>" for name in others)
        left = f'<p class="soft">Left out, since they are no records of runs: {names}.</p>\n'
    section = (
        '<section id="leaderboard">\n<h2>Leaderboard</h2>\n'
        "<p>A <b>setting</b> is all that runs have in common but the initialiser and the seed: task, data, "
        "model, tokenizer, length, every other argument. The best mean stands first. Whether a row is "
        "<b>behind</b> the first is decided by their differences over the seeds that both have: behind where "
        "the 95% t interval of the difference is free of 0, <b>level</b> where it holds 0; one seed tells "
        "nothing. One in twenty such intervals misses by chance.</p>\n"
        f"{_filters(shown)}{_standings_table(shown)}"
        f'<div id="boards">\n{cards}</div>\n{left}</section>\n'
    )
    return section, lead


def _name(init: str) -> str:
    """The name of an initialiser, which a narrow column may break after a sign."""
    return re.sub(r"([_:,=])", r"\1<wbr>", safe(init))


def _findings(shown: Sequence[Board]) -> str:
    """The settings in which one initialiser is ahead, a line each; empty when there is none."""
    lines = []
    for i, board in enumerate(shown):
        row = board.rows[0]
        if row.verdict == "ahead":
            what = f"{board.setting.dataset}, {_spaced(board.setting.task)}"
            number = f"{board.header} {row.mean:.{board.score.digits}f}"
            lines.append(
                f'<li><a href="#setting-{i}">{safe(what)}</a>: <code>{_name(row.experiment.init)}</code> is '
                f"ahead of {len(board.rows) - 1} others, {safe(number)}</li>"
            )
    return f'<ul class="plain">{"".join(lines)}</ul>\n' if lines else ""


def _spaced(task: str) -> str:
    return task.replace("_", " ")


def _filters(shown: Sequence[Board]) -> str:
    """The controls that choose settings."""
    choices = {
        "task": ("Task", {board.setting.task for board in shown}),
        "data": ("Data", {board.setting.dataset for board in shown}),
        "init": ("Initialiser", {row.experiment.init for board in shown for row in board.rows}),
        "makes": ("Makes", {row.makes for board in shown for row in board.rows}),
    }
    parts = []
    for name, (label, values) in choices.items():
        options = "".join(
            f'<option value="{safe(v)}">{safe(_spaced(v) if name == "task" else v)}</option>'
            for v in sorted(values)
        )
        parts.append(
            f'<label for="filter-{name}">{label}<select id="filter-{name}" data-filter="{name}">'
            f'<option value="">all</option>{options}</select></label>'
        )
    return (
        f'<form id="filters" class="controls" aria-label="Choose settings">{"".join(parts)}'
        '<label class="check"><input type="checkbox" id="filter-seeds"> two seeds or more</label>'
        '<button type="reset">Show all</button></form>\n'
        f'<p id="shown" role="status">{len(shown)} of {len(shown)} settings shown.</p>\n'
    )


def _standings_table(shown: Sequence[Board]) -> str:
    head = "".join(
        f'<th scope="col">{_sorter(text)}</th>' for text in ("initialiser", "makes", *_SHORT.values())
    )
    told = "; ".join(f"<b>{_SHORT[verdict]}</b>: {words}" for verdict, words in VERDICTS.items())
    rows = "".join(
        f'<tr data-init="{safe(init)}"><th scope="row"><code>{_name(init)}</code></th>'
        f"<td>{safe(what)}</td>"
        + "".join(f'<td class="number">{counts[verdict]}</td>' for verdict in VERDICTS)
        + "</tr>\n"
        for init, what, counts in standings(shown)
    )
    return (
        "<h3>Where each initialiser stands</h3>\n"
        f'<p class="soft">Its rows in the settings shown, by the first score of each. {told}.</p>\n'
        '<div class="scroll tall" tabindex="0" role="region" aria-label="Where each initialiser stands">'
        f'<table id="standings" class="sortable"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>'
        "</table></div>\n"
    )


def _sorter(text: str) -> str:
    return f'<button type="button" class="sort">{safe(text)}</button>'


def _card(i: int, setting: Setting, by_score: Sequence[Board], places: Mapping[int, str]) -> str:
    """One setting: what it is, a table for each score, how its rows were made."""
    inits = sorted({e.init for e in setting.experiments})
    kinds = sorted({row.makes for board in by_score for row in board.rows})
    seeds = sorted(row.n for row in by_score[0].rows)
    trained = setting.length and (
        setting.length if "step" in setting.length else f"{setting.length} epochs of training"
    )
    what = [
        f"model {setting.model}",
        f"tokenizer {setting.tokenizer}",
        trained or "no training",
        setting.told,
    ]
    choice = ""
    if len(by_score) > 1:
        options = "".join(f'<option value="{n}">{safe(b.header)}</option>' for n, b in enumerate(by_score))
        choice = (
            f'<label class="score" for="score-{i}">Score<select id="score-{i}" data-score>{options}'
            "</select></label>"
        )
    tables = "".join(_board(i, n, board) for n, board in enumerate(by_score))
    first = by_score[0].rows[0]
    opened = "" if first.verdict == "unknown" else " open"
    return (
        f'<article class="board" data-task="{safe(setting.task)}" data-data="{safe(setting.dataset)}" '
        f'data-init="{html.escape(json.dumps([printable(" ".join(x.split())) for x in inits]))}" '
        f'data-makes="{html.escape(json.dumps(kinds))}" data-seeds="{seeds[len(seeds) // 2]}">\n'
        f'<details{opened}><summary><h3 id="setting-{i}">{safe(setting.dataset)} '
        f'<span class="soft">{safe(_spaced(setting.task))}</span></h3> '
        f'<span class="first"><code>{_name(first.experiment.init)}</code> {safe(first.why)}</span>'
        "</summary>\n"
        f'<p class="soft">{safe(", ".join(filter(None, what)))}</p>\n{choice}{tables}'
        f"{_made(i, setting, places)}</details></article>\n"
    )


def _board(i: int, n: int, board: Board) -> str:
    least = min(_ends(row)[0] for row in board.rows)
    most = max(_ends(row)[1] for row in board.rows)
    better = "less is better" if board.score.lower_is_better else "more is better"
    head = ("", "initialiser", f"{board.header}, {better}", "what can be told", "95% t interval", "seeds")
    sorters = "".join(
        '<th scope="col">place</th>' if not text else f'<th scope="col">{_sorter(text)}</th>' for text in head
    )
    rows = "".join(
        _row(i, place, row, board.score.digits, least, most) for place, row in enumerate(board.rows, 1)
    )
    lost = ""
    if board.not_measured:
        names = ", ".join(f"<code>{_name(e.init)}</code>" for e in board.not_measured)
        lost = f'<p class="soft">Without a number, since they diverged or were not measured: {names}.</p>'
    return (
        f'<div class="by-score"{" hidden" if n else ""}><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{safe(board.setting.dataset)} {i + 1}, {safe(board.header)}">'
        f'<table class="sortable"><thead><tr>{sorters}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'
        f"{lost}</div>\n"
    )


def _ends(row: Row) -> tuple[float, float]:
    return row.interval or (row.mean, row.mean)


def _row(i: int, place: int, row: Row, digits: int, least: float, most: float) -> str:
    mean = f"{row.mean:.{digits}f}"
    text = "none: one seed" if row.interval is None else " to ".join(f"{x:.{digits}f}" for x in row.interval)
    told = f' <span class="soft">{safe(row.experiment.told)}</span>' if row.experiment.told else ""
    return (
        f'<tr data-init="{safe(row.experiment.init)}" data-makes="{safe(row.makes)}" '
        f'data-verdict="{row.verdict}"><td class="number">{place}</td>'
        f'<th scope="row"><a href="#made-{i}"><code>{_name(row.experiment.init)}</code></a>{told}</th>'
        f'<td class="number" data-value="{row.mean!r}">{mean}</td>'
        f'<td><b class="{row.verdict}">{_SHORT[row.verdict]}</b> '
        f'<span class="why">{safe(row.why)}</span></td>'
        f'<td class="interval">{_bar(row, least, most)}{text}</td><td class="number">{row.n}</td></tr>\n'
    )


def _bar(row: Row, least: float, most: float) -> str:
    """The mean as a dot on its interval, on the scale of the board."""
    width = most - least

    def x(value: float) -> str:
        return f"{4 + 112 * ((value - least) / width if width else 0.5):.1f}"

    low, high = _ends(row)
    return (
        '<svg viewBox="0 0 120 12" width="120" height="12" aria-hidden="true">'
        f'<line x1="{x(low)}" x2="{x(high)}" y1="6" y2="6"/><circle cx="{x(row.mean)}" cy="6" r="3.5"/></svg>'
    )


def _made(i: int, setting: Setting, places: Mapping[int, str]) -> str:
    """How the rows of a setting were made: arguments of all, digests of the data, the runs of each."""
    records = [record for e in setting.experiments for record in e.runs]
    given = [arguments_of(record) for record in records]
    same = {k: v for k, v in given[0].items() if all(other.get(k) == v for other in given)}
    task = task_of(records[0].task, records[0].metrics)
    script = f"recipes/{task.recipe}" if task else "a script"
    flags = " ".join(f"--{name} {_value(value)}" for name, value in same.items())
    data = {name: used for record in records for name, used in record.data.items() if "vectors" not in name}
    digests = "".join(
        f"<li>{safe(name)}: {used['rows']:,} rows, SHA-256 <code>{safe(used['sha256'])}</code></li>"
        for name, used in data.items()
    )
    rows = "".join(_runs(e, same, places) for e in setting.experiments)
    titles = ("initialiser", "seed", "its own arguments", "commit", "record")
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    told = f"<p>Data:</p><ul>{digests}</ul>" if digests else "<p>The records hold no digests of the data.</p>"
    return (
        "<details><summary>How these were made</summary>\n"
        f'<div id="made-{i}" class="made"><p>By <code>{safe(script)}</code>, all with '
        f"<code>{safe(flags)}</code></p>\n{told}\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Runs of setting {i + 1}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div></div></details>\n"
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(to_plain(value))


def _runs(experiment: Experiment, same: Mapping[str, Any], places: Mapping[int, str]) -> str:
    """A row for each run of an experiment."""
    rows = []
    for record in sorted(experiment.runs, key=lambda record: record.seed):
        own = {k: v for k, v in arguments_of(record).items() if k not in same and k != "init"}
        vectors = {name: used for name, used in record.data.items() if "vectors" in name}
        own |= {f"digest of {name}": f"{used['sha256']:.12}" for name, used in vectors.items()}
        told = ", ".join(f"{name} {_value(value)}" for name, value in own.items())
        commit = record.versions.get("commit", "")
        changed = ", changed" if commit.endswith("-dirty") else ""
        cells = [
            f'<td class="number">{record.seed}</td>',
            f"<td>{safe(told)}</td>",
            f"<td><code>{safe(commit[:10])}</code>{changed}</td>",
            f"<td><code>{safe(places[id(record)])}</code></td>",
        ]
        init = f'<th scope="row"><code>{_name(record.init)}</code></th>'
        rows.append(f"<tr>{init}{''.join(cells)}</tr>\n")
    return "".join(rows)
