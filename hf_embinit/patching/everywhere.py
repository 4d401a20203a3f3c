"""`patched`: every model that a thread builds or resizes inside a `with`."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from ..arguments import Seed, Tokenizer, checked
from ..errors import UnsupportedModelError
from ..tables import EmbeddingTables, is_partitioned, unwrap
from ..tokens import tokenizer_of
from .hooks import RESIZE, RESIZE_DECODER, ResizeDecoderHook, ResizeHook
from .request import Request, Shrink
from .trl_templates import unwrap_trl, wrap_trl


class _Active:
    """One `with patched(...)`: each model gets a copy of the request, which remembers what it has filled."""

    def __init__(self, request: Request):
        self.request = request
        self.closed = False
        self.of_model: WeakKeyDictionary[PreTrainedModel, Request] = WeakKeyDictionary()

    def __call__(self, model: PreTrainedModel) -> Request:
        return self.of_model.setdefault(model, copy.copy(self.request))


_ACTIVE: ContextVar[_Active | None] = ContextVar("hf_embinit_patched", default=None)
"""The innermost `with patched(...)` of this thread (or task); a closed one where another one closed it."""
_lock = threading.Lock()
_depth = 0
_originals: dict[tuple[type, str], Callable[..., Any]] = {}


@contextlib.contextmanager
@checked
def patched(
    init: str = "mean",
    tokenizer: Tokenizer | None = None,
    seed: Seed = 0,
    *,
    shrink: Shrink = "refuse",
    **options: Any,
) -> Iterator[None]:
    """Inside the `with`, whatever model this thread resizes or builds gets its rows from `init`.

    For scripts that one does not control: `with patched("xavier"): model = AutoModel.from_config(config)`, or
    a helper that calls `resize_token_embeddings`. Takes the arguments of `patch`. Loaded rows are never
    re-initialised, save padding rows that tokens reach which `tokenizer` gets after the loading. TRL's
    `clone_chat_template` fills the padding rows that its tokens land on and gives none of its dummy tokens to
    PEFT. Afterwards, after an exception too, transformers is as it was and nothing of the patch is left on
    the models; other threads never see it. A part that is resized by itself (`model.encoder`) records it in
    its own configuration, where `read_manifest(model.encoder)` finds it; under `patch(model)` the whole does.
    """
    request = Request(init, tokenizer_of(tokenizer), seed, shrink, options)
    _enter()
    active = _Active(request)
    token = _ACTIVE.set(active)
    try:
        yield
    finally:
        active.closed = True
        _exit()
        with contextlib.suppress(ValueError):  # a generator that another thread or task closes
            _ACTIVE.reset(token)


def _enter() -> None:
    global _depth
    with _lock:
        _depth += 1
        for cls in [PreTrainedModel, *_subclasses(PreTrainedModel)]:
            _wrap_class(cls)
        wrap_trl(_request_of)


def _active() -> _Active | None:
    active = _ACTIVE.get()
    return None if active is None or active.closed else active


def _request_of(model: PreTrainedModel) -> Request | None:
    active = _active()
    return None if active is None else active(unwrap(model))


def _exit() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            for (cls, name), original in _originals.items():
                if getattr(cls.__dict__.get(name), "_hf_embinit_original", None) is original:
                    setattr(cls, name, original)
            _originals.clear()
            unwrap_trl()


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _wrap_class(cls: type) -> None:
    """Wraps the methods that a class defines itself. A class imported later is wrapped when it is built."""
    wrappers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        RESIZE: functools.partial(_wrap_resize, ResizeHook),
        RESIZE_DECODER: functools.partial(_wrap_resize, ResizeDecoderHook),
        "initialize_weights": _wrap_initialize,
    }
    for name, wrap in wrappers.items():
        original = cls.__dict__.get(name)
        if callable(original) and (cls, name) not in _originals:
            if name == "initialize_weights" and cls is not PreTrainedModel:
                continue
            wrapper = wrap(original)
            functools.update_wrapper(wrapper, original)
            wrapper.__dict__["_hf_embinit_original"] = original
            _originals[cls, name] = original
            setattr(cls, name, wrapper)


def _wrap_resize(hook: type[ResizeHook], original: Callable[..., Any]) -> Callable[..., Any]:
    def resize(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        active = _active()
        if active is None:
            return original(self, *args, **kwargs)
        return hook(self, self, active(self))(*args, **kwargs)

    return resize


def _wrap_initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_weights(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        active = _active()
        if active is not None:
            with _lock:
                for cls in type(self).__mro__:
                    _wrap_class(cls)
                wrap_trl(_request_of)  # imported since
            _initialize_built(self, active)
        return result

    return initialize_weights


def _initialize_built(model: PreTrainedModel, active: _Active) -> None:
    """Fills the token tables of a model that was just built (inner models are built before outer ones), and
    remembers those of one that was loaded."""
    request = active.request
    if not request.makes_tables and request.rows.tokenizer is None:
        return
    try:
        tables = EmbeddingTables(model)
    except UnsupportedModelError:
        return  # a vision tower, say
    if any(getattr(t.parameter, "_is_hf_initialized", False) for t in tables.input_tables):
        active(model).look_at(tables)
        return
    if not request.makes_tables or any(
        t.parameter.is_meta or is_partitioned(t.parameter) for t in tables.input_tables
    ):
        return  # what ZeRO-3 has partitioned is initialised anew after this
    model.config.embinit = None  # rows made from scratch: what the config said of others is void
    request.make_tables(model)
