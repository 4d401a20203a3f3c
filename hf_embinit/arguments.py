"""Arguments of public functions, checked against their annotations at the door, before any work.

    @checked
    def expand(tokens: Sequence[str], *, scale: NotNegative = 1.0, seed: Seed = 0) -> Report: ...

A `bool` is no `int` here, an `int` is a `float`, a `float` is finite, and a string is no list of strings. An
integer of another type, such as NumPy's, is handed on as an `int`.
What is `Any`, and what `**options` take, is checked by who reads it. Standard library only.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import errno
import functools
import inspect
import json
import math
import numbers
import operator
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from itertools import islice
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from .display import printable
from .errors import InvalidArgumentError

F = TypeVar("F", bound=Callable[..., Any])

_BYTES = re.compile("[\ud800-\udfff]")
"""What stands in a word of a command line for bytes that are no letters in its encoding."""
_LONGEST = 80
"""Characters of a value that a message shows."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What `Annotated` adds to a type: a condition, and its words for a message."""

    words: str
    holds: Callable[[Any], bool]


NotNegative = Annotated[float, Wanted("a finite number at least 0", lambda x: x >= 0)]
Positive = Annotated[float, Wanted("a finite number above 0", lambda x: x > 0)]
Share = Annotated[float, Wanted("a number above 0 and at most 1", lambda x: 0 < x <= 1)]
Count = Annotated[int, Wanted("a whole number of 1 or more", lambda n: n >= 1)]
AtLeastTwo = Annotated[int, Wanted("a whole number of 2 or more", lambda n: n >= 2)]
CountOrZero = Annotated[int, Wanted("a whole number of 0 or more", lambda n: n >= 0)]
RowId = Annotated[int, Wanted("an id, 0 or more", lambda n: n >= 0)]
Seed = Annotated[int, Wanted("an integer from 0 to 2**64 - 1", lambda n: 0 <= n < 2**64)]
TrainingSeed = Annotated[int, Wanted("an integer from 0 to 2**32 - 1", lambda n: 0 <= n < 2**32)]
"""NumPy's, too, which transformers seeds."""
Text = Annotated[str, Wanted("a text that is not empty", lambda text: bool(text.strip()))]


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _can_be_a_name(path: str | PathLike[str]) -> bool:
    """Whether a file could be called so: no system has one with a NUL in its name, of no or of any length."""
    if not os.fspath(path):
        return False
    try:
        os.lstat(path)
    except ValueError:
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


Pattern = Annotated[str, Wanted("a regular expression", _compiles)]
FilePath = Annotated[str | PathLike[str], Wanted("a path or a Hub id", _can_be_a_name)]

_ABILITIES = ("__call__", "add_tokens", "convert_ids_to_tokens", "decode", "get_vocab")


def _is_tokenizer(value: Any) -> bool:
    """Whether it is a tokenizer, or a processor (of text and images or sound) that has one."""
    one = value if hasattr(value, "get_vocab") else getattr(value, "tokenizer", None)
    return all(hasattr(one, name) for name in _ABILITIES)


Tokenizer = Annotated[Any, Wanted("a tokenizer of transformers", _is_tokenizer)]


class Mismatch(NamedTuple):
    """Why a value is not what an annotation says."""

    value: Any
    """The value, or the part of it that does not fit."""
    wanted: str
    inside: bool = False
    """Whether `value` is a part."""


def checked(function: F) -> F:
    """Decorator: each call first compares the arguments with the annotations of `function`.

    Raises `InvalidArgumentError`, which names the argument, its value and what was expected; nothing of the
    function has run then. The items of an iterator, which can be read once, are compared as they are read.
    It runs `on_cpu`.
    """
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def door(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # too many arguments, one that is missing: Python says it better
            return function(*args, **kwargs)
        if not hints:
            hints.update({name: _evaluated(p.annotation, function) for name, p in named.items()})
        for name, value in bound.arguments.items():
            if name in named and not _is_same(value, named[name].default):
                check(name, value, hints[name])
                if isinstance(value, numbers.Integral) and not isinstance(value, int):
                    bound.arguments[name] = operator.index(value)
                elif isinstance(value, Iterator) and (part := _item_of(hints[name])) is not None:
                    bound.arguments[name] = _checked_items(name, value, part)
        with on_cpu():
            return function(*bound.args, **bound.kwargs)

    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name: p for name, p in signature.parameters.items() if p.kind not in variable}
    return door  # type: ignore[return-value]


