"""The pictures of the report say what they found and how to read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from hf_embinit.report import figures
from hf_embinit.report.figures import plot_absorption, plot_match_matrix, plot_norms


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    found: list[Figure] = []
    save: Callable[..., Path] = figures.save_figure
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, *a, **k: (found.append(figure), save(figure, *a, **k))[1]
    )
    return found


def point(length: int, words: float, positions: float) -> dict[str, Any]:
    read = {"position_accuracy_in_sum": positions, "position_accuracy_recovered": positions}
    return {"num_positions": length, "knn_match_in_sum": words, "knn_match_recovered": words, **read}


def test_norms_say_which_tokens_have_the_longer_rows(tmp_path: Path, drawn: list[Figure]) -> None:
    up = torch.linspace(1, 3, 200)
    counts = torch.arange(200, 0, -1)
    noise = torch.rand(200, generator=torch.Generator().manual_seed(0))
    spaces = {
        "ranked": (up, None),
        "counted": (up, counts),
        "long": (up.flip(0), None),
        "none": (noise, None),
    }
    plot_norms(spaces, tmp_path / "norms.png")
    titles = [ax.get_title() for ax in drawn[0].axes if ax.get_visible()]
    assert titles[:3] == [
        "ranked:\nfrequent tokens shorter\n(Spearman -1.00)",
        "counted:\nfrequent tokens shorter\n(Spearman -1.00)",
        "long:\nfrequent tokens longer\n(Spearman +1.00)",
    ]
    assert titles[3].startswith("none:\nfrequent tokens as long as rare ones\n(Spearman ")
    assert all("frequent on the left" in ax.get_xlabel() for ax in drawn[0].axes[:4])
    assert "median in each of 20" in drawn[0].get_supxlabel()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_absorption_says_whose_positions_are_read_and_shows_lines_below_others(
    count: int, tmp_path: Path, drawn: list[Figure]
) -> None:
    variants = {
        "pretrained": [point(8, 0.9, 0.5), point(64, 0.8, 0.283)],
        "pretrained_xavier": [point(8, 0.1, 1.0), point(64, 0.05, 1.0)],
    }
    plot_absorption({f"space {i}": variants for i in range(count)}, tmp_path / "absorption.png")
    figure = drawn[0]
    assert figure.axes[0].get_title() == "space 0, as it is:\nposition read for 28% of tokens"
    assert figure.axes[count].get_title() == "space 0, standardized:\nposition read for 100% of tokens"
    for ax in figure.axes:
        by_color: dict[Any, list[float]] = {}
        for line in ax.lines:
            by_color.setdefault(line.get_color(), []).append(line.get_linewidth())
        assert all(below > above for below, above in by_color.values())
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    legend = figure.legends[0].get_window_extent(renderer)
    caption = next(t for t in figure.texts if t.get_text() == figure.get_supxlabel()).get_window_extent(
        renderer
    )
    boxes = [ax.get_tightbbox(renderer) for ax in figure.axes]
    assert not any(box.overlaps(legend) or box.overlaps(caption) for box in boxes)
    assert caption.x0 >= 0 and caption.x1 <= figure.bbox.width


def test_a_matrix_names_the_nearest_pair_and_chance(tmp_path: Path, drawn: list[Figure]) -> None:
    def pair(a: str, b: str, cosine: float | None) -> dict[str, Any]:
        return {
            "a": a,
            "b": b,
            "shared_tokens": 9,
            "inner_product": cosine,
            "cosine": cosine,
            "chance": 0.004,
        }

    plot_match_matrix(["x", "y", "z"], [pair("x", "y", 0.2), pair("x", "z", 0.36), pair("y", "z", None)],
                      tmp_path / "m.png")  # fmt: skip
    assert drawn[0].get_suptitle() == "x and z are most alike: 36% by cosine, 0.4% by chance"
    plot_match_matrix(["x", "y"], [pair("x", "y", None)], tmp_path / "m.png")
    assert drawn[1].get_suptitle() == "" and "Jaccard" in drawn[1].get_supxlabel()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_captions_are_within_their_picture(tmp_path: Path, drawn: list[Figure], count: int) -> None:
    names = [f"space {i}" for i in range(count)]
    curve = {init: [point(8, 1.0, 0.5), point(16, 0.8, 0.4)] for init in ("pretrained", "pretrained_xavier")}
    plot_norms(dict.fromkeys(names, (torch.linspace(1, 3, 200), None)), tmp_path / "norms.png")
    plot_absorption(dict.fromkeys(names, curve), tmp_path / "absorption.png")
    for figure in drawn:
        (caption,) = [text for text in figure.texts if text.get_text() == figure.get_supxlabel()]
        extent = caption.get_window_extent()
        assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width, caption.get_text()
