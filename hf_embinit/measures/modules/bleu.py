"""`evaluate` module: sacreBLEU with its signature. Loads by path, offline."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate

from hf_embinit.measures.bleu import corpus_bleu


class Bleu(evaluate.Metric):
    """`compute(predictions=..., references=..., tokenize="13a", lowercase=False)`: score, signature, ..."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Corpus BLEU (0..100) with its sacreBLEU signature, one reference a prediction.",
            citation="Post 2018, A Call for Clarity in Reporting BLEU Scores",
            inputs_description=corpus_bleu.__doc__ or "",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _compute(self, predictions: list[str], references: list[str], **options: Any) -> dict[str, Any]:
        return corpus_bleu(predictions, references, **options)
