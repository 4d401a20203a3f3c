"""`first_piece_shares`: output rows that deal the probability of an old token out to new ones."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UnsupportedModelError
from ..initializers import register_initializer
from .pieces import split_tokens
from .refinement import RefineContext, Refined, padded

_MEASURED, _LENGTH, _BATCH = 256, 128, 16
"""Texts, their tokens, and texts at a time, by which the direction of the shift is found."""
_RIDGE = 1e-3
"""Share of the mean squared hidden state that is added to the diagonal."""
_UNSEEN = 1.0
"""Occurrences that every token has beside those in the text (Laplace)."""


@register_initializer(
    "first_piece_shares",
    summary="output rows of a token's first piece, lowered by how seldom that piece goes on as the token",
    reference="this package",
    purpose="refinement",
    needs=("texts",),
)
def first_piece_shares(context: RefineContext) -> Refined:
    """Before a new token t stood its first piece f, which the model predicts from the state h with
    log p(f | h) = h . o_f + b_f - log Z. What is wanted is

        log p(t | h) = log p(f | h) + log p(t | f, h), and with p(t | f, h) taken as p(t | f) = s_t:
        o_t = o_f + log(s_t) v, where h . v = 1, and b_t = b_f.

    s_t is the share of t in the occurrences of the new tokens that begin with f, counted in `texts=` as the
    new tokenizer splits them, one added to each. Since the shares of each f come to 1, so does what the
    tokens of the new vocabulary have in Z, and no row takes more than its piece had. v is fitted by least
    squares to the last hidden states of the text in old tokens; a head that scales its logits is allowed for.

    A token of both vocabularies is its own first piece and is lowered, too: much of what it began is now one
    token. Input rows stay as they are, so that this goes after `token_distillation` or `tokens2words`, as in
    `refine="token_distillation+first_piece_shares"`. Raises `UnsupportedModelError` for a model that looks
    both ways or whose logits are no products of states and output rows.
    """
    body, output, old = context.body, context.output, context.old_output
    if not body.causal:
        raise UnsupportedModelError(
            f"refine 'first_piece_shares' is for models that predict the next token, and {body.name} looks "
            f"both ways: leave it out"
        )
    assert output is not None and old is not None  # untied, as every refinement needs
    texts = context.require_texts("first_piece_shares")
    ids = [i for i, token in enumerate(context.new.tokens) if token and i not in context.new.special]
    pairs = zip(ids, split_tokens(context.new, ids, context.old), strict=True)
    first = {i: pieces[0] for i, pieces in pairs if pieces}
    seen = torch.tensor([i for one in context.new.split(texts) for i in one], dtype=torch.int64)
    counts = torch.bincount(seen, minlength=len(output)).double()
    new, begin = torch.tensor(list(first)), torch.tensor(list(first.values()))
    own = counts[new] + _UNSEEN
    share = own / torch.zeros(len(old), dtype=torch.float64).index_add_(0, begin, own)[begin]
    unit, spread = _unit_direction(context, texts)
    rows = output.clone()
    scale = body.logit_scale(old)
    rows[new] = old[begin] + (share.log()[:, None] * (unit / scale)).float()
    old_and_new = zip(context.old_biases, context.biases, strict=True)
    biases = [bias.index_copy(0, new, old_bias[begin]) for old_bias, bias in old_and_new]
    context.report["shares"] = {"rows": len(new), "unit": spread}
    return Refined(context.rows, rows, biases)


def _unit_direction(context: RefineContext, texts: list[str]) -> tuple[Tensor, list[float]]:
    """The vector `[H]` whose product with last hidden states is nearest to 1, float64, and the mean and the
    standard deviation of those products."""
    start = next((i for role, i in context.old.roles.items() if role in ("bos", "cls", "eos")), None)
    before = [] if start is None else [start]
    length = min(_LENGTH, context.body.longest - len(before))
    split = [one[:length] for one in context.old.split(texts[:_MEASURED]) if one]
    states = []
    with torch.no_grad():
        for place in range(0, len(split), _BATCH):
            ids, mask = padded([[*before, *one] for one in split[place : place + _BATCH]])
            on = context.body.device
            found = context.body.hidden_states(context.old_rows[ids].to(on), mask.to(on))[-1]
            states.append(found.double().cpu()[mask.bool()])
    h = torch.cat(states)
    gram = h.T @ h / len(h)
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    unit = torch.linalg.solve(gram, h.mean(0))
    products = h @ unit
    return unit, [float(products.mean()), float(products.std())]
