"""Fills the rows that a resize added: one request to an initialiser for every table, and the biases with
them.

`V` rows of a vocabulary, `D` width, `R` rows to fill. Every draw comes from generators seeded by the caller's
seed, the table's name and its size, so that ranks agree and a second resize does not repeat the first one's
draws.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import initializers as _initializers  # noqa: F401  (fills the registry)
from .errors import InvalidArgumentError
from .initializers.context import InitContext
from .registry import Initializer, get_initializer, list_initializers
from .tables import EmbeddingTables, ResizeResult, Table
from .tokens import token_family, word_candidates

logger = logging.getLogger(__name__)

RESERVED_NAMES = re.compile(
    r"^(\[unused_?\d+\]|<unused_?\d+>|<extra_id_\d+>|<\|?_?reserved[^>]*>|\[reserved[^\]]*\]|madeupword\d+|"
    r"<SPECIAL_\d+>|<dummy\w*>|<\|extra_?\d+\|>|<\|unused_?\d+\|>)$",
    re.IGNORECASE,
)
"""Names of tokens that vocabularies keep in reserve: BERT, Gemma, T5, Llama 3, fairseq's dictionaries,
Qwen."""

Override = str | tuple[str, Mapping[str, Any]]
"""An initialiser's name, or a name and its options."""


@dataclass
class TableFill:
    """What was done to one table."""

    name: str
    role: str
    rows: list[int]
    """First row that was filled and the one past the last (each row when they are not contiguous)."""
    usable: int
    """n: old rows that the statistics used."""
    left_out: dict[str, list[int]]
    """Reason -> old rows left out of the statistics."""
    source: dict[str, Any] | None = None
    """Name, revision and digest of pre-trained vectors."""
    details: dict[str, Any] = field(default_factory=dict)
    """What the initialiser itself reports."""


def check_init(init: str, options: Mapping[str, Any]) -> Initializer:
    """The record of an initialiser that can make new rows, its options checked."""
    record = get_initializer(init)
    if record.purpose == "tokenizer":
        names = ", ".join(r.name for p in ("rows", "table") for r in list_initializers(purpose=p))
        raise InvalidArgumentError(f"init {init!r} is for a new tokenizer; new rows are made by: {names}")
    record.check_options(dict(options))
    return record


