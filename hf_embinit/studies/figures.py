"""Figures of a study: curves over training, bars of a grid of settings, rows over boxes, rankings."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..drawing import PALETTE, new_figure, save_figure, shrink_picture
from .comparisons import t_interval

_DASHES = ("-", "--", "-.", ":")


def plot_mean_curves(
    panels: Mapping[str, Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]],
    path: str | Path,
    *,
    metric: str,
    label: str,
    x: str = "epoch",
    title: str = "",
    against: str | None = None,
    lower_is_better: bool = False,
    left_out: int = 0,
) -> Path:
    """Writes a PNG with a panel for each column: `panels[column][row]` has the history of each seed.

    Lines are means over the seeds at each `x` that all of them have; bands are one sample sd on either side.
    With `against` they are of differences from that row, seed by seed. The title of a panel says which is
    highest, or lowest, at the last `x` of all rows, and from which others it cannot be told. `left_out` is
    the number of diverged runs that the histories are without; the caption says it.
    """
    from matplotlib.ticker import MaxNLocator

    most = max(map(len, panels.values()))
    below = most > 3  # no room for so many names among the curves
    figure, (axes,) = new_figure(5.0 * len(panels), 4.0 + 0.25 * most * below, columns=len(panels))
    for ax, (column, rows) in zip(axes, panels.items(), strict=True):
        found = {name: _curves(histories, x, metric) for name, histories in rows.items()}
        if against is not None:
            found = _differences(found, against)
            ax.axhline(0, color="black", linewidth=0.8)
        for number, (name, by_seed) in enumerate(found.items()):
            curves = list(by_seed.values())
            shared = _shared(curves)
            if not shared:
                continue
            mean = [statistics.fmean(c[i] for c in curves) for i in shared]
            color = PALETTE[number % len(PALETTE)]
            dashes = _DASHES[number % len(_DASHES)]
            label_n = f"{name} (n={len(curves)})"
            ax.plot(shared, mean, dashes, color=color, label=label_n, marker="o", markersize=3)
            if len(curves) > 1:
                sd = [statistics.stdev(c[i] for c in curves) for i in shared]
                low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
                ax.fill_between(shared, low, high, color=color, alpha=0.15, linewidth=0)
        title_of = f"{column}{_end(found, x, lower_is_better=lower_is_better)}"
        ax.set_title(textwrap.fill(title_of, 52), fontsize="medium")
        ax.set_xlabel(x)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))  # 16000 is wide
        ax.set_ylabel(label)
        if ax.lines:
            where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)} if below else {}
            ax.legend(frameon=False, **where)
    caption = "Lines: means over n seeds. Bands: one standard deviation on either side."
    if left_out:
        caption += f" Runs that diverged and are left out: {left_out}."
    figure.supxlabel(caption, fontsize="small")
    return save_figure(figure, path, title)


Curves = dict[int, dict[float, float]]
"""Seed -> x -> y."""


def _curves(histories: Mapping[int, Sequence[Mapping[str, Any]]], x: str, metric: str) -> Curves:
    return {
        seed: {
            row[x]: row[metric] for row in history if row.get(metric) is not None and row.get(x) is not None
        }
        for seed, history in histories.items()
    }


def _shared(curves: Sequence[Mapping[float, float]]) -> list[float]:
    """Every x that all of the curves have."""
    return sorted(set.intersection(*map(set, curves))) if curves else []


def _end(found: Mapping[str, Curves], x: str, *, lower_is_better: bool) -> str:
    """The end of a panel's title: which row is best at the last x of all rows, "" where none can be said."""
    drawn = {name: by_seed for name, by_seed in found.items() if _shared(list(by_seed.values()))}
    shared = _shared([curve for by_seed in drawn.values() for curve in by_seed.values()])
    if len(drawn) < 2 or not shared:
        return ""
    at = shared[-1]
    values = {name: {seed: curve[at] for seed, curve in by_seed.items()} for name, by_seed in drawn.items()}
    better, how = ("lower", "lowest") if lower_is_better else ("higher", "highest")
    whole = all(_shared(list(by_seed.values()))[-1] == at for by_seed in drawn.values())
    said = f"ends {how}" if whole else f"is {how} at {x} {at:g}, the last that all have"
    return f": {_ranked(values, better)[0]} {said}{_not_told(values, better)}"


def _differences(found: Mapping[str, Curves], against: str) -> dict[str, Curves]:
    """The other curves less those of `against`, where both are known."""
    base = found.get(against, {})
    return {
        name: {
            seed: {i: y - base[seed][i] for i, y in own.items() if i in base[seed]}
            for seed, own in curves.items()
            if seed in base
        }
        for name, curves in found.items()
        if name != against
    }


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
    value, name = max(
        (f[0], f"{', '.join(group.splitlines())}, {bar}")
        for group, of in groups.items()
        for bar, f in of.items()
    )
    return save_figure(figure, path, f"{title}\nhighest: {name} ({value:.1f})".strip())


