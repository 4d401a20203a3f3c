"""Rows from a fastText model (`.bin`): for words in its dictionary, and for any other from character n-grams.

The layout is that of fastText 0.9 (versions 11 and 12 of its format), little-endian: settings, dictionary,
then the input table `[words + buckets, D]`. Nothing is read beyond the last row that is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import VectorFileError
from .rows import RowCollector
from .streams import BLOCK

FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")
_VERSIONS = (11, 12)
_SETTINGS = struct.Struct("<12id")
_NAMES = (
    *("dim", "window", "epochs", "min_count", "negatives", "word_ngrams", "loss", "model", "bucket", "minn"),
    *("maxn", "learning_rate_updates", "subsampling"),
)
_LOSSES = {1: "hierarchical softmax", 2: "negative sampling", 3: "softmax", 4: "one against all"}
_MODELS = {1: "cbow", 2: "skipgram", 3: "supervised"}
_LARGEST_DIM, _LONGEST_NGRAM, _LONGEST_TOKEN = 1 << 16, 64, 1 << 16
"""Beyond these a header is taken for a damaged one."""
_END_OF_SENTENCE = b"</s>"


def read_fasttext_rows(
    head: bytes, blocks: Iterator[bytes], rows: RowCollector, where: str
) -> dict[str, Any]:
    """Passes the rows of the wanted tokens (all words when all are wanted) to `rows`; returns counts.

    A row is what fastText's `get_word_vector` gives: the mean of the rows of the word and of its character
    n-grams, or of the n-grams alone for a word that is not in the dictionary. `from_subwords` counts the
    latter, `settings` are those of the training. Raises `VectorFileError` for a file that ends early, an
    impossible header, and a quantised model (`.ftz`).
    """
    data = _Bytes(head, blocks, where)
    version = struct.unpack("<i", data.take(8)[4:])[0]
    if version not in _VERSIONS:
        raise VectorFileError(
            f"{where} is a fastText model of version {version}; 11 and 12 are read: use its .vec file."
        )
    model = _read_model(data, where, version)
    wanted = list(model.words if rows.takes_all else rows.slots)
    parts = [model.parts(word) for word in wanted]
    needed = np.unique(np.concatenate([*parts, np.empty(0, dtype=np.int64)]))
    table = _read_rows(data, needed, model, where)
    rows.start(model.dim)
    for word, part in zip(wanted, parts, strict=True):
        if len(part):
            rows.add(word, table[np.searchsorted(needed, part)].mean(axis=0))
    return {
        "format": "fasttext",
        "header": [len(model.words), model.dim],
        "lines": len(model.words),
        "truncated_last_line": False,
        "tokens_with_spaces": 0,
        "from_subwords": sum(
            len(part) > 0 and word not in model.words for word, part in zip(wanted, parts, strict=True)
        ),
        "settings": model.settings,
    }


@dataclass
class _Model:
    """What precedes the table in the file."""

    settings: dict[str, Any]
    words: dict[bytes, int]
    """Word -> its row."""
    num_words: int
    pruned: dict[int, int] | None
    """Bucket -> its row after the words', for a model whose n-grams were pruned."""

    @property
    def dim(self) -> int:
        """Width D of the rows."""
        return self.settings["dim"]

    def parts(self, word: bytes) -> np.ndarray:
        """Ids of the rows whose mean is the word's vector; empty when it has none."""
        ids = [self.words[word]] if word in self.words else []
        if word != _END_OF_SENTENCE and self.settings["bucket"]:
            for number in ngram_hashes(b"<" + word + b">", self.settings["minn"], self.settings["maxn"]):
                bucket = number % self.settings["bucket"]
                if self.pruned is None:
                    ids.append(self.num_words + bucket)
                elif bucket in self.pruned:
                    ids.append(self.num_words + self.pruned[bucket])
        return np.array(ids, dtype=np.int64)


