"""KL before and after a vocabulary expansion, and the bound for new rows at the mean."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.measures import load_metric
from hf_embinit.measures.divergence import (
    expansion_bound,
    kl_divergence,
    largest_scale,
    new_token_mass,
    top1_agreement,
)


def draw(rows, columns, scale=3.0, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * scale


def test_kl_by_hand():
    before = torch.tensor([0.75, 0.25]).log()
    after = torch.tensor([0.3, 0.5, 0.2]).log()
    expected = 0.75 * math.log(0.75 / 0.3) + 0.25 * math.log(0.25 / 0.5)
    assert float(kl_divergence(before, after)) == pytest.approx(expected)
    assert float(new_token_mass(after, 2)) == pytest.approx(0.2)
    assert float(new_token_mass(after, 3)) == 0.0
    assert top1_agreement(before[None], after[None]) == 0.0


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 60), m=st.integers(0, 20), scale=st.floats(0, 30), seed=st.integers(0, 9999))
def test_new_rows_at_the_mean_keep_the_bound(n, m, scale, seed):
    """Hewitt 2021: with rows and biases at the mean, each new logit is the mean of the old ones."""
    hidden = draw(4, 6, 1.0, seed).double()
    table, bias = draw(n, 6, scale, seed + 1).double(), draw(1, n, scale, seed + 2)[0].double()
    before = hidden @ table.T + bias
    table = torch.cat([table, table.mean(0).expand(m, -1)])
    bias = torch.cat([bias, bias.mean().expand(m)])
    after = hidden @ table.T + bias
    kl = kl_divergence(before, after)
    assert bool((kl <= expansion_bound(m, n) + 1e-9).all()) and bool((kl >= 0).all())
    # nothing but the normalizer moved
    assert torch.allclose(kl, -torch.log1p(-new_token_mass(after, n)), atol=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 60),
    m=st.integers(0, 20),
    cap=st.floats(0.1, 50),
    scale=st.floats(0, 300),
    high=st.floats(-3000, 3000),
    seed=st.integers(0, 9999),
)
def test_capped_logits_keep_the_bound_of_their_cap(n, m, cap, scale, high, seed):
    z = draw(4, n, scale, seed).double()
    z[:, 0] += high
    before = cap * torch.tanh(z / cap)
    mean = cap * torch.tanh(z.mean(1, keepdim=True) / cap)
    kl = kl_divergence(before, torch.cat([before, mean.expand(-1, m)], 1))
    for row, largest in zip(kl.tolist(), before.max(1).values.tolist(), strict=True):
        assert row <= expansion_bound(m, n, cap=cap, largest=largest) + 1e-9
        assert row <= expansion_bound(m, n, cap=cap) + 1e-9


@pytest.mark.parametrize(("cap", "low"), [(1.0, -50.0), (3.0, -100.0), (30.0, -400.0)])
def test_no_bound_of_capped_logits_is_smaller(cap, low):
    n, m = 50, 2
    z = torch.full((1, n), low, dtype=torch.float64)
    z[0, 0] = -low * 100 * n  # the mean is high all the same
    before = cap * torch.tanh(z / cap)
    mean = cap * torch.tanh(z.mean(1, keepdim=True) / cap)
    kl = float(kl_divergence(before, torch.cat([before, mean.expand(-1, m)], 1)))
    assert kl > 1.2 * expansion_bound(m, n)
    assert kl == pytest.approx(expansion_bound(m, n, cap=cap))


def test_where_capped_logits_keep_the_bound_of_plain_ones():
    """exp(c tanh(z / c)) turns from convex to concave where the capped logit is sqrt(1 + c^2) - 1."""
    for cap in (0.5, 3.0, 30.0):
        edge = math.sqrt(1 + cap * cap) - 1
        assert expansion_bound(3, 20, cap=cap, largest=edge) == expansion_bound(3, 20)
        assert expansion_bound(3, 20, cap=cap, largest=edge + 1e-6) > expansion_bound(3, 20)
        z = torch.tensor(cap * math.atanh(edge / cap), dtype=torch.float64)

        def curve(x, cap=cap):
            return torch.exp(cap * torch.tanh(x / cap))

        for step, sign in ((-0.01, 1), (0.01, -1)):
            x, h = z + 2 * step * cap, 1e-3 * cap
            assert sign * float(curve(x - h) + curve(x + h) - 2 * curve(x)) > 0


def test_the_bound_is_reached_and_can_be_broken():
    even = torch.zeros(1, 50)
    assert float(kl_divergence(even, torch.zeros(1, 55))) == pytest.approx(expansion_bound(5, 50))
    # zero logits under a model whose logits are all low, as with a zero row or a zero bias
    low = draw(100, 50) - 60
    kl = kl_divergence(low, torch.cat([low, torch.zeros(100, 1)], 1))
    assert float(kl.min()) > 20 * expansion_bound(1, 50)


def test_shapes_blocks_and_precision(monkeypatch):
    before, after = draw(12, 40).reshape(3, 4, 40), draw(12, 45, seed=1).reshape(3, 4, 45)
    whole = kl_divergence(before, after)
    assert whole.shape == (3, 4) and whole.dtype == torch.float64
    monkeypatch.setattr("hf_embinit.measures.divergence._BLOCK_ELEMENTS", 100)
    assert torch.equal(kl_divergence(before, after), whole)
    half = kl_divergence(before.bfloat16(), after.bfloat16())
    assert torch.equal(half, kl_divergence(before.bfloat16().double(), after.bfloat16().double()))
    minus_infinity = before.clone()
    minus_infinity[..., 3] = -torch.inf  # a token that p never gives: no term of its own
    assert bool(torch.isfinite(kl_divergence(minus_infinity, after)).all())


def test_top1_agreement_and_bad_input():
    before = draw(50, 9)
    after = torch.cat([before, before.mean(1, keepdim=True)], 1)
    assert top1_agreement(before, after) == 1.0
    after[:10, 9] = 99.0
    assert top1_agreement(before, after) == 0.8
    for function in (kl_divergence, top1_agreement):
        with pytest.raises(InvalidArgumentError, match="expected"):
            function(after, before)
    with pytest.raises(InvalidArgumentError, match="old must be"):
        new_token_mass(before, 10)
    with pytest.raises(InvalidArgumentError):
        expansion_bound(1, 0)


def test_evaluate_module():
    before = draw(20, 9)
    after = torch.cat([before, before.mean(1, keepdim=True)], 1)
    result = load_metric("expansion_kl").compute(predictions=after.tolist(), references=before.tolist())
    assert 0 < result["kl_mean"] <= result["kl_max"] <= result["bound"] == pytest.approx(math.log(10 / 9))
    assert result["top1_agreement"] == 1.0 and 0 < result["new_token_mass"] < 0.1


def test_the_largest_scale_of_draws_is_where_their_expected_loss_meets_the_bound():
    normal = draw(4, 200_000, 1.5)
    assert largest_scale(normal) == pytest.approx(1.0, abs=0.05)
    skewed = -(draw(50, 3000, 1.0).abs() ** 2) * 4  # most tokens near the top, a few far below
    scale = largest_scale(skewed)
    assert 0 < scale < 0.5
    z = skewed.double()
    expected = z.mean(-1) + scale * z.var(-1, correction=0) / 2 - (z.logsumexp(-1) - math.log(3000))
    assert float(expected.max()) == pytest.approx(0.0, abs=1e-9)  # m / n of the mass, at the worst prefix
    for bad in (torch.zeros(0, 5), torch.zeros(3, 1)):
        with pytest.raises(InvalidArgumentError, match="at least one prefix and two tokens"):
            largest_scale(bad)


@pytest.mark.parametrize("spread", [3.0, 0.3, 1e-3, 1e-6, 1e-9, 1e-11])
def test_the_largest_scale_of_nearly_equal_logits_is_no_rounding(spread):
    """exp(x) is 1 + x + x^2 / 2 there, so that the largest scale is 1 but for the third moment."""
    x = torch.tensor([-1.0, -0.2, 0.5, 0.7], dtype=torch.float64)
    x = spread * (x - x.mean())
    with mpmath.workdps(60):
        terms = [mpmath.exp(mpmath.mpf(float(one))) for one in x]
        mean = mpmath.fsum(mpmath.mpf(float(one)) for one in x) / 4
        variance = mpmath.fsum((mpmath.mpf(float(one)) - mean) ** 2 for one in x) / 4
        expected = float(2 * (mpmath.log(mpmath.fsum(terms) / 4) - mean) / variance)
    assert largest_scale(x[None]) == pytest.approx(expected, rel=1e-4)


def test_equal_logits_bound_no_scale():
    equal = torch.full((1, 7), 0.1)
    assert largest_scale(equal) == math.inf
    other = draw(3, 7)
    assert largest_scale(torch.cat([equal, other])) == largest_scale(other)


def test_no_bound_is_the_default_and_may_be_given():
    given = expansion_bound(3, 10, cap=30.0, largest=float("inf"))
    assert given == expansion_bound(3, 10, cap=30.0) > expansion_bound(3, 10)


def test_logits_that_are_no_numbers_are_refused():
    nan, infinite = torch.full((2, 4), math.nan), torch.full((2, 4), math.inf)
    for bad in (nan, infinite):
        with pytest.raises(InvalidArgumentError, match="have NaN or"):
            largest_scale(bad)
        with pytest.raises(InvalidArgumentError, match="have NaN or"):
            new_token_mass(bad, 2)
    with pytest.raises(InvalidArgumentError, match=r"expected logits \[..., n \+ m\]"):
        new_token_mass(torch.tensor(1.0), 0)
    with pytest.raises(InvalidArgumentError, match="expected"):
        largest_scale(torch.tensor(1.0))


def test_logits_that_say_nothing_are_refused():
    nan, number = torch.full((2, 5), math.nan), torch.tensor(1.0)
    for measure in (kl_divergence, top1_agreement):
        for before, after in ((nan, torch.zeros(2, 6)), (torch.zeros(2, 5), nan)):
            with pytest.raises(InvalidArgumentError, match=r"logits (before|after) have NaN"):
                measure(before, after)
        with pytest.raises(InvalidArgumentError, match="expected"):
            measure(number, number)
    for cap in (0.0, -3.0):
        with pytest.raises(InvalidArgumentError, match=f"cap={cap}"):
            expansion_bound(1, 10, cap=cap)


def test_infinite_logits_have_no_divergence() -> None:
    plain, infinite = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.0, float("inf"), 0.0])
    for before, after in ((infinite, plain), (plain, infinite)):
        with pytest.raises(InvalidArgumentError, match=r"\+inf"):
            kl_divergence(before, after)
    assert kl_divergence(torch.tensor([1.0, -float("inf")]), torch.tensor([1.0, -float("inf")])) == 0


def test_a_row_of_minus_infinity_is_refused() -> None:
    logits = draw(2, 5)
    logits[1] = -math.inf
    with pytest.raises(InvalidArgumentError, match="a row that is -inf throughout"):
        kl_divergence(logits, logits)
