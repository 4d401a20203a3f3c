"""`propose_tokens`: the words that are frequent in a corpus and split by a tokenizer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tokenizers import AddedToken
from transformers.utils import logging

from ..arguments import Count, Pattern, Tokenizer, checked
from ..errors import InvalidArgumentError
from .spelling import PROBE, spelling_for


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
    `min_count` times. Their spelling is what suits the tokenizer: with the space in front where that belongs
    to the token (byte-level BPE), whole words only where a piece within a word has another spelling
    (WordPiece), and as its normaliser writes them (lower-case ones where it lowers). Where the tokenizer
    reads what follows an added token as a new word, however that is spelled (T5's and other Unigram ones),
    words that begin a longer one of the corpus are left out: `by` would make `by pass` of `bypass`. Raises
    `InvalidArgumentError` when the corpus has no such word.
    """
    pattern = re.compile(word)
    spelling, breaks_longer_words = spelling_for(tokenizer)
    spaced = str(spelling(PROBE)).startswith(" ")  # then a word that opens a text is another token
    counts = Counter(
        w
        for text in logging.tqdm(corpus, desc="Counting words", unit="text", disable=None, delay=1)
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
            key = one if normalizer is None else normalizer.normalize_str(one).replace("▁", " ").strip()
            if spelling(one).normalized and pattern.fullmatch(key):
                one = key  # as the token is matched and written
            if len(ids) > 1 and str(spelling(one)) not in known and key not in proposals:
                proposals[key] = spelling(one)
                if len(proposals) == n:
                    return list(proposals.values())
    if not proposals:
        raise InvalidArgumentError(
            f"corpus has no word that is seen {min_count} times and split: {len(counts)} words were read"
        )
    return list(proposals.values())
