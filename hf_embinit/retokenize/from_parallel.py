"""Methods that read parallel text: `trans_tokenizer`, and RAMEN's variant of it."""

from __future__ import annotations

import bisect
from typing import Annotated

import torch

from ..arguments import Positive, Wanted
from ..initializers import register_initializer
from .alignment import Iterations, Symmetrization, count_alignments
from .coefficients import Coefficients, Step
from .context import RetokenizeContext
from .parallel import Pair, read_parallel
from .texts import TokenTexts

SmallShare = Annotated[float, Wanted("a number from 0 to below 1", lambda x: 0 <= x < 1)]


def alignment_counts(
    context: RetokenizeContext, method: str, iterations: int, symmetrization: Symmetrization
) -> Coefficients:
    """Counts from `parallel=` and `dictionary=`, whose lines count as parallel text; not normalised. What is
    aligned with the old unknown token counts for nothing."""
    given = {"parallel": context.parallel, "dictionary": context.dictionary}
    pairs: list[Pair] = []
    for name, source in given.items():
        if source is not None:
            pairs += read_parallel(source, context.old, context.new, name=name)
    if not pairs:
        context.require("parallel", method)
    counts = count_alignments(
        context.old.split([pair.old for pair in pairs]),
        context.new.split([pair.new for pair in pairs]),
        num_old=context.num_old,
        num_new=len(context.new),
        iterations=iterations,
        symmetrization=symmetrization,
    )
    context.report["parallel_pairs"] = counts.pairs
    if counts.left_out:
        context.report["parallel_pairs_left_out"] = counts.left_out
    new, old, values = (torch.from_numpy(x) for x in (counts.new_ids, counts.old_ids, counts.counts))
    known = old != (-1 if context.old.unknown is None else context.old.unknown)
    return Coefficients.from_coo(new[known], old[known], values[known], context.shape)


@register_initializer(
    "trans_tokenizer",
    summary="the old tokens that parallel text aligns the new one with, weighted by how often",
    reference="Remy et al. 2024, Trans-Tokenization (arXiv 2408.04303)",
    purpose="tokenizer",
    needs=("parallel", "dictionary"),
)
def trans_tokenizer(
    context: RetokenizeContext,
    *,
    iterations: Iterations = 5,
    symmetrization: Symmetrization = "agreement",
    power: Positive = 1.0,
    min_share: SmallShare = 0.05,
    borrow: bool = True,
) -> Coefficients:
    """Rows that are means of old rows, weighted by alignment counts of IBM model 1 (`count_alignments`).

    `parallel=` and `dictionary=` are the text. A token of both vocabularies counts once more for itself.
    Counts are taken to the `power`: 1 as in the paper; 0.5, ours, lets translations that are seldom weigh
    more. Old tokens with less than `min_share` of a new token's weight are left out. With `borrow` a token
    that is never aligned takes the weights of aligned tokens that it holds, the longest ones first, and of
    those that begin with it.

    The authors align words by fast_align in one direction, drop pairs seen under 10 times, and deal a word's
    count out to its pieces; here tokens are aligned, in both directions, and the shares of a token sum to 1
    in both, so that small corpora serve. Their comment on weights 0.4, 0.2, 0.4 is not what their code does.
    Tokens that are left have a row by the chain, not the unknown token's.
    """
    counts = alignment_counts(context, "trans_tokenizer", iterations, symmetrization)
    made = with_overlap(context, counts)
    made = Coefficients(made.indptr, made.indices, made.values**power, made.shape, made.step)
    made = without_small(made.normalised(), min_share)
    if borrow:
        taken = borrowed(context.new, made)
        context.report["borrowed"] = int((taken.step == Step.METHOD).sum())
        made = made.or_else(taken)
    return made


def with_overlap(context: RetokenizeContext, counts: Coefficients) -> Coefficients:
    """Counts, and one more of each token of both vocabularies for itself; not normalised."""
    own = (context.overlap >= 0).nonzero().flatten()
    return Coefficients.from_coo(
        torch.cat([counts.new_ids, own]),
        torch.cat([counts.indices, context.overlap[own]]),
        torch.cat([counts.values, torch.ones(len(own), dtype=torch.float32)]),
        context.shape,
    )


def without_small(made: Coefficients, min_share: float) -> Coefficients:
    """The weights of at least `min_share`, or a row's largest where that is smaller, over their new sum."""
    rows = made.new_ids
    largest = torch.zeros(made.shape[0], dtype=torch.float32).scatter_reduce_(0, rows, made.values, "amax")
    kept = made.values >= largest.clamp_max(min_share)[rows]
    return Coefficients.from_coo(rows[kept], made.indices[kept], made.values[kept], made.shape).normalised()


def borrowed(tokens: TokenTexts, made: Coefficients) -> Coefficients:
    """For tokens without weights the mean weights of tokens that have some: the longest that they hold, none
    inside another, and those that begin with them."""
    known: dict[str, int] = {}
    for i in made.step.eq(Step.METHOD).nonzero().flatten().tolist():
        if i not in tokens.special and tokens.texts[i] and tokens.texts[i].strip():
            known.setdefault(_spelled(tokens, i), i)
    ordered = sorted(known)
    longest = max(map(len, known), default=0)
    new, sources = [], []
    for i in made.step.eq(Step.NONE).nonzero().flatten().tolist():
        if i in tokens.special or not tokens.texts[i]:
            continue
        text = _spelled(tokens, i)
        lenders = _inside(text, known, longest)
        first = bisect.bisect_left(ordered, text)
        last = bisect.bisect_left(ordered, text + "\U0010ffff")
        lenders += [known[one] for one in ordered[first:last]]
        new += [i] * len(lenders)
        sources += lenders
    if not new:
        return Coefficients.from_rows([{}] * len(tokens), made.shape[1])
    owner, lender = torch.tensor(new), torch.tensor(sources)
    lent = made.taken(lender)
    return Coefficients.from_coo(owner[lent.new_ids], lent.indices, lent.values, made.shape).normalised()


def _spelled(tokens: TokenTexts, i: int) -> str:
    """A token's text after a mark for the start of a word, where it starts one."""
    form = tokens.forms[i]
    text = (tokens.texts[i] or "").strip()
    return f" {text}" if form.word_start is True else text


def _inside(text: str, known: dict[str, int], longest: int) -> list[int]:
    """The known tokens inside a text, the longest first, none inside one that is taken, of 2 characters and
    more (a single one tells nothing), in the order of the text."""
    taken: list[tuple[int, int]] = []
    for length in range(min(len(text) - 1, longest), 1, -1):
        for start in range(len(text) - length + 1):
            end = start + length
            whole = len(text[start:end].strip()) > 1  # the mark of a word's start is no character
            if whole and text[start:end] in known and not any(start < b and a < end for a, b in taken):
                taken.append((start, end))
    return [known[text[a:b]] for a, b in sorted(taken)]
