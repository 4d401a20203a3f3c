"""Weights re-drawn, rescaled or permuted (Zhang 2021, sections 4 and 5).

transformers' own initialisation skips weights that were loaded, so the values are copied from a freshly drawn
model. Each parameter counts once, however it is tied; dtype, device and ties stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..moments import shuffle
from .registry import Operation, register_surgery
from .skeletons import fresh_model


@register_surgery(
    "clean", summary="every component re-drawn as a fresh model is", reference="Zhang 2021, section 4"
)
def clean(operation: Operation) -> dict[str, Any]:
    """All parameters and saved buffers of a new model of the same config."""
    return _redraw(operation, lambda old, fresh: fresh)


@register_surgery(
    "matched_variance",
    summary="every component re-drawn, each weight matrix scaled to the variance that it had",
    reference="Zhang 2021, section 5.1",
)
def matched_variance(operation: Operation) -> dict[str, Any]:
    """Vectors (biases, norms) are those of a fresh model, as is a matrix that is constant there."""
    return _redraw(operation, lambda old, fresh: _scaled(fresh, old, torch.std), measures=True)


@register_surgery(
    "matched_magnitude",
    summary="every component re-drawn, each weight matrix scaled to the norm that it had",
    reference="Zhang 2021, section 5.1",
)
def matched_magnitude(operation: Operation) -> dict[str, Any]:
    """The Frobenius norm. Vectors, and matrices that a fresh model has zero, are those of a fresh model."""
    return _redraw(operation, lambda old, fresh: _scaled(fresh, old, torch.linalg.vector_norm), measures=True)


@register_surgery(
    "oracle",
    summary="elements permuted within each weight matrix (and within each bias and norm)",
    reference="Zhang 2021, section 5.2",
)
def oracle(operation: Operation) -> dict[str, Any]:
    """Every parameter keeps its values, bit for bit, in permuted positions."""
    generator = operation.generator()
    for name, parameter in operation.model.named_parameters():
        _require_plain(name, parameter)
    with torch.no_grad():
        for parameter in operation.model.parameters():
            parameter.copy_(shuffle(parameter.detach(), "elements", generator=generator))
    return {}


def _redraw(
    operation: Operation, matrix: Callable[[Tensor, Tensor], Tensor], *, measures: bool = False
) -> dict[str, Any]:
    """Copies a fresh model's values into the model, those of matrices through `matrix(old, fresh)`, which
    `measures` the old ones or does not look at them."""
    model: PreTrainedModel = operation.model
    for name, parameter in model.named_parameters():
        _require_plain(name, parameter)
        if measures and parameter.dim() > 1 and not bool(torch.isfinite(parameter).all()):
            raise UnsupportedModelError(
                f"{name} has NaN or infinite values, so it has no size to keep: repair them first"
            )
    fresh = fresh_model(model, operation.seed)
    saved = set(model.state_dict())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = fresh.get_parameter(name).detach()
            if value.dim() > 1:
                value = matrix(parameter.detach().cpu(), value)
            parameter.copy_(value)
        for name, buffer in model.named_buffers():
            if name in saved:
                buffer.copy_(fresh.get_buffer(name))
    return {}


def _scaled(fresh: Tensor, old: Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """`fresh` multiplied so that its `measure` is that of `old`."""
    is_now = measure(fresh.double())
    return fresh.double() * (measure(old.double()) / is_now) if bool(is_now > 0) else fresh


def _require_plain(name: str, parameter: Tensor) -> None:
    if parameter.is_meta:
        raise UnsupportedModelError(
            f"{name} is on the meta device, so it has no values: load the model first"
        )
    if type(parameter.data) is not Tensor or not parameter.is_floating_point():
        raise UnsupportedModelError(
            f"{name} is quantised or sharded ({parameter.dtype}): do surgery on the plain model before that"
        )
