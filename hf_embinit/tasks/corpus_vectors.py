"""GloVe vectors of an embedded corpus: trained at the first call, then read from a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from ..vectors import PretrainedVectors, read_vectors, write_vectors
from ..vectors.glove import train_glove

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "HF_EMBINIT_CACHE"
"""Environment variable naming a folder for what is trained on the embedded corpora."""


def corpus_tokens(text: str) -> list[str]:
    """The lower-cased words and marks of a text of an embedded corpus: for these texts the same as spaCy's
    rule tokenizers give."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def corpus_vectors(
    corpus: str,
    text: Callable[[], Iterable[str]],
    dim: int,
    *,
    settings: dict,
    epochs: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: bool = True,
) -> PretrainedVectors:
    """Vectors `[V, dim]` of the lower-cased words of `text()`, which is called when no file has them yet.

    `corpus` is a name such as `captions` or `captions-de`. The file's name holds it and a digest of the
    settings and of the code. It lies in `cache_dir`, or the folder that `HF_EMBINIT_CACHE` names,
    or `embinit` in the Hugging Face home.
    """
    glove = {"dim": dim, "window": 10, "min_count": 2, "x_max": 10.0, "epochs": epochs, "seed": seed}
    key = hashlib.sha256(json.dumps({**settings, **glove}, sort_keys=True).encode() + code_digest(corpus))
    path = cache_folder(cache_dir) / f"{corpus}-{dim}d-{key.hexdigest()[:12]}.txt"
    if not path.is_file():
        logger.info("training GloVe vectors of the %s corpus, kept in %s", corpus, path)
        tokens = (corpus_tokens(line) for line in text())
        vectors = train_glove(tokens, **glove, progress=progress, name=path.stem)  # type: ignore[arg-type]
        write_vectors(path, vectors)
    return read_vectors(path)


def cache_folder(cache_dir: str | os.PathLike | None) -> Path:
    """`cache_dir`, or the folder that `HF_EMBINIT_CACHE` names, or `embinit` in the Hugging Face home."""
    folder = cache_dir or os.environ.get(CACHE_VARIABLE)
    if folder is None:
        from huggingface_hub.constants import HF_HOME

        folder = Path(HF_HOME) / "embinit"
    return Path(folder)


@cache
def code_digest(corpus: str) -> bytes:
    """Digest of the code that decides what is trained on a corpus: the modules whose names start with that of
    the corpus, up to a hyphen, this one, and the trainer of the vectors."""
    tasks = Path(__file__).parent
    files = [*sorted(tasks.glob(f"{corpus.split('-')[0]}*.py")), Path(__file__)]
    files.append(tasks.parent / "vectors" / "glove.py")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
