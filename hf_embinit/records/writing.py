"""Atomic writing of the files of a run folder: a reader finds the whole file or none."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import torch


def to_plain(value: Any) -> Any:
    """`value` as JSON values, from dataclasses, enums, paths, tensors, numpy too; NaN becomes None."""
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain(dataclasses.asdict(value))
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_plain(v) for v in value), key=str)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (torch.device, torch.dtype)):
        return str(value)
    if hasattr(value, "tolist"):  # tensors, numpy arrays and numpy scalars
        return to_plain(value.tolist())
    raise TypeError(f"a run record cannot hold a {type(value).__name__}: {value!r}")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as JSON, atomically."""
    write_text(path, json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` as UTF-8, atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the rename itself reaches the disk with its folder
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
