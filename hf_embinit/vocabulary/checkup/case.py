"""What checks read: a model and its tokenizer, or the files of both without the model being built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...errors import InvalidArgumentError, NoSafetensorsError
from ...tables import (
    EmbeddingTables,
    StoredTensor,
    Table,
    TiedTensor,
    checkpoint_of,
    read_checkpoint_files,
    unusable_rows,
)
from ...vectors import read_weight_map

ROLES = ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
_NORMS = ("norm", "ln_", ".ln")


@dataclass
class Stored:
    """The tensors of a checkpoint's safetensors files, read one by one."""

    tensors: dict[str, StoredTensor]

    @classmethod
    def of_folder(cls, folder: Path, files: list[str] | None = None) -> Stored | None:
        """Reads the headers, of `files` alone if given; None without safetensors. Raises `EmbinitError` for
        damaged or missing ones."""
        try:
            return cls(read_checkpoint_files(folder, files).tensors)
        except NoSafetensorsError:
            return None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor."""
        return self.tensors[name].shape

    def read(self, name: str) -> Tensor:
        """One tensor."""
        return self.tensors[name].read()

    def find(self, name: str) -> str | None:
        """The tensor that a parameter is loaded from, base models' names without and with a prefix, too."""
        if name in self.tensors:
            return name
        found = [k for k in self.tensors if k.endswith(f".{name}") or name.endswith(f".{k}")]
        return found[0] if len(found) == 1 else None


@dataclass
class Case:
    """A model, or one on the meta device with the files that its values are in."""

    name: str
    model: PreTrainedModel
    tables: EmbeddingTables
    tokenizer: Any = None
    stored: Stored | None = None
    _rows: dict[str, Tensor] = field(default_factory=dict)
    _unusable: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @cached_property
    def size(self) -> int:
        """Rows of the vocabulary."""
        return max(t.num_embeddings - t.extra_rows for t in self.tables.tables)

    @cached_property
    def names(self) -> dict[int, str] | None:
        """Id -> token; None without a tokenizer."""
        return None if self.tokenizer is None else {i: t for t, i in self.tokenizer.get_vocab().items()}

    @property
    def two_vocabularies(self) -> bool:
        """Whether the sides have vocabularies of their own."""
        return len({t.side for t in self.tables.tables}) > 1

    def rows(self, table: Table) -> Tensor:
        """The rows `[V, D]` of a table, from the model or its file."""
        if table.name not in self._rows:
            if self.stored is None:
                self._rows[table.name] = self.tables.read(table)
            else:
                data = self.stored.read(self.stored_name(table) or table.name)
                self._rows[table.name] = data.t() if table.transposed else data
        return self._rows[table.name]

    def biases(self, table: Table) -> Iterator[tuple[TiedTensor, Tensor]]:
        """The output biases of a table, `[V]` each, from the model or its file."""
        if self.stored is None:
            yield from zip(table.bias, self.tables.biases(table), strict=True)
            return
        for tied in table.bias:
            names = (self.stored.find(place.name) for place in tied.locations)
            if name := next((found for found in names if found), None):
                yield tied, self.stored.read(name).flatten()

    def stored_name(self, table: Table) -> str | None:
        """The tensor of the files that a table is loaded from."""
        assert self.stored is not None
        names = dict.fromkeys([table.name, *(place.name for place in table.tied.locations)])
        return next((found for name in names if (found := self.stored.find(name))), None)

    def unusable(self, table: Table) -> dict[str, list[int]]:
        """Rows that statistics leave out, by reason, see `unusable_rows`; raises where none is finite."""
        if table.name not in self._unusable:
            tokens = None
            if self.names is not None:
                tokens = [self.names.get(i, "") for i in range(max(self.names, default=-1) + 1)]
            self._unusable[table.name] = unusable_rows(self.rows(table), table, tokens=tokens)
        return self._unusable[table.name]

    def roles(self) -> dict[int, str]:
        """Id -> the role of the token: `eos`, or `chat template`."""
        found: dict[int, str] = {}
        template = getattr(self.tokenizer, "chat_template", None)
        text = " ".join(template.values()) if isinstance(template, dict) else template or ""
        for i, token in getattr(self.tokenizer, "added_tokens_decoder", {}).items():
            if str(token) in text:
                found[i] = "chat template"
        for role in ROLES:
            i = getattr(self.tokenizer, f"{role}_token_id", None)
            if isinstance(i, int):
                found[i] = role
        return found

    def norms(self) -> Iterator[Tensor]:
        """The weights of normalisation layers: ones until they are trained."""
        opened = checkpoint_of(self.model)
        if self.stored is None and opened is None:
            named = (
                (n, p.detach()) for n, p in self.model.named_parameters() if p.dim() == 1 and not p.is_meta
            )
        else:
            tensors = self.stored.tensors if opened is None else opened.files.tensors  # type: ignore[union-attr]
            lines = [t for t in tensors.values() if len(t.shape) == 1 and t.is_plain]
            named = ((t.name, t.read()) for t in lines)
        for name, tensor in named:
            if name.endswith("weight") and any(mark in name.lower() for mark in _NORMS):
                yield tensor


def files_of_tables(index: Path, config: Any) -> list[str] | None:
    """The files of an index that hold the tables; None where the model must be loaded to know."""
    of_tensor = read_weight_map(index)
    case = _without_values(index.parent, config, None, Stored(dict.fromkeys(of_tensor)))  # type: ignore[arg-type]
    if case is None:
        return None
    assert case.stored is not None
    names = {place.name for table in case.tables.tables for place in table.tied.locations}
    found = {case.stored.find(name) for name in (*names, *(table.name for table in case.tables.tables))}
    return sorted({of_tensor[name] for name in found if name is not None})


def _without_values(folder: Path, config: Any, tokenizer: Any, stored: Stored) -> Case | None:
    """A case whose model is on the meta device; None for classes that cannot be built there."""
    import transformers

    found = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    if found is None:
        return None
    try:
        with torch.device("meta"):
            model = found(config)
            model.tie_weights()  # transformers 5.0 leaves that to a load
        return Case(str(folder), model, EmbeddingTables(model), tokenizer, stored)
    except Exception:  # some ask for packages
        return None


def case_of_files(folder: Path, config: Any, tokenizer: Any, files: list[str] | None = None) -> Case | None:
    """The case of a folder whose files tell enough: each table stands in a safetensors file, in its size.

    `files` are those of a sharded checkpoint that are here, all by default. None where the model must be
    loaded to know. Raises `EmbinitError` for files that are damaged or missing.
    """
    stored = Stored.of_folder(folder, files)
    case = None if stored is None else _without_values(folder, config, tokenizer, stored)
    if stored is None or case is None:
        return None
    model = case.model
    names = {table.name: case.stored_name(table) for table in case.tables.own_tables}
    for table in case.tables.own_tables:
        name = names[table.name]
        if name is None or not stored.tensors[name].is_plain or len(stored.shape(name)) != 2:
            return None
        rows, width = stored.shape(name)[:: -1 if table.transposed else 1]
        if width != table.embedding_dim:
            raise InvalidArgumentError(
                f"{name} in its files has rows of {width} entries, and its config.json asks for "
                f"{table.embedding_dim}"
            )
        if rows != table.num_embeddings:  # no load would take it: looked at in the size of the files
            table.parameter.data = torch.empty(stored.shape(name), device="meta")
    case.tables = EmbeddingTables(model)
    with suppress(OSError, ValueError):
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return case
