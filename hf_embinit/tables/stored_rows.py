"""`StoredRows`: a table whose rows stay in their file and are read when they are asked for.

To code it is a tensor `[V, D]`. Slices and splits of rows are lazy as views are, rows by index are read, sums
over rows and products with them go block by block; any other operation reads what it is given as a whole. It
cannot be written into: `take` and `with_rows` give another one, and `copy_` puts all of another tensor in the
place of a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .safetensors_files import TORCH_DTYPES, StoredTensor, read_into

BLOCK_BYTES = 2**24
"""Bytes of a table that are held at a time: 16 MiB."""

_aten = torch.ops.aten
_ROWWISE = (
    *(_aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default, _aten.amin.default),
    *(_aten.linalg_vector_norm.default, _aten.norm.ScalarOpt_dim, _aten.all.dim, _aten.any.dim),
)
"""Operations that make one number of each row when they are asked for dimension 1."""


class StoredRows(Tensor):
    """Rows of a file, and rows in memory that stand in the place of some of them."""

    file: StoredTensor
    where: Tensor  # type: ignore[assignment]
    """`[V]` int64: the row's place in the file; `-1 - k` for the k-th row of `extra`."""
    extra: Tensor
    """`[M, D]`: rows that are no longer those of the file."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A linear layer goes by blocks of rows; results are plain tensors."""
        if func is nn.functional.linear and isinstance(args[1], StoredRows):
            return _linear(*args, **(kwargs or {}))
        return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})

    @staticmethod
    def __new__(
        cls, file: StoredTensor, where: Tensor | None = None, extra: Tensor | None = None
    ) -> StoredRows:
        """All rows of the tensor `file`, in its order, where nothing else is given."""
        dtype, width = TORCH_DTYPES[file.dtype], file.shape[1]
        where = _all_rows(file.shape[0]) if where is None else where
        shape = (len(where), width)
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=torch.device("cpu"))
        made.file, made.where = file, where
        made.extra = torch.empty(0, width, dtype=dtype) if extra is None else extra
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StoredRows({tuple(self.shape)}, {self.dtype}, {self.file.name!r} in {self.file.path})"

    @property
    def is_as_stored(self) -> bool:
        """Whether these are the rows of the file, all of them and in its order."""
        everything = _all_rows(self.file.shape[0])
        return len(self.where) == len(everything) and torch.equal(self.where, everything)

    def take(self, index: Tensor) -> StoredRows:
        """The rows `index` (int64, or `slice`-like), in that order; -1 stands for a row of zeros."""
        zeros, extra = index < 0, self.extra
        where = self.where[index.clamp(min=0)] if len(self.where) else torch.zeros_like(index)
        if bool(zeros.any()):
            extra = torch.cat([extra, extra.new_zeros(1, extra.shape[1])])
            where = torch.where(zeros, -len(extra), where)
        return StoredRows(self.file, where, extra)

    def with_rows(self, rows: Tensor, ids: Tensor) -> StoredRows:
        """These rows with `rows` `[R, D]` in the place of the rows `ids`. Rows of the file stay in it."""
        where = self.where.clone()
        if isinstance(rows, StoredRows) and rows.file == self.file:
            where[ids] = torch.where(rows.where < 0, rows.where - len(self.extra), rows.where)
            return StoredRows(self.file, where, torch.cat([self.extra, rows.extra]))
        where[ids] = -1 - len(self.extra) - torch.arange(len(ids))
        made = rows.detach().to(dtype=self.dtype, device="cpu", copy=True)
        return StoredRows(self.file, where, torch.cat([self.extra, made]) if len(self.extra) else made)

    def whole(self) -> Tensor:
        """All rows, in memory."""
        rows = torch.empty(self.shape, dtype=self.dtype)
        where, in_memory = self.where, self.where < 0
        if bool(in_memory.any()):
            rows[in_memory] = self.extra[-1 - where[in_memory]]
        begins = torch.ones(len(where), dtype=torch.bool)  # of runs that lie in the file as they lie here
        begins[1:] = (where[1:] != where[:-1] + 1) | in_memory[1:] | in_memory[:-1]
        firsts = begins.nonzero().flatten()
        ends = torch.cat([firsts, torch.tensor([len(where)])])[1:]
        runs = torch.stack([firsts, ends, where[firsts]], dim=1)[~in_memory[firsts]]
        row_bytes = self.shape[1] * self.dtype.itemsize
        with self.file.path.open("rb", buffering=0) as file:
            for first, end, row in runs.tolist():
                read_into(file, self.file.start + row * row_bytes, rows[first:end])
        return rows

    def blocks(self, limit: int = BLOCK_BYTES) -> Iterator[Tensor]:
        """The rows in their order, in memory, at most `limit` bytes at a time."""
        size = max(1, limit // max(1, self.shape[1] * self.dtype.itemsize))
        for where in self.where.split(size):
            yield StoredRows(self.file, where, self.extra).whole()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        lazy = _LAZY.get(func)
        if lazy is not None and isinstance(args[0], StoredRows):
            found = lazy(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if (
            func in _ROWWISE
            and isinstance(args[0], StoredRows)
            and args[1:2] in (([1],), ([-1],), (1,), (-1,))
        ):
            return torch.cat([func(block, *args[1:], **kwargs) for block in args[0].blocks()])
        if func._schema.is_mutable and any(isinstance(a, StoredRows) for a in args[:1]):
            raise TypeError(f"the rows of {args[0].file.name} are in a file: they cannot be written in place")

        def read(value: Any) -> Any:
            return value.whole() if isinstance(value, StoredRows) else value

        return func(*tree_map(read, tuple(args)), **tree_map(read, kwargs))


@cache
def _all_rows(count: int) -> Tensor:
    """One tensor for all matrices of that many rows; nobody writes into it."""
    return torch.arange(count)


def _part(rows: StoredRows, where: Tensor) -> StoredRows:
    return StoredRows(rows.file, where, rows.extra)


def _same(rows: StoredRows, **_: Any) -> Any:
    return _part(rows, rows.where)


def _slice(rows: StoredRows, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if dim == 0:
        return _part(rows, rows.where[start:end:step])
    whole = not start and (end is None or end >= rows.shape[1]) and step == 1
    return _part(rows, rows.where) if whole else NotImplemented


def _split(rows: StoredRows, size: Any, dim: int = 0) -> Any:
    return [_part(rows, where) for where in rows.where.split(size)] if dim == 0 else NotImplemented


def _index(rows: StoredRows, indices: Sequence[Tensor | None]) -> Any:
    first = indices[0]
    if len(indices) == 1 and first is not None and (first.dim() == 1 or first.dtype != torch.bool):
        where = rows.where[first]
        return _part(rows, where.flatten()).whole().view(*where.shape, rows.shape[1])
    if len(indices) == 2 and indices[0] is None:  # columns
        return torch.cat([block[:, indices[1]] for block in rows.blocks()])
    return NotImplemented


def _index_select(rows: StoredRows, dim: int, index: Tensor) -> Any:
    return _part(rows, rows.where[index]).whole() if dim == 0 else NotImplemented


def _index_fill(rows: StoredRows, dim: int, index: Tensor, value: float) -> Any:
    if dim != 0:
        return NotImplemented
    return rows.with_rows(rows.extra.new_full((1, rows.shape[1]), value).expand(len(index), -1), index)


def _select(rows: StoredRows, dim: int, index: int) -> Any:
    return _part(rows, rows.where[[index]]).whole()[0] if dim == 0 else NotImplemented


def _embedding(rows: StoredRows, ids: Tensor, *_: Any, **__: Any) -> Tensor:
    return _part(rows, rows.where[ids.flatten()]).whole().view(*ids.shape, rows.shape[1])


def _linear(states: Tensor, rows: StoredRows, bias: Tensor | None = None) -> Tensor:
    """`states` `[..., D]` times the rows, `[..., V]`."""
    made: list[Tensor] = []
    for block in rows.blocks():
        at = sum(part.shape[-1] for part in made)
        own = None if bias is None else bias[at : at + len(block)]
        made.append(nn.functional.linear(states, block, own))
    return torch.cat(made, dim=-1)


def _copy(rows: StoredRows, source: Tensor, *_: Any) -> Any:
    """Other values in the place of a parameter's, as `load_state_dict` writes them; not through a view."""
    if not getattr(rows, "_is_param", False) or source.shape != rows.shape:
        return NotImplemented
    made = rows.with_rows(source, torch.arange(len(rows)))
    rows.where, rows.extra = made.where, made.extra
    return rows


_LAZY: dict[Any, Callable[..., Any]] = {
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.clone.default: _same,  # nobody can write into either
    _aten.slice.Tensor: _slice,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.index.Tensor: _index,
    _aten.index_select.default: _index_select,
    _aten.index_fill.int_Scalar: _index_fill,
    _aten.select.int: _select,
    _aten.embedding.default: _embedding,
    _aten.copy_.default: _copy,
}
