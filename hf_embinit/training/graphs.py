"""Training steps as CUDA graphs: a step of a small model is hundreds of small kernels, and the CPU that
launches them one by one is what it waits for. A graph launches all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from ..errors import InvalidArgumentError

PADDED_TO = 8
"""Lengths are padded to a multiple of it, so that batches have few shapes."""
_MAX_GRAPHS = 128
"""Shapes beyond these are stepped through as they are: a graph holds a gradient of every parameter."""

_ITEMS = "num_items_in_batch"

Inputs = dict[str, Tensor]


def check_cuda_graphs(args: TrainingArguments, *, twins: bool = False) -> None:
    """Raises `InvalidArgumentError` for a run whose steps cannot be captured."""
    if args.device.type != "cuda":
        raise InvalidArgumentError(f"--cuda_graphs needs a CUDA GPU, and this run is on {args.device.type}")
    if args.n_gpu > 1 or args.world_size > 1:
        raise InvalidArgumentError("--cuda_graphs is for one GPU: set CUDA_VISIBLE_DEVICES, and one process")
    accumulated = args.gradient_accumulation_steps
    others = {
        f"--gradient_accumulation_steps {accumulated}": accumulated > 1,
        "--fp16": args.fp16,
        "--torch_compile": args.torch_compile,
        "--gradient_checkpointing": args.gradient_checkpointing,
        "--activation_checkpointing": bool(getattr(args, "activation_checkpointing", False)),
        "--twin_seeds": twins,
    }
    for other, given in others.items():
        if given:
            raise InvalidArgumentError(f"--cuda_graphs and {other}: leave one of them out")


def capture(step: Callable[[], Tensor], pool: Any) -> tuple[Callable[[], None], Tensor]:
    """The kernels of `step` as what replays them, and the loss that each replay writes anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        loss = step()
    return graph.replay, loss


class _Step:
    """A captured step: where it reads its batch, and where it writes its loss and its gradients."""

    def __init__(self, model: nn.Module, inputs: Inputs, step: Callable[[Inputs], Tensor], pool: Any) -> None:
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self.replay, self.loss = capture(lambda: step(self.inputs), pool)
        self.gradients = [(p, p.grad) for p in model.parameters() if p.grad is not None]

    def __call__(self, inputs: Inputs) -> Tensor:
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient  # the Trainer sets it to None after the optimizer's step
        return self.loss


class StepGraphs:
    """The captured steps of a run, by the shape of their batch.

    A step is captured at the second batch of a shape, and replayed from then on. All graphs share their
    memory: what one writes, gradients included, is read before the next is replayed. Dropout draws new masks
    in every replay.
    """

    def __init__(self) -> None:
        self.captured: dict[Any, _Step] = {}
        self._seen: Counter[Any] = Counter()
        self._pool: Any = None

    def step(
        self, plain: Callable[..., Tensor], model: nn.Module, inputs: Inputs, items: Tensor | int | None
    ) -> Tensor:
        """The loss of `plain(model, inputs, items)`, the Trainer's step, with gradients in the parameters."""
        if not all(isinstance(value, Tensor) for value in inputs.values()):
            return plain(model, inputs, items)
        batch = dict(inputs)
        if items is not None:
            batch[_ITEMS] = torch.as_tensor(items, device=next(iter(inputs.values())).device)
        shape = tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())
        if shape not in self.captured:
            self._seen[shape] += 1
            if self._seen[shape] == 1 or len(self.captured) == _MAX_GRAPHS:
                return plain(model, inputs, items)

            def step(static: Inputs) -> Tensor:
                given = dict(static)
                count = given.pop(_ITEMS, None)
                return plain(model, given, count)

            self._pool = self._pool or torch.cuda.graph_pool_handle()
            model.zero_grad()  # gradients are the graph's own
            self.captured[shape] = _Step(model, batch, step, self._pool)
        return self.captured[shape](batch)


class GraphedSteps:
    """Mixin for a `Trainer` whose steps are replayed where it has `graphs`."""

    graphs: StepGraphs | None = None

    def training_step(
        self, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The Trainer's step: the loss, with gradients in the parameters."""
        plain: Callable[..., Tensor] = super().training_step  # type: ignore[misc]
        if self.graphs is None:
            return plain(model, inputs, num_items_in_batch)
        ready = self._prepare_inputs(inputs)  # type: ignore[attr-defined]
        return self.graphs.step(plain, model, ready, num_items_in_batch)
