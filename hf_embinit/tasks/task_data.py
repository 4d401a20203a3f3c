"""What a task gives the one training loop: encoded texts, how they are scored, what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

_TIMINGS = ("_runtime", "_per_second", "_preparation_time")


@dataclass
class Outcome:
    """The scores of the trained model."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Predictions beside their texts: dicts with the same keys."""
    signature: dict[str, str] = field(default_factory=dict)
    """Metric -> signature of the tool that computed it."""


class TaskData:
    """The texts of one task, ready for a `Trainer`, and the scores of a model trained on them."""

    digests: dict[str, dict[str, Any]]
    """Split -> `rows` and `sha256` of its texts and labels."""
    train: Dataset
    validation: Dataset
    compute_metrics: Callable[[Any], dict[str, float]] | None = None
    measured: Sequence[str] = ()
    """Metrics of each evaluation, beside the loss."""
    coverage: Mapping[str, Any] = {}
    """How many tokens the vectors had, for tasks where `initialize` does not report it."""
    callbacks: Sequence[Any] = ()
    not_smoothed: str | None = None
    """Why `--label_smoothing_factor` has no meaning here; None where it has one."""
    generates = False
    """Whether evaluation generates text, which takes a `Seq2SeqTrainer`."""
    figures: Callable[[Any, Any], None] | None = None
    """Draws the figures of a finished run from its folder and record; None for the learning curve alone."""
    draws_tables = True
    """Whether histograms of the embedding tables at step 0 are drawn."""

    def module(self, models: Mapping[str, Any]) -> Any:
        """The module to train: the one model."""
        (model,) = models.values()
        return model

    def suffix(self, name: str) -> str:
        """The suffix of the metrics of one of several models, from the name of its sub-folder."""
        return ""

    def collator(self, model: Any) -> Any:
        """The data collator."""
        from transformers import default_data_collator

        return default_data_collator

    def trained_tokens(self, trainer: Any) -> float:
        """Number of tokens, without padding, that the model was trained on."""
        raise NotImplementedError

    def history(
        self, rows: list[dict[str, float]], log: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, float]]:
        """One dict for each evaluation, from the Trainer's `log`, with the task's own scores."""
        return rows

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """The scores of the trained model. Every process of a run calls this."""
        raise NotImplementedError


def untimed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of `trainer.predict` without its timings."""
    return {name: value for name, value in metrics.items() if not name.endswith(_TIMINGS)}
