"""Rows beside an existing table: what new tokens of a trained model start from."""

from __future__ import annotations

import torch
from torch import Tensor

from ..moments import distinct_rows, gaussian_rows, mean_row
from ..registry import register_initializer
from .context import InitContext


@register_initializer(
    "default",
    summary="normal with mean 0 and sd initializer_range",
    source="transformers, mean_resizing=False; `default` of Hewitt 2021",
    purpose="rows",
    needs=("existing",),
)
def default(context: InitContext) -> Tensor:
    """Small random noise, as models are initialised before training."""
    return torch.empty(context.shape).normal_(0.0, context.initializer_range, generator=context.generator)


@register_initializer(
    "mean",
    summary="the mean of the old rows, the same for all new rows",
    source="Hewitt 2021",
    purpose="rows",
    needs=("existing",),
)
def mean(context: InitContext) -> Tensor:
    """The mean of the usable old rows: KL(p || p') is at most log(1 + m / n) for m new and n usable old
    rows."""
    existing = context.require("existing", "mean")
    return mean_row(existing, context.existing_rows).expand(context.shape).clone()


@register_initializer(
    "mean_cov",
    summary="N(mean, scale * covariance) of the old rows, every new row distinct",
    source="Hewitt 2021 (scale 1e-5)",
    purpose="rows",
    needs=("existing",),
)
def mean_cov(context: InitContext, *, scale: float = 1e-5) -> Tensor:
    """Draws around the mean; rows that would be equal in the table's dtype are moved apart by one unit in the
    last place of some coordinates."""
    existing = context.require("existing", "mean_cov")
    rows = gaussian_rows(
        existing, context.num_rows, scale=scale, generator=context.generator, rows=context.existing_rows
    )
    return distinct_rows(rows, existing.dtype, generator=context.generator)
