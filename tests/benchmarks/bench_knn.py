"""KNN match similarity beside the bare matrix products of its size, in one run.

    python tests/benchmarks/bench_knn.py [--sizes 10000 50257] [--dim 512] [--device cpu]
    python tests/benchmarks/bench_knn.py --tokens 2000 --sizes 400000 --dim 100

The bare products are all V x V inner products of both tables, block by block into one buffer. The target is
1.15 times. With `--tokens` they are those of so many rows with all V, as in `hf-embinit analyze`. faiss's
exact index is timed beside them where it is installed (`pip install faiss-cpu`). Peak memory is the growth of
the process over the tables, on Linux.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hf_embinit.measures.knn import knn_match_similarity


def bare_products(*tables: torch.Tensor, tokens: torch.Tensor | None = None, block: int = 4096) -> None:
    for x in tables:
        asked = x if tokens is None else x[tokens]
        out = torch.empty(block, len(asked), device=x.device)
        for rows in x.split(block):
            torch.mm(rows, asked.T, out=out[: len(rows)])


def faiss_neighbors(*tables: torch.Tensor, k: int = 10) -> None:
    """The k + 1 nearest of every row by inner product: what a similarity is made of, without itself."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    for x in tables:
        index = faiss.IndexFlatIP(x.shape[1])
        index.add(x.cpu().numpy())
        index.search(x.cpu().numpy(), k + 1)


def seconds(fn: Callable[..., object], *tables: torch.Tensor, **options: object) -> float:
    start = time.perf_counter()
    fn(*tables, **options)
    if tables[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def resident_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 50_257], help="tokens V")
    parser.add_argument("--dim", type=int, default=512, help="columns D")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, help="rows that are asked for; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device = torch.device(args.device)
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, D={args.dim}")
    for v in args.sizes:
        generator = torch.Generator().manual_seed(0)
        tables = [torch.randn(v, args.dim, generator=generator).to(device) for _ in range(2)]
        tokens = None if args.tokens is None else torch.randperm(v, generator=generator)[: args.tokens]
        before = resident_mib("VmRSS")
        ratios, faiss_ratios = [], []
        for _ in range(args.repeats):
            ours = seconds(knn_match_similarity, *tables, tokens=tokens)
            growth = resident_mib("VmHWM") - before
            bare = seconds(bare_products, *tables, tokens=tokens)
            ratios.append(ours / bare)
            times = f"bare products {bare:8.3f} s  similarity {ours:8.3f} s  ratio {ours / bare:.2f}"
            if tokens is None and device.type == "cpu" and importlib.util.find_spec("faiss"):
                index = seconds(faiss_neighbors, *tables)
                faiss_ratios.append(index / bare)
                times += f"  faiss {index:8.3f} s  ratio {index / bare:.2f}"
            print(f"  V={v:>7,}  {times}", flush=True)
        memory = f", peak memory at most {growth:,.0f} MiB over the tables" if device.type == "cpu" else ""
        index = f", faiss {statistics.median(faiss_ratios):.2f}" if faiss_ratios else ""
        print(f"V={v:,}: median ratio {statistics.median(ratios):.2f}{index}{memory}", flush=True)


if __name__ == "__main__":
    main()
