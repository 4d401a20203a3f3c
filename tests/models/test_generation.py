"""The vanilla models generate: with and without a cache, in beams, in threads, packed, with an assistant."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builders.vanilla_models import BOS, ENCODINGS, EOS, KINDS, PAD, padded, small, tokens
from transformers import (
    DynamicCache,
)

from hf_embinit.models import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
)


def test_decoder_inputs_start_where_the_labels_start():
    shift = small().prepare_decoder_input_ids_from_labels
    labels = torch.tensor([[7, 8, EOS, -100], [-100, 7, 8, EOS]])
    assert shift(labels).tolist() == [[BOS, 7, 8, EOS], [PAD, BOS, 7, 8]]


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


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", [VanillaTransformerForConditionalGeneration, VanillaTransformerForCausalLM])
def test_a_cache_of_fixed_size_changes_nothing(kind, encoding, attention):
    model = small(kind, position_encoding=encoding)
    model.set_attn_implementation(attention)
    ids, mask = padded([tokens(9, seed=1), tokens(5, seed=2)], "left")
    prompts = [{}]
    if kind is VanillaTransformerForConditionalGeneration:
        prompts.append({"decoder_input_ids": tokens(2, 3, seed=3)})
    for prompt in prompts:
        for known in (mask, torch.ones_like(mask)):
            given = {"input_ids": ids, "attention_mask": known, "max_new_tokens": 8, **prompt}
            fixed = model.generate(**given, cache_implementation="static")
            assert torch.equal(fixed, model.generate(**given))


def test_scores_of_beams_add_up_though_the_vocabularies_differ():
    model = small()
    output = model.generate(
        tokens(2, 9), num_beams=3, max_new_tokens=8, output_scores=True, return_dict_in_generate=True
    )
    assert model.config.vocab_size == 50
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    lengths = (scores < 0).sum(dim=1)
    torch.testing.assert_close(scores.sum(dim=1) / lengths, output.sequences_scores, atol=1e-5, rtol=1e-5)


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
