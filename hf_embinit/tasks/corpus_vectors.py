"""GloVe vectors of an embedded text: trained at the first call, then read from a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from ..errors import VectorFileError
from ..vectors import PretrainedVectors, read_vectors, train_glove, write_vectors
from .data import texts_digest
from .embedded import corpus_text

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "HF_EMBINIT_CACHE"
"""Environment variable naming a folder for what is trained on the embedded corpora."""
GLOVE: dict[str, Any] = {"window": 10, "min_count": 2, "x_max": 10.0}
TRAINING = {
    "captions-de": {"epochs": 50, "seed": 1},
    "captions-en": {"epochs": 50, "seed": 1},
    "sentiment": {"epochs": 30, "seed": 0},
    "entailment": {"epochs": 30, "seed": 0},
}
"""Settings of `train_glove` for all texts, and for each."""


def corpus_tokens(text: str) -> list[str]:
    """The lower-cased words and marks of a text of an embedded corpus.

    For these texts they are those of spaCy's rule tokenizers.
    """
    return re.findall(r"\w+|[^\w\s]", text.lower())


def corpus_vectors(
    name: str, dim: int = 128, *, epochs: int | None = None, progress: bool = True
) -> PretrainedVectors:
    """Vectors `[V, dim]` of the lower-cased words of the embedded text `name`, such as `captions-de`.

    The file, in `cache_folder`, has a name with a digest of the text and of the settings. A damaged one is
    trained again. Raises `UnknownNameError` for a name that is not one of `embedded.TEXTS`.
    """
    text = corpus_text(name)
    settings = {**GLOVE, **TRAINING[name], "dim": dim}
    if epochs is not None:
        settings["epochs"] = epochs
    digest = texts_digest(text)
    path = cache_folder() / f"{name}-{dim}d-{settings_digest(digest, settings)}.txt"
    if path.is_file():
        try:
            vectors = _cached(path)
            if vectors.provenance is not None:
                return vectors
            problem = f"{path} has no {path.with_suffix('.json').name} beside it"
        except VectorFileError as error:
            problem = str(error)
        logger.warning("%s; training these vectors again", problem)
    logger.info("training GloVe vectors of the embedded text %s, kept in %s", name, path)
    vectors = train_glove(map(corpus_tokens, text), **settings, progress=progress, name=path.stem)
    corpus = {"corpus": name, "texts": len(text), "sha256": digest}
    vectors.provenance = {"corpora": [corpus], **(vectors.provenance or {})}
    write_vectors(path, vectors)
    return _cached(path)


def _cached(path: Path) -> PretrainedVectors:
    """The vectors of a file, named without the folder, which says nothing to the reader of a record."""
    vectors = read_vectors(path)
    vectors.name = path.name
    return vectors


def settings_digest(text_digest: str, settings: dict[str, Any]) -> str:
    """Twelve hexadecimal digits of a text's digest and the settings used on it."""
    key = json.dumps({"text": text_digest, **settings}, sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def cache_folder() -> Path:
    """The folder that `HF_EMBINIT_CACHE` names, or `embinit` in the Hugging Face home."""
    from huggingface_hub.constants import HF_HOME

    return Path(os.environ.get(CACHE_VARIABLE, f"{HF_HOME}/embinit"))
