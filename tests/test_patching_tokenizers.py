"""A patched model and its tokenizer: which rows a resize fills, and from which pieces."""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from builders.tiny_models import (
    V,
    encoder_decoder,
    llama,
    marian_with_two_vocabularies,
    spread,
    word_tokenizer,
)

from hf_embinit.errors import VocabularyWarning
from hf_embinit.manifest import read_manifest
from hf_embinit.patching import patch, patched
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vocabulary import expand_vocabulary, prune_vocabulary


def test_with_a_tokenizer_names_and_reached_padding_rows_count() -> None:
    model = llama()
    spread(model)
    tokenizer = word_tokenizer(V - 6)  # six rows of padding
    patch(model, "subword_mean", tokenizer=tokenizer)
    before = model.model.embed_tokens.weight.detach().clone()
    tokenizer.add_tokens([f"w{i} w{i + 1}" for i in range(1, 9)])
    model.resize_token_embeddings(len(tokenizer))
    weight = model.model.embed_tokens.weight
    assert len(weight) == len(tokenizer) == V + 2
    assert torch.equal(weight[: V - 6], before[: V - 6])
    for i in range(8):
        assert torch.allclose(weight[V - 6 + i], (before[i + 1] + before[i + 2]) / 2, atol=1e-6)
    tokenizer.add_tokens(["w1 w5"])
    model.resize_token_embeddings(len(tokenizer))
    assert torch.allclose(weight[V + 2], (before[1] + before[5]) / 2, atol=1e-6)


def test_rows_that_expand_vocabulary_added_stay_and_are_old_tokens() -> None:
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    patch(model, "subword_mean", tokenizer=tokenizer)
    expand_vocabulary(model, tokenizer, ["expanded"], prefixes=())
    weight = model.model.embed_tokens.weight
    weight.data[V] = 7.0  # trained
    tokenizer.add_tokens(["w1 expanded"])
    model.resize_token_embeddings(len(tokenizer))
    assert (weight[V] == 7.0).all()
    assert torch.allclose(weight[V + 1], (weight[1] + 7.0) / 2, atol=1e-6)


def test_after_a_pruning_tokens_are_split_into_the_ids_of_now() -> None:
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    patch(model, "subword_mean", tokenizer=tokenizer)
    prune_vocabulary(model, tokenizer, ["w30", "w40"])
    first, second = (tokenizer.get_vocab()[word] for word in ("w30", "w40"))
    tokenizer.add_tokens(["w30 w40"])
    model.resize_token_embeddings(len(tokenizer))
    weight = model.model.embed_tokens.weight
    assert torch.allclose(weight[-1], (weight[first] + weight[second]) / 2, atol=1e-6)


@pytest.mark.parametrize("sizes", [[V + 1, V + 2], [V + 2, V, V + 2]])
def test_a_token_whose_row_came_later_or_was_cut_off_has_pieces(sizes) -> None:
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    patch(model, "subword_mean", tokenizer=tokenizer, shrink="allow")
    tokenizer.add_tokens(["w1 w2", "w3 w4"])
    for size in sizes:
        model.resize_token_embeddings(size)
    weight = model.model.embed_tokens.weight
    assert torch.allclose(weight[V], (weight[1] + weight[2]) / 2, atol=1e-6)
    assert torch.allclose(weight[V + 1], (weight[3] + weight[4]) / 2, atol=1e-6)


@pytest.mark.parametrize("build", [marian_with_two_vocabularies, encoder_decoder])
def test_a_resize_of_one_side_leaves_new_tokens_to_the_other(build) -> None:
    model, tokenizer = build(), word_tokenizer(30)
    spread(model)
    patch(model, "subword_mean", tokenizer=tokenizer)
    tokenizer.add_tokens(["w1 w2"])
    if build is encoder_decoder:
        model.encoder.resize_token_embeddings(V + 1)
        model.decoder.resize_token_embeddings(40)
    else:
        model.resize_token_embeddings(V + 1)
        model.resize_decoder_token_embeddings(40)
    for table in EmbeddingTables(model).input_tables:
        assert torch.allclose(
            table.parameter[30], (table.parameter[1] + table.parameter[2]) / 2, atol=1e-6
        ), table.side


