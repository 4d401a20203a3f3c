"""The vectors that an initialiser of a classifier's embeddings reads."""

from __future__ import annotations

from typing import Any

from ..errors import VectorFileError
from ..tokens import token_family, vocabulary, word_candidates
from ..vectors import PretrainedVectors, load_vectors


def classification_vectors(
    task: str, given: str | None, *, tokenizer: Any, dim: int, allow_pickle: bool = False
) -> PretrainedVectors | None:
    """The vectors `given` for the tokenizer's tokens; else, for words of an embedded corpus, GloVe `[V, dim]`
    of its text.

    None when neither applies: then the name of the initialiser says which. A file of vectors with NaN or
    infinity in the row of one of these tokens raises `VectorFileError`.
    """
    if given is None:
        if token_family(tokenizer) != "words":
            return None
        if task == "sentiment":
            from .sentiments import sentiment_vectors

            return sentiment_vectors(dim)
        if task == "entailment":
            from .entailment import entailment_vectors

            return entailment_vectors(dim)
        return None
    tokens = word_candidates(vocabulary(tokenizer), token_family(tokenizer))
    vectors = load_vectors(given, tokens=tokens, allow_pickle=allow_pickle)
    bad = vectors.report.get("non_finite")
    if bad:
        raise VectorFileError(
            f"--vectors {given!r} has NaN or infinity in the rows of {len(bad)} tokens of the text, such as "
            f"{bad[0]!r}; repair or remove these rows"
        )
    return vectors
