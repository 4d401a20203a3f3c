"""A training step at the paper's Multi30k size against its own matrix products, a torch loop, and Marian.

    python tests/benchmarks/bench_training_step.py [--rounds 15] [--threads 2]

Size: d_model 300, 10 heads, d_ff 512, 3 + 3 layers, vocabularies 7,847 / 5,888, batches of 64 pairs.

What is compared, all in one process, on the same batches, in turn, so that a busy machine slows all alike:
- products: every matrix product of our step, replayed alone: the linear layers (fused as ours are) at the
tokens of
  the batch, the output projection at real target tokens, and the two batched products of each attention;
  each of them forward and twice backward. No softmax, bias, activation, normalisation, dropout, embedding
  or optimizer.
- ours / torch / marian: zero_grad, forward, loss, backward and one step of fused Adam on every parameter.
  `torch` is a bare loop around `torch.nn.Transformer` with cross-entropy over padded targets.
Each is also timed without the optimizer's step. The ratio of a variant is the median over rounds of its
time over the products' time in the same round.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel
from transformers.utils import logging as transformers_logging

from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

SOURCE_VOCAB, TARGET_VOCAB, WIDTH, HEADS, FF, LAYERS = 7847, 5888, 300, 10, 512, 3
PAD, BOS, EOS = 0, 2, 3
Batch = dict[str, Tensor]
clock = time.perf_counter


def make_batches(num_batches: int, size: int = 64, seed: int = 0) -> list[Batch]:
    """Batches of pairs sorted by source length: log-normal, 14 tokens on average, targets 2 tokens apart."""
    generator = torch.Generator().manual_seed(seed)
    count = num_batches * size * 20
    lengths = (
        (torch.randn(count, generator=generator) * 0.32 + math.log(13.3)).exp().round().clamp(4, 40).long()
    )
    lengths = lengths.sort().values
    batches = []
    for i in range(num_batches):
        start = (2 * i + 1) * count // (2 * num_batches)
        source_lengths = lengths[start : start + size]
        noise = (torch.randn(size, generator=generator) * 2).round().long()
        target_lengths = (source_lengths + noise).clamp(4, 44)
        batch = {}
        for name, lens, vocab, fill in (
            ("input_ids", source_lengths, SOURCE_VOCAB, PAD),
            ("labels", target_lengths, TARGET_VOCAB, -100),
        ):
            real = torch.arange(int(lens.max()))[None] < lens[:, None]
            ids = torch.randint(4, vocab, real.shape, generator=generator)
            ids.scatter_(1, lens[:, None] - 1, EOS)
            batch[name] = ids.masked_fill(~real, fill)
        batch["attention_mask"] = batch["input_ids"].ne(PAD).long()
        batches.append(batch)
    return batches


_MEMORY: dict[tuple[int, int], Tensor] = {}


def memory(product: int, operand: int, *shape: int) -> Tensor:
    """A tensor of some numbers, of its own for each operand of each product."""
    count = math.prod(shape)
    if _MEMORY.get((product, operand), torch.empty(0)).numel() < count:
        _MEMORY[product, operand] = torch.randn(count)
    return _MEMORY[product, operand][:count].view(shape)


def products_of(batch: Batch) -> Callable[[], None]:
    """A function that does the matrix products of one step on a batch, and nothing else."""
    size, source = batch["input_ids"].shape
    target = batch["labels"].shape[1]
    real = int(batch["labels"].ne(-100).sum())
    s, t, w, head = size * source, size * target, WIDTH, WIDTH // HEADS
    encoder = [(s, w, 3 * w), (s, w, w), (s, w, FF), (s, FF, w)]
    decoder = [(t, w, 3 * w), (t, w, w), (t, w, w), (s, w, 2 * w), (t, w, w), (t, w, FF), (t, FF, w)]
    linears = [*encoder * LAYERS, *decoder * LAYERS, (real, w, TARGET_VOCAB)]
    attentions = [(source, source), (target, target), (target, source)] * LAYERS
    # Each product has operands of its own, as in a step; batches share the memory.
    operands = [
        tuple(memory(i, j, *shape) for j, shape in enumerate(((n, k), (m, k), (n, m))))
        for i, (n, k, m) in enumerate(linears)
    ]
    heads = [
        tuple(
            memory(i, j, size * HEADS, *shape)
            for j, shape in enumerate(((q, head), (k, head), (k, head), (q, head), (q, k), (q, k)), 3)
        )
        for i, (q, k) in enumerate(attentions)
    ]

    def run() -> None:
        for x, weight, grad in operands:
            torch.mm(x, weight.t())
            torch.mm(grad, weight)
            torch.mm(grad.t(), x)
        for query, key, value, grad, weights, grad_scores in heads:
            torch.bmm(query, key.transpose(1, 2))
            torch.bmm(weights, value)
            torch.bmm(grad, value.transpose(1, 2))
            torch.bmm(weights.transpose(1, 2), grad)
            torch.bmm(grad_scores, key)
            torch.bmm(grad_scores.transpose(1, 2), query)

    return run


class TorchTranslator(nn.Module):
    """A bare translation model around `torch.nn.Transformer`, as a tutorial would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(SOURCE_VOCAB, WIDTH, PAD)
        self.target = nn.Embedding(TARGET_VOCAB, WIDTH, PAD)
        self.transformer = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, FF, 0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, TARGET_VOCAB)
        self.dropout = nn.Dropout(0.1)
        angles = torch.arange(5000)[:, None] * 10000 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))

    def forward(self, batch: Batch) -> Tensor:
        source, labels = batch["input_ids"], batch["labels"]
        target = nn.functional.pad(labels[:, :-1].masked_fill(labels[:, :-1] == -100, PAD), (1, 0), value=BOS)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1]) < 0
        padding = source == PAD
        embed = [
            self.dropout(table(ids) * math.sqrt(WIDTH) + self.positions[: ids.shape[1]])
            for table, ids in ((self.source, source), (self.target, target))
        ]
        states = self.transformer(
            *embed,
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), labels.flatten())


