"""The vanilla encoder-decoder, whose one tokenizer has two vocabularies, given new tokens."""

from __future__ import annotations

import copy

import pytest
import torch

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vocabulary import expand_vocabulary, replace_tokenizer


def test_one_tokenizer_with_two_vocabularies_is_told_the_way_out() -> None:
    """It would put the token into both vocabularies, and one table would lack its row."""
    old = VanillaTransformerTokenizer.build(
        ["ein hund läuft"], ["a dog runs"], source_lang="de", target_lang="en", min_frequency=1
    )
    sizes = {"vocab_size": len(old), "decoder_vocab_size": old.target_vocab_size, "d_model": 16, "d_ff": 16}
    config = VanillaTransformerConfig(**sizes, num_heads=2, num_layers=1)
    m = VanillaTransformerForConditionalGeneration(config).eval()
    for side in ("shared", "source", "target"):
        with pytest.raises(
            InvalidArgumentError, match=r"give both to replace_tokenizer\(model, tokenizer, copy\)"
        ):
            expand_vocabulary(m, old, ["pferd"], side=side)
    encoded = old("ein hund", text_target="a dog", return_tensors="pt")
    before, new = m(**encoded).logits.detach(), copy.deepcopy(old)
    new.add_tokens(["pferd", "horse"])
    replace_tokenizer(m, old, new, "mean")
    torch.testing.assert_close(m(**encoded).logits[..., : before.shape[-1]], before)
    assert [EmbeddingTables(m).vocab_size(s) for s in ("source", "target")] == [
        len(new),
        new.target_vocab_size,
    ]
    assert m(**new("ein pferd", text_target="a horse", return_tensors="pt")).loss.isfinite()
