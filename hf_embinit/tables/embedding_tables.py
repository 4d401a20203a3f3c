"""`EmbeddingTables`: a model's token tables, and the only code that writes them.

`V` rows of a vocabulary, `D` width, `R` rows to write. Dtype, device and `requires_grad` stay; tensors that
were one stay one. A change is planned (`plan`), its rows are made by whoever asks, and `change` does all of
it: everything that can fail comes before the first write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import InvalidArgumentError, UnsupportedModelError
from ..interrupts import uninterrupted
from ..manifest import events_with
from ..tokens import Side
from .discovery import TARGET_PREFIXES, companions, discover, is_vocabulary_size, refuse_resize
from .elsewhere import BEFORE, Elsewhere, is_elsewhere, whole
from .memory import require_memory, warn_of_old_graphs, watch_optimizers
from .resizing import ResizePlan, by_token, resized_copy, target_size
from .stored_rows import StoredRows
from .table import Table, TiedTensor, shape_of, tied_tensors
from .unwrapping import refuse_weights_of_tokens, unwrap

Ids = Sequence[int] | range | Tensor

_HALVES = (torch.bfloat16, torch.float16)


@dataclass
class RowsOf:
    """What to write into one table: rows, and entries of its output biases."""

    table: Table
    ids: Ids
    rows: Tensor | None = None
    """`[R, D]`; None for a table whose tensor another one writes."""
    biases: Sequence[Tensor | float] = ()
    """For each bias of the table `[R]` values, or one number."""
    bias_ids: Ids = ()


class EmbeddingTables:
    """Every table of a model with a row per token, found once.

    Raises `UnsupportedModelError`, before any change, for a model that has no such table or keeps it in a
    form that cannot be handled.
    """

    def __init__(self, model: Any):
        self.model: PreTrainedModel = unwrap(model)
        self.outer: nn.Module = model if isinstance(model, nn.Module) else self.model
        self.elsewhere = Elsewhere(self.outer)
        self.elsewhere.settle()
        self.tables: list[Table] = discover(self.model)
        self.companions: list[TiedTensor] = companions(tied_tensors(self.model), self.tables)

    @property
    def input_tables(self) -> list[Table]:
        """Tables that ids are looked up in, without per-layer tables."""
        return [t for t in self.tables if t.role == "input"]

    @property
    def output_tables(self) -> list[Table]:
        """Tables that compute logits; those tied to an input table name it in `tied_to`."""
        return [t for t in self.tables if t.role == "output"]

    @property
    def own_tables(self) -> list[Table]:
        """Each tensor once: input tables, untied output tables, per-layer tables."""
        return [t for t in self.tables if t.tied_to is None]

    def of_side(self, side: Side) -> list[Table]:
        """The tables of one vocabulary. Raises `UnsupportedModelError` when the model has no such side."""
        tables = [t for t in self.tables if t.side == side]
        if not tables:
            sides = sorted({t.side for t in self.tables})
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no {side} vocabulary but {' and '.join(sides)}: change one "
                "of them by a call that takes side=, in Python, or each part of the model by itself"
            )
        return tables

    def vocab_size(self, side: Side = "shared") -> int:
        """Rows of one side's vocabulary. Raises `UnsupportedModelError` for `shared` when there are two."""
        tables = self.of_side(side)
        return tables[0].num_embeddings - tables[0].extra_rows

    def has_values(self, table: Table) -> bool:
        """Whether `read` gives the rows of a table: not those on the meta device."""
        return not table.parameter.is_meta or is_elsewhere(table.tied)

    def read(self, table: Table) -> Tensor:
        """The table as `[V, D]`: a detached view of the parameter or, where it is elsewhere, a copy."""
        self.elsewhere.settle()
        self._require_values(table)
        data = whole(table.tied)
        return data.t() if table.transposed else data

    def read_old(self, table: Table, plan: ResizePlan) -> Tensor:
        """The rows of a table before the new ones of `plan`, `[V, D]`.

        Ids beyond a table that covers only a part of the vocabulary (Gemma 3n) read its row 0, as
        in the model.
        """
        data = self.read(table)
        first = plan.new_rows[table.name].start
        if first > len(data) and isinstance(data, StoredRows):
            data = data.take(torch.arange(first).where(torch.arange(first) < len(data), 0))
        if first > len(data):
            data = torch.cat([data, data[:1].expand(first - len(data), -1)])
        return data[:first]

    def take(self, table: Table, ids: Ids) -> Tensor:
        """The rows `ids` of a table, `[R, D]`. Those of a file stay there until they are written."""
        data, index = self.read(table), _index(ids, table.num_embeddings)
        return data.take(index) if isinstance(data, StoredRows) else data[index.to(data.device)]

    def write(self, table: Table, rows: Tensor, ids: Ids | None = None) -> None:
        """Writes `rows` `[R, D]` into the rows `ids` (all rows when None). Dtype, device and ties stay."""
        data = self.read(table)
        _require_shape(table, rows, data.shape[0] if ids is None else len(ids), data.shape)
        if isinstance(data, StoredRows):
            self._put(table.tied, data.with_rows(rows, _index(ids, len(data))))
        else:
            _assign(data, rows, ids)
            self._keep(table.tied, data.t() if table.transposed else data)

    def biases(self, table: Table) -> list[Tensor]:
        """The output biases of a table, each as a detached `[V]` view or, if they are elsewhere, a copy."""
        self.elsewhere.settle()
        return [_line(tied, whole(tied)) for tied in table.bias]

    def write_bias(self, table: Table, values: Sequence[Tensor | float], ids: Ids | None = None) -> None:
        """Writes one entry of `values` into each output bias of a table at `ids`: `[R]`, or one number."""
        for tied, data, value in zip(table.bias, self.biases(table), values, strict=True):
            _assign(data, value, ids)
            self._keep(tied, data[None] if tied.dim else data)

    def _keep(self, tied: TiedTensor, data: Tensor) -> None:
        """Writes the copy that was read of a sharded or offloaded tensor back."""
        self.elsewhere.check(tied)
        if is_elsewhere(tied):
            self.elsewhere.put(tied, data)

    def digests(self, side: Side, ids: Sequence[int]) -> dict[int, frozenset[bytes]]:
        """For each id digests of its row in all tables of a side, to detect later changes: those of the row
        rounded to bfloat16 and to float16, of which a change of the dtype leaves one as it is."""
        hashes = {i: [hashlib.blake2b(digest_size=16) for _ in _HALVES] for i in ids}
        for table in self.of_side(side):
            inside = [i for i in ids if i < table.num_embeddings]
            if table.tied_to is not None or not inside or not table.embedding_dim:
                continue
            data = self.read(table)
            rows = data[torch.tensor(inside, device=data.device)]
            for half, dtype in enumerate(_HALVES):
                rounded = rows.to(dtype).contiguous().cpu().view(torch.int16).numpy()
                for i, row in zip(inside, rounded, strict=True):
                    hashes[i][half].update(row.tobytes())
        return {i: frozenset(one.digest() for one in both) for i, both in hashes.items()}

    def plan(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, side: Side = "shared"
    ) -> ResizePlan:
        """The resize of a side's tables to `new_num_tokens` rows. Changes nothing.

        Raises `InvalidArgumentError` for sizes that make no sense or do not fit into memory, and
        `UnsupportedModelError` for tables on the meta device, sharded by what cannot shard other rows, or
        with other scores behind those of the tokens.
        """
        self.elsewhere.settle()
        tables = self.of_side(side)
        old = self.vocab_size(side)
        new = target_size(old, new_num_tokens, pad_to_multiple_of)
        if new != old:
            refuse_resize(self.model)
        if new_num_tokens is not None:
            refuse_weights_of_tokens(self.outer)
        asked = None if new_num_tokens is None else int(new_num_tokens)
        plan = ResizePlan(old, new, side, asked=asked)
        for table in tables:
            self._require_values(table)
            if table.tied_to is None:
                behind = table.extra_rows_are == "fixed" and table.extra_rows > 0
                first = table.num_embeddings if behind else old
                plan.new_rows[table.name] = range(first, max(first, first + new - old))
        for tied in (*(tied for tied, _, _ in self._resized(side)), *self.companions):
            self.elsewhere.check(tied)
        if new > old:
            self._require_memory(plan)
        return plan

    def resize(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, side: Side = "shared"
    ) -> ResizePlan:
        """Gives every table of a side `new_num_tokens` rows: old rows stay bit for bit, new ones are zero.

        Parameters stay the same objects (their data is replaced, a stale `.grad` dropped), so that ties and
        optimizers keep pointing at them; one that has stepped already refuses to go on. Raises as `plan`;
        nothing is touched then.
        """
        plan = self.plan(new_num_tokens, pad_to_multiple_of, side)
        self.change(plan)
        return plan

    @torch.inference_mode(False)
    def change(
        self,
        plan: ResizePlan | Sequence[ResizePlan] | None,
        writes: Iterable[RowsOf] = (),
        then: Callable[[], object] = lambda: None,
        *,
        event: Mapping[str, Any] | None = None,
    ) -> None:
        """Resizes by `plan` (or one plan a side), writes rows and biases, records `event` and calls `then`:
        all of it, or nothing.

        `event` has the arguments of `manifest.record_event`. Every new tensor is complete, in its dtype,
        before the first replaces an old one, and an interrupt waits for the last. `then` must not fail.
        Raises `UnsupportedModelError` for tables that were made inside `torch.inference_mode()`.
        """
        self.elsewhere.settle()
        frozen = next((table.name for table in self.tables if table.parameter.is_inference()), None)
        if frozen is not None:
            raise UnsupportedModelError(
                f"{frozen} was made inside torch.inference_mode(), where tensors can never be changed or "
                f"trained: make or load the model outside of it"
            )
        config = self.model.config
        events = None if event is None else events_with(config, **event)
        grown: dict[int, tuple[TiedTensor, Tensor]] = {}
        plans = [] if plan is None else [plan] if isinstance(plan, ResizePlan) else list(plan)
        for one in plans:
            if one.new_num != one.old_num:
                for tied, extra, moves in self._resized(one.side):
                    grown[id(tied)] = (tied, resized_copy(tied, one, extra, moves))
            if one.new_num != one.old_num or one.origins is not None:
                grown |= {id(tied): (tied, by_token(tied, one)) for tied in self.companions}
        fresh: list[tuple[Tensor, Tensor, Ids | None]] = []  # into tensors that nobody has seen yet
        assignments: list[tuple[Tensor, Tensor, Ids | None]] = []
        for write in writes:
            table = write.table
            for tied in (table.tied, *table.bias):
                self.elsewhere.check(tied)
                if is_elsewhere(tied) and id(tied) not in grown:
                    grown[id(tied)] = (tied, whole(tied).clone())
            into = fresh if id(table.tied) in grown else assignments
            _, data = grown.get(id(table.tied), (None, table.parameter.detach()))
            view = data.t() if table.transposed else data
            if write.rows is not None:
                _require_shape(table, write.rows, len(write.ids), view.shape)
                if isinstance(data, StoredRows):
                    rows = data.with_rows(write.rows, _index(write.ids, len(data)))
                    grown[id(table.tied)] = (table.tied, rows)
                else:
                    into.append((view, write.rows.detach().to(view), write.ids))
            for tied, value in zip(table.bias, write.biases, strict=False):
                into = fresh if id(tied) in grown else assignments
                _, data = grown.get(id(tied), (None, tied.tensor.detach()))
                line = _line(tied, data)
                value = torch.as_tensor(value, dtype=torch.float32).expand(len(write.bias_ids))
                into.append((line, value.to(line), write.bias_ids))
        sizes = [size for one in plans for size in self._new_sizes(one)]
        for assignment in fresh:
            _assign(*assignment)
        with uninterrupted():
            watch_optimizers([tied for tied, _ in grown.values()])
            for assignment in assignments:
                _assign(*assignment)
            for tied, after in grown.values():
                self._put(tied, after)
            for holder, key, size in sizes:
                setattr(holder, key, size)
            if events is not None:
                config.embinit = events
            torch.clear_autocast_cache()  # it may hold the old tables in another dtype
            then()
        warn_of_old_graphs([tied for tied, _ in grown.values()])

    def _put(self, tied: TiedTensor, after: Tensor) -> None:
        """Puts new values in the place of a tensor. A parameter in memory stays the same object."""
        if isinstance(after, StoredRows):
            tied.put(nn.Parameter(after, tied.tensor.requires_grad))
            return
        if is_elsewhere(tied):
            self.elsewhere.put(tied, after)
            return
        for tensor in {id(p.tensor): p.tensor for p in tied.locations}.values():
            tensor.data = after
            tensor.grad = None

    def _require_values(self, table: Table) -> None:
        if not self.has_values(table):
            raise UnsupportedModelError(
                f"{table.name} is on the meta device, so it has no values here: "
                f"keep it on a device (device_map=), or {BEFORE}"
            )

    def _resized(self, side: Side) -> list[tuple[TiedTensor, int, bool]]:
        """Tables and biases of a side, with their extra rows, and whether these move."""
        resized: dict[int, tuple[TiedTensor, int, bool]] = {}
        for table in self.of_side(side):
            extra = table.rows_beyond or min(table.extra_rows, 0)
            resized.setdefault(id(table.tied), (table.tied, extra, table.extra_rows_are == "moving"))
            resized.update({id(tied): (tied, 0, False) for tied in table.bias})
        return list(resized.values())

    def _require_memory(self, plan: ResizePlan) -> None:
        """Raises `InvalidArgumentError` when the new tensors, and the rows to be made, do not fit."""
        needed: dict[torch.device, int] = {}
        with_rows = [(tied, extra) for tied, extra, _ in self._resized(plan.side)]
        for tied, extra in (*with_rows, *((tied, 0) for tied in self.companions)):
            t, rows = tied.tensor, plan.new_num + max(extra, 0)
            if isinstance(t, StoredRows):
                rows = 0
            entries = shape_of(t).numel() // max(1, tied.rows)
            made = 4 * entries * max(0, plan.new_num - plan.old_num)
            needed[t.device] = needed.get(t.device, 0) + entries * t.element_size() * rows + made
        for device, size in needed.items():
            require_memory(size, device, f"{plan.new_num:,} rows")

    def _new_sizes(self, plan: ResizePlan) -> Iterator[tuple[object, str, int | None]]:
        """Attributes of modules, tables and configs that hold a number of tokens, with new values."""
        old, new, tables = plan.old_num, plan.new_num, self.of_side(plan.side)
        padded = next((t.num_embeddings for t in tables if t.extra_rows_are == "padding"), old)
        size = padded if new == old else new
        for table in tables:
            rows = table.num_embeddings if new == old else new + table.rows_beyond
            if new != old:
                yield table, "extra_rows", table.rows_beyond
            names = ("in_features",) if table.transposed else ("num_embeddings", "out_features", "num_")
            for module in (location.module for location in table.tied.locations):
                yield from ((module, n, rows) for n in names if isinstance(getattr(module, n, None), int))
                padding = getattr(module, "padding_idx", None)
                if padding is not None and padding >= rows:
                    yield module, "padding_idx", None
        for holder, sides in self._size_holders():
            for key, value in list(vars(holder).items()):
                if not is_vocabulary_size(key, value) or plan.side != _side_of_size(key, sides):
                    continue
                if key == "unpadded_vocab_size":  # logits beyond it are cut off
                    yield holder, key, min(max(value, plan.asked or value), new)
                elif value in (old, padded) or (key == "vocab_size_per_layer_input" and value):
                    yield holder, key, size
        if plan.side == "shared":  # as transformers does, whatever the config said before
            yield self.model.config.get_text_config(), "vocab_size", size
            yield self.model, "vocab_size", size

        for pooling in self.outer.modules():  # a SparseEncoder's, as wide as the logits
            if type(pooling).__name__ == "SpladePooling" and pooling.embedding_dimension in (old, padded):
                yield pooling, "embedding_dimension", size

    def _size_holders(self) -> list[tuple[object, set[Side]]]:
        """Modules that contain a table, and their configs, with the sides of those tables."""
        locations = [
            (t.side, p.name) for t in self.tables for tied in (t.tied, *t.bias) for p in tied.locations
        ]
        two = len({side for side, _ in locations}) > 1
        holders: dict[int, tuple[object, set[Side]]] = {}
        for name, module in self.model.named_modules():
            inside = {side for side, location in locations if location.startswith(f"{name}." if name else "")}
            if not inside:
                continue
            holders[id(module)] = (module, inside)
            config = getattr(module, "config", None)
            if isinstance(config, PretrainedConfig):
                for one in (config,) if two else (config, config.get_text_config()):
                    holders.setdefault(id(one), (one, set()))[1].update(inside)
        return list(holders.values())


