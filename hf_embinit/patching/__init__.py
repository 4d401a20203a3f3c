"""`patch`, `patched`, `unpatch`: transformers' resize and `_init_weights` fill rows by an initialiser."""

from __future__ import annotations

from .everywhere import patched
from .instances import patch, unpatch

__all__ = ["patch", "patched", "unpatch"]
