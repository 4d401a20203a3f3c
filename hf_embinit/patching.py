"""`patch`, `patched`, `unpatch`: `resize_token_embeddings` and `_init_weights` fill rows by an initialiser.

A patch is a plain object in the instance's `__dict__`: it survives deepcopy, pickle and PEFT wrapping, is not
in the state dict, and touches no other model. It is not saved: patch again after `from_pretrained`.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn
from transformers import PreTrainedModel

from .errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from .resize import resize
from .rows import RowRequest, make_rows
from .tables import EmbeddingTables, ResizePlan, Side, unwrap
from .tokens import vocabulary

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)

_RESIZE = "resize_token_embeddings"
_RESIZE_DECODER = "resize_decoder_token_embeddings"
_INIT = "_init_weights"
_SHARED_OPTIONS = ("vectors", "overrides", "exclude_rows")
"""What every initialiser of new rows takes, see `RowRequest`; the other options are the initialiser's own."""


class _Request:
    """How rows are made, for one model or (`patched`) for each model of the block."""

    def __init__(self, init: str, tokenizer: Any, seed: int, options: Mapping[str, Any]):
        shared = {name: options[name] for name in _SHARED_OPTIONS if name in options}
        own = {name: value for name, value in options.items() if name not in _SHARED_OPTIONS}
        self.rows = RowRequest(init, seed, own, tokenizer, copy.deepcopy(tokenizer), **shared)
        self.makes_tables = self.rows.record.purpose == "table"

        tokens = {token for token in self.rows.overrides or () if isinstance(token, str)}
        if tokens and tokenizer is None:
            raise InvalidArgumentError(f"overrides names {min(tokens)!r}: give tokenizer= to look it up")
        self.seen: dict[int, bytes] = {}
        """Rows that no token has yet -> digest of what they were when the model was last looked at."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Request:
        return copy.copy(self)  # a copied model reads the same tokenizer, and remembers what it filled itself

    def look_at(self, tables: EmbeddingTables) -> None:
        """Remembers the rows that no token has yet: those that change before a token has them are trained."""
        if self.rows.tokenizer is None or any(t.parameter.is_meta for t in tables.tables):
            return
        self.seen = {}
        for side in {t.side for t in tables.tables}:
            known = _token_ids(self.rows.tokenizer, side)
            free = [i for i in range(tables.vocab_size(side)) if i not in known]
            self.seen.update(tables.digests(side, free))

    def resize(self, owner: PreTrainedModel, tables: EmbeddingTables, plan: ResizePlan) -> None:
        """Carries out `plan`, asked of `owner`; fills what is new and records the event."""
        ids = self._ids(tables, plan)
        request = replace(self.rows, overrides=self._overrides(ids), split={})
        sized = {} if plan.side == "target" else {"vocab_size": plan.new_num}  # as transformers leaves it

        def then() -> None:
            owner.__dict__.update(sized)

        report = resize(tables, plan, request, None if ids == list(plan.new_ids) else ids, then)
        if report is not None and self.rows.tokenizer is not None:
            self.rows = replace(self.rows, old_tokenizer=copy.deepcopy(self.rows.tokenizer))
            self.look_at(tables)

    def _ids(self, tables: EmbeddingTables, plan: ResizePlan) -> list[int]:
        """Rows to fill: the new ones, and padding rows of tokens that were added since the patch.

        A padding row that differs from what `look_at` remembered may be trained, and stays.
        """
        ids = set(plan.new_ids)
        if self.rows.tokenizer is not None:
            now, before = (_token_ids(t, plan.side) for t in (self.rows.tokenizer, self.rows.old_tokenizer))
            reached = [i for i in sorted(now - before) if i < min(plan.old_num, plan.new_num)]
            digests = tables.digests(plan.side, reached)
            changed = [i for i in reached if self.seen.get(i, digests[i]) != digests[i]]
            if changed:
                names = self.rows.tokenizer.convert_ids_to_tokens(changed[:5])
                logger.warning(
                    "the rows of %d new tokens (%s) stay as they are: they have changed since patch, as if "
                    "trained; patch before adding tokens to have such rows initialised",
                    len(changed),
                    ", ".join(map(repr, names)),
                )
            ids.update(set(reached) - set(changed))
        return sorted(ids)

    def _overrides(self, ids: list[int]) -> dict[str | int, Any]:
        """The overrides of the rows filled now, by id; warns of tokens that the tokenizer lacks."""
        found: dict[str | int, Any] = {}
        filled = set(ids)
        known = self.rows.tokenizer.get_vocab() if self.rows.overrides and self.rows.tokenizer else {}
        for token, spec in (self.rows.overrides or {}).items():
            index = token if isinstance(token, int) else known.get(token)
            if index is None:
                near = difflib.get_close_matches(str(token), self._new_names(), n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                warnings.warn(
                    f"overrides names {token!r}, which the tokenizer does not have{hint}",
                    VocabularyWarning,
                    stacklevel=5,
                )
            elif index in filled:
                found[index] = spec
        return found

    def _new_names(self) -> list[str]:
        """Tokens added since the patch."""
        return sorted(set(vocabulary(self.rows.tokenizer)) - set(vocabulary(self.rows.old_tokenizer)))

    def make_tables(self, root: PreTrainedModel) -> None:
        """Fills all input tables and records it, if the initialiser makes whole tables."""
        from .initialization import initialize

        if self.makes_tables:
            r = self.rows
            initialize(root, r.init, tokenizer=r.tokenizer, vectors=r.vectors, seed=r.seed, **r.options)

    def make_table(self, root: PreTrainedModel, module: nn.Module) -> None:
        """Fills the input table of one module, if the initialiser makes whole tables and `module` holds one.

        The draws are those of `initialize`: all tables are made, in their order, and one is written.
        """
        if not self.makes_tables:
            return
        tables = EmbeddingTables(root)
        own = [t for t in tables.input_tables if any(p.module is module for p in t.tied.locations)]
        if own:
            tables.change(None, [made for made in make_rows(tables, self.rows) if made.table in own])


def _token_ids(tokenizer: Any, side: Side) -> set[int]:
    """The ids that a tokenizer has a token for."""
    return {i for i, token in enumerate(vocabulary(tokenizer, side)) if token}


class _Hook:
    """A method of one model instance, replaced by one that asks a `_Request`."""

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
        """As in transformers, but `mean_resizing` has no effect: the patch says how rows are made."""
        if new_num_tokens is not None or pad_to_multiple_of is not None:
            tables = EmbeddingTables(self.root)
            side = self.side or _side_of(self.owner, tables) or _only_side(tables)
            self.request.resize(self.owner, tables, tables.plan(new_num_tokens, pad_to_multiple_of, side))
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

    It may be called on the model, on an inner model (`model.transformer`) or through a PEFT wrapper, with
    transformers' arguments. It fills the new rows of every table (those of an untied head from the head's own
    rows) and new output biases (the mean of the old ones); old rows, ties, dtype and device stay. Shrinking
    works as before. When `init` makes whole tables (`xavier`), `_init_weights` of token embeddings uses it as
    well; `mean` and the like need an old table, so the model's own initialisation stays. Every resize is
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
    request = _Request(init, tokenizer, seed, options)
    tables = EmbeddingTables(root)
    request.look_at(tables)
    unpatch(root)
    for module in root.modules():
        if isinstance(module, PreTrainedModel) and (module is root or _side_of(module, tables) is not None):
            module.__dict__[_RESIZE] = _ResizeHook(module, root, request)
            module.__dict__[_INIT] = _InitHook(module, root, request)
            if hasattr(type(module), _RESIZE_DECODER):
                module.__dict__[_RESIZE_DECODER] = _ResizeDecoderHook(module, root, request)
    return model


def unpatch(model: M) -> M:
    """The same model with transformers' own methods again; a model without a patch stays as it is."""
    for module in model.modules():
        for name in (_RESIZE, _RESIZE_DECODER, _INIT):
            if isinstance(module.__dict__.get(name), _Hook):
                del module.__dict__[name]
    return model


