"""Callbacks and helpers around the `Trainer`: timing, the best epoch, statistics of the tables."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ..measures import embedding_statistics, energy_share, position_span
from ..records import write_digests
from ..tables import EmbeddingTables, input_positions, input_scale, is_sharded


class EpochClock(TrainerCallback):
    """Logs the training time, in seconds without evaluation and saving.

    It writes the time since its last entry into the Trainer's log at the end of each epoch, and before
    evaluations and checkpoints within one. The log is saved with every checkpoint, so the times of a resumed
    run cover all of its steps.
    """

    def __init__(self) -> None:
        self._start: float | None = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clock unless it runs."""
        self._start = time.perf_counter() if self._start is None else self._start

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stops the clock when something other than training follows."""
        if control.should_evaluate or control.should_save:
            self._stop(state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stops the clock."""
        self._stop(state)

    def _stop(self, state: TrainerState) -> None:
        if self._start is not None:
            seconds = time.perf_counter() - self._start
            entry = {"epoch": state.epoch, "step": state.global_step, "epoch_train_seconds": seconds}
            state.log_history.append(entry)
            self._start = None


class CheckpointDigests(TrainerCallback):
    """Writes the digests of a checkpoint's files, so that damage is noticed when a run goes on."""

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Called when the checkpoint was just saved."""
        checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            write_digests(checkpoint)


def train_seconds(log_history: list[dict[str, Any]]) -> float:
    """Seconds of training in a Trainer's log that an `EpochClock` wrote to."""
    return sum(entry.get("epoch_train_seconds", 0.0) for entry in log_history)


def best_row(
    history: list[dict[str, float]], metric: str, *, greater_is_better: bool
) -> dict[str, float] | None:
    """The row of a history with the best `metric`, the earliest of equals; None without a finite value."""
    measured = [row for row in history if metric in row and math.isfinite(row[metric])]
    if not measured:
        return None
    sign = -1.0 if greater_is_better else 1.0
    return min(measured, key=lambda row: sign * row[metric])


_NUM_POSITIONS = 64
"""The first ones, whose share of a table is measured: few sentences of the corpora here are longer."""


def energy_in_positions(model: PreTrainedModel) -> dict[str, dict[str, float]]:
    """For every input table that fixed positions are added to: how many `dimensions` the first 64 of these
    use, and which share of the table's `energy` (squared length of its rows) lies there."""
    tables, shares = EmbeddingTables(model), {}
    for table in tables.input_tables:
        fixed = input_positions(model, table)
        if not isinstance(fixed, str):
            inside = position_span(fixed.encodings[:_NUM_POSITIONS].double()).float()
            rows = tables.read(table).float().cpu()
            energy = energy_share(rows, inside) if bool(rows.isfinite().all()) else math.nan
            shares[table.name] = {"dimensions": len(inside), "energy": energy}
    return shares


def table_statistics(model: PreTrainedModel) -> dict[str, dict[str, Any]]:
    """Statistics of every input table without its padding row, before and after the scaling by the model."""
    tables = EmbeddingTables(model)
    statistics = {}
    for table in tables.input_tables:
        rows = [i for i in range(table.num_embeddings) if i != table.padding_index]
        stats = embedding_statistics(tables.read(table), rows=rows)
        statistics[table.name] = {
            "before_scaling": stats.to_dict(),
            "after_scaling": stats.scaled(input_scale(model, table)).to_dict(),
        }
    for name, shares in energy_in_positions(model).items():
        statistics[name]["in_positions"] = shares
    return statistics


def keep_checkpoints_whole(trainer: Trainer) -> None:
    """Makes a Trainer under FSDP write whole state dicts; call it before training, in every process.

    With sharded ones, accelerate's default, a Trainer of transformers 5.23 saves no model at the end, and its
    processes may disagree on the best checkpoint and wait for each other for ever: each looks for the folder
    when another may or may not have created it.
    """
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        # accelerate 1.15 keeps what it made for sharded ones, and cannot load an optimizer with it
        plugin.state_dict_config = plugin.optim_state_dict_config = None
        plugin.set_state_dict_type("FULL_STATE_DICT")


def freeze_all_but_embeddings(model: PreTrainedModel) -> dict[str, Tensor]:
    """Freezes all but the input embedding tables; returns copies of all other tensors, by name.

    An output projection that is tied to a table is that table; an untied one is frozen with its bias.
    """
    tables = [table.parameter for table in EmbeddingTables(model).input_tables]
    frozen = {}
    for name, parameter in model.named_parameters():
        trained = any(parameter is table for table in tables)
        parameter.requires_grad_(trained)
        if not trained:
            frozen[name] = parameter.detach().clone()
    return frozen


def changed_tensors(model: PreTrainedModel, before: Mapping[str, Tensor]) -> list[str]:
    """Names of the parameters that are no longer equal, bit for bit, to those in `before`.

    To be called in every process: the parts of sharded ones are gathered."""
    now = dict(model.named_parameters())
    return [name for name, values in before.items() if not torch.equal(_whole(now[name]), values.cpu())]


def _whole(parameter: Any) -> Tensor:
    values = parameter.detach()
    return (values.full_tensor() if is_sharded(parameter) else values).cpu()


def whole_state(model: PreTrainedModel) -> dict[str, Tensor] | None:
    """The state dict of a model that is sharded, on the CPU; None for any other, which has it.

    To be called in every process: the parts are gathered."""
    if not any(map(is_sharded, model.parameters())):
        return None
    return {name: _whole(values) for name, values in model.state_dict().items()}


def tracker_links(args: TrainingArguments) -> dict[str, str]:
    """Address of the page of this run at each tracker of `--report_to` that has one, after training."""
    links = {}
    run = getattr(sys.modules.get("wandb"), "run", None)
    trackers = args.report_to or []
    if "wandb" in trackers and run is not None and run.url:  # none offline
        links["wandb"] = str(run.url)
    space = args.trackio_space_id
    if "trackio" in trackers and space and "/" in space:
        links["trackio"] = f"https://huggingface.co/spaces/{space}"
    return links
