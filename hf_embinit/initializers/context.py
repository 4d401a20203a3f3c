"""`InitContext`: what an initialiser may read. N rows in the whole table, D width, R rows asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..arguments import shown
from ..errors import InvalidArgumentError
from ..moments import sparse_shares
from ..vectors import PretrainedVectors

_BLOCK_ROWS = 8192
"""Rows of a table that are looked at at a time."""


@dataclass(frozen=True)
class InputPositions:
    """The fixed position encodings that a model adds to `scale * row`."""

    encodings: Tensor
    """`[P, D]`, at `position_scale` 1."""
    scale: float
    """What rows are multiplied by first: sqrt(D) in most models."""
    position_scale: float | None = None
    """What the model multiplies the encodings by; None where its config has no such factor."""

    @property
    def factor(self) -> float:
        """`position_scale`, or 1 where there is none."""
        return 1.0 if self.position_scale is None else self.position_scale


@dataclass
class InitContext:
    """A request for rows, with all that an initialiser may read.

    An initialiser returns a float32 tensor `[num_rows, embedding_dim]` on the CPU or on the device of
    `existing`; the caller casts it, writes it and zeroes the padding row.
    """

    num_rows: int
    """R: rows to make."""
    embedding_dim: int
    """D."""
    num_embeddings: int
    """N: rows of the whole table once the new ones are in (Xavier's fan-in)."""
    generator: torch.Generator
    """The only source of randomness (a CPU generator, so that numbers do not depend on the device)."""
    tokens: list[str] | None = None
    """The token of each requested row, in the spelling of `token_family`."""
    token_family: str = "words"
    special_rows: frozenset[int] = frozenset()
    """Rows (0..R-1) that hold special tokens: never looked up in word vectors."""
    added_rows: frozenset[int] = frozenset()
    """Rows (0..R-1) of added tokens, which are spelled as their text whatever the family."""
    padding_row: int | None = None
    """Row (0..R-1) of the padding token, left out of statistics; the caller sets it to zero."""
    vectors: PretrainedVectors | None = None
    positions: InputPositions | str | None = None
    """What is added to the rows, or why nothing fixed is; for initialisers that need `positions`."""
    existing: Tensor | None = None
    """`[N_old, D]`: the old table, when rows are added to it."""
    usable_ids: Tensor | None = None
    """Indices into `existing` that statistics may use: without padding, reserved and never-trained rows."""
    not_finite: frozenset[int] = frozenset()
    """Ids in `existing` whose rows have NaN or infinite entries (zeros stand in their place)."""
    existing_tokens: list[str] | None = None
    """Token strings of `existing`, for `copy` and for initialisers that align vocabularies."""
    existing_added: frozenset[int] = frozenset()
    """Ids in `existing` of added tokens."""
    tokenize: Callable[[list[str]], list[list[int]]] | None = None
    """Texts -> ids in `existing`, by the tokenizer as it was before the change."""
    unknown_id: int | None = None
    """Id of the unknown token in `existing`."""
    texts: list[str] | None = None
    """The surface text of each requested row (`" Aragorn"` for a byte-level word-start token)."""
    role: str = "input"
    """`input` or `output`: which matrix the rows are for."""
    initializer_range: float = 0.02
    """The model's own `initializer_range`, for `normal`."""
    shares: Tensor | None = None
    """`[R, N_old]`, sparse: set by initialisers whose rows are means of old ones, weighted so that new output
    biases must be the same means."""
    report: dict[str, Any] = field(default_factory=dict)
    """Entries for the report, added by the initialiser: coverage, missing tokens, sources of rows."""

    @cached_property
    def existing_ids(self) -> dict[str, int]:
        """Old token -> its id (the first of equal ones)."""
        tokens = self.existing_tokens or []
        return {token: i for i, token in reversed(list(enumerate(tokens)))}

    @property
    def shape(self) -> tuple[int, int]:
        """`(R, D)`."""
        return self.num_rows, self.embedding_dim

    def only(self, position: int, generator: torch.Generator) -> InitContext:
        """The context for one of the rows alone."""
        one = replace(
            self,
            num_rows=1,
            generator=generator,
            tokens=[self.tokens[position]] if self.tokens else None,
            texts=[self.texts[position]] if self.texts else None,
            special_rows=frozenset({0} & {p - position for p in self.special_rows}),
            added_rows=frozenset({0} & {p - position for p in self.added_rows}),
            padding_row=None,
            vectors=None,
            shares=None,
            report={},
        )
        one.existing_ids = self.existing_ids
        return one

    def mix_as(self, one: InitContext, position: int) -> None:
        """Has the output bias of the row at `position` be mixed as that of `one`, the context of it alone."""
        if self.existing is None or (self.shares is None and one.shares is None):
            return
        found = []
        for shares, first in ((self.shares, 0), (one.shares, position)):
            if shares is not None:
                (rows, columns), values = shares.indices().cpu(), shares.values().cpu()
                kept = (rows + first == position) == (shares is one.shares)
                found.append((torch.stack([rows + first, columns])[:, kept], values[kept]))
        where, values = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
        self.shares = sparse_shares(where, values, (self.num_rows, len(self.existing)))

    def require(self, name: str, for_init: str) -> Any:
        """The field `name`, or `InvalidArgumentError` saying which argument provides it."""
        return required(getattr(self, name), _PROVIDED_BY.get(name, name), for_init)


NEEDED_VECTORS = "vectors= (--vectors): a file of vectors, a checkpoint folder or a Hub id"
"""What an error says of vectors that were not given."""

_PROVIDED_BY = {
    "vectors": NEEDED_VECTORS,
    "tokens": "tokenizer=",
    "tokenize": "tokenizer=",
    "texts": "tokenizer=",
    "existing_tokens": "tokenizer=",
    "existing": "a model with an existing table",
}


def required(value: Any, argument: str, for_init: str) -> Any:
    """A value that an initialiser cannot do without, or `InvalidArgumentError` naming the argument."""
    if value is None:
        raise InvalidArgumentError(f"init {for_init!r} needs {argument}")
    return value


def plain_rows(rows: Any, context: InitContext, init: str, table: str, dtype: torch.dtype) -> Tensor:
    """What an initialiser made, as rows `[R, D]` that may be written into.

    Raises `InvalidArgumentError` for what is no such tensor, and for rows that are not finite in `dtype`, the
    table's.
    """
    made = f"init {init!r} made"
    if not isinstance(rows, Tensor):
        raise InvalidArgumentError(f"{made} {shown(rows)}: an initialiser returns a tensor {context.shape}")
    if tuple(rows.shape) != context.shape or not rows.is_floating_point():
        raise InvalidArgumentError(
            f"{made} rows of shape {tuple(rows.shape)}, not {context.shape}"
            if rows.is_floating_point()
            else f"{made} rows of {rows.dtype}: expected floating-point numbers"
        )
    if rows.is_meta or rows.layout != torch.strided:
        raise InvalidArgumentError(f"{made} rows that are sparse or without values: expected a plain tensor")
    require_finite(rows, made, table, dtype)
    written = context.padding_row is not None or rows.requires_grad or not rows.is_contiguous()
    return rows.detach().clone(memory_format=torch.contiguous_format) if written else rows.detach()


def require_finite(rows: Tensor, made: str, table: str, dtype: torch.dtype) -> None:
    """Raises `InvalidArgumentError` for rows that are NaN or infinite in the `dtype` of the table."""
    for block in rows.detach().split(_BLOCK_ROWS):
        if not bool(torch.isfinite(block.to(dtype)).all()):
            given = bool(torch.isfinite(block).all())
            held = str(dtype).removeprefix("torch.")
            why = f"too large for its {held}: make them smaller" if given else f"NaN or infinite ({held})"
            raise InvalidArgumentError(f"{made} rows for {table} that are {why}; nothing was written")
