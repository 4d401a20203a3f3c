"""Methods that compare tokens in a helper space: FOCUS, WECHSEL, OFA, CLP, RAMEN, TokAlign."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..arguments import Count, Positive
from ..errors import InvalidArgumentError
from ..initializers import register_initializer
from ..moments import unit_rows
from .coefficients import Coefficients
from .context import RetokenizeContext
from .from_parallel import alignment_counts
from .parallel import read_parallel
from .similarity import Entries, linear_weights, softmax_weights, sparsemax_weights
from .spaces import (
    anchors_in,
    dictionary_map,
    donor_space,
    glove_of_ids,
    has_vector,
    loaded,
    own_space,
    subword_vectors,
    word_space,
)
from .texts import TokenTexts

MOST_WEIGHTS = 2**28
"""Weights that a method without a limit may ask for: 3 GiB of ids and values."""


def among_anchors(context: RetokenizeContext, method: str, space: Tensor, weigh: Any) -> Coefficients:
    """Shared tokens copied; the others weighted sums of the shared ones by `weigh(queries, anchors)`, where
    both have a vector in `space` `[V', D]`."""
    new, old, wanted = anchors_in(context, method, space)
    rows, columns, values = weigh(space[wanted], space[new])
    entries = Coefficients.from_coo(wanted[rows], old[columns], values, context.shape)
    return context.overlap_copies().or_else(entries)


@register_initializer(
    "focus",
    summary="sparsemax of cosines to the shared tokens, in a space of the new tokens",
    reference="Dobler & de Melo 2023, FOCUS (arXiv 2305.14481)",
    purpose="tokenizer",
    needs=("vectors", "texts"),
)
def focus(context: RetokenizeContext, *, dim: Count = 100) -> Coefficients:
    """Shared tokens are copied, others are convex sums of shared ones: sparsemax of their cosines.

    The space is `vectors=`, of tokens or of words, else GloVe of `dim` trained on `texts=` as the new
    tokenizer splits them (the authors train fastText CBOW). Special tokens are matched by role, where the
    authors' code leaves them random when spelled in another way; of several old tokens that stand for the
    same the first counts, where it takes the last. Anchors without a vector are copied and weigh nothing.
    """
    return among_anchors(context, "focus", own_space(context, "focus", dim=dim), sparsemax_weights)


@register_initializer(
    "clp",
    summary="cosines to the shared tokens over their sum, in a donor's table",
    reference="Ostendorff & Rehm 2023, CLP-Transfer (arXiv 2301.09626)",
    purpose="tokenizer",
    needs=("donor",),
)
def clp(context: RetokenizeContext, *, neighbors: Count | None = None) -> Coefficients:
    """Shared tokens are copied, others are sums of all shared ones, weighted by their cosines in the table of
    `donor=` over the sum of these, negative ones included as in the authors' code. Where that sum is small
    beside its terms the row is long, and the model may be spoilt; `clp_plus` cannot do that.

    `neighbors` keeps the nearest alone. Without it there is a weight for each pair of a new and a shared
    token; more than 2**28 of them are refused.
    """
    space = donor_space(context, "clp")
    pairs = len(context.without_source()) * len(context.anchors()[0])
    if neighbors is None and pairs > MOST_WEIGHTS:
        raise InvalidArgumentError(
            f"init 'clp': neighbors=None asks for {pairs:,} weights; give neighbors=100, or use clp_plus"
        )
    return among_anchors(context, "clp", space, lambda q, a: linear_weights(q, a, neighbors=neighbors))


@register_initializer(
    "clp_plus",
    summary="sparsemax of cosines to the shared tokens, in a donor's table",
    reference="Yamaguchi et al. 2024, CLP+ (arXiv 2402.10712)",
    purpose="tokenizer",
    needs=("donor",),
)
def clp_plus(context: RetokenizeContext) -> Coefficients:
    """As `clp`, by sparsemax: few shared tokens count, none with a negative weight."""
    return among_anchors(context, "clp_plus", donor_space(context, "clp_plus"), sparsemax_weights)


def two_spaces(
    context: RetokenizeContext, method: str, space_of: Callable[[TokenTexts, Any], Tensor]
) -> tuple[Tensor, Tensor]:
    """Vectors of the old and of the new tokens in one space, `[V, D]` and `[V', D]`, by `space_of`.

    `vectors=` is one source for both languages, or a pair (old, new) that `dictionary=` joins."""
    given = context.require("vectors", method)
    if not isinstance(given, (tuple, list)):
        return space_of(context.old, given), space_of(context.new, given)
    if len(given) != 2:
        raise InvalidArgumentError(
            f"vectors= has {len(given)} sources: give one, or (old language, new language)"
        )
    old, new = (loaded(one) for one in given)
    words = read_parallel(context.require("dictionary", method), context.old, context.new, name="dictionary")
    rotation, pairs = dictionary_map(old, new, words)
    context.report["dictionary_pairs"] = pairs
    return space_of(context.old, given[0]) @ rotation, space_of(context.new, given[1])


def among_all(
    context: RetokenizeContext, old: Tensor, new: Tensor, weigh: Callable[[Tensor, Tensor], Entries]
) -> Coefficients:
    """Each new token from old ones by `weigh(queries, candidates)`: all with a vector but special ones."""
    known = has_vector(old)
    known[sorted(context.old.special)] = False
    candidates, wanted = (there.nonzero().flatten() for there in (known, has_vector(new)))
    if not len(candidates):
        raise InvalidArgumentError("vectors=: no old token has a vector; are they of this language?")
    rows, columns, values = weigh(new[wanted], old[candidates])
    return Coefficients.from_coo(wanted[rows], candidates[columns], values, context.shape)


def nearest(neighbors: int, temperature: float) -> Callable[[Tensor, Tensor], Entries]:
    """`softmax_weights` with its settings."""
    return partial(softmax_weights, neighbors=neighbors, temperature=temperature)


@register_initializer(
    "wechsel",
    summary="softmax of cosines to the nearest old tokens, in word vectors of both languages",
    reference="Minixhofer, Paischer & Rekabsaz 2022, WECHSEL (arXiv 2112.06598)",
    purpose="tokenizer",
    needs=("vectors", "dictionary"),
)
def wechsel(
    context: RetokenizeContext, *, neighbors: Count = 10, temperature: Positive = 0.1
) -> Coefficients:
    """Each new token is made of its `neighbors` nearest old tokens, by softmax(cosine / temperature).

    `vectors=` is a source of words of both languages in one space, or a pair (old language, new language)
    that `dictionary=` joins by an orthogonal map. From a fastText `.bin` a token has the vector of its text,
    from other files also the mean of the words that it is a piece of. Tokens of both vocabularies are not
    copied, as published. The authors' code takes ties in any order; here the first old token counts.
    """
    old, new = two_spaces(context, "wechsel", partial(word_space, words="rank"))
    return among_all(context, old, new, nearest(neighbors, temperature))


@register_initializer(
    "ofa",
    summary="shared tokens copied, others by softmax of cosines, from the words that hold a token",
    reference="Liu et al. 2024, OFA (arXiv 2311.08849)",
    purpose="tokenizer",
    needs=("vectors", "dictionary"),
)
def ofa(context: RetokenizeContext, *, neighbors: Count = 10, temperature: Positive = 0.1) -> Coefficients:
    """As `wechsel`, with shared tokens copied and the vector of a token the mean of the words that hold it.

    The tables stay whole: OFA's factorised ones change the architecture. The authors' code loses old id 0 and
    ignores case when it compares; here the overlap is that of every method.
    """
    old, new = two_spaces(context, "ofa", subword_vectors)
    made = among_all(context, old, new, nearest(neighbors, temperature))
    return context.overlap_copies().or_else(made)


@register_initializer(
    "ramen",
    summary="alignment counts over their sum, or sparsemax of cosines of word vectors of both languages",
    reference="Tran 2020, From English to foreign languages: RAMEN (arXiv 2002.07306)",
    purpose="tokenizer",
    needs=("parallel", "vectors", "dictionary"),
)
def ramen(context: RetokenizeContext, *, iterations: Count = 5) -> Coefficients:
    """With `parallel=` the counts of its alignment over their sum; else from `vectors=` as `wechsel` takes
    them: sparsemax of the cosines of all old tokens, a token's vector being the mean of the words that hold
    it, weighted by 1 / rank. Output biases take the same weights, as every method's do here.

    The authors' code copies special tokens to the same number and skips id 0; here roles decide.
    """
    if context.parallel is not None:
        return alignment_counts(context, "ramen", iterations, "forward").normalised()
    old, new = two_spaces(context, "ramen", partial(subword_vectors, words="rank"))
    return among_all(context, old, new, sparsemax_weights)


@register_initializer(
    "tokalign",
    summary="the one old token that is used most alike, by co-occurrences of both tokenizations of a text",
    reference="Li et al. 2025, TokAlign (arXiv 2506.03523)",
    purpose="tokenizer",
    needs=("texts",),
)
def tokalign(
    context: RetokenizeContext, *, dim: Count = 300, pivots: Count = 300, min_count: Count = 5
) -> Coefficients:
    """Shared tokens are copied; each other token is one old token, a copy.

    GloVe of `dim` is trained on `texts=` as the old tokenizer splits them, and again as the new one does; a
    token is described by its cosines with up to `pivots` shared tokens, drawn at random, and takes the old
    token whose description has the highest cosine with its own. The authors' descriptions are not
    normalised, and what is called one-to-one in the paper is in code, as here, the best old token of each.
    """
    texts = list(context.require("texts", "tokalign"))
    settings: dict[str, Any] = {"dim": dim, "min_count": min_count}
    new = glove_of_ids(context.new.split(texts), len(context.new), context.seed, **settings)
    old = glove_of_ids(context.old.split(texts), context.num_old, context.seed, **settings)
    shared, of_old, _ = anchors_in(context, "tokalign", new, old)
    drawn = torch.randperm(len(shared), generator=context.generator)[:pivots]
    new_of, old_of = unit_rows(new), unit_rows(old)
    new_of, old_of = new_of @ new_of[shared[drawn]].T, old_of @ old_of[of_old[drawn]].T
    made = among_all(context, old_of, new_of, nearest(1, 1.0))
    context.report["pivots"] = len(drawn)
    return context.overlap_copies().or_else(made)
