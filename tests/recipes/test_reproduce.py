"""`recipes/reproduce.py` as a user starts it: a smoke run killed twice, two processes, a Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from builders import ROOT
from builders.forks import Fork
from builders.recipes import (
    LAUNCHING,
    Done,
    run_in_two_processes,
    run_recipe,
    sharding_launcher,
    start_recipe,
)
from safetensors.torch import load_file

from hf_embinit import __version__
from hf_embinit.errors import InvalidArgumentError
from hf_embinit.studies.clusters import run_on_ray
from hf_embinit.studies.scheduling import Launch, outcome_of
from hf_embinit.studies.study import load_study

RECIPES = sorted((ROOT / "recipes").glob("*.py"))


def reproduce(*arguments: str) -> Done:
    """In this process; the runs that it starts have their own."""
    return run_recipe("reproduce", *arguments)


def wait_for(condition, seconds: float = 250) -> None:
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        time.sleep(0.02)


def recipe_of(driver: Fork) -> int | None:
    """The process that the driver started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(driver.pid)], capture_output=True, text=True)
    return int(found.stdout.split()[0]) if found.stdout.split() else None


@pytest.mark.timeout(900)
def test_a_smoke_run_survives_the_death_of_its_worker_and_of_its_driver(tmp_path: Path) -> None:
    cells = ["xavier-no-yes", "xavier-yes-yes"]
    arguments = ["table3", "--smoke", "--only", *cells, "--set", "num_train_epochs=3"]
    arguments += ["--output_dir", str(tmp_path)]
    study = load_study("table3", only=cells, overrides=["num_train_epochs=3"], smoke=tmp_path / "smoke")
    launch = Launch(ROOT / "recipes", tmp_path)
    first, second = (launch.folder(run) for run in study.runs)

    driver = start_recipe("reproduce", *arguments)
    wait_for(lambda: list(first.glob("checkpoint-*/digests.json")) or driver.poll() is not None)
    worker = recipe_of(driver)
    assert worker is not None and driver.poll() is None
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: (first / "results.json").exists() and second.exists())  # it went on by itself
    record = json.loads((first / "results.json").read_text())
    assert record["arguments"]["resume_from_checkpoint"] == "last" and len(record["history"]) == 3

    driver.kill()
    driver.communicate()
    wait_for(lambda: outcome_of(study.runs[1], launch).status != "running")  # an orphan may finish
    done = reproduce(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (second / "results.json").exists() and "Not run: " in done.stdout
    page = (tmp_path / "table3-smoke" / "table.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| Xavier")}
    for title in ("Xavier: frozen, positions", "Xavier: trained, positions"):
        assert "–" not in rows[title] and "failed" not in rows[title]
    assert "these numbers mean nothing" in page and "data, captions train" in page

    again = reproduce(*arguments)  # nothing left to do
    assert again.returncode == 0 and "2 finished" in again.stdout
    assert json.loads((first / "results.json").read_text()) == record


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    done = run_recipe(
        "reproduce", "zhang1", "--dry_run", "--only", "*/sst2", "--output_dir", str(tmp_path / "x")
    )
    assert done.returncode == 0 and "3 cells, 9 runs: 9 not run" in done.stdout
    assert "reversed/sst2" in done.stdout and "unknown for 9" in done.stdout
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tabel1"], "Unknown study 'tabel1'. Did you mean: table1"),
        (["table1", "--set", "a=1", "--set", "b=1"], "--set is given twice"),
        (["table1", "--gpus_per_run", "0.5"], "are of a Ray cluster: give --cluster"),
        (["table1", "--onyl", "x"], "unknown argument '--onyl'. Did you mean: --only"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, sentence, tmp_path: Path) -> None:
    done = run_recipe("reproduce", *arguments, "--output_dir", str(tmp_path))
    assert done.returncode in (1, 2) and sentence in done.stderr


