"""What `Trainer` costs over a bare loop, and what grouping by length saves, at the paper's Multi30k size.

    python tests/benchmarks/bench_trainer.py [--steps 50] [--rounds 3] [--threads 2]

Needs Multi30k in HF_EMBINIT_DATA. The recipe's own data, collator and settings. In one process and in turn:
`Trainer` on batches grouped by length, a bare loop over the same batches with the same optimizer, and the
bare loop on random batches. Prints the ratio of step times (Trainer / bare loop, on the same batches), the
share of padding in each kind of batch, and the ratio of throughput in real tokens a second (grouped /
random). Batches come in random order: the more steps, the fairer the share of lengths.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback, set_seed

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
)
from hf_embinit.tasks.translation import PairCollator, encode_pairs, load_translation
from hf_embinit.training.sampler import LengthGroupedTraining, SequentialEvaluation

WIDTH, HEADS, BATCH = 300, 10, 64


class StepClock(TrainerCallback):
    """Seconds from the first step's begin to the last step's end."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.begin = time.perf_counter()

    def on_train_end(self, args, state, control, **kwargs):
        self.seconds = time.perf_counter() - self.begin


class Trainer(LengthGroupedTraining, SequentialEvaluation, Seq2SeqTrainer):
    """As in the recipe."""


def new_model(tokenizer) -> VanillaTransformerForConditionalGeneration:
    set_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer.encoder),
        decoder_vocab_size=len(tokenizer.target_encoder),
        d_model=WIDTH,
        num_heads=HEADS,
    )
    return VanillaTransformerForConditionalGeneration(config).train()


def new_trainer(tokenizer, data, steps: int, strategy: str, folder: str) -> tuple[Trainer, StepClock]:
    arguments = Seq2SeqTrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        train_sampling_strategy=strategy,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    clock = StepClock()
    trainer = Trainer(
        model=(model := new_model(tokenizer)),
        args=arguments,
        train_dataset=data,
        processing_class=tokenizer,
        data_collator=PairCollator(tokenizer, model=model),
        callbacks=[clock],
    )
    return trainer, clock


def bare_loop(tokenizer, loader: DataLoader, steps: int) -> tuple[float, int, float]:
    """Seconds, real tokens, and the share of padding among source and target positions."""
    model = new_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.0, fused=True)
    real = total = 0
    begin = time.perf_counter()
    for step, batch in enumerate(loader):
        if step == steps:
            break
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        real += int(batch["attention_mask"].sum()) + int((batch["labels"] != -100).sum())
        total += batch["input_ids"].numel() + batch["labels"].numel()
    return time.perf_counter() - begin, real, 1 - real / total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    train = load_translation("multi30k")["train"]
    tokenizer = VanillaTransformerTokenizer.build(
        train["source"][:], train["target"][:], source_lang="de", target_lang="en"
    )
    data = encode_pairs(train, tokenizer, max_source_length=128, max_target_length=128, desc="encoding")

    cost, gain, padding = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(arguments.rounds + 1):  # the first warms up
            trainer, clock = new_trainer(tokenizer, data, arguments.steps, "group_by_length", folder)
            trainer.train()
            set_seed(trainer.args.seed)
            loader = trainer.get_train_dataloader()
            grouped, grouped_tokens, grouped_padding = bare_loop(tokenizer, loader, arguments.steps)
            random_trainer, _ = new_trainer(tokenizer, data, arguments.steps, "random", folder)
            loader = random_trainer.get_train_dataloader()
            random, random_tokens, random_padding = bare_loop(tokenizer, loader, arguments.steps)
            if round_:
                cost.append(clock.seconds / grouped)
                gain.append((grouped_tokens / grouped) / (random_tokens / random))
                padding.append((grouped_padding, random_padding))
    setting = f"{BATCH} pairs a batch, {arguments.steps} steps, {arguments.threads} threads"
    print(f"{setting}, torch {torch.__version__}")
    print(
        f"Trainer / bare loop, time:            {statistics.median(cost):.3f}   {[round(c, 3) for c in cost]}"
    )
    print(
        f"grouped / random batches, throughput: {statistics.median(gain):.3f}   {[round(g, 3) for g in gain]}"
    )
    print(f"padding: grouped {padding[0][0]:.1%}, random {padding[0][1]:.1%}")


if __name__ == "__main__":
    main()
