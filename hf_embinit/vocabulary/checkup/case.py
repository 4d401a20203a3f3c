"""What checks read: a model and its tokenizer, or the files of both without the model being built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...foreign import read_json, reading
from ...tables import EmbeddingTables, Table, unusable_rows

ROLES = ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
_NORMS = ("norm", "ln_", ".ln")


@dataclass
class Stored:
    """The tensors of a checkpoint's safetensors files, read one by one."""

    files: dict[str, Path]
    """Tensor -> the file that holds it."""
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of_folder(cls, folder: Path) -> Stored | None:
        """Reads the headers; None without safetensors. Raises `VectorFileError` for damaged ones."""
        index = folder / "model.safetensors.index.json"
        names = {"model.safetensors"}
        if index.is_file():
            names = set(read_json(index).get("weight_map", {}).values())
        files = [folder / name for name in sorted(names)]
        return cls.of_files(files) if all(file.is_file() for file in files) else None

    @classmethod
    def of_files(cls, files: Iterable[Path]) -> Stored:
        """Reads the headers of those that are there. Raises `VectorFileError` for damaged ones."""
        stored = cls({}, {})
        for file in files:
            if not file.is_file():
                continue
            with reading(file), safe_open(file, "pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    stored.files[key] = file
                    stored.shapes[key] = tuple(tensors.get_slice(key).get_shape())
        return stored

    def read(self, name: str) -> Tensor:
        """One tensor."""
        with reading(self.files[name]), safe_open(self.files[name], "pt") as tensors:
            return tensors.get_tensor(name)

    def find(self, name: str) -> str | None:
        """The tensor that a parameter is loaded from, base models' names without and with a prefix, too."""
        if name in self.files:
            return name
        found = [k for k in self.files if k.endswith(f".{name}") or name.endswith(f".{k}")]
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
        if self.stored is None:
            named = ((n, p.detach()) for n, p in self.model.named_parameters() if p.dim() == 1)
        else:
            lines = [n for n, shape in self.stored.shapes.items() if len(shape) == 1]
            named = ((n, self.stored.read(n)) for n in lines)
        for name, tensor in named:
            if name.endswith("weight") and any(mark in name.lower() for mark in _NORMS):
                yield tensor


def case_of_files(folder: Path, config: Any, tokenizer: Any) -> Case | None:
    """The case of a folder whose files tell enough: each table stands in a safetensors file, in its size.

    None where the model must be loaded to know. Raises `VectorFileError` for files that are damaged.
    """
    import transformers

    stored = Stored.of_folder(folder)
    found = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    if stored is None or found is None:
        return None
    try:
        with torch.device("meta"):
            model = found(config)
        tables = EmbeddingTables(model)
    except Exception:  # classes that cannot be built on the meta device, or that ask for packages
        return None
    case = Case(str(folder), model, tables, tokenizer, stored)
    for table in tables.own_tables:
        name = case.stored_name(table)
        if name is None or stored.shapes[name] != tuple(table.parameter.shape):
            return None
    with suppress(OSError, ValueError):
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return case
