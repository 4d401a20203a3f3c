"""How long a text may be that a model reads at once."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel


def longest_input(model: PreTrainedModel) -> int | None:
    """The tokens that a model has positions for; None where its configuration sets no limit.

    RoBERTa and its kin count positions from behind the padding id, so that the first of them are no places.
    """
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    if config.model_type == "vanilla_transformer" and config.position_encoding not in (
        "sinusoidal",
        "learned",
    ):
        return None  # the others have no limit
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return positions if module.padding_idx is None else positions - module.padding_idx - 1
    return positions
