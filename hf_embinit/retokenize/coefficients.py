"""`Coefficients`: every row of a new vocabulary as a weighted sum of rows of the old one, a sparse matrix.

`V'` new tokens, `V` old tokens, `N` weights that are stored, `D` width of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..arguments import FilePath, checked
from ..disk import check_file, writing
from ..errors import DataNotFoundError, InvalidArgumentError
from ..files import replaced_files

COEFFICIENTS = "embinit_coefficients.safetensors"
"""Name of the file with the coefficients beside a checkpoint; a side and `output` come before its ending."""
_BLOCK_ENTRIES = 2**22
"""Numbers that a product holds at a time beside its result: 16 MiB in float32. Memory of 128 MiB is given
back to the system after each block, which takes longer than the product."""
_NAMES = ("indptr", "indices", "values", "step")


class Step(IntEnum):
    """What a new row is made by; the first ones of the chain come first."""

    COPIED = 0
    """A special token: the row of the old token with the same role."""
    OVERLAP = 1
    """The old token that stands for the same."""
    METHOD = 2
    PIECES = 3
    """The mean of the old tokens that the token's text is split into."""
    MEAN = 4
    """The mean of the old rows: no weight is stored."""
    RANDOM = 5
    """A draw with the mean and standard deviation of the old rows: no weight is stored."""
    NONE = 6
    """Nothing yet."""


class Weight(NamedTuple):
    """One old token in the sum that a new row is."""

    id: int
    value: float


