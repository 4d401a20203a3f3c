"""Reads and writes files of vectors: `read_vectors`, `write_vectors`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InvalidArgumentError, VectorFileError
from ..tokens import TokenFamily
from .binary_format import read_binary_rows
from .pretrained_vectors import PretrainedVectors, rows_digest
from .rows import RowCollector
from .streams import choose_member, is_zip, read_blocks, split_member
from .text_format import looks_binary, read_text_rows

logger = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 24
_FASTTEXT_MODEL = (793712314).to_bytes(4, "little")


def read_vectors(
    path: str | Path,
    tokens: Sequence[str] | None = None,
    *,
    member: str | None = None,
    family: TokenFamily = "words",
) -> PretrainedVectors:
    """Vectors from a file: GloVe, word2vec text or `.bin`, fastText `.vec`; plain, `.gz`, or in a `.zip`.

    Only the rows of `tokens` are parsed and kept (None: all). They come in the order of `tokens`, without
    those that the file lacks (None: in the order of the file). Memory is that of the rows kept and under 50
    MiB. A zip is not unpacked: its only vector-like member is read, or `member`, or
    `path="archive.zip:member"`. The format, and a header, are told from the content. The vector of a text
    line is its last D fields, so a token may hold spaces. `family` says how the file spells its tokens.

    `report` says what was met: `format`, `header`, `lines` (complete ones; of a `.bin` its rows), `asked`,
    `found`, `duplicates` (later rows of tokens that were kept: the first wins), `non_finite` (tokens left out
    for NaN or infinity), `truncated_last_line` (a last line that is cut off is left out),
    `tokens_with_spaces`, `member`.

    Raises `VectorFileError` with file and line for a row asked for that has the wrong width or a field that
    is no number, and for damaged archives; `InvalidArgumentError` when a zip's member is not clear;
    `DataNotFoundError`."""
    if isinstance(tokens, str):
        raise InvalidArgumentError(f"tokens must be a list of tokens, got the string {tokens!r}.")
    file, spelled_member = split_member(path)
    member = member or spelled_member
    if is_zip(file):
        member = choose_member(file, member)
    where = f"{file}:{member}" if member else str(file)
    rows = RowCollector(tokens)
    with contextlib.closing(read_blocks(file, member)) as blocks:
        head, whole = _head(blocks, where)
        if head[:4] == _FASTTEXT_MODEL:
            raise VectorFileError(f"{where} is a fastText model; use the .vec file that comes with it.")
        if looks_binary(head):
            met = read_binary_rows(head, blocks, rows, where)
        else:
            met = read_text_rows(head, blocks, whole, rows, where)
    kept, matrix, counts = rows.finish()
    report = {**met, **counts, "member": member}
    _warn(report, where)
    return PretrainedVectors(kept, matrix, where, family, None, rows_digest(kept, matrix), report)


def write_vectors(path: str | Path, vectors: PretrainedVectors) -> None:
    """Writes vectors as word2vec text, which gensim, spaCy, fastText and `read_vectors` read: a line `n D`,
    then a line `token x1 ... xD` a row.

    Nine significant digits: reading gives the same float32 rows. The file appears complete or not at all.
    Raises `InvalidArgumentError` for a token that such a file cannot hold: one with a line end, a space at
    its start or end, or a number after a space."""
    path = Path(path)
    for token in vectors.tokens:
        _check_token(token)
    template = " ".join(["%.9g"] * vectors.dim)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            file.write(f"{len(vectors)} {vectors.dim}\n")
            for token, row in zip(vectors.tokens, vectors.matrix, strict=True):
                file.write(f"{token} {template % tuple(row.tolist())}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _head(blocks: Iterator[bytes], where: str) -> tuple[bytes, bool]:
    """The start of the file, at least some lines of it; and whether that is all of it."""
    head = b""
    while head.count(b"\n") < 2 and len(head) < _LONGEST_LINE:
        block = next(blocks, None)
        if block is None:
            if not head:
                raise VectorFileError(f"{where} is empty.")
            return head, True
        head += block
    return head, False


def _check_token(token: str) -> None:
    fields = token.split(" ")
    reason = None
    if token.strip(" \t\r\n\v\f") != token:
        reason = "it has white space at its start or end"
    elif "\n" in token:
        reason = "it has a line end"
    elif len(fields) > 1 and _is_number(fields[-1]):
        reason = "it ends in a number after a space, which reads as part of the vector"
    if reason:
        raise InvalidArgumentError(
            f"The token {token!r} cannot be written to a text file of vectors: {reason}."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _warn(report: dict, where: str) -> None:
    if report["non_finite"]:
        some = ", ".join(map(repr, report["non_finite"][:5]))
        logger.warning(
            "%s: %d rows with NaN or infinity left out: %s", where, len(report["non_finite"]), some
        )
    if report["truncated_last_line"]:
        logger.warning("%s: the last line is cut off and left out", where)
    header = report["header"]
    if header and report["lines"] - (report["format"] == "text") < header[0]:
        logger.warning("%s: the header says %d rows, the file has fewer", where, header[0])
