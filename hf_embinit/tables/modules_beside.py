"""What sentence-transformers' modules beside a model on disk say of its vocabulary, for another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import InvalidArgumentError, UnsupportedModelError
from ..foreign import read_json
from ..hub import load_pretrained_tokenizer
from ..tokens import tokenizer_of, vocabulary
from .beside import module_folders
from .embedding_tables import EmbeddingTables
from .unwrapping import WEIGHTS_OF_TOKENS

_WIDTHS = {"SpladePooling": ("embedding_dimension", "word_embedding_dimension")}
_IDS = {"LogitScore": ("true_token_id", "false_token_id"), "MultiVectorMask": ("keep_only_token_ids",)}
"""Fields of modules that hold the number of tokens, and ids of tokens."""


def changed_modules(source: Path, model: PreTrainedModel, tokenizer: Any) -> dict[str, str]:
    """The files of modules in the folder `source` of a checkpoint that change with its vocabulary, and their
    new texts.

    Ids follow the spelling of their tokens, from the tokenizer in `source` to `tokenizer`, and stay where
    that is None. Raises `InvalidArgumentError` for a token that is no more, `UnsupportedModelError` for
    modules with a weight for each token.
    """
    kinds = module_folders(source)
    old: list[str] = []
    new: list[str] = []
    if tokenizer is not None and any(kind in _IDS or kind in WEIGHTS_OF_TOKENS for kind in kinds.values()):
        old = vocabulary(load_pretrained_tokenizer(str(source), f"the tokenizer in {source}"))
        new = vocabulary(tokenizer_of(tokenizer))
    ids = {token: i for i, token in enumerate(new) if token}
    found = {}
    for path, kind in kinds.items():
        if kind in WEIGHTS_OF_TOKENS and old != new:
            raise UnsupportedModelError(
                f"{source / path} is a {kind} with a weight for each token of the old vocabulary: change the "
                f"model alone, in Python, and build a {kind}({WEIGHTS_OF_TOKENS[kind]}) for the new tokens"
            )
        if kind not in _WIDTHS and (kind not in _IDS or old == new):
            continue
        file = source / path / "config.json"
        if not file.is_file():
            continue
        settings = read_json(file, dict)
        for key in _WIDTHS.get(kind, ()):
            if settings.get(key) is not None:
                settings[key] = EmbeddingTables(model).vocab_size()
        for key in _IDS.get(kind, ()):
            given = settings.get(key)
            if isinstance(given, list):
                settings[key] = [_moved(i, old, ids, file, key) for i in given]
            elif given is not None:
                settings[key] = _moved(given, old, ids, file, key)
        found[f"{path}/config.json"] = f"{json.dumps(settings, indent=4)}\n"
    return found


def _moved(i: int, old: list[str], ids: dict[str, int], file: Path, key: str) -> int:
    token = old[i] if isinstance(i, int) and 0 <= i < len(old) else ""
    if token not in ids:
        raise InvalidArgumentError(
            f"{file} has {key} {i}, which is {token!r} and no token any more: keep that token, or give the "
            f"new tokenizer one so spelt"
        )
    return ids[token]
