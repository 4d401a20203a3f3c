"""`initialize`: a whole embedding table by name, and a report of what was done."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import torch
from transformers import PreTrainedModel

from . import initializers as _initializers  # noqa: F401  (fills the registry)
from .errors import InvalidArgumentError
from .initializers.context import InitContext
from .manifest import record_event
from .measures.statistics import embedding_statistics
from .registry import Initializer, get_initializer, list_initializers
from .tables import EmbeddingTables, Table
from .tokens import Coverage, Side, coverage, special_ids, token_family, vocabulary, word_candidates
from .vectors import PretrainedVectors, load_vectors

logger = logging.getLogger(__name__)

VectorSource = PretrainedVectors | str | PathLike[str]


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
    """Name, revision and digest of the vectors; None for random initialisers."""
    coverage: dict[str, Any] | None
    """By type and, when token counts were given, by token; None for random initialisers."""
    before: dict[str, Any]
    """Moments of the table before, padding row left out."""
    after: dict[str, Any]
    """Moments of the table after, padding row left out."""


@dataclass
class InitReport:
    """What `initialize` did; `str(report)` is a few lines to read, `to_dict()` is for JSON."""

    init: str
    seed: int
    options: dict[str, Any]
    tables: list[TableReport]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-serialisable values."""
        return asdict(self)

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
        return "\n".join(lines)


def initialize(
    model: PreTrainedModel,
    init: str,
    *,
    tokenizer: Any = None,
    vectors: VectorSource | None = None,
    target_vectors: VectorSource | None = None,
    seed: int = 0,
    token_counts: Sequence[int] | None = None,
    target_token_counts: Sequence[int] | None = None,
    allow_pickle: bool = False,
    **options: Any,
) -> InitReport:
    """Fills the input embedding tables of `model` by the initialiser named `init`, in place.

    Every input table is filled, the source's and the target's of an encoder-decoder with two vocabularies
    from `vectors` and `target_vectors` (default: `vectors` for both). A tied output follows its input table;
    an untied output projection and its bias are left as they are. The padding row is set to zero. All draws
    come from one generator seeded with `seed`; the global random state is not touched. Statistics leave out
    the padding row.

    Args:
        model: any transformers model with input embeddings.
        init: a name of the registry, see `list_initializers()`.
        tokenizer: needed by initialisers that look tokens up.
        vectors: a file of vectors, a checkpoint folder, a Hub id, or `PretrainedVectors`; the named sources
            (`bert`, `t5`, ...) have a Hub id of their own that this overrides.
        token_counts: how often each id occurs in the training text, for coverage by token.
        allow_pickle: read a source that has no safetensors from its `.bin` files.
        options: keyword options of the initialiser.

    Raises:
        UnknownNameError: `init` is not registered.
        InvalidArgumentError: an option, the width of the vectors or the tokenizer does not fit; the model is
        unchanged.
    """
    record = get_initializer(init)
    if record.purpose != "table":
        names = ", ".join(r.name for r in list_initializers(purpose="table"))
        raise InvalidArgumentError(
            f"init {init!r} makes rows beside an existing table (use hf_embinit.patch or expand_vocabulary); "
            f"whole tables are made by: {names}"
        )
    record.check_options(options)
    if "vectors" not in record.needs and (vectors is not None or target_vectors is not None):
        raise InvalidArgumentError(
            f"init {init!r} uses no vectors, but vectors={vectors or target_vectors!r} was given"
        )
    if "tokens" in record.needs and tokenizer is None:
        raise InvalidArgumentError(f"init {init!r} looks tokens up: give tokenizer=")

    tables = EmbeddingTables(model)
    generator = torch.Generator().manual_seed(seed)
    counts = {"target": target_token_counts}
    planned = []
    for (
        table
    ) in tables.input_tables:  # make every table before the first write: an error leaves the model unchanged
        given = vectors
        if table.side == "target" and target_vectors is not None:
            given = target_vectors
        context = table_context(model, record, table, tokenizer, given, generator, allow_pickle)
        rows = record.fn(context, **options)
        if context.padding_row is not None:
            rows[context.padding_row] = 0.0
        planned.append((table, context, rows, counts.get(table.side, token_counts)))

    reports = []
    for table, context, rows, table_counts in planned:
        keep = torch.arange(table.num_embeddings)
        if context.padding_row is not None:
            keep = keep[keep != context.padding_row]
        before = embedding_statistics(tables.read(table), rows=keep, effective_rank=False).to_dict()
        tables.write(table, rows)
        after = embedding_statistics(tables.read(table), rows=keep, effective_rank=False).to_dict()
        found = context.report.get("found")
        covered: Coverage | None = None
        if found is not None and context.tokens is not None:
            covered = coverage(context.tokens, found, special=context.special_rows, counts=table_counts)
            if covered.types_found < 0.5 * covered.types:
                logger.warning(
                    "init %s: only %d of %d tokens of %s were found in %s; the others were drawn at random",
                    init,
                    covered.types_found,
                    covered.types,
                    table.name,
                    context.vectors.name if context.vectors else None,
                )
        source = None
        if context.vectors is not None:
            source = {k: getattr(context.vectors, k) for k in ("name", "revision", "digest")}
        reports.append(
            TableReport(
                table=table.name,
                side=table.side,
                rows=table.num_embeddings,
                embedding_dim=table.embedding_dim,
                source=source,
                coverage=covered.to_dict() if covered is not None else None,
                before=before,
                after=after,
            )
        )
    report = InitReport(init, seed, options, reports)
    record_event(
        model.config,
        "initialize",
        init=init,
        seed=seed,
        options=options,
        tables=[
            {"name": r.table, "side": r.side, "rows": [0, r.rows], "source": r.source, "coverage": r.coverage}
            for r in reports
        ],
    )
    return report


def table_context(
    model: PreTrainedModel,
    record: Initializer,
    table: Table,
    tokenizer: Any,
    vectors: VectorSource | None,
    generator: torch.Generator,
    allow_pickle: bool,
) -> InitContext:
    """What `record` may read to make the whole of `table`; loads the vectors that it needs.

    Raises `InvalidArgumentError` when the tokenizer has more tokens than the table has rows, or when vectors
    are needed and none are named.
    """
    context = InitContext(
        num_rows=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        num_embeddings=table.num_embeddings,
        generator=generator,
        padding_row=table.padding_index,
        initializer_range=getattr(model.config, "initializer_range", None) or 0.02,
    )
    if tokenizer is not None:
        side: Side = "target" if table.side == "target" else "source"
        tokens = vocabulary(tokenizer, side)
        if len(tokens) > table.num_embeddings:
            raise InvalidArgumentError(
                f"the tokenizer has {len(tokens)} {side} tokens, but {table.name} has "
                f"{table.num_embeddings} rows: "
                f"resize the model's embeddings first or give the tokenizer that the model was built for"
            )
        # a padded table has more rows than tokens: they are drawn like missing tokens
        context.tokens = tokens + [""] * (table.num_embeddings - len(tokens))
        context.token_family = token_family(tokenizer)
        context.special_rows = frozenset(special_ids(tokenizer, side))
    if "vectors" in record.needs:
        spec = vectors if vectors is not None else record.defaults.get("vectors")
        if spec is None:
            raise InvalidArgumentError(
                f"init {record.name!r} needs vectors= (--vectors): a file of vectors, a checkpoint folder "
                f"or a Hub id"
            )
        assert context.tokens is not None
        wanted = word_candidates(context.tokens, context.token_family)
        context.vectors = load_vectors(spec, tokens=wanted, allow_pickle=allow_pickle)
    return context
