"""`resize`: makes the new rows, then resizes, writes and records; and the report on rows that were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from .rows import MadeRows, RowRequest, make_rows
from .tables import EmbeddingTables, ResizePlan


def resize(
    tables: EmbeddingTables,
    plan: ResizePlan,
    request: RowRequest,
    ids: Sequence[int] | None = None,
    then: Callable[[], object] = lambda: None,
) -> dict[str, Any] | None:
    """Carries out `plan` with rows made by `request`, and records it.

    Rows are made from the old tables, for the new ids or for `ids`, and everything is checked before the
    first write: an error or an interrupt leaves the model as it was. `then` is called with the writes.
    Returns the report of `fill_report`, None when no row was made.
    """
    made = make_rows(tables, request, plan, ids)
    report = fill_report(request, made)
    event: dict[str, Any] = {"event": "resize", "side": plan.side, "rows": [plan.old_num, plan.new_num]}
    if report["tables"]:
        counts = [
            {**t, "left_out": {why: len(rows) for why, rows in t["left_out"].items()}}
            for t in report["tables"]
        ]
        event.update({**report, "tables": counts})
    changes = bool(report["tables"]) or plan.old_num != plan.new_num
    tables.change(plan, made, then, event=event if changes else None)
    return report if report["tables"] else None


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
