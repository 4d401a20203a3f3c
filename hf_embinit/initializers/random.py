"""Random tables: Xavier, normal, zeros."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import NotNegative
from ..moments import xavier_bound
from .context import InitContext
from .registry import register_initializer


def empty_rows(context: InitContext, shape: tuple[int, int]) -> Tensor:
    """Rows to draw into, whatever dtype and device new tensors have by default."""
    return torch.empty(shape, dtype=torch.float32, device=context.generator.device)


def xavier_rows(context: InitContext, num_rows: int | None = None) -> Tensor:
    """`[num_rows, D]` draws from the Xavier-uniform distribution of the whole `[N, D]` table of `context`."""
    bound = xavier_bound(context.num_embeddings, context.embedding_dim)
    shape = (context.num_rows if num_rows is None else num_rows, context.embedding_dim)
    return empty_rows(context, shape).uniform_(-bound, bound, generator=context.generator)


@register_initializer(
    "xavier", summary="uniform within sqrt(6 / (N + D))", reference="Glorot & Bengio 2010, Eq. 16"
)
def xavier(context: InitContext) -> Tensor:
    """Uniform rows with variance 2 / (N + D), N being the rows of the whole table and D its width."""
    return xavier_rows(context)


@register_initializer(
    "normal",
    summary="normal, sd initializer_range",
    reference="Devlin et al. 2019 (sd 0.02); mean_resizing=False of transformers; `default` of Hewitt 2021",
    aliases=("default",),
)
def normal(context: InitContext, *, mean: float = 0.0, std: NotNegative | None = None) -> Tensor:
    """Normal rows; `std` defaults to the model's own `initializer_range`."""
    std = context.initializer_range if std is None else std
    return empty_rows(context, context.shape).normal_(mean, std, generator=context.generator)


@register_initializer("zeros", summary="all zeros", reference="Hewitt 2021 (a control)")
def zeros(context: InitContext) -> Tensor:
    """Rows of zeros."""
    return empty_rows(context, context.shape).zero_()
