"""Translation: data sets, the paper's settings for each, encoding, BLEU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import DataCollatorForSeq2Seq

from ..errors import DataNotFoundError, InvalidArgumentError
from ..measures import load_metric
from .data import data_digests, find_folder, first_samples, load_file, load_folder, load_from_hub, load_given
from .encoded import sort_by_length, token_counts, without_length
from .spec import LOSS, DataSpec, Score, TaskSpec, register_task
from .task_data import Outcome, TaskData, untimed

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SPLITS = ("train", "validation", "test")


def _paper(batch_size: int, *, d_model: int, num_heads: int = 8, min_frequency: int = 2) -> dict[str, Any]:
    """Kim et al. 2024, Table 5 and section A.2."""
    return {
        "num_train_epochs": 20,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "learning_rate": 2e-4,
        "d_model": d_model,
        "d_ff": 512,
        "num_layers": 3,
        "num_heads": num_heads,
        "min_frequency": min_frequency,
    }


DATASETS = {
    d.name: d
    for d in (
        DataSpec(
            "captions",
            text="captions-{language}",
            presets={
                "*": {
                    "num_train_epochs": 6,
                    "per_device_train_batch_size": 64,
                    "per_device_eval_batch_size": 128,
                    "learning_rate": 1e-3,
                    "d_model": 128,
                    "d_ff": 256,
                    "num_layers": 2,
                    "num_heads": 4,
                    "min_frequency": 2,
                }
            },
        ),
        DataSpec(
            "multi30k",
            hub_id="bentrevett/multi30k",
            presets={
                "words": _paper(64, d_model=300, num_heads=10),
                "mbert": _paper(128, d_model=768),
                "mt5": _paper(96, d_model=768),
                "*": _paper(128, d_model=512),
            },
        ),
        DataSpec(
            "iwslt2017",
            hub_id="IWSLT/iwslt2017",
            hub_config="iwslt2017-de-en",
            hub_revision="refs/convert/parquet",
            presets={
                "words": _paper(128, d_model=300, num_heads=10, min_frequency=5),
                "mbert": _paper(128, d_model=768, min_frequency=5),
                "mt5": _paper(112, d_model=768, min_frequency=5),
                "*": _paper(128, d_model=512, min_frequency=5),
            },
        ),
    )
}
"""Data sets by name; epochs, batch sizes and widths from Kim et al. 2024, Table 5 (`captions`: our own)."""


def preset(dataset: str, tokenizer: str) -> dict[str, Any]:
    """The settings for a data set and a tokenizer; Multi30k's for a data set without a name."""
    return DATASETS.get(dataset, DATASETS["multi30k"]).preset(tokenizer)


TASK = register_task(
    TaskSpec(
        "translation",
        recipe="translate.py",
        datasets=DATASETS,
        metrics={
            "bleu": Score("BLEU"),
            "bleu_tokenized": Score("BLEU on the model's own tokens", "BLEU, own tokens", hub_name="bleu"),
            "loss": LOSS,
        },
        columns=("test_bleu", "test_bleu_tokenized", "validation_loss"),
        drawn=("bleu",),
        auto_class="AutoModelForSeq2SeqLM",
        pipeline_tag="translation",
        settings={
            "adam_beta1": 0.9,
            "adam_beta2": 0.98,
            "adam_epsilon": 1e-9,
            "lr_scheduler_type": "constant",
            "position_encoding": "sinusoidal",
            "position_scale": 1.0,
            "norm_position": "post",
            "dropout_rate": 0.1,
        },
        preset=lambda dataset, model, tokenizer: preset(dataset, tokenizer),
    )
)
"""The settings are those of Kim et al. 2024, section A.2."""


