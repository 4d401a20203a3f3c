"""`parameter_groups`: a learning rate of its own for the rows of new tokens."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..arguments import NotNegative, RowId, checked
from ..errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from ..manifest import read_manifest
from ..tables import Side, TiedTensor, is_partitioned
from .adapter_files import grown_ids
from .new_row_training import checked_ids, refuse_parameters_that_swap, refuse_sparse, trained_tables


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
    optimizer that treats each number alone (SGD, Adam, AdamW, Lion; not Adafactor or Muon, and no
    schedule-free one, whose first step raises `UnsupportedModelError`), one around
    another or sharded by ZeroRedundancyOptimizer among them. The groups may be split over several optimizers.

    `token_ids` are by default the rows that `config.embinit` says were added. Other parameters that are
    trainable come in Trainer's two groups: weights with `weight_decay`, which the new rows have, too, then
    biases and norms without. Move the model to its device as you like; shard it (FSDP, DeepSpeed) not at all:
    those replace parameters. Raises `InvalidArgumentError` for a model without new rows, ids that it lacks
    and a frozen table, `UnsupportedModelError` for sharded and sparse ones.
    """
    from transformers import Trainer

    tables = trained_tables(model)
    if token_ids is None:
        grown = grown_ids(read_manifest(tables.model)).get(side, ())
        token_ids = [i for i in sorted(grown) if i < tables.vocab_size(side)]  # without cut-off padding
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
        raise InvalidArgumentError(
            f"{tied.name} is frozen: set its requires_grad first, or train its new rows by an adapter of "
            f"peft_config_for_new_tokens"
        )
    refuse_sparse(tied)
    rows = nn.Parameter(tensor.detach().index_select(tied.dim, ids.to(tensor.device)).clone())
    _Stand(rows, tied, ids)
    return rows


_STANDS: set[_Stand] = set()
"""Those whose rows live: of two for the same rows the later one counts."""


class _Stand:
    """Hooks around every optimizer's step, for as long as the parameter of the rows lives.

    An optimizer that steps the table and not the rows leaves them, and their gradients, to the one that does.
    Steps may be nested, as of an optimizer around an optimizer."""

    def __init__(self, rows: nn.Parameter, tied: TiedTensor, ids: Tensor) -> None:
        self.rows, self.tensor, self.name = weakref.ref(rows), weakref.ref(tied.tensor), tied.name
        self.dim, self.ids = tied.dim, ids
        self.left_alone: weakref.WeakKeyDictionary[torch.optim.Optimizer, Tensor] = (
            weakref.WeakKeyDictionary()
        )
        self.since_rows: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.told = False
        for earlier in list(_STANDS):
            if earlier.tensor() is tied.tensor and not set(ids.tolist()).isdisjoint(earlier.ids.tolist()):
                earlier.remove()
        _STANDS.add(self)
        self.handles = (
            register_optimizer_step_pre_hook(self.before),
            register_optimizer_step_post_hook(self.after),
        )
        weakref.finalize(rows, self.remove)

    def remove(self) -> None:
        """Ends it: the rows are gone, or have another parameter by now."""
        _STANDS.discard(self)
        for handle in self.handles:
            handle.remove()

    def stepped(self, optimizer: torch.optim.Optimizer) -> tuple[nn.Parameter, Tensor, bool] | None:
        """The rows, the table, and whether the rows are this optimizer's; None if it steps neither."""
        rows, tensor = self.rows(), self.tensor()
        if rows is None or tensor is None:
            return None
        self.ids = self.ids.to(tensor.device)
        theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return (rows, tensor, id(rows) in theirs) if theirs & {id(rows), id(tensor)} else None

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Gives the rows their values and gradients, and takes the gradients from the table.

        A closure makes the gradients within the step: it is wrapped, to see and hand over the rows."""
        if (found := self.stepped(optimizer)) is None:
            return None
        refuse_parameters_that_swap(optimizer)
        rows, tensor, mine = found
        self._tell(optimizer, mine)
        moved = (rows.device, rows.dtype) != (tensor.device, tensor.dtype)
        rows.data = tensor.detach().index_select(self.dim, self.ids)
        if moved:  # and so is the state, which a checkpoint was loaded into where the rows were
            state = optimizer.state.get(rows, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape == rows.shape:
                    state[name] = value.to(rows.device, rows.dtype)
        if not mine:
            self.left_alone[optimizer] = rows.data
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._hand_over(rows, tensor)
            return None

        def wrapped() -> Any:
            tensor.data.index_copy_(self.dim, self.ids, rows.data)
            rows.grad = None
            loss = closure()
            self._hand_over(rows, tensor)
            return loss

        if kwargs.get("closure"):
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _tell(self, optimizer: torch.optim.Optimizer, mine: bool) -> None:
        """Warns of an optimizer that steps the table again before the rows have been stepped."""
        if mine:
            self.since_rows.clear()
        elif optimizer not in self.since_rows:
            self.since_rows.add(optimizer)
        elif not self.told:
            self.told = True
            warnings.warn(
                f"an optimizer steps {self.name} without the last group of parameter_groups: its new rows "
                f"are not trained by it; give all groups to an optimizer, or delete them",
                VocabularyWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def _hand_over(self, rows: nn.Parameter, tensor: Tensor) -> None:
        """Moves the rows' gradients out of the table's, unless the step around or before this one has."""
        if tensor.grad is not None:
            found = tensor.grad.index_select(self.dim, self.ids)
            rows.grad = found if rows.grad is None else rows.grad.to(found) + found
            tensor.grad.index_fill_(self.dim, self.ids, 0.0)

    @torch.no_grad()
    def after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Writes the rows back: what the step did to them in the table is void."""
        if (found := self.stepped(optimizer)) is None:
            return
        rows, tensor, mine = found
        tensor.data.index_copy_(self.dim, self.ids, rows.data if mine else self.left_alone.pop(optimizer))
        if mine:
            rows.grad = None
