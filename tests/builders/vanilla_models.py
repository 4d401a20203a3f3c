"""Tiny vanilla models of every kind, and ids for them."""

from __future__ import annotations

import torch

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)

PAD, BOS, EOS = 0, 2, 3
ENCODINGS = ["sinusoidal", "learned", "rotary", "relative", "none"]
KINDS = [
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForCausalLM,
]


def small(kind=VanillaTransformerForConditionalGeneration, seed=0, attn_implementation="sdpa", **choices):
    """A tiny model in evaluation mode, with biases and norms moved away from their initial 0 and 1."""
    sizes = {"vocab_size": 50, "decoder_vocab_size": 60, "d_model": 32, "num_heads": 4, "d_ff": 48}
    sizes |= {"num_layers": 2, "num_decoder_layers": 3, "max_position_embeddings": 64, "num_labels": 3}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = VanillaTransformerConfig(**sizes | choices)
        model = kind._from_config(config, attn_implementation=attn_implementation)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def tokens(*shape, vocab=50, seed=0):
    return torch.randint(4, vocab, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows, side):
    """Token ids and mask of rows of different length, padded on one side."""
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), PAD), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def inputs_for(kind, source, target):
    return {"input_ids": source} | ({"decoder_input_ids": target} if kind is KINDS[0] else {})
