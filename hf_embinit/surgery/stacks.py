"""Finds a model's stacks of layers by structure, and reorders their layers or removes some.

A stack is a list of modules whose length follows a number in the config. `n` layers; an order `[m]` gives for
each new position the old one whose layer goes there. What depends on the position (the key-value cache's
index, T5's relative positions in the first layer, the norm that ModernBERT's first layer lacks) stays at the
position, so that the saved config builds the saved model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import UnsupportedModelError
from .skeletons import ConfigPath, changed_config, require_same_parameters, shapes, skeleton

Order = Sequence[int]

_COUNT = re.compile(r"layer|depth|^(num|n)_blocks?$")
"""Names of numbers of layers in configs; which of them count a stack is tried out."""
_PER_LAYER = re.compile(r"layer|depth|block|pattern|intermediate_size|window")
"""Names of lists with an entry for each layer in configs."""
_INDICES = re.compile(r"(layers|idx|idxs|ids|indices|indexes)$")
"""Names of lists of layer indices in configs, such as `mlp_only_layers`."""


@dataclass
class Stack:
    """Layers whose number is one value in the config, or the length of a list in it."""

    key: ConfigPath
    """Path of that number or list in the config."""
    size: int
    paths: list[str]
    """Lists of modules, one entry a layer each (XLM keeps four lists a stack)."""
    lists: dict[ConfigPath, Any]
    """Lists in the config about these layers."""

    def config_changes(self, order: Order) -> dict[ConfigPath, Any]:
        """The config values for layers in `order`."""
        changes: dict[ConfigPath, Any] = {} if self.key in self.lists else {self.key: len(order)}
        for path, values in self.lists.items():
            if len(values) == self.size:
                changes[path] = [values[old] for old in order]
            else:
                changes[path] = [new for new, old in enumerate(order) if old in values]
        return changes


def find_stacks(model: PreTrainedModel, made: PreTrainedModel) -> list[Stack]:
    """The stacks of a model, given the skeleton that its config makes.

    Each number in the config that may count layers is changed (where none does: each list that may, as in
    Nemotron-H), and the lists of modules that follow are its stack. Raises `UnsupportedModelError` when there
    are none, as in ALBERT, whose layers share their parameters.
    """
    lengths = _module_lists(made)
    stacks: list[Stack] = []
    problems: dict[ConfigPath, str] = {}
    tried = []
    for kind in (int, list):
        for path, size, holder in [] if stacks else list(_counts(model.config, (), kind)):
            stack = Stack(path, size, [], _layer_lists(holder, path, size))
            tried.append(f"{'.'.join(path)}={size}")
            for other in ([*range(size), size - 1], [*range(size - 1)]):
                try:
                    config = changed_config(model.config, stack.config_changes(other))
                    lengths_then = _module_lists(skeleton(model, config))
                    break
                except Exception as error:  # a config may refuse a number in any way
                    problem = f"{'.'.join(path)} cannot be changed: {_first_line(error)}"
            else:
                problems[path[:-1]] = problem
                continue
            known = {p for s in stacks for p in s.paths}
            follow = [p for p, n in lengths.items() if n == size and lengths_then.get(p) == len(other)]
            inner = [p for p in follow if any(p.startswith(f"{q}.") for q in follow)]
            stack.paths = [p for p in follow if p not in inner and p not in known]
            if stack.paths:
                stacks.append(stack)
    done = {stack.key[:-1] for stack in stacks}
    # no half work, such as a vision tower's layers without the text's
    if not stacks or not done.issuperset(problems):
        reason = "; ".join(problems.values()) or (
            f"no list of modules follows {' or '.join(tried) or 'any number in its config'}: its layers "
            f"share their parameters or are not kept in a list"
        )
        raise UnsupportedModelError(
            f"{type(model).__name__} has no list of layers that surgery can work on ({reason})"
        )
    return stacks


def rearrange(model: PreTrainedModel, choose: Callable[[int], Order]) -> dict[str, Any]:
    """Puts the layers of every stack of `n` in the order `choose(n)`, without those that it leaves out.

    Returns details for the manifest: `layers` (the order of each list of modules) and `stay` (parts that kept
    their position). Modules are moved and no value is touched, so it works on the meta device too. Raises
    `UnsupportedModelError`, with the model unchanged, when the config cannot describe the result.
    """
    before = skeleton(model, changed_config(model.config, {}))
    require_same_parameters(model, before)
    stacks = find_stacks(model, before)
    orders = [list(choose(stack.size)) for stack in stacks]
    changes: dict[ConfigPath, Any] = {}
    for stack, order in zip(stacks, orders, strict=True):
        changes |= stack.config_changes(order)
    try:
        after = skeleton(model, changed_config(model.config, changes))
    except Exception as error:  # a config may refuse a combination in any way
        named = ", ".join(f"{'.'.join(path)}={value}" for path, value in changes.items())
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be built with {named}: {_first_line(error)}"
        ) from error
    plans = [
        _plan(before, after, path, order)
        for stack, order in zip(stacks, orders, strict=True)
        for path in stack.paths
    ]
    for plan in plans:
        _carry_out(before, plan)
    if shapes(before) != shapes(after):
        raise UnsupportedModelError(
            f"the layers of {type(model).__name__} differ by position as its config cannot describe"
        )
    for plan in plans:
        _carry_out(model, plan)
    _follow(model, before, after)
    stay = sorted({f"{plan.path}.*.{path}" for plan in plans for path in plan.stays})
    return {"layers": {plan.path: plan.order for plan in plans}, **({"stay": stay} if stay else {})}


@dataclass
class _Plan:
    """The change of one list of modules."""

    path: str
    order: list[int]
    stays: dict[str, list[int | None]] = field(default_factory=dict)
    """Part of a layer -> for each new position the old one whose part goes there (None: no such part)."""


def _plan(before: PreTrainedModel, after: PreTrainedModel, path: str, order: list[int]) -> _Plan:
    have, want = _layers(before, path), _layers(after, path)
    moved = [have[old] for old in order]
    parts = {part for a, b in zip(moved, want, strict=True) for part in _misfits(a, b, "")}
    parts = {p for p in parts if not any(p.startswith(f"{q}.") for q in parts)}
    plan = _Plan(path, order)
    for part in sorted(parts):
        there = [_part(layer, part) for layer in have]
        needed = [_part(layer, part) for layer in want]
        if part == "":
            raise UnsupportedModelError(
                f"{type(before).__name__} has layers of several kinds in {path}, and its config fixes which "
                f"kind stands where"
            )
        plan.stays[part] = _assign(there, needed, order, f"{path}.*.{part}")
    return plan


def _assign(
    there: list[nn.Module | None], needed: list[nn.Module | None], order: list[int], name: str
) -> list[int | None]:
    """For each new position the old position whose part fits.

    That is its own layer's, else the one that was there, else the first that is free.
    """
    chosen: list[int | None] = [None] * len(order)
    free = set(range(len(there)))
    open_positions = []
    for new, old in enumerate(order):
        if needed[new] is None:
            continue
        if _fits(there[old], needed[new]):
            chosen[new] = old
            free.discard(old)
        else:
            open_positions.append(new)
    for new in open_positions:
        fitting = [old for old in (new, *range(len(there))) if old in free and _fits(there[old], needed[new])]
        if not fitting:
            raise UnsupportedModelError(f"no layer has the {name} that position {new} needs")
        chosen[new] = fitting[0]
        free.discard(fitting[0])
    return chosen


def _carry_out(model: PreTrainedModel, plan: _Plan) -> None:
    stack = model.get_submodule(plan.path)
    assert isinstance(stack, nn.ModuleList)
    layers = _layers(model, plan.path)
    parts = {part: [_part(layer, part) for layer in layers] for part in plan.stays}
    del stack[:]
    stack.extend(layers[old] for old in plan.order)
    for part, sources in plan.stays.items():
        parent_path, _, name = part.rpartition(".")
        for layer, source in zip(stack, sources, strict=True):
            parent = layer.get_submodule(parent_path)
            if source is not None:
                setattr(parent, name, parts[part][source])  # where it was missing it may be an attribute None
            elif name in parent._modules:
                del parent._modules[name]


def _layers(model: PreTrainedModel, path: str) -> list[nn.Module]:
    return list(model.get_submodule(path)._modules.values())  # type: ignore[arg-type]


def _part(layer: nn.Module, path: str) -> nn.Module | None:
    module: nn.Module | None = layer
    for name in path.split(".") if path else ():
        module = module._modules.get(name) if module is not None else None
    return module


def _misfits(have: nn.Module, want: nn.Module, at: str) -> Iterator[str]:
    """Paths of the outermost parts in which two modules differ in class, parameters or parts."""
    if type(have) is not type(want) or _own_shapes(have) != _own_shapes(want):
        yield at
        return
    for name in {**have._modules, **want._modules}:
        a, b = have._modules.get(name), want._modules.get(name)
        path = f"{at}.{name}" if at else name
        if a is not None and b is not None:
            yield from _misfits(a, b, path)
        elif a is not b:
            yield path


def _fits(have: nn.Module | None, want: nn.Module | None) -> bool:
    if have is None or want is None:
        return have is want
    return not any(True for _ in _misfits(have, want, ""))


def _own_shapes(module: nn.Module) -> dict[str, tuple[int, ...] | None]:
    return {name: None if p is None else tuple(p.shape) for name, p in module._parameters.items()}


_MISSING = object()


def _follow(model: PreTrainedModel, before: PreTrainedModel, after: PreTrainedModel) -> None:
    """Copies what differs between the modules and configs of two skeletons: layer indices, counts, kinds."""
    old_modules, new_modules = dict(before.named_modules()), dict(after.named_modules())
    done: set[int] = set()
    for path, module in model.named_modules():
        old, new = old_modules.get(path), new_modules.get(path)
        if old is None or new is None or type(old) is not type(new):
            continue
        for name in set(old._buffers) - set(new._buffers):  # of a kind of layer that is gone
            delattr(module, name)
        for name, value in vars(new).items():
            was = vars(old).get(name, _MISSING)
            if isinstance(value, PretrainedConfig):
                mine = vars(module).get(name)
                if isinstance(mine, PretrainedConfig) and isinstance(was, PretrainedConfig):
                    _follow_config(mine, was, value, done)
            elif _plain(value) and (type(value) is not type(was) or value != was):
                setattr(module, name, value)


def _follow_config(
    config: PretrainedConfig, old: PretrainedConfig, new: PretrainedConfig, done: set[int]
) -> None:
    if id(config) in done:
        return
    done.add(id(config))
    for name, value in vars(new).items():
        was = vars(old).get(name, _MISSING)
        mine = vars(config).get(name)
        if isinstance(value, PretrainedConfig):
            if isinstance(mine, PretrainedConfig) and isinstance(was, PretrainedConfig):
                _follow_config(mine, was, value, done)
        elif _plain(value) and (type(value) is not type(was) or value != was):
            setattr(config, name, value)


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_plain(v) for v in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _module_lists(model: PreTrainedModel) -> dict[str, int]:
    return {name: len(m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)}


def _counts(
    config: PretrainedConfig, at: ConfigPath, kind: type
) -> Iterator[tuple[ConfigPath, int, PretrainedConfig]]:
    """Numbers in a config and its sub-configs that may count layers (or lists whose lengths may)."""
    value: Any
    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            yield from _counts(value, (*at, name), kind)
        elif type(value) is kind and _COUNT.search(name):
            size: Any = len(value) if isinstance(value, list) else value
            if size > 0:
                yield (*at, name), size, config


def _layer_lists(holder: PretrainedConfig, key: ConfigPath, size: int) -> dict[ConfigPath, Any]:
    """Lists next to a number of layers that have an entry a layer, or name some of the layers by index."""
    lists = {}
    for name, values in vars(holder).items():
        if not isinstance(values, (list, tuple)) or not values:
            continue
        per_layer = len(values) == size and _PER_LAYER.search(name) is not None
        indices = (
            _INDICES.search(name) is not None
            and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < size for v in values)
            and len(set(values)) == len(values)
        )
        if per_layer or (indices and len(values) < size):
            lists[key[:-1] + (name,)] = list(values)  # noqa: RUF005  (Python 3.10 reads no star there)
    return lists


def _first_line(error: Exception) -> str:
    cause: BaseException = error.__cause__ or error
    return (str(cause) or type(cause).__name__).strip().splitlines()[0]
