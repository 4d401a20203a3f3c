"""Locations of a model's tensors, ties between them, and token tables. Writes nothing.

`V` rows of a vocabulary, `D` width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..tokens import Side

Role = Literal["input", "output", "per_layer"]


def is_partitioned(tensor: Tensor) -> bool:
    """Whether ZeRO-3 keeps the values of a parameter in parts: it is a placeholder with no entries then."""
    return hasattr(tensor, "ds_id")


def shape_of(tensor: Tensor) -> torch.Size:
    """The shape of a tensor, where processes have parts of it that of the whole."""
    return getattr(tensor, "ds_shape", tensor.shape)


@dataclass(eq=False)
class Location:
    """One attribute of one module that holds a tensor: `module.<attribute>`, called `name` from the model."""

    name: str
    module: nn.Module
    attribute: str

    @property
    def tensor(self) -> Tensor:
        """The tensor that is there now."""
        return getattr(self.module, self.attribute)

    @property
    def is_offloaded(self) -> bool:
        """Whether the tensor is on the meta device, and accelerate has its values on the disk or the CPU."""
        hook: Any = getattr(self.module, "_hf_hook", None)
        return (
            self.tensor.is_meta
            and getattr(hook, "offload", False)
            and self.attribute in (hook.weights_map or ())
        )

    def offloaded(self) -> Tensor:
        """These values."""
        hook: Any = self.module._hf_hook
        return hook.weights_map[self.attribute].detach()


@dataclass(eq=False)
class TiedTensor:
    """One tensor, all of its locations, and the dimension that counts vocabulary rows."""

    locations: list[Location]
    dim: int = 0

    @property
    def name(self) -> str:
        """Parameter path of the first location."""
        return self.locations[0].name

    @property
    def tensor(self) -> Tensor:
        """The tensor itself, after a resize too."""
        return self.locations[0].tensor

    @property
    def is_offloaded(self) -> bool:
        """Whether accelerate has the values of all locations, on the disk or the CPU."""
        return all(location.is_offloaded for location in self.locations)

    @property
    def rows(self) -> int:
        """Entries along the vocabulary dimension."""
        return shape_of(self.tensor)[self.dim]

    def put(self, tensor: Tensor) -> None:
        """Hangs another tensor in every place."""
        for location in self.locations:
            module = location.module
            held = module._parameters if location.attribute in module._parameters else module._buffers
            held[location.attribute] = tensor  # type: ignore[assignment]


ExtraRows = Literal["fixed", "moving", "padding"]


@dataclass(eq=False)
class Table:
    """One matrix with a row a token. Tied tables share their tensor: `tied_to` names the input table."""

    tied: TiedTensor
    role: Role
    side: Side = "shared"
    tied_to: str | None = None
    bias: list[TiedTensor] = field(default_factory=list)
    """Output biases, `[V]` parameters and `[1, V]` buffers such as `final_logits_bias`."""
    extra_rows: int = 0
    """Rows beyond the vocabulary (Mllama has 8); negative when the table covers only a part of it (Gemma 3n).
    """
    extra_rows_are: ExtraRows = "fixed"
    """What they are: rows with ids of their own, which stay; rows that are addressed from the end of the
    vocabulary, so that they move when it grows; or padding, which a resize drops."""
    location: Location | None = None
    """The location for this role, when the tensor has several."""

    @property
    def rows_beyond(self) -> int:
        """Rows beyond the vocabulary that are there after a resize, too."""
        return 0 if self.extra_rows_are == "padding" else max(self.extra_rows, 0)

    @property
    def name(self) -> str:
        """Parameter path, such as `model.encoder.embed_tokens.weight`."""
        return (self.location or self.tied.locations[0]).name

    @property
    def module(self) -> nn.Module:
        """The module that owns it."""
        return (self.location or self.tied.locations[0]).module

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter, `[V, D]` (`[D, V]` when `transposed`)."""
        return self.tied.tensor  # type: ignore[return-value]

    @property
    def transposed(self) -> bool:
        """Whether the parameter is `[D, V]`."""
        return self.tied.dim == 1

    @property
    def num_embeddings(self) -> int:
        """Rows."""
        return self.tied.rows

    @property
    def embedding_dim(self) -> int:
        """Width."""
        return shape_of(self.parameter)[1 - self.tied.dim]

    @property
    def padding_index(self) -> int | None:
        """The padding row of the embedding module, whose gradient is zero; None without one."""
        for location in self.tied.locations:
            index = getattr(location.module, "padding_idx", None)
            if index is not None:
                return int(index) % self.num_embeddings
        return None


def tied_tensors(model: nn.Module) -> dict[int, TiedTensor]:
    """Every parameter and buffer by `id`; those that share their storage are one, with all locations."""
    tensors: dict[int, TiedTensor] = {}
    by_storage: dict[tuple[Any, ...], TiedTensor] = {}
    for module_name, module in model.named_modules(remove_duplicate=True):
        for attribute, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None:
                continue
            location = Location(f"{module_name}.{attribute}" if module_name else attribute, module, attribute)
            tied = tensors.get(id(tensor))
            key = _storage_key(tensor)
            if tied is None and key is not None:
                tied = by_storage.get(key)
            if tied is None:
                tied = TiedTensor([])
            tensors[id(tensor)] = tied
            if key is not None:
                by_storage[key] = tied
            tied.locations.append(location)
    _tie_offloaded(model, tensors)
    return tensors


def _tie_offloaded(model: nn.Module, tensors: dict[int, TiedTensor]) -> None:
    """Makes one of two offloaded tensors that are tied: a forward pass leaves each place one of its own."""
    places = {place.name: tied for tied in tensors.values() for place in tied.locations if place.is_offloaded}
    for target, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        one, other = places.get(source), places.get(target)
        if one is None or other is None or one is other:
            continue
        if torch.equal(one.locations[0].offloaded(), other.locations[0].offloaded()):
            one.locations += other.locations
            places.update({place.name: one for place in other.locations})
            tensors.update({i: one for i, tied in tensors.items() if tied is other})


def _storage_key(tensor: Tensor) -> tuple[Any, ...] | None:
    if tensor.is_meta or tensor.numel() == 0 or type(tensor.data) is not torch.Tensor:
        return None
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