def load_translation(
    dataset: str,
    *,
    source_lang: str = "de",
    target_lang: str = "en",
    config: str | None = None,
    data_dir: str | None = None,
    files: Mapping[str, str | None] | None = None,
    limits: Mapping[str, int | None] | None = None,
) -> DatasetDict:
    """A `DatasetDict` of `train`, `validation` and `test` with the text columns `source` and `target`.

    `dataset` is a name of `DATASETS`, a folder of data files, or a Hub id. A named one is looked for in
    `data_dir`, then in the folder that `HF_EMBINIT_DATA` names, then on the Hub. `files` overrides single
    splits, `limits` cuts them to their first examples. Files have one column a language (`de`, `en`) or one
    column `translation` holding both.

    Raises `DataNotFoundError` for a missing split, `InvalidArgumentError` for a missing language.
    """
    from datasets import DatasetDict

    overrides = {split: path for split, path in (files or {}).items() if path is not None}
    origin = dataset
    data = DatasetDict()
    if set(overrides) != set(SPLITS):
        data, origin = _load(dataset, config, data_dir)
    for split, path in overrides.items():
        data[split] = load_file(path)
    missing = [split for split in SPLITS if split not in data]
    if missing:
        flags = ", ".join(f"--{split}_file" for split in missing)
        raise DataNotFoundError(
            f"--dataset {dataset}: {origin} has no {' and no '.join(missing)} split; "
            f"give {flags}, or a --data_dir that has it"
        )
    pairs = {split: _columns(data[split], split, source_lang, target_lang) for split in SPLITS}
    return first_samples(DatasetDict(pairs), limits or {})


def _load(dataset: str, config: str | None, data_dir: str | None) -> tuple[DatasetDict, str]:
    from datasets import Dataset, DatasetDict

    if dataset == "captions":
        from .embedded import corpus_splits, refuse_places

        refuse_places("--dataset", dataset, data_dir, config)
        pairs = corpus_splits(dataset)
        return DatasetDict({k: Dataset.from_list(v) for k, v in pairs.items()}), "the embedded corpus"
    if dataset in DATASETS:
        spec = DATASETS[dataset]
        folder = find_folder(dataset, data_dir)
        if folder is not None:
            return load_folder(folder), str(folder)
        assert spec.hub_id is not None
        return load_from_hub(spec.hub_id, config or spec.hub_config, spec.hub_revision), spec.hub_id
    if Path(dataset).is_dir():
        return load_folder(dataset), dataset
    if data_dir is not None:
        folder = find_folder(dataset, data_dir)
        assert folder is not None
        return load_folder(folder), str(folder)
    return load_given(dataset, config, DATASETS), dataset


def _columns(split: Dataset, name: str, source_lang: str, target_lang: str) -> Dataset:
    """The split with exactly the columns `source` and `target`."""
    from datasets import Dataset

    columns = split.column_names
    if len(split) == 0:
        raise InvalidArgumentError(f"the {name} split is empty")
    if "translation" in columns:
        first = split[0]["translation"]
        languages = sorted(first) if isinstance(first, dict) else []
    else:
        languages = [c for c in columns if c != "idx"]
    for flag, lang in (("source_lang", source_lang), ("target_lang", target_lang)):
        if lang not in languages:
            raise InvalidArgumentError(
                f"--{flag} {lang!r} is not in the {name} split; it has: {', '.join(languages)}; name another "
                f"column by --{flag.replace('lang', 'column')}"
            )
    if "translation" in columns:
        rows = [row or {} for row in split["translation"]]
        texts = {"source": [r.get(source_lang) for r in rows], "target": [r.get(target_lang) for r in rows]}
    else:
        texts = {"source": split[source_lang][:], "target": split[target_lang][:]}
    for side, values in texts.items():
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise InvalidArgumentError(
                    f"the {side} text of row {i} of the {name} split is {value!r}, not text"
                )
    return Dataset.from_dict(texts)


def encode_pairs(
    data: Dataset, tokenizer: Any, *, max_source_length: int, max_target_length: int, desc: str
) -> Dataset:
    """`data` as `input_ids`, `attention_mask`, `labels` and `length`, the larger of both lengths.

    Both sides are truncated to the given numbers of tokens.
    """

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        encoded = tokenizer(batch["source"], max_length=max_source_length, truncation=True)
        labels = tokenizer(text_target=batch["target"], max_length=max_target_length, truncation=True)[
            "input_ids"
        ]
        lengths = [max(len(s), len(t)) for s, t in zip(encoded["input_ids"], labels, strict=True)]
        return {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "labels": labels,
            "length": lengths,
        }

    return data.map(encode, batched=True, remove_columns=data.column_names, desc=desc)


class PairCollator(DataCollatorForSeq2Seq):
    """Pads pairs on both sides."""

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        """The padded batch: `input_ids` `[B, S]`, `labels` `[B, T]` padded with -100, and masks."""
        return super().__call__(without_length(features), return_tensors)


