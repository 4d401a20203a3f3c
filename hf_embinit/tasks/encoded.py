"""Encoded texts for a `Trainer`: token counts, order by length, collation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import DataCollatorWithPadding

if TYPE_CHECKING:
    from datasets import Dataset


def token_counts(data: Dataset, column: str, size: int) -> list[int]:
    """How often each of `size` ids occurs in a column of encoded texts."""
    ids = np.concatenate([np.asarray(x) for x in data[column][:]])
    return np.bincount(ids, minlength=size).tolist()


def sort_by_length(texts: Dataset, encoded: Dataset) -> tuple[Dataset, Dataset]:
    """Both data sets, longest text first, so that batches need little padding; `row` is the old index."""
    order = np.argsort(-np.asarray(encoded["length"][:]), kind="stable")
    texts = texts.add_column("row", list(range(len(texts))))
    return texts.select(order), encoded.select(order)


def without_length(features: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The features without `length`, which only the sampler reads."""
    return [{k: v for k, v in feature.items() if k != "length"} for feature in features]


class TextCollator(DataCollatorWithPadding):
    """Pads texts that have one label each."""

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        """The padded batch: `input_ids` `[B, T]`, masks, `labels` `[B]`."""
        return super().__call__(without_length(features))
