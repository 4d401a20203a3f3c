"""Rows from text, `token x1 ... xD` a line: GloVe, word2vec, fastText `.vec`, with or without a header."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import VectorFileError
from .rows import RowCollector

logger = logging.getLogger(__name__)

_HEAD_LINES = 64
LONGEST_LINE = 1 << 24
"""Bytes: enough for a million numbers."""
_LONGEST_NUMBER = 18
"""Largest number of digits in a header."""


def read_header(head: bytes) -> tuple[int, int] | None:
    """`(rows, D)` if the first line is a word2vec header, two whole numbers; else None."""
    fields = head.partition(b"\n")[0].split()
    if len(fields) != 2 or not all(f.isdigit() and len(f) <= _LONGEST_NUMBER for f in fields):
        return None
    if int(fields[1]) > 0:
        return int(fields[0]), int(fields[1])
    return None


def looks_binary(head: bytes) -> bool:
    """Whether `head`, the start of a file, is word2vec's binary format: a header, then no numbers."""
    if read_header(head) is None:
        return False
    lines = [line for line in head.split(b"\n", 11)[1:11] if line.strip()]
    return 2 * sum(_trailing_numbers(line.split()) > 0 for line in lines) < len(lines)


def read_text_rows(
    head: bytes, blocks: Iterator[bytes], whole: bool, rows: RowCollector, where: str
) -> dict[str, Any]:
    """Passes the wanted rows of a text file to `rows`; returns counts for the report.

    `head` is the start of the file, `blocks` the rest (`whole`: there is none); `where` names it in errors.
    """
    with warnings.catch_warnings():  # numpy before 2.3 warns where it now raises
        warnings.simplefilter("error", DeprecationWarning)
        return _TextReader(head, whole, rows, where).read(head, blocks)


@dataclass
class _Layout:
    dim: int
    header: tuple[int, int] | None
    start: int
    """Offset of the first row."""
    tabs: bool
    """Whether tabs separate the fields, or some of them."""
    indented: bool = False
    """Whether lines begin with a space, which is no part of a token."""


