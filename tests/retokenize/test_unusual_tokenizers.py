"""Tokenizers without an unknown token, or with one that has no role; vectors of every format and type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders.reserved_tokenizers import sentencepiece_tokenizer
from builders.retokenizing import word_pieces
from builders.tiny_models import bert, gpt2
from builders.tiny_tokenizers import model, tokenizer
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

import hf_embinit
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.retokenize import TokenTexts, overlap_map
from hf_embinit.retokenize.methods import _by_bytes
from hf_embinit.retokenize.pieces import split_tokens
from hf_embinit.retokenize.spaces import token_vectors
from hf_embinit.tokens import TokenForm, spelling
from hf_embinit.vectors import PretrainedVectors, write_vectors


def unigram(texts: list[str], size: int, **special: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<pad>", *special.values()]
    options = {"unk_token": "<unk>"} if "<unk>" in names else {}
    backend.train_from_iterator(
        texts,
        trainers.UnigramTrainer(vocab_size=size, special_tokens=names, show_progress=False, **options),
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")


def of_size(vocab_size: int) -> BertForMaskedLM:
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "hidden_size": 8}
    return BertForMaskedLM(BertConfig(vocab_size=vocab_size, **layers))


ENGLISH, OTHERS = ["the cat sat on the mat"] * 20, ["the cat sat", "müller größe 東京 ка"] * 20


@pytest.mark.parametrize("unknown", [{}, {"unknown": "<unk>"}], ids=["without one", "without its role"])
def test_text_that_the_old_tokenizer_cannot_read_has_no_pieces(unknown) -> None:
    old, new = unigram(ENGLISH, 40, **unknown), unigram(OTHERS, 60)
    report = hf_embinit.replace_tokenizer(of_size(len(old)), old, new, "fvt")
    foreign = [token for token in new.get_vocab() if set(token) & set("東京кüß")]
    assert foreign
    for token in foreign:
        assert not {"▁", "<unk>"} & {name for name, _ in report.explain(token)} or len(token) > 1
    single = [token for token in foreign if len(token) == 1]
    assert single and all(not report.explain(token) for token in single)


def test_a_token_inside_a_word_is_split_where_bert_sets_its_characters_apart() -> None:
    """Chinese has a word of BERT's for each character, and so has punctuation: `##国` and `##,` are none."""
    old = word_pieces("中", "国", "x", ")", ",", "-", "kin", "##o", "0", "##0", "##00", "00", "##kino")
    old._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inside = {"中国": ["中", "国"], "),": [")", ","], "-Kino": ["-", "kin", "##o"], "kino": ["##kino"],
              "0,00": ["##0", ",", "00"], "Q国": ["国"]}  # fmt: skip
    spelled = [spelling(TokenForm(text.encode(), False), "byte_level") for text in inside]
    vocab = {token: i for i, token in enumerate([*letters, *spelled])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    new = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend))
    made = split_tokens(new, [new.ids[token] for token in spelled], TokenTexts(old))
    assert [old.convert_ids_to_tokens(pieces) for pieces in made] == [*inside.values()]
    for text in ("中国", "),", "-Kino", "0,00"):  # as in a text that goes on
        whole = old.tokenize(f"x{text}")[1:]
        if text != "0,00":  # `x0` is one word here, which the old tokenizer does not know
            assert whole == inside[text]


def test_a_slow_tokenizer_splits_what_goes_on_as_such(tmp_path) -> None:
    old = TokenTexts(sentencepiece_tokenizer(tmp_path))
    assert {"▁man", "▁the"} <= old.ids.keys() and not {"man", "the"} & old.ids.keys()
    vocab = {token: i for i, token in enumerate(["[UNK]", "the", "##the", "##man", "man", "##東"])}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    new = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))
    made = split_tokens(new, [1, 2, 3, 4, 5], old)
    spelled = [[old.tokens[i] for i in pieces] for pieces in made]
    assert [spelled[0], spelled[3], spelled[4]] == [["▁the"], ["▁man"], []]
    assert ["".join(pieces) for pieces in spelled[1:3]] == ["the", "man"]


def test_byte_tokens_stand_for_letters_last() -> None:
    names = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *"abcd", "ab", "▁ab"]
    backend = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[("a", "b"),
        ("▁", "ab")][:1], unk_token="<unk>", byte_fallback=True))  # fmt: skip
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    starts, inside = _by_bytes(
        TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    )
    assert starts[b"ab"] == names.index("▁ab") and inside[b"ab"] == names.index("ab")
    assert [inside[letter.encode()] for letter in "abcd"] == [names.index(letter) for letter in "abcd"]
    assert inside[b"e"] == names.index("<0x65>")


