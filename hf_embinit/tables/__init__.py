"""Where a model keeps its token tables, and the only code that writes them in memory.

A *table* is a parameter with a row per token, a *row* a token's vector, a *side* the vocabulary it is of.
How rows are made does not belong here: that is `hf_embinit.initializers`.
"""

from __future__ import annotations

from ..tokens import Side
from .discovery import unwrap
from .embedding_tables import EmbeddingTables, ResizePlan, RowsOf
from .table import Location, Table, TiedTensor
from .usable import unusable_rows, usable_ids, without_rows

__all__ = [
    "EmbeddingTables",
    "Location",
    "ResizePlan",
    "RowsOf",
    "Side",
    "Table",
    "TiedTensor",
    "unusable_rows",
    "unwrap",
    "usable_ids",
    "without_rows",
]
