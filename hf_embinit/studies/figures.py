"""Figures of a study: mean curves over seeds, and bars of a grid of settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..drawing import PALETTE, new_figure, save_figure

_DASHES = ("-", "--", "-.", ":")


def plot_mean_curves(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]],
    path: str | Path,
    *,
    metric: str,
    label: str,
    x: str = "epoch",
    title: str = "",
) -> Path:
    """Writes a PNG with a panel for each column: `panels[column][row]` are the histories of its seeds.

    Lines are means over the seeds at each `x` that all of them have; bands are one sample sd on either side.
    The title of a panel says which ends highest.
    """
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = new_figure(5.0 * len(panels), 4.0, columns=len(panels))
    for ax, (column, rows) in zip(axes, panels.items(), strict=True):
        last: dict[str, float] = {}
        for number, (name, histories) in enumerate(rows.items()):
            curves = [{row[x]: row[metric] for row in h if row.get(metric) is not None} for h in histories]
            shared = sorted(set.intersection(*map(set, curves))) if curves else []
            if not shared:
                continue
            mean = [statistics.fmean(c[i] for c in curves) for i in shared]
            last[name] = mean[-1]
            color = PALETTE[number % len(PALETTE)]
            dashes = _DASHES[number % len(_DASHES)]
            label_n = f"{name} (n={len(curves)})"
            ax.plot(shared, mean, dashes, color=color, label=label_n, marker="o", markersize=3)
            if len(curves) > 1:
                sd = [statistics.stdev(c[i] for c in curves) for i in shared]
                low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
                ax.fill_between(shared, low, high, color=color, alpha=0.15, linewidth=0)
        found = f": {max(last, key=lambda name: last[name])} ends highest" if len(last) > 1 else ""
        ax.set_title(f"{column}{found}", fontsize="medium")
        ax.set_xlabel(x)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylabel(label)
        if ax.lines:
            ax.legend(frameon=False)
    figure.supxlabel(
        "Lines: means over n seeds. Bands: one standard deviation on either side.", fontsize="small"
    )
    return save_figure(figure, path, title)


def plot_bars(
    groups: Mapping[str, Mapping[str, tuple[float, float | None, float | None]]],
    path: str | Path,
    *,
    label: str,
    legend: str | None = None,
    title: str = "",
) -> Path:
    """Writes a PNG of bars: `groups[group][bar]` is our mean, our sd, and the paper's mean (a diamond).

    `legend` explains the names of the bars; below `title` stands the highest one.
    """
    bars = list(dict.fromkeys(bar for group in groups.values() for bar in group))
    figure, ((ax,),) = new_figure(1.6 + 1.6 * len(groups), 4.0)
    width = 0.8 / max(1, len(bars))
    for number, bar in enumerate(bars):
        at = [
            i + (number - (len(bars) - 1) / 2) * width
            for i, group in enumerate(groups.values())
            if bar in group
        ]
        found = [group[bar] for group in groups.values() if bar in group]
        ax.bar(
            at, [f[0] for f in found], 0.92 * width, yerr=[f[1] or float("nan") for f in found], label=bar,
            color=PALETTE[number % len(PALETTE)], error_kw={"linewidth": 1, "capsize": 2},
        )  # fmt: skip
        theirs = [(place, f[2]) for place, f in zip(at, found, strict=True) if f[2] is not None]
        if theirs:
            label_once = "the paper's" if number == 0 else None
            x, y = zip(*theirs, strict=True)
            ax.plot(x, y, "D", color="white", markeredgecolor="black", markersize=5, label=label_once)
    ax.set_xticks(range(len(groups)), list(groups))
    ax.set_ylabel(label)
    ax.legend(
        title=legend, frameon=False, ncols=(len(bars) + 2) // 2, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )
    several = any(sd is not None for group in groups.values() for _, sd, _ in group.values())
    ours = "mean over seeds, whiskers one standard deviation" if several else "one seed"
    figure.supxlabel(f"Bars: ours ({ours}). Diamonds: the paper's, at its own settings.", fontsize="small")
    value, name = max((f[0], f"{group}, {bar}") for group, of in groups.items() for bar, f in of.items())
    return save_figure(figure, path, f"{title}\nhighest: {name} ({value:.1f})".strip())
