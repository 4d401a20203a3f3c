"""TRL's `clone_chat_template` inside `patched`: no row is cut off, and no dummy token is handed to PEFT.

It asks for as many rows as the tokenizer has tokens, adds tokens `<extra_id_0>`, `<extra_id_1>` ... up to the
number of rows, and gives their ids as tokens to train, beside those of the chat template.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from ..tables import EmbeddingTables
from ..tokens import copy_tokenizer
from .request import Request

_MODULE = "trl.chat_template_utils"
_NAME = "clone_chat_template"
_exchanged: list[tuple[FunctionType, CodeType, Callable[..., Any]]] = []
"""TRL's function, the code that it had and what it does instead, while `patched` is active somewhere."""


def wrap_trl(request_of: Callable[[Any], Request | None]) -> None:
    """Makes TRL's function, by every name that anyone has for it, do what `patched` promises, if TRL is
    imported; each call asks `request_of`."""
    if "trl" in sys.modules:  # it imports its parts on first use, which may be inside `patched`
        with contextlib.suppress(ImportError):
            importlib.import_module(_MODULE)
    function = inspect.unwrap(getattr(sys.modules.get(_MODULE), _NAME, str))
    if not isinstance(function, FunctionType) or _exchanged:
        return
    original = FunctionType(function.__code__, function.__globals__, _NAME, function.__defaults__)
    original.__kwdefaults__, original.__annotations__ = function.__kwdefaults__, function.__annotations__
    _exchanged.append((function, function.__code__, _wrapper(original, request_of)))
    function.__wrapped__ = original  # type: ignore[attr-defined]  # its signature is as it was
    function.__code__ = _ours.__code__


def unwrap_trl() -> None:
    """Gives TRL's function its own code back."""
    while _exchanged:
        function, code, _ = _exchanged.pop()
        function.__code__ = code
        del function.__wrapped__  # type: ignore[attr-defined]


def _ours(*args: Any, **kwargs: Any) -> Any:
    """Its code runs as TRL's function, among the names of TRL's module: it has to import its own."""
    from hf_embinit.patching import trl_templates

    ((_, _, instead),) = trl_templates._exchanged
    return instead(*args, **kwargs)


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
