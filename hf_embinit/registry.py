"""`Registry`: records of one kind by name, each put there where it is defined."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from .errors import EmbinitError, UnknownNameError

T = TypeVar("T")


class DuplicateNameError(EmbinitError, ValueError):
    """Two records claim one name."""


class Registry(Generic[T]):
    """Records of one kind (`init`, `surgery`, `task`) by name, some under further names as well."""

    def __init__(self, kind: str):
        self.kind = kind
        self._records: dict[str, T] = {}
        self._aliases: dict[str, str] = {}

    def add(self, name: str, record: T, aliases: Iterable[str] = ()) -> None:
        """Puts `record` under `name`; raises `DuplicateNameError` for a name that is taken."""
        for one in (name, *aliases):
            if one in self._records or one in self._aliases:
                raise DuplicateNameError(f"{self.kind} {one!r} is registered already: {self.get(one)}")
        self._records[name] = record
        self._aliases.update(dict.fromkeys(aliases, name))

    def remove(self, name: str) -> None:
        """Takes a record out again, under all its names."""
        del self._records[name]
        self._aliases = {alias: of for alias, of in self._aliases.items() if of != name}

    def get(self, name: str, suits: Callable[[T], bool] = lambda _: True) -> T:
        """The record called `name`. Raises `UnknownNameError` with the names of records that suit."""
        known = self._aliases.get(name, name)
        if known not in self._records:
            names = {one: one for one in self._records} | self._aliases
            raise UnknownNameError(
                self.kind, name, [one for one, of in names.items() if suits(self._records[of])]
            )
        return self._records[known]

    def list(self, pattern: str = "*") -> list[T]:
        """Records that have a name which matches a shell pattern, each once, sorted by name."""
        names = [*((name, name) for name in self._records), *self._aliases.items()]
        found = {name for given, name in names if fnmatch.fnmatchcase(given, pattern)}
        return [self._records[name] for name in sorted(found)]

    def __iter__(self) -> Iterator[T]:
        return iter(self.list())
