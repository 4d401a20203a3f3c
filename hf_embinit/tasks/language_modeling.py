"""Texts for language models: data sets by name, packed into blocks, and perplexities that compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataNotFoundError, InvalidArgumentError
from .data import find_folder, load_file, load_folder, load_from_hub

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class TextDataset:
    """One data set that has a name, and where it lives on the Hub."""

    name: str
    hub_id: str | None = None
    hub_config: str | None = None


DATASETS = {
    d.name: d
    for d in (
        TextDataset("captions"),
        TextDataset("wikitext-2-v1", "Salesforce/wikitext", "wikitext-2-v1"),
        TextDataset("wikitext-103-v1", "Salesforce/wikitext", "wikitext-103-v1"),
    )
}
"""Data sets by name; `captions` is this package's own."""


def load_texts(
    dataset: str,
    *,
    config: str | None = None,
    data_dir: str | None = None,
    files: dict[str, str | None] | None = None,
    seed: int = 0,
) -> DatasetDict:
    """A `DatasetDict` of at least `train` and `validation` with the column `text`, blank lines left out.

    `dataset` is a name of `DATASETS`, a folder of data files, or a Hub id. A named one is looked for in
    `data_dir`, then in the folder that `HF_EMBINIT_DATA` names, then on the Hub. `files` overrides single
    splits. Raises `DataNotFoundError` when a split is nowhere, `InvalidArgumentError` without a column
    `text`.
    """
    from datasets import Dataset, DatasetDict

    overrides = {split: path for split, path in (files or {}).items() if path is not None}
    if set(overrides) >= set(SPLITS):
        data = DatasetDict()
    elif dataset == "captions":
        from .captions import caption_pairs

        pairs = caption_pairs(seed=seed)
        data = DatasetDict({k: Dataset.from_dict({"text": [p["en"] for p in v]}) for k, v in pairs.items()})
    else:
        data = _load(dataset, config, data_dir)
    for split, path in overrides.items():
        data[split] = load_file(path)
    for split in SPLITS:
        if split not in data:
            raise DataNotFoundError(f"--dataset {dataset} has no {split} split; give --{split}_file")
    for split, rows in data.items():
        if "text" not in rows.column_names:
            raise InvalidArgumentError(
                f"the {split} split of {dataset} has no column 'text': {rows.column_names}"
            )
        texts = [text for text in rows["text"] if text.strip()]
        if not texts:
            raise InvalidArgumentError(f"the {split} split of {dataset} has no text")
        data[split] = Dataset.from_dict({"text": texts})
    return data


def _load(dataset: str, config: str | None, data_dir: str | None) -> DatasetDict:
    spec = DATASETS.get(dataset)
    folder = Path(dataset) if Path(dataset).is_dir() else find_folder(dataset, data_dir)
    if folder is not None:
        return load_folder(folder)
    if spec is not None and spec.hub_id is not None:
        return load_from_hub(spec.hub_id, config or spec.hub_config)
    if dataset.count("/") != 1 or dataset.startswith((".", "/", "~")):
        raise DataNotFoundError(
            f"--dataset {dataset!r} is no folder, no Hub id (owner/name) and none of: {', '.join(DATASETS)}"
        )
    return load_from_hub(dataset, config)


@dataclass(frozen=True)
class Packed:
    """Texts as blocks of ids without padding, and their size."""

    blocks: Dataset
    """Rows of `input_ids` and `labels`, each `block_size` long; what is left at the end is dropped."""
    tokens: int
    """Tokens of all texts, before any was left out."""
    words: int
    """Words between blanks."""
    utf8_bytes: int

    def scores(self, loss: float) -> dict[str, float]:
        """Perplexities from the mean negative log-likelihood of a token, in nats.

        Perplexity per token changes with the tokenizer; `word_perplexity` and `bits_per_byte` spread the same
        loss over the words and UTF-8 bytes of the text, and compare between vocabularies.
        """
        return {
            "perplexity": _exp(loss),
            "word_perplexity": _exp(loss * self.tokens / self.words),
            "bits_per_byte": loss * self.tokens / self.utf8_bytes / math.log(2),
        }


def pack_blocks(texts: list[str], tokenizer: Any, block_size: int) -> Packed:
    """The tokens of all texts in a row, each text begun (BOS) or ended (EOS) as the tokenizer has it.

    A tokenizer that adds neither gets its EOS between texts. Raises `InvalidArgumentError` when the texts
    do not fill one block.
    """
    from datasets import Dataset

    adds = bool(tokenizer.num_special_tokens_to_add())
    separator = [] if adds or tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    for start in range(0, len(texts), 1000):
        for row in tokenizer(texts[start : start + 1000])["input_ids"]:
            ids += row + separator
    blocks = [ids[i : i + block_size] for i in range(0, len(ids) - block_size + 1, block_size)]
    if not blocks:
        raise InvalidArgumentError(f"the texts have {len(ids)} tokens, fewer than one block of {block_size}")
    return Packed(
        Dataset.from_dict({"input_ids": blocks, "labels": blocks}),
        tokens=len(ids),
        words=sum(len(text.split()) for text in texts),
        utf8_bytes=sum(len(text.encode()) for text in texts),
    )


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
