"""Which epoch counts as the best, what checkpoints of sharded runs hold, and what lies on the positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin

from hf_embinit.measures import position_encoding, position_span
from hf_embinit.models import VanillaTransformerConfig, VanillaTransformerForSequenceClassification
from hf_embinit.training.callbacks import (
    best_row,
    energy_in_positions,
    keep_checkpoints_whole,
    table_statistics,
)

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


def test_the_share_of_a_table_in_the_directions_of_64_positions() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "d_model": 300,
        "d_ff": 8,
        "num_heads": 2,
        "num_encoder_layers": 1,
    }
    model = VanillaTransformerForSequenceClassification(VanillaTransformerConfig(**sizes))
    ((name, shares),) = energy_in_positions(model).items()
    assert shares["dimensions"] == 23 and shares["energy"] == pytest.approx(23 / 300, abs=0.02)
    assert table_statistics(model)[name]["in_positions"] == shares
    inside = position_span(position_encoding(64, 300))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(torch.randn(40, 23) @ inside)
    assert energy_in_positions(model)[name]["energy"] == pytest.approx(1.0)
    none = VanillaTransformerConfig(**sizes, position_encoding="rotary")
    model = VanillaTransformerForSequenceClassification(none)
    assert energy_in_positions(model) == {}
    assert "in_positions" not in table_statistics(model)[name]
