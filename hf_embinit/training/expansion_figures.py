"""Figures of a vocabulary expansion study: KL(p || p') before training, bits per byte during it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..drawing import BLUE, CURVES, GRAY, ORANGE, new_figure, save_figure
from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METRIC = "validation_bits_per_byte"
_SAME = 0.05
"""Two histograms that differ by less than this share of their values look the same."""


def plot_kl_histograms(
    kl: Mapping[str, Tensor], path: str | os.PathLike[str], *, bound: float, title: str = ""
) -> Path:
    """Writes a PNG with a histogram an initialiser of KL(p || p') `[P]` in nats, log axis.

    `bound` is log(1 + m / n), drawn in each panel; the title says whose values pass it. Zeros are at the
    left edge. Initialisers whose histograms are the same to the eye share a panel.
    """
    if not kl or any(not len(values) for values in kl.values()):
        raise InvalidArgumentError("kl has no values to draw")
    positive = torch.cat([v[v > 0] for v in kl.values()] + ([torch.tensor([bound])] if bound else []))
    low = float(torch.quantile(positive, 0.001)) / 2 if len(positive) else 1e-6
    high = max(float(positive.max()) * 2 if len(positive) else 1.0, low * 10)
    edges = torch.logspace(torch.tensor(low).log10(), torch.tensor(high).log10(), 61, dtype=torch.float64)
    panels: list[tuple[list[str], Tensor]] = []
    for name, values in kl.items():
        share = torch.histogram(values.double().clamp(low * 1.0001, high * 0.9999), edges).hist / len(values)
        same = next((names for names, other in panels if float((share - other).abs().sum()) < _SAME), None)
        if same:
            same.append(name)
        else:
            panels.append(([name], share))
    figure, (axes,) = new_figure(max(5.4, 3.0 * len(panels)), 3.6, columns=len(panels), sharey=True)
    for ax, (names, share) in zip(axes, panels, strict=True):
        ax.stairs(share.tolist(), edges.tolist(), fill=True, color=BLUE, alpha=0.7)
        ax.axvline(bound, color=ORANGE, linestyle="--", linewidth=1.3)
        mean = float(kl[names[0]].mean())
        ax.axvline(mean, color=GRAY, linestyle=":", linewidth=1.3)
        ax.set_xscale("log")
        ax.set_title(f"{' and '.join(names)}\nmean {mean:.2g}", fontsize="medium")
        ax.set_xlabel("KL(p || p'), nats")
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("share of prefixes")
    passing = [name for name, values in kl.items() if float(values.max()) > bound]
    found = f"{' and '.join(passing)} can pass the bound" if passing else "none passes the bound"
    figure.supxlabel(
        "How far new rows move the model after each prefix, before training.\nDotted: the mean. Dashed: "
        f"log(1 + m/n) = {bound:.2g}, which rows at the mean of the n old ones never pass.",
        fontsize="small",
    )
    return save_figure(figure, path, f"{title}: {found}" if title else found)


def plot_curves(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | os.PathLike[str],
    *,
    reference: Mapping[str, float] | None = None,
    title: str = "",
) -> Path:
    """Writes a PNG with a line a run of its bits per byte of validation text, by optimizer step.

    `reference` gives the value before any change, drawn as a horizontal line. Of several runs a second panel
    shows it minus that of the first run, to tell near-equal curves apart, and the title says which is lowest.
    """
    curves = {name: points for name, rows in histories.items() if (points := _points(rows))}
    if not curves:
        raise InvalidArgumentError(f"no history has {_METRIC}")
    first, base = next(iter(curves.items()))
    several = len(curves) > 1
    figure, (axes,) = new_figure(5.6 * (1 + several), 4.0, columns=1 + several)
    _lines(axes[0], curves)
    if reference and reference.get(_METRIC) is not None:
        axes[0].axhline(
            reference[_METRIC], color=GRAY, linestyle=":", linewidth=1.2, label="before expansion"
        )
    values = [y for curve in curves.values() for y in curve.values()]
    if max(values) > 5 * min(values) > 0:
        axes[0].set_yscale("log")
    axes[0].set_ylabel("validation bits per byte")
    axes[0].legend(frameon=False)
    if several:
        _lines(axes[1], {n: {x: y - base[x] for x, y in c.items() if x in base} for n, c in curves.items()})
        axes[1].set_ylabel(f"the same minus {first}'s")
        axes[1].set_yscale("symlog", linthresh=0.02)
        last = {name: list(curve.values())[-1] for name, curve in curves.items()}
        best = min(last, key=lambda name: last[name])
        found = f"{best} ends lowest, at {last[best]:.3f} ({first}: {last[first]:.3f})"
        if best == first:
            found = f"{best} ends lowest, at {last[best]:.3f}"
        title = f"{title}: {found}" if title else found
        figure.supxlabel(
            f"Lower is better. Right: below 0 is better than {first}; the axis is linear up to 0.02 and "
            "logarithmic beyond.",
            fontsize="small",
        )
    return save_figure(figure, path, title)


def _points(rows: Sequence[Mapping[str, Any]]) -> dict[float, float]:
    """Step -> value."""
    return {row["step"]: row[_METRIC] for row in rows if row.get(_METRIC) is not None}


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
            linewidth=max(1.2, 3.0 - 0.45 * index),  # those below another one can be seen beside it
            markevery=(index % every, every),
            label=name,
        )
    ax.set_xlabel("optimizer steps")