def bleu_metrics(
    tokenizer: Any, references: Sequence[str], *, lowercase: bool
) -> Callable[[Any], dict[str, float]]:
    """`compute_metrics` for a `Seq2SeqTrainer` that generates: BLEU on detokenised and on tokenised text.

    `bleu` is sacreBLEU on the decoded text against `references` (both lower-cased when the tokenizer keeps no
    case); `bleu_tokenized` is BLEU in the tokenizer's own tokens: comparable within one tokenizer only.
    `compute_metrics.signatures` holds sacreBLEU's signature of each after a call.
    """
    metric = load_metric("bleu")

    def compute_metrics(prediction: Any) -> dict[str, float]:
        texts, tokens = decode_predictions(tokenizer, prediction.predictions)
        reference_tokens = [tokenizer.tokenize_target(r) for r in references]
        scores = metric.compute(
            predictions=texts, references=list(references), lowercase=lowercase, tokenize="13a"
        )
        token_scores = metric.compute(predictions=tokens, references=reference_tokens, tokenize="none")
        compute_metrics.signatures = {  # type: ignore[attr-defined]
            "bleu": scores["signature"],
            "bleu_tokenized": token_scores["signature"],
        }
        return {
            "bleu": scores["score"],
            "bleu_tokenized": token_scores["score"],
            "generated_length": float(np.mean([len(t.split()) for t in tokens])),
        }

    compute_metrics.signatures = {}  # type: ignore[attr-defined]
    return compute_metrics


def decode_predictions(tokenizer: Any, predictions: Any) -> tuple[list[str], list[str]]:
    """Generated ids `[n, T]`, padded with -100, as detokenised texts and as blank-separated tokens."""
    ids = predictions[0] if isinstance(predictions, tuple) else predictions
    rows = [[int(i) for i in row if i >= 0] for row in np.asarray(ids)]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    tokens = [tokenizer.decode_tokens(row) for row in rows]
    return texts, tokens


class TranslationData(TaskData):
    """Pairs of texts, encoded, scored by BLEU; validation and test sets longest first."""

    generates = True
    measured = ("bleu", "bleu_tokenized")

    def __init__(
        self, data: Mapping[str, Dataset], tokenizer: Any, *, max_source_length: int, max_target_length: int
    ):
        self.tokenizer = tokenizer
        self.digests = data_digests(data)  # before the splits are put in another order
        self.texts, self.encoded = dict(data), {}
        for split, pairs in data.items():
            self.encoded[split] = encode_pairs(
                pairs,
                tokenizer,
                max_source_length=max_source_length,
                max_target_length=max_target_length,
                desc=f"encoding {split}",
            )
            if split != "train":
                self.texts[split], self.encoded[split] = sort_by_length(pairs, self.encoded[split])
        self.train, self.validation = self.encoded["train"], self.encoded["validation"]
        self.compute_metrics = self._bleu("validation")

    def _bleu(self, split: str) -> Any:
        return bleu_metrics(
            self.tokenizer, self.texts[split]["target"][:], lowercase=self.tokenizer.lowercases
        )

    def token_counts(self) -> dict[str, list[int]]:
        """How often each id occurs in the training texts, as the keyword arguments of `initialize`."""
        encoder, target_encoder = self.tokenizer.encoder, self.tokenizer.target_encoder
        return {
            "token_counts": token_counts(self.train, "input_ids", len(encoder)),
            "target_token_counts": token_counts(self.train, "labels", len(target_encoder)),
        }

    def collator(self, model: Any) -> Any:
        """Pads both sides of the pairs."""
        return PairCollator(self.tokenizer, model=model)

    def trained_tokens(self, trainer: Any) -> float:
        """Tokens of both sides, times the epochs."""
        both = (sum(map(len, self.train[column][:])) for column in ("input_ids", "labels"))
        return sum(both) * trainer.state.epoch

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """Loss and BLEU of the test set, and its translations in the order of the file."""
        trainer.compute_metrics = metrics = self._bleu("test")
        predicted = trainer.predict(self.encoded["test"], metric_key_prefix="test")
        texts, _ = decode_predictions(self.tokenizer, predicted.predictions)
        samples = [
            {"source": pair["source"], "reference": pair["target"], "prediction": text, "row": pair["row"]}
            for pair, text in zip(self.texts["test"], texts, strict=True)
        ]
        signature = {f"test_{name}": text for name, text in metrics.signatures.items()}
        samples.sort(key=lambda sample: sample["row"])
        return Outcome(untimed(predicted.metrics), samples, signature)
