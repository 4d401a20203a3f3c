"""Layers reordered or removed (Zhang 2021, sections 3 and 6)."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidArgumentError
from .registry import Operation, register_surgery
from .stacks import Order, rearrange


@register_surgery("reversed", summary="layers in reverse order", reference="Zhang 2021, section 3")
def reverse(operation: Operation) -> dict[str, Any]:
    """The last layer first, in every stack (an encoder-decoder has two)."""
    return rearrange(operation.model, lambda n: range(n - 1, -1, -1))


@register_surgery(
    "remove_last_<n>",
    summary="without the last n layers of each stack",
    reference="Zhang 2021, section 6",
    argument=r"\d+",
)
def remove_last(operation: Operation, n: str) -> dict[str, Any]:
    """The first layers stay as they are."""

    def choose(size: int) -> Order:
        return _kept(f"remove_last_{n}", range(size - int(n)), size)

    return rearrange(operation.model, choose)


@register_surgery(
    "remove_every_<k>",
    summary="without every k-th layer of each stack (layers k, 2k, ..., counted from 1)",
    reference="Zhang 2021, section 6",
    argument=r"\d+",
)
def remove_every(operation: Operation, k: str) -> dict[str, Any]:
    """Of 12 layers `remove_every_2` keeps those with index 0, 2, 4, 6, 8, 10."""

    def choose(size: int) -> Order:
        step = int(k)
        return _kept(f"remove_every_{k}", [i for i in range(size) if step and (i + 1) % step], size)

    return rearrange(operation.model, choose)


@register_surgery(
    "keep_<i,j,...>",
    summary="only the layers with these indices, counted from 0, of each stack",
    reference="Zhang 2021, section 6",
    argument=r"\d+(?:,\d+)*",
)
def keep(operation: Operation, indices: str) -> dict[str, Any]:
    """Indices ascend: to change the order, compose with `reversed`."""
    kept = [int(i) for i in indices.split(",")]
    if kept != sorted(set(kept)):
        raise InvalidArgumentError(f"surgery 'keep_{indices}': the indices must ascend, each given once")

    def choose(size: int) -> Order:
        if kept[-1] >= size:
            raise InvalidArgumentError(
                f"surgery 'keep_{indices}': there is no layer {kept[-1]}, only 0 to {size - 1}"
            )
        return kept

    return rearrange(operation.model, choose)


def _kept(name: str, order: Order, size: int) -> Order:
    if not 0 < len(order) < size:
        left = "all" if order else "none"
        raise InvalidArgumentError(f"surgery {name!r} would leave {left} of the {size} layers of a stack")
    return order
