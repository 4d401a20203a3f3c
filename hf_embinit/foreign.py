"""Reading of files that others made: any defect becomes one sentence that names the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from .display import printable
from .errors import EmbinitError, InvalidArgumentError, VectorFileError

_LONGEST_REASON = 300
RECORDS = (".jsonl", ".json")
"""Endings of files with an object a line."""
NO_LINES = (".csv", ".tsv", ".parquet", ".arrow", ".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of files whose lines are no texts: tables, and what is packed."""


@contextlib.contextmanager
def reading(what: object, error: type[EmbinitError] = VectorFileError) -> Iterator[None]:
    """Inside, whatever a parser raises about the file `what` becomes one `error` that names it.

    Errors of this package, missing modules and interrupts pass as they are. Put only the parsing of foreign
    bytes inside: a mistake of ours would look like a damaged file.
    """
    try:
        yield
    except (EmbinitError, ModuleNotFoundError):
        raise
    except MemoryError as problem:
        raise error(f"{what} asks for more memory than there is: it is damaged, or too large.") from problem
    except RecursionError as problem:
        raise error(f"{what} is nested too deeply: it is damaged.") from problem
    except Exception as problem:
        raise error(f"{what} cannot be read: {reason(problem)}") from problem
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":  # of a parser written in Rust
            raise
        raise error(f"{what} is damaged: {reason(problem)}") from problem


def reason(problem: BaseException) -> str:
    """The message of an exception on one line, shortened if long; its type if it has no message."""
    text = printable(" ".join(str(problem).split()))
    if isinstance(problem, KeyError):
        text = f"it lacks {text}"
    if len(text) > _LONGEST_REASON:
        text = f"{text[:_LONGEST_REASON]}..."
    return text or type(problem).__name__


def no_text(problem: OSError | UnicodeDecodeError) -> str:
    """Why a file could not be read as text, to follow its name."""
    if isinstance(problem, UnicodeDecodeError):
        return f"cannot be read as UTF-8 text: {reason(problem)}"
    if isinstance(problem, FileNotFoundError):
        return "is no file here"
    if isinstance(problem, IsADirectoryError):
        return "is a folder: give a file"
    return f"cannot be read: {reason(problem)}"


def _integer(digits: str) -> int | float:
    """A number that can be computed with: one of hundreds of digits cannot be made a float."""
    return int(digits) if len(digits) < 19 else float(digits)


def read_json(
    path: str | PathLike[str], expected: type = dict, error: type[EmbinitError] = VectorFileError
) -> Any:
    """The value in a JSON file. Raises `error` for a file that is no JSON, or not an `expected` one (`dict`:
    an object, `list`: an array)."""
    with reading(path, error):
        try:
            value = json.loads(Path(path).read_text(encoding="utf-8"), parse_int=_integer)
        except ValueError as problem:
            raise error(f"{path} is no JSON: {reason(problem)}.") from problem
    if not isinstance(value, expected):
        names: dict[type, str] = {dict: "an object", list: "an array"}
        kind = names.get(type(value), f"{value!r:.40}")
        raise error(f"{path} holds {kind}, expected {names.get(expected, expected.__name__)}.")
    return value


def split_columns(source: str, count: int) -> tuple[Path, tuple[str, ...] | None]:
    """A path, and the `count` names of columns that follow it after a colon: `pairs.jsonl:en,de`."""
    head, colon, tail = source.rpartition(":")
    names = tuple(name.strip() for name in tail.split(","))
    if colon and len(names) == count and all(names) and "/" not in tail and not Path(source).exists():
        return Path(head).expanduser(), names
    return Path(source).expanduser(), None


def read_record(line: str, where: str) -> dict[str, Any]:
    """The object in a line of JSON, or the texts by language in its `translation`; `where` names the line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{where} is no JSON: {reason(error)}") from error
    if isinstance(value, dict) and isinstance(value.get("translation"), dict):
        value = value["translation"]
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{where} is no object with texts")
    return value


def text_columns(record: dict[str, Any], count: int, where: str, example: str) -> tuple[str, ...]:
    """The names of the texts in a record; `example` ends the error where these are not `count`."""
    names = tuple(name for name, value in record.items() if isinstance(value, str))
    if len(names) != count:
        found, wanted = ", ".join(map(repr, names)) or "none", {1: "one is", 2: "two are"}[count]
        raise InvalidArgumentError(f"{where} has the texts {found} where {wanted} expected: {example}")
    return names


def text_of(record: dict[str, Any], column: str, where: str) -> str:
    """The text of a record under a name."""
    if not isinstance(record.get(column), str):
        known = ", ".join(map(repr, record)) or "nothing"
        if column in record:
            known = f"{record[column]!r:.40}"
        raise InvalidArgumentError(f"{where} has no text {column!r}, but {known}")
    return record[column]
