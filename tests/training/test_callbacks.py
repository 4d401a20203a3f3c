"""Which epoch counts as the best, and what checkpoints of sharded runs hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import FullyShardedDataParallelPlugin

from hf_embinit.training.callbacks import best_row, keep_checkpoints_whole

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


def test_checkpoints_under_fsdp_are_whole_and_can_be_loaded() -> None:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    trainer: Any = SimpleNamespace(accelerator=SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    keep_checkpoints_whole(trainer)
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    # which accelerate reads when it loads
    assert plugin.state_dict_config.rank0_only and plugin.optim_state_dict_config.rank0_only
