"""`expand_vocabulary`: tokens, rows, head, biases and a report in one call."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel

from ..errors import InvalidArgumentError, VocabularyWarning
from ..initializers.context import InitContext
from ..initializers.expansion import FROM_OLD_TOKENS, source_ids
from ..manifest import record_event
from ..measures.divergence import expansion_bound
from ..new_row_training import token_modules
from ..new_rows import check_init, fill_new_rows
from ..table_discovery import Side
from ..tables import EmbeddingTables, ResizeResult
from .new_tokens import CheckedTokens, check_new_tokens
from .report import ExpansionReport, TokenPlan
from .shift import ShiftMeter, smallest_distance

TokenOverride = str | tuple[str, Any]
"""An initialiser's name, or a name with its options; anything but a mapping is its first option."""


def expand_vocabulary(
    model: PreTrainedModel,
    tokenizer: Any,
    new_tokens: Sequence[str | AddedToken],
    init: str = "mean",
    *,
    seed: int = 0,
    overrides: Mapping[str, TokenOverride] | None = None,
    prefixes: Sequence[str] | None = None,
    dry_run: bool = False,
    pad_to_multiple_of: int | None = None,
    vectors: Any = None,
    exclude_rows: Collection[int] | None = None,
    side: Side = "shared",
    **options: Any,
) -> ExpansionReport:
    """Adds tokens to `tokenizer` and rows for them to every table of `model`, in place, and says what it did.

    The matrix grows only when the tokenizer's new ids reach past it: padding rows that the new ids fall on
    are initialised, and none is cut off. Rows that come from `pad_to_multiple_of` are initialised too,
    since a row of zeros can take all the probability. On an error the model and the tokenizer are as they
    were.

    Args:
        new_tokens: strings, or `AddedToken` for stripping, normalisation and special tokens.
        init: name of an initialiser for rows, see `list_initializers(purpose="rows")`; `options` are its own.
        overrides: new token -> initialiser for it alone: `"zeros"`, `("copy", "king")`,
            `("description", "a forest of elves")`, `("copy", {"of": ["king", "man"]})`.
        prefixes: texts to compare next-token distributions on, before and after (see `DistributionShift`); by
            default the model writes some itself; `()` leaves the comparison out.
        dry_run: gives the plan alone and changes nothing.
        pad_to_multiple_of: makes the number of rows a multiple of this.
        vectors: pre-trained vectors for `pretrained_map` and for table initialisers that read them.
        exclude_rows: old rows that statistics leave out; by default padding, reserved and never-trained ones.
        side: `source` or `target` for a model with two vocabularies.

    Raises:
        UnknownNameError: `init` is not registered.
        InvalidArgumentError: a token, an option or the tokenizer does not fit.
        UnsupportedModelError: the model keeps its tables in a way that cannot be handled.
    """
    check_init(init, options)
    tables = EmbeddingTables(model)
    old_rows = tables.vocab_size(side)
    checked = check_new_tokens(tokenizer, new_tokens)
    given = {t: _override(spec) for t, spec in (overrides or {}).items()}
    for token in given:
        if token not in checked.texts:
            raise InvalidArgumentError(f"overrides names {token!r}, which is none of the new tokens")
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    if known > old_rows:
        raise InvalidArgumentError(
            f"the tokenizer has ids up to {known - 1}, but the model has {old_rows} rows: "
            f"is this the model's own tokenizer?"
        )
    multiple = 1 if pad_to_multiple_of is None else pad_to_multiple_of
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise InvalidArgumentError(f"pad_to_multiple_of={multiple!r}: expected a positive integer")
    new_rows = -(-max(old_rows, max(checked.ids) + 1) // multiple) * multiple
    filled = sorted({*checked.ids, *range(old_rows, new_rows)})
    plans = _plan(tokenizer, checked, init, options, given, old_rows)
    report = ExpansionReport(
        init=init,
        seed=seed,
        options=dict(options),
        tokens=plans,
        old_num_embeddings=old_rows,
        new_num_embeddings=new_rows,
        bound=None,
        coverage=_coverage(plans),
        trainable_token_indices={name: list(checked.ids) for name in token_modules(tables, side)},
        dry_run=dry_run,
    )
    if dry_run:
        return report

    measured = any(t.side == side for t in tables.output_tables) and not _is_empty(prefixes)
    meter = ShiftMeter(tables.model, tokenizer, prefixes, old_rows, seed) if measured else None
    resized = tables.resize(new_rows, side=side)
    if not resized.new_rows:  # the new ids fall on padding rows
        sizes = {t.name: t.num_embeddings for t in tables.own_tables if t.side == side}
        resized = ResizeResult(old_rows, old_rows, side, {name: range(n, n) for name, n in sizes.items()})
    try:
        fill = fill_new_rows(
            tables,
            resized,
            init,
            tokenizer=checked.extended,
            old_tokenizer=tokenizer,
            vectors=vectors,
            seed=seed,
            overrides=dict(
                zip([checked.ids[checked.texts.index(t)] for t in given], given.values(), strict=True)
            ),
            exclude_rows=exclude_rows,
            ids=filled,
            **options,
        )
    except BaseException:
        tables.resize(old_rows, side=side)
        raise
    tokenizer.add_tokens(checked.tokens)
    assert tokenizer.convert_tokens_to_ids(checked.texts) == checked.ids

    report.tables = fill["tables"]
    details = report.tables[0]["details"]
    if "shared_tokens" in details:  # looked up in vectors: known only now
        missing = details.get("without_source", [])
        looked_up = sum(plan.init == init for plan in plans)
        report.coverage = {
            "tokens": looked_up,
            "with_source": looked_up - len(missing),
            "without_source": missing,
        }
    output = next((t for t in tables.output_tables if t.side == side), None)
    if output is not None:
        name = output.tied_to or output.name
        usable = next(t["usable"] for t in report.tables if t["name"] == name)
        report.bound = expansion_bound(len(filled), usable)
    if meter is not None:
        report.shift = meter.compare(filled)
    if len(checked.ids) > 1:
        report.min_distance = {
            t.name: smallest_distance(tables.read(t)[checked.ids])
            for t in tables.own_tables
            if t.side == side
        }
    same = [name for name, distance in report.min_distance.items() if distance == 0.0]
    if same and init not in ("mean", "zeros"):
        warnings.warn(
            f"some of the new tokens have equal rows in {', '.join(same)}: the model cannot tell them "
            "apart until "
            f"training moves them",
            VocabularyWarning,
            stacklevel=2,
        )
    record_event(
        tables.model.config,
        "expand_vocabulary",
        init=init,
        seed=seed,
        options=options,
        rows=[old_rows, new_rows],
        tokens={plan.token: plan.id for plan in plans},
        overrides={token: list(spec) for token, spec in given.items()},
        tables=[
            {"name": t["name"], "side": side, "rows": t["rows"], "source": t["source"]} for t in report.tables
        ],
    )
    return report


def _is_empty(prefixes: Sequence[str] | None) -> bool:
    return prefixes is not None and len(prefixes) == 0


def _override(spec: TokenOverride) -> tuple[str, dict[str, Any]]:
    """Name and options of one entry of `overrides`, checked."""
    if isinstance(spec, str):
        name, given = spec, dict[str, Any]()
    elif isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], str):
        name, given = spec
    else:
        raise InvalidArgumentError(f"overrides has {spec!r}: expected a name or (name, option)")
    record = check_init(name, {})
    if not isinstance(given, Mapping):
        if not record.options:
            raise InvalidArgumentError(f"overrides has {spec!r}, but init {name!r} has no option")
        given = {next(iter(record.options)): given}
    record.check_options(dict(given))
    return name, dict(given)


