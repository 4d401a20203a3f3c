"""Rows beside an existing table: what new tokens of a trained model start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..moments import distinct_rows, gaussian_rows, mean_row
from ..registry import register_initializer
from .context import InitContext

Names = str | int | Sequence[str | int]
"""One old token (its string or id) or several."""


@register_initializer(
    "default",
    summary="normal with mean 0 and sd initializer_range",
    source="transformers, mean_resizing=False; `default` of Hewitt 2021",
    purpose="rows",
    needs=("existing",),
)
def default(context: InitContext) -> Tensor:
    """Small random noise, as models are initialised before training."""
    return torch.empty(context.shape).normal_(0.0, context.initializer_range, generator=context.generator)


@register_initializer(
    "mean",
    summary="the mean of the old rows, the same for all new rows",
    source="Hewitt 2021",
    purpose="rows",
    needs=("existing",),
)
def mean(context: InitContext) -> Tensor:
    """The mean of the usable old rows: KL(p || p') is at most log(1 + m / n) for m new and n usable old
    rows."""
    existing = context.require("existing", "mean")
    return mean_row(existing, context.existing_rows).expand(context.shape).clone()


@register_initializer(
    "mean_cov",
    summary="N(mean, scale * covariance) of the old rows, every new row distinct",
    source="Hewitt 2021 (scale 1e-5)",
    purpose="rows",
    needs=("existing",),
)
def mean_cov(context: InitContext, *, scale: float = 1e-5) -> Tensor:
    """Draws around the mean; rows that would be equal in the table's dtype are moved apart by one unit in the
    last place of some coordinates."""
    existing = context.require("existing", "mean_cov")
    rows = gaussian_rows(
        existing, context.num_rows, scale=scale, generator=context.generator, rows=context.existing_rows
    )
    distinct = distinct_rows(rows, existing.dtype, generator=context.generator)
    if distinct is not rows:
        context.report["moved_apart"] = int((distinct != rows).any(1).sum())
    return distinct


Pooling = Literal["mean", "first", "last"]


@register_initializer(
    "subword_mean",
    summary="the mean of the rows of the pieces that the old tokenizer splits the token into",
    source="Gee et al. 2022, section 3 (fast vocabulary transfer)",
    purpose="rows",
    needs=("existing", "tokens", "tokenizer"),
)
def subword_mean(
    context: InitContext, *, input_pooling: Pooling = "mean", output_pooling: Pooling = "mean"
) -> Tensor:
    """Pooled rows of the pieces of each new token, as the tokenizer split it before it was added.

    Every table pools its own rows: an untied output table never reads the input's. `input_pooling` and
    `output_pooling` are `mean`, `first` or `last` piece; a tied table takes `input_pooling`. Tokens whose
    pieces are all unknown get the mean of the old rows, and the report names them.
    """
    pooling = output_pooling if context.role == "output" else input_pooling
    if pooling not in ("mean", "first", "last"):
        raise InvalidArgumentError(f"{context.role}_pooling={pooling!r} is not 'mean', 'first' or 'last'")
    pieces = source_ids("subword_mean", context)
    if pooling != "mean":
        pieces = [p[:1] if pooling == "first" else p[-1:] for p in pieces]
    return _means_of(context, pieces)


@register_initializer(
    "copy",
    summary="the row of a named old token, or the mean of several",
    source="the method users ask for most, beside the mean",
    purpose="rows",
    needs=("existing", "tokens", "tokenizer"),
)
def copy(context: InitContext, *, of: Names | Mapping[str, Names] | None = None) -> Tensor:
    """Rows copied from old tokens: `of="king"`, `of=["king", "man"]` (the mean) or `{new: either}`."""
    return _means_of(context, source_ids("copy", context, of=of))


@register_initializer(
    "description",
    summary="the mean of the rows of the tokens of a text",
    source="LLaMA-Factory's desc_init",
    purpose="rows",
    needs=("existing", "tokens", "tokenizer"),
)
def description(context: InitContext, *, text: str | Mapping[str, str] | None = None) -> Tensor:
    """Means over the tokens of a text that describes the token: `text="a king"` or `{new token: text}`."""
    return _means_of(context, source_ids("description", context, text=text))


FROM_OLD_TOKENS = frozenset({"subword_mean", "copy", "description"})
"""Initialisers that make each new row of rows of old tokens."""


def source_ids(init: str, context: InitContext, **options: Any) -> list[list[int]]:
    """For each new row the old ids that `subword_mean`, `copy` or `description` make it of; empty when none.

    Reads the tokenizer's side of `context` alone, so that a plan can be shown before there is a table.
    """
    tokenize = context.require("tokenize", init)
    texts: list[str] = context.require("texts", init)
    if init == "copy":
        wanted = _for_each(context, "of", options.get("of"), "a token or a list of tokens")
        return [
            [] if names is None else [_old_id(context, n) for n in ([names] if _is_name(names) else names)]
            for names in wanted
        ]
    if init == "description":
        described = _for_each(context, "text", options.get("text"), "a text")
        return [[] if text is None else _known(context, tokenize(text)) for text in described]
    return [_known(context, tokenize(text)) if text else [] for text in texts]


def _for_each(context: InitContext, option: str, value: Any, what: str) -> list[Any]:
    """The option's value for each new row; None for rows without a token (padding)."""
    texts = context.texts or []
    if value is None or (not isinstance(value, Mapping) and not value and value != 0):
        raise InvalidArgumentError(f"{option}= is missing: give {what}, or a mapping from new tokens to that")
    if not isinstance(value, Mapping):
        return [value if text else None for text in texts]
    tokens = context.tokens or texts
    for text, token in zip(texts, tokens, strict=True):
        if text and not {text, token} & set(value):
            raise InvalidArgumentError(f"{option}= has no entry for the new token {text!r}")
    return [value.get(text, value.get(token)) for text, token in zip(texts, tokens, strict=True)]


def _is_name(value: Any) -> bool:
    return isinstance(value, (str, int))


def _old_id(context: InitContext, name: str | int) -> int:
    """The id of an old token: an id, the tokenizer's own spelling (`Ġking`), or a text that is one token."""
    tokens: list[str] = context.require("existing_tokens", "copy")
    if isinstance(name, int):
        if not 0 <= name < len(tokens):
            raise InvalidArgumentError(f"of={name} is no id of an old token (0 to {len(tokens) - 1})")
        return name
    if name in tokens:
        return tokens.index(name)
    ids = context.require("tokenize", "copy")(name)
    if len(ids) != 1 or ids[0] == context.unknown_id:
        pieces = ", ".join(repr(tokens[i]) for i in ids) or "nothing"
        raise InvalidArgumentError(
            f"of={name!r} is not one old token but {pieces}: name old tokens, or use init 'description'"
        )
    return ids[0]


def _known(context: InitContext, ids: list[int]) -> list[int]:
    return [i for i in ids if i != context.unknown_id]


def _means_of(context: InitContext, sources: list[list[int]]) -> Tensor:
    """Rows that are the means of the old rows named for each; the mean of all where none is named."""
    existing: Tensor = context.require("existing", "these rows")
    rows = torch.empty(context.shape, device=existing.device)
    empty = [i for i, ids in enumerate(sources) if not ids]
    for i, ids in enumerate(sources):
        if ids:
            rows[i] = existing[torch.tensor(ids, device=existing.device)].float().mean(0)
    if empty:
        rows[empty] = mean_row(existing, context.existing_rows)
        nameless = [context.texts[i] for i in empty if context.texts and context.texts[i]]
        if nameless:
            context.report["without_source"] = nameless
    return rows
