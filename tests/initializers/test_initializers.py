"""Every initialiser of tables: distribution (a wrong one fails), generator, padding row, missing tokens."""

from __future__ import annotations

import math

import pytest
import torch
from builders.tables import default_dtype
from scipy import stats

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.initializers import InitContext, InputPositions, get_initializer, list_initializers
from hf_embinit.measures import position_encoding
from hf_embinit.moments import xavier_bound, xavier_std
from hf_embinit.vectors import PretrainedVectors

N, D = 600, 40
SOURCE_MEAN, SOURCE_STD = 0.3, 2.5
TABLES = [r.name for r in list_initializers(purpose="table")]
FROM_VECTORS = [r.name for r in list_initializers(purpose="table") if "vectors" in r.needs]


def source_vectors(missing: int = 100) -> PretrainedVectors:
    """Rows for all but the last `missing` words, Laplace-like values far from Xavier's."""
    generator = torch.Generator().manual_seed(99)
    uniform = torch.rand(N - missing, D, generator=generator) - 0.5
    laplace = -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.4999))
    matrix = SOURCE_MEAN + SOURCE_STD / math.sqrt(2) * laplace
    return PretrainedVectors([f"w{i}" for i in range(N - missing)], matrix, name="test")


def context(seed: int = 0, **fields) -> InitContext:
    values = {
        "num_rows": N,
        "embedding_dim": D,
        "num_embeddings": N,
        "generator": torch.Generator().manual_seed(seed),
        "tokens": [f"w{i}" for i in range(N)],
        "vectors": source_vectors(),
        "positions": InputPositions(position_encoding(100, D), math.sqrt(D)),
    }
    return InitContext(**{**values, **fields})


@pytest.mark.parametrize("name", TABLES)
def test_shape_dtype_generator_and_global_random_state(name, global_rng_untouched) -> None:
    record = get_initializer(name)
    rows = record.fn(context(1))
    assert rows.shape == (N, D) and rows.dtype == torch.float32
    assert torch.isfinite(rows).all()
    assert torch.equal(rows, record.fn(context(1)))
    if name != "zeros":
        assert not torch.equal(rows, record.fn(context(2)))


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_the_same_whatever_the_default_dtype(name) -> None:
    fn, given = get_initializer(name).fn, context(1)
    with default_dtype(torch.bfloat16):
        rows = fn(given)
    assert rows.dtype == torch.float32 and torch.equal(rows, fn(context(1)))


def p_value(values: torch.Tensor, distribution: str, *args: float) -> float:
    return stats.kstest(values.flatten().numpy(), getattr(stats, distribution)(*args).cdf).pvalue


def uniform_p(values: torch.Tensor, bound: float) -> float:
    return p_value(values, "uniform", -bound, 2 * bound)


def test_xavier_is_uniform_and_not_normal() -> None:
    rows = get_initializer("xavier").fn(context())
    assert uniform_p(rows, xavier_bound(N, D)) > 0.01
    assert uniform_p(rows, 1.1 * xavier_bound(N, D)) < 1e-6
    assert p_value(rows, "norm", 0.0, xavier_std(N, D)) < 1e-6


def test_normal_is_normal_with_the_model_s_own_deviation() -> None:
    rows = get_initializer("normal").fn(context(initializer_range=0.05))
    assert p_value(rows, "norm", 0.0, 0.05) > 0.01
    assert p_value(rows, "norm", 0.0, 0.06) < 1e-6
    rows = get_initializer("normal").fn(context(), mean=1.0, std=0.5)
    assert p_value(rows, "norm", 1.0, 0.5) > 0.01


def test_zeros() -> None:
    assert not get_initializer("zeros").fn(context()).any()


def test_plain_copies_the_rows_and_draws_the_missing_from_a_normal() -> None:
    vectors = source_vectors()
    rows = get_initializer("glove").fn(context())
    assert torch.equal(rows[: len(vectors)], vectors.matrix)
    missing = rows[len(vectors) :]
    assert p_value(missing, "norm", vectors.matrix.mean().item(), vectors.matrix.std().item()) > 0.01
    assert p_value(missing, "norm", 0.0, xavier_std(N, D)) < 1e-6


