"""`initialize`: fills whole embedding tables by an initialiser, and reports what was done."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arguments import Seed, Tokenizer, checked
from .errors import InvalidArgumentError
from .initializers import table_initializer
from .manifest import warn_of_another_tokenizer
from .measures import embedding_statistics
from .rows import MadeRows, RowRequest, VectorSource, make_rows
from .tables import EmbeddingTables
from .tokens import Coverage, coverage, tokenizer_of, vocabulary

logger = logging.getLogger(__name__)


@dataclass
class TableReport:
    """What was done to one table."""

    table: str
    """Parameter name."""
    side: str
    """`source`, `target` or `shared`."""
    rows: int
    embedding_dim: int
    source: dict[str, Any] | None
    """`PretrainedVectors.source`: name, revision and digest of the vectors; None for random initialisers."""
    coverage: dict[str, Any] | None
    """By type and, when token counts were given, by token; None for random initialisers."""
    before: dict[str, Any]
    """Moments of the table before, padding row left out."""
    after: dict[str, Any]
    """Moments of the table after, padding row left out."""
    channel: dict[str, Any] | None = None
    """Of `*_orthogonal`: the dimensions that are the positions', the table's energy there, and the
    `position_scale` at which positions are a quarter as long as the rows, by root mean squares;
    `position_scale_now` is the model's (None: it has no such setting), and `position_length_now` how long
    its positions are."""
    map: Tensor | None = None
    """Of `*_orthogonal`: the orthogonal map `[D, D]`, float64, that turned the rows: times its transpose,
    rows are turned back. Not in `to_dict()`; the channel has its digest."""


@dataclass
class InitReport:
    """What `initialize` did; `str(report)` is a few lines to read, `to_dict()` is for JSON."""

    init: str
    seed: Seed
    options: dict[str, Any]
    tables: list[TableReport]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-serialisable values."""
        tables = [{k: v for k, v in asdict(replace(t, map=None)).items() if k != "map"} for t in self.tables]
        return {**asdict(replace(self, tables=[])), "tables": tables}

    def __str__(self) -> str:
        lines = [f"{self.init} (seed {self.seed})"]
        for t in self.tables:
            line = (
                f"  {t.table} [{t.rows}, {t.embedding_dim}]: sd {t.before['std']:.4g} -> {t.after['std']:.4g}"
            )
            if t.coverage is not None and t.source is not None:
                found = f"{t.coverage['types_found']} of {t.coverage['types']} tokens found"
                line += f", {found} in {t.source['name']}"
            lines.append(line)
            if t.channel is not None:
                lines.append(f"    {_told_of_channel(t.channel)}")
        return "\n".join(lines)


@checked
def initialize(
    model: Any,
    init: str,
    *,
    tokenizer: Tokenizer | None = None,
    vectors: VectorSource | None = None,
    target_vectors: VectorSource | None = None,
    seed: Seed = 0,
    token_counts: Sequence[int] | Tensor | np.ndarray | None = None,
    target_token_counts: Sequence[int] | Tensor | np.ndarray | None = None,
    allow_pickle: bool = False,
    **options: Any,
) -> InitReport:
    """Fills the input embedding tables of `model` by the initialiser named `init`, in place.

    Every input table is filled, the source's and the target's of an encoder-decoder with two vocabularies
    from `vectors` and `target_vectors` (default: `vectors` for both). A tied output follows its input table;
    an untied output projection and its bias are left as they are. A padding row that the module names
    (`padding_idx`) is set to zero, and statistics leave it out. All draws come from one generator seeded with
    `seed`; the global random state is not touched.

    Args:
        model: any transformers model with input embeddings.
        init: a name of the registry, see `list_initializers()`.
        tokenizer: needed by initialisers that look tokens up. One without two vocabularies is taken for both
            sides of a model that has two.
        vectors: a file of vectors, a checkpoint folder, a Hub id, or `PretrainedVectors`; the named sources
            (`bert`, `t5`, ...) have a Hub id of their own that this overrides.
        token_counts: how often each id occurs in the training text, for coverage by token; of the target side
            `target_token_counts`. One number a row, or one a token where the table has more rows.
        allow_pickle: read a source that has no safetensors from its `.bin` files.
        options: keyword options of the initialiser.

    Raises:
        UnknownNameError: `init` is not registered.
        InvalidArgumentError: an option, the vectors or the tokenizer does not fit; nothing was changed.
    """
    tokenizer = tokenizer_of(tokenizer)
    request = RowRequest(
        init,
        seed,
        options,
        tokenizer,
        vectors=vectors,
        target_vectors=target_vectors,
        allow_pickle=allow_pickle,
    )
    table_initializer(init)
    tables = EmbeddingTables(model)
    warn_of_another_tokenizer(tables.model, tokenizer)
    _require_both_sides(tables, tokenizer)
    counts = _counts_of_sides(tables, token_counts, target_token_counts)
    made = [m for m in make_rows(tables, request) if isinstance(m, MadeRows)]
    for m in made:
        counts[m.table.name] = _one_a_row(m, counts.get(m.table.side))
    reports = [_report(m, _covered(init, m, counts[m.table.name]), _moments(tables, m)) for m in made]
    entries = [_entry(r) for r in reports]
    event = {"event": "initialize", "init": init, "seed": seed, "options": options, "tables": entries}
    tables.change(None, made, event=event)
    after = [replace(r, after=_moments(tables, m)) for r, m in zip(reports, made, strict=True)]
    return InitReport(init, seed, options, after)


