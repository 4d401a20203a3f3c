"""A Hub on this machine: what huggingface_hub, transformers and datasets ask of the real one, over HTTP.

Repositories live in memory. Uploads go the regular way or by LFS, whose digests are checked. Users, tokens
and faults are set by the test; the clients run in other processes with `HF_ENDPOINT` and no Xet.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from builders.loopback_repository import LFS_ENDINGS, Blob, Repository
from builders.loopback_requests import CutOff, Handler, Refusal


class Hub(ThreadingHTTPServer):
    """The server. `tokens` maps a token to a user and the role `write` or `read`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tokens = {
            "hf_writer": ("user", "write"),
            "hf_reader": ("user", "read"),
            "hf_other": ("other", "write"),
        }
        self.repositories: dict[str, Repository] = {}
        self.lfs: dict[str, bytes] = {}
        self.collections: dict[str, dict[str, Any]] = {}
        """Slug -> what the Hub tells of it."""
        self.requests: list[str] = []
        """`METHOD path` of every request, query left out."""
        self.downloads: list[str] = []
        """Name of every file whose content was sent."""
        self.faults: list[tuple[re.Pattern[str], Callable[[Handler], None]]] = []
        """What to do before a request whose `METHOD path` matches is answered."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing to report; anything else is."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def add_folder(self, repo_id: str, folder: Path, *, private: bool = False) -> Repository:
        """A repository with one commit: the files of a folder. `datasets/user/name` makes a data set."""
        files = {
            str(p.relative_to(folder)): Blob(p.read_bytes(), p.suffix in LFS_ENDINGS)
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        }
        self.lfs.update({blob.oid: blob.data for blob in files.values() if blob.lfs})
        repository = self.repositories[self.key(repo_id)] = Repository(private)
        repository.add("main", files, "initial commit", "someone")
        return repository

    def clear(self) -> None:
        """Forgets every repository and collection, what was asked and what was to go wrong."""
        for held in (
            self.repositories,
            self.lfs,
            self.collections,
            self.requests,
            self.downloads,
            self.faults,
        ):
            held.clear()

    def stop(self) -> None:
        """No more answers; may be called twice."""
        self.shutdown()
        self.server_close()

    @staticmethod
    def key(repo_id: str) -> str:
        return repo_id if repo_id.startswith(("models/", "datasets/")) else f"models/{repo_id}"

    def repository(self, repo_id: str) -> Repository:
        return self.repositories[self.key(repo_id)]

    def fault(self, pattern: str, action: Callable[[Handler], None], times: int | None = None) -> None:
        """Runs `action(handler)` before matching requests, the first `times` of them (None: all)."""
        count = itertools.count()

        def limited(handler: Handler) -> None:
            if times is None or next(count) < times:
                action(handler)

        self.faults.append((re.compile(pattern), limited))

    def environment(self, cache: Path, token: str | None = "hf_writer") -> dict[str, str]:
        """The environment of a client: this server, its own cache, nothing of this machine's account."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
        proxies = {k for k in kept if k.lower().endswith("_proxy")}
        found = {k: v for k, v in kept.items() if k not in proxies} | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "OMP_NUM_THREADS": "1",
        }
        return found | ({"HF_TOKEN": token} if token else {})

    @contextmanager
    def client(self, cache: Path, token: str | None = None, **more: str) -> Iterator[Client]:
        """A Python process of its own that talks to this server, for as many programs as one likes."""
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER],
                env=self.environment(cache, token) | more,
                cwd=cache,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                yield Client(process, cache, log)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)


WORKER = """
import contextlib, io, json, sys, traceback
answers = sys.stdout
for line in sys.stdin:
    code, values = json.loads(line)
    text, error = io.StringIO(), ""
    with contextlib.redirect_stdout(text):
        try:
            exec(compile(code, "program", "exec"), {"__name__": "client", **values})
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([text.getvalue(), error]), file=answers, flush=True)
"""


@dataclass
class Client:
    """A running client."""

    process: subprocess.Popen[str]
    cache: Path
    log: Any

    def start(self, code: str, **values: Any) -> None:
        """Begins a program in which `values` (JSON) are global names."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([code, values]) + "\n")
        self.process.stdin.flush()

    def result(self) -> str:
        """What the program printed; fails the test with its traceback if it raised."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise AssertionError(f"the client died:\n{self.log.read()[-3000:]}")
        text, error = json.loads(line)
        assert not error, error
        return text

    def run(self, code: str, **values: Any) -> str:
        """Runs a program to its end."""
        self.start(code, **values)
        return self.result()


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    """A running server."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.stop()


def drop(handler: Handler) -> None:
    """Fault: hang up without a word."""
    raise CutOff


def drop_after_reading(count: int) -> Callable[[Handler], None]:
    """Fault: hang up after `count` bytes of the request's body."""

    def cut(handler: Handler) -> None:
        handler.rfile.read(min(count, int(handler.headers.get("Content-Length", 0))))
        raise CutOff

    return cut


def drop_after_sending(count: int) -> Callable[[Handler], None]:
    """Fault: do what was asked, but hang up after `count` bytes of the answer's body."""

    def cut(handler: Handler) -> None:
        handler.send_at_most = count

    return cut


def refuse(status: int, message: str = "refused", **headers: str) -> Callable[[Handler], None]:
    """Fault: an error status."""

    def answer(handler: Handler) -> None:
        raise Refusal(status, message, {k.replace("_", "-"): v for k, v in headers.items()})

    return answer
