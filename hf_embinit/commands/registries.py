"""`list` and `manifest`: what there is, and how a checkpoint was made."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from . import Answer, Command

PURPOSES = {
    "table": "whole tables",
    "rows": "rows for new tokens",
    "tokenizer": "tables for a new tokenizer",
}


def _list_flags(parser: ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern of names, such as 'glove*'")
    parser.add_argument("--purpose", choices=PURPOSES, help="only those that make this")


def _list(args: Namespace) -> Answer:
    from ..initializers import list_initializers

    records = list_initializers(args.pattern, purpose=args.purpose)
    lines = [f"{record.name:<20} {record.summary} ({record.source})" for record in records]
    data = [
        {
            "name": record.name,
            "makes": PURPOSES[record.purpose],
            "purpose": record.purpose,
            "summary": record.summary,
            "source": record.source,
            "needs": sorted(record.needs),
            "options": {name: repr(default) for name, default in record.options.items()},
        }
        for record in records
    ]
    return Answer("\n".join(lines) or f"no initialiser is named {args.pattern!r}", data)


LIST = Command(
    summary="list the initialisers, one a line",
    description="Lists the initialisers: name, what the rows are, and the paper that it comes from.",
    examples=("hf-embinit list", "hf-embinit list 'glove*'", "hf-embinit list --purpose rows --json"),
    add_flags=_list_flags,
    run=_list,
)


def _manifest_flags(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="folder or Hub id of a checkpoint")


def _manifest(args: Namespace) -> Answer:
    from ..manifest import read_manifest

    events = read_manifest(args.model)
    return Answer(json.dumps(events, indent=2, ensure_ascii=False), events)


MANIFEST = Command(
    summary="print how the rows of a checkpoint were initialised",
    description="Prints the events that a checkpoint's config.json keeps, oldest first: every "
    "initialisation, expansion and surgery with its seed, its vectors and the rows it wrote. Empty for a "
    "checkpoint that hf_embinit never touched. No weights are read.",
    examples=("hf-embinit manifest runs/translate/captions-words-glove_xavier-seed42",),
    add_flags=_manifest_flags,
    run=_manifest,
)
