"""`EmbeddingTables`: where a model keeps its token tables, and the only code that writes them.

`V` rows of a vocabulary, `D` width. Dtype, device and `requires_grad` stay; tensors that were one stay one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .errors import InvalidArgumentError, UnsupportedModelError
from .table_discovery import (
    TARGET_PREFIXES,
    companions,
    discover,
    is_vocabulary_size,
    unwrap,
)
from .table_slots import Side, Slot, Table, tensor_places

__all__ = ["EmbeddingTables", "ResizeResult", "Table"]

logger = logging.getLogger(__name__)


@dataclass
class ResizeResult:
    """What a resize did: sizes before and after, and the new rows of each table (empty unless it grew)."""

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
        self.companions: list[Slot] = companions(tensor_places(self.model), self.tables)
        one = all(t.side == "shared" for t in self.tables)
        self._config_agreed = one and self._config_size() == self.vocab_size()

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
        """The table as `[V, D]`: a detached view of the parameter."""
        _require_values(table)
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
        optimizers keep pointing at them. Raises `InvalidArgumentError` for sizes that make no sense, and
        `UnsupportedModelError` on the meta device; nothing is touched then.
        """
        tables = self._of_side(side)
        old = self.vocab_size(side)
        new = _target_size(old, new_num_tokens, pad_to_multiple_of)
        result = ResizeResult(old, new, side)
        for table in tables:
            _require_values(table)
            if table.tied_to is None:
                first = old if table.surplus_moves or table.surplus < 0 else table.num_embeddings
                result.new_rows[table.name] = range(first, max(first, first + new - old))
        if new == old:
            return result
        slots: dict[int, tuple[Slot, int, bool]] = {}
        for table in tables:
            slots.setdefault(id(table.slot), (table.slot, table.surplus, table.surplus_moves))
            slots.update({id(slot): (slot, 0, False) for slot in table.bias})
        slots.update({id(slot): (slot, 0, False) for slot in self.companions})
        before = [_nature(slot) for slot, _, _ in slots.values()]
        for slot, surplus, moves in slots.values():
            _resize_slot(slot, old, new, surplus, moves)
        for table in tables:
            table.surplus = max(table.surplus, 0)
        for slot in self.companions:
            if not slot.tensor.is_floating_point():  # experts by token: new tokens repeat the old ones
                for row in range(old, new):
                    slot.tensor[row] = slot.tensor[row % old]
        self._update_modules(tables)
        self._update_configs(old, new, side, new_num_tokens)
        assert before == [_nature(slot) for slot, _, _ in slots.values()]
        self.assert_consistent()
        return result

    def assert_consistent(self) -> None:
        """Raises `AssertionError` when ties, shapes, sizes in modules and the config's size disagree."""
        for table in self.tables:
            for place in table.slot.places:
                tensor = place.tensor
                same = tensor is table.slot.tensor or tensor.data_ptr() == table.slot.tensor.data_ptr()
                assert same, f"{place.name} and {table.name} were tied and are not any more"
                for attribute in ("num_embeddings", "out_features"):
                    size = getattr(place.module, attribute, None)
                    if isinstance(size, int) and not table.transposed:
                        assert size == table.num_embeddings, (
                            f"{place.name}: {attribute} is {size}, not {table.num_embeddings}"
                        )
            for slot in table.bias:
                size = table.num_embeddings - table.surplus
                assert slot.rows == size, f"{slot.name} has {slot.rows} entries, not {size}"
        for side in {t.side for t in self.tables}:
            sizes = {t.num_embeddings - t.surplus for t in self._of_side(side)}
            assert len(sizes) == 1, f"tables of the {side} vocabulary disagree on its size: {sorted(sizes)}"
            if self._config_agreed:
                assert sizes == {self._config_size()}, (
                    f"config.vocab_size is {self._config_size()}, not {sizes}"
                )

    def _config_size(self) -> int | None:
        config = self.model.config
        sizes = (vars(one).get("vocab_size") for one in (config.get_text_config(), config))
        return next((size for size in sizes if isinstance(size, int)), None)

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
                module, rows = place.module, table.num_embeddings
                names = ("in_features",) if table.transposed else ("num_embeddings", "out_features", "num_")
                for name in names:
                    if isinstance(getattr(module, name, None), int):
                        setattr(module, name, rows)
                padding = getattr(module, "padding_idx", None)
                if padding is not None and padding >= rows:
                    module.padding_idx = None  # type: ignore[assignment]

    def _update_configs(self, old: int, new: int, side: Side, asked: int | None) -> None:
        """Sets the sizes that modules and configs keep."""
        for holder, sides in self._size_holders():
            for key, value in list(vars(holder).items()):
                if not is_vocabulary_size(key, value) or side != _side_of_size(key, sides):
                    continue
                if key == "unpadded_vocab_size":  # logits beyond it are cut off
                    setattr(holder, key, min(max(value, asked or value), new))
                elif value == old or key == "vocab_size_per_layer_input":
                    setattr(holder, key, new)

    def _size_holders(self) -> list[tuple[object, set[Side]]]:
        """Modules that a table is part of, and their configs, with the sides of those tables."""
        places = [(t.side, p.name) for t in self.tables for slot in (t.slot, *t.bias) for p in slot.places]
        two = len({side for side, _ in places}) > 1
        holders: dict[int, tuple[object, set[Side]]] = {}
        for name, module in self.model.named_modules():
            inside = {side for side, place in places if place.startswith(f"{name}." if name else "")}
            if not inside:
                continue
            holders[id(module)] = (module, inside)
            config = getattr(module, "config", None)
            if isinstance(config, PreTrainedConfig):
                for one in (config,) if two else (config, config.get_text_config()):
                    holders.setdefault(id(one), (one, set()))[1].update(inside)
        return list(holders.values())


