"""`evaluate` module: next-token distributions after a vocabulary expansion against those before. Offline."""

from __future__ import annotations

from typing import Any

import datasets
import evaluate
import torch

from hf_embinit.measures.divergence import expansion_bound, kl_divergence, new_token_mass, top1_agreement


class ExpansionKl(evaluate.Metric):
    """`compute(predictions=logits_after, references=logits_before)`, one row a prefix, new columns last."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="KL(before || after) in nats, its bound for rows at the mean, mass on new tokens.",
            citation="Hewitt 2021, Initializing New Word Embeddings for Pretrained Language Models",
            inputs_description=kl_divergence.__doc__ or "",
            features=datasets.Features(
                {
                    "predictions": datasets.Sequence(datasets.Value("float32")),
                    "references": datasets.Sequence(datasets.Value("float32")),
                }
            ),
        )

    def _compute(self, predictions: list[list[float]], references: list[list[float]]) -> dict[str, Any]:
        before, after = torch.tensor(references), torch.tensor(predictions)
        kl = kl_divergence(before, after)
        mass = new_token_mass(after, before.shape[-1])
        return {
            "kl_mean": float(kl.mean()),
            "kl_max": float(kl.max()),
            "bound": expansion_bound(after.shape[-1] - before.shape[-1], before.shape[-1]),
            "new_token_mass": float(mass.mean()),
            "top1_agreement": top1_agreement(before, after),
        }