BROKEN = """\
title: One run that cannot work
source: nobody
recipe: translate.py
arguments: {dataset: captions, init: glove, vectors: no/such/file.txt, use_cpu: true}
values: [{title: loss, field: metrics/validation_loss}]
columns: {c: }
rows: {r: }
"""


def test_a_failed_run_is_told_by_the_exit_code_and_foretold_by_a_check(tmp_path: Path) -> None:
    study, out = str(tmp_path / "broken.yaml"), str(tmp_path / "out")
    Path(study).write_text(BROKEN)
    checked = run_recipe("reproduce", study, "--check", "--output_dir", out)
    assert checked.returncode == 1 and not Path(out).exists()
    assert "MISSING  vectors no/such/file.txt, for c/r: there is no no/such/file.txt in" in checked.stdout
    done = reproduce(study, "--output_dir", out)
    assert done.returncode == 1 and "1 of 1 runs failed" in done.stderr and "Traceback" not in done.stderr
    assert "--retry_failed" in done.stderr and "| failed |" in done.stdout


@pytest.mark.parametrize("slurm", [["--slurm"], ["--slurm", "true"], ["--slurm=yes"]], ids="=".join)
def test_the_slurm_script_repeats_the_command(slurm: list[str], tmp_path: Path) -> None:
    done = run_recipe("reproduce", "table3", *slurm, "--seeds", "1", "--output_dir", str(tmp_path))
    script = done.stdout[done.stdout.index("#!/bin/bash") :]
    assert "--array=1-14%16" in script and "table3 --seeds 1" in script and "--slurm" not in script


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_say_what_they_need_to_uv_and_to_jobs(recipe: Path) -> None:
    import tomllib

    header_module = pytest.importorskip("huggingface_hub.cli._uv_script_header")
    text = recipe.read_text(encoding="utf-8")
    header = header_module.parse_uv_script_header(text)
    assert header is not None and header.flavor and header.timeout
    block = tomllib.loads(header_module._extract_pep_723_block(text))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours, *others = block["dependencies"]
    assert ours == f"{project['name']}[recipes]"
    assert others == (["trl>=1.16,<2"] if recipe.stem == "chat_tokens" else [])
    assert block["requires-python"] == ">=3.11"  # as scikit-learn and SciPy at the versions that recipes need


TINY = """\
title: Two processes
source: nobody
recipe: translate.py
arguments: {dataset: captions, init: xavier, d_model: 16, d_ff: 32, num_layers: 1, num_heads: 2,
            max_train_samples: 64, max_eval_samples: 8, max_predict_samples: 8, dropout_rate: 0,
            min_frequency: 1, num_train_epochs: 2, use_cpu: true}
values: [{title: loss, field: metrics/validation_loss}]
columns: {c: }
rows: {r: }
"""


