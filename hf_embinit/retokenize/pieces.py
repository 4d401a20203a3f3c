"""New tokens split into old ones, each at its place in a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from ..errors import InvalidArgumentError
from ..tokens import TokenForm, canonical_form, spelling
from .texts import TokenTexts

_LONGEST = 200
"""Characters of a word that WordPiece splits; it takes a longer one for unknown."""
_UNUSED = "\ue000"
"""A character that no piece holds: what follows it goes on, and no score crosses it."""


def split_tokens(new: TokenTexts, ids: Sequence[int], old: TokenTexts) -> list[list[int]]:
    """For each new token of `ids` the old ids that its text is split into, without the unknown token.

    What starts a word is split as such and what continues one as its continuation: `##aps` is no word `aps`.
    Empty where the old tokenizer knows no part of the text, or has no sign for a part of a character.
    """
    splitter = _Splitter(old)
    made: list[list[int] | None] = [splitter.alone(new, i) for i in ids]
    missing = [place for place, pieces in enumerate(made) if pieces is None]
    goes_on = [new.forms[ids[place]].word_start is False for place in missing]
    texts = [_text(new, ids[place]) for place in missing]
    given = [splitter.before + text if on else text for on, text in zip(goes_on, texts, strict=True)]
    whole = _known(old, given)
    for place, on, pieces in zip(missing, goes_on, whole, strict=True):
        made[place] = splitter.without_start(pieces) if on else pieces
    return [splitter.known(pieces or []) for pieces in made]


def _known(old: TokenTexts, texts: Sequence[str]) -> list[list[int]]:
    """The old ids of each text; none of one that a tokenizer without an unknown token cannot read."""
    try:
        return old.split(texts)
    except InvalidArgumentError:
        return [[]] if len(texts) == 1 else [_known(old, [text])[0] for text in texts]


def _text(new: TokenTexts, i: int) -> str:
    """The text of a token in a sentence, its blank included."""
    text = new.texts[i] or ""
    if i in new.added or i in new.special:
        return new.tokens[i]
    start = new.forms[i].word_start
    return f" {text}" if start and not text.startswith(" ") else text


class _Splitter:
    """One old tokenizer, asked below its pre-tokenizer where a text may continue a word."""

    def __init__(self, old: TokenTexts):
        self.old = old
        backend = getattr(old.tokenizer, "_tokenizer", None)
        self.backend: Any = backend if isinstance(backend, Tokenizer) else None
        self.bare = old.ids.get("▁") if old.family == "sentencepiece" else None
        slow = self.backend is None and old.family == "sentencepiece"
        self.before = _UNUSED if slow else ""
        """What the whole tokenizer is given before a text that goes on."""
        self.start: list[int | None] = [*_known(old, [_UNUSED])[0]] if slow else [self.bare]
        """What it then begins with: the bare `▁` that it puts before every text, and that."""

    def known(self, pieces: list[int]) -> list[int]:
        """The pieces without the unknown token; none where only the bare mark of a word start is left."""
        kept = [i for i in pieces if i != self.old.unknown]
        return [] if len(kept) < len(pieces) and set(kept) <= {self.bare} else kept

    def _by_model(self, spelled: str | None) -> list[int]:
        try:
            return [token.id for token in self.backend.model.tokenize(spelled)] if spelled else []
        except Exception:  # the backend raises nothing more special where there is no unknown token
            if self.old.unknown is not None:
                raise
            return []

    def alone(self, new: TokenTexts, i: int) -> list[int] | None:
        """The pieces of a token by the model inside the tokenizer; None where the whole tokenizer must be
        asked."""
        form, family = new.forms[i], self.old.family
        if not new.tokens[i]:
            return []
        if new.texts[i] is None:
            return self._bytes(form)
        if self.backend is None or i in new.added or i in new.special:
            return None
        if family in ("byte_level", "sentencepiece"):
            return self._by_model(spelling(self._normal(form), family))
        if family == "wordpiece" and form.word_start is False:
            return self._continuation(self._normal(form).bytes.decode())
        return None

    def _normal(self, form: TokenForm) -> TokenForm:
        """A form as the old tokenizer normalises it, without the mark that it puts before every text."""
        text = form.bytes.decode()
        if self.backend.normalizer is None:
            return form
        normal = self.backend.normalizer.normalize_str(text)
        if self.old.family == "sentencepiece":
            normal = normal.replace("▁", " ")
        if not text.startswith(" "):
            normal = normal.lstrip(" ")
        return TokenForm(normal.encode(errors="surrogatepass"), form.word_start)

    def _bytes(self, form: TokenForm) -> list[int]:
        """A part of a character: its bytes, where the old tokenizer has them."""
        if self.old.family == "byte_level" and self.backend is not None:
            return [token.id for token in self.backend.model.tokenize(spelling(form, "byte_level") or "")]
        signs = [spelling(TokenForm(bytes([byte]), False), self.old.family) for byte in form.bytes]
        hexes = [f"<0x{byte:02X}>" for byte in form.bytes]
        for spelled in (signs, hexes):
            if all(sign in self.old.ids for sign in spelled):
                return [self.old.ids[sign] for sign in spelled if sign is not None]
        return []

    def _continuation(self, text: str) -> list[int]:
        """The pieces of a text inside a word: what the old tokenizer sets apart (punctuation, each Chinese
        character) begins words of its own, as in a whole text."""
        splitter, pieces = self.backend.pre_tokenizer, []
        words = [text] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(text)]
        for place, word in enumerate(words):
            if place or canonical_form(word, "wordpiece").word_start is None:
                pieces += self._by_model(word)
            else:
                pieces += self._longest_match(word)
        return pieces

    def _longest_match(self, text: str) -> list[int]:
        """WordPiece's longest match, from inside a word."""
        pieces: list[int] = []
        start = 0
        while start < len(text) <= _LONGEST:
            for end in range(len(text), start, -1):
                found = self.old.ids.get(f"##{text[start:end]}")
                if found is not None:
                    pieces.append(found)
                    start = end
                    break
            else:
                return []
        return pieces

    def without_start(self, pieces: list[int]) -> list[int]:
        """Pieces of a text that goes on, by the whole tokenizer."""
        count = len(self.start)
        return pieces[count:] if pieces[:count] == self.start else pieces
