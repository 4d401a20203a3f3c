"""The records of `recipes/results`, and the choice of comparable runs among them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hf_embinit.studies.comparisons import t_interval

from . import ROOT

RESULTS = ROOT / "recipes" / "results"


def page_of(path: str | Path) -> str:
    """A page of the repository with its line breaks taken out."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def table_of(study: str) -> str:
    """The committed table of a study."""
    return (RESULTS / "reproduce" / study / "table.md").read_text(encoding="utf-8")


def gaps(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> list[float]:
    """Ours minus theirs, of the seeds that both have."""
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def with_sd(numbers: Iterable[float]) -> str:
    """Mean and standard deviation as pages have them: `37.3 (0.4)`."""
    numbers = list(numbers)
    return f"{statistics.fmean(numbers):.1f} ({statistics.stdev(numbers):.1f})"


def mean_and_interval(numbers: Sequence[float]) -> tuple[float, float, float]:
    """The mean of numbers, and the ends of its 95% t interval."""
    interval = t_interval(numbers)
    assert interval is not None
    return statistics.fmean(numbers), *interval


@cache
def committed_records() -> dict[str, dict]:
    """Every `results.json` by its path below `recipes/results`; to be read, not changed."""
    return {
        path.relative_to(RESULTS).as_posix(): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.rglob("results.json"))
    }


def translations(
    dataset: str,
    init: str,
    options: str | None = None,
    *,
    frozen: bool = False,
    positions: str = "sinusoidal",
    scale: float = 1.0,
    gpu: bool = False,
    bf16: bool = True,
) -> dict[int, dict]:
    """The runs of words that differ in their seed alone, by seed; of Multi30k those of the paper's length, on
    a CPU of one precision."""
    found: dict[int, dict] = {}
    for name, record in committed_records().items():
        given = record["arguments"]
        if f"reproduce/runs/translate/{dataset}-words-" not in name or record["init"] != init:
            continue
        if dataset == "multi30k" and (
            (given["num_train_epochs"], given["max_steps"]) != (20, -1)
            or (not gpu and given["bf16"] is not bf16)
        ):
            continue
        asked = (options, frozen, positions, scale, gpu)
        has = (
            given.get("init_options"),
            given["freeze_embeddings"],
            given["position_encoding"],
            given.get("position_scale", 1.0),
            bool(given.get("cuda_graphs")),
        )
        if has == asked:
            assert record["seed"] not in found, name
            found[record["seed"]] = record
    return found


def multi30k_runs(init: str, **choice) -> dict[int, dict]:
    """`translations` of Multi30k."""
    return translations("multi30k", init, **choice)


def multi30k_scores(init: str, metric: str, **choice) -> dict[int, float]:
    """A measure of `multi30k_runs` by seed."""
    return {seed: record["metrics"][metric] for seed, record in multi30k_runs(init, **choice).items()}
