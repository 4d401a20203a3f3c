"""Methods that need both tokenizers alone: pieces, draws and the mean."""

from __future__ import annotations

import math
import unicodedata
from typing import Literal

import torch

from ..initializers import register_initializer
from ..tokens import BYTE_TOKEN
from .chain import mean_of
from .coefficients import Coefficients, Step
from .context import Groups, Recipe, RetokenizeContext
from .pieces import split_tokens
from .texts import TokenTexts

Pooling = Literal["mean", "first", "last", "exponential", "length"]
"""Weights of n pieces: all 1/n; the first one alone; the last one alone; e^2 times as much as the neighbour,
towards the last piece for inputs and the first for outputs; as their numbers of bytes."""


@register_initializer(
    "fvt",
    summary="shared tokens copied, the others pooled from the old tokens that they are split into",
    reference="Gee et al. 2022, section 3 (fast vocabulary transfer)",
    purpose="tokenizer",
)
def fvt(
    context: RetokenizeContext, *, input_pooling: Pooling = "mean", output_pooling: Pooling = "mean"
) -> Recipe:
    """Copies and pooled pieces; inputs and outputs are pooled apart, each from its own table.

    `mean`, `first` and `last` are those of `subword_mean`; `exponential` is AdaptiVocab's (Nakash et al.
    2025: weights e^(2i) for inputs, e^(-2i) for outputs); `length` weighs a piece by its bytes. Tied tables
    take `input_pooling`. The published code splits the continuation of a word as if it started one, and cuts
    biases off by position; here a continuation is split as one, and biases take the same weights.
    """
    ids = context.without_source().tolist()
    pieces = split_tokens(context.new, ids, context.old)
    made = {
        role: _pooled(context, ids, pieces, pooling, role)
        for role, pooling in (("input", input_pooling), ("output", output_pooling))
    }
    if input_pooling == output_pooling and input_pooling != "exponential":
        return Recipe(made["input"], made["input"])
    return Recipe(made["input"], made["output"])


def _pooled(
    context: RetokenizeContext, ids: list[int], pieces: list[list[int]], pooling: Pooling, role: str
) -> Coefficients:
    rows: list[dict[int, float]] = [{} for _ in context.new.tokens]
    for i, split in zip(ids, pieces, strict=True):
        if pooling in ("first", "last"):
            split = split[:1] if pooling == "first" else split[-1:]
        if pooling == "length":
            weights = [float(max(1, len(context.old.forms[j].bytes))) for j in split]
        elif pooling == "exponential":
            places = range(len(split)) if role == "output" else range(len(split) - 1, -1, -1)
            weights = [math.exp(-2 * place) for place in places]
        else:
            weights = [1.0] * len(split)
        for j, weight in zip(split, weights, strict=True):
            rows[i][j] = rows[i].get(j, 0.0) + weight / sum(weights)
    made = Coefficients.from_rows(rows, context.num_old)
    step = torch.where(made.step == Step.METHOD, int(Step.PIECES), int(Step.NONE))
    pooled = Coefficients(made.indptr, made.indices, made.values, made.shape, step)
    return context.overlap_copies().or_else(pooled)


@register_initializer(
    "random",
    summary="shared tokens copied, the others drawn with the mean and deviation of each column",
    reference="what FOCUS, WECHSEL and RAMEN fall back on",
    purpose="tokenizer",
)
def random_rows(context: RetokenizeContext) -> Coefficients:
    """A baseline: `N(mean, std)` of the old rows, column by column, for all that is no shared token."""
    return context.overlap_copies().filled(Step.RANDOM)


