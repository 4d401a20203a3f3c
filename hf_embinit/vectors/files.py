"""Reads and writes files of vectors: `read_vectors`, `write_vectors`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ..arguments import FilePath, checked
from ..disk import writing
from ..errors import InvalidArgumentError, VectorFileError
from ..foreign import reading
from ..tokens import TokenFamily
from .binary_format import read_binary_rows
from .fasttext_format import FASTTEXT_MAGIC, read_fasttext_rows
from .pretrained_vectors import PretrainedVectors, rows_digest
from .provenance import check_suffix, read_provenance, require_place, written_with_provenance
from .rows import RowCollector
from .streams import choose_member, is_zip, read_blocks, require_rows, split_member
from .text_format import LONGEST_LINE, looks_binary, read_header, read_text_rows

logger = logging.getLogger(__name__)

_WIDEST = 1 << 20
"""Numbers in a row; a header that says more is damaged, and its rows would fill the memory."""


def is_fasttext(path: FilePath) -> bool:
    """Whether a path is that of a fastText model's file, compressed or not."""
    file, member = split_member(Path(path).expanduser())
    if not file.is_file():
        return False
    with reading(path):
        member = choose_member(file, member) if is_zip(file) else member
        with contextlib.closing(read_blocks(file, member)) as blocks:
            return _head(blocks, str(path))[0].startswith(FASTTEXT_MAGIC)


@checked
def read_vectors(
    path: FilePath,
    tokens: Sequence[str] | None = None,
    *,
    member: str | None = None,
    family: TokenFamily = "words",
) -> PretrainedVectors:
    """Vectors from a file of GloVe, word2vec (text, `.bin`) or fastText (`.vec`, `.bin`), also compressed.

    Only the rows of `tokens` are parsed and kept (None: all). They come in the order of `tokens`, without
    those that the file lacks (None: in the order of the file). Memory is that of the rows kept and under 50
    MiB. A zip is not unpacked: its only vector-like member is read, or `member`, or
    `path="archive.zip:member"`. The format, and a header, are told from the content. The vector of a text
    line is its last D fields, so a token may hold spaces. `family` says how the file spells its tokens.

    A fastText `.bin` lacks no token: a word that it has not seen gets the mean row of its character n-grams.
    Memory is then also that of the n-grams of `tokens` (None: of the whole table).

    `report` says what was met: `format`, `header`, `lines` (complete ones; of a `.bin` its rows), `asked`,
    `found`, `duplicates` (later rows of tokens that were kept: the first wins), `non_finite` (tokens left out
    for NaN or infinity), `truncated_last_line` (a last line that is cut off between two numbers is left out;
    a warning says where no line end follows the last number), `tokens_with_spaces`, `not_utf_8` (how many of
    the first rows have tokens that no text finds), `member`; of a fastText `.bin` also `from_subwords`
    (tokens that it has not seen) and `settings`. `provenance` is what `write_vectors` wrote beside the file,
    or the settings that a fastText `.bin` holds.

    Raises `VectorFileError` with file and line for a row asked for that has the wrong width or a field that
    is no number, for damaged archives, and for a file that is not the one its provenance was written for;
    `InvalidArgumentError` when a zip's member is not clear; `DataNotFoundError`."""
    with reading(path):
        file, spelled_member = split_member(Path(path))
        member = member or spelled_member
        if is_zip(file):
            member = choose_member(file, member)
    where = f"{file}:{member}" if member else str(file)
    rows = RowCollector(tokens)
    with reading(where), contextlib.closing(read_blocks(file, member)) as blocks:
        head, whole = _head(blocks, where)
        header = None if head.startswith(FASTTEXT_MAGIC) else read_header(head)
        if header is not None and header[1] > _WIDEST:
            raise VectorFileError(
                f"{where}: its header says rows of {header[1]:,} numbers, so it is damaged."
            )
        if head.startswith(FASTTEXT_MAGIC):
            met = read_fasttext_rows(head, blocks, rows, where)
        elif looks_binary(head):
            met = read_binary_rows(head, blocks, rows, where)
        else:
            met = read_text_rows(head, blocks, whole, rows, where)
        kept, matrix, counts = rows.finish()
    report = {**met, **counts, "member": member}
    _warn(report, where)
    provenance = None if member else read_provenance(file)
    if provenance is None and report["format"] == "fasttext":
        provenance = {"method": "fastText", "settings": report["settings"]}
    return PretrainedVectors(kept, matrix, where, family, None, rows_digest(kept, matrix), report, provenance)


