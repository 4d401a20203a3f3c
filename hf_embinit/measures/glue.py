"""GLUE's metrics: accuracy, F1, Matthews correlation, Pearson's and Spearman's correlation.

scikit-learn and SciPy compute them; both are in the extra `recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..arguments import checked, shown
from ..errors import InvalidArgumentError, UnknownNameError

GLUE_METRICS: dict[str, tuple[str, ...]] = {
    "cola": ("matthews_correlation", "accuracy"),
    "mnli": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "qnli": ("accuracy",),
    "qqp": ("f1", "accuracy"),
    "rte": ("accuracy",),
    "sst2": ("accuracy",),
    "stsb": ("spearmanr", "pearsonr"),
    "wnli": ("accuracy",),
}
"""Metrics of each task. The first one chooses the best epoch; it is the one of Zhang 2021's tables, since a
majority-class model has F1 0.81 on MRPC and 0.54 on QQP."""


def accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of equal labels, 0 to 1."""
    p, r = _pair(predictions, references)
    return float(np.mean(p == r))


def f1(predictions: ArrayLike, references: ArrayLike) -> float:
    """Harmonic mean of precision and recall of label 1, 0 to 1; 0 when neither side has a 1."""
    from sklearn.metrics import f1_score

    p, r = _pair(predictions, references)
    return float(f1_score(r == 1, p == 1, zero_division=0.0))


def matthews_correlation(predictions: ArrayLike, references: ArrayLike) -> float:
    """Correlation of two labelings, -1 to 1, for any number of labels; 0 when one of them is constant."""
    from sklearn.metrics import matthews_corrcoef

    both = np.stack(_pair(predictions, references))
    p, r = np.unique(both, return_inverse=True)[1].reshape(both.shape)  # labels may be any numbers
    return float(matthews_corrcoef(r, p))


def pearsonr(predictions: ArrayLike, references: ArrayLike) -> float:
    """Linear correlation, -1 to 1; 0 when one side is constant, where it is not defined."""
    from scipy import stats

    return _correlation(stats.pearsonr, predictions, references)


def spearmanr(predictions: ArrayLike, references: ArrayLike) -> float:
    """Correlation of ranks, -1 to 1, equal values sharing their mean rank; 0 when one side is constant."""
    from scipy import stats

    return _correlation(stats.spearmanr, predictions, references)


_METRICS = {m.__name__: m for m in (accuracy, f1, matthews_correlation, pearsonr, spearmanr)}


@checked
def glue_scores(
    predictions: ArrayLike, references: ArrayLike, metrics: Sequence[str] | str
) -> dict[str, float]:
    """Scores by name; `metrics` are names of functions here, or a GLUE task.

    Raises `UnknownNameError` for a name that is neither, and `InvalidArgumentError` when the two sides are
    empty, differ in length, or hold NaN.
    """
    if isinstance(metrics, str):
        if metrics not in GLUE_METRICS:
            raise UnknownNameError("GLUE task", metrics, GLUE_METRICS)
        metrics = GLUE_METRICS[metrics]
    for name in metrics:
        if name not in _METRICS:
            raise UnknownNameError("metric", name, _METRICS)
    return {name: _METRICS[name](predictions, references) for name in metrics}


def _pair(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray, NDArray]:
    p, r = _numbers(predictions, "predictions"), _numbers(references, "references")
    if p.ndim != 1 or p.shape != r.shape or not len(p):
        raise InvalidArgumentError(
            "a score needs as many predictions as references, and at least one: "
            f"got shapes {p.shape} and {r.shape}"
        )
    if not (np.isfinite(p).all() and np.isfinite(r).all()):
        raise InvalidArgumentError("predictions or references hold NaN or infinity: nothing to score")
    return p, r


def _numbers(values: ArrayLike, name: str) -> NDArray:
    """`values`, also a tensor of any device and type, in float64."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().to("cpu", torch.float64).numpy()
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise InvalidArgumentError(f"{name} must be numbers, got {shown(values)}") from error


def _correlation(of: Callable[..., Any], predictions: ArrayLike, references: ArrayLike) -> float:
    p, r = _pair(predictions, references)
    return 0.0 if np.ptp(p) == 0 or np.ptp(r) == 0 else float(of(p, r).statistic)
