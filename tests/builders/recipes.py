"""Recipes as a user starts them: in this process, which spares their imports, or in those of `forks`."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from hf_embinit.records import write_digests
from hf_embinit.training import callbacks

from . import ROOT
from .forks import Fork

TWO_PROCESSES = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0"),
)
"""`--cpu --num_processes 2` would silently start one process."""
LAUNCHING = str(ROOT / "tests" / "builders" / "launching")
"""What `PYTHONPATH` holds for two processes on CPUs that share their imports and may be sharded."""


# `MULTI_CPU` and `--cpu` would silently start one process
ACCELERATE = """\
{compute_environment: LOCAL_MACHINE, distributed_type: FSDP, num_machines: 1, num_processes: 2,
 mixed_precision: 'no', machine_rank: 0, main_process_port: 0, gpu_ids: all, use_cpu: false,
 fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP,
               fsdp_state_dict_type: SHARDED_STATE_DICT}}
"""


def sharding_launcher(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A launcher of two processes with FSDP2, each of which says so in `sharded.txt`."""
    (folder / "fsdp.yaml").write_text(ACCELERATE)
    monkeypatch.setenv("SHARDED", str(folder / "sharded.txt"))
    return ["-m", "accelerate.commands.launch", "--config_file", str(folder / "fsdp.yaml")]


@dataclass
class Done:
    """How a run ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_recipe(name: str, *arguments: str, **env: str) -> Done:
    """Runs `recipes/<name>.py` in this process, with more variables of the environment."""
    path = str(ROOT / "recipes" / f"{name}.py")
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with (
        patch.dict(os.environ, env),
        patch.object(sys, "argv", [path, *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = end.code
    if isinstance(status, str):  # what the interpreter does with it
        return Done(1, out.getvalue(), err.getvalue() + status)
    return Done(int(status or 0), out.getvalue(), err.getvalue())  # type: ignore[call-overload]


_STARTED = f"""
import os, runpy, sys
os.chdir({str(ROOT)!r})
module = sys.argv[1]
if module.endswith(".py"):
    sys.argv = sys.argv[1:]
    runpy.run_path(module, run_name="__main__")
else:
    runpy.run_path({LAUNCHING + "/sitecustomize.py"!r})["fork_processes"]()
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def start_recipe(name: str, *arguments: str, launcher: Sequence[str] = ()) -> Fork:
    """Starts a recipe, or with `-m` the module that launches it, in a process of its own."""
    return Fork(_STARTED, *launcher[1:], str(ROOT / "recipes" / f"{name}.py"), *arguments)


def run_in_two_processes(name: str, *arguments: str, launcher: Sequence[str] = TWO_PROCESSES) -> str:
    """What a run over two processes printed."""
    process = start_recipe(name, *arguments, launcher=launcher)
    out, err = process.communicate()
    assert process.poll() == 0, err[-3000:]
    return out


def kill_and_resume(name: str, *arguments: str, folder: Path) -> None:
    """Kills a run into `folder` at its first checkpoint, sees that it needs a flag, and lets it go on."""
    process = start_recipe(name, *arguments, "--output_dir", str(folder))
    deadline = time.time() + 250
    while not list(folder.glob("checkpoint-*/digests.json")):
        assert process.poll() is None and time.time() < deadline
        time.sleep(0.005)
    process.kill()
    process.communicate()
    if not (folder / "results.json").exists():
        _resume(name, *arguments, folder=folder)


def interrupt_and_resume(name: str, *arguments: str, folder: Path) -> None:
    """The same by Ctrl-C in this process: such a run has no process of its own to import everything for."""

    def write_and_stop(checkpoint: Path) -> None:
        write_digests(checkpoint)
        raise KeyboardInterrupt

    with patch.object(callbacks, "write_digests", write_and_stop):
        stopped = run_recipe(name, *arguments, "--output_dir", str(folder))
    assert stopped.returncode == 130 and "goes on from its last checkpoint" in stopped.stderr
    _resume(name, *arguments, folder=folder)


def _resume(name: str, *arguments: str, folder: Path) -> None:
    refused = run_recipe(name, *arguments, "--output_dir", str(folder))
    assert refused.returncode == 1 and "--resume_from_checkpoint" in refused.stderr
    more = ("--output_dir", str(folder), "--resume_from_checkpoint", "last")
    resumed = run_recipe(name, *arguments, *more)
    assert resumed.returncode == 0, resumed.stderr[-3000:]


def same_weights(a: Path, b: Path) -> bool:
    """Whether two folders hold the same tensors, bit for bit."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (a, b))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def refuses_to_run_again(name: str, *arguments: str, folder: Path) -> bool:
    """Whether a finished folder is left as it is, with a sentence."""
    before = (folder / "results.json").read_bytes()
    again = run_recipe(name, *arguments, "--output_dir", str(folder))
    assert again.returncode == 1 and "holds a finished run" in again.stderr
    return (folder / "results.json").read_bytes() == before