def _require_both_sides(tables: EmbeddingTables, tokenizer: Any) -> None:
    """Raises `InvalidArgumentError` for a tokenizer of one vocabulary that is one side's, not the other's."""
    rows = {table.side: table.num_embeddings for table in tables.input_tables}
    if tokenizer is None or len(set(rows.values())) < 2 or getattr(tokenizer, "separate_vocabs", False):
        return
    count = len(vocabulary(tokenizer))
    if count > min(rows.values()) or count in rows.values():
        sizes = " and ".join(f"{number} of the {side}" for side, number in rows.items())
        raise InvalidArgumentError(
            f"tokenizer= has one vocabulary, of {count} tokens, which cannot be both sides': the tables have "
            f"{sizes} rows; initialise encoder and decoder one by one, each with its tokenizer"
        )


def _counts_of_sides(
    tables: EmbeddingTables, token_counts: Any, target_token_counts: Any
) -> dict[str, Tensor | None]:
    """The counts that were given, by side. Raises `InvalidArgumentError` for what are no counts."""
    read: list[Tensor | None] = []
    for name, given in (("token_counts", token_counts), ("target_token_counts", target_token_counts)):
        counts = None if given is None else torch.as_tensor(given).cpu()
        if counts is not None and counts.numel():
            if counts.is_floating_point() or counts.dtype == torch.bool or counts.ndim != 1:
                raise InvalidArgumentError(
                    f"{name} has {counts.dtype} of shape {tuple(counts.shape)}: expected a whole number an id"
                )
            if int(counts.min()) < 0:
                raise InvalidArgumentError(f"{name} has {int(counts.min())}: expected counts of 0 or more")
        read.append(counts)
    if read[1] is not None and all(table.side != "target" for table in tables.input_tables):
        raise InvalidArgumentError(
            "target_token_counts was given, but the model has one vocabulary: give token_counts"
        )
    return {"source": read[0], "shared": read[0], "target": read[1]}


def _one_a_row(made: MadeRows, counts: Tensor | None) -> Tensor | None:
    """A count for each row of a table: those beyond the vocabulary have none."""
    rows, tokens = made.table.num_embeddings, made.context.tokens
    if counts is None or len(counts) == rows:
        return counts
    known = rows if tokens is None else max((i + 1 for i, token in enumerate(tokens) if token), default=0)
    if len(counts) != known:
        name = "target_token_counts" if made.table.side == "target" else "token_counts"
        raise InvalidArgumentError(
            f"{name} has {len(counts)} numbers for {rows} rows of {made.table.name}: expected one a row"
            + (f", or {known}, one a token" if known < rows else "")
        )
    return torch.cat([counts, counts.new_zeros(rows - known)])


def _report(made: MadeRows, covered: Coverage | None, before: dict[str, Any]) -> TableReport:
    """The report on a table before its rows are written."""
    return TableReport(
        table=made.table.name,
        side=made.table.side,
        rows=made.table.num_embeddings,
        embedding_dim=made.table.embedding_dim,
        source=made.source,
        coverage=None if covered is None else covered.to_dict(),
        before=before,
        after={},
        channel=made.context.report.get("channel"),
        map=made.context.report.get("map"),
    )


def _told_of_channel(channel: dict[str, Any]) -> str:
    """One line of the report on a table that was turned out of the positions' way."""
    line = (
        f"{channel['positions']} positions have {channel['dimensions']} dimensions, where the table's energy "
        f"was {channel['energy_before']:.2%} and is {channel['energy_after']:.2%}"
    )
    now, wanted = channel["position_scale_now"], channel["position_scale"]
    length = f"positions {channel['position_length_now']:.2g} times as long as words"
    if now is None:
        return f"{line}; the model has no position_scale and leaves {length}"
    return (
        f"{line}; position_scale: {wanted:.2g} makes positions a quarter as long as words, which cosines "
        f"hardly feel, {3 * wanted:.2g} three quarters, from which frozen models of one of three corpora "
        f"learned best (the model has {now:.2g}: {length})"
    )


def _entry(report: TableReport) -> dict[str, Any]:
    """The entry of a table in the manifest."""
    return {
        "name": report.table,
        "side": report.side,
        "rows": [0, report.rows],
        "source": report.source,
        "coverage": report.coverage,
        **({} if report.channel is None else {"channel": report.channel}),
    }


def _moments(tables: EmbeddingTables, made: MadeRows) -> dict[str, Any]:
    """Statistics of a table as it is now, padding row left out."""
    keep: Tensor = torch.arange(made.table.num_embeddings)
    if made.context.padding_row is not None:
        keep = keep[keep != made.context.padding_row]
    table = tables.read(made.table)
    finite = [torch.isfinite(block).all(1) for block in table.split(2**14)]  # of a file, by blocks
    keep = keep[torch.cat(finite).cpu()[keep]]  # what was there before may be anything
    if len(keep) * table.shape[1] < 2:
        return {"num_embeddings": 0, "embedding_dim": table.shape[1], "std": float("nan")}
    return embedding_statistics(tables.take(made.table, keep), effective_rank=False).to_dict()


def _covered(init: str, made: MadeRows, counts: Tensor | None) -> Coverage | None:
    """How many of the table's tokens the vectors had; logs a warning when it is less than half."""
    context = made.context
    found = context.report.get("found")
    if found is None or context.tokens is None:
        return None
    covered = coverage(context.tokens, found, special=context.special_rows, counts=counts)
    if covered.types_found < 0.5 * covered.types:
        logger.warning(
            "init %s: only %d of %d tokens of %s were found in %s; the others were drawn at random",
            init,
            covered.types_found,
            covered.types,
            made.table.name,
            context.vectors.name if context.vectors else None,
        )
    return covered
