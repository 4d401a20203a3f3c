"""Models built from a config alone: without values (on the meta device), or freshly drawn."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import UnsupportedModelError

ConfigPath = tuple[str, ...]
"""Names from the model's config down to an attribute of it or of a config inside."""


def changed_config(config: PretrainedConfig, changes: dict[ConfigPath, Any]) -> PretrainedConfig:
    """A copy with other values, built as a saved config is loaded: derived values follow, checks run."""
    values = config.to_dict()
    for path, value in changes.items():
        part = values
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
    return type(config).from_dict(values)


def skeleton(model: PreTrainedModel, config: PretrainedConfig) -> PreTrainedModel:
    """A model of `model`'s class on the meta device: names, shapes and attributes, no values."""
    return _build(type(model), config, "meta", 0)


def fresh_model(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A new model of the same config on the CPU in float32, drawn from `seed` as its class draws.

    Raises `UnsupportedModelError` for a model without values, or whose parameters are not its config's.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise UnsupportedModelError(
                f"{name} is on the meta device, so it has no values: load the model first"
            )
    made = _build(type(model), changed_config(model.config, {}), "cpu", seed)
    require_same_parameters(model, made)
    return made


def _build(cls: type[PreTrainedModel], config: PretrainedConfig, device: str, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]), torch.device(device), _quiet():
        torch.default_generator.manual_seed(seed)  # classes draw from the global state
        return cls._from_config(config, dtype=torch.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' warnings about a model that is built for comparison alone."""
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(level)


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter, tied ones under each of their names."""
    return {name: tuple(p.shape) for name, p in module.named_parameters(remove_duplicate=False)}


def require_same_parameters(model: PreTrainedModel, made: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` when a model has other parameters than its config builds."""
    have, want = shapes(model), shapes(made)
    if have == want:
        return
    name = min(k for k in {*have, *want} if have.get(k) != want.get(k))
    raise UnsupportedModelError(
        f"{type(model).__name__} has parameters that are not its config's ({name} is "
        f"{have.get(name, 'missing')}, the config makes {want.get(name, 'none')}): do surgery on the plain "
        f"model, before adapters, pruning or quantising"
    )
