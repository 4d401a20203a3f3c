"""`untied`: output tables with rows of their own, the model otherwise the same, and saved as such."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from builders.tiny_models import t5
from builders.tiny_tokenizers import logits, model

from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError
from hf_embinit.tables import EmbeddingTables, untied


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_an_untied_model_is_the_same_and_loads_untied(kind: str, tmp_path: Any) -> None:
    lm = model(kind, 50)
    ids = torch.tensor([[3, 4, 5]])
    before = logits(lm, ids)
    with untied(lm):
        pass
    (output,) = EmbeddingTables(lm).output_tables
    assert output.tied_to is None and torch.equal(logits(lm, ids), before)
    with torch.no_grad():
        output.parameter[7] += 1
    lm.save_pretrained(tmp_path)
    loaded = type(lm).from_pretrained(tmp_path).eval()
    assert EmbeddingTables(loaded).output_tables[0].tied_to is None
    assert torch.equal(logits(loaded, ids), logits(lm, ids)) and not torch.equal(logits(lm, ids), before)


def test_an_error_ties_again() -> None:
    lm = model("gpt2", 50)
    keys = dict(lm.all_tied_weights_keys)
    with pytest.raises(ZeroDivisionError), untied(lm):
        assert EmbeddingTables(lm).output_tables[0].tied_to is None
        raise ZeroDivisionError
    assert EmbeddingTables(lm).output_tables[0].tied_to is not None
    assert lm.config.tie_word_embeddings and lm.all_tied_weights_keys == keys
    assert lm.lm_head.weight is lm.transformer.wte.weight


def test_an_error_ties_all_places_of_an_input_table_again() -> None:
    sizes = {"hidden_size": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    heads = {"num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2}
    config = transformers.ProphetNetConfig(vocab_size=50, **sizes, **layers, **heads)
    lm = transformers.ProphetNetForCausalLM(config)
    table = lm.prophetnet.word_embeddings.weight
    with pytest.raises(ZeroDivisionError), untied(lm):
        assert lm.prophetnet.decoder.word_embeddings.weight is not table
        raise ZeroDivisionError
    assert lm.prophetnet.decoder.word_embeddings.weight is table and lm.lm_head.weight is table


def test_what_has_no_output_table_or_scales_by_the_tie_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no output table"), untied(model("bert", 50).bert):
        pass
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"), untied(t5()):
        pass
