"""Weights of anchors for each query, from cosines: in blocks, so that no table `[R, U]` is ever held.

R queries, U anchors, D width of the space they lie in, K weights kept of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..moments import unit_rows

BLOCK_ENTRIES = 2**22
"""Cosines that are held at a time: 16 MiB in float32. Blocks of 128 MiB take longer, products included."""

_GROUP = 32
"""Columns of which the highest score is looked at first."""

Entries = tuple[Tensor, Tensor, Tensor]
"""Rows, columns and values of a sparse matrix `[R, U]`: int64 `[N]`, int64 `[N]`, float32 `[N]`."""


def cosine_blocks(queries: Tensor, anchors: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The first row and the cosines `[B, U]` of consecutive blocks of `queries` `[R, D]` with `anchors`
    `[U, D]`; rows of zeros have cosine 0 with everything."""
    anchors = unit_rows(anchors)
    size = max(1, BLOCK_ENTRIES // max(1, len(anchors)))
    for first in range(0, len(queries), size):
        yield first, unit_rows(queries[first : first + size]) @ anchors.T


def softmax_weights(queries: Tensor, anchors: Tensor, *, neighbors: int, temperature: float) -> Entries:
    """Of each query the `neighbors` anchors of highest cosine, weighted by softmax(cosine / temperature).

    Minixhofer, Paischer & Rekabsaz 2022, Eq. 3. Of equal cosines the first anchor counts.
    """

    def weigh(cosines: Tensor) -> Entries:
        best, columns = top(cosines, neighbors)
        return _sparse(torch.softmax(best / temperature, dim=1), columns)

    return _entries(queries, anchors, weigh)


def sparsemax_weights(queries: Tensor, anchors: Tensor) -> Entries:
    """Of each query the point of the simplex that is nearest to its cosines: few anchors, weights above 0.

    Martins & Astudillo 2016, Eq. 2.
    """
    return _entries(queries, anchors, sparsemax)


def linear_weights(queries: Tensor, anchors: Tensor, *, neighbors: int | None = None) -> Entries:
    """Cosines over their sum, of all anchors or of the `neighbors` of highest cosine; negative ones count.

    Ostendorff & Rehm 2023, Eq. 2. A sum within 1e-6 of zero gives no weight.
    """

    def weigh(cosines: Tensor) -> Entries:
        best, columns = top(cosines, neighbors or cosines.shape[1])
        total = best.sum(1, keepdim=True)
        return _sparse(torch.where(total.abs() > 1e-6, best / total, 0.0), columns)

    return _entries(queries, anchors, weigh)


def sparsemax(scores: Tensor) -> Entries:
    """The weights above zero that sparsemax gives to each row of `scores` `[B, U]`; nothing is sorted.

    The threshold of some of the scores is no higher than that of all. So the highest ones of groups of
    groups bound it from below, and only groups that reach the bound are looked into.
    """
    size = max(1, min(_GROUP, scores.shape[1] // (2 * _GROUP)))
    grouped, rest = _grouped(scores, size)
    highest = grouped.amax(1)
    bound = _threshold(_grouped(highest, max(1, highest.shape[1] // _GROUP))[0].amax(1))
    rows, group = (highest > bound[:, None]).nonzero().unbind(1)
    found = grouped.transpose(1, 2)[rows, group]
    pair, member = (found > bound[rows, None]).nonzero().unbind(1)
    row, column = (rest > bound[:, None]).nonzero().unbind(1)
    values = torch.cat([found[pair, member], rest[row, column]])
    rows = torch.cat([rows[pair], row])
    columns = torch.cat([group[pair] + member * grouped.shape[2], column + grouped[0].numel()])
    kept = torch.zeros_like(rows, dtype=torch.bool)
    while not bool(kept.all()):  # Michelot 1986: what lies below the threshold of the others goes
        sums = torch.zeros(len(bound), dtype=torch.float64, device=rows.device)
        sums.index_add_(0, rows, values.double())
        bound = ((sums - 1) / torch.bincount(rows, minlength=len(bound))).to(values.dtype)
        kept = values > bound[rows]
        rows, columns, values = rows[kept], columns[kept], values[kept]
    return rows, columns, values - bound[rows]


def _grouped(scores: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`scores` `[B, U]` as `[B, size, G]`, where `[:, :, g]` is a group, and the columns that are left over:
    column `g + i * G` is member `i` of group `g`, which makes the highest of each group fast to find."""
    groups = scores.shape[1] // size
    return scores[:, : groups * size].unflatten(1, (size, groups)), scores[:, groups * size :]


def _threshold(scores: Tensor) -> Tensor:
    """What sparsemax subtracts from each row of `scores` `[B, U]`, `[B]`: Martins & Astudillo 2016,
    Algorithm 1."""
    sums = scores.sort(dim=1, descending=True).values.cumsum(1) - 1
    return (sums / torch.arange(1, scores.shape[1] + 1, device=scores.device)).amax(1)


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row and their columns, `[B, K]`; of equal ones any.

    They lie in the groups of columns whose highest scores are highest: `topk` over whole rows takes longer
    than the product that made them.
    """
    grouped, rest = _grouped(scores, _GROUP)
    groups = grouped.shape[2]
    if groups < 4 * count:
        return scores.topk(count, dim=1)
    chosen = grouped.amax(1).topk(count, dim=1).indices
    members = torch.arange(0, groups * _GROUP, groups, device=scores.device)
    left = torch.arange(groups * _GROUP, scores.shape[1], device=scores.device).expand(len(rest), -1)
    columns = torch.cat([(chosen[:, :, None] + members).flatten(1), left], dim=1)
    values, place = scores.gather(1, columns).topk(count, dim=1)
    return values, columns.gather(1, place)


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row and their columns, `[B, K]`; of equal ones the first column."""
    count = min(count, scores.shape[1])
    if count == scores.shape[1]:
        values, columns = torch.sort(scores, dim=1, descending=True, stable=True)
        return values, columns
    values, columns = _best(scores, count + 1)
    tied = values[:, count] == values[:, count - 1]  # then any of the equal ones was taken
    values, columns = values[:, :count].contiguous(), columns[:, :count].contiguous()
    for row in tied.nonzero().flatten().tolist():
        order = torch.sort(scores[row], descending=True, stable=True).indices[:count]
        values[row], columns[row] = scores[row, order], order
    return values, columns


def _sparse(weights: Tensor, columns: Tensor) -> Entries:
    """The entries of weights `[B, K]` that are not zero, and their columns `[B, K]`."""
    rows, place = weights.nonzero().unbind(1)
    return rows, columns[rows, place], weights[rows, place]


def _entries(queries: Tensor, anchors: Tensor, weigh: Callable[[Tensor], Entries]) -> Entries:
    """What `weigh` makes of each block of cosines `[B, U]`, together."""
    parts = [(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0))]
    for first, cosines in cosine_blocks(queries, anchors):
        rows, columns, values = weigh(cosines)
        parts.append((rows + first, columns, values))
    rows, columns, values = (torch.cat(part) for part in zip(*parts, strict=True))
    return rows, columns, values