def _side_of_size(key: str, sides: set[Side]) -> Side:
    """Which vocabulary a size called `key` is about, when its holder is about `sides`."""
    if len(sides) == 1:
        return next(iter(sides))
    return "target" if key.startswith(TARGET_PREFIXES) else "source"


def _require_values(table: Table) -> None:
    if table.parameter.is_meta:
        raise UnsupportedModelError(
            f"{table.name} is on the meta device, so it has no values: load the model onto a device first"
        )


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


def _nature(slot: Slot) -> list[tuple[torch.dtype, torch.device, bool, int]]:
    """What a resize must not change, for each place of a tensor."""
    tensors = [place.tensor for place in slot.places]
    return [(t.dtype, t.device, t.requires_grad, id(t)) for t in tensors]


def _resize_slot(slot: Slot, old: int, new: int, surplus: int, surplus_moves: bool) -> None:
    """Replaces the data of a slot: old rows kept, new ones zero, surplus rows behind them or in place."""
    before = slot.tensor.detach()
    shape = list(before.shape)
    rows = shape[slot.dim]
    shape[slot.dim] = new + max(surplus, 0)
    after = before.new_empty(shape)
    kept = min(rows, shape[slot.dim]) if not surplus_moves else min(old, new)
    after.narrow(slot.dim, 0, kept).copy_(before.narrow(slot.dim, 0, kept))
    after.narrow(slot.dim, kept, shape[slot.dim] - kept).zero_()
    if surplus_moves and surplus > 0:
        after.narrow(slot.dim, new, surplus).copy_(before.narrow(slot.dim, old, surplus))
    if surplus < 0 and new > rows:  # ids beyond a part table read its row 0 (Gemma 3n): they go on doing so
        gap = after.narrow(slot.dim, rows, min(old, new) - rows)
        gap.copy_(before.narrow(slot.dim, 0, 1).expand_as(gap))
    for tensor in {id(p.tensor): p.tensor for p in slot.places}.values():
        tensor.data = after
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
