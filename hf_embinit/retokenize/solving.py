"""A method's coefficients for two vocabularies, every row made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..initializers import Initializer
from .chain import complete
from .coefficients import Coefficients, Step
from .context import Recipe, RetokenizeContext
from .texts import TokenTexts


def solve(
    record: Initializer,
    options: Mapping[str, Any],
    new: TokenTexts,
    old: TokenTexts,
    input_table: Tensor,
    *,
    overlap: Tensor,
    copied: Tensor,
    given: Mapping[str, Any],
    seed: int,
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe of a method (or of `mean`) for `V'` new tokens, and what the method reports.

    `input_table` `[V, D]` has the old rows, `overlap` and `copied` `[V']` are those of `RetokenizeContext`,
    and `given` are the vectors, texts, parallel text, dictionary and donor that the method reads.
    """
    context = RetokenizeContext(
        new=new,
        old=old,
        num_old=len(input_table),
        input_table=input_table,
        overlap=overlap,
        copied=copied,
        generator=torch.Generator().manual_seed(seed),
        seed=seed,
        **given,
    )
    if record.name == "mean":
        made: Coefficients | Recipe = context.overlap_copies().filled(Step.MEAN)
    else:
        made = record.fn(context, **options)
    return complete(Recipe.of(made), context), context.report
