"""Training new rows alone: in full fine-tuning, or through PEFT."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
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
    Table,
    TiedTensor,
    is_held,
    is_partitioned,
    is_sharded,
    part_of,
    unwrap,
)

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


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

    An adapter of PEFT holds none of these rows. With one around `model` they are saved beside it, and
    `load_adapter` brings both back; so does, as long as this lasts, that model's own `load_adapter`, by which
    a trainer resumes and loads its best checkpoint.
    """
    return NewRowTraining(model, token_ids, freeze_rest=freeze_rest, side=side)


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
            raise InvalidArgumentError(f"{self.name} was resized while only its new rows were trained")
        if (data.device, data.dtype) != (self.value.device, self.value.dtype):
            self.value = self.value.to(data)
        ids = self.ids.to(data.device)
        trained = data.index_select(self.dim, ids)
        data.copy_(self.value).index_copy_(self.dim, ids, trained)


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
            raise InvalidArgumentError(f"{self.name} was resized while only its new rows were trained")
        local.copy_(torch.where(self.trained.to(local.device), local, self.value.to(local)))


class NewRowTraining:
    """What `train_new_rows_only` set up; `remove()`, or leaving the `with` block, undoes it."""

    def __init__(
        self, model: Any, token_ids: Sequence[int] | Tensor, *, freeze_rest: bool, side: Side
    ) -> None:
        tables = trained_tables(model)
        ids = checked_ids(tables, token_ids, side)
        if freeze_rest:
            _check_reducer(model, tables.model)
        self._adapters = _carry_rows_beside_adapters(model, tables.model)
        self._kept: list[_Kept] = []
        for table in tables.tables:
            if table.side != side:
                continue
            tensors = ([] if table.tied_to else [table.tied]) + table.bias
            for tied in tensors:
                parameter = tied.tensor
                if not isinstance(parameter, nn.Parameter):
                    continue  # a buffer: no optimizer moves it
                if is_sharded(parameter):
                    self._kept.append(_KeptPart(tied, parameter, ids))
                    continue
                if type(parameter.data) is not Tensor or parameter.is_meta or is_partitioned(parameter):
                    raise UnsupportedModelError(f"{tied.name} is sharded or on the meta device: {_UNSHARDED}")
                self._kept.append(_Kept(tied, parameter, ids, parameter.detach().clone()))
        self._requires_grad = [(p, p.requires_grad) for p in tables.model.parameters()]
        if freeze_rest:
            for parameter in tables.model.parameters():
                parameter.requires_grad_(False)
        for kept in self._kept:
            kept.parameter.requires_grad_(True)
        self._handles: list[Any] = [kept.watch() for kept in self._kept]
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def __repr__(self) -> str:
        kept = ", ".join(f"{len(one.ids)} rows of {one.name}" for one in self._kept)
        return f"<NewRowTraining: {kept or 'removed'}>"

    def remove(self) -> None:
        """Ends it: rows as trained, `requires_grad` as it was before."""
        for handle in self._handles:
            handle.remove()
        for parameter, requires_grad in self._requires_grad:
            parameter.requires_grad_(requires_grad)
        for adapter in self._adapters:
            vars(adapter).pop("load_adapter", None)
        self._handles, self._requires_grad, self._kept, self._adapters = [], [], [], []

    def __enter__(self) -> NewRowTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

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
                if not kept.parameter.requires_grad:
                    raise InvalidArgumentError(
                        f"{kept.name} was frozen after train_new_rows_only, so its new rows are not trained: "
                        f"wrap the model by PEFT first, then call train_new_rows_only(freeze_rest=False)"
                    )
                if id(kept.parameter) in stepped:
                    kept.restore()


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


