"""Vocabularies compared as in Zhang 2021, Table 2: shared and English-like word-pieces, and contexts.

Tokens are compared in WordPiece's spelling: `the` starts a word, `##ing` continues one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ..arguments import Count, CountOrZero, Pattern, checked
from ..tokens import TokenFamily, canonical_form

ENGLISH_LIKE = r"(##)?[A-Za-z]+"
"""Zhang 2021, section 4.1."""


def word_piece(token: str, family: TokenFamily | str) -> str | None:
    """A token in WordPiece's spelling: byte-level `Ġthe` and SentencePiece's `▁the` become `the`, their `ing`
    becomes `##ing`. None for a part of a character, and for the mark of a word start alone."""
    if family in ("wordpiece", "words"):
        return token or None
    form = canonical_form(token, family)
    try:
        text = form.bytes.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text:
        return None
    return text if form.word_start is not False else f"##{text}"


@checked
def english_like(
    tokens: Iterable[str], family: TokenFamily | str = "wordpiece", *, pattern: Pattern = ENGLISH_LIKE
) -> list[bool]:
    """Whether each token, in WordPiece's spelling, matches `pattern` as a whole.

    Raises `InvalidArgumentError` for a pattern that is no regular expression."""
    matches = re.compile(pattern).fullmatch
    spelled = (word_piece(token, family) for token in tokens)
    return [piece is not None and matches(piece) is not None for piece in spelled]


@dataclass(frozen=True)
class VocabularyOverlap:
    """One row of Zhang's Table 2."""

    size: int
    """Tokens of the vocabulary (ids without a token left out)."""
    english_like: int
    """How many of them match the pattern."""
    shared: int
    """How many English-like ones the reference vocabulary has, too, spelled the same."""
    reference_size: int
    reference_english_like: int


@checked
def vocabulary_overlap(
    tokens: Sequence[str],
    family: TokenFamily | str,
    reference_tokens: Sequence[str],
    reference_family: TokenFamily | str,
    *,
    special: Collection[str] = (),
    pattern: Pattern = ENGLISH_LIKE,
) -> VocabularyOverlap:
    """English-like word-pieces of a vocabulary, and how many of them a reference vocabulary has.

    `special` are spellings in either vocabulary that are no word-pieces (`unk`). Two tokens of one spelling
    count once in the three counts of English-like pieces.
    """

    def pieces(of: Sequence[str], spelled: TokenFamily | str) -> set[str | None]:
        kept = [token for token in of if token and token not in special]
        flags = english_like(kept, spelled, pattern=pattern)
        return {word_piece(token, spelled) for token, flag in zip(kept, flags, strict=True) if flag}

    own, reference = pieces(tokens, family), pieces(reference_tokens, reference_family)
    return VocabularyOverlap(
        size=sum(1 for token in tokens if token),
        english_like=len(own),
        shared=len(own & reference),
        reference_size=sum(1 for token in reference_tokens if token),
        reference_english_like=len(reference),
    )


@dataclass(frozen=True)
class EnglishLikeContexts:
    """How many windows of a corpus are English-like."""

    contexts: int
    english_like: int

    @property
    def share(self) -> float:
        """English-like windows of all windows (nan of none)."""
        return self.english_like / self.contexts if self.contexts else float("nan")


@checked
def english_like_contexts(
    texts: Iterable[Sequence[str]],
    family: TokenFamily | str = "wordpiece",
    *,
    window: Count = 10,
    more_than: CountOrZero = 5,
    stride: Count = 1,
    pattern: Pattern = ENGLISH_LIKE,
) -> EnglishLikeContexts:
    """Windows of `window` word-pieces with more than `more_than` English-like ones (Zhang 2021, 4.1).

    Each text is the list of its tokens; windows do not cross texts, and a text shorter than a window has
    none. Every window counts, overlapping ones too; `stride=10` counts those that do not overlap."""
    known: dict[str, bool] = {}
    contexts = found = 0
    for tokens in texts:
        new = [token for token in dict.fromkeys(tokens) if token not in known]
        known.update(zip(new, english_like(new, family, pattern=pattern), strict=True))
        sums = [0]
        for token in tokens:
            sums.append(sums[-1] + known[token])
        for start in range(0, len(tokens) - window + 1, stride):
            contexts += 1
            found += sums[start + window] - sums[start] > more_than
    return EnglishLikeContexts(contexts, found)
