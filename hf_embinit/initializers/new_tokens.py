"""Rows beside an existing table: what new tokens of a trained model start from."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..arguments import NotNegative
from ..errors import InvalidArgumentError
from ..moments import balanced_shares, distinct_rows, gaussian_rows, mean_row, mixed_rows, sparse_shares
from ..tokens import align, is_byte_sign
from ..vectors import PretrainedVectors
from .context import InitContext
from .registry import register_initializer

Names = str | int | Sequence[str | int]
"""One old token (its string or id) or several."""


@register_initializer(
    "mean",
    summary="the mean of the old rows, the same for all new rows",
    reference="Hewitt 2021",
    purpose="rows",
    needs=("existing",),
)
def mean(context: InitContext) -> Tensor:
    """The mean of the n usable old rows: with m new rows, KL(p || p') is at most log(1 + m / n)."""
    existing = context.require("existing", "mean")
    return mean_row(existing, context.usable_ids).expand(context.shape).clone()


@register_initializer(
    "mean_cov",
    summary="N(mean, scale * covariance) of the old rows, every new row distinct",
    reference="Hewitt 2021 (scale 1e-5)",
    purpose="rows",
    needs=("existing",),
)
def mean_cov(context: InitContext, *, scale: NotNegative | Literal["auto"] = 1e-5) -> Tensor:
    """Draws around the mean; rows that would be equal in the table's dtype are moved apart by one unit in the
    last place of some coordinates.

    `scale="auto"` gives the largest scale whose loss of probability to the m new rows stays inside Hewitt's
    bound log(1 + m/n) for every prefix, whatever the n old rows are. For a hidden state h with the sum of
    exponentials Z = sum_i exp(h w_i), the loss is log(1 + sum_j exp(h w'_j) / Z). Let w'_j = sum_i a_ji w_i,
    a_ji >= 0, sum_i a_ji = 1: exp is convex, so sum_j exp(h w'_j) <= sum_i exp(h w_i) sum_j a_ji, which is
    (m/n) Z for all h exactly when every old row has the same share, sum_j a_ji = m/n. Among such shares those
    of a partition of the old rows into m random groups of equal size have the largest squares; the rows then
    have the covariance (m - 1) / (n - 1) * Sigma, and one new row alone is the mean. Output biases are mixed
    alike. The report gives the scale. With logits at hand, `measures.largest_scale` says what independent
    draws may have.
    """
    existing = context.require("existing", "mean_cov")
    if scale == "auto":
        ids = context.usable_ids if context.usable_ids is not None else torch.arange(len(existing))
        shares = balanced_shares(context.num_rows, ids, len(existing), generator=context.generator)
        context.shares = shares
        spread = float(shares.values().square().sum()) / context.num_rows
        context.report["scale"] = (spread * len(ids) - 1) / max(1, len(ids) - 1)
        rows = mixed_rows(existing, shares)
    else:
        rows = gaussian_rows(
            existing, context.num_rows, scale=scale, generator=context.generator, rows=context.usable_ids
        )
    distinct = distinct_rows(rows, existing.dtype, generator=context.generator)
    if distinct is not rows:
        context.report["moved_apart"] = int((distinct != rows).any(1).sum())
    return distinct


def averages_old_rows(
    name: str, *, summary: str, reference: str
) -> Callable[[Callable[..., list[list[int]]]], Callable[..., list[list[int]]]]:
    """Registers a function `pieces(context, **options)` that returns, for each new row, old ids to average.

    No ids mean the average of all old rows. The function reads only the tokenizer's part of the context, so
    that a plan can be shown before there is a table.
    """

    def register(pieces: Callable[..., list[list[int]]]) -> Callable[..., list[list[int]]]:
        @functools.wraps(pieces)
        def rows(context: InitContext, **options: Any) -> Tensor:
            return _means_of(context, pieces(context, **options))

        needs: tuple[Any, ...] = ("existing", "tokens", "tokenizer")
        register_initializer(
            name, summary=summary, reference=reference, purpose="rows", needs=needs, pieces=pieces
        )(rows)
        return pieces

    return register


Pooling = Literal["mean", "first", "last"]


@averages_old_rows(
    "subword_mean",
    summary="the mean of the rows of the pieces that the old tokenizer splits the token into",
    reference="Gee et al. 2022, section 3 (fast vocabulary transfer)",
)
def subword_mean(
    context: InitContext, *, input_pooling: Pooling = "mean", output_pooling: Pooling = "mean"
) -> list[list[int]]:
    """Pooled rows of the pieces of each new token, as the tokenizer split it before it was added.

    Every table pools its own rows: an untied output table never reads the input's. `input_pooling` and
    `output_pooling` are `mean`, `first` or `last` piece; a tied table takes `input_pooling`. Tokens whose
    pieces are all unknown get the mean of the old rows, and the report names them.
    """
    pooling = output_pooling if context.role == "output" else input_pooling
    if pooling not in ("mean", "first", "last"):
        raise InvalidArgumentError(f"{context.role}_pooling={pooling!r} is not 'mean', 'first' or 'last'")
    pieces = _split(context, "subword_mean", context.require("texts", "subword_mean"))
    return pieces if pooling == "mean" else [p[:1] if pooling == "first" else p[-1:] for p in pieces]


@averages_old_rows(
    "copy",
    summary="the row of a named old token, or the mean of several",
    reference="the method users ask for most, beside the mean",
)
def copy(context: InitContext, *, of: Names | Mapping[str, Names] | None = None) -> list[list[int]]:
    """Rows copied from old tokens: `of="king"`, `of=["king", "man"]` (the mean) or `{new: either}`."""
    wanted = _for_each(context, "copy", "of", of, "a token or a list of tokens")
    listed: Any = ([names] if isinstance(names, (str, numbers.Integral)) else names or () for names in wanted)
    return [[_old_id(context, name) for name in names] for names in listed]


@averages_old_rows(
    "description",
    summary="the mean of the rows of the tokens of a text",
    reference="LLaMA-Factory's desc_init",
)
def description(context: InitContext, *, text: str | Mapping[str, str] | None = None) -> list[list[int]]:
    """Means over the tokens of a text that describes the token: `text="a king"` or `{new token: text}`."""
    described = _for_each(context, "description", "text", text, "a text")
    return _split(context, "description", ["" if text is None else text for text in described])


def _split(context: InitContext, init: str, texts: Sequence[str]) -> list[list[int]]:
    """The old ids of each text, without the unknown token and rows that are not finite; empty for "", and
    where only the bare `▁` is left, with which SentencePiece begins what it does not know, too."""
    tokenize = context.require("tokenize", init)
    skipped, bare = {context.unknown_id, *context.not_finite}, context.existing_ids.get("▁")
    split = iter(tokenize([text for text in texts if text]))
    made = []
    for text in texts:
        pieces = next(split) if text else []
        kept = [i for i in pieces if i not in skipped]
        made.append([] if len(kept) < len(pieces) and set(kept) <= {bare} else kept)
    return made


def _for_each(context: InitContext, init: str, option: str, value: Any, what: str) -> list[Any]:
    """The option's value for each new row; None for rows without a token (padding)."""
    context.require("tokenize", init)
    texts: list[str] = context.require("texts", init)
    if value is None or (not isinstance(value, Mapping) and not value and value != 0):
        raise InvalidArgumentError(f"{option}= is missing: give {what}, or a mapping from new tokens to that")
    if not isinstance(value, Mapping):
        return [value if text else None for text in texts]
    tokens = context.tokens or texts
    for text, token in zip(texts, tokens, strict=True):
        if text and not {text, token} & value.keys():
            raise InvalidArgumentError(f"{option}= has no entry for the new token {text!r}")
    return [value.get(text, value.get(token)) for text, token in zip(texts, tokens, strict=True)]


def _old_id(context: InitContext, name: str | int) -> int:
    """The id of an old token: an id, the tokenizer's own spelling (`Ġking`), or a text that is one token."""
    tokens: list[str] = context.require("existing_tokens", "copy")

    def split(text: str) -> list[str]:
        return [tokens[i] for i in context.require("tokenize", "copy")([text])[0]]

    if not isinstance(name, str):
        index = int(name)
        if not 0 <= index < len(tokens):
            raise InvalidArgumentError(f"of={index} is no id of an old token (0 to {len(tokens) - 1})")
    elif name in context.existing_ids and not is_byte_sign(name, split):
        index = context.existing_ids[name]
    else:
        ids = context.require("tokenize", "copy")([name])[0]
        if len(ids) != 1 or ids[0] == context.unknown_id:
            pieces = ", ".join(repr(tokens[i]) for i in ids) or "nothing"
            raise InvalidArgumentError(
                f"of={name!r} is not one old token but {pieces}: name old tokens, or use init 'description'"
            )
        index = ids[0]
    if index in context.not_finite:
        raise InvalidArgumentError(f"of={name!r}: the row of this token has NaN or infinite entries")
    return index


def _means_of(context: InitContext, pieces: list[list[int]]) -> Tensor:
    """Rows that are the means of the old rows `pieces`; the mean of all usable ones where it is empty."""
    existing: Tensor = context.require("existing", "these rows")
    if where := [(row, i) for row, ids in enumerate(pieces) for i in ids]:
        index = torch.tensor(where, device=existing.device).T
        values = torch.tensor([1 / len(pieces[row]) for row, _ in where], device=existing.device)
        context.shares = sparse_shares(index, values, (len(pieces), len(existing)))
    rows = torch.empty(context.shape, dtype=torch.float32, device=existing.device)
    by_length: dict[int, list[int]] = {}
    for i, ids in enumerate(pieces):
        by_length.setdefault(len(ids), []).append(i)
    empty = by_length.pop(0, [])
    for length, positions in by_length.items():
        for part in torch.tensor(positions).split(max(1, 2**22 // (length * existing.shape[1]))):
            index = torch.tensor([pieces[i] for i in part.tolist()], device=existing.device)
            rows[part] = existing[index.T].float().mean(0)
    if empty:
        rows[empty] = mean_row(existing, context.usable_ids)
        nameless = [context.texts[i] for i in empty if context.texts and context.texts[i]]
        if nameless:
            context.report["without_source"] = nameless
    return rows


@register_initializer(
    "pretrained_map",
    summary="vectors= of the token, by a least-squares map learnt on the tokens that both have",
    reference="Mikolov et al. 2013, Exploiting similarities among languages for machine translation, Eq. 3",
    purpose="rows",
    needs=("existing", "tokens", "tokenizer", "vectors"),
)
def pretrained_map(context: InitContext) -> Tensor:
    """Rows `x W + b`, W and b fitted by least squares to the old rows of tokens that the vectors have too.

    Each table has a map of its own. With fewer shared tokens than the vectors have dimensions, W is the
    solution of smallest norm. New tokens that the vectors lack, also in lower case, get the mean of the
    old rows; the report names them, counts the shared tokens and gives the share of variance that the map
    explains on those.

    Raises `InvalidArgumentError` when fewer than two old tokens are shared.
    """
    vectors: PretrainedVectors = context.require("vectors", "pretrained_map")
    existing: Tensor = context.require("existing", "pretrained_map")
    old_tokens: list[str] = context.require("existing_tokens", "pretrained_map")
    texts: list[str] = context.require("texts", "pretrained_map")
    pairs = align(
        old_tokens, context.token_family, vectors.tokens, vectors.family, plain=context.existing_added
    )
    if context.usable_ids is not None:
        usable = torch.zeros(len(existing), dtype=torch.bool)
        usable[context.usable_ids.cpu()] = True
        pairs[~usable[: len(pairs)]] = -1
    shared = (pairs >= 0).nonzero().flatten()
    if len(shared) < 2:
        raise InvalidArgumentError(
            f"init 'pretrained_map': {vectors.name!r} has {len(shared)} of the {len(old_tokens)} old tokens; "
            f"are the vectors of this language and kind of token?"
        )
    if len(bad := shared[~torch.isfinite(vectors.matrix[pairs[shared]]).all(1)]):
        raise InvalidArgumentError(
            f"init 'pretrained_map': the row of token {old_tokens[int(bad[0])]!r} in {vectors.name!r} is not "
            f"finite"
        )
    x_mean, y_mean, weight, explained = least_squares(vectors.matrix, pairs[shared], existing, shared)
    context.report.update(shared_tokens=len(shared), variance_explained=explained)

    found = align(
        [t.strip() for t in texts],
        "words",
        vectors.tokens,
        vectors.family,
        special=context.special_rows if vectors.family == "words" else (),
        lowercase_fallback=True,
    )
    rows = mean_row(existing, context.usable_ids).cpu().expand(context.shape).clone()
    has = found >= 0
    rows[has] = ((vectors.matrix[found[has]].double() - x_mean) @ weight + y_mean).float()
    if missing := [t for t, there in zip(texts, has.tolist(), strict=True) if t and not there]:
        context.report["without_source"] = missing
    return rows.to(existing.device)


def least_squares(
    sources: Tensor, x_rows: Tensor, targets: Tensor, y_rows: Tensor, *, ridge: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, float]:
    """The means of rows x and y of two tables, the matrix W of least norm that takes centred x nearest to
    centred y, and the share of the variance of y that it explains: float64, by blocks of rows.

    `ridge` is the share of the mean square of x that is added to each of its squares.
    """

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:
        for i, j in zip(x_rows.split(8192), y_rows.split(8192), strict=True):
            yield sources[i].double(), targets[j.to(targets.device)].double().cpu()

    n = len(x_rows)
    x_mean, y_mean = (torch.zeros(t.shape[1], dtype=torch.float64) for t in (sources, targets))
    for x, y in blocks():
        x_mean, y_mean = x_mean + x.sum(0) / n, y_mean + y.sum(0) / n
    xx, xy, yy = x_mean.new_zeros(1), x_mean.new_zeros(1), 0.0
    for x, y in blocks():
        x, y = x - x_mean, y - y_mean
        xx, xy, yy = xx + x.T @ x, xy + x.T @ y, yy + float(y.square().sum())
    damped = xx + torch.eye(len(xx), dtype=xx.dtype) * (ridge * xx.diagonal().mean())
    weight = torch.linalg.pinv(damped, rtol=1e-10, hermitian=True) @ xy
    explained = float((weight * (2 * xy - xx @ weight)).sum()) / max(yy, 1e-30)
    return x_mean, y_mean, weight, min(1.0, explained)
