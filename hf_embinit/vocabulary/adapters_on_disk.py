"""Adapters on a model of `open_checkpoint`: each changed tensor is computed when it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..arguments import FilePath
from ..errors import UnsupportedModelError
from ..tables import EmbeddingTables, StoredRows, checkpoint_of, open_matrices, unwrap

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

_UNDERSTOOD = {
    *("peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type"),
    *("inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout"),
    *("fan_in_fan_out", "use_rslora", "modules_to_save", "layers_to_transform", "layers_pattern"),
    *("rank_pattern", "alpha_pattern", "trainable_token_indices", "ensure_weight_tying", "token_indices"),
    *("init_weights", "runtime_config"),
}
"""Fields of a configuration of PEFT whose value does not matter here; the others must be as by default."""


_MERGED_BYTES = 2**22
"""Bytes of a matrix that are merged at a time; its change takes twice as many in float32, twice."""


def attach_adapter(base: nn.Module, adapter: FilePath, **options: Any) -> PeftModel:
    """What `PeftModel.from_pretrained` gives; `base` may be a model of `open_checkpoint`.

    Raises `UnsupportedModelError` on such a base for an adapter that is not one sum for each tensor.
    """
    from peft import PeftConfig, PeftModel
    from peft.utils import ModulesToSaveWrapper

    if checkpoint_of(unwrap(base)) is not None:
        hub = {key: options[key] for key in ("revision", "subfolder", "token", "cache_dir") if key in options}
        reason = _reason(PeftConfig.from_pretrained(str(adapter), **hub))
        if reason is not None:
            raise UnsupportedModelError(
                f"{adapter} cannot be merged tensor by tensor ({reason}): load its base with from_pretrained"
            )
        open_matrices(unwrap(base))
        options = {"torch_device": "cpu", **options}
    model = PeftModel.from_pretrained(base, str(adapter), **options)
    opened = checkpoint_of(unwrap(base)) is not None
    for name, module in model.named_modules() if opened else ():
        if not isinstance(module, ModulesToSaveWrapper):
            continue
        if any(parameter.is_meta for parameter in module.modules_to_save.parameters()):
            raise UnsupportedModelError(
                f"{adapter} has {name.removeprefix('base_model.model.')} as a whole, which is not read by "
                f"tensors: load its base with from_pretrained"
            )
    return model


def _reason(config: PeftConfig) -> str | None:
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind not in ("LORA", "TRAINABLE_TOKENS"):
        return f"it is of the kind {kind}"
    plain = type(config)()
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in _UNDERSTOOD or not value or value == getattr(plain, field.name):
            continue
        if field.name == "init_lora_weights" and value == "gaussian":
            continue
        return f"it has {field.name}={value!r:.60}"
    return None


def defer(model: PeftModel, tables: EmbeddingTables) -> None:
    """Merges what changes `tables`, and leaves every other matrix to `save_checkpoint`.

    `merge_and_unload` then has nothing to add. Tables with LoRA of their own are read as a whole.
    """
    from peft.tuners.lora import LoraLayer
    from peft.tuners.trainable_tokens import TrainableTokensLayer

    base = unwrap(model)
    stored: Any = checkpoint_of(base)
    of_tables = {id(table.parameter) for table in tables.tables}
    named = base.named_parameters(remove_duplicate=False)
    places = {id(parameter): place.replace(".base_layer.", ".") for place, parameter in named}
    on_tables: list[Any] = []
    deferred: dict[str, Any] = {}
    for module in base.modules():
        if not isinstance(module, LoraLayer) or not set(module.active_adapters) & module.scaling.keys():
            continue
        weight: Any = module.get_base_layer().weight
        if weight.is_meta:
            raise UnsupportedModelError(
                f"the files hold {places[id(weight)]}, which the adapter changes, in another form: load the "
                f"base with from_pretrained"
            )
        if id(weight) not in of_tables:
            deferred[places[id(weight)]] = module
        elif isinstance(weight.detach(), StoredRows):
            on_tables.append(module.get_base_layer())
    for table in on_tables:
        table.weight = nn.Parameter(table.weight.detach().whole(), table.weight.requires_grad)
    for module in base.modules():
        if isinstance(module, TrainableTokensLayer):
            _put_rows(module)
    for place, module in deferred.items():
        module.merged_adapters = list(module.active_adapters)
        stored.changes[place] = partial(_merged, module)


def _merged(layer: Any, stored: StoredRows) -> Iterator[Tensor]:
    """The rows of a layer's weight with the adapters that were active, by blocks."""
    from peft.tuners import lora

    adapters, first = list(layer.merged_adapters), 0
    by_rows = type(layer) in (lora.Linear, lora.Embedding)
    for values in stored.blocks(_MERGED_BYTES) if by_rows else [stored.whole()]:
        with _of_rows(layer, adapters if by_rows else [], first, len(values)):
            yield _with_adapters(layer, adapters, values)
        first += len(values)


@contextlib.contextmanager
def _of_rows(layer: Any, adapters: Sequence[str], first: int, count: int) -> Iterator[None]:
    """Inside, adapters of a layer change nothing but `count` rows of its weight."""
    kept = []
    for adapter in adapters:
        if adapter in layer.lora_embedding_A:
            held, key, dim = layer.lora_embedding_A._parameters, adapter, 1
        elif layer.fan_in_fan_out:  # a weight whose rows are inputs
            held, key, dim = layer.lora_A[adapter]._parameters, "weight", 1
        else:
            held, key, dim = layer.lora_B[adapter]._parameters, "weight", 0
        kept.append((held, key, held[key]))
        held[key] = nn.Parameter(held[key].detach().narrow(dim, first, count), requires_grad=False)
    try:
        yield
    finally:
        for held, key, parameter in kept:
            held[key] = parameter


def _with_adapters(layer: Any, adapters: list[str], values: Tensor) -> Tensor:
    """What PEFT makes of `values` as the layer's weight."""
    base = layer.get_base_layer()
    kept = base.weight
    base.weight, layer.merged_adapters = nn.Parameter(values, requires_grad=False), []
    try:
        layer.merge(adapter_names=adapters)
        return base.weight.detach()
    finally:
        base.weight, layer.merged_adapters = kept, adapters


def _put_rows(layer: Any) -> None:
    """Puts trained rows into a table whose rows are in a file."""
    base = layer.get_base_layer()
    rows = base.weight.detach()
    if not isinstance(rows, StoredRows):
        return
    for adapter in layer.active_adapters:
        ids = torch.tensor(layer.token_indices[adapter])
        rows = rows.with_rows(layer.trainable_tokens_delta[adapter], ids)
    base.weight = nn.Parameter(rows, base.weight.requires_grad)
    layer.merged_adapters = list(layer.active_adapters)
