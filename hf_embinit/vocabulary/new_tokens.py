"""Checks new tokens on a copy of the tokenizer, before anything is changed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from ..errors import InvalidArgumentError, VocabularyWarning


@dataclass
class CheckedTokens:
    """Tokens that a tokenizer lacks, the ids it will give them, and a copy that has them."""

    tokens: list[str | AddedToken]
    ids: list[int]
    extended: Any
    """A copy of the tokenizer with the tokens in it."""

    @property
    def texts(self) -> list[str]:
        """The tokens as strings."""
        return [str(t) for t in self.tokens]


def check_new_tokens(tokenizer: Any, new_tokens: Sequence[str | AddedToken]) -> CheckedTokens:
    """The tokens to add; `tokenizer` itself stays as it is.

    Empty and blank strings, and tokens that the tokenizer would never produce, raise `InvalidArgumentError`.
    Tokens given twice, tokens that are in the vocabulary (or whose text is one token of it) and tokens
    that the normaliser changes come with a `VocabularyWarning`; the first two are not added.
    """
    if isinstance(new_tokens, (str, AddedToken)):
        raise InvalidArgumentError(f"new_tokens={new_tokens!r}: expected a list of tokens")
    wanted: dict[str, str | AddedToken] = {}
    for token in new_tokens:
        if not isinstance(token, (str, AddedToken)):
            raise InvalidArgumentError(f"new_tokens has {token!r}: expected strings or AddedToken")
        text = str(token)
        if not text.strip():
            raise InvalidArgumentError(f"new_tokens has the empty token {text!r}")
        if text in wanted:
            _warn(f"the token {text!r} is given twice; it is added once")
        elif text in tokenizer.get_vocab():
            _warn(f"the token {text!r} is in the vocabulary already; its row stays as it is")
        elif (known := _one_token(tokenizer, text)) is not None:
            _warn(f"the text {text!r} is one token already, {known!r}; its row stays as it is")
        else:
            wanted[text] = token
    if not wanted:
        raise InvalidArgumentError("new_tokens has no token that the tokenizer lacks")
    extended = copy.deepcopy(tokenizer)
    tokens = list(wanted.values())
    extended.add_tokens(tokens)
    ids = [int(i) for i in extended.convert_tokens_to_ids(list(wanted))]
    for text, i in zip(wanted, ids, strict=True):
        _check_use(extended, text, i)
    for text, i in zip(wanted, ids, strict=True):
        written = extended.decode([i]).strip()
        if written != text.strip():
            _warn(f"the tokenizer's normaliser changes the token {text!r}: it matches and writes {written!r}")
    return CheckedTokens(tokens, ids, extended)


def _one_token(tokenizer: Any, text: str) -> str | None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        return None
    return tokenizer.convert_ids_to_tokens(ids[0])


def _check_use(extended: Any, text: str, token_id: int) -> None:
    """Raises when no ordinary text gives `token_id`."""
    contexts = [f"a{text} a", f"a{text}"]
    if not text[0].isspace():
        contexts += [text, f"a {text} a"]
    encoded = [extended(c, add_special_tokens=False)["input_ids"] for c in contexts]
    if not any(token_id in ids for ids in encoded):
        instead = extended.tokenize(text)
        raise InvalidArgumentError(
            f"the tokenizer would never produce the new token {text!r} but makes {instead} of it: "
            f"give the token as its normaliser writes it, or AddedToken({text!r}, normalized=False)"
        )


def _warn(message: str) -> None:
    warnings.warn(message, VocabularyWarning, stacklevel=4)
