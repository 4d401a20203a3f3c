"""One line of what `doctor` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
SHOWN = 5
"""Rows or tokens that a finding names."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    severity: Severity
    code: str
    """A short name that stays, such as `ids_beyond_rows`."""
    message: str
    advice: str
    """What to do."""
    rows: tuple[int, ...] = ()
    """Rows that it is about, which `repair` can refill."""
    table: str = ""
    """The table that they are of."""
    refill: bool = False
    """Whether `repair` refills them unasked: they hold nothing that could be lost."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.message} [{self.code}]. {self.advice}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON-serialisable values."""
        return asdict(self) | {"rows": list(self.rows)}


def few(ids: Sequence[int], names: Mapping[int, str] | None) -> str:
    """The first of some ids, with their tokens."""
    shown = [f"{i} {names[i]!r}" if names and i in names else str(i) for i in ids[:SHOWN]]
    return ", ".join(shown) + (" ..." if len(ids) > SHOWN else "")
