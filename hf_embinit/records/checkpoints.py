"""Checkpoints of an unfinished run, and whether they are intact, by digests written when they are saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..files import file_sha256
from .writing import write_json

DIGESTS_NAME = "digests.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("*.safetensors", "pytorch_model*", "adapter_model*", "global_step*")
_STATES = {
    "optimizer": ("optimizer*", "global_step*"),
    "scheduler": ("scheduler*", "global_step*"),
    "draws": ("rng_state*",),
}
START_NAME = "init"
"""Folder of the model before step 0, beside the checkpoints."""
_BESIDE = "../"
_OTHERS = re.compile(r"rng_state_[1-9]\d*\.pth")
"""Files that the other processes write, at any time."""


def checkpoint_folders(folder: Path) -> list[Path]:
    """The folders `checkpoint-<step>` in a run folder, by step, whole or not."""
    if not folder.is_dir():
        return []
    matches = ((_CHECKPOINT.fullmatch(p.name), p) for p in folder.iterdir() if p.is_dir())
    return [p for _, p in sorted((int(match[1]), p) for match, p in matches if match)]


def write_digests(checkpoint: Path) -> None:
    """Writes the SHA-256 of every file of a checkpoint, and of the model before step 0, into a file in it."""
    files = sorted(p for p in checkpoint.iterdir() if p.is_file() and p.name != DIGESTS_NAME)
    digests = {p.name: file_sha256(p) for p in files if not _OTHERS.fullmatch(p.name)}
    start = checkpoint.parent / START_NAME
    weights = sorted(path.relative_to(start) for path in start.rglob("*.safetensors"))
    digests |= {f"{_BESIDE}{START_NAME}/{path.as_posix()}": file_sha256(start / path) for path in weights}
    write_json(checkpoint / DIGESTS_NAME, digests)


def damage(checkpoint: Path) -> str | None:
    """Why a run cannot go on from a checkpoint, such as "optimizer.pt is missing"; None when it can.

    A checkpoint without digests (its run was killed right after saving) counts as intact when it has weights,
    the states and that of the trainer, which is written last.
    """
    state = _read(checkpoint / "trainer_state.json")
    if state is None:
        return "an interrupted run did not finish writing it"
    if not any(next(checkpoint.glob(pattern), None) for pattern in _WEIGHTS):
        return "it has no weights"
    digests = _read(checkpoint / DIGESTS_NAME)
    own = {name: digest for name, digest in (digests or {}).items() if not name.startswith(_BESIDE)}
    if (why := _difference(checkpoint, own)) is not None:
        return why
    for what, patterns in _STATES.items():
        if not any(next(checkpoint.glob(pattern), None) for pattern in patterns):
            return f"it has no state of the {what} (--save_only_model leaves it out)"
    return None


def start_damage(checkpoint: Path, folder: Path) -> str | None:
    """Why the model before step 0 in a run folder is not that of a checkpoint's run; None when it is, or when
    the checkpoint does not tell."""
    digests = _read(checkpoint / DIGESTS_NAME) or {}
    start = {name.removeprefix(_BESIDE): d for name, d in digests.items() if name.startswith(_BESIDE)}
    return _difference(folder, start)


def _difference(folder: Path, digests: dict[str, str]) -> str | None:
    for name, digest in digests.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if file_sha256(folder / name) != digest:
            return f"{name} is not as it was written"
    return None


def obstacle(checkpoint: Path) -> str | None:
    """The damage of a checkpoint, or of the best one so far, whose weights the run would load at its end."""
    problem = damage(checkpoint)
    best = (_read(checkpoint / "trainer_state.json") or {}).get("best_model_checkpoint")
    if problem is None and best:
        best = checkpoint.parent / Path(str(best)).name
        if best != checkpoint and (why := damage(best)) is not None:
            problem = f"the best one so far, {best.name}, is gone or damaged: {why}"
    return problem


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
