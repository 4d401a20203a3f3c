"""What a disk does not let a program do, in one sentence with the way out."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import FileWriteError

_OTHER_PLACE = "give another folder (or HF_HOME, for caches)"
_DISK = {
    errno.ENOSPC: f"the disk is full: make room, or {_OTHER_PLACE}",
    errno.EDQUOT: f"the disk quota is used up: make room, or {_OTHER_PLACE}",
    errno.EFBIG: "the file would be larger than may be written here (ulimit -f)",
    errno.EROFS: f"the disk is read-only: {_OTHER_PLACE}",
    errno.EACCES: f"no permission: {_OTHER_PLACE} that you may use",
    errno.EPERM: f"no permission: {_OTHER_PLACE} that you may use",
    errno.ENOTDIR: "a part of this path is a file, not a folder: give another path",
    errno.EEXIST: "a part of this path is a file, not a folder: give another path",
    errno.EISDIR: "this is a folder, not a file: give another path",
    errno.ENAMETOOLONG: "the name is too long: give a shorter one",
}
_WORDS = {
    "no space left": errno.ENOSPC,
    "read-only file system": errno.EROFS,
    "quota": errno.EDQUOT,
    "iostream error": errno.ENOSPC,  # torch.save, whose writer of zip archives keeps no reason
    "unexpected pos": errno.ENOSPC,
}
"""How libraries in other languages tell the same."""


def disk_problem(error: BaseException) -> str | None:
    """What a disk did not let a program do; None for any other error."""
    link: BaseException | None = error
    while link is not None:
        number = link.errno if isinstance(link, OSError) else None
        if number not in _DISK:
            number = next((n for words, n in _WORDS.items() if words in str(link).lower()), None)
        if number is not None:
            where = getattr(link, "filename", None)
            return f"{where}: {_DISK[number]}" if where else _DISK[number]
        link = link.__cause__ or link.__context__
    return None


def check_file(path: str | os.PathLike[str], flag: str) -> None:
    """Raises `FileWriteError`, which names `flag`, for a path that no file can be written to."""
    path = Path(path)
    with writing(f"{flag} {path}"):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        check_place(path.absolute().parent)


def check_place(path: Path) -> None:
    """Raises `OSError` where the nearest folder that is there, above or at `path`, cannot be written."""
    nearest = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    number = errno.EACCES if nearest.is_dir() else errno.ENOTDIR
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return
    if nearest.is_dir() and os.statvfs(nearest).f_flag & os.ST_RDONLY:
        number = errno.EROFS
    raise OSError(number, os.strerror(number), str(nearest))


@contextlib.contextmanager
def writing(what: object) -> Iterator[None]:
    """Inside, an `OSError`, or what another library makes of one, becomes a `FileWriteError` that names what
    was to be written."""
    try:
        yield
    except Exception as error:
        problem = disk_problem(error)
        if isinstance(error, FileWriteError) or not (problem or isinstance(error, OSError)):
            raise
        raise FileWriteError(f"{what} cannot be written: {problem or error}") from error
