"""Figures of a run: the learning curve, and the embedding values against Xavier's and the positions'."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..drawing import BLUE, GRAY, GREEN, ORANGE, new_figure, save_figure
from ..errors import InvalidArgumentError
from ..measures import check_table, position_encoding, row_index
from ..moments import xavier_bound, xavier_std

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_VALUES = 4_000_000


def plot_learning_curve(
    history: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    *,
    scores: Mapping[str, str] | None = None,
    best_epoch: float | None = None,
    title: str = "",
) -> Path:
    """Writes a PNG of training and validation loss by epoch, and of the first of `scores` that was measured:
    name in the history (`validation_bleu`) -> label of its axis.

    `history` is a run record's: rows with `epoch`, `train_loss`, `validation_loss`, ... `best_epoch` is
    marked in each panel, and the title says the value there, else at the end. Raises `InvalidArgumentError`
    when no row has a value to draw.
    """
    from matplotlib.ticker import MaxNLocator

    losses = [
        ("train_loss", "training loss", ORANGE, "--", "s"),
        ("validation_loss", "validation loss", BLUE, "-", "o"),
    ]
    measured = {name for row in history for name, value in row.items() if value is not None}
    drawn = [(name, label, GREEN, "-", "o") for name, label in (scores or {}).items() if name in measured]
    panels = [losses, *([drawn[:1]] if drawn else [])]
    if not any(row.get(line[0]) is not None for row in history for panel in panels for line in panel):
        raise InvalidArgumentError("history has no losses and no metric to draw")
    figure, (axes,) = new_figure(5.2 * len(panels), 3.8, columns=len(panels))
    for ax, lines in zip(axes, panels, strict=True):
        for name, label, color, style, marker in lines:
            points = [(row["epoch"], row[name]) for row in history if row.get(name) is not None]
            if points:
                marker_size = 4 if len(points) <= 40 else 0
                x, y = zip(*points, strict=True)
                ax.plot(x, y, style, color=color, marker=marker, markersize=marker_size, label=label)
        if best_epoch is not None:
            ax.axvline(
                best_epoch, color=GRAY, linestyle=":", linewidth=1.2, label=f"kept: epoch {best_epoch:g}"
            )
        ax.set_xlabel("epoch")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlim(left=0, right=1.04 * max(row["epoch"] for row in history))
        ax.set_ylabel("loss (nats)" if lines is losses else lines[0][1])
        ax.legend(frameon=False)
    name, label = drawn[0][:2] if drawn else losses["validation_loss" in measured][:2]
    ends = {row["epoch"]: row[name] for row in history if row.get(name) is not None}
    epoch = best_epoch if best_epoch in ends else max(ends)
    found = f"{label} {ends[epoch]:.3g} at epoch {epoch:g}"
    return save_figure(figure, path, f"{title}\n{found}" if title else found)


@torch.no_grad()
def plot_embedding_distribution(
    weight: Tensor,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    rows: Sequence[int] | Tensor | None = None,
    input_scale: float | None = None,
    positions: Tensor | None = None,
) -> Path:
    """Writes a PNG with the density of the entries of `weight` `[N, D]`, before and after the input scaling.

    For comparison it has Xavier's density for the same N and D, with the same scaling, and that of the
    position encodings, which are added unscaled: `positions` `[P, D]`, by default 5,000 sinusoidal
    ones. `input_scale` is sqrt(D) unless given; `rows` are the rows that count. Both axes are
    logarithmic (the horizontal one on both sides of a linear part as wide as Xavier's range), so that
    distributions some hundred times wider than others fit in one picture. The title says how wide the scaled
    entries are beside the positions. Raises `InvalidArgumentError`
    for an empty or non-finite table.
    """
    check_table(weight)
    n, d = weight.shape
    values = weight.detach()
    if rows is not None:
        values = values[row_index(rows, n).to(weight.device)]
    values = _some(values)
    scale = math.sqrt(d) if input_scale is None else input_scale
    if positions is None:
        positions = position_encoding(5000, d)
    encodings = _some(positions)
    figure, (axes,) = new_figure(10.4, 4.2, columns=2)
    names = ("Before scaling", f"After scaling by {scale:.3g}: what is added to the positions")
    for ax, name, factor in zip(axes, names, (1.0, scale), strict=True):
        _density_panel(ax, values * factor, encodings, xavier_bound(n, d) * factor, xavier_std(n, d) * factor)
        ax.set_title(name, fontsize="medium")
        ax.set_xlabel("value (log axis, linear around 0)")
        ax.set_ylabel("density (log axis)")
    ratio = float(values.std() * scale / encodings.std().clamp(min=1e-30))
    figure.supxlabel(
        "On the right, a blue hill much wider than the green one drowns the positions. Inside the orange box "
        "all values are equally likely.",
        fontsize="small",
    )
    found = f"once scaled, {ratio:.2g} times as wide as the position encodings"
    return save_figure(figure, path, f"{title}: {found}" if title else found.capitalize())


def _some(x: Tensor) -> Tensor:
    """At most `_MAX_VALUES` entries of whole rows, evenly spread over the table: enough for its shape."""
    step = max(1, math.ceil(x.numel() / _MAX_VALUES))
    return x.detach()[::step].reshape(-1).cpu().double()


def _density_panel(ax: Axes, values: Tensor, encodings: Tensor, bound: float, xavier_sd: float) -> None:
    reach = 1.3 * max(*(float(x.abs().max()) for x in (values, encodings)), bound)

    def histogram(x: Tensor) -> tuple[list[float], list[float]]:
        """Densities over bins of equal width on the axis."""
        linear = torch.linspace(-bound, bound, 41, dtype=torch.float64)
        outer = torch.logspace(math.log10(bound), math.log10(reach), 61, dtype=torch.float64)[1:]
        edges = torch.cat([-outer.flip(0), linear, outer])
        counts = torch.histogram(x, edges).hist
        return (counts / x.numel() / edges.diff()).tolist(), edges.tolist()

    sd = float(values.std())
    density, edges = histogram(values)
    ax.stairs(density, edges, fill=True, color=BLUE, alpha=0.35, label=f"embeddings, sd {sd:.3g}")
    ax.stairs(density, edges, color=BLUE, linewidth=1.2)
    highest = [max(density), 0.5 / bound]
    lowest = [min(v for v in density if v > 0)]
    density, edges = histogram(encodings)
    ax.stairs(
        density,
        edges,
        color=GREEN,
        linewidth=1.4,
        linestyle="--",
        label=f"position encodings, sd {encodings.std():.3g}",
    )
    highest.append(max(density))
    lowest.append(min(v for v in density if v > 0))
    bottom = min(lowest) / 3
    ax.plot(
        [-bound, -bound, bound, bound],
        [bottom, 0.5 / bound, 0.5 / bound, bottom],
        color=ORANGE,
        linewidth=1.6,
        label=f"Xavier, sd {xavier_sd:.3g}",
    )
    ax.set_xscale("symlog", linthresh=bound, linscale=0.6)
    decades = [10.0**k for k in range(-6, 7) if bound <= 10.0**k <= reach]
    decades = decades[:: math.ceil(len(decades) / 4)] if decades else [float(f"{bound / 2:.1g}")]
    ax.set_xticks([-x for x in reversed(decades)] + [0.0] + decades)
    ax.set_xticklabels([f"{x:g}" for x in ax.get_xticks()])
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_xlim(-reach, reach)
    top = max(highest)
    ax.set_ylim(bottom, top * (top / bottom) ** 0.35)  # room for the legend above the curves
    ax.legend(frameon=False, loc="upper center", ncols=1, fontsize="small")
