"""The picture at the top of the README: why the first values of rows matter, from two records."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..drawing import BLUE, GREEN, ORANGE, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "why.png"
"""Its name in the folder of the results."""
_POSITIONS = 64


@dataclass(frozen=True)
class Why:
    """The numbers of the picture.

    Lengths are root mean squares of Euclidean norms, of what a model adds: vectors of the tokens of a text,
    scaled by sqrt(D), and position encodings. `read_raw` and `read_standardized` are shares of the tokens
    whose position is the nearest to the sum. `default` and `mean` are the largest probability that the new
    tokens take together after any prefix of a validation text, before training, averaged over the seeds;
    `limit` is what rows at the mean cannot pass, m / (n + m) (Hewitt 2021).
    """

    raw: float
    standardized: float
    positions: float
    read_raw: float
    read_standardized: float
    default: float
    mean: float
    limit: float
    new_tokens: int

    def sentence(self) -> str:
        """The picture in words, for those who do not see it."""
        return (
            f"Left: scaled word2vec vectors are {self.raw:.0f} long and drown position encodings, which are "
            f"{self.positions:.0f} long: the position is readable for {self.read_raw:.0%} of the tokens. "
            f"Standardized to Xavier's moments they are {self.standardized:.1f} long, and it is for "
            f"{self.read_standardized:.1%}. Right: {self.new_tokens} new tokens with random rows take up to "
            f"{self.default:.1%} of a small language model's next-token probability, on average over seeds, "
            f"above Hewitt's limit of {self.limit:.1%}; with rows at the mean of the old ones "
            f"{self.mean:.1%}, below it"
        )


def why(results: Path) -> Why:
    """The numbers of the picture, from the records `table4` and `expand_vocab-wikitext-distinct`."""
    (space,) = _read(results / "table4" / "results.json")["spaces"].values()
    values = space["statistics_in_corpus"]
    read = {
        name: next(p["position_accuracy_in_sum"] for p in points if p["num_positions"] == _POSITIONS)
        for name, points in space["absorption"].items()
    }
    folder = results / "expand_vocab-wikitext-distinct"
    runs = {
        name: [_read(path)["metrics"] for path in sorted(folder.glob(f"*/{name}/results.json"))]
        for name in ("default", "mean")
    }
    first = runs["mean"][0]
    return Why(
        raw=_length(values["table_scaled"]),
        standardized=_length(values["pretrained_xavier_scaled"]),
        positions=_length(values["positions"]),
        read_raw=read["pretrained"],
        read_standardized=read["pretrained_xavier"],
        default=fmean(_mass(metrics["kl_max"]) for metrics in runs["default"]),
        mean=fmean(_mass(metrics["kl_max"]) for metrics in runs["mean"]),
        limit=_mass(first["kl_bound"]),
        new_tokens=first["new_tokens"],
    )


def draw_why(results: Path) -> Path:
    """Draws the picture into the folder of the results, its sentence in its metadata; gives its path."""
    numbers = why(results)
    figure, ((left, right),) = new_figure(10.4, 3.6, columns=2)
    raw, standardized = (
        f"{{:.0f}} long: the position can be\nread for {share} of the tokens"
        for share in (f"{numbers.read_raw:.0%}", f"{numbers.read_standardized:.1%}")
    )
    _bars(
        left,
        {
            "word2vec,\nas published": (numbers.raw, ORANGE, raw),
            "position\nencodings": (numbers.positions, GREEN, "{:.0f} long"),
            "word2vec,\nstandardized": (numbers.standardized, BLUE, standardized),
        },
        numbers.positions,
    )
    left.set_title("Raw vectors drown the positions", fontweight="bold")
    left.set_xlabel("length of the vectors that are added for a token")
    _bars(
        right,
        {
            "random\nnew rows": (100 * numbers.default, ORANGE, "{:.1f}%: over the limit"),
            "mean of the\nold rows": (100 * numbers.mean, BLUE, "{:.1f}%: never over it"),
        },
        100 * numbers.limit,
    )
    right.annotate(f"limit {numbers.limit:.1%} ", (100 * numbers.limit, -0.5), ha="right", va="top")
    right.set_title("Random new tokens can pass the limit", fontweight="bold")
    right.set_xlabel(f"highest probability of the {numbers.new_tokens} new tokens, %")
    figure.supxlabel(
        "How to read it: orange is the risk, blue is what to do instead. Left: a bar far beyond the dashed "
        "line hides the order of the words.\nRight: a bar beyond it changes a trained model's answers more "
        "than the mean of its rows ever can (Hewitt 2021).",
        fontsize="small",
    )
    return save_figure(figure, results / PICTURE, description=numbers.sentence())


def _bars(ax: Axes, bars: Mapping[str, tuple[float, str, str]], line: float) -> None:
    """Horizontal bars, first at the top, and a dashed `line`: name -> value, color, and what to say of it."""
    for place, (value, color, said) in enumerate(bars.values()):
        ax.barh(place, value, 0.62, color=color)
        beside = line if 0.3 * line < value < line else value
        ax.annotate(
            said.format(value),
            (beside, place),
            (7, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
        )
    ax.axvline(line, color="black", linestyle="--", linewidth=1.2)
    ax.set_yticks(range(len(bars)), list(bars))
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(bars) - 0.5, -0.6)
    ax.grid(False, axis="y")
    ax.set_xlim(0, 1.9 * max(value for value, _, _ in bars.values()))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _length(values: Mapping[str, float]) -> float:
    """Root mean square of the norms of rows with these moments."""
    return math.sqrt(values["embedding_dim"] * (values["std"] ** 2 + values["mean"] ** 2))


def _mass(kl: float) -> float:
    """The probability of the new tokens together: KL(p || p') = -log(1 - mass) where the old rows stay."""
    return -math.expm1(-kl)
