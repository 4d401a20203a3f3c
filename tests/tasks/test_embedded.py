"""The embedded corpora: the very texts that records were made from, and what is said of a damaged file."""

from __future__ import annotations

import lzma
import re
from collections import Counter

import pytest
from datasets import Dataset

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError, UnknownNameError
from hf_embinit.tasks.classification_data import load_classification
from hf_embinit.tasks.corpus_vectors import corpus_tokens
from hf_embinit.tasks.data import data_digests, texts_digest
from hf_embinit.tasks.embedded import CORPORA, FOLDER, TEXTS, corpus_splits, corpus_text, read_rows
from hf_embinit.tasks.language_modeling import load_texts as load_stories
from hf_embinit.tasks.texts import load_texts
from hf_embinit.tasks.translation import load_translation

SPLITS = {
    ("captions", "train"): (10_000, "4da49f86ad5d83f0e76a5653c4ad736f4729c4650689591b20b1bb4b1dbe60e9"),
    ("captions", "validation"): (500, "ab227421e00361aab41764071e139b7c6981b3918cd8cd81b4b57dd616d46200"),
    ("captions", "test"): (500, "140667e8116960969e47bc5354ef63ed9ca1bc182a0e7aca292e66d0fc8d804b"),
    ("sentiment", "train"): (10_000, "84dbdd4c06a1cc029625f930feb1912c20e93bf40d6be1bfcece0b3dbb8d59f4"),
    ("sentiment", "validation"): (900, "4361908bda06e861195702ae052f86d27fd71f99b28fe3813290e79772a31f2d"),
    ("sentiment", "test"): (900, "a91ee0edb66670624d33a6cd12a447015267768d389df3bdde5ff4d10373c9a8"),
    ("entailment", "train"): (16_002, "355c2989890bb3cfedc96fdbfae206ac4e23fe91afced9fc1e6d8486aae144f9"),
    ("entailment", "validation_matched"): (
        900, "64d0bcf9aea0b57b516ebcb6db289b14b0bc7ce9b76369a89884a181c733c945",
    ),
    ("entailment", "validation_mismatched"): (
        900, "5b8de929a6e3a775d7ef6b0aba7f19b40b8cff3168491b2f3748d52582b68386",
    ),
    ("entailment", "test_matched"): (900, "d5b4691c3bde6f8c674d31b75bdafc3d23d5f7929394319cb30f21efc771a2bd"),
    ("entailment", "test_mismatched"): (
        900, "c3d53203e571f2c83615a7753de950dfecd749e17f7deb5f2ce1f4f1ac915109",
    ),
    ("tatoeba", "train"): (8_000, "e019183d071bdb13410cff728e7867afef46b0d3261af059ff16e3cb058788fa"),
    ("tatoeba", "test"): (500, "a837d02f576143a1be78cae0e841242d5340a055921f64ba13488ffe19b77e0a"),
}  # fmt: skip
"""Rows and `data_digests` of each split, as records of runs have them."""
LINES = {
    "captions-de": (30_000, "8167a4caec27f3843bf3af916a313bea15ac1d3e218c2d3a6207e5a956b9ab81"),
    "captions-en": (30_000, "82481b3cb560e9c52adabee0464c2d04c146389b4d30b8836611d4f9393f1702"),
    "sentiment": (30_000, "a4c5f7323e64a6bd893ccb9b3dbb0d02ebfdefce610af3e8d129710d7be5747c"),
    "entailment": (45_000, "95adb1fa7c8fc5c371950b825e3597f0288b651fcf02e66a1eed8dd314c792ad"),
}
"""Sentences and `texts_digest` of each text for vectors."""
TEXT_COLUMNS = {
    "captions": ("de", "en"),
    "sentiment": ("sentence",),
    "entailment": ("premise",),
    "tatoeba": ("de", "en"),
}
"""Columns in which nothing occurs twice."""


@pytest.fixture(scope="module", params=sorted(CORPORA))
def corpus(request):
    return request.param, corpus_splits(request.param)


