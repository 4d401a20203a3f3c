"""`expand_vocabulary`: tokens, rows, head, biases and a report in one call."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedModel

from ..arguments import Seed, Tokenizer, checked, shown
from ..errors import InvalidArgumentError, VocabularyWarning
from ..initializers import InitContext, Initializer
from ..measures import expansion_bound
from ..resize import fill_report
from ..rows import MadeRows, RowRequest, check_init, make_rows, splitter
from ..tables import (
    EmbeddingTables,
    ResizePlan,
    RowsOf,
    Side,
    checkpoint_of,
    forward_passes,
    is_partitioned,
)
from ..tokens import tokenizer_of, unknown_id
from .id_fields import find_skipped_words
from .new_ids import check_new_ids
from .new_row_training import token_modules
from .new_tokens import CheckedTokens, append, check_new_tokens
from .report import ExpansionReport, TokenPlan
from .shift import ShiftMeter, effective_rank, smallest_distance
from .slots import SlotFiller, Slots


@checked
def expand_vocabulary(
    model: Any,
    tokenizer: Tokenizer,
    new_tokens: Sequence[str | AddedToken],
    init: str = "mean",
    *,
    seed: Seed = 0,
    overrides: Mapping[str, Any] | None = None,
    prefixes: Sequence[str] | Literal["generated"] | None = None,
    dry_run: bool = False,
    pad_to_multiple_of: int | None = None,
    vectors: Any = None,
    texts: Iterable[str] | None = None,
    parallel: Any = None,
    dictionary: Any = None,
    donor: Any = None,
    exclude_rows: Collection[int] | None = None,
    side: Side = "shared",
    slots: Slots | None = None,
    **options: Any,
) -> ExpansionReport:
    """Adds tokens to `tokenizer` and rows for them to every table of `model`, in place, and says what it did.

    The matrix grows only when the tokenizer's new ids reach past it: padding rows that the new ids fall on
    are initialised, and none is cut off. Rows that come from `pad_to_multiple_of` are initialised too, since
    zeros can take all the probability. An error or an interrupt leaves the model and the tokenizer unchanged;
    one while distributions are compared, at the end, leaves both changed.

    Args:
        model: a model of transformers, or what holds one: a PEFT model, a SentenceTransformer, a pipeline.
        tokenizer: the model's own, or a processor with it.
        new_tokens: strings, or `AddedToken` for stripping, normalisation and special tokens.
        init: name of an initialiser for rows, see `list_initializers(purpose="rows")`, or of a method for
            another tokenizer, which this is a case of; `options` are its own.
        overrides: new token -> initialiser for it alone: `"zeros"`, `("copy", "king")`,
            `("description", "a forest of elves")`, `("copy", {"of": ["king", "man"]})`.
        prefixes: texts to compare next-token distributions on, before and after (`report.shift`);
            `"generated"` for some that the model writes itself, `()` for no comparison. The default is
            `"generated"`, and `()` for a model of `open_checkpoint`, of which each forward pass reads all
            files: two for each given text, 17 for generated ones; for one that ZeRO-3 has sharded, which runs
            in DeepSpeed's engine alone; and for `side="target"`, whose tokens an encoder cannot read.
        dry_run: gives the plan alone and changes nothing.
        pad_to_multiple_of: makes the number of rows a multiple of this.
        vectors: pre-trained vectors for `pretrained_map` and for table initialisers that read them.
        texts, parallel, dictionary, donor: what methods for another tokenizer read (see `replace_tokenizer`).
        exclude_rows: old rows that statistics leave out; by default padding, reserved and never-trained ones.
        side: `source` or `target` for a model with two vocabularies, each with a tokenizer of its own; one
            tokenizer with both is for `replace_tokenizer`.
        slots: `"reserved"` gives the new tokens the ids of unused ones (`[unused3]`, `<extra_id_99>`), which
            are renamed in the tokenizer, so that no table changes its shape; those that a configuration, a
            chat template or a post-processor names count as used. Or the ids to take, in the tokens' order.

    Raises:
        UnknownNameError: `init` is not registered.
        InvalidArgumentError: a token, an option or the tokenizer does not fit.
        UnsupportedModelError: the model keeps its tables in a way that cannot be handled.
    """
    holder, tables = tokenizer, EmbeddingTables(model)
    tokenizer = _with_one_vocabulary(tokenizer_of(holder))
    old_rows, prefixes = tables.vocab_size(side), _compared(tables, prefixes, side)
    read = {"texts": texts, "parallel": parallel, "dictionary": dictionary, "donor": donor}
    given = {"vectors": vectors, "exclude_rows": _left_out(exclude_rows, old_rows), "given": read}
    filler = None
    if slots is not None:
        filler = SlotFiller(tables, tokenizer, slots, old_rows, pad_to_multiple_of, holder)
    check_init(init, options)
    checked = check_new_tokens(tokenizer, new_tokens, side, append if filler is None else filler.fill)
    request = _request(tokenizer, checked, init, seed, options, overrides or {}, given)
    check_new_ids(tables, tokenizer, checked, old_rows, side)
    asked = max(checked.ids) + 1
    plan = replace(tables.plan(max(old_rows, asked), pad_to_multiple_of, side), asked=asked)
    plans = _plan(request, checked, old_rows, filler)
    report = ExpansionReport(
        init=init, seed=seed, options=dict(options), tokens=plans, dry_run=dry_run,
        old_num_embeddings=old_rows, new_num_embeddings=plan.new_num, bound=None, coverage=_coverage(plans),
        trainable_token_indices={name: list(checked.ids) for name in token_modules(tables, side)},
    )  # fmt: skip
    if not dry_run:
        _expand(tables, tokenizer, checked, request, plan, report, prefixes)
    return report


def _with_one_vocabulary(tokenizer: Any) -> Any:
    if getattr(tokenizer, "separate_vocabs", False):
        raise InvalidArgumentError(
            f"{type(tokenizer).__name__} keeps two vocabularies and adds a token to both, and this grows one "
            f"side of a model: add the tokens to a copy of it, and give both to replace_tokenizer(model, "
            f"tokenizer, copy), which keeps all other rows"
        )
    return tokenizer


def _compared(tables: EmbeddingTables, prefixes: Sequence[str] | None, side: Side) -> Sequence[str]:
    """The texts to compare distributions on. Raises `InvalidArgumentError` for some where no model runs."""
    if side == "target":  # an encoder cannot read its tokens
        if prefixes:
            raise InvalidArgumentError(
                f"prefixes={shown(prefixes)} with side='target': the encoder reads tokens of the source "
                f"alone; leave them out (and --measure)"
            )
        return ()
    partitioned = any(is_partitioned(table.parameter) for table in tables.tables)
    if prefixes and partitioned:
        raise InvalidArgumentError(
            f"prefixes={shown(prefixes)}: a model that ZeRO-3 has sharded runs in its engine alone, leave "
            f"them out"
        )
    if prefixes is None:
        return () if partitioned or checkpoint_of(tables.model) is not None else "generated"
    return prefixes


def _left_out(exclude_rows: Collection[int] | None, rows: int) -> Collection[int] | None:
    """What was given. Raises `InvalidArgumentError` for rows that the model lacks, and for all of them."""
    left_out = {int(i) for i in (() if exclude_rows is None else exclude_rows)}
    wrong = sorted(i for i in left_out if not 0 <= i < rows)
    if wrong or len(left_out) == rows:
        raise InvalidArgumentError(
            f"exclude_rows has {wrong[0] if wrong else 'every row'}: the model has rows from 0 to "
            f"{rows - 1}, of which one at least has to stay"
        )
    return exclude_rows


def _request(
    tokenizer: Any,
    checked: CheckedTokens,
    init: str,
    seed: int,
    options: dict[str, Any],
    overrides: Mapping[str, Any],
    given: dict[str, Any],
) -> RowRequest:
    """How the rows of checked tokens are made, checked."""
    for token in overrides:
        if token not in checked.id_of:
            raise InvalidArgumentError(f"overrides names {token!r}, which is none of the new tokens")
    return RowRequest(
        init,
        seed,
        options,
        checked.extended,
        tokenizer,
        overrides={checked.id_of[token]: spec for token, spec in overrides.items()},
        vocabularies=(checked.old, checked.new),
        split=checked.split,
        **given,
    )


def _expand(
    tables: EmbeddingTables,
    tokenizer: Any,
    checked: CheckedTokens,
    request: RowRequest,
    plan: ResizePlan,
    report: ExpansionReport,
    prefixes: Sequence[str],
) -> None:
    """Makes the rows, writes them and adds the tokens, and adds to `report` what was done."""
    filled, side = report.filled_rows, plan.side
    made = make_rows(tables, request, plan, filled)
    report.tables = fill_report(request, made)["tables"]
    usable = _tell(report, tables, made, filled, side)
    slots = {p.slot: p.id for p in report.tokens if p.slot is not None}
    token_of = {i: token for token, i in checked.id_of.items()}
    event = {
        "event": "expand_vocabulary",
        "init": request.init,
        "seed": request.seed,
        "options": request.options,
        "rows": [plan.old_num, plan.new_num],
        "tokens": checked.id_of,
        "overrides": {token_of[int(i)]: [r.name, given] for i, (r, given) in request.others.items()},
        "tables": [
            {"name": t["name"], "side": side, "rows": t["rows"], "source": t["source"]} for t in report.tables
        ],
    }
    if slots:
        event["slots"] = slots

    def follow() -> None:
        if slots:
            vars(tokenizer).update(vars(checked.extended))
        else:
            append(tokenizer, checked.tokens)
        find_skipped_words(tables, tokenizer)

    resized = None if slots else plan
    if usable is None or not len(prefixes):
        tables.change(resized, made, follow, event=event)
        return
    with forward_passes(tables.model) as runs:
        meter = ShiftMeter(runs, tokenizer, prefixes, plan.old_num, request.seed, [*slots.values()])
        tables.change(resized, made, follow, event=event)
        if runs is not tables.model:
            _repeat(runs, resized, made)
        report.shift = meter.compare(filled)
    if report.shift is not None:
        largest = report.shift.largest_logit
        report.shift.bound = expansion_bound(len(filled), usable, cap=report.logit_cap, largest=largest)


def _repeat(runs: PreTrainedModel, plan: ResizePlan | None, made: Sequence[RowsOf]) -> None:
    """Writes rows that were made for an opened model into the one that runs for it."""
    tables = EmbeddingTables(runs)
    named = {table.name: table for table in tables.tables}
    tables.change(plan, [replace(rows, table=named[rows.table.name]) for rows in made])


def _tell(
    report: ExpansionReport, tables: EmbeddingTables, made: Sequence[Any], filled: list[int], side: Side
) -> int | None:
    """Adds to `report` what the rows that were made say, and warns of equal ones. Nothing is written yet.

    Gives the old rows that the head's statistics used; None without a head."""
    details = report.tables[0]["details"]
    if "shared_tokens" in details:  # looked up in vectors: known only now
        others = {plan.token for plan in report.tokens if plan.init != report.init}
        missing = [token for token in details.get("without_source", []) if token not in others]
        looked_up = len(report.tokens) - len(others)
        report.coverage = {
            "tokens": looked_up,
            "with_source": looked_up - len(missing),
            "without_source": missing,
        }
    output = next((t for t in tables.output_tables if t.side == side), None)
    report.logit_cap = _logit_cap(tables.model)
    usable = None
    if output is not None:
        name = output.tied_to or output.name
        usable = next(t["usable"] for t in report.tables if t["name"] == name)
        report.bound = expansion_bound(len(filled), usable, cap=report.logit_cap)
    if len(report.tokens) > 1:
        position = {i: p for p, i in enumerate(filled)}
        positions = torch.tensor([position[i] for i in report.token_ids])
        for m in made:
            if isinstance(m, MadeRows):
                rows = _as_written(m)[positions]
                report.min_distance[m.table.name] = smallest_distance(rows)
                report.effective_rank[m.table.name] = effective_rank(rows)
    same = [name for name, distance in report.min_distance.items() if distance == 0.0]
    if same and report.init not in ("mean", "zeros"):
        warnings.warn(
            f"some of the new tokens have equal rows in {', '.join(same)}: the model cannot tell them apart "
            f"until training moves them",
            VocabularyWarning,
            stacklevel=4,
        )
    return usable


