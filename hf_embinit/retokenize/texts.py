"""`TokenTexts`: the tokens of one tokenizer by id, as text, as bytes, and by role."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..arguments import refuse_half_characters
from ..errors import InvalidArgumentError
from ..tokens import (
    Side,
    TokenFamily,
    TokenForm,
    added_form,
    canonical_form,
    read_vocabulary,
    split_texts,
    token_family,
    tokenizer_of,
    unknown_id,
)

ROLES = ("bos", "cls", "eos", "sep", "unk", "mask", "pad")
"""Roles of special tokens, the most important first: a token with several is taken for the first of them."""


@dataclass(frozen=True, eq=False)
class TokenTexts:
    """The tokens of a tokenizer, read once. Lists are by id, from 0 to the highest; `""` is an id without a
    token."""

    tokenizer: Any
    side: Side = "shared"
    """Which vocabulary, of a tokenizer that keeps two."""
    tokens: list[str] = field(init=False)
    """As the tokenizer spells them: `Ġthe`, `▁the`, `the`."""
    special: frozenset[int] = field(init=False)
    """Ids of special tokens."""
    added: frozenset[int] = field(init=False)
    """Ids of other added tokens, which are spelled as their text."""
    family: TokenFamily = field(init=False)
    roles: dict[str, int] = field(init=False)
    """Role -> id, of the roles in `ROLES` that the tokenizer has, in that order."""

    def __post_init__(self) -> None:
        tokenizer = tokenizer_of(self.tokenizer)
        known = read_vocabulary(tokenizer, self.side)
        if not known.tokens:
            raise InvalidArgumentError(f"the tokenizer {type(tokenizer).__name__} has no token")
        two = self.side == "target" and getattr(tokenizer, "separate_vocabs", False)
        id_of = tokenizer.target_encoder if two else None
        roles: dict[str, int] = {}
        for role in ROLES:
            token = getattr(tokenizer, f"{role}_token", None)
            if token is None:
                continue
            i = tokenizer.convert_tokens_to_ids(token) if id_of is None else id_of.get(token)
            if i is not None and i < len(known.tokens) and known.tokens[i] == token:
                roles[role] = i
        given = {
            "tokenizer": tokenizer,
            "tokens": known.tokens,
            "special": known.special,
            "added": known.added,
            "family": token_family(tokenizer),
            "roles": roles,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token -> id, the first of equal ones."""
        return {token: i for i, token in reversed(list(enumerate(self.tokens))) if token}

    @cached_property
    def unknown(self) -> int | None:
        """The id of what stands for text that the tokenizer cannot read; its row says nothing of a token."""
        return self.roles["unk"] if "unk" in self.roles else unknown_id(self.tokenizer)

    @cached_property
    def forms(self) -> list[TokenForm]:
        """Bytes without the mark of a word start, and whether the token starts a word, for each id."""
        made = []
        for i, token in enumerate(self.tokens):
            if i in self.added and i not in self.special:
                made.append(
                    added_form(token)._replace(word_start=True) if token.strip() else added_form(token)
                )
            else:
                made.append(canonical_form(token, self.family, i in self.special))
        return made

    @cached_property
    def texts(self) -> list[str | None]:
        """Surface text of each id, with a blank before what starts a word in families that mark it; None for
        a part of a character and for an id without a token."""
        blank = self.family in ("byte_level", "sentencepiece")
        made: list[str | None] = []
        for i, form in enumerate(self.forms):
            if not self.tokens[i]:
                made.append(None)
                continue
            try:
                text = form.bytes.decode()
            except UnicodeDecodeError:
                made.append(None)
                continue
            made.append(f" {text}" if blank and form.word_start and i not in self.added else text)
        return made

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without the special tokens that go around one. Raises `InvalidArgumentError`
        for text that a tokenizer without an unknown token cannot read."""
        try:
            return self._split(texts)
        except Exception as error:  # the backend raises nothing more special
            refuse_half_characters(texts, "the text")
            if "unk" in self.roles:
                raise
            raise InvalidArgumentError(
                f"{type(self.tokenizer).__name__} cannot read {', '.join(texts)!r:.60}, as it has no unknown "
                f"token ({error}): give one that has, or text that it knows"
            ) from error

    def _split(self, texts: Sequence[str]) -> list[list[int]]:
        if texts and self.side == "target" and getattr(self.tokenizer, "separate_vocabs", False):
            return self.tokenizer(text_target=list(texts), add_special_tokens=False)["input_ids"]
        return split_texts(self.tokenizer, texts)

    @cached_property
    def digest(self) -> str:
        """A digest of the tokens and their ids."""
        text = json.dumps(self.tokens)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_metadata(self, name: str) -> dict[str, str]:
        """Texts for a file: the digest, and the tokens as JSON."""
        return {name: self.digest, f"{name}_tokens": json.dumps(self.tokens)}
