"""Initialisers: pure functions from an `InitContext` to rows `[R, D]`, and the registry of their names.

Importing this room fills the registry. Nothing here knows a model: `hf_embinit.rows` builds the context,
`hf_embinit.tables` finds and writes tables.
"""

from __future__ import annotations

from . import new_tokens, pretrained, random
from .context import NEEDED_VECTORS, InitContext, InputPositions, plain_rows, require_finite, required
from .new_tokens import least_squares
from .orthogonal import turned_away
from .registry import (
    PURPOSES,
    Initializer,
    Purpose,
    get_initializer,
    list_initializers,
    read_init,
    read_inits,
    register_initializer,
    table_initializer,
)

__all__ = [
    "NEEDED_VECTORS",
    "PURPOSES",
    "InitContext",
    "Initializer",
    "InputPositions",
    "Purpose",
    "get_initializer",
    "least_squares",
    "list_initializers",
    "new_tokens",
    "plain_rows",
    "pretrained",
    "random",
    "read_init",
    "read_inits",
    "register_initializer",
    "require_finite",
    "required",
    "table_initializer",
    "turned_away",
]
