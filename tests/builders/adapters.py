"""Bases and adapters, and the way of an adapter: saved, loaded on its base, merged, loaded again."""

from __future__ import annotations

import warnings

import torch

from hf_embinit import load_adapter, merge_adapter
from hf_embinit.tables import EmbeddingTables

from .tables import assert_consistent
from .tiny_tokenizers import logits, model, tokenizer


def saved_base(kind: str, folder, padding: int = 0):
    t = tokenizer("byte_level")
    m = model(kind, len(t) + padding)
    m.save_pretrained(folder)
    return type(m).from_pretrained(folder).eval(), t


def stirred(wrapped):
    """With every trainable number moved, as after training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in wrapped.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator) / 10)
    return wrapped.eval()


def quietly(work, *given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work(*given, **named)


def round_trip(wrapped, base_class, tmp_path, ids, exact=False):
    """The logits that a PEFT model gives, after checking that they come back.

    A merge adds LoRA's product to a matrix, which rounds; rows are put in their places to the bit (`exact`).
    """
    before = logits(wrapped, ids)
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    loaded = quietly(load_adapter, base_class.from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, ids), before)
    merged = quietly(merge_adapter, loaded)
    after = logits(merged, ids)
    assert torch.equal(after, before) or not exact
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = base_class.from_pretrained(tmp_path / "merged").eval()
    assert torch.equal(logits(again, ids), after)
    assert_consistent(EmbeddingTables(again))
    return before
