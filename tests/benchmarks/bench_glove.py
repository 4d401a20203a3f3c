"""The GloVe trainer on a corpus of two million tokens: seconds to count and seconds an epoch.

    python tests/benchmarks/bench_glove.py [--tokens 2000000] [--dim 300] [--epochs 2] [--device cpu]

The corpus is drawn with Zipf frequencies and topics, so that its co-occurrences are as uneven as those of
text. `--epochs` are timed and 25 of them extrapolated; the target is 20 minutes on 2 cores. Beside it: a
trainer that gathers two rows a pair and scatters two gradients back, as a plain PyTorch one does.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from hf_embinit.vectors import glove


def corpus(num_tokens: int, vocabulary: int = 60_000, length: int = 20) -> list[list[str]]:
    """Sentences of 20 words; half the words come from the sentence's topic."""
    rng = np.random.default_rng(0)
    n = num_tokens // length
    ranks = np.minimum(rng.zipf(1.15, size=(n, length)), vocabulary)
    topical = rng.random((n, length)) < 0.5
    words = np.where(topical, (ranks * 7919 + rng.integers(0, 50, size=(n, 1)) * 104729) % vocabulary, ranks)
    return [[f"w{w}" for w in row] for row in words.tolist()]


def plain_pairs_per_second(counts: glove.Cooccurrences, dim: int, device: str, pairs: int = 100_000) -> float:
    """Pairs a second of a trainer that gathers rows and scatters gradients pair by pair."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(counts), generator=generator)[:pairs]
    rows = torch.from_numpy(counts.rows)[chosen].long().to(device)
    columns = torch.from_numpy(counts.columns)[chosen].long().to(device)
    logs = torch.from_numpy(counts.counts)[chosen].log().to(device)
    tables = [torch.randn(len(counts.words), dim, device=device) * 0.01 for _ in range(2)]
    squares = [torch.ones_like(t) for t in tables]
    start = time.perf_counter()
    w, c = tables[0][rows], tables[1][columns]
    residual = ((w * c).sum(1) - logs)[:, None] * 0.05
    for table, square, index, step in zip(
        tables, squares, (rows, columns), (residual * c, residual * w), strict=True
    ):
        table.index_add_(0, index, step / square[index].sqrt(), alpha=-1.0)
        square.index_add_(0, index, step**2)
    if device != "cpu":
        torch.cuda.synchronize()
    return pairs / (time.perf_counter() - start)


def main() -> None:
    """Count, train, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    sentences = corpus(args.tokens)
    start = time.perf_counter()
    counts = glove.count_cooccurrences(sentences, window=10, min_count=2)
    counting = time.perf_counter() - start
    size = f"{counts.num_tokens} tokens, {len(counts.words)} words, {len(counts)} pairs"
    print(f"{size}, counted in {counting:.1f} s")

    times = []
    for epochs in (1, 1 + args.epochs):  # the difference leaves out the making of batches
        start = time.perf_counter()
        glove.fit_glove(counts, dim=args.dim, epochs=epochs, device=args.device, progress=False)
        times.append(time.perf_counter() - start)
    epoch = (times[1] - times[0]) / args.epochs
    making = max(times[0] - epoch, 0.0)
    print(
        f"batches made in {making:.1f} s, {epoch:.2f} s an epoch: {len(counts) / epoch / 1e6:.2f} M pairs/s"
    )
    plain = plain_pairs_per_second(counts, args.dim, args.device)
    print(f"a plain trainer: {plain / 1e6:.2f} M pairs/s, {len(counts) / plain:.2f} s an epoch")
    total = counting + making + 25 * epoch
    print(f"25 epochs: {total / 60:.1f} min on {torch.get_num_threads()} threads (target: 20)")


if __name__ == "__main__":
    main()
