"""JSON and text files of a run folder, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch

from ..files import write_whole


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
    with write_whole(path) as file:
        file.write(text)
