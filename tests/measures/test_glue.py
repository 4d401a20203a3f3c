"""GLUE's metrics by their definitions, and as an `evaluate` module."""

from __future__ import annotations

import math
import socket

import numpy as np
import pytest
import torch

from hf_embinit.errors import InvalidArgumentError, UnknownNameError
from hf_embinit.measures import load_metric, metric_path
from hf_embinit.measures.glue import (
    GLUE_METRICS,
    accuracy,
    f1,
    glue_scores,
    matthews_correlation,
    pearsonr,
    spearmanr,
)


@pytest.mark.parametrize("labels", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_label_scores_by_their_definitions(labels: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    r = random.integers(0, labels, 101)
    p = np.where(random.random(101) < 0.6, r, random.integers(0, labels, 101))
    assert accuracy(p, r) == sum(p == r) / 101
    hits, ours, theirs = ((p == 1) & (r == 1)).sum(), (p == 1).sum(), (r == 1).sum()
    assert f1(p, r) == 2 * hits / (ours + theirs)
    a, b = (x[:, None] == np.arange(labels) for x in (p, r))  # [n, labels], Gorodkin 2004
    a, b = a - a.mean(0), b - b.mean(0)
    expected = (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())
    assert matthews_correlation(p, r) == pytest.approx(expected, abs=1e-12)
    assert matthews_correlation(p / 4, r / 4) == matthews_correlation(p, r)


@pytest.mark.parametrize("seed", range(4))
def test_correlations_by_their_definitions_with_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    references = random.integers(0, 26, 200) / 5  # as STS-B's, with many equal scores
    predictions = references + random.normal(size=200).round(1)

    def ranks(x: np.ndarray) -> np.ndarray:
        return np.array([(x < value).sum() + ((x == value).sum() + 1) / 2 for value in x])

    for metric, (a, b) in (
        (pearsonr, (predictions, references)),
        (spearmanr, (ranks(predictions), ranks(references))),
    ):
        a, b = a - a.mean(), b - b.mean()
        expected = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        assert metric(predictions, references) == pytest.approx(expected, abs=1e-12)


def test_constant_sides_score_zero() -> None:
    constant, varied = [1, 1, 1, 1], [0, 1, 1, 0]
    for metric in (matthews_correlation, pearsonr, spearmanr):
        assert metric(constant, varied) == 0 == metric(varied, constant)
        assert metric(constant, constant) == 0
    assert f1([0, 0], [0, 0]) == 0
    assert f1([1, 1, 1], [1, 1, 0]) == pytest.approx(0.8)


def test_f1_of_a_majority_model_is_what_the_thesis_has_for_mrpc() -> None:
    references = np.r_[np.ones(279), np.zeros(129)]  # the labels of MRPC's validation set
    assert glue_scores(np.ones(408), references, "mrpc")["f1"] == pytest.approx(0.81, abs=0.005)


def test_the_module_works_offline_by_path_and_by_task(monkeypatch) -> None:
    evaluate = pytest.importorskip("evaluate")

    def refuse(*args):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    metric = evaluate.load(metric_path("glue"), "mrpc", keep_in_memory=True)
    predictions, references = [1, 0, 1, 1], [1, 0, 0, 1]
    expected = {"f1": 0.8, "accuracy": 0.75}
    assert metric.compute(predictions=predictions, references=references) == pytest.approx(expected)
    for task, names in GLUE_METRICS.items():
        scores = load_metric("glue", config_name=task).compute(predictions=predictions, references=references)
        assert tuple(scores) == names
    metric = load_metric("glue")
    assert metric.compute(predictions=[1.5, 2.5], references=[1, 2], metrics=("pearsonr",)) == {
        "pearsonr": pytest.approx(1)
    }


@pytest.mark.parametrize(
    ("predictions", "references", "sentence"),
    [
        ([1, 2], [1], "as many predictions as references"),
        ([], [], "at least one"),
        ([math.nan], [1.0], "NaN"),
    ],
)
def test_sides_that_cannot_be_scored(predictions, references, sentence) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        glue_scores(predictions, references, ("accuracy",))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean: sst2"):
        glue_scores([1], [1], "sst-2")
    with pytest.raises(UnknownNameError, match="pearsonr"):
        glue_scores([1], [1], ("pearson",))


def test_tensors_of_any_type_score_and_texts_do_not() -> None:
    ranks = torch.tensor([3.0, 1.0, 2.0, 5.0])
    for given in (ranks.bfloat16(), ranks.half(), ranks.clone().requires_grad_(), ranks.long()):
        assert spearmanr(given, [3, 1, 2, 5]) == pytest.approx(1.0)
    for metric in (accuracy, spearmanr):
        with pytest.raises(InvalidArgumentError, match=r"predictions must be numbers, got \['a', 'b'\]"):
            metric(["a", "b"], [1, 0])


def test_an_option_that_a_metric_has_not_is_said() -> None:
    with pytest.raises(InvalidArgumentError, match=r"lowercase=True is no option of 'bleu': expected .*seed"):
        load_metric("bleu", lowercase=True)
    assert load_metric("bleu", seed=3).seed == 3
