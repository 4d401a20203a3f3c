"""What must hold of the token tables of any model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

from hf_embinit.moments import xavier_bound
from hf_embinit.tables import EmbeddingTables

from .tiny_models import V


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


def mean_rows(model: PreTrainedModel, old: int = V) -> bool:
    """Whether every table has the mean of its first `old` rows after them (the padding row left out)."""
    tables = EmbeddingTables(model)
    for table in tables.own_tables:
        rows = tables.read(table)
        usable = [i for i in range(old) if i != table.padding_index]
        if not torch.allclose(rows[old:], rows[usable].mean(0).expand(len(rows) - old, -1), atol=1e-5):
            return False
    return True


def uniform_rows(model: PreTrainedModel) -> bool:
    """Whether the input tables look like Xavier-uniform draws, the padding row being zero."""
    for table in EmbeddingTables(model).input_tables:
        bound = xavier_bound(table.num_embeddings, table.embedding_dim)
        rows = table.parameter.detach()
        if not (0.95 * bound < rows.abs().max() <= bound):
            return False
        if table.padding_index is not None and rows[table.padding_index].any():
            return False
    return True
