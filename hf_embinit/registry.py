"""The registry of initialisers: one record a name. Standard library only.

An initialiser is a function `fn(context, **options) -> Tensor` that makes the rows `[rows, D]` (float32)
which its `InitContext` asks for. It registers itself by decorator:

    @register_initializer("xavier", summary="uniform, variance 2 / (N + D)", source="Glorot & Bengio 2010, Eq.
    16") def xavier(context: InitContext) -> Tensor: ...
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from .errors import EmbinitError, InvalidArgumentError, UnknownNameError

Purpose = Literal["table", "rows", "tokenizer"]
"""What an initialiser makes: a whole `table`, new `rows` beside an existing table, a table for a new
`tokenizer`."""

Needs = Literal["vectors", "existing", "tokens", "tokenizer"]
"""What an initialiser reads: pre-trained vectors, the existing table, token strings, the tokenizer before a
change."""


class DuplicateNameError(EmbinitError):
    """Two initialisers claim one name."""


@dataclass(frozen=True)
class Initializer:
    """One registered initialiser: its name, what it makes and needs, and where it comes from."""

    name: str
    fn: Callable[..., Any]
    summary: str
    source: str
    purpose: Purpose = "table"
    needs: frozenset[Needs] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict, hash=False)
    """What the name fixes for the function, such as the checkpoint behind `bert`; users may override
    `vectors`."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword options that a caller may give, with their defaults."""
        parameters = list(inspect.signature(self.fn).parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check_options(self, options: dict[str, Any]) -> None:
        """Raises `InvalidArgumentError` for an option that this initialiser does not have."""
        for name in options:
            if name not in self.options:
                known = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none"
                raise InvalidArgumentError(
                    f"init {self.name!r} has no option {name!r}. Its options: {known}."
                )

    def __str__(self) -> str:
        return f"{self.name}: {self.summary} ({self.source})"


_REGISTRY: dict[str, Initializer] = {}
F = TypeVar("F", bound=Callable[..., Any])


def register_initializer(
    name: str,
    *,
    summary: str,
    source: str,
    purpose: Purpose = "table",
    needs: Iterable[Needs] = (),
    defaults: dict[str, Any] | None = None,
) -> Callable[[F], F]:
    """Decorator that adds a function to the registry under `name`. A name that is taken raises
    `DuplicateNameError`."""

    def register(fn: F) -> F:
        if name in _REGISTRY:
            raise DuplicateNameError(
                f"An initialiser named {name!r} is registered already: {_REGISTRY[name]}."
            )
        _REGISTRY[name] = Initializer(
            name, fn, summary, source, purpose, frozenset(needs), dict(defaults or {})
        )
        return fn

    return register


def get_initializer(name: str) -> Initializer:
    """The record registered under `name`. Unknown names raise `UnknownNameError` with the nearest ones."""
    if name not in _REGISTRY:
        raise UnknownNameError("init", name, _REGISTRY)
    return _REGISTRY[name]


def list_initializers(pattern: str = "*", *, purpose: Purpose | None = None) -> list[Initializer]:
    """Records whose name matches a shell pattern (`"glove*"`), sorted by name; `str(record)` is one line."""
    return [
        record
        for name, record in sorted(_REGISTRY.items())
        if fnmatch.fnmatchcase(name, pattern) and (purpose is None or record.purpose == purpose)
    ]
