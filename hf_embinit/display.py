"""Text from elsewhere made fit to be shown: on a terminal, in Markdown, in a Markdown table.

Names of tensors, tokens, repositories and files may hold anything: bytes that move a terminal's cursor, a
line break that forges a row of a table, a picture that a page would load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_JOINERS = "\u200c\u200d"  # part of how Persian, Hindi and some emoji are spelled
_MARKUP = re.compile(r"([\\`*\[\]<|])")


def printable(text: object) -> str:
    """`text` on one line, with every unprintable character escaped (`\\n`, `\\x1b`, `\\u202e`)."""
    return "".join(c if c.isprintable() or c in _JOINERS else repr(c)[1:-1] for c in str(text))


def one_line(value: object) -> str:
    """`printable`, with any white space as one blank."""
    return printable(" ".join(str(value).split()))


def counted(number: int, noun: str) -> str:
    """`1 run`, `1,200 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def markdown_text(value: Any) -> str:
    """`value` as plain words of Markdown on one line: markup, links, pictures and HTML have no effect."""
    return _MARKUP.sub(r"\\\1", one_line(value))


def markdown_code(text: object) -> str:
    """`text` as inline code, also fit for a table cell."""
    shown = printable(text)
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table of cells that are Markdown; `align` has `r` for each column of numbers."""
    rule = ["---:" if side == "r" else "---" for side in align.ljust(len(header))]
    return "".join(f"| {' | '.join(map(_cell, cells))} |\n" for cells in (header, rule, *rows))


def _cell(text: str) -> str:
    """One line; a bar that is not escaped would end the cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", one_line(text))
