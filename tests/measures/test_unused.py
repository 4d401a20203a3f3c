"""Distances to unused rows, and the component that all rows share."""

from __future__ import annotations

import pytest
import torch

from hf_embinit.measures.unused import _first_component


@pytest.mark.parametrize(
    ("rows", "columns", "common"), [(1000, 64, 0.0), (1000, 64, 1.0), (5, 8, 0.0), (1, 3, 0.0)]
)
def test_the_first_component_is_that_of_the_svd(rows: int, columns: int, common: float) -> None:
    """Also of a random table, whose first singular values are nearly equal."""
    table = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) + common
    first = torch.linalg.svd(table, full_matrices=False).Vh[0]
    assert abs(float(first @ _first_component(table))) > 0.9999
