"""The embedded corpora: pairs, labelled sentences and text for vectors, read from `corpora/`."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataNotFoundError, InvalidArgumentError, UnknownNameError

FOLDER = Path(__file__).parent / "corpora"
"""One folder a corpus, one file a split or text: JSON lines, compressed; the README says what made them."""


@dataclass(frozen=True)
class Corpus:
    """The files of one embedded corpus."""

    splits: tuple[str, ...]
    columns: dict[str, type]
    """Columns of the splits and the type of their values."""
    texts: dict[str, tuple[str, ...]]
    """Text for vectors -> columns of the training split that come before its own lines."""


CORPORA = {
    "captions": Corpus(
        ("train", "validation", "test"), {"de": str, "en": str}, {"captions-de": (), "captions-en": ()}
    ),
    "sentiment": Corpus(
        ("train", "validation", "test"), {"sentence": str, "label": int}, {"sentiment": ("sentence",)}
    ),
    "entailment": Corpus(
        ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
        {"premise": str, "hypothesis": str, "label": int, "genre": str},
        {"entailment": ("premise", "hypothesis")},
    ),
    "tatoeba": Corpus(("train", "test"), {"de": str, "en": str}, {}),
}
"""The embedded corpora by name."""
TEXTS = tuple(text for corpus in CORPORA.values() for text in corpus.texts)
"""Names of the texts for vectors."""


def refuse_places(flag: str, name: str, data_dir: str | None, config: str | None = None) -> None:
    """Raises `InvalidArgumentError` for where to look for a corpus that this package brings."""
    for option, value in (("--data_dir", data_dir), ("--dataset_config", config)):
        if value is not None:
            raise InvalidArgumentError(
                f"{option} {value}: {flag} {name} is embedded in this package and read from nowhere else; "
                f"give another {flag}, or leave {option} out"
            )


def corpus_splits(name: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of every split of a corpus of `CORPORA`.

    Raises `UnknownNameError` for another name, `DataNotFoundError` and `InvalidArgumentError` for a file of
    the package that is missing or damaged.
    """
    if name not in CORPORA:
        raise UnknownNameError("embedded corpus", name, CORPORA)
    corpus = CORPORA[name]
    return {split: read_rows(FOLDER / name / f"{split}.jsonl.xz", corpus.columns) for split in corpus.splits}


def corpus_text(name: str) -> list[str]:
    """The sentences of a text of `TEXTS`: what vectors and the small language model are trained on.

    None of them is a validation or test sentence of its corpus. Raises what `corpus_splits` raises.
    """
    if name not in TEXTS:
        raise UnknownNameError("embedded text", name, TEXTS)
    folder, _, language = name.partition("-")
    corpus = CORPORA[folder]
    lines: list[str] = []
    if corpus.texts[name]:
        train = read_rows(FOLDER / folder / "train.jsonl.xz", corpus.columns)
        lines = [row[column] for row in train for column in corpus.texts[name]]
    file = f"text-{language}.jsonl.xz" if language else "text.jsonl.xz"
    return lines + [row["text"] for row in read_rows(FOLDER / folder / file, {"text": str})]


def read_rows(path: Path, columns: dict[str, type]) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines compressed with xz, each with exactly these columns.

    Raises `DataNotFoundError` without the file, `InvalidArgumentError` naming file and row for a file that is
    truncated or damaged and for a row that lacks a column, has another, or holds a value of another type.
    """
    where = f"the embedded corpus {path.parent.name}/{path.name}"
    again = "install hf-embinit again"
    try:
        lines = lzma.decompress(path.read_bytes()).decode("utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataNotFoundError(f"{where} is not in {path.parent}: {again}") from error
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{where} is damaged ({error}): {again}") from error
    rows = []
    for i, line in enumerate(lines):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidArgumentError(f"row {i} of {where} is no JSON ({error}): {again}") from error
        if not isinstance(row, dict) or list(row) != list(columns):
            found = ", ".join(row) if isinstance(row, dict) else repr(row)
            raise InvalidArgumentError(
                f"row {i} of {where} has {found} where the columns are {', '.join(columns)}: {again}"
            )
        for column, kind in columns.items():
            if type(row[column]) is not kind:
                raise InvalidArgumentError(
                    f"the {column!r} of row {i} of {where} is {row[column]!r}, not {kind.__name__}: {again}"
                )
        rows.append(row)
    return rows
