"""Figures of embedding spaces: norms against frequency, absorption, the KNN match of all pairs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..display import printable
from ..drawing import BLUE, GRAY, ORANGE, new_figure, save_figure
from ..errors import InvalidArgumentError
from ..measures import spearmanr

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS = 20
_LONGEST = 32
"""Letters of a space's name that are drawn."""
_NO_ORDER = 0.1
"""Rank correlations nearer to 0 than this are called none."""
_LINES = [
    ("knn_match_in_sum", "words left in the sum", BLUE, "-", "o"),
    ("knn_match_recovered", "words recovered by a linear map", BLUE, "--", "s"),
    ("position_accuracy_in_sum", "positions left in the sum", ORANGE, "-", "^"),
    ("position_accuracy_recovered", "positions recovered by a linear map", ORANGE, "--", "v"),
]
_INITS = {"pretrained": "as it is", "pretrained_xavier": "standardized"}


def _panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure of `rows` x `columns` axes, of `width` x `height` inches each."""
    return new_figure(width * columns, height * rows, rows=rows, columns=columns, dpi=110, **options)


def short_name(name: str) -> str:
    """A name that a panel has room for: of a long one the start and the end."""
    name = printable(name)
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"


def plot_norms(norms: Mapping[str, tuple[Tensor, Tensor | None]], path: str | os.PathLike[str]) -> Path:
    """Writes a PNG with the row norms of each space against the frequency of its tokens, one panel a space.

    `norms`: name -> norms `[n]` and counts `[n]` in a corpus; without counts (None) the norms are plotted
    against their index, for rows in order of frequency. The line is the running median. Frequent tokens are
    on the left; the title of a panel says whether they have the shorter rows.
    """
    if not norms:
        raise InvalidArgumentError("no space has frequencies to draw norms against")
    columns = min(3, len(norms))
    rows = -(-len(norms) // columns)
    figure, axes = _panels(rows, columns, 4.0, 3.2)
    for ax in axes.flat[len(norms) :]:
        ax.set_visible(False)
    for ax, (name, (values, counts)) in zip(axes.flat, norms.items(), strict=False):
        x = torch.arange(1, len(values) + 1).double() if counts is None else counts.double()
        order = x.argsort(stable=True)
        x, y = x[order], values.double()[order]
        ax.scatter(x.tolist(), y.tolist(), s=2.5, color=BLUE, alpha=0.25, linewidths=0)
        bins = (
            (x.log() / x[-1].log().clamp(min=1e-9) * _PARTS).long().clamp(max=_PARTS - 1)
        )  # equally wide on the axis
        groups = [bins == i for i in range(_PARTS) if int((bins == i).sum()) >= 5]
        middle = [(float(x[g].log().mean().exp()), float(y[g].median())) for g in groups]
        if middle:
            ax.plot(*zip(*middle, strict=True), color=ORANGE, linewidth=1.8, label="running median")
            ax.legend(frameon=False, fontsize="small", loc="upper left")
        ax.set_xscale("log")
        ax.set_ylim(bottom=0)
        rho = spearmanr(-x if counts is None else x, y)
        kind = "as long as rare ones" if abs(rho) < _NO_ORDER else "shorter" if rho < 0 else "longer"
        ax.set_title(f"{short_name(name)}:\nfrequent tokens {kind}\n(Spearman {rho:+.2f})", fontsize="medium")
        ax.set_xlabel(
            "rank by frequency (frequent on the left)"
            if counts is None
            else "occurrences in the corpus (frequent on the left)"
        )
        ax.set_ylabel("Euclidean norm of the row")
        if counts is not None:
            ax.invert_xaxis()
        ax.set_ylim(top=1.15 * float(y.max()))
    figure.supxlabel(
        f"A dot is a token; the line is the median in each of {_PARTS} equal parts of the axis.",
        fontsize="small",
    )
    return save_figure(figure, path)


def plot_absorption(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], path: str | os.PathLike[str]
) -> Path:
    """Writes a PNG of what survives of words and positions in their sum, by sentence length.

    `curves`: name of a space -> `pretrained` and `pretrained_xavier` -> points with the fields of
    `Absorption`. One column a space, one row a variant; its title says for how many tokens the
    position is read off the longest sentences.
    """
    if not curves:
        raise InvalidArgumentError("no absorption curves to draw")
    figure, axes = _panels(2, len(curves), 3.3, 2.9, sharex=True, sharey=True)
    for column, (name, variants) in enumerate(curves.items()):
        for row, (variant, described) in enumerate(_INITS.items()):
            ax = axes[row][column]
            for number, (key, label, color, style, marker) in enumerate(_LINES):
                points = [(p["num_positions"], p[key]) for p in variants[variant] if p[key] is not None]
                if points:
                    ax.plot(
                        *zip(*points, strict=True),
                        style,
                        color=color,
                        marker=marker,
                        markersize=4,
                        linewidth=1.4 if number % 2 else 3.0,  # seen where both are one
                        label=label,
                    )
            longest = max(variants[variant], key=lambda point: point["num_positions"])
            read = f"position read for {100 * longest['position_accuracy_in_sum']:.0f}% of tokens"
            ax.set_title(f"{short_name(name)}, {described}:\n{read}", fontsize="medium")
            ax.set_xscale("log", base=2)
            ax.set_ylim(-0.03, 1.05)
            lengths = [p["num_positions"] for p in variants[variant]]
            ax.set_xticks(lengths, [str(n) for n in lengths])
            ax.minorticks_off()
            if row == 1:
                ax.set_xlabel("sentence length (positions)")
            if column == 0:
                ax.set_ylabel("KNN match, or accuracy")
    handles, labels = axes[0][0].get_legend_handles_labels()
    for ax in axes.flat:
        more, texts = ax.get_legend_handles_labels()
        for handle, text in zip(more, texts, strict=True):
            if text not in labels:
                handles.append(handle)
                labels.append(text)
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=4 if len(curves) > 3 else 2 if len(curves) > 1 else 1,
        frameon=False,
    )
    figure.supxlabel(
        "Words: KNN match with the words alone. Positions: tokens whose nearest position encoding is right, "
        "in the titles at the longest. Standardized: to Xavier's moments. Wide lines lie below.",
        fontsize="small",
    )
    return save_figure(figure, path)


def plot_match_matrix(
    names: Sequence[str], pairs: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]
) -> Path:
    """Writes a PNG of the KNN match similarity of all pairs of spaces, by inner product and by cosine.

    `pairs` are rows with `a`, `b`, `shared_tokens`, `inner_product`, `cosine` and `chance`.
    """
    if len(names) < 2:
        raise InvalidArgumentError("a match matrix needs at least two spaces")
    size = max(3.4, 1.05 * len(names) + 1.2)
    figure, axes = _panels(1, 2, size, size * 0.86)
    place = {name: i for i, name in enumerate(names)}
    values = [p[m] for p in pairs for m in ("inner_product", "cosine") if p[m] is not None]
    top = max(values, default=1.0) or 1.0
    image: Any = None
    for ax, metric in zip(axes.flat, ("inner_product", "cosine"), strict=True):
        grid = torch.full((len(names), len(names)), float("nan"))
        for pair in pairs:
            i, j = place[pair["a"]], place[pair["b"]]
            value = pair[metric]
            text = f"{pair['shared_tokens']:,}\nshared" if value is None else _percent(value)
            dark = value is not None and value > 0.6 * top
            if value is not None:
                grid[i, j] = grid[j, i] = value
            for x, y in ((i, j), (j, i)):
                ax.text(
                    x, y, text, ha="center", va="center", color="white" if dark else "black", fontsize="small"
                )
        image = ax.imshow(grid.numpy(), cmap="Blues", vmin=0, vmax=top)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        shown = [short_name(name) for name in names]
        ax.set_xticks(range(len(names)), shown, rotation=35, ha="right", fontsize="small")
        ax.set_yticks(range(len(names)), shown if ax is axes.flat[0] else [""] * len(names), fontsize="small")
        ax.tick_params(length=0)
        ax.set_title(f"by {metric.replace('_', ' ')}", fontsize="medium")
        _fill_diagonal(ax, len(names))
    bar = figure.colorbar(image, ax=list(axes.flat), shrink=0.7)
    bar.set_label("KNN match similarity (%)")
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    bar.outline.set_visible(False)
    figure.supxlabel(
        "Jaccard index of a token's nearest tokens in two spaces: 0% none in common, 100% the same.",
        fontsize="small",
    )
    measured, found = [pair for pair in pairs if pair["cosine"] is not None], ""
    if measured:
        best = max(measured, key=lambda pair: pair["cosine"])
        alike = "are most alike" if len(measured) > 1 else "compared"
        both = " and ".join(short_name(best[which]) for which in "ab")
        found = f"{both} {alike}: {_percent(best['cosine'])} by cosine"
        if best.get("chance") is not None:
            found += f", {_percent(best['chance'])} by chance"
    return save_figure(figure, path, found)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%" if value < 0.1 else f"{100 * value:.0f}%"


def _fill_diagonal(ax: Axes, count: int) -> None:
    from matplotlib.patches import Rectangle

    for i in range(count):
        ax.add_patch(Rectangle((i - 0.5, i - 0.5), 1, 1, color=GRAY, alpha=0.12, linewidth=0))
        ax.text(i, i, "–", ha="center", va="center", color=GRAY)


_FRONTIER = {
    "standardized": ("standardized, as published", ORANGE, "-", "o"),
    "turned": ("turned only", GRAY, "--", "s"),
    "emptied": ("turned and emptied", BLUE, "-", "^"),
}


def plot_frontier(results: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes a PNG of `measure_frontier`'s results: where words and positions are, and what is read of each.

    Two panels show the mean squared length of both along each direction, before and after; the third, for 64
    positions (or the first number that was measured), the analogies against the positions that are read from
    the sum at each factor.
    """
    directions, cells = results["directions"], results["cells"]
    scales = results["arguments"]["position_scales"]
    quiet = min(scales, key=lambda scale: abs(scale - 0.1))
    figure, axes = _panels(1, 3, 4.3, 3.7)
    for ax, name, scale, title in (
        (axes[0][0], "standardized", scales[0], "As published: one space,\nthe positions louder"),
        (axes[0][1], "emptied", quiet, "Ours: positions have\ndirections of their own"),
    ):
        words, positions = directions[name], [scale**2 * x for x in directions[f"positions_{name}"]]
        x = range(1, len(words) + 1)
        ax.fill_between(
            x, 1e-4, positions, step="mid", color=ORANGE, alpha=0.75, label="positions", linewidth=0
        )
        ax.fill_between(x, 1e-4, words, step="mid", color=BLUE, alpha=0.6, label="words", linewidth=0)
        ax.axvline(directions["span"] + 0.5, color="black", linewidth=0.8, linestyle=":")
        ax.set_yscale("log")
        ax.set_xscale("log")
        ax.set_ylim(1e-3, 300)
        ax.set_xlim(1, len(words))
        ax.set_xlabel(f"directions; the first {directions['span']} span 64 positions")
        ax.set_ylabel("mean squared length")
        ax.set_title(f"{title} (factor {scale:g})", fontsize="medium")
        ax.legend(frameon=False, fontsize="small", loc="upper right")
    counts = results["arguments"]["positions"]
    shown = 64 if 64 in counts else counts[0]
    _frontier_panel(axes[0][2], [c for c in cells if c["num_positions"] == shown], shown)
    figure.supxlabel(
        "The factor is what the positions are multiplied by. Left and middle: the dotted line ends the "
        "directions that positions use. Right: up and to the right is better.",
        fontsize="small",
    )
    return save_figure(figure, path)


def _frontier_panel(ax: Axes, cells: Sequence[Mapping[str, Any]], shown: int) -> None:
    """Analogies against positions read, one line a table, one point a factor."""
    for name, (label, color, style, marker) in _FRONTIER.items():
        points = [c for c in cells if c["table"] == name and c["position_accuracy"] is not None]
        points.sort(key=lambda c: -c["position_scale"])
        x = [100 * c["analogies_in_sum"] for c in points]
        y = [100 * c["position_accuracy"] for c in points]
        ax.plot(x, y, style, color=color, marker=marker, markersize=5, label=label)
        if name == "standardized":
            for c, a, b in zip(points, x, y, strict=True):
                ax.annotate(f"{c['position_scale']:g}", (a, b), (-5, -3), textcoords="offset points",
                            ha="right", va="top", fontsize="x-small", color=color)  # fmt: skip
    ax.set_xlabel("analogies answered from the sum, %")
    ax.set_ylabel("positions read by a linear probe, %")
    ax.set_title(
        f"Both at once: {shown} positions,\nshorter and shorter (factor at the point)", fontsize="medium"
    )
    ax.set_ylim(0, 105)
    ax.legend(frameon=False, fontsize="small", loc="lower left")