def _side_of_size(key: str, sides: set[Side]) -> Side:
    """The side of a size called `key`, given the `sides` of its holder."""
    if len(sides) == 1:
        return next(iter(sides))
    return "target" if key.startswith(TARGET_PREFIXES) else "source"


def _index(ids: Ids | None, count: int) -> Tensor:
    """`ids` as a tensor, all of `count` when None."""
    if ids is None:
        return torch.arange(count)
    return ids.long().cpu() if isinstance(ids, Tensor) else torch.tensor(list(ids), dtype=torch.long)


def _line(tied: TiedTensor, tensor: Tensor) -> Tensor:
    """An output bias `[V]` or `[1, V]` as a detached view `[V]`."""
    return tensor.detach().select(0, 0) if tied.dim else tensor.detach()


def _require_shape(table: Table, rows: Tensor, count: int, shape: torch.Size) -> None:
    if tuple(rows.shape) != (count, shape[1]):
        raise InvalidArgumentError(
            f"rows of shape {tuple(rows.shape)} do not fit {count} rows of {table.name} {tuple(shape)}"
        )


def _assign(data: Tensor, rows: Tensor | float, ids: Ids | None) -> None:
    """Writes `rows` into the entries `ids` of `data` (all when None)."""
    count = data.shape[0] if ids is None else len(ids)
    rows = torch.as_tensor(rows).detach().expand(count, *data.shape[1:])
    with torch.no_grad():
        if ids is None:
            data.copy_(rows)
        elif isinstance(ids, range) and ids.step == 1:
            data[ids.start : ids.stop].copy_(rows)
        else:
            index = torch.as_tensor(ids if isinstance(ids, Tensor) else list(ids), device=data.device)
            data[index.long()] = rows.to(dtype=data.dtype, device=data.device)
