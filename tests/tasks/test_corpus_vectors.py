"""What is trained on the embedded texts, once: vectors, again when damaged, and the small language model."""

from __future__ import annotations

import logging

import pytest
import torch
import transformers

from hf_embinit.errors import UnknownNameError
from hf_embinit.tasks import caption_model, corpus_vectors
from hf_embinit.tasks.corpus_vectors import corpus_tokens
from hf_embinit.tasks.embedded import corpus_splits
from hf_embinit.vectors import read_vectors

SMALL = {"dim": 8, "epochs": 1, "progress": False}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A folder for what is trained, and only a part of each text to train on."""
    monkeypatch.setenv("HF_EMBINIT_CACHE", str(tmp_path))
    whole = corpus_vectors.corpus_text
    monkeypatch.setattr(corpus_vectors, "corpus_text", lambda name: whole(name)[-400:])
    return tmp_path


def fail(*args, **kwargs):
    pytest.fail("trained again")


def test_vectors_are_trained_once_for_a_text_and_settings(cache, monkeypatch):
    vectors = corpus_vectors.corpus_vectors("captions-de", **SMALL)
    assert vectors.dim == 8 and "hund" in vectors.tokens
    (about,) = vectors.provenance["corpora"]
    assert about["corpus"] == "captions-de" and about["texts"] == 400 and len(about["sha256"]) == 64
    with monkeypatch.context() as patched:
        patched.setattr(corpus_vectors, "train_glove", fail)
        again = corpus_vectors.corpus_vectors("captions-de", **SMALL)
    assert again.digest == vectors.digest and torch.equal(again.matrix, vectors.matrix)
    assert again.name == vectors.name and "/" not in again.name  # records go to strangers
    corpus_vectors.corpus_vectors("captions-de", **{**SMALL, "epochs": 2})
    corpus_vectors.corpus_vectors("captions-en", **SMALL)
    assert len(list(cache.glob("*.txt"))) == 3
    monkeypatch.setattr(corpus_vectors, "corpus_text", lambda name: ["der hund und der hund"] * 3)
    assert set(corpus_vectors.corpus_vectors("captions-de", **SMALL).tokens) == {"der", "hund", "und"}
    assert len(list(cache.glob("*.txt"))) == 4


@pytest.mark.parametrize("damage", ["cut short", "a row less", "no provenance"])
def test_a_damaged_file_is_trained_again(cache, caplog, damage):
    vectors = corpus_vectors.corpus_vectors("sentiment", **SMALL)
    (path,) = cache.glob("*.txt")
    content = path.read_bytes()
    if damage == "no provenance":
        path.with_suffix(".json").unlink()
    else:
        path.write_bytes(
            content[:-20] if damage == "cut short" else content[: content.rindex(b"\n", 0, -1) + 1]
        )
    again = corpus_vectors.corpus_vectors("sentiment", **SMALL)
    assert torch.equal(again.matrix, vectors.matrix) and path.read_bytes() == content
    assert "training these vectors again" in caplog.text and path.name in caplog.text
    assert read_vectors(path).provenance == again.provenance


def test_other_texts_are_refused(cache):
    with pytest.raises(UnknownNameError, match=r"captions-fr.*Available: captions-de, captions-en"):
        corpus_vectors.corpus_vectors("captions-fr", **SMALL)


def test_vectors_know_meanings_and_spread_widely(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EMBINIT_CACHE", str(tmp_path))
    vectors = corpus_vectors.corpus_vectors("captions-de", 64, progress=False)
    unit = torch.nn.functional.normalize(vectors.matrix, dim=1)
    index = {token: i for i, token in enumerate(vectors.tokens)}

    def nearest(word: str, k: int) -> set[str]:
        return {vectors.tokens[i] for i in (unit @ unit[index[word]]).topk(k + 1).indices.tolist()} - {word}

    colors = {"blaue", "grüne", "gelbe", "schwarze", "weiße", "violette", "braune"}
    assert len(nearest("rote", 5) & colors) >= 3
    assert nearest("hund", 8) & {"katze", "vogel", "kuh", "fuchs", "wolf", "pferd", "schaf", "esel", "affe"}
    assert vectors.matrix.std() > 0.2 and vectors.matrix.abs().max() > 1.0
    words = [word for row in corpus_splits("captions")["train"] for word in corpus_tokens(row["de"])]
    assert sum(word in index for word in words) / len(words) > 0.999


def test_the_language_model_says_what_it_is_and_is_trained_once(cache, monkeypatch, caplog, capsys):
    monkeypatch.setattr(caption_model, "corpus_text", lambda name: ["The dog sees a red ball."] * 200)
    monkeypatch.setitem(caption_model.SETTINGS, "steps", 2)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    transformers.utils.logging.warning_once.cache_clear()
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        folder = caption_model.caption_language_model()
    assert "loss_type" not in caplog.text
    (said,) = (r.getMessage() for r in caplog.records if r.name == caption_model.__name__)
    assert "training a small GPT-2 (2 layers of width 128) on 200 English sentences, once" in said
    assert str(folder) in said and "\n" not in said
    assert "training the captions language model: 100%" in capsys.readouterr().err
    assert torch.equal(torch.get_rng_state(), state)
    with monkeypatch.context() as patched:
        patched.setattr(caption_model, "_train", fail)
        assert caption_model.caption_language_model() == folder
    monkeypatch.setitem(caption_model.SETTINGS, "steps", 1)
    assert caption_model.caption_language_model() != folder
    monkeypatch.setattr(caption_model, "corpus_text", lambda name: ["The dog sees a blue ball."] * 200)
    caption_model.caption_language_model()
    assert len(list(cache.iterdir())) == 3