@pytest.mark.parametrize("before", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("after", [torch.float32, torch.bfloat16, torch.float16])
def test_another_dtype_is_no_training(before, after) -> None:
    model, tokenizer = llama(), word_tokenizer(V - 2)
    spread(model)
    patch(model.to(before), "zeros", tokenizer=tokenizer).to(after)
    model.model.embed_tokens.weight.data[V - 1] *= 1.01  # trained
    tokenizer.add_tokens(["padding", "trained"])
    model.resize_token_embeddings(V)
    assert not model.model.embed_tokens.weight[V - 2].any()
    assert model.model.embed_tokens.weight[V - 1].all()


def test_copies_and_several_models_with_one_tokenizer() -> None:
    """What one model has filled is not taken for old by another."""
    first = llama()
    spread(first)
    third, fourth = copy.deepcopy(first), copy.deepcopy(first)
    tokenizer = word_tokenizer()
    patch(first, "subword_mean", tokenizer=tokenizer)
    second = copy.deepcopy(first)
    with patched("subword_mean", tokenizer=tokenizer):
        tokenizer.add_tokens(["w1 w5"])
        for model in (first, second, third, fourth):
            model.resize_token_embeddings(len(tokenizer))
            weight = model.model.embed_tokens.weight
            assert torch.allclose(weight[V], (weight[1] + weight[5]) / 2, atol=1e-6)
            weight.data[V] = 7.0
            model.resize_token_embeddings(len(tokenizer) + 1)
            assert (weight[V] == 7.0).all()


def test_overrides_at_patch_time() -> None:
    model = llama()
    spread(model)
    tokenizer = word_tokenizer()
    overrides = {"like7": ("copy", {"of": "w7"}), "never added": "zeros"}
    patch(model, tokenizer=tokenizer, overrides=overrides)
    tokenizer.add_tokens(["plain", "like7"])
    with pytest.warns(VocabularyWarning, match="'never added'"):
        model.resize_token_embeddings(len(tokenizer))
    for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
        assert torch.allclose(weight[V], weight[:V].mean(0), atol=1e-6)
        assert torch.allclose(weight[V + 1], weight[7], atol=1e-6)


def test_ids_may_be_of_numpy() -> None:
    for of in (np.int64(5), [np.int64(5)], {"like5": np.int64(5)}):
        model, tokenizer = llama(), word_tokenizer()
        spread(model)
        patch(model, "copy", tokenizer=tokenizer, of=of, overrides={np.int64(V + 1): "zeros"})
        tokenizer.add_tokens(["like5"])
        model.resize_token_embeddings(V + 2)
        assert torch.equal(model.lm_head.weight[V], model.lm_head.weight[5])
        assert not model.lm_head.weight[V + 1].any()
        assert json.dumps(read_manifest(model))


def test_vectors_that_no_row_of_a_resize_reads_do_not_matter(tmp_path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("".join(f"w{i} {i} {i * i % 7} 1\n" for i in range(30)) + "zebra 1 2 3\n")
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    patch(model, tokenizer=tokenizer, vectors=file, overrides={"zebra": "pretrained_map"})
    for token in ("before", "zebra", "after"):
        tokenizer.add_tokens([token])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VocabularyWarning)  # zebra is still to come
            model.resize_token_embeddings(len(tokenizer))
    before, _, after = (event["tables"][0]["source"] for event in read_manifest(model))
    assert before is None and after is None
    assert not torch.allclose(model.lm_head.weight[V + 1], model.lm_head.weight[:V].mean(0), atol=1e-3)
