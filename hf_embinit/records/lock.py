"""The lock of a run folder, so that one run at a time uses it; it names its owner."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import RunFolderError

LOCK_NAME = ".lock"
_held: dict[Path, int] = {}


def check_lock(folder: Path) -> None:
    """Raises as `lock_folder` does while another process holds the lock of a folder; makes nothing."""
    path = folder.resolve() / LOCK_NAME
    if path in _held or not path.is_file():
        return
    try:
        import fcntl
    except ImportError:
        return
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise _in_use(folder, path) from None
    finally:
        os.close(handle)


def lock_folder(folder: Path) -> None:
    """Locks a run folder for this process, which may hold the lock already.

    The operating system releases the lock when the process ends, killed or not. Raises `RunFolderError`,
    which names the owner, while another process holds it.
    """
    path = folder.resolve() / LOCK_NAME
    if path in _held:
        return
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise _in_use(folder, path) from None
        if _is_at(path, handle):  # not the file that an owner removed a moment ago
            break
        os.close(handle)
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": f"{datetime.now():%F %T}"}
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(owner).encode())
    _held[path] = handle


def unlock_folder(folder: Path) -> None:
    """Releases the lock, if this process holds it."""
    path = folder.resolve() / LOCK_NAME
    handle = _held.pop(path, None)
    if handle is not None:
        path.unlink(missing_ok=True)
        os.close(handle)


def _in_use(folder: Path, path: Path) -> RunFolderError:
    return RunFolderError(
        f"--output_dir {folder} is in use by another run ({_owner(path)}). "
        "Wait for it, or choose another folder."
    )


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _owner(path: Path) -> str:
    try:
        owner: Any = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "which is just starting"
