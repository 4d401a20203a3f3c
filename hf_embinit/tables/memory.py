"""Preconditions of changing large tensors: enough memory, and no interrupt half-way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from ..errors import InvalidArgumentError


def require_memory(needed: int, device: torch.device, what: str) -> None:
    """Raises `InvalidArgumentError` when `device` reports less than `needed` bytes free."""
    free = _free(device)
    if free is not None and needed > free:
        raise InvalidArgumentError(
            f"{what} need {needed / 2**30:,.1f} GiB on {device}, where {free / 2**30:,.1f} GiB are free: ask "
            f"for fewer tokens or a smaller pad_to_multiple_of="
        )


def _free(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1024 * (sizes["MemAvailable"] + sizes["SwapFree"])
    except (OSError, ValueError, KeyError, IndexError):  # not Linux
        return None


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C is delivered when the block is done."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)
