"""Moments of embedding matrices: pure functions on tensors. `N` rows (vocabulary), `D` columns (width)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from .errors import InvalidArgumentError


def xavier_std(num_embeddings: int, embedding_dim: int) -> float:
    """Standard deviation of a Xavier-uniform `[N, D]` table: sqrt(2 / (N + D)).

    Source: Glorot & Bengio 2010, Eq. 16.
    """
    return math.sqrt(2.0 / (num_embeddings + embedding_dim))


def xavier_bound(num_embeddings: int, embedding_dim: int) -> float:
    """Largest absolute value of a Xavier-uniform `[N, D]` table: sqrt(6 / (N + D))."""
    return math.sqrt(6.0 / (num_embeddings + embedding_dim))


def standardize(x: Tensor, mean: float = 0.0, std: float = 1.0, *, per_dimension: bool = False) -> Tensor:
    """`x` `[N, D]` moved to the given mean and sample standard deviation (Kim et al. 2024, Eq. 1 and Eq. 4).

    One mean and one sample standard deviation over all N*D entries, as the paper has it; `per_dimension=True`
    takes them for each of the D columns instead. Raises `InvalidArgumentError` when `x` is constant or not
    finite, since its standard deviation can then not be scaled, and for integers and a result beyond the
    dtype of `x`, which is kept.
    """
    if not x.is_floating_point():
        raise InvalidArgumentError(f"cannot standardize a matrix of {x.dtype}: expected floats")
    x64 = x.to(torch.float64, copy=True)
    if per_dimension:
        x_mean, x_std = x64.mean(0, keepdim=True), x64.std(0, keepdim=True)
    else:
        x_mean, x_std = x64.mean(), x64.std()
    finite = bool(torch.isfinite(x_std).all())
    if not finite or _any_constant(x64, x_std, per_dimension):
        raise InvalidArgumentError(
            f"cannot standardize a matrix of shape {tuple(x.shape)}: its standard deviation is "
            f"{'zero' if finite else 'not finite'}"
        )
    moved = x64.sub_(x_mean).mul_(std / x_std).add_(mean).to(x.dtype)
    if not bool(torch.isfinite(moved).all()):
        raise InvalidArgumentError(f"mean={mean} and std={std} are beyond {x.dtype}: give a wider matrix")
    return moved


def _any_constant(x: Tensor, x_std: Tensor, per_dimension: bool) -> bool:
    """Whether `x`, or one of its columns, is constant: rounding of the mean can make its deviation more."""
    low, high = x.aminmax(dim=0) if per_dimension else x.aminmax()
    return not bool(((x_std.view_as(low) > 0) & (low < high)).all())


ShuffleMode = Literal["elements", "rows", "rows_and_columns"]


def shuffle(x: Tensor, mode: ShuffleMode = "elements", *, generator: torch.Generator) -> Tensor:
    """`x` `[N, D]` with its entries permuted: the same values, bit for bit, without their meaning.

    `elements` permutes all N*D entries; `rows` permutes whole rows; `rows_and_columns` permutes rows and then
    columns, which keeps the geometry up to relabelling. Kim et al. 2024, section 3.4, does not say which.
    """

    def permutation(n: int) -> Tensor:
        return torch.randperm(n, generator=generator, device=generator.device).to(x.device)

    if mode == "elements":
        return x.reshape(-1)[permutation(x.numel())].view_as(x)
    if mode == "rows":
        return x[permutation(x.shape[0])]
    if mode == "rows_and_columns":
        return x[permutation(x.shape[0])][:, permutation(x.shape[1])]
    raise InvalidArgumentError(f"shuffle mode {mode!r} is not one of 'elements', 'rows', 'rows_and_columns'")


_BLOCK_ELEMENTS = 2**21
"""Entries of a table that are processed at a time: 8 MiB in float32, so that extra memory stays small."""


def unit_rows(x: Tensor) -> Tensor:
    """Rows `[N, D]` in float32, each of length 1 whatever its scale; rows of zeros stay zeros."""
    rows = x.detach()
    rows = rows if rows.dtype == torch.float64 else rows.float()
    largest = rows.abs().amax(1, keepdim=True)
    power_of_two = torch.frexp(largest).mantissa / largest  # exact, so it rounds nothing
    power_of_two.clamp_max_(2.0**1022 if rows.dtype == torch.float64 else 2.0**126)
    rows = rows * torch.where(largest > 0, power_of_two, 1.0)
    return torch.nn.functional.normalize(rows.float(), dim=1)


def mean_row(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """`[D]` float32: the mean of the rows of `x` `[N, D]`, or of those that the indices `rows` name."""
    weights = _row_weights(x, rows)
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for w, block in _blocks(weights, x):
        total += w @ block
    return (total / weights.sum(dtype=torch.float64)).float()


def gaussian_rows(
    x: Tensor,
    num_rows: int,
    *,
    scale: float = 1e-5,
    generator: torch.Generator,
    rows: Tensor | None = None,
) -> Tensor:
    """`[num_rows, D]` float32 draws from N(mean(x), scale * Sigma(x)), exactly (where a column's mean is more
    than a thousand times its sd, to float32's rounding of it).

    `rows` are the indices that count. With z ~ N(0, I) of shape `[num_rows, N]`, the rows
    `mean + sqrt(scale / N) * z @ (x - mean)` have that distribution (Sigma with 1/N, as Hewitt 2021)
    without a D x D covariance and without a definiteness check, for N <= D as well. From `num_rows` > D
    on, the covariance and its Cholesky factor are the cheaper way to the same distribution, and are used
    when Sigma has full rank. Reads `x` in blocks: a few MiB beside the rows themselves.
    """
    weights = _row_weights(x, rows)
    n = weights.sum(dtype=torch.float64)
    if num_rows > x.shape[1] and n > x.shape[1]:
        mean = mean_row(x, rows)
        factor, failed = torch.linalg.cholesky_ex(_covariance(x, weights, mean))
        if not failed:
            z = _normal(num_rows, x.shape[1], generator, x.device)
            return (z @ factor.T).mul_(math.sqrt(scale)).add_(mean)
    noise = torch.zeros(num_rows, x.shape[1], dtype=torch.float32, device=x.device)
    z_sums = torch.zeros(num_rows, dtype=torch.float64, device=x.device)
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for w, block in _blocks(weights, x):  # one pass: z @ (x - mean) = z @ x - sum(z) * mean
        z = _normal(num_rows, block.shape[0], generator, x.device).mul_(w)
        noise.addmm_(z, block)
        z_sums += z.sum(1)
        total += w @ block
    mean = (total / n).float()
    return noise.addr_(z_sums.float(), mean, alpha=-1).mul_(math.sqrt(scale / float(n))).add_(mean)


def _covariance(x: Tensor, weights: Tensor, mean: Tensor) -> Tensor:
    """`[D, D]` float32, with 1/N."""
    sigma = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float32, device=x.device)
    for w, block in _blocks(weights, x):
        centered = (block - mean).mul_(w[:, None])
        sigma.addmm_(centered.T, centered)
    return sigma.div_(float(weights.sum(dtype=torch.float64)))


def float_blocks(x: Tensor) -> Iterator[Tensor]:
    """Consecutive blocks of the rows of `x` `[N, D]` in float32, valid until the next one is requested.

    Blocks of another dtype share one buffer: allocating each would cost more than the work on it.
    """
    size = max(1, _BLOCK_ELEMENTS // max(1, x.shape[1]))
    if x.dtype == torch.float32:
        yield from x.split(size)
        return
    buffer = torch.empty(min(size, x.shape[0]), x.shape[1], dtype=torch.float32, device=x.device)
    for block in x.split(size):
        yield buffer[: len(block)].copy_(block)


def _blocks(weights: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of `weights` `[N]` and of `x` `[N, D]`, both float32."""
    start = 0
    for block in float_blocks(x):
        yield weights[start : start + len(block)], block
        start += len(block)


def _normal(rows: int, columns: int, generator: torch.Generator, device: torch.device) -> Tensor:
    z = torch.randn(rows, columns, generator=generator, dtype=torch.float32, device=generator.device)
    return z.to(device)


def _row_weights(x: Tensor, rows: Tensor | None) -> Tensor:
    """`[N]` float32: 1 for the rows that count, else 0."""
    if x.shape[0] == 0 or (rows is not None and rows.numel() == 0):
        raise InvalidArgumentError("no row to take the mean of: the table is empty or every row is left out")
    if rows is None:
        return torch.ones(x.shape[0], dtype=torch.float32, device=x.device)
    zeros = torch.zeros(x.shape[0], dtype=torch.float32, device=x.device)
    return zeros.index_fill_(0, rows.to(x.device), 1.0)


def balanced_shares(num_rows: int, ids: Tensor, num_old: int, *, generator: torch.Generator) -> Tensor:
    """Shares `[num_rows, num_old]`, sparse, of old rows `ids` in new rows that are weighted means of them.

    The shares of each new row sum to 1, and each old row has the same share num_rows / n in all of them
    together, n = len(ids). Up to n new rows are the means of a random partition of the old ones, where an old
    row at a border is divided; further ones repeat old rows. Where their number divides n no border divides a
    row, and no other shares with these two sums have larger squares: the rows lie as far apart as such means
    can.
    """
    n = len(ids)
    if n == 0:
        raise InvalidArgumentError("no row to take the mean of: the table is empty or every row is left out")
    order = ids[torch.randperm(n, generator=generator, device=generator.device).to(ids.device)]
    copies, parts = divmod(num_rows, n)
    rows, columns = [torch.arange(copies * n)], [order.repeat(copies)]
    values = [torch.ones(copies * n, dtype=torch.float64)]
    if parts:  # the i-th old row covers units i * parts to (i + 1) * parts, and each new row n of these units
        start = torch.arange(n) * parts
        first = start // n
        inside = torch.minimum((first + 1) * n - start, torch.tensor(parts))
        for group, units in ((first, inside), (first + 1, parts - inside)):
            there = units > 0
            rows.append(copies * n + group[there])
            columns.append(order[there.to(order.device)])
            values.append(units[there].double() / n)
    index = torch.stack([torch.cat(rows), torch.cat([c.cpu() for c in columns])])
    return sparse_shares(index, torch.cat(values), (num_rows, num_old))


def sparse_shares(index: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Sparse shares `[R, N]` of values `[E]` at `index` `[2, E]`; those of one place are added."""
    with torch.sparse.check_sparse_tensor_invariants():  # the argument does not keep torch 2.11 from warning
        return torch.sparse_coo_tensor(index, values, tuple(shape)).coalesce()


def mixed_rows(x: Tensor, shares: Tensor) -> Tensor:
    """`shares @ x`, `[R, D]` float32, for sparse shares `[R, N]` and a table `[N, D]`; sums in float64."""
    (rows, columns), values = shares.indices().to(x.device), shares.values().to(x.device)
    mixed = torch.zeros(shares.shape[0], x.shape[1], dtype=torch.float64, device=x.device)
    for part in torch.arange(len(values), device=x.device).split(max(1, _BLOCK_ELEMENTS // x.shape[1])):
        mixed.index_add_(0, rows[part], x[columns[part]].double().mul_(values[part][:, None]))
    return mixed.float()


def distinct_rows(rows: Tensor, dtype: torch.dtype, *, generator: torch.Generator) -> Tensor:
    """`rows` `[R, D]` such that no two are equal in `dtype`: equal ones move by one unit in the last place.

    About two thirds of the coordinates of a row that repeats an earlier one are moved, by the smallest
    step that `dtype`, or that of `rows` if it has larger ones, has there, until all rows differ: 64 times at
    the most, which rows of one or two numbers may need. Rows that differ already come back as they were.
    """
    cast = rows.to(max(dtype, rows.dtype, key=lambda one: torch.finfo(one).eps))
    if not len(rows):
        return rows
    for _ in range(64):
        wide = cast if cast.dtype == torch.float64 else cast.float()
        _, group = torch.unique(wide, dim=0, return_inverse=True)
        first = torch.full((int(group.max()) + 1,), rows.shape[0], device=rows.device)
        index = torch.arange(rows.shape[0], device=rows.device)
        first.scatter_reduce_(0, group, index, reduce="amin")
        repeated = index[first[group] != index]
        if repeated.numel() == 0:
            break
        shape = (repeated.numel(), rows.shape[1])
        step = torch.randint(-1, 2, shape, generator=generator, device=generator.device).to(rows.device)
        cast, rows = cast.clone(), rows.clone()
        old = cast[repeated]
        moved = torch.nextafter(old, old + step.to(old.dtype) * (old.abs() + 1))
        cast[repeated] = torch.where(moved.isinf(), old, moved)
        rows[repeated] = cast[repeated].to(rows.dtype)
    return rows
