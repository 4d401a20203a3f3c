"""The rows of one table by completed coefficients: sums of old rows, means and draws.

`V'` new tokens, `V` old ones, `D` width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from .coefficients import Coefficients, Step
from .context import Groups

_BLOCK_ENTRIES = 2**24
"""Numbers that are drawn or read at a time: 64 MiB in float32."""


def rows_of_table(
    coefficients: Coefficients,
    old: Tensor,
    generator: torch.Generator,
    *,
    usable: Tensor | None = None,
    groups: Groups | None = None,
    row_norm: bool = False,
) -> Tensor:
    """New rows `[V', D]` of a table `[V, D]`, in its dtype.

    `usable` are the old ids that means and deviations are of (all when None). A drawn row is like those of
    its group, or like all where the group has fewer than two usable ones. With `row_norm` sums of several
    rows get the norm that those have on weighted average, since sums are shorter than what they are of.
    """
    made = coefficients.apply(old)
    if row_norm:
        _restore_norms(made, coefficients, old)
    drawn = (coefficients.step == Step.RANDOM).nonzero().flatten()
    means = (coefficients.step == Step.MEAN).nonzero().flatten()
    if not len(drawn) and not len(means):
        return made
    ids = torch.arange(coefficients.shape[1]) if usable is None else usable.cpu()
    mean, std = _moments(old, ids)
    made[means.to(made.device)] = mean.to(made)
    if groups is None:
        _draw(made, drawn, mean, std, generator)
        return made
    group_of = groups.new[drawn]
    for group in torch.unique(group_of).tolist():
        members = ids[groups.old[ids] == group] if group >= 0 else ids
        moments = _moments(old, members) if 2 <= len(members) < len(ids) else (mean, std)
        _draw(made, drawn[group_of == group], *moments, generator)
    return made


def bias_of_table(coefficients: Coefficients, old: Tensor) -> Tensor:
    """New entries `[V']` of an output bias `[V]`: the same sums, and the mean of the finite old entries for
    rows that are drawn or the mean."""
    finite = torch.isfinite(old[: coefficients.shape[1]])
    if not bool(finite.any()):
        raise InvalidArgumentError("every old entry of an output bias is NaN or infinite")
    mean = old[: coefficients.shape[1]][finite].double().mean()
    clean = torch.where(torch.isfinite(old), old.double(), mean)
    made = coefficients.apply(clean[:, None])[:, 0]
    made[(coefficients.step >= Step.MEAN).to(made.device)] = mean
    return made.float()


def _moments(old: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column over the rows `ids`, float64 `[D]`."""
    sums = torch.zeros(2, old.shape[1], dtype=torch.float64, device=old.device)
    for part in ids.split(max(1, _BLOCK_ENTRIES // max(1, old.shape[1]))):
        rows = old[part.to(old.device)].double()
        sums[0] += rows.sum(0)
        sums[1] += rows.square().sum(0)
    mean = sums[0] / len(ids)
    variance = (sums[1] - len(ids) * mean.square()) / max(1, len(ids) - 1)
    return mean, variance.clamp_min(0).sqrt()


def _draw(made: Tensor, rows: Tensor, mean: Tensor, std: Tensor, generator: torch.Generator) -> None:
    width = made.shape[1]
    for part in rows.split(max(1, _BLOCK_ENTRIES // max(1, width))):
        noise = torch.randn(len(part), width, generator=generator, dtype=torch.float32).to(mean.device)
        made[part.to(made.device)] = (noise * std.float() + mean.float()).to(made.dtype)


def _restore_norms(made: Tensor, coefficients: Coefficients, old: Tensor) -> None:
    several = (coefficients.indptr.diff() > 1).nonzero().flatten().to(made.device)
    if not len(several):
        return
    norms = old.norm(dim=1, dtype=torch.float32)[: coefficients.shape[1]]
    sizes = coefficients.values.abs()  # a weight below zero counts by its size, so that this is an average
    parts = coefficients.indptr, coefficients.indices, sizes
    shares = Coefficients(*parts, coefficients.shape, coefficients.step).normalised()
    wanted = shares.apply(norms[:, None])[:, 0][several]
    for part, norm in zip(several.split(8192), wanted.split(8192), strict=True):
        rows = made[part].float()
        made[part] = (rows * (norm / rows.norm(dim=1).clamp_min(1e-30))[:, None]).to(made.dtype)
