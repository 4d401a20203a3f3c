"""Figures of models trained side by side: similarity of their embeddings, and their losses, by step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..drawing import CURVES, new_figure, save_figure
from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TABLES = {
    "knn_input_inner_product": "input table, inner product",
    "knn_input_inner_product_seen": "input, inner product, tokens seen in training",
    "knn_input_inner_product_weighted": "input, inner product, weighted by frequency",
    "knn_input_cosine": "input table, cosine",
    "knn_output_inner_product": "output table, inner product",
}


def plot_trajectory(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    title: str = "",
) -> Path:
    """Writes a PNG by optimizer step (logarithmic, step 0 at the left edge) of a `TwinRecorder`'s rows.

    Its panels: KNN match similarity in percent, the losses of the models called `names`, and the standard
    deviations of their input tables; the title says the highest similarity. Raises `InvalidArgumentError`
    without rows.
    """
    if not rows:
        raise InvalidArgumentError("there are no rows to draw")
    figure, (axes,) = new_figure(15.6, 4.0, columns=3)
    for i, (key, label) in enumerate(_TABLES.items()):
        _line(axes[0], rows, key, label, i, 100.0)
    axes[0].set_ylabel("KNN match similarity (%)")
    axes[0].set_ylim(bottom=0)
    for i, name in enumerate(names):
        _line(axes[1], rows, f"validation_loss_{name}", f"validation, {name}", 2 * i)
        _line(axes[1], rows, f"train_loss_{name}", f"training, {name}", 2 * i + 1)
        _line(axes[2], rows, f"std_{name}", name, 2 * i)
    axes[1].set_ylabel("loss (nats a token)")
    axes[2].set_ylabel("sd of the input table")
    for ax in axes:
        ax.set_xscale("symlog", linthresh=1)
        ax.set_xlim(left=0)
        ax.set_xlabel("optimizer steps (log axis)")
        ax.legend(frameon=False, fontsize="small")
    peak = max(rows, key=lambda row: row.get("knn_input_inner_product") or 0.0)
    figure.supxlabel(
        "Left: the share of nearest neighbors that a token has in both tables, 0% none, 100% all. Of lines "
        "that lie on one another the lower is the wider.",
        fontsize="small",
    )
    found = f"up to {100 * (peak.get('knn_input_inner_product') or 0):.1f}% KNN match (step {peak['step']:,})"
    return save_figure(figure, path, f"{title}: {found}" if title else found)


def _line(
    ax: Axes, rows: Sequence[Mapping[str, Any]], key: str, label: str, style: int, factor: float = 1.0
) -> None:
    points = [(row["step"], factor * row[key]) for row in rows if row.get(key) is not None]
    if points:
        color, line, marker = CURVES[style % len(CURVES)]
        every = max(1, len(points) // 12)
        x, y = zip(*points, strict=True)
        width = max(1.2, 3.4 - 0.6 * style)
        ax.plot(
            x,
            y,
            line,
            color=color,
            marker=marker,
            markersize=4,
            markevery=every,
            label=label,
            linewidth=width,
        )
