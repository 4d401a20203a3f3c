"""`tokens2words`: rows read from the hidden state in which the layers have joined a word's pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import Count
from ..errors import InvalidArgumentError, UnsupportedModelError
from ..initializers import least_squares, register_initializer
from .pieces import split_tokens
from .refinement import RefineContext, Refined, padded

_BATCH = 256
_RIDGE = 1e-3
"""Share of the mean squared hidden state that is added to the diagonal."""


@register_initializer(
    "tokens2words",
    summary="rows read by a linear map from the hidden state of a token's last piece",
    reference="Kaplan et al. 2024, From tokens to words (arXiv 2410.05864)",
    purpose="refinement",
)
def tokens2words(context: RefineContext, *, max_tokens: Count = 10_000) -> Refined:
    """For each layer a linear map from its hidden state to the input row is fitted on old tokens that stand
    alone, `max_tokens` at most; a new token gets what it reads from its last piece.

    One layer serves all tokens: the one whose input rows leave the last hidden state nearest to that of the
    pieces. The authors ask the model itself which layer knows the word (Patchscopes), and map output rows as
    well; here those stay as the method made them, since a row that is read from a word's last piece is
    likely wherever that piece is, and the word begins with its first. Tokens that the old tokenizer does not
    split in two keep the rows of the method. Raises `UnsupportedModelError` for a model
    that looks both ways, whose state of a piece knows no more of the word than that of another.
    """
    body = context.body
    if not body.causal:
        raise UnsupportedModelError(
            f"refine 'tokens2words' reads the last piece of a word, and {body.name} looks both ways: use "
            f"token_distillation"
        )
    split = dict(zip(context.free.tolist(), split_tokens(context.new, context.free.tolist(), context.old),
                     strict=True))  # fmt: skip
    split = {i: pieces for i, pieces in split.items() if len(pieces) > 1}
    if not split:
        raise InvalidArgumentError("refine 'tokens2words': no new token is split into several old ones")
    start = next((i for role, i in context.old.roles.items() if role in ("bos", "cls", "eos")), None)
    before = [] if start is None else [start]
    plain = [i for i, text in enumerate(context.old.texts) if text and i not in context.old.special]
    plain = [i for i in plain if bool(torch.isfinite(context.old_rows[i]).all())]
    order = torch.randperm(len(plain), generator=context.generator)[:max_tokens]
    known = torch.tensor(plain)[order.sort().values]
    alone = _last_states(context, context.old_rows, [[*before, i] for i in known.tolist()])
    joined = _last_states(context, context.old_rows, [[*before, *pieces] for pieces in split.values()])
    ids = torch.tensor(list(split))
    best: tuple[float, int, Tensor] | None = None
    for layer, (states, wanted) in enumerate(zip(alone, joined, strict=True)):
        places = torch.arange(len(known))
        center, mean, weights, _ = least_squares(states, places, context.old_rows, known, ridge=_RIDGE)
        read = ((wanted.double() - center) @ weights + mean).float()
        table = torch.cat([context.old_rows, read])
        sequences = [[*before, len(context.old_rows) + n] for n in range(len(ids))]
        error = float((_last_states(context, table, sequences)[-1] - joined[-1]).square().mean())
        if best is None or error < best[0]:
            best = (error, layer, read)
    assert best is not None
    _, layer, read = best
    rows = context.rows.clone()
    rows[ids] = read
    context.report["words"] = {"rows": len(ids), "layer": layer + 1, "layers": len(alone)}
    return Refined(rows, context.output, context.biases)


def _last_states(context: RefineContext, table: Tensor, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """The state of the last token of each sequence after each layer: float32 `[N, H]`."""
    found: list[list[Tensor]] = []
    with torch.no_grad():
        for first in range(0, len(sequences), _BATCH):
            ids, mask = padded(sequences[first : first + _BATCH])
            place = context.body.device
            states = context.body.hidden_states(table[ids].to(place), mask.to(place))
            last = mask.sum(1) - 1
            found.append([one[torch.arange(len(last)), last].float().cpu() for one in states])
    return [torch.cat(layer) for layer in zip(*found, strict=True)]
