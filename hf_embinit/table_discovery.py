"""Finds every tensor of a model that has one entry per vocabulary row. Writes nothing.

`V` rows of a vocabulary, `D` width. The tensors decide: two places are tied when they hold the same tensor,
whatever `config.tie_word_embeddings` says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .errors import UnsupportedModelError

Role = Literal["input", "output", "per_layer"]
Side = Literal["source", "target", "shared"]

_HEAD_NAMES = re.compile(
    r"head|decoder|predictions|proj|embed_out|generator|cls|pred_layer|lm_loss|logits|output"
)


@dataclass(eq=False)
class Place:
    """One attribute of one module that holds a tensor: `module.<attribute>`, called `name` from the model."""

    name: str
    module: nn.Module
    attribute: str

    @property
    def tensor(self) -> Tensor:
        """What hangs there now."""
        return getattr(self.module, self.attribute)


@dataclass(eq=False)
class Slot:
    """One tensor, all the places it hangs in, and which of its dimensions counts vocabulary rows."""

    places: list[Place]
    dim: int = 0

    @property
    def name(self) -> str:
        """Parameter path of the first place."""
        return self.places[0].name

    @property
    def tensor(self) -> Tensor:
        """The tensor itself, after a resize too."""
        return self.places[0].tensor

    @property
    def rows(self) -> int:
        """Entries along the vocabulary dimension."""
        return self.tensor.shape[self.dim]


@dataclass(eq=False)
class Table:
    """One matrix with a row per token. Tied tables share their tensor: `tied_to` names the input table."""

    slot: Slot
    role: Role
    side: Side = "shared"
    tied_to: str | None = None
    bias: list[Slot] = field(default_factory=list)
    """Output biases, `[V]` parameters and `[1, V]` buffers such as `final_logits_bias`."""
    surplus: int = 0
    """Rows beyond the vocabulary size in `config` that the architecture itself adds (Mllama has 8)."""
    place: Place | None = None
    """Where this role has the tensor, when the tensor hangs in several places."""

    @property
    def name(self) -> str:
        """Parameter path, such as `model.encoder.embed_tokens.weight`."""
        return (self.place or self.slot.places[0]).name

    @property
    def module(self) -> nn.Module:
        """The module that owns it."""
        return (self.place or self.slot.places[0]).module

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter, `[V, D]` (`[D, V]` when `transposed`)."""
        return self.slot.tensor  # type: ignore[return-value]

    @property
    def transposed(self) -> bool:
        """Whether the parameter is `[D, V]`."""
        return self.slot.dim == 1

    @property
    def num_embeddings(self) -> int:
        """Rows."""
        return self.slot.rows

    @property
    def embedding_dim(self) -> int:
        """Width."""
        return self.parameter.shape[1 - self.slot.dim]

    @property
    def padding_index(self) -> int | None:
        """Row that the embedding module keeps at zero gradient, if it names one."""
        for place in self.slot.places:
            index = getattr(place.module, "padding_idx", None)
            if index is not None:
                return int(index) % self.num_embeddings
        return None


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The `PreTrainedModel` inside PEFT, DistributedDataParallel and torch.compile wrappers."""
    seen: Any = model
    while not isinstance(seen, PreTrainedModel):
        if hasattr(seen, "get_base_model"):
            seen = seen.get_base_model()
        elif isinstance(getattr(seen, "_orig_mod", None), nn.Module):
            seen = seen._orig_mod
        elif isinstance(getattr(seen, "module", None), nn.Module):
            seen = seen.module
        else:
            raise UnsupportedModelError(
                f"{type(model).__name__} is neither a transformers model nor a known wrapper of one"
            )
    return seen


def tensor_places(model: nn.Module) -> dict[int, Slot]:
    """Every parameter and buffer, once each (by identity or common storage), with all its places."""
    slots: dict[int, Slot] = {}
    by_storage: dict[tuple[Any, ...], Slot] = {}
    for module_name, module in model.named_modules(remove_duplicate=True):
        for attribute, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None:
                continue
            place = Place(f"{module_name}.{attribute}" if module_name else attribute, module, attribute)
            slot = slots.get(id(tensor))
            key = _storage_key(tensor)
            if slot is None and key is not None:
                slot = by_storage.get(key)
            if slot is None:
                slot = Slot([])
            slots[id(tensor)] = slot
            if key is not None:
                by_storage[key] = slot
            slot.places.append(place)
    return slots


def _storage_key(tensor: Tensor) -> tuple[Any, ...] | None:
    if tensor.is_meta or tensor.numel() == 0 or type(tensor.data) is not torch.Tensor:
        return None
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _embedding_of(model: Any) -> nn.Module | None:
    """`model.get_input_embeddings()` when that is a `[V, D]` token table, else None."""
    try:
        module = model.get_input_embeddings()
    except (NotImplementedError, AttributeError, TypeError):
        module = getattr(model, "embed_tokens", None)
    weight = getattr(module, "weight", None)
    is_table = isinstance(module, nn.Embedding) or hasattr(module, "num_embeddings")
    return module if is_table and isinstance(weight, Tensor) and weight.dim() == 2 else None


def _part(model: PreTrainedModel, which: str) -> nn.Module | None:
    """The encoder or decoder of an encoder-decoder model."""
    try:
        part = getattr(model, f"get_{which}")()
    except (NotImplementedError, AttributeError, TypeError):
        return None
    return part if isinstance(part, nn.Module) and part is not model else None


def discover(model: PreTrainedModel) -> list[Table]:
    """All tables of `model`. Raises `UnsupportedModelError` when it has no token table."""
    slots = tensor_places(model)
    main = _embedding_of(model)
    encoder, decoder = _part(model, "encoder"), _part(model, "decoder")
    if encoder is decoder:
        encoder = None
    of_encoder = _embedding_of(encoder) if encoder is not None else None
    of_decoder = _embedding_of(decoder) if decoder is not None else None
    if main is None:
        main = of_decoder if of_decoder is not None else of_encoder
    if main is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no [V, D] token table as its input embeddings"
        )

    tables: list[Table] = []
    for module in (main, of_encoder, of_decoder):
        if module is not None:
            slot = slots[id(module.weight)]
            if not any(t.slot is slot for t in tables):
                tables.append(Table(slot, "input", place=_place(slot, module)))
    sides = _two_sides(model, slots, of_encoder, of_decoder)
    for table in tables:
        table.side = sides.get(id(table.slot), "source" if sides else "shared")

    tables += _output_tables(model, slots, tables, bool(sides))
    tables += _per_layer_tables(model, slots, tables)
    for table in tables:
        if table.role == "output":
            table.bias = _output_biases(slots, table, tables)
    return tables


def _place(slot: Slot, module: nn.Module) -> Place:
    return next(p for p in slot.places if p.module is module)


def _two_sides(
    model: PreTrainedModel, slots: dict[int, Slot], of_encoder: nn.Module | None, of_decoder: nn.Module | None
) -> dict[int, Side]:
    """`{id(slot): side}` when encoder and decoder have vocabularies of their own, else empty."""
    if of_encoder is None or of_decoder is None:
        return {}
    source, target = slots[id(of_encoder.weight)], slots[id(of_decoder.weight)]
    if source is target:
        return {}
    if source.rows == target.rows and len(vocabulary_fields(model.config)) < 2:
        return {}
    return {id(source): "source", id(target): "target"}


def vocabulary_fields(config: PreTrainedConfig) -> list[str]:
    """Names of the vocabulary sizes of a model: `vocab_size`, and `decoder_vocab_size` or the like."""
    fields = [k for k, v in vars(config).items() if is_vocabulary_size(k, v)]
    if not fields and all(
        isinstance(getattr(config, part, None), PreTrainedConfig) for part in ("encoder", "decoder")
    ):
        fields = ["encoder.vocab_size", "decoder.vocab_size"]
    return fields


def is_vocabulary_size(key: str, value: Any) -> bool:
    counts = isinstance(value, int) and not isinstance(value, bool)
    return counts and key.endswith("vocab_size") and key != "type_vocab_size"


def _output_tables(
    model: PreTrainedModel, slots: dict[int, Slot], inputs: list[Table], two_sides: bool
) -> list[Table]:
    target: Side = "target" if two_sides else "shared"
    rows = next((t.num_embeddings for t in inputs if t.side == target), inputs[0].num_embeddings)
    heads: list[tuple[nn.Module, int]] = []
    try:
        accessor = model.get_output_embeddings()
    except (NotImplementedError, AttributeError, TypeError):
        accessor = None
    weight = getattr(accessor, "weight", None)
    if isinstance(accessor, nn.Module) and isinstance(weight, Tensor) and weight.dim() == 2:
        heads.append((accessor, 1 if weight.shape[0] != rows and weight.shape[1] == rows else 0))
    input_modules = {
        id(p.module) for t in inputs for p in t.slot.places if isinstance(p.module, nn.Embedding)
    }
    for name, module in model.named_modules():
        if id(module) in input_modules or any(module is head for head, _ in heads):
            continue
        if not isinstance(module, nn.Linear) or module.weight.dim() != 2:
            continue
        tied = any(slots[id(module.weight)] is t.slot for t in inputs)
        if tied or (module.weight.shape[0] == rows and _HEAD_NAMES.search(name)):
            heads.append((module, 0))
        elif module.weight.shape[1] == rows and module.weight.shape[0] != rows and _HEAD_NAMES.search(name):
            heads.append((module, 1))

    tables: list[Table] = []
    for module, dim in heads:
        slot = slots[id(module.weight)]
        tied_to = next((t for t in inputs if t.slot is slot), None)
        if any(t.slot is slot and t.place is not None and t.place.module is module for t in tables):
            continue
        if tied_to is None:
            slot.dim = dim
        tables.append(
            Table(
                slot,
                "output",
                side=tied_to.side if tied_to else target,
                tied_to=tied_to.name if tied_to else None,
                place=_place(slot, module),
            )
        )
    return tables


def _per_layer_tables(model: PreTrainedModel, slots: dict[int, Slot], tables: list[Table]) -> list[Table]:
    """Tables such as Gemma3n's `embed_tokens_per_layer`."""
    known = {id(t.slot) for t in tables}
    return [
        Table(slots[id(module.weight)], "per_layer", side="shared")
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and "per_layer" in name
        and id(slots[id(module.weight)]) not in known
    ]


def _output_biases(slots: dict[int, Slot], table: Table, tables: list[Table]) -> list[Slot]:
    """Biases with one entry per row of an output table: of its module, or of the modules around it."""
    first = next(t for t in tables if t.role == "output" and t.side == table.side)
    found: list[Slot] = []
    for slot in slots.values():
        if any(slot is other for other in found):
            continue
        tensor = slot.tensor
        entries = tensor.dim() == 1 or (tensor.dim() == 2 and tensor.shape[0] == 1)
        if not entries or tensor.shape[-1] != table.num_embeddings or not tensor.is_floating_point():
            continue
        own = any(place.module is table.module for place in slot.places)
        of_other = any(place.module is t.module for place in slot.places for t in tables if t is not table)
        of_linear = all(isinstance(p.module, nn.Linear | nn.LayerNorm) for p in slot.places)
        named = any("bias" in place.attribute for place in slot.places)
        if own or (table is first and named and not of_other and not of_linear):
            slot.dim = tensor.dim() - 1
            found.append(slot)
    return found
