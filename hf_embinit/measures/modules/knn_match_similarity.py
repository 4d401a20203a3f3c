"""`evaluate` module: KNN match similarity of two embedding tables. Loads by path, offline."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import torch

from hf_embinit.measures.knn import knn_match_similarity


class KnnMatchSimilarity(evaluate.Metric):
    """`compute(predictions=a, references=b, k=10, metric="inner_product", ...)` of two tables, by rows."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Mean Jaccard index of each token's nearest neighbors in two embedding tables.",
            citation="The Butterfly Effect: How Random Initialization Shapes WTE Semantic Similarity",
            inputs_description=knn_match_similarity.__doc__ or "",
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float32")),
                    "references": datasets.Sequence(datasets.Value("float32")),
                }
            ),
        )

    def _compute(
        self, predictions: list[list[float]], references: list[list[float]], **options: Any
    ) -> dict[str, float]:
        a, b = torch.tensor(predictions), torch.tensor(references)
        return {"knn_match_similarity": knn_match_similarity(a, b, **options)}
