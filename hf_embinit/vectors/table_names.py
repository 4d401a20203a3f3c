"""Finds the input-embedding table among the tensors of a checkpoint, by name and shape alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import InvalidArgumentError, UnsupportedModelError
from .static_embeddings import MODEL2VEC

_MODULES = (
    "shared",
    "embed_tokens",
    "word_embeddings",
    "word_embedding",
    "wte",
    "tok_embeddings",
    "token_embedding",
    "token_embeddings",
    "tokens_embed",
    "embed_in",
    "input_embedding",
    "embeddings",
    "embedding",
    "w",
)
"""Names that architectures give the module of their input table, the most specific first."""


def vocabulary_sizes(config: Mapping[str, Any]) -> list[int]:
    """The vocabulary sizes that a config names, its own before those of its parts."""
    own = [
        config[key] for key in ("vocab_size", "src_vocab_size", "n_vocab") if isinstance(config.get(key), int)
    ]
    parts = sorted(
        (key, value)
        for key, value in config.items()
        if isinstance(value, Mapping) and not key.startswith("quant")
    )
    parts.sort(key=lambda item: item[0] not in ("text_config", "llm_config", "language_config", "encoder"))
    inner = [size for _, value in parts for size in vocabulary_sizes(value)]
    return list(dict.fromkeys(own + inner))


def find_table(
    names: Iterable[str],
    shape_of: Callable[[str], tuple[int, ...]],
    config: Mapping[str, Any],
    where: str,
    table: str | None = None,
) -> str:
    """The name of the input table among the tensors `names`; `shape_of` is called for few of them.

    `table` chooses by the name of the tensor, or by a pattern such as `"*decoder.embed_tokens*"`. Without it
    the candidates are tensors with a known name and at least as many rows as the vocabulary; of an encoder
    and a decoder, the encoder's. Raises `InvalidArgumentError`, which lists the candidates, when several are
    left, and `UnsupportedModelError` when none is.
    """
    names = sorted(names)
    if table is not None:
        chosen = [name for name in names if name == table] or fnmatch.filter(names, table)
        if len(chosen) != 1:
            raise InvalidArgumentError(
                f"table={table!r} names {len(chosen) or 'no'} tensors of {where}. "
                f"Tensors that may be tables: {', '.join(_named(names)) or ', '.join(names[:20])}."
            )
        return chosen[0]
    sizes = vocabulary_sizes(config)
    candidates = {name: shape for name in _named(names) if len(shape := shape_of(name)) == 2}
    if not candidates:
        raise UnsupportedModelError(
            f"{where} has no tensor with a known name of an input-embedding table; choose one by "
            f"load_vectors(..., table=...): "
            f"{', '.join(names[:20])}{' ...' if len(names) > 20 else ''}."
        )
    for size in sizes:
        exact = [name for name in candidates if candidates[name][0] == size]
        padded = [name for name in candidates if size < candidates[name][0] < size + max(1024, size // 10)]
        if found := exact or padded:
            return _one(found, candidates, where)
    return _one(list(candidates), candidates, where)


def _module(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] == "weight" else ""


def _named(names: Iterable[str]) -> list[str]:
    return [name for name in names if _module(name) in _MODULES or name == MODEL2VEC]


def _one(found: list[str], candidates: Mapping[str, tuple[int, ...]], where: str) -> str:
    if len(found) > 1:
        for side in ("decoder", "generator"):
            found = [name for name in found if side not in name.split(".")] or found
    if len(found) > 1:
        first = min(_MODULES.index(_module(name)) for name in found)
        found = [name for name in found if _MODULES.index(_module(name)) == first]
    if len(found) > 1:
        listed = ", ".join(f"{name} {list(candidates[name])}" for name in found)
        raise InvalidArgumentError(
            f"{where} has several tables: {listed}. Choose one by load_vectors(..., table=...)."
        )
    return found[0]
