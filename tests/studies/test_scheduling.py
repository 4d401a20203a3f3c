"""Runs that are skipped, resumed, retried and locked."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from builders.studies import RECIPE, STUDY, starts

from hf_embinit import __version__
from hf_embinit.errors import DataNotFoundError, RunFolderError
from hf_embinit.interrupts import Terminated
from hf_embinit.studies import report as study_report
from hf_embinit.studies import scheduling
from hf_embinit.studies.clusters import slurm_script
from hf_embinit.studies.scheduling import Launch, execute, outcome_of, run_here
from hf_embinit.studies.scores import gather
from hf_embinit.studies.study import load_study
from hf_embinit.studies.tables import markdown

FORK = multiprocessing.get_context("fork")
"""Drivers of their own that need not import torch again."""


def test_finished_runs_are_skipped(toy) -> None:
    name, launch = toy
    study = load_study(name)
    assert {outcome_of(run, launch).status for run in study.runs} == {"not run"}
    told = []
    first = run_here(study.runs, launch, workers=3, report=told.append)
    assert len(first) == len(told) == 8 and all(o.executed and o.status == "finished" for o in first)
    again = run_here(study.runs, launch, workers=2)
    assert len(again) == 8 and not any(o.executed for o in again)
    assert all(len(starts(launch, run)) == 1 for run in study.runs)
    state = json.loads((launch.folder(study.runs[0]) / "matrix.json").read_text())
    assert state["wall_seconds"] > 0 and state["command"][-1] == str(launch.folder(study.runs[0]))


def test_max_runs_counts_what_is_started(toy) -> None:
    name, launch = toy
    runs = load_study(name).runs
    assert run_here(runs, launch, max_runs=0) == []
    assert sum(o.executed for o in run_here(runs, launch, workers=2, max_runs=3)) == 3
    assert sum(o.executed for o in run_here(runs, launch, max_runs=1)) == 1
    assert sum(outcome_of(run, launch).status == "finished" for run in runs) == 4


def test_a_failed_run_is_retried_once_then_marked(toy) -> None:
    name, launch = toy
    once, always = (load_study(name, seeds=1, only=["a/low"], overrides=[f"fail={w}"]).runs[0]
                    for w in ("once", "always"))  # fmt: skip
    assert execute(once, launch).status == "finished" and len(starts(launch, once)) == 2
    outcome = execute(always, launch)
    assert outcome.status == "failed" and "exit status 1: RuntimeError: --fail was asked for" in outcome.error
    assert len(starts(launch, always)) == 2
    assert outcome_of(always, launch).status == "failed"
    assert not execute(always, launch).executed and len(starts(launch, always)) == 2
    assert execute(always, launch, retry_failed=True).executed and len(starts(launch, always)) == 4
    study = load_study(name, only=["a/low"], seeds=1, overrides=["fail=always"])
    page = markdown(study, gather(study, launch), "cmd")
    assert "failed / 11.5 (0.7)" in page and "--fail was asked for" in page


def test_a_run_that_says_what_is_wrong_is_not_tried_again(toy) -> None:
    name, launch = toy
    (run,) = load_study(name, seeds=1, only=["a/low"], overrides=["fail=told"]).runs
    outcome = execute(run, launch)
    assert outcome.status == "failed" and "error: there is no such file" in outcome.error
    assert len(starts(launch, run)) == 1
    assert execute(run, launch, retry_failed=True).executed and len(starts(launch, run)) == 2


@pytest.mark.parametrize("place", ["", "in/"])
def test_a_killed_run_goes_on_and_its_checkpoints_go(toy, tmp_path, place) -> None:
    name, launch = toy
    if place:  # the recipe trains in a folder of its folder
        Path(name).write_text(f"{STUDY}results: {place}results.json\n")
        recipe = RECIPE.replace('"checkpoint-1"', '"in/checkpoint-1"').replace('"results', '"in/results')
        recipe = recipe.replace("mkdir(", "mkdir(parents=True, ")
        (launch.recipes / "toy.py").write_text(textwrap.dedent(recipe % __version__))
    go = tmp_path / "go"
    (run,) = load_study(name, seeds=1, only=["a/low"], overrides=[f"wait_for={go}"]).runs
    outcomes = []
    worker = threading.Thread(target=lambda: outcomes.append(execute(run, launch)))
    worker.start()
    while not launch.checkpoints(run):
        time.sleep(0.01)
    assert outcome_of(run, launch).status == "running"
    os.kill(int(starts(launch, run)[0].split()[0]), signal.SIGKILL)
    while len(starts(launch, run)) < 2:
        time.sleep(0.01)
    go.touch()
    worker.join(30)
    assert [o.status for o in outcomes] == ["finished"]
    assert [line.split()[1] for line in starts(launch, run)] == ["None", "last"]
    assert not list(launch.folder(run).rglob("checkpoint-*"))


def test_a_killed_driver_leaves_its_run_alone_and_the_next_one_waits_its_turn(toy, tmp_path) -> None:
    name, launch = toy
    go = tmp_path / "go"
    (run,) = load_study(name, seeds=1, only=["a/low"], overrides=[f"wait_for={go}"]).runs
    driver = FORK.Process(target=execute, args=(run, launch))
    driver.start()
    while not starts(launch, run):
        assert driver.is_alive()
        time.sleep(0.02)
    driver.kill()
    driver.join()
    assert outcome_of(run, launch).status == "running"  # the orphan trains on, and has the lock
    assert not execute(run, launch).executed
    go.touch()
    assert execute(run, launch, wait=True).status == "finished"
    assert len(starts(launch, run)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_driver_ends_its_run_which_has_not_failed(toy, tmp_path, number) -> None:
    name, launch = toy
    recipe = launch.recipes / "toy.py"
    ended = (
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n"  # as `run_main` ends
    )
    recipe.write_text(ended + recipe.read_text())
    go = tmp_path / "go"
    (run,) = load_study(name, seeds=1, only=["a/low"], overrides=[f"wait_for={go}"]).runs

    def drive() -> None:
        told = KeyboardInterrupt if number == signal.SIGINT else Terminated
        try:
            run_here([run], launch)
        except KeyboardInterrupt as error:
            assert type(error) is told  # by which `run_main` ends with 130 or 143
            (tmp_path / "told").touch()
        while not go.exists():  # Python, too, may wait for its threads before it ends
            time.sleep(0.02)

    driver = FORK.Process(target=drive)
    driver.start()
    while not launch.checkpoints(run):
        assert driver.is_alive()
        time.sleep(0.02)
    os.kill(driver.pid, number)
    patience = time.monotonic() + 10
    while (status := outcome_of(run, launch).status) == "running" and time.monotonic() < patience:
        time.sleep(0.05)
    go.touch()
    driver.join()
    assert status == "begun" and len(starts(launch, run)) == 1 and (tmp_path / "told").exists()


def test_an_interrupted_driver_starts_no_run_after_one_that_still_finished(toy, tmp_path) -> None:
    name, launch = toy
    recipe = launch.recipes / "toy.py"
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    recipe.write_text(deaf + recipe.read_text())
    go = tmp_path / "go"
    runs = load_study(name, seeds=2, only=["a/low"], overrides=[f"wait_for={go}"]).runs

    def drive() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            run_here(runs, launch)

    driver = FORK.Process(target=drive)
    driver.start()
    while not launch.checkpoints(runs[0]):
        assert driver.is_alive()
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGTERM)
    time.sleep(0.2)
    go.touch()
    driver.join()
    while (first := outcome_of(runs[0], launch).status) == "running":
        time.sleep(0.02)
    assert first == "finished" and outcome_of(runs[1], launch).status == "not run"


def test_a_dead_process_holds_no_lock(toy) -> None:
    name, launch = toy
    run = load_study(name).runs[0]
    folder = launch.folder(run)
    folder.mkdir(parents=True)
    code = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)"  # noqa: E501
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / ".driver.lock")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline()
    assert execute(run, launch).status == outcome_of(run, launch).status == "running"
    holder.kill()
    holder.wait()
    assert execute(run, launch).status == "finished"


def test_two_drivers_share_the_runs(toy) -> None:
    name, launch = toy
    study = load_study(name)
    with FORK.Pool(2) as drivers:
        calls = [drivers.apply_async(run_here, (study.runs, launch)) for _ in range(2)]
        counts = [sum(outcome.executed for outcome in call.get(timeout=250)) for call in calls]
    assert sum(counts) == 8
    assert all(len(starts(launch, run)) == 1 for run in load_study(name).runs)


@pytest.mark.parametrize("change", ["version", "argument", "damage"])
def test_a_record_of_other_code_or_arguments_never_fills_a_cell(toy, change) -> None:
    name, launch = toy
    study = load_study(name, seeds=1, only=["a/low"])
    (run,) = study.runs
    execute(run, launch)
    path = launch.folder(run) / "results.json"
    record = json.loads(path.read_text())
    if change == "version":
        record["versions"]["hf_embinit"] = "0.0.1"
    elif change == "argument":
        record["arguments"]["score"] = "11"
    path.write_text(json.dumps(record)[: -5 if change == "damage" else None])
    sentence = {"version": "was written by hf_embinit 0.0.1", "argument": "--score '11', not 10",
                "damage": "is damaged"}[change]  # fmt: skip
    for action in (
        lambda: execute(run, launch),
        lambda: gather(study, launch),
        lambda: outcome_of(run, launch),
    ):
        with pytest.raises(RunFolderError, match=sentence):
            action()
    shutil.rmtree(launch.folder(run))
    assert execute(run, launch).executed


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("arguments", [1], "arguments is [1], expected an object"),
        ("versions", "x", "is damaged ("),
        ("metrics", None, "metrics is null, expected an object"),
        ("history", None, "history is null, expected a list"),
        ("history", [1], "history[0] is 1, expected an object"),
        ("data", {"train": {}}, "data.train lacks rows or sha256"),
    ],
)
def test_a_record_of_another_shape_is_damaged(toy, field, value, sentence) -> None:
    name, launch = toy
    study = load_study(name, seeds=1, only=["a/low"])
    (run,) = study.runs
    execute(run, launch)
    path = launch.folder(run) / "results.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(RunFolderError, match=re.escape(sentence)) as error:
        gather(study, launch)
    assert str(error.value).startswith(f"{path} is damaged (")
    assert str(error.value).endswith("): delete its folder to run it again")


def test_a_record_may_spell_an_argument_in_another_way(toy) -> None:
    name, launch = toy
    given = ["report_to=none", "accelerator_config={split_batches: false, many: [1]}", "fp16=no", "bf16=yes"]
    (run,) = load_study(name, seeds=1, only=["a/low"], overrides=given).runs
    path = launch.folder(run) / "results.json"
    path.parent.mkdir(parents=True)
    record = {"arguments": {**run.arguments, "seed": 1}, "versions": {"hf_embinit": __version__}}
    kept = {"split_batches": False, "many": 1, "dispatch_batches": None}
    record["arguments"] |= {"report_to": [], "accelerator_config": kept, "fp16": False, "bf16": True}
    path.write_text(json.dumps(record))
    assert outcome_of(run, launch).status == "finished"
    for other in (True, None):
        record["arguments"]["accelerator_config"]["split_batches"] = other
        path.write_text(json.dumps(record))
        with pytest.raises(RunFolderError, match="is of a run with --accelerator_config"):
            outcome_of(run, launch)


def test_another_version_is_another_run(toy, monkeypatch) -> None:
    run = load_study(toy[0]).runs[0]
    before = run.name
    monkeypatch.setattr("hf_embinit.studies.study.__version__", "9.9")
    assert run.name != before


def test_other_data_or_another_accelerate_config_is_another_run(toy, tmp_path) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.replace("{bonus: 20}", '{model: "run:a/low/x"}'))
    low, high = load_study(name, seeds=1, only=["a"]).runs
    assert launch.folder(low) == launch.root / "runs" / low.name  # nothing given
    for place in ("one", "two"):
        (tmp_path / f"{place}.yaml").write_text("num_processes: 2\n")
    one, two = (replace(launch, data_dir=str(tmp_path / place)) for place in ("one", "two"))
    ddp, same = (replace(launch, accelerate_config=str(tmp_path / f"{x}.yaml")) for x in ("one", "two"))
    assert ddp.folder(low) == same.folder(low)
    assert one.folder(low) == replace(one, data_dir=f"{tmp_path}/two/../one").folder(low)
    (tmp_path / "two.yaml").write_text("num_processes: 4\n")
    four = replace(same)
    assert len({each.folder(low) for each in (launch, one, two, ddp, four)}) == 5
    assert execute(low, one).executed and not execute(low, one).executed
    assert run_here([low, high], two)[0].executed and outcome_of(low, launch).status == "not run"
    assert outcome_of(high, two).status == "finished" and outcome_of(high, one).status == "not run"
    assert two.arguments(high)["model"] == str(two.folder(low) / "x")


def test_a_full_disk_is_one_clear_error(toy, monkeypatch) -> None:
    name, launch = toy
    runs = load_study(name, only=["a"]).runs

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(scheduling, "write_json", full)
        with pytest.raises(RunFolderError, match="no space left on the disk"):
            run_here(runs, launch, workers=2)
    (launch.recipes / "toy.py").write_text("raise OSError(28, 'No space left on device')")
    with pytest.raises(RunFolderError, match="no space left on the disk"):
        run_here(runs, launch)
    assert {outcome_of(run, launch).status for run in runs} == {"not run"}  # and not marked as failed
    (launch.recipes / "toy.py").write_text(textwrap.dedent(RECIPE % __version__))
    assert all(o.status == "finished" for o in run_here(runs, launch))


def test_runs_that_read_others_come_after_them(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.replace("{bonus: 20}", '{model: "run:a/low/x-{seed}"}'))
    study = load_study(name, seeds=1, only=["a"])
    low, high = study.runs
    assert high.needs == [low.name] and high.arguments["model"] == f"run:{low.name}/x-1"
    assert run_here([high], launch) == []  # nothing to read yet
    waiting = study_report.waiting_text(study, launch)
    assert waiting is not None and waiting.startswith("1 of 2 runs read files of runs that are not finished")
    assert high.name in waiting and low.name not in waiting and "give the same command again" in waiting
    assert [o.run for o in run_here([high, low], launch, workers=2)] == [low, high]
    assert study_report.waiting_text(study, launch) is None
    record = json.loads((launch.folder(high) / "results.json").read_text())
    assert record["arguments"]["model"] == str(launch.folder(low) / "x-1")
    moved = replace(launch, root=launch.root.rename(launch.root.with_name("moved")))
    assert {outcome_of(run, moved).status for run in study.runs} == {"finished"}
    record["arguments"]["model"] = str(moved.folder(low) / "x-2")
    (moved.folder(high) / "results.json").write_text(json.dumps(record))
    with pytest.raises(RunFolderError, match=r"is of a run with --model '.*x-2', not '.*x-1'"):
        outcome_of(high, moved)


def test_commands_flags_and_launchers(toy) -> None:
    name, launch = toy
    run = load_study(name, overrides=["flag=true", "many=[1, 2]", "accelerator_config={a: 1}"]).runs[0]
    command = launch.command(run)
    assert command[:2] == [sys.executable, str(launch.recipes / "toy.py")]
    text = " ".join(command)
    assert '--flag true --many 1 2 --accelerator_config {"a": 1} --seed 1 --output_dir' in text
    config = launch.root / "two.yaml"
    with pytest.raises(DataNotFoundError, match=r"--accelerate_config .*two\.yaml is no file"):
        Launch(launch.recipes, launch.root, accelerate_config=str(config))
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("num_processes: 2\n")
    launched = Launch(launch.recipes, launch.root, accelerate_config=str(config)).command(run)
    assert launched[1:5] == ["-m", "accelerate.commands.launch", "--config_file", str(config)]


def test_estimates_come_from_runs_of_the_same_kind(toy) -> None:
    name, launch = toy
    study = load_study(name)
    assert set(scheduling.estimate_seconds(study.runs, launch).values()) == {None}
    assert "unknown for 8" in study_report.plan_text(study, launch)
    first = study.cells[0].runs[0]
    execute(first, launch)
    seconds = scheduling.estimate_seconds(study.runs, launch)
    assert sum(value is not None for value in seconds.values()) == 2  # its two seeds
    text = study_report.plan_text(study, launch, all_runs=True)
    assert "1 finished, 7 not run" in text and "for 1 runs like finished ones" in text


def test_slurm_script_is_a_script(tmp_path) -> None:
    script = slurm_script("table1", "python recipes/reproduce.py table1", 12, tmp_path)
    (tmp_path / "s.sh").write_text(script)
    assert subprocess.run(["bash", "-n", str(tmp_path / "s.sh")]).returncode == 0
    assert script.startswith("#!/bin/bash") and "--array=1-12%16" in script and "--max_runs 1" in script
