from __future__ import annotations

from pathlib import Path

import pytest
from builders.studies import toy_study

from hf_embinit.studies.scheduling import Launch


@pytest.fixture
def toy(tmp_path: Path) -> tuple[str, Launch]:
    """The study and the launch of `builders.studies`."""
    return toy_study(tmp_path)
