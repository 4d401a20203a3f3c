"""Parallel text and dictionaries: pairs of what the old language says and what the new one does, by one door.

{"translation": {"en": "A dog.", "de": "Ein Hund."}}        .jsonl, as the translation sets of the Hub
{"en": "A dog.", "de": "Ein Hund."}                         .jsonl
A dog.<TAB>Ein Hund.                                         any other ending: old language first
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataNotFoundError, InvalidArgumentError, VocabularyWarning
from ..foreign import RECORDS, no_text, read_record, split_columns, text_columns, text_of
from .texts import TokenTexts

_SAMPLE = 1000
"""Pairs, spread over the text, by which the order of the languages is told."""
_DOUBT = 1.15
"""How much better the tokenizers must fit the other order before it is called the right one."""
_FEW = 20
"""Fewer pairs are too few to be sure of their order: single words may well be borrowed ones."""
_UNKNOWN = 5
"""Tokens that an unknown one counts as: a word that a tokenizer does not know is one token to it."""
_STRANGE = 0.9
"""Share of unknown tokens from which a text is called one of another language."""


class Pair(NamedTuple):
    """What the old language says, and the new one for the same."""

    old: str
    new: str


def read_parallel(
    source: str | PathLike[str] | Sequence[Sequence[str]],
    old: TokenTexts | None = None,
    new: TokenTexts | None = None,
    *,
    name: str = "parallel",
) -> list[Pair]:
    """Pairs of sentences or words from a file or from a list of `(old language, new language)`.

    A file that ends in `.jsonl` has an object a line, with two texts or a `translation` that has them; which
    of the two is of which language is told from how many tokens the tokenizers need, or said in the path:
    `pairs.jsonl:en,de` (old first). Any other file has two columns with a tab between them, old language
    first. Blank lines and pairs with an empty text are left out. Without
    tokenizers the order is taken as it is, or as the objects have it. `name` is the argument, for errors.

    Raises `InvalidArgumentError` naming the line for what is no pair, for text without pairs, for a language
    that its tokenizer does not know, and when the tokenizers fit the other order of a list or of columns
    clearly better, which is a `VocabularyWarning` where the path names the order and for fewer than 20 pairs;
    `DataNotFoundError`.
    """
    if not isinstance(source, (str, PathLike)):
        if not isinstance(source, Iterable):
            raise InvalidArgumentError(f"{name}={source!r:.40}: expected a file or a list of pairs of texts")
        pairs = [_pair(entry, f"{name}= entry {i}") for i, entry in enumerate(source)]
        place, told, named = f"{name}=", False, False
    else:
        path, columns = split_columns(str(source), 2)
        place, told, named = str(path), columns is not None, columns is not None
        lines = _lines(path, name)
        if path.suffix in RECORDS:
            records = [read_record(line, f"{path}, line {i}") for i, line in lines]
            columns = columns or _columns(records, lines, path, old, new)
            named = True
            pairs = [
                _pair(
                    [text_of(record, column, f"{path}, line {i}") for column in columns], f"{path}, line {i}"
                )
                for record, (i, _) in zip(records, lines, strict=True)
            ]
        else:
            pairs = [_pair(line.split("\t"), f"{path}, line {i}") for i, line in lines]
    pairs = [pair for pair in pairs if pair.old and pair.new]
    if not pairs:
        raise InvalidArgumentError(f"{place} has no pair of texts: it is empty")
    if (told or not named) and _fit(pairs, old, new) > _DOUBT:
        first = pairs[0]
        doubt = (
            f"{place} seems to have the languages in the wrong order: {first.old!r} suits the new tokenizer "
            f"better and {first.new!r} the old one; the language of the old tokenizer comes first"
        )
        if not told and len(pairs) >= _FEW:
            raise InvalidArgumentError(doubt)
        warnings.warn(doubt, VocabularyWarning, stacklevel=2)
    known = (old, new) if name == "parallel" else ()  # a dictionary may go beyond the vocabularies
    for side, tokens in enumerate(known):
        if tokens is not None and _unknown_share(pairs, side, tokens) > _STRANGE:
            raise InvalidArgumentError(
                f"{place} has text such as {pairs[0][side]!r}, which {('old', 'new')[side]}_tokenizer does "
                f"not know: give text of its language"
            )
    return pairs


def _lines(path: Path, name: str) -> list[tuple[int, str]]:
    """Line numbers, from 1, and lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataNotFoundError(f"{name}={str(path)!r} {no_text(error)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{name}={str(path)!r} {no_text(error)}") from error
    return [(i, line) for i, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _columns(
    records: list[dict[str, Any]],
    lines: list[tuple[int, str]],
    path: Path,
    old: TokenTexts | None,
    new: TokenTexts | None,
) -> tuple[str, ...]:
    """The names of the two texts of all records, the old tokenizer's language first."""
    if not records:
        raise InvalidArgumentError(f"{path} has no pair of texts: it is empty")
    example = f"name them, the old language first, such as {path}:en,de"
    names = text_columns(records[0], 2, f"{path}, line {lines[0][0]}", example)
    some = [Pair(str(r.get(names[0], "")), str(r.get(names[1], ""))) for r in records]
    swap = _fit(some, old, new) > 1
    return (names[1], names[0]) if swap else (names[0], names[1])


def _pair(entry: Any, where: str) -> Pair:
    texts = [] if isinstance(entry, str) or not isinstance(entry, Sequence) else list(entry)
    if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
        count = "one column" if len(texts) == 1 else f"{len(texts)} columns"
        what = count if texts and len(texts) != 2 else f"{entry!r:.60}"
        raise InvalidArgumentError(
            f"{where} is {what} where two texts are expected, the old language first: pairs in a list are "
            f"(old, new), columns in a file need a tab between them"
        )
    return Pair(texts[0].strip(), texts[1].strip())


def _fit(pairs: Sequence[Pair], old: TokenTexts | None, new: TokenTexts | None) -> float:
    """How well the tokenizers fit the languages the other way round: above 1 better than this way.

    The ratio of old to new tokens that the first texts take, by that of the second ones: a tokenizer needs
    fewer tokens for the language it was made from.
    """
    if old is None or new is None:
        return 1.0
    lengths = {}
    for column in (0, 1):
        for tokenizer, tokens in enumerate((old, new)):
            ids, unknown = _sampled(pairs, column, tokens)
            lengths[column, tokenizer] = 1 + ids + (_UNKNOWN - 1) * unknown
    return (lengths[0, 0] / lengths[0, 1]) / (lengths[1, 0] / lengths[1, 1])


def _sampled(pairs: Sequence[Pair], side: int, tokens: TokenTexts) -> tuple[int, int]:
    """How many tokens one side of some pairs, spread over the text, is, and how many of them are unknown."""
    split = tokens.split([pair[side] for pair in pairs[:: max(1, len(pairs) // _SAMPLE)]])
    unknown = tokens.roles.get("unk")
    return sum(map(len, split)), sum(ids.count(unknown) for ids in split) if unknown is not None else 0


def _unknown_share(pairs: Sequence[Pair], side: int, tokens: TokenTexts) -> float:
    count, unknown = _sampled(pairs, side, tokens)
    return unknown / max(1, count)
