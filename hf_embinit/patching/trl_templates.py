"""TRL's `clone_chat_template` inside `patched`: no row is cut off, and no dummy token is handed to PEFT.

It asks for as many rows as the tokenizer has tokens, adds tokens `<extra_id_0>`, `<extra_id_1>` ... up to the
number of rows, and gives their ids as tokens to train, beside those of the chat template.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..tables import EmbeddingTables
from ..tokens import copy_tokenizer
from .request import Request

_MODULE = "trl.chat_template_utils"
_NAME = "clone_chat_template"
_wrapped: list[tuple[Any, Any]] = []
"""The function of TRL and what stands in its place, while `patched` is active somewhere."""


def wrap_trl(request_of: Callable[[Any], Request | None]) -> None:
    """Wraps the function in every module that has it, if TRL is imported; each call asks `request_of`."""
    if "trl" in sys.modules:  # it imports its parts on first use, which may be inside `patched`
        with contextlib.suppress(ImportError):
            importlib.import_module(_MODULE)
    original = getattr(sys.modules.get(_MODULE), _NAME, None)
    if callable(original) and not _wrapped:
        wrapper = _wrapper(original, request_of)
        _wrapped.append((original, wrapper))
        _exchange(original, wrapper)


def unwrap_trl() -> None:
    """Puts TRL's own function back."""
    while _wrapped:
        original, wrapper = _wrapped.pop()
        _exchange(wrapper, original)


def _exchange(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is old:
            setattr(module, _NAME, new)


def _wrapper(original: Any, request_of: Callable[[Any], Request | None]) -> Any:
    @functools.wraps(original)
    def clone_chat_template(
        model: Any, tokenizer: Any, source_tokenizer_path: str, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, list[int]]:
        request = request_of(model)
        if request is None:
            return original(model, tokenizer, source_tokenizer_path, *args, **kwargs)
        if request.rows.tokenizer is None:  # it tells which padding rows the template's tokens land on
            request.rows = replace(request.rows, tokenizer=tokenizer, old_tokenizer=copy_tokenizer(tokenizer))
            request.look_at(EmbeddingTables(model))
        model, tokenizer, added = original(model, tokenizer, source_tokenizer_path, *args, **kwargs)
        return model, tokenizer, _without_dummies(tokenizer, added, source_tokenizer_path)

    return clone_chat_template


def _without_dummies(tokenizer: Any, added: list[int], source: str) -> list[int]:
    """Those of the added ids whose tokens come from the tokenizer of the chat template."""
    from transformers import AutoTokenizer

    tokens = {str(token) for token in AutoTokenizer.from_pretrained(source).added_tokens_decoder.values()}
    return [i for i in added if tokenizer.convert_ids_to_tokens(i) in tokens]
