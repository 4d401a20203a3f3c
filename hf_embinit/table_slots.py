"""Where tensors of a model hang: places, slots (one tensor, all its places) and token tables. Writes nothing.

`V` rows of a vocabulary, `D` width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

Role = Literal["input", "output", "per_layer"]
Side = Literal["source", "target", "shared"]


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
    """Rows beyond the vocabulary (Mllama has 8); negative when the table covers a part of it (Gemma 3n)."""
    surplus_moves: bool = False
    """Whether those rows are looked up relative to the end of the vocabulary."""
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