def test_text_that_a_tokenizer_cannot_read_is_refused_where_it_has_to_be_read() -> None:
    old, new = unigram(ENGLISH, 40), unigram(OTHERS, 60)
    with pytest.raises(InvalidArgumentError, match="having no unknown token"):
        hf_embinit.replace_tokenizer(of_size(len(old)), old, new, "align", texts=OTHERS)


def test_white_space_that_was_added_overlaps_with_the_same_white_space() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate([*letters, "ĊĊ"])}, merges=[("Ċ", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    old = TokenTexts(PreTrainedTokenizerFast(tokenizer_object=backend))
    plain = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    grown = PreTrainedTokenizerFast(tokenizer_object=plain)
    grown.add_tokens([AddedToken(text, normalized=False) for text in (" " * 8, "\n\n", "\t\t")])
    new = TokenTexts(grown)
    rows = overlap_map(new, old)
    found = [int(rows[new.ids[text]]) for text in ("\n\n", " " * 8, "\t\t")]
    assert found == [old.ids["ĊĊ"], -1, -1]


def test_words_of_a_binary_file_say_what_those_of_a_text_file_say(tmp_path) -> None:
    old = word_pieces("run", "##ning", "##ner", "jump", "##ing", "The", "cat")
    new = word_pieces("run", "##ing", "jump", "##er", "Cat", "swim", "##ming")
    words = ["running", "runner", "jumping", "the", "cat", "swimming", "jumper", "run", "jump"]
    matrix = np.random.default_rng(0).normal(size=(9, 6)).astype("<f4")
    rows = b"".join(word.encode() + b" " + row.tobytes() for word, row in zip(words, matrix, strict=True))
    (tmp_path / "w.bin").write_bytes(b"9 6\n" + rows)
    write_vectors(tmp_path / "w.txt", PretrainedVectors(words, torch.from_numpy(matrix), "w"))
    steps = [
        hf_embinit.replace_tokenizer(of_size(len(old)), old, new, "wechsel", vectors=tmp_path / name).steps
        for name in ("w.txt", "w.bin")
    ]
    assert steps[0] == steps[1] and len(set(steps[0])) < 4


def test_one_word_that_looks_like_a_piece_makes_no_vectors_of_tokens() -> None:
    tokens = TokenTexts(word_pieces("cat", "dog", "Cat", "##s", "###"))
    words = ["cat", "dog", *(f"other{i}" for i in range(200))]
    made = [
        token_vectors(tokens, PretrainedVectors(some, torch.ones(len(some), 4), "v"))
        for some in (words, [*words, "###"])
    ]
    assert made[0].any(1).sum() >= 3 and (made[1].any(1) | ~made[0].any(1)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_vectors_of_any_type_are_of_single_precision(dtype) -> None:
    vectors = PretrainedVectors(["cat", "dog"], torch.randn(2, 6, dtype=dtype, requires_grad=True), "v")
    assert vectors.matrix.dtype is torch.float32 and not vectors.matrix.requires_grad
    old, new = word_pieces("cat", "dog"), word_pieces("cat", "dog", "cats")
    hf_embinit.replace_tokenizer(of_size(len(old)), old, new, "focus", vectors=vectors)


def test_rows_of_padding_that_are_no_numbers_do_not_stop_a_refinement() -> None:
    old, new = tokenizer("byte_level", 300), tokenizer("byte_level", 320)
    m = model("gpt2", len(old) + 8)
    with torch.no_grad():
        m.get_input_embeddings().weight[len(old) :] = float("nan")
    texts = (text for text in ["A dog runs on the grass.", "Two men play guitar."] * 4)  # read more than once
    hf_embinit.replace_tokenizer(
        m, old, new, "align", texts=texts, refine="token_distillation:steps=2", untie=True
    )
    assert m.get_input_embeddings().weight[: len(new)].isfinite().all()


@pytest.mark.parametrize("build", [bert, gpt2])
def test_a_table_that_is_made_anew_may_have_been_anything(build) -> None:
    m = build()
    with torch.no_grad():
        m.get_input_embeddings().weight[3] = float("nan")
    hf_embinit.initialize(m, "xavier")
    assert m.get_input_embeddings().weight.isfinite().all()
