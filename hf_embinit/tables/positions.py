"""What a model does to the rows of an input table before its first layer: a factor, and fixed positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..initializers import InputPositions
from ..measures import position_encoding
from .table import Table

_OTHER_KINDS = {
    "learned": "this model learns what it adds (position_encoding='learned')",
    "rotary": "this model adds none, it rotates queries and keys (position_encoding='rotary')",
    "relative": "this model adds none, it biases attention (position_encoding='relative')",
    "none": "this model has no positions (position_encoding='none')",
}
_FACTORS = ("embed_scale", "embedding_multiplier", "embedding_scale")
"""Attributes of an embedding, or of the module around it, that hold its factor: ours, Bart's and Gemma's;
Granite's; HRM's."""


def input_scale(model: PreTrainedModel, table: Table) -> float:
    """What `model` multiplies the rows of the input table `table` by: 1 as in BERT, sqrt(D), or its own."""
    for module in _around(model, table):
        for name in _FACTORS:
            factor = getattr(module, name, None)
            if factor is not None and not (isinstance(factor, Tensor) and factor.is_meta):
                return float(factor)
    kind = model.config.get_text_config().model_type
    return math.sqrt(table.embedding_dim) if kind == "ctrl" or "gemma" in kind else 1.0


def input_positions(model: PreTrainedModel, table: Table) -> InputPositions | str:
    """What `model` adds to the scaled rows of the input table `table`, or why that is nothing fixed.

    Knows the vanilla transformer, and the models of transformers that keep a frozen table of sines or
    compute one: CTRL, M2M100, Marian, NLLB-MoE, Pegasus, XGLM and their kin. Row 0 is what the first
    token of a text gets.
    """
    config: Any = model.config.get_text_config()
    width, scale = table.embedding_dim, input_scale(model, table)
    if config.model_type == "vanilla_transformer":
        if config.position_encoding != "sinusoidal":
            return _OTHER_KINDS[config.position_encoding]
        encodings = position_encoding(config.max_position_embeddings, width, config.position_encoding_base)
        return InputPositions(encodings, scale, config.position_scale)
    beside = [m for module in _around(model, table) for m in (module, *module.children())]
    name = type(model).__name__
    for sines in (_sines(module, config, width) for module in beside):
        if sines is None:
            continue
        if sines.is_meta:
            return f"the sines that {name} adds are on the meta device, so they have no values here"
        if sines.requires_grad:  # FSMT as transformers 5 makes it
            return f"{name} trains the sines that it adds"
        return InputPositions(sines.float().cpu(), scale)
    return f"{name} is not known to add fixed sines to its rows"


def _around(model: PreTrainedModel, table: Table) -> list[nn.Module]:
    """The modules that hold `table`, and the one right around each."""
    holders = [location.module for location in table.tied.locations]
    return [m for m in model.modules() if any(inner in holders for inner in (m, *m.children()))]


def _sines(module: nn.Module, config: Any, width: int) -> Tensor | None:
    """`[P, D]`: what `module` returns for the tokens of a text, where that is sines."""
    sines: Any
    if hasattr(module, "pos_encoding"):  # CTRL
        sines = module.pos_encoding
    elif "Sinusoidal" not in type(module).__name__:
        return None
    elif hasattr(module, "max_scale"):  # Pegasus-X, which keeps no table
        sines = module(torch.zeros(1, config.max_position_embeddings, width))[0]
    else:
        sines = getattr(module, "weights", getattr(module, "weight", None))
    if not isinstance(sines, Tensor) or sines.shape[1:] != (width,):
        return None
    padding: int | None = getattr(module, "padding_idx", None)
    first = 0 if padding is None else padding + 1
    return sines[module.offset if config.model_type == "xglm" else first :]
