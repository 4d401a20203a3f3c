"""The site: a leaderboard of initialisers, a token looked up in the browser, the report on the tables.

One page that loads nothing, and the `README.md` that a static Space reads.
"""

from __future__ import annotations

import html
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..display import counted, markdown_text, printable
from ..files import check_output, whole_folder
from ..records import RunRecord, Setting, compare_settings, find_records, shorten, to_plain, write_text
from .html import report_sections, whole_page
from .leaderboard import telling_first
from .leaderboard_html import leaderboard, safe
from .run import AnalysisArguments, analyze_spaces

PAGE_NAME, README_NAME = "index.html", "README.md"
_TITLE = "Token embeddings: initialisers compared, tables looked into"
_SPACE = """---
title: Token embeddings compared
emoji: 🧭
colorFrom: blue
colorTo: green
sdk: static
app_file: index.html
pinned: false
short_description: Initialisers of token embeddings, and what is in a table
---

"""
_HERE = Path(__file__).parent


def write_site(results: str | os.PathLike[str], args: AnalysisArguments, command: str) -> dict[str, Any]:
    """Writes the site into `args.output_dir`, whole or not at all, and returns what is on it.

    `results` is a folder with the records of runs, at any depth; `args` names the tables, and how closely
    they are looked at; `command` is shown. Raises what `find_records` and `analyze_embeddings` raise, and
    `RunFolderError` for a folder that is not empty.
    """
    check_output(args.output_dir)
    records, others = find_records(results)
    settings = telling_first(compare_settings(records.values()))
    settings = [replace(setting, dataset=shorten(setting.dataset)) for setting in settings]
    places = {id(record): place for place, record in records.items()}
    with whole_folder(args.output_dir) as folder:
        report, data = _tables(args, command)
        board, lead = leaderboard(settings, places, others)
        anchors = [
            ("leaderboard", "Leaderboard"),
            ("lookup", "Look up a token"),
            ("tables", "Report on the tables"),
        ]
        write_text(
            folder / PAGE_NAME,
            whole_page(
                html.escape(_TITLE),
                anchors,
                lead,
                board + _lookup(data) + report,
                style=(_HERE / "site.css").read_text(encoding="utf-8"),
                script=(_HERE / "site.js").read_text(encoding="utf-8"),
            ),
        )
        write_text(folder / README_NAME, _readme(command, records, settings, data))
    return {
        "output_dir": args.output_dir,
        "records": len(records),
        "left_out": others,
        "settings": len(settings),
        "tables": [{"name": one["name"], "tokens": len(one["tokens"]), "of": one["of"], "k": one["k"],
                    "agreement": one["agreement"]} for one in data],
    }  # fmt: skip


def _tables(args: AnalysisArguments, command: str) -> tuple[str, list[dict[str, Any]]]:
    """The report on the tables, with links to its sections, and what is looked up in each table."""
    from .lookup import lookup_data

    with tempfile.TemporaryDirectory() as folder:
        results, spaces = analyze_spaces(replace(args, output_dir=folder, html=False), command)
        for space in results["spaces"].values():
            space["source"] = shorten(space["source"])
        results["arguments"] = {**shorten(results["arguments"]), "output_dir": shorten(args.output_dir)}
        report, contents = report_sections(results, folder)
    links = "".join(f'<li><a href="#{anchor}">{name}</a></li>' for anchor, name in contents)
    nav = f'<nav id="tables" class="report" aria-label="Report on the tables"><ul>{links}</ul></nav>\n'
    return nav + report, [lookup_data(space, args.k) for space in spaces]


def _readme(
    command: str,
    records: Mapping[str, RunRecord],
    settings: Sequence[Setting],
    data: Sequence[Mapping[str, Any]],
) -> str:
    """The header of a static Space, and what the folder holds."""
    tables = ", ".join(
        f"{markdown_text(one['name'])} ({len(one['tokens']):,} tokens of {one['of']:,})" for one in data
    )
    return (
        f"{_SPACE}# {_TITLE}\n\n`index.html` is one page that loads nothing: {counted(len(records), 'run')} "
        f"in {counted(len(settings), 'setting')}, and tokens to look up in {tables}. Open it in a browser, "
        f"or upload this folder to a Space with the SDK `static`.\n\n```\n{printable(command)}\n```\n"
    )


def _lookup(data: Sequence[Mapping[str, Any]]) -> str:
    """The section in which the script looks tokens up, with the rows that it reads."""
    told = []
    for one in data:
        few = len(one["tokens"]) < one["of"]
        which = "the most frequent in the corpus" if one["counts"] else "the first by id"
        some = f"{len(one['tokens']):,} of its {one['of']:,} tokens, {which}" if few else "all its tokens"
        told.append(
            f"<li><b>{safe(one['name'])}</b>: {some}. The rows are kept in 8 bits a number; of the "
            f"{one['k']} nearest found with them, {100 * one['agreement']:.1f}% are so with 32 bits.</li>"
        )
    options = "".join(f'<option value="{i}">{safe(one["name"])}</option>' for i, one in enumerate(data))
    payload = json.dumps(to_plain(data), ensure_ascii=False, separators=(",", ":"))
    for sign, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028")):
        payload = payload.replace(sign, escaped)
    return (
        '<section id="lookup">\n<h2>Look up a token</h2>\n'
        "<p>Type a token or a word: its nearest tokens by cosine, its norm, how often it occurs, and the "
        "tokens that spell it. The browser finds them among the rows that this page carries:</p>\n"
        f'<ul class="plain">{"".join(told)}</ul>\n'
        '<form id="search" class="controls" role="search" aria-label="Look up a token">'
        f'<label for="table">Table<select id="table">{options}</select></label>'
        '<label for="token">Token or word<input id="token" type="search" autocomplete="off" '
        'autocapitalize="off" spellcheck="false"></label></form>\n'
        '<div id="suggestions" role="group" aria-label="Tokens that begin so"></div>\n'
        '<div id="found" aria-live="polite"><noscript><p>Looking up needs JavaScript.</p></noscript></div>\n'
        f'<script type="application/json" id="data">{payload}</script>\n</section>\n'
    )
