"""The input-embedding table of a GGUF file (llama.cpp), dequantised; no model is built."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import DataNotFoundError, InvalidArgumentError, UnsupportedModelError, VectorFileError
from ..foreign import reading
from ..tokens import TokenFamily
from .pretrained_vectors import PretrainedVectors, rows_digest

_MAGIC = b"GGUF"
_TABLE = "token_embd.weight"
"""What llama.cpp calls the input table of every architecture."""
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_MODEL = "tokenizer.ggml.model"
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
"""llama.cpp's types of tokens; rows that only pad the table have tokens that are unused."""


def is_gguf(path: Path) -> bool:
    """Whether a file is one by its content, or calls itself one."""
    with reading(path), path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(len(_MAGIC)) == _MAGIC


def read_gguf_table(path: Path, table: str | None = None) -> PretrainedVectors:
    """The rows `[V, D]` of `token_embd.weight`, or of another `table` by name or pattern, with their tokens.

    Rows that pad the vocabulary have no token and are left out. `report` is that of `read_embedding_table`;
    `dtype` is the file's, such as `Q8_0`. Raises `VectorFileError` for a damaged or truncated file or one of
    another kind, `DataNotFoundError` for one without tokens and where the package gguf is missing,
    `InvalidArgumentError` for a `table` that is none of its tensors, `UnsupportedModelError` for a file
    without the table."""
    reader = _open(path)
    names = {tensor.name: tensor for tensor in reader.tensors}
    chosen = names[_choose(list(names), table, path)]
    with reading(f"{path}, which is a damaged GGUF file,"):
        known = [key for key in (_TOKENS, _TYPES, _MODEL) if key in reader.fields]
        fields = {key: reader.fields[key].contents() for key in known}
    tokens = fields.get(_TOKENS)
    if not isinstance(tokens, list) or not tokens:
        raise DataNotFoundError(f"{path} has no {_TOKENS}, so its rows have no tokens: give the checkpoint.")
    types = fields.get(_TYPES)
    types = types if isinstance(types, list) and len(types) == len(tokens) else [1] * len(tokens)
    family = _family(tokens)
    if fields.get(_MODEL) == "bert":
        pieces = zip(tokens, types, strict=True)
        tokens, family = [_word_piece(t, kind) for t, kind in pieces], "wordpiece"
    matrix = _rows(chosen, path, reader.byte_order == "S")
    ids = [i for i in range(min(len(tokens), len(matrix))) if types[i] != _UNUSED]
    report: dict[str, Any] = {
        "table": chosen.name,
        "file": path.name,
        "dtype": chosen.tensor_type.name,
        "rows": len(matrix),
        "rows_without_token": len(matrix) - len(ids),
        "tokens_without_row": max(0, len(tokens) - len(matrix)),
        "special_tokens": [t for t, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL)],
    }
    kept = [tokens[i] for i in ids]
    matrix = matrix if len(ids) == len(matrix) else matrix[torch.tensor(ids, dtype=torch.long)]
    return PretrainedVectors(kept, matrix, str(path), family, None, rows_digest(kept, matrix), report)


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise DataNotFoundError(
            f"{path} is a GGUF file, which the package gguf reads: pip install gguf"
        ) from None

    class Reader(GGUFReader):
        """One that does not take what lies beyond the end of the file for arrays of nothing."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **named: Any) -> Any:
            if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
                raise VectorFileError(f"{path} is no GGUF file, or a truncated or damaged one.")
            return super()._get(offset, dtype, count, *more, **named)

    with reading(f"{path}, which is no GGUF file or a damaged one,"):
        return Reader(path)


def _choose(names: list[str], table: str | None, path: Path) -> str:
    """The name of the tensor to read."""
    if table is None:
        if _TABLE not in names:
            raise UnsupportedModelError(
                f"{path} has no {_TABLE}; choose one with table=: {', '.join(names[:20]) or 'it has none'}."
            )
        return _TABLE
    found = [name for name in names if name == table] or fnmatch.filter(names, table)
    if len(found) != 1:
        raise InvalidArgumentError(
            f"table={table!r} names {len(found) or 'no'} tensors of {path}: {', '.join(names[:20])}."
        )
    return found[0]


def _rows(tensor: Any, path: Path, swapped: bool) -> torch.Tensor:
    """A tensor as a matrix in float32; `swapped` when its bytes are in the order of other machines."""
    from gguf.quants import dequantize

    if len(tensor.shape) != 2:
        raise UnsupportedModelError(
            f"{tensor.name} of {path} is {[int(n) for n in reversed(tensor.shape)]}, expected a matrix."
        )
    data = tensor.data
    if swapped:
        if data.dtype.kind != "f":
            raise UnsupportedModelError(
                f"{path}, in {tensor.tensor_type.name}, has its bytes in the order of other machines "
                f"(big-endian): convert it first (gguf-convert-endian, of the package gguf)"
            )
        data = data.astype(data.dtype.newbyteorder("="))
    with reading(f"{tensor.name} of {path}, in {tensor.tensor_type.name},"):
        return torch.from_numpy(dequantize(data, tensor.tensor_type).astype("float32", copy=True))


def _word_piece(token: str, kind: int) -> str:
    """A token as BERT spells it: llama.cpp takes the ## off what continues a word, and puts SentencePiece's
    mark before what starts one."""
    if token.startswith("▁"):
        return token[1:]
    return token if kind != _NORMAL or (token[:1], token[-1:]) == ("[", "]") else f"##{token}"


def _family(tokens: list[str]) -> TokenFamily:
    """How words start."""
    counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in ("▁", "Ġ")}
    if not any(counts.values()):
        return "words"
    return "sentencepiece" if counts["▁"] >= counts["Ġ"] else "byte_level"