@dataclass(frozen=True)
class Sweep:
    """The rows of one column from box to box, in one value: lines of those that are in several boxes."""

    title: str
    value: str
    better: str
    """`higher` or `lower`."""
    rows: Mapping[str, Mapping[str, Mapping[int, float]]]
    """For each row and box the numbers by seed."""
    digits: int = 1

    def finding(self, level: Collection[str] = ()) -> str:
        """The column, its best cell with its mean, and the cells that cannot be told from it.

        Rows of `level` have no setting that boxes differ in, and are named without it.
        """
        cells = {
            row if row in level else f"{row} at {box}": numbers
            for row, boxes in self.rows.items()
            for box, numbers in boxes.items()
        }
        return _best(self.title, cells, self.better, self.digits)


def plot_sweeps(sweeps: Sequence[Sweep], boxes: Sequence[str], path: str | Path, *, title: str = "") -> Path:
    """Writes a PNG with a panel for each column, two beside each other, and `boxes` from left to right: the
    mean of each row with one standard deviation, hollow where it is of one seed; a row that no column has in
    two boxes is a level line."""
    names = list(dict.fromkeys(name for sweep in sweeps for name in sweep.rows))
    level = {
        name for name in names if len({box for sweep in sweeps for box in sweep.rows.get(name, ())}) == 1
    }
    pairs = (len(sweeps) + 1) // 2
    figure, axes = new_figure(11.0, 3.1 * pairs + 0.15 * len(names) + 0.4, columns=2, rows=pairs)
    lines = {}
    for ax, sweep in zip(axes.flat, sweeps, strict=False):
        for name, of_box in sweep.rows.items():
            number = names.index(name)
            look: dict[str, Any] = {
                "color": PALETTE[number % len(PALETTE)],
                "linestyle": _DASHES[number % len(_DASHES)],
            }
            means = [statistics.fmean(numbers.values()) for numbers in of_box.values()]
            if name in level:
                lines[name] = ax.axhline(means[0], linewidth=1.2, **look)
                continue
            places = [boxes.index(box) + 0.04 * (number - (len(names) - 1) / 2) for box in of_box]
            sd = [statistics.stdev(n.values()) if len(n) > 1 else math.nan for n in of_box.values()]
            lines[name] = ax.errorbar(
                places, means, sd, marker="o", markersize=4, capsize=2, elinewidth=0.8, **look
            )
            single = [i for i, width in enumerate(sd) if math.isnan(width)]
            x, y = ([values[i] for i in single] for values in (places, means))
            ax.plot(x, y, "o", color=look["color"], markersize=4, markerfacecolor="white", zorder=3)
        ax.set_xticks(range(len(boxes)), boxes)
        ax.set_xlim(-0.3, len(boxes) - 0.7)
        ax.set_ylabel(sweep.value)
        ax.set_title(textwrap.fill(sweep.finding(level), 66), fontsize=10)
    for ax in axes.flat[len(sweeps) :]:
        ax.set_axis_off()
    half = (len(names) + 1) // 2
    for ax, some in zip(axes[-1], (names[:half], names[half:]), strict=True):
        if some:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
            ax.legend([lines[name] for name in some], some, frameon=False, **below)
    figure.supxlabel(
        "Points: means over seeds, whiskers one standard deviation; hollow: one seed. Level lines: rows "
        "without that setting. Best: of the rows drawn. Not told from: the 95% t interval of the difference "
        "over the same seeds holds 0, or there is none."
    )
    return shrink_picture(save_figure(figure, path, title))


@dataclass(frozen=True)
class Ranking:
    """The methods of one setting, to be ranked by the first of one or two values of the same unit."""

    title: str
    values: Sequence[str]
    better: str
    """`higher` or `lower`."""
    rows: Mapping[str, Sequence[Mapping[int, float]]]
    """For each method and value the numbers by seed; a value may have none."""
    digits: int = 3

    def ranked(self) -> list[str]:
        """The methods, the best mean of the first value first."""
        return _ranked(self._first_values(), self.better)

    def finding(self) -> str:
        """The setting, its best method with its mean, and the methods that cannot be told from it."""
        return _best(self.title, self._first_values(), self.better, self.digits)

    def _first_values(self) -> dict[str, Mapping[int, float]]:
        return {name: values[0] for name, values in self.rows.items()}


