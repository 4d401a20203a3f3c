"""What it costs to change a checkpoint of any size in its files: bytes and seconds of `cp -r`, and memory.

    python tests/benchmarks/bench_on_disk.py
    python tests/benchmarks/bench_on_disk.py --gib 15 --shards 30 --repeats 1 --folder /data/tmp
    python tests/benchmarks/bench_on_disk.py --only copy expand --repeats 7

Writes a sharded Llama in bfloat16 with an untied head to a temporary folder, and an adapter with LoRA on all
of its attention. It is copied (nothing changes), expanded, expanded with the KL divergence measured on one
text, and merged with the adapter in processes of their own. Right before each, `cp -r` copies it, and the
ratio of the two times counts, the median of all repeats, once from a cold cache (before either the disk is
synced and the files leave the cache) and once from a warm one (they are read before either). The time is that
of the work, without starting Python and importing; seconds of CPU stand beside it. Each process may have
`--limit` GiB of data in memory and no more (RLIMIT_DATA, which counts private pages whether touched or not;
it does not fit the measured one, which maps all files). Beside the highest resident set stands what it is
beyond Python, torch and transformers before any work. Targets: a copied folder in 1.15 times the bytes and
seconds of `cp -r`; 256 MiB beyond the process, and 1 GiB in all. Where the model is measured, memory holds
its largest layer and the logits, before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, PreTrainedTokenizerFast

WORK = """
import resource, sys, time
from pathlib import Path
what, source, target, adapter, init, limit = sys.argv[1:]
limit = int(float(limit) * 2**30)
if what != "measured":
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
import accelerate, hf_embinit.vocabulary, peft
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, logging
from hf_embinit.resize import resize
from hf_embinit.rows import RowRequest
from hf_embinit.tables import EmbeddingTables, open_checkpoint, save_checkpoint
def resident(key):
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 1024
before, start, cpu = resident("VmHWM"), time.perf_counter(), time.process_time()
model = open_checkpoint(source)
if what.startswith("expand"):
    tables = EmbeddingTables(model)
    resize(tables, tables.plan(tables.vocab_size() + 100), RowRequest(init))
if what == "measured":
    tokenizer = AutoTokenizer.from_pretrained(adapter + "/tokenizer")
    text = " ".join(f"w{i}" for i in range(64))
    print(hf_embinit.expand_vocabulary(model, tokenizer, ["new", "newer"], init, prefixes=[text]))
if what == "merge":
    model = hf_embinit.merge_adapter(hf_embinit.vocabulary.attach_adapter(model, adapter))
save_checkpoint(model, target, link=what.endswith("--link"))
print(time.perf_counter() - start, time.process_time() - cpu, before, resident("VmHWM"))
"""
CACHES = ("cold", "warm")
KINDS = ("copy", "expand", "expand --link", "measured", "merge")


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


def write_adapter(folder: Path, model: Path) -> None:
    """LoRA of rank 8 on the four matrices of every attention."""
    config = LlamaConfig.from_pretrained(model)
    width, tensors = config.hidden_size, {}
    generator = torch.Generator().manual_seed(1)
    for i in range(config.num_hidden_layers):
        for x in "qkvo":
            name = f"base_model.model.model.layers.{i}.self_attn.{x}_proj"
            for side, shape in (("A", (8, width)), ("B", (width, 8))):
                tensors[f"{name}.lora_{side}.weight"] = torch.randn(shape, generator=generator) / 100
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    LoraConfig(r=8, target_modules=[f"{x}_proj" for x in "qkvo"]).save_pretrained(folder)


def write_tokenizer(folder: Path, rows: int) -> None:
    """A word for each row."""
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(rows)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def prepare(folder: Path, cache: str) -> None:
    """Takes the files of a folder out of the cache, so that the disk is read; or into it."""
    os.sync()
    for path in folder.iterdir():
        with path.open("rb") as file:
            if cache == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while cache == "warm" and file.read(2**24):
                pass


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
    parser.add_argument("--limit", type=float, default=1.0, help="GiB of data of each process")
    parser.add_argument(
        "--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS)
    )
    parser.add_argument("--folder", help="where to write; needs twice --gib")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        top = Path(temporary)
        model, new = top / "model", top / "new"
        size = write_checkpoint(model, args.gib, args.shards, args.rows, args.width)
        write_adapter(top / "adapter", model)
        write_tokenizer(top / "adapter" / "tokenizer", args.rows)
        table = args.rows * args.width * 2 / 2**20
        print(f"{size / 2**30:.1f} GiB in {args.shards} files, two tables of {table:.0f} MiB, {args.init}")
        ratios: dict[str, dict[str, list[float]]] = {kind: {c: [] for c in CACHES} for kind in args.only}
        memory = dict.fromkeys(KINDS, (0.0, 0.0))
        for kind, cache in [(k, c) for _ in range(args.repeats) for k in args.only for c in CACHES]:
            prepare(model, cache)
            start, used = time.perf_counter(), os.times()
            subprocess.run(["cp", "-r", model, new], check=True)
            of_cp, cpu_of_cp = time.perf_counter() - start, sum(os.times()[2:4]) - sum(used[2:4])
            shutil.rmtree(new)
            prepare(model, cache)
            words = [kind, str(model), str(new), str(top / "adapter"), args.init, str(args.limit)]
            done = subprocess.run([sys.executable, "-c", WORK, *words], stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{kind} failed")
            seconds, cpu, before, most = map(float, done.stdout.split()[-4:])
            ratios[kind][cache].append(seconds / of_cp)
            memory[kind] = max(memory[kind], (most, most - before))
            written = sum(p.stat().st_size for p in new.iterdir() if p.stat().st_nlink == 1)
            shutil.rmtree(new)
            ours, theirs = f"{seconds:>7.1f} s ({cpu:.1f} of CPU)", f"cp -r {of_cp:.1f} s ({cpu_of_cp:.1f})"
            print(f"{kind:>14} {cache} {ours}, {theirs}, {written / size:.3f}x its bytes")
        for kind, found in ratios.items():
            most, beyond = memory[kind]
            times = ", ".join(f"{statistics.median(found[cache]):.2f}x seconds {cache}" for cache in CACHES)
            print(f"{kind:>14} {times}, {most:.0f} MiB resident, {beyond:.0f} beyond the imports")


if __name__ == "__main__":
    main()
