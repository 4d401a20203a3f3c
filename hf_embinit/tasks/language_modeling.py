"""Texts for language models: data sets by name, packed into blocks, and perplexities that compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataNotFoundError, InvalidArgumentError
from .data import data_digests, find_folder, first_samples, load_file, load_folder, load_from_hub, load_given
from .spec import LOSS, DataSpec, Score, TaskSpec, register_task
from .task_data import Outcome, TaskData, untimed

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from torch import Tensor

SPLITS = ("train", "validation")
SENTENCES_A_STORY = 5


DATASETS = {
    d.name: d
    for d in (
        DataSpec("captions", text="captions-en"),
        DataSpec("stories", text="captions-en"),
        DataSpec("wikitext-2-v1", "Salesforce/wikitext", "wikitext-2-v1"),
        DataSpec("wikitext-103-v1", "Salesforce/wikitext", "wikitext-103-v1"),
    )
}
"""Data sets by name; `captions` and `stories` (English captions, five a text) are this package's own."""
ALIASES = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}
METRICS = {
    "perplexity": Score("perplexity per token", "perplexity", lower_is_better=True),
    "word_perplexity": Score("perplexity per word", lower_is_better=True, hub_name="perplexity"),
    "bits_per_byte": Score("bits per byte", digits=4, lower_is_better=True),
    "loss": LOSS,
}
SCORED = ("validation_bits_per_byte", "test_bits_per_byte", "test_perplexity", "validation_loss")
"""Columns of every table of language models."""
TASK = register_task(
    TaskSpec(
        "language_modeling",
        recipe="language_model.py",
        datasets=DATASETS,
        metrics=METRICS,
        also={
            "knn_input_inner_product": Score(
                "KNN match of the two models' input embeddings at the last step", "last KNN match", digits=4
            ),
            "knn_peak": Score("KNN match at its highest", "peak KNN match", digits=4),
            "knn_peak_step": Score("step of the highest KNN match"),
        },
        columns=("knn_peak", "knn_input_inner_product", *SCORED),
        drawn=("perplexity",),
        auto_class="AutoModelForCausalLM",
        pipeline_tag="text-generation",
        settings={
            "position_encoding": "sinusoidal",
            "position_scale": 1.0,
            "norm_position": "pre",
            "dropout_rate": 0.1,
        },
    )
)


