"""What a task hands to the one training loop: encoded texts, how they are scored, what came out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

_TIMINGS = ("_runtime", "_per_second", "_preparation_time")


@dataclass
class Outcome:
    """What the trained model scored."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Predictions beside their texts, rows with the same keys."""
    signature: dict[str, str] = field(default_factory=dict)
    """Metric -> signature of the tool that computed it."""


class TaskData:
    """The texts of one task, ready for a `Trainer`, and the scores of a model that was trained on them."""

    digests: dict[str, dict[str, Any]]
    """Split -> `rows` and `sha256` of its texts and labels."""
    train: Dataset
    validation: Dataset
    compute_metrics: Callable[[Any], dict[str, float]] | None = None
    coverage: Mapping[str, Any] = {}
    """How many tokens the vectors had, where `initialize` does not report it."""
    callbacks: Sequence[Any] = ()
    generates = False
    """Whether evaluation generates text, which takes a `Seq2SeqTrainer`."""
    figures: Callable[[Any, Any], None] | None = None
    """Draws the figures of a finished run, from its folder and record; None: the learning curve."""
    draws_tables = True
    """Whether the embedding tables are drawn as they are at step 0."""

    def module(self, models: Mapping[str, Any]) -> Any:
        """What is trained: the one model."""
        (model,) = models.values()
        return model

    def suffix(self, name: str) -> str:
        """How the metrics of one of several models end, from the name of its sub-folder."""
        return ""

    def collator(self, model: Any) -> Any:
        """What makes batches of examples."""
        from transformers import default_data_collator

        return default_data_collator

    def trained_tokens(self, trainer: Any) -> float:
        """How many tokens, without padding, the model was trained on."""
        raise NotImplementedError

    def history(
        self, rows: list[dict[str, float]], log: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, float]]:
        """One row an evaluation, made from the Trainer's `log`, with the task's own scores."""
        return rows

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """The scores of the trained model. Every process of a run calls this."""
        raise NotImplementedError


def untimed(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What `trainer.predict` measured, without its timings."""
    return {name: value for name, value in metrics.items() if not name.endswith(_TIMINGS)}
