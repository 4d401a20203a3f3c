"""Sentences found by their vectors: mean states of an encoder, and how often a translation is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..arguments import Count, Tokenizer, as_called, checked
from ..errors import InvalidArgumentError
from ..modes import evaluating
from ..moments import unit_rows
from .statistics import check_table, check_values

_NO_LIMIT = 1 << 30
"""Tokenizers without a maximum length have a larger one, such as T5's of 10^30."""


@checked
def mean_pooled(
    model: Module, tokenizer: Tokenizer, texts: Sequence[str], *, batch_size: Count = 64
) -> Tensor:
    """The mean last hidden state over the tokens of each text, padding left out: `[N, D]` float32.

    Of a model with a head it is the body's, of an encoder-decoder the encoder's. Texts are cut off where the
    tokenizer's maximum length, or the model's number of positions, ends. Dropout is off. Raises
    `InvalidArgumentError` for a model that gives no hidden states, and a tokenizer that cannot pad.
    """
    body = _body(model)
    if getattr(tokenizer, "pad_token", None) is None:
        raise InvalidArgumentError(
            f"tokenizer=<{type(tokenizer).__name__}> has no padding token, which texts of two lengths need: "
            "set one, such as tokenizer.pad_token = tokenizer.eos_token"
        )
    check_values(next(body.parameters()), type(body).__name__)
    longest = getattr(body.config, "max_position_embeddings", None) or tokenizer.model_max_length
    for module in body.modules():  # RoBERTa's kind counts its positions from behind the padding id
        padding = getattr(getattr(module, "position_embeddings", None), "padding_idx", None)
        longest -= 0 if padding is None else padding + 1
    longest = min(longest, tokenizer.model_max_length)
    cut = {"truncation": True, "max_length": longest} if longest < _NO_LIMIT else {}
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    made = torch.zeros(len(texts), body.config.get_text_config().hidden_size, dtype=torch.float32)
    for first in range(0, len(texts), batch_size):
        part = order[first : first + batch_size]
        batch = tokenizer(
            [texts[i] for i in part],
            padding=True,
            padding_side="right",  # positions are then those of the text alone
            return_tensors="pt",
            **cut,
        ).to(body.device)
        if not batch["input_ids"].shape[1]:
            continue
        with torch.no_grad(), evaluating(body), as_called():
            states = getattr(body(**batch), "last_hidden_state", None)
        if states is None:
            raise InvalidArgumentError(
                f"model=<{type(model).__name__}> gives no last_hidden_state: load its body, AutoModel"
            )
        seen = batch["attention_mask"][..., None]
        made[part] = ((states.float() * seen).sum(1) / seen.sum(1).clamp_min(1)).cpu()
    return made


def _body(model: Any) -> Any:
    """What gives the hidden states: a model without its head, the encoder of an encoder-decoder."""
    if not hasattr(model, "config") or not hasattr(model, "base_model"):
        raise InvalidArgumentError(f"model=<{type(model).__name__}> is no model of transformers")
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


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
    ids = torch.arange(len(found), device=found.device)
    _, group = torch.unique(theirs, dim=0, return_inverse=True)  # products of equal rows differ by rounding
    first = torch.full_like(ids, len(ids)).scatter_reduce_(0, group, ids, reduce="amin")
    return float((first[group[found]] == ids).float().mean())
