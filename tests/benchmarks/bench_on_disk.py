"""How long a checkpoint of any size takes to expand in its files, against `cp -r`, and what memory it needs.

    python tests/benchmarks/bench_on_disk.py
    python tests/benchmarks/bench_on_disk.py --gib 16 --shards 30 --folder /data/tmp

Writes a sharded Llama in bfloat16 with an untied head to a temporary folder. Each repeat copies it by `cp -r`
and expands it in a process of its own, in turn, so that both read the same cache and write as many bytes; the
least time of each counts. The time is that of the work, without starting Python and importing. Memory is the
highest resident set of that process, and beside it what Python, torch and transformers need before any work.
Targets: 1.15 times `cp -r`; 256 MiB beyond the process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

EXPAND = """
import sys, time
from pathlib import Path
import hf_embinit.vocabulary
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, logging
from hf_embinit.resize import resize
from hf_embinit.rows import RowRequest
from hf_embinit.tables import EmbeddingTables, open_checkpoint, save_checkpoint
def resident(key):
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 1024
before, start = resident("VmHWM"), time.perf_counter()
model = open_checkpoint(sys.argv[1])
tables = EmbeddingTables(model)
resize(tables, tables.plan(tables.vocab_size() + 100), RowRequest(sys.argv[3]))
save_checkpoint(model, sys.argv[2], link=bool(int(sys.argv[4])))
print(time.perf_counter() - start, before, resident("VmHWM"))
"""


def write_checkpoint(folder: Path, gib: float, shards: int, rows: int, width: int) -> int:
    """A Llama whose layers fill `gib` GiB in all; gives its bytes."""
    folder.mkdir()
    inner = 4 * width
    of_tables, of_layer = 2 * rows * width, 2 * (4 * width * width + 3 * width * inner + 2 * width)
    layers = max(1, round((gib * 2**30 - 2 * of_tables) / of_layer))
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=8,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    shapes = {"model.embed_tokens.weight": (rows, width), "lm_head.weight": (rows, width)}
    shapes["model.norm.weight"] = (width,)
    for i in range(layers):
        layer = f"model.layers.{i}"
        shapes.update({f"{layer}.self_attn.{x}_proj.weight": (width, width) for x in "qkvo"})
        shapes.update({f"{layer}.mlp.{x}_proj.weight": (inner, width) for x in ("gate", "up")})
        shapes[f"{layer}.mlp.down_proj.weight"] = (width, inner)
        shapes.update({f"{layer}.{x}_layernorm.weight": (width,) for x in ("input", "post_attention")})
    names, weight_map = list(shapes), {}
    generator = torch.Generator().manual_seed(0)
    noise = torch.empty(2**20 + 7).normal_(generator=generator).to(torch.bfloat16)
    shards = min(shards, len(names))
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        tensors = {}
        for name in names[k * len(names) // shards : (k + 1) * len(names) // shards]:
            size = torch.Size(shapes[name]).numel()
            tensors[name] = noise.repeat(size // len(noise) + 1)[:size].reshape(shapes[name])
            weight_map[name] = file
        save_file(tensors, folder / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--shards", type=int, default=30)
    parser.add_argument("--rows", type=int, default=128_256)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--init", default="mean")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where to write; needs three times --gib")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        top = Path(temporary)
        size = write_checkpoint(top / "model", args.gib, args.shards, args.rows, args.width)
        table = args.rows * args.width * 2 / 2**20
        print(f"{size / 2**30:.1f} GiB, two tables of {table:.0f} MiB, init {args.init}")
        times: dict[str, list[float]] = {"cp -r": [], "expand": [], "expand --link": []}
        beyond = highest = 0.0
        for _ in range(args.repeats):
            start = time.perf_counter()
            subprocess.run(["cp", "-r", top / "model", top / "copy"], check=True)
            times["cp -r"].append(time.perf_counter() - start)
            shutil.rmtree(top / "copy")
            for what, link in (("expand", "0"), ("expand --link", "1")):
                words = [sys.executable, "-c", EXPAND, str(top / "model"), str(top / "new"), args.init, link]
                done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ})
                seconds, before, most = map(float, done.stdout.split())
                times[what].append(seconds)
                beyond, highest = max(beyond, most - before), max(highest, most)
                shutil.rmtree(top / "new")
        for what, taken in times.items():
            ratio = min(taken) / min(times["cp -r"])
            print(f"{what:>14} {min(taken):>7.1f} s {ratio:>6.2f}x")
        print(f"memory: {highest:.0f} MiB at most, {beyond:.0f} MiB beyond Python and its imports")


if __name__ == "__main__":
    main()
