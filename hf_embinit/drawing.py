"""The look of all pictures of this package: colors, lines, figures without a screen, files.

What a picture shows is decided in the room that draws it.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#D55E00", "#009E73", "#666666"
PALETTE = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colors, which color-blind readers tell apart."""
_LETTER = 0.073
"""Inches that a letter of a caption takes, in the mean."""
CURVES = (
    (ORANGE, "-", "o"),
    ("#E69F00", "--", "s"),
    (BLUE, "-", "^"),
    ("#56B4E9", "--", "v"),
    (GREEN, "-.", "D"),
    ("#CC79A7", ":", "x"),
)
"""Color, line and marker of curves in one panel: told apart without color, too."""


def new_figure(
    width: float, height: float, *, columns: int = 1, rows: int = 1, dpi: int = 120, **options: Any
) -> tuple[Figure, Any]:
    """A figure of `width` x `height` inches and its axes, `[rows, columns]`; pyplot's state stays as it is.

    `options` are those of `matplotlib.figure.Figure.subplots`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=dpi)
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
    return figure, axes


def save_figure(
    figure: Figure, path: str | os.PathLike[str], title: str = "", *, description: str = ""
) -> Path:
    """Writes the figure as a PNG, under `title` and with `description` in its metadata, and gives its path.

    A caption below all panels (`figure.supxlabel`) is broken into lines that the figure has room for.
    Names are drawn as they are spelled: matplotlib would take `$x_{$` for a formula, and stop.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    if title:
        figure.suptitle(title)
    if caption := figure.get_supxlabel():
        room = int(figure.get_figwidth() / _LETTER)
        lines = [textwrap.fill(line, room) for line in caption.split("\n")]
        figure.supxlabel("\n".join(lines), fontsize="small")
    axes = [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]
    powers = [axis for axis in axes if isinstance(axis.get_major_formatter(), LogFormatter)]
    formulas = {id(label) for axis in powers for label in axis.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if id(text) not in formulas:
            text.set_parse_math(False)
            text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Description": description} if description else None)
    return path


def shrink_picture(path: Path) -> Path:
    """Rewrites a PNG with a palette of 96 colors, which makes it much smaller; gives `path`."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(96, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    return path
