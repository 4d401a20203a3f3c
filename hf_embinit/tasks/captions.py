"""The embedded German-English caption corpus, and GloVe vectors of its words.

Nothing is stored: sentences are drawn from a grammar (`captions_grammar`, `captions_lexicon`,
`captions_sentences`), so that the corpus is a function of a seed. It takes word order and agreement to
translate it: objects stand before subjects, verbs at the end, particles apart from their verbs, and case
tells who does what to whom.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import torch

from ..errors import InvalidArgumentError
from ..vectors import PretrainedVectors
from .captions_sentences import SentenceMaker
from .corpus_vectors import corpus_vectors

SPLIT_SIZES = {"train": 10_000, "validation": 500, "test": 500}
"""Pairs in each split."""
LANGUAGES = ("de", "en")


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
    return corpus_vectors(
        f"captions-{language}",
        lambda: caption_text(language, sentences, seed),
        dim,
        settings={"sentences": sentences},
        epochs=epochs,
        seed=seed,
        cache_dir=cache_dir,
        progress=progress,
    )
