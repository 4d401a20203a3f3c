"""`EmbeddingTables`: where a model keeps its token tables, and the only code that writes them.

`V` rows of a vocabulary, `D` width. Dtype, device and `requires_grad` stay; tensors that were one stay one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .errors import InvalidArgumentError, UnsupportedModelError
from .table_discovery import Side, Slot, Table, discover, is_vocabulary_size, unwrap, vocabulary_fields

__all__ = ["EmbeddingTables", "ResizeResult", "Table"]

logger = logging.getLogger(__name__)


@dataclass
class ResizeResult:
    """What a resize did: sizes before and after, and the new rows of each table (none when it shrank)."""

    old_num: int
    new_num: int
    side: Side = "shared"
    new_rows: dict[str, range] = field(default_factory=dict)
    """Table name -> new rows of that table."""

    @property
    def new_ids(self) -> range:
        """Ids of the vocabulary that did not exist before."""
        return range(self.old_num, self.new_num)


class EmbeddingTables:
    """Every table of a model with a row per token.

    Raises `UnsupportedModelError`, before anything is touched, for a model that has no such table or keeps it
    in a form that cannot be handled.
    """

    def __init__(self, model: nn.Module):
        self.model: PreTrainedModel = unwrap(model)
        self.tables: list[Table] = discover(self.model)
        for table in self.tables:
            _refuse_odd_tensors(table)

    @property
    def input_tables(self) -> list[Table]:
        """Tables that ids are looked up in (per-layer tables are not among them)."""
        return [t for t in self.tables if t.role == "input"]

    @property
    def output_tables(self) -> list[Table]:
        """Tables that make logits; those tied to an input table say so in `tied_to`."""
        return [t for t in self.tables if t.role == "output"]

    @property
    def own_tables(self) -> list[Table]:
        """Each tensor once: input tables, untied output tables, per-layer tables."""
        return [t for t in self.tables if t.tied_to is None]

    def vocab_size(self, side: Side = "shared") -> int:
        """Rows of one side's vocabulary. Raises `UnsupportedModelError` for `shared` when there are two."""
        tables = self._of_side(side)
        return tables[0].num_embeddings - tables[0].surplus

    def read(self, table: Table) -> Tensor:
        """The table as `[V, D]`, detached: a view of the parameter (a copy where it is sharded)."""
        with torch.no_grad():
            data = table.parameter.detach()
            return data.t() if table.transposed else data

    def write(self, table: Table, rows: Tensor, ids: Sequence[int] | range | Tensor | None = None) -> None:
        """Writes `rows` `[R, D]` into the rows `ids` (all rows when None). Dtype, device and ties stay."""
        data = self.read(table)
        count = data.shape[0] if ids is None else len(ids)
        if tuple(rows.shape) != (count, data.shape[1]):
            raise InvalidArgumentError(
                f"rows of shape {tuple(rows.shape)} cannot fill {count} rows of {table.name}, which is "
                f"{tuple(data.shape)}"
            )
        _assign(data, rows, ids)

    def biases(self, table: Table) -> list[Tensor]:
        """The output biases of a table, each as a detached `[V]` view."""
        return [
            slot.tensor.detach().select(0, 0) if slot.dim else slot.tensor.detach() for slot in table.bias
        ]

    def write_bias(
        self,
        table: Table,
        values: Sequence[Tensor | float],
        ids: Sequence[int] | range | Tensor | None = None,
    ) -> None:
        """Writes into the entries `ids` of each output bias of a table its own value: `[R]` or one number."""
        for data, value in zip(self.biases(table), values, strict=True):
            count = data.shape[0] if ids is None else len(ids)
            _assign(data, torch.as_tensor(value, dtype=torch.float32).expand(count), ids)

    def resize(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, side: Side = "shared"
    ) -> ResizeResult:
        """Gives every table of a side `new_num_tokens` rows: old rows stay bit for bit, new ones are zero.

        Parameters stay the same objects (their data is replaced, a stale `.grad` dropped), so that ties and
        optimizers keep pointing at them. Raises `InvalidArgumentError` for sizes that make no sense.
        """
        tables = self._of_side(side)
        old = self.vocab_size(side)
        new = _target_size(old, new_num_tokens, pad_to_multiple_of)
        result = ResizeResult(old, new, side)
        if new == old:
            return result
        done: set[int] = set()
        for table in tables:
            before = table.num_embeddings
            for slot in [table.slot, *table.bias]:
                if id(slot) not in done:
                    done.add(id(slot))
                    _resize_slot(slot, slot.rows + new - old)
            if table.tied_to is None:
                result.new_rows[table.name] = range(before, table.num_embeddings)
        self._update_modules(tables)
        self._update_configs(old, new, side)
        self.assert_consistent()
        return result

    def assert_consistent(self) -> None:
        """Raises `AssertionError` when ties, shapes, dtypes, devices, `requires_grad` and config disagree."""
        for table in self.tables:
            for place in table.slot.places:
                tensor = place.tensor
                same = tensor is table.slot.tensor or tensor.data_ptr() == table.slot.tensor.data_ptr()
                assert same, f"{place.name} and {table.name} were tied and are not any more"
                for attribute in ("num_embeddings", "out_features"):
                    size = getattr(place.module, attribute, None)
                    if isinstance(size, int) and table.slot.dim == 0:
                        assert size == table.num_embeddings, (
                            f"{place.name}: {attribute} is {size}, not {table.num_embeddings}"
                        )
            for slot in table.bias:
                assert slot.rows == table.num_embeddings, (
                    f"{slot.name} has {slot.rows} entries, not {table.num_embeddings}"
                )
        for side in {t.side for t in self.tables}:
            sizes = {t.num_embeddings - t.surplus for t in self._of_side(side)}
            assert len(sizes) == 1, f"tables of the {side} vocabulary disagree on its size: {sorted(sizes)}"

    def _of_side(self, side: Side) -> list[Table]:
        tables = [t for t in self.tables if t.side == side]
        if not tables:
            sides = sorted({t.side for t in self.tables})
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no {side} vocabulary (side= may be: {', '.join(sides)})"
            )
        return tables

    def _update_modules(self, tables: Iterable[Table]) -> None:
        for table in tables:
            for place in table.slot.places:
                module = place.module
                if table.slot.dim == 0:
                    for attribute in ("num_embeddings", "out_features"):
                        if hasattr(module, attribute):
                            setattr(module, attribute, table.num_embeddings)
                elif hasattr(module, "in_features"):
                    module.in_features = table.num_embeddings  # type: ignore[assignment]
                padding = getattr(module, "padding_idx", None)
                if padding is not None and padding >= table.num_embeddings:
                    module.padding_idx = None  # type: ignore[assignment]

    def _update_configs(self, old: int, new: int, side: Side) -> None:
        for holder in [*self.model.modules(), *_configs(self.model)]:
            for key, value in list(vars(holder).items()):
                if is_vocabulary_size(key, value) and value == old and self._is_of(key, side):
                    setattr(holder, key, new)

    def _is_of(self, key: str, side: Side) -> bool:
        """Whether a size called `key` is about the vocabulary of `side`."""
        if {t.side for t in self.tables} == {"shared"} or len(vocabulary_fields(self.model.config)) < 2:
            return True
        return side == ("target" if key.startswith(("decoder", "tgt", "target")) else "source")


