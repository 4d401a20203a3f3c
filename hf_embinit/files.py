"""Files and folders that are written whole or not at all; digests of files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from .disk import check_place, disk_problem
from .errors import EmbinitError, RunFolderError
from .interrupts import uninterrupted

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_HIDDEN = re.compile(r"\.hf_embinit\.[0-9a-f]{8}\.tmp")
"""What `whole_folder` writes into inside a folder that is there; a killed process leaves one."""
_ANY_HIDDEN = re.compile(r"\..*\.[0-9a-f]{8}\.tmp")
_SECONDS_UNLOCKED = 60
"""How long a hidden file or folder that nobody locks may be one that a process is about to lock."""


def file_sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def shown(path: Path) -> Path:
    """A folder as it is told to a user: above those that `whole_folder` hides."""
    return next(place for place in (path, *path.parents) if not _ANY_HIDDEN.fullmatch(place.name))


@contextlib.contextmanager
def write_whole(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A text file (UTF-8) that appears at `path` when the block ends without an error, and not otherwise.

    Until then it is `.<name>.<random>.tmp` beside it; folders on the way are created. Raises `OSError`, for a
    folder before anything is written.
    """
    path = Path(path)
    if path.is_dir():  # also ".", which has no name
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _hidden_name(path.parent, path.name)
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file, _locked(temporary):
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with uninterrupted():  # Ctrl-C is often pressed twice
            temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the rename itself reaches the disk with its folder
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_output(folder: str | os.PathLike[str], flag: str = "--output_dir") -> None:
    """Raises `RunFolderError` for a folder that is not empty or cannot be made, before any work.

    `flag` is what the folder was given as. Hidden folders that `whole_folder` left in it do not count.
    """
    path = Path(folder)
    if not os.fspath(folder):
        raise RunFolderError(f"{flag} '' is no folder: give the name of a new one")
    try:
        if path.exists() and (
            not path.is_dir() or any(not _HIDDEN.fullmatch(p.name) for p in path.iterdir())
        ):
            kind = "is not empty" if path.is_dir() else "is a file"
            raise RunFolderError(f"{flag} {folder} {kind}: choose another folder, or delete it")
        check_place(path)
    except OSError as error:
        if isinstance(error, EmbinitError):
            raise
        raise RunFolderError(f"{flag} {folder} cannot be used: {disk_problem(error) or error}") from error


@contextlib.contextmanager
def whole_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden folder to write into, whose content is in `folder` at the end.

    It is beside a `folder` that is not there yet, and becomes it. An empty one may be a mount point, a link
    or the current folder: it stays, with its mode, and what was written in a hidden folder inside is moved
    up. After an error nothing is left; what a killed process leaves, the next that writes `folder` removes.
    Raises `RunFolderError` when `folder` is taken or cannot be written.
    """
    check_output(folder, "the folder")
    path = Path(os.path.realpath(folder))
    stays = path.is_dir()
    hidden = _hidden_name(path, "hf_embinit") if stays else _hidden_name(path.parent, path.name)
    made = [parent for parent in path.parents if not parent.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        with _locked(hidden):
            yield hidden
            check_output(folder, "the folder")
            if stays:
                _move_up(hidden)
            else:
                if path.exists():
                    path.rmdir()
                hidden.rename(path)
    except EmbinitError:
        raise
    except Exception as error:
        problem = disk_problem(error)  # other libraries have errors of their own for it
        if not (problem or isinstance(error, OSError)):
            raise
        raise RunFolderError(f"the folder {shown(path)} cannot be written: {problem or error}") from error
    finally:
        with uninterrupted():
            shutil.rmtree(hidden, ignore_errors=True)
            with contextlib.suppress(OSError):  # one with something in it stays
                for parent in made:
                    parent.rmdir()


@contextlib.contextmanager
def replaced_files(folder: str | os.PathLike[str], stale: Sequence[str] = ()) -> Iterator[Path]:
    """A hidden folder to write files into, also in sub-folders, which at the end replace those of their names
    in `folder`; it is made. Files there that match a pattern of `stale` and were not written are removed.
    After an error what was there is as it was."""
    path = Path(folder)
    made = not path.exists()
    hidden = _hidden_name(path, "hf_embinit")
    try:
        path.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        with _locked(hidden):
            yield hidden
            written = {file.relative_to(hidden) for file in hidden.rglob("*") if file.is_file()}
            for name in sorted(written):
                (path / name).parent.mkdir(exist_ok=True)
                os.replace(hidden / name, path / name)
        for file in (file for pattern in stale for file in path.glob(pattern)):
            if file.relative_to(path) not in written:
                file.unlink()
    finally:
        with uninterrupted():
            shutil.rmtree(hidden, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):  # it holds what was written, or could not be made
                    path.rmdir()


def _hidden_name(folder: Path, name: str) -> Path:
    """`.<name>.<random>.tmp` in `folder`, where what killed processes left of that name is removed: a minute
    old and locked by nobody."""
    left, found = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{8}}\.tmp"), list[Path]()
    with contextlib.suppress(OSError):  # a folder that is not there, or may be written and not listed
        found = [path for path in folder.iterdir() if left.fullmatch(path.name)]
    for path in found:
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            if time.time() - path.stat().st_mtime < _SECONDS_UNLOCKED:
                continue
            with _locked(path) as alone:
                if alone:
                    logger.warning("Removing %s, which an interrupted process left.", path)
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder / f".{name}.{secrets.token_hex(4)}.tmp"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether inside no other process gets this lock on a file or a folder: not where one has it, nor on a
    file system without locks. The system unlocks what a killed process had."""
    with contextlib.ExitStack() as stack:
        alone = False
        with contextlib.suppress(OSError):
            if fcntl is not None:
                opened = os.open(path, os.O_RDONLY)
                stack.callback(os.close, opened)
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
        yield alone


def _move_up(hidden: Path) -> None:
    """Moves what is in `hidden` into its parent, or nothing; config.json, without which no model is, last."""
    made = sorted(hidden.iterdir(), key=lambda path: (path.name == "config.json", path.name))
    try:
        for path in made:
            os.replace(path, hidden.parent / path.name)
    except BaseException:
        with uninterrupted():
            for path in made:
                if not os.path.lexists(path):
                    os.replace(hidden.parent / path.name, path)
        raise
