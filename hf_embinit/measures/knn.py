"""KNN match similarity: how far two embedding spaces agree on each token's nearest neighbors.

Shapes: `V` tokens, `D` columns, `Q` query tokens, `k` neighbors. Exact, in blocks, on the CPU or a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from ..arguments import checked
from ..errors import InvalidArgumentError
from .scores import TINY, UNIT_64, Metric, Scores
from .statistics import check_table, check_values, row_index

_BLOCK = 2048
"""Rows and columns of a block of scores: large enough for fast matrix products, small enough for caches."""
_BLOCK_ON_GPU = 8192
# A row's top k lie in the k groups of largest maximum: a block is read once, and few values are selected from
_GROUP = 16
# Scores held when few rows are compared with all: 64 MiB
_SCORES = 2**24
_ASKED = 512
"""Rows of such a block: what a row selects costs the same in a block of any width, so blocks are wide."""
_EXACT = 2**19
"""Numbers of the rows that are compared in float64 at a time: what fits a cache."""
_SPARE, _SPARE_COLUMNS = 2, 512
"""Candidates of a row beyond its k + 1, and columns for each more: with them rounding, which grows by the
column, rarely leaves open which k are the nearest."""


@overload
def knn_match_similarity(
    a: Tensor,
    b: Tensor,
    k: int = ...,
    metric: Metric = ...,
    include_self: bool = ...,
    weights: Tensor | Sequence[float] | None = ...,
    tokens: Tensor | Sequence[int] | None = ...,
    per_token: Literal[False] = ...,
) -> float: ...


@overload
def knn_match_similarity(
    a: Tensor,
    b: Tensor,
    k: int = ...,
    metric: Metric = ...,
    include_self: bool = ...,
    weights: Tensor | Sequence[float] | None = ...,
    tokens: Tensor | Sequence[int] | None = ...,
    *,
    per_token: Literal[True],
) -> Tensor: ...


@torch.no_grad()
@checked
def knn_match_similarity(
    a: Tensor,
    b: Tensor,
    k: int = 10,
    metric: Metric = "inner_product",
    include_self: bool = False,
    weights: Tensor | Sequence[float] | None = None,
    tokens: Tensor | Sequence[int] | None = None,
    per_token: bool = False,
) -> float | Tensor:
    """Mean Jaccard index, 0 to 1, of each token's k nearest neighbors in `a` `[V, D1]` and `b` `[V, D2]`.

    The k neighbors of a token are the k other tokens with the largest inner product (or cosine, or the
    smallest Euclidean distance); of tokens at equal distance, those of lower index. `include_self` lets a
    token be its own neighbor. `tokens` (ids, or a mask `[V]`) are those averaged over; neighbors are
    sought among all V. `weights` `[V]`, such as frequencies, make it a weighted mean. `per_token=True`
    gives the float32 values `[Q]` instead.

    Memory beyond the tables: one block of scores, and some k numbers a token. Products are in float32, and
    neighbors that rounding could have put into another order are compared in float64: what comes out is
    exact, at any scale, and equal are distances that differ by less than float64 tells.

    Raises `InvalidArgumentError` when the tables differ in V, when k is not between 1 and the number of
    possible neighbors, and for NaN or infinite values, tables of equal rows, or zero rows among `tokens`,
    which have no nearest neighbors (any zero row for the cosine).

    Source: *The Butterfly Effect: How Random Initialization Shapes WTE Semantic Similarity*.
    """
    if a.ndim == 2 and b.ndim == 2:
        _check_same_tokens(a, b)
    if 0 in (a.ndim, b.ndim):
        raise InvalidArgumentError("a and b must be tables [V, D], got a single number")
    wanted = _ids(tokens, a.shape[0])
    w = None if weights is None else _weights(weights, a.shape[0])
    first = nearest_neighbors(a, k, metric=metric, include_self=include_self, tokens=wanted, name="a")
    second = nearest_neighbors(b, k, metric=metric, include_self=include_self, tokens=wanted, name="b")
    values = match_of_neighbors(first, second)
    if per_token:
        return values
    if w is None:
        return float(values.mean(dtype=torch.float64))
    w = (w if wanted is None else w[wanted.to(w.device)]).to(values.device)
    if not bool((w >= 0).all()) or not 0 < float(w.sum()) < math.inf:
        raise InvalidArgumentError("weights must be finite, not negative, and not all zero")
    return float((w * values).sum() / w.sum())


@torch.no_grad()
@checked
def knn_match_by_k(
    a: Tensor,
    b: Tensor,
    ks: Sequence[int],
    metric: Metric = "inner_product",
) -> dict[int, float]:
    """`knn_match_similarity` of `a` `[V, D1]` and `b` `[V, D2]` for each of `ks`, with one search in each.

    Raises what `knn_match_similarity` raises, also for no `ks`.
    """
    if not ks or min(ks) < 1:
        raise InvalidArgumentError(
            f"ks={list(ks)}: give numbers of neighbors from 1 on, such as (1, 10, 100)"
        )
    if a.ndim == 2 and b.ndim == 2:
        _check_same_tokens(a, b)
    first = nearest_neighbors(a, max(ks), metric=metric, name="a")
    second = nearest_neighbors(b, max(ks), metric=metric, name="b")
    return {k: float(match_of_neighbors(first[:, :k], second[:, :k]).mean(dtype=torch.float64)) for k in ks}


def _check_same_tokens(a: Tensor, b: Tensor) -> None:
    if a.shape[0] != b.shape[0]:
        raise InvalidArgumentError(
            f"a has {a.shape[0]} rows and b {b.shape[0]}: row i of both must be the same token. "
            "Select the rows of the shared tokens, in one order, first."
        )


@torch.no_grad()
@checked
def nearest_neighbors(
    x: Tensor,
    k: int = 10,
    *,
    metric: Metric = "inner_product",
    include_self: bool = False,
    tokens: Tensor | Sequence[int] | None = None,
    name: str = "x",
) -> Tensor:
    """Indices `[Q, k]` of the k nearest rows of `x` `[V, D]` to each of `tokens` (or all), nearest first.

    See `knn_match_similarity` for the arguments and for what raises; `name` is what errors call `x`.
    """
    if metric not in ("inner_product", "cosine", "euclidean"):
        raise InvalidArgumentError(f"metric {metric!r} is not one of 'inner_product', 'cosine', 'euclidean'")
    check_table(x, name)
    v = x.shape[0]
    most = v if include_self else v - 1
    if not most:
        raise InvalidArgumentError(f"{name} has one row, which has no neighbors")
    if not 1 <= k <= most:
        raise InvalidArgumentError(
            f"k={k}: each of {v} rows has {most} possible neighbors; choose k between 1 and {most}"
        )
    if all(bool((b == x[0]).all()) for b in x.split(_BLOCK)):
        raise InvalidArgumentError(f"all rows of {name} are the same, so no row is nearer than another")
    wanted = _ids(tokens, v)
    space = Scores(x.detach(), metric, name, wanted)
    count = min(k + 1 + _SPARE + x.shape[1] // _SPARE_COLUMNS, most)
    if wanted is None or len(wanted) > v / 2:
        values, indices = _Finder(space, count, include_self).all_pairs()
        if wanted is not None:
            values, indices = values[wanted], indices[wanted]
    else:
        values, indices = _Finder(space, count, include_self, wanted).some_rows()
    ids = torch.arange(v, device=x.device) if wanted is None else wanted.to(x.device)
    return _decided(space, ids, values, indices, k, include_self)


def _decided(
    space: Scores, ids: Tensor, values: Tensor, indices: Tensor, k: int, include_self: bool
) -> Tensor:
    """The k nearest `[n, k]` of the rows `ids`, nearest first, of candidates `[n, c]` with their scores."""
    count = values.shape[1]
    values, order = values.sort(dim=1, descending=True)
    indices = indices.gather(1, order)
    nearest = indices[:, :k].contiguous()
    # a candidate is told from the next where its score is above it by more than rounding can have added
    least = values - 2 * space.slack(ids, indices)
    unsure = (least[:, : min(k, count - 1)] <= values[:, 1 : k + 1]).any(1).nonzero().flatten()
    undecided = [unsure[:0]]
    for rows in unsure.split(max(1, _EXACT // (count * space.x.shape[1]))):
        nearest[rows], sure = _exactly(space, ids[rows], indices[rows], values[rows, -1], k)
        undecided.append(rows[~sure])
    for rows in torch.cat(undecided).split(max(1, _SCORES // (2 * len(space.x)))):
        found = space.nearest(ids[rows], k, include_self)
        slack = space.slack(ids[rows], found, UNIT_64)
        nearest[rows] = _in_order(space.exact(ids[rows], found), slack, found)
    return nearest


def _exactly(space: Scores, ids: Tensor, indices: Tensor, last: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest `[n, k]` of candidates `[n, c]`, and whether all others, at most `last`, are farther."""
    indices = indices.sort(dim=1).values
    scores = space.exact(ids, indices)
    slack = space.slack(ids, indices, UNIT_64)
    chosen = space.choose(scores, slack, k)
    scores, slack, indices = (t.gather(1, chosen) for t in (scores, slack, indices))
    return _in_order(scores, slack, indices), (scores - 2 * slack > last[:, None] + TINY).all(1)


