"""Shared fixtures. Everything runs offline and on the CPU."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny, and test files run side by side

from collections.abc import Iterator
from importlib.metadata import version

import pytest
import torch
from builders.loopback_hub import Client, Hub, loopback_hub
from packaging.requirements import Requirement


@pytest.fixture(scope="session")
def server() -> Iterator[Hub]:
    """A running Hub on this machine."""
    with loopback_hub() as server:
        yield server


@pytest.fixture(scope="module")
def hub(server: Hub) -> Hub:
    """The Hub, on which there is nothing yet, shared by the tests of one file."""
    server.clear()
    return server


@pytest.fixture(scope="session")
def writer(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A process logged in to `hub` as `user`, whose token may write; what it has imported, it keeps."""
    with server.client(tmp_path_factory.mktemp("writer"), "hf_writer") as client:
        yield client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, so that no worker is left alone with one of them in the end."""
    items.sort(key=lambda item: "recipes" not in item.path.parts)


def pytest_collection_finish() -> None:
    """Takes what was imported, which stays, out of what every collection of garbage looks through."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test marked `needs("package>=version")` where an older package is installed."""
    for mark in item.iter_markers("needs"):
        requirement = Requirement(mark.args[0])
        installed = version(requirement.name)
        if not requirement.specifier.contains(installed, prereleases=True):
            pytest.skip(f"needs {requirement}, and {installed} is installed")


@pytest.fixture
def data_folder() -> Path:
    """The folder of real data; tests that use it are skipped without `HF_EMBINIT_DATA`."""
    folder = os.environ.get("HF_EMBINIT_DATA")
    if not folder:
        pytest.skip("HF_EMBINIT_DATA is not set")
    return Path(folder)


@pytest.fixture
def global_rng_untouched():
    """Fails a test that draws from torch's global random state."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global random state was touched"


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Ctrl-C raises `KeyboardInterrupt`, as it does not in a job that a shell started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
