"""Time and memory of a whole resize: `patch(model, "mean_cov")` against the library's `mean_resizing=True`.

    python tests/benchmarks/bench_expansion.py
    python tests/benchmarks/bench_expansion.py --sizes 50257x768 --rows 8 100 --dtypes float32 --repeats 5
    python tests/benchmarks/bench_expansion.py --tokenizer bert-base-multilingual-cased --tokens 10000

The last compares `expand_vocabulary` (without the comparison of distributions) with `add_tokens` and a plain
resize, for a tied table of mBERT's size. It takes turns and gives the median of CPU seconds, in which what
else the machine does counts little.

Both resize the same model in turns, in one process: tied embeddings without layers, values with a mean.
The time is the median of the repeats; the extra memory is the highest resident set during the resize minus
that before it, so it includes the new matrix, whose size stands beside it.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, logging

import hf_embinit
from hf_embinit.vectors import PretrainedVectors


def model_of(vocab_size: int, width: int, dtype: torch.dtype) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=8,
        num_hidden_layers=0,
        num_attention_heads=8,
        tie_word_embeddings=True,
        dtype=dtype,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.to(dtype)
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for rows in model.model.embed_tokens.weight.split(8192):
            rows.copy_(torch.randn(rows.shape, generator=generator) * 0.02 + 0.01)
    return model


def resident(key: str) -> float:
    """MiB from /proc/self/status: `VmRSS` now, `VmHWM` the highest since it was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def measure(
    vocab_size: int, width: int, dtype: torch.dtype, new_rows: int, ours: bool
) -> tuple[float, float]:
    """Seconds and MiB beyond what was resident before."""
    model = model_of(vocab_size, width, dtype)
    if ours:
        hf_embinit.patch(model, "mean_cov")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before does not count
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    start = time.perf_counter()
    model.resize_token_embeddings(vocab_size + new_rows, **({} if ours else {"mean_resizing": True}))
    seconds = time.perf_counter() - start
    extra = resident("VmHWM") - before
    rows = model.get_output_embeddings().weight[vocab_size:]
    assert len(rows) == new_rows and bool(torch.isfinite(rows).all())
    if ours:
        assert len(torch.unique(rows.float(), dim=0)) == new_rows
    return seconds, extra


def measure_tokens(name: str, count: int, width: int) -> None:
    """Prints the CPU seconds of adding `count` tokens, plain and by each initialiser, and the ratio."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokens = [f"zq{i}xv" for i in range(count)]
    named: dict[str, dict[str, Any]] = {"copy": {"of": 5}, "description": {"text": "a word"}}
    generator = torch.Generator().manual_seed(0)
    words = [*tokens[::2], *(w for w in tokenizer.get_vocab() if w.isalpha())]
    vectors = PretrainedVectors(words, torch.randn(len(words), width, generator=generator), "drawn")
    records = []
    for record in hf_embinit.list_initializers():
        whole = record.name == "pretrained_orthogonal"  # of whole tables alone
        if record.purpose != "tokenizer" and not whole and "vectors" not in record.defaults:
            records.append(record.name)
            named.setdefault(record.name, {"vectors": vectors} if "vectors" in record.needs else {})

    def seconds(init: str | None) -> float:
        model, own = model_of(len(tokenizer), width, torch.float32), copy.deepcopy(tokenizer)
        start = time.process_time()
        if init is None:
            own.add_tokens(tokens)
            model.resize_token_embeddings(len(own))
        else:
            hf_embinit.expand_vocabulary(model, own, tokens, init, prefixes=(), **named[init])
        return time.process_time() - start

    seconds("mean"), seconds(None)  # imports and first calls
    taken: dict[str | None, list[float]] = {init: [] for init in (None, *records)}
    for _ in range(3):
        for init, times in taken.items():
            times.append(seconds(init))
    plain = statistics.median(taken[None])
    print(f"{count:,} tokens for {len(tokenizer):,} x {width}, CPU seconds")
    for init, times in taken.items():
        median = statistics.median(times)
        print(f"{init or 'add_tokens and resize':>24} {median:>7.2f}s {median / plain:>6.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["50257x768", "32000x4096", "128256x4096"])
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 100, 1000])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", help="folder or Hub id: add --tokens to this one instead")
    parser.add_argument("--tokens", type=int, default=10000)
    parser.add_argument("--width", type=int, default=768, help="of the table that --tokenizer's rows are in")
    args = parser.parse_args()
    logging.set_verbosity_error()
    if args.tokenizer:
        measure_tokens(args.tokenizer, args.tokens, args.width)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{'size':>13} {'dtype':>9} {'rows':>5} {'library':>9} {'ours':>8} {'ratio':>6} {'library':>9} "
        f"{'ours':>8} new matrix"
    )
    measure(1000, 64, torch.float32, 8, True)  # imports and first calls
    measure(1000, 64, torch.float32, 8, False)
    for size in args.sizes:
        vocab_size, width = map(int, size.split("x"))
        for name in args.dtypes:
            dtype = getattr(torch, name)
            for new_rows in args.rows:
                runs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for _ in range(args.repeats):
                    for ours in (False, True):
                        runs[ours].append(measure(vocab_size, width, dtype, new_rows, ours))
                seconds = {o: statistics.median(r[0] for r in runs[o]) for o in runs}
                extra = {o: max(r[1] for r in runs[o]) for o in runs}
                matrix = (vocab_size + new_rows) * width * dtype.itemsize / 2**20
                print(
                    f"{size:>13} {name:>9} {new_rows:>5} {seconds[False]:>8.2f}s {seconds[True]:>7.2f}s "
                    f"{seconds[False] / seconds[True]:>5.1f}x "
                    f"{extra[False]:>6.0f}MiB {extra[True]:>5.0f}MiB {matrix:>7.0f}MiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
