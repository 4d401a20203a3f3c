"""`site`: runs and tables as one page that needs no network, in the folder that a static Space takes."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..display import counted
from .analyze import add_analysis_flags, analysis_arguments
from .command import Answer, Command, flag


def _flags(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder with the records of finished runs, at any depth")
    flag(
        parser,
        "sources",
        nargs="+",
        required=True,
        metavar="SOURCE",
        help="tables to look into: files of vectors, GGUF files, folders of checkpoints, Hub ids",
    )
    flag(parser, "output_dir", required=True, metavar="OUTPUT_DIR", help="folder of the site, new or empty")
    add_analysis_flags(parser, without=("sources", "output_dir", "html"))


def _run(args: Namespace) -> Answer:
    from ..records import shorten
    from ..report import write_site

    told = []
    for word in args.command_line:
        flag_of, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        told.append(flag_of + equals + (shorten(value) if value.startswith(("/", "~")) else value))
    found = write_site(args.results, analysis_arguments(args), shlex.join(["hf-embinit", *told]))
    lines = [f"{counted(found['records'], 'run')} in {counted(found['settings'], 'setting')}"]
    if found["left_out"]:
        lines[0] += f"; {len(found['left_out'])} other results.json left out"
    lines += [
        f"{one['name']}: {one['tokens']:,} of {one['of']:,} tokens to look up, "
        f"{100 * one['agreement']:.1f}% of the {one['k']} nearest as in float32"
        for one in found["tables"]
    ]
    return Answer("\n".join([*lines, f"page: {Path(args.output_dir) / 'index.html'}"]), found)


SITE = Command(
    summary="make one page of runs and tables, for a static Space or a disk",
    description="Writes a folder with index.html, one page that needs no network, and README.md with the "
    "header of a static Space. On the page: the finished runs below a folder as a leaderboard of "
    "initialisers, with t intervals and what can be told of each; the report of `analyze` on one or more "
    "tables; and up to 4,000 rows of each, those of the most frequent tokens with --corpus, among which the "
    "browser finds the neighbors of a token.",
    examples=(
        "hf-embinit site recipes/results --sources path/to/model --output_dir site",
        "hf-embinit site runs --sources vectors.txt path/to/model --corpus multi30k:en --output_dir site",
    ),
    add_flags=_flags,
    run=_run,
)