def _configs(model: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    """The configs that describe the token tables: the model's, its text config, and those of inner models."""
    seen: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if not isinstance(config, PreTrainedConfig):
            continue
        for one in (config, config.get_text_config()):
            if id(one) not in seen:
                seen.add(id(one))
                yield one


def _target_size(old: int, new_num_tokens: int | None, pad_to_multiple_of: int | None) -> int:
    new = old if new_num_tokens is None else new_num_tokens
    if isinstance(new, bool) or not isinstance(new, int) or new < 1:
        raise InvalidArgumentError(f"new_num_tokens={new_num_tokens!r}: expected a positive integer")
    if pad_to_multiple_of is not None:
        if (
            isinstance(pad_to_multiple_of, bool)
            or not isinstance(pad_to_multiple_of, int)
            or pad_to_multiple_of < 1
        ):
            raise InvalidArgumentError(
                f"pad_to_multiple_of={pad_to_multiple_of!r}: expected a positive integer"
            )
        new = -(-new // pad_to_multiple_of) * pad_to_multiple_of
    return new


def _resize_slot(slot: Slot, rows: int) -> None:
    old = slot.tensor.detach()
    shape = list(old.shape)
    shape[slot.dim] = rows
    new = old.new_empty(shape)
    kept = min(rows, old.shape[slot.dim])
    new.narrow(slot.dim, 0, kept).copy_(old.narrow(slot.dim, 0, kept))
    new.narrow(slot.dim, kept, rows - kept).zero_()
    for tensor in {id(p.tensor): p.tensor for p in slot.places}.values():
        tensor.data = new
        tensor.grad = None


def _assign(data: Tensor, rows: Tensor, ids: Sequence[int] | range | Tensor | None) -> None:
    rows = rows.detach()
    with torch.no_grad():
        if ids is None:
            data.copy_(rows)
        elif isinstance(ids, range) and ids.step == 1:
            data[ids.start : ids.stop].copy_(rows)
        else:
            index = torch.as_tensor(list(ids) if not isinstance(ids, Tensor) else ids, device=data.device)
            data[index] = rows.to(dtype=data.dtype, device=data.device)


def _refuse_odd_tensors(table: Table) -> None:
    tensor = table.parameter
    if hasattr(table.module, "base_layer") or not table.parameter.is_floating_point():
        kind = (
            "wrapped by an adapter" if hasattr(table.module, "base_layer") else f"quantised ({tensor.dtype})"
        )
        raise UnsupportedModelError(f"{table.name} is {kind}: change the vocabulary before that")
