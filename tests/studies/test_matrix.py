"""Study files, runs that are skipped, resumed, retried and locked, and the tables made of their records."""

from __future__ import annotations

import errno
import inspect
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from builders import ROOT

from hf_embinit import __version__, get_initializer
from hf_embinit.errors import InvalidArgumentError, RunFolderError, UnknownNameError
from hf_embinit.report import AnalysisArguments
from hf_embinit.studies import report as study_report
from hf_embinit.studies import scheduling
from hf_embinit.studies import tables as study_tables
from hf_embinit.studies.clusters import slurm_script
from hf_embinit.studies.comparisons import Difference, rank_agreement, t_interval
from hf_embinit.studies.files import read_study_file
from hf_embinit.studies.matrix import STUDIES, list_studies, load_study
from hf_embinit.studies.scheduling import Launch, execute, outcome_of, run_here
from hf_embinit.studies.scores import field_value, gather
from hf_embinit.studies.tables import markdown
from hf_embinit.training import shared_arguments

FORK = multiprocessing.get_context("fork")
"""Drivers of their own that need not import torch again."""
PAPERS = [*(f"table{i}" for i in range(1, 9)), "figure1", *(f"zhang{i}" for i in range(1, 9))]

RECIPE = """
    import json, os, sys, time
    from pathlib import Path

    argv = sys.argv[1:]
    flags = {argv[i][2:]: argv[i + 1] for i in range(0, len(argv), 2)}
    folder = Path(flags["output_dir"])
    resumed = flags.pop("resume_from_checkpoint", None)
    with open(folder / "starts.txt", "a") as file:
        file.write(f"{os.getpid()} {resumed}\\n")
    if "wait_for" in flags:
        (folder / "checkpoint-1").mkdir(exist_ok=True)
        (folder / "checkpoint-1" / "model.safetensors").write_text("x")
        (folder / "checkpoint-1" / "trainer_state.json").write_text("{}")
        while not Path(flags["wait_for"]).exists():
            time.sleep(0.02)
    if flags.get("fail") == "always" or (flags.get("fail") == "once" and not (folder / "failed").exists()):
        (folder / "failed").touch()
        sys.exit("error: --fail was asked for")
    score = float(flags["score"]) + float(flags.get("bonus", 0)) + float(flags["seed"])
    record = {
        "dataset": "toy", "arguments": flags, "metrics": {"bleu": score}, "best_epoch": 2.0,
        "history": [{"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "acc": 0.4 + score / 100}],
        "runtime": {"device": "toy", "train_seconds": 120.0}, "parameters": 7,
        "versions": {"hf_embinit": %r, "commit": "abc-dirty"},
        "data": {"train": {"rows": 3, "sha256": "f00"}},
    }
    (folder / "results.json.part").write_text(json.dumps(record))
    os.replace(folder / "results.json.part", folder / "results.json")
"""

STUDY = """\
title: A toy
source: Nobody 2026, Table 1
recipe: toy.py
arguments: {task: t}
seeds: 2
values:
  - {title: BLEU, field: metrics/bleu, better: higher}
  - {title: Epoch, field: best_epoch}
columns:
  a: {title: A, arguments: {score: 10}}
  b: {title: B, arguments: {score: 20}}
rows:
  low: {title: Low, box: One}
  high: {title: High, box: One, arguments: {bonus: 20}}
paper:
  low: {a: [11.5 (0.7), 2], b: [21, 2]}
  high: {a: [31.25, 2], b: [20, 2]}
"""


