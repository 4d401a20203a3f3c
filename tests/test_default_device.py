"""Rows are the same where `torch.set_default_device` or `with torch.device(...)` names another device, and
inside `torch.autocast`.

The meta device stands for any other: what lands there by default has no values, and fails.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer
from transformers import GPT2LMHeadModel

import hf_embinit
from hf_embinit.measures import embedding_statistics, unused_distance
from hf_embinit.tasks import load_texts
from hf_embinit.vectors import PretrainedVectors, read_embedding_table, train_glove

T = tokenizer("byte_level")
OTHER = tokenizer("wordpiece")
MODEL = model("gpt2", len(T))
TABLE = MODEL.get_input_embeddings().weight.detach()


def rows(change: Callable[[GPT2LMHeadModel, object], object]) -> torch.Tensor:
    changed, own = copy.deepcopy(MODEL), copy.deepcopy(T)
    change(changed, own)
    return changed.get_input_embeddings().weight.detach()


def own_vectors() -> PretrainedVectors:
    return PretrainedVectors(T.convert_ids_to_tokens(list(range(len(T)))), TABLE, "own", "byte_level")


def resized(m: GPT2LMHeadModel, t: object) -> None:
    hf_embinit.patch(m, "mean_cov", tokenizer=t)
    t.add_tokens(["zyxomma"])
    m.resize_token_embeddings(len(t))


CASES = {
    **{
        name: lambda m, t, name=name: hf_embinit.initialize(m, name, tokenizer=t)
        for name in ("xavier", "normal")
    },
    **{
        name: lambda m, t, name=name: hf_embinit.initialize(m, name, tokenizer=t, vectors=own_vectors())
        for name in ("pretrained_xavier", "pretrained_shuffled", "xavier_pretrained")
    },
    **{
        name: lambda m, t, name=name: hf_embinit.expand_vocabulary(m, t, ["zyxomma", "qorvex"], name)
        for name in ("mean", "mean_cov", "subword_mean", "default")
    },
    "patch": resized,
    "surgery": lambda m, t: hf_embinit.surgery.apply(m, "shuffled_embeddings", tokenizer=t, seed=1),
    "prune": lambda m, t: hf_embinit.prune_vocabulary(m, t, [i for i in range(len(t)) if i < 260 or i % 5]),
    "replace": lambda m, t: hf_embinit.replace_tokenizer(m, t, OTHER, "fvt"),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_made_on_the_cpu(name: str) -> None:
    expected = rows(CASES[name])
    with torch.device("meta"):
        made = rows(CASES[name])
    assert torch.allclose(made, expected, rtol=0, atol=1e-6)
    assert not torch.equal(made[: len(TABLE)], TABLE[: len(made)]) or len(made) > len(TABLE)


def test_vectors_are_read_and_trained_on_the_cpu(tmp_path) -> None:
    MODEL.save_pretrained(tmp_path)
    T.save_pretrained(tmp_path)
    sentences = [["a", "b", "c", "d"] * 5] * 20
    glove = train_glove(sentences, dim=4, epochs=2, min_count=1)
    with torch.device("meta"):
        assert torch.equal(read_embedding_table(tmp_path).matrix, TABLE)
        assert train_glove(sentences, dim=4, epochs=2, min_count=1).digest == glove.digest


TEXTS = load_texts("captions:en")[:300]
WITH_TEXTS = {
    "focus": lambda m, t: hf_embinit.replace_tokenizer(m, t, OTHER, "focus", texts=TEXTS),
    "shares": lambda m, t: hf_embinit.replace_tokenizer(
        m, t, OTHER, "fvt", refine="first_piece_shares", texts=TEXTS, untie=True
    ),
}


@pytest.mark.parametrize("name", [*CASES, *WITH_TEXTS])
def test_autocast_rounds_no_rows(name: str) -> None:
    change = {**CASES, **WITH_TEXTS}[name]
    outside = rows(change)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rows(change), outside)


def test_autocast_rounds_no_vectors_and_no_measures() -> None:
    def made() -> list[object]:
        return [
            train_glove([["a", "b", "c", "d"] * 5] * 20, dim=4, epochs=2, min_count=1).digest,
            unused_distance(TABLE, [1, 2, 3]).tolist(),
            embedding_statistics(TABLE),
            hf_embinit.knn_match_similarity(TABLE, TABLE.flip(1), k=5),
        ]

    outside = made()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made() == outside


def test_models_run_inside_the_autocast_of_the_caller() -> None:
    m, own = copy.deepcopy(MODEL), copy.deepcopy(T)
    seen = []
    m.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert hf_embinit.expand_vocabulary(m, own, ["zyxomma"]).shift is not None
        assert seen and all(seen) and torch.is_autocast_enabled("cpu")
    hf_embinit.expand_vocabulary(m, own, ["qorvex"])
    assert not seen[-1]
