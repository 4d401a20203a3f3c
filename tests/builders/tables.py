"""What must hold of the token tables of any model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from hf_embinit.tables import EmbeddingTables


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Inside, new tensors are of this dtype, as in scripts that build a model in it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def assert_consistent(tables: EmbeddingTables) -> None:
    """Raises `AssertionError` when ties, shapes, sizes in modules and the config's size disagree."""
    for table in tables.tables:
        for location in table.tied.locations:
            tensor = location.tensor
            same = tensor is table.tied.tensor or tensor.data_ptr() == table.tied.tensor.data_ptr()
            assert same, f"{location.name} and {table.name} were tied and are not any more"
            for attribute in ("num_embeddings", "out_features"):
                size = getattr(location.module, attribute, None)
                if isinstance(size, int) and not table.transposed:
                    assert size == table.num_embeddings, (
                        f"{location.name}: {attribute} is {size}, not {table.num_embeddings}"
                    )
        for tied in table.bias:
            size = table.num_embeddings - table.extra_rows
            assert tied.rows == size, f"{tied.name} has {tied.rows} entries, not {size}"
    for side in {t.side for t in tables.tables}:
        sizes = {t.num_embeddings - t.extra_rows for t in tables.of_side(side)}
        assert len(sizes) == 1, f"tables of the {side} vocabulary disagree on its size: {sorted(sizes)}"
