"""`refine=` of `replace_tokenizer`: rows that a method made, made better by the model's forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..errors import InvalidArgumentError, UnsupportedModelError
from ..initializers import Initializer, list_initializers, read_init
from ..retokenize import Body, RefineContext, Step, TokenTexts
from ..tables import EmbeddingTables, RowsOf, checkpoint_of


def read_refinement(refine: str | None) -> tuple[Initializer, dict[str, Any]] | None:
    """The record and the options of `name` or `name:option=value,...`; None for None.

    Raises `UnknownNameError` or `InvalidArgumentError`, naming those that there are."""
    if refine is None:
        return None
    name, options = read_init(refine)
    known = {record.name: record for record in list_initializers(purpose="refinement")}
    if name not in known:
        raise InvalidArgumentError(f"refine={refine!r} is no refinement: choose {' or '.join(known)}")
    return known[name], options


def check_refinable(tables: EmbeddingTables, refine: str) -> None:
    """Raises `UnsupportedModelError` for a model whose hidden states cannot be compared here, and
    `InvalidArgumentError` for one that ties its output to its input."""
    name = type(tables.model).__name__
    if checkpoint_of(tables.model) is not None:
        raise UnsupportedModelError(
            f"refine={refine!r} needs a forward pass, which a model of open_checkpoint has not: load it "
            f"with from_pretrained"
        )
    if tables.model.config.is_encoder_decoder or len(tables.input_tables) > 1 or len(tables.own_tables) > 2:
        raise UnsupportedModelError(
            f"refine={refine!r} is for models with one stack and one input table, which {name} is not"
        )
    if any(table.tied_to is not None for table in tables.output_tables):
        raise InvalidArgumentError(
            f"refine={refine!r} makes input rows, which are bad output rows, and {name} ties the two: give "
            f"untie=True (--untie)"
        )


def refine_rows(
    tables: EmbeddingTables,
    refinement: tuple[Initializer, dict[str, Any]],
    writes: Sequence[RowsOf],
    old: TokenTexts,
    new: TokenTexts,
    step: torch.Tensor,
    *,
    texts: Iterable[str] | None,
    seed: int,
) -> dict[str, Any]:
    """Puts better input rows into `writes`, which are of whole tables, and gives what the refinement reports.

    `step` `[V']` says what made each row; copies of old rows stay. Nothing of the model is changed."""
    record, options = refinement
    made = next(write for write in writes if write.rows is not None and write.table.role == "input")
    assert made.rows is not None
    named = torch.tensor([bool(token) for token in new.tokens])
    named[sorted(new.special)] = False
    free = named & (step[: len(named)] != Step.COPIED) & (step[: len(named)] != Step.OVERLAP)
    context = RefineContext(
        body=Body(tables.model, made.table),
        new=new,
        old=old,
        old_rows=tables.read(made.table).float().cpu(),
        rows=made.rows.detach().float().cpu(),
        free=free.nonzero().flatten(),
        generator=torch.Generator().manual_seed(seed),
        texts=texts,
    )
    training = tables.model.training
    tables.model.eval()
    try:
        made.rows = record.fn(context, **options).to(made.table.parameter)
    finally:
        tables.model.train(training)
    return context.report
