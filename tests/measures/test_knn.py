"""KNN match similarity against a plain double loop, on ties, and on bad input."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.measures import knn, load_metric
from hf_embinit.measures.knn import knn_match_by_k, knn_match_similarity, nearest_neighbors
from hf_embinit.tables.usable import _never_trained


def reference_neighbors(x, k, metric, include_self):
    """One token after the other, in float64, lower index first among equals."""
    x = x.double()
    if metric == "cosine":
        x = x / x.norm(dim=1, keepdim=True)
    found = []
    for i in range(len(x)):
        scored = []
        for j in range(len(x)):
            if i != j or include_self:
                score = -float((x[i] - x[j]).norm()) if metric == "euclidean" else float(x[i] @ x[j])
                scored.append((-score, j))
        found.append([j for _, j in sorted(scored)[:k]])
    return found


def reference_similarity(a, b, k, metric="inner_product", include_self=False):
    first = reference_neighbors(a, k, metric, include_self)
    second = reference_neighbors(b, k, metric, include_self)
    return [len(set(x) & set(y)) / len(set(x) | set(y)) for x, y in zip(first, second, strict=True)]


def tables(v=90, d1=8, d2=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(v, d1, generator=g) + 0.3
    return a, a[:, :d2] + 0.7 * torch.randn(v, d2, generator=g)


@pytest.fixture(params=[2048, 40, 33], ids=lambda size: f"block{size}")
def blocks(request, monkeypatch):
    """Blocks much smaller than the table take the grouped selection and the ragged last block."""
    monkeypatch.setattr(knn, "_BLOCK", request.param)
    monkeypatch.setattr(knn, "_GROUP", 4)
    monkeypatch.setattr(knn, "_SCORES", 1000)


@pytest.mark.parametrize("metric", ["inner_product", "cosine", "euclidean"])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("k", [1, 3, 89])
def test_agrees_with_the_double_loop(blocks, metric, include_self, k):
    a, b = tables()
    values = knn_match_similarity(a, b, k, metric, include_self, per_token=True)
    expected = reference_similarity(a, b, k, metric, include_self)
    assert values.tolist() == pytest.approx(expected)
    assert knn_match_similarity(a, b, k, metric, include_self) == pytest.approx(sum(expected) / len(expected))
    assert nearest_neighbors(a, k, metric=metric, include_self=include_self).tolist() == reference_neighbors(
        a, k, metric, include_self
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_ties_go_to_the_lower_index(data):
    """Small integers: every score is exact in float32, and many are equal."""
    v = data.draw(st.integers(5, 30))
    d = data.draw(st.integers(1, 3))
    entries = st.lists(st.integers(-2, 2), min_size=v * d, max_size=v * d)
    a, b = (torch.tensor(data.draw(entries), dtype=torch.float32).reshape(v, d) for _ in range(2))
    for x in (a, b):
        x[:, 0] += 3  # no zero rows
        x[0, 0] = 7  # nor equal rows alone
    k = data.draw(st.integers(1, v - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn, "_BLOCK", data.draw(st.sampled_from([2048, 7, 12])))
        patch.setattr(knn, "_GROUP", 2)
        values = knn_match_similarity(a, b, k, per_token=True)
        assert values.tolist() == pytest.approx(reference_similarity(a, b, k))
        found = nearest_neighbors(a, k)
    assert [set(row) for row in found.tolist()] == [
        set(row) for row in reference_neighbors(a, k, "inner_product", False)
    ]


@pytest.mark.parametrize("tokens", [None, [5, 0, 39]])
def test_fewer_neighbors_are_the_first_of_more_also_where_rows_are_equal(blocks, tokens):
    x = torch.randint(-3, 4, (20, 6), generator=torch.Generator().manual_seed(3)).float()
    x = torch.cat([x, x])  # each row twice, and products that are exact
    most = nearest_neighbors(x, 30, tokens=tokens)
    for k in (1, 2, 7):
        assert torch.equal(nearest_neighbors(x, k, tokens=tokens), most[:, :k])


def exact_neighbors(rows, i, metric):
    """All others, nearest first and the lower index first among equals, in rational numbers."""

    def score(j):
        product = sum(x * y for x, y in zip(rows[i], rows[j], strict=True))
        if metric == "euclidean":
            return -sum((x - y) ** 2 for x, y in zip(rows[i], rows[j], strict=True))
        square = sum(y * y for y in rows[j]) if metric == "cosine" else 1
        return Fraction(product * abs(product), square) if metric == "cosine" else product

    return sorted((j for j in range(len(rows)) if j != i), key=lambda j: (-score(j), j))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_order_is_that_of_exact_arithmetic_for_any_k_and_every_metric(data):
    v, d = data.draw(st.integers(4, 14)), data.draw(st.integers(1, 4))
    row = st.lists(st.integers(-3, 3), min_size=d, max_size=d).filter(any)
    rows = data.draw(st.lists(row, min_size=v, max_size=v))
    assume(any(row != rows[0] for row in rows))
    metric = data.draw(st.sampled_from(["inner_product", "cosine", "euclidean"]))
    scale = data.draw(st.sampled_from([1.0, 0.1, 3e-20]))
    for k in {1, v // 2, v - 1}:
        found = nearest_neighbors(scale * torch.tensor(rows, dtype=torch.float64), k, metric=metric)
        assert found.tolist() == [exact_neighbors(rows, i, metric)[:k] for i in range(v)]


def test_few_rows_are_compared_with_all_in_blocks_of_any_size(monkeypatch):
    x, _ = tables(500)
    tokens = torch.randperm(500, generator=torch.Generator().manual_seed(5))[:37]
    whole = nearest_neighbors(x, 12, metric="euclidean")[tokens]
    for scores, asked in ((2**24, 512), (900, 10), (1, 1), (37 * 64, 37)):
        monkeypatch.setattr(knn, "_SCORES", scores)
        monkeypatch.setattr(knn, "_ASKED", asked)
        assert torch.equal(nearest_neighbors(x, 12, metric="euclidean", tokens=tokens), whole)


@pytest.mark.parametrize("metric", ["inner_product", "cosine", "euclidean"])
def test_several_k_are_each_alone(metric):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(40, 5, generator=generator), torch.randn(40, 7, generator=generator)
    found = knn_match_by_k(a, b, (1, 10, 39), metric)
    assert found == {k: pytest.approx(knn_match_similarity(a, b, k, metric)) for k in (1, 10, 39)}
    assert found[39] == 1  # all others are neighbors
    for ks, message in (((1, 40), "k=40"), ((0, 3), r"ks=\[0, 3\]"), ((), r"ks=\[\]")):
        with pytest.raises(InvalidArgumentError, match=message):
            knn_match_by_k(a, b, ks, metric)
    with pytest.raises(InvalidArgumentError, match="a has 40 rows and b 39"):
        knn_match_by_k(a, b[1:], (1,), metric)


def test_euclidean_ties():
    grid = torch.cartesian_prod(torch.arange(-3.0, 4), torch.arange(-3.0, 4))  # mean zero: exact
    found = nearest_neighbors(grid, 3, metric="euclidean")
    reference = reference_neighbors(grid, 3, "euclidean", False)
    assert [set(row) for row in found.tolist()] == [set(row) for row in reference]


def test_euclidean_keeps_its_digits_far_from_the_origin():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    near = nearest_neighbors(x, 5, metric="euclidean")
    assert torch.equal(nearest_neighbors(x + 1000, 5, metric="euclidean"), near)
    assert torch.equal(nearest_neighbors(x.double() + 1e7, 5, metric="euclidean"), near)


@pytest.mark.parametrize("metric", ["inner_product", "cosine", "euclidean"])
def test_rows_nearer_than_float32_tells_are_compared_in_float64(metric):
    """Rows that were never trained lie side by side: a turn changes no score, so no neighbor either."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 16, generator=generator)
    x[100:250] = x[100] + 1e-5 * torch.randn(150, 16, generator=generator)
    turn = torch.linalg.qr(torch.randn(16, 16, generator=generator, dtype=torch.float64))[0]
    assert knn_match_similarity(x, x.double() @ turn, 10, metric) == 1.0
    found = nearest_neighbors(x, 7, metric=metric, tokens=[120, 3])
    assert found.tolist() == [reference_neighbors(x, 7, metric, False)[i] for i in (120, 3)]


