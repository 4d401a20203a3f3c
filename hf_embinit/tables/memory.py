"""Changing large tensors: enough memory, no graph and no state of what they were."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import InvalidArgumentError, VocabularyWarning
from .table import TiedTensor

_OLD_SHAPES = "hf_embinit_old_shapes"
"""An attribute of parameters that have other rows than before: the shapes that they had. (No weak dictionary:
torch swaps no tensors that weak references lead to.)"""


def require_memory(needed: int, device: torch.device, what: str) -> None:
    """Raises `InvalidArgumentError` when `device` reports less than `needed` bytes free."""
    free = _free(device)
    if free is not None and needed > free:
        raise InvalidArgumentError(
            f"{what} need {needed / 2**30:,.1f} GiB on {device}, where {free / 2**30:,.1f} GiB are free: ask "
            f"for fewer tokens or a smaller pad_to_multiple_of="
        )


def _free(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1024 * (sizes["MemAvailable"] + sizes["SwapFree"])
    except (OSError, ValueError, KeyError, IndexError):  # not Linux
        return None


def is_held(parameter: Tensor) -> bool:
    """Whether a graph, or DistributedDataParallel, holds the node in which a leaf gathers its gradients."""

    def notes() -> Any:
        return get_gradient_edge(parameter).node.metadata

    notes()["hf_embinit"] = True
    return "hf_embinit" in notes()  # those of a node made anew are empty


def warn_of_old_graphs(changed: Iterable[TiedTensor]) -> None:
    """Warns where something still holds the graph of a table that has other rows now: autograd checks
    gradients against the shape that it had, so that training would fail."""
    for tied in changed:
        tensor = tied.tensor
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.is_leaf and tensor.requires_grad
        node = get_gradient_edge(tensor).node if plain else None
        seen = getattr(node, "_input_metadata", None)  # made anew where nothing holds an old one
        if seen and tuple(seen[0].shape) != tuple(tensor.shape):
            warnings.warn(
                f"{tied.name} has {len(tensor)} rows now, but what a forward pass gave before, or "
                "DistributedDataParallel, still holds its graph, and the next backward() would fail: del "
                "such outputs and losses, and the wrapper before the model is wrapped anew",
                VocabularyWarning,
                stacklevel=2,
            )
            return


def watch_optimizers(changed: Iterable[TiedTensor]) -> None:
    """Before tables change their shape: has the next step of an optimizer refuse those of which it keeps a
    state in the shape of before, since fused ones of torch would write beyond it."""
    for tied in changed:
        for place in tied.locations:
            if type(place.tensor) is nn.Parameter:
                vars(place.tensor).setdefault(_OLD_SHAPES, []).append(place.tensor.shape)
                _watch()


@functools.cache
def _watch() -> None:
    register_optimizer_step_pre_hook(_refuse_old_state)


def _refuse_old_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raises `InvalidArgumentError`."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            old = getattr(parameter, _OLD_SHAPES, None)
            if old is None or not (parameter.requires_grad or parameter.grad is not None):
                continue
            for state in optimizer.state.get(parameter, {}).values():
                if isinstance(state, Tensor) and state.shape in old and state.shape != parameter.shape:
                    raise InvalidArgumentError(
                        f"a table has the shape {list(parameter.shape)} now, for which this "
                        f"{type(optimizer).__name__} keeps a state of {list(state.shape)}: make the "
                        f"optimizer anew after the vocabulary has changed"
                    )
