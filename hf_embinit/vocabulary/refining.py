"""`refine=` of `replace_tokenizer`: rows that a method made, made better by the model's forward pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError
from ..initializers import Initializer, list_initializers, read_init
from ..modes import evaluating
from ..retokenize import Body, RefineContext, Step, TokenTexts
from ..tables import EmbeddingTables, RowsOf, checkpoint_of, is_partitioned

Refinement = tuple[Initializer, dict[str, Any]]
"""A refinement and its options."""


def read_refinement(refine: str | None) -> list[Refinement]:
    """The records and the options of `name` or `name:option=value,...`, several joined by `+`; none for None.

    Raises `UnknownNameError`, or `InvalidArgumentError` for bad options."""
    known = {record.name: record for record in list_initializers(purpose="refinement")}
    found = []
    for one in [] if refine is None else re.split(r"\+(?=[A-Za-z_])", refine):
        name = one.partition(":")[0]
        if name not in known:
            raise UnknownNameError("refinement", name, known)
        _, options = read_init(one)
        found.append((known[name], options))
    return found


def check_refinable(tables: EmbeddingTables, refine: str) -> None:
    """Raises `UnsupportedModelError` for a model whose hidden states cannot be compared here, and
    `InvalidArgumentError` for one that ties its output to its input."""
    name = type(tables.model).__name__
    away = any(is_partitioned(t.parameter) or t.parameter.is_meta for t in tables.tables)
    if checkpoint_of(tables.model) is not None or away:
        raise UnsupportedModelError(
            f"refine={refine!r} needs a forward pass and tables in memory, which a model of open_checkpoint, "
            f"one that ZeRO-3 has sharded and one that is offloaded have not: load it with from_pretrained, "
            f"as a whole"
        )
    if tables.model.config.is_encoder_decoder or len(tables.input_tables) > 1 or len(tables.own_tables) > 2:
        raise UnsupportedModelError(
            f"refine={refine!r} is for models with one stack and one input table, which {name} is not"
        )
    if any(table.tied_to is not None for table in tables.output_tables):
        raise InvalidArgumentError(
            f"refine={refine!r} makes rows for one side, which are bad ones for the other, and {name} ties "
            f"its input and its output: give untie=True (--untie)"
        )


def refine_rows(
    tables: EmbeddingTables,
    refinements: Sequence[Refinement],
    writes: Sequence[RowsOf],
    old: TokenTexts,
    new: TokenTexts,
    step: torch.Tensor,
    *,
    texts: Iterable[str] | None,
    seed: int,
) -> dict[str, Any]:
    """Puts better rows into `writes`, which are of whole tables, and gives what the refinements report; each
    starts from the rows of the one before.

    `step` `[V']` says what made each row; input rows that are copies of old ones stay. Nothing of the model
    is changed."""
    made: dict[str, RowsOf] = {write.table.role: write for write in writes if write.rows is not None}
    biased = next((write for write in writes if write.biases), None)
    named = torch.tensor([bool(token) for token in new.tokens])
    named[sorted(new.special)] = False
    free = named & (step[: len(named)] != Step.COPIED) & (step[: len(named)] != Step.OVERLAP)
    context = RefineContext(
        body=Body(tables.model, made["input"].table),
        new=new,
        old=old,
        old_rows=tables.read(made["input"].table).float().cpu(),
        rows=_rows(made["input"]),
        old_output=tables.read(made["output"].table).float().cpu() if "output" in made else None,
        output=_rows(made["output"]) if "output" in made else None,
        old_biases=[] if biased is None else [b.float().cpu() for b in tables.biases(biased.table)],
        biases=[] if biased is None else [torch.as_tensor(b).float().cpu() for b in biased.biases],
        free=free.nonzero().flatten(),
        generator=torch.Generator().manual_seed(seed),
        texts=None if texts is None else list(texts),
    )
    with evaluating(tables.model):
        for record, options in refinements:
            context.rows, context.output, context.biases = record.fn(context, **options)
    if biased is not None:
        biased.biases = context.biases
    for role, rows in (("input", context.rows), ("output", context.output)):
        if rows is not None:
            _put(made[role], rows)
    return context.report


def _put(write: RowsOf, rows: torch.Tensor) -> None:
    """Puts the rows that changed into `write`; the others stay as exact as they were, in float64, too."""
    assert write.rows is not None
    changed = (rows != _rows(write)).any(1).to(write.rows.device)
    parameter = write.table.parameter
    write.rows = torch.where(changed[:, None], rows.to(parameter), write.rows.to(parameter))


def _rows(write: RowsOf) -> torch.Tensor:
    assert write.rows is not None
    return write.rows.detach().float().cpu()
