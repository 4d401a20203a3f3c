"""Canonical token forms, alignment of vocabularies, coverage."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.tiny_tokenizers import FAMILIES as TINY_FAMILIES
from builders.tiny_tokenizers import texts
from builders.tiny_tokenizers import tokenizer as tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.tokens import (
    TokenForm,
    align,
    canonical_form,
    copy_tokenizer,
    coverage,
    special_ids,
    token_family,
    vocabulary,
    word_candidates,
)

DATA = Path(os.environ.get("HF_EMBINIT_DATA", "nowhere"))


# --- forms


@pytest.mark.parametrize(
    ("token", "family", "data", "word_start"),
    [
        ("the", "words", b"the", True),
        ("the", "wordpiece", b"the", True),
        ("##the", "wordpiece", b"the", False),
        ("the", "byte_level", b"the", False),
        ("Ġthe", "byte_level", b"the", True),
        ("the", "sentencepiece", b"the", False),
        ("▁the", "sentencepiece", b"the", True),
        ("ĠGrÃ¶ÃŁe", "byte_level", "Größe".encode(), True),
        ("▁Größe", "sentencepiece", "Größe".encode(), True),
        ("Ġ", "byte_level", b"", True),
        ("▁", "sentencepiece", b"", True),
        ("ĠĠ", "byte_level", b" ", True),
        ("▁▁", "sentencepiece", b" ", True),
        ("Ċ", "byte_level", b"\n", False),
        ("<0x0A>", "sentencepiece", b"\n", False),
        ("<0xC3>", "sentencepiece", b"\xc3", False),
        ("Ã", "byte_level", b"\xc3", False),
        ("n't", "words", b"n't", True),
        (",", "words", b",", None),
        (",", "wordpiece", b",", None),
        ("##,", "wordpiece", b",", False),
        (",", "byte_level", b",", False),
        ("Ġ,", "byte_level", b",", True),
        ("日", "wordpiece", "日".encode(), None),
        ("日", "words", "日".encode(), True),
        ("##", "wordpiece", b"##", None),
        ("日本 added", "byte_level", "日本 added".encode(), False),
    ],
)
def test_canonical_forms(token, family, data, word_start):
    assert canonical_form(token, family) == TokenForm(data, word_start)


def test_special_tokens_keep_their_spelling():
    assert canonical_form("▁<x>", "sentencepiece", special=True) == TokenForm("▁<x>".encode(), False, True)


def test_unknown_families_are_refused():
    with pytest.raises(InvalidArgumentError, match="family='bpe'"):
        canonical_form("the", "bpe")


def test_the_byte_alphabet_is_that_of_the_tokenizers_library():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    forms = {canonical_form(c, "byte_level") for c in alphabet}
    assert forms == {TokenForm(bytes([b]), False) for b in range(256) if b != 32} | {TokenForm(b"", True)}
    text = "Ωmega ß 日本\n\t€½\x00\x7f"
    [(spelled, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert canonical_form(spelled, "byte_level").bytes == text.encode()


# --- alignment


def match(token, family, source, source_family, **options):
    row = align([token], family, source, source_family, **options).item()
    return source[row] if row >= 0 else None


def test_word_starts_are_kept_apart():
    gpt2 = ["the", "Ġthe", "ing", "Ġing"]
    assert match("the", "wordpiece", gpt2, "byte_level") == "Ġthe"
    assert match("##ing", "wordpiece", gpt2, "byte_level") == "ing"
    assert match("▁the", "sentencepiece", gpt2, "byte_level") == "Ġthe"
    assert match("the", "words", gpt2, "byte_level") == "Ġthe"
    words = ["the", "ing", "n't"]
    assert match("Ġthe", "byte_level", words, "words") == "the"
    assert match("the", "byte_level", words, "words") is None
    assert match("##ing", "wordpiece", words, "words") is None
    assert match("ing", "sentencepiece", words, "words") is None
    assert match("the", "wordpiece", ["##the"], "wordpiece") is None


def test_punctuation_may_or_may_not_follow_a_blank():
    both = ["Ġ,", ","]
    assert match(",", "wordpiece", both, "byte_level") == ","
    assert match(",", "words", ["Ġ,"], "byte_level") == "Ġ,"
    assert match(",", "byte_level", ["##,", ","], "wordpiece") == ","  # `##,` never comes up in text
    assert match("▁(", "sentencepiece", ["("], "words") == "("
    assert match(",", "byte_level", ["Ġ,"], "byte_level") is None
    assert match("日", "sentencepiece", ["日"], "wordpiece") == "日"


def test_parts_of_characters_match_as_bytes():
    """256 bytes of one family find themselves in the other, never each other."""
    by_number = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rows = align(alphabet, "byte_level", by_number, "sentencepiece").tolist()
    for character, row in zip(alphabet, rows, strict=True):
        if character == "Ġ":  # the blank marks a word start, a byte token does not
            assert row == -1
        else:
            assert bytes([row]) == canonical_form(character, "byte_level").bytes
    assert len({row for row in rows if row >= 0}) == 255


def test_spelled_tokens_come_before_byte_tokens():
    """SentencePiece vocabularies hold `<0x41>` for `A`, which text never uses."""
    assert match("A", "byte_level", ["<0x41>", "A"], "sentencepiece") == "A"
    assert match("<0x41>", "sentencepiece", ["<0x41>", "A"], "sentencepiece") == "<0x41>"


def test_equal_spelling_comes_first_within_a_family():
    assert align(["</s>", "a", "b"], "words", ["b", "a", "a", "</s>"], "words").tolist() == [3, 1, 0]
    assert align([""], "words", ["", "a"], "words").tolist() == [-1]
    rows = align(["<s>", "a"], "words", ["<s>", "a"], "words", special={0})
    assert rows.tolist() == [-1, 1] and rows.dtype == torch.int64


def test_lower_case_is_a_counted_option():
    target, source = ["The", "the", "NATO", "Nato", "ĠThe"], ["the", "NATO", "nato"]
    report: dict = {}
    assert align(target, "words", source, "words").tolist() == [-1, 0, 1, -1, -1]
    rows = align(target, "words", source, "words", lowercase_fallback=True, report=report)
    assert rows.tolist() == [0, 0, 1, 2, -1] and report == {"lowercased": 2}
    assert match("ĠThe", "byte_level", source, "words", lowercase_fallback=True) == "the"
    assert match("The", "byte_level", source, "words", lowercase_fallback=True) is None
    assert match("Ã", "byte_level", source, "words", lowercase_fallback=True) is None


def test_word_candidates_are_what_a_list_of_words_is_asked_for():
    assert word_candidates(["ĠThe", "ing", ",", "Ã", "", "ĠGrÃ¶ÃŁe"], "byte_level") == [
        "The", "the", ",", "Größe", "größe"
    ]  # fmt: skip
    tokens, family = ["The", "##ing", "##,", "!", "[UNK]"], "wordpiece"
    source = word_candidates(tokens, family)
    assert source == ["The", "the", ",", "!", "[UNK]", "[unk]"]
    assert align(tokens, family, source, "words").tolist() == [0, -1, 2, 3, 4]


# --- vocabularies


def fast(model, decoder=None, pre_tokenizer=None, **options) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    if decoder is not None:
        backend.decoder = decoder
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def test_families_come_from_the_backend():
    vocab = {"a": 0, "b": 1}
    assert token_family(fast(models.WordPiece(vocab, unk_token="a"))) == "wordpiece"
    assert token_family(fast(models.WordLevel(vocab, unk_token="a"))) == "words"
    assert token_family(fast(models.BPE(vocab, []), pre_tokenizer=pre_tokenizers.ByteLevel())) == "byte_level"
    assert token_family(fast(models.BPE(vocab, []), decoders.Metaspace())) == "sentencepiece"
    llama = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert token_family(fast(models.BPE(vocab, []), llama)) == "sentencepiece"
    assert token_family(fast(models.BPE({"Ġa": 0, "a": 1}, []))) == "byte_level"
    with pytest.raises(InvalidArgumentError, match="</w>"):
        token_family(fast(models.BPE(vocab, [], end_of_word_suffix="</w>")))
    for mark in ("@@", "</w>"):  # Phobert, CTRL and XLM, whose tokenizers have no backend
        with pytest.raises(InvalidArgumentError, match=f"marks where words end .'{mark}'"):
            token_family(fast(models.BPE({f"a{mark}": 0, "b": 1, "go": 2}, [])))
    assert (
        token_family(fast(models.BPE(dict(zip([*"abcdefghijklmno", "b@@"], range(16), strict=True)), [])))
        == "words"
    )


def test_bytes_are_no_words():
    tokenizer = ByT5Tokenizer()
    assert token_family(tokenizer) == "byte_level"
    ids = tokenizer("a né", add_special_tokens=False)["input_ids"]
    forms = [canonical_form(token, "byte_level") for token in tokenizer.convert_ids_to_tokens(ids)]
    assert [form.bytes for form in forms] == [b"a", b"", b"n", b"\xc3", b"\xa9"]  # a blank starts a word
    assert [form.word_start for form in forms] == [False, True, False, False, False]
    every = {canonical_form(chr(byte), "byte_level").bytes for byte in range(256) if chr(byte) != " "}
    assert every == {bytes([byte]) for byte in range(256) if byte != 0x20}
    assert word_candidates(["a", "I", "é"], "byte_level") == []
    assert align(["a"], "byte_level", ["a"], "words").tolist() == [-1]


def test_vocabulary_lists_tokens_by_id_with_gaps():
    tok = fast(models.WordLevel({"a": 0, "[U]": 4, "c": 2}, unk_token="[U]"), unk_token="[U]")
    assert vocabulary(tok) == ["a", "", "c", "", "[U]"] == vocabulary(tok, "target")
    assert special_ids(tok) == [4]


def test_vocabulary_of_a_compacted_tokenizer_whose_dropped_pieces_share_an_id():
    tok = fast(models.WordPiece({"[U]": 0, "a": 1, "x": 0, "y": 0}, unk_token="[U]"))
    tokens = vocabulary(tok)
    assert tokens == [tok.convert_ids_to_tokens(0), "a"]


def vanilla_tokenizer() -> Any:
    """Our own tokenizer, where transformers is new enough for it."""
    return pytest.importorskip("hf_embinit.models", exc_type=ImportError).VanillaTransformerTokenizer


def test_special_ids_are_those_of_the_side():
    texts = ["ein Hund ein Hund", "ein Hund"]
    tok = vanilla_tokenizer().build(texts, ["a a"], source_lang="de", target_lang="en")
    tok.add_special_tokens({"additional_special_tokens": ["<x>"]})
    tok.add_tokens(["Aragorn"])
    assert token_family(tok) == "words"
    assert vocabulary(tok, "source") == ["<pad>", "<unk>", "<s>", "</s>", "ein", "hund", "<x>", "Aragorn"]
    assert vocabulary(tok, "target") == ["<pad>", "<unk>", "<s>", "</s>", "a", "<x>", "Aragorn"]
    assert special_ids(tok, "source") == [0, 1, 2, 3, 6] and special_ids(tok, "target") == [0, 1, 2, 3, 5]


def test_the_family_of_a_compacted_tokenizer_is_that_of_the_one_inside():
    inner = fast(
        models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"),
        pre_tokenizer=pre_tokenizers.Whitespace(),
    )
    tok = vanilla_tokenizer().build(["ab ab a"], tokenizer=inner)
    assert token_family(tok) == "wordpiece"
    assert align(vocabulary(tok), "wordpiece", ["Ġa", "b"], "byte_level").tolist() == [-1, -1, -1, -1, 0, 1]


def test_marian_keeps_two_vocabularies(tmp_path):
    spm = pytest.importorskip("sentencepiece")
    import json
    import warnings

    from transformers import MarianTokenizer

    text = tmp_path / "text.txt"
    text.write_text("\n".join(["the dog runs", "a dog sees the cat", "cats run"] * 20), encoding="utf-8")
    prefix = str(tmp_path / "spm")
    spm.SentencePieceTrainer.train(
        input=str(text), model_prefix=prefix, vocab_size=30, hard_vocab_limit=False, minloglevel=2
    )
    for name, tokens in (("source", ["</s>", "<unk>", "▁the", "▁dog", "<pad>"]),
                         ("target", ["</s>", "<unk>", "▁cat", "<pad>"])):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tok = MarianTokenizer(
            f"{prefix}.model",
            f"{prefix}.model",
            str(tmp_path / "source.json"),
            str(tmp_path / "target.json"),
            separate_vocabs=True,
        )
    assert token_family(tok) == "sentencepiece"
    assert vocabulary(tok, "source") == ["</s>", "<unk>", "▁the", "▁dog", "<pad>"]
    assert vocabulary(tok, "target") == ["</s>", "<unk>", "▁cat", "<pad>"]
    assert special_ids(tok, "source") == [0, 1, 4] and special_ids(tok, "target") == [0, 1, 3]


# --- coverage


def test_coverage_by_type_and_by_token():
    tokens = ["<pad>", "a", "b", "", "c", "d"]
    found = torch.tensor([True, True, False, False, False, True])
    result = coverage(tokens, found, special=[0], counts=[9, 5, 1, 0, 3, 1])
    assert (result.types, result.types_found, result.special, result.without_token) == (4, 2, 1, 1)
    assert (result.tokens, result.tokens_found) == (10, 6)
    assert result.by_type == 0.5 and result.by_token == 0.6
    assert result.most_missed == [("c", 3), ("b", 1)]
    assert result.to_dict()["by_token"] == 0.6 and result.to_dict()["types_found"] == 2
    plain = coverage(tokens, found.tolist(), most_missed=1)
    assert plain.tokens is None and plain.by_token is None and plain.most_missed == [("b", None)]
    assert coverage([], []).to_dict()["by_type"] is None
    with pytest.raises(InvalidArgumentError, match="counts= has 2 entries for 6 tokens"):
        coverage(tokens, found, counts=[1, 2])


# --- real data


FAMILIES = {
    "bert-base-uncased": "wordpiece",
    "bert-base-multilingual-cased": "wordpiece",
    "gpt2": "byte_level",
    "t5-base": "sentencepiece",
    "german-unigram-30k": "sentencepiece",
}


@pytest.fixture(scope="module")
def real():
    if not DATA.is_dir():
        pytest.skip("HF_EMBINIT_DATA is not set")
    return {name: AutoTokenizer.from_pretrained(DATA / "tokenizers" / name) for name in FAMILIES}


@pytest.mark.data
def test_families_of_real_tokenizers(real):
    assert {name: token_family(tok) for name, tok in real.items()} == FAMILIES
    sizes = {name: len(vocabulary(tok)) for name, tok in real.items()}
    assert sizes == {
        "bert-base-uncased": 30522,
        "bert-base-multilingual-cased": 119547,
        "gpt2": 50257,
        "t5-base": 32100,
        "german-unigram-30k": 30000,
    }
    specials = {name: len(special_ids(tok)) for name, tok in real.items()}
    assert specials == {
        "bert-base-uncased": 5,
        "bert-base-multilingual-cased": 5,
        "gpt2": 1,
        "t5-base": 103,
        "german-unigram-30k": 5,
    }


@pytest.mark.data
@pytest.mark.parametrize(
    ("target", "token", "source", "expected"),
    [
        ("bert-base-uncased", "the", "gpt2", "Ġthe"),
        ("gpt2", "the", "bert-base-uncased", "##the"),
        ("gpt2", "Ġthe", "t5-base", "▁the"),
        ("t5-base", ",", "bert-base-uncased", ","),
        ("bert-base-uncased", "##ing", "gpt2", "ing"),
        ("german-unigram-30k", "▁Haus", "bert-base-multilingual-cased", "Haus"),
        ("gpt2", "Ã", "t5-base", None),
        ("gpt2", "âĢ", "bert-base-multilingual-cased", None),
        ("bert-base-uncased", "xyzzy", "gpt2", None),
    ],
)
def test_real_tokens_find_each_other(real, target, token, source, expected):
    tokens = vocabulary(real[source])
    assert match(token, FAMILIES[target], tokens, FAMILIES[source]) == expected


@pytest.mark.data
@pytest.mark.parametrize(
    ("target", "source", "found"),
    [("t5-base", "gpt2", 18866), ("gpt2", "t5-base", 18866), ("gpt2", "gpt2", 50256)],
)
def test_aligned_real_tokens_write_the_same_text(real, target, source, found):
    wanted, have = vocabulary(real[target]), vocabulary(real[source])
    special = special_ids(real[target])
    rows = align(wanted, FAMILIES[target], have, FAMILIES[source], special=special).tolist()
    pairs = [(wanted[i], have[row]) for i, row in enumerate(rows) if row >= 0]
    assert len(pairs) == found
    for left, right in pairs[::97]:
        texts = []
        for name, token in ((target, left), (source, right)):
            tok = real[name]
            start = tok.convert_tokens_to_string([tok.tokenize("x")[0], token])
            texts.append(start.removeprefix("x"))
        assert texts[0] == texts[1] or "�" in texts[0]


# ----------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_copy_of_a_tokenizer_is_what_a_full_copy_is_and_leaves_it_alone(family) -> None:
    t = tiny_tokenizer(family)
    t.add_tokens([AddedToken("zyx", single_word=True), AddedToken("<call>", special=True)])
    t.backend_tokenizer.enable_truncation(50)
    t.backend_tokenizer.enable_padding(length=5)
    before = t.backend_tokenizer.to_str()
    copied, full = copy_tokenizer(t), copy.deepcopy(t)
    assert copied.backend_tokenizer.to_str() == before
    for one in (copied, full):
        one.add_tokens([" qorvex", AddedToken("<end>", special=True)])
        one.add_special_tokens({"additional_special_tokens": ["<more>"]})
    assert copied.backend_tokenizer.to_str() == full.backend_tokenizer.to_str()
    text = f"{texts()[0]} zyx qorvex<call><end><more>"
    assert copied(text)["input_ids"] == full(text)["input_ids"]
    assert copied.all_special_tokens == full.all_special_tokens != t.all_special_tokens
    assert t.backend_tokenizer.to_str() == before


def test_a_copy_keeps_ids_with_a_gap_between_them() -> None:
    spec = json.loads(tiny_tokenizer("words").backend_tokenizer.to_str())
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": 5000, "content": "<far>"})
    backend = Tokenizer.from_str(json.dumps(spec))
    t = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert t.get_vocab() == copy_tokenizer(t).get_vocab()


def test_a_tokenizer_in_python_is_copied_as_well() -> None:
    t = vanilla_tokenizer().build(
        ["a man"], ["ein Mann"], source_lang="en", target_lang="de", min_frequency=1
    )
    copied = copy_tokenizer(t)
    assert copied is not t and copied.get_vocab() == t.get_vocab()
