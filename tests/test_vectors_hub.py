"""Tables from the Hub, against a server on this machine: what is fetched, commit, cache, quick errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from hf_embinit import hub_access
from hf_embinit.errors import DataNotFoundError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENS = ["[PAD]", "[UNK]", "the", "cat"]


class Hub(ThreadingHTTPServer):
    """Serves the folders `root/<owner>/<name>` as repositories with one commit; notes what is downloaded."""

    def __init__(self, root: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.downloads: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        if path[:2] == ["api", "models"]:
            folder, rest = self.server.root / path[2] / path[3], path[4:]
            if not folder.is_dir():
                return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if "nope" in rest:
                return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            files = sorted(file.name for file in folder.iterdir())
            if rest[:1] == ["tree"]:
                listed = [
                    {"type": "file", "path": f, "size": (folder / f).stat().st_size, "oid": f} for f in files
                ]
                return self.reply(200, json.dumps(listed).encode())
            siblings = [{"rfilename": file} for file in files]
            info = {"id": "/".join(path[2:4]), "sha": COMMIT, "siblings": siblings, "private": False}
            return self.reply(200, json.dumps(info).encode())
        if len(path) < 5 or path[2] != "resolve":
            return self.reply(404, b"")
        owner, name, _, revision, *rest = path
        file = self.server.root / owner / name / "/".join(rest)
        if revision not in ("main", COMMIT):
            return self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if not file.is_file():
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if self.command == "GET":
            self.server.downloads.append(file.name)
        headers = {"ETag": f'"{owner}-{name}-{file.name}"', "X-Repo-Commit": COMMIT}
        return self.reply(200, file.read_bytes(), headers)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    config = BertConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    model = BertModel(config)
    root = tmp_path / "repositories" / "someone"
    for name, size in (("single", "5GB"), ("sharded", "1KB"), ("pickled", "5GB")):
        model.save_pretrained(root / name, max_shard_size=size)
        tokenizer.save_pretrained(root / name)
        (root / name / "README.md").write_text("not needed")
    (root / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), root / "pickled" / "pytorch_model.bin")
    torch.save(model.get_input_embeddings().weight.detach(), tmp_path / "table.pt")
    server = Hub(root.parent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


SCRIPT = """
import json, sys, time
import torch
from hf_embinit.errors import EmbinitError
from hf_embinit.vectors import load_vectors
from transformers import AutoTokenizer  # what takes long to import is not timed below
expected = torch.load(sys.argv[1])
for spec in sys.argv[2:]:
    name, _, options = spec.partition("?")
    start = time.monotonic()
    try:
        vectors = load_vectors(name, **json.loads(options or "{}"))
        print(name, vectors.revision, vectors.tokens, torch.equal(vectors.matrix, expected))
    except EmbinitError as error:
        print(name, type(error).__name__, error)
    print(f"{time.monotonic() - start:.2f} s", file=sys.stderr)
"""


def load(tmp_path: Path, endpoint: str, *specs: str) -> tuple[list[str], list[float]]:
    """One line of result and the seconds for each spec, from a process that talks to `endpoint`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "table.pt"), *specs],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seconds = [float(line.split()[0]) for line in done.stderr.splitlines() if line.endswith(" s")]
    return done.stdout.splitlines(), seconds


def test_from_the_hub_and_then_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    good = f"{COMMIT} {TOKENS} True"
    lines, _ = load(
        tmp_path,
        hub.url,
        "someone/sharded",
        'someone/single?{"revision": "main"}',
        "someone/pickled",
        'someone/pickled?{"allow_pickle": true}',
        "someone/missing",
        'someone/single?{"revision": "nope"}',
    )
    assert lines[0] == f"someone/sharded {good}"
    assert lines[1] == f"someone/single {good}"
    assert lines[2].startswith("someone/pickled InvalidArgumentError") and "allow_pickle=True" in lines[2]
    assert lines[3] == f"someone/pickled {good}"
    assert lines[4].startswith("someone/missing DataNotFoundError") and "is not on the Hub" in lines[4]
    assert lines[5].startswith("someone/single DataNotFoundError")
    weights = [file for file in hub.downloads if file.endswith((".safetensors", ".bin"))]
    assert sorted(weights)[1:] == ["model.safetensors", "pytorch_model.bin"]
    assert weights[0].startswith("model-0")  # one shard of several
    assert "README.md" not in hub.downloads
    seen = len(hub.downloads)
    hub.shutdown()
    hub.server_close()
    lines, seconds = load(tmp_path, hub.url, "someone/sharded", "someone/single", "someone/missing")
    assert lines[0] == f"someone/sharded {good}" and lines[1] == f"someone/single {good}"
    assert "'someone/missing' is not in the local cache" in lines[2] and "HF_HUB_OFFLINE" in lines[2]
    assert max(seconds) < 3
    assert len(hub.downloads) == seen


def test_reachability(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(hub_access, "_last", {})
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_access.hub_is_offline() and not hub_access.hub_is_reachable()
    with pytest.raises(DataNotFoundError, match=r"data x: .*HF_HUB_OFFLINE is set\. Do y\."):
        hub_access.require_hub("data x", "Do y.")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert hub_access.hub_is_reachable()
    hub_access.require_hub("data x", "Do y.")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    hub_access._last.clear()
    assert not hub_access.hub_is_reachable()  # the proxy is what must take the connection


def test_a_name_look_up_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_access, "CONNECT_SECONDS", 0.2)
    released = threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        released.wait(10)
        raise OSError("no such name")

    monkeypatch.setattr(hub_access.socket, "create_connection", hang)
    start = time.monotonic()
    assert not hub_access._connects("huggingface.co", 443)
    assert time.monotonic() - start < 2
    released.set()
