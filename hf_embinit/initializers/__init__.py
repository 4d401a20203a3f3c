"""Initialisers: pure functions from an `InitContext` to rows. Importing this package fills the registry."""

from __future__ import annotations

from . import expansion, random
from .context import InitContext

__all__ = ["InitContext", "expansion", "random"]
