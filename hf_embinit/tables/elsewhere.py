"""Tables whose values are not where the model has them: cut up over processes, or offloaded.

Of a DTensor, which tensor parallelism and FSDP2 make, and of a parameter that ZeRO-3 has partitioned, every
process reads the whole table, makes the same rows from it, and keeps its own part of the result. So all
processes must call the same functions in the same order, as for a forward pass. ZeRO-3 takes other rows until
DeepSpeed's engine is built, whose optimizer has copies of its own. A table that accelerate has offloaded, to
the disk or from a GPU, is read from there; what is written stays in the CPU's memory.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError
from .table import Location, TiedTensor, is_partitioned

BEFORE = (
    "change the vocabulary before that, in memory or in the files: "
    "hf-embinit expand MODEL --tokens ... --output_dir FOLDER"
)
"""The way out where tables have no place any more for other rows."""
QUANTISED = (
    "quantised, and other rows would be rounded by other scales: change the vocabulary of the original "
    "(hf-embinit expand MODEL --tokens ... --output_dir FOLDER) and quantise afterwards"
)
"""What is wrong with a table of rounded rows, and the way out."""
COMPUTED = (
    "made of other tensors, by a parametrization or a pruning mask, and would not grow: take that off "
    "(torch.nn.utils.parametrize.remove_parametrizations, torch.nn.utils.prune.remove), change the "
    "vocabulary, and put it on again"
)
"""What is wrong with a head whose weight is no parameter, and the way out."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def part_of(whole: Tensor, sharded: Any) -> Tensor:
    """This process's part of a tensor that every process has, cut up as `sharded` is."""
    return _part(whole, sharded.device_mesh, sharded.placements).to_local()


def is_elsewhere(tied: TiedTensor) -> bool:
    """Whether `whole` gives a copy, which `Elsewhere.put` writes back."""
    return is_sharded(tied.tensor) or is_partitioned(tied.tensor) or tied.is_offloaded


def whole(tied: TiedTensor) -> Tensor:
    """The tensor, detached; of a sharded one all parts, from all processes."""
    if is_sharded(tied.tensor):
        return tied.tensor.detach().full_tensor()  # type: ignore[attr-defined]
    if is_partitioned(tied.tensor):
        with importlib.import_module("deepspeed").zero.GatheredParameters(_apart(tied.tensor)):
            return tied.tensor.detach().clone()
    return tied.locations[0].offloaded() if tied.is_offloaded else tied.tensor.detach()


class Elsewhere:
    """Writes such tables of one model, which may be inside wrappers."""

    def __init__(self, model: nn.Module):
        # whose parameters FSDP2 keeps
        self.modules: list[Any] = [m for m in model.modules() if hasattr(m, "_get_fsdp_state")]

    def settle(self) -> None:
        """Hangs the sharded parameters in their places, where a forward pass has left gathered copies."""
        for module in self.modules:
            module.reshard()

    def check(self, tied: TiedTensor) -> None:
        """Raises `UnsupportedModelError` for a sharded tensor that `put` cannot write."""
        if is_partitioned(tied.tensor) and any(map(_is_in_engine, tied.locations)):
            raise UnsupportedModelError(
                f"{tied.name} is sharded by ZeRO-3, and DeepSpeed's engine, whose optimizer has a copy, "
                f"takes no other rows: {BEFORE}"
            )
        registrations = self._registrations(tied.tensor)
        if not registrations and any(map(_is_registered, tied.locations)):
            raise UnsupportedModelError(
                f"{tied.name} is sharded by an FSDP2 around the model that was given: give the outermost "
                f"module, to hf_embinit.expand_vocabulary or initialize, or {BEFORE}"
            )
        for known in registrations:
            if not hasattr(known, "_setattr_on_modules") or _anew(known) is None:
                raise UnsupportedModelError(
                    f"{tied.name} is sharded by FSDP2, which torch {torch.__version__} cannot register anew "
                    f"with other rows: {BEFORE}"
                )

    def put(self, tied: TiedTensor, after: Tensor) -> None:
        """Gives a tensor of which `is_elsewhere` is true the values `after`; it stays the same object."""
        for place in tied.locations if tied.is_offloaded else ():
            hook: Any = place.module._hf_hook
            others = [name for name, _ in place.module.named_parameters(recurse=False)]
            kept = {name: hook.weights_map[name] for name in others if name != place.attribute}
            own = after if place is tied.locations[0] else after.clone()  # as from a file; saving needs it
            hook.weights_map = {**kept, place.attribute: own}
            place.tensor.data = torch.empty_like(after, device="meta")
        if is_sharded(tied.tensor):
            self._put_part(tied.tensor, after)
        if is_partitioned(tied.tensor):
            _partition_anew(tied.tensor, after)

    @torch.no_grad()
    def _put_part(self, tensor: Tensor, after: Tensor) -> None:
        """Keeps this process's part of `after`. With another shape the gradient is dropped, and FSDP2 shards
        the tensor with its new rows."""
        sharded: Any = tensor
        if after.shape == tensor.shape:
            sharded.to_local().copy_(part_of(after, sharded))
            return
        registrations = self._registrations(tensor)
        if not registrations:
            made = nn.Parameter(_part(after, sharded.device_mesh, sharded.placements), tensor.requires_grad)
            _swap(tensor, made)
        for known in registrations:
            _register(known, after, tensor.requires_grad)
            _swap(tensor, known.sharded_param)
            known.sharded_param = tensor
            known._setattr_on_modules(tensor)

    def _registrations(self, tensor: Tensor) -> list[Any]:
        """What FSDP2 holds about a parameter."""
        groups = (
            group
            for module in self.modules
            for state in [module._get_fsdp_state()]
            for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
            if group is not None
        )
        return [known for group in groups for known in group.fsdp_params if known.sharded_param is tensor]


