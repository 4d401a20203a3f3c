"""Reading of files that others made: any defect becomes one sentence that names the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from .display import printable
from .errors import EmbinitError, VectorFileError

_LONGEST_REASON = 300


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
