"""KL before and after a vocabulary expansion, and the bound for new rows at the mean."""

from __future__ import annotations

import math

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