def _is_registered(place: Location) -> bool:
    """Whether FSDP2 keeps a parameter of a module: it has left a hook that knows it."""
    hooks = place.module._load_state_dict_post_hooks.values()
    cells = (cell for hook in hooks for cell in getattr(hook, "__closure__", None) or ())
    return any(hasattr(cell.cell_contents, "sharded_param") for cell in cells)


def _is_in_engine(place: Location) -> bool:
    """Whether DeepSpeed's engine has taken a module that holds a parameter of ZeRO-3."""
    return type(place.module._parameters).__name__ == "ZeROOrderedDict"


def _apart(parameter: Any) -> list[Any]:
    """A parameter of ZeRO-3, unless it is whole already, inside `GatheredParameters`."""
    return [] if parameter.ds_status.name == "AVAILABLE" else [parameter]


def _partition_anew(parameter: Any, after: Tensor) -> None:
    """Has ZeRO-3 cut up a parameter with other values, as one that it has not seen; it stays the same object.
    Inside `GatheredParameters` it stays whole, and values of the same shape are left to its end, which hands
    out those of one process."""
    apart = _apart(parameter)
    if not apart and parameter.shape == after.shape:
        parameter.data.copy_(after)
        return
    parameter.data, parameter.grad = after, None
    del parameter.ds_id  # by which ZeRO-3 knows what it has cut up
    parameter.convert_to_zero_parameters([parameter])
    if not apart:
        parameter.all_gather()


def _part(after: Tensor, mesh: Any, placements: Sequence[Any]) -> Any:
    """The DTensor of values that every process has: nothing is sent."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(after.contiguous(), mesh, placements, src_data_rank=None)


def _anew(known: Any) -> dict[str, Any] | None:
    """The arguments, beside the parameter, with which FSDP2 shards one; None in a torch that has others."""
    have = {"device": known.device, "shard_placement_fn": None, "mesh_info": known.mesh_info}
    function = getattr(known, "_init_sharded_param", None)
    names = [] if function is None else list(inspect.signature(function).parameters)
    if names[:1] != ["param"] or not set(names[1:]) <= set(have):
        return None
    if "shard_placement_fn" in names:
        have["shard_placement_fn"] = lambda parameter: known.fsdp_placement
    return {name: have[name] for name in names[1:]}


def _register(known: Any, after: Tensor, requires_grad: bool) -> None:
    """Has FSDP2 shard `after` in the place of the parameter that it knows."""
    spec = getattr(known, "_unsharded_dtensor_spec", None) or getattr(known, "_tp_spec", None)
    after = after.to(known.device)
    before = after if spec is None else _part(after, spec.mesh, spec.placements)
    parameter = nn.Parameter(before, requires_grad)
    known._init_sharded_param(parameter, **_anew(known) or {})
    if known.post_forward_mesh_info:
        known._init_sharded_post_forward_param_metadata(parameter)
    known.all_gather_outputs = []  # buffers of the old size
    known.__dict__.pop("_unsharded_param", None)


def _swap(old: Tensor, new: Tensor) -> None:
    """Puts the contents of `new` into the object `old`, so that ties and optimizers keep pointing at it."""
    new.__dict__.update(old.__dict__)
    torch.utils.swap_tensors(old, new)
