"""Absorption: how much of words and of positions survives in the sum of embeddings and position encodings.

`V` tokens, `D` columns, `P` positions. A model reads `scale * embedding + position` (Kim et al. 2024, Eq. 3).
In the sum the addend of larger variance hides the other; a linear map can still separate them where the
positions span few of the D dimensions.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import Count, checked
from ..errors import InvalidArgumentError
from ..moments import standardize, xavier_std
from .analogies import AnalogyTask, analogy_score
from .knn import match_of_neighbors, nearest_neighbors
from .positions import position_span, project_out, random_positions
from .statistics import check_table, position_encoding

_NEIGHBORS = 100
_NUMBERS = 2**24
"""Numbers of a block of rows: 64 MiB of float32."""


@dataclass(frozen=True)
class Absorption:
    """What survives in the sum, and what a linear read-out recovers from it, for one number of positions."""

    num_positions: int
    embedding_std: float
    """Standard deviation of the scaled embeddings."""
    position_std: float
    span_dimensions: int
    """Dimensions that hold the energy of the positions; projecting them out recovers the words."""
    knn_match_in_sum: float
    """KNN match similarity, by cosine, of the sum to the embeddings alone."""
    knn_match_recovered: float | None
    """The same after the positions' span is projected out; None when the span fills the space."""
    rank_correlation_in_sum: float
    """Mean Spearman correlation, by token, of its cosines to its 100 nearest neighbors before and after."""
    rank_correlation_recovered: float | None
    position_accuracy_in_sum: float
    """Share of rows whose nearest position encoding is the one that was added."""
    position_accuracy_recovered: float | None
    """The same for Fisher's discriminant, which allows for the covariance of the embeddings. That is of the
    rows that are read, which it would fit: None with fewer than four rows a dimension of the span."""
    analogies_alone: float | None = None
    """Accuracy, 0 to 1, of the embeddings alone; None without analogies."""
    analogies_in_sum: float | None = None
    analogies_recovered: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `results.json`."""
        return dataclasses.asdict(self)


@torch.no_grad()
@checked
def absorption(
    weight: Tensor,
    num_positions: Count = 64,
    *,
    scale: float | None = None,
    base: float = 10000.0,
    generator: torch.Generator,
    k: int = 10,
    sample: Count = 2000,
    analogies: AnalogyTask | None = None,
) -> Absorption:
    """`Absorption` of the table `weight` `[V, D]`, each row at one of the first `num_positions`.

    `scale` is what the input is multiplied by, sqrt(D) unless given; `base` that of the sinusoidal
    encodings. KNN match and rank correlation are averaged over at most `sample` random tokens, compared
    with all V. `generator` draws the positions and the sample. Leave padding and never-trained rows out of
    `weight`. Raises `InvalidArgumentError` for rows that are zero or not finite, and for k rows or fewer.
    """
    check_table(weight)
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise InvalidArgumentError(f"scale={scale}: expected a positive number")
    v, d = weight.shape
    words = weight.detach().float() * (math.sqrt(d) if scale is None else scale)
    encodings = position_encoding(num_positions, d, base).to(words.device)
    summed, which = random_positions(encodings, v, generator=generator)
    which = which.to(words.device)
    summed += words
    basis = position_span(encodings)
    recovered = project_out(summed, basis) if len(basis) < d else None
    tokens = torch.randperm(v, generator=generator, device=generator.device)[:sample].to(words.device)
    near = nearest_neighbors(
        words, min(max(k, _NEIGHBORS), v - 1), metric="cosine", tokens=tokens, name="weight"
    )

    def word_structure(x: Tensor | None) -> tuple[float | None, float | None, float | None]:
        if x is None:
            return None, None, None
        answered = None if analogies is None else analogy_score(x, analogies).accuracy
        theirs = nearest_neighbors(x, k, metric="cosine", tokens=tokens, name="b")
        match = float(match_of_neighbors(near[:, :k], theirs).mean(dtype=torch.float64))
        return match, _rank_correlation(words, x, tokens, near[:, :_NEIGHBORS]), answered

    match_in_sum, ranks_in_sum, analogies_in_sum = word_structure(summed)
    match_recovered, ranks_recovered, analogies_recovered = word_structure(recovered)
    assert match_in_sum is not None and ranks_in_sum is not None
    return Absorption(
        num_positions=num_positions,
        embedding_std=float(words.std()),
        position_std=float(encodings.std()),
        span_dimensions=len(basis),
        knn_match_in_sum=match_in_sum,
        knn_match_recovered=match_recovered,
        rank_correlation_in_sum=ranks_in_sum,
        rank_correlation_recovered=ranks_recovered,
        position_accuracy_in_sum=_nearest_position(summed, encodings, which),
        position_accuracy_recovered=_read_out_position(summed, words, encodings, basis, which),
        analogies_alone=None if analogies is None else analogy_score(words, analogies).accuracy,
        analogies_in_sum=analogies_in_sum,
        analogies_recovered=analogies_recovered,
    )


@checked
def absorption_curve(
    weight: Tensor,
    lengths: Sequence[Count] = (8, 16, 32, 64, 128, 256, 512, 1024),
    *,
    generator: torch.Generator,
    **options: Any,
) -> list[Absorption]:
    """`absorption` at each number of positions in `lengths`; `options` are passed on."""
    known = [p.name for p in inspect.signature(absorption).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise InvalidArgumentError(f"absorption has no option {name!r}; its options: {', '.join(known)}")
    return [absorption(weight, length, generator=generator, **options) for length in lengths]


def _rank_correlation(x: Tensor, y: Tensor, tokens: Tensor, near: Tensor) -> float:
    """Mean over `tokens` of Spearman's correlation of cosines in x and y to the rows `near` `[Q, n]`.

    Where the table is, which may be a GPU, and without SciPy, which the base installation has not.
    """
    total = 0.0
    for some, their in zip(tokens.split(256), near.split(256), strict=True):
        ranks = []
        for space in (x, y):
            units = (torch.nn.functional.normalize(space[rows], dim=-1) for rows in (some, their))
            cosines = torch.einsum("qd,qnd->qn", *units)
            ordered = cosines.sort(1).values
            first, last = (torch.searchsorted(ordered, cosines, right=right) for right in (False, True))
            rank = (first + last).double() / 2  # equal values share their mean rank
            ranks.append(torch.nn.functional.normalize(rank - rank.mean(1, keepdim=True), dim=1))
        total += float((ranks[0] * ranks[1]).sum())
    return total / len(tokens)


def _nearest_position(summed: Tensor, encodings: Tensor, which: Tensor) -> float:
    half = encodings.square().sum(1) / 2
    rows = max(1, _NUMBERS // len(encodings))
    parts = zip(summed.split(rows), which.split(rows), strict=True)
    return sum(int(((x @ encodings.T - half).argmax(1) == own).sum()) for x, own in parts) / len(summed)


def _read_out_position(
    summed: Tensor, words: Tensor, encodings: Tensor, basis: Tensor, which: Tensor
) -> float | None:
    """Accuracy of Fisher's discriminant in the positions' span, where the embeddings are the noise; None when
    their rows are too few to tell its covariance."""
    if len(words) < 4 * len(basis):
        return None
    span = basis.double().T
    rows = max(1, _NUMBERS // max(words.shape[1], len(encodings)))
    noise = torch.cat([x.double() @ span for x in words.split(rows)])
    mean = noise.mean(0)
    covariance = (noise - mean).T @ (noise - mean) / max(1, len(noise) - 1)
    covariance += 1e-9 * covariance.diagonal().mean() * torch.eye(len(basis)).to(covariance)
    centers = encodings.double() @ span
    weights = torch.linalg.solve(covariance, centers.T)
    half = (centers * weights.T).sum(1) / 2
    right = 0
    for x, own in zip(summed.split(rows), which.split(rows), strict=True):
        right += int((((x.double() @ span - mean) @ weights - half).argmax(1) == own).sum())
    return right / len(words)


@checked
def table_4_transformations(
    weight: Tensor, num_positions: int = 5000, *, base: float = 10000.0, generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    """Names and tables `[V, D]` of the seven transformations of Kim et al. 2024, Table 4, and of an eighth
    where the positions leave a dimension free.

    Each row gets one random position of the first `num_positions`, as in the paper. Scaling is by sqrt(D),
    and the sums are of scaled embeddings, as the model sees them. The eighth, not in the paper, projects the
    span of the positions out of the sixth.
    """
    check_table(weight)
    v, d = weight.shape
    scale = math.sqrt(d)
    raw = weight.detach().float()
    sigma = xavier_std(v, d)
    encodings = position_encoding(num_positions, d, base).to(raw.device)
    added, _ = random_positions(encodings, v, generator=generator)
    narrow = standardize(raw, 0.0, sigma)
    yield "plain", raw
    yield "scaled", raw * scale
    yield "scaled + positions", raw * scale + added
    yield "Xavier-standardized", narrow
    yield "Xavier-standardized, scaled", narrow * scale
    yield "Xavier-standardized, scaled + positions", narrow * scale + added
    yield "scaled + positions x sigma_p / sigma_x", raw * scale + added * (float(raw.std()) / sigma)
    basis = position_span(encodings)
    if len(basis) < d:
        summed = narrow * scale + added
        yield "Xavier-standardized, scaled + positions, span projected out", project_out(summed, basis)