@dataclass
class _TextReader:
    head: bytes
    whole: bool
    rows: RowCollector
    where: str
    met: dict[str, Any] = field(
        default_factory=lambda: {
            "truncated_last_line": False,
            "tokens_with_spaces": 0,
            "not_utf_8": 0,
        }
    )

    def __post_init__(self) -> None:
        self.layout = self._detect_layout()
        self.dim = self.layout.dim
        self.rows.start(self.dim)

    def read(self, head: bytes, blocks: Iterator[bytes]) -> dict[str, Any]:
        # A row whose token holds spaces is found by the token's first word, then looked at in full.
        first_words = {token.partition(b" ")[0] for token in self.rows.slots}
        takes_all = self.rows.takes_all or self.layout.tabs or self.layout.indented
        line = 1 if self.layout.header else 0
        tail = b""
        block = head[self.layout.start :]
        del head
        self.head = b""
        while True:
            find = block.find
            end = find(b"\n")
            if end < 0:
                tail += block
                if len(tail) > LONGEST_LINE:
                    raise self._error(line + 1, f"it is longer than {LONGEST_LINE >> 20} MiB")
            else:
                line += 1
                straddling = tail + block[:end]
                if takes_all or straddling.partition(b" ")[0] in first_words:
                    self._take(straddling, line)
                start = end + 1
                while (end := find(b"\n", start)) >= 0:
                    line += 1
                    space = find(b" ", start)
                    if takes_all or block[start:space] in first_words or not start <= space < end:
                        self._take(block[start:end], line)
                    start = end + 1
                tail = block[start:]
            following = next(blocks, None)
            if following is None:
                break
            block = following
        if tail.strip():
            line += 1
            self._take(tail, line, last=True)
            if not self.met["truncated_last_line"]:
                logger.warning(
                    "%s, line %d: no line end follows; a number that is cut off cannot be told",
                    self.where,
                    line,
                )
        header = self.layout.header
        return {
            "format": "text",
            "header": list(header) if header else None,
            "lines": line - self.met["truncated_last_line"],
            **self.met,
        }

    def _take(self, text: bytes, line: int, last: bool = False) -> None:
        """Parses one line; `last` when it has no line end, so that it may be incomplete."""
        if self.layout.tabs:
            text = text.replace(b"\t", b" ")
        text = text.strip(b" \r\t") if self.layout.indented else text.rstrip(b" \r\t")
        if not text:
            return
        token, _, numbers = text.partition(b" ")
        try:
            row = np.fromstring(numbers, dtype=np.float32, sep=" ")
            if len(row) == self.dim:
                self.rows.add(token, row)
                return
        except (ValueError, DeprecationWarning):
            pass
        self._take_irregular(text, line, last)

    def _take_irregular(self, text: bytes, line: int, last: bool) -> None:
        parts = text.rsplit(None, self.dim)
        first = text.partition(b" ")[0]
        if len(parts) <= self.dim or len(parts[0]) == 0:
            if last:
                self.met["truncated_last_line"] = True
            elif self._wants(first):
                raise self._error(line, f"{len(text.split()) - 1} numbers where the rows have {self.dim}")
            return
        token = parts[0]
        if b"\r" in token and self._wants(token):
            raise self._error(line, "a carriage return stands inside it")
        if not self._wants(token):
            if self._wants(first) and _numbers(token.split()[1:]) is not None:
                raise self._error(line, f"{len(text.split()) - 1} numbers where the rows have {self.dim}")
            return
        values = _numbers(parts[1:])
        if values is None:
            if last:
                self.met["truncated_last_line"] = True
                return
            bad = next(part for part in parts[1:] if _numbers([part]) is None)
            raise self._error(line, f"{_shown(bad)} is not a number")
        extra = token.split()[1:]
        if self.rows.takes_all and extra and _numbers(extra) is not None:
            raise self._error(line, f"{len(text.split()) - 1} numbers where the rows have {self.dim}")
        self.met["tokens_with_spaces"] += bool(extra)
        with np.errstate(over="ignore"):
            self.rows.add(token, np.array(values, dtype=np.float32))

    def _wants(self, token: bytes) -> bool:
        return self.rows.takes_all or token in self.rows.slots

    def _error(self, line: int, problem: str) -> VectorFileError:
        return VectorFileError(f"{self.where}, line {line}: {problem}.")

    def _detect_layout(self) -> _Layout:
        """D, header and start. D is the width of most of the first rows, since tokens may hold spaces."""
        head = self.head
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in head:
            raise self._error(1, "the file is UTF-16: convert it, as by iconv -f utf-16 -t utf-8")
        bom = 3 if head.startswith(b"\xef\xbb\xbf") else 0
        lines = head[bom:].split(b"\n", _HEAD_LINES + 1)[: _HEAD_LINES + 1]
        if len(lines) > 1 and not (self.whole and len(lines) <= _HEAD_LINES):
            lines.pop()  # not complete
        if head.rstrip(b"\r").count(b"\r") - head.count(b"\r\n") > head.count(b"\n"):
            raise self._error(1, "it ends in a carriage return alone; give the file other line ends")
        if not _is_utf_8(head):
            self.met["not_utf_8"] = sum(not _is_utf_8(line) for line in head.split(b"\n")[:-1])
        header = read_header(head[bom:])
        rows = lines[1:] if header else lines
        indented = any(rows) and all(line.startswith(b" ") for line in rows if line)
        width = self._width(rows)
        if header is not None and (width == header[1] or not any(lines[1:])):
            start = head.find(b"\n") + 1 or len(head)
            return _Layout(header[1], header, start, any(b"\t" in line for line in lines[1:2]), indented)
        if header is not None and width != 1:  # with one number a row, the first line may be a row itself
            raise self._error(2, f"{width or 'no'} numbers where the header on line 1 says {header[1]}")
        if width is None:
            raise self._error(1, f"{_shown(lines[0][:40])}... is not a token followed by numbers")
        if width > 4 and lines[0].split()[-width:] in _column_numbers(width):
            raise self._error(1, f"it numbers the {width} columns: write the file without a header")
        return _Layout(width, None, bom, b"\t" in lines[0], indented)

    @staticmethod
    def _width(lines: list[bytes]) -> int | None:
        fields = [line.split() for line in lines]
        trailing = [_trailing_numbers(values) for values in fields if len(values) > 1]
        counts = Counter(width for width in trailing if width)
        if not counts:
            return None
        most = max(counts.values())
        # Widths that are equally frequent: the first row decides, it is the least likely to be damaged.
        return next(width for width in trailing if counts[width] == most)


def _column_numbers(width: int) -> list[list[bytes]]:
    """How a table's header numbers its columns."""
    return [[b"%d" % (first + i) for i in range(width)] for first in (0, 1)]


def _trailing_numbers(fields: list[bytes]) -> int:
    """How many fields at the end of a line are numbers, the first field apart."""
    count = 0
    for value in reversed(fields[1:]):
        if _numbers([value]) is None:
            break
        count += 1
    return count


def _is_utf_8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _numbers(fields: list[bytes]) -> list[float] | None:
    try:
        return [float(value) for value in fields]
    except ValueError:
        return None


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "backslashreplace"))
