"""What a resize is, and the tensors that it makes: tables, biases, and what a model keeps by token."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..tokens import Side
from .elsewhere import whole
from .stored_rows import StoredRows
from .table import TiedTensor


@dataclass
class ResizePlan:
    """A resize: sizes before and after, and the new rows of each table (empty unless it grows)."""

    old_num: int
    new_num: int
    side: Side = "shared"
    new_rows: dict[str, range] = field(default_factory=dict)
    """Table name -> new rows of that table."""
    asked: int | None = None
    """Tokens that were asked for, before padding to a multiple."""
    origins: Tensor | None = None
    """Old token that each token goes on from, `[new_num]`, -1 for none: what a model keeps by token beside
    its tables, such as experts, follows it. None where the old tokens keep their ids."""

    @property
    def new_ids(self) -> range:
        """Ids of the vocabulary that do not exist before."""
        return range(self.old_num, self.new_num)


def target_size(old: int, new_num_tokens: int | None, pad_to_multiple_of: int | None) -> int:
    """Rows after a resize; raises `InvalidArgumentError` for numbers that make no sense."""
    new = old if new_num_tokens is None else _positive("new_num_tokens", new_num_tokens)
    if pad_to_multiple_of is not None:
        multiple = _positive("pad_to_multiple_of", pad_to_multiple_of)
        new = -(-new // multiple) * multiple
    return new


def _positive(name: str, value: Any) -> int:
    """An integer, NumPy's and torch's too, as an `int`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool) or number < 1:
        raise InvalidArgumentError(f"{name}={value!r}: expected a positive integer")
    return number


def resized_copy(tied: TiedTensor, plan: ResizePlan, extra_rows: int, extra_rows_move: bool) -> Tensor:
    """A tensor of the new size: old rows kept, new ones zero, extra rows behind them or where they were."""
    old, new = plan.old_num, plan.new_num
    before = whole(tied)
    if isinstance(before, StoredRows):
        return before.take(_old_rows(tied.rows, plan, extra_rows, extra_rows_move))
    shape = list(before.shape)
    rows = shape[tied.dim]
    shape[tied.dim] = new + max(extra_rows, 0)
    after = before.new_empty(shape)
    kept = min(rows, shape[tied.dim]) if not extra_rows_move else min(old, new)
    after.narrow(tied.dim, 0, kept).copy_(before.narrow(tied.dim, 0, kept))
    after.narrow(tied.dim, kept, shape[tied.dim] - kept).zero_()
    if extra_rows_move and extra_rows > 0:
        after.narrow(tied.dim, new, extra_rows).copy_(before.narrow(tied.dim, old, extra_rows))
    if (
        extra_rows < 0 and new > rows
    ):  # ids beyond a part table read its row 0 (Gemma 3n): they go on doing so
        gap = after.narrow(tied.dim, rows, min(old, new) - rows)
        gap.copy_(before.narrow(tied.dim, 0, 1).expand_as(gap))
    return after


def by_token(tied: TiedTensor, plan: ResizePlan) -> Tensor:
    """Experts by token: those of the token that each goes on from; tokens from none repeat the old ones."""
    before = whole(tied)
    index = torch.arange(plan.new_num) % plan.old_num
    if plan.origins is not None:
        index = torch.where(plan.origins >= 0, plan.origins, index)
    if isinstance(before, StoredRows):
        return before.take(index)
    return before.index_select(0, index.to(before.device))


def _old_rows(rows: int, plan: ResizePlan, extra_rows: int, extra_rows_move: bool) -> Tensor:
    """For each row of a table of `rows` after a resize the row before that it repeats, -1 for a new one."""
    old, new = plan.old_num, plan.new_num
    index = torch.arange(new + max(extra_rows, 0))
    kept = min(rows, len(index)) if not extra_rows_move else min(old, new)
    index[kept:] = -1
    if extra_rows_move and extra_rows > 0:
        index[new:] = torch.arange(old, old + extra_rows)
    if extra_rows < 0 and new > rows:
        index[rows : min(old, new)] = 0
    return index
