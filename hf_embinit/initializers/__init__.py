"""Initialisers: pure functions from an `InitContext` to rows `[R, D]`, under their names in one registry.

Importing this room fills the registry. Nothing here knows a model: tables are found and written in
`hf_embinit.tables`, and what an initialiser may read is put together in `hf_embinit.rows`.
"""

from __future__ import annotations

from . import new_tokens, pretrained, random
from .context import InitContext
from .registry import (
    DuplicateNameError,
    Initializer,
    Registry,
    get_initializer,
    list_initializers,
    register_initializer,
)

__all__ = [
    "DuplicateNameError",
    "InitContext",
    "Initializer",
    "Registry",
    "get_initializer",
    "list_initializers",
    "new_tokens",
    "pretrained",
    "random",
    "register_initializer",
]
