"""A run record with a value in every field."""

from __future__ import annotations

import torch

from hf_embinit.measures.statistics import embedding_statistics
from hf_embinit.records.record import RunRecord

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def make_record(**changes) -> RunRecord:
    x = embedding_statistics(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)))
    values = {
        "task": "translation",
        "dataset": "multi30k",
        "init": "xavier",
        "tokenizer": "words",
        "seed": 3,
        "arguments": {"learning_rate": 2e-4, "source_lang": "de", "target_lang": "en", "bf16": False},
        "metrics": {"test_bleu": 35.1234, "test_loss": 1.6, "validation_bleu": 34.0},
        "best_epoch": 2.0,
        "history": [{"epoch": 1.0, "step": 10}, {"epoch": 3.0, "step": 30}],
        "parameters": 11_000_000,
        "embedding_statistics": {
            "embed": {"before_scaling": x.to_dict(), "after_scaling": x.scaled(2.0).to_dict()}
        },
        "coverage": {},
        "runtime": {"train_seconds": 1234.5, "tokens_per_second": 100.0, "device": "a CPU", "world_size": 2},
        "versions": {"torch": "2.13.0"},
        "signature": {"test_bleu": SIGNATURE},
        "data": {
            "train": {"rows": 29000, "sha256": "f00d"},
            "vectors, source": {"rows": 7851, "sha256": "beef"},
        },
    }
    return RunRecord(**{**values, **changes})