def _in_order(values: Tensor, slack: Tensor, indices: Tensor) -> Tensor:
    """Indices `[n, k]`, which rise, by falling value; of values within `slack` the lower index is first."""
    values, order = values.sort(dim=1, descending=True)
    slack = slack.gather(1, order)
    farther = values[:, :-1] - values[:, 1:] > torch.maximum(slack[:, :-1], slack[:, 1:])
    groups = torch.nn.functional.pad(farther.long().cumsum(1), (1, 0))
    groups = torch.empty_like(groups).scatter_(1, order, groups)  # in the order of the indices again
    return indices.gather(1, groups.sort(dim=1, stable=True).indices)


def match_of_neighbors(first: Tensor, second: Tensor) -> Tensor:
    """Jaccard index, float32 `[Q]`, of two sets of k neighbors `[Q, k]` a token."""
    k = first.shape[1]
    values = torch.empty(len(first), dtype=torch.float32, device=first.device)
    step = max(1, 2**24 // (k * k))
    for start in range(0, len(first), step):
        x, y = first[start : start + step], second[start : start + step].to(first.device)
        shared = (x[:, :, None] == y[:, None, :]).sum((1, 2))
        values[start : start + step] = shared / (2 * k - shared)
    return values


def _weights(weights: Tensor | Sequence[float], v: int) -> Tensor:
    """`weights` as a float64 tensor `[V]`."""
    w = torch.as_tensor(weights, dtype=torch.float64)
    check_values(w, "weights")
    if w.shape != (v,):
        raise InvalidArgumentError(
            f"weights must have one number a row of a, {v}, got shape {tuple(w.shape)}"
        )
    return w


def _ids(tokens: Tensor | Sequence[int] | None, v: int) -> Tensor | None:
    """`tokens` (ids or a mask) as a tensor of row indices, None for all."""
    if tokens is None:
        return None
    ids = row_index(tokens, v, "tokens")
    if not len(ids):
        raise InvalidArgumentError(f"tokens must be row indices from 0 to {v - 1}, at least one")
    return ids


class _Finder:
    """Keeps the `count` best scores of each row, or of each of `ids`, while blocks of scores are computed."""

    def __init__(self, space: Scores, count: int, include_self: bool, ids: Tensor | None = None):
        self.space, self.count, self.include_self = space, count, include_self
        device = space.x.device
        self.v, self.ids = len(space.x), None if ids is None else ids.to(device)
        shape = (self.v if ids is None else len(ids), count)
        self.values = torch.full(shape, -math.inf, dtype=torch.float32, device=device)
        self.indices = torch.zeros(shape, dtype=torch.long, device=device)
        self.most = _BLOCK if device.type == "cpu" else _BLOCK_ON_GPU

    def all_pairs(self) -> tuple[Tensor, Tensor]:
        """Best scores `[V, count]` and their indices, of all pairs once: a block above the diagonal serves
        both its rows and its columns."""
        blocks = _blocks(self.v, self.most)
        buffer = torch.empty(len(blocks[0]) ** 2, dtype=torch.float32, device=self.values.device)
        for i, block in enumerate(blocks):
            rows = slice(block.start, block.stop)
            left = self.space.left(rows)
            for other in blocks[i:]:
                columns = slice(other.start, other.stop)
                scores = _product(left, self.space.right(columns), buffer)
                if columns == rows:
                    if not self.include_self:
                        scores.fill_diagonal_(-math.inf)
                else:
                    self._merge(columns, *_candidates_of_columns(scores, self.count), offset=rows.start)
                self._merge(rows, *_candidates_of_rows(scores, self.count), offset=columns.start)
        return self.values, self.indices

    def some_rows(self) -> tuple[Tensor, Tensor]:
        """Best scores `[Q, count]` of the rows `ids`, and their indices, in one pass over the table."""
        assert self.ids is not None
        asked = _blocks(len(self.ids), _ASKED)
        blocks = _blocks(self.v, _SCORES // len(asked[0]))
        buffer = torch.empty(len(asked[0]) * len(blocks[0]), dtype=torch.float32, device=self.values.device)
        for block in blocks:
            right = self.space.right(slice(block.start, block.stop))
            for part in asked:
                rows = slice(part.start, part.stop)
                ids = self.ids[rows]
                scores = _product(self.space.left(ids), right, buffer)
                if not self.include_self:
                    own = ((ids >= block.start) & (ids < block.stop)).nonzero().flatten()
                    scores[own, ids[own] - block.start] = -math.inf
                self._merge(rows, *_candidates_of_rows(scores, self.count), offset=block.start)
        return self.values, self.indices

    def _merge(self, rows: slice, values: Tensor, indices: Tensor, offset: int) -> None:
        """Takes candidates `[n, c]`, whose indices count from `offset`, into the best of `rows`."""
        both = torch.cat([self.values[rows], values], 1)
        best = both.topk(self.count, dim=1)
        new = indices.gather(1, (best.indices - self.count).clamp_(min=0)) + offset
        old = self.indices[rows].gather(1, best.indices.clamp(max=self.count - 1))
        self.indices[rows] = torch.where(best.indices < self.count, old, new)
        self.values[rows] = best.values


def _blocks(length: int, most: int) -> list[range]:
    """Rows in blocks of one size, at most `most`, but the last, which is smaller."""
    size = math.ceil(length / math.ceil(length / max(1, most)))
    return [range(s, min(s + size, length)) for s in range(0, length, size)]


def _product(left: Tensor, right: Tensor, buffer: Tensor) -> Tensor:
    """`left @ right.T` `[r, c]`, written into `buffer`."""
    scores = buffer[: len(left) * len(right)].view(len(left), len(right))
    return torch.mm(left, right.T, out=scores)


def _candidates_of_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values of each row of `[r, c]`, its `count` largest among them, and their columns."""
    r, c = scores.shape
    m = c // _GROUP
    if m <= 2 * count:
        return scores, torch.arange(c, device=scores.device).expand(r, c)
    # group p of a row holds its columns p, p + m, p + 2m, ...; what is left over is always a candidate
    maxima = scores[:, : m * _GROUP].unflatten(1, (_GROUP, m)).amax(1)
    columns = _members(maxima, m, c, count)
    return scores.gather(1, columns), columns


def _candidates_of_columns(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`_candidates_of_rows(scores.T, count)` without transposing the block."""
    r, c = scores.shape
    m = r // _GROUP
    if m <= 2 * count:
        return scores.T.contiguous(), torch.arange(r, device=scores.device).expand(c, r)
    maxima = scores[: m * _GROUP].unflatten(0, (_GROUP, m)).amax(0).T.contiguous()
    rows = _members(maxima, m, r, count)
    flat = torch.arange(c, device=scores.device)[:, None] + rows * c
    return scores.view(-1).take(flat), rows


def _members(maxima: Tensor, m: int, length: int, count: int) -> Tensor:
    """Positions `[n, count * _GROUP + rest]` in the groups with the largest of `maxima` `[n, m]`."""
    groups = maxima.topk(count, dim=1, sorted=False).indices
    grouped = count * _GROUP
    members = torch.empty(len(maxima), grouped + length - m * _GROUP, dtype=torch.long, device=maxima.device)
    steps = m * torch.arange(_GROUP, device=maxima.device)
    torch.add(groups[:, None, :], steps[:, None], out=members[:, :grouped].unflatten(1, (_GROUP, count)))
    members[:, grouped:] = torch.arange(m * _GROUP, length, device=maxima.device)
    return members
