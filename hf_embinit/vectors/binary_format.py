"""Rows from word2vec's binary format: a header line, then a token, a space and D float32 values a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import VectorFileError
from .rows import RowCollector
from .text_format import read_header

_LONGEST_TOKEN = 4096
"""Bytes; a longer token means that the rows do not have the width of the header."""

_ODD = 10
"""One token in so many, of a file that ends early, tells that the tokens are pieces of rows."""


def read_binary_rows(head: bytes, blocks: Iterator[bytes], rows: RowCollector, where: str) -> dict[str, Any]:
    """Passes the wanted rows of a word2vec `.bin` file to `rows`; returns counts for the report."""
    header = read_header(head)
    assert header is not None  # the caller has looked
    total, dim = header
    rows.start(dim)
    size = 4 * dim
    wanted = rows.slots
    takes_all = rows.takes_all
    data = head
    start = head.index(b"\n") + 1
    row = odd = torn = 0
    while row < total:
        space = data.find(b" ", start)
        stop = space + 1 + size
        if space < 0 or stop > len(data):
            if (space if space >= 0 else len(data)) - start > _LONGEST_TOKEN:
                raise VectorFileError(_misfit(where, row, dim))
            block = next(blocks, None)
            if block is None:
                break
            data = data[start:] + block
            start = 0
            continue
        row += 1
        token = data[start:space].lstrip(b"\n")
        if not _is_text(token):
            odd += 1
            if not torn and (b"\n" in token or b"\0" in token):
                torn = row
        if takes_all or token in wanted:
            rows.add(token, np.frombuffer(data, dtype="<f4", count=dim, offset=space + 1))
        elif len(token) > _LONGEST_TOKEN:
            raise VectorFileError(_misfit(where, row, dim))
        start = stop
    if total and not row:
        raise VectorFileError(f"{where}: it ends before one row of the {dim} numbers that its header says.")
    if row < total and _ODD * max(odd, rows.duplicates) > row:
        raise VectorFileError(
            f"{where}: it ends after {row} of the {total} rows that its header says, and many of their "
            f"tokens are no text or come twice: its rows are not {dim} numbers of float32."
        )
    left = data[start:].strip(b"\n")
    if row == total and (left or any(block.strip(b"\n") for block in blocks)):
        raise VectorFileError(
            f"{where}: more data after the {total} rows of {dim} numbers that its header says."
        )
    if torn:
        raise VectorFileError(
            f"{where}, row {torn}: its token begins with the end of a row, so one before it holds a space, "
            f"which this format cannot tell from the end of a token. Give the vectors in the text format."
        )
    return {
        "format": "binary",
        "header": [total, dim],
        "lines": row,
        "truncated_last_line": row < total and bool(left),
        "tokens_with_spaces": 0,
    }


def _is_text(token: bytes) -> bool:
    try:
        return token.decode("utf-8").isprintable()
    except UnicodeDecodeError:
        return False


def _misfit(where: str, row: int, dim: int) -> str:
    return f"{where}, row {row + 1}: no token there; the rows do not hold the {dim} numbers of the header."