class _Active:
    """One `with patched(...)`: each model gets a copy of the request, which remembers what it has filled."""

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
    """Inside the `with`, whatever model this thread resizes or builds gets its rows from `init`.

    For scripts that one does not control: `with patched("xavier"): model = AutoModel.from_config(config)`, or
    a helper that calls `resize_token_embeddings`. Takes the arguments of `patch`. Loaded rows are never
    re-initialised. Afterwards, after an exception too, transformers is as it was and nothing of the patch is
    left on the models; other threads never see it.
    """
    request = _Request(init, tokenizer, seed, options)
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
    """Wraps the methods that a class defines itself. A class imported later is wrapped when it is built."""
    wrappers: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
        _RESIZE: functools.partial(_wrap_resize, _ResizeHook),
        _RESIZE_DECODER: functools.partial(_wrap_resize, _ResizeDecoderHook),
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


def _wrap_resize(hook: type[_ResizeHook], original: Callable[..., Any]) -> Callable[..., Any]:
    def resize(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()
        if active is None:
            return original(self, *args, **kwargs)
        return hook(self, self, active(self))(*args, **kwargs)

    return resize


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
    """Fills the token tables of a model that was just built (inner models are built before outer ones)."""
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


def _side_of(owner: PreTrainedModel, tables: EmbeddingTables) -> Side | None:
    """The side whose input table is inside `owner`; None when it holds none of them, or both."""
    modules = set(owner.modules())
    sides = {t.side for t in tables.input_tables if any(p.module in modules for p in t.tied.locations)}
    if len(sides) == 2 and hasattr(type(owner), _RESIZE_DECODER):
        return "source"
    return next(iter(sides)) if len(sides) == 1 else None