@pytest.mark.parametrize("metric", ["inner_product", "cosine", "euclidean"])
def test_neither_scale_nor_ties_of_whole_numbers_change_neighbors(metric):
    x = torch.randint(-3, 4, (700, 6), generator=torch.Generator().manual_seed(1)).float()
    x = x[(x != 0).any(1)]
    for scale in (3.0, 2.0**-100, 2.0**80):
        assert knn_match_similarity(x, scale * x, 5, metric) == 1.0
    assert knn_match_similarity(x, 1e200 * x.double(), 5, metric) == 1.0
    a = torch.randn(100, 8, generator=torch.Generator().manual_seed(2))
    assert knn_match_similarity(a * 1e-25, a, 5, metric) == 1.0
    far = torch.cat([a[:50] * 0.01, a[50:] * 0.01 + 100])
    assert knn_match_similarity(far, far.double() - 50, 5, "euclidean") == 1.0


def test_same_space_and_unrelated_spaces():
    a, _ = tables(300, 16, 4)
    assert knn_match_similarity(a, a) == 1.0
    turn = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)))[0]
    assert knn_match_similarity(a, a @ turn) > 0.999  # a rotation changes no inner product
    other = torch.randn(300, 16, generator=torch.Generator().manual_seed(2))
    assert knn_match_similarity(a - a.mean(0), other) < 0.06  # chance is about k / (2V) = 0.017


