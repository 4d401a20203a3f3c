"""The methods with which a patch replaces those of transformers."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..arguments import on_cpu
from ..errors import UnsupportedModelError
from ..tables import EmbeddingTables, Side, target_size
from .request import Request, only_side, side_of

RESIZE = "resize_token_embeddings"
RESIZE_DECODER = "resize_decoder_token_embeddings"
INIT = "_init_weights"


class Hook:
    """A method of one model instance, replaced by one that asks a `Request`."""

    def __init__(self, owner: PreTrainedModel, root: PreTrainedModel, request: Request):
        self.owner, self.root, self.request = owner, root, request

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        owner = memo.get(id(self.owner), self.owner)
        root = memo.get(id(self.root), owner)  # an inner model that is copied alone becomes its own root
        return type(self)(owner, root, copy.deepcopy(self.request, memo))


class ResizeHook(Hook):
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
            try:
                tables = EmbeddingTables(self.root)
            except UnsupportedModelError:  # PEFT may have wrapped or copied a table since
                if not self._changes_nothing(new_num_tokens, pad_to_multiple_of):
                    raise
            else:
                side = self.side or side_of(self.owner, tables) or only_side(tables)
                plan = tables.plan(new_num_tokens, pad_to_multiple_of, side)
                with on_cpu():
                    self.request.resize(self.owner, tables, plan)
        try:
            return self.owner.get_input_embeddings()
        except NotImplementedError:  # Perceiver
            return EmbeddingTables(self.owner).input_tables[0].module

    def _changes_nothing(self, new_num_tokens: int | None, pad_to_multiple_of: int | None) -> bool:
        """Whether a model with one vocabulary has as many rows as are asked for, and no token came since."""
        rows = getattr(self.owner.config.get_text_config(), "vocab_size", None)
        if self.side is not None or rows != target_size(rows or 0, new_num_tokens, pad_to_multiple_of):
            return False
        return self.request.rows.tokenizer is None or not self.request.added("shared")


class ResizeDecoderHook(ResizeHook):
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


class InitHook(Hook):
    """`_init_weights` of a patched model."""

    def __call__(self, module: nn.Module) -> None:
        type(self.owner)._init_weights(self.owner, module)
        head = isinstance(module, nn.Linear) and self.root.get_output_embeddings() is module
        if isinstance(module, nn.Embedding) or head:  # a tied head overwrites the table when its turn comes
            with on_cpu():
                self.request.make_table(self.root, module)
