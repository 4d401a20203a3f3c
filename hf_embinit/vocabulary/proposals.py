"""`propose_tokens`: the words that are frequent in a corpus and split by a tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken

from ..arguments import Count, Pattern, Tokenizer, checked
from ..errors import InvalidArgumentError
from ..tokens import copy_tokenizer
from .new_tokens import read_back

_PROBE = "qzxjkv"
"""A word that no vocabulary has, to see how a tokenizer treats one that is added."""


@checked
def propose_tokens(
    tokenizer: Tokenizer,
    corpus: Iterable[str],
    n: Count,
    *,
    min_count: Count = 2,
    word: Pattern = r"[^\W\d_]+(?:['’-][^\W\d_]+)*",
) -> list[AddedToken]:
    """The `n` most frequent words that the tokenizer splits, ready for `expand_vocabulary` (Hewitt 2021).

    A word is what the regular expression `word` matches between spaces. Fewer come back when fewer are seen
    `min_count` times. Their spelling is what suits the tokenizer: with the space in front where that
    belongs to the token (byte-level BPE), whole words only where a piece within a word has another
    spelling (WordPiece). Where the tokenizer reads what follows an added token as a new word, however that is
    spelled (T5's and other Unigram ones), words that begin a longer one of the corpus are left out: `by`
    would make `by pass` of `bypass`. Raises `InvalidArgumentError` when the corpus has no such word.
    """
    pattern = re.compile(word)
    spelling, breaks_longer_words = _spelling(tokenizer)
    spaced = str(spelling(_PROBE)).startswith(" ")  # then a word that opens a text is another token
    counts = Counter(
        w
        for text in corpus
        for w in text.split()[1 if spaced and not text[:1].isspace() else 0 :]
        if pattern.fullmatch(w)
    )
    ranked = [
        w for w, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= min_count
    ]
    if breaks_longer_words:
        begins = {a for a, b in pairwise(sorted(counts)) if b.startswith(a)}
        ranked = [w for w in ranked if w not in begins]
    known = tokenizer.get_vocab()
    proposals: dict[str, AddedToken] = {}
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    for start in range(0, len(ranked), 1000):
        batch = ranked[start : start + 1000]
        encoded = tokenizer([str(spelling(w)) for w in batch], add_special_tokens=False)["input_ids"]
        for one, ids in zip(batch, encoded, strict=True):
            # "Frodo" and "frodo" may be one word to the tokenizer
            key = normalizer.normalize_str(one) if normalizer is not None else one
            if len(ids) > 1 and str(spelling(one)) not in known and key not in proposals:
                proposals[key] = spelling(one)
                if len(proposals) == n:
                    return list(proposals.values())
    if not proposals:
        raise InvalidArgumentError(
            f"corpus has no word that is seen {min_count} times and split: {len(counts)} words were read"
        )
    return list(proposals.values())


def _spelling(tokenizer: Any) -> tuple[Any, bool]:
    """Word -> `AddedToken` as suits this tokenizer: text comes back as before, in the fewest tokens; and
    whether longer words with it in them do not, however it is spelled."""
    forms = [
        lambda w: AddedToken(w, single_word=True),
        lambda w: AddedToken(w),
        lambda w: AddedToken(f" {w}", normalized=False),
    ]
    whole = f"the {_PROBE} and {_PROBE} end"
    texts = [whole, f"the {_PROBE}ing un{_PROBE} end"]
    before = read_back(tokenizer, texts)

    def rank(form: Any) -> tuple[bool, bool, bool, int]:
        tried = copy_tokenizer(tokenizer)
        tried.add_tokens([form(_PROBE)])
        changed = [a != b for a, b in zip(read_back(tried, texts), before, strict=True)]
        ids = tried(whole, add_special_tokens=False)["input_ids"]
        unused = tried.convert_tokens_to_ids(str(form(_PROBE))) not in ids  # tokenizers 0.22 finds no " word"
        return unused, changed[0], changed[1], len(ids)

    best = min(forms, key=rank)
    return best, rank(best)[2]
