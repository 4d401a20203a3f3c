"""Shared fixtures. Everything runs offline and on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny, and test files run side by side

import pytest
import torch


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
