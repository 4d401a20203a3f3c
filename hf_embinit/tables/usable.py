"""The old rows of a table that statistics may use: those of tokens, and reached by training."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from .table import Table

logger = logging.getLogger(__name__)

RESERVED_NAMES = re.compile(
    r"^(\[unused_?\d+\]|<unused_?\d+>|<extra_id_\d+>|<\|?_?reserved[^>]*>|\[reserved[^\]]*\]|madeupword\d+|"
    r"<SPECIAL_\d+>|<dummy\w*>|<\|extra_?\d+\|>|<\|unused_?\d+\|>|<\|dummy_\d+\|>|<\|placeholder\d+\|>|"
    r"<\|extratoken_\d+\|>|\[control_\d+\]|\[unused_token_\d+\]|>>unused_\d+<<|<｜place▁holder▁no▁\d+｜>)$",
    re.IGNORECASE,
)
"""Names of tokens kept in reserve by the vocabularies of BERT, Gemma, T5, Llama 3, fairseq, Qwen, Phi,
Mistral, InternLM, Falcon and DeepSeek."""


def unusable_rows(
    old: Tensor,
    table: Table,
    *,
    tokens: Sequence[str] | None = None,
    exclude_rows: Collection[int] | None = None,
    filled: Iterable[int] = (),
) -> dict[str, list[int]]:
    """Rows of the old table `[V, D]` that statistics should leave out, by reason.

    `not_finite` (NaN or infinite entries), `padding` (the embedding's padding row), `zero` (norm below 1e-4
    of the median), `repeated` (equal to another row), `reserved` (named `[unused1]` or the like),
    `beyond_tokenizer`, `refilled` (to be filled again); with `exclude_rows`, `given` replaces all but the
    first and the last. `tokens` are the old tokens by id, `""` where there is none. When nothing would be
    left, all finite rows count. Raises `InvalidArgumentError` when none is finite.
    """
    count = old.shape[0]
    broken = _not_finite(old)
    if count and len(broken) == count:
        raise InvalidArgumentError(
            f"every old row of {table.name} has NaN or infinite entries: load the model's weights first"
        )
    left_out: dict[str, list[int]] = {"not_finite": broken}
    if exclude_rows is not None:
        left_out["given"] = sorted({int(i) for i in exclude_rows if 0 <= int(i) < count})
    else:
        if table.padding_index is not None:
            left_out["padding"] = [table.padding_index]
        left_out.update(_never_trained(without_rows(old, broken), frozenset(broken)))
        if tokens is not None:
            starts = frozenset("[<>mM")  # of the names above: most tokens need no closer look
            left_out["reserved"] = [
                i for i, token in enumerate(tokens) if token[:1] in starts and RESERVED_NAMES.match(token)
            ]
            missing = [i for i, token in enumerate(tokens[:count]) if not token]
            left_out["beyond_tokenizer"] = [*missing, *range(len(tokens), count)]
    left_out["refilled"] = list(filled)
    left_out = {reason: [i for i in rows if i < count] for reason, rows in left_out.items()}
    left_out = {reason: rows for reason, rows in left_out.items() if rows}
    if count and len({i for rows in left_out.values() for i in rows}) >= count:
        logger.warning("every old row of %s looks unused: the statistics use all of them", table.name)
        return {"not_finite": broken} if broken else {}
    return left_out


def without_rows(old: Tensor, rows: Sequence[int]) -> Tensor:
    """`old` with zeros in `rows`: itself when there are none, else a copy."""
    if not rows:
        return old
    return old.index_fill(0, torch.tensor(rows, device=old.device), 0.0)


def usable_ids(left_out: dict[str, list[int]], count: int) -> Tensor | None:
    """The ids below `count` that no reason leaves out; None for all."""
    if not left_out:
        return None
    keep = torch.ones(count, dtype=torch.bool)
    for rows in left_out.values():
        keep[rows] = False
    return keep.nonzero().flatten()


def _not_finite(old: Tensor) -> list[int]:
    """Rows with NaN or infinite entries: few sums are not finite, and only those rows are read again."""
    sums = old.sum(dim=1, dtype=torch.promote_types(old.dtype, torch.float32))
    suspects = (~torch.isfinite(sums)).nonzero().flatten()
    return suspects[~torch.isfinite(old[suspects]).all(dim=1)].tolist()


def _never_trained(old: Tensor, skipped: Collection[int]) -> dict[str, list[int]]:
    """Rows that are (nearly) zero and rows equal to others, without the `skipped` ones.

    Sixteen coordinates of every row tell which few rows must be read in full, so that this costs little
    beside the statistics themselves.
    """
    n, d = old.shape
    chunk = max(1, 2**20 // d)  # rows read in full at a time
    places = torch.linspace(0, d - 1, min(d, 16), dtype=torch.float64, device=old.device).long()
    probed = old[:, places].double()
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
    return {"zero": [i for i in zero.tolist() if i not in skipped], "repeated": sorted(repeated)}


def _with_equals(rows: Tensor, key: Tensor) -> Tensor:
    """Those of `rows` whose `key` occurs more than once among them."""
    _, group, counts = torch.unique(key[rows], return_inverse=True, return_counts=True)
    return rows[counts[group] > 1]
