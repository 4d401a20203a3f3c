"""The registry of initialisers. Standard library only.

An initialiser is a function that makes the rows `[R, D]` (float32) which its `InitContext` asks for:

    @register_initializer("xavier", summary="uniform", reference="Glorot & Bengio 2010, Eq. 16")
    def xavier(context: InitContext) -> Tensor: ...

The function's keyword-only arguments are the options of the initialiser; a value is checked against its
annotation (`bool`, `float`, `NotNegative`, `Literal[...]`, or one of these `| None`).
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import InvalidArgumentError
from ..registry import Registry

F = TypeVar("F", bound=Callable[..., Any])

Purpose = Literal["table", "rows"]
"""What an initialiser makes: a whole `table` (rows beside an old one too), or only such new `rows`."""

Needs = Literal["vectors", "existing", "tokens", "tokenizer", "positions"]
"""What an initialiser reads: pre-trained vectors, the old table, token strings, the old tokenizer, the
position encodings of the model."""

NotNegative = Annotated[float, "a finite number at least 0", lambda x: x >= 0]
"""A finite number that is not below zero."""
Share = Annotated[float, "a number above 0 and at most 1", lambda x: 0 < x <= 1]
"""A part of a whole."""
Count = Annotated[int, "a whole number of 1 or more", lambda x: x >= 1]
"""How many."""


@dataclass(frozen=True)
class Initializer:
    """One registered initialiser: its name, what it makes and needs, and where it comes from."""

    name: str
    fn: Callable[..., Any]
    summary: str
    reference: str
    purpose: Purpose = "table"
    needs: frozenset[Needs] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict, hash=False)
    """Arguments that the name implies: `bert` stands for `vectors="bert"`, unless the caller gives others."""
    aliases: tuple[str, ...] = ()
    """Further names."""
    pieces: Callable[..., list[list[int]]] | None = None
    """For initialisers that average old rows: `pieces(context, **options)` gives the old ids of each row."""

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword options that a caller may give, with their defaults."""
        parameters = list(inspect.signature(self.fn).parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check_options(self, options: dict[str, Any]) -> None:
        """Raises `InvalidArgumentError` for an option that is not this initialiser's, or a wrong value."""
        hints = get_type_hints(inspect.unwrap(self.fn), include_extras=True) if options else {}
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none"
                raise InvalidArgumentError(
                    f"init {self.name!r} has no option {name!r}. Its options: {known}."
                )
            if value != self.options[name] and (wanted := _unmet(hints.get(name), value)):
                raise InvalidArgumentError(f"init {self.name!r}: {name}={value!r} is not {wanted}")

    def __str__(self) -> str:
        also = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        return f"{self.name}{also}: {self.summary} ({self.reference})"


def _unmet(hint: Any, value: Any) -> str | None:
    """What was expected instead of `value`, None when it is what the annotation says (or it says no more)."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return None if value in parts else _one_of([repr(part) for part in parts])
    if hint is bool:
        return None if isinstance(value, bool) else "True or False"
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if origin is Annotated:
        kind, wanted, holds = parts
        return None if number and (kind is not int or isinstance(value, int)) and holds(value) else wanted
    if hint is float:
        return None if number else "a finite number"
    if origin in (Union, UnionType):  # `float | None`, `NotNegative | Literal["auto"]`
        unmet = [_unmet(part, value) for part in parts if part is not type(None)]
        return _one_of([text for text in unmet if text]) if all(unmet) else None
    return None


def _one_of(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


INITIALIZERS: Registry[Initializer] = Registry("init")


def register_initializer(
    name: str,
    *,
    summary: str,
    reference: str,
    purpose: Purpose = "table",
    needs: Iterable[Needs] = (),
    defaults: dict[str, Any] | None = None,
    aliases: Iterable[str] = (),
    pieces: Callable[..., list[list[int]]] | None = None,
) -> Callable[[F], F]:
    """Decorator that registers a function under `name` and `aliases`.

    Raises `DuplicateNameError` for a name that is taken.
    """

    def register(fn: F) -> F:
        fixed, also = dict(defaults or {}), tuple(aliases)
        record = Initializer(name, fn, summary, reference, purpose, frozenset(needs), fixed, also, pieces)
        INITIALIZERS.add(name, record, also)
        return fn

    return register


def get_initializer(name: str) -> Initializer:
    """The record registered under `name`. Unknown names raise `UnknownNameError` with the nearest ones."""
    return INITIALIZERS.get(name)


def read_init(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of an initialiser written as `mean_cov` or `mean_cov:scale=auto,...`, both checked.

    Values are read as JSON, else as texts. Raises `UnknownNameError` or `InvalidArgumentError`.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise InvalidArgumentError(
                f"init {text!r}: expected name:option=value, such as mean_cov:scale=auto"
            )
        try:
            options[option] = json.loads(value)
        except ValueError:
            options[option] = value
    get_initializer(name).check_options(options)
    return name, options


def list_initializers(pattern: str = "*", *, purpose: Purpose | None = None) -> list[Initializer]:
    """Records whose name matches a shell pattern (`"glove*"`), sorted by name; `str(record)` is one line."""
    return [r for r in INITIALIZERS.list(pattern) if purpose is None or r.purpose == purpose]
