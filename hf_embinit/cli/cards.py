"""`cards`: writes the cards and README tables of a project from its records."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..errors import DataNotFoundError
from ..foreign import reading
from .command import Answer, Command, flag


def _flags(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder with the records of finished runs, at any depth")
    parser.add_argument(
        "folder", help="folder of the cards: theirs are written, those of runs that are gone removed"
    )
    flag(
        parser, "readme", help="README whose generated tables are written again, between <!-- name --> marks"
    )


def _run(args: Namespace) -> Answer:
    from ..cards import render_readme, write_reference_cards
    from ..records import write_text

    readme = None
    if args.readme:
        with reading(f"--readme {args.readme}", DataNotFoundError):
            text = Path(args.readme).read_text(encoding="utf-8")
        readme = render_readme(text, Path(args.results))
    written = write_reference_cards(args.results, args.folder)
    lines = [f"{len(written)} cards in {args.folder}"]
    if readme is not None:
        write_text(args.readme, readme)
        lines.append(f"tables of {args.readme}")
    return Answer("\n".join(lines), {"cards": written, "readme": args.readme})


CARDS = Command(
    summary="render model cards, and the tables of a README, from run records",
    description="Renders the card of every run record below a folder, with an index, and the generated "
    "tables of a README. The same records give the same text.",
    examples=("hf-embinit cards recipes/results model_cards --readme README.md",),
    add_flags=_flags,
    run=_run,
)