def _logit_cap(model: PreTrainedModel) -> float | None:
    """c of a head that squeezes its logits to c tanh(z / c); None without."""
    caps = (
        value
        for config in (model.config, model.config.get_text_config())
        for key, value in vars(config).items()
        if re.search(r"logits?_(soft_?)?cap", key) and not re.search(r"att|router", key)
    )
    return next((float(cap) for cap in caps if cap), None)


def _as_written(made: MadeRows) -> Tensor:
    assert made.rows is not None
    return made.rows.detach().to(made.table.parameter.dtype)


def _plan(
    request: RowRequest, checked: CheckedTokens, old_rows: int, filler: SlotFiller | None
) -> list[TokenPlan]:
    """What each new token will be made of. Raises what the initialiser would, before anything is changed."""
    tokenizer, old_tokens = request.old_tokenizer, checked.old.tokens
    if filler is not None:
        filler.refuse_pieces(checked.id_of, checked.split)
        filler.warn_of_pieces(tokenizer, checked.tokens)

    def pieces(record: Initializer, texts: list[str], options: Mapping[str, Any]) -> list[list[str] | None]:
        if record.pieces is None:
            return [None] * len(texts)
        context = InitContext(
            num_rows=len(texts),
            embedding_dim=0,
            num_embeddings=old_rows,
            generator=torch.Generator(),
            texts=texts,
            existing_tokens=old_tokens,
            tokenize=splitter(tokenizer, frozenset(checked.ids), old_rows, request.split),
            unknown_id=unknown_id(tokenizer),
        )
        return [[old_tokens[i] for i in ids] for ids in record.pieces(context, **options)]

    plain = [token for token, i in checked.id_of.items() if i not in request.others]
    shared = dict(zip(plain, pieces(request.record, plain, request.options), strict=True))
    plans = []
    for token, i in checked.id_of.items():
        slot = None if filler is None else old_tokens[i]
        if i in request.others:
            record, options = request.others[i]
            try:
                source = pieces(record, [token], options)[0]
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{token!r}: {error}") from error
            plans.append(TokenPlan(token, i, i < old_rows, record.name, source, slot))
        else:
            plans.append(TokenPlan(token, i, i < old_rows, request.init, shared[token], slot))
    return plans


def _coverage(plans: list[TokenPlan]) -> dict[str, Any] | None:
    with_source = [plan for plan in plans if plan.source is not None]
    if not with_source:
        return None
    missing = [plan.token for plan in with_source if not plan.source]
    return {
        "tokens": len(with_source),
        "with_source": len(with_source) - len(missing),
        "without_source": missing,
    }
