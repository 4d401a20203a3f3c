"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EmbinitError, RunFolderError


def check_output(folder: str | os.PathLike[str]) -> None:
    """Raises `RunFolderError` for a folder that is not empty, before any work."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        kind = "is not empty" if path.is_dir() else "is a file"
        raise RunFolderError(f"--output_dir {folder} {kind}: choose another folder, or delete it")


@contextmanager
def whole_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden folder beside `folder` to write into, which is renamed to `folder` at the end.

    After an error neither exists. Raises `RunFolderError` when `folder` is taken or cannot be written.
    """
    check_output(folder)
    path = Path(folder).absolute()
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        yield hidden
        check_output(folder)
        if path.exists():
            path.rmdir()
        hidden.rename(path)
    except EmbinitError:
        raise
    except OSError as error:
        raise RunFolderError(f"--output_dir {folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
