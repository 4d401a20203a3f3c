"""Rows for a list of ids, by one initialiser: the one way from a name to what is written.

`initialize`, a patched `resize_token_embeddings` and `_init_weights`, and `expand_vocabulary` all come here:
a `RowRequest` says how, `make_rows` makes the rows of every table from the tables as they are, and
`EmbeddingTables.change` writes them. Special tokens are never looked up in lists of words, whoever asks.

`V` rows of a vocabulary, `D` width, `R` rows to make. The draws for new rows come from generators seeded by
the seed, the table's name and the first id, so that ranks agree and a second resize does not repeat the
first one's draws; whole tables share one generator, in their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .arguments import FilePath, RowId, Seed, check_fields, shown
from .errors import InvalidArgumentError
from .initializers import (
    NEEDED_VECTORS,
    InitContext,
    Initializer,
    Purpose,
    get_initializer,
    plain_rows,
    require_finite,
    required,
)
from .moments import mixed_rows, sparse_shares
from .retokenize import Recipe, TokenTexts, overlap_map, role_map, rows_of_table, solve
from .tables import (
    EmbeddingTables,
    ResizePlan,
    RowsOf,
    Side,
    Table,
    input_positions,
    unusable_rows,
    usable_ids,
    without_rows,
)
from .tokens import (
    Vocabulary,
    read_vocabulary,
    split_texts,
    token_family,
    unknown_id,
    word_candidates,
)
from .vectors import PretrainedVectors, load_vectors

VectorSource = PretrainedVectors | FilePath

Override = str | tuple[str, Any]
"""An initialiser's name, or a name with its options; anything but a mapping is its first option."""


def check_init(init: str, options: Mapping[str, Any], *, purpose: Purpose | None = None) -> Initializer:
    """The record of an initialiser, its options checked; a name that is unknown raises `UnknownNameError`
    with names that serve `purpose`."""
    record = get_initializer(init, purpose=purpose)
    record.check_options(dict(options))
    return record


@dataclass
class RowRequest:
    """How to make rows. Raises `UnknownNameError` or `InvalidArgumentError` for bad arguments."""

    init: str
    seed: Seed = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    """The initialiser's own."""
    tokenizer: Any = None
    """The tokenizer with the new tokens in it."""
    old_tokenizer: Any = None
    """The tokenizer without them, for initialisers that split new tokens into old ones."""
    vectors: VectorSource | None = None
    target_vectors: VectorSource | None = None
    """For the target side, instead of `vectors`."""
    overrides: Mapping[str | int, Any] | None = None
    """New token or id -> initialiser for it alone: `"zeros"`, `("copy", "king")`, `("copy", {"of": 5})`."""
    exclude_rows: Collection[RowId] | None = None
    """Old rows that statistics leave out; None: those of `unusable_rows`."""
    allow_pickle: bool = False
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None
    """The vocabularies of the old and the new tokenizer, if known; None: they are read."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Texts, parallel text, a dictionary, a donor: what methods of purpose `tokenizer` read."""
    split: dict[str, list[int]] = field(default_factory=dict)
    """Cache of texts that the old tokenizer has split: text -> old ids."""

    def __post_init__(self) -> None:
        check_fields(
            self, "init", "seed", "options", "vectors", "target_vectors", "overrides", "exclude_rows"
        )
        self.record = check_init(self.init, self.options)
        self.others = {token: _override(spec) for token, spec in (self.overrides or {}).items()}
        records = [self.record, *(record for record, _ in self.others.values())]
        for record in records:
            alone = record is self.record and self.old_tokenizer is not None and record.purpose == "tokenizer"
            if record.purpose in ("tokenizer", "refinement") and not alone:
                way = "makes the rows of another tokenizer: use hf_embinit.replace_tokenizer"
                raise InvalidArgumentError(f"init {record.name!r} {way}")
            if "tokens" in record.needs and self.tokenizer is None:
                raise InvalidArgumentError(f"init {record.name!r} looks tokens up: give tokenizer=")
        self.needs_vectors = [record for record in records if "vectors" in record.needs]
        given, name = (self.vectors, "") if self.vectors is not None else (self.target_vectors, "target_")
        if given is not None and not self.needs_vectors:
            raise InvalidArgumentError(
                f"init {self.init!r} uses no vectors, but {name}vectors={shown(given)} was given"
            )
        self.given = {name: value for name, value in self.given.items() if value is not None}
        for name in self.given:
            if name not in self.record.needs:
                raise InvalidArgumentError(f"init {self.init!r} reads no {name}=: leave it out")
        for record in self.needs_vectors:
            if record.purpose == "tokenizer":
                continue  # one of several things that it can read
            if "vectors" not in record.defaults:
                required(given, NEEDED_VECTORS, record.name)

    def vectors_of(self, side: Side, record: Initializer) -> VectorSource:
        """The vectors that `record` reads for the tables of a side."""
        given = self.target_vectors if side == "target" and self.target_vectors is not None else self.vectors
        given = record.defaults.get("vectors") if given is None else given
        return required(given, "vectors= (only target_vectors= was given)", record.name)


