"""GloVe vectors of an embedded corpus: trained at the first call, then read from a file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from ..vectors import PretrainedVectors, read_vectors, write_vectors
from ..vectors.glove import train_glove
from .captions import _cache_folder, caption_tokens

logger = logging.getLogger(__name__)


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

    The file's name holds a digest of the settings and of the code: the modules of this package whose names
    start with `corpus`, and the trainer. It lies in `cache_dir`, or the folder that `HF_EMBINIT_CACHE` names,
    or `embinit` in the Hugging Face home.
    """
    glove = {"dim": dim, "window": 10, "min_count": 2, "x_max": 10.0, "epochs": epochs, "seed": seed}
    key = hashlib.sha256(json.dumps({**settings, **glove}, sort_keys=True).encode() + code_digest(corpus))
    path = _cache_folder(cache_dir) / f"{corpus}-{dim}d-{key.hexdigest()[:12]}.txt"
    if not path.is_file():
        logger.info("training GloVe vectors of the %s corpus, kept in %s", corpus, path)
        tokens = (caption_tokens(line) for line in text())
        vectors = train_glove(tokens, **glove, progress=progress, name=path.stem)  # type: ignore[arg-type]
        write_vectors(path, vectors)
    return read_vectors(path)


@cache
def code_digest(corpus: str) -> bytes:
    """Digest of the files that decide what the vectors are."""
    tasks = Path(__file__).parent
    files = [*sorted(tasks.glob(f"{corpus}*.py")), tasks.parent / "vectors" / "glove.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()
