"""What is drawn of a run: the values of its history and of its tables, whatever their scale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.moments import xavier_bound
from hf_embinit.training.expansion_figures import plot_curves, plot_kl_histograms
from hf_embinit.training.figures import plot_embedding_distribution, plot_learning_curve

HISTORY = [
    {"epoch": 1.0, "step": 5, "train_loss": 3.0, "validation_loss": 2.5, "validation_bleu": 10.0},
    {"epoch": 2.0, "step": 10, "validation_loss": 2.0, "validation_bleu": None},
    {"epoch": 3.0, "step": 15, "train_loss": 1.5, "validation_loss": 1.9, "validation_bleu": 30.0},
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures as matplotlib was told to save them; they are saved, too."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *args, **kwargs) -> None:
        figures.append(self)
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures


def curves(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """The points of each line by its label."""
    lines = [line for ax in figure.axes for line in ax.lines]
    return {str(line.get_label()): list(zip(*line.get_data(), strict=True)) for line in lines}


def test_learning_curve_has_the_points_of_the_history(tmp_path: Path, drawn: list[Figure]) -> None:
    scores = {"validation_f1": "validation F1", "validation_bleu": "validation BLEU"}
    path = plot_learning_curve(
        HISTORY, tmp_path / "figures" / "x.png", scores=scores, best_epoch=3.0, title="a $x_{$"
    )
    points = curves(drawn[0])
    assert points.pop("kept: epoch 3") == [(3.0, 0), (3.0, 1)]
    assert points == {
        "training loss": [(1.0, 3.0), (3.0, 1.5)],
        "validation loss": [(1.0, 2.5), (2.0, 2.0), (3.0, 1.9)],
        "validation BLEU": [(1.0, 10.0), (3.0, 30.0)],
    }
    assert drawn[0].get_suptitle() == "a $x_{$\nvalidation BLEU 30 at epoch 3"
    with Image.open(path) as image:
        assert image.size == (round(2 * 5.2 * 120), round(3.8 * 120))


def test_one_row_without_a_metric_is_one_panel(tmp_path: Path, drawn: list[Figure]) -> None:
    row = {"epoch": 1.0, "train_loss": 3.0}
    plot_learning_curve([row], tmp_path / "x.png", scores={"validation_bleu": "validation BLEU"})
    assert curves(drawn[0]) == {"training loss": [(1.0, 3.0)]} and len(drawn[0].axes) == 1


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no losses"):
        plot_learning_curve([{"epoch": 1.0, "step": 3}], tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sd", [1e-4, 0.02, 23.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distribution_is_a_density_of_the_rows_asked_for(
    tmp_path: Path, drawn: list[Figure], sd: float, dtype: torch.dtype
) -> None:
    x = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)).mul_(sd).to(dtype)
    x[0] = 1000 * sd
    plot_embedding_distribution(x, tmp_path / "x.png", title="x", rows=range(1, 200))
    values = x[1:].double()
    for ax, factor in zip(drawn[0].axes, (1.0, 12**0.5), strict=True):
        steps = {str(patch.get_label()).split(",")[0]: patch.get_data() for patch in ax.patches}
        density, edges, _ = steps["embeddings"]
        assert (density * (edges[1:] - edges[:-1])).sum() == pytest.approx(1.0)
        assert f"sd {factor * values.std():.3g}" in str(ax.get_legend().get_texts()[0].get_text())
        middle = (edges[1:] + edges[:-1]) / 2
        spread = (density * (edges[1:] - edges[:-1]) * middle**2).sum() ** 0.5
        if sd > 1e-3:  # below, all values are in the two bins around 0
            assert spread == pytest.approx(float(factor * values.std()), rel=0.1)
        (xavier,) = (line for line in ax.lines if str(line.get_label()).startswith("Xavier"))
        assert max(xavier.get_xdata()) == pytest.approx(factor * xavier_bound(200, 12))


def test_distribution_of_bad_tables(tmp_path: Path, drawn: list[Figure]) -> None:
    x = torch.ones(4, 3)
    plot_embedding_distribution(x, tmp_path / "constant.png")
    plot_embedding_distribution(torch.zeros(4, 3), tmp_path / "zeros.png")
    assert len(drawn) == 2
    x[2, 0] = float("nan")
    with pytest.raises(InvalidArgumentError, match="row 2"):
        plot_embedding_distribution(x, tmp_path / "x.png")


def test_drawing_leaves_the_global_backend_alone() -> None:
    code = (
        "import sys, torch, tempfile\n"
        "from hf_embinit.training.figures import plot_embedding_distribution as plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plot(torch.ones(3, 4), tempfile.mkdtemp() + '/x.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_titles_say_what_was_found(tmp_path: Path, drawn: list[Figure]) -> None:
    x = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    positions = torch.tensor([[0.5, -0.5], [-0.5, 0.5]])
    plot_embedding_distribution(x, tmp_path / "x.png", title="glove", input_scale=3.0, positions=positions)
    assert drawn[-1].get_suptitle() == "glove: once scaled, 6 times as wide as the position encodings"
    steps = {"default": (3.0, 2.0), "mean": (2.0, 1.5)}
    curves = {
        name: [{"step": i, "validation_bits_per_byte": y} for i, y in enumerate(ys)]
        for name, ys in steps.items()
    }
    plot_curves(curves, tmp_path / "c.png", title="50 tokens")
    assert drawn[-1].get_suptitle() == "50 tokens: mean ends lowest, at 1.500 (default: 2.000)"
    assert len(drawn[-1].axes) == 2 and "0.02" in drawn[-1].get_supxlabel()


def test_a_learning_curve_says_what_the_kept_epoch_reached(tmp_path: Path, drawn: list[Figure]) -> None:
    scores = {"validation_bleu": "validation BLEU"}
    plot_learning_curve(HISTORY, tmp_path / "c.png", scores=scores, best_epoch=1.0, title="a run")
    assert drawn[-1].get_suptitle() == "a run\nvalidation BLEU 10 at epoch 1"
    plot_learning_curve(HISTORY, tmp_path / "c.png", scores=scores, best_epoch=2.0)
    assert drawn[-1].get_suptitle() == "validation BLEU 30 at epoch 3"  # it was not measured at the second
    plot_learning_curve(HISTORY, tmp_path / "c.png")
    assert drawn[-1].get_suptitle() == "validation loss 1.9 at epoch 3"
    plot_learning_curve([{"epoch": 1.0, "train_loss": 3.0}], tmp_path / "c.png")
    assert drawn[-1].get_suptitle() == "training loss 3 at epoch 1"


def test_histograms_that_coincide_share_a_panel_and_no_text_lies_on_them(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    kl = torch.logspace(-6, -2, 500)
    every = {"mean": kl, "default": kl * 50, "mean_cov": kl * 1.0001}
    plot_kl_histograms(every, tmp_path / "kl.png", bound=0.1, title="50 tokens")
    assert drawn[-1].get_suptitle() == "50 tokens: default can pass the bound"
    titles = [ax.get_title().split("\n")[0] for ax in drawn[-1].axes]
    assert titles == ["mean and mean_cov", "default"]
    assert all(ax.get_legend() is None for ax in drawn[-1].axes) and "0.1" in drawn[-1].get_supxlabel()
