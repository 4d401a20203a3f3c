"""Statistics of embedding tables, of Xavier and of the position encodings. `N` rows, `D` columns.

All of them are taken before the sqrt(D) input scaling unless `scale` says otherwise (Kim et al. 2024, Tables
2, 6, 8).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import Count, Positive, checked, shown
from ..errors import InvalidArgumentError
from ..moments import xavier_bound, xavier_std

_BLOCK_ENTRIES = 2**22
"""Entries of a table that are worked on at a time: 32 MiB in float64."""


@dataclass(frozen=True)
class EmbeddingStatistics:
    """Statistics of the entries and rows of one `[N, D]` table. None where a value was not computed."""

    num_embeddings: int
    embedding_dim: int
    min: float
    max: float
    mean: float
    """Mean of all N*D entries."""
    std: float
    """Sample standard deviation of all N*D entries."""
    kurtosis: float | None = None
    """Excess kurtosis of the entries: 0 for a normal distribution, -1.2 for a uniform one."""
    row_norm_mean: float | None = None
    """Mean Euclidean norm of the rows."""
    row_norm_min: float | None = None
    row_norm_max: float | None = None
    effective_rank: float | None = None
    """exp(entropy of the normalized singular values), 1..min(N, D) (Roy & Vetterli 2007)."""
    scale: float = 1.0
    """Factor that the table was multiplied by before the statistics: 1, or sqrt(D) for the scaled input."""

    @checked
    def scaled(self, factor: Positive) -> EmbeddingStatistics:
        """The statistics of the same table times `factor` > 0, without reading the table again."""
        names = ("min", "max", "mean", "std", "row_norm_mean", "row_norm_min", "row_norm_max", "scale")
        values = {n: getattr(self, n) for n in names}
        changed: dict[str, Any] = {n: None if v is None else v * factor for n, v in values.items()}
        return dataclasses.replace(self, **changed)

    @checked
    def standardized(self, std: Positive, mean: float = 0.0) -> EmbeddingStatistics:
        """The statistics after `moments.standardize(table, mean, std)` (Kim et al. 2024, Eq. 1 and Eq. 4).

        Values that these statistics do not determine (row norms, effective rank) become None.
        """
        if not self.std > 0:
            raise InvalidArgumentError(
                "a constant table cannot be standardized: its standard deviation is zero"
            )

        def moved(x: float) -> float:
            return (x - self.mean) * (std / self.std) + mean

        return EmbeddingStatistics(
            num_embeddings=self.num_embeddings,
            embedding_dim=self.embedding_dim,
            min=moved(self.min),
            max=moved(self.max),
            mean=mean,
            std=std,
            kurtosis=self.kurtosis,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `results.json`."""
        return dataclasses.asdict(self)


def check_values(x: Tensor, name: str) -> None:
    """Raises `InvalidArgumentError` for a tensor on the meta device, which has a shape alone."""
    if x.is_meta:
        raise InvalidArgumentError(f"{name} is on the meta device, so it has no values: load the model first")


@checked
def check_table(x: Tensor, name: str = "weight") -> None:
    """Raises `InvalidArgumentError` unless `x` is a non-empty, finite, floating-point `[N, D]` tensor."""
    check_values(x, name)
    if x.layout != torch.strided or (x.is_floating_point() and x.dtype.itemsize < 2):
        kind = "sparse" if x.layout != torch.strided else str(x.dtype)
        way = "to_dense()" if x.layout != torch.strided else "float()"
        raise InvalidArgumentError(f"{name} is {kind}, which has no arithmetic here: give {name}.{way}")
    if x.ndim != 2 or 0 in x.shape or not x.is_floating_point():
        raise InvalidArgumentError(
            f"{name} must be a non-empty floating-point table [N, D], got {x.dtype} of shape {tuple(x.shape)}"
        )
    for start in range(0, x.shape[0], size := _block_rows(x)):
        block = x[start : start + size]
        total = block.detach().float().sum()  # cheap; the exact look follows only when it fails
        if not math.isfinite(total):
            bad = (~torch.isfinite(block)).any(dim=1).nonzero()
            if len(bad):
                raise InvalidArgumentError(
                    f"{name} has NaN or infinite values, first in row {start + int(bad[0])}"
                )


def row_index(rows: Sequence[int] | Tensor, count: int, name: str = "rows") -> Tensor:
    """Indices, or a mask, of some of `count` rows, as indices. Raises `InvalidArgumentError` for others."""
    try:
        index = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(f"{name} must be row indices, got {shown(rows)}") from error
    check_values(index, name)
    if index.dtype == torch.bool:
        if index.shape != (count,):
            raise InvalidArgumentError(
                f"{name} as a mask must have {count} entries, got shape {tuple(index.shape)}"
            )
        return index.nonzero().flatten()
    inside = index.numel() == 0 or (int(index.min()) >= 0 and int(index.max()) < count)
    if index.ndim != 1 or not inside or (index.is_floating_point() and len(index)):
        raise InvalidArgumentError(f"{name} must be row indices from 0 to {count - 1}, got {shown(rows)}")
    return index.long()


