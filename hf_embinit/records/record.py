"""`results.json`, the record of one run: written once, atomically, last. A folder that has it is finished."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import RunFolderError
from ..foreign import read_json
from .files import RESULTS_NAME, declare_files
from .places import is_local_data, shorten
from .writing import to_plain, write_json

logger = logging.getLogger(__name__)

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
    """What one run was, did and scored: one run of a cell of a results table."""

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
    """Measured values alone: `test_bleu`, `test_loss`, `train_samples`, ..."""
    best_epoch: float | None
    """Epoch of the checkpoint that was kept; None when it was the last one."""
    history: list[dict[str, float]]
    """One dict for each evaluation: `epoch`, `step`, `train_loss`, `validation_loss`, ..."""
    parameters: int
    """Number of trained and frozen parameters of the model."""
    embedding_statistics: dict[str, Any]
    """Table name -> `before_scaling`, `after_scaling` -> `EmbeddingStatistics.to_dict()`, at step 0.

    Where fixed positions are added also `in_positions` -> their `dimensions`, and the table's share of
    `energy` there at step 0 and `energy_after_training`."""
    coverage: dict[str, Any]
    """Table name -> how many tokens the vectors had, by type and by token. Empty for random initialisers."""
    runtime: dict[str, Any]
    """`train_seconds`, `tokens_per_second` (of training, non-padding tokens), `device`, `world_size`, ..."""
    versions: dict[str, str] = field(default_factory=lambda: collect_versions())
    signature: dict[str, str] = field(default_factory=dict)
    """Metric name -> signature of the tool that computed it (`test_bleu` -> sacreBLEU's)."""
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Split -> `rows` and `sha256` of the texts and labels that were used; `vectors, <side>` -> those of the
    vectors, and their `provenance`: None when it is not known what they were trained on."""
    diverged: bool = False
    """Whether a loss was NaN or infinite at some time; the scores are then not those of a trained model."""

    def __post_init__(self) -> None:
        self.diverged = self.diverged or lost_a_loss(self.history, self.metrics)

    @property
    def title(self) -> str:
        """The names that tell runs apart, on one line."""
        return f"{self.task} on {shorten(self.dataset)}, init {self.init}, seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. NaN and infinities become None, since JSON cannot express them."""
        return to_plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})


def lost_a_loss(history: Iterable[Mapping[str, Any]], metrics: Mapping[str, Any]) -> bool:
    """Whether a loss of a run was no finite number: JSON has None for it."""
    rows = (*history, metrics)  # one that no evaluation in training saw is in the last alone
    losses = (value for row in rows for name, value in row.items() if "loss" in name)
    return any(value is None or not math.isfinite(value) for value in losses)


def write_record(folder: str | os.PathLike[str], record: RunRecord) -> Path:
    """Writes `files.json` (see `declare_files`), then `results.json`, and returns the path of the latter.

    Raises `RunFolderError` when there is a record: it is written once.
    """
    path = Path(folder) / RESULTS_NAME
    if path.exists():
        raise RunFolderError(f"{path} exists already; a run record is written once. Use another folder.")
    declare_files(Path(folder))
    if is_local_data(record.dataset, record.arguments.get("data_dir")) and record.dataset[0] not in "./~":
        record = dataclasses.replace(record, dataset=f"./{record.dataset}")  # no Hub id, wherever it is read
    write_json(path, record.to_dict())
    return path


def read_record(folder: str | os.PathLike[str]) -> RunRecord:
    """The record in `folder` (or at the path of a `results.json`).

    Raises `RunFolderError` when there is none, or when it is not a complete record of this package.
    """
    path = Path(folder)
    path = path / RESULTS_NAME if path.is_dir() or path.suffix != ".json" else path
    if not path.exists():
        raise RunFolderError(f"{path} does not exist: the run has not finished, or this is no run folder")
    values = to_plain(read_json(path, error=RunFolderError))  # others may write NaN
    known = {f.name for f in dataclasses.fields(RunRecord)}
    values.setdefault("data", {})  # records of before have none
    values.setdefault("diverged", False)  # the history tells
    if set(values) != known:
        keys = set(values)
        raise RunFolderError(
            f"{path} is not a run record: missing {sorted(known - keys)}, unknown {sorted(keys - known)[:10]}"
        )
    if problem := shape_problem(values):
        raise RunFolderError(f"{path} is damaged: {problem}")
    return RunRecord(**values)


