"""Pre-trained vectors: read from files and from checkpoints, or trained on a text (GloVe).

What a row is made of them is decided in `hf_embinit.initializers`; no model is built here.
"""

from __future__ import annotations

from .checkpoints import read_embedding_table, read_pickle, read_weight_map
from .files import is_fasttext, read_vectors, write_vectors
from .glove import train_glove
from .pretrained_vectors import PretrainedVectors, rows_digest
from .provenance import check_taken
from .sources import SOURCES, check_source, load_vectors
from .static_embeddings import is_static_embedding
from .token_strings import has_tokenizer

__all__ = [
    "SOURCES",
    "PretrainedVectors",
    "check_source",
    "check_taken",
    "has_tokenizer",
    "is_fasttext",
    "is_static_embedding",
    "load_vectors",
    "read_embedding_table",
    "read_pickle",
    "read_vectors",
    "read_weight_map",
    "rows_digest",
    "train_glove",
    "write_vectors",
]
