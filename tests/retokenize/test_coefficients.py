from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders.retokenizing import dense

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError
from hf_embinit.retokenize import Coefficients, Step, Weight


def drawn(new: int = 50, old: int = 30) -> Coefficients:
    weights = torch.rand(new, old, generator=torch.Generator().manual_seed(0))
    weights[weights < 0.8] = 0
    return Coefficients.from_rows(
        [{i: float(v) for i, v in enumerate(row.tolist()) if v} for row in weights], old
    )


def test_entries_in_any_order_add_up() -> None:
    new, old = torch.tensor([2, 0, 2, 2]), torch.tensor([1, 3, 1, 0])
    made = Coefficients.from_coo(new, old, torch.tensor([0.5, 1.0, 0.25, 2.0]), (3, 4))
    assert dense(made).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [2, 0.75, 0, 0]]
    assert made.row(2) == [Weight(0, 2.0), Weight(1, 0.75)]
    assert made.step.tolist() == [Step.METHOD, Step.NONE, Step.METHOD]
    cancelled = Coefficients.from_coo(
        torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([1.0, -1]), (1, 2)
    )
    assert len(cancelled.values) == 0 and cancelled.step.tolist() == [Step.NONE]


@pytest.mark.parametrize("block", [None, 1, 64, 10_000])
def test_apply_is_the_dense_product_whatever_the_block(block: int | None) -> None:
    made = drawn()
    table = torch.randn(33, 8, generator=torch.Generator().manual_seed(1))
    expected = dense(made) @ table[:30].double()
    assert torch.allclose(made.apply(table, block=block).double(), expected, atol=1e-6)
    exact = made.apply(table.double(), block=block)
    assert exact.dtype == torch.float64 and torch.allclose(exact, expected, atol=1e-14)


def test_copies_are_bit_for_bit_in_half_precision() -> None:
    table = torch.randn(5, 16).bfloat16()
    made = Coefficients.copies(torch.tensor([4, -1, 0]), 5, Step.COPIED)
    rows = made.apply(table)
    assert rows.dtype == torch.bfloat16 and torch.equal(rows[[0, 2]], table[[4, 0]])
    assert not rows[1].any()
    assert made.counts() == {"copied": 2, "none": 1}


def test_the_heaviest_is_the_first_of_equals_and_none_for_an_empty_row() -> None:
    rows = [{4: 0.5, 1: 0.25}, {}, {3: 0.5, 2: 0.5}, {0: -2.0, 4: -1.0}]
    assert Coefficients.from_rows(rows, 5).heaviest().tolist() == [4, -1, 2, 4]


def test_rows_sum_to_one_and_rows_without_a_sum_are_not_made() -> None:
    made = Coefficients.from_rows([{0: 3.0, 1: 1.0}, {0: 1.0, 2: -1.0}, {}], 3).normalised()
    assert made.row(0) == [Weight(0, 0.75), Weight(1, 0.25)]
    assert made.row(1) == [] and made.step.tolist() == [Step.METHOD, Step.NONE, Step.NONE]


def test_the_next_step_makes_only_what_is_left() -> None:
    first = Coefficients.from_rows([{0: 1.0}, {}, {}], 3)
    second = Coefficients.copies(torch.tensor([2, 1, -1]), 3)
    made = first.or_else(second).filled(Step.RANDOM)
    assert [made.row(i) for i in range(3)] == [[Weight(0, 1.0)], [Weight(1, 1.0)], []]
    assert made.step.tolist() == [Step.METHOD, Step.OVERLAP, Step.RANDOM]
    assert made.counts() == {"overlap": 1, "method": 1, "random": 1}


def test_saved_and_loaded_they_are_the_same(tmp_path: Path) -> None:
    made = drawn().filled(Step.MEAN)
    made.save(tmp_path / "c.safetensors", {"old": "abc"})
    again, about = Coefficients.load(tmp_path / "c.safetensors")
    assert about == {"old": "abc"} and again.shape == made.shape
    for name in ("indptr", "indices", "values", "step"):
        assert torch.equal(getattr(again, name), getattr(made, name))
    with pytest.raises(DataNotFoundError, match="is not there"):
        Coefficients.load(tmp_path / "other.safetensors")
    (tmp_path / "no.safetensors").write_bytes(b"abc")
    with pytest.raises(DataNotFoundError, match="holds no coefficients"):
        Coefficients.load(tmp_path / "no.safetensors")


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no matrix of 1 x 2"):
        Coefficients.from_rows([{2: 1.0}], 2)
    with pytest.raises(InvalidArgumentError, match="NaN or infinite"):
        Coefficients.from_rows([{1: float("nan")}], 2)
    made = drawn()
    with pytest.raises(InvalidArgumentError, match=r"the table has 20 rows, .* 30 old tokens"):
        made.apply(torch.zeros(20, 4))
    table = torch.zeros(30, 4)
    table[made.indices[0], 0] = float("inf")
    with pytest.raises(InvalidArgumentError, match=r"NaN or infinite entries.*repair"):
        made.apply(table)
    with pytest.raises(InvalidArgumentError, match="id 50 is none of the 50"):
        made.row(50)
