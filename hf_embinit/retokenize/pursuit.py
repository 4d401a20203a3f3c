"""Vectors approximated by few points: orthogonal matching pursuit, and interpolation between neighbours.

B targets, N points, D width, K points of a target.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..errors import InvalidArgumentError

BLOCK_ENTRIES = 2**25
"""Scalar products, and numbers of the bases, that are held at a time: 128 MiB each in float32."""

Weighting = Literal["inverse_distance", "barycentric", "least_squares"]


def matching_pursuit(targets: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """For each of `targets` `[B, D]` the K of `points` `[N, D]` that orthogonal matching pursuit selects, and
    their least-squares coefficients: int64 and float `[B, K]`.

    Each step takes the point with the largest absolute product with the residual, as the points are, not
    normalised (Goddard & Fernandes Neto 2025, Algorithm 1), and projects the target on those chosen so far:
    one more column of a QR decomposition, orthogonalised twice. A point that lies in the span of those
    before it gets the coefficient 0.

    Raises `InvalidArgumentError` when `k` is above N or D.
    """
    if not 1 <= k <= min(points.shape):
        raise InvalidArgumentError(
            f"k={k}: choose 1 to {min(points.shape)}, as there are {len(points)} shared tokens of "
            f"{points.shape[1]} dimensions"
        )
    exact = torch.float64 if targets.dtype == torch.float64 else torch.float32
    points = points.to(exact)
    size = max(1, min(BLOCK_ENTRIES // len(points), BLOCK_ENTRIES // (k * points.shape[1])))
    parts = [_pursue(part.to(exact), points, k) for part in targets.split(size)]
    if not parts:
        return torch.empty(0, k, dtype=torch.int64), torch.empty(0, k, dtype=exact)
    return torch.cat([ids for ids, _ in parts]), torch.cat([values for _, values in parts])


def _pursue(targets: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    b, d = targets.shape
    basis = targets.new_zeros(b, k, d)
    triangle = torch.eye(k, dtype=targets.dtype, device=targets.device).repeat(b, 1, 1)
    products = targets.new_zeros(b, k)
    chosen = torch.zeros(b, k, dtype=torch.int64, device=targets.device)
    residual = targets.clone()
    every = torch.arange(b, device=targets.device)
    smallest = torch.finfo(targets.dtype).eps * 10
    for t in range(k):
        scores = (residual @ points.T).abs_()
        if t:
            scores.scatter_(1, chosen[:, :t], -1.0)
        chosen[:, t] = scores.argmax(1)
        point = points[chosen[:, t]]
        direction = point.clone()
        for _ in range(2):
            shares = torch.einsum("bkd,bd->bk", basis[:, :t], direction)
            direction -= torch.einsum("bk,bkd->bd", shares, basis[:, :t])
            if t:
                triangle[:, :t, t] += shares
        norm = direction.norm(dim=1)
        free = norm > smallest * point.norm(dim=1).clamp_min(1e-30)
        triangle[every, t, t] = torch.where(free, norm, 1.0)
        basis[:, t] = direction * torch.where(free, 1 / norm, 0.0)[:, None]
        products[:, t] = torch.einsum("bd,bd->b", basis[:, t], targets)
        residual -= torch.einsum("bd,bd->b", basis[:, t], residual)[:, None] * basis[:, t]
    values = torch.linalg.solve_triangular(triangle, products[..., None], upper=True)[..., 0]
    return chosen, values


def neighbor_weights(
    targets: Tensor, points: Tensor, k: int, weighting: Weighting = "inverse_distance"
) -> tuple[Tensor, Tensor]:
    """For each of `targets` `[B, D]` its `k` nearest of `points` `[N, D]` (Euclidean) and their weights:
    int64 and float32 `[B, K]`.

    `inverse_distance`: proportional to 1 / distance. `barycentric`: least squares among weights that sum to
    1. `least_squares`: any weights. With fewer dimensions than neighbours the last two take the solution of
    smallest norm. Raises `InvalidArgumentError` when `k` is above N.
    """
    if not 1 <= k <= len(points):
        raise InvalidArgumentError(f"k={k}: choose 1 to {len(points)}, the number of shared tokens")
    points = points.float()
    ids, values = [], []
    size = max(1, min(BLOCK_ENTRIES // len(points), BLOCK_ENTRIES // (k * points.shape[1])))
    for part in targets.float().split(size):
        # differences, not products: a target that is itself a point has distance 0, not rounding
        distances = torch.cdist(part, points, compute_mode="donot_use_mm_for_euclid_dist")
        nearest, found = distances.topk(k, dim=1, largest=False)
        ids.append(found)
        values.append(_weights(part, points[found], nearest, weighting))
    if not ids:
        return torch.empty(0, k, dtype=torch.int64), torch.empty(0, k)
    return torch.cat(ids), torch.cat(values)


def _weights(targets: Tensor, points: Tensor, distances: Tensor, weighting: Weighting) -> Tensor:
    if weighting == "inverse_distance":
        inverse = 1 / distances.clamp_min(1e-6)
        return inverse / inverse.sum(1, keepdim=True)
    if weighting == "least_squares":
        return _solve(points.transpose(1, 2), targets)
    exact = points.double()
    mean = exact.mean(1)
    # the solution of smallest norm is in the span of the differences, so it sums to 0
    return _solve((exact - mean[:, None]).transpose(1, 2), targets - mean).add_(1 / points.shape[1])


def _solve(matrices: Tensor, right: Tensor) -> Tensor:
    """Solutions of least squares and smallest norm, `[B, K]`, in float64; the cutoff is above what float32
    has made of nothing."""
    solved = torch.linalg.lstsq(matrices.double(), right.double()[..., None], rcond=1e-5, driver="gelsd")
    return solved.solution[..., 0].float()
