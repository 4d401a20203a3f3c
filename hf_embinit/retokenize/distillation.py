"""`token_distillation`: rows with which the layers see what they saw in the old tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import Count, Positive
from ..errors import InvalidArgumentError
from ..initializers import register_initializer
from .refinement import RefineContext, Refined, padded
from .spans import Span, spans_of
from .texts import TokenTexts

_MEASURED = 64
"""Texts, the first ones, whose error is reported before and after."""


class _Text(NamedTuple):
    """A text as both tokenizers split it, and which old tokens stand where a new one does."""

    new: list[int]
    old: list[int]
    places: list[tuple[int, list[int]]]


@register_initializer(
    "token_distillation",
    summary="input rows trained until the last layer sees in new tokens what it saw in the old ones",
    reference="Dobler et al. 2025, Token Distillation (arXiv 2505.20133)",
    purpose="refinement",
    needs=("texts",),
)
def token_distillation(
    context: RefineContext,
    *,
    steps: Count = 300,
    batch_size: Count = 16,
    length: Count = 128,
    learning_rate: Positive = 0.1,
) -> Refined:
    """Trains the free input rows alone: mean squared error between the model's last hidden states of `texts=`
    as the old tokenizer splits them, with the old rows, and as the new one does, with the new rows.

    States are compared where a new token ends together with an old one; in a model that looks both ways a
    new token's state is compared with the mean over the old tokens that share a character with it. AdamW,
    its rate falling to 0 from `learning_rate` standard deviations of the old rows; of a text the first
    `length` tokens count.
    Output rows stay as the method made them, so an output that is tied to the input has to be untied: input
    rows found this way make bad output rows; `first_piece_shares` makes good ones. The published code distils
    from snippets of each new token; here whole vocabularies are trained on running text.
    """
    from transformers.utils import logging

    texts = context.require_texts("token_distillation")
    pairs = [pair for pair in _pairs(context, texts, min(length, context.body.longest)) if pair.places]
    if not pairs or not len(context.free):
        raise InvalidArgumentError(
            "refine 'token_distillation': no new token stands in texts= where old ones do; give text of the "
            "new tokenizer's language"
        )
    place = torch.full((len(context.rows),), -1)
    place[context.free] = torch.arange(len(context.free))
    trained = context.rows[context.free].clone().requires_grad_(True)
    rate = learning_rate * float(context.old_rows[torch.isfinite(context.old_rows).all(1)].std())
    optimizer = torch.optim.AdamW([trained], lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    sample = pairs[:_MEASURED]
    with torch.no_grad():
        before = _loss(context, sample, trained, place).item()
    for _ in logging.tqdm(range(steps), desc="Distilling", unit="step", disable=None, delay=1):
        drawn = torch.randint(len(pairs), (batch_size,), generator=context.generator).tolist()
        loss = _loss(context, [pairs[i] for i in drawn], trained, place)
        (trained.grad,) = torch.autograd.grad(loss, [trained])
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        after = _loss(context, sample, trained, place).item()
    context.report["distilled"] = {
        "rows": len(context.free),
        "texts": len(pairs),
        "loss": [before, after],
    }
    rows = context.rows.clone()
    rows[context.free] = trained.detach()
    return Refined(rows, context.output, context.biases)


def _pairs(context: RefineContext, texts: Sequence[str], length: int) -> list[_Text]:
    """The texts that have tokens by both tokenizers."""
    made = []
    sides: Any = [_cut(tokens, texts, length) for tokens in (context.new, context.old)]
    for (new, new_spans), (old, old_spans) in zip(*sides, strict=True):
        places = []
        ends = {span.end: span.place for span in old_spans}
        for span in new_spans:
            if context.body.causal:
                same = [ends[span.end]] if span.end in ends else []
            else:
                same = [one.place for one in old_spans if one.start < span.end and span.start < one.end]
            if same:
                places.append((span.place, same))
        made.append(_Text(new, old, places))
    return made


def _cut(tokens: TokenTexts, texts: Sequence[str], length: int) -> list[tuple[list[int], list[Span]]]:
    """Ids of each text with its special tokens, and the spans of the others, of the first `length` tokens."""
    return [
        (ids[:length], [span for span in spans if span.place < length])
        for ids, spans in spans_of(tokens, texts, "token_distillation")
    ]


def _loss(context: RefineContext, batch: list[_Text], trained: Tensor, place: Tensor) -> Tensor:
    """The mean squared error of one batch."""
    body = context.body
    ids, mask = padded([one.new for one in batch])
    free = place[ids]
    rows = torch.where((free >= 0)[..., None], trained[free.clamp_min(0)], context.rows[ids])
    seen = body.hidden_states(rows.to(body.device), mask.to(body.device))[-1].float()
    with torch.no_grad():
        ids, mask = padded([one.old for one in batch])
        wanted = body.hidden_states(context.old_rows[ids].to(body.device), mask.to(body.device))[-1].float()
        target = torch.stack(
            [wanted[number, same].mean(0) for number, one in enumerate(batch) for _, same in one.places]
        )
    numbers = torch.tensor([number for number, one in enumerate(batch) for _ in one.places])
    places = torch.tensor([there for one in batch for there, _ in one.places])
    return torch.nn.functional.mse_loss(seen[numbers, places], target)