def preset(dataset: str, model: str, *, new_embeddings: bool = True) -> dict[str, Any]:
    """Tokenizer, sizes and schedule of a run; any flag overrides them.

    The Butterfly paper gives the width (512), the tokenizer (GPT-2's) and the number of steps: 16,000 for a
    new model, 8,000 for new embeddings in a trained one (`new_embeddings`). Depth, heads, batch, block length
    and learning rate are ours. The embedded corpora have their own.
    """
    if dataset in ("stories", "captions"):
        batches = {"block_size": 64, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 32}
        sizes = {"d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 4}
        training: dict[str, Any] = {"learning_rate": 2e-3, "num_train_epochs": 6}
        tokenizer = "words"
    else:
        batches = {"block_size": 128, "per_device_train_batch_size": 16, "per_device_eval_batch_size": 16}
        sizes = {"d_model": 512, "d_ff": 2048, "num_layers": 4, "num_heads": 8}
        training = {"learning_rate": 5e-4, "warmup_steps": 500, "max_steps": 16_000}
        tokenizer = "gpt2"
    if model == "vanilla":
        return {"tokenizer": tokenizer, **TASK.settings, **sizes, **batches, **training}
    if not new_embeddings:
        return {**batches, "learning_rate": 5e-5, "num_train_epochs": 1}
    return {**batches, **training, **({"max_steps": 8_000} if "max_steps" in training else {})}


def load_texts(
    dataset: str,
    *,
    config: str | None = None,
    data_dir: str | None = None,
    files: Mapping[str, str | None] | None = None,
) -> DatasetDict:
    """A `DatasetDict` of at least `train` and `validation` with the column `text`, blank lines left out.

    `dataset` is a name of `DATASETS`, a folder of data files, or a Hub id. A named one is looked for in
    `data_dir`, then in the folder that `HF_EMBINIT_DATA` names, then on the Hub. `files` overrides single
    splits. Raises `DataNotFoundError` for a missing split, `InvalidArgumentError` for a missing column
    `text` (the message lists the columns).
    """
    from datasets import Dataset, DatasetDict

    dataset = ALIASES.get(dataset, dataset)
    overrides = {split: path for split, path in (files or {}).items() if path is not None}
    if set(overrides) >= set(SPLITS):
        data = DatasetDict()
    elif dataset in ("captions", "stories"):
        from .embedded import corpus_splits, refuse_places

        refuse_places("--dataset", dataset, data_dir, config)
        together = SENTENCES_A_STORY if dataset == "stories" else 1
        data = DatasetDict()
        for split, pairs in corpus_splits("captions").items():
            captions = [pair["en"] for pair in pairs]
            starts = range(0, len(captions), together)
            data[split] = Dataset.from_dict({"text": [" ".join(captions[i : i + together]) for i in starts]})
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
        texts = [text for text in rows["text"] if text is not None]
        for text in texts:
            if not isinstance(text, str):
                raise InvalidArgumentError(f"the {split} split of {dataset} has {text!r} in 'text', not text")
        texts = [text for text in texts if text.strip()]
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
    return load_given(dataset, config, DATASETS)


@dataclass(frozen=True)
class Packed:
    """Texts as blocks of ids without padding, and their size."""

    blocks: Dataset
    """Rows of `input_ids` and `labels`, each `block_size` long; what is left at the end is dropped.

    The first label, which nothing predicts, is -100: the Trainer of transformers 5.23 divides the loss of
    classes that are not named `...ForCausalLM` (`GPT2LMHeadModel`) by the number of all labels of a row."""
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
        for row in tokenizer(texts[start : start + 1000], verbose=False)["input_ids"]:
            ids += row + separator
    blocks = [ids[i : i + block_size] for i in range(0, len(ids) - block_size + 1, block_size)]
    if not blocks:
        raise InvalidArgumentError(f"the texts have {len(ids)} tokens, fewer than one block of {block_size}")
    return Packed(
        Dataset.from_dict({"input_ids": blocks, "labels": [[-100, *block[1:]] for block in blocks]}),
        tokens=len(ids),
        words=sum(len(text.split()) for text in texts),
        utf8_bytes=sum(len(text.encode()) for text in texts),
    )


def continuations(
    models: Mapping[str, Any], tokenizer: Any, blocks: Dataset, *, count: int = 10
) -> list[dict[str, str]]:
    """What each model writes after the beginning of some blocks, greedily: `prompt`, `reference`, and a
    column a model."""
    import torch

    ids = torch.tensor(spread_blocks(blocks, count)["input_ids"][:count])
    half = min(16, max(1, ids.shape[1] // 2))
    prompts, references = ids[:, :half], ids[:, half : half + 32]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id

    def text(rows: Tensor) -> list[str]:
        return [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in rows]

    columns = {"prompt": text(prompts), "reference": text(references)}
    for name, model in models.items():
        model.eval()
        written = model.generate(
            prompts.to(model.device),
            attention_mask=torch.ones_like(prompts).to(model.device),
            max_new_tokens=references.shape[1],
            do_sample=False,
            pad_token_id=pad,
        )
        columns[name] = text(written[:, half:])
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def spread_blocks(blocks: Dataset, count: int) -> Dataset:
    """`count` of the blocks, evenly spread over the text; all of them when `count` is 0."""
    count = min(count, len(blocks)) or len(blocks)
    return blocks.select([i * len(blocks) // count for i in range(count)])


def token_counts(blocks: Dataset, vocab_size: int) -> Tensor:
    """How often each id occurs in the blocks: `[V]`."""
    import torch

    counts = torch.zeros(vocab_size, dtype=torch.long)
    for batch in blocks.with_format("torch").iter(batch_size=4096):
        counts += torch.bincount(batch["input_ids"].flatten(), minlength=vocab_size)
    return counts


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


class TextData(TaskData):
    """Texts packed into blocks, scored by perplexities."""

    def __init__(
        self,
        data: Mapping[str, Dataset],
        tokenizer: Any,
        *,
        block_size: int,
        max_eval_blocks: int = 0,
        max_train_samples: int | None = None,
    ):
        self.tokenizer, self.block_size = tokenizer, block_size
        data = first_samples(data, {"train": max_train_samples})
        self.digests = data_digests(data)
        texts = {split: rows["text"][:] for split, rows in data.items()}
        self.packed = {split: pack_blocks(rows, tokenizer, block_size) for split, rows in texts.items()}
        self.train = self.packed["train"].blocks
        self.validation = spread_blocks(self.packed["validation"].blocks, max_eval_blocks)
        self.models: Mapping[str, Any] = {}

    def token_counts(self) -> Tensor:
        """How often each id occurs in the training blocks: `[V]`."""
        return token_counts(self.train, len(self.tokenizer))

    def module(self, models: Mapping[str, Any]) -> Any:
        """The one model."""
        self.models = models
        return super().module(models)

    def trained_tokens(self, trainer: Any) -> float:
        """Tokens of the blocks of all steps."""
        args, blocks = trainer.args, len(self.train)
        batch = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
        epochs, steps = divmod(trainer.state.global_step, math.ceil(blocks / batch))
        return (epochs * blocks + steps * batch) * self.block_size

    def history(
        self, rows: list[dict[str, float]], log: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, float]]:
        """One dict for each evaluation, with perplexities beside each validation loss."""
        for row in rows:
            scores = self.packed["validation"].scores(row["validation_loss"])
            row.update({f"validation_{name}": value for name, value in scores.items()})
        return rows

    def losses(self, trainer: Any) -> dict[str, dict[str, float]]:
        """Split -> the Trainer's metrics on all of its blocks; without the training split."""
        return {
            split: untimed(trainer.predict(packed.blocks, metric_key_prefix=split).metrics or {})
            for split, packed in self.packed.items()
            if split != "train"
        }

    def scores(self, split: str, loss: float, suffix: str = "") -> dict[str, float]:
        """Loss and perplexities of a split as metrics of a record."""
        found = {"loss": loss, **self.packed[split].scores(loss)}
        return {f"{split}_{name}{suffix}": value for name, value in found.items()}

    def continuations(self, models: Mapping[str, Any]) -> list[dict[str, str]]:
        """What each model generates after the start of some blocks of the test (or validation) split."""
        shown = self.packed["test" if "test" in self.packed else "validation"].blocks
        return continuations(models, self.tokenizer, shown)

    def outcome(self, trainer: Any, history: Sequence[Mapping[str, float]]) -> Outcome:
        """Perplexities of validation and test text, and some continuations."""
        metrics: dict[str, float] = {}
        for split, found in self.losses(trainer).items():
            metrics |= self.scores(split, found[f"{split}_loss"])
        return Outcome(metrics, self.continuations({"prediction": self.module(self.models)}))
