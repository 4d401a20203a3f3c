"""What `--cuda_graphs` gains at the paper's Multi30k size, and that it computes the same. Needs a CUDA GPU.

    python tests/benchmarks/bench_cuda_graphs.py [--steps 100] [--rounds 3]

Needs Multi30k in HF_EMBINIT_DATA. The recipe's data, collator, model, settings and Trainer. First two models
of one seed without dropout, in float32, one with its steps as graphs: prints the largest difference of a
step's loss, in the first ten steps and in all. (Sums are in another order, and Adam makes 1e-6 grow: on a
CPU, with the same two ways to sum, to 3e-6 in ten steps and 4e-3 in forty.) Then, with dropout and TF32, the
median time of a step of both on the same batches, and the ratio. Ends with 1 when the first ten differ by
more than 1e-3.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time

import torch
from bench_trainer import BATCH, HEADS, WIDTH
from transformers import Seq2SeqTrainingArguments, TrainerCallback, set_seed

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from hf_embinit.tasks.translation import PairCollator, encode_pairs, load_translation
from hf_embinit.training.graphs import PADDED_TO, StepGraphs
from hf_embinit.training.loop import GeneratingTrainer


class Clock(TrainerCallback):
    """Seconds of the steps after those in which graphs are captured."""

    def __init__(self, skipped: int) -> None:
        self.skipped, self.begin, self.seconds, self.losses = skipped, 0.0, 0.0, []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.skipped:
            torch.cuda.synchronize()
            self.begin = time.perf_counter()
        if state.global_step == state.max_steps:
            torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.begin

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses += [float(logs["loss"])] if "loss" in logs else []


def train(tokenizer, data, *, graphs: bool, steps: int, dropout: float, tf32: bool, skipped: int, log: bool):
    set_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=len(tokenizer.target_encoder), d_model=WIDTH, d_ff=512,
        num_layers=3, num_heads=HEADS, dropout_rate=dropout, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config)
    clock = Clock(skipped)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GeneratingTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                folder,
                max_steps=steps,
                per_device_train_batch_size=BATCH,
                learning_rate=2e-4,
                adam_beta2=0.98,
                adam_epsilon=1e-9,
                lr_scheduler_type="constant",
                tf32=tf32,
                train_sampling_strategy="group_by_length",
                remove_unused_columns=False,
                logging_strategy="steps" if log else "no",
                logging_steps=1,
                logging_nan_inf_filter=False,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=data,
            data_collator=PairCollator(tokenizer, model=model, pad_to_multiple_of=PADDED_TO),
            callbacks=[clock],
        )
        trainer.graphs = StepGraphs() if graphs else None
        trainer.train()
    return clock, len(trainer.graphs.captured) if graphs else 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA GPU")
    texts = load_translation("multi30k")["train"]
    tokenizer = VanillaTransformerTokenizer.build(
        texts["source"][:], texts["target"][:], source_lang="de", target_lang="en"
    )
    data = encode_pairs(texts, tokenizer, max_source_length=128, max_target_length=128, desc="encoding")

    steps, plain = arguments.steps, {"dropout": 0.0, "tf32": False, "skipped": 1, "log": True}
    a, _ = train(tokenizer, data, graphs=False, steps=steps, **plain)
    b, captured = train(tokenizer, data, graphs=True, steps=steps, **plain)
    apart = [abs(x - y) for x, y in zip(a.losses, b.losses, strict=True)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {captured} graphs, {steps} steps")
    print(f"loss {a.losses[0]:.4f} to {a.losses[-1]:.4f} and {b.losses[-1]:.4f}")
    print(f"largest difference of a loss {max(apart[:10]):.2e}, of all {max(apart):.2e}", flush=True)
    if not max(apart[:10]) < 1e-3:
        sys.exit(1)
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(arguments.rounds):
        for graphs, seconds in taken.items():
            timed = {"dropout": 0.1, "tf32": True, "skipped": steps, "log": False}
            clock, _ = train(tokenizer, data, graphs=graphs, steps=2 * steps, **timed)
            seconds.append(1000 * clock.seconds / steps)
    bare, graphed = (statistics.median(seconds) for seconds in taken.values())
    print(f"a step: {bare:.2f} ms by the Trainer, {graphed:.2f} ms as graphs, ratio {bare / graphed:.2f}")


if __name__ == "__main__":
    main()
