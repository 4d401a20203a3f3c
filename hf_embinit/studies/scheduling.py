"""Runs the runs of a study: finished ones are skipped, interrupted ones resumed, none is run twice at once.

Every run is a process of its own with a folder of its own. The lock on the folder (`flock`) is held by the
process that trains, so it ends with that process and not before: a driver that is killed leaves nothing to
clean up, and a run that outlives its driver is not started a second time. `flock` works between machines that
share an NFS or Lustre folder when that is mounted with locking, the default.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import DataNotFoundError, RunFolderError
from ..files import file_sha256
from ..interrupts import Terminated
from ..records import NO_EFFECT, is_finished, list_checkpoints, shape_problem, to_plain, write_json
from .study import RUN_PREFIX, Run, Study

logger = logging.getLogger(__name__)

STATE_NAME = "matrix.json"
LOG_NAME = "log.txt"
_LOCK_NAME = ".driver.lock"
"""Lock of the driver; the run that it starts locks the folder itself (`records.lock`)."""
_FREE_BYTES = 16 * 2**20  # less than this, and a run that failed did so for want of space

_OF_ITS_OWN = ("exit status 1: error: ", "exit status 2: ")
"""How the error of a run begins that ended by itself, with one sentence: trying again would end so, too."""


@dataclass(frozen=True)
class Outcome:
    """The state of a run: `finished`, `failed`, `running` (elsewhere), `begun` or `not run`."""

    run: Run
    status: str
    error: str = ""
    executed: bool = False
    """Whether this call ran it."""


@dataclass(frozen=True)
class Launch:
    """How runs are started."""

    recipes: Path
    """Folder of the recipes."""
    root: Path
    """Folder that has `runs/`."""
    data_dir: str | None = None
    accelerate_config: str | None = None
    threads: int | None = None
    """CPU threads of a run; None leaves it to the environment."""

    def __post_init__(self) -> None:
        if self.accelerate_config is not None and not Path(self.accelerate_config).is_file():
            raise DataNotFoundError(f"--accelerate_config {self.accelerate_config} is no file")

    @cached_property
    def suffix(self) -> str:
        """End of the names of all run folders: a digest of the path of the data folder and of the content of
        accelerate's config file, since results on others are other results; empty where neither is given."""
        given = {}
        if self.data_dir is not None:
            given["data_dir"] = str(Path(self.data_dir).resolve())
        if self.accelerate_config is not None:
            given["accelerate_config"] = file_sha256(self.accelerate_config)
        text = json.dumps(given, sort_keys=True)
        return f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}" if given else ""

    def folder_of(self, name: str) -> Path:
        """The folder of the run of that name."""
        return self.root / "runs" / f"{name}{self.suffix}"

    def folder(self, run: Run) -> Path:
        """The run's folder."""
        return self.folder_of(run.name)

    def checkpoints(self, run: Run) -> list[Path]:
        """Those that the run can go on from, beside its record."""
        return list_checkpoints((self.folder(run) / run.results).parent)

    def arguments(self, run: Run) -> dict[str, Any]:
        """The run's arguments and seed, with the paths of the files of other runs filled in."""
        arguments = {**run.arguments, "seed": run.seed}
        for key, value in arguments.items():
            if isinstance(value, str) and value.startswith(RUN_PREFIX):
                recipe, name, path = value.removeprefix(RUN_PREFIX).split("/", 2)
                arguments[key] = str(self.folder_of(f"{recipe}/{name}") / path)
        return arguments

    def command(self, run: Run) -> list[str]:
        """The command line of the run, without resuming."""
        launcher = [sys.executable]
        if self.accelerate_config is not None:
            launcher += ["-m", "accelerate.commands.launch", "--config_file", self.accelerate_config]
        flags = {**self.arguments(run), "output_dir": str(self.folder(run))}
        words = [word for key, value in flags.items() for word in (f"--{key}", *_words(value))]
        return [*launcher, str(self.recipes / run.recipe), *words]


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [word for v in value for word in _words(v)]
    if isinstance(value, dict):
        return [json.dumps(value)]
    return ["true" if value is True else "false" if value is False else str(value)]


# --- what became of a run


def read_result(run: Run, launch: Launch) -> dict[str, Any] | None:
    """The record of a finished run; None when it has not finished.

    Raises `RunFolderError` when the record there is damaged, or of other arguments or another version: it
    must not fill the cell.
    """
    path = launch.folder(run) / run.results
    try:
        record = to_plain(json.loads(path.read_text(encoding="utf-8")))
        arguments, version = record["arguments"], record["versions"]["hf_embinit"]
        if problem := shape_problem(record):
            raise ValueError(problem)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged ({error}): delete its folder to run it again") from None
    if version != __version__:
        raise RunFolderError(
            f"{path} was written by hf_embinit {version}, this is {__version__}: delete "
            "its folder to run it again"
        )
    for key, value in launch.arguments(run).items():
        if key in NO_EFFECT:  # a recipe may keep another spelling: --report_to none is []
            continue
        found, given = arguments.get(key), str(run.arguments.get(key))
        if given.startswith(RUN_PREFIX):  # the folder of both may have moved since
            name = Path(value).relative_to(launch.root).parts
            same = Path(str(found)).parts[-len(name) :] == name
        else:
            same = _same(found, value)
        if not same:
            raise RunFolderError(
                f"{path} is of a run with --{key} {found!r}, not {value!r}: delete its folder to run it again"
            )
    return record