def shape_problem(values: Mapping[str, Any]) -> str | None:
    """In words where a record has not the shape that its readers rely on; None when it has.

    Fields that it lacks are none of that: other results than a `RunRecord` are read by these names, too.
    """
    problem = _mismatch(values, _SHAPE, "")
    for split, used in {} if problem else values.get("data", {}).items():
        if not {"rows", "sha256"} <= set(used):
            problem = f"data.{split} lacks rows or sha256"
    return problem


_NUMBER = (int, float, type(None))
_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("task", "dataset", "init", "tokenizer"), str),
    **dict.fromkeys(("seed", "parameters"), int),
    "best_epoch": _NUMBER,
    "diverged": bool,
    "arguments": {
        **dict.fromkeys(("num_train_epochs", "max_steps", "learning_rate", "max_train_samples"), _NUMBER),
        **dict.fromkeys(("d_model", "num_layers", "per_device_train_batch_size"), _NUMBER),
        **dict.fromkeys(("model", "vectors", "target_vectors", "output_dir"), (str, type(None))),
        **dict.fromkeys(("source_lang", "target_lang", "language"), (str, type(None))),
    },
    "metrics": {...: _NUMBER},
    "history": [{"epoch": (int, float), "step": (int, float), ...: _NUMBER}],
    "embedding_statistics": {...: {...: {...: _NUMBER}}},
    "coverage": {...: dict.fromkeys(("types", "types_found", "tokens", "tokens_found"), int)},
    "runtime": {"train_seconds": _NUMBER, "tokens_per_second": _NUMBER, "world_size": int},
    "versions": {...: str},
    "signature": {...: str},
    "data": {...: {"rows": int, "sha256": str}},
}
"""The fields and types that readers of a record rely on; `...` stands for every other key of an object."""
_NAMES = {bool: "true or false", str: "a text", int: "a number", float: "a number"}


def _mismatch(value: Any, shape: Any, place: str) -> str | None:
    """In words where `value` has not the expected shape; None when it has."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is {_shown(value)}, expected a list"
        return next(
            filter(None, (_mismatch(v, shape[0], f"{place}[{i}]") for i, v in enumerate(value))), None
        )
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{place} is {_shown(value)}, expected an object"
        inner = ((k, v, shape.get(k, shape.get(...))) for k, v in value.items())
        told = (_mismatch(v, kind, f"{place}.{k}".lstrip(".")) for k, v, kind in inner if kind is not None)
        return next(filter(None, told), None)
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        kinds = shape if isinstance(shape, tuple) else (shape,)
        named = dict.fromkeys(_NAMES[kind] for kind in kinds if kind in _NAMES)
        return f"{place} is {_shown(value)}, expected {' or '.join(named)}"
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def scored_split(record: RunRecord) -> str:
    """The split whose predictions were kept: `test`, or `validation` where nothing was measured on it."""
    return "test" if any(name.startswith("test_") for name in record.metrics) else "validation"


def samples_name(record: RunRecord) -> str:
    """The file of a run folder with its predictions, such as `test_predictions.jsonl`."""
    return f"{scored_split(record)}_predictions.jsonl"


def is_finished(folder: str | os.PathLike[str]) -> bool:
    """Whether the run in `folder` has written its record, which it does last."""
    return (Path(folder) / RESULTS_NAME).is_file()


def history_from_log(log_history: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """One dict for each evaluation, from `trainer.state.log_history`.

    It has `epoch`, `step`, `train_loss` (the mean of what was logged since the evaluation before) and each
    `eval_x` as `validation_x`, without timings. Evaluations under other prefixes are left out.
    """
    rows: dict[float, dict[str, float]] = {}
    losses: list[float] = []
    timings = ("_runtime", "_per_second", "_preparation_time")
    for entry in log_history:
        if "loss" in entry:
            losses.append(float(entry["loss"]))
        values = {k: v for k, v in entry.items() if k.startswith("eval_") and not k.endswith(timings)}
        if not values:
            continue
        row = rows.setdefault(entry["step"], {"epoch": entry["epoch"], "step": entry["step"]})
        if losses:
            row["train_loss"] = sum(losses) / len(losses)
            losses = []
        row.update({"validation_" + k.removeprefix("eval_"): v for k, v in values.items()})
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


def device_name(device: str | torch.device) -> str:
    """The hardware behind `device`: the name of the GPU, the CPU with its cores."""
    device = torch.device(device)
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
