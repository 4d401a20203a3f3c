"""fastText `.bin` files, written here by the documented layout: words, words never seen, damaged files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.fasttext_models import BUCKETS, WORDS, model, table

from hf_embinit.errors import VectorFileError
from hf_embinit.vectors import load_vectors, read_vectors
from hf_embinit.vectors.fasttext_format import ngram_hashes


def write(folder: Path, data: bytes, name: str = "cc.gn.3.bin") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def buckets(word: str) -> list[int]:
    return [number % BUCKETS for number in ngram_hashes(f"<{word}>".encode(), 3, 4)]


def test_hashes_are_those_of_fasttext():
    """Numbers from fastText 0.9.2, `get_subwords` of a model of 20,000 buckets and 9,223 words."""
    assert [9223 + h % 20_000 for h in ngram_hashes("<Hä>".encode(), 3, 6)] == [25909, 24087, 28393]
    expected = [27810, 13804, 13832, 24782, 18146, 23578]
    assert [9223 + h % 20_000 for h in ngram_hashes("<日本語>".encode(), 3, 6)] == expected
    assert len(list(ngram_hashes(b"<ab>", 1, 2))) == 5  # a, b, <a, ab, b>: the marks alone are none
    assert not list(ngram_hashes(b"<ab>", 0, 0))


def test_words_and_words_never_seen(tmp_path, caplog):
    rows = table(3 + BUCKETS)
    caplog.set_level("INFO")
    vectors = read_vectors(write(tmp_path, model()), ["straße", "hausboot", "</s>", "straße"])
    assert vectors.tokens == ["straße", "hausboot", "</s>"]
    expected = [
        rows[[2, *(3 + b for b in buckets("straße"))]].mean(0),
        rows[[3 + b for b in buckets("hausboot")]].mean(0),
        rows[0],  # the end of a sentence has no n-grams
    ]
    torch.testing.assert_close(vectors.matrix, torch.tensor(np.array(expected)))
    assert vectors.report["format"] == "fasttext" and vectors.report["header"] == [3, 3]
    assert (
        vectors.report["from_subwords"] == 1 and "1 of 3 tokens are made from their sub-words" in caplog.text
    )
    assert vectors.provenance["method"] == "fastText"
    assert vectors.provenance["settings"]["model"] == "cbow" and vectors.provenance["settings"]["maxn"] == 4
    assert vectors.source["digest"] == vectors.digest


def test_all_words_and_compressed(tmp_path):
    path = write(tmp_path, model())
    everything = read_vectors(path)
    assert everything.tokens == WORDS and everything.report["from_subwords"] == 0
    assert torch.equal(everything.matrix, read_vectors(path, WORDS).matrix)
    packed = write(tmp_path, gzip.compress(model()), "cc.gn.3.bin.gz")
    assert load_vectors(packed, tokens=["jagua"]).digest == load_vectors(path, tokens=["jagua"]).digest


def test_without_ngrams_a_word_never_seen_is_not_found(tmp_path):
    rows = table(3 + BUCKETS)
    old = model(version=11, kind=3, labels=["__label__a"])  # such models had no n-grams
    for data in (old, model(maxn=0, minn=0)):
        vectors = read_vectors(write(tmp_path, data), ["haus", "hausboot", "__label__a"])
        assert vectors.tokens == ["haus"] and torch.equal(vectors.matrix[0], torch.tensor(rows[1]))
    assert read_vectors(write(tmp_path, model()), ["x", ""]).tokens == ["x"]


def test_pruned_ngrams(tmp_path):
    kept = {bucket: row for row, bucket in enumerate(sorted(set(buckets("haus"))))}
    rows = table(3 + len(kept))
    vectors = read_vectors(write(tmp_path, model(pruned=kept)), ["haus", "qqq"])
    expected = rows[[1, *(3 + kept[b] for b in buckets("haus"))]].mean(0)
    torch.testing.assert_close(vectors.matrix[0], torch.tensor(expected))
    assert read_vectors(write(tmp_path, model(pruned={})), ["haus", "qqq"]).tokens == ["haus"]


def test_rows_that_are_not_finite_are_left_out(tmp_path):
    rows = table(3 + BUCKETS)
    rows[0] = np.nan
    vectors = read_vectors(write(tmp_path, model(matrix=rows)), ["</s>", "haus"])
    assert vectors.tokens == ["haus"] and vectors.report["non_finite"] == ["</s>"]


def test_damaged_files_are_refused(tmp_path):
    data = model()
    for cut in (9, 40, 80, 110, 160, len(data) // 2):
        with pytest.raises(VectorFileError, match=r"cc\.gn\.3\.bin ends early"):
            read_vectors(write(tmp_path, data[:cut]))
    for bad, sentence in (
        (model(version=13), "a fastText model of version 13; 11 and 12 are read: use its .vec file"),
        (model(quantised=True), "a quantised fastText model: use the one before quantize"),
        (model(matrix=table(4)), r"its table of 4 x 3 does not go with 3 words, 50 buckets and a width of 3"),
        (model(matrix=table(53, 2)), "its table of 53 x 2 does not go with"),
        (model(maxn=1 << 30), "a damaged fastText model: 3 entries, 3 words"),
        (data[:8] + struct.pack("<i", -3) + data[12:], "a damaged fastText model"),
        (data[: data.index(b"</s>")] + b"x" * (1 << 17), "a word without an end"),
    ):
        with pytest.raises(VectorFileError, match=sentence):
            read_vectors(write(tmp_path, bad))
