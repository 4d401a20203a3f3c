"""What the weights of `focus` and `wechsel` cost beside the bare matrix products that they are made of.

    python tests/benchmarks/bench_similarity.py [--queries 6000] [--anchors 33000]

Queries are anchors with noise, as a token lies near some that are like it. Prints CPU seconds of the
products, in blocks, and how many times as long the weights take, the products included. Target: 1.3.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from hf_embinit.retokenize.similarity import cosine_blocks, softmax_weights, sparsemax_weights


def seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=6_000)
    parser.add_argument("--anchors", type=int, default=33_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    for width in (100, 300):
        anchors = torch.randn(args.anchors, width)
        near = torch.randperm(args.anchors)[: args.queries]
        queries = anchors[near] + 0.8 * torch.randn(len(near), width)
        bare = seconds(lambda: [None for _ in cosine_blocks(queries, anchors)])  # noqa: B023
        wechsel = seconds(lambda: softmax_weights(queries, anchors, neighbors=10, temperature=0.1))  # noqa: B023
        focus = seconds(lambda: sparsemax_weights(queries, anchors))  # noqa: B023
        print(
            f"width {width}: products {bare:.2f} s, wechsel {wechsel / bare:.2f} times, "
            f"focus {focus / bare:.2f} times as long"
        )


if __name__ == "__main__":
    main()
