"""How near each row of a table is to rows that training never reached (Land & Bartolo 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import checked, shown
from ..errors import InvalidArgumentError
from ..moments import unit_rows
from .statistics import check_table, row_index

_ITERATIONS, _VECTORS = 60, 16


@checked
def unused_distance(
    table: Tensor, unused: Sequence[int] | Tensor, *, without_first_component: bool = False
) -> Tensor:
    """Cosine distance `[V]`, 0..2, of each row of a table `[V, D]` to the mean of the rows `unused`.

    Land & Bartolo 2024, section 3.2: tokens that training never reached lie near the rows of tokens that are
    known to be unused. What all rows have in common can hide that: `without_first_component` takes the
    table's first right singular vector out of every row first. Rows of zeros get the distance 1. Raises
    `InvalidArgumentError` for ids that the table lacks, or none, and for NaN or infinite values.
    """
    check_table(table, "table")
    ids = row_index(unused, len(table), "unused").to(table.device)
    if not len(ids):
        raise InvalidArgumentError(f"unused={shown(unused)}: expected ids from 0 to {len(table) - 1}")
    rows = table.detach() if table.dtype == torch.float64 else table.detach().float()
    rows = (rows / rows.abs().max().clamp_min(torch.finfo(rows.dtype).tiny)).float()  # no square overflows
    if without_first_component:
        first = _first_component(rows)
        rows = rows - torch.outer(rows @ first, first)
    mean = rows[ids].mean(0)
    return 1 - unit_rows(rows) @ unit_rows(mean[None])[0]


def _first_component(rows: Tensor) -> Tensor:
    """The first right singular vector `[D]`, by subspace iteration from the longest rows: of a table whose
    first singular values are nearly equal one vector alone would not get there."""
    longest = rows.norm(dim=1).topk(min(_VECTORS, *rows.shape)).indices
    basis = torch.linalg.qr(rows[longest].T).Q
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    image = rows @ basis
    return basis @ torch.linalg.eigh(image.T @ image).eigenvectors[:, -1]
