"""Checks of what a load gives: tables that are drawn anew, heads that the embedding takes the place of."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...tables import configured_tie
from .case import Case
from .finding import Finding

_FEWEST_ROWS, _FEWEST_ENTRIES = 64, 4096
"""Below this no statistic can tell a draw from a trained table."""


def tie_not_in_config(case: Case) -> Iterator[Finding]:
    """Two tables are one tensor, which the configuration denies."""
    for output in case.tables.output_tables:
        if output.tied_to is not None and configured_tie(case.model.config) is False:
            yield Finding(
                "warning",
                "tie_not_in_config",
                f"{output.name} is {output.tied_to}, but config.tie_word_embeddings is False",
                "Set it to True, so that PEFT and servers know",
            )


def tie_only_in_config(case: Case) -> Iterator[Finding]:
    """The configuration ties two tables that differ."""
    if not configured_tie(case.model.config) or case.stored is not None:
        return
    met = {output.side for output in case.tables.output_tables if output.tied_to is not None}
    for output in case.tables.output_tables:
        if output.side in met:  # MobileBERT has one that is tied, and one beside it
            continue
        source = next((t for t in case.tables.input_tables if t.side == output.side), None)
        if source is None or output.tied_to is not None or source.num_embeddings != output.num_embeddings:
            continue
        if not torch.equal(case.rows(output), case.rows(source)):
            yield Finding(
                "error",
                "tie_only_in_config",
                f"config.tie_word_embeddings is True, but {output.name} differs from {source.name}",
                "Set it to False (hf-embinit merge does), or a reload may put the embedding in its place",
            )


def head_overwritten(case: Case) -> Iterator[Finding]:
    """The files hold a head of their own, and the configuration ties it."""
    if case.stored is None or not configured_tie(case.model.config):
        return
    for output in case.tables.output_tables:
        source = next((t for t in case.tables.input_tables if t.side == output.side), None)
        head = case.stored.find(output.name)
        if source is None or head is None or head == (stored := case.stored_name(source)):
            continue
        assert stored is not None
        if case.stored.shape(head) != case.stored.shape(stored):
            continue
        if not torch.equal(case.stored.read(head), case.stored.read(stored)):
            yield Finding(
                "error",
                "head_overwritten",
                f"{head} is in the files and differs from {stored}, but config.tie_word_embeddings is True",
                "Set it to False, or vLLM, llama.cpp and older transformers put the embedding in its place",
            )


def looks_never_loaded(case: Case) -> Iterator[Finding]:
    """A table is a fresh draw, while the rest of the model is trained."""
    fresh = [t for t in case.tables.own_tables if looks_drawn(case.rows(t))]
    if not fresh or all(float(w.float().std()) == 0 for w in case.norms() if w.numel() > 1):
        return
    for table in fresh:
        sd = float(case.rows(table).float().std())
        yield Finding(
            "error",
            "looks_never_loaded",
            f"{table.name} looks drawn at random (sd {sd:.3g}, no row or column stands out), though the "
            f"layers are trained",
            "Load its weights again: an unfit tie or name leaves a table as it was drawn",
        )


def looks_drawn(rows: Tensor) -> bool:
    """Whether a table `[V, D]` may be entries drawn alike and independently, normal or uniform.

    Then squared norms of rows spread by sqrt((kurtosis - 1) / D) of their mean, columns have the mean 0 up to
    their standard error, and the kurtosis is 3 or 1.8. Training changes all three.
    """
    rows = rows.float()
    rows = rows[rows.abs().sum(1) > 0]  # without padding rows
    if len(rows) < _FEWEST_ROWS or rows.numel() < _FEWEST_ENTRIES or not bool(torch.isfinite(rows).all()):
        return False
    count, width = rows.shape
    variance = float(rows.square().mean())
    kurtosis = float(rows.pow(4).mean()) / variance**2
    if min(abs(kurtosis - 3.0), abs(kurtosis - 1.8)) > 0.1 + 30 / math.sqrt(rows.numel()) / 2:
        return False
    squares = rows.square().sum(1)
    spread = float(squares.std() / squares.mean()) / math.sqrt((kurtosis - 1) / width)
    columns = float((rows.mean(0).square() * count / variance).mean())
    return abs(spread - 1) < 5 / math.sqrt(2 * count) and columns < 1 + 6 * math.sqrt(2 / width)


CHECKS = [tie_not_in_config, tie_only_in_config, head_overwritten, looks_never_loaded]
