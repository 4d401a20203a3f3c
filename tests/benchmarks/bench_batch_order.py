"""Does accuracy depend on the order of the batches? SST-2's first epoch, words, Xavier, the paper's settings.

    python tests/benchmarks/bench_batch_order.py [--last 87] [--every 3] [--seed 1]

Needs SST-2 in HF_EMBINIT_DATA. One model, one initialisation, three orders of the training data:
transformers' length groups (each fifty batches from long to short), ours (batches of like length in random
order), and random batches. Prints the validation accuracy over the last steps of the epoch, mean (least to
most), and how much of it follows the share of positive labels in the model's answers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import hf_embinit
from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerTokenizer,
)
from hf_embinit.tasks.classification import encode_texts, preset
from hf_embinit.tasks.classification_data import load_classification
from hf_embinit.tasks.encoded import TextCollator, sort_by_length
from hf_embinit.training.sampler import LengthGroupedTraining


class Validation(TrainerCallback):
    """Accuracy and the share of positive answers, every few of an epoch's last steps."""

    def __init__(self, data, collator, last: int, every: int) -> None:
        self.batches = [collator([data[i] for i in range(j, min(j + 128, len(data)))])
                        for j in range(0, len(data), 128)]  # fmt: skip
        self.last, self.every = last, every
        self.accuracy: list[float] = []
        self.positive: list[float] = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.max_steps - state.global_step >= self.last or state.global_step % self.every:
            return
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            answers = [(model(**batch).logits.argmax(-1), batch["labels"]) for batch in self.batches]
        model.train()
        said, true = (torch.cat(column) for column in zip(*answers, strict=True))
        self.accuracy.append((said == true).float().mean().item())
        self.positive.append(said.float().mean().item())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--last", type=int, default=87)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    _, data = load_classification("sst2")
    tokenizer = VanillaTransformerTokenizer.build(
        data["train"]["text"][:], tokenizer="words", source_lang="en", min_frequency=2
    )
    encoded = {s: encode_texts(data[s], tokenizer, max_length=128, desc=s) for s in ("train", "validation")}
    _, validation = sort_by_length(data["validation"], encoded["validation"])
    collator = TextCollator(tokenizer)
    shared = {k: v for k, v in preset("sst2", "vanilla", "words").items()
              if k in TrainingArguments.__dataclass_fields__}  # fmt: skip
    size = {k: v for k, v in preset("sst2", "vanilla", "words").items()
            if k in ("d_model", "d_ff", "num_layers", "num_heads", "dropout_rate", "norm_position",
                     "position_encoding")}  # fmt: skip

    class Ours(LengthGroupedTraining, Trainer):
        """As in the recipe."""

    orders = {
        "long to short": (Trainer, "group_by_length"),
        "like length, random order": (Ours, "group_by_length"),
        "random": (Trainer, "random"),
    }
    for name, (trainer_class, strategy) in orders.items():
        set_seed(arguments.seed)
        model = VanillaTransformerForSequenceClassification(
            VanillaTransformerConfig(vocab_size=len(tokenizer.encoder), num_labels=2, **size)
        )
        hf_embinit.initialize(model, "xavier", tokenizer=tokenizer, seed=arguments.seed)
        watch = Validation(validation, collator, arguments.last, arguments.every)
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                **shared, "output_dir": folder, "num_train_epochs": 1, "seed": arguments.seed, "bf16": True,
                "use_cpu": True, "train_sampling_strategy": strategy, "remove_unused_columns": False,
                "save_strategy": "no", "eval_strategy": "no", "disable_tqdm": True, "report_to": [],
                "dataloader_pin_memory": False,
            }  # fmt: skip
            trainer_class(
                model=model, args=TrainingArguments(**settings), train_dataset=encoded["train"],
                processing_class=tokenizer, data_collator=collator, callbacks=[watch],
            ).train()  # fmt: skip
        both = statistics.correlation(watch.accuracy, watch.positive)
        print(
            f"{name:<26} accuracy {statistics.fmean(watch.accuracy):.3f} ({min(watch.accuracy):.3f} to "
            f"{max(watch.accuracy):.3f}), answers positive {min(watch.positive):.2f} to "
            f"{max(watch.positive):.2f}, correlation {both:+.2f}, over the last {arguments.last} steps",
            flush=True,
        )


if __name__ == "__main__":
    main()
