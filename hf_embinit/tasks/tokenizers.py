"""The tokenizer that `--tokenizer` names: words, a name, a folder or a Hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..hub import load_pretrained_tokenizer
from ..vectors import SOURCES
from .data import find_folder

_CHECKPOINTS = {name: hub_id for name, hub_id in SOURCES.items() if name != "glove"}  # which is a file
TOKENIZERS = {**_CHECKPOINTS, "gpt2": "openai-community/gpt2"}
"""Tokenizers by name, and their Hub ids."""


def find_tokenizer(name: str) -> Any:
    """The pre-trained tokenizer called `name`, or the string `"words"` unchanged.

    `name` is one of `TOKENIZERS`, a folder (also `<name>` or `tokenizers/<name>` in the folder that
    `HF_EMBINIT_DATA` names), or a Hub id. Raises `DataNotFoundError` when there is none, at once when the
    Hub is out of reach.
    """
    if name == "words":
        return name
    folder = Path(name) if Path(name).is_dir() else None
    folder = folder or find_folder(f"tokenizers/{name}", None) or find_folder(name, None)
    return load_pretrained_tokenizer(str(folder or TOKENIZERS.get(name, name)), f"--tokenizer {name!r}")
