"""fastText `.bin` models, written by the documented layout."""

from __future__ import annotations

import struct

import numpy as np

MAGIC = 793712314
WORDS = ["</s>", "haus", "straße"]
BUCKETS = 50


def table(rows: int, dim: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, dim)).astype("<f4")


def model(
    *, version=12, dim=3, minn=3, maxn=4, kind=1, labels=(), pruned=None, quantised=False, matrix=None
) -> bytes:
    """A model of `WORDS`, and `labels` after them. `pruned` maps the buckets that are kept to their rows."""
    kept = BUCKETS if pruned is None else len(pruned)
    matrix = table(len(WORDS) + kept, dim) if matrix is None else matrix
    data = struct.pack("<ii", MAGIC, version)
    data += struct.pack("<12id", dim, 5, 2, 1, 5, 1, 2, kind, BUCKETS, minn, maxn, 100, 1e-4)
    size = len(WORDS) + len(labels)
    data += struct.pack("<iiiqq", size, len(WORDS), len(labels), 99, -1 if pruned is None else len(pruned))
    for i, word in enumerate([*WORDS, *labels]):
        data += word.encode() + b"\0" + struct.pack("<qb", 7, i >= len(WORDS))
    for pair in (pruned or {}).items():
        data += struct.pack("<ii", *pair)
    data += struct.pack("<bqq", quantised, *matrix.shape) + matrix.tobytes()
    return data + b"\0" + struct.pack("<qq", size, dim) + bytes(4 * size * dim)  # the output table
