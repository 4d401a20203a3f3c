"""Checks of the rows of tables: empty, broken, equal or never trained, and what stands on them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...errors import InvalidArgumentError
from ...manifest import read_manifest
from ...measures import unused_distance
from ...tables import Table
from ..adapter_files import grown_ids
from ..shift import effective_rank, smallest_distance
from .case import Case
from .finding import Finding, Severity, few

FAR = 8.0
"""A row is far from the others when its distance to their mean is this many times the median distance."""

_FEWEST_UNUSED = 8
"""Unused rows that it takes to tell what an unused row is like."""
_REFILL = "Refill them: hf_embinit.repair(model, tokenizer)"
_ASKED = "repair(model, tokenizer, findings=[...], init='mean_cov')"
_NEVER: dict[str, tuple[str, str]] = {
    "not_finite": ("rows_not_finite", "have NaN or infinite entries"),
    "zero": ("rows_of_zeros", "are zero"),
}


def not_finite(case: Case) -> Iterator[Finding]:
    """Rows with NaN or infinite entries."""
    yield from _never(case, "not_finite", "error")


def biases_not_finite(case: Case) -> Iterator[Finding]:
    """Entries of output biases that make every probability NaN."""
    for table in case.tables.output_tables:
        for tied, bias in case.biases(table):
            ids = tuple((~bias.isfinite()).nonzero().flatten().tolist())
            if ids:
                message = (
                    f"{len(ids)} entries of {tied.name} have NaN or infinite values: {few(ids, case.names)}"
                )
                yield Finding("error", "bias_not_finite", message, _REFILL, ids, tied.name, refill=True)


def zeros(case: Case) -> Iterator[Finding]:
    """Rows of tokens that are zero, by their norm: a signed maximum takes negative rows for such."""
    yield from _never(case, "zero", "warning")


def equal(case: Case) -> Iterator[Finding]:
    """Rows of tokens that are equal to others; `new_rows` tells those that this package made."""
    events = read_manifest(case.model)
    if any(event["event"] == "replace_tokenizer" for event in events):
        return  # its methods give tokens of the same pieces the same row
    grown = grown_ids(events)
    for table in case.tables.own_tables:
        made = grown.get(table.side, ())
        if ids := tuple(i for i in _of_tokens(case, table, "repeated") if i not in made):
            yield Finding(
                "warning",
                "equal_rows",
                f"{len(ids)} rows of {table.name} are equal to others: {few(ids, case.names)}",
                f"Give them rows of their own, unless they are meant to be equal: {_ASKED}",
                ids,
                table.name,
            )


def special_tokens(case: Case) -> Iterator[Finding]:
    """Tokens with a role, and those of the chat template, on rows of nothing."""
    roles = case.roles()
    for table in case.tables.own_tables:
        for reason, (_, text) in _NEVER.items():
            ids = [i for i in _unusable(case, table).get(reason, ()) if i in roles]
            if reason == "zero":  # the padding row of a table is not trained by design
                ids = [i for i in ids if i != table.padding_index]
            for kind in ("chat template", "special"):
                here = [i for i in ids if (roles[i] == "chat template") == (kind == "chat template")]
                if here:
                    named = ", ".join(f"{roles[i]} ({i})" for i in here)
                    code = "chat_token_untrained" if kind == "chat template" else "special_token_untrained"
                    pad = all(roles[i] == "pad" for i in here) and reason == "zero"
                    yield Finding(
                        "warning" if pad else "error",
                        code,
                        f"{named} of the tokenizer in {table.name} {text}: never trained",
                        _REFILL,
                        tuple(here),
                        table.name,
                        refill=True,
                    )


def under_trained(case: Case) -> Iterator[Finding]:
    """Tokens as near to the mean unused row as unused rows are (Land & Bartolo 2024, section 3)."""
    roles = case.roles()
    for table in _measured(case):
        unusable = _unusable(case, table)
        unused = {*unusable.get("reserved", ()), *unusable.get("beyond_tokenizer", ())}
        near = near_unused(case.rows(table), unused, set().union(*unusable.values()))
        special = [i for i in near if i in roles]
        others = [i for i in near if i not in roles]
        for ids, severity, what in ((special, "warning", "tokens with a role"), (others, "note", "tokens")):
            if ids:
                named = few(ids, case.names)
                yield Finding(
                    severity,  # type: ignore[arg-type]
                    "special_token_untrained" if ids is special else "under_trained",
                    f"{len(ids)} {what} of {table.name} are as near to the mean unused row as unused rows: "
                    f"{named}",
                    f"Train on texts that have them, or refill them: {_ASKED}",
                    tuple(ids),
                    table.name,
                )


def near_unused(rows: Tensor, unused: set[int], left_out: set[int]) -> list[int]:
    """Ids of `rows` `[V, D]` that are as near to the mean of the rows `unused` as those, by both distances.

    Empty where unused rows are too few, or lie no nearer together than the rows of other tokens do.
    """
    some = [i for i in sorted(unused) if bool(torch.isfinite(rows[i]).all()) and bool(rows[i].any())]
    used = [i for i in range(len(rows)) if i not in unused and i not in left_out]
    if len(some) < _FEWEST_UNUSED or not used:
        return []
    clean = torch.nan_to_num(rows.float(), 0.0, 0.0, 0.0)
    near = set(used)
    for without in (False, True):
        distance = unused_distance(clean, some, without_first_component=without)
        limit = float(distance[some].quantile(0.95))
        if limit > float(distance[used].median()) / 2:
            return []
        near &= {used[p] for p in (distance[used] <= limit).nonzero().flatten().tolist()}
    return sorted(near)


def far(case: Case) -> Iterator[Finding]:
    """Rows far from all others."""
    for table in case.tables.own_tables:
        rows = case.rows(table).float()
        distance = (rows - rows.nanmean(0)).norm(dim=1)
        ids = (distance > FAR * distance.nanmedian()).nonzero().flatten().tolist()
        if ids:
            message = f"{len(ids)} rows of {table.name} lie far from all others: {few(ids, case.names)}"
            advice = f"Trained models have such rows; refill those that are damaged: {_ASKED}"
            yield Finding("note", "far_rows", message, advice, tuple(ids), table.name)


def new_rows(case: Case) -> Iterator[Finding]:
    """Whether training can tell the rows apart that this package made: distance and effective rank."""
    grown = grown_ids(read_manifest(case.model))
    for table in case.tables.own_tables:
        ids = sorted(i for i in grown.get(table.side, ()) if i < table.num_embeddings)
        if len(ids) < 2:
            continue
        rows = case.rows(table)[ids]
        finite = rows[torch.isfinite(rows).all(dim=1)]
        if len(finite) < 2:  # said by `not_finite`
            continue
        smallest, rank = smallest_distance(finite), effective_rank(finite)
        dtype = str(rows.dtype).removeprefix("torch.")
        text = f"smallest distance {smallest:.3g}, effective rank {rank:.1f} in {dtype}"
        if smallest == 0:
            message = f"new rows of {table.name} are equal in the saved dtype ({text})"
            advice = f"Train on, or give them rows of their own: {_ASKED}"
            yield Finding("warning", "equal_new_rows", message, advice, tuple(ids), table.name)
        else:
            yield Finding("note", "new_rows", f"{len(ids)} new rows of {table.name}: {text}", "Nothing to do")


def _never(case: Case, reason: str, severity: Severity) -> Iterator[Finding]:
    code, text = _NEVER[reason]
    for table in case.tables.own_tables:
        try:
            ids = _of_tokens(case, table, reason)
        except InvalidArgumentError as error:
            if reason == "not_finite":
                yield Finding(severity, code, str(error), "No row is left to refill them by")
            continue
        if ids:
            message = f"{len(ids)} rows of {table.name} {text}: {few(ids, case.names)}"
            yield Finding(severity, code, message, _REFILL, ids, table.name, refill=True)


def _unusable(case: Case, table: Table) -> dict[str, list[int]]:
    try:
        return case.unusable(table)
    except InvalidArgumentError:  # said by `not_finite`
        return {}


def _of_tokens(case: Case, table: Table, reason: str) -> tuple[int, ...]:
    """Rows that are unusable for a reason, without those that no token has or that are there in reserve."""
    unusable = case.unusable(table) if reason == "not_finite" else _unusable(case, table)
    free = {*unusable.get("reserved", ()), *unusable.get("padding", ())}
    known = case.names
    return tuple(i for i in unusable.get(reason, ()) if i not in free and (known is None or i in known))


def _measured(case: Case) -> list[Table]:
    """The tables that make logits, whose rows say best what was never trained; else those of the input."""
    outputs = {id(t.tied) for t in case.tables.output_tables}
    own = [t for t in case.tables.own_tables if id(t.tied) in outputs]
    return own or [t for t in case.tables.own_tables if t.role == "input"]


CHECKS = [not_finite, biases_not_finite, zeros, equal, special_tokens, under_trained, far, new_rows]
