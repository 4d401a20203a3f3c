"""The models against torch's transformer, and against themselves when padded, cached, saved and resized."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    DynamicCache,
)

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerModel,
)
from hf_embinit.models.blocks_vanilla_transformer import sinusoidal_table

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


# --- agreement


def torch_twin(model) -> nn.Module:
    """`torch.nn.Transformer` with the weights of one of ours."""
    config, pre = model.config, model.config.norm_position == "pre"
    layer = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
    }
    layer |= {"batch_first": True, "norm_first": pre}
    norms = [nn.LayerNorm(config.d_model) if pre else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer), config.num_layers, norms[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), config.num_decoder_layers, norms[1])
    twin = nn.Transformer(
        config.d_model, config.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    for stack, ours in ((encoder, model.model.encoder), (decoder, model.model.decoder)):
        for theirs, mine in zip(stack.layers, ours.layers, strict=True):
            state = {}
            for name, attention in (
                ("self_attn", mine.self_attn),
                ("multihead_attn", getattr(mine, "encoder_attn", None)),
            ):
                if attention is None:
                    continue
                parts = [attention.qkv_proj] if name == "self_attn" else [attention.q_proj, attention.kv_proj]
                state[f"{name}.in_proj_weight"] = torch.cat([p.weight for p in parts])
                state[f"{name}.in_proj_bias"] = torch.cat([p.bias for p in parts])
                state[f"{name}.out_proj.weight"] = attention.out_proj.weight
                state[f"{name}.out_proj.bias"] = attention.out_proj.bias
            cross = [mine.encoder_attn_layer_norm] if mine.has_cross else []
            modules = {"linear1": mine.fc1, "linear2": mine.fc2}
            modules |= {
                f"norm{i}": n
                for i, n in enumerate([mine.self_attn_layer_norm, *cross, mine.final_layer_norm], 1)
            }
            for name, module in modules.items():
                state |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
            theirs.load_state_dict(state)
        if pre:
            stack.norm.load_state_dict(ours.layer_norm.state_dict())
    return twin.eval()


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_agrees_with_torch_transformer(norm_position):
    model = small(norm_position=norm_position)
    twin, config = torch_twin(model), model.config
    source, mask = padded([tokens(9, seed=1), tokens(5, seed=2)], "right")
    target = tokens(2, 7, vocab=60, seed=3)
    table = torch.zeros(64, 32)
    for position in range(64):
        for j in range(16):
            angle = position / 10000 ** (2 * j / 32)
            table[position, 2 * j], table[position, 2 * j + 1] = math.sin(angle), math.cos(angle)
    embedded = [
        stack.embed_tokens.weight[ids] * math.sqrt(config.d_model) + table[: ids.shape[1]]
        for stack, ids in ((model.model.encoder, source), (model.model.decoder, target))
    ]
    causal = torch.ones(7, 7).triu(1).bool()
    with torch.no_grad():
        states = twin(
            *embedded, tgt_mask=causal, src_key_padding_mask=mask == 0, memory_key_padding_mask=mask == 0
        )
        expected = states @ model.lm_head.weight.T + model.lm_head.bias
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_sdpa_and_eager_agree(kind, encoding):
    source, mask = padded([tokens(9), tokens(6)], "left")
    results = []
    for implementation in ("sdpa", "eager"):
        model = small(kind, position_encoding=encoding, attn_implementation=implementation)
        assert model.config._attn_implementation == implementation
        results.append(model(**inputs_for(kind, source, tokens(2, 7, vocab=60)), attention_mask=mask).logits)
    real = mask.bool() if kind is VanillaTransformerForCausalLM else ...
    torch.testing.assert_close(results[0][real], results[1][real], atol=1e-5, rtol=1e-5)


def test_eager_returns_attentions_and_both_return_hidden_states():
    model = small(attn_implementation="eager")
    output = model(
        tokens(2, 9), decoder_input_ids=tokens(2, 7), output_attentions=True, output_hidden_states=True
    )
    assert [a.shape for a in output.encoder_attentions] == [(2, 4, 9, 9)] * 2
    assert [a.shape for a in output.decoder_attentions] == [(2, 4, 7, 7)] * 3
    assert [a.shape for a in output.cross_attentions] == [(2, 4, 7, 9)] * 3
    assert len(output.encoder_hidden_states) == 3 and len(output.decoder_hidden_states) == 4
    torch.testing.assert_close(output.decoder_attentions[0].sum(-1), torch.ones(2, 4, 7))


def test_sinusoidal_table_has_the_statistics_of_the_paper():
    """Kim et al. 2024, Table 6: mean 0.131 for 5,000 positions at D = 300."""
    table = sinusoidal_table(5000, 300)
    assert round(table.mean().item(), 3) == 0.131 and abs(table.std().item() - 0.695) < 0.001
    assert abs(sinusoidal_table(5000, 300, base=1000).mean().item() - 0.011) < 0.001
    assert sinusoidal_table(7, 5).shape == (7, 5)


# --- padding


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_changes_no_class(encoding, pooling):
    model = small(VanillaTransformerForSequenceClassification, position_encoding=encoding, pooling=pooling)
    rows = [tokens(9, seed=1), tokens(4, seed=2)]
    alone = torch.cat([model(row[None]).logits for row in rows])
    for side in ("left", "right"):
        ids, mask = padded(rows, side)
        torch.testing.assert_close(model(ids, attention_mask=mask).logits, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_changes_no_translation(encoding):
    model = small(position_encoding=encoding)
    sources = [tokens(9, seed=1), tokens(4, seed=2)]
    labels = [tokens(6, vocab=60, seed=3), tokens(8, vocab=60, seed=4)]
    alone = [model(s[None], labels=t[None]) for s, t in zip(sources, labels, strict=True)]
    loss = sum(o.loss * len(t) for o, t in zip(alone, labels, strict=True)) / 14
    for source_side in ("left", "right"):
        ids, mask = padded(sources, source_side)
        for side in ("left", "right"):
            padded_labels, real = padded(labels, side)
            padded_labels = padded_labels.masked_fill(real == 0, -100)
            output = model(ids, attention_mask=mask, labels=padded_labels)
            torch.testing.assert_close(output.loss, loss, atol=1e-5, rtol=1e-5)
            for i in range(2):
                torch.testing.assert_close(
                    output.logits[i][real[i] == 1], alone[i].logits[0], atol=1e-5, rtol=1e-5
                )
            decoder_ids = model.prepare_decoder_input_ids_from_labels(padded_labels)
            given = model(ids, attention_mask=mask, decoder_input_ids=decoder_ids, labels=padded_labels)
            torch.testing.assert_close(given.loss, loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_changes_no_language_model(encoding):
    model = small(VanillaTransformerForCausalLM, position_encoding=encoding)
    rows = [tokens(9, seed=1), tokens(4, seed=2)]
    for side in ("left", "right"):
        ids, mask = padded(rows, side)
        logits = model(ids, attention_mask=mask).logits
        for i, row in enumerate(rows):
            torch.testing.assert_close(
                logits[i][mask[i] == 1], model(row[None]).logits[0], atol=1e-5, rtol=1e-5
            )


def test_decoder_inputs_start_where_the_labels_start():
    shift = small().prepare_decoder_input_ids_from_labels
    labels = torch.tensor([[7, 8, EOS, -100], [-100, 7, 8, EOS]])
    assert shift(labels).tolist() == [[BOS, 7, 8, EOS], [PAD, BOS, 7, 8]]


# --- generation


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", [VanillaTransformerForConditionalGeneration, VanillaTransformerForCausalLM])
def test_cached_generation_is_uncached_generation(kind, encoding, num_beams):
    model = small(kind, position_encoding=encoding)
    ids, mask = padded([tokens(9, seed=1), tokens(5, seed=2)], "left")
    made = [
        model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=12, num_beams=num_beams, use_cache=use_cache
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(*made) and made[0].shape[1] > 4
    alone = model.generate(input_ids=ids[1:, 4:], max_new_tokens=12, num_beams=num_beams)[0]
    row = made[0][1] if kind is VanillaTransformerForConditionalGeneration else made[0][1, 4:]
    length = min(len(row), len(alone))
    assert torch.equal(row[:length], alone[:length])


def test_scores_of_beams_add_up_though_the_vocabularies_differ():
    model = small()
    output = model.generate(
        tokens(2, 9), num_beams=3, max_new_tokens=8, output_scores=True, return_dict_in_generate=True
    )
    assert model.config.vocab_size == 50
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    lengths = (scores < 0).sum(dim=1)
    torch.testing.assert_close(scores.sum(dim=1) / lengths, output.sequences_scores, atol=1e-5, rtol=1e-5)


def test_too_many_positions_raise_a_sentence():
    with pytest.raises(ValueError, match="The input has 65 positions, but max_position_embeddings is 64"):
        small()(tokens(1, 65), decoder_input_ids=tokens(1, 3))
    assert (
        small(position_encoding="rotary")(tokens(1, 65), decoder_input_ids=tokens(1, 3))
        .logits.isfinite()
        .all()
    )


def test_ids_and_embeddings_together_raise_a_sentence():
    with pytest.raises(ValueError, match="either token ids or embeddings"):
        small()(decoder_input_ids=tokens(1, 3))


# --- initialisation


def test_initial_weights_are_xavier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = VanillaTransformerConfig(
            vocab_size=500, decoder_vocab_size=300, d_model=60, num_heads=6, d_ff=90
        )
        model = VanillaTransformerForConditionalGeneration(config)
    layer = model.model.decoder.layers[0]
    for weight, fans in [
        (model.model.encoder.embed_tokens.weight, 560),
        (model.model.decoder.embed_tokens.weight, 360),
        (model.lm_head.weight, 360),
        (layer.fc1.weight, 150),
        (layer.self_attn.qkv_proj.weight, 120),  # three matrices of 60 x 60, not one of 180 x 60
        (layer.encoder_attn.kv_proj.weight, 120),
    ]:
        bound = math.sqrt(6 / fans)
        assert weight.abs().max() <= bound and weight.abs().max() > 0.98 * bound
        assert abs(weight.std() / math.sqrt(2 / fans) - 1) < 0.03
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
    assert (layer.final_layer_norm.weight == 1).all()
    for stack in (model.model.encoder, model.model.decoder):
        assert not stack.embed_tokens.weight[PAD].any() and stack.embed_tokens.weight[PAD + 1].any()


def test_input_is_scaled_then_given_positions():
    model = small(num_layers=1)
    seen = []
    model.model.encoder.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    ids = tokens(1, 5)
    model.model.encoder(ids)
    expected = model.model.encoder.embed_tokens.weight[ids] * math.sqrt(32) + sinusoidal_table(64, 32)[:5]
    torch.testing.assert_close(seen[0], expected)
    plain = small(scale_embeddings=False, position_encoding="none").model.encoder
    plain.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    plain(ids)
    torch.testing.assert_close(seen[1], plain.embed_tokens.weight[ids])


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


# --- saving


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
        torch.save((inputs, model(**inputs).logits), folder / "expected.pt")
    code = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
sys.modules["hf_embinit"] = None  # as if it were not installed
import torch, transformers
for name in ("Seq2SeqLM", "SequenceClassification", "CausalLM"):
    folder = {str(tmp_path)!r} + "/" + name
    model = getattr(transformers, "AutoModelFor" + name).from_pretrained(folder, trust_remote_code=True)
    inputs, logits = torch.load(folder + "/expected.pt")
    assert torch.equal(model(**inputs).logits, logits)
    assert type(model).__module__.startswith("transformers_modules.")
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


# --- resizing


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


# --- other ways to run


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16(kind, tmp_path):
    model = small(kind)
    model.save_pretrained(tmp_path)
    half = kind.from_pretrained(tmp_path, dtype=torch.bfloat16)
    inputs = inputs_for(kind, tokens(2, 9), tokens(2, 7))
    logits = half(**inputs).logits
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), model(**inputs).logits, atol=0.15, rtol=0.1)
    labels = torch.tensor([0, 2]) if kind is KINDS[1] else tokens(2, 9)
    loss = half.train()(input_ids=tokens(2, 9), labels=labels).loss
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)


def test_compiled_model_agrees():
    model = small(num_layers=1, num_decoder_layers=1, dropout_rate=0.0)
    inputs = {"input_ids": tokens(2, 9), "labels": tokens(2, 7)}
    inputs["labels"][0, 5:] = -100
    expected = model(**inputs)
    compiled = torch.compile(model, backend="aot_eager")  # traces and differentiates; needs no C compiler
    model.train()
    model(**inputs).loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    loss = compiled(**inputs).loss
    loss.backward()
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-4)


def test_generating_in_threads_changes_no_config(tmp_path):
    """`generate` takes the target's vocabulary, which is the larger, and leaves the model's sizes alone."""
    model = small()
    seen = []

    def watch(*args, **kwargs):
        seen.append(model.config.vocab_size)
        return False

    def run(length):
        return model.generate(
            tokens(2, 7),
            max_new_tokens=length,
            min_new_tokens=length,
            num_beams=2,
            stopping_criteria=[watch],
        )

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, (4, 12, 8)))
    assert set(seen) == {50} == {model.config.vocab_size}
    assert [torch.equal(a, run(n)) for a, n in zip(found, (4, 12, 8), strict=True)] == [True] * 3
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.vocab_size == 50


def test_a_smaller_model_assists_where_the_vocabularies_differ():
    model, assistant = small(), small(seed=1, num_decoder_layers=1)
    source = tokens(1, 7)
    assert torch.equal(
        model.generate(source, assistant_model=assistant, max_new_tokens=8, do_sample=False),
        model.generate(source, max_new_tokens=8, do_sample=False),
    )


@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary", "relative"])
def test_packed_rows_do_not_see_each_other(encoding):
    model = small(KINDS[2], position_encoding=encoding)
    a, b = tokens(1, 5), tokens(1, 4, seed=1)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    packed = model(torch.cat([a, b], 1), position_ids=positions, use_cache=False).logits
    alone = torch.cat([model(a).logits, model(b).logits], 1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_plain_cache_serves_the_decoder_by_its_old_and_its_new_name(name):
    model, source, target = small(), tokens(2, 7), tokens(2, 5, vocab=60)
    first = model(source, decoder_input_ids=target[:, :4], **{name: DynamicCache()})
    kept = first.cache if hasattr(first, "cache") else first.past_key_values  # transformers 5.24 and before
    last = model(source, decoder_input_ids=target[:, 4:], **{name: kept}).logits
    whole = model(source, decoder_input_ids=target).logits
    torch.testing.assert_close(last, whole[:, 4:], atol=1e-5, rtol=0)
    lm = small(KINDS[2])
    for stack in (lm, lm.model, lm.model.decoder):
        cache = DynamicCache()
        stack(source[:, :4], **{name: cache})
        assert cache.get_seq_length() == 4
        last = stack(source[:, 4:], **{name: cache})[0]
        torch.testing.assert_close(last, stack(source)[0][:, 4:], atol=1e-5, rtol=0)


def test_what_does_not_fit_raises_a_sentence():
    ids = tokens(2, 7)
    with pytest.raises(ValueError, match="decoder_input_ids or decoder_inputs_embeds"):
        small()(ids)
    for training in (True, False):
        with pytest.raises(ValueError, match=r"labels have the shape \(2, 5\)"):
            small(KINDS[2]).train(training)(ids, labels=ids[:, :5])
    with pytest.raises(ValueError, match="attention_mask has 9 columns for 7 tokens"):
        small(KINDS[2])(ids, attention_mask=torch.ones(2, 9))
    with pytest.raises(ValueError, match="num_labels is 0"):
        small(KINDS[1], num_labels=0)
    with pytest.raises(ValueError, match=r"config\.decoder_start_token_id is None"):
        small(bos_token_id=None)(ids, labels=ids)
    config = VanillaTransformerConfig(vocab_size=50)
    config.d_model = 33
    with pytest.raises(Exception, match="d_model is 33"):
        KINDS[2](config)


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
