from __future__ import annotations

from pathlib import Path

import pytest
from builders.command_line import save_bert, save_bert_vectors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small BERT and its tokenizer."""
    return save_bert(tmp_path_factory.mktemp("checkpoints") / "bert")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of vectors that fit `model`."""
    return save_bert_vectors(tmp_path_factory.mktemp("vectors") / "v.16d.txt")
