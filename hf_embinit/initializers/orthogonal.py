"""Rows at right angles to the position encodings: a table turned, and its part in their span taken out.

`V` rows, `D` columns, `P` positions, r the dimensions of their span. A model reads `scale * row + position`
(Kim et al. 2024, Eq. 3). An orthogonal map keeps every inner product of the rows, so the table may be turned
at no cost such that its r least used directions lie in the positions' span; what little it holds there can
then be taken out. Words are left D - r dimensions and positions r, so that the sum is a concatenation in
another basis, and a linear map reads both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import InvalidArgumentError
from ..measures import energy_share, position_span
from ..moments import xavier_std
from .context import InitContext, InputPositions
from .random import xavier_rows

Turn = Literal["least", "most", "random", "none"]
"""Which directions of a table are turned into the positions' span: those that hold the least of its energy,
those that hold the most (a control), random ones (a control), or the ones that lie there already."""

QUIET = 0.25
"""Length of a position beside that of a row, by root mean squares, at the recommended `position_scale`.

Where rows are at right angles to all positions, have one length, and positions are rho times as long, the
cosine of two words moves by rho^2 (c - cos) / (1 + rho^2) in the sum, c being that of their positions: at
1 / 4, by 0.06 at the most for words that had nothing in common. It is for cosines: of the lengths 0.15, 0.3,
0.75 and 1.5 frozen models learned most from 0.75 (`recipes/results/orthogonal/README.md`).
"""


@dataclass(frozen=True)
class Channel:
    """What was done to a table, all in float64."""

    rows: Tensor
    """`[V, D]`: mean 0 and the sample sd asked for, over all entries."""
    map: Tensor
    """`[D, D]`, orthogonal: rows times this are turned, and times its transpose turned back."""
    basis: Tensor
    """`[r, D]`: orthonormal rows that span the positions."""
    share_before: float
    """Share of the table's energy (squared length of its rows) in the positions' span, before."""
    share_turned: float
    """The same once it is turned."""


def turned_away(
    rows: Tensor, positions: Tensor, *, turn: Turn, energy: float, empty: bool, generator: torch.Generator
) -> Channel:
    """`rows` `[V, D]`, of mean 0, turned against `positions` `[P, D]`; mean and sd of the entries stay.

    Of all maps that take the chosen directions into the span (r dimensions, which hold the share `energy` of
    the positions' squared length), the one nearest to the identity. A turn inside the span or inside its
    complement then puts the mean of the entries at 0, which is Eq. 1 of Kim et al. 2024 together with the sd.
    `empty` takes out the rows' part in the span and stretches the rest to the sd. Raises
    `InvalidArgumentError` when the positions leave fewer than two dimensions, and when they take one that the
    mean of the rows lies in more than the others can make up for.
    """
    rows, width = rows.double(), rows.shape[1]
    inside = position_span(positions.double(), energy)
    if width - len(inside) < 2:
        raise InvalidArgumentError(
            f"{len(positions)} positions take {len(inside)} of {width} dimensions, and rows need two at the "
            f"least: give a smaller positions= or energy="
        )
    outside = _complement(inside)
    gram = rows.T @ rows  # all that the map depends on, with the mean: the table itself is read once more
    turning = _directions(gram, turn, inside, generator)
    kept = turning @ outside.T @ outside if empty else turning
    level = _turn_to_zero_sum(rows.mean(0) @ kept, inside, outside)
    through = kept @ level
    stretch = (gram.trace() / (gram @ through * through).sum()).sqrt()
    shares = (_share(gram, inside), _share(turning.T @ gram @ turning, inside))
    return Channel(rows @ (stretch * through), turning @ level, inside, *shares)


def _share(gram: Tensor, basis: Tensor) -> float:
    """`energy_share` of the rows whose products `gram` `[D, D]` holds."""
    return float((basis @ gram * basis).sum() / gram.trace())


def _directions(gram: Tensor, turn: Turn, inside: Tensor, generator: torch.Generator) -> Tensor:
    """`[D, D]`: the orthogonal map that takes the chosen directions of the table into the span `inside`."""
    width = len(gram)
    if turn == "none":
        return torch.eye(width, dtype=torch.float64)
    if turn == "random":
        return _random_orthogonal(width, generator)
    directions = torch.linalg.eigh(gram)[1].T  # the least energetic first
    if turn == "most":
        directions = directions.flip(0)
    r = len(inside)
    return smallest_turn(directions[:r], inside) + smallest_turn(directions[r:], _complement(inside))


def smallest_turn(a: Tensor, b: Tensor) -> Tensor:
    """`[D, D]`: takes the span of the orthonormal rows `a` `[r, D]` to that of `b` `[r, D]`, the rest to 0.

    The isometry between the two that is nearest to the identity (orthogonal Procrustes, Schönemann 1966); it
    depends on the spans alone.
    """
    u, _, v = torch.linalg.svd(a @ b.T)
    return a.T @ (u @ v) @ b


def _complement(basis: Tensor) -> Tensor:
    """Orthonormal rows `[D - r, D]` at right angles to those of `basis` `[r, D]`."""
    return torch.linalg.qr(basis.T, mode="complete")[0].T[len(basis) :]


def _random_orthogonal(width: int, generator: torch.Generator) -> Tensor:
    """`[width, width]`, uniform over all orthogonal matrices (Mezzadri 2007)."""
    q, r = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()


def _turn_to_zero_sum(mean: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """`[D, D]`, orthogonal: turns `mean` `[D]` in one plane such that its entries sum to 0.

    The plane lies inside the span or outside it, so that neither's energy changes: where the mean and the
    vector of ones have the larger parts, which is where the sum of the other can be made up for. One
    dimension has no plane.
    """
    ones = torch.ones_like(mean)
    parts = [(basis @ mean, basis @ ones) for basis in (inside, outside)]
    sizes = [float(m.norm() * o.norm()) for m, o in parts]
    here = int(sizes[1] >= sizes[0])
    if here == 0 and len(inside) == 1:
        raise InvalidArgumentError(
            "the positions take one dimension, and the mean of the rows lies along it: no turn puts the mean "
            "of the entries at 0; give a larger positions= or energy="
        )
    if not sizes[here] > 0:
        return torch.eye(len(mean), dtype=torch.float64)
    basis, (m, o) = (inside, outside)[here], parts[here]
    other = parts[1 - here]
    wanted = (-float(other[0] @ other[1]) / (m.norm() * o.norm())).clamp(-1, 1)
    x = m / m.norm()
    across = o - (o @ x) * x
    if not float(across.norm()) > 1e-9 * float(o.norm()):  # the two are parallel: any other direction will do
        across = torch.linalg.qr(x[:, None], mode="complete")[0][:, 1]
    y = torch.nn.functional.normalize(across, dim=0)
    angle = torch.atan2(o @ y, o @ x) - torch.arccos(wanted)
    plane = torch.stack([x, y]) @ basis
    rotation = torch.stack(
        [torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]
    )
    return torch.eye(len(mean), dtype=torch.float64) + plane.T @ (rotation - torch.eye(2)) @ plane


def fixed_positions(context: InitContext, name: str, count: int) -> InputPositions:
    """The first `count` positions that the model adds to its rows.

    Raises `InvalidArgumentError` for a model without fixed positions, and for rows beside an old table.
    """
    model = context.positions
    if context.existing is not None:
        raise InvalidArgumentError(
            f"init {name!r} turns a whole table, and rows added to one would have to be turned alike: use "
            f"another init for new rows, such as 'mean'"
        )
    if model is None or isinstance(model, str):
        raise InvalidArgumentError(
            f"init {name!r} turns rows away from fixed position encodings, and {model or 'none are known'}: "
            f"use {name.replace('_orthogonal', '_xavier')!r}"
        )
    if count > len(model.encodings):
        raise InvalidArgumentError(
            f"init {name!r}: positions={count} is more than the {len(model.encodings)} of the model"
        )
    return replace(model, encodings=model.encodings[:count])


def orthogonal_rows(
    context: InitContext, rows: Tensor, model: InputPositions, *, energy: float, empty: bool, turn: Turn
) -> tuple[Tensor, Tensor]:
    """The rows `[V, D]` of the source, of mean 0, by `turned_away` from the positions of `model`; and rows
    for the tokens that it lacks.

    Those are Xavier's draws; with `empty`, their part in the span is taken out and the rest stretched alike.
    The report gets the channel, with the `position_scale` that it asks for, and the map.
    """
    encodings = model.encodings.double()
    channel = turned_away(rows, encodings, turn=turn, energy=energy, empty=empty, generator=context.generator)
    missing = xavier_rows(context, context.num_rows - len(rows)).double()
    r, width = channel.basis.shape
    if empty:
        missing = (missing - missing @ channel.basis.T @ channel.basis) * (width / (width - r)) ** 0.5
    row_length = model.scale * xavier_std(context.num_embeddings, width) * width**0.5
    ratio = float(encodings.norm(dim=1).square().mean().sqrt()) / row_length
    context.report["map"] = channel.map
    context.report["channel"] = {
        "positions": len(encodings),
        "dimensions": r,
        "energy_before": channel.share_before,
        "energy_turned": channel.share_turned,
        "energy_after": energy_share(channel.rows, channel.basis),
        "position_scale": QUIET / ratio,
        "position_scale_now": model.position_scale,
        "position_length_now": ratio * model.factor,
        "map_sha256": hashlib.sha256(channel.map.numpy().tobytes()).hexdigest(),
    }
    return channel.rows.float(), missing.float()