def _override(spec: Any) -> tuple[Initializer, dict[str, Any]]:
    """Initialiser and options of one entry of `overrides`, checked."""
    if isinstance(spec, str):
        name, given = spec, dict[str, Any]()
    elif isinstance(spec, (tuple, list)) and len(spec) == 2 and isinstance(spec[0], str):
        name, given = spec
    else:
        raise InvalidArgumentError(f"overrides has {spec!r}: expected a name or (name, option)")
    record = check_init(name, {})
    if not isinstance(given, Mapping):
        if not record.options:
            raise InvalidArgumentError(f"overrides has {spec!r}, but init {name!r} has no option")
        given = {next(iter(record.options)): given}
    record.check_options(dict(given))
    return record, dict(given)


@dataclass
class MadeRows(RowsOf):
    """Rows of one table, and the facts about them for the report."""

    source: dict[str, Any] | None = None
    """Name, revision and digest of pre-trained vectors."""
    usable: int = 0
    """n: number of old rows in the statistics."""
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Reason -> old rows left out of the statistics."""
    context: InitContext = None  # type: ignore[assignment]


def make_rows(
    tables: EmbeddingTables,
    request: RowRequest,
    plan: ResizePlan | None = None,
    ids: Sequence[int] | None = None,
) -> list[RowsOf]:
    """The rows of each table for `tables.change` to write: `MadeRows`, then the entries of output biases.

    With a plan: rows for its new ids (or for `ids`) of every table of its side, each from the table's own old
    rows, and entries of each bias from its own. Without: whole input tables. Writes nothing. Raises
    `InvalidArgumentError` where request, tokenizer and tables do not fit together.
    """
    maker = _Maker(tables, request, plan, ids)
    wanted = tables.input_tables if plan is None else tables.own_tables
    made = [maker.rows(table) for table in wanted if maker.ids_of(table) and table.embedding_dim]
    return [*made, *maker.biases(made)]


class _Maker:
    """One call of `make_rows`: what its tables share is read once."""

    def __init__(
        self,
        tables: EmbeddingTables,
        request: RowRequest,
        plan: ResizePlan | None,
        ids: Sequence[int] | None,
    ):
        self.tables, self.request, self.plan, self.ids = tables, request, plan, ids
        self.generator = torch.Generator().manual_seed(request.seed)
        self._readings: dict[Side, _Reading] = {}
        self._vectors: dict[tuple[Side, int], PretrainedVectors] = {}
        self._recipes: dict[Side, tuple[Recipe, dict[str, Any]]] = {}

    def ids_of(self, table: Table) -> Sequence[int]:
        """Rows to make for a table."""
        if self.plan is None:
            return range(table.num_embeddings)
        if table.name not in self.plan.new_rows:
            return ()
        return self.plan.new_rows[table.name] if self.ids is None else self.ids

    def rows(self, table: Table) -> MadeRows:
        """The rows of one table."""
        ids, request = self.ids_of(table), self.request
        context, left_out = self._context(table, ids)
        if request.record.purpose == "tokenizer":
            rows, source = self._mixed(table, ids, context), None
            require_finite(rows, f"init {request.init!r} made", table.name, table.parameter.dtype)
        else:
            rows, source = self._call(request.record, context, table, request.options)
        if request.others:
            rows = rows.clone()  # an initialiser may keep what it returns
        positions = _positions(context, ids) if request.others else {}
        for token, (record, options) in request.others.items():
            if token not in positions:
                raise InvalidArgumentError(f"overrides names {token!r}, which is none of the new tokens")
            position = positions[token]
            one = context.only(position, self._generator(f"{table.name} override", ids[position]))
            try:
                rows[position], _ = self._call(record, one, table, options)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{(one.texts or [str(token)])[0]!r}: {error}") from error
            context.mix_as(one, position)
        if context.padding_row is not None:
            rows[context.padding_row] = 0.0
        old = 0 if context.existing is None else len(context.existing)
        usable = old if context.usable_ids is None else int(context.usable_ids.numel())
        return MadeRows(table, ids, rows, source=source, usable=usable, left_out=left_out, context=context)

    def biases(self, made: list[MadeRows]) -> list[RowsOf]:
        """New entries of output biases: means of old ones, of all or of those that rows are made of."""
        if self.plan is None:
            return []
        ids = self.plan.new_ids if self.ids is None else self.ids
        context_of = {id(m.table.tied): m.context for m in made}
        writes: list[RowsOf] = []
        for table in self.tables.output_tables:
            if not table.bias or not len(ids) or table.side != self.plan.side:
                continue
            context = context_of.get(id(table.tied))
            usable = None if context is None else context.usable_ids
            means: list[Tensor | float] = []
            for bias in self.tables.biases(table):
                old = bias[: self.plan.old_num] if usable is None else bias[usable.to(bias.device)]
                old = old[torch.isfinite(old)]
                if not len(old):
                    raise InvalidArgumentError(f"no old entry of the bias of {table.name} is finite")
                mean = old.float().mean()
                if context is not None and context.shares is not None:
                    entries = bias[: context.shares.shape[1]].float()
                    entries = torch.where(torch.isfinite(entries), entries, mean)
                    mixed = mixed_rows(entries[:, None], context.shares)[:, 0]
                    made_of = torch.zeros(len(mixed), dtype=torch.bool, device=mixed.device)
                    made_of[context.shares.indices()[0].to(mixed.device)] = True
                    means.append(torch.where(made_of, mixed, mean))
                else:
                    means.append(mean)
            writes.append(RowsOf(table, (), biases=means, bias_ids=ids))
        return writes

    def _mixed(self, table: Table, ids: Sequence[int], context: InitContext) -> Tensor:
        """Rows by a method of purpose `tokenizer`: the tokenizer with the new tokens is the new one."""
        request, old = self.request, context.existing
        assert old is not None and self.plan is not None
        if table.side not in self._recipes:
            there = TokenTexts(request.tokenizer, table.side)
            here = TokenTexts(request.old_tokenizer, table.side)
            vectors = {} if request.vectors is None else {"vectors": request.vectors}
            maps = {"overlap": overlap_map(there, here), "copied": role_map(there, here)}
            given = {**request.given, **vectors}
            self._recipes[table.side] = solve(
                request.record, request.options, there, here, old, given=given, seed=request.seed, **maps
            )
        recipe, report = self._recipes[table.side]
        part, groups = recipe.part_of(table.role, torch.tensor(list(ids)))
        context.report.update(report, steps=part.counts())
        entries = torch.stack([part.new_ids, part.indices])
        context.shares = sparse_shares(entries, part.values, part.shape)
        if context.not_finite:
            old = self.tables.read_old(table, self.plan)  # broken rows, too, which `apply` refuses
        usable = context.usable_ids
        return rows_of_table(part, old, context.generator, usable=usable, groups=groups).float()

    def _generator(self, name: str, first: int) -> torch.Generator:
        digest = hashlib.sha256(f"{self.request.seed} {name} {first}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def _context(self, table: Table, ids: Sequence[int]) -> tuple[InitContext, dict[str, list[int]]]:
        """The context of an initialiser, and the old rows that statistics leave out, by reason."""
        plan, reading = self.plan, self._reading(table.side)
        config = self.tables.model.config.get_text_config()
        ranges = (getattr(config, name, None) for name in ("initializer_range", "init_std"))
        context = InitContext(
            num_rows=len(ids),
            embedding_dim=table.embedding_dim,
            num_embeddings=table.num_embeddings,
            generator=self.generator,
            role="output" if table.role == "output" else "input",
            initializer_range=next((given for given in ranges if given is not None), 0.02),
        )
        left_out: dict[str, list[int]] = {}
        if plan is None:
            context.padding_row = table.padding_index
        else:
            old = self.tables.read_old(table, plan)
            context.num_embeddings = plan.new_num + table.rows_beyond
            context.generator = self._generator(table.name, ids[0])
            tokens = None if reading is None else reading.old.tokens
            left_out = unusable_rows(
                old, table, tokens=tokens, exclude_rows=self.request.exclude_rows, filled=ids
            )
            context.usable_ids = usable_ids(left_out, len(old))
            context.not_finite = frozenset(left_out.get("not_finite", ()))
            context.existing = without_rows(old, left_out.get("not_finite", ()))
        if reading is not None:
            reading.fill(context, table, ids)
        return context, left_out

    def _reading(self, side: Side) -> _Reading | None:
        if self.request.tokenizer is None:
            return None
        if side not in self._readings:
            self._readings[side] = _Reading(self.request, side, whole=self.plan is None)
        return self._readings[side]

    def _call(
        self, record: Initializer, context: InitContext, table: Table, options: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Any] | None]:
        """Rows `[R, D]` float32 and the source of the vectors that were read, if any."""
        if "vectors" in record.needs:
            spec = self.request.vectors_of(table.side, record)
            key = (table.side, id(spec))
            if key not in self._vectors:
                reading = self._reading(table.side)
                assert reading is not None
                self._vectors[key] = load_vectors(
                    spec,
                    tokens=reading.wanted(self.ids_of(table)),
                    allow_pickle=self.request.allow_pickle,
                )
            context.vectors = self._vectors[key]
        if "positions" in record.needs:
            context.positions = input_positions(self.tables.model, table)
        made = record.fn(context, **options)
        rows = plain_rows(made, context, record.name, table.name, table.parameter.dtype)
        return rows, context.vectors.source if context.vectors is not None else None


class _Reading:
    """The vocabulary of one side, by the tokenizer and by the one without the new tokens."""

    def __init__(self, request: RowRequest, side: Side, whole: bool):
        self.tokenizer, self.side, self.whole = request.tokenizer, side, whole
        self.splitter = request.tokenizer if request.old_tokenizer is None else request.old_tokenizer
        self.split = request.split
        self.known = request.vocabularies
        self.new = self.known[1] if self.known else read_vocabulary(self.tokenizer, side)
        self.family = "words"
        if request.needs_vectors:
            with suppress(*([] if whole else [InvalidArgumentError])):  # new rows can go by their text
                self.family = token_family(self.splitter)

    @cached_property
    def old(self) -> Vocabulary:
        """The vocabulary before tokens were added."""
        if self.known:
            return self.known[0]
        return self.new if self.splitter is self.tokenizer else read_vocabulary(self.splitter, self.side)

    def fill(self, context: InitContext, table: Table, ids: Sequence[int]) -> None:
        """Adds the tokens to `context`."""
        known = self.new.tokens
        if self.whole and len(known) > table.num_embeddings:
            side = "source" if self.side == "shared" else self.side
            raise InvalidArgumentError(
                f"the tokenizer has {len(known)} {side} tokens, but {table.name} has {table.num_embeddings} "
                f"rows: resize the model's embeddings first or give the tokenizer that it was built for"
            )
        # a padded table has more rows than tokens: they are made like those of missing tokens
        context.tokens = [known[i] if i < len(known) else "" for i in ids]
        context.special_rows = frozenset(p for p, i in enumerate(ids) if i in self.new.special)
        context.added_rows = frozenset(p for p, i in enumerate(ids) if i in self.new.added)
        context.token_family = self.family
        if context.existing is not None:
            count = len(context.existing)
            context.texts = self.texts(ids)
            context.existing_tokens = self.old.tokens[:count]
            context.existing_added = frozenset(i for i in self.old.added if i < count)
            context.tokenize = splitter(self.splitter, frozenset(ids), count, self.split)
            context.unknown_id = unknown_id(self.splitter)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The surface text of each id's token: the content of an added token, else the decoded token."""
        added = {i: t.content for i, t in getattr(self.tokenizer, "added_tokens_decoder", {}).items()}
        known = self.new.tokens
        return [
            (added.get(i) or self.tokenizer.decode([i])) if i < len(known) and known[i] else "" for i in ids
        ]

    def wanted(self, ids: Sequence[int]) -> list[str]:
        """The words to look up in vectors."""
        if self.whole:
            return word_candidates(self.new.tokens, self.family, plain=self.new.added)
        words = [text.strip() for text in self.texts(ids)]
        old = word_candidates(self.old.tokens, self.family, plain=self.old.added)
        return [*words, *map(str.lower, words), *old]


def splitter(
    tokenizer: Any, new: Collection[int], num_old: int, known: dict[str, list[int]]
) -> Callable[[list[str]], list[list[int]]]:
    """A function that splits texts into ids of old rows; `known` caches them.

    That function raises `InvalidArgumentError` for a text that is a new token.
    """

    def tokenize(texts: list[str]) -> list[list[int]]:
        missing = [text for text in texts if text not in known]
        known.update(zip(missing, split_texts(tokenizer, missing), strict=True))
        split = [known[text] for text in texts]
        for text, ids in zip(texts, split, strict=True):
            if any(i >= num_old or i in new for i in ids):
                raise InvalidArgumentError(
                    f"{text!r} is one token of the tokenizer already, so it has no pieces: give the "
                    f"tokenizer before tokens are added to it (patch keeps a copy)"
                )
        return split

    return tokenize


def _positions(context: InitContext, ids: Sequence[int]) -> dict[str | int, int]:
    """The index among the rows to make, of each id, text and token."""
    positions: dict[str | int, int] = {}
    for position, i in enumerate(ids):
        positions[i] = position
    for names in (context.texts or [], context.tokens or []):
        for position, name in reversed(list(enumerate(names))):
            positions[name] = position
    return positions