def _same(a: Any, b: Any) -> bool:
    """Whether a record's argument `a` is what was given as `b`."""
    if isinstance(b, dict):  # the record has the defaults of other keys, too
        return isinstance(a, dict) and all(_same(a.get(str(key)), value) for key, value in b.items())
    if isinstance(a, list) or isinstance(b, list):
        a, b = (x if isinstance(x, list) else [x] for x in (a, b))
        return len(a) == len(b) and all(map(_same, a, b))
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        switches = {"yes": "true", "no": "false"}  # as recipes read them
        a, b = (switches.get(text, text) for text in (str(a).lower(), str(b).lower()))
        return a == b


def outcome_of(run: Run, launch: Launch) -> Outcome:
    """The state of a run, without touching it. Raises what `read_result` raises."""
    folder = launch.folder(run)
    with _locked(folder, create=False) as lock:
        if read_result(run, launch) is not None:  # asked after the lock, which a run gives up at its end
            return Outcome(run, "finished")
        if lock == "held":
            return Outcome(run, "running")
    error = _state(folder).get("error")
    if error:
        return Outcome(run, "failed", error)
    return Outcome(run, "begun" if launch.checkpoints(run) else "not run")


def missing_runs(study: Study, launch: Launch, *, retry_failed: bool = False) -> list[Run]:
    """The runs of a study that are still to be run; those that failed before only with `retry_failed`."""
    done = {"finished"} if retry_failed else {"finished", "failed"}
    return [run for run in study.runs if outcome_of(run, launch).status not in done]


