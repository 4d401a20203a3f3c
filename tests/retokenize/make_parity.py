"""Makes `data/`: what other packages give for inputs of ours. Not run by the tests, which compare only.

    python tests/retokenize/make_parity.py

Needs, in an environment with this package and torch 2.13.0: nltk 3.10.4, mergekit 0.1.5.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


def nltk_model1() -> None:
    """Expected counts under nltk's IBM model 1, after five steps.

    No sentence has a word twice: nltk adds up the probabilities of both and divides each by the sum."""
    from nltk.translate import AlignedSent, IBMModel1

    draw = np.random.default_rng(3)
    num_old, num_new, iterations = 8, 9, 5
    old = [draw.integers(0, num_old, draw.integers(1, 6)).tolist() for _ in range(40)]
    new = [draw.permutation(num_new)[: draw.integers(1, 6)].tolist() for _ in range(40)]
    text = [AlignedSent([f"f{i}" for i in n], [f"e{i}" for i in o]) for o, n in zip(old, new, strict=True)]
    table = IBMModel1(text, iterations).translation_table
    counts = np.zeros((num_new, num_old))
    for o, n in zip(old, new, strict=True):
        for j in n:
            given = [table[f"f{j}"][f"e{i}"] for i in o]
            total = sum(given) + table[f"f{j}"][None]
            for i, p in zip(o, given, strict=True):
                counts[j, i] += p / total
    made = {"old": old, "new": new, "num_old": num_old, "num_new": num_new, "iterations": iterations}
    (DATA / "nltk_model1.json").write_text(json.dumps({**made, "counts": counts.round(9).tolist()}) + "\n")


def mergekit() -> None:
    """Supports and coefficients of its pursuit, weights of its interpolation."""
    import torch
    from mergekit.tokensurgeon.common_interpolation import WeightingScheme, common_interp_approximate
    from mergekit.tokensurgeon.omp import batch_omp

    draw = torch.Generator().manual_seed(0)
    points, targets = torch.randn(40, 20, generator=draw), torch.randn(6, 20, generator=draw)
    made = {"points": points, "targets": targets}
    for k in (4, 8):
        made[f"omp_ids_{k}"], made[f"omp_values_{k}"] = batch_omp(targets, points, k)
    schemes = {
        "inverse_distance": WeightingScheme.DISTANCE_PROPORTIONAL,
        "barycentric": WeightingScheme.BARYCENTRIC,
        "least_squares": WeightingScheme.LEAST_SQUARES,
    }
    for name, scheme in schemes.items():
        made["nearest"], made[name] = common_interp_approximate(targets, points, 6, weight_scheme=scheme)
    np.savez_compressed(DATA / "mergekit.npz", **{name: x.numpy() for name, x in made.items()})


def main() -> None:
    DATA.mkdir(exist_ok=True)
    nltk_model1()
    mergekit()


if __name__ == "__main__":
    main()
