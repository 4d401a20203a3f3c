"""The vanilla models saved, loaded by the Auto classes and as remote code, tied, frozen and resized."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from builders.vanilla_models import ENCODINGS, KINDS, inputs_for, small, tokens
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from hf_embinit.models import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from hf_embinit.models.blocks_vanilla_transformer import sinusoidal_table


@pytest.mark.parametrize("kind", KINDS)
def test_position_scale_multiplies_the_positions_also_when_loaded(kind, tmp_path):
    scaled, as_published = (small(kind, position_scale=scale) for scale in (0.1, 1))
    stacks = [m for m in scaled.modules() if type(m).__name__ == "PositionEncoding"]
    assert stacks and all(torch.equal(m.table, sinusoidal_table(64, 32) * 0.1) for m in stacks)
    ids = tokens(2, 7)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if kind is KINDS[0] else {})
    assert not torch.allclose(scaled(**inputs).logits, as_published(**inputs).logits, atol=1e-3)
    scaled.save_pretrained(tmp_path)
    assert torch.equal(kind.from_pretrained(tmp_path)(**inputs).logits, scaled(**inputs).logits)


def test_a_checkpoint_from_before_position_scale_gives_the_same_numbers(tmp_path):
    model, ids = small(), tokens(2, 7)
    assert torch.equal(model.model.encoder.positions.table, sinusoidal_table(64, 32))  # to the last bit
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("position_scale") == 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.position_scale == 1
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_by_the_auto_classes(kind, encoding, tmp_path):
    auto = dict(
        zip(
            KINDS,
            [AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoModelForCausalLM],
            strict=True,
        )
    )[kind]
    model = small(
        kind, position_encoding=encoding, norm_position="pre", embinit=[{"init": "xavier", "seed": 0}]
    )
    model.save_pretrained(tmp_path)
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is kind and loaded.config.embinit == [{"init": "xavier", "seed": 0}]
    assert not info["missing_keys"] and not info["unexpected_keys"]
    inputs = inputs_for(kind, tokens(2, 9), tokens(2, 7))
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is VanillaTransformerModel
    assert hasattr(base, "encoder") == (kind is not KINDS[2]) and hasattr(base, "decoder") == (
        kind is not KINDS[1]
    )
    states = base(**inputs).last_hidden_state
    assert torch.equal(states, model.model(**inputs).last_hidden_state)


@pytest.mark.parametrize(
    "choices",
    [
        {"tie_word_embeddings": True},
        {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 50},
        {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": 50, "tie_word_embeddings": True},
    ],
)
def test_ties_survive_saving_and_resizing(choices, tmp_path):
    model = small(**choices)

    def tables(model):
        base = model.model
        return [base.encoder.embed_tokens.weight, base.decoder.embed_tokens.weight, model.lm_head.weight]

    def tied(model):
        encoder, decoder, head = tables(model)
        assert (encoder is decoder) == model.config.share_encoder_decoder_embeddings
        assert (head is decoder) == model.config.tie_word_embeddings
        return model

    tied(model).save_pretrained(tmp_path)
    loaded = tied(type(model).from_pretrained(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(tables(loaded), tables(model), strict=True))
    assert torch.equal(loaded.lm_head.bias, model.lm_head.bias)
    if model.config.share_encoder_decoder_embeddings:
        tied(loaded).resize_token_embeddings(57)
        assert [len(t) for t in tables(tied(loaded))] == [57] * 3
        with pytest.raises(ValueError, match="share_encoder_decoder_embeddings=True"):
            loaded.resize_decoder_token_embeddings(60)
    else:
        loaded.resize_decoder_token_embeddings(64)
        assert [len(t) for t in tables(tied(loaded))] == [50, 64, 64]
    assert loaded.lm_head.bias.shape == loaded.lm_head.weight.shape[:1]


def test_loads_as_remote_code_where_hf_embinit_is_not_installed(tmp_path):
    for kind, auto in zip(KINDS, ["Seq2SeqLM", "SequenceClassification", "CausalLM"], strict=True):
        folder = tmp_path / auto
        model = small(kind, position_encoding="relative")
        model.save_pretrained(folder)
        inputs = inputs_for(kind, tokens(2, 9), tokens(2, 7))
        states = model.model(**inputs).last_hidden_state
        torch.save((inputs, model(**inputs).logits, states), folder / "expected.pt")
    code = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
sys.modules["hf_embinit"] = None  # as if it were not installed
import torch, transformers
for name in ("Seq2SeqLM", "SequenceClassification", "CausalLM"):
    folder = {str(tmp_path)!r} + "/" + name
    model = getattr(transformers, "AutoModelFor" + name).from_pretrained(folder, trust_remote_code=True)
    base = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
    inputs, logits, states = torch.load(folder + "/expected.pt")
    assert torch.equal(model(**inputs).logits, logits)
    assert torch.equal(base(**inputs).last_hidden_state, states)
    assert type(model).__module__.startswith("transformers_modules.")
    model.save_pretrained(folder + "/again")
    transformers.AutoModel.from_pretrained(folder + "/again", trust_remote_code=True)
"""
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("mean_resizing", [True, False])
def test_resizing_either_side_keeps_the_other(mean_resizing, tmp_path):
    model = small()
    inputs = inputs_for(KINDS[0], tokens(2, 9), tokens(2, 7))
    with torch.no_grad():  # a graph from before would keep the old shapes
        before = model(**inputs).logits
    model.resize_token_embeddings(55, mean_resizing=mean_resizing)
    assert model.config.vocab_size == 55 and model.config.decoder_vocab_size == 60
    assert torch.equal(model(**inputs).logits, before)
    model.resize_decoder_token_embeddings(67, pad_to_multiple_of=8, mean_resizing=mean_resizing)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (55, 72)
    assert model.lm_head.weight.shape == (72, 32) and model.lm_head.bias.shape == (72,)
    torch.testing.assert_close(model(**inputs).logits[..., :60], before)
    model(tokens(2, 9, vocab=55), labels=tokens(2, 7, vocab=72)).loss.backward()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    loaded.resize_token_embeddings(50)
    loaded.resize_decoder_token_embeddings(60)
    torch.testing.assert_close(loaded(**inputs).logits, before)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_resizing_a_model_of_one_vocabulary(kind):
    model = small(kind)
    before = model(tokens(2, 9)).logits
    model.resize_token_embeddings(58)
    after = model(tokens(2, 9)).logits
    torch.testing.assert_close(after[..., : before.shape[-1]], before)
    assert after.shape[-1] == (58 if kind is VanillaTransformerForCausalLM else 3)
    assert model.config.vocab_size == 58 and model.get_input_embeddings().num_embeddings == 58


def test_frozen_tables_stay_frozen(tmp_path):
    model = small(freeze_embeddings=True)

    def frozen(model):
        names = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        return names == {f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}

    assert frozen(model)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert frozen(loaded)
    loaded.resize_token_embeddings(55)
    loaded.resize_decoder_token_embeddings(65)
    assert frozen(loaded)
    loaded.train()(tokens(2, 9), labels=tokens(2, 7)).loss.backward()
    assert loaded.get_input_embeddings().weight.grad is None and loaded.lm_head.weight.grad is not None


def test_a_head_that_peft_calls_untied_is_loaded_tied(tmp_path):
    peft = pytest.importorskip("peft")
    model = small(tie_word_embeddings=True)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["qkv_proj"]))
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path)
    loaded, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    ids, target = tokens(2, 7), tokens(2, 5, vocab=60)
    assert torch.equal(
        loaded(ids, decoder_input_ids=target).logits, merged(ids, decoder_input_ids=target).logits
    )


def test_resizing_a_shared_table_without_a_head(tmp_path):
    model = small(VanillaTransformerModel, decoder_vocab_size=50, share_encoder_decoder_embeddings=True)
    model.resize_token_embeddings(57)
    model.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).decoder.embed_tokens.num_embeddings == 57