def ngram_hashes(word: bytes, minn: int, maxn: int) -> Iterator[int]:
    """The 32-bit hashes of the n-grams of `minn` to `maxn` characters of a word in UTF-8 between `<` and `>`.

    FNV-1a over signed bytes, as in fastText. `<` and `>` alone are no n-grams.
    """
    starts = [i for i, byte in enumerate(word) if byte & 0xC0 != 0x80] + [len(word)]
    last = len(starts) - 1
    for first in range(last):
        number = 2166136261
        for stop in range(first + 1, min(first + maxn, last) + 1):
            for byte in word[starts[stop - 1] : starts[stop]]:
                number = (number ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619 & 0xFFFFFFFF
            n = stop - first
            if n >= minn and not (n == 1 and (first == 0 or stop == last)):
                yield number


class _Bytes:
    """The bytes of a file in order; raises `VectorFileError` where it ends early."""

    def __init__(self, head: bytes, blocks: Iterator[bytes], where: str):
        self._data, self._at, self._blocks, self._where = head, 0, blocks, where

    def _more(self) -> None:
        block = next(self._blocks, None)
        if block is None:
            raise VectorFileError(
                f"{self._where} ends early: it is damaged, or its download was cut off."
            ) from None
        self._data, self._at = self._data[self._at :] + block, 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        while len(self._data) - self._at < size:
            self._more()
        self._at += size
        return self._data[self._at - size : self._at]

    def word(self) -> bytes:
        """The bytes before the next zero byte, which is taken too."""
        while (end := self._data.find(b"\0", self._at)) < 0:
            if len(self._data) - self._at > _LONGEST_TOKEN:
                raise VectorFileError(f"{self._where} is a damaged fastText model: a word without an end.")
            self._more()
        return self.take(end + 1 - self._at)[:-1]


def _read_model(data: _Bytes, where: str, version: int) -> _Model:
    settings: dict[str, Any] = dict(zip(_NAMES, _SETTINGS.unpack(data.take(_SETTINGS.size)), strict=True))
    if version == 11 and settings["model"] == 3:
        settings["maxn"] = 0  # supervised models had no character n-grams then
    size, num_words, num_labels, num_tokens, num_pruned = struct.unpack("<iiiqq", data.take(28))
    if (
        not 0 < settings["dim"] <= _LARGEST_DIM
        or not 0 <= settings["maxn"] <= _LONGEST_NGRAM
        or settings["bucket"] < 0
        or num_labels < 0
        or not 0 <= num_words == size - num_labels
    ):
        raise VectorFileError(
            f"{where} is a damaged fastText model: {size} entries, {num_words} words, {settings}."
        )
    words: dict[bytes, int] = {}
    for row in range(size):
        word = data.word()
        kind = data.take(9)[8]
        if kind == 0 and row < num_words:  # else a label
            words.setdefault(word, row)
    pruned = None
    if num_pruned >= 0:
        pruned = dict(struct.unpack("<ii", data.take(8)) for _ in range(num_pruned))
    settings["loss"] = _LOSSES.get(settings["loss"], settings["loss"])
    settings["model"] = _MODELS.get(settings["model"], settings["model"])
    return _Model({**settings, "corpus_tokens": num_tokens}, words, num_words, pruned)


def _read_rows(data: _Bytes, needed: np.ndarray, model: _Model, where: str) -> np.ndarray:
    """Rows `[len(needed), D]` of the input table, for ids in ascending order."""
    if data.take(1) != b"\0":
        raise VectorFileError(
            f"{where} is a quantised fastText model: use the one before quantize(), or its .vec file."
        )
    total, dim = struct.unpack("<qq", data.take(16))
    if dim != model.dim or (len(needed) and not 0 <= needed[0] <= needed[-1] < total):
        raise VectorFileError(
            f"{where} is a damaged fastText model: its table of {total} x {dim} does not go with "
            f"{model.num_words} words, {model.settings['bucket']} buckets and a width of {model.dim}."
        )
    step = max(1, BLOCK // (4 * dim))
    rows = [np.empty((0, dim), dtype=np.float32)]
    at, taken = 0, 0
    while taken < len(needed):
        count = min(step, total - at)
        chunk = np.frombuffer(data.take(4 * dim * count), dtype="<f4").reshape(count, dim)
        upto = int(np.searchsorted(needed, at + count))
        if upto > taken:
            rows.append(chunk[needed[taken:upto] - at])
        at, taken = at + count, upto
    return np.concatenate(rows)
