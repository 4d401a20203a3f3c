"""The vanilla models against torch's transformer, and against themselves padded, compiled and in bfloat16."""

from __future__ import annotations

import math

import pytest
import torch
from builders.vanilla_models import ENCODINGS, KINDS, PAD, inputs_for, padded, small, tokens
from torch import nn
from transformers import DynamicCache

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)
from hf_embinit.models.blocks_vanilla_transformer import sinusoidal_table


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


def test_an_encoder_alone_has_no_cache_to_be_given() -> None:
    """PEFT's prefix tuning gives one to every model whose `forward` takes it."""
    model = small(VanillaTransformerForSequenceClassification)
    with pytest.raises(ValueError, match="an encoder has no cache, so there is no prefix tuning"):
        model(input_ids=tokens(2, 5), past_key_values=DynamicCache())
