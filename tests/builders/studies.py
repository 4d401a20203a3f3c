"""A study of a toy recipe that takes no time: two columns, two rows, two seeds."""

from __future__ import annotations

import textwrap
from pathlib import Path

from hf_embinit import __version__
from hf_embinit.studies.scheduling import Launch

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
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
            (folder / "checkpoint-1" / name).write_text("x")
        (folder / "checkpoint-1" / "trainer_state.json").write_text("{}")
        while not Path(flags["wait_for"]).exists():
            time.sleep(0.02)
    if flags.get("fail") == "always" or (flags.get("fail") == "once" and not (folder / "failed").exists()):
        (folder / "failed").touch()
        raise RuntimeError("--fail was asked for")
    if flags.get("fail") == "told":
        sys.exit("error: there is no such file")
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


def toy_study(folder: Path) -> tuple[str, Launch]:
    """The path of the study's file in `folder`, and how its runs are launched."""
    (folder / "recipes").mkdir()
    (folder / "recipes" / "toy.py").write_text(textwrap.dedent(RECIPE % __version__))
    (folder / "toy.yaml").write_text(STUDY)
    return str(folder / "toy.yaml"), Launch(folder / "recipes", folder / "out")


def starts(launch: Launch, run) -> list[str]:
    """One line for each start of a run: its process and the checkpoint that it went on from."""
    path = launch.folder(run) / "starts.txt"
    return path.read_text().splitlines() if path.exists() else []