def fill_new_rows(
    tables: EmbeddingTables,
    resized: ResizeResult,
    init: str = "mean",
    *,
    tokenizer: Any = None,
    old_tokenizer: Any = None,
    vectors: Any = None,
    seed: int = 0,
    overrides: Mapping[str | int, Override] | None = None,
    exclude_rows: Collection[int] | None = None,
    ids: Sequence[int] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fills new rows of every table of the resized side, each from its own old rows, and new output biases.

    An untied output table is filled from its own rows, never from the input's. New bias entries get the mean
    of the old ones. Every row is made before the first is written: an error leaves the tables as the resize
    left them.

    Args:
        resized: what `tables.resize` gave.
        tokenizer: the tokenizer with the new tokens in it, for initialisers that read names.
        old_tokenizer: a copy from before they were added, for initialisers that split names into old tokens.
        vectors: pre-trained vectors (file, folder, Hub id or `PretrainedVectors`) for initialisers that read
            them.
        overrides: token or id -> initialiser for that row alone, `"zeros"` or `("copy", {"of": "king"})`.
        exclude_rows: old rows that the statistics leave out; found by `unusable_rows` when None.
        ids: rows to fill instead of those that are new, such as padding rows that a tokenizer now reaches.

    Returns a report that is plain JSON: `init`, `seed`, `options`, `tables` (one entry each, see
    `TableFill`). Raises `UnknownNameError`, `InvalidArgumentError`.
    """
    record = check_init(init, options)
    plans: list[tuple[Table, list[int], Tensor]] = []
    fills: list[TableFill] = []
    usable_of: dict[int, Tensor | None] = {}
    splitter = tokenizer if old_tokenizer is None else old_tokenizer
    new_names, old_names = token_names(tokenizer), token_names(splitter)
    for table in tables.own_tables:
        if table.name not in resized.new_rows or table.embedding_dim == 0:
            continue
        rows = list(resized.new_rows[table.name] if ids is None else ids)
        if not rows:
            continue
        old = tables.read(table)[: resized.new_rows[table.name].start]
        left_out = unusable_rows(old, table, names=old_names, exclude_rows=exclude_rows, filled=rows)
        usable = _complement(left_out, old.shape[0])
        usable_of[id(table.slot)] = usable
        context = InitContext(
            num_rows=len(rows),
            embedding_dim=table.embedding_dim,
            num_embeddings=table.num_embeddings,
            generator=_generator(seed, table.name, rows[0]),
            existing=old,
            existing_rows=usable,
            role="output" if table.role == "output" else "input",
            initializer_range=_initializer_range(tables),
        )
        if tokenizer is not None and new_names is not None:
            context.tokens = [new_names.get(i, "") for i in rows]
            context.texts = _texts(tokenizer, rows, new_names)
        if splitter is not None and old_names is not None:
            known = min(max(old_names, default=-1) + 1, old.shape[0])
            context.existing_tokens = [old_names.get(i, "") for i in range(known)]
            context.tokenize = _splitter(splitter, frozenset(rows), old.shape[0])
            context.unknown_id = splitter.unk_token_id
            with suppress(InvalidArgumentError):  # a spelling that only initialisers with vectors need
                context.token_family = token_family(splitter)
        made, source = _make(record, context, options, vectors)
        for positions, other, other_options in _overrides(overrides, context, rows):
            part = _part(context, positions, rows, seed, table.name)
            made[positions], _ = _make(other, part, other_options, vectors)
        plans.append((table, rows, made))
        fills.append(
            TableFill(
                name=table.name,
                role=table.role,
                rows=_span(rows),
                usable=old.shape[0] if usable is None else int(usable.numel()),
                left_out=left_out,
                source=source,
                details=dict(context.report),
            )
        )
    for table, rows, made in plans:
        tables.write(table, made, range(rows[0], rows[-1] + 1) if len(_span(rows)) == 2 else rows)
    _fill_biases(tables, resized, ids, usable_of)
    report = {
        "init": init,
        "seed": seed,
        "options": dict(options),
        "tables": [asdict(fill) for fill in fills],
    }
    if overrides:
        report["overrides"] = {str(token): spec for token, spec in overrides.items()}
    return report


def unusable_rows(
    old: Tensor,
    table: Table,
    *,
    names: Mapping[int, str] | None = None,
    exclude_rows: Collection[int] | None = None,
    filled: Sequence[int] = (),
) -> dict[str, list[int]]:
    """Rows of the old table `[V, D]` that statistics should leave out, by reason.

    `padding` (the embedding's padding row), `zero` (norm below 1e-4 of the median), `repeated` (equal to
    another row), `reserved` (named `[unused1]` or the like), `beyond_tokenizer`, `refilled`; or `given` alone
    when `exclude_rows` says which. `names` are the old tokens by id. When nothing would be left, all rows
    count.
    """
    found: dict[str, list[int]] = {}
    if exclude_rows is not None:
        found["given"] = sorted({int(i) for i in exclude_rows if 0 <= int(i) < old.shape[0]})
    else:
        if table.padding_index is not None and table.padding_index < old.shape[0]:
            found["padding"] = [table.padding_index]
        found.update(_never_trained(old))
        if names is not None:
            found["reserved"] = sorted(i for i, name in names.items() if RESERVED_NAMES.match(name))
            found["beyond_tokenizer"] = sorted(set(range(old.shape[0])) - set(names))
    found["refilled"] = list(filled)
    found = {reason: [i for i in rows if i < old.shape[0]] for reason, rows in found.items()}
    found = {reason: rows for reason, rows in found.items() if rows}
    if len({i for rows in found.values() for i in rows}) >= old.shape[0]:
        logger.warning("every old row of %s looks unused: the statistics use all of them", table.name)
        return {}
    return found


def _never_trained(old: Tensor) -> dict[str, list[int]]:
    """Rows of (nearly) nothing and rows equal to others.

    Sixteen coordinates of every row tell which few rows are worth reading in full, so that this costs next to
    nothing beside the statistics themselves.
    """
    n, d = old.shape
    chunk = max(1, 2**20 // d)  # rows read in full at a time
    probed = old[:, torch.linspace(0, d - 1, min(d, 16), device=old.device).long()].double()
    sample = old[:: max(1, n // 256)].float().norm(dim=1)
    nothing = 1e-4 * float(sample.median())
    small = (probed.abs() <= nothing).all(dim=1).nonzero().flatten()
    zero = torch.cat([r[old[r].float().norm(dim=1) <= nothing] for r in small.split(chunk)])
    rest = torch.ones(n, dtype=torch.bool, device=old.device).index_fill_(0, zero, False).nonzero().flatten()
    weights = torch.linspace(1.0, 2.0, probed.shape[1], dtype=torch.float64, device=old.device)
    rest = _with_equals(rest, (probed * weights).sum(dim=1))
    weights = torch.linspace(1.0, 2.0, d, dtype=torch.float64, device=old.device)
    key = torch.cat([(old[r].double() * weights).sum(dim=1) for r in rest.split(chunk)])
    full = probed.new_zeros(n).index_copy_(0, rest, key)
    rest = _with_equals(rest, full)
    rest = rest[full[rest].argsort()]
    repeated: set[int] = set()
    for above, below in zip(rest[:-1].split(chunk), rest[1:].split(chunk), strict=True):
        same = (old[above] == old[below]).all(dim=1)
        repeated.update(above[same].tolist(), below[same].tolist())
    return {"zero": zero.tolist(), "repeated": sorted(repeated)}


def _with_equals(rows: Tensor, key: Tensor) -> Tensor:
    """Those of `rows` whose `key` another of them has as well."""
    _, group, counts = torch.unique(key[rows], return_inverse=True, return_counts=True)
    return rows[counts[group] > 1]


def _complement(left_out: Mapping[str, Sequence[int]], n: int) -> Tensor | None:
    if not left_out:
        return None
    keep = torch.ones(n, dtype=torch.bool)
    for rows in left_out.values():
        keep[list(rows)] = False
    return keep.nonzero().flatten()


def _generator(seed: int, name: str, start: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {name} {start}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _initializer_range(tables: EmbeddingTables) -> float:
    config = tables.model.config.get_text_config()
    return getattr(config, "initializer_range", None) or getattr(config, "init_std", None) or 0.02


def token_names(tokenizer: Any) -> dict[int, str] | None:
    """Tokens by id, which need not be without gaps; None without a tokenizer."""
    return None if tokenizer is None else {i: name for name, i in tokenizer.get_vocab().items()}


def _texts(tokenizer: Any, rows: Sequence[int], names: Mapping[int, str]) -> list[str]:
    """The surface text of each row's token: what was added stands as it is, other tokens are decoded."""
    added = {i: token.content for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    return [(added.get(i) or tokenizer.decode([i])) if i in names else "" for i in rows]


def _splitter(tokenizer: Any, rows: frozenset[int], num_old: int) -> Callable[[str], list[int]]:
    def tokenize(text: str) -> list[int]:
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if any(i >= num_old or i in rows for i in ids):
            raise InvalidArgumentError(
                f"{text!r} is one token already: old_tokenizer= must be a copy from before it was added"
            )
        return ids

    return tokenize


def _make(
    record: Initializer, context: InitContext, options: Mapping[str, Any], vectors: Any
) -> tuple[Tensor, dict[str, Any] | None]:
    """Rows `[R, D]` float32 and the source of the vectors that were read, if any."""
    source = None
    if "vectors" in record.needs:
        from .vectors import load_vectors

        given = vectors if vectors is not None else record.defaults.get("vectors")
        if given is None:
            raise InvalidArgumentError(
                f"init {record.name!r} needs vectors=: a file of vectors, a folder or a Hub id"
            )
        wanted = None
        if context.texts is not None and context.existing_tokens is not None:
            words = [text.strip() for text in context.texts]
            wanted = [*words, *map(str.lower, words)]
            wanted += word_candidates(context.existing_tokens, context.token_family)
        context.vectors = load_vectors(given, tokens=wanted)
        source = {k: getattr(context.vectors, k) for k in ("name", "revision", "digest")}
    rows = record.fn(context, **options)
    if tuple(rows.shape) != context.shape:
        raise InvalidArgumentError(
            f"init {record.name!r} made rows of shape {tuple(rows.shape)}, not {context.shape}"
        )
    return rows, source


def _overrides(
    overrides: Mapping[str | int, Override] | None, context: InitContext, rows: list[int]
) -> list[tuple[list[int], Initializer, dict[str, Any]]]:
    """Groups of positions within `rows` with the initialiser of each."""
    groups: list[tuple[list[int], Initializer, dict[str, Any]]] = []
    for token, spec in (overrides or {}).items():
        name, options = (spec, {}) if isinstance(spec, str) else (spec[0], dict(spec[1]))
        if isinstance(token, int):
            position = rows.index(token) if token in rows else None
        else:
            names = [context.tokens or [], context.texts or []]
            position = next((known.index(token) for known in names if token in known), None)
        if position is None:
            raise InvalidArgumentError(f"overrides names {token!r}, which is none of the new tokens")
        groups.append(([position], check_init(name, options), options))
    return groups


def _part(context: InitContext, positions: list[int], rows: list[int], seed: int, name: str) -> InitContext:
    """The request for some of the rows."""
    return InitContext(
        num_rows=len(positions),
        embedding_dim=context.embedding_dim,
        num_embeddings=context.num_embeddings,
        generator=_generator(seed, f"{name} override", rows[positions[0]]),
        tokens=[context.tokens[i] for i in positions] if context.tokens else None,
        texts=[context.texts[i] for i in positions] if context.texts else None,
        token_family=context.token_family,
        existing=context.existing,
        existing_rows=context.existing_rows,
        existing_tokens=context.existing_tokens,
        tokenize=context.tokenize,
        unknown_id=context.unknown_id,
        role=context.role,
        initializer_range=context.initializer_range,
    )


def _fill_biases(
    tables: EmbeddingTables,
    resized: ResizeResult,
    ids: Sequence[int] | None,
    usable_of: dict[int, Tensor | None],
) -> None:
    for table in tables.output_tables:
        start = table.num_embeddings - (resized.new_num - resized.old_num)
        rows: Sequence[int] = range(start, table.num_embeddings) if ids is None else ids
        if not table.bias or not rows or table.side != resized.side:
            continue
        usable = usable_of.get(id(table.slot))
        means: list[Tensor | float] = []
        for bias in tables.biases(table):
            old = bias[:start] if usable is None else bias[usable.to(bias.device)]
            means.append(old.float().mean())
        tables.write_bias(table, means, rows)


def _span(rows: list[int]) -> list[int]:
    contiguous = rows == list(range(rows[0], rows[0] + len(rows)))
    return [rows[0], rows[-1] + 1] if contiguous else rows
