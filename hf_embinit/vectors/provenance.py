"""The provenance of a file of vectors: `X.json` beside `X.txt`, written with it and checked on reading."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..arguments import FilePath, checked
from ..errors import FileWriteError, InvalidArgumentError, VectorFileError
from ..files import file_sha256, write_whole
from ..foreign import read_json

_FILE = "vectors_file"
_OTHER_SUFFIXES = (".bin", ".gguf", ".gz", ".bz2", ".xz", ".zip", ".safetensors", ".npy", ".npz", ".pt")


def provenance_path(path: FilePath) -> Path:
    """The file beside `path` that says where its vectors came from."""
    return Path(path).with_suffix(".json")


def require_place(path: Path, provenance: dict[str, Any] | None) -> bool:
    """Whether the provenance of an older file at `path` is beside it, which goes when `path` is written.

    Raises `InvalidArgumentError` for a path that is its own provenance's, and `FileWriteError` when another
    file is where `provenance` would be written.
    """
    try:
        json.dumps(provenance)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"vectors.provenance is kept as JSON, and cannot be: {error}") from error
    if not path.name:
        return False
    beside = provenance_path(path)
    if beside == path:
        raise InvalidArgumentError(
            f"path={str(path)!r} is where the provenance of vectors is kept: choose a name such as "
            f"{path.with_suffix('.txt').name}"
        )
    try:
        about = read_json(beside).get(_FILE)
    except VectorFileError:
        about = None
    is_ours = isinstance(about, dict) and about.get("name") == path.name
    if provenance is not None and beside.exists() and not is_ours:
        raise FileWriteError(
            f"the provenance of {path} would replace {beside}, which is another file: choose another name "
            f"for the vectors, or move {beside.name} away"
        )
    return is_ours


@contextlib.contextmanager
def written_with_provenance(
    path: Path, provenance: dict[str, Any] | None, is_ours: bool
) -> Iterator[IO[str]]:
    """`write_whole` of a file of vectors, with `provenance` and the digest of that file beside it.

    Both are on the disk before either is replaced. An older provenance, if there `is_ours` (see
    `require_place`), is replaced or gone before the file that it tells of: what is interrupted between the
    two is refused where it is read, and made again by the same command."""
    if path.is_dir():  # also ".", which has no name
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    told = contextlib.nullcontext() if provenance is None else write_whole(provenance_path(path))
    with write_whole(path) as file, told as beside:
        yield file
        _to_disk(file)
        if beside is not None:
            hidden = Path(file.name)
            about = {"name": path.name, "bytes": hidden.stat().st_size, "sha256": file_sha256(hidden)}
            json.dump({**(provenance or {}), _FILE: about}, beside, indent=2, ensure_ascii=False)
            beside.write("\n")
            _to_disk(beside)
        elif is_ours:
            provenance_path(path).unlink(missing_ok=True)


def _to_disk(file: IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


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


def check_suffix(path: FilePath, flag: str) -> None:
    """Raises `InvalidArgumentError`, which names `flag`, for a path that says another format than text."""
    path = Path(path)
    if path.suffix.lower() in _OTHER_SUFFIXES:
        name = path.name
        while Path(name).suffix.lower() in (*_OTHER_SUFFIXES, ".txt"):
            name = Path(name).stem
        given = f"{flag} {str(path)!r}" if flag.startswith("--") else f"{flag}{str(path)!r}"
        raise InvalidArgumentError(
            f"{given} says another format than the text that is written: choose a name such as {name}.txt"
        )


@checked
def check_taken(path: FilePath, request: str, flag: str) -> None:
    """Raises `FileWriteError`, which names `flag`, where anything but the vectors of `request` is.

    That is the digest of all that decides on their rows; their provenance has it under that name. Raises
    `InvalidArgumentError` for a name that says another format than text.
    """
    check_suffix(path, flag)
    if provenance_path(path) == Path(path):
        raise InvalidArgumentError(
            f"{flag} {str(path)!r} is where the provenance of vectors is kept: choose a name such as "
            f"{Path(path).with_suffix('.txt').name}"
        )
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
