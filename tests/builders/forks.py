"""Programs in forks of the process of a test, which spares them its imports."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context


class Fork:
    """A program in a fork of this process, which spares its imports; what it prints goes to files."""

    def __init__(self, program: Callable[[], object]) -> None:
        self._printed = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 - until it is read

        def printing() -> None:
            for number, file in enumerate(self._printed, start=1):
                os.dup2(file.fileno(), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
            program()

        self.process = get_context("fork").Process(target=printing)
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        return self.process.exitcode

    def kill(self) -> None:
        """At once."""
        self.process.kill()

    def communicate(self) -> tuple[str, str]:
        """Waits for its end; what it printed."""
        self.process.join(280)
        assert self.poll() is not None, "it does not end"
        for file in self._printed:
            file.seek(0)
        out, err = (file.read() for file in self._printed)
        return out, err


def run_fork(program: str, *arguments: str) -> str:
    """What a program printed to whose end all went well."""

    def run() -> None:
        sys.argv = ["-c", *arguments]
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})

    fork = Fork(run)
    out, err = fork.communicate()
    assert fork.poll() == 0, err[-3000:]
    return out
