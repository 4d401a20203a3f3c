"""Sinusoidal positions among the rows of a table: which dimensions they use, and a table without those."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import checked
from ..errors import InvalidArgumentError
from .statistics import check_table


@checked
def random_positions(
    positions: Tensor, num_rows: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A random row of `positions` `[P, D]` for each of `num_rows`, as `[num_rows, D]`, and its index."""
    which = torch.randint(len(positions), (num_rows,), generator=generator, device=generator.device)
    return positions[which.to(positions.device)], which


@checked
def position_span(positions: Tensor, energy: float = 0.9999) -> Tensor:
    """Orthonormal rows `[r, D]` that hold the share `energy` of the squared norm of `positions` `[P, D]`.

    r is the smallest such number: 23 for the first 64 sinusoidal encodings at D = 300.
    """
    check_table(positions, "positions")
    if not 0 < energy <= 1:
        raise InvalidArgumentError(f"energy must be in (0, 1], got {energy}")
    if not positions.any():
        raise InvalidArgumentError("positions are all zero, so they have no span")
    _, singular, basis = torch.linalg.svd(positions.double(), full_matrices=False)
    shares = singular.square().cumsum(0) / singular.square().sum()
    return basis[: min(len(basis), int((shares < energy).sum()) + 1)].to(positions.dtype)


@checked
def energy_share(rows: Tensor, basis: Tensor) -> float:
    """Share of the energy (squared length) of `rows` `[V, D]` in the span of orthonormal `basis` `[r, D]`.

    Raises `InvalidArgumentError` for two widths, and for NaN or infinite values.
    """
    check_table(rows, "rows")
    check_table(basis, "basis")
    if rows.ndim != 2 or basis.ndim != 2 or rows.shape[1] != basis.shape[1]:
        raise InvalidArgumentError(
            f"rows {tuple(rows.shape)} and basis {tuple(basis.shape)}: expected [V, D] and [r, D]"
        )
    dtype = torch.promote_types(torch.promote_types(rows.dtype, basis.dtype), torch.float32)
    products = rows.to(dtype) @ basis.to(rows.device, dtype).T
    inside, whole = (torch.linalg.vector_norm(x, dtype=torch.float64) for x in (products, rows))
    return float((inside / whole).square()) if whole > 0 else 0.0  # and no copy of rows


def project_out(x: Tensor, basis: Tensor) -> Tensor:
    """`x` `[V, D]` without its part in the span of the orthonormal rows `basis` `[r, D]`."""
    return x - (x @ basis.T) @ basis
