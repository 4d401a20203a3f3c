"""`train_new_rows_only`: training new rows alone in full fine-tuning."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel

from ..arguments import RowId, check, checked
from ..errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from ..tables import (
    EmbeddingTables,
    Side,
    TiedTensor,
    is_held,
    is_partitioned,
    is_sharded,
    part_of,
    unwrap,
)
from .carried_rows import forget_whole

if TYPE_CHECKING:
    from peft import PeftModel


@checked
def train_new_rows_only(
    model: Any, token_ids: Sequence[RowId] | Tensor, *, freeze_rest: bool = True, side: Side = "shared"
) -> NewRowTraining:
    """Keeps all rows but those of `token_ids` bit for bit while any torch optimizer trains `model`.

    Covers every table and output bias of the vocabulary, tied or not. `freeze_rest` also freezes all other
    parameters; with False they train as usual. Use it around training, or call `remove()` afterwards:

        with train_new_rows_only(model, report.token_ids):
            trainer.train()

    A masked gradient is not enough, since weight decay and old momentum move rows without one. So the
    gradients of old rows are zeroed (they take no part in clipping, and decoupled decay leaves no state
    for them) and the rows are put back after each optimizer step. Costs one copy of each table. Raises
    `InvalidArgumentError` for ids that the model lacks, and for a model inside DistributedDataParallel, which
    is to be wrapped afterwards; `UnsupportedModelError` for tables on the meta device or sharded by ZeRO-3. A
    model that FSDP2 shards is sharded first. The first step of a schedule-free optimizer raises it, too: its
    `eval()` moves rows. A deep copy or a pickle of `model` has parameters of its own, whose old rows are
    trained too: call this on the copy.

    A second call for the same tables takes the place of the first; one for the other side of two vocabularies
    lasts beside it. Optimizers that step copies of the parameters (ZeRO-1 and -2, float32 master weights,
    FSDP 1) move old rows from outside: the step after raises `UnsupportedModelError`.

    An adapter of PEFT holds none of these rows. With one around `model` they are saved beside it, and
    `load_adapter` brings both back; so does, as long as this lasts, that model's own `load_adapter`, by which
    a trainer resumes and loads its best checkpoint.
    """
    return NewRowTraining(model, token_ids, freeze_rest=freeze_rest, side=side)


_OTHERWISE = "was resized, or flattened by FSDP 1, while only its new rows were trained"


_UNSHARDED = "its old rows cannot be kept: train with DDP, or an adapter of peft_config_for_new_tokens"


@dataclass(eq=False)
class _Kept:
    """One parameter whose entries along `dim` stay, except at `ids`."""

    tied: TiedTensor
    parameter: nn.Parameter
    ids: Tensor
    value: Tensor
    """What it was."""

    @property
    def name(self) -> str:
        return self.tied.name

    @property
    def dim(self) -> int:
        return self.tied.dim

    def watch(self) -> Any:
        """Zeroes the gradients of rows that stay, from now on; gives the handle of the hook."""
        return self.parameter.register_hook(self.mask)

    def mask(self, grad: Tensor) -> Tensor:
        ids = self.ids.to(grad.device)
        return torch.zeros_like(grad).index_copy_(self.dim, ids, grad.index_select(self.dim, ids))

    def restore(self) -> None:
        data = self.parameter.data
        if data.shape != self.value.shape:
            raise InvalidArgumentError(f"{self.name} {_OTHERWISE}")
        if (data.device, data.dtype) != (self.value.device, self.value.dtype):
            self.value = self.value.to(data)
        ids = self.ids.to(data.device)
        trained = data.index_select(self.dim, ids)
        data.copy_(self.value).index_copy_(self.dim, ids, trained)

    def moved(self) -> bool:
        """Whether rows that stay are others than before."""
        data = self.parameter.data
        if data.shape != self.value.shape:
            return False  # said by `restore`
        stays = torch.ones(data.shape[self.dim], dtype=torch.bool, device=data.device)
        stays[self.ids.to(data.device)] = False
        same = (data == self.value.to(data)) | (data != data)
        return not bool(same.movedim(self.dim, 0)[stays].all())


class _KeptPart(_Kept):
    """The same of a DTensor: every process keeps its own part of it."""

    def __init__(self, tied: TiedTensor, parameter: nn.Parameter, ids: Tensor):
        sharded: Any = parameter
        local = sharded.to_local()
        super().__init__(tied, parameter, ids, local.detach().clone())
        trained = torch.zeros(parameter.shape, dtype=torch.bool, device=local.device)
        trained.index_fill_(tied.dim, ids.to(local.device), True)
        self.sharded, self.trained = sharded, part_of(trained, parameter)

    def watch(self) -> Any:
        def mask(parameter: Any) -> None:  # FSDP2 puts gradients there itself, past the hooks of autograd
            parameter.grad.to_local().mul_(self.trained)

        return self.parameter.register_post_accumulate_grad_hook(mask)

    def restore(self) -> None:
        local = self.sharded.to_local()
        if local.shape != self.value.shape:
            raise InvalidArgumentError(f"{self.name} {_OTHERWISE}")
        local.copy_(torch.where(self.trained.to(local.device), local, self.value.to(local)))

    def moved(self) -> bool:
        local = self.sharded.to_local()
        same = (local == self.value.to(local)) | (local != local) | self.trained.to(local.device)
        return not bool(same.all())


_ACTIVE: list[NewRowTraining] = []
"""Those that last, which the hook on optimizers keeps alive as well."""


class NewRowTraining:
    """What `train_new_rows_only` set up; `remove()`, or leaving the `with` block, undoes it."""

    def __init__(
        self, model: Any, token_ids: Sequence[int] | Tensor, *, freeze_rest: bool, side: Side
    ) -> None:
        tables = trained_tables(model)
        self._model = weakref.ref(tables.model)
        ids = checked_ids(tables, token_ids, side)
        if freeze_rest:
            _check_reducer(model, tables.model)
        self._kept: list[_Kept] = []
        self._requires_grad: list[tuple[nn.Parameter, bool]] = []
        for table in tables.tables:
            if table.side != side:
                continue
            tensors = ([] if table.tied_to else [table.tied]) + table.bias
            for tied in tensors:
                parameter = tied.tensor
                if not isinstance(parameter, nn.Parameter):
                    continue  # a buffer: no optimizer moves it
                refuse_sparse(tied)
                if is_sharded(parameter):
                    self._kept.append(_KeptPart(tied, parameter, ids))
                    continue
                if type(parameter.data) is not Tensor or parameter.is_meta or is_partitioned(parameter):
                    raise UnsupportedModelError(f"{tied.name} is sharded or on the meta device: {_UNSHARDED}")
                self._kept.append(_Kept(tied, parameter, ids, parameter.detach().clone()))
        mine = {id(kept.parameter) for kept in self._kept}
        for other in [one for one in _ACTIVE if mine & {id(kept.parameter) for kept in one._kept}]:
            other.remove()
        self._adapters = _carry_rows_beside_adapters(model, tables.model)
        told = {id(p): requires_grad for one in _ACTIVE for p, requires_grad in one._requires_grad}
        beside = {id(kept.parameter) for one in _ACTIVE for kept in one._kept}
        parameters = list(tables.model.parameters())
        self._requires_grad = [(p, told.get(id(p), p.requires_grad)) for p in parameters]
        self._freezes = freeze_rest
        for parameter in parameters:
            if id(parameter) in mine:
                parameter.requires_grad_(True)
            elif freeze_rest and id(parameter) not in beside:
                parameter.requires_grad_(False)
        _ACTIVE.append(self)
        self._handles: list[Any] = [kept.watch() for kept in self._kept]
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def __repr__(self) -> str:
        kept = ", ".join(f"{len(one.ids)} rows of {one.name}" for one in self._kept)
        return f"<NewRowTraining: {kept or 'removed'}>"

    def remove(self) -> None:
        """Ends it: rows as trained, `requires_grad` as it was before, or as one that lasts has it.

        Warns of old rows that are not what they were."""
        for handle in self._handles:
            handle.remove()
        if self in _ACTIVE:
            _ACTIVE.remove(self)
        frozen = {id(p) for one in _ACTIVE if one._freezes for p, _ in one._requires_grad}
        beside = {id(kept.parameter) for one in _ACTIVE for kept in one._kept}
        for parameter, requires_grad in self._requires_grad:
            if id(parameter) not in beside:
                parameter.requires_grad_(requires_grad and id(parameter) not in frozen)
        if moved := [kept.name for kept in self._kept if kept.parameter is kept.tied.tensor and kept.moved()]:
            warnings.warn(
                f"old rows of {moved[0]} are not what they were when train_new_rows_only was called",
                VocabularyWarning,
                stacklevel=3,
            )
        others = {id(adapter) for one in _ACTIVE for adapter in one._adapters}
        for adapter in self._adapters:
            if id(adapter) not in others:
                vars(adapter).pop("load_adapter", None)
        self._handles, self._requires_grad, self._kept, self._adapters = [], [], [], []

    def __enter__(self) -> NewRowTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _model_parameters(self) -> set[int]:
        model = self._model()
        return set() if model is None else {id(parameter) for parameter in model.parameters()}

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(kept.parameter) in stepped for kept in self._kept):
            refuse_parameters_that_swap(optimizer)
        with torch.no_grad():
            for kept in self._kept:
                if is_sharded(kept.tied.tensor) and not isinstance(kept, _KeptPart):
                    raise UnsupportedModelError(
                        f"{kept.name} was sharded after train_new_rows_only: call it on the sharded model"
                    )
                if not kept.parameter.requires_grad and not self._model_parameters().isdisjoint(stepped):
                    raise InvalidArgumentError(
                        f"{kept.name} was frozen after train_new_rows_only, so its new rows are not trained: "
                        f"wrap the model by PEFT first, then call train_new_rows_only(freeze_rest=False)"
                    )
                if kept.tied.tensor is not kept.parameter and not isinstance(kept, _KeptPart):
                    raise InvalidArgumentError(
                        f"{kept.name} was replaced by another tensor after train_new_rows_only: call it again"
                    )
                if id(kept.parameter) in stepped:
                    kept.restore()
                elif kept.moved():
                    raise UnsupportedModelError(
                        f"{type(optimizer).__name__} steps copies of {kept.name}, whose old rows have moved: "
                        f"{_UNSHARDED}"
                    )


def refuse_sparse(tied: TiedTensor) -> None:
    """Raises `UnsupportedModelError` for a table whose gradients are sparse tensors."""
    if any(getattr(location.module, "sparse", False) for location in tied.locations):
        raise UnsupportedModelError(f"{tied.name} has sparse gradients: build it with sparse=False")


def refuse_parameters_that_swap(optimizer: torch.optim.Optimizer) -> None:
    """Raises `UnsupportedModelError` for a schedule-free optimizer, whose `train()` and `eval()` change
    parameters outside of its steps: no rows can be kept from it."""
    if hasattr(optimizer, "train_mode") or any("train_mode" in group for group in optimizer.param_groups):
        raise UnsupportedModelError(
            f"{type(optimizer).__name__} changes parameters in eval() and train(), outside of its steps, so "
            f"that rows of a table cannot be kept apart: choose another, or peft_config_for_new_tokens"
        )


def _carry_rows_beside_adapters(outer: Any, model: PreTrainedModel) -> list[PeftModel]:
    """Lets adapters of `model` save the rows too, which PEFT would leave out, and load them: a trainer that
    resumes, or loads its best checkpoint, does. Gives the PEFT models in `outer` that do so now."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return []
    from peft import PeftModel

    from .adapters import carry_by_config, load_rows_too

    for config in configs.values():
        carry_by_config(config, model)
    forget_whole(model)
    found = [m for m in outer.modules() if isinstance(m, PeftModel)] if isinstance(outer, nn.Module) else []
    for adapter in found:
        adapter.load_adapter = partial(load_rows_too, adapter)  # type: ignore[method-assign]
    warnings.warn(
        "the rows are trained in the model itself, and the adapter does not hold them: they are saved beside "
        "it, and only hf_embinit.load_adapter puts them back (peft_config_for_new_tokens trains them within)",
        VocabularyWarning,
        stacklevel=5,
    )
    return found


