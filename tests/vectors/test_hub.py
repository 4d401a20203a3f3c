"""Tables from the Hub, against a server on this machine: what is fetched, commit, cache, quick errors."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from builders.loopback_hub import Hub, loopback_hub
from tokenizers import Tokenizer, models
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel, PreTrainedTokenizerFast

from hf_embinit.errors import DataNotFoundError
from hf_embinit.hub import access as hub_access

TOKENS = ["[PAD]", "[UNK]", "the", "cat"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    config = BertConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    model = BertModel(config)
    root = tmp_path / "repositories"
    for name, size in (("single", "5GB"), ("sharded", "1KB"), ("pickled", "5GB")):
        model.save_pretrained(root / name, max_shard_size=size)
        tokenizer.save_pretrained(root / name)
        (root / name / "README.md").write_text("not needed")
    (root / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), root / "pickled" / "pytorch_model.bin")
    torch.save(model.get_input_embeddings().weight.detach(), tmp_path / "table.pt")
    with loopback_hub() as server:
        for name in ("single", "sharded", "pickled"):
            server.add_folder(f"someone/{name}", root / name)
        yield server


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


def load(tmp_path: Path, hub: Hub, *specs: str) -> tuple[list[str], list[float]]:
    """One line of result and the seconds for each spec, from a process that talks to `hub`."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "table.pt"), *specs],
        env=hub.environment(tmp_path / "cache", None),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seconds = [float(line.split()[0]) for line in done.stderr.splitlines() if line.endswith(" s")]
    return done.stdout.splitlines(), seconds


def test_from_the_hub_and_then_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    commits = {
        name: hub.repository(f"someone/{name}").branches["main"] for name in ("single", "sharded", "pickled")
    }
    good = {name: f"someone/{name} {commit} {TOKENS} True" for name, commit in commits.items()}
    lines, _ = load(
        tmp_path,
        hub,
        "someone/sharded",
        'someone/single?{"revision": "main"}',
        "someone/pickled",
        'someone/pickled?{"allow_pickle": true}',
        "someone/missing",
        'someone/single?{"revision": "nope"}',
    )
    assert lines[0] == good["sharded"]
    assert lines[1] == good["single"]
    assert lines[2].startswith("someone/pickled InvalidArgumentError") and "allow_pickle=True" in lines[2]
    assert lines[3] == good["pickled"]
    assert lines[4].startswith("someone/missing DataNotFoundError") and "is not on the Hub" in lines[4]
    assert lines[5].startswith("someone/single DataNotFoundError")
    weights = [file for file in hub.downloads if file.endswith((".safetensors", ".bin"))]
    assert sorted(weights)[1:] == ["model.safetensors", "pytorch_model.bin"]
    assert weights[0].startswith("model-0")  # one shard of several
    assert "README.md" not in hub.downloads
    seen = len(hub.downloads)
    hub.stop()
    lines, seconds = load(tmp_path, hub, "someone/sharded", "someone/single", "someone/missing")
    assert lines[0] == good["sharded"] and lines[1] == good["single"]
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


def test_an_absent_model_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers forgets `local_files_only` when it looks for an adapter, and would retry for long."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_access, "hub_is_reachable", lambda: False)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr("socket.getaddrinfo", refuse)  # what every client asks first
    for load in (
        partial(hub_access.load_pretrained, AutoModelForSequenceClassification),
        hub_access.load_pretrained_tokenizer,
    ):
        with pytest.raises(DataNotFoundError, match=r"--model .*not in the local cache"):
            load("nobody/no-model", "--model nobody/no-model")
    assert not constants.HF_HUB_OFFLINE
