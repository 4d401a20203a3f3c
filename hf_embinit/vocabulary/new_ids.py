"""Whether a model has rows for the ids of a tokenizer, and reads those of new tokens as such."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from ..errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from ..manifest import warn_of_another_tokenizer
from ..tables import EmbeddingTables, Side
from .id_fields import (
    ends_at_highest_id,
    id_before_times,
    id_fields,
    refuse_shifted_ids,
    unnamed_ids,
)
from .new_tokens import CheckedTokens

NAME_THEM = "load it with additional_special_tokens=[...], all of these in the order of their ids"
_BY_SLOTS = "by expand_vocabulary(..., slots=[...]) or --slots ID"


def rows_beyond(tables: EmbeddingTables) -> int:
    """Rows of an input table, or of one beside it, for ids beyond the vocabulary: of Mllama's images."""
    own = max((t.extra_rows for t in tables.input_tables if t.extra_rows_are == "fixed"), default=0)
    more = getattr(tables.model.config, "additional_vocab_size", 0)
    return max(own, more if isinstance(more, int) else 0)


def check_size(tables: EmbeddingTables, size: int, rows: int, name: str) -> None:
    """Raises for a tokenizer, called `name`, with more ids than there are rows: `UnsupportedModelError` where
    they are of rows beyond the vocabulary, else `InvalidArgumentError`."""
    beyond = rows_beyond(tables)
    if rows < size <= rows + beyond:
        raise UnsupportedModelError(
            f"{type(tables.model).__name__} has {beyond} rows beyond its vocabulary of {rows}, which its "
            f"head lacks, and {name} has tokens with their ids, such as {size - 1}: its vocabulary cannot be "
            f"changed"
        )
    if size > rows:
        raise InvalidArgumentError(
            f"{name} has ids up to {size - 1}, but the model has {rows} rows: is this the model's own "
            f"tokenizer?"
        )


def refuse_unnamed_ids(tokenizer: Any) -> None:
    """Raises `InvalidArgumentError` for a tokenizer with ids of no token, which others would get."""
    first = min(unnamed_ids(tokenizer), key=lambda found: found[1], default=None)
    if first is not None:
        field, i = first
        raise InvalidArgumentError(
            f"{field} names id {i}, which the tokenizer has no token for and a new token would get: "
            f"{NAME_THEM}"
        )


def check_new_ids(
    tables: EmbeddingTables, tokenizer: Any, checked: CheckedTokens, rows: int, side: Side
) -> None:
    """Raises for more tokens than rows, and for ids that mean something else to the model: of a row that a
    configuration names and no token has, or behind the end of a text. Warns of another tokenizer than that of
    the manifest, and where a setting lets the model read new tokens as such."""
    model, size = tables.model, len(checked.old.tokens)
    check_size(tables, size, rows, "the tokenizer")
    refuse_shifted_ids(model)
    refuse_unnamed_ids(tokenizer)
    new = {i for i in checked.ids if i >= size or not checked.old.tokens[i]}
    for field in id_fields(tables, rows) if side == "shared" else ():
        if taken := sorted(field.ids & new):
            raise InvalidArgumentError(
                f"{type(field.holder).__name__}.{field.name} names id {taken[0]}, which the tokenizer has no "
                f"token for and a new token would get: add that token to the tokenizer first, by "
                f"tokenizer.add_tokens, or set the field to None"
            )
    warn_of_another_tokenizer(model, tokenizer, side)
    _check_ends(model, tokenizer.eos_token_id, checked.ids)
    last = id_before_times(model)
    if last is not None and max(checked.ids) > last:
        _warn(
            f"{type(model).__name__} reads ids behind {last} as times, a new token too: give the tokens ids "
            f"before it, {_BY_SLOTS}"
        )


def _check_ends(model: PreTrainedModel, eos: int | None, ids: Sequence[int]) -> None:
    """Warns where the model would take a new token for the end of a text; raises where no setting helps."""
    for name, settable in ends_at_highest_id(model) if eos is not None and max(ids) > eos else ():
        module = f"model.{name}".rstrip(".")
        if not settable:
            raise UnsupportedModelError(
                f"{module} pools a text at its highest id, which would be a new token: give the tokens ids "
                f"before the end of a text, {eos}, {_BY_SLOTS}"
            )
        _warn(
            f"{module} pools a text at its highest id, as CLIP's old checkpoints do (eos_token_id=2): at a "
            f"new token. Set {module}.eos_token_id and {module}.config.eos_token_id to {eos}"
        )


def _warn(message: str) -> None:
    warnings.warn(message, VocabularyWarning, stacklevel=6)
