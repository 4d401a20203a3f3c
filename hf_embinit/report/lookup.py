"""Rows of real tables in so few bytes that a page carries them, and a browser finds their neighbours."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from ..display import printable
from ..measures import nearest_neighbors
from ..tokens import canonical_form
from .spaces import Space

ROWS = 4000
"""Rows of a table that a page carries at most."""
BYTES = 4 * 2**20
"""Bytes of these rows at most: 4,000 of width 1,048."""
_EQUAL = 1e-6


def carried(space: Space) -> Tensor:
    """Indices `[R]` of the rows that a page carries: the most frequent tokens of the corpus, or the first."""
    count = min(ROWS, max(2, BYTES // space.matrix.shape[1]), len(space.tokens))
    if space.counts is None:
        return torch.arange(count)
    return space.counts.argsort(descending=True, stable=True)[:count]


def quantize(rows: Tensor) -> Tensor:
    """Rows `[R, D]` as int8 `[R, D]`: its largest absolute value becomes 127, which no cosine sees."""
    return (127 * rows / rows.abs().amax(1, keepdim=True)).round().to(torch.int8)


def agreement(rows: Tensor, small: Tensor, k: int) -> float:
    """Share of the k nearest rows by `small` that are as near by `rows`: of its k nearest, or equally near.

    Equally near are those whose cosines differ by no more than float32 does; rows that were never trained
    can all be one.
    """
    if bool((small == small[0]).all()):
        return 0.0
    unit = torch.nn.functional.normalize(rows, dim=1)
    farthest = nearest_neighbors(rows, k, metric="cosine")[:, -1]
    chosen = nearest_neighbors(small.float(), k, metric="cosine")
    least = (unit * unit[farthest]).sum(1)
    found = torch.stack([(unit * unit[column]).sum(1) for column in chosen.T], 1)
    return float((found >= least[:, None] - _EQUAL).float().mean())


def lookup_data(space: Space, k: int) -> dict[str, Any]:
    """What the page's script reads of a space, as JSON values: tokens, rows and norms in base64, counts.

    It shows the `k` nearest tokens, or all others where there are fewer.
    """
    chosen = carried(space)
    rows = space.matrix[chosen]
    small = quantize(rows)
    k = min(k, len(rows) - 1)
    tokens = [space.tokens[i] for i in chosen.tolist()]
    forms = [canonical_form(token, space.family) for token in tokens]
    counts = None if space.counts is None else space.counts[chosen].tolist()
    return {
        "name": printable(space.name),
        "family": space.family,
        "of": len(space.tokens),
        "dim": space.matrix.shape[1],
        "k": k,
        "agreement": agreement(rows, small, k),
        "tokens": [printable(token) for token in tokens],
        "texts": [_text(form.bytes) for form in forms],
        "starts": [form.word_start for form in forms],
        "rank": (chosen + 1).tolist() if counts is None else None,
        "counts": counts,
        "total": None if space.counts is None else int(space.counts.sum()),
        "norms": _base64(rows.norm(dim=1)),
        "rows": _base64(small),
    }


def _text(data: bytes) -> str | None:
    """The text that a token stands for; None for a part of a character."""
    try:
        return printable(data.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def _base64(values: Tensor) -> str:
    """The values as they lie in memory, little-endian."""
    array = values.contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()
