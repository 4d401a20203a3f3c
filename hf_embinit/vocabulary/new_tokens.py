"""Checks new tokens on a copy of the tokenizer, before anything is changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from ..arguments import refuse_half_characters
from ..errors import InvalidArgumentError, VocabularyWarning
from ..tokens import (
    Side,
    Vocabulary,
    copy_tokenizer,
    is_byte_sign,
    read_vocabulary,
    split_texts,
    unknown_id,
)
from .spelling import read_back, spelling_for

_SHOWN = 3
"""Tokens that a warning names."""


@dataclass
class CheckedTokens:
    """Tokens that a tokenizer lacks, the ids it will give them, and a copy that has them."""

    tokens: list[str | AddedToken]
    id_of: dict[str, int]
    """Token -> id, in the order of `tokens`."""
    extended: Any
    """A copy of the tokenizer with the tokens in it."""
    old: Vocabulary
    """What the tokenizer has without them."""
    split: dict[str, list[int]]
    """Token -> the ids of its pieces, without it."""

    @property
    def ids(self) -> list[int]:
        """The ids of the tokens."""
        return list(self.id_of.values())

    @property
    def new(self) -> Vocabulary:
        """What the tokenizer has with them."""
        tokens = [*self.old.tokens, *[""] * (max(self.ids) + 1 - len(self.old.tokens))]
        special = set(self.old.special) - set(self.ids)  # a slot's token was one
        for token, (text, i) in zip(self.tokens, self.id_of.items(), strict=True):
            tokens[i] = text
            if getattr(token, "special", False):
                special.add(i)
        return Vocabulary(tokens, frozenset(special), (self.old.added | set(self.ids)) - special)


Put = Callable[[Any, list[str | AddedToken]], object]
"""Puts tokens into a tokenizer."""


def append(tokenizer: Any, tokens: list[str | AddedToken]) -> None:
    """Gives tokens the ids behind all others."""
    tokenizer.add_tokens(tokens)


def check_new_tokens(
    tokenizer: Any, new_tokens: Sequence[str | AddedToken], side: Side = "shared", put: Put = append
) -> CheckedTokens:
    """The tokens to add by `put`; `tokenizer` itself stays as it is.

    Empty and blank strings, and tokens that the tokenizer would never produce, raise `InvalidArgumentError`.
    Tokens given twice, tokens that are in the vocabulary (or whose text is one token of it) and tokens
    that the normaliser changes come with a `VocabularyWarning`; the first two are not added. So do tags that
    are not found after a letter.
    """
    old = read_vocabulary(tokenizer, side)
    wanted, split = _wanted(tokenizer, new_tokens, old, side)
    extended = copy_tokenizer(tokenizer)
    put(extended, list(wanted.values()))
    ids = [int(i) for i in extended.convert_tokens_to_ids(list(wanted))]
    id_of = dict(zip(wanted, ids, strict=True))
    for text, i in id_of.items() if put is append else ():
        if i < len(old.tokens) and old.tokens[i]:
            raise InvalidArgumentError(
                f"the tokenizer would give {text!r} the id {i}, which {old.tokens[i]!r} has: it counts its "
                f"tokens, and its vocabulary skips ids; give these names first, as tokens of the vocabulary"
            )
    _check_use(extended, id_of)
    _check_longer_words(tokenizer, extended, list(wanted.values()))
    _check_spelling(extended, id_of)
    return CheckedTokens(list(wanted.values()), id_of, extended, old, split)


def _wanted(
    tokenizer: Any, new_tokens: Sequence[str | AddedToken], old: Vocabulary, side: Side
) -> tuple[dict[str, str | AddedToken], dict[str, list[int]]]:
    """Those of the tokens that the tokenizer lacks, by their text, and the pieces of each."""
    for token in new_tokens:
        if not str(token).strip():
            raise InvalidArgumentError(f"new_tokens has the empty token {str(token)!r}")
    texts = [str(token) for token in new_tokens]
    refuse_half_characters(texts, "new_tokens")
    vocabulary, unknown = set(old.tokens), unknown_id(tokenizer)
    split = split_texts(tokenizer, texts)
    pieces = dict(zip(texts, split, strict=True))
    wanted: dict[str, str | AddedToken] = {}
    for text, token, ids in zip(texts, new_tokens, split, strict=True):
        if text in wanted:
            _warn(f"the token {text!r} is given twice; it is added once")
        elif text in vocabulary and len(ids) > 1 and is_byte_sign(text, tokenizer.tokenize):
            _warn(
                f"the tokenizer has {text!r} as the sign of a byte, and the letter is {len(ids)} tokens: it "
                f"cannot be added so, and with a space in front, {' ' + text!r}, it can"
            )
        elif text in vocabulary:
            _warn(f"the token {text!r} is in the vocabulary already; its row stays as it is")
        elif len(ids) == 1 and ids[0] != unknown:
            known = tokenizer.convert_ids_to_tokens(ids[0])
            _warn(f"the text {text!r} is one token already, {known!r}; its row stays as it is")
        else:
            wanted[text] = token
    if not texts:
        raise InvalidArgumentError("new_tokens is empty: give the tokens to add")
    if not wanted:
        call = "resize_token_embeddings(len(tokenizer))"
        call = f"model.{call}" if side == "shared" else f"{call} of the part with the {side} vocabulary"
        raise InvalidArgumentError(
            f"new_tokens has no token that the tokenizer lacks: for rows of tokens that were added to it "
            f"already, call hf_embinit.patch(model, init), then {call}"
        )
    return wanted, {text: pieces[text] for text in wanted}


def _check_use(extended: Any, id_of: dict[str, int]) -> None:
    """Raises when no ordinary text gives a token's id; warns of tags that are not found after a letter."""
    unused = list(id_of)
    known = getattr(extended, "added_tokens_decoder", {})
    for context in ("a{} a", "a{}", "{}", "a {} a"):  # a token that starts with a blank follows a word
        follows = context.startswith("a{")
        tried = [text for text in unused if follows or not text[0].isspace()]
        encoded = split_texts(extended, [context.format(text) for text in tried])
        used = {text for text, ids in zip(tried, encoded, strict=True) if id_of[text] in ids}
        unused = [text for text in unused if text not in used]
        if context == "a{} a":
            tags = [text for text in unused if not (text[0].isalnum() or text[0].isspace())]
            apart = [t for t in tags if not getattr(known.get(id_of[t]), "single_word", False)]
    if unused:
        text, instead = unused[0], extended.tokenize(unused[0])
        raise InvalidArgumentError(
            f"the tokenizer would never produce the new token {text!r} but makes {instead} of it: "
            f"give the token as its normaliser writes it, or {_added(text, 'normalized', False)}"
        )
    if apart:
        text, instead = apart[0], extended.tokenize(f"a{apart[0]}")
        few = f"{', '.join(map(repr, apart[:_SHOWN]))}{', ...' if len(apart) > _SHOWN else ''}"
        which = f"the token {text!r} is" if len(apart) == 1 else f"{len(apart)} tokens ({few}) are"
        _warn(
            f"{which} found after a blank, and not after a letter, where the tokenizer makes "
            f"{instead[1:]} of {text!r}: {_added(text, 'normalized', False)} is found anywhere"
        )


