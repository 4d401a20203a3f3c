"""A Hub that takes connections and never answers: known within the time that the user sets."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.loopback_hub import Client, Hub, loopback_hub
from builders.run_folders import run_folder

CALLS = """
import json, time
import hf_embinit
from hf_embinit.cards import prepare_push, publish
from transformers import TrainingArguments
for name in names:
    calls = {
        "publish": lambda: publish(run, "user/x", token="hf_writer"),
        "compare": lambda: hf_embinit.compare("user/a", "user/b"),
        "manifest": lambda: hf_embinit.read_manifest("user/a"),
        "push": lambda: prepare_push(
            TrainingArguments(run, push_to_hub=True, hub_model_id="user/x", use_cpu=True, report_to=[]),
            ["xavier"], task="t", dataset="d", tokenizer="words", seed=0,
        ),
    }
    before = time.monotonic()
    try:
        answer = str(calls[name]())
    except hf_embinit.EmbinitError as error:
        answer = str(error)
    print(json.dumps([name, answer, time.monotonic() - before]))
"""
NAMES = ["publish", "compare", "manifest", "push"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_folder(folder, "gpt2")
    return folder


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a server that reads nothing and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        held = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for connection, _ in held:
            connection.close()


def test_everything_that_asks_a_silent_hub_ends_soon(silent: str, run: Path, tmp_path: Path) -> None:
    more = {"HF_ENDPOINT": silent, "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    with loopback_hub() as unused, unused.client(tmp_path, "hf_writer", **more) as client:
        lines = client.run(CALLS, names=NAMES, run=str(run)).splitlines()
    for name, answer, seconds in map(json.loads, lines):
        assert "does not answer within 1 s (HF_HUB_DOWNLOAD_TIMEOUT" in answer, (name, answer)
        assert seconds < 60, (name, seconds)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Client]]:
    """A Hub and a client that waits for a second."""
    with loopback_hub() as hub:
        cache = tmp_path_factory.mktemp("hasty")
        with hub.client(cache, "hf_writer", HF_HUB_DOWNLOAD_TIMEOUT="1") as client:
            yield hub, client


def test_others_requests_are_left_as_they_are(hasty: tuple[Hub, Client]) -> None:
    hub, client = hasty
    hub.fault("GET /api/whoami", lambda handler: time.sleep(2), times=1)
    told = client.run(
        "from hf_embinit.hub import hub_is_reachable\n"
        "from huggingface_hub import HfApi\n"
        "assert hub_is_reachable()\n"
        "print(HfApi().whoami()['name'])"
    )
    assert told == "user\n"


def test_a_hub_that_falls_silent_later_is_given_up(hasty: tuple[Hub, Client], run: Path) -> None:
    hub, client = hasty
    gone = threading.Event()
    hub.fault("GET /api/whoami", lambda handler: gone.wait(60))
    before = time.monotonic()
    lines = client.run(CALLS, names=["publish", "push"], run=str(run)).splitlines()
    assert time.monotonic() - before < 140
    gone.set()
    for name, answer, seconds in map(json.loads, lines):
        assert "does not answer within 1 s" in answer and seconds < 60, (name, answer, seconds)
