"""Monolingual text: one column of one data set."""

from __future__ import annotations

from pathlib import Path

from ..errors import DataNotFoundError, InvalidArgumentError
from .data import DATA_VARIABLE, find_folder, is_hub_id, load_file, load_folder, load_from_hub
from .embedded import corpus_text


def load_texts(spec: str, *, data_dir: str | None = None) -> list[str]:
    """The non-blank texts in the training split of `"<data set>:<column>"`, such as `"multi30k:de"`.

    A text file, such as `mono.txt`, needs no column: its lines are the texts. The data set is `captions` (the
    embedded corpus), a file, a folder of files, a name in `data_dir` or in the folder that `HF_EMBINIT_DATA`
    names, or a Hub id. A column may be a language of a column `translation`. Raises `InvalidArgumentError`
    for a column that is not there, and `DataNotFoundError` when there is no training split.
    """
    if spec.endswith(".txt") and Path(spec).is_file():
        spec = f"{spec}:text"
    name, _, column = spec.rpartition(":")
    if spec.endswith(".txt") and not name:
        raise DataNotFoundError(f"corpus {spec!r} is no file here")
    if not name or not column:
        raise InvalidArgumentError(
            f"corpus {spec!r}: give the column too, as in 'multi30k:de' (none for the lines of a .txt file)"
        )
    if name == "captions":
        if column not in ("de", "en"):
            raise InvalidArgumentError(f"corpus {spec!r} has no column {column!r}; it has: de, en")
        return corpus_text(f"captions-{column}")
    if Path(name).is_file():
        data = load_file(name)
    else:
        if Path(name).is_dir():
            splits = load_folder(name)
        elif (folder := find_folder(name, data_dir)) is not None:
            splits = load_folder(folder)
        elif is_hub_id(name):
            splits = load_from_hub(name)
        else:
            raise DataNotFoundError(
                f"corpus {spec!r}: {name!r} is no file, no folder and no Hub id (owner/name); "
                f"give --data_dir or set {DATA_VARIABLE} to a folder that has it"
            )
        if "train" not in splits:
            raise DataNotFoundError(f"corpus {spec!r} has no training split; it has: {', '.join(splits)}")
        data = splits["train"]
    columns = data.column_names
    if column in columns:
        texts = data[column][:]
    else:
        rows = data["translation"][:] if "translation" in columns and len(data) else []
        languages = sorted(rows[0]) if rows and isinstance(rows[0], dict) else []
        if column not in languages:
            there = ", ".join(c for c in [*columns, *languages] if c != "translation")
            raise InvalidArgumentError(f"corpus {spec!r} has no column {column!r}; it has: {there}")
        texts = [row[column] for row in rows]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgumentError(f"corpus {spec!r}: row {i} of column {column!r} is {text!r}, not text")
    return [text for text in texts if text.strip()]
