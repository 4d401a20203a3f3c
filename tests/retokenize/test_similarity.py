from __future__ import annotations

import pytest
import torch

from hf_embinit.retokenize import similarity
from hf_embinit.retokenize.similarity import (
    Entries,
    linear_weights,
    softmax_weights,
    sparsemax,
    sparsemax_weights,
    top,
)


def dense(entries: Entries, shape: tuple[int, int]) -> torch.Tensor:
    rows, columns, values = entries
    made = torch.zeros(shape)
    made[rows, columns] = values
    return made


def drawn(rows: int, width: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(a[:, None], b[None], dim=2)


QUERIES, ANCHORS = drawn(37), drawn(90, seed=1)


@pytest.fixture(params=[1, 500, 2**25])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "BLOCK_ENTRIES", request.param)


@pytest.mark.usefixtures("blocks")
def test_softmax_is_over_the_nearest_alone() -> None:
    found = dense(softmax_weights(QUERIES, ANCHORS, neighbors=10, temperature=0.1), (37, 90))
    expected = torch.zeros(37, 90)
    for i, row in enumerate(cosines(QUERIES, ANCHORS)):
        order = row.sort(descending=True).indices[:10]
        expected[i, order] = torch.softmax(row[order] / 0.1, 0)
    assert torch.allclose(found, expected, atol=1e-5)
    everything = torch.softmax(cosines(QUERIES, ANCHORS) / 0.1, 1)
    assert not torch.allclose(found, everything, atol=1e-2)


@pytest.mark.usefixtures("blocks")
def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    found = dense(sparsemax_weights(QUERIES, ANCHORS), (37, 90))
    assert torch.allclose(found.sum(1), torch.ones(37), atol=1e-5) and bool((found >= 0).all())
    scores = cosines(QUERIES, ANCHORS)
    best = (found - scores).square().sum(1)
    draw = torch.Generator().manual_seed(2)
    for _ in range(200):  # no other point is nearer: those around it, and corners
        other = (found + 0.02 * torch.randn(37, 90, generator=draw)).clamp_min(0)
        other /= other.sum(1, keepdim=True)
        assert bool(((other - scores).square().sum(1) >= best - 1e-5).all())
    # optimal: the gap to the scores is one number on the support, and no larger beside it
    gaps = scores - found
    for gap, weights in zip(gaps, found, strict=True):
        inside = gap[weights > 0]
        assert (
            float(inside.max() - inside.min()) < 1e-5
            and float(gap[weights == 0].max()) <= inside.min() + 1e-5
        )


@pytest.mark.parametrize("columns", [1, 2, 31, 63, 64, 127, 300, 2011, 5000])
@pytest.mark.parametrize("scale", [0.005, 0.3])
def test_sparsemax_is_that_of_all_scores_whatever_groups_they_lie_in(columns: int, scale: float) -> None:
    scores = drawn(7, columns) * scale
    scores[3] = scores[3, 0]  # all equal
    found = dense(sparsemax(scores), (7, columns))
    ordered = scores.double().sort(dim=1, descending=True).values
    threshold = ((ordered.cumsum(1) - 1) / torch.arange(1, columns + 1)).amax(1, keepdim=True)
    assert torch.allclose(found.double(), (scores - threshold).clamp_min(0), atol=2e-6)
    assert torch.allclose(found.sum(1), torch.ones(7), atol=1e-3)  # float32 times 5000


def test_linear_weights_keep_negative_cosines_and_sum_to_one() -> None:
    shifted = ANCHORS + 1  # sums away from zero
    queries = QUERIES + 1
    found = dense(linear_weights(queries, shifted), (37, 90))
    expected = cosines(queries, shifted)
    assert torch.allclose(found, expected / expected.sum(1, keepdim=True), atol=1e-5)
    assert bool((found < 0).any())
    few = dense(linear_weights(queries, shifted, neighbors=3), (37, 90))
    assert (few != 0).sum(1).tolist() == [3] * 37 and torch.allclose(few.sum(1), torch.ones(37), atol=1e-5)


def test_of_equal_anchors_the_first_counts() -> None:
    anchors = torch.cat([ANCHORS[:1], ANCHORS[:1], ANCHORS[:1], -ANCHORS[:1]])
    rows, columns, values = softmax_weights(ANCHORS[:1], anchors, neighbors=2, temperature=1.0)
    assert (rows.tolist(), columns.tolist(), values.tolist()) == ([0, 0], [0, 1], [0.5, 0.5])


def test_no_query_gives_no_entry() -> None:
    assert [len(x) for x in sparsemax_weights(QUERIES[:0], ANCHORS)] == [0, 0, 0]


def test_the_best_are_found_in_groups_of_columns() -> None:
    scores = torch.randn(50, 2011, generator=torch.Generator().manual_seed(0))
    scores[3] = scores[3].round()  # equal ones, of which the first columns count
    values, columns = top(scores, 9)
    expected = torch.sort(scores, dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :9]) and torch.equal(columns, expected.indices[:, :9])
    assert torch.equal(top(scores, 2011)[1], expected.indices)
