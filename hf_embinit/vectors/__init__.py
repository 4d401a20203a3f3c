"""Where rows come from: files of vectors, tables of checkpoints, vectors trained on one's own text."""

from __future__ import annotations

from .checkpoints import read_embedding_table
from .files import read_vectors, write_vectors
from .glove import train_glove
from .pretrained_vectors import PretrainedVectors, rows_digest
from .sources import SOURCES, load_vectors

__all__ = [
    "SOURCES",
    "PretrainedVectors",
    "load_vectors",
    "read_embedding_table",
    "read_vectors",
    "rows_digest",
    "train_glove",
    "write_vectors",
]
