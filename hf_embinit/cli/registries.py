"""`list` and `manifest`: the initialisers, and the history of a checkpoint's rows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ..display import printable
from ..errors import UnknownNameError
from .command import Answer, Command

PURPOSES = {
    "table": "whole tables",
    "rows": "rows for new tokens",
    "tokenizer": "rows for another tokenizer",
    "refinement": "better rows for another tokenizer",
}


def _list_flags(parser: ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern of names, such as 'glove*'")
    parser.add_argument("--purpose", choices=PURPOSES, help="only those that make this")


def _list(args: Namespace) -> Answer:
    from ..retokenize import list_initializers

    records = list_initializers(args.pattern, purpose=args.purpose)
    if not records:
        names = [name for record in list_initializers() for name in (record.name, *record.aliases)]
        raise UnknownNameError("init", args.pattern, names)
    lines = [
        f"{', '.join((record.name, *record.aliases)):<20} {record.summary} ({record.reference})"
        for record in records
    ]
    data = [
        {
            "name": record.name,
            "aliases": list(record.aliases),
            "makes": PURPOSES[record.purpose],
            "purpose": record.purpose,
            "summary": record.summary,
            "source": record.reference,
            "needs": sorted(record.needs),
            "options": record.options,
        }
        for record in records
    ]
    return Answer("\n".join(lines), data)


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
    if not events:
        return Answer("no event: hf_embinit has not made rows of this checkpoint", events)
    return Answer("\n".join(line for event in events for line in _event_lines(event)), events)


def _event_lines(event: dict[str, Any]) -> list[str]:
    """An event in words: what was done, then a line for each table."""
    from ..manifest import row_ids

    done = [str(event.get("event", "event")), str(event.get("init") or event.get("surgery") or "")]
    told = [
        f"{key} {event[key]}" for key in ("seed", "options", "version") if event.get(key) not in (None, {})
    ]
    lines = [f"{' '.join(filter(None, done))} ({', '.join(told)})"]
    for table in event.get("tables") or ():
        ids = row_ids(table.get("rows") or [])
        rows = (
            f"rows {ids[0]} to {ids[-1]}" if ids and len(ids) == ids[-1] - ids[0] + 1 else f"{len(ids)} rows"
        )
        line = f"  {table.get('name')}: {rows}"
        source, covered = table.get("source") or {}, table.get("coverage") or {}
        line += f" from {source['name']} ({source.get('digest')})" if source.get("name") else ""
        if types := covered.get("types"):
            line += f", {covered['types_found']} of {types} tokens found"
        lines.append(line)
    return list(map(printable, lines))  # a line break in a name forges no line


MANIFEST = Command(
    summary="print how the rows of a checkpoint were initialised",
    description="Prints the events that a checkpoint's config.json keeps, oldest first: every "
    "initialisation, expansion and surgery with its seed, its vectors and the rows it wrote. Empty for a "
    "checkpoint that hf_embinit never touched. No weights are read.",
    examples=("hf-embinit manifest runs/translate/captions-words-glove_xavier-seed42",),
    add_flags=_manifest_flags,
    run=_manifest,
)
