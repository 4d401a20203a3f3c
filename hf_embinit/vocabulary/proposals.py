"""`propose_tokens`: the words that are frequent in a corpus and split by a tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from unicodedata import category

from tokenizers import AddedToken
from transformers.utils import logging

from ..arguments import Count, Pattern, Tokenizer, checked
from ..errors import InvalidArgumentError
from ..tokens import tokenizer_of, unknown_id
from .spelling import PROBE, spelling_for

_JOINERS = re.compile("['’\u200c\u200d-]")


@checked
def propose_tokens(
    tokenizer: Tokenizer,
    corpus: Iterable[str],
    n: Count,
    *,
    min_count: Count = 2,
    word: Pattern | None = None,
) -> list[AddedToken]:
    """The `n` most frequent words that the tokenizer splits, ready for `expand_vocabulary` (Hewitt 2021).

    A word is what the regular expression `word` matches between spaces, by default letters with their marks,
    also some joined by ' ’ - or a joiner of no width. Spellings that are one word to the tokenizer, as
    "Frodo" and "frodo" where it lowers, count together, and where the space in front belongs to the token
    (byte-level BPE) words after one alone. Fewer come back when fewer are seen `min_count` times. Their
    spelling is what suits the tokenizer: with the space in front where that belongs to the token (byte-level
    BPE), whole words only where a piece within a word has another spelling (WordPiece), and as its normaliser
    writes them (lower-case ones where it lowers). Where the tokenizer reads what follows an added token as a
    new word, however that is spelled (T5's and other Unigram ones), words that begin a longer one of the
    corpus are left out: `by` would make `by pass` of `bypass`; a comma right behind an added token is read as
    one with a space in front, too. Raises `InvalidArgumentError` when the corpus has no such word.
    """
    tokenizer = tokenizer_of(tokenizer)
    is_word = _letters if word is None else re.compile(word).fullmatch
    spelling, breaks_longer_words = spelling_for(tokenizer)
    spaced = str(spelling(PROBE)).startswith(" ")  # then a word that opens a text or line is another token
    parts = re.compile(r"(?<= )\S+" if spaced else r"\S+")
    bar = logging.tqdm(corpus, desc="Counting words", unit="text", disable=None, delay=1)
    seen = Counter(one for text in bar for one in parts.findall(text))
    counts = Counter({one: count for one, count in seen.items() if is_word(one)})
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    written: dict[str, str] = {}  # as the tokenizer matches a word -> its most frequent spelling
    together: Counter[str] = Counter()
    for one, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        key = one if normalizer is None else normalizer.normalize_str(one).replace("▁", " ").strip()
        written.setdefault(key, key if spelling(one).normalized and is_word(key) else one)
        together[key] += count
    ranked = [
        key
        for key, count in sorted(together.items(), key=lambda item: (-item[1], item[0]))
        if count >= min_count
    ]
    if breaks_longer_words:
        begins = {a for a, b in pairwise(sorted(counts)) if b.startswith(a)}
        ranked = [key for key in ranked if written[key] not in begins]
    known, unknown = tokenizer.get_vocab(), [unknown_id(tokenizer)]
    proposals: list[AddedToken] = []
    for start in range(0, len(ranked), 1000):
        batch = [spelling(written[key]) for key in ranked[start : start + 1000]]
        encoded = tokenizer([str(token) for token in batch], add_special_tokens=False)["input_ids"]
        for token, ids in zip(batch, encoded, strict=True):
            if (len(ids) > 1 or ids == unknown) and str(token) not in known:
                proposals.append(token)
                if len(proposals) == n:
                    return proposals
    if not proposals:
        others = f" and {len(seen) - len(counts)} strings that are no word (word=)" if seen != counts else ""
        raise InvalidArgumentError(
            f"corpus has no word that is seen {min_count} times and split: {len(counts)} words{others} were "
            f"read"
        )
    return proposals


def _letters(text: str) -> bool:
    """Whether a string is letters with their marks, or several such joined."""
    return all(
        part[:1].isalpha() and all(c.isalpha() or category(c).startswith("M") for c in part)
        for part in _JOINERS.split(text)
    )
