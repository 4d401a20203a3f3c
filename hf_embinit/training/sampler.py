"""The order of examples: batches of similar length in training, the order of the file in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers.trainer_pt_utils import LengthGroupedSampler


class SequentialEvaluation:
    """Mixin for a `Trainer`: evaluation and prediction keep the order and the number of rows of the data set,
    and their losses are not smoothed.

    With `train_sampling_strategy="group_by_length"` a Trainer shuffles its evaluation data as well, and
    predictions are no longer in the order of their texts: sort the data set by length instead. And a
    `Seq2SeqTrainer` over several processes counts the rows that pad the last batch twice. Its loss stays the
    mean over rows of the mean per label of their batch, so it changes with the size of the batches.
    """

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler:
        return SequentialSampler(eval_dataset)  # type: ignore[arg-type]

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loop, in which each row is gathered once."""
        self.gather_function = self.accelerator.gather_for_metrics  # type: ignore[attr-defined]
        return super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's step, with the loss of the labels as they are: a smoothed one has no perplexity."""
        smoother, self.label_smoother = self.label_smoother, None  # type: ignore[has-type]
        try:
            return super().prediction_step(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.label_smoother = smoother


class LengthGroups(Sampler[int]):
    """Batches of examples of similar length, in random order over the whole epoch.

    Transformers' `LengthGroupedSampler` sorts every fifty batches from long to short, so that whatever
    correlates with length (the label, in SST-2) drifts through the epoch and the model with it. Here the
    batches of all fifties are shuffled. The examples left over from full batches come last.

    The order depends on `seed` and on the value of `epoch()` at the start of the iteration alone: each
    process has the same one, and so has a run that is resumed within an epoch.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, *, seed: int, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self.lengths = torch.as_tensor(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch())  # no sum: seeds overlap
        shuffled = torch.randperm(len(self), generator=generator)
        whole = len(self) // self.batch_size
        batches = shuffled[: whole * self.batch_size]
        sorted_at_once = max(1, min(whole // 4, 50)) * self.batch_size  # as transformers does
        grouped = [part[self.lengths[part].argsort(stable=True)] for part in batches.split(sorted_at_once)]
        if whole:
            order = torch.randperm(whole, generator=generator)
            batches = torch.cat(grouped).view(whole, self.batch_size)[order].flatten()
        return iter([*batches.tolist(), *shuffled[len(batches) :].tolist()])


class LengthGroupedTraining:
    """Mixin for a `Trainer`: `train_sampling_strategy="group_by_length"` means `LengthGroups`.

    The batches of all processes in one step are of similar length, so that none waits for another.
    """

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        sampler = super()._get_train_sampler(train_dataset)  # type: ignore[misc]
        if not isinstance(sampler, LengthGroupedSampler):
            return sampler
        args = self.args  # type: ignore[attr-defined]
        return LengthGroups(
            sampler.lengths,
            args.train_batch_size * args.world_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            epoch=lambda: int(self.state.epoch or 0),  # type: ignore[attr-defined]
        )