def test_xavier_standardized_has_xavier_s_moments_and_the_source_s_shape() -> None:
    """Eq. 1: one mean and one sample sd over all entries found; rows stay parallel after centering."""
    vectors = source_vectors()
    rows = get_initializer("glove_xavier").fn(context())
    found, missing = rows[: len(vectors)], rows[len(vectors) :]
    assert found.mean().item() == pytest.approx(0.0, abs=1e-7)
    assert found.std().item() == pytest.approx(xavier_std(N, D), rel=1e-5)
    expected = (vectors.matrix - vectors.matrix.mean()) * (xavier_std(N, D) / vectors.matrix.std())
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)
    assert uniform_p(missing, xavier_bound(N, D)) > 0.01
    assert uniform_p(found, xavier_bound(N, D)) < 1e-6


def test_xavier_standardized_per_dimension_is_a_named_variant() -> None:
    rows = get_initializer("glove_xavier").fn(context(), per_dimension=True)[: len(source_vectors())]
    torch.testing.assert_close(rows.std(0), torch.full((D,), xavier_std(N, D)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("mode", ["elements", "rows", "rows_and_columns"])
def test_shuffled_keeps_the_values_and_moves_them(mode) -> None:
    vectors = source_vectors()
    rows = get_initializer("glove_shuffled").fn(context(), mode=mode)
    found = rows[: len(vectors)]
    assert torch.equal(found.flatten().sort().values, vectors.matrix.flatten().sort().values)
    assert not torch.equal(found, vectors.matrix)


def test_xavier_source_has_the_source_s_moments_and_xavier_s_shape() -> None:
    """Eq. 4: exact sample mean and sd of the source, uniform entries."""
    vectors = source_vectors()
    rows = get_initializer("xavier_glove").fn(context())
    mean, std = vectors.matrix.mean().item(), vectors.matrix.std().item()
    counted = get_initializer("xavier_glove").fn(context(padding_row=3))[torch.arange(N) != 3].double()
    others = vectors.matrix[torch.arange(len(vectors.matrix)) != 3].double()
    assert counted.mean().item() == pytest.approx(others.mean().item(), rel=1e-6)
    assert counted.std().item() == pytest.approx(others.std().item(), rel=1e-6)
    assert rows.mean().item() == pytest.approx(mean, rel=1e-4)
    assert rows.std().item() == pytest.approx(std, rel=1e-4)
    half = std * math.sqrt(3)
    assert p_value(rows, "uniform", mean - half, 2 * half) > 0.01
    assert p_value(rows, "norm", mean, std) < 1e-6


@pytest.mark.parametrize("name", FROM_VECTORS)
def test_padding_and_special_rows_are_not_looked_up_in_word_vectors(name) -> None:
    made = context(padding_row=0, special_rows=frozenset({0, 1}))
    get_initializer(name).fn(made)
    found = made.report["found"]
    assert not found[0] and not found[1] and found[2]
    assert int(found.sum()) == len(source_vectors()) - 2


@pytest.mark.parametrize("name", FROM_VECTORS)
def test_bad_vectors_are_one_clear_error(name) -> None:
    fn = get_initializer(name).fn
    with pytest.raises(InvalidArgumentError, match=r"needs vectors="):
        fn(context(vectors=None))
    wide = PretrainedVectors(["w1", "w2"], torch.randn(2, D + 1), name="wide.txt")
    with pytest.raises(InvalidArgumentError, match=rf"'wide.txt' have width {D + 1}.*--d_model {D + 1}"):
        fn(context(vectors=wide))
    other = PretrainedVectors(["x", "y"], torch.randn(2, D), name="other.txt")
    with pytest.raises(InvalidArgumentError, match=r"'other.txt' has 0 of the 600 tokens"):
        fn(context(vectors=other))
    bad = source_vectors()
    bad.matrix[7, 3] = math.nan
    with pytest.raises(InvalidArgumentError, match=r"token 'w7' in 'test' is not finite"):
        fn(context(vectors=bad))
