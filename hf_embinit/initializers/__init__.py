"""Initialisers: pure functions from an `InitContext` to rows. Importing this package fills the registry."""

from __future__ import annotations

from ..registry import get_initializer, list_initializers
from . import expansion, mapped, pretrained, random
from .context import InitContext

__all__ = [
    "InitContext",
    "expansion",
    "get_initializer",
    "list_initializers",
    "mapped",
    "pretrained",
    "random",
]