def token_modules(tables: EmbeddingTables, side: Side = "shared") -> list[str]:
    """Names of the modules that hold rows of a vocabulary, tied ones once, input tables first."""
    return [table.name.rpartition(".")[0] for table in tables.own_tables if table.side == side]


def _check_reducer(model: Any, inner: PreTrainedModel) -> None:
    """Raises `InvalidArgumentError` for a model inside DistributedDataParallel, which would wait for the
    gradients of what is frozen now; warns where it may be inside one that was not given."""
    why = (
        "DistributedDataParallel waits for gradients of all parameters that were trainable when it was made: "
        "call train_new_rows_only before the model is wrapped, or wrap it with find_unused_parameters=True"
    )
    wrappers = model.modules() if isinstance(model, nn.Module) else ()
    found = [wrapper for wrapper in wrappers if isinstance(wrapper, nn.parallel.DistributedDataParallel)]
    if any(not wrapper.find_unused_parameters for wrapper in found):
        raise InvalidArgumentError(f"model is wrapped already: {why}")
    parallel = torch.distributed.is_available() and torch.distributed.is_initialized()
    trained = [p for p in inner.parameters() if p.requires_grad and p.is_leaf]
    if parallel and not found and any(map(is_held, trained)):
        warnings.warn(
            f"something holds the graph of parameters that are frozen now. If it is the model's wrapper: "
            f"{why}",
            VocabularyWarning,
            stacklevel=4,
        )


def adapter_trains_rows(model: Any) -> bool:
    return any("trainable_tokens_delta" in name for name, _ in unwrap(model).named_parameters())


def trained_tables(model: Any) -> EmbeddingTables:
    """The tables of a model, no adapter's. Raises `UnsupportedModelError` where one trains single rows."""
    if adapter_trains_rows(model):
        raise UnsupportedModelError(
            "an adapter trains rows of this model: they are its parameters named trainable_tokens_delta, to "
            "which an optimizer may give a group, and a learning rate, of their own"
        )
    return EmbeddingTables(model)


def checked_ids(tables: EmbeddingTables, token_ids: Sequence[int] | Tensor, side: Side) -> Tensor:
    """Ids of a vocabulary, sorted. Raises `InvalidArgumentError` for ids that it lacks, and for none."""
    size = tables.vocab_size(side)
    if isinstance(token_ids, Tensor):
        check("token_ids", token_ids.tolist(), Sequence[RowId])
    ids = sorted({int(i) for i in token_ids})
    if not ids or ids[0] < 0 or ids[-1] >= size:
        raise InvalidArgumentError(
            f"token_ids={ids[:5]}: expected at least one id, each from 0 to {size - 1}"
        )
    return torch.tensor(ids)