def threads_of_a_run(workers: int) -> int | None:
    """CPU threads of each of so many runs at a time; None where `OMP_NUM_THREADS` says it."""
    return None if "OMP_NUM_THREADS" in os.environ else max(1, (os.cpu_count() or 1) // workers)


def _state(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


@contextlib.contextmanager
def _locked(folder: Path, *, create: bool = True, wait: bool = False) -> Iterator[int | str | None]:
    """The descriptor of the folder's lock; "held" when another process has it, None when there is none."""
    if not create and not (folder / _LOCK_NAME).exists():
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for patience in (0.05, 0.2, None):  # a lock may be held for a moment, by one who only looks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if patience is None:
                    yield "held"
                    return
                time.sleep(patience)
        yield descriptor
    finally:
        os.close(descriptor)  # the lock goes on in a child that inherited it


# --- running

_children: set[subprocess.Popen[bytes]] = set()
_stopped = threading.Event()
"""Set once this process was told to end: what its runs exit with then is no failure."""


def execute(
    run: Run,
    launch: Launch,
    *,
    environment: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    wait: bool = False,
) -> Outcome:
    """Runs `run` to its end, unless it is finished, marked as failed, or being run by another process.

    An interrupted run goes on from its last checkpoint. One that fails is tried once more, then marked with
    its error; at once where it ended with one sentence of what is wrong, as it would again. With `wait`
    a run of another process is waited for, else left alone.

    Raises `RunFolderError` when the disk is full, and what `read_result` raises.
    """
    folder = launch.folder(run)
    try:
        with _locked(folder, wait=wait) as lock:
            if lock == "held":
                return Outcome(run, "running")
            if read_result(run, launch) is not None:
                return Outcome(run, "finished")
            error = _state(folder).get("error")
            if error and not retry_failed:
                return Outcome(run, "failed", error)
            assert isinstance(lock, int)
            return _attempts(run, launch, lock, environment or {})
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(folder) from problem
        raise


def _disk_full(folder: Path) -> RunFolderError:
    return RunFolderError(
        f"no space left on the disk of {folder}: make room and give the same command again, it goes on where "
        "it stopped. Finished runs are kept"
    )


def _attempts(run: Run, launch: Launch, lock: int, environment: Mapping[str, str]) -> Outcome:
    folder, command, error = launch.folder(run), launch.command(run), ""
    seconds = _state(folder).get("wall_seconds", 0.0)
    write_json(folder / STATE_NAME, {"command": command, "wall_seconds": seconds, "error": None})
    env = {**os.environ, "TQDM_DISABLE": "1", **environment}
    if launch.data_dir is not None:
        env["HF_EMBINIT_DATA"] = launch.data_dir
    if launch.threads is not None:
        env["OMP_NUM_THREADS"] = str(launch.threads)
    for _ in range(2):
        resume = ["--resume_from_checkpoint", "last"] if launch.checkpoints(run) else []
        start = time.perf_counter()
        with open(folder / LOG_NAME, "ab") as log:
            log_start = log.tell()
            child = subprocess.Popen([*command, *resume], stdout=log, stderr=log, env=env, pass_fds=[lock])
            _children.add(child)
            if _stopped.is_set():  # told so before this one could be
                child.send_signal(signal.SIGINT)
            code = child.wait()
            _children.discard(child)
        seconds += time.perf_counter() - start
        finished = read_result(run, launch) is not None
        error = "" if finished else _error(folder / LOG_NAME, log_start, code)
        write_json(folder / STATE_NAME, {"command": command, "wall_seconds": seconds, "error": None})
        if finished:
            for checkpoint in launch.checkpoints(run):  # the best model is in the folder itself
                shutil.rmtree(checkpoint, ignore_errors=True)
            return Outcome(run, "finished", executed=True)
        if "No space left on device" in error or shutil.disk_usage(folder).free < _FREE_BYTES:
            raise _disk_full(folder)
        if _stopped.is_set() or code in (-signal.SIGINT, 128 + signal.SIGINT):
            raise KeyboardInterrupt
        logger.warning("%s failed: %s", run.name, error)
        if error.startswith(_OF_ITS_OWN):
            break
    write_json(folder / STATE_NAME, {"command": command, "wall_seconds": seconds, "error": error})
    return Outcome(run, "failed", error, executed=True)


def _error(log: Path, start: int, code: int) -> str:
    """The end of the log of a run that ended without a record."""
    with open(log, "rb") as file:
        file.seek(max(start, log.stat().st_size - 20_000))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing printed"
    reason = next((line for line in reversed(lines) if "rror" in line), last)
    how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    return f"{how}: {reason[:500]} ({log})"


def run_here(
    runs: Sequence[Run],
    launch: Launch,
    *,
    workers: int = 1,
    max_runs: int | None = None,
    retry_failed: bool = False,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Runs what is missing on this machine, `workers` at a time, each with its share of cores and a GPU.

    At most `max_runs` are started. `report` is called with each outcome. Raises what `execute` raises, after
    the runs in progress have ended.
    """
    queue: Iterator[Run] = iter(())
    guard, started = threading.Lock(), 0
    outcomes: list[Outcome] = []
    problems: list[BaseException] = []
    gpus = _gpus()

    def work(number: int) -> None:
        nonlocal started
        environment = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
        while True:
            with guard:
                if problems or _stopped.is_set() or (max_runs is not None and started >= max_runs):
                    return
                if (run := next(queue, None)) is None:
                    return
                started += 1
            try:
                outcome = execute(run, launch, environment=environment, retry_failed=retry_failed)
            except BaseException as error:
                with guard:
                    problems.append(error)
                return
            with guard:
                started -= not outcome.executed
                outcomes.append(outcome)
                if outcome.executed or outcome.status == "running":
                    report(outcome)

    for stage in stages(runs, launch):
        queue = iter(stage)
        with stopping_children(), ThreadPoolExecutor(workers) as pool:
            for number in range(workers):
                pool.submit(work, number)
        if problems:
            raise problems[0]
    return outcomes


def stages(runs: Sequence[Run], launch: Launch) -> Iterator[list[Run]]:
    """First the runs that read no files of other runs, then those whose files are finished by then."""
    yield [run for run in runs if not run.needs]
    yield [run for run in runs if run.needs and all(is_finished(launch.folder_of(n)) for n in run.needs)]


def _gpus() -> list[str]:
    """Names of the GPUs as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


@contextlib.contextmanager
def stopping_children() -> Iterator[None]:
    """Inside, Ctrl-C or SIGTERM to this process also ends its runs, which go on next time."""

    def stop(number: int, frame: Any) -> None:
        _stopped.set()
        for child in list(_children):
            child.send_signal(signal.SIGINT)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _stopped.clear()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- how long it takes


def estimate_seconds(runs: Sequence[Run], launch: Launch) -> dict[str, float | None]:
    """Estimated seconds of each run by name: the mean of finished runs that differ in no more than seed, init
    and vectors. None where there is no such run.
    """
    known: dict[str, list[float]] = {}
    for run in runs:
        seconds = _state(launch.folder(run)).get("wall_seconds")
        if seconds and (launch.folder(run) / run.results).is_file():
            known.setdefault(_kind(run), []).append(seconds)
    return {run.name: statistics.fmean(known[_kind(run)]) if _kind(run) in known else None for run in runs}


def _kind(run: Run) -> str:
    rest = {k: v for k, v in run.arguments.items() if k not in ("init", "inits", "vectors", "target_vectors")}
    return json.dumps([run.recipe, rest], sort_keys=True)
