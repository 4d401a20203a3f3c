"""`results.json`: the record of one run, written once, atomically, last. A folder with it is finished."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import RunFolderError

logger = logging.getLogger(__name__)

RESULTS_NAME = "results.json"
_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
    "evaluate",
    "sacrebleu",
    "peft",
    "numpy",
)


@dataclass
class RunRecord:
    """What one run was, did and scored. One record is one cell of a results table."""

    task: str
    """`translation`, `classification`, `language_modeling`, ..."""
    dataset: str
    """Name, Hub id or folder, as given to the recipe."""
    init: str
    """Name of the initialiser."""
    tokenizer: str
    seed: int
    arguments: dict[str, Any]
    """Every flag of the run with its value."""
    metrics: dict[str, float]
    """`test_bleu`, `test_loss`, `train_samples`, ...: what was measured, nothing else."""
    best_epoch: float | None
    """Epoch whose checkpoint was kept; None when the last one was."""
    history: list[dict[str, float]]
    """One row an evaluation: `epoch`, `step`, `train_loss`, `validation_loss`, ..."""
    parameters: int
    """Number of trained and frozen parameters of the model."""
    embedding_statistics: dict[str, Any]
    """Table name -> `before_scaling`, `after_scaling` -> `EmbeddingStatistics.to_dict()`, at step 0."""
    coverage: dict[str, Any]
    """Table name -> how many tokens the vectors had, by type and by token. Empty for random initialisers."""
    runtime: dict[str, Any]
    """`train_seconds`, `tokens_per_second` (of training, non-padding tokens), `device`, `world_size`, ..."""
    versions: dict[str, str] = field(default_factory=lambda: collect_versions())
    signature: dict[str, str] = field(default_factory=dict)
    """Metric name -> signature of the tool that computed it (`test_bleu` -> sacreBLEU's)."""
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Split -> `rows` and `sha256` of the texts and labels that were used."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. NaN and infinities become None, since JSON has no word for them."""
        return to_plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})


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
    """Writes `value` as JSON so that a reader finds the whole file or none."""
    write_text(path, json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` as UTF-8 so that a reader finds the whole file or none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the rename itself reaches the disk with its folder
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_record(folder: str | os.PathLike[str], record: RunRecord) -> Path:
    """Writes `folder/results.json`. Raises `RunFolderError` when there is one: a record is written once."""
    path = Path(folder) / RESULTS_NAME
    if path.exists():
        raise RunFolderError(f"{path} exists already; a run record is written once. Use another folder.")
    write_json(path, record.to_dict())
    return path


def read_record(folder: str | os.PathLike[str]) -> RunRecord:
    """The record in `folder` (or at the path of a `results.json`).

    Raises `RunFolderError` when there is none, or when it is not a complete record of this package.
    """
    path = Path(folder)
    path = path / RESULTS_NAME if path.is_dir() or path.suffix != ".json" else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(
            f"{path} does not exist: the run has not finished, or this is no run folder"
        ) from None
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged: {error}") from None
    known = {f.name for f in dataclasses.fields(RunRecord)}
    if isinstance(values, dict):
        values.setdefault("data", {})  # records of before have none
    if not isinstance(values, dict) or set(values) != known:
        keys = set(values) if isinstance(values, dict) else set()
        raise RunFolderError(
            f"{path} is not a run record: missing {sorted(known - keys)}, unknown {sorted(keys - known)}"
        )
    return RunRecord(**values)


def is_finished(folder: str | os.PathLike[str]) -> bool:
    """Whether the run in `folder` has written its record, which it does last."""
    return (Path(folder) / RESULTS_NAME).is_file()


def history_from_log(log_history: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """One row an evaluation, from `trainer.state.log_history`.

    A row has `epoch`, `step`, `train_loss` (the mean of what was logged since the row before) and each
    `eval_x` as `validation_x`, timings left out. Evaluations under other prefixes make no row.
    """
    rows: dict[float, dict[str, float]] = {}
    losses: list[float] = []
    timings = ("_runtime", "_per_second", "_preparation_time")
    for entry in log_history:
        if "loss" in entry:
            losses.append(float(entry["loss"]))
        found = {k: v for k, v in entry.items() if k.startswith("eval_") and not k.endswith(timings)}
        if not found:
            continue
        row = rows.setdefault(entry["step"], {"epoch": entry["epoch"], "step": entry["step"]})
        if losses:
            row["train_loss"] = sum(losses) / len(losses)
            losses = []
        row.update({"validation_" + k.removeprefix("eval_"): v for k, v in found.items()})
    return [rows[step] for step in sorted(rows)]


def collect_versions() -> dict[str, str]:
    """Versions of Python, of this package and its dependencies, and the commit when run from a checkout."""
    versions = {"python": platform.python_version(), "hf_embinit": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__  # with its build: 2.13.0+cpu
    return versions | _checkout()


def _checkout() -> dict[str, str]:
    """`commit` (with `-dirty` when tracked files differ), when this file is tracked by a git repository."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(here.parent), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(here))
        dirty = "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
        return {"commit": git("rev-parse", "HEAD") + dirty}
    except (OSError, subprocess.SubprocessError):
        return {}


def device_name(device: str | torch.device | None = None) -> str:
    """The hardware behind `device` (default: the GPU if there is one), or the CPU with its cores."""
    device = torch.device(device) if device is not None else None
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{_cpu_model()} ({os.cpu_count()} cores, {torch.get_num_threads()} threads)"
    return device.type


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"