@pytest.mark.timeout(900)
def test_two_processes_learn_what_one_learns_from_the_same_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    sharding_launcher(tmp_path, monkeypatch)
    arguments = yaml.safe_load(TINY)["arguments"] | {"per_device_train_batch_size": 16, "seed": 1}
    flags = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    alone = run_recipe("translate", *flags, "--output_dir", str(tmp_path / "one"))
    assert alone.returncode == 0, alone.stderr[-3000:]
    half = ("--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "ddp"))
    run_in_two_processes("translate", *flags, *half)
    monkeypatch.setenv("PYTHONPATH", LAUNCHING, prepend=os.pathsep)
    done = reproduce(
        *(str(tmp_path / "tiny.yaml"), "--set", "per_device_train_batch_size=8"),
        *("--output_dir", str(tmp_path / "fsdp"), "--accelerate_config", str(tmp_path / "fsdp.yaml")),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (sharded,) = (tmp_path / "fsdp" / "runs").rglob("results.json")
    folders = [tmp_path / "one", tmp_path / "ddp", sharded.parent]
    assert set((tmp_path / "sharded.txt").read_text().split("\n")) == {"FSDP 2", ""}
    records = [json.loads((folder / "results.json").read_text()) for folder in folders]
    assert [record["runtime"]["world_size"] for record in records] == [1, 2, 2]
    predicted = [(folder / "test_predictions.jsonl").read_text().splitlines() for folder in folders]
    assert [len(lines) for lines in predicted] == [8, 8, 8]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    for i in (1, 2):
        for row, other in zip(records[0]["history"], records[i]["history"], strict=True):
            assert row["step"] == other["step"]
            assert row["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
            assert row["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-5)
        tables = [name for name in weights[0] if "embed_tokens" in name]
        assert len(tables) == 2 and weights[i].keys() == weights[0].keys()
        for name in tables:
            torch.testing.assert_close(weights[i][name], weights[0][name], rtol=1e-3, atol=1e-5)
        # FSDP2 makes a class of its own, whose code must not be what is saved
        assert (folders[i] / "config.json").read_text() == (folders[0] / "config.json").read_text()
        assert {p.name for p in folders[i].glob("*.py")} == {p.name for p in folders[0].glob("*.py")}


SLOW = """
    import json, os, sys, time
    from pathlib import Path

    argv = sys.argv[1:]
    flags = {argv[i][2:]: argv[i + 1] for i in range(0, len(argv), 2)}
    folder = Path(flags["output_dir"])
    with open(folder / "starts.txt", "a") as file:
        file.write(f"{os.getpid()} {flags.pop('resume_from_checkpoint', None)}\\n")
    checkpoint = folder / "checkpoint-1"
    checkpoint.mkdir(exist_ok=True)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).write_text("x")
    (checkpoint / "trainer_state.json").write_text("{}")
    while not Path(flags["go"]).exists():
        time.sleep(0.05)
    record = {"arguments": flags, "metrics": {"x": 1}, "versions": {"hf_embinit": %r}}
    (folder / "results.json").write_text(json.dumps(record))
"""


@pytest.mark.timeout(900)
def test_no_cluster_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nStart one.")

    monkeypatch.setattr(pytest.importorskip("ray"), "init", init)
    launch = Launch(tmp_path, tmp_path, data_dir=None)
    with pytest.raises(InvalidArgumentError, match=r"--cluster auto: Could not find .* instance\. \(`ray st"):
        run_on_ray([], launch, address="auto")


def test_a_ray_cluster_loses_a_machine_and_no_run(tmp_path: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW % __version__))
    (tmp_path / "s.yaml").write_text(
        f"{{title: t, source: s, recipe: slow.py, seeds: 6, arguments: {{go: {tmp_path}/go}}, "
        "values: [{title: x, field: metrics/x}], "
        "columns: {c: }, rows: {r: }}"
    )
    runs = load_study(str(tmp_path / "s.yaml")).runs
    launch = Launch(tmp_path, tmp_path / "out")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    doomed = cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)

    def alive(pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"

    def kill_a_machine() -> None:
        wait_for(lambda: sum(path.exists() and bool(path.read_text()) for path in begun) >= 2, 400)
        flying = {p: int(p.read_text().split()[0]) for p in begun if p.exists()}
        parents = {p: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                   for p, pid in flying.items() if alive(pid)}  # fmt: skip
        cluster.remove_node(doomed, allow_graceful=False)
        wait_for(lambda: not all(map(alive, parents.values())), 400)
        for path, parent in parents.items():
            if not alive(parent) and alive(flying[path]):
                os.kill(flying[path], signal.SIGKILL)  # a machine that dies takes its processes with it
        (tmp_path / "go").touch()

    begun = [launch.folder(run) / "starts.txt" for run in runs]
    killer = threading.Thread(target=kill_a_machine)
    killer.start()
    try:
        outcomes = run_on_ray(runs, launch, address=cluster.address)
    finally:
        killer.join()
        ray.shutdown()
        cluster.shutdown()
    assert {o.status for o in outcomes} == {"finished"} and len(outcomes) == len(runs)
    starts = sorted((path.read_text().split()[1::2] for path in begun), key=len)
    assert starts == [["None"]] * 5 + [["None", "last"]]  # one went on elsewhere from its checkpoint