@register_initializer(
    "vipi",
    summary="shared tokens copied, the others the mean over the shortest splits with the longest piece",
    reference="Mosin et al. 2021, Fine-tuning transformers: vocabulary transfer (VIPI)",
    purpose="tokenizer",
)
def vipi(context: RetokenizeContext) -> Coefficients:
    """The mean over all ways to split a token into as few old tokens as can be, of those the ones whose
    longest piece is longest. No code was published; a token without a split goes down the chain."""
    rows: list[dict[int, float]] = [{} for _ in context.new.tokens]
    starts, inside = _by_bytes(context.old)
    for i in context.without_source().tolist():
        form = context.new.forms[i]
        splits = _shortest_splits(form.bytes, inside if form.word_start is False else starts, inside)
        if not splits or not form.bytes:  # a space alone has no text to split
            continue
        longest = max(max(map(len, split)) for split in splits)
        best = [split for split in splits if max(map(len, split)) == longest]
        for split in best:
            first = inside if form.word_start is False else starts
            found = [(first if place == 0 else inside)[piece] for place, piece in enumerate(split)]
            for j, share in mean_of(found).items():
                rows[i][j] = rows[i].get(j, 0.0) + share / len(best)
    return context.overlap_copies().or_else(Coefficients.from_rows(rows, context.num_old))


_MOST_SPLITS = 256
"""Splits of one token that the mean is taken over: long runs of one character have too many."""


def _by_bytes(old: TokenTexts) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Bytes -> old id, of tokens that can start a word and of those that can go on with one."""
    starts: dict[bytes, int] = {}
    inside: dict[bytes, int] = {}
    bytewise = old.family == "sentencepiece"
    fallback = [bool(bytewise and BYTE_TOKEN.fullmatch(token)) for token in old.tokens]
    for i in sorted(range(len(old.forms)), key=fallback.__getitem__):  # `<0x61>` where there is no `a`
        form = old.forms[i]
        if not old.tokens[i] or i in old.special or not form.bytes:
            continue
        if form.word_start is not False:
            starts.setdefault(form.bytes, i)
        if not form.word_start or old.family == "words":
            inside.setdefault(form.bytes, i)
    return starts, inside


def _shortest_splits(data: bytes, starts: dict[bytes, int], inside: dict[bytes, int]) -> list[list[bytes]]:
    """All ways to write `data` as one of `starts` and then some of `inside`, as few of them as can be."""
    splits: list[list[list[bytes]]] = [[[]]]
    for end in range(1, len(data) + 1):
        best: list[list[bytes]] = []
        for begin in range(end):
            piece = data[begin:end]
            if not splits[begin] or piece not in (starts if begin == 0 else inside):
                continue
            found = [[*split, piece] for split in splits[begin]]
            if not best or len(found[0]) < len(best[0]):
                best = found
            elif len(found[0]) == len(best[0]):
                best = (best + found)[:_MOST_SPLITS]
        splits.append(best)
    return splits[-1]


@register_initializer(
    "reinit",
    summary="shared tokens copied, the others drawn like old tokens of their script and place in a word",
    reference="Yamaguchi et al. 2024, An empirical study on cross-lingual vocabulary adaptation (heuristics)",
    purpose="tokenizer",
)
def reinit(context: RetokenizeContext) -> Recipe:
    """`N(mean, std)` of the old tokens with the same script and word position; of all where there are fewer
    than two of those. The published code takes every BPE for one that marks word starts with `Ġ`."""
    groups: dict[tuple[str, bool | None], int] = {}

    def numbers(texts: TokenTexts) -> list[int]:
        return [
            -1
            if i in texts.special or not texts.tokens[i]
            else groups.setdefault((_script(texts.texts[i]), form.word_start), len(groups))
            for i, form in enumerate(texts.forms)
        ]

    old = torch.full((context.num_old,), -1, dtype=torch.int64)
    old[: len(context.old)] = torch.tensor(numbers(context.old))
    made = context.overlap_copies().filled(Step.RANDOM)
    return Recipe(made, made, Groups(torch.tensor(numbers(context.new)), old))


def _script(text: str | None) -> str:
    """The script of a text's first letter, by the first word of its Unicode name; a kind for other texts."""
    if text is None:
        return "bytes"
    for character in text.strip():
        if character.isalpha():
            return unicodedata.name(character, "?").split()[0]
    return "digits" if any(c.isdigit() for c in text) else "signs"
