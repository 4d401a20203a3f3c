from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.retokenize import pursuit
from hf_embinit.retokenize.pursuit import matching_pursuit, neighbor_weights


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("block", [1, 3000, 2**25])
def test_pursuit_is_greedy_and_orthogonal(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pursuit, "BLOCK_ENTRIES", block)
    points, targets = drawn(60, 20), drawn(15, 20, seed=1)
    ids, values = matching_pursuit(targets, points, 6)
    for target, chosen, weights in zip(targets, ids.tolist(), values, strict=True):
        residual = target
        for t in range(6):  # the definition, a least-squares solution at every step
            scores = (points @ residual).abs()
            scores[chosen[:t]] = -1
            assert int(scores.argmax()) == chosen[t]
            basis = points[chosen[: t + 1]].T
            solution = torch.linalg.lstsq(basis, target).solution
            residual = target - basis @ solution
        assert torch.allclose(weights, solution, atol=1e-9)


def test_sums_of_few_points_are_restored() -> None:
    points = drawn(30, 40)
    points /= points.norm(dim=1, keepdim=True)
    weights = torch.zeros(8, 30, dtype=torch.float64)
    for row in range(8):
        weights[row, torch.randperm(30, generator=torch.Generator().manual_seed(row))[:3]] = torch.tensor(
            [3.0, -2, 1.5], dtype=torch.float64
        )
    ids, values = matching_pursuit(weights @ points, points, 6)
    found = torch.zeros_like(weights).scatter_(1, ids, values)
    assert torch.allclose(found, weights, atol=1e-9)


def test_equal_points_get_no_weight_twice() -> None:
    points = torch.cat([drawn(1, 5)] * 4)
    ids, values = matching_pursuit(points[:1] * 2, points, 3)
    assert len(set(ids[0].tolist())) == 3
    assert torch.allclose(values, torch.tensor([[2.0, 0, 0]], dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("k", [0, 6, 21])
def test_more_points_than_there_are_is_said(k: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"k={k}: choose 1 to 5, as there are 5 shared tokens"):
        matching_pursuit(drawn(2, 20), drawn(5, 20), k)


def test_neighbours_by_distance() -> None:
    points, targets = drawn(50, 7).float(), drawn(9, 7, seed=1).float()
    ids, values = neighbor_weights(targets, points, 4)
    for target, chosen, weights in zip(targets, ids, values, strict=True):
        distances = (points - target).norm(dim=1)
        assert sorted(distances.tolist())[:4] == pytest.approx(distances[chosen].tolist())
        assert torch.allclose(weights, (1 / distances[chosen]) / (1 / distances[chosen]).sum(), atol=1e-5)
    same, weights = neighbor_weights(points[3:4], points, 4)
    assert int(same[0, 0]) == 3 and float(weights[0, 0]) > 0.99


def test_least_squares_and_barycentric_weights() -> None:
    points, targets = drawn(50, 7).float(), drawn(9, 7, seed=1).float()
    for k in (4, 12):  # fewer neighbours than dimensions, and more
        ids, free = neighbor_weights(targets, points, k, "least_squares")
        _, bound = neighbor_weights(targets, points, k, "barycentric")
        assert torch.allclose(bound.sum(1), torch.ones(9), atol=1e-3)
        near = points[ids]
        errors = [(torch.einsum("bk,bkd->bd", w, near) - targets).norm(dim=1) for w in (free, bound)]
        assert bool((errors[0] <= errors[1] + 1e-4).all())
        draw = torch.Generator().manual_seed(0)
        for _ in range(50):
            step = torch.randn(9, k, generator=draw) * 0.01
            moved = torch.einsum("bk,bkd->bd", bound + step - step.mean(1, keepdim=True), near)
            assert bool(((moved - targets).norm(dim=1) >= errors[1] - 1e-4).all())


def test_mergekit_gives_the_same() -> None:
    """`data/mergekit.npz` is made by `make_parity.py`."""
    made = np.load(Path(__file__).parent / "data" / "mergekit.npz")
    targets, points = torch.from_numpy(made["targets"]), torch.from_numpy(made["points"])
    for k in (4, 8):
        ids, values = matching_pursuit(targets, points, k)
        assert torch.equal(ids, torch.from_numpy(made[f"omp_ids_{k}"]))
        torch.testing.assert_close(values, torch.from_numpy(made[f"omp_values_{k}"]), atol=1e-5, rtol=1e-5)
    for weighting in ("inverse_distance", "barycentric", "least_squares"):
        ids, values = neighbor_weights(targets, points, 6, weighting)
        assert torch.equal(ids, torch.from_numpy(made["nearest"]))
        torch.testing.assert_close(values, torch.from_numpy(made[weighting]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("width", "k"), [(32, 64), (4, 10), (64, 64), (300, 64)])
def test_barycentric_weights_are_those_of_smallest_norm(width: int, k: int) -> None:
    points, targets = drawn(200, width).float(), drawn(5, width, seed=1).float()
    ids, weights = neighbor_weights(targets, points, k, "barycentric")
    for target, chosen, found in zip(targets.double(), ids, weights.double(), strict=True):
        near = points[chosen].double()
        # numpy's pseudo-inverse within the weights that sum to 1
        free = np.linalg.pinv((near - near.mean(0)).numpy().T, rcond=1e-10) @ (target - near.mean(0)).numpy()
        assert torch.allclose(found, torch.from_numpy(free) + 1 / k, atol=1e-5)


def test_points_that_differ_by_rounding_alone_share_their_weight() -> None:
    points = drawn(4, 3).float()
    points[3] = torch.nextafter(points[2], torch.tensor(torch.inf))
    _, weights = neighbor_weights(drawn(5, 3, seed=1).float(), points, 4, "barycentric")
    assert float(weights.abs().max()) < 20 and torch.allclose(weights.sum(1), torch.ones(5), atol=1e-5)
