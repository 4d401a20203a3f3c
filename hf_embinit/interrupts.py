"""Ctrl-C and SIGTERM: put off while something may not be left half-done, and told apart."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `docker stop` and batch systems send it: what cleans up after Ctrl-C does so after it."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM are delivered when the block is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    now = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in now.items() if handler is not None}  # not set by Python
    sent: list[int] = []
    for number in before:
        signal.signal(number, lambda number, frame: sent.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if sent:
            signal.raise_signal(sent[0])


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`; in a process forked from this one it ends that one, as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def terminate(number: int, frame: Any) -> None:
        if os.getpid() != owner:
            os._exit(128 + number)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
