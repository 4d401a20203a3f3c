"""Scores of pairs of rows: upper bounds of them as products in float32, and exact ones in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from ..errors import InvalidArgumentError

Metric = Literal["inner_product", "cosine", "euclidean"]

_ROWS = 2048
"""Rows that are turned into float64 at a time."""
_PLAIN = 2.0**32
"""Numbers up to this, or down to its inverse, need no scaling: their products are far from float32's ends."""
_UNIT, UNIT_64 = 2.0**-24, 2.0**-53
TINY = 1e-35
"""Products below this may be rounded to 0 in float32."""


class Scores:
    """A table `[V, D]` whose pairs of rows have scores, larger is nearer: x.y, or -|x - y|^2 / 2.

    `left(rows) @ right(rows).T` is in float32, never below the exact score, and above it by at most twice the
    `slack` of a pair: what such a product can lose to rounding, D units of |x||y|. So neighbors that it tells
    apart by less are compared by `exact`. Rows are scaled by a power of two, which changes no order.
    """

    def __init__(self, x: Tensor, metric: Metric, name: str, wanted: Tensor | None):
        self.x, self.metric = x, metric
        self.mean: Tensor | None = None
        self.inverse: Tensor | None = None
        largest = max(float(block.abs().max()) for block in x.split(_ROWS))
        exponent = 0 if 1 / _PLAIN < largest < _PLAIN else -math.floor(math.log2(largest))
        self.scale = 2.0 ** max(-1000, min(1000, exponent))
        if metric == "euclidean":  # distances do not change, and small ones keep their digits
            self.mean = torch.stack([rows.sum(0) for rows in self._blocks()]).sum(0) / len(x)
        else:
            self._refuse_zeros(name, wanted)
        self.norms = torch.cat([rows.norm(dim=1) for rows in self._blocks()])
        self.plain = x.dtype != torch.float64 and exponent == 0 and metric != "euclidean"
        if metric == "cosine":
            self.plain = self.plain and float(self.norms.min()) > 1 / _PLAIN
            self.inverse = 1 / self.norms
            self.norms = torch.ones_like(self.norms)

    def _blocks(self) -> Iterator[Tensor]:
        return (self.rows(slice(start, start + _ROWS)) for start in range(0, len(self.x), _ROWS))

    def _refuse_zeros(self, name: str, wanted: Tensor | None) -> None:
        zero = torch.cat([(b == 0).all(1) for b in self.x.split(_ROWS)])
        asked = zero if wanted is None or self.metric == "cosine" else zero[wanted.to(zero.device)]
        if bool(asked.any()):
            place = int(asked.nonzero()[0])
            both = " from both tables" if name in ("a", "b") else ""
            row = place if asked is zero else int(wanted[place])  # type: ignore[index]
            raise InvalidArgumentError(
                f"row {row} of {name} is zero, so it has no neighbors by {self.metric}: leave such rows out "
                + (f"by selecting the others{both}" if self.metric == "cosine" else "by tokens=")
            )

    def rows(self, rows: slice | Tensor) -> Tensor:
        """What is multiplied, float64 `[..., D]`."""
        x = self.x[rows].double()
        if self.scale != 1:
            x = x * self.scale
        if self.mean is not None:
            return x - self.mean
        return x if self.inverse is None else x * self.inverse[rows][..., None]

    def _rows32(self, rows: slice | Tensor) -> Tensor:
        if not self.plain:
            if isinstance(rows, Tensor):
                return torch.cat([self.rows(part).float() for part in rows.split(_ROWS)])
            starts = range(rows.start, rows.stop, _ROWS)
            return torch.cat([self.rows(slice(i, min(i + _ROWS, rows.stop))).float() for i in starts])
        x = self.x[rows].float()
        return x if self.inverse is None else x * self.inverse[rows].float()[:, None]

    def _extra(self, rows: slice | Tensor) -> Tensor:
        """Columns `[n, 1]` whose products, with each other or with ones, make a score an upper bound."""
        norms, unit = self.norms[rows][:, None], self._units() * _UNIT
        if self.metric == "euclidean":
            return ((2 * unit - 1) / 2 * norms.square()).float()
        return (math.sqrt(unit) * norms).float()

    def left(self, rows: slice | Tensor) -> Tensor:
        """`[n, D + 1]`; for Euclidean scores, x.y - |x|^2 / 2 - |y|^2 / 2, `[n, D + 2]`."""
        x, extra = self._rows32(rows), self._extra(rows)
        return torch.cat([x, extra] + [torch.ones_like(extra)] * (self.metric == "euclidean"), 1)

    def right(self, rows: slice | Tensor) -> Tensor:
        """The other factor, of the same shape."""
        x, extra = self._rows32(rows), self._extra(rows)
        return torch.cat([x] + [torch.ones_like(extra)] * (self.metric == "euclidean") + [extra], 1)

    def _units(self) -> float:
        """How many rounding errors a product has: one for each column, and those of what it reads."""
        return self.x.shape[1] + 8

    def slack(self, ids: Tensor, others: Tensor, unit: float = _UNIT) -> Tensor:
        """Most that rounding changes in the scores of the rows `ids` `[n]` and `others` `[n, c]` or `[c]`."""
        x, y = self.norms[ids][:, None], self.norms[others]
        size = x.square() + y.square() if self.metric == "euclidean" else x * y
        return self._units() * unit * size

    def exact(self, ids: Tensor, others: Tensor) -> Tensor:
        """Scores `[n, c]` of rows `ids` `[n]` and `others` `[n, c]`, float64; equal rows have equal ones."""
        x, y = self.rows(ids)[:, None], self.rows(others)
        if self.metric == "euclidean":
            return (x - y).square().sum(2) / -2
        return (x * y).sum(2)

    def nearest(self, ids: Tensor, k: int, include_self: bool) -> Tensor:
        """The k nearest `[n, k]` of the rows `ids`, by all their scores in float64, lower indices first."""
        left = self.rows(ids)
        scores = torch.cat([left @ rows.T for rows in self._blocks()], 1)
        if self.metric == "euclidean":
            squares = self.norms.square() / 2
            scores -= squares[ids][:, None] + squares
        if not include_self:
            scores[torch.arange(len(ids), device=ids.device), ids] = -math.inf
        everyone = torch.arange(len(self.x), device=ids.device)
        chosen = self.choose(scores, self.slack(ids, everyone, UNIT_64), k)
        return everyone.expand(len(ids), -1).gather(1, chosen)

    @staticmethod
    def choose(scores: Tensor, slack: Tensor, k: int) -> Tensor:
        """Columns `[n, k]`, rising, of the k largest scores `[n, c]`, the first of those within `slack`."""
        least = scores.topk(k, dim=1).values[:, -1:]
        above = scores > least + slack
        equal = (scores - least).abs() <= slack
        places = k - above.sum(1, keepdim=True)
        return (above | (equal & (equal.cumsum(1) <= places))).nonzero()[:, 1].view(len(scores), k)
