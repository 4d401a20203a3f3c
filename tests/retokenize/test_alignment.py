from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.retokenize import alignment
from hf_embinit.retokenize.alignment import AlignmentCounts, count_alignments

NLTK = json.loads((Path(__file__).parent / "data" / "nltk_model1.json").read_text())


def dense(counts: AlignmentCounts, shape: tuple[int, int]) -> np.ndarray:
    made = np.zeros(shape)
    made[counts.new_ids, counts.old_ids] = counts.counts
    return made


def reference(
    old: list[list[int]], new: list[list[int]], num_old: int, num_new: int, iterations: int
) -> list[np.ndarray]:
    """The posteriors `[new positions, old positions + 1]` of each pair, the empty word last: loops only."""
    table = np.full((num_new, num_old + 1), 1 / num_new)
    for step in range(iterations + 1):
        found, counts = [], np.zeros_like(table)
        for source, target in zip(old, new, strict=True):
            given = [*source, num_old]
            posterior = np.array([[table[t, s] for s in given] for t in target])
            posterior /= posterior.sum(1, keepdims=True)
            found.append(posterior)
            for j, t in enumerate(target):
                for i, s in enumerate(given):
                    counts[t, s] += posterior[j, i]
        if step < iterations:
            table = counts / np.maximum(counts.sum(0, keepdims=True), 1e-300)
    return found


def drawn(seed: int = 0, pairs: int = 60) -> tuple[list[list[int]], list[list[int]]]:
    draw = np.random.default_rng(seed)
    old = [draw.integers(0, 9, draw.integers(1, 7)).tolist() for _ in range(pairs)]
    new = [draw.integers(0, 11, draw.integers(1, 8)).tolist() for _ in range(pairs)]
    return old, new


@pytest.mark.parametrize("cells", [1, 50, 10**6])
@pytest.mark.parametrize("how", ["forward", "agreement", "intersection"])
def test_counts_are_those_of_a_loop_over_words(how: str, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "CHUNK_CELLS", cells)
    old, new = drawn()
    found = count_alignments(
        old, new, num_old=9, num_new=11, iterations=4, symmetrization=how, progress=False
    )
    forward, backward = reference(old, new, 9, 11, 4), reference(new, old, 11, 9, 4)
    expected = np.zeros((11, 9))
    for source, target, one, other in zip(old, new, forward, backward, strict=True):
        for j, t in enumerate(target):
            for i, s in enumerate(source):
                best = one[j, i] >= one[j].max() - 1e-6 and other[i, j] >= other[i].max() - 1e-6
                value = {"forward": one[j, i], "agreement": one[j, i] * other[i, j], "intersection": best}
                expected[t, s] += value[how]
    np.testing.assert_allclose(dense(found, (11, 9)), expected, atol=2e-4 if how != "intersection" else 1.01)
    assert found.pairs == 60 and found.left_out == 0
    keys = found.new_ids * 9 + found.old_ids
    assert (np.diff(keys) > 0).all()


def test_counts_are_those_of_nltk() -> None:
    """`data/nltk_model1.json` is made by `make_parity.py`."""
    found = count_alignments(
        NLTK["old"],
        NLTK["new"],
        num_old=NLTK["num_old"],
        num_new=NLTK["num_new"],
        iterations=NLTK["iterations"],
        symmetrization="forward",
        progress=False,
    )
    np.testing.assert_allclose(dense(found, (NLTK["num_new"], NLTK["num_old"])), NLTK["counts"], atol=1e-5)


def test_likelihood_rises_and_a_known_translation_is_found() -> None:
    draw = np.random.default_rng(1)
    to_new = draw.permutation(30)
    old = [draw.integers(0, 30, draw.integers(2, 8)) for _ in range(300)]
    new = [draw.permutation(to_new[sentence]) for sentence in old]
    found = count_alignments(
        [s.tolist() for s in old], [s.tolist() for s in new], num_old=30, num_new=30, progress=False
    )
    table = dense(found, (30, 30))
    assert (table.argmax(0) == to_new).all() and (table.argmax(1)[to_new] == np.arange(30)).all()
    assert (table.max(1) / table.sum(1)).min() > 0.8
    for logs in found.log_likelihoods.values():
        assert all(a < b + 1e-9 for a, b in pairwise(logs)) and len(logs) == 5


def test_intersection_keeps_what_both_directions_prefer() -> None:
    old, new = [[0, 1], [0], [1]] * 5, [[0, 1], [0], [1]] * 5
    found = count_alignments(old, new, num_old=2, num_new=2, symmetrization="intersection", progress=False)
    assert dense(found, (2, 2)).tolist() == [[10, 0], [0, 10]]


def test_pairs_that_cannot_be_aligned_are_counted() -> None:
    old, new = [[0], [], [0] * 129, [0]], [[0], [0], [0], []]
    found = count_alignments(old, new, num_old=1, num_new=1, progress=False)
    assert (found.pairs, found.left_out) == (1, 3)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([[0]], [], "old= has 1 sentences and new= 0"),
        ([[]], [[0]], "no pair of sentences of 1 to 128 tokens among its 1"),
        ([[3]], [[0]], "old= has the ids 3 to 3, the vocabulary 0 to 1"),
        ([[0]], [[-1]], "new= has the ids -1 to -1"),
    ],
)
def test_what_is_no_parallel_text_is_said(old: list, new: list, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        count_alignments(old, new, num_old=2, num_new=2, progress=False)
