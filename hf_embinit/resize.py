"""A resize that makes its rows first: what a patched `resize_token_embeddings` and `expand_vocabulary` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from .manifest import events_with
from .rows import MadeRows, RowRequest, make_rows
from .tables import EmbeddingTables, ResizePlan


def resize(
    tables: EmbeddingTables,
    plan: ResizePlan,
    request: RowRequest,
    ids: Sequence[int] | None = None,
    then: Callable[[], object] = lambda: None,
) -> dict[str, Any] | None:
    """Does `plan` with rows made by `request`, and records it; gives the report, None when no row was made.

    Rows are made from the old tables, for the new ids or for `ids`, and everything is checked before the
    first write: an error or an interrupt leaves the model as it was.
    """
    made = make_rows(tables, request, plan, ids)
    report = fill_report(request, made)
    grows = plan.old_num != plan.new_num
    if not report["tables"] and not grows:
        tables.change(plan, then=then)
        return None
    told: dict[str, Any] = {"side": plan.side, "rows": [plan.old_num, plan.new_num]}
    if report["tables"]:
        counts = [
            {**t, "left_out": {why: len(rows) for why, rows in t["left_out"].items()}}
            for t in report["tables"]
        ]
        told.update({**report, "tables": counts})
    change(tables, plan, made, "resize", told, then)
    return report if report["tables"] else None


def change(
    tables: EmbeddingTables,
    plan: ResizePlan | None,
    made: Sequence[Any],
    event: str,
    told: dict[str, Any],
    then: Callable[[], object] = lambda: None,
) -> None:
    """Writes what was made and records the event, and does `then`: all of it, or nothing."""
    config = tables.model.config
    events = events_with(config, event, **told)

    def last() -> None:
        config.embinit = events
        then()

    tables.change(plan, made, last)


def fill_report(request: RowRequest, made: Sequence[Any]) -> dict[str, Any]:
    """Plain JSON: `init`, `seed`, `options`, `tables` (one entry each), `overrides` where there are some.

    Of each table `name`, `role`, `dtype`, `rows` (the first row and the one past the last, or several such
    spans), `usable` (n: old rows that the statistics used), `left_out` (reason -> rows), `source` (of
    vectors), `details` (what the initialiser reports).
    """
    report: dict[str, Any] = {
        "init": request.init,
        "seed": request.seed,
        "options": dict(request.options),
        "tables": [
            {
                "name": m.table.name,
                "role": m.table.role,
                "dtype": str(m.table.parameter.dtype).removeprefix("torch."),
                "rows": _span(list(m.ids)),
                "usable": m.usable,
                "left_out": m.left_out,
                "source": m.source,
                "details": dict(m.context.report),
            }
            for m in made
            if isinstance(m, MadeRows)
        ],
    }
    if request.overrides:
        report["overrides"] = {str(token): spec for token, spec in request.overrides.items()}
    return report


def _span(ids: list[int]) -> list[int] | list[list[int]]:
    """`[first, one past the last]`, or one such span for each run of neighbours."""
    breaks = [p for p in range(1, len(ids)) if ids[p] != ids[p - 1] + 1]
    spans = [[ids[a], ids[b - 1] + 1] for a, b in pairwise([0, *breaks, len(ids)])]
    return spans[0] if len(spans) == 1 else spans