def test_tokens_and_weights(blocks):
    a, b = tables()
    values = knn_match_similarity(a, b, 5, per_token=True)
    few, many = [3, 70, 11], list(range(5, 85))
    for tokens in (few, many, torch.arange(90) % 2 == 1):
        wanted = values[torch.as_tensor(tokens)]
        assert knn_match_similarity(a, b, 5, tokens=tokens, per_token=True).tolist() == wanted.tolist()
        assert knn_match_similarity(a, b, 5, tokens=tokens) == pytest.approx(float(wanted.mean()))
    frequencies = torch.arange(90.0)
    weighted = float((values * frequencies).sum() / frequencies.sum())
    assert knn_match_similarity(a, b, 5, weights=frequencies) == pytest.approx(weighted)
    assert knn_match_similarity(a, b, 5, weights=[1.0] * 90) == pytest.approx(float(values.mean()))
    some = (values[few] * frequencies[few]).sum() / frequencies[few].sum()
    assert knn_match_similarity(a, b, 5, weights=frequencies, tokens=few) == pytest.approx(float(some))


def test_half_precision_is_multiplied_in_float32(blocks):
    a, b = (x.bfloat16() for x in tables())
    expected = knn_match_similarity(a.float(), b.float(), per_token=True)
    assert torch.equal(knn_match_similarity(a, b, per_token=True), expected)


def test_inputs_are_left_alone():
    a, b = tables()
    a.requires_grad_(True)
    before = a.detach().clone()
    state = torch.get_rng_state()
    assert isinstance(knn_match_similarity(a, b), float)
    assert torch.equal(a.detach(), before) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"b": torch.ones(7, 3)}, "row i of both must be the same token"),
        ({"k": 90}, "k=90: each of 90 rows has 89 possible neighbors"),
        ({"k": 0}, "choose k between 1 and 89"),
        ({"metric": "manhattan"}, "metric='manhattan': expected"),
        ({"a": torch.full((90, 3), float("nan"))}, "a has NaN or infinite values, first in row 0"),
        ({"a": torch.ones(90)}, "table"),
        ({"tokens": [90]}, "row indices from 0 to 89"),
        ({"tokens": []}, "at least one"),
        ({"tokens": torch.ones(5, dtype=torch.bool)}, "mask must have 90"),
        ({"weights": [1.0]}, "weights must have one number"),
        ({"weights": [0.0] * 90}, "not all zero"),
        ({"weights": [-1.0] * 90}, "not negative"),
    ],
)
def test_bad_input(change, message):
    a, b = tables()
    with pytest.raises(InvalidArgumentError, match=message):
        knn_match_similarity(**{"a": a, "b": b, **change})


def test_zero_and_constant_rows():
    a, b = tables()
    b[4] = 0
    with pytest.raises(InvalidArgumentError, match=r"row 4 of b is zero.*tokens="):
        knn_match_similarity(a, b)
    tokens = [i for i in range(90) if i != 4]  # a zero padding row may stay as nobody's neighbor
    assert 0 < knn_match_similarity(a, b, tokens=tokens) < 1
    assert 0 < knn_match_similarity(a, b, metric="euclidean") < 1
    with pytest.raises(InvalidArgumentError, match="selecting the others"):
        knn_match_similarity(a, b, metric="cosine", tokens=tokens)
    with pytest.raises(InvalidArgumentError, match="all rows of a are the same"):
        knn_match_similarity(torch.ones(90, 3), b, tokens=tokens)


def test_evaluate_module():
    a, b = tables(30)
    result = load_metric("knn_match_similarity").compute(predictions=a.tolist(), references=b.tolist(), k=3)
    assert result == {"knn_match_similarity": pytest.approx(knn_match_similarity(a, b, 3))}


def test_weights_and_numbers_that_are_no_tables_are_refused():
    a = torch.randn(20, 4)
    with pytest.raises(InvalidArgumentError, match="weights must have one number a row of a, 20"):
        knn_match_similarity(a, a, k=2, weights=[1.0], per_token=True)
    for pair in ((a, torch.tensor(1.0)), (torch.tensor(1.0), a)):
        with pytest.raises(InvalidArgumentError, match="must be tables"):
            knn_match_similarity(*pair)


def test_a_zero_row_is_named_among_those_that_were_asked_for() -> None:
    a, b = (torch.randn(9, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    a[[0, 5]] = 0
    with pytest.raises(InvalidArgumentError, match="row 5 of a is zero"):
        knn_match_similarity(a, b, k=2, metric="inner_product", tokens=torch.tensor([1, 2, 5]))
    with pytest.raises(InvalidArgumentError, match="has one row, which has no neighbors"):
        nearest_neighbors(torch.ones(1, 4), 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_neighbors_and_unused_rows_whatever_dtype_new_tensors_have(dtype: torch.dtype) -> None:
    x = torch.randn(60, 768, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    expected = [nearest_neighbors(x, 3), nearest_neighbors(x, 3, tokens=[0, 1])]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = [nearest_neighbors(x, 3), nearest_neighbors(x, 3, tokens=[0, 1])]
        _never_trained(x, ())
    finally:
        torch.set_default_dtype(before)
    assert all(map(torch.equal, found, expected))
