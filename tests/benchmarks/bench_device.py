"""Tokens a second of training at the paper's Multi30k size: GPU beside CPU, float32, bfloat16, compiled.

    python tests/benchmarks/bench_device.py [--steps 30] [--rounds 3] [--threads 2] [--devices cpu cuda]

Needs Multi30k in HF_EMBINIT_DATA. The recipe's data, collator, model and settings, and a bare loop over the
same batches on every device. Prints real tokens a second (source and target, without padding), the median of
the rounds, the ratio to the first mode on the first device in the same run, and the minutes that 20 epochs of
steps would take at that pace, without validation. The first round compiles and is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
from bench_trainer import BATCH, new_model
from torch.utils.data import DataLoader

from hf_embinit.models import VanillaTransformerTokenizer
from hf_embinit.tasks.translation import PairCollator, encode_pairs, load_translation

MODES = ("float32", "bfloat16", "bfloat16, compiled")


def tokens_of(batch) -> int:
    return int(batch["attention_mask"].sum()) + int((batch["labels"] != -100).sum())


class Loop:
    """A model, its optimizer, and the seconds of some steps on one device."""

    def __init__(self, tokenizer, device: str, mode: str) -> None:
        self.device, self.half = device, mode != "float32"
        self.model = new_model(tokenizer).to(device)
        self.run = torch.compile(self.model, dynamic=True) if "compiled" in mode else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-4, weight_decay=0.0, fused=True)

    def seconds(self, batches: list[dict[str, torch.Tensor]]) -> float:
        self._wait()
        begin = time.perf_counter()
        for batch in batches:
            with torch.autocast(self.device, torch.bfloat16) if self.half else nullcontext():
                loss = self.run(**{key: value.to(self.device) for key, value in batch.items()}).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.accelerator.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    found = [torch.accelerator.current_accelerator().type] if torch.accelerator.is_available() else []
    parser.add_argument("--devices", nargs="+", default=["cpu", *found])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="base of the ratio first")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    train = load_translation("multi30k")["train"]
    tokenizer = VanillaTransformerTokenizer.build(
        train["source"][:], train["target"][:], source_lang="de", target_lang="en"
    )
    data = encode_pairs(train, tokenizer, max_source_length=128, max_target_length=128, desc="encoding")
    collator = PairCollator(tokenizer, model=new_model(tokenizer))
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(data, BATCH, shuffle=True, generator=generator, collate_fn=collator)
    batches = [batch for _, batch in zip(range(arguments.steps), loader, strict=False)]
    tokens, epoch = sum(map(tokens_of, batches)), len(loader)

    loops = {(d, mode): Loop(tokenizer, d, mode) for d in arguments.devices for mode in arguments.modes}
    taken = {
        key: [loop.seconds(batches) for _ in range(arguments.rounds + 1)][1:] for key, loop in loops.items()
    }
    base = statistics.median(taken[arguments.devices[0], arguments.modes[0]])
    setting = f"{BATCH} pairs a batch, {len(batches)} random batches, {arguments.threads} threads"
    print(f"{setting}, torch {torch.__version__}")
    print(f"{'device':8} {'mode':20} {'tokens/s':>10} {'ratio':>7} {'20 epochs, minutes':>20}")
    for (device, mode), seconds in taken.items():
        typical = statistics.median(seconds)
        minutes = typical / len(batches) * epoch * 20 / 60
        print(f"{device:8} {mode:20} {tokens / typical:10,.0f} {base / typical:7.2f} {minutes:20.1f}")
    if torch.cuda.is_available():
        print(f"cuda: {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
