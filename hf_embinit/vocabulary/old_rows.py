"""Old rows, as an adapter knows them again: by digests, and by a sample where dtypes round differently."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..tables import EmbeddingTables, Table

_DIGESTED = ("bfloat16", "float16")
"""Dtypes that a base may be loaded in when the adapter was trained in another."""


def describe_old_rows(tables: EmbeddingTables, table: Table, ids: list[int]) -> dict[str, Any]:
    """What `check_old_rows` compares: all rows of a table but `ids`, for a manifest."""
    return {"digests": _digests(tables, table, ids), "sample": _sample(tables, table, ids).tolist()}


def check_old_rows(
    tables: EmbeddingTables, table: Table, ids: list[int], described: dict[str, Any], name: str
) -> None:
    """Raises `InvalidArgumentError` for other old rows than those that a manifest describes.

    A digest knows rows in the dtype that they had, and in those that they round to. Of one stored in float32
    that was in bfloat16 then and is in float16 now, or the reverse, neither rounds to the other: there the
    sample is compared, up to what both roundings change.
    """
    digests = described["digests"]
    own, was = str(table.parameter.dtype).removeprefix("torch."), next(iter(digests))
    dtype = own if own in digests else was
    if _digest(tables, table, ids, dtype) == digests[dtype]:
        return
    differently = {own, was} == set(_DIGESTED)
    if differently and "sample" in described:
        now, then = _sample(tables, table, ids), torch.tensor(described["sample"])
        if now.shape == then.shape and torch.allclose(now, then, rtol=2**-8, atol=2**-24, equal_nan=True):
            return
    raise InvalidArgumentError(
        f"the old rows of {table.name} are not those of the model that {name} was trained on: give that model"
        + (f", loaded in {was}" if differently else "")
    )


def _digests(tables: EmbeddingTables, table: Table, ids: list[int]) -> dict[str, str]:
    """SHA-256 of all rows but `ids`, in the table's dtype and in coarser ones, by dtype."""
    own = str(table.parameter.dtype).removeprefix("torch.")
    return {name: _digest(tables, table, ids, name) for name in dict.fromkeys([own, *_DIGESTED])}


def _old_rows(data: Tensor, ids: list[int]) -> Tensor:
    """All rows of a table but `ids`."""
    old = torch.ones(data.shape[0], dtype=torch.bool)
    old[[i for i in ids if i < data.shape[0]]] = False
    return old.nonzero().flatten()


def _digest(tables: EmbeddingTables, table: Table, ids: list[int], dtype: str) -> str:
    data = tables.read(table)
    digest = hashlib.sha256()
    for block in _old_rows(data, ids).split(2**14):
        rows = data[block.to(data.device)].to(getattr(torch, dtype)).cpu().contiguous()
        digest.update(rows.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sample(tables: EmbeddingTables, table: Table, ids: list[int]) -> Tensor:
    """At most 16 entries, evenly spaced, of each of at most 16 rows that are not among `ids`."""
    data = tables.read(table)
    old = _old_rows(data, ids)
    rows = data[old[_spaced(len(old))].to(data.device)].float().cpu()
    return rows[:, _spaced(rows.shape[1])]


def _spaced(count: int) -> Tensor:
    return torch.linspace(0, count - 1, min(count, 16)).long()
