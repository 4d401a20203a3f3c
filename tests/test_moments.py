from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.moments import (
    balanced_shares,
    distinct_rows,
    gaussian_rows,
    mixed_rows,
    shuffle,
    standardize,
    xavier_bound,
    xavier_std,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_xavier_is_torch_s() -> None:
    table = torch.empty(7847, 300)
    torch.nn.init.xavier_uniform_(table, generator=generator())
    assert table.std().item() == pytest.approx(xavier_std(7847, 300), rel=1e-3)
    assert table.abs().max().item() <= xavier_bound(7847, 300)
    assert table.abs().max().item() == pytest.approx(xavier_bound(7847, 300), rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(2, 60),
    dim=st.integers(1, 30),
    loc=st.floats(-100, 100),
    spread=st.floats(1e-3, 1e3),
    mean=st.floats(-5, 5),
    std=st.floats(1e-3, 50),
    seed=st.integers(0, 2**31),
)
def test_standardize_reaches_the_moments_and_keeps_the_order(rows, dim, loc, spread, mean, std, seed) -> None:
    """Eq. 1 and Eq. 4 as a property: the moments are as asked for, by an increasing affine map."""
    x = torch.randn(rows, dim, generator=generator(seed), dtype=torch.float64) * spread + loc
    y = standardize(x, mean, std)
    assert y.mean().item() == pytest.approx(mean, abs=1e-6 * max(1, abs(mean)) * max(1, std))
    assert y.std().item() == pytest.approx(std, rel=1e-6)
    if x.numel() > 2:
        correlation = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1].item()
        assert correlation == pytest.approx(1.0, abs=1e-9)


def test_standardize_reproduces_the_paper_s_table_6() -> None:
    """GloVe's range (-3.93, 4.82), mean 0.053, sd 0.37 becomes (-0.17, 0.20) at Xavier's sd 0.016."""
    factor = 0.016 / 0.37
    low, high = (-3.93 - 0.053) * factor, (4.82 - 0.053) * factor
    assert (round(low, 2), round(high, 2)) == (-0.17, 0.21) or (round(low, 2), round(high, 2)) == (-0.17, 0.2)
    assert round(xavier_std(7847, 300), 3) == 0.016
    assert round(xavier_bound(7847, 300), 3) == 0.027


def test_standardize_per_dimension() -> None:
    x = torch.randn(50, 4, generator=generator()) * torch.tensor([1.0, 5.0, 0.1, 30.0]) + 7
    y = standardize(x, 0.0, 2.0, per_dimension=True)
    torch.testing.assert_close(y.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std(0), torch.full((4,), 2.0))


@pytest.mark.parametrize("x", [torch.ones(4, 3), torch.tensor([[1.0, math.nan], [0.0, 2.0]])])
def test_standardize_refuses_what_has_no_deviation(x) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot standardize"):
        standardize(x)


@pytest.mark.parametrize("mode", ["elements", "rows", "rows_and_columns"])
def test_shuffle_keeps_every_value(mode, global_rng_untouched) -> None:
    x = torch.randn(40, 7, generator=generator())
    y = shuffle(x, mode, generator=generator(1))
    assert not torch.equal(x, y)
    assert torch.equal(x.flatten().sort().values, y.flatten().sort().values)
    assert torch.equal(y, shuffle(x, mode, generator=generator(1)))


def test_shuffle_modes_differ_in_what_they_keep() -> None:
    x = torch.randn(40, 7, generator=generator())
    rows = shuffle(x, "rows", generator=generator(1))
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, x.tolist()))
    both = shuffle(x, "rows_and_columns", generator=generator(1))
    assert sorted(sorted(r) for r in both.tolist()) == sorted(sorted(r) for r in x.tolist())
    elements = shuffle(x, "elements", generator=generator(1))
    assert sorted(sorted(r) for r in elements.tolist()) != sorted(sorted(r) for r in x.tolist())
    with pytest.raises(InvalidArgumentError, match="columns"):
        shuffle(x, "columns", generator=generator())  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "d"), [(400, 6), (6, 12)])
