"""Corpus BLEU with its signature (sacreBLEU, Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..arguments import checked
from ..errors import InvalidArgumentError


@checked
def corpus_bleu(
    predictions: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a",
    lowercase: bool = False,
) -> dict[str, Any]:
    """BLEU of `predictions` against one reference each, 0 to 100, with what is needed to compare it.

    `tokenize="13a"` is for detokenized text; `"none"` splits at spaces, for text that is tokenized already.
    Returns `score`, `signature`, `precisions` (1- to 4-grams), `brevity_penalty`, `prediction_length` and
    `reference_length` (in tokens). Raises `InvalidArgumentError` for lists that are empty or of two lengths.
    """
    from sacrebleu.metrics.bleu import BLEU

    if len(predictions) != len(references) or not len(predictions):
        raise InvalidArgumentError(
            f"BLEU needs as many predictions as references, and at least one: "
            f"got {len(predictions)} predictions and {len(references)} references"
        )
    # force: sacreBLEU would warn that text given to "none" looks tokenized, which is what "none" is for
    metric = BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    result = metric.corpus_score(list(predictions), [list(references)])
    return {
        "score": float(result.score),
        "signature": str(metric.get_signature()),
        "precisions": [float(p) for p in result.precisions],
        "brevity_penalty": float(result.bp),
        "prediction_length": int(result.sys_len),
        "reference_length": int(result.ref_len),
    }
