"""Which epoch counts as the best."""

from __future__ import annotations

import pytest

from hf_embinit.training.callbacks import best_row

NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "best"),
    [([2.0, 1.0, 1.0], 2), ([NAN, 1.0, 2.0], 2), ([2.0, NAN, NAN], 1), ([NAN, NAN], None), ([], None)],
)
def test_the_best_epoch_has_a_finite_loss(losses, best):
    history = [{"epoch": i, "validation_loss": loss} for i, loss in enumerate(losses, 1)]
    row = best_row(history, "validation_loss", greater_is_better=False)
    assert (row and row["epoch"]) == best
    assert best_row(history, "validation_bleu", greater_is_better=True) is None
