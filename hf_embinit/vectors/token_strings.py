"""The token of each row of a checkpoint, and how its tokenizer marks the start of words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..arguments import FilePath, checked
from ..errors import DataNotFoundError, VectorFileError
from ..foreign import read_json, reading
from ..hub import load_pretrained
from ..tokens import TokenFamily, token_family, vocabulary

TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "target_vocab.json",
    "segmenter.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "*.spm",
)
"""Patterns of the files that tokenizers are loaded from."""
_VOCABULARY_FILES = ("tokenizer.json", "vocab*", "*.model", "*.spm", "*.tiktoken")


def read_token_strings(
    folder: Path, side: Literal["source", "target"] = "source"
) -> tuple[dict[int, str], TokenFamily, list[str]]:
    """Token by id, family and special tokens of the tokenizer saved in `folder`, for one of its sides.

    Raises `DataNotFoundError` when there is none (`AutoTokenizer` would silently give an empty one) and
    `VectorFileError` when its files are damaged.
    """
    tokenizer = _load(folder)
    with reading(f"the tokenizer in {folder}"):
        return _token_strings(tokenizer, side)


@checked
def has_tokenizer(folder: FilePath) -> bool:
    """Whether a tokenizer is saved in a folder: its configuration, or its vocabulary alone."""
    folder = Path(folder)
    return (folder / "tokenizer_config.json").is_file() or _has_vocabulary(folder)


def _has_vocabulary(folder: Path) -> bool:
    return any(file.is_file() for pattern in _VOCABULARY_FILES for file in folder.glob(pattern))


def _needs_none(folder: Path) -> bool:
    """Whether the tokenizer is one whose class knows the vocabulary, as ByT5's knows the bytes."""
    import transformers

    config = folder / "tokenizer_config.json"
    name = read_json(config).get("tokenizer_class") if config.is_file() else None
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    return kind is not None and kind.vocab_files_names == {}


def _token_strings(
    tokenizer: Any, side: Literal["source", "target"]
) -> tuple[dict[int, str], TokenFamily, list[str]]:
    tokens = {i: token for i, token in enumerate(vocabulary(tokenizer, side)) if token}
    special = list(tokenizer.all_special_tokens)
    if not special:  # a tokenizer.json without the configuration that says which one is which
        special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return tokens, token_family(tokenizer), special


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (_has_vocabulary(folder) or _needs_none(folder)):
        raise DataNotFoundError(
            f"{folder} has no tokenizer files (such as tokenizer.json), so its rows have no tokens: save the "
            "tokenizer beside the model with tokenizer.save_pretrained."
        )
    try:
        tokenizer = load_pretrained(
            AutoTokenizer, str(folder), f"the tokenizer in {folder}", trust_remote_code=False
        )
    except (DataNotFoundError, VectorFileError):  # of a class that is not here: its tokenizer.json will do
        if not (folder / "tokenizer.json").is_file():
            raise
        with reading(folder / "tokenizer.json"):
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    if len(tokenizer) <= 1:
        raise DataNotFoundError(f"The tokenizer in {folder} is empty.")
    return tokenizer
