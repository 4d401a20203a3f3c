"""Finds the token tables of a model, and writes them, in memory and on disk: no other code does.

A *table* is a parameter with a row for each token, a *side* the vocabulary that it is of. The values of rows
do not come from here but from `hf_embinit.rows`.
"""

from __future__ import annotations

from ..tokens import Side
from .beside import SMALL_FILES, folder_of, names_beside
from .checkpoint import checkpoint_of, open_checkpoint, open_matrices
from .checkpoint_writing import save_checkpoint
from .elsewhere import is_sharded, part_of
from .embedding_tables import EmbeddingTables, ResizePlan, RowsOf
from .forward_passes import forward_passes
from .memory import is_held
from .meta_models import quiet_loading
from .positions import input_positions, input_scale
from .resizing import target_size
from .safetensors_files import INDEX, WEIGHTS, StoredTensor, read_checkpoint_files, read_shard
from .stored_rows import StoredRows
from .table import Table, TiedTensor, is_partitioned
from .ties import configured_tie, own_parameter, untie_configuration, untied
from .unwrapping import unwrap
from .usable import RESERVED_NAMES, unusable_rows, usable_ids, without_rows

__all__ = [
    "INDEX",
    "RESERVED_NAMES",
    "SMALL_FILES",
    "WEIGHTS",
    "EmbeddingTables",
    "ResizePlan",
    "RowsOf",
    "Side",
    "StoredRows",
    "StoredTensor",
    "Table",
    "TiedTensor",
    "checkpoint_of",
    "configured_tie",
    "folder_of",
    "forward_passes",
    "input_positions",
    "input_scale",
    "is_held",
    "is_partitioned",
    "is_sharded",
    "names_beside",
    "open_checkpoint",
    "open_matrices",
    "own_parameter",
    "part_of",
    "quiet_loading",
    "read_checkpoint_files",
    "read_shard",
    "save_checkpoint",
    "target_size",
    "untie_configuration",
    "untied",
    "unusable_rows",
    "unwrap",
    "usable_ids",
    "without_rows",
]
