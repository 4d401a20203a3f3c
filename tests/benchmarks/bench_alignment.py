"""Seconds and memory of `count_alignments` on as many pairs of sentences as are asked for.

    python tests/benchmarks/bench_alignment.py [--pairs 1000000] [--length 14]

Sentences are drawn: the frequency of the n-th token is proportional to 1 / (n + 3), the vocabularies have
30,522 and 32,000 tokens, lengths are spread around `--length`, and a translation holds a fixed new token for
each old one, in another order, some left out and some of chance. Prints CPU seconds and wall seconds of both
directions, five steps each, the highest resident set, and the share of tokens whose translation is the one
with the largest count.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from hf_embinit.retokenize import count_alignments

OLD, NEW = 30_522, 32_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=14)
    arguments = parser.parse_args()

    draw = np.random.default_rng(0)
    frequency = 1 / (np.arange(OLD) + 3)
    to_new = draw.permutation(NEW)[:OLD]
    lengths = np.clip(draw.poisson(arguments.length, arguments.pairs), 2, 100)
    stream = draw.choice(OLD, int(lengths.sum()), p=frequency / frequency.sum())
    old, new, start = [], [], 0
    for length in lengths.tolist():
        said = stream[start : start + length]
        start += length
        heard = to_new[said[draw.random(length) < 0.85]]
        old.append(said.tolist())
        new.append(np.append(draw.permutation(heard), draw.integers(NEW, size=1)).tolist())

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    wall, cpu = time.perf_counter(), time.process_time()
    counts = count_alignments(old, new, num_old=OLD, num_new=NEW)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cells = sum(len(a) * len(b) for a, b in zip(old, new, strict=True))
    best = np.zeros(NEW, dtype=np.int64)
    order = np.argsort(counts.counts, kind="stable")
    best[counts.new_ids[order]] = counts.old_ids[order]
    seen = np.unique(stream)
    right = float((best[to_new[seen]] == seen).mean())
    print(
        f"{counts.pairs:,} pairs, {cells:,} cells, {len(counts.counts):,} links: {cpu:.0f} s of CPU, "
        f"{wall:.0f} s, {before:.0f} -> {after:.0f} MiB at most, {right:.3f} of tokens translated right"
    )


if __name__ == "__main__":
    main()
