"""Text to tokens and back, by spaCy's rules for words or by the pieces of a pre-trained tokenizer.

Used by `VanillaTransformerTokenizer`; copied into checkpoints with it, so it imports nothing of hf_embinit.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

Segmented = tuple[list[str], list[bool]]
"""The tokens of a text, and whether each directly follows the one before it, without a blank."""

Attachment = dict[str, list[str]]
"""Words that are written without a blank after their `left`, or before their `right`, neighbor."""

MIN_ATTACHMENTS = 5
"""Boundaries at which a word must have been seen before its attachment is learnt."""


class TokenizerError(ValueError):
    """A tokenizer cannot be made of what was given; the message is one sentence."""


class WordSegmenter:
    """spaCy's tokenizer rules of one language, lower-cased, without white space; nothing is downloaded."""

    def __init__(self, language: str | None, argument: str = "source_lang"):
        if not language:
            raise TokenizerError(
                f"A tokenizer of words needs {argument}=, a spaCy language code such as 'de'"
            )
        self.language = language

    def __call__(self, texts: Iterable[str]) -> Iterator[Segmented]:
        for doc in _spacy_tokenizer(self.language).pipe(texts):
            words, glued, end = [], [], -1
            for word in doc:
                if not word.is_space:
                    words.append(word.text.lower())
                    glued.append(word.idx == end)
                    end = word.idx + len(word)
            yield words, glued


class PieceSegmenter:
    """A whole pre-trained tokenizer without its special tokens; what it does not know becomes `unknown`."""

    def __init__(self, backend: Tokenizer, unknown: str):
        self.backend = backend
        self.unknown = unknown
        self.unknown_id = unknown_id(backend)

    def __call__(self, texts: Iterable[str]) -> Iterator[Segmented]:
        texts = iter(texts)
        while batch := list(islice(texts, 1000)):
            for encoding in self.backend.encode_batch(batch, add_special_tokens=False):
                tokens = encoding.tokens
                if self.unknown_id is not None and self.unknown_id in encoding.ids:
                    pairs = zip(encoding.ids, tokens, strict=True)
                    tokens = [self.unknown if i == self.unknown_id else token for i, token in pairs]
                end, glued = -1, []
                for start, stop in encoding.offsets:
                    glued.append(start == end)
                    end = stop
                yield tokens, glued


def unknown_id(backend: Tokenizer) -> int | None:
    """The id of a tokenizer's unknown token, if it has one."""
    token = getattr(backend.model, "unk_token", None)
    if token is not None:
        return backend.token_to_id(token)
    if type(backend.model).__name__ == "Unigram":  # the one model that does not tell
        return json.loads(backend.to_str())["model"]["unk_id"]
    return None


def continuation_prefix(backend: Tokenizer) -> str:
    """`##` of WordPiece tokenizers, whose tokens do not show where blanks were; empty for all others."""
    return backend.model.continuing_subword_prefix if type(backend.model).__name__ == "WordPiece" else ""


def merge_pieces(tokens: Sequence[str], prefix: str, whole: Iterable[str] = ()) -> list[tuple[str, int]]:
    """Words joined from word-pieces, each with the index of its first; those in `whole` are not continued."""
    words: list[tuple[str, int]] = []
    for i, token in enumerate(tokens):
        if not (token.startswith(prefix) and len(token) > len(prefix)):
            words.append((token, i))
        elif not words or words[-1][0] in whole:
            words.append((token[len(prefix) :], i))
        else:
            words[-1] = (words[-1][0] + token[len(prefix) :], words[-1][1])
    return words


def survey(segmented: Iterable[Segmented], prefix: str | None) -> tuple[Counter[str], Attachment]:
    """Counts of all tokens, and the attachment of words.

    `prefix` marks the continuation of a word; with None the tokens are pieces that contain their blanks, and
    no attachment is learnt.
    """
    counts: Counter[str] = Counter()
    boundaries: Counter[tuple[str, str, bool]] = Counter()
    for tokens, glued in segmented:
        counts.update(tokens)
        if prefix is not None:
            words = merge_pieces(tokens, prefix) if prefix else [(token, i) for i, token in enumerate(tokens)]
            boundaries.update((left, right, glued[i]) for (left, _), (right, i) in pairwise(words))
    return counts, learn_attachment(boundaries) if prefix is not None else {}


def learn_attachment(boundaries: Counter[tuple[str, str, bool]]) -> Attachment:
    """The words that are glued to a neighbour at most boundaries `(left word, right word, glued)`.

    Punctuation is learnt first. For other words (`n't`, `'s`, French `l'`) only the boundaries that
    punctuation does not explain count: `shirt` often follows `t-`, but is not joined to `white`.
    """
    left: set[str] = set()
    right: set[str] = set()
    for punctuation in (True, False):
        for attached, position in ((left, 1), (right, 0)):
            seen: Counter[str] = Counter()
            joined: Counter[str] = Counter()
            for (first, second, glued), n in boundaries.items():
                word = (first, second)[position]
                if _is_punctuation(word) is not punctuation or '"' in (first, second):
                    continue
                explained = first in right or (attached is right and second in left)
                if punctuation or not explained:
                    seen[word] += n
                    joined[word] += n * glued
            attached.update(word for word, n in seen.items() if n >= MIN_ATTACHMENTS and 2 * joined[word] > n)
    return {"left": sorted(left), "right": sorted(right)}


def join_words(words: Iterable[str], attachment: Attachment) -> str:
    """Words joined to a text, with a blank at every boundary but those of attached words.

    Straight double quotes open and close in turn.
    """
    left, right = set(attachment.get("left", ())), set(attachment.get("right", ()))
    text = ""
    glue, quoted = True, False
    for word in words:
        opens, closes = word == '"' and not quoted, word == '"' and quoted
        text += word if glue or closes or (word in left and not opens) else " " + word
        glue = opens or (word in right and not closes)
        quoted = opens or (quoted and not closes)
    return text


def _is_punctuation(word: str) -> bool:
    return not any(character.isalnum() for character in word)


@lru_cache(maxsize=8)
def _spacy_tokenizer(language: str) -> Any:
    try:
        spacy = importlib.import_module("spacy")  # by name: word pieces must load without it
    except ImportError as error:
        raise ImportError("A tokenizer of words needs spaCy: pip install 'spacy>=3.8,<4'") from error
    try:
        return spacy.blank(language).tokenizer
    except ImportError as error:
        if "E048" not in str(error):  # rules that need another package, such as those for Japanese
            raise TokenizerError(
                f"spaCy's rules for language {language!r} cannot be used: {error}"
            ) from error
    logger.warning("spaCy has no rules for language %r: words are split by the rules for any (xx)", language)
    return spacy.blank("xx").tokenizer
