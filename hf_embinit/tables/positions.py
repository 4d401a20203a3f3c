"""Which fixed position encodings a model adds to the rows of its input tables."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..initializers import InputPositions
from ..measures import position_encoding

_OTHER_KINDS = {
    "learned": "this model learns what it adds (position_encoding='learned')",
    "rotary": "this model adds none, it rotates queries and keys (position_encoding='rotary')",
    "relative": "this model adds none, it biases attention (position_encoding='relative')",
    "none": "this model has no positions (position_encoding='none')",
}
_ROTATED = {"roformer"}
"""Models whose table of sines turns queries and keys and is added to nothing."""


def input_positions(model: PreTrainedModel, width: int) -> InputPositions | str:
    """What `model` adds to the scaled rows of width `width`, or why that is nothing fixed.

    Knows the vanilla transformer, and models that keep a frozen table of sines as an embedding, such as
    Marian and Pegasus.
    """
    config: Any = model.config.get_text_config()
    if config.model_type == "vanilla_transformer":
        if config.position_encoding != "sinusoidal":
            return _OTHER_KINDS[config.position_encoding]
        encodings = position_encoding(config.max_position_embeddings, width, config.position_encoding_base)
        scale = math.sqrt(width) if config.scale_embeddings else 1.0
        return InputPositions(encodings, scale, config.position_scale)
    for module in model.modules():
        table = _table_of_sines(module)
        if table is not None and table.shape[1] == width and config.model_type not in _ROTATED:
            scales = (getattr(m, "embed_scale", None) for m in model.modules())
            return InputPositions(
                table.detach().float().cpu(), next((s for s in scales if s is not None), 1.0)
            )
    return f"{type(model).__name__} adds no fixed sines to its rows"


def _table_of_sines(module: nn.Module) -> Tensor | None:
    """The weight of an embedding that is called sinusoidal and not trained."""
    if not (isinstance(module, nn.Embedding) and "Sinusoidal" in type(module).__name__):
        return None
    return None if module.weight.requires_grad or module.weight.is_meta else module.weight