def test_texts_are_those_of_the_records(corpus):
    name, splits = corpus
    data = data_digests({split: Dataset.from_list(rows) for split, rows in splits.items()})
    found = {(name, split): (about["rows"], about["sha256"]) for split, about in data.items()}
    assert found == {key: about for key, about in SPLITS.items() if key[0] == name}
    for text in (text for text in TEXTS if text.startswith(name)):
        lines = corpus_text(text)
        assert (len(lines), texts_digest(lines)) == LINES[text]


def test_nothing_occurs_twice_and_no_text_holds_what_is_held_out(corpus):
    name, splits = corpus
    for column in TEXT_COLUMNS[name]:
        values = [row[column].lower() for rows in splits.values() for row in rows]
        assert len(set(values)) == len(values)
        if name in TEXTS:
            held_out = {row[column].lower() for k, rows in splits.items() if k != "train" for row in rows}
            assert not held_out & {line.lower() for line in corpus_text(name)}


def test_labels_are_balanced(corpus):
    name, splits = corpus
    labels = {"sentiment": 2, "entailment": 3}.get(name)
    for rows in splits.values() if labels else ():
        counts = Counter(row["label"] for row in rows)
        assert sorted(counts) == list(range(labels)) and len(set(counts.values())) == 1


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_spacy(text):
    spacy = pytest.importorskip("spacy")
    lines = corpus_text(text)[-1500:]
    language = text.partition("-")[2] or "en"
    for line, doc in zip(lines, spacy.blank(language).tokenizer.pipe(lines), strict=True):
        assert [token.text.lower() for token in doc] == corpus_tokens(line)


def test_names_are_checked():
    with pytest.raises(UnknownNameError, match="Did you mean: captions"):
        corpus_splits("caption")
    with pytest.raises(UnknownNameError, match="Did you mean: captions-"):
        corpus_text("captions-fr")
    with pytest.raises(
        InvalidArgumentError, match=r"corpus 'captions:fr' has no column 'fr'; it has: de, en"
    ):
        load_texts("captions:fr")


def packed(text: str) -> bytes:
    return lzma.compress(text.encode())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (packed('{"text": "a"}\n')[:-9], "x/rows.jsonl.xz is damaged (Compressed data ended"),
        (b'{"text": "a"}\n', "x/rows.jsonl.xz is damaged (Input format not supported"),
        (lzma.compress(b'{"text": "\xff"}\n'), "x/rows.jsonl.xz is damaged ('utf-8' codec"),
        (packed('{"text": "a"}\n{"text": \n'), "row 1 of the embedded corpus x/rows.jsonl.xz is no JSON"),
        (packed('{"text": "a"}\n{"words": "a"}\n'), "row 1 of the embedded corpus x/rows.jsonl.xz has words"),
        (packed('["a"]\n'), "has ['a'] where the columns are text"),
        (packed('{"text": 3}\n'), "the 'text' of row 0 of the embedded corpus x/rows.jsonl.xz is 3, not str"),
    ],
    ids=["cut short", "not packed", "not UTF-8", "no JSON", "other column", "no object", "no text"],
)
def test_a_damaged_file_is_named_with_its_row(tmp_path, content, sentence):
    path = tmp_path / "x" / "rows.jsonl.xz"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence) + ".*install hf-embinit again"):
        read_rows(path, {"text": str})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"rows\.jsonl\.xz is not in .*: install hf-embinit again"):
        read_rows(tmp_path / "rows.jsonl.xz", {"text": str})


def test_the_package_stays_small():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    assert {path.suffix for path in files} == {".xz", ".md"}


def test_a_place_for_an_embedded_corpus_is_refused(tmp_path) -> None:
    loaders = {"captions": load_translation, "stories": load_stories, "sentiment": load_classification}
    for name, load in loaders.items():
        with pytest.raises(InvalidArgumentError, match=rf"--data_dir .*: --\w+ {name} is embedded"):
            load(name, data_dir=str(tmp_path))
    (tmp_path / "mine").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "mine" / f"{split}.csv").write_text("sentence,label\n" + "a dog,1\na cat,0\n" * 4)
    _, data = load_classification("mine", data_dir=str(tmp_path))
    assert set(data["train"]["text"]) == {"a dog", "a cat"}
