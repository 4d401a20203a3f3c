"""The safetensors of a checkpoint's folder: which tensor lies where, told by the headers alone.

A file is eight bytes with the length of its header, the header (JSON), and the tensors' bytes one after the
other. Only headers are read here, so that a checkpoint of any size and any dtype is checked in a moment.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import DataNotFoundError, NoSafetensorsError, VectorFileError
from ..foreign import read_json, reading
from ..vectors import read_weight_map

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_LONGEST_HEADER = 100_000_000
"""Bytes that a header may have, as in the safetensors library."""

_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of an element. The bytes of other dtypes are copied as they are, their number is not checked."""

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes that a table, an output bias or a buffer beside them may have."""


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies: bytes `start` to `end` of the file `path`."""

    name: str
    path: Path
    dtype: str
    """As the header spells it, such as `BF16`."""
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def is_plain(self) -> bool:
        """Whether torch computes with its dtype, so that it can be read."""
        return self.dtype in TORCH_DTYPES

    def read(self) -> torch.Tensor:
        """The whole tensor, in memory. For plain dtypes."""
        tensor = torch.empty(self.shape, dtype=TORCH_DTYPES[self.dtype])
        with self.path.open("rb", buffering=0) as file:
            read_into(file, self.start, tensor)
        return tensor


@dataclass
class Shard:
    """One file: its tensors in the order of their bytes, and the header's `__metadata__`."""

    path: Path
    tensors: list[StoredTensor]
    metadata: dict[str, str] | None
    size: int
    """Bytes of the whole file."""


@dataclass
class CheckpointFiles:
    """The safetensors of one folder."""

    folder: Path
    shards: list[Shard]
    index: dict[str, Any] | None
    """What the index says, None for a checkpoint in one file."""

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor by its name."""
        return {tensor.name: tensor for shard in self.shards for tensor in shard.tensors}


def read_checkpoint_files(
    folder: str | os.PathLike[str], only: Collection[str] | None = None
) -> CheckpointFiles:
    """The headers of a checkpoint's safetensors, checked against each other, the index and the files' sizes.

    `only` are the files of the index that are looked at, all by default: of a checkpoint on the Hub some are
    here.

    Raises `NoSafetensorsError` for a folder that has none, `DataNotFoundError` for one that lacks a file of
    its index, and `VectorFileError` for what is damaged: one sentence that names the file.
    """
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return CheckpointFiles(folder, [read_shard(folder / WEIGHTS)], None)
    path = folder / INDEX
    if not path.is_file():
        raise NoSafetensorsError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}: save the model with save_pretrained first"
        )
    weight_map, index = read_weight_map(path), read_json(path)
    if only is not None:
        weight_map = {tensor: name for tensor, name in weight_map.items() if name in only}
    names = list(dict.fromkeys(weight_map[tensor] for tensor in sorted(weight_map)))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataNotFoundError(f"{folder} lacks {missing[0]}, which its {INDEX} names: download it again")
    shards = [read_shard(folder / name) for name in sorted(names)]
    file_of: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in file_of:
                raise VectorFileError(
                    f"{folder} has the tensor {tensor.name!r} twice, in {file_of[tensor.name]} and in "
                    f"{shard.path.name}."
                )
            file_of[tensor.name] = shard.path.name
    for key, name in weight_map.items():
        if file_of.get(key) != name:
            raise VectorFileError(
                f"{path} puts {key!r} into {name}, but it is in {file_of.get(key, 'no file')}."
            )
    return CheckpointFiles(folder, shards, index)


def read_into(file: Any, start: int, tensor: torch.Tensor) -> None:
    """Fills a contiguous tensor with the bytes of an unbuffered file from `start` on."""
    view = memoryview(tensor.view(-1).view(torch.uint8).numpy().data) if tensor.numel() else memoryview(b"")
    file.seek(start)
    while view:
        count = file.readinto(view)
        if not count:
            raise VectorFileError(
                f"{file.name} has become shorter than its header says: it is being changed."
            )
        view = view[count:]


def read_shard(path: Path) -> Shard:
    """The header of one file, checked against its size. Raises `VectorFileError` for what is damaged."""
    size = path.stat().st_size
    with reading(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise VectorFileError(
                f"{path} is no safetensors file, or a truncated one: it has {size:,} bytes, and its header "
                f"should have {length:,}."
            )
        header = _parse(path, file.read(length))
    metadata = header.pop("__metadata__", None)
    first = 8 + length
    tensors = sorted((_tensor(path, first, *one) for one in header.items()), key=lambda t: (t.start, t.end))
    at = first
    for tensor in tensors:
        if tensor.start != at:
            kind = "overlaps the one before it" if tensor.start < at else "leaves a gap before it"
            raise VectorFileError(f"{path} is damaged: the tensor {tensor.name!r} {kind}.")
        at = tensor.end
    if at != size:
        what = "truncated" if at > size else "longer than its tensors"
        raise VectorFileError(f"{path} is {what}: it has {size:,} bytes, its header describes {at:,}.")
    return Shard(path, tensors, metadata, size)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise VectorFileError(f"{path} is damaged: its header has a name twice.")
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except ValueError as problem:
        raise VectorFileError(
            f"{path} is no safetensors file: its header is no JSON ({problem})."
        ) from problem
    if not isinstance(header, dict):
        raise VectorFileError(f"{path} is no safetensors file: its header is no object.")
    metadata = header.get("__metadata__")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise VectorFileError(f"{path} is damaged: the __metadata__ of its header are no texts by name.")
    return header


def _tensor(path: Path, first: int, name: str, entry: Any) -> StoredTensor:
    """One entry of a header, checked; `first` is where the bytes of all tensors begin."""
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        dtype, shape, start, end = None, (), 0, 0
    numbers = all(type(n) is int and n >= 0 for n in (*shape, start, end))
    if not isinstance(dtype, str) or not numbers or end < start:
        raise VectorFileError(f"{path} is damaged: its header describes {name!r} by {entry!r:.100}.")
    bits = math.prod(shape) * _BITS[dtype] if dtype in _BITS else 8 * (end - start)
    if bits != 8 * (end - start):
        raise VectorFileError(
            f"{path} is damaged: {name!r} is {dtype} {list(shape)}, but has {end - start:,} bytes."
        )
    return StoredTensor(name, path, dtype, shape, first + start, first + end)
