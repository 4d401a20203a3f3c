"""`propose_tokens`: frequent words that are split, spelled as the tokenizer uses them."""

from __future__ import annotations

import copy
from collections import Counter
from importlib.metadata import version

import pytest
from builders.tiny_tokenizers import model, t5_like, texts, tokenizer
from packaging.version import Version
from transformers.utils import logging

from hf_embinit.errors import InvalidArgumentError, VocabularyWarning
from hf_embinit.vocabulary import expand_vocabulary, propose_tokens


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece_bpe", "wordpiece", "unigram"])
def test_words_are_frequent_split_and_used_once_added(family) -> None:
    t = tokenizer(family)
    new = propose_tokens(t, texts(), 8)
    assert len(new) == 8 and len({str(token) for token in new}) == 8
    extended = copy.deepcopy(t)
    assert extended.add_tokens(new) == 8
    for token in new:
        assert len(t(str(token), add_special_tokens=False)["input_ids"]) > 1
    before = [t.decode(ids) for ids in t(list(texts()))["input_ids"]]
    after = extended(list(texts()))["input_ids"]
    used = Counter(i for ids in after for i in ids)
    counts = [used[i] for i in extended.convert_tokens_to_ids([str(token) for token in new])]
    assert min(counts) >= 2
    old = family == "sentencepiece_bpe" and Version(version("tokenizers")) < Version("0.23")
    if family != "unigram" and not old:  # whose decoders drop a blank beside an added token
        assert [extended.decode(ids) for ids in after] == before


def test_words_that_would_break_longer_ones_are_left_out() -> None:
    corpus = ["a zyx zyxomma qorvex zyxis zyx"] * 3
    anywhere = propose_tokens(tokenizer("byte_level"), corpus, 9)
    assert [str(token) for token in anywhere] == [" zyx", " qorvex", " zyxis", " zyxomma"]
    t = t5_like()  # would read " zyx" and "▁omma" where a text has " zyxomma"
    new = propose_tokens(t, corpus, 9)
    assert [str(token) for token in new] == [" qorvex", " zyxis", " zyxomma"]
    before = t.decode(t(corpus[0], add_special_tokens=False)["input_ids"])
    t.add_tokens(new)
    assert t.decode(t(corpus[0], add_special_tokens=False)["input_ids"]) == before == corpus[0]


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece_bpe", "wordpiece", "unigram", "t5"])
def test_proposals_are_added_without_a_warning(family, recwarn) -> None:
    """An uncased tokenizer writes `nasdaq`; T5's takes what follows an added token for a word, always."""
    t = t5_like() if family == "t5" else tokenizer(family)
    new = propose_tokens(t, ["a Nasdaq qorvex here and a Nasdaq qorvex Zürichberg Zürichberg"] * 2, 3)
    assert len(new) == 3
    expand_vocabulary(model("llama", len(t)), t, new, prefixes=())
    assert not [str(w.message) for w in recwarn if w.category is VocabularyWarning]


def test_the_order_is_by_count_then_by_spelling() -> None:
    corpus = ["the qaz qaz wsx", "the wsx edc rfv", "the edc plm plm", "tgb"] * 2
    new = [str(token) for token in propose_tokens(tokenizer("byte_level"), corpus, 10)]
    assert new == [" edc", " plm", " qaz", " wsx", " rfv"]  # `the` is whole; `tgb` never follows a blank
    assert [str(t) for t in propose_tokens(tokenizer("byte_level"), corpus, 10, min_count=4)] == new[:4]
    assert [str(t) for t in propose_tokens(tokenizer("byte_level"), corpus, 1, word=r"r.+")] == [" rfv"]


def test_the_corpus_is_read_behind_a_bar_on_a_terminal(monkeypatch) -> None:
    read, corpus = [], ["the qaz qaz", "the qaz"]

    def bar(texts, **options):
        read.append((options["unit"], options["disable"]))
        return texts

    monkeypatch.setattr(logging, "tqdm", bar)
    assert len(propose_tokens(tokenizer("byte_level"), iter(corpus), 3)) == 1
    assert read == [("text", None)]


def test_spelling_by_family() -> None:
    corpus = ["a Zyxomma here and a Zyxomma there", "zyxomma"]
    assert str(propose_tokens(tokenizer("byte_level"), corpus, 1)[0]) == " Zyxomma"
    assert str(propose_tokens(tokenizer("sentencepiece_bpe"), corpus, 1)[0]) == "Zyxomma"
    (token,) = propose_tokens(tokenizer("wordpiece"), corpus, 1)
    assert str(token) == "zyxomma" and token.single_word  # else "zyxommas" would lose its "##s"


@pytest.mark.parametrize(
    ("corpus", "n", "message"),
    [
        ("one string", 3, "expected an iterable of strings"),
        (["the the"], 3, "no word that is seen 2 times and split: 1 words were read"),
        ([], 3, "no word"),
        (["qaz qaz qaz"], 0, "n=0: expected a whole number of 1 or more"),
    ],
)
def test_bad_requests(corpus, n, message) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        propose_tokens(tokenizer("byte_level"), corpus, n)


def test_spellings_that_are_one_word_to_the_tokenizer_count_together() -> None:
    corpus = ["a zyxomma b", "a Zyxomma b"] * 4 + ["a qorvex b"] * 5
    uncased = tokenizer("wordpiece")
    assert [str(t) for t in propose_tokens(uncased, corpus, 2, min_count=8)] == ["zyxomma"]
    assert [str(t) for t in propose_tokens(uncased, corpus, 2)] == ["zyxomma", "qorvex"]


@pytest.mark.parametrize("word", ["हिन्दी", "தமிழ்", "اللُّغَةُ", "cafe\u0301", "می\u200cخواهم"])
def test_words_with_marks(word) -> None:
    corpus = [f"a {word} the", f"the {word} b", "1st 2nd"]
    assert [str(t) for t in propose_tokens(tokenizer("byte_level"), corpus, 1)] == [f" {word}"]
    with pytest.raises(InvalidArgumentError, match=r"0 words and 2 strings that are no word \(word=\)"):
        propose_tokens(tokenizer("byte_level"), ["a 1st 2nd"], 1)


def test_words_that_are_unknown() -> None:
    t = tokenizer("wordpiece")
    corpus = ["a ሰላም the"] * 3
    assert t("ሰላም", add_special_tokens=False)["input_ids"] == [t.unk_token_id]
    assert [str(token) for token in propose_tokens(t, corpus, 1)] == ["ሰላም"]


def test_where_the_space_belongs_to_the_token_words_after_a_line_end_do_not_count() -> None:
    corpus = ["one\nzyxomma the\nzyxomma"] * 3 + ["a qorvex b"] * 2
    assert [str(t) for t in propose_tokens(tokenizer("byte_level"), corpus, 1)] == [" qorvex"]
    assert [str(t) for t in propose_tokens(tokenizer("wordpiece"), corpus, 1)] == ["zyxomma"]
