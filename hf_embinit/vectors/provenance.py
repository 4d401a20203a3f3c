"""The provenance of a file of vectors: `X.json` beside `X.txt`, written with it and checked on reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import FileWriteError, VectorFileError
from ..files import file_sha256, write_whole
from ..foreign import read_json

_FILE = "vectors_file"


def provenance_path(path: str | Path) -> Path:
    """The file beside `path` that says where its vectors came from."""
    return Path(path).with_suffix(".json")


def write_provenance(path: Path, provenance: dict[str, Any]) -> None:
    """Writes `provenance` beside the file of vectors at `path`, with the digest of that file."""
    about = {"name": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}
    with write_whole(provenance_path(path)) as file:
        json.dump({**provenance, _FILE: about}, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_provenance(path: Path) -> dict[str, Any] | None:
    """The provenance beside the file of vectors at `path`; None when there is none of this package.

    Raises `VectorFileError` when it was written for another file.
    """
    beside = provenance_path(path)
    try:
        provenance = read_json(beside)
    except VectorFileError:  # another file of that name, if any
        return None
    about = provenance.get(_FILE)
    if not isinstance(about, dict) or about.get("name") != path.name:
        return None
    if about.get("sha256") != file_sha256(path):
        raise VectorFileError(
            f"{path} is not the file that {beside.name} describes ({path.stat().st_size} bytes where "
            f"{about.get('bytes')} were written): train or copy it again, or delete {beside.name}"
        )
    return provenance


def check_taken(path: str | Path, request: str, flag: str) -> None:
    """Raises `FileWriteError`, which names `flag`, where anything but the vectors of `request` is.

    That is the digest of all that decides on their rows; their provenance has it under that name.
    """
    beside = provenance_path(path)
    if not Path(path).exists() and not beside.exists():
        return
    try:
        same = read_json(beside).get("request") == request
    except VectorFileError:
        same = False
    if not same:
        taken = path if Path(path).exists() else beside
        raise FileWriteError(
            f"{flag} {path}: {taken} is there already, of other text or settings: choose another name, or "
            f"delete it"
        )
