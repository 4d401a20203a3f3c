"""Programs in processes that spare their imports: forks of one that a test's process starts at its first."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import get_context

# Not forks of the test's process: it has threads, and pipes that a fork would keep open.
_SERVER = get_context("forkserver")
_SERVER.set_forkserver_preload(["builders.imports"])


class Fork:
    """A program, as text, in a process of its own; what it prints goes to files."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._printed = [tempfile.NamedTemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 - until it is read
        names = [file.name for file in self._printed]
        given = (program, ["-c", *arguments], names, dict(os.environ))
        self.process = _SERVER.Process(target=_run, args=given)
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
        if self.poll() is None:
            self.kill()
            raise AssertionError("it does not end")
        out, err = (file.read() for file in self._printed)
        return out, err


def _run(program: str, argv: list[str], printed: Sequence[str], environment: Mapping[str, str]) -> None:
    for number, name in enumerate(printed, start=1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = argv
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})


def run_fork(program: str, *arguments: str) -> str:
    """What a program printed to whose end all went well."""
    fork = Fork(program, *arguments)
    out, err = fork.communicate()
    assert fork.poll() == 0, err[-3000:]
    return out