def _ranked(rows: Mapping[str, Mapping[int, float]], better: str) -> list[str]:
    """The rows, numbers by seed, the best mean first."""
    sign = -1 if better == "higher" else 1
    return sorted(rows, key=lambda name: sign * statistics.fmean(rows[name].values()))


def _best(title: str, rows: Mapping[str, Mapping[int, float]], better: str, digits: int) -> str:
    """The title of a panel: which row is best, with its mean, and which cannot be told from it."""
    first = _ranked(rows, better)[0]
    mean = f"{statistics.fmean(rows[first].values()):.{digits}f}"
    return f"{title}: {first} is best ({mean}){_not_told(rows, better)}"


def _not_told(rows: Mapping[str, Mapping[int, float]], better: str) -> str:
    """The end of a sentence on the best row: those that cannot be told from it, since the 95% t interval of
    their difference over the seeds that both have holds 0, or there is none.

    The same numbers chose the best row, so with many rows a few are told from it by chance.
    """
    first, *others = _ranked(rows, better)
    best = rows[first]
    if len(best) == 1:
        return ", one seed"
    level = []
    for name in others:
        interval = t_interval([best[s] - rows[name][s] for s in best.keys() & rows[name].keys()] or [0.0])
        least = None if interval is None else interval[0] if better == "higher" else -interval[1]
        if least is None or least <= 0:  # of the seeds that both have, which may be few
            level.append(name)
    more = f" and {len(level) - 1} more" if len(level) > 1 else ""
    return f", not told from {level[0]}{more}" if level else ""


_ROW_HEIGHT, _LABEL_WIDTH = 0.29, 44
"""Inches that a method takes in a ranking, and letters of its name on a line."""


def plot_rankings(rankings: Sequence[Ranking], path: str | Path, *, title: str = "") -> Path:
    """Writes a PNG with a panel for each setting, two beside each other: its methods, the best at the top,
    with the mean over seeds and its 95% t interval; means of one seed are hollow."""
    pairs = [rankings[i : i + 2] for i in range(0, len(rankings), 2)]
    heights = [1.1 + _ROW_HEIGHT * max(len(one.rows) for one in pair) for pair in pairs]
    figure, axes = new_figure(
        12.0, sum(heights) + 0.8, columns=2, rows=len(pairs), gridspec_kw={"height_ratios": heights}
    )
    for ax, ranking in zip(axes.flat, rankings, strict=False):
        draw_ranking(ax, ranking)
    for ax in axes.flat[len(rankings) :]:
        ax.set_axis_off()
    figure.supxlabel(
        "The best method is at the top of each panel, whose title names it. Points: mean over seeds. Lines: "
        "its 95% t interval. Hollow: one seed. Not told from: the interval of the difference over the same "
        "seeds holds 0."
    )
    return shrink_picture(save_figure(figure, path, title))


def draw_ranking(ax: Any, ranking: Ranking) -> None:
    """One panel of `plot_rankings`."""
    names = ranking.ranked()
    means = {name: [statistics.fmean(one.values()) for one in ranking.rows[name] if one] for name in names}
    smallest = min(map(min, means.values()))
    # methods that fail are named in words: on one axis with them, the others would be in one place
    off = {name for name in names if ranking.better == "lower" and 0 < 10 * smallest < max(means[name])}
    for name in off:
        said = f"off the scale: {', '.join(f'{mean:.{ranking.digits}f}' for mean in means[name])}"
        look: dict[str, Any] = {"fontsize": 8, "color": "0.35", "ha": "right", "va": "center"}
        ax.text(0.99, names.index(name), said, transform=ax.get_yaxis_transform(), **look)
    for number, value in enumerate(ranking.values):
        color, marker = PALETTE[number], "os"[number % 2]
        for place, name in enumerate(names):
            numbers = list(ranking.rows[name][number].values())
            if not numbers or name in off:
                continue
            interval = t_interval(numbers)
            if interval:
                ax.plot(interval, (place, place), color=color, linewidth=1.4, solid_capstyle="butt")
            fill = color if interval else "white"
            ax.plot(
                statistics.fmean(numbers), place, marker, color=color, markerfacecolor=fill, markersize=5.5
            )
        ax.plot([], [], marker, color=color, label=value)
    ax.set_yticks(range(len(names)), [textwrap.fill(name, _LABEL_WIDTH) for name in names], fontsize=8)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel(f"{' and '.join(ranking.values)}: {ranking.better} is better")
    ax.set_title(textwrap.fill(ranking.finding(), 50), fontsize=10)
    if len(ranking.values) > 1:
        ax.legend(frameon=False, loc="upper right" if ranking.better == "lower" else "lower right")