def marian() -> MarianMTModel:
    return MarianMTModel(
        MarianConfig(
            vocab_size=SOURCE_VOCAB,
            decoder_vocab_size=TARGET_VOCAB,
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=FF,
            decoder_ffn_dim=FF,
            dropout=0.1,
            attention_dropout=0.1,
            activation_dropout=0.1,
            activation_function="relu",
            scale_embedding=True,
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=False,
            pad_token_id=PAD,
            decoder_start_token_id=BOS,
            eos_token_id=EOS,
            forced_eos_token_id=None,
        )
    )


def ours() -> VanillaTransformerForConditionalGeneration:
    config = VanillaTransformerConfig(
        vocab_size=SOURCE_VOCAB, decoder_vocab_size=TARGET_VOCAB, d_model=WIDTH, num_heads=HEADS, d_ff=FF
    )
    return VanillaTransformerForConditionalGeneration(config)


def stepper(model: nn.Module, loss_of: Callable[[Batch], Tensor]) -> Callable[[Batch], tuple[float, float]]:
    """A training step on a batch: seconds of forward and backward, and of the optimizer."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True)
    model.train()

    def step(batch: Batch) -> tuple[float, float]:
        start = clock()
        optimizer.zero_grad(set_to_none=True)
        loss_of(batch).backward()
        middle = clock()
        optimizer.step()
        return middle - start, clock() - middle

    return step


def measure(rounds: int, num_batches: int, only: list[str]) -> dict[str, float]:
    """Seconds a step of each variant, with and `without optimizer`, and ratios to the products."""
    transformers_logging.set_verbosity_error()
    batches = make_batches(num_batches)
    replays = [products_of(batch) for batch in batches]
    steps: dict[str, Callable[[Batch], tuple[float, float]]] = {}
    if "ours" in only:
        mine = ours()
        steps["ours"] = stepper(mine, lambda batch: mine(**batch).loss)
    if "torch" in only:
        bare = TorchTranslator()
        steps["torch"] = stepper(bare, bare)
    if "marian" in only:
        theirs = marian()
        steps["marian"] = stepper(theirs, lambda batch: theirs(**batch).loss)
    times: dict[str, list[float]] = {}
    for round_index in range(rounds + 1):
        now: dict[str, float] = dict.fromkeys(
            ["products", *steps, *(f"{n} without optimizer" for n in steps)], 0.0
        )
        for batch, replay in zip(batches, replays, strict=True):
            start = clock()
            replay()
            now["products"] += clock() - start
            for name, step in steps.items():
                gradient, optimizer = step(batch)
                now[name] += gradient + optimizer
                now[f"{name} without optimizer"] += gradient
        if round_index:  # the first round warms up
            for name, seconds in now.items():
                times.setdefault(name, []).append(seconds)
    results = {name: statistics.median(seconds) / num_batches for name, seconds in times.items()}
    for name, seconds in times.items():
        results[f"{name} / products"] = statistics.median(
            a / b for a, b in zip(seconds, times["products"], strict=True)
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="measured passes over the batches")
    parser.add_argument("--batches", type=int, default=6, help="batches, from short sentences to long ones")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--only", nargs="+", default=["ours", "torch", "marian"], help="variants to run")
    parser.add_argument(
        "--cpu_time", action="store_true", help="CPU seconds, steadier beside other work (with --threads 1)"
    )
    args = parser.parse_args()
    if args.cpu_time:
        global clock
        clock = time.process_time
    torch.set_num_threads(args.threads)
    results = measure(args.rounds, args.batches, args.only)
    names = [name for name in results if not name.endswith("/ products")]
    print(f"{'':28}{'ms a step':>12}{'x products':>12}")
    for name in names:
        print(f"{name:28}{1000 * results[name]:12.1f}{results[f'{name} / products']:12.3f}")


if __name__ == "__main__":
    main()
