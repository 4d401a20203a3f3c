"""How long another tokenizer for a model with a large vocabulary takes, and what memory beside the tables.

    python tests/benchmarks/bench_retokenize.py
    python tests/benchmarks/bench_retokenize.py --old 32000 --new 50000 --width 2048

A tied table in bfloat16 gets the rows of another tokenizer that shares a third of its tokens; the others are
words of two or three pieces. Each case runs in a process of its own. `fvt` is `replace_tokenizer` as a whole,
both tokenizers read; `counts` is what any method costs once it has its weights, sixteen a row, which is what
alignment counts come to. Memory is the highest resident set, less what stood before and the new table.
Targets: 60 s on two cores and 4 GiB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

WORK = """
import sys, time, itertools
from pathlib import Path
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
import hf_embinit
from hf_embinit.retokenize import Coefficients, rows_of_table
case, olds, news, width = sys.argv[1], *map(int, sys.argv[2:])

def words(count):
    letters = itertools.product("bcdfghklmnprstw", "aeiou", repeat=3)
    return ["".join(word) for word in itertools.islice(letters, count)]

def tokenizer(tokens):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *tokens]
    backend = Tokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)

half = (olds - 4) // 2
stems = words(half)
old = tokenizer([*stems, *("##" + w for w in stems)])
shared = stems[: news // 3]
rest = news - 4 - len(shared)

def joined(i):
    parts = [stems[i % half], stems[(i + 17 * (i // half) + 5) % half], stems[7 * i % half]]
    return "".join(parts[: 2 + i % 2])

new = tokenizer([*shared, *map(joined, range(rest))])

def resident(key):
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) / 2**20

config = LlamaConfig(vocab_size=len(old), hidden_size=width, intermediate_size=8, num_hidden_layers=1,
                     num_attention_heads=32, num_key_value_heads=1, tie_word_embeddings=True)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
model = model.to_empty(device="cpu").to(torch.bfloat16)
model.get_input_embeddings().weight.data.normal_()
model.tie_weights()
before, start, worked = resident("VmRSS"), time.perf_counter(), time.process_time()
if case == "fvt":
    report = hf_embinit.replace_tokenizer(model, old, new, "fvt")
    note = report.steps
else:
    ids = torch.randint(len(old), (16 * news,))
    rows = torch.arange(news).repeat_interleave(16)
    made = Coefficients.from_coo(rows, ids, torch.rand(len(ids)), (news, len(old))).normalised()
    start, worked = time.perf_counter(), time.process_time()
    rows_of_table(made, model.get_input_embeddings().weight.detach(), torch.Generator())
    note = f"{len(made.values)} weights"
seconds, worked = time.perf_counter() - start, time.process_time() - worked
table = 2 * news * width / 2**30
memory = resident("VmHWM") - before - table
times = f"{seconds:6.1f} s ({worked:.1f} s of processors)"
print(f"{case:<7} {times}   {memory:5.2f} GiB beside the tables   {note}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--old", type=int, default=128_000, help="tokens of the old tokenizer")
    parser.add_argument("--new", type=int, default=100_000, help="tokens of the new tokenizer")
    parser.add_argument("--width", type=int, default=4096, help="width of the table")
    args = parser.parse_args()
    for case in ("fvt", "counts"):
        numbers = [str(n) for n in (args.old, args.new, args.width)]
        subprocess.run([sys.executable, "-c", WORK, case, *numbers], check=True)


if __name__ == "__main__":
    main()
