"""`patch`, `unpatch`, `patched`: transformers' own `resize_token_embeddings` and `_init_weights`, by the
registry.

A patch is a plain object in the instance's `__dict__`: it travels through deepcopy, pickle and PEFT wrapping,
is invisible in the state dict, and touches no other model. It does not survive `save_pretrained`: patch again
after `from_pretrained`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from .errors import InvalidArgumentError, UnsupportedModelError
from .manifest import record_event
from .new_rows import check_init, fill_new_rows, token_names
from .registry import get_initializer
from .table_discovery import unwrap
from .table_slots import Side
from .tables import EmbeddingTables, ResizeResult

M = TypeVar("M", bound=nn.Module)

_RESIZE = "resize_token_embeddings"
_RESIZE_DECODER = "resize_decoder_token_embeddings"
_INIT = "_init_weights"
_SHARED_OPTIONS = ("vectors", "overrides", "exclude_rows")
"""What every initialiser of new rows takes, see `fill_new_rows`; the other options are the initialiser's
own."""


@dataclass
class _Request:
    """How rows shall be made."""

    init: str
    seed: int
    options: dict[str, Any]
    tokenizer: Any = None
    old_tokenizer: Any = None
    """A copy of the tokenizer, taken before new tokens are added to it."""
    makes_tables: bool = field(init=False)
    """Whether the initialiser can make a whole table; `mean` and its kin need an old one."""

    def __post_init__(self) -> None:
        own = {k: v for k, v in self.options.items() if k not in _SHARED_OPTIONS}
        record = check_init(self.init, own)
        if "tokens" in record.needs and self.tokenizer is None:
            raise InvalidArgumentError(f"init {self.init!r} looks tokens up: give tokenizer=")
        self.makes_tables = record.purpose == "table"
        if self.tokenizer is not None and self.old_tokenizer is None:
            self.old_tokenizer = copy.deepcopy(self.tokenizer)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Request:
        return copy.copy(self)  # a copied model reads the same tokenizer, and remembers what it filled itself

    def resize(
        self,
        root: PreTrainedModel,
        new_num_tokens: int | None,
        pad_to_multiple_of: int | None,
        side: Side | None,
    ) -> ResizeResult:
        """Resizes the tables of `root`, fills what is new and records the event."""
        tables = EmbeddingTables(root)
        side = side or _only_side(tables)
        resized = tables.resize(new_num_tokens, pad_to_multiple_of, side)
        options = dict(self.options)
        ids = self._ids(resized)
        overrides = self._overrides(options.pop("overrides", None), ids)
        if not ids:
            if resized.new_num != resized.old_num:
                record_event(root.config, "resize", side=side, rows=[resized.old_num, resized.new_num])
            return resized
        try:
            report = fill_new_rows(
                tables,
                resized,
                self.init,
                tokenizer=self.tokenizer,
                old_tokenizer=self.old_tokenizer,
                seed=self.seed,
                overrides=overrides,
                ids=None if ids == list(resized.new_ids) else ids,
                **options,
            )
        except Exception:
            tables.resize(resized.old_num, side=side)  # no row was written: the model is as it was
            raise
        for table in report["tables"]:
            table["left_out"] = {reason: len(rows) for reason, rows in table["left_out"].items()}
        record_event(root.config, "resize", side=side, rows=[resized.old_num, resized.new_num], **report)
        if self.tokenizer is not None:
            self.old_tokenizer = copy.deepcopy(self.tokenizer)
        return resized

    def _ids(self, resized: ResizeResult) -> list[int]:
        """Rows to fill: the new ones, and padding rows that tokens added since the patch now use."""
        ids = set(resized.new_ids)
        if self.tokenizer is not None:
            added = set(token_names(self.tokenizer) or ()) - set(token_names(self.old_tokenizer) or ())
            ids.update(i for i in added if i < resized.new_num)
        return sorted(ids)

    def _overrides(self, overrides: Mapping[Any, Any] | None, ids: list[int]) -> dict[str | int, Any]:
        """Those overrides that speak of rows filled now, by id."""
        found: dict[str | int, Any] = {}
        for token, spec in (overrides or {}).items():
            index = token if isinstance(token, int) else None
            if index is None and self.tokenizer is not None:
                index = self.tokenizer.convert_tokens_to_ids(token)
            if index is not None and index in ids:
                found[index] = spec
        return found

    def make_tables(self, root: PreTrainedModel) -> None:
        """Fills the input tables whole, and records it, when the initialiser makes tables."""
        from .initialization import initialize

        if self.makes_tables:
            initialize(root, self.init, tokenizer=self.tokenizer, seed=self.seed, **self._own())

    def make_table(self, root: PreTrainedModel, module: nn.Module) -> None:
        """Fills the input table of one module, when the initialiser makes tables and `module` has one."""
        from .initialization import table_context

        if not self.makes_tables:
            return
        tables = EmbeddingTables(root)
        for table in tables.input_tables:
            if any(place.module is module for place in table.slot.places):
                options = self._own()
                generator = torch.Generator().manual_seed(self.seed)
                record, vectors = get_initializer(self.init), options.pop("vectors", None)
                context = table_context(
                    root, record, table, self.tokenizer, vectors, generator, allow_pickle=False
                )
                rows = record.fn(context, **options)
                if context.padding_row is not None:
                    rows[context.padding_row] = 0.0
                tables.write(table, rows)

    def _own(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k not in ("overrides", "exclude_rows")}


class _Hook:
    """A method of one model instance that goes through a `_Request`."""

    def __init__(self, owner: PreTrainedModel, root: PreTrainedModel, request: _Request):
        self.owner, self.root, self.request = owner, root, request

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        owner = memo.get(id(self.owner), self.owner)
        root = memo.get(id(self.root), owner)  # an inner model that is copied alone becomes its own root
        return type(self)(owner, root, copy.deepcopy(self.request, memo))


class _ResizeHook(_Hook):
    """`resize_token_embeddings` of a patched model."""

    side: Side | None = None

    def __call__(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Module:
        """As in transformers; `mean_resizing` is accepted and has no effect: the patch says how rows are
        made."""
        if new_num_tokens is not None or pad_to_multiple_of is not None:
            side = self.side or _side_of(self.owner, self.root)
            self.request.resize(self.root, new_num_tokens, pad_to_multiple_of, side)
        try:
            return self.owner.get_input_embeddings()
        except NotImplementedError:  # Perceiver
            return EmbeddingTables(self.owner).input_tables[0].module


class _ResizeDecoderHook(_ResizeHook):
    """Marian's `resize_decoder_token_embeddings`."""

    side = "target"

    def __call__(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Module:
        super().__call__(new_num_tokens, pad_to_multiple_of, mean_resizing)
        return next(t for t in EmbeddingTables(self.owner).input_tables if t.side == "target").module


class _InitHook(_Hook):
    """`_init_weights` of a patched model."""

    def __call__(self, module: nn.Module) -> None:
        type(self.owner)._init_weights(self.owner, module)
        head = isinstance(module, nn.Linear) and self.root.get_output_embeddings() is module
        if isinstance(module, nn.Embedding) or head:  # a tied head overwrites the table when its turn comes
            self.request.make_table(self.root, module)


def patch(model: M, init: str = "mean", tokenizer: Any = None, seed: int = 0, **options: Any) -> M:
    """The same model, whose `resize_token_embeddings` from now on fills new rows by the initialiser `init`.

    Called on the model, on an inner model (`model.transformer`) or through a PEFT wrapper, with transformers'
    arguments. New rows of every table, an untied head's from the head's own rows, and new output biases (the
    mean of the old ones) are filled; old rows, ties, dtype and device stay. Shrinking and no-ops behave as
    before. When `init` makes whole tables (`xavier`), `_init_weights` of token embeddings uses it as well;
    `mean` and the like need an old table, so there the model's own initialisation stays. Every resize is
    recorded in `config.embinit`.

    Args:
        tokenizer: needed by initialisers that read token names; a copy is taken now, before you add tokens.
            With it, tokens that land in old padding rows are filled too.
        seed: all draws depend on it, the table and its size alone; the global random state is not touched.
        options: of the initialiser; also `vectors`, `overrides` (token -> initialiser) and `exclude_rows`.

    Patching again replaces the patch. Raises `UnsupportedModelError`, `UnknownNameError` or
    `InvalidArgumentError` before anything is changed.
    """
    root = unwrap(model)
    request = _Request(init, seed, dict(options), tokenizer)
    EmbeddingTables(root)
    unpatch(root)
    for module in root.modules():
        if isinstance(module, PreTrainedModel) and (module is root or _side_of(module, root) is not None):
            module.__dict__[_RESIZE] = _ResizeHook(module, root, request)
            module.__dict__[_INIT] = _InitHook(module, root, request)
            if hasattr(type(module), _RESIZE_DECODER):
                module.__dict__[_RESIZE_DECODER] = _ResizeDecoderHook(module, root, request)
    return model


def unpatch(model: M) -> M:
    """The same model without any patch: transformers' own methods again. Does nothing to a model without
    one."""
    for module in model.modules():
        for name in (_RESIZE, _RESIZE_DECODER, _INIT):
            if isinstance(module.__dict__.get(name), _Hook):
                del module.__dict__[name]
    return model


class _Active:
    """What one `with patched(...)` asks for: a request of its own for each model, which remembers what is
    filled."""

    def __init__(self, request: _Request):
        self.request = request
        self.of_model: WeakKeyDictionary[PreTrainedModel, _Request] = WeakKeyDictionary()

    def __call__(self, model: PreTrainedModel) -> _Request:
        return self.of_model.setdefault(model, copy.copy(self.request))


_ACTIVE: ContextVar[_Active | None] = ContextVar("hf_embinit_patched", default=None)
"""The innermost `with patched(...)` of this thread (or task)."""
_lock = threading.Lock()
_depth = 0
_originals: dict[tuple[type, str], Callable[..., Any]] = {}


@contextlib.contextmanager
def patched(init: str = "mean", tokenizer: Any = None, seed: int = 0, **options: Any) -> Iterator[None]:
    """Inside the `with`, every model of this thread is resized, and every model built is initialised, by
    `init`.

    For scripts that one does not control: `with patched("xavier"): model = AutoModel.from_config(config)`, or
    a helper that calls `resize_token_embeddings`. Takes the arguments of `patch`. Loaded rows are never
    re-initialised. Afterwards, after an exception too, transformers is as it was and nothing of the patch is
    left on the models; other threads never see it.
    """
    request = _Request(init, seed, dict(options), tokenizer)
    _enter()
    token = _ACTIVE.set(_Active(request))
    try:
        yield
    finally:
        _ACTIVE.reset(token)
        _exit()


def _enter() -> None:
    global _depth
    with _lock:
        _depth += 1
        for cls in [PreTrainedModel, *_subclasses(PreTrainedModel)]:
            _wrap_class(cls)


def _exit() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            for (cls, name), original in _originals.items():
                if getattr(cls.__dict__.get(name), "_hf_embinit_original", None) is original:
                    setattr(cls, name, original)
            _originals.clear()


def _subclasses(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _wrap_class(cls: type) -> None:
    """Wraps the methods that a class defines itself; classes imported later are wrapped when a model is
    built."""
    wrappers = {
        _RESIZE: _wrap_resize,
        _RESIZE_DECODER: _wrap_resize_decoder,
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


def _wrap_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_token_embeddings(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()
        if active is None:
            return original(self, *args, **kwargs)
        return _ResizeHook(self, self, active(self))(*args, **kwargs)

    return resize_token_embeddings


def _wrap_resize_decoder(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize_decoder_token_embeddings(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()
        if active is None:
            return original(self, *args, **kwargs)
        return _ResizeDecoderHook(self, self, active(self))(*args, **kwargs)

    return resize_decoder_token_embeddings


def _wrap_initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize_weights(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        active = _ACTIVE.get()
        if active is not None:
            with _lock:
                for cls in type(self).__mro__:
                    _wrap_class(cls)
            _initialize_built(self, active.request)
        return result

    return initialize_weights


def _initialize_built(model: PreTrainedModel, request: _Request) -> None:
    """Fills the token tables of a model that was just built. Inner models come first and the whole model
    last."""
    if not request.makes_tables:
        return
    try:
        tables = EmbeddingTables(model)
    except UnsupportedModelError:
        return  # a vision tower, say
    loaded = [t for t in tables.input_tables if getattr(t.parameter, "_is_hf_initialized", False)]
    if loaded or any(t.parameter.is_meta for t in tables.input_tables):
        return
    model.config.embinit = None  # rows made from scratch: what the config said of others is void
    request.make_tables(model)


def _only_side(tables: EmbeddingTables) -> Side:
    sides = {t.side for t in tables.tables}
    if len(sides) > 1:
        raise UnsupportedModelError(
            f"{type(tables.model).__name__} has two vocabularies: resize the embeddings "
            f"of its encoder or decoder, or use EmbeddingTables(model).resize(..., side='source' or 'target')"
        )
    return next(iter(sides))


def _side_of(owner: PreTrainedModel, root: PreTrainedModel) -> Side | None:
    """The vocabulary that `owner`, an inner model of `root`, is about; None when it has none or both."""
    tables = EmbeddingTables(root)
    modules = set(owner.modules())
    sides = {t.side for t in tables.input_tables if any(p.module in modules for p in t.slot.places)}
    if len(sides) == 2 and hasattr(type(owner), _RESIZE_DECODER):
        return "source"
    return next(iter(sides)) if len(sides) == 1 else None
