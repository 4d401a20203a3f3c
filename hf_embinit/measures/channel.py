"""How far words and positions share dimensions, and what either loses by it in their sum.

`V` tokens, `D` columns, `P` positions. `absorption` asks what is left of a table at each
length of a sentence; this asks for which positions, and at which `position_scale`, both can be read.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import Count, Positive, checked
from ..errors import InvalidArgumentError
from .analogies import AnalogyTask, analogy_score
from .knn import match_of_neighbors, nearest_neighbors
from .positions import energy_share, position_span, random_positions
from .statistics import check_table, row_index

_SCORES = 2**22
"""Scores of positions held at a time: 32 MiB."""


@dataclass(frozen=True)
class PositionChannel:
    """One table in the sum with one set of positions."""

    num_positions: int
    position_scale: float
    dimensions: int
    """Those that hold the positions' energy."""
    energy: float
    """Share of the table's energy (squared length of its rows) in these dimensions."""
    length: float
    """Length of a position beside that of a scaled row, by root mean squares."""
    neighbors_in_sum: float
    """KNN match similarity, by cosine, of the sum to the table alone."""
    position_accuracy: float | None
    """Of `probe_positions`; None for fewer than 4 D rows, which do not determine it."""
    analogies_alone: float | None = None
    """Accuracy, 0 to 1, of the table alone; None without analogies."""
    analogies_in_sum: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `results.json`."""
        return dataclasses.asdict(self)


@torch.no_grad()
@checked
def position_channel(
    weight: Tensor,
    positions: Tensor,
    *,
    scale: Positive,
    position_scale: Positive = 1.0,
    energy: float = 0.9999,
    generator: torch.Generator,
    k: Count = 10,
    sample: Count = 500,
    analogies: AnalogyTask | None = None,
    analogies_alone: float | None = None,
) -> PositionChannel:
    """`PositionChannel` of `scale * weight + position_scale * position`, each row at a random position.

    `weight` is `[V, D]`, `positions` `[P, D]`; `energy` the share of the positions' squared length that their
    dimensions hold. Neighbors are compared for at most `sample` random tokens. `analogies_alone`, where it is
    known already, is not computed again. Raises `InvalidArgumentError` for another width, for rows that are
    zero or not finite, and for k rows or fewer.
    """
    check_table(weight)
    check_table(positions, "positions")
    if weight.shape[1] != positions.shape[1]:
        raise InvalidArgumentError(
            f"weight has width {weight.shape[1]} and positions {positions.shape[1]}: give those of one model"
        )
    words, encodings = scale * weight.detach().float(), position_scale * positions.float()
    added, which = random_positions(encodings, len(words), generator=generator)
    tokens = torch.randperm(len(words), generator=generator, device=generator.device)[:sample]
    summed, basis = words + added, position_span(encodings.double(), energy)
    named = (("weight", words), ("the sum", summed))
    near = [nearest_neighbors(x, k, metric="cosine", tokens=tokens, name=name) for name, x in named]
    if analogies is not None and analogies_alone is None:
        analogies_alone = analogy_score(words, analogies).accuracy
    return PositionChannel(
        num_positions=len(positions),
        position_scale=position_scale,
        dimensions=len(basis),
        energy=energy_share(words.double(), basis),
        length=float(encodings.square().sum(1).mean().sqrt() / words.square().sum(1).mean().sqrt()),
        neighbors_in_sum=float(match_of_neighbors(*near).mean(dtype=torch.float64)),
        position_accuracy=probe_positions(summed, encodings, which, generator=generator)
        if len(words) >= 4 * words.shape[1]
        else None,
        analogies_alone=analogies_alone,
        analogies_in_sum=None if analogies is None else analogy_score(summed, analogies).accuracy,
    )


@torch.no_grad()
@checked
def probe_positions(summed: Tensor, positions: Tensor, which: Tensor, *, generator: torch.Generator) -> float:
    """Accuracy, 0 to 1, of a linear probe that names the position of each row of `summed` `[V, D]`.

    `which` `[V]` says which row of `positions` `[P, D]` was added. The probe is linear discriminant analysis
    (Fisher 1936), fitted on a random half of the rows and tried on the other half: the covariance of what is
    not position comes from the rows, the centers of the classes are the positions themselves, so that it
    needs no example of each.

    Raises `InvalidArgumentError` for tables of two widths, fewer than two rows, and a `which` that does not
    name one position a row.
    """
    for name, x in (("summed", summed), ("positions", positions)):
        check_table(x, name)
    if summed.shape[1] != positions.shape[1] or len(summed) < 2:
        raise InvalidArgumentError(
            f"summed {tuple(summed.shape)} and positions {tuple(positions.shape)}: expected [V, D] and "
            "[P, D], V of 2 or more"
        )
    which = row_index(which, len(positions), "which").to(summed.device)
    if len(which) != len(summed):
        raise InvalidArgumentError(f"which has {len(which)} positions for the {len(summed)} rows of summed")
    order = torch.randperm(len(summed), generator=generator, device=generator.device).to(summed.device)
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    x, centers = summed.double(), positions.double()
    words = x[train] - centers[which[train]]
    mean = words.mean(0)
    covariance = (words - mean).T @ (words - mean) / max(1, len(words) - 1)
    covariance += 1e-9 * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
    weights = torch.linalg.solve(covariance, centers.T)
    bias = (centers * weights.T).sum(1) / 2
    right = 0
    for part in test.split(max(1, _SCORES // len(centers))):
        right += int((((x[part] - mean) @ weights - bias).argmax(1) == which[part]).sum())
    return right / len(test)
