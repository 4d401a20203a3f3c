"""The config: names, types, sentences for what cannot work; parameter counts of the paper; import cost."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)


def test_defaults_and_names_of_other_families():
    config = VanillaTransformerConfig(
        hidden_size=64, encoder_layers=2, decoder_layers=4, num_attention_heads=8
    )
    assert (config.d_model, config.num_layers, config.num_decoder_layers, config.num_heads) == (64, 2, 4, 8)
    assert (
        config.hidden_size == 64 and config.num_hidden_layers == 2 and config.intermediate_size == config.d_ff
    )
    plain = VanillaTransformerConfig(vocab_size=50)
    assert plain.decoder_vocab_size == 50 and plain.num_decoder_layers == plain.num_layers == 3
    assert plain.decoder_start_token_id == plain.bos_token_id
    assert not plain.tie_word_embeddings and plain.scale_embeddings and plain.position_encoding_base == 10000


@pytest.mark.parametrize("name", ["num_layers", "num_hidden_layers", "encoder_layers"])
def test_the_decoder_is_as_deep_as_the_encoder_by_any_name(name):
    assert VanillaTransformerConfig(**{name: 2}).num_decoder_layers == 2
    assert VanillaTransformerConfig(**{name: 2, "decoder_layers": 4}).num_decoder_layers == 4


def test_saved_and_loaded_with_its_events(tmp_path):
    events = [
        {"init": "glove_xavier", "seed": 3, "rows": [[0, 50]], "source": {"digest": "ab"}},
        {"init": "mean"},
    ]
    config = VanillaTransformerConfig(
        vocab_size=50, decoder_vocab_size=60, position_encoding="rotary", embinit=events
    )
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is VanillaTransformerConfig
    assert loaded.embinit == events
    assert loaded.to_diff_dict().items() >= {"decoder_vocab_size": 60, "position_encoding": "rotary"}.items()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_heads": 7}, "d_model is 300, which num_heads=7 does not divide; .* does is 6"),
        ({"d_model": -300}, "d_model is -300; it must be at least 1"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be at least 1"),
        (
            {"encoder_attention_heads": 4, "decoder_attention_heads": 6},
            "encoder_attention_heads=4 and decoder_attention_heads=6 are one field, num_heads: give it one",
        ),
        ({"d_model": 64, "hidden_size": 128}, "d_model=64 and hidden_size=128 are one field, d_model"),
        ({"hidden_size": "abc"}, "expected int, got str"),
        ({"num_decoder_layers": 0}, "num_decoder_layers is 0; it must be at least 1"),
        ({"vocab_size": "abc"}, "expected int, got str"),
        ({"dropout_rate": 1.0}, "dropout_rate is 1.0; it must be at least 0 and below 1"),
        ({"position_encoding": "alibi"}, "'sinusoidal', 'learned', 'rotary', 'relative', 'none'.* got alibi"),
        ({"norm_position": "middle"}, "'post', 'pre'"),
        ({"position_encoding": "rotary", "d_model": 30}, "heads of odd width 3"),
        ({"position_encoding_base": 0}, "position_encoding_base is 0; it must be above 1"),
        (
            {"relative_attention_num_buckets": 3},
            "relative_attention_num_buckets is 3; it must be an even number",
        ),
        (
            {"relative_attention_max_distance": 16},
            "relative_attention_max_distance is 16; it must be above half",
        ),
        ({"pad_token_id": 8000}, "pad_token_id is 8000, outside the vocabulary of 8000 tokens"),
        ({"decoder_vocab_size": 3}, "eos_token_id is 3, outside the vocabulary of 3 tokens"),
        ({"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 9}, "needs one vocabulary"),
        ({"scale_embeddings": "yes"}, "expected bool, got str"),
        ({"dropout_rate": 0.9999999}, "dropout_rate is 0.9999999; it must be at least 0 and below 1"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon is inf; it must be above 0 and finite"),
        ({"activation_function": "foo"}, "activation_function is 'foo'; it must be one of .*gelu.*relu"),
        ({"position_scale": 0}, "position_scale is 0; it must be above 0"),
        ({"position_scale": float("inf")}, "position_scale is inf; it must be above 0 and finite"),
        ({"position_scale": 0.5, "position_encoding": "rotary"}, "for position_encoding='sinusoidal' alone"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(arguments, sentence):
    with pytest.raises(Exception, match=sentence):
        VanillaTransformerConfig(**arguments)


# Kim et al. 2024, Table 5: vocabularies, their rounding error (0 where measured), width, millions
TABLE_5 = {
    "multi30k words": (7847, 5888, 0, 300, 11),
    "multi30k mBERT": (6253, 5456, 0, 768, 39),
    "multi30k mT5": (6500, 5500, 50, 768, 39),
    "iwslt2017 words": (27000, 20000, 500, 300, 25),
    "iwslt2017 mBERT": (15000, 16000, 500, 768, 62),
    "iwslt2017 mT5": (18000, 18000, 500, 768, 67),
    "mnli words": (79000, None, 500, 300, 26),
    "mnli BERT": (26000, None, 500, 768, 29),
    "mnli T5": (23000, None, 500, 512, 17),
    "sst2 words": (13435, None, 0, 300, 6),
    "sst2 BERT": (11311, None, 0, 768, 18),
    "sst2 T5": (8800, None, 50, 512, 9),
}


def reproduces(cell: str, **choices) -> bool:
    """Whether a vocabulary that prints as the table's gives the table's number of parameters."""
    source, target, open_by, d_model, table_5 = TABLE_5[cell]
    counts = []
    for shift in (-open_by, open_by):
        config = VanillaTransformerConfig(
            vocab_size=source + shift,
            decoder_vocab_size=target and target + shift,
            d_model=d_model,
            num_heads=10 if d_model == 300 else 8,
            num_labels=3 if "mnli" in cell else 2,
            **choices,
        )
        with torch.device("meta"):
            kind = (
                VanillaTransformerForConditionalGeneration
                if target
                else VanillaTransformerForSequenceClassification
            )
            counts.append(kind(config).num_parameters() / 1e6)
    return counts[0] < table_5 + 0.5 and counts[1] >= table_5 - 0.5


@pytest.mark.parametrize("cell", TABLE_5)
def test_parameter_counts_are_those_of_table_5(cell):
    assert reproduces(cell)


@pytest.mark.parametrize(
    "choices", [{"d_ff": 256}, {"d_ff": 1024}, {"d_ff": 2048}, {"tie_word_embeddings": True}]
)
def test_other_choices_miss_table_5(choices):
    assert not all(reproduces(cell, **choices) for cell in TABLE_5)


def test_the_decoder_may_have_other_sizes():
    config = VanillaTransformerConfig(
        vocab_size=50, decoder_vocab_size=60, num_layers=2, num_decoder_layers=5
    )
    assert config.get_text_config() is config
    decoder = config.get_text_config(decoder=True)
    assert (decoder.vocab_size, decoder.num_hidden_layers) == (60, 5)
