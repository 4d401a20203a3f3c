"""`cards`: writes the cards of a project from its records, the generated parts of its pages, a picture."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..errors import DataNotFoundError, InvalidArgumentError
from ..foreign import reading
from .command import Answer, Command, flag


def _flags(parser: ArgumentParser) -> None:
    parser.add_argument("results", help="folder with the records of finished runs, at any depth")
    parser.add_argument(
        "folder", help="folder of the cards: theirs are written, those of runs that are gone removed"
    )
    flag(
        parser,
        "pages",
        nargs="+",
        default=[],
        metavar="FILE",
        help="pages whose generated parts are written again, between <!-- name --> and <!-- end -->",
    )


def _run(args: Namespace) -> Answer:
    from ..cards import draw_why, render_page, write_reference_cards
    from ..records import write_text

    if not args.folder:
        raise InvalidArgumentError("folder '' is no folder: give that of the cards, such as model_cards")
    pages = {}
    for page in args.pages:
        with reading(f"--pages {page}", DataNotFoundError):
            text = Path(page).read_text(encoding="utf-8")
        try:
            with reading(f"what {page} shows of the records below {args.results}", DataNotFoundError):
                pages[page] = render_page(text, Path(args.results))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"--pages {page}: {error}") from None
    written = write_reference_cards(args.results, args.folder)
    for page, text in pages.items():
        write_text(page, text)
    lines = [f"{len(written)} cards in {args.folder}", *(f"tables of {page}" for page in pages)]
    if any("<!-- picture -->" in text for text in pages.values()):
        lines.append(f"picture {draw_why(Path(args.results))}")
    return Answer("\n".join(lines), {"cards": written, "pages": args.pages})


CARDS = Command(
    summary="render model cards, and the generated parts of pages, from run records",
    description="Renders the card of every run record below a folder, with an index, and the generated "
    "parts of pages; for a page with the part `picture` it is drawn among the records, as why.png. The same "
    "records give the same text.",
    examples=("hf-embinit cards recipes/results model_cards --pages README.md recipes/README.md",),
    add_flags=_flags,
    run=_run,
)
