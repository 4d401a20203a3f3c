"""Tokens compared across tokenizers: canonical forms, alignment of two vocabularies, coverage.

The same token is spelled `Ġthe` by byte-level BPE, `▁the` by SentencePiece, `the` by WordPiece and by word
lists; `the` without a mark continues a word in the first two and starts one in the others. A canonical form
is the token's bytes and whether it starts a word. Bytes, not characters: the pieces of a split UTF-8
character stay different from each other.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .arguments import Tokenizer, checked
from .errors import InvalidArgumentError

Side = Literal["source", "target", "shared"]
"""Which vocabulary a table or a tokenizer's list of tokens is of: that of the texts that a model reads,
that of those it writes, or one for both."""
TokenFamily = Literal["words", "wordpiece", "byte_level", "sentencepiece"]
"""How tokens mark where a word starts: `words` do not, BERT's `##` marks what continues a word, GPT-2's `Ġ`
and SentencePiece's `▁` the start."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""SentencePiece's byte fallback."""


class TokenForm(NamedTuple):
    """What a token stands for, whatever the spelling."""

    bytes: bytes
    """UTF-8, without the mark of a word start; a part of a character for byte tokens."""
    word_start: bool | None
    """None where the family does not tell: words and word pieces that their tokenizers split from both
    neighbours (punctuation; for word pieces also CJK characters)."""
    special: bool = False


@checked
def token_family(tokenizer: Tokenizer) -> TokenFamily:
    """How a tokenizer spells word starts: from its backend, else from the marks in its vocabulary.

    For a `VanillaTransformerTokenizer` it is the family of the tokenizer inside; a vocabulary of the 256
    bytes (ByT5) is `byte_level`. Raises `InvalidArgumentError` for spellings that mark the end of words
    (`</w>`) or the pieces before it (`@@`)."""
    if hasattr(tokenizer, "segmenter"):
        backend = tokenizer.segmenter
        if backend is None:
            return "words"
    else:
        backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        model = type(backend.model).__name__
        if model in ("WordPiece", "WordLevel"):
            return "wordpiece" if model == "WordPiece" else "words"
        if suffix := getattr(backend.model, "end_of_word_suffix", None):
            raise _marks_ends(tokenizer, suffix)
        steps = json.dumps([_state(p) for p in (backend.decoder, backend.pre_tokenizer, backend.normalizer)])
        if '"ByteLevel"' in steps:
            return "byte_level"
        if '"Metaspace"' in steps or "\\u2581" in steps:
            return "sentencepiece"
    marks: dict[TokenFamily, str] = {"sentencepiece": "▁", "byte_level": "Ġ", "wordpiece": "##"}
    spelled = list(tokenizer.get_vocab())
    counts = {family: sum(token.startswith(mark) for token in spelled) for family, mark in marks.items()}
    best = max(marks, key=lambda family: counts[family])
    ends = {mark: sum(token.endswith(mark) for token in spelled) for mark in ("</w>", "@@")}
    end = max(ends, key=lambda mark: ends[mark])
    if ends[end] > max(counts[best], len(spelled) // 10):  # a word list may have a few of anything
        raise _marks_ends(tokenizer, end)
    if counts[best]:
        return best
    return "byte_level" if len(_LATIN_1.intersection(spelled)) == 256 else "words"


def is_byte_sign(token: str, split: Callable[[str], Iterable[str]]) -> bool:
    """Whether a token that looks like a Latin letter is not that letter, by how `split` cuts it as a text: a
    byte-level vocabulary has "é" for byte 0xE9, and the letter as two bytes."""
    return len(token) == 1 and "\x80" <= token <= "\xff" and token not in "".join(split(token))


def _marks_ends(tokenizer: Tokenizer, mark: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"tokenizer={type(tokenizer).__name__} marks where words end ({mark!r}), so its tokens cannot be "
        "compared; use a WordPiece, byte-level BPE, SentencePiece or word tokenizer"
    )


def canonical_form(token: str, family: TokenFamily | str, special: bool = False) -> TokenForm:
    """The form of a token string. Special tokens keep their spelling and start no word."""
    if special:
        return TokenForm(_encode(token), False, True)
    if family == "byte_level":
        if all(c in _BYTE_OF for c in token):
            data = bytes(_BYTE_OF[c] for c in token)
        else:
            data = bytes([ord(token)]) if token in _LATIN_1 else _encode(token)  # ByT5 spells each byte so
        return TokenForm(data[1:], True) if data[:1] == b" " else TokenForm(data, False)
    if family == "sentencepiece":
        if match := BYTE_TOKEN.fullmatch(token):
            return TokenForm(bytes.fromhex(match[1]), False)
        text = token.removeprefix("▁")
        return TokenForm(_encode(text.replace("▁", " ")), text != token)
    if family == "wordpiece" and token.startswith("##") and len(token) > 2:
        return TokenForm(_encode(token[2:]), False)
    if family not in ("words", "wordpiece"):
        raise InvalidArgumentError(
            f"family={family!r} is no token family: choose words, wordpiece, byte_level or sentencepiece"
        )
    alone = _is_punctuation(token) or (family == "wordpiece" and len(token) == 1 and _is_cjk(token))
    return TokenForm(_encode(token), None if alone else True)


def added_form(text: str) -> TokenForm:
    """The form of an added token, which is spelled as its text in every family; of white space that too."""
    if text.strip():
        return canonical_form(text.strip(), "words")
    return TokenForm(_encode(text[1:]), True) if text.startswith(" ") else TokenForm(_encode(text), False)


def spelling(form: TokenForm, family: TokenFamily | str) -> str | None:
    """How a family spells a form: the inverse of `canonical_form`. None for a part of a character in families
    that have no sign for it."""
    text = _decode(form.bytes)
    if form.special:
        return text
    if family == "byte_level":
        data = b" " * bool(form.word_start) + form.bytes
        return "".join(_CHARACTER_OF[byte] for byte in data)
    if text is None:
        return f"<0x{form.bytes[0]:02X}>" if family == "sentencepiece" and len(form.bytes) == 1 else None
    if family == "sentencepiece":
        return "▁" * bool(form.word_start) + text.replace(" ", "▁")
    return f"##{text}" if family == "wordpiece" and form.word_start is False else text


class Vocabulary(NamedTuple):
    """The tokens of one side of a tokenizer."""

    tokens: list[str]
    """Token strings in id order, from 0 to the highest id; `""` where no token has the id."""
    special: frozenset[int]
    """Ids of special tokens: the named ones and all added as special."""
    added: frozenset[int]
    """Ids of the other added tokens, which are spelled as their text in every family."""


def tokenizer_of(tokenizer: Any) -> Any:
    """The tokenizer of a processor (of text and images or sound); a tokenizer as it is."""
    inner = getattr(tokenizer, "tokenizer", None)
    return inner if hasattr(inner, "get_vocab") and not hasattr(tokenizer, "get_vocab") else tokenizer


def unknown_id(tokenizer: Any) -> int | None:
    """The id of the unknown token: by its role, else what the model inside the tokenizer takes for it."""
    model = getattr(getattr(tokenizer, "_tokenizer", None), "model", None)
    if tokenizer.unk_token_id is not None or model is None:
        return tokenizer.unk_token_id
    if type(model).__name__ == "Unigram":  # the one model that does not tell
        return _state(model)["unk_id"]
    token = getattr(model, "unk_token", None)
    return None if token is None else model.token_to_id(token)


@checked
def read_vocabulary(tokenizer: Tokenizer, side: Side = "shared") -> Vocabulary:
    """The tokens of a tokenizer, read once.

    `side` picks the vocabulary of tokenizers that keep two (`separate_vocabs`); any other has one for both.
    Where several tokens share an id (a compacted vocabulary), the one that the id decodes to is given."""
    two = side == "target" and getattr(tokenizer, "separate_vocabs", False)
    ids: dict[str, int] = tokenizer.target_encoder if two else tokenizer.get_vocab()
    tokens = [""] * (max(ids.values(), default=-1) + 1)
    shared = set()
    for token, index in ids.items():
        if tokens[index]:
            shared.add(index)
        tokens[index] = token
    for index in shared:
        tokens[index] = tokenizer.convert_ids_to_tokens(index)
    added = list(getattr(tokenizer, "added_tokens_decoder", {}).values())
    special = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
    plain = {str(token) for token in added} - special
    return Vocabulary(
        tokens,
        frozenset(ids[token] for token in special if token in ids),
        frozenset(ids[token] for token in plain if token in ids),
    )


@checked
def split_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, without special tokens.

    By the tokenizer's backend where that gives the same: several times as fast for thousands of words.
    """
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    if not texts:
        return []
    backend: Any = getattr(tokenizer, "_tokenizer", None)
    plain = isinstance(backend, Backend) and (
        type(tokenizer).__call__ is PreTrainedTokenizerFast.__call__
        and type(tokenizer)._encode_plus is PreTrainedTokenizerFast._encode_plus
        and backend.padding is None
        and backend.truncation is None
        and backend.encode_special_tokens == tokenizer.split_special_tokens
    )
    if plain:
        return [e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
    return [list(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]


def copy_tokenizer(tokenizer: Any, without: Collection[int] = ()) -> Any:
    """A copy that tokens can be added to, the tokenizer as it is; added tokens with ids of `without` are left
    out where the backend allows it.

    It shares the model with the vocabulary, which no added token touches, where the backend allows it: a full
    copy of 120,000 tokens costs more than adding 10,000.
    """
    from tokenizers import Tokenizer as Backend

    backend: Any = getattr(tokenizer, "_tokenizer", None)
    if not isinstance(backend, Backend):
        return copy.deepcopy(tokenizer)
    twin: Any = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(backend, part) is not None:
            setattr(twin, part, getattr(backend, part))
    added = sorted((i, token) for i, token in backend.get_added_tokens_decoder().items() if i not in without)
    twin.add_tokens([token for _, token in added])
    if sorted(twin.get_added_tokens_decoder().items()) != added:  # ids with gaps between them
        return copy.deepcopy(tokenizer)
    if backend.truncation is not None:
        twin.enable_truncation(**backend.truncation)
    if backend.padding is not None:
        twin.enable_padding(**backend.padding)
    twin.encode_special_tokens = backend.encode_special_tokens
    copied = copy.copy(tokenizer)
    for name, value in vars(tokenizer).items():
        if isinstance(value, (dict, list, set)):
            copied.__dict__[name] = copy.copy(value)
    copied._tokenizer = twin
    return copied


@checked
def vocabulary(tokenizer: Tokenizer, side: Side = "shared") -> list[str]:
    """Token strings in id order, see `read_vocabulary`."""
    return read_vocabulary(tokenizer, side).tokens


@checked
def special_ids(tokenizer: Tokenizer, side: Side = "shared") -> list[int]:
    """Ids of the special tokens in a vocabulary, ascending: the named ones and all added as special."""
    return sorted(read_vocabulary(tokenizer, side).special)


@checked
def word_candidates(
    tokens: Iterable[str], family: TokenFamily | str, *, plain: Collection[int] = ()
) -> list[str]:
    """The words that tokens can match in a list of words, with their lower-case forms: what to ask a vector
    file for. `plain` are the places of tokens that are spelled as their text (see `align`)."""
    words: dict[str, None] = {}
    for i, token in enumerate(tokens):
        form = canonical_form(token, family) if token else TokenForm(b"", False)
        text = token.strip() if i in plain else _decode(form.bytes)
        if text and (i in plain or form.word_start is not False or _is_punctuation(text)):
            words[text] = None
            words[text.lower()] = None
    return list(words)


@checked
def align(
    target_tokens: Sequence[str],
    target_family: TokenFamily | str,
    source_tokens: Sequence[str],
    source_family: TokenFamily | str,
    *,
    special: Collection[int] = (),
    plain: Collection[int] = (),
    lowercase_fallback: bool = False,
    report: dict[str, Any] | None = None,
) -> Tensor:
    """For each target token the row of the source token that stands for the same, or -1: int64 `[R]`.

    Within a family equal spellings match first. Otherwise forms match: equal bytes, and both or neither start
    a word. Punctuation of words and word pieces, which may or may not follow a blank, matches the form
    without one first (`,` of WordPiece is GPT-2's `,`, else `Ġ,`). Of equal source tokens the first counts,
    byte tokens last. `""` matches nothing.

    `special` are target rows that get -1. `plain` are target rows of added tokens, which are spelled as
    their text in every family: `Aragorn` starts a word though no mark says so. With `lowercase_fallback` a
    token that the source lacks takes the row of its lower-case form; `report["lowercased"]` counts those.
    """
    spelled: dict[str, int] = {}
    forms: dict[tuple[bytes, bool | None], int] = {}
    byte_rows = []
    for row, token in enumerate(source_tokens):
        if not token:
            continue
        if target_family == source_family:
            spelled.setdefault(token, row)
        if source_family == "sentencepiece" and BYTE_TOKEN.fullmatch(token):
            byte_rows.append(row)
            continue
        forms.setdefault(canonical_form(token, source_family)[:2], row)
    for row in byte_rows:
        forms.setdefault(canonical_form(source_tokens[row], source_family)[:2], row)

    def find(data: bytes, word_start: bool | None) -> int:
        starts = (None, False, True) if word_start is None else (None, word_start)
        return next((forms[data, start] for start in starts if (data, start) in forms), -1)

    skipped = set(special)
    rows = torch.full((len(target_tokens),), -1, dtype=torch.int64)
    lowercased = 0
    for i, token in enumerate(target_tokens):
        if not token or i in skipped:
            continue
        match = spelled.get(token, -1)
        if match < 0:
            form = canonical_form(token, target_family)
            if i in plain:
                match = find(*added_form(token)[:2])
            if match < 0:
                match = find(form.bytes, form.word_start)
            if match < 0 and lowercase_fallback and (text := _decode(form.bytes)) and text.lower() != text:
                match = find(_encode(text.lower()), form.word_start)
                lowercased += match >= 0
        rows[i] = match
    if report is not None and lowercase_fallback:
        report["lowercased"] = lowercased
    return rows


@dataclass
class Coverage:
    """How much of a vocabulary was found in a source; special tokens and ids without a token are left out."""

    types: int
    types_found: int
    special: int
    """Special tokens, in neither count."""
    without_token: int
    """Ids that no token has."""
    tokens: int | None
    """Occurrences of the types in the text that was counted; None without counts."""
    tokens_found: int | None
    most_missed: list[tuple[str, int | None]]
    """The most frequent tokens that were not found, with their counts; the first ones without counts."""

    @property
    def by_type(self) -> float:
        """Share of the types that were found (nan of none)."""
        return self.types_found / self.types if self.types else float("nan")

    @property
    def by_token(self) -> float | None:
        """Share of their occurrences (nan of none); None without counts."""
        if self.tokens is None or self.tokens_found is None:
            return None
        return self.tokens_found / self.tokens if self.tokens else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """The fields and both shares, as JSON-serialisable values (None where a share is of nothing)."""
        return asdict(self) | {
            "by_type": self.by_type if self.types else None,
            "by_token": self.by_token if self.tokens else None,
        }


@checked
def coverage(
    tokens: Sequence[str],
    found: Tensor | Sequence[bool],
    special: Collection[int] = (),
    counts: Sequence[int] | Tensor | None = None,
    *,
    most_missed: int = 20,
) -> Coverage:
    """Coverage of a vocabulary given which of its rows were found (`align(...) >= 0`), `[R]`.

    `counts` gives how often each id occurs in a text. Raises `InvalidArgumentError` when lengths differ."""
    flags = torch.as_tensor(found).tolist()
    numbers = None if counts is None else torch.as_tensor(counts).tolist()
    for name, values in (("found", flags), ("counts", numbers)):
        if values is not None and len(values) != len(tokens):
            raise InvalidArgumentError(f"{name}= has {len(values)} entries for {len(tokens)} tokens")
    skipped = set(special)
    rows = [i for i, token in enumerate(tokens) if token and i not in skipped]
    missing = [i for i in rows if not flags[i]]
    if numbers is not None:
        missing.sort(key=lambda i: -numbers[i])
    return Coverage(
        types=len(rows),
        types_found=len(rows) - len(missing),
        special=sum(1 for i in skipped if tokens[i]),
        without_token=sum(1 for token in tokens if not token),
        tokens=None if numbers is None else sum(numbers[i] for i in rows),
        tokens_found=None if numbers is None else sum(numbers[i] for i in rows if flags[i]),
        most_missed=[(tokens[i], None if numbers is None else numbers[i]) for i in missing[:most_missed]],
    )


def _state(part: Any) -> Any:
    return json.loads(part.__getstate__()) if part is not None else None


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogatepass")


def _decode(data: bytes) -> str | None:
    """Text, or None for a part of a character."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_punctuation(text: str) -> bool:
    return bool(text.strip()) and not any(c.isalnum() for c in text)


def _is_cjk(character: str) -> bool:
    code = ord(character)
    return 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x2FA1F


def _bytes_of_characters() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 is kept, the other bytes are U+0100 onwards, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_LATIN_1 = frozenset(map(chr, range(256)))
_BYTE_OF = _bytes_of_characters()
_CHARACTER_OF = {byte: character for character, byte in _BYTE_OF.items()}
