"""Figures of a vocabulary expansion study: KL(p || p') before training, perplexity during it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..drawing import BLUE, CURVES, GRAY, ORANGE, new_figure, save_figure
from ..errors import InvalidArgumentError
from ..tasks.expansion import TASK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELS = {f"validation_{name}": f"validation {score.title}" for name, score in TASK.metrics.items()}


def plot_kl_histograms(
    kl: Mapping[str, Tensor], path: str | os.PathLike[str], *, bound: float | None = None, title: str = ""
) -> Path:
    """Writes a PNG with one histogram an initialiser of KL(p || p') `[P]` in nats, on one logarithmic axis.

    `bound` is log(1 + m / n), drawn in each panel. Zeros are shown at the left edge.
    """
    if not kl or any(not len(values) for values in kl.values()):
        raise InvalidArgumentError("kl has no values to draw")
    positive = torch.cat([v[v > 0] for v in kl.values()] + ([torch.tensor([bound])] if bound else []))
    low = float(torch.quantile(positive, 0.001)) / 2 if len(positive) else 1e-6
    high = max(float(positive.max()) * 2 if len(positive) else 1.0, low * 10)
    edges = torch.logspace(torch.tensor(low).log10(), torch.tensor(high).log10(), 61, dtype=torch.float64)
    figure, (axes,) = new_figure(2.9 * len(kl), 3.2, columns=len(kl))
    tops = []
    for ax, (name, values) in zip(axes, kl.items(), strict=True):
        counts = torch.histogram(values.double().clamp(low * 1.0001, high * 0.9999), edges).hist / len(values)
        ax.stairs(counts.tolist(), edges.tolist(), fill=True, color=BLUE, alpha=0.7)
        tops.append(float(counts.max()))
        if bound is not None:
            ax.axvline(
                bound, color=ORANGE, linestyle="--", linewidth=1.3, label=f"log(1 + m/n) = {bound:.2g}"
            )
        ax.axvline(
            float(values.mean()),
            color=GRAY,
            linestyle=":",
            linewidth=1.3,
            label=f"mean {float(values.mean()):.2g}",
        )
        ax.set_xscale("log")
        ax.set_title(name, fontsize="medium")
        ax.set_xlabel("KL(p || p'), nats")
        ax.legend(frameon=False, fontsize="small", loc="upper center")
    for ax in axes:
        ax.set_ylim(0, 1.35 * max(tops))
    axes[0].set_ylabel("share of prefixes")
    return save_figure(figure, path, title)


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | os.PathLike[str],
    *,
    metrics: Sequence[str] = ("validation_bits_per_byte", "validation_word_perplexity"),
    reference: Mapping[str, float] | None = None,
    title: str = "",
) -> Path:
    """Writes a PNG with one line a run of each metric by optimizer step, one panel a metric.

    `reference` gives a metric's value before any change, drawn as a horizontal line. With several runs a last
    panel shows the first metric minus that of the first run, to tell near-equal curves apart.
    """
    if not any(m in row for rows in histories.values() for row in rows for m in metrics):
        raise InvalidArgumentError(f"no history has any of: {', '.join(metrics)}")
    several = len(histories) > 1
    panels = len(metrics) + several
    figure, (axes,) = new_figure(5.0 * panels, 3.8, columns=panels)
    for ax, metric in zip(axes, metrics, strict=False):
        curves = {name: _points(rows, metric) for name, rows in histories.items()}
        _lines(ax, curves)
        if reference and reference.get(metric) is not None:
            ax.axhline(reference[metric], color=GRAY, linestyle=":", linewidth=1.2, label="before expansion")
        values = [y for curve in curves.values() for y in curve.values()]
        if values and max(values) > 5 * min(values) > 0:
            ax.set_yscale("log")
        ax.set_ylabel(_LABELS.get(metric, metric.replace("_", " ")))
        ax.legend(frameon=False)
    if several:
        first = next(iter(histories))
        base = _points(histories[first], metrics[0])
        curves = {name: _points(rows, metrics[0]) for name, rows in histories.items()}
        _lines(axes[-1], {n: {x: y - base[x] for x, y in c.items() if x in base} for n, c in curves.items()})
        axes[-1].set_ylabel(f"{_LABELS.get(metrics[0], metrics[0])}, minus {first}")
        axes[-1].set_yscale("symlog", linthresh=0.02)
        axes[-1].legend(frameon=False)
    return save_figure(figure, path, title)


def _points(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[float, float]:
    """Step -> value."""
    return {row["step"]: row[metric] for row in rows if row.get(metric) is not None}


def _lines(ax: Axes, curves: Mapping[str, Mapping[float, float]]) -> None:
    for index, (name, curve) in enumerate(curves.items()):
        color, style, marker = CURVES[index % len(CURVES)]
        every = max(1, len(curve) // 12)
        ax.plot(
            list(curve),
            list(curve.values()),
            style,
            color=color,
            marker=marker,
            markersize=4,
            markevery=every,
            label=name,
        )
    ax.set_xlabel("optimizer steps")
