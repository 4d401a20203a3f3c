"""`patch` and `unpatch`: one model.

A patch is a plain object in the instance's `__dict__`: it survives deepcopy, pickle and PEFT wrapping, is not
in the state dict, and touches no other model. It is not saved: patch again after `from_pretrained`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from ..arguments import Seed, Tokenizer, checked
from ..tables import EmbeddingTables, unwrap
from ..tokens import tokenizer_of
from .hooks import INIT, RESIZE, RESIZE_DECODER, Hook, InitHook, ResizeDecoderHook, ResizeHook
from .request import Request, Shrink, side_of

M = TypeVar("M")


@checked
def patch(
    model: M,
    init: str = "mean",
    tokenizer: Tokenizer | None = None,
    seed: Seed = 0,
    *,
    shrink: Shrink = "refuse",
    **options: Any,
) -> M:
    """The same model, whose `resize_token_embeddings` from now on fills new rows by the initialiser `init`.

    It may be called on the model, on an inner model (`model.transformer`) or through a PEFT wrapper, with
    transformers' arguments. It fills the new rows of every table (those of an untied head from the head's own
    rows) and new output biases (means of old ones); old rows, ties, dtype and device stay. When `init`
    makes whole tables (`xavier`), `_init_weights` of token embeddings uses it as well; `mean` and the like
    need an old table, so the model's own initialisation stays. Every resize is recorded in `config.embinit`.

    Args:
        tokenizer: needed by initialisers that read token names; a copy is taken now, before you add tokens.
            With it, tokens that land in old padding rows are filled too.
        seed: all draws depend on it, the table and its size alone; the global random state is not touched.
        shrink: `"refuse"` keeps the tables as they are, with a `VocabularyWarning`, where a resize would cut
            off rows that tokens of `tokenizer` have, or padding: the number of rows is a multiple of 64.
            `"allow"` cuts them off, as transformers does. TRL's `clone_chat_template` then cuts nothing off,
            but hands its dummy tokens to PEFT as ever: call it inside `patched`, which sees what it returns.
        options: of the initialiser; also `vectors`, `overrides` (token -> initialiser) and `exclude_rows`.

    Patching again replaces the patch. Raises `UnsupportedModelError`, `UnknownNameError` or
    `InvalidArgumentError` before anything is changed.
    """
    root = unwrap(model)
    request = Request(init, tokenizer_of(tokenizer), seed, shrink, options)
    tables = EmbeddingTables(root)
    request.look_at(tables)
    unpatch(root)
    for module in root.modules():
        if isinstance(module, PreTrainedModel) and (module is root or side_of(module, tables) is not None):
            module.__dict__[RESIZE] = ResizeHook(module, root, request)
            module.__dict__[INIT] = InitHook(module, root, request)
            if hasattr(type(module), RESIZE_DECODER):
                module.__dict__[RESIZE_DECODER] = ResizeDecoderHook(module, root, request)
    return model


@checked
def unpatch(model: M) -> M:
    """The same model with transformers' own methods again; a model without a patch stays as it is."""
    root = model if isinstance(model, nn.Module) else unwrap(model)
    for module in root.modules():
        for name in (RESIZE, RESIZE_DECODER, INIT):
            if isinstance(module.__dict__.get(name), Hook):
                del module.__dict__[name]
    return model
