"""Whether rows from parallel text get better than those of `trans_tokenizer`, by what is at hand for them.

    python tests/benchmarks/bench_alignment_variants.py --seeds 1 2 3
    python tests/benchmarks/bench_alignment_variants.py --seeds 1 2 3 --nli path/to/classifier

The German column of the study `retokenize` (and with `--nli` a classifier on its NLI column): MiniLM gets
German word-pieces from 25,000 pairs of Tatoeba and Multi30k in HF_EMBINIT_DATA. The counts of
`trans_tokenizer` are computed once a seed and changed in one way each. Prints the score of each seed and the
paired difference to `trans_tokenizer` with its 95% t interval. One variant changes rows after they are made:
`norms` gives them the mean norm of the old rows that they are made of.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

from hf_embinit.initializers import register_initializer
from hf_embinit.retokenize import Coefficients, RetokenizeContext, Step, piece_means
from hf_embinit.retokenize import from_parallel as fp
from hf_embinit.studies import t_interval
from hf_embinit.tasks import retokenizing, trials
from hf_embinit.vocabulary import replace_tokenizer

FILES = {part: [f"{name}/{part}.jsonl:en,de" for name in names] for part, names in
         {"train": ("tatoeba", "multi30k"), "test": ("multi30k",)}.items()}  # fmt: skip
COUNTS: dict[tuple[int, str], Coefficients] = {}


def counts(context: RetokenizeContext, kind: str = "agreement") -> Coefficients:
    key = context.seed, kind
    if key not in COUNTS:
        COUNTS[key] = fp.alignment_counts(context, "variants", 5, kind)  # type: ignore[arg-type]
    return COUNTS[key]


def finished(context: RetokenizeContext, made: Coefficients, min_share: float = 0.05) -> Coefficients:
    """The rest of `trans_tokenizer`."""
    made = fp.without_small(fp.with_overlap(context, made).normalised(), min_share)
    return made.or_else(fp.borrowed(context.new, made))


def powered(made: Coefficients, power: float) -> Coefficients:
    return Coefficients(made.indptr, made.indices, made.values**power, made.shape, made.step)


def summed(one: Coefficients, other: Coefficients) -> Coefficients:
    return Coefficients.from_coo(
        torch.cat([one.new_ids, other.new_ids]), torch.cat([one.indices, other.indices]),
        torch.cat([one.values, other.values]), one.shape,
    )  # fmt: skip


def symmetric(made: Coefficients) -> Coefficients:
    """Dice: a count over the sum of its row's and its column's."""
    rows, columns = (torch.zeros(n).index_add_(0, ids, made.values)
                     for n, ids in zip(made.shape, (made.new_ids, made.indices), strict=True))  # fmt: skip
    values = 2 * made.values / (rows[made.new_ids] + columns[made.indices])
    return Coefficients(made.indptr, made.indices, values, made.shape, made.step)


def with_pieces(context: RetokenizeContext, made: Coefficients, weight: float) -> Coefficients:
    """`weight` counts more for the pieces of a token: those that are counted seldom lean on them."""
    ids = [i for i in range(len(context.new)) if i not in context.new.special]
    pieces = piece_means(context, ids)
    scaled = Coefficients(pieces.indptr, pieces.indices, weight * pieces.values, pieces.shape, pieces.step)
    return summed(made, scaled)


VARIANTS: dict[str, Callable[[RetokenizeContext], Coefficients]] = {
    "trans_tokenizer": lambda c: finished(c, counts(c)),
    "forward": lambda c: finished(c, counts(c, "forward")),
    "agreement + forward": lambda c: finished(c, summed(counts(c), counts(c, "forward"))),
    "dice": lambda c: finished(c, symmetric(counts(c)), 0.05),
    "power 0.25": lambda c: finished(c, powered(counts(c), 0.25)),
    "power 0.5": lambda c: finished(c, powered(counts(c), 0.5)),
    "power 0.7": lambda c: finished(c, powered(counts(c), 0.7)),
    "power 2": lambda c: finished(c, powered(counts(c), 2.0)),
    "shares from 0.2": lambda c: finished(c, counts(c), 0.2),
    "all shares": lambda c: finished(c, counts(c), 0.0),
    "pieces 0.3": lambda c: finished(c, with_pieces(c, counts(c), 0.3)),
    "pieces 3": lambda c: finished(c, with_pieces(c, counts(c), 3.0)),
    "norms": lambda c: finished(c, counts(c)),
}
CURRENT = {"name": "trans_tokenizer"}


@register_initializer(
    "variant", summary="of this script", reference="", purpose="tokenizer", needs=("parallel",)
)
def variant(context: RetokenizeContext) -> Coefficients:
    return VARIANTS[CURRENT["name"]](context)


def restore_norms(table: torch.Tensor, old: torch.Tensor, made: Coefficients) -> None:
    """Rows of several old ones get the mean of their norms, by their weights."""
    wanted = made.apply(old.norm(dim=1, keepdim=True))
    rows = (made.step == Step.METHOD).nonzero().flatten()
    table[rows] *= wanted[rows] / table[rows].norm(dim=1, keepdim=True).clamp_min(1e-9)


def scores_of(name: str, seed: int, trial: Any, pairs: Any, tokenizer: Any, source: str) -> float:
    model, old = retokenizing.load_model(source)
    table = model.get_input_embeddings().weight.detach().clone()
    CURRENT["name"] = name
    report = replace_tokenizer(model, old, tokenizer, "variant", parallel=pairs, seed=seed)
    if name == "norms":
        restore_norms(model.get_input_embeddings().weight.data, table, report.coefficients)
    return trial.score(model, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--nli", help="a classifier to score on XNLI in place of finding captions")
    parser.add_argument("--test_pairs", type=int, help="to score on; the study takes 500, of XNLI 1,000")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in args.variants}
    source = args.nli or "minilm"
    for seed in args.seeds:
        model, old = retokenizing.load_model(source)
        pairs = trials.load_pairs(FILES["train"], "train", 25_000, seed)
        if args.nli:
            trial = trials.label_trial(model, pairs, "xnli/de/validation.jsonl", args.test_pairs or 1000)
        else:
            test = trials.load_pairs(FILES["test"], "test")[: args.test_pairs or 500]
            trial = trials.pair_trial(model, old, pairs, test)
        tokenizer, _ = retokenizing.new_tokenizer(old, trial.texts, name=None, size=8000, words=0)
        for name in args.variants:
            found[name].append(scores_of(name, seed, trial, pairs, tokenizer, source))
            print(f"seed {seed}  {name:<28} {found[name][-1]:.3f}", flush=True)
        COUNTS.clear()
    base = found[args.variants[0]]
    for name, values in found.items():
        deltas = [a - b for a, b in zip(values, base, strict=True)]
        interval = t_interval(deltas) or ()
        print(f"{name:<28} {statistics.fmean(values):.3f}  {statistics.fmean(deltas):+.3f}  "
              + " to ".join(f"{x:+.3f}" for x in interval))  # fmt: skip


if __name__ == "__main__":
    main()
