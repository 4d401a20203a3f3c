"""The chain that rows go down: role, method, overlap, pieces, a draw."""

from __future__ import annotations

import torch

from .coefficients import Coefficients, Step
from .context import Recipe, RetokenizeContext
from .pieces import split_tokens


def piece_means(context: RetokenizeContext, ids: list[int]) -> Coefficients:
    """For each new token of `ids` the mean of the old tokens that it is split into; nothing for others."""
    rows: list[dict[int, float]] = [{} for _ in context.new.tokens]
    for i, pieces in zip(ids, split_tokens(context.new, ids, context.old), strict=True):
        rows[i] = mean_of(pieces)
    made = Coefficients.from_rows(rows, context.num_old)
    step = torch.where(made.step == Step.NONE, int(Step.NONE), int(Step.PIECES))
    return Coefficients(made.indptr, made.indices, made.values, made.shape, step)


def mean_of(pieces: list[int]) -> dict[int, float]:
    """Old id -> its share of the mean of some pieces; one that occurs twice counts twice."""
    shares: dict[int, float] = {}
    for i in pieces:
        shares[i] = shares.get(i, 0.0) + 1 / len(pieces)
    return shares


def complete(recipe: Recipe, context: RetokenizeContext) -> Recipe:
    """A recipe with every row made.

    Special tokens copy the one of their role, whatever the method said. Rows that it left are the same token
    of the old vocabulary, else the mean of the pieces, else drawn with the mean and standard deviation of the
    old rows.
    """
    made: dict[int, Coefficients] = {}
    for one in (recipe.input, recipe.output):
        if id(one) not in made:
            made[id(one)] = _completed(one, context)
    return Recipe(made[id(recipe.input)], made[id(recipe.output)], recipe.groups)


def _completed(made: Coefficients, context: RetokenizeContext) -> Coefficients:
    made = context.role_copies().or_else(made).or_else(context.overlap_copies())
    left = (made.step == Step.NONE).nonzero().flatten().tolist()
    if left:
        made = made.or_else(piece_means(context, left))
    return made.filled(Step.RANDOM)
