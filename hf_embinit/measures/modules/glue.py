"""`evaluate` module: the metrics of a GLUE task. Loads by path, offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from hf_embinit.measures.glue import glue_scores


class Glue(evaluate.Metric):
    """`evaluate.load(metric_path("glue"), "mrpc").compute(predictions=..., references=...)`: F1, accuracy.

    Any task's data can be scored with `compute(..., metrics=("accuracy", "f1"))`.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Accuracy, F1, Matthews, Pearson's and Spearman's correlation, by GLUE task.",
            citation="Wang et al. 2019, GLUE: A Multi-Task Benchmark",
            inputs_description=glue_scores.__doc__ or "",
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
            ),
        )

    def _compute(
        self, predictions: list[float], references: list[float], metrics: Sequence[str] | None = None
    ) -> dict[str, Any]:
        return glue_scores(predictions, references, metrics or self.config_name)
