"""The registry of surgeries. A name may hold an argument: `remove_last_<n>` matches `remove_last_3`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

import torch
from transformers import PreTrainedModel

from ..arguments import check
from ..errors import InvalidArgumentError
from ..registry import Registry


@dataclass
class Operation:
    """What a surgery works on: a model, its tokenizer and the seed of all draws."""

    model: PreTrainedModel
    tokenizer: Any
    """The model's, which a surgery that replaces the embeddings may replace."""
    seed: int

    def generator(self) -> torch.Generator:
        """A generator at the start of the seed's sequence: each step of a composition has its own."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True)
class Surgery:
    """One registered surgery: its name, what it does and where it comes from."""

    name: str
    summary: str
    reference: str
    fn: Callable[..., dict[str, Any]]
    """`fn(operation[, argument], **options)` changes the model and returns what the manifest records."""
    argument: str = ""
    """Regular expression that the `<...>` of the name matches."""
    needs_tokenizer: bool = False
    brings_tokenizer: bool = False
    tables_alone: bool = False
    """Whether it reads and changes nothing but token tables and ids, so that no other weight is needed."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword options that a caller may give, with their defaults (`Parameter.empty`: required)."""
        parameters = inspect.signature(self.fn).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def match(self, name: str) -> tuple[str, ...] | None:
        """The arguments in `name` (empty without `<...>`), or None for a name of another surgery."""
        if not self.argument:
            return () if name == self.name else None
        matched = re.fullmatch(f"{re.escape(self.name.partition('<')[0])}({self.argument})", name)
        return matched.groups() if matched else None

    def check_options(self, name: str, options: dict[str, Any]) -> None:
        """Raises `InvalidArgumentError` when a required option is missing, or one is no such value."""
        hints = get_type_hints(self.fn, include_extras=True)
        for option, default in self.options.items():
            if default is inspect.Parameter.empty and options.get(option) is None:
                raise InvalidArgumentError(f"surgery {name!r} needs {option}=")
            if option in options:
                check(f"surgery {name!r}: {option}", options[option], hints[option])

    def __str__(self) -> str:
        return f"{self.name}: {self.summary} ({self.reference})"


SURGERIES: Registry[Surgery] = Registry("surgery")
F = TypeVar("F", bound=Callable[..., dict[str, Any]])


def register_surgery(
    name: str,
    *,
    summary: str,
    reference: str,
    argument: str = "",
    needs_tokenizer: bool = False,
    brings_tokenizer: bool = False,
    tables_alone: bool = False,
) -> Callable[[F], F]:
    """Decorator that registers a surgery under `name`, which must be free."""

    def register(fn: F) -> F:
        record = Surgery(
            name, summary, reference, fn, argument, needs_tokenizer, brings_tokenizer, tables_alone
        )
        SURGERIES.add(name, record)
        return fn

    return register


def list_surgeries() -> list[Surgery]:
    """All registered surgeries, sorted by name; `str(record)` is one line."""
    return SURGERIES.list()