def _check_spelling(extended: Any, id_of: dict[str, int]) -> None:
    """Warns of tokens that are written in another spelling than theirs."""
    backend = getattr(extended, "_tokenizer", None)
    shown = list(id_of) if backend is None else backend.decode_batch([[i] for i in id_of.values()])
    for (text, i), seen in zip(id_of.items(), shown, strict=True):
        if seen.strip() == text.strip() and backend is not None:
            continue
        decoded = extended.decode([i])
        written = decoded.strip()
        if written == text.strip():
            continue
        if "\ufffd" in decoded:
            _warn(
                f"the token {text!r} is written as {decoded!r}, since this tokenizer has such letters as "
                f"signs of bytes: give AddedToken({' ' + text.strip()!r}, normalized=False)"
            )
        elif any(i in found for found in split_texts(extended, [decoded, f"a {written} a"])):
            _warn(f"the tokenizer's normaliser changes the token {text!r}: it matches and writes {written!r}")
        else:
            _warn(
                f"the token {text!r} is found where a text spells it so, and not where a text has the "
                f"{decoded!r} that it is written as: if that is meant, give {decoded!r}"
            )


def _check_longer_words(tokenizer: Any, extended: Any, tokens: Sequence[str | AddedToken]) -> None:
    """Warns of the first word with which a text, with longer words in it, does not come back as it was, and
    that `propose_tokens` spells otherwise."""
    words = {
        word: token for token in tokens if (word := str(token).strip())[0].isalnum() and word[-1].isalnum()
    }
    texts = [f"a {word} a{word} {word}s a" for word in words]
    before, after = read_back(tokenizer, texts), read_back(extended, texts)
    proposed = None
    for (word, token), text, old, new in zip(words.items(), texts, before, after, strict=True):
        if old.lower() != text.lower() or new.lower() == text.lower():
            continue
        proposed = proposed or spelling_for(tokenizer)[0]
        if repr(token if isinstance(token, AddedToken) else AddedToken(token)) == repr(proposed(word)):
            continue  # no spelling is better
        instead = (
            "this tokenizer takes what follows it for another word: leave out words that begin longer ones"
        )
        for spelled, option, tried in (
            (word, "single_word", text),
            (f" {word}", "normalized", f"a {word} a{word} a"),
        ):
            value = option == "single_word"
            copy = copy_tokenizer(tokenizer)
            copy.add_tokens([AddedToken(spelled, **{option: value})])
            kept = read_back(copy, [tried])[0].lower() == tried.lower()
            if kept and read_back(extended, [tried])[0].lower() != tried.lower():
                instead = f"{_added(spelled, option, value)} keeps {tried!r}"
                break
        _warn(
            f"with the token {str(token)!r} a text does not come back: {text!r} is read as {new!r}; {instead}"
        )
        return


def _added(token: str, option: str, value: bool) -> str:
    """How a token is given with an option, in Python and in a file."""
    return f"AddedToken({token!r}, {option}={value}) ({option}: {str(value).lower()} in a --tokens_file)"


def _warn(message: str) -> None:
    warnings.warn(message, VocabularyWarning, stacklevel=6)
