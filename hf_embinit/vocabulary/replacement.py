"""`replace_tokenizer`: another tokenizer for a trained model, its rows made of the old ones."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..arguments import Count, Seed, Tokenizer, checked
from ..errors import InvalidArgumentError, VocabularyWarning
from ..initializers import Initializer, list_initializers, require_finite
from ..manifest import warn_of_another_tokenizer
from ..retokenize import (
    SIBLINGS,
    Match,
    TokenTexts,
    bias_of_table,
    overlap_map,
    role_map,
    rows_of_table,
    solve,
)
from ..rows import check_init
from ..tables import (
    EmbeddingTables,
    ResizePlan,
    RowsOf,
    Side,
    Table,
    untied,
    unusable_rows,
    unwrap,
    usable_ids,
)
from ..tokens import tokenizer_of
from .following import Following
from .moved_ids import START, MovedIds, start_instead
from .new_ids import check_size, refuse_unnamed_ids
from .refining import Refinement, check_refinable, read_refinement, refine_rows
from .replacement_report import ReplacedSide, ReplacementReport

_GIVEN = ("vectors", "texts", "parallel", "dictionary", "donor")
_AUTO = {
    "parallel": ("trans_tokenizer", "parallel text was given, whose alignments count best of all"),
    "dictionary": ("trans_tokenizer", "a dictionary was given, whose lines count as parallel text"),
    "donor": ("omp", "a donor model was given that has the new tokenizer"),
    "texts": ("align", "text was given, on which both tokenizers' tokens can be laid over each other"),
    "vectors": ("focus", "vectors were given, in which new tokens can be compared with shared ones"),
}
"""What is given -> the method for it, the first that holds."""


@checked
def replace_tokenizer(
    model: Any,
    old_tokenizer: Tokenizer,
    new_tokenizer: Tokenizer,
    init: str = "auto",
    *,
    vectors: Any = None,
    texts: Iterable[str] | None = None,
    parallel: Any = None,
    dictionary: Any = None,
    donor: Any = None,
    seed: Seed = 0,
    match: Match = "canonical",
    row_norm: bool = False,
    pad_to_multiple_of: Count | None = None,
    refine: str | None = None,
    untie: bool = False,
    **options: Any,
) -> ReplacementReport:
    """Gives a model the vocabulary of another tokenizer, in place, and says what every row was made of.

    A method gives one sparse matrix of weights, new tokens by old ones. It makes the rows of every table and
    the entries of every output bias from their own old ones. Special tokens copy the one of their role.
    What the method leaves is the same token of the old vocabulary, else the mean of the pieces that the old
    tokenizer splits the token into, else a draw. Ids in all configurations follow by role; `new_tokenizer`
    gains the old one's chat template, maximum length and padding side where it says nothing. An error
    leaves everything as it was.

    Args:
        model: a model of transformers or of `open_checkpoint`, or what holds one.
        init: a method of `list_initializers(purpose="tokenizer")`, `mean`, or `auto`, which goes by what is
            given. `options` are the method's own.
        vectors: vectors of a helper space, for methods that compare tokens there.
        texts: text of the new tokenizer's language.
        parallel: pairs of sentences, or a file of them: the old tokenizer's language and the new one's.
        dictionary: pairs of words, or a file of them, in the same order.
        donor: a model that has the new tokenizer, or its folder.
        match: how tokens of both vocabularies are found: `canonical`, `fuzzy` (a new token that has
            no other takes the row of its lower-case form), `exact`.
        row_norm: sums of rows get the norm that those rows have on average.
        pad_to_multiple_of: makes the number of rows a multiple of this; the rows beyond are the mean.
        refine: refinements of `list_initializers(purpose="refinement")`, which make rows better by the
            model's hidden states: `token_distillation` (reads `texts=`) or `tokens2words` those of the input,
            `first_piece_shares` (reads `texts=`) those of the output; with options, and joined by `+`, such
            as `token_distillation:steps=100+first_piece_shares`.
        untie: gives the output table rows of its own first, where it is tied to the input's.

    Raises:
        UnknownNameError: `init` is not registered.
        InvalidArgumentError: tokenizers, data and model do not fit together, or an old row is not finite.
        UnsupportedModelError: the model keeps tables or reads ids in a way that cannot be handled.
    """
    if texts is not None and not isinstance(texts, Collection):
        texts = list(texts)  # read several times
    values = (vectors, texts, parallel, dictionary, donor)
    given = {name: value for name, value in zip(_GIVEN, values, strict=True) if value is not None}
    refinements = read_refinement(refine)
    record, why = _method(init, given, options, refinements)
    request = _Request(record, why, options, given, seed, match, row_norm, pad_to_multiple_of, refinements)
    tokenizers = tokenizer_of(old_tokenizer), tokenizer_of(new_tokenizer)
    warn_of_another_tokenizer(unwrap(model), tokenizers[0])
    with untied(unwrap(model)) if untie else contextlib.nullcontext():
        report = _replace(model, *tokenizers, request)
    if tokenizers[0] is not old_tokenizer and tokenizers[1] is new_tokenizer:
        report.notes.append("the processor keeps the old tokenizer: make one with the new tokenizer")
    if 2 * report.steps.get("random", 0) > sum(report.steps.values()) and record.name != "random":
        warnings.warn(
            f"more than half of the new rows are at random ({report.steps['random']} of "
            f"{sum(report.steps.values())}), so the model has to learn them: give text or vectors of the "
            f"language",
            VocabularyWarning,
            stacklevel=3,
        )
    return report


@dataclass(frozen=True)
class _Request:
    """How the rows of a new vocabulary are made, checked."""

    record: Initializer
    why: str
    """Why this method, where `auto` picked it."""
    options: dict[str, Any]
    given: dict[str, Any]
    seed: int
    match: Match
    row_norm: bool
    pad_to_multiple_of: int | None
    refinements: list[Refinement]

    def to_dict(self) -> dict[str, Any]:
        """What a report and a manifest say of it."""
        said: dict[str, Any] = {"init": self.record.name, "seed": self.seed, "options": dict(self.options)}
        said["row_norm"] = self.row_norm
        if self.refinements:
            said["refine"] = [{"init": one.name, "options": options} for one, options in self.refinements]
        return said


def _replace(model: Any, old: Any, new: Any, request: _Request) -> ReplacementReport:
    """Works everything out, then writes it."""
    tables = EmbeddingTables(model)
    _check_sides(tables, old, new)
    if request.refinements:
        check_refinable(tables, "+".join(one.name for one, _ in request.refinements))
    sides: dict[Side, _Side] = {}
    for name in sorted({table.side for table in tables.tables}):
        sides[name] = _Side(tables, name, old, new, request).solve(request)
    moved = _moved(tables, sides)
    writes = [write for side in sides.values() for write in side.writes(request)]
    report = _report(request, sides, moved)
    if request.refinements:
        (side,) = sides.values()
        report.details |= refine_rows(
            tables, request.refinements, writes, side.old, side.new, side.recipe.input.step,
            texts=request.given.get("texts"), seed=request.seed,
        )  # fmt: skip
    made = f"init {request.record.name!r} made"
    for write in writes:
        if write.rows is not None:
            require_finite(write.rows, made, write.table.name, write.table.parameter.dtype)
    news = {name: side.new for name, side in sides.items()}
    follow = Following(model, tables, news, old, new, report.notes)

    def then() -> None:
        moved.write()
        follow.write()

    tables.change([side.plan for side in sides.values()], writes, then, event=_event(report, request))
    return report


def _method(
    init: str,
    given: Mapping[str, Any],
    options: dict[str, Any],
    refinements: list[Refinement],
) -> tuple[Initializer, str]:
    """The record of a method, and why `auto` picked it."""
    why = ""
    if init == "auto":
        known = {record.name for record in list_initializers(purpose="tokenizer")}
        found = [(name, _AUTO[name]) for name in _AUTO if name in given and _AUTO[name][0] in known]
        if found:
            init, why = found[0][1]
            given = {found[0][0]: None}  # `auto` may have more than the method reads
        else:
            init, why = "fvt", "nothing but the tokenizers was given"
    record = check_init(init, options, purpose="tokenizer")
    if record.purpose == "refinement":
        raise InvalidArgumentError(
            f"init {init!r} makes rows that are there better: give refine={init!r} (--refine) beside an init"
        )
    if record.purpose != "tokenizer" and record.name != "mean":
        names = ", ".join(r.name for r in list_initializers(purpose="tokenizer"))
        raise InvalidArgumentError(
            f"init {init!r} makes no rows for another tokenizer: choose mean, {names}, or auto"
        )
    needs = record.needs.union(*(one.needs for one, _ in refinements))
    for name in given:
        if name not in needs:
            raise InvalidArgumentError(
                f"init {init!r} reads no {name}=: leave it out, or choose a method that does"
            )
    return record, why


def _check_sides(tables: EmbeddingTables, old: Any, new: Any) -> None:
    """Raises `InvalidArgumentError` where a tokenizer has not as many vocabularies as the model."""
    two = len({table.side for table in tables.tables}) > 1
    parts = [getattr(tables.model, part, None) for part in ("encoder", "decoder")]
    if two and all(isinstance(part, PreTrainedModel) for part in parts):
        raise InvalidArgumentError(
            f"{type(tables.model).__name__} has two vocabularies: replace the tokenizers of model.encoder "
            f"and of model.decoder one by one, then set decoder_start_token_id, pad_token_id and "
            f"eos_token_id of model.config and model.generation_config to the ids of the new ones"
        )
    for name, tokenizer in (("old", old), ("new", new)):
        refuse_unnamed_ids(tokenizer)
        if two != bool(getattr(tokenizer, "separate_vocabs", False)):
            has, wants = ("one vocabulary", "two") if two else ("two vocabularies", "one")
            raise InvalidArgumentError(
                f"{name}_tokenizer={type(tokenizer).__name__} has {has}, but the model has {wants}: give a "
                f"tokenizer with separate_vocabs={two}"
            )


class _Side:
    """One vocabulary of the model: its tokens, its coefficients, and the rows of its tables."""

    def __init__(
        self,
        tables: EmbeddingTables,
        side: Side,
        old_tokenizer: Any,
        new_tokenizer: Any,
        request: _Request,
    ):
        self.tables, self.side = tables, side
        self.old, self.new = TokenTexts(old_tokenizer, side), TokenTexts(new_tokenizer, side)
        rows = tables.vocab_size(side)
        check_size(tables, len(self.old), rows, "old_tokenizer")
        self.plan: ResizePlan = tables.plan(len(self.new), request.pad_to_multiple_of, side)
        self.own = [t for t in tables.own_tables if t.side == side and t.embedding_dim]
        self.copied = role_map(self.new, self.old)
        pad = self.new.roles.get("pad")
        padding = next((t.padding_index for t in self.own if t.padding_index is not None), None)
        if pad is not None and padding is not None and self.copied[pad] < 0:
            self.copied[pad] = padding
        self.overlap = overlap_map(self.new, self.old, request.match)
        self.start: tuple[int, int] | None = None
        self._keep_start(rows)

    def _keep_start(self, rows: int) -> None:
        """What decoding starts from instead copies the row that it started from, unless it has its own."""
        start = getattr(self.tables.model.config, START, None)
        if self.side == "source" or not isinstance(start, int) or start in self.new_id() or start >= rows:
            return
        instead = start_instead(self.new)
        if instead is not None and self.copied[instead] < 0:
            self.copied[instead] = start
            self.start = (start, instead)

    def solve(self, request: _Request) -> _Side:
        """Works the coefficients out."""
        record = request.record
        self.recipe, self.details = solve(
            record,
            request.options,
            self.new,
            self.old,
            self.old_rows(next(t for t in self.own if t.role == "input")),
            overlap=self.overlap,
            copied=self.copied,
            given=request.given,
            seed=request.seed,
        )
        if all(table.role != "output" for table in self.own):  # tied: there are no other rows to explain
            self.recipe = replace(self.recipe, output=self.recipe.input)
        self.steps = self.recipe.input.counts()
        drawn = self.steps.get("random", 0) + self.steps.get("mean", 0) + self.steps.get("copied", 0)
        if drawn == len(self.new):
            raise InvalidArgumentError(
                f"old_tokenizer and new_tokenizer have no token in common, and {record.name!r} finds no "
                f"other source: give parallel= text, or a tokenizer of this language"
            )
        return self

    def old_rows(self, table: Table) -> torch.Tensor:
        """The rows of a table for the old ids, `[V, D]`."""
        return self.tables.read_old(table, self.plan)[: self.plan.old_num]

    def writes(self, request: _Request) -> list[RowsOf]:
        """New rows of every table and entries of every output bias."""
        count = self.plan.new_num
        inputs, outputs = (part.padded(count) for part in (self.recipe.input, self.recipe.output))
        if self.tables.companions:
            self.plan.origins = inputs.heaviest()
        groups = self.recipe.groups
        if groups is not None:
            groups = groups._replace(
                new=torch.nn.functional.pad(groups.new, (0, count - len(groups.new)), value=-1)
            )
        made = []
        for number, table in enumerate(self.own):
            old = self.old_rows(table)
            left_out = unusable_rows(old, table, tokens=self.old.tokens)
            part = outputs if table.role == "output" else inputs
            generator = torch.Generator().manual_seed((request.seed + number) % 2**63)
            usable = usable_ids(left_out, len(old))
            rows = rows_of_table(
                part, old, generator, usable=usable, groups=groups, row_norm=request.row_norm
            )
            made.append(RowsOf(table, range(count), rows))
        for table in self.tables.output_tables:
            if table.side == self.side and table.bias:
                part = outputs if table.tied_to is None else inputs
                biases = [bias_of_table(part, bias) for bias in self.tables.biases(table)]
                made.append(RowsOf(table, (), biases=biases, bias_ids=range(count)))
        return made

    def new_id(self) -> dict[int, int]:
        """Old id -> the new one that takes its place, by role, by spelling, by text."""
        pairs: dict[int, int] = {}
        roles = sorted(self.old.roles.items(), key=lambda pair: pair[0] == "unk")  # last: GPT-2's ends texts
        for role, i in roles:
            if role in self.new.roles and role != "unk":
                pairs.setdefault(i, self.new.roles[role])
        for role, i in roles:
            if (name := SIBLINGS.get(role, role)) in self.new.roles:
                pairs.setdefault(i, self.new.roles[name])
        for i in sorted((self.old.special | self.old.added) & set(range(len(self.old)))):
            if self.old.tokens[i] in self.new.ids:
                pairs.setdefault(i, self.new.ids[self.old.tokens[i]])
        for found in (self.copied, self.overlap):
            for new in (found >= 0).nonzero().flatten().tolist():
                if (int(found[new]), new) != self.start:  # a row of the decoder's start, and no padding
                    pairs.setdefault(int(found[new]), new)
        return pairs


def _moved(tables: EmbeddingTables, sides: dict[Side, _Side]) -> MovedIds:
    """The ids of all configurations, by the only vocabulary or by both."""

    def of(side: _Side, target: MovedIds | None = None) -> MovedIds:
        return MovedIds(tables, side.plan.old_num, side.old, side.new, side.new_id(), target)

    if "target" in sides:
        return of(sides["source"], of(sides["target"]))
    return of(next(iter(sides.values())))


def _report(request: _Request, sides: dict[Side, _Side], moved: MovedIds) -> ReplacementReport:
    changed = {
        f"{type(field.holder).__name__}.{field.name}": [field.value, value]
        for field, value in moved.fields
        if field.value != value and re.search("Config", type(field.holder).__name__)
    }
    return ReplacementReport(
        **request.to_dict(),
        why=request.why,
        old_num_embeddings=[side.plan.old_num for side in sides.values()],
        new_num_embeddings=[side.plan.new_num for side in sides.values()],
        sides={name: ReplacedSide(s.old, s.new, s.recipe, s.steps) for name, s in sides.items()},
        moved_ids=changed,
        details={key: value for side in sides.values() for key, value in side.details.items()},
    )


def _event(report: ReplacementReport, request: _Request) -> dict[str, Any]:
    return {
        "event": "replace_tokenizer",
        **request.to_dict(),
        "rows": [sum(report.old_num_embeddings), sum(report.new_num_embeddings)],
        "steps": report.steps,
        "tokenizers": {
            name: {"old": side.old.digest, "new": side.new.digest} for name, side in report.sides.items()
        },
        "details": report.details,
    }