class Coefficients:
    """A matrix `[V', V]` in compressed rows, and what made each row. It is never changed.

    Rows without a weight are those that `step` says are the mean, drawn, or not made yet.
    """

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        values: Tensor,
        shape: tuple[int, int],
        step: Tensor | None = None,
    ):
        """`indptr` `[V' + 1]`, `indices` `[N]` below V, `values` `[N]`, `step` `[V']` of `Step`.

        Without `step` rows that have weights are `METHOD`, the others `NONE`. Raises `InvalidArgumentError`
        for parts that are no such matrix.
        """
        self.shape = (int(shape[0]), int(shape[1]))
        self.indptr, self.indices = indptr.long(), indices.long()
        self.values = values.float()
        filled = self.indptr.diff() > 0
        if step is None:
            step = torch.where(filled, int(Step.METHOD), int(Step.NONE))
        self.step = step.to(torch.int8)
        self._check()

    def _check(self) -> None:
        rows, columns = self.shape
        count = len(self.indices)
        outside = bool(count) and not 0 <= int(self.indices.min()) <= int(self.indices.max()) < columns
        wrong = (
            len(self.indptr) != rows + 1
            or len(self.step) != rows
            or len(self.values) != count
            or int(self.indptr[0]) != 0
            or int(self.indptr[-1]) != count
            or bool((self.indptr.diff() < 0).any())
        )
        if wrong or outside:
            raise InvalidArgumentError(
                f"coefficients: indptr {list(self.indptr.shape)}, indices {list(self.indices.shape)} and "
                f"values {list(self.values.shape)} are no matrix of {rows} x {columns} in compressed rows"
            )
        if not bool(torch.isfinite(self.values).all()):
            raise InvalidArgumentError("coefficients: some weights are NaN or infinite")

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[int, float]], num_old: int) -> Coefficients:
        """From one mapping a new token: old id -> weight."""
        counts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        indices = torch.tensor([i for row in rows for i in row], dtype=torch.int64)
        values = torch.tensor([value for row in rows for value in row.values()], dtype=torch.float32)
        return cls(_starts(counts), indices, values, (len(rows), num_old))

    @classmethod
    def from_coo(
        cls,
        new: Tensor,
        old: Tensor,
        values: Tensor,
        shape: tuple[int, int],
        step: Tensor | None = None,
    ) -> Coefficients:
        """From `N` entries (new id, old id, weight), in any order. Weights of the same entry add up, and
        entries that come to zero are left out."""
        key, place = torch.unique(new.long() * shape[1] + old.long(), return_inverse=True)
        summed = torch.zeros(len(key), dtype=torch.float64).index_add_(0, place, values.double().cpu())
        key, summed = key[summed != 0], summed[summed != 0]
        rows = torch.div(key, max(1, shape[1]), rounding_mode="floor")
        indptr = _starts(torch.bincount(rows, minlength=shape[0]))
        return cls(indptr, key % max(1, shape[1]), summed.float(), shape, step)

    @classmethod
    def copies(cls, old_ids: Tensor, num_old: int, step: Step = Step.OVERLAP) -> Coefficients:
        """One old row for each new token: `old_ids` `[V']`, -1 for none."""
        there = old_ids >= 0
        steps = torch.where(there, int(step), int(Step.NONE))
        ones = torch.ones(int(there.sum()), dtype=torch.float32)
        return cls(_starts(there), old_ids[there], ones, (len(old_ids), num_old), steps)

    def or_else(self, other: Coefficients) -> Coefficients:
        """These rows; those that nothing has made yet (`NONE`) are the rows of `other`."""
        return other.replaced(self, self.step != Step.NONE)

    def replaced(self, other: Coefficients, where: Tensor) -> Coefficients:
        """The rows of `other` `where` (`[V']`, bool) is true, these elsewhere."""
        if self.shape != other.shape:
            raise InvalidArgumentError(f"coefficients of {self.shape} and {other.shape} do not fit together")
        counts = torch.where(where, other.indptr.diff(), self.indptr.diff())
        indptr = _starts(counts)
        indices = torch.empty(int(indptr[-1]), dtype=torch.int64)
        values = torch.empty(int(indptr[-1]), dtype=torch.float32)
        for one, rows in ((self, ~where), (other, where)):
            taken = rows.repeat_interleave(one.indptr.diff())
            place = rows.repeat_interleave(counts)
            indices[place], values[place] = one.indices[taken], one.values[taken]
        return Coefficients(indptr, indices, values, self.shape, torch.where(where, other.step, self.step))

    def taken(self, new_ids: Tensor) -> Coefficients:
        """The rows of some new tokens, `[R]`, in that order; one may come twice."""
        counts = self.indptr.diff()[new_ids]
        indptr = _starts(counts)
        inside = torch.arange(int(indptr[-1])) - indptr[:-1].repeat_interleave(counts)
        place = self.indptr[new_ids].repeat_interleave(counts) + inside
        shape = len(new_ids), self.shape[1]
        return Coefficients(indptr, self.indices[place], self.values[place], shape, self.step[new_ids])

    def filled(self, step: Step) -> Coefficients:
        """The same with `step` (`MEAN` or `RANDOM`) for the rows that nothing has made yet."""
        steps = torch.where(self.step == Step.NONE, int(step), self.step.long())
        return Coefficients(self.indptr, self.indices, self.values, self.shape, steps)

    def padded(self, rows: int) -> Coefficients:
        """The same with rows that are the mean behind the last, so that there are `rows`."""
        more = rows - self.shape[0]
        indptr = torch.cat([self.indptr, self.indptr[-1:].expand(more)])
        step = torch.cat([self.step, self.step.new_full((more,), int(Step.MEAN))])
        return Coefficients(indptr, self.indices, self.values, (rows, self.shape[1]), step)

    def normalised(self) -> Coefficients:
        """Every row divided by its sum. Rows that sum to zero lose their weights and are `NONE`."""
        sums = torch.zeros(self.shape[0], dtype=torch.float64)
        sums.index_add_(0, self.new_ids, self.values.double())
        empty = (sums.abs() < 1e-30) & (self.indptr.diff() > 0)
        values = (self.values.double() / sums[self.new_ids]).float()
        step = torch.where(empty, int(Step.NONE), self.step.long())
        kept = ~empty[self.new_ids]
        indptr = _starts(torch.where(empty, 0, self.indptr.diff()))
        return Coefficients(indptr, self.indices[kept], values[kept], self.shape, step)

    def heaviest(self) -> Tensor:
        """The old token with the greatest weight in each row, `[V']`: the first of equals, -1 for none."""
        new_ids = self.new_ids
        most = torch.full((self.shape[0],), -torch.inf, dtype=torch.float32).scatter_reduce(
            0, new_ids, self.values, "amax"
        )
        there = self.values == most[new_ids]
        found = torch.full((self.shape[0],), self.shape[1])
        found = found.scatter_reduce(0, new_ids[there], self.indices[there], "amin")
        return torch.where(found < self.shape[1], found, -1)

    @property
    def new_ids(self) -> Tensor:
        """The new id of each weight, `[N]`."""
        return torch.arange(self.shape[0]).repeat_interleave(self.indptr.diff())

    def apply(self, table: Tensor, *, block: int | None = None) -> Tensor:
        """The new rows of a table: `[V, D]` -> `[V', D]` in the table's dtype and on its device.

        Sums are of float32, of float64 for a table of that. A row that is one old row with weight 1 is that
        row bit for bit; a row without weights is zero. `block` bounds the numbers that are held at a time
        beside table and result. Raises `InvalidArgumentError` for a table with fewer rows than V, and for
        old rows with NaN or infinite entries that a new row is made of.
        """
        if len(table) < self.shape[1]:
            raise InvalidArgumentError(
                f"the table has {len(table)} rows, the coefficients are of {self.shape[1]} old tokens"
            )
        exact = torch.float64 if table.dtype == torch.float64 else torch.float32
        made = torch.empty(self.shape[0], table.shape[1], dtype=table.dtype, device=table.device)
        for first, end in self._blocks(max(1, (block or _BLOCK_ENTRIES) // max(1, table.shape[1]))):
            span = slice(int(self.indptr[first]), int(self.indptr[end]))
            used, place = torch.unique(self.indices[span], return_inverse=True)
            rows = table[used.to(table.device)].to(exact)
            broken = ~torch.isfinite(rows).all(dim=1)
            if bool(broken.any()):
                raise InvalidArgumentError(
                    f"{int(broken.sum())} old rows that new ones are made of have NaN or infinite entries, "
                    f"the first at id {int(used[broken.cpu()][0])}: hf_embinit.repair(model, tokenizer) "
                    f"refills them"
                )
            offsets = self.indptr[first : end + 1] - self.indptr[first]
            parts = (place, offsets, self.values[span].to(exact))
            sums = _sums(rows, *(part.to(rows.device) for part in parts)) if len(used) else torch.zeros(1)
            made[first:end] = sums.to(table.dtype)
        return made

    def _blocks(self, most: int) -> list[tuple[int, int]]:
        """Spans of new rows with at most `most` weights together, or of one row."""
        spans, first = [], 0
        ends = self.indptr[1:].contiguous()
        while first < self.shape[0]:
            limit = int(self.indptr[first]) + most
            end = int(torch.searchsorted(ends, torch.tensor(limit), right=True))
            end = min(max(end, first + 1), first + most)
            spans.append((first, end))
            first = end
        return spans

    def row(self, new_id: int) -> list[Weight]:
        """What a new row is made of, the largest weight first."""
        if not 0 <= new_id < self.shape[0]:
            raise InvalidArgumentError(f"id {new_id} is none of the {self.shape[0]} new tokens")
        span = slice(int(self.indptr[new_id]), int(self.indptr[new_id + 1]))
        pairs = zip(self.indices[span].tolist(), self.values[span].tolist(), strict=True)
        return sorted((Weight(i, value) for i, value in pairs), key=lambda weight: -abs(weight.value))

    def counts(self) -> dict[str, int]:
        """How many rows each step made, of those that made some, by its name in lower case."""
        made = torch.bincount(self.step.long(), minlength=len(Step)).tolist()
        return {step.name.lower(): made[step] for step in Step if made[step]}

    @checked
    def save(self, file: FilePath, metadata: Mapping[str, str] | None = None) -> None:
        """Writes a safetensors file; `metadata` are texts, such as digests of both tokenizers.

        Raises `FileWriteError` where it cannot be written.
        """
        check_file(file, "file")
        tensors = {name: getattr(self, name).contiguous() for name in _NAMES}
        about = {**(metadata or {}), "format": "pt", "shape": f"{self.shape[0]} {self.shape[1]}"}
        with writing(f"file {file}"), replaced_files(Path(file).parent) as hidden:
            save_file(tensors, str(hidden / Path(file).name), about)

    @classmethod
    @checked
    def load(cls, file: FilePath) -> tuple[Coefficients, dict[str, str]]:
        """The coefficients in a file of `save`, and its metadata.

        Raises `DataNotFoundError`, also for steps that this version does not know.
        """
        if not Path(file).is_file():
            raise DataNotFoundError(f"{file} is not there: replace_tokenizer writes it beside a model")
        try:
            with safe_open(str(file), framework="pt") as opened:
                about = dict(opened.metadata() or {})
                parts = {name: opened.get_tensor(name) for name in _NAMES}
            rows, columns = (int(n) for n in about.pop("shape").split())
            for step in parts["step"].unique().tolist():
                Step(step)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise DataNotFoundError(f"{file} holds no coefficients of this package: {error}") from error
        about.pop("format", None)
        return cls(**parts, shape=(rows, columns)), about

    def __repr__(self) -> str:
        return f"Coefficients({self.shape[0]} x {self.shape[1]}, {len(self.values)} weights, {self.counts()})"


def _starts(counts: Tensor) -> Tensor:
    """Where each row's weights start among all, and where the last one's end, from how many each row has."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def _sums(rows: Tensor, indices: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """The weighted sums of the rows `indices` between each of `offsets` and the next."""
    return torch.nn.functional.embedding_bag(
        indices, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


def coefficients_file(side: str = "shared", part: str = "") -> str:
    """The name of the file with the coefficients of one vocabulary."""
    stem, dot, ending = COEFFICIENTS.partition(".")
    names = [stem, *([side] if side != "shared" else []), *([part] if part else [])]
    return "_".join(names) + dot + ending