@checked
def write_vectors(path: FilePath, vectors: PretrainedVectors) -> None:
    """Writes vectors as word2vec text, which gensim, spaCy, fastText and `read_vectors` read: a line `n D`,
    then a line `token x1 ... xD` a row. Tokens with a space inside are read by `read_vectors` alone.

    Nine significant digits: reading gives the same float32 rows. The file appears complete or not at all.
    `vectors.provenance` is kept beside it: `X.json` for `X.txt`.
    Raises `InvalidArgumentError` for what such a file cannot give back: an empty token, one that comes twice,
    one with a line end, a tab, a space at its start or end, or a number after a space, rows without a number,
    and a row with NaN or infinity; for a path that says another format, such as `.bin` or `.gz`, and for a
    provenance that is no JSON; `FileWriteError` for a path that cannot be written, and where another file has
    the name of the provenance."""
    path = Path(path)
    check_suffix(path, "path=")
    _check_rows(vectors)
    is_ours = require_place(path, vectors.provenance)
    template = " ".join(["%.9g"] * vectors.dim)
    with writing(path), written_with_provenance(path, vectors.provenance, is_ours) as file:
        file.write(f"{len(vectors)} {vectors.dim}\n")
        for token, row in zip(vectors.tokens, vectors.matrix, strict=True):
            file.write(f"{token} {template % tuple(row.tolist())}\n")


def _head(blocks: Iterator[bytes], where: str) -> tuple[bytes, bool]:
    """The start of the file, at least some lines of it; and whether that is all of it."""
    parts: list[bytes] = []
    lines = size = 0
    while lines < 2 and size < LONGEST_LINE:
        block = next(blocks, None)
        if block is None:
            if not parts:
                raise VectorFileError(f"{where} is empty.")
            return b"".join(parts), True
        if not parts:
            require_rows(block, where)
        parts.append(block)
        if parts[0].startswith(FASTTEXT_MAGIC):  # a model need not hold a line end
            return b"".join(parts), False
        lines += block.count(b"\n")
        size += len(block)
    if not lines:
        raise VectorFileError(
            f"{where}: its first {size >> 20} MiB hold no line end, so it is no text of rows."
        )
    return b"".join(parts), False


def _check_rows(vectors: PretrainedVectors) -> None:
    if not vectors.dim:
        raise InvalidArgumentError(f"vectors={vectors.name!r} have rows without a number.")
    seen: set[str] = set()
    for token in vectors.tokens:
        reason = "it comes twice" if token in seen else _unwritable(token)
        if reason:
            raise InvalidArgumentError(
                f"The token {token!r} cannot be written to a text file of vectors: {reason}."
            )
        seen.add(token)
    finite = torch.isfinite(vectors.matrix).all(1)
    if not bool(finite.all()):
        token = vectors.tokens[int((~finite).nonzero()[0])]
        raise InvalidArgumentError(f"The row of token {token!r} has NaN or infinity: leave it out.")


def _unwritable(token: str) -> str | None:
    """Why `read_vectors` would not give a token back. Only ASCII's white space separates fields there."""
    fields = token.split(" ")
    if not token:
        return "it is empty"
    if any(character in token for character in "\t\r\n\v\f"):
        return "it has a line end, a tab or a form feed"
    if token.strip(" ") != token:
        return "it has white space at its start or end"
    if len(fields) > 1 and _is_number(fields[-1]):
        return "it ends in a number after a space, which reads as part of the vector"
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:
        return "it has half of a surrogate pair, which UTF-8 cannot hold"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _warn(report: dict, where: str) -> None:
    if report.get("from_subwords"):
        logger.info(
            "%s: %d of %d tokens are made from their sub-words",
            where,
            report["from_subwords"],
            report["found"],
        )
    if report["non_finite"]:
        some = ", ".join(map(repr, report["non_finite"][:5]))
        logger.warning(
            "%s: %d rows with NaN or infinity left out: %s", where, len(report["non_finite"]), some
        )
    if report.get("not_utf_8"):
        logger.warning(
            "%s: %d of its first rows have tokens that are not UTF-8 and will not be found: convert the "
            "file, as by iconv -f latin1 -t utf-8",
            where,
            report["not_utf_8"],
        )
    if report["truncated_last_line"]:
        logger.warning("%s: the last line is cut off and left out", where)
    header = report["header"]
    if header and report["lines"] - (report["format"] == "text") < header[0]:
        logger.warning("%s: the header says %d rows, the file has fewer", where, header[0])
    elif header and report["lines"] - (report["format"] == "text") > header[0]:
        logger.warning("%s: the header says %d rows, the file has more", where, header[0])
