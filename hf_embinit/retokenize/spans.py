"""`align`: the old tokens that stand where a new one does, seen in a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from ..arguments import refuse_half_characters
from ..errors import InvalidArgumentError
from ..initializers import register_initializer
from .coefficients import Coefficients
from .context import RetokenizeContext
from .texts import TokenTexts

_BLOCK = 2000
"""Texts that are laid over each other at a time."""

_Ids = np.ndarray[Any, np.dtype[np.int64]]


class _Spans(NamedTuple):
    """Tokens of texts that are joined to one, with the characters that they stand for, blanks left out."""

    ids: _Ids
    starts: _Ids
    ends: _Ids

    def without(self, unknown: int | None) -> _Spans:
        """Those of other tokens."""
        kept = self.ids != (-1 if unknown is None else unknown)
        return _Spans(self.ids[kept], self.starts[kept], self.ends[kept])


@register_initializer(
    "align",
    summary="shared tokens copied, the others the mean of the old tokens at their places in a text",
    reference="Yamaguchi et al. 2024, How can we effectively expand the vocabulary (arXiv 2406.11477), Align",
    purpose="tokenizer",
    needs=("texts",),
)
def align_spans(context: RetokenizeContext) -> Coefficients:
    """Each occurrence of a new token in `texts=` is the mean of the old tokens that share a character with
    it, without the unknown one; the row is the mean over occurrences, so that frequent splits weigh more.

    The authors' code counts the last occurrence of a line alone, and leaves a token that is never seen random
    in the input and zero in the output; here it goes down the chain.
    """
    texts = context.require("texts", "align")
    found = span_counts(context.new, context.old, texts)
    if not any(len(ids) for ids, _, _ in found):
        raise InvalidArgumentError(
            "texts= has no text that both tokenizers read: init 'align' looks at where tokens stand in it"
        )
    new, old, counts = (torch.from_numpy(np.concatenate(part)) for part in zip(*found, strict=True))
    context.report["texts_tokens"] = round(float(counts.sum()))
    made = Coefficients.from_coo(new, old, counts, context.shape).normalised()
    return context.overlap_copies().or_else(made)


def span_counts(new: TokenTexts, old: TokenTexts, texts: Iterable[str]) -> list[tuple[_Ids, _Ids, Any]]:
    """Entries (new ids, old ids, occurrences) for each block of texts; an occurrence that lies over n old
    tokens that are not the unknown one counts 1/n for each. Raises `InvalidArgumentError` for tokenizers that
    do not say where in a text their tokens stand."""
    found = []
    rest = iter(texts)
    while block := list(islice(rest, _BLOCK)):
        here, there = _spans(new, block), _spans(old, block).without(old.unknown)
        first = np.searchsorted(there.ends, here.starts, side="right")
        number = np.maximum(np.searchsorted(there.starts, here.ends, side="left") - first, 0)
        inside = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        key = np.repeat(here.ids, number) * len(old) + there.ids[np.repeat(first, number) + inside]
        entries, place = np.unique(key, return_inverse=True)
        counts = np.bincount(place, weights=1.0 / np.repeat(number, number), minlength=len(entries))
        found.append((entries // len(old), entries % len(old), counts))
    return found


class Span(NamedTuple):
    """Where one token of a text stands: its place among the tokens, and its characters without blanks."""

    place: int
    start: int
    end: int


def spans_of(tokens: TokenTexts, texts: Sequence[str], method: str) -> list[tuple[list[int], list[Span]]]:
    """The ids of each text, special tokens included, and where those of them stand that are text."""
    made = []
    for text, encoding in zip(texts, _encodings(tokens, texts, method, special=True), strict=True):
        spans = []
        for place, (start, end) in enumerate(encoding.offsets):
            covered = text[start:end]
            bare = covered.strip()
            if bare and not encoding.special_tokens_mask[place]:
                start += len(covered) - len(covered.lstrip())
                spans.append(Span(place, start, start + len(bare)))
        made.append((encoding.ids, spans))
    return made


def _encodings(tokens: TokenTexts, texts: Sequence[str], method: str, *, special: bool) -> list[Any]:
    """The texts as the tokenizer's backend encodes them, whole. Raises `InvalidArgumentError` without one."""
    backend = getattr(tokens.tokenizer, "_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InvalidArgumentError(
            f"{type(tokens.tokenizer).__name__} does not say where in a text its tokens stand: {method!r} "
            f"needs a fast tokenizer (with a tokenizer.json)"
        )
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    try:
        return backend.encode_batch(list(texts), add_special_tokens=special)
    except Exception as error:  # the backend raises nothing more special
        refuse_half_characters(texts, "texts=")
        if "unk" in tokens.roles:
            raise
        raise InvalidArgumentError(
            f"{type(tokens.tokenizer).__name__} cannot read texts=, having no unknown token ({error}): give "
            f"one that has, or text that it knows"
        ) from error
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def _spans(tokens: TokenTexts, texts: Sequence[str]) -> _Spans:
    encodings = _encodings(tokens, texts, "align", special=False)
    shifts = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]
    counts = [len(encoding.ids) for encoding in encodings]
    ids = np.fromiter((i for e in encodings for i in e.ids), dtype=np.int64, count=sum(counts))
    offsets = np.array([pair for e in encodings for pair in e.offsets], dtype=np.int64).reshape(-1, 2)
    offsets = offsets + np.repeat(shifts, counts)[:, None]
    blank = np.array([c.isspace() for text in texts for c in f"{text} "] + [True])
    places = np.arange(len(blank))
    after = np.minimum.accumulate(np.where(blank, len(blank), places)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(blank, -1, places))
    starts, ends = after[offsets[:, 0]], before[np.maximum(offsets[:, 1] - 1, 0)] + 1
    kept = (starts < ends) & (offsets[:, 0] < offsets[:, 1])
    return _Spans(ids[kept], starts[kept], ends[kept])
