"""Pictures of a run are written, whatever the scale of the table and however short the run."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.runs.figures import plot_embedding_distribution, plot_learning_curve


def is_picture(path) -> bool:
    import matplotlib.image

    pixels = matplotlib.image.imread(path)
    return pixels.shape[0] > 300 and pixels.shape[1] > 500 and pixels[..., :3].std() > 0.01


HISTORY = [
    {"epoch": 1.0, "step": 5, "train_loss": 3.0, "validation_loss": 2.5, "validation_bleu": 10.0},
    {"epoch": 2.0, "step": 10, "validation_loss": 2.0, "validation_bleu": None},
    {"epoch": 3.0, "step": 15, "train_loss": 1.5, "validation_loss": 1.9, "validation_bleu": 30.0},
]


@pytest.mark.parametrize(
    "rows, metric, best", [(3, "validation_bleu", 3.0), (1, None, None), (2, "validation_f1", 1.0)]
)
def test_learning_curve(tmp_path, rows, metric, best):
    path = plot_learning_curve(HISTORY[:rows], tmp_path / "figures" / "x.png", metric=metric, best_epoch=best)
    assert is_picture(path)


def test_nothing_to_draw(tmp_path):
    with pytest.raises(InvalidArgumentError, match="no losses"):
        plot_learning_curve([{"epoch": 1.0, "step": 3}], tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sd", [1e-4, 0.02, 23.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distribution(tmp_path, sd, dtype):
    x = torch.randn(200, 12, generator=torch.Generator().manual_seed(0)).mul_(sd).to(dtype)
    x[0] = 0
    path = plot_embedding_distribution(x, tmp_path / "x.png", title="x", rows=range(1, 200))
    assert is_picture(path)


def test_distribution_of_bad_tables(tmp_path):
    x = torch.ones(4, 3)
    assert is_picture(plot_embedding_distribution(x, tmp_path / "constant.png"))
    assert is_picture(plot_embedding_distribution(torch.zeros(4, 3), tmp_path / "zeros.png"))
    x[2, 0] = float("nan")
    with pytest.raises(InvalidArgumentError, match="row 2"):
        plot_embedding_distribution(x, tmp_path / "x.png")


def test_drawing_leaves_the_global_backend_alone():
    code = (
        "import sys, torch, tempfile\n"
        "from hf_embinit.runs.figures import plot_embedding_distribution as plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plot(torch.ones(3, 4), tempfile.mkdtemp() + '/x.png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