def _item_of(hint: Any) -> Any:
    """The annotation of the items where an argument is any iterable, maybe None; None for other arguments."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((get_args(part)[0] for part in parts if get_origin(part) is Iterable), None)


def _checked_items(name: str, values: Iterator[Any], part: Any) -> Iterator[Any]:
    for one in values:
        if type(one) is not part and (found := _of_items(part, [one])):
            raise InvalidArgumentError(f"{name} has {shown(found.value)}: expected {found.wanted}")
        yield one


def _is_same(value: Any, default: Any) -> bool:
    """Whether an argument says what leaving it out does: infinity is then one, which else is no number."""
    return value is default or (type(value) is type(default) is float and value == default)


_AUTOCAST = ("cpu", "cuda", "mps", "xpu")
_of_caller = contextvars.ContextVar[tuple[tuple[str, Any], ...]]("autocast", default=())
"""The kinds of device, and the dtypes, of the `torch.autocast` that a call of this package is in."""


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Inside, tensors that name no device are on the CPU, where this package makes rows, also where
    `torch.set_default_device` or `with torch.device(...)` says another; and `torch.autocast` rounds no
    products of them. What runs a model does so `as_called`."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    kinds = [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
    with contextlib.ExitStack() as stack:
        if kinds:
            around = tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)
            stack.callback(_of_caller.reset, _of_caller.set(around))
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextlib.contextmanager
def as_called() -> Iterator[None]:
    """Inside, `torch.autocast` is as it is around the call of this package: some models run only so."""
    with contextlib.ExitStack() as stack:
        for kind, dtype in _of_caller.get():
            stack.enter_context(sys.modules["torch"].autocast(kind, dtype=dtype))
        yield


def check_fields(record: Any, *names: str) -> None:
    """Raises `InvalidArgumentError` unless the fields of a dataclass (all without `names`) are what their
    annotations say."""
    hints = _hints_of(record.__class__)
    for name in names or hints:
        check(name, getattr(record, name), hints[name])


def check_flags(record: Any) -> None:
    """`check_fields` for a dataclass of a command line: the message names the flag, `--max_length 0`.

    Texts are to be UTF-8, too, as the files are that tell them.
    """
    for name, hint in _hints_of(record.__class__).items():
        value = getattr(record, name)
        check(name, value, hint, as_flag=True)
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and _BYTES.search(text):
                raise InvalidArgumentError(
                    f"--{name} {text} is no UTF-8, as what is written has to be: rename it, or set "
                    "PYTHONUTF8=1 if it is"
                )


@functools.cache
def _hints_of(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def check(name: str, value: Any, hint: Any, *, as_flag: bool = False) -> None:
    """Raises `InvalidArgumentError` unless `value`, given as `name`, is what the annotation `hint` says.

    `as_flag` is for what was given on a command line, as `--name value`.
    """
    found = mismatch(hint, value)
    if found is not None:
        name, between = (f"--{name}", " ") if as_flag else (name, "=")
        given = f"{name} has {shown(found.value)}" if found.inside else f"{name}{between}{shown(value)}"
        raise InvalidArgumentError(f"{given}: expected {found.wanted}")


def refuse_half_characters(texts: Iterable[str], name: str) -> None:
    """Raises `InvalidArgumentError` for a text with a surrogate that stands alone, which no UTF-8 has."""
    for text in texts:
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise InvalidArgumentError(
                f"{name} has {text[:60]!r}, in which half a character (a surrogate) stands alone: give whole "
                f"characters"
            )


def put_option(
    options: dict[str, Any], name: str, value: str, where: str, error: type[Exception] = InvalidArgumentError
) -> None:
    """Puts an option that was given as text beside the others, its value read as JSON, else as a text.

    Raises an `error`, which names the place, when it is there already."""
    if name in options:
        raise error(f"{where}: {name} is given twice: leave one out")
    try:
        options[name] = json.loads(value)
    except ValueError:
        options[name] = value


def shown(value: Any) -> str:
    """A value in a message, on one line and not too long."""
    if isinstance(value, type) or not isinstance(
        value, (str, bytes, numbers.Number, NoneType, list, tuple, set, frozenset, dict, range, PathLike)
    ):
        return printable(f"<{getattr(value, '__name__', type(value).__name__)}>")
    text = printable(repr(value[:_LONGEST] if isinstance(value, (str, bytes)) else value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def mismatch(hint: Any, value: Any) -> Mismatch | None:
    """How `value` differs from an annotation; None when it fits, or when the annotation says nothing."""
    if hint is Any or hint is inspect.Parameter.empty:
        return None
    hint = getattr(hint, "__value__", hint)  # of `type X = ...`, as NumPy's ArrayLike is from Python 3.12 on
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, TypeVar):
        return mismatch(hint.__bound__ or Any, value)
    if origin is Annotated:
        return _of_annotated(parts, value)
    if origin in (Union, UnionType):
        return _of_union(parts, value)
    if origin is Literal:
        fits = any(type(value) is type(part) and value == part for part in parts)
        return None if fits else Mismatch(value, _one_of([repr(part) for part in parts]))
    if origin in (list, Sequence, Collection, Iterable, set, frozenset, tuple, dict, Mapping):
        return _of_container(origin, parts, value)
    if origin is Callable:
        return None if callable(value) else Mismatch(value, "a function")
    kind = origin or hint
    return None if _is_a(kind, value) else Mismatch(value, _words(kind))


def _of_annotated(parts: tuple[Any, ...], value: Any) -> Mismatch | None:
    conditions = [part for part in parts[1:] if isinstance(part, Wanted)]
    if found := mismatch(parts[0], value):
        return found if found.inside or not conditions else found._replace(wanted=conditions[0].words)
    return next((Mismatch(value, c.words) for c in conditions if not c.holds(value)), None)


def _of_union(parts: tuple[Any, ...], value: Any) -> Mismatch | None:
    found = [mismatch(part, value) for part in parts]
    if None in found:
        return None
    wrong = [one for one in found if one is not None]
    inside = next((one for one in wrong if one.inside), None)
    wanted = [one.wanted for one in wrong if one.wanted != "None"]  # it is what leaving it out says
    return inside or Mismatch(value, _one_of(list(dict.fromkeys(wanted))))


def _of_container(origin: Any, parts: tuple[Any, ...], value: Any) -> Mismatch | None:
    pairs = origin in (dict, Mapping)
    kind = {tuple: (tuple, list), Sequence: (list, tuple, range, Sequence)}.get(origin, origin)
    if isinstance(value, (str, bytes)) or not isinstance(value, kind) or getattr(value, "ndim", 1) == 0:
        return Mismatch(value, _words_of_container(origin, parts))  # a tensor of no dimension is one number
    if origin is tuple and parts[-1] is not ...:
        if len(value) != len(parts):
            return Mismatch(value, f"{len(parts)} values")
        wrong = [mismatch(part, one) for part, one in zip(parts, value, strict=True)]
        return next((one._replace(inside=True) for one in wrong if one), None)
    kind_of = type(value)  # a bar that is off answers every name itself
    if hasattr(kind_of, "column_names"):  # a data set: its first row tells
        return _of_items(parts[0], islice(value, 1))
    if isinstance(value, range) or not (
        hasattr(kind_of, "__getitem__") or isinstance(value, (Set, ValuesView))
    ):
        return None  # an iterator, also behind a bar of tqdm, is read once, by who uses it
    values_of = [value] if not pairs else [value.keys(), value.values()]
    for part, values in zip(parts, values_of, strict=False):
        if part is Any or _are_of_these_types(part, values):
            continue
        if found := _of_items(part, values):
            return found
    return None


def _of_items(part: Any, values: Iterable[Any]) -> Mismatch | None:
    """How the first that is not what an annotation says differs from it."""
    for one in values:
        if found := mismatch(part, one):
            if part is str and isinstance(one, Mapping):
                found = found._replace(
                    wanted=f"{found.wanted}; of a data set, give a column: dataset['text']"
                )
            return found._replace(inside=True)
    return None


def _are_of_these_types(part: Any, values: Collection[Any]) -> bool:
    """Whether a look at the types is enough: lists of words are long."""
    kinds = get_args(part) if get_origin(part) in (Union, UnionType) else (part,)
    return float not in kinds and set(map(type, values)) <= {kind for kind in kinds if isinstance(kind, type)}


def _words_of_container(origin: Any, parts: tuple[Any, ...]) -> str:
    kind = "a mapping" if origin in (dict, Mapping) else "a list" if origin is not Iterable else "an iterable"
    first = get_args(parts[0])[0] if get_origin(parts[0]) is Annotated else parts[0]
    several = {str: " of strings", int: " of integers", float: " of numbers"}
    return kind + ("" if kind == "a mapping" else several.get(first, ""))


def _is_a(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and _is_finite(value)
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is None or kind is NoneType:
        return value is None
    if isinstance(kind, str):  # a class that only type checkers import
        return any(cls.__name__ == kind for cls in type(value).__mro__)
    return isinstance(value, kind)


def _is_finite(number: numbers.Real) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond all floats
        return False


def _words(kind: Any) -> str:
    known: dict[Any, str] = {
        bool: "True or False",
        int: "an integer",
        float: "a finite number",
        str: "a string",
        PathLike: "a path",
        NoneType: "None",
        None: "None",
    }
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    if name == "Module":
        return "a model"
    return known.get(kind) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _one_of(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """An annotation as an object; the name of a class that only type checkers import stays a string."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)
    except NameError:
        return annotation
