"""Distances to unused rows, and the component that all rows share."""

from __future__ import annotations

import pytest
import torch

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.measures.unused import _first_component, unused_distance


@pytest.mark.parametrize(
    ("rows", "columns", "common"), [(1000, 64, 0.0), (1000, 64, 1.0), (5, 8, 0.0), (1, 3, 0.0)]
)
def test_the_first_component_is_that_of_the_svd(rows: int, columns: int, common: float) -> None:
    """Also of a random table, whose first singular values are nearly equal."""
    table = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) + common
    first = torch.linalg.svd(table, full_matrices=False).Vh[0]
    assert abs(float(first @ _first_component(table))) > 0.9999


@pytest.mark.parametrize(("table", "unused"), [((4,), [1]), ((6, 4), [1.5]), ((6, 4), [6]), ((6, 4), [])])
def test_what_are_no_rows_of_a_table_is_refused(table: tuple[int, ...], unused: list) -> None:
    with pytest.raises(InvalidArgumentError, match=r"table must be|unused"):
        unused_distance(torch.randn(table), unused)
    assert unused_distance(torch.eye(6), torch.tensor([1, 2])).shape == (6,)


def test_a_distance_is_of_directions_whatever_their_scale() -> None:
    table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    table[:4] = 1 + torch.rand(4, 8, generator=torch.Generator().manual_seed(1))
    usual = unused_distance(table, [0, 1, 2])
    assert torch.allclose(unused_distance(table * 1e-10, [0, 1, 2]), usual, atol=1e-6) and usual[3] < 0.1
    without = unused_distance(table, [0, 1, 2], without_first_component=True)
    for scale in (1e-50, 1e-22, 1e20, 1e39, 1e300):
        scaled = table.double() * scale
        assert torch.allclose(unused_distance(scaled, [0, 1, 2]), usual, atol=1e-5)
        again = unused_distance(scaled, [0, 1, 2], without_first_component=True)
        assert torch.allclose(again, without, atol=1e-4)
    huge = table.clone()
    huge[7] *= 1e20
    assert torch.isfinite(unused_distance(huge, [0, 1, 2], without_first_component=True)).all()
    table[5] = 0
    assert unused_distance(table, [0, 1, 2])[5] == 1
    table[6, 0] = float("nan")
    with pytest.raises(InvalidArgumentError, match="table has NaN or infinite values, first in row 6"):
        unused_distance(table, [0, 1, 2])
