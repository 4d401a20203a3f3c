"""Where rows come from: files of vectors, the embedding tables of checkpoints, and vectors trained on one's own text."""

from __future__ import annotations

from .files import read_vectors, write_vectors
from .pretrained_vectors import PretrainedVectors, TokenFamily, rows_digest

__all__ = ["PretrainedVectors", "TokenFamily", "read_vectors", "rows_digest", "write_vectors"]
