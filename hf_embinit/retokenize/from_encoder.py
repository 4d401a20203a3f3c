"""TokenAdapt: a token from its pieces and its neighbours, by a text encoder or by word vectors."""

from __future__ import annotations

from os import PathLike

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ..arguments import Count, Positive, Share
from ..initializers import register_initializer
from .coefficients import Coefficients
from .context import RetokenizeContext
from .pieces import split_tokens
from .similarity import softmax_weights
from .spaces import encoder_space, has_vector, word_space


@register_initializer(
    "token_adapt",
    summary="shared tokens copied, others from their pieces and from their neighbours in meaning",
    reference="Sharthak et al. 2025, TokenAdapt (arXiv 2505.09738)",
    purpose="tokenizer",
    needs=("vectors",),
)
def token_adapt(
    context: RetokenizeContext,
    *,
    encoder: str | PathLike[str] | None = None,
    neighbors: Count = 3,
    local: Share = 0.7,
    temperature: Positive = 0.3,
) -> Coefficients:
    """Shared tokens are copied; another token is `local` parts its pieces, the rest its `neighbors`.

    The space is that of `encoder`, a folder or Hub id of a text encoder, else of `vectors=`. A piece weighs
    half by softmax(cosine to the token / temperature) over the pieces, half by its share of the length; an
    old token among the nearest weighs softmax(cosine / temperature). Where one of the two is missing the
    other is all. The authors' code takes a softmax over the pieces' weights once more, which evens them out.
    """
    if encoder is not None:
        old, new = encoder_space(context.old, encoder), encoder_space(context.new, encoder)
    else:
        vectors = context.require("vectors", "token_adapt")
        old, new = word_space(context.old, vectors), word_space(context.new, vectors)
    pieces = _by_pieces(context, old, new, temperature)
    near = _by_neighbors(context, old, new, neighbors, temperature)
    both = Coefficients.from_coo(
        torch.cat([pieces.new_ids, near.new_ids]),
        torch.cat([pieces.indices, near.indices]),
        torch.cat([pieces.values * local, near.values * (1 - local)]),
        context.shape,
    ).normalised()
    return context.overlap_copies().or_else(both)


def _by_pieces(context: RetokenizeContext, old: Tensor, new: Tensor, temperature: float) -> Coefficients:
    ids = context.without_source().tolist()
    split = split_tokens(context.new, ids, context.old)
    rows: list[dict[int, float]] = [{} for _ in context.new.tokens]
    for i, pieces in zip(ids, split, strict=True):
        known = [j for j in pieces if j not in context.old.special]
        if not known:
            continue
        lengths = torch.tensor([max(1, len(context.old.forms[j].bytes)) for j in known]).float()
        cosines = cosine_similarity(new[i][None], old[known], dim=1)
        weights = (torch.softmax(cosines / temperature, 0) + lengths / lengths.sum()) / 2
        for j, weight in zip(known, weights.tolist(), strict=True):
            rows[i][j] = rows[i].get(j, 0.0) + weight
    return Coefficients.from_rows(rows, context.num_old)


def _by_neighbors(
    context: RetokenizeContext, old: Tensor, new: Tensor, neighbors: int, temperature: float
) -> Coefficients:
    known = has_vector(old).nonzero().flatten()
    wanted = context.without_source()
    wanted = wanted[has_vector(new[wanted])]
    if not len(known) or not len(wanted):
        return Coefficients.from_rows([{}] * context.shape[0], context.num_old)
    rows, columns, values = softmax_weights(
        new[wanted], old[known], neighbors=neighbors, temperature=temperature
    )
    return Coefficients.from_coo(wanted[rows], known[columns], values, context.shape)
