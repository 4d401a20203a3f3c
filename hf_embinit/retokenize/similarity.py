"""Weights of anchors for each query, from cosines: in blocks, so that no table `[R, U]` is ever held.

R queries, U anchors, D width of the space they lie in, K weights kept of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

BLOCK_ENTRIES = 2**25
"""Cosines that are held at a time: 128 MiB in float32."""

_GROUP = 32
"""Columns of which the highest score is looked at first."""

Entries = tuple[Tensor, Tensor, Tensor]
"""Rows, columns and values of a sparse matrix `[R, U]`: int64 `[N]`, int64 `[N]`, float32 `[N]`."""


def cosine_blocks(queries: Tensor, anchors: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The first row and the cosines `[B, U]` of consecutive blocks of `queries` `[R, D]` with `anchors`
    `[U, D]`; rows of zeros have cosine 0 with everything."""
    anchors = normalize(anchors.float(), dim=1, eps=1e-30)
    size = max(1, BLOCK_ENTRIES // max(1, len(anchors)))
    for first in range(0, len(queries), size):
        yield first, normalize(queries[first : first + size].float(), dim=1, eps=1e-30) @ anchors.T


def softmax_weights(queries: Tensor, anchors: Tensor, *, neighbors: int, temperature: float) -> Entries:
    """Of each query the `neighbors` anchors of highest cosine, weighted by softmax(cosine / temperature).

    Minixhofer, Paischer & Rekabsaz 2022, Eq. 3. Of equal cosines the first anchor counts.
    """

    def weigh(cosines: Tensor) -> tuple[Tensor, Tensor]:
        best, columns = top(cosines, neighbors)
        return torch.softmax(best / temperature, dim=1), columns

    return _entries(queries, anchors, weigh)


def sparsemax_weights(queries: Tensor, anchors: Tensor) -> Entries:
    """Of each query the point of the simplex that is nearest to its cosines: few anchors, weights above 0.

    Martins & Astudillo 2016, Algorithm 1.
    """

    def weigh(cosines: Tensor) -> tuple[Tensor, Tensor]:
        values, columns = sparsemax_top(cosines)
        return values, columns

    return _entries(queries, anchors, weigh)


def linear_weights(queries: Tensor, anchors: Tensor, *, neighbors: int | None = None) -> Entries:
    """Cosines over their sum, of all anchors or of the `neighbors` of highest cosine; negative ones count.

    Ostendorff & Rehm 2023, Eq. 2. A sum within 1e-6 of zero gives no weight.
    """

    def weigh(cosines: Tensor) -> tuple[Tensor, Tensor]:
        best, columns = top(cosines, neighbors or cosines.shape[1])
        total = best.sum(1, keepdim=True)
        return torch.where(total.abs() > 1e-6, best / total, 0.0), columns

    return _entries(queries, anchors, weigh)


def sparsemax_top(scores: Tensor, guess: int = 64) -> tuple[Tensor, Tensor]:
    """The weights above zero that sparsemax gives to each row of `scores` `[B, U]`, and their columns, padded
    with zeros to the longest: both `[B, K]`.

    Only the `guess` highest scores are sorted; rows whose support may be longer are done again with more.
    """
    size = min(guess, scores.shape[1])
    best, columns = _best(scores, size)
    numbers = torch.arange(1, size + 1, dtype=scores.dtype, device=scores.device)
    inside = 1 + numbers * best > best.cumsum(1)  # true for a first part of each row
    support = inside.sum(1)
    if size < scores.shape[1] and bool((support == size).any()):
        return sparsemax_top(scores, guess * 4)
    threshold = (best.cumsum(1).gather(1, support[:, None] - 1) - 1) / support[:, None]
    return (best - threshold).clamp_min_(0), columns


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each row and their columns, `[B, K]`; of equal ones any.

    They lie in the groups of columns whose highest scores are highest: `topk` over whole rows takes longer
    than the product that made them.
    """
    groups = scores.shape[1] // _GROUP
    if groups < 4 * count:
        return scores.topk(count, dim=1)
    grouped = scores[:, : groups * _GROUP].unflatten(1, (groups, _GROUP))
    chosen = grouped.amax(2).topk(count, dim=1).indices[..., None]
    rest = torch.arange(groups * _GROUP, scores.shape[1], device=scores.device).expand(len(scores), -1)
    inside = torch.arange(_GROUP, device=scores.device)
    columns = torch.cat([(chosen * _GROUP + inside).flatten(1), rest], dim=1)
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


def _entries(queries: Tensor, anchors: Tensor, weigh: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Entries:
    rows, columns, values = [], [], []
    for first, cosines in cosine_blocks(queries, anchors):
        weights, chosen = weigh(cosines)
        kept = weights != 0
        rows.append(first + kept.nonzero()[:, 0])
        columns.append(chosen[kept])
        values.append(weights[kept])
    if not rows:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), torch.empty(0)
    return torch.cat(rows), torch.cat(columns), torch.cat(values)
