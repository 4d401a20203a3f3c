"""How a word is spelled as an added token, so that texts come back as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import AddedToken

from ..tokens import copy_tokenizer, split_texts

PROBE = "qzxjkv"
"""A word that no vocabulary has, to see how a tokenizer treats one that is added."""


def read_back(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """What a tokenizer writes for the ids that it gives each text."""
    return [str(tokenizer.decode(ids)).strip() for ids in split_texts(tokenizer, texts)]


def spelling_for(tokenizer: Any) -> tuple[Callable[[str], AddedToken], bool]:
    """Word -> `AddedToken` as suits this tokenizer: text comes back as before, in the fewest tokens; and
    whether longer words with it in them do not, however it is spelled."""
    forms = [
        lambda w: AddedToken(w, single_word=True),
        lambda w: AddedToken(w),
        lambda w: AddedToken(f" {w}", normalized=False),
    ]
    whole = f"the {PROBE} and {PROBE} end"
    texts = [whole, f"the {PROBE}ing un{PROBE} end"]
    before = read_back(tokenizer, texts)

    def rank(form: Any) -> tuple[bool, bool, bool, int]:
        tried = copy_tokenizer(tokenizer)
        tried.add_tokens([form(PROBE)])
        changed = [a != b for a, b in zip(read_back(tried, texts), before, strict=True)]
        ids = tried(whole, add_special_tokens=False)["input_ids"]
        unused = tried.convert_tokens_to_ids(str(form(PROBE))) not in ids  # tokenizers 0.22 finds no " word"
        return unused, changed[0], changed[1], len(ids)

    best = min(forms, key=rank)
    return best, rank(best)[2]