@pytest.fixture
def toy(tmp_path: Path) -> tuple[str, Launch]:
    """A study of two columns and two rows, and a recipe that takes no time."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "toy.py").write_text(textwrap.dedent(RECIPE % __version__))
    (tmp_path / "toy.yaml").write_text(STUDY)
    return str(tmp_path / "toy.yaml"), Launch(tmp_path / "recipes", tmp_path / "out")


def starts(launch: Launch, run) -> list[str]:
    path = launch.folder(run) / "starts.txt"
    return path.read_text().splitlines() if path.exists() else []


# --- the studies of the package


def test_every_table_of_the_papers_has_a_study() -> None:
    assert set(list_studies()) == {*PAPERS, "butterfly", "hewitt"}


@pytest.mark.parametrize("name", list_studies())
def test_studies_expand_into_runs_of_recipes_that_exist(name: str, tmp_path: Path) -> None:
    recipes = ROOT / "recipes"
    for smoke in (None, tmp_path):
        study = load_study(name, smoke=smoke)
        assert study.runs and len({run.name for run in study.runs}) == len(study.runs)
        for run in study.runs:
            assert (recipes / run.recipe).is_file()
            assert "{" not in json.dumps(list(run.arguments.values()))
            for need in run.needs:
                assert need in {other.name for other in study.runs}
            if run.arguments.get("init") is not None:
                get_initializer(run.arguments["init"])
        for cell in study.cells:
            for value in cell.values:
                assert value.relative_to is None or value.relative_to in study.columns
    if smoke is not None:
        assert len(study.runs) <= 30  # seconds each


@pytest.mark.parametrize("name", list_studies())
def test_flags_of_studies_are_flags_of_their_recipes(name: str) -> None:
    recipes = ROOT / "recipes"
    inherited = {"max_steps", "eval_steps", "num_train_epochs", "learning_rate", "use_cpu"}
    inherited |= {"per_device_train_batch_size"}
    for run in {r.recipe: r for s in (None, Path("/x")) for r in load_study(name, smoke=s).runs}.values():
        source = (recipes / run.recipe).read_text() + inspect.getsource(shared_arguments)
        if run.recipe == "analyze_embeddings.py":
            source = inspect.getsource(AnalysisArguments)
        for flag in set(run.arguments) - inherited:
            assert re.search(rf"^    {flag}: ", source, re.MULTILINE), f"{run.recipe} has no --{flag}"


def test_tables_share_the_runs_they_have_in_common() -> None:
    table1 = {run.name for run in load_study("table1", only=["multi30k/words-*"]).runs}
    table3 = {run.name for run in load_study("table3", only=["*-yes-yes"]).runs}
    figure = {run.name for run in load_study("figure1", only=["multi30k-words"], seeds=4).runs}
    assert table1 == table3 == figure and len(table1) == 12


def test_the_grid_of_an_initialiser_is_every_combination() -> None:
    (cell,) = load_study("table1", only=["mnli/words-glove"]).cells
    assert cell.points[0][0] == {
        "learning_rate": 5e-5,
        "per_device_train_batch_size": 64,
    }
    assert len(cell.points) == 6 and all(len(runs) == 2 for _, runs in cell.points)
    (cell,) = load_study("table1", only=["mnli/words-glove"], overrides=["learning_rate=1"]).cells
    assert len(cell.points) == 2 and all(run.arguments["learning_rate"] == 1 for run in cell.runs)


def test_paper_numbers_stand_where_the_paper_has_them() -> None:
    paper = {name: read_study_file(STUDIES / f"{name}.yaml").paper for name in list_studies()}
    assert paper["table1"]["bert-bert", "mnli"][1] == (66.8, 0.6, "66.8 (0.6)")
    assert paper["table1"]["words-glove_xavier", "multi30k"][0] == (38.7, 0.3, "38.7 (0.3)")
    assert paper["table3"]["glove-yes-no", "multi30k"][2][:2] == (31.9, 0.34)
    assert paper["zhang4"]["stsb", "jp-clean"][0][0] == 0.17
    assert paper["zhang5"]["wnli", "zh-english"][0][0] == 0.62
    assert ("cola", "en-english") not in paper["zhang5"]
    assert paper["zhang8"]["sst2", "last6"][0][0] == 0.91
    counts = {name: sum(len(values) for values in cells.values()) for name, cells in paper.items()}
    assert counts["table1"] == 11 * (2 + 4 + 2 + 2) and counts["table2"] == 9 * 16
    assert counts["zhang4"] == 150 and counts["zhang1"] == 30


# --- options


def test_only_seeds_and_overrides(toy) -> None:
    name, _ = toy
    study = load_study(name, only=["b/low"], seeds=3, overrides=["lr=0.1", "b/*:score=5", "flag=true"])
    (cell,) = study.cells
    assert [run.seed for run in cell.runs] == [1, 2, 3]
    assert cell.runs[0].arguments == {"task": "t", "score": 5, "lr": 0.1, "flag": True}
    assert study.changes == ["--set lr=0.1", "--set b/*:score=5", "--set flag=true"]
    assert [run.seed for run in load_study(name).runs] == [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": ["c/*"]}, "no cell of toy matches. Columns: a, b; rows: low, high"),
        ({"overrides": ["novalue"]}, "--set 'novalue': give argument=value"),
        ({"overrides": ["zzz:lr=1"]}, "no cell of toy matches 'zzz'"),
        ({"seeds": 0}, "--seeds 0"),
    ],
)
def test_options_that_cannot_work(toy, options, sentence) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence)):
        load_study(toy[0], **options)


def test_an_unknown_study_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown study 'tabel1'\. Did you mean: table1"):
        load_study("tabel1")


@pytest.mark.parametrize(
    ("old", "new", "line", "sentence"),
    [
        ("seeds: 2", "seed: 2", 5, "Unknown field of a study 'seed'. Did you mean: seeds"),
        ("seeds: 2", "seeds: two", 5, "'seeds' cannot be 'two'"),
        ("{title: A, arg", "{titel: A, arg", 10, "Unknown field of columns a 'titel'"),
        ("better: higher", "better: best", 7, "'better' is higher or lower"),
        ("low: {a: [11.5", "lower: {a: [11.5", 16, "Unknown row 'lower'. Did you mean: low"),
        ("{a: [11.5", "{c: [11.5", 16, "Unknown field of the paper's row, by column 'c'"),
        ("11.5 (0.7)", "eleven", 16, "are no numbers"),
        ("title: A toy", "title: A toy\ncompare: boxes", 2, "'compare' is rows or columns"),
        ("seeds: 2", "seeds: 2\nseeds: 3", 6, "'seeds' stands here twice"),
    ],
)
def test_a_wrong_study_file_is_an_error_with_its_line(toy, old, new, line, sentence) -> None:
    name, _ = toy
    assert old in STUDY
    Path(name).write_text(STUDY.replace(old, new))
    with pytest.raises(InvalidArgumentError) as error:
        load_study(name)
    assert "toy.yaml" in str(error.value) and sentence in str(error.value)
    assert f"line {line}" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[11.5 (0.7), 2]", "[11.5]", "has 1 numbers for low, a, the cell has 2 values"),
        ("{score: 10}", '{score: "{many}"}', "uses {many}"),
        ("recipe: toy.py\n", "", "has no 'recipe'"),
        (STUDY, "just text", "holds no mapping"),
        (STUDY, "a: [", "is not a study"),
    ],
)
def test_a_study_that_does_not_fit_together(toy, old, new, sentence) -> None:
    Path(toy[0]).write_text(STUDY.replace(old, new))
    with pytest.raises(InvalidArgumentError, match=re.escape(sentence)):
        load_study(toy[0])


# --- running


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
    assert outcome.status == "failed" and "exit status 1: error: --fail was asked for" in outcome.error
    assert len(starts(launch, always)) == 2
    assert outcome_of(always, launch).status == "failed"
    assert not execute(always, launch).executed and len(starts(launch, always)) == 2
    assert execute(always, launch, retry_failed=True).executed and len(starts(launch, always)) == 4
    study = load_study(name, only=["a/low"], seeds=1, overrides=["fail=always"])
    page = markdown(study, gather(study, launch), "cmd")
    assert "failed / 11.5 (0.7)" in page and "--fail was asked for" in page


def test_a_killed_run_goes_on_and_its_checkpoints_go(toy, tmp_path) -> None:
    name, launch = toy
    go = tmp_path / "go"
    (run,) = load_study(name, seeds=1, only=["a/low"], overrides=[f"wait_for={go}"]).runs
    import threading

    outcomes = []
    worker = threading.Thread(target=lambda: outcomes.append(execute(run, launch)))
    worker.start()
    while not (launch.folder(run) / "checkpoint-1" / "trainer_state.json").exists():
        time.sleep(0.01)
    assert outcome_of(run, launch).status == "running"
    os.kill(int(starts(launch, run)[0].split()[0]), signal.SIGKILL)
    while len(starts(launch, run)) < 2:
        time.sleep(0.01)
    go.touch()
    worker.join(30)
    assert [o.status for o in outcomes] == ["finished"]
    assert [line.split()[1] for line in starts(launch, run)] == ["None", "last"]
    assert not list(launch.folder(run).glob("checkpoint-*"))


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


def test_another_version_is_another_run(toy, monkeypatch) -> None:
    run = load_study(toy[0]).runs[0]
    before = run.name
    monkeypatch.setattr("hf_embinit.studies.matrix.__version__", "9.9")
    assert run.name != before


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
    assert [o.run for o in run_here([high, low], launch, workers=2)] == [low, high]
    record = json.loads((launch.folder(high) / "results.json").read_text())
    assert record["arguments"]["model"] == str(launch.folder(low) / "x-1")


def test_commands_flags_and_launchers(toy) -> None:
    name, launch = toy
    run = load_study(name, overrides=["flag=true", "many=[1, 2]", "accelerator_config={a: 1}"]).runs[0]
    command = launch.command(run)
    assert command[:2] == [sys.executable, str(launch.recipes / "toy.py")]
    text = " ".join(command)
    assert '--flag true --many 1 2 --accelerator_config {"a": 1} --seed 1 --output_dir' in text
    launched = Launch(launch.recipes, launch.root, accelerate_config="two.yaml").command(run)
    assert launched[1:5] == ["-m", "accelerate.commands.launch", "--config_file", "two.yaml"]


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


# --- tables


@pytest.fixture
def finished(toy):
    name, launch = toy
    study = load_study(name)
    run_here(study.runs, launch, workers=2)
    return study, launch


def test_the_table_has_ours_beside_the_paper_s(finished) -> None:
    study, launch = finished
    page = markdown(study, gather(study, launch), "python recipes/reproduce.py toy", ["figures/toy.png"])
    assert "|  | A BLEU | A Epoch | B BLEU | B Epoch |" in page
    assert "| One: Low | 11.5 (0.7) / 11.5 (0.7) | 2.0 (0.0) / 2 | 21.5 (0.7) / 21 | 2.0 (0.0) / 2 |" in page
    assert "**31.5 (0.7)** / 31.25" in page and "n = 2 in every cell" in page
    assert "| A | high - low | BLEU | +20.00 | +20.00 to +20.00 | 2 | +19.75 | agrees |" in page
    # ours orders both columns one way, the paper one of them the other way
    assert "Differences that the paper prints: 1 agrees, 1 disagrees, 0 cannot tell" in page
    assert "Rank agreement with the paper: **+0.00** (95% interval +0.00 to +0.00; Kendall's tau-b" in page
    assert "8 of 8 runs come from a dirty tree" in page
    assert (
        "data, toy train: `3 rows, f00`" in page
        and "- device: toy" in page
        and "seeds: 1, 2; runs: 8" in page
    )
    assert "![A toy](figures/toy.png)" in page


def test_cells_that_were_not_run_say_so(toy) -> None:
    name, launch = toy
    study = load_study(name, only=["a/low"])
    execute(study.runs[0], launch)
    page = markdown(study, gather(study, launch), "cmd")
    assert "| One: Low | 11.0 / 11.5 (0.7) | 2.0 / 2 | not run / 21 | not run / 2 |" in page
    assert "| One: High | not run / 31.25 | not run / 2 | not run / 20 | not run / 2 |" in page


def test_a_diverged_run_is_no_number_of_its_cell(finished) -> None:
    study, launch = finished
    lost = [run for cell in study.cells for run in cell.runs if (cell.column, cell.row) == ("a", "low")]
    for run, row in zip(lost, ({"validation_loss": None}, {"acc": 0.1}), strict=True):
        path = launch.folder(run) / run.results
        record = json.loads(path.read_text())
        record["history"].append(row)
        record["diverged"] = row == {"acc": 0.1}  # as records of today say it, and those of before
        path.write_text(json.dumps(record))
    page = markdown(study, gather(study, launch), "cmd")
    assert "| One: Low | diverged / 11.5 (0.7) | diverged / 2 |" in page
    assert page.count("diverged, a loss was no finite number") == 2
    assert (
        ",a,low,BLEU,diverged,0," in "," + study_tables.csv_table(study, gather(study, launch)).split("\n")[1]
    )


def test_csv_and_latex(finished) -> None:
    study, launch = finished
    scores = gather(study, launch)
    lines = study_tables.csv_table(study, scores).splitlines()
    assert lines[0].startswith("column,row,value,status,n,mean,sd,paper_mean")
    assert lines[1] == "a,low,BLEU,finished,2,11.5,0.7071067811865476,11.5,0.7,1 2,"
    tex = study_tables.latex_table(study, scores)
    assert r"\begin{tabular}{lrrrr}" in tex and r"\textbf{31.5 (0.7)} {\color{gray}31.25}" in tex


def test_the_page_is_written_with_its_figure(finished, tmp_path) -> None:
    study, launch = finished
    study.file.figure = {"kind": "bars", "value": "BLEU"}
    study_report.write_study(study, launch, tmp_path / "t", "cmd")
    study.file.figure = {"kind": "curves", "metric": "acc", "label": "accuracy"}
    study.name = "curves"
    page = study_report.write_study(study, launch, tmp_path / "t", "cmd")
    assert (tmp_path / "t" / "figures" / "toy.png").stat().st_size > 5000
    assert (tmp_path / "t" / "figures" / "curves.png").stat().st_size > 5000
    assert (tmp_path / "t" / "table.md").read_text() in page
    assert {p.name for p in (tmp_path / "t").iterdir()} == {"table.md", "table.csv", "table.tex", "figures"}


def test_the_best_grid_point_is_shown_and_all_are_kept(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY + "cells:\n  a/low: {grid: {score: [3, 50, 4], lr: [1]}}\n")
    study = load_study(name, only=["a/low"])
    run_here(study.runs, launch, workers=2)
    scores = gather(study, launch)[0]
    assert scores.point == {"score": 50, "lr": 1} and scores.by_seed[0] == {1: 51.0, 2: 52.0}
    page = markdown(study, [scores], "cmd")
    assert "| a/low | score 3, lr 1 | 4.50 (0.71) | 2 |  |" in page
    assert "| a/low | score 50, lr 1 | 51.50 (0.71) | 2 | shown |" in page
    worst = launch.folder(scores.cell.points[1][1][0])
    shutil.rmtree(worst)  # half of the best point is missing: it does not compete
    scores = gather(study, launch)[0]
    assert scores.point == {"score": 4, "lr": 1}


def test_values_relative_to_a_column(toy) -> None:
    name, launch = toy
    Path(name).write_text(STUDY.replace("better: higher}", "better: higher, relative_to: a}"))
    study = load_study(name, only=["low"])
    run_here(study.runs, launch, workers=2)
    a, _, b, _ = gather(study, launch)
    assert a.by_seed[0] == {1: 11 / 11.5, 2: 12 / 11.5} and b.by_seed[0] == {1: 21 / 11.5, 2: 22 / 11.5}


def test_fields_of_a_record() -> None:
    record = {
        "best_epoch": 3,
        "metrics": {"a_b": 1.5, "text": "x", "yes": True},
        "embedding_statistics": {"model.encoder.x": {"std": 2}, "model.decoder.x": {"std": 3}},
        "history": [{"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "acc": 0.7}, {"epoch": 3.0, "acc": None}],
        "runtime": {"train_seconds": 360.0},
    }
    expected = {
        "best_epoch": 3.0,
        "metrics/a_b": 1.5,
        "metrics/a*": 1.5,
        "metrics/text": None,
        "metrics/none": None,
        "best_epoch/x": None,
        "embedding_statistics/*/std": 2.0,
        "embedding_statistics/*decoder*/std": 3.0,
        "history/max/acc": 0.7,
        "history/epoch_of_max/acc": 2.0,
        "history/min/acc": 0.5,
        "history/max/loss": None,
        "minutes_per_epoch": 2.0,
    }
    assert {path: field_value(record, path) for path in expected} == expected


def test_t_interval() -> None:
    assert t_interval([2.0]) is None
    low, high = t_interval([3.3, 3.4, 4.1])  # 2.5 to 4.7, where the least and the most are 3.3 and 4.1
    reference = scipy.stats.ttest_1samp([3.3, 3.4, 4.1], 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((reference.low, reference.high))
    assert low < 2.6 and high > 4.6
    # it holds the mean of a normal 95 times of 100, which the range of three numbers does 75 times
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2000, 3))
    held = np.mean([a <= 0 <= b for a, b in map(t_interval, samples.tolist())])
    assert held == pytest.approx(0.95, abs=0.015)
    assert np.mean((samples.min(1) <= 0) & (samples.max(1) >= 0)) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    ("deltas", "paper", "verdict"),
    [
        ((3.3, 3.4, 4.1), 1.4, "agrees"),
        ((3.3, 3.4, 4.1), -1.4, "disagrees"),
        ((0.1, 3.4, 4.1), 1.4, "cannot tell"),  # all above 0, but three numbers say little
        ((3.3,), 1.4, "cannot tell"),
        ((3.3, 3.4, 4.1), None, ""),
        ((3.3, 3.4, 4.1), 0.0, ""),
    ],
)
def test_a_difference_is_told_by_its_interval(deltas, paper, verdict) -> None:
    assert Difference("Multi30k", "b - a", "BLEU", deltas, 2, paper).verdict == verdict


def test_rank_agreement_is_kendall_s_tau_in_one_experiment(toy) -> None:
    name, launch = toy
    ours = {"low": 10, "high": 30, "mid": 20, "same": 20}
    theirs = {"low": 1, "high": 2, "mid": 3, "same": 4}
    rows = "".join(f"  {k}: {{title: {k}, box: One, arguments: {{score: {v}}}}}\n" for k, v in ours.items())
    paper = "".join(f"  {k}: {{a: [{v}, 2]}}\n" for k, v in theirs.items())
    Path(name).write_text(STUDY[: STUDY.index("rows:")] + "rows:\n" + rows + "paper:\n" + paper)
    study = load_study(name, seeds=1, only=["a"])
    run_here(study.runs, launch, workers=2)
    found = rank_agreement(study, gather(study, launch))
    reference = scipy.stats.kendalltau(list(ours.values()), list(theirs.values())).statistic
    assert found is not None and found[0] == pytest.approx(reference) and found[1:] == (6, None)