def _plan(
    tokenizer: Any,
    checked: CheckedTokens,
    init: str,
    options: dict[str, Any],
    overrides: Mapping[str, tuple[str, dict[str, Any]]],
    old_rows: int,
) -> list[TokenPlan]:
    """What each new token will be made of. Raises what the initialiser would, before anything is changed."""
    names = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), old_rows))))
    plans = []
    texts = [t for t in checked.texts if t not in overrides]
    shared = dict(zip(texts, _sources(tokenizer, names, texts, init, options), strict=True))
    for token, token_id in zip(checked.texts, checked.ids, strict=True):
        name, ids = init, shared.get(token)
        if token in overrides:
            name, given = overrides[token]
            ids = _sources(tokenizer, names, [token], name, given)[0]
        source = None if ids is None else [names[i] for i in ids]
        plans.append(TokenPlan(token, token_id, token_id < old_rows, name, source))
    return plans


def _sources(
    tokenizer: Any, names: list[str], texts: list[str], init: str, options: Mapping[str, Any]
) -> list[list[int]] | list[None]:
    if init not in FROM_OLD_TOKENS:
        return [None] * len(texts)
    context = InitContext(
        num_rows=len(texts),
        embedding_dim=0,
        num_embeddings=len(names),
        generator=torch.Generator(),
        texts=texts,
        existing_tokens=names,
        tokenize=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        unknown_id=tokenizer.unk_token_id,
    )
    return source_ids(init, context, **options)


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
