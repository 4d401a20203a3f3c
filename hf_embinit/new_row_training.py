"""Training new rows alone: in full fine-tuning, or through PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel

from .errors import InvalidArgumentError, UnsupportedModelError
from .table_discovery import Side
from .tables import EmbeddingTables

if TYPE_CHECKING:
    from peft import PeftConfig


def train_new_rows_only(
    model: PreTrainedModel, token_ids: Sequence[int], *, freeze_rest: bool = True, side: Side = "shared"
) -> NewRowTraining:
    """Keeps all rows but those of `token_ids` bit for bit while any torch optimizer trains `model`.

    Covers every table and output bias of the vocabulary, tied or not. `freeze_rest` also freezes all other
    parameters; with False they train as usual. Use it around training, or call `remove()` afterwards:

        with train_new_rows_only(model, report.token_ids):
            trainer.train()

    A masked gradient is not enough, since weight decay and old momentum move rows without one. So the
    gradients of old rows are zeroed (they take no part in clipping, and decoupled decay leaves no state
    for them) and the rows are put back after each optimizer step. Costs one copy of each table. Raises
    `InvalidArgumentError` for ids that the model lacks, `UnsupportedModelError` for sharded tables.
    """
    return NewRowTraining(model, token_ids, freeze_rest=freeze_rest, side=side)


@dataclass(eq=False)
class _Kept:
    """One parameter whose entries along `dim` stay, except at `ids`."""

    name: str
    parameter: nn.Parameter
    dim: int
    ids: Tensor
    value: Tensor
    """What it was."""

    def mask(self, grad: Tensor) -> Tensor:
        ids = self.ids.to(grad.device)
        return torch.zeros_like(grad).index_copy_(self.dim, ids, grad.index_select(self.dim, ids))

    def restore(self) -> None:
        data = self.parameter.data
        if data.shape != self.value.shape:
            raise InvalidArgumentError(f"{self.name} was resized while only its new rows were trained")
        if (data.device, data.dtype) != (self.value.device, self.value.dtype):
            self.value = self.value.to(data)
        ids = self.ids.to(data.device)
        trained = data.index_select(self.dim, ids)
        data.copy_(self.value).index_copy_(self.dim, ids, trained)


class NewRowTraining:
    """What `train_new_rows_only` set up; `remove()`, or leaving the `with` block, undoes it."""

    def __init__(
        self, model: PreTrainedModel, token_ids: Sequence[int], *, freeze_rest: bool, side: Side
    ) -> None:
        tables = EmbeddingTables(model)
        ids = _checked_ids(tables, token_ids, side)
        self._kept: list[_Kept] = []
        for table in tables.tables:
            if table.side != side:
                continue
            slots = ([] if table.tied_to else [table.slot]) + table.bias
            for slot in slots:
                parameter = slot.tensor
                if not isinstance(parameter, nn.Parameter):
                    continue  # a buffer: no optimizer moves it
                if type(parameter.data) is not Tensor or parameter.is_meta or hasattr(parameter, "ds_id"):
                    raise UnsupportedModelError(
                        f"{slot.name} is sharded or on the meta device: its rows cannot be kept"
                    )
                self._kept.append(_Kept(slot.name, parameter, slot.dim, ids, parameter.detach().clone()))
        self._requires_grad = [(p, p.requires_grad) for p in tables.model.parameters()]
        if freeze_rest:
            for parameter in tables.model.parameters():
                parameter.requires_grad_(False)
        for kept in self._kept:
            kept.parameter.requires_grad_(True)
        self._handles: list[Any] = [kept.parameter.register_hook(kept.mask) for kept in self._kept]
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def remove(self) -> None:
        """Ends it: rows as trained, `requires_grad` as it was before."""
        for handle in self._handles:
            handle.remove()
        for parameter, requires_grad in self._requires_grad:
            parameter.requires_grad_(requires_grad)
        self._handles, self._requires_grad, self._kept = [], [], []

    def __enter__(self) -> NewRowTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        with torch.no_grad():
            for kept in self._kept:
                if id(kept.parameter) in stepped:
                    kept.restore()


def token_modules(tables: EmbeddingTables, side: Side = "shared") -> list[str]:
    """Names of the modules that hold rows of a vocabulary, tied ones once, input tables first."""
    return [table.name.rpartition(".")[0] for table in tables.own_tables if table.side == side]


def peft_config_for_new_tokens(
    model: PreTrainedModel, token_ids: Sequence[int], *, side: Side = "shared", **lora_options: Any
) -> PeftConfig:
    """A PEFT configuration that trains and saves the rows of `token_ids`, in input and output tables.

    Without `lora_options` a `TrainableTokensConfig`: nothing but those rows. With them a `LoraConfig` with
    `trainable_token_indices`. Expand the vocabulary first, then wrap; to load an adapter, expand the base
    model alike and then load it.

    Raises `UnsupportedModelError` where PEFT 0.21 would train something else: it ties modules by
    `config.tie_word_embeddings`, not by the tensors, and it drops the bias of a head that it wraps.
    """
    from peft import LoraConfig, TrainableTokensConfig

    tables = EmbeddingTables(model)
    ids = _checked_ids(tables, token_ids, side).tolist()
    inputs = [t for t in tables.input_tables if t.side == side]
    said = bool(getattr(tables.model.config.get_text_config(), "tie_word_embeddings", False))
    for table in tables.output_tables:
        if table.side != side:
            continue
        tied = table.tied_to is not None
        if tied != said:
            fix = "True" if tied else "False"
            raise UnsupportedModelError(
                f"{table.name} is {'tied to' if tied else 'separate from'} {inputs[0].name}, but "
                f"config.tie_word_embeddings={said} is what PEFT goes by: set it to {fix} first"
            )
        if getattr(table.module, "bias", None) is not None:
            raise UnsupportedModelError(
                f"the head {table.name} has a bias, which PEFT drops when it trains single rows of a "
                "head: use "
                f"train_new_rows_only"
            )
    for table in tables.own_tables:
        if table.side == side and not isinstance(table.module, nn.Embedding | nn.Linear):
            raise UnsupportedModelError(
                f"PEFT cannot train single rows of {table.name}, a {type(table.module).__name__}: use "
                "train_new_rows_only"
            )
    modules = token_modules(tables, side)
    if not lora_options:
        return TrainableTokensConfig(token_indices=ids, target_modules=modules)
    return LoraConfig(trainable_token_indices=dict.fromkeys(modules, ids), **lora_options)


def _checked_ids(tables: EmbeddingTables, token_ids: Sequence[int], side: Side) -> Tensor:
    size = tables.vocab_size(side)
    ids = sorted({int(i) for i in token_ids})
    if not ids or ids[0] < 0 or ids[-1] >= size:
        raise InvalidArgumentError(
            f"token_ids={ids[:5]}: expected at least one id, each from 0 to {size - 1}"
        )
    return torch.tensor(ids)
