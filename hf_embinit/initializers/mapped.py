"""New rows from pre-trained vectors, by a map learnt on the vocabulary shared with the model."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..moments import mean_row
from ..registry import register_initializer
from ..tokens import align
from ..vectors import PretrainedVectors
from .context import InitContext


@register_initializer(
    "pretrained_map",
    summary="vectors= of the token, by a least-squares map learnt on the tokens that both have",
    source="Mikolov et al. 2013, Exploiting similarities among languages for machine translation, Eq. 3",
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
    pairs = align(old_tokens, context.token_family, vectors.tokens, vectors.family)
    if context.existing_rows is not None:
        usable = torch.zeros(len(existing), dtype=torch.bool)
        usable[context.existing_rows.cpu()] = True
        pairs[~usable[: len(pairs)]] = -1
    shared = (pairs >= 0).nonzero().flatten()
    if len(shared) < 2:
        raise InvalidArgumentError(
            f"init 'pretrained_map': {vectors.name!r} has {len(shared)} of the {len(old_tokens)} old "
            "tokens; are the "
            f"vectors of this language and kind of token?"
        )
    x = vectors.matrix[pairs[shared]].double()
    y = existing[shared.to(existing.device)].double().cpu()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    weight = torch.linalg.pinv(x.T @ x, rtol=1e-10, hermitian=True) @ (x.T @ y)
    unexplained = (y - x @ weight).square().sum() / y.square().sum().clamp_min(1e-30)
    context.report.update(shared_tokens=len(shared), variance_explained=float(1 - unexplained))

    found = align(
        [t.strip() for t in texts], "words", vectors.tokens, vectors.family, lowercase_fallback=True
    )
    rows = mean_row(existing, context.existing_rows).cpu().expand(context.shape).clone()
    has = found >= 0
    rows[has] = ((vectors.matrix[found[has]].double() - x_mean) @ weight + y_mean).float()
    if missing := [t for t, there in zip(texts, has.tolist(), strict=True) if t and not there]:
        context.report["without_source"] = missing
    return rows.to(existing.device)