@torch.no_grad()
@checked
def embedding_statistics(
    weight: Tensor,
    *,
    rows: Sequence[int] | Tensor | None = None,
    scale: Positive = 1.0,
    effective_rank: bool = True,
) -> EmbeddingStatistics:
    """`EmbeddingStatistics` of `weight` `[N, D]` times `scale`, over all rows or only over `rows`.

    `rows` are the rows that count, by index or as a mask `[N]`: leave out padding, reserved and never-trained
    ones. Sums are in float64, block by block. `effective_rank=False` leaves out the one costly value (the
    eigenvalues of a D x D Gram matrix). Raises `InvalidArgumentError` for fewer than two entries and for NaN
    or infinite ones.
    """
    check_table(weight)
    weight, d = weight.detach(), weight.shape[1]
    index = None if rows is None else row_index(rows, len(weight)).to(weight.device)
    n = len(weight) if index is None else len(index)
    if n * d < 2:
        raise InvalidArgumentError(
            f"a table of shape {(n, d)} has no standard deviation; rows must keep some"
        )

    def blocks() -> Iterator[Tensor]:
        if index is None:
            return iter(weight.split(_block_rows(weight)))
        return map(weight.__getitem__, index.split(_block_rows(weight)))

    low, high, total = math.inf, -math.inf, 0.0
    for block in blocks():
        low, high = min(low, float(block.min())), max(high, float(block.max()))
        total += float(block.sum(dtype=torch.float64))
    mean = total / (n * d)
    second = fourth = norm_sum = 0.0
    norm_low, norm_high = math.inf, 0.0
    for block in blocks():
        x = block.double()
        norms = x.norm(dim=1)
        norm_sum += float(norms.sum())
        norm_low, norm_high = min(norm_low, float(norms.min())), max(norm_high, float(norms.max()))
        squared = (x - mean).square_()
        second += float(squared.sum())
        fourth += float(squared.square_().sum())
    if not math.isfinite(fourth):
        raise InvalidArgumentError(
            f"weight has entries from {low:.3g} to {high:.3g}, whose powers are beyond float64: scale it down"
        )
    chosen = weight if index is None or not effective_rank else weight[index]
    variance = second / (n * d)
    stats = EmbeddingStatistics(
        num_embeddings=n,
        embedding_dim=d,
        min=low,
        max=high,
        mean=mean,
        std=math.sqrt(second / (n * d - 1)),
        kurtosis=fourth / (n * d) / variance**2 - 3.0 if variance**2 > 0 else None,
        row_norm_mean=norm_sum / n,
        row_norm_min=norm_low,
        row_norm_max=norm_high,
        effective_rank=_effective_rank(chosen) if effective_rank else None,
    )
    return stats if scale == 1.0 else stats.scaled(scale)


def _block_rows(x: Tensor) -> int:
    return max(1, _BLOCK_ENTRIES // max(1, x.shape[1]))


def _effective_rank(x: Tensor) -> float | None:
    """From the eigenvalues of the smaller Gram matrix, which is cheaper than an SVD of the table."""
    n, d = x.shape
    if n <= d:
        gram = x.double() @ x.double().T
    else:
        gram = torch.zeros(d, d, dtype=torch.float64, device=x.device)
        for block in x.split(_block_rows(x)):
            block = block.double()
            gram.addmm_(block.T, block)
    singular = torch.linalg.eigvalsh(gram).clamp_(min=0).sqrt_()
    total = singular.sum()
    if not total > 0:
        return None
    p = singular / total
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))


@checked
def xavier_statistics(
    num_embeddings: Count, embedding_dim: Count, *, scale: Positive = 1.0
) -> EmbeddingStatistics:
    """The closed-form statistics of a Xavier-uniform `[N, D]` table, U(-b, b) with b = sqrt(6 / (N + D))."""
    bound = xavier_bound(num_embeddings, embedding_dim)
    stats = EmbeddingStatistics(
        num_embeddings=num_embeddings,
        embedding_dim=embedding_dim,
        min=-bound,
        max=bound,
        mean=0.0,
        std=xavier_std(num_embeddings, embedding_dim),
        kurtosis=-1.2,
    )
    return stats if scale == 1.0 else stats.scaled(scale)


@checked
def position_encoding(num_positions: Count, dim: Count, base: Positive = 10000.0) -> Tensor:
    """The sinusoidal position encodings `[num_positions, D]`: sine in even columns, cosine in odd ones.

    Columns 2k and 2k+1 share the angle i / base^(2k/D) (Vaswani et al. 2017, section 3.5). With 5,000
    positions and D = 300 the mean is 0.131, as Kim et al. 2024 report in Table 6; base 1000, as printed in
    their Eq. 2, does not give it.
    """
    try:
        encoding = torch.empty(num_positions, dim, dtype=torch.float64)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"num_positions={num_positions} of dim={dim}: there is no memory for such a table"
        ) from error
    even = torch.arange(0, dim, 2, dtype=torch.float64)
    frequencies = torch.exp(even * (-math.log(base) / dim))
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    encoding[:, 0::2] = angles.sin()
    encoding[:, 1::2] = angles.cos()[:, : dim // 2]
    return encoding.float()


@checked
def position_encoding_statistics(
    num_positions: Count = 5000, dim: Count = 300, base: Positive = 10000.0
) -> EmbeddingStatistics:
    """`EmbeddingStatistics` of the sinusoidal position encodings, which are added unscaled."""
    return embedding_statistics(position_encoding(num_positions, dim, base))
