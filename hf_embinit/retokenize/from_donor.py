"""Methods that read a donor: a model that has the new tokenizer already."""

from __future__ import annotations

from torch import Tensor

from ..arguments import Count
from ..initializers import register_initializer
from .coefficients import Coefficients
from .context import RetokenizeContext
from .pursuit import Weighting, matching_pursuit, neighbor_weights
from .spaces import anchors_in, donor_space


def _sums(
    context: RetokenizeContext, wanted: Tensor, old: Tensor, ids: Tensor, values: Tensor
) -> Coefficients:
    made = Coefficients.from_coo(
        wanted.repeat_interleave(ids.shape[1]), old[ids.flatten()], values.flatten(), context.shape
    )
    return context.overlap_copies().or_else(made)


@register_initializer(
    "omp",
    summary="the donor's row as a sum of few of its shared rows, with the old rows in their place",
    reference="Goddard & Fernandes Neto 2025, OMP (arXiv 2506.06607)",
    purpose="tokenizer",
    needs=("donor",),
)
def omp(context: RetokenizeContext, *, k: Count = 64) -> Coefficients:
    """Shared tokens are copied; the row of another token in `donor=` is approximated by at most `k` rows of
    shared tokens (`matching_pursuit`), whose coefficients make the new row of the old ones.

    With `k` near the donor's width or the number of shared tokens the coefficients grow without bound: it is
    held to half of either, and the report says what was used.
    """
    space = donor_space(context, "omp")
    new, old, wanted = anchors_in(context, "omp", space)
    used = max(1, min(k, space.shape[1] // 2, len(new) // 2))
    context.report["k"] = used
    return _sums(context, wanted, old, *matching_pursuit(space[wanted], space[new], used))


@register_initializer(
    "common_interpolation",
    summary="the nearest shared tokens in the donor's table, by distance, with the old rows in their place",
    reference="mergekit's tokensurgeon, common_interpolation",
    purpose="tokenizer",
    needs=("donor",),
)
def common_interpolation(
    context: RetokenizeContext, *, k: Count = 64, weighting: Weighting = "inverse_distance"
) -> Coefficients:
    """Shared tokens are copied; others are the old rows of the `k` shared tokens nearest to them in `donor=`,
    weighted as `neighbor_weights` says."""
    space = donor_space(context, "common_interpolation")
    new, old, wanted = anchors_in(context, "common_interpolation", space)
    ids, values = neighbor_weights(space[wanted], space[new], min(k, len(new)), weighting)
    return _sums(context, wanted, old, ids, values.nan_to_num(0.0, 0.0, 0.0))
