"""Sentences found by their vectors: mean states of an encoder, and how often a translation is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments import Count, checked
from ..errors import InvalidArgumentError
from ..modes import evaluating
from ..moments import unit_rows
from .statistics import check_table, check_values

_NO_LIMIT = 1 << 30
"""Tokenizers without a maximum length have a larger one, such as T5's of 10^30."""


@checked
def mean_pooled(model: Any, tokenizer: Any, texts: Sequence[str], *, batch_size: Count = 64) -> Tensor:
    """The mean last hidden state over the tokens of each text, padding left out: `[N, D]` float32.

    Texts are cut off where the tokenizer's maximum length, or the model's number of positions, ends. Dropout
    is off."""
    check_values(next(model.parameters()), type(model).__name__)
    longest = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    for module in model.modules():  # RoBERTa's kind counts its positions from behind the padding id
        padding = getattr(getattr(module, "position_embeddings", None), "padding_idx", None)
        longest -= 0 if padding is None else padding + 1
    longest = min(longest, tokenizer.model_max_length)
    cut = {"truncation": True, "max_length": longest} if longest < _NO_LIMIT else {}
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    made = torch.zeros(len(texts), model.config.hidden_size, dtype=torch.float32)
    for first in range(0, len(texts), batch_size):
        part = order[first : first + batch_size]
        batch = tokenizer(
            [texts[i] for i in part],
            padding=True,
            padding_side="right",  # positions are then those of the text alone
            return_tensors="pt",
            **cut,
        ).to(model.device)
        if not batch["input_ids"].shape[1]:
            continue
        with torch.no_grad(), evaluating(model):
            states = model(**batch).last_hidden_state.float()
        seen = batch["attention_mask"][..., None]
        made[part] = ((states * seen).sum(1) / seen.sum(1).clamp_min(1)).cpu()
    return made


@checked
def retrieval_accuracy(queries: Tensor, candidates: Tensor) -> float:
    """The share of `queries` `[N, D]` to which the candidate of the same row is nearer than any other of
    `[N, D]`, by cosine. A tie counts as found only for the first of equal candidates.

    Raises `InvalidArgumentError` for tables of two shapes, without a row, or with NaN.
    """
    if queries.shape != candidates.shape or queries.ndim != 2 or not len(queries):
        raise InvalidArgumentError(
            f"queries {tuple(queries.shape)} and candidates {tuple(candidates.shape)}: expected pairs of rows"
        )
    for name, x in (("queries", queries), ("candidates", candidates)):
        check_table(x, name)
    ours, theirs = (unit_rows(x) for x in (queries, candidates))
    found = torch.cat([(part @ theirs.T).argmax(1) for part in ours.split(1024)])
    return float((found == torch.arange(len(found), device=found.device)).float().mean())
