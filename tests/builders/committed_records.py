"""The records of `recipes/results`, and the choice of comparable runs among them."""

from __future__ import annotations

import json
from functools import cache

from . import ROOT

RESULTS = ROOT / "recipes" / "results"


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
) -> dict[int, dict]:
    """The runs of words that differ in their seed alone, by seed; of Multi30k those of the paper's length."""
    found: dict[int, dict] = {}
    for name, record in committed_records().items():
        given = record["arguments"]
        if f"reproduce/runs/translate/{dataset}-words-" not in name or record["init"] != init:
            continue
        if dataset == "multi30k" and (given["num_train_epochs"], given["max_steps"]) != (20, -1):
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