@pytest.mark.parametrize("per_call", [4, 60_000])
def test_gaussian_rows_have_the_covariance_of_the_table(
    n, d, per_call, monkeypatch, global_rng_untouched
) -> None:
    """Few draws at a time (covariance-free) and many (through the covariance, where it has full rank)."""
    monkeypatch.setattr("hf_embinit.moments._BLOCK_ELEMENTS", 100 * d)
    x = torch.randn(n, d, generator=generator()) @ torch.randn(d, d, generator=generator(1)) + 3
    g = generator(2)
    draws = torch.cat(
        [gaussian_rows(x, per_call, scale=0.25, generator=g) for _ in range(min(60_000 // per_call, 5000))]
    )
    sigma = torch.cov(x.T, correction=0)
    torch.testing.assert_close(draws.mean(0), x.mean(0), atol=0.08, rtol=0)
    error = (torch.cov(draws.T) - 0.25 * sigma).norm() / (0.25 * sigma).norm()
    assert error < 0.04
    wrong = (torch.cov(draws.T) - 0.35 * sigma).norm() / (0.35 * sigma).norm()
    assert wrong > 0.2


def test_gaussian_rows_depend_on_nothing_but_the_generator() -> None:
    x = torch.randn(300, 8, generator=generator())
    assert torch.equal(
        gaussian_rows(x, 3, generator=generator(5)), gaussian_rows(x, 3, generator=generator(5))
    )
    with pytest.raises(InvalidArgumentError, match="empty"):
        gaussian_rows(x[:0], 3, generator=generator())


@pytest.mark.parametrize("old", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("new", [1, 2, 3, 8, 63, 64, 65, 200, 2500])
def test_balanced_shares_are_means_in_which_every_old_row_has_the_same_part(old, new) -> None:
    ids = torch.arange(old) + 3  # some old rows do not count
    shares = balanced_shares(new, ids, old + 5, generator=torch.Generator().manual_seed(0))
    dense = shares.to_dense()
    assert dense.shape == (new, old + 5) and bool((dense >= 0).all())
    torch.testing.assert_close(dense.sum(1), torch.ones(new).double())
    expected = torch.zeros(old + 5).double()
    expected[ids] = new / old
    torch.testing.assert_close(dense.sum(0), expected)
    x = torch.randn(old + 5, 6, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    torch.testing.assert_close(mixed_rows(x, shares), (dense @ x.double()).float())


def test_balanced_rows_have_the_covariance_that_they_say() -> None:
    """Over many draws: (m - 1) / (n - 1) times that of the old rows, and never the mean of too few."""
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(1)).double() * torch.tensor(
        [1.0, 2.0, 5.0]
    )
    drawn, ids = generator(2), torch.arange(30)
    draws = torch.stack([mixed_rows(x, balanced_shares(6, ids, 30, generator=drawn))[0] for _ in range(4000)])
    sigma = torch.cov(x.T, correction=0)
    torch.testing.assert_close(draws.double().mean(0), x.mean(0), atol=0.1, rtol=0)
    ratio = torch.cov(draws.double().T).diagonal() / sigma.diagonal()
    torch.testing.assert_close(ratio, torch.full((3,), 5 / 29).double(), atol=0.01, rtol=0.06)


@pytest.mark.parametrize("per_dimension", [False, True])
def test_a_constant_table_cannot_be_standardized(per_dimension: bool) -> None:
    constant = torch.full((100, 30), 0.1, dtype=torch.float64)  # its mean is rounded, so no deviation is zero
    with pytest.raises(InvalidArgumentError, match="standard deviation is zero"):
        standardize(constant, per_dimension=per_dimension)


def test_no_rows_are_distinct() -> None:
    none = torch.zeros(0, 6)
    assert distinct_rows(none, torch.float16, generator=generator()).shape == (0, 6)


def test_what_a_dtype_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"matrix of torch.int64: expected floats"):
        standardize(torch.tensor([[-1, 0], [0, 1]]))
    with pytest.raises(InvalidArgumentError, match=r"std=1000000.0 are beyond torch.float16"):
        standardize(torch.randn(4, 4).half(), std=1e6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_equal_rows_part_in_every_dtype(dtype) -> None:
    rows = distinct_rows(torch.ones(50, 8), dtype, generator=torch.Generator().manual_seed(0))
    assert len(rows.to(dtype).double().unique(dim=0)) == 50 and torch.isfinite(rows).all()
    most = torch.full((50, 8), torch.finfo(torch.float16).max)
    assert torch.isfinite(
        distinct_rows(most, torch.float16, generator=torch.Generator().manual_seed(0))
    ).all()
