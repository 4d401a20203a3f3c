"""Damaged checkpoints are seen, and a run goes on from the one before; one run at a time uses a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hf_embinit.errors import RunFolderError
from hf_embinit.records import (
    list_checkpoints,
    prepare_run_folder,
    start_damage,
    unlock_folder,
    write_digests,
)

FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def checkpoint(folder: Path, step: int, best: int | None = None) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for name in FILES:
        (path / name).write_bytes(f"{name} of step {step}".encode())
    state = {"best_model_checkpoint": None if best is None else str(folder / f"checkpoint-{best}")}
    (path / "trainer_state.json").write_text(json.dumps(state))
    write_digests(path)
    return path


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_last_checkpoint_is_left_for_the_one_before(tmp_path, harm, name, caplog) -> None:
    whole, last = checkpoint(tmp_path, 10), checkpoint(tmp_path, 20)
    assert prepare_run_folder(tmp_path, "last").checkpoint == str(last)
    harm(last / name)
    with pytest.raises(RunFolderError, match=r"checkpoint-20 is not a complete checkpoint: .*checkpoint-10"):
        prepare_run_folder(tmp_path, str(last))
    assert prepare_run_folder(tmp_path, "last").checkpoint == str(whole)
    assert "checkpoint-20" in caplog.text and not last.exists()
    unlock_folder(tmp_path)


def test_the_best_weights_so_far_count_too(tmp_path) -> None:
    """Transformers would go on without them, and end with the last weights in silence."""
    first, best, last = (checkpoint(tmp_path, n, b) for n, b in ((10, 10), (20, 20), (30, 20)))
    assert list_checkpoints(tmp_path) == [first, best, last]
    flip(best / "model.safetensors")
    assert list_checkpoints(tmp_path) == [first]
    with pytest.raises(RunFolderError, match="the best one so far, checkpoint-20, is gone or damaged"):
        prepare_run_folder(tmp_path, str(last))


@pytest.mark.parametrize("name", [*FILES, "training_args.bin"])
def test_a_checkpoint_without_digests_needs_all_that_a_run_goes_on_from(tmp_path, name) -> None:
    """Its run was killed between saving it and writing them."""
    path = checkpoint(tmp_path, 10)
    (path / "training_args.bin").write_bytes(b"")  # no weights, whatever its name says
    (path / "digests.json").unlink()
    assert list_checkpoints(tmp_path) == [path]
    (path / name).unlink()
    assert list_checkpoints(tmp_path) == ([path] if name == "training_args.bin" else [])


def test_the_model_before_the_first_step_is_that_of_the_checkpoint(tmp_path) -> None:
    weights = tmp_path / "init" / "twin-1" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"before step 0")
    path = checkpoint(tmp_path, 10)
    assert start_damage(path, tmp_path) is None
    flip(weights)
    assert start_damage(path, tmp_path) == "init/twin-1/model.safetensors is not as it was written"
    weights.unlink()
    assert start_damage(path, tmp_path) == "init/twin-1/model.safetensors is missing"
    assert list_checkpoints(tmp_path) == [path]  # the run makes it again
    write_digests(path)
    assert start_damage(path, tmp_path) is None  # nothing is known of it


def test_weights_without_the_optimizer_cannot_go_on(tmp_path) -> None:
    path = checkpoint(tmp_path, 10)
    (path / "optimizer.pt").unlink()
    write_digests(path)
    with pytest.raises(RunFolderError, match="--save_only_model"):
        prepare_run_folder(tmp_path, str(path))


HOLD = """
import sys, time
from hf_embinit.records import prepare_run_folder
prepare_run_folder(sys.argv[1], None, {"seed": 1})
print("held", flush=True)
time.sleep(60)
"""


def test_one_run_at_a_time_and_the_lock_of_a_killed_one_is_taken_over(tmp_path) -> None:
    folder = tmp_path / "run"
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"in use by another run .process {owner.pid} on "):
            prepare_run_folder(folder, None, {"seed": 2})
        assert json.loads((folder / "arguments.json").read_text()) == {"seed": 1}
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert (folder / ".lock").is_file()
    prepare_run_folder(folder, None, {"seed": 2})
    assert json.loads((folder / ".lock").read_text())["pid"] == os.getpid()
    unlock_folder(folder)
    assert not (folder / ".lock").exists()