@checked
def peft_config_for_new_tokens(
    model: Any, token_ids: Sequence[RowId] | Tensor, *, side: Side = "shared", **lora_options: Any
) -> PeftConfig:
    """A PEFT configuration that trains and saves the rows of `token_ids`, in input and output tables.

    `lora_options` are those of `LoraConfig`; without `target_modules` nothing but those rows is trained.
    `target_modules` and `modules_to_save` may not have the modules of those rows: PEFT trains these one way.
    Expand the vocabulary first, then wrap, or hand the configuration to a trainer of TRL (`peft_config=`).
    An adapter that is saved with it carries manifest and initial rows: `load_adapter` needs the base alone.

    TRL computes its loss from the weight and the bias of the head, and a head that PEFT wrapped has a weight
    with the trained rows, but no bias to ask for. So `model.get_output_embeddings` is given a version, on
    this instance alone, that answers None.

    Raises `UnsupportedModelError` where PEFT 0.21 would train something else: it ties modules by
    `config.tie_word_embeddings`, not by the tensors, so that T5's three embeddings beside a separate head (as
    in Flan-T5) are not one to it, and it drops the bias of a head that it wraps.
    """
    from peft import LoraConfig
    from peft.utils.constants import DUMMY_TARGET_MODULES

    from .adapters import carry_by_config

    if _adapter_trains_rows(model):
        raise UnsupportedModelError(
            "an adapter trains rows of this model: make the configurations of all its adapters before the "
            "first is added (get_peft_model, add_adapter)"
        )
    tables = EmbeddingTables(model)
    ids = checked_ids(tables, token_ids, side).tolist()
    for table in tables.tables:
        if table.side == side:
            _refuse_what_peft_mistakes(tables, table)
    rows = dict.fromkeys(token_modules(tables, side), ids)
    known = [field.name for field in fields(LoraConfig)]
    for name in lora_options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidArgumentError(
                f"{name}= is no option of LoraConfig" + (f": did you mean {near[0]}=?" if near else "")
            )
    if "trainable_token_indices" in lora_options:
        raise InvalidArgumentError("trainable_token_indices= is what token_ids= fills: give one of them")
    let_heads_tell_their_bias(tables.model)
    targets = {"target_modules": DUMMY_TARGET_MODULES} | lora_options
    config = LoraConfig(trainable_token_indices=rows, **targets)
    _refuse_rows_trained_twice(config, tables, side)
    carry_by_config(config, tables.model)
    return config


def _refuse_rows_trained_twice(config: Any, tables: EmbeddingTables, side: Side) -> None:
    """What else a configuration trains must not be a module with those rows: PEFT stops there when it wraps
    the model, or only when it merges it."""
    from peft.tuners.tuners_utils import check_target_module_exists

    places = [place for table in tables.tables if table.side == side for place in table.tied.locations]
    for name in dict.fromkeys(place.name.rpartition(".")[0] for place in places):
        whole = any(name == one or name.endswith(f".{one}") for one in config.modules_to_save or ())
        if whole or (config.target_modules != "all-linear" and check_target_module_exists(config, name)):
            option = "modules_to_save" if whole else "target_modules"
            raise InvalidArgumentError(
                f"{option}={getattr(config, option)} has {name}, whose rows token_ids= trains: leave it out"
            )


def _refuse_what_peft_mistakes(tables: EmbeddingTables, table: Table) -> None:
    if table.role == "output":
        said = bool(getattr(tables.model.config.get_text_config(), "tie_word_embeddings", False))
        tied = table.tied_to is not None
        if tied != said:
            first = next(t.name for t in tables.input_tables if t.side == table.side)
            raise UnsupportedModelError(
                f"{table.name} is {'tied to' if tied else 'separate from'} {first}, but "
                f"config.tie_word_embeddings={said} is what PEFT goes by: set it to {tied} first"
            )
        if getattr(table.module, "bias", None) is not None:
            raise UnsupportedModelError(
                f"the head {table.name} has a bias, which PEFT drops when it trains single rows: "
                "use train_new_rows_only instead"
            )
    modules = [place.name.rpartition(".")[0] for place in table.tied.locations]
    if len(modules) > 1 and not getattr(tables.model.config.get_text_config(), "tie_word_embeddings", False):
        raise UnsupportedModelError(
            f"{', '.join(modules)} read one table, of which PEFT would train the first alone where the head "
            "is a table of its own: use train_new_rows_only instead"
        )
    if table.tied_to is None and not isinstance(table.module, nn.Embedding | nn.Linear):
        raise UnsupportedModelError(
            f"PEFT cannot train single rows of {table.name}, a {type(table.module).__name__}: "
            "use train_new_rows_only instead"
        )


def let_heads_tell_their_bias(model: PreTrainedModel) -> None:
    """Makes `model.get_output_embeddings()` give wrapped heads that answer `bias`, on this instance alone."""
    model.get_output_embeddings = partial(get_output_embeddings, model)  # type: ignore[method-assign]


def get_output_embeddings(self: PreTrainedModel) -> nn.Module | None:
    """What the model's class gives; a head whose single rows PEFT trains has no bias, and says so."""
    head = type(self).get_output_embeddings(self)
    if type(head).__name__ == "TrainableTokensWrapper" and not hasattr(head, "bias"):
        head.register_parameter("bias", None)
    return head


def _adapter_trains_rows(model: Any) -> bool:
    return any("trainable_tokens_delta" in name for name, _ in unwrap(model).named_parameters())


def trained_tables(model: Any) -> EmbeddingTables:
    """The tables of a model, no adapter's. Raises `UnsupportedModelError` where one trains single rows."""
    if _adapter_trains_rows(model):
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
