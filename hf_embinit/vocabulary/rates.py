"""`parameter_groups`: a learning rate of its own for the rows of new tokens."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..arguments import NotNegative, RowId, checked
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..manifest import read_manifest
from ..tables import EmbeddingTables, Side, TiedTensor, is_partitioned
from .adapters import grown_ids
from .new_row_training import checked_ids


@checked
def parameter_groups(
    model: Any,
    *,
    new_row_lr: NotNegative,
    token_ids: Sequence[RowId] | Tensor | None = None,
    weight_decay: NotNegative = 0.0,
    side: Side = "shared",
) -> list[dict[str, Any]]:
    """Groups for any torch optimizer in which the rows of new tokens have the learning rate `new_row_lr`.

        optimizer = torch.optim.AdamW(parameter_groups(model, new_row_lr=1e-3), lr=5e-5)
        Trainer(model, args, train_dataset=data, optimizers=(optimizer, None)).train()

    The rows are part of a table, and an optimizer knows one rate for a tensor. Scaled gradients are no way
    out: the steps of Adam do not depend on their scale. So the new rows (and entries of output biases) are
    parameters of their own in the last group, of `R` rows each. Right before a step they take the values and
    the gradients of their rows in the table, whose own gradients there become zero; right after it their
    values go back. They have optimizer state, decay and rate of their own, and schedulers, accumulation and
    clipping work as ever: a step is (to rounding) that of a model whose new rows are a separate table, in any
    optimizer that treats each number alone (SGD, Adam, AdamW, Lion; not Adafactor or Muon).

    `token_ids` are by default the rows that `config.embinit` says were added. Other parameters that are
    trainable come in Trainer's two groups: weights with `weight_decay`, which the new rows have, too, then
    biases and norms without. Move the model to its device as you like; shard it (FSDP, DeepSpeed) not at all:
    those replace parameters. Raises `InvalidArgumentError` for a model without new rows, ids that it lacks
    and a frozen table, `UnsupportedModelError` for sharded and sparse ones.
    """
    from transformers import Trainer

    tables = EmbeddingTables(model)
    if token_ids is None:
        token_ids = sorted(grown_ids(read_manifest(tables.model)).get(side, ()))
        if not token_ids:
            raise InvalidArgumentError("config.embinit tells of no new rows: give token_ids=")
    ids = checked_ids(tables, token_ids, side)
    found = [table.tied for table in tables.own_tables if table.side == side]
    found += [tied for table in tables.output_tables if table.side == side for tied in table.bias]
    rows = [_own_rows(tied, ids) for tied in found if isinstance(tied.tensor, nn.Parameter)]
    outer = model if isinstance(model, nn.Module) else tables.model
    decayed = set(Trainer.get_decay_parameter_names(None, outer))  # type: ignore[arg-type]
    named = [(name, p) for name, p in outer.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if name in decayed], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name not in decayed], "weight_decay": 0.0},
        {"params": rows, "lr": new_row_lr, "weight_decay": weight_decay},
    ]


def _own_rows(tied: TiedTensor, ids: Tensor) -> nn.Parameter:
    """A parameter that stands for the entries `ids` of a tensor in every step of an optimizer."""
    tensor = tied.tensor
    if type(tensor.data) is not Tensor or tensor.is_meta or is_partitioned(tensor):
        raise UnsupportedModelError(f"{tied.name} is sharded or on the meta device: call this before that")
    if not tensor.requires_grad:
        raise InvalidArgumentError(f"{tied.name} is frozen: set its requires_grad first")
    if any(getattr(location.module, "sparse", False) for location in tied.locations):
        raise UnsupportedModelError(f"{tied.name} has sparse gradients: build it with sparse=False")
    rows = nn.Parameter(tensor.detach().index_select(tied.dim, ids.to(tensor.device)).clone())
    _Stand(rows, tensor, tied.dim, ids)
    return rows


class _Stand:
    """Hooks around every optimizer's step, for as long as the parameter of the rows lives."""

    def __init__(self, rows: nn.Parameter, tensor: Tensor, dim: int, ids: Tensor) -> None:
        self.rows, self.tensor, self.dim, self.ids = weakref.ref(rows), weakref.ref(tensor), dim, ids
        handles = [
            register_optimizer_step_pre_hook(self.before),
            register_optimizer_step_post_hook(self.after),
        ]
        for handle in handles:
            weakref.finalize(rows, handle.remove)

    def both(self, optimizer: torch.optim.Optimizer) -> tuple[nn.Parameter, Tensor] | None:
        """The parameter of the rows and the table, where this optimizer has the rows."""
        rows, tensor = self.rows(), self.tensor()
        if rows is None or tensor is None:
            return None
        mine = any(p is rows for group in optimizer.param_groups for p in group["params"])
        self.ids = self.ids.to(tensor.device)
        return (rows, tensor) if mine else None

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Gives the rows their values and gradients, and takes the gradients from the table.

        A closure makes the gradients within the step: it is wrapped, to see and hand over the rows."""
        if (both := self.both(optimizer)) is None:
            return None
        rows, tensor = both
        rows.data = tensor.detach().index_select(self.dim, self.ids)
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._hand_over(rows, tensor)
            return None

        def wrapped() -> Any:
            tensor.data.index_copy_(self.dim, self.ids, rows.data)
            loss = closure()
            self._hand_over(rows, tensor)
            return loss

        if kwargs.get("closure"):
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    @torch.no_grad()
    def _hand_over(self, rows: nn.Parameter, tensor: Tensor) -> None:
        """Moves the rows' gradients out of the table's."""
        rows.grad = None
        if tensor.grad is not None:
            rows.grad = tensor.grad.index_select(self.dim, self.ids)
            tensor.grad.index_fill_(self.dim, self.ids, 0.0)

    @torch.no_grad()
    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Writes the rows back: what the step did to them in the table is void."""
        if (both := self.both(optimizer)) is not None:
            rows, tensor = both
            tensor.data.index_copy_(self.dim, self.ids, rows.data)
            rows.grad = None
