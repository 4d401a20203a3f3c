"""The embedded German-English caption corpus, and GloVe vectors of its words.

Nothing is stored: sentences are drawn from a grammar (`captions_grammar`, `captions_lexicon`,
`captions_sentences`), so that the corpus is a function of a seed. It takes word order and agreement to
translate it: objects stand before subjects, verbs at the end, particles apart from their verbs, and case
tells who does what to whom.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from ..errors import InvalidArgumentError
from ..vectors import PretrainedVectors, read_vectors, write_vectors
from ..vectors.glove import train_glove
from .captions_sentences import SentenceMaker

logger = logging.getLogger(__name__)

SPLIT_SIZES = {"train": 10_000, "validation": 500, "test": 500}
"""Pairs in each split."""
LANGUAGES = ("de", "en")
CACHE_VARIABLE = "HF_EMBINIT_CACHE"
"""Environment variable naming the folder that trained vectors are kept in; else `embinit` in the Hugging Face
home."""


def caption_pairs(seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """The splits `train` (10,000), `validation` (500) and `test` (500): rows `{"de": ..., "en": ...}` of
    text.

    No sentence of either language occurs twice, in one split or in two.
    """
    maker = SentenceMaker(torch.Generator().manual_seed(seed))
    seen: set[str] = set()
    rows: list[dict[str, str]] = []
    while len(rows) < sum(SPLIT_SIZES.values()):
        german, english = maker.pair()
        if german not in seen and english not in seen:
            seen |= {german, english}
            rows.append({"de": german, "en": english})
    splits, start = {}, 0
    for split, size in SPLIT_SIZES.items():
        splits[split] = rows[start : start + size]
        start += size
    return splits


def caption_text(language: Literal["de", "en"], sentences: int = 30_000, seed: int = 1) -> Iterator[str]:
    """Monolingual sentences of the same grammar with a wider vocabulary, as text.

    The two languages draw different sentences, so that the texts are not parallel.
    """
    if language not in LANGUAGES:
        raise InvalidArgumentError(f"language {language!r} is not one of: {', '.join(LANGUAGES)}")
    column = LANGUAGES.index(language)
    maker = SentenceMaker(torch.Generator().manual_seed(2 * seed + column), wide=True)
    return (maker.pair()[column] for _ in range(sentences))


def caption_tokens(text: str) -> list[str]:
    """The lower-cased words and marks of a caption: for these texts the same as spaCy's rule tokenizers
    give."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def caption_vectors(
    language: Literal["de", "en"],
    dim: int = 128,
    *,
    sentences: int = 30_000,
    epochs: int = 50,
    seed: int = 1,
    cache_dir: str | os.PathLike | None = None,
    progress: bool = True,
) -> PretrainedVectors:
    """GloVe vectors `[V, dim]` trained on `caption_text`, lower-cased; trained at the first call, then read
    from a file.

    The file's name holds a digest of the settings and of the code that makes the text and the vectors. It is
    in `cache_dir`, or the folder that `HF_EMBINIT_CACHE` names, or `embinit` in the Hugging Face home.
    """
    if language not in LANGUAGES:
        raise InvalidArgumentError(f"language {language!r} is not one of: {', '.join(LANGUAGES)}")
    glove = {"dim": dim, "window": 10, "min_count": 2, "x_max": 10.0, "epochs": epochs, "seed": seed}
    settings = {"language": language, "sentences": sentences, **glove}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode() + _code_digest()).hexdigest()[:12]
    path = _cache_folder(cache_dir) / f"captions-{language}-{dim}d-{key}.txt"
    if not path.is_file():
        logger.info("training GloVe vectors of the captions (%s), kept in %s", language, path)
        text = (caption_tokens(line) for line in caption_text(language, sentences, seed))
        vectors = train_glove(text, **glove, progress=progress, name=path.stem)  # type: ignore[arg-type]
        write_vectors(path, vectors)
    return read_vectors(path)


def _cache_folder(cache_dir: str | os.PathLike | None) -> Path:
    folder = cache_dir or os.environ.get(CACHE_VARIABLE)
    if folder is None:
        from huggingface_hub.constants import HF_HOME

        folder = Path(HF_HOME) / "embinit"
    return Path(folder)


@cache
def _code_digest() -> bytes:
    """Digest of the files that decide what the vectors are."""
    tasks = Path(__file__).parent
    files = [*sorted(tasks.glob("captions*.py")), tasks.parent / "vectors" / "glove.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
