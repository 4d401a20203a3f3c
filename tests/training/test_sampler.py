"""Batches of like length: every example once, the same on every process, no trend within an epoch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices

from hf_embinit.training.sampler import LengthGroupedTraining, LengthGroups


def lengths_of(size: int) -> list[int]:
    """Lengths as SST-2 has them: many short, few long."""
    return (3 + np.random.default_rng(0).gamma(1.0, 8.0, size)).astype(int).tolist()


def padded(order: list[int], lengths: list[int], batch_size: int) -> int:
    """Positions of all batches, padding among them."""
    parts = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
    return sum(len(part) * max(lengths[i] for i in part) for part in parts)


@pytest.mark.parametrize(("size", "batch_size"), [(1, 4), (3, 4), (4, 4), (41, 4), (1000, 16), (999, 1)])
def test_every_example_once_an_epoch_in_another_order(size, batch_size):
    epoch = 0
    sampler = LengthGroups(lengths_of(size), batch_size, seed=3, epoch=lambda: epoch)
    orders = []
    for epoch in range(3):  # noqa: B007 - the sampler reads it
        orders.append(list(sampler))
        assert sorted(orders[-1]) == list(range(size)) and len(sampler) == size
        assert list(sampler) == orders[-1], "the order of an epoch is not its own"
    if size > 4:
        assert orders[0] != orders[1] != orders[2]
        assert list(LengthGroups(lengths_of(size), batch_size, seed=4)) != orders[0]


def test_the_global_random_state_neither_counts_nor_moves():
    lengths = lengths_of(500)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = list(LengthGroups(lengths, 8, seed=0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert list(LengthGroups(lengths, 8, seed=0)) == first


def test_padding_is_that_of_sorted_groups():
    lengths = lengths_of(20_000)
    generator = torch.Generator().manual_seed(0)
    sorted_groups = get_length_grouped_indices(lengths, 32, generator=generator)
    ours = list(LengthGroups(lengths, 32, seed=0))
    random = torch.randperm(len(lengths), generator=generator).tolist()
    assert padded(ours, lengths, 32) < 1.02 * padded(sorted_groups, lengths, 32)
    assert padded(ours, lengths, 32) < 0.6 * padded(random, lengths, 32)


def test_lengths_have_no_trend_within_an_epoch():
    lengths = np.asarray(lengths_of(20_000))

    def correlations(order):  # neighbouring batches' mean lengths; batch and its place in its fifty
        means = lengths[np.asarray(order)[: 624 * 32]].reshape(624, 32).mean(1)
        place = np.arange(624) % 50
        return np.corrcoef(means[:-1], means[1:])[0, 1], np.corrcoef(means, place)[0, 1]

    grouped = correlations(get_length_grouped_indices(lengths.tolist(), 32))
    assert grouped[0] > 0.5 and grouped[1] < -0.5  # what is mended
    for seed in range(5):
        assert all(abs(c) < 0.15 for c in correlations(list(LengthGroups(lengths.tolist(), 32, seed=seed))))


class Rows(torch.utils.data.Dataset):
    """Texts as rows of ids."""

    def __len__(self):
        return 90

    def __getitem__(self, index):
        return {"input_ids": [1 + index] * lengths_of(90)[index]}


class Sum(torch.nn.Module):
    """Keeps the first ids that it saw; its weight depends on their order."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def forward(self, first):
        if self.training:
            self.seen.append(first.tolist())
        return {"loss": ((self.weight - first.float()) ** 2).mean()}


class Grouped(LengthGroupedTraining, Trainer):
    """As in the recipes."""


class EndAt(TrainerCallback):
    """Ends training at a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def trained(folder, *, stop=None, resume=None, strategy="group_by_length", **settings):
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=4, num_train_epochs=3, learning_rate=0.1, optim="sgd",
        train_sampling_strategy=strategy, remove_unused_columns=False, save_strategy="steps",
        save_steps=1, disable_tqdm=True, use_cpu=True, report_to=[], **settings,
    )  # fmt: skip
    trainer = Grouped(
        Sum(), arguments, train_dataset=Rows(), callbacks=[EndAt(stop)] if stop else [],
        data_collator=lambda rows: {"first": torch.tensor([row["input_ids"][0] for row in rows])},
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_resumed_within_an_epoch_sees_the_same_batches(tmp_path, accumulation):
    settings = {"gradient_accumulation_steps": accumulation, "data_seed": 5}
    whole = trained(tmp_path / "whole", **settings)
    cut = 31 // accumulation  # in the second epoch of 23 batches
    first = trained(tmp_path / "cut", stop=cut, **settings)
    rest = trained(tmp_path / "cut", resume=str(tmp_path / "cut" / f"checkpoint-{cut}"), **settings)
    assert first.model.seen[: cut * accumulation] + rest.model.seen == whole.model.seen
    assert torch.equal(rest.model.weight, whole.model.weight)
    epochs = [[*itertools.chain(*whole.model.seen[i : i + 23])] for i in (0, 23, 46)]
    assert all(sorted(epoch) == list(range(1, 91)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_two_processes_take_the_halves_of_one_batch(tmp_path):
    one = list(LengthGroups(lengths_of(90), 8, seed=0))
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    def shard(rank):
        sampler = LengthGroups(lengths_of(90), 4 * 2, seed=0)
        return list(BatchSamplerShard(BatchSampler(sampler, 4, False), 2, rank, even_batches=False))

    steps = [a + b for a, b in zip(shard(0), shard(1), strict=False)]
    assert steps[:11] == [one[i : i + 8] for i in range(0, 88, 8)]


def test_the_recipes_sampler_is_ours(tmp_path):
    from torch.utils.data import RandomSampler

    trainer = trained(tmp_path, stop=1)
    sampler = trainer._get_train_sampler(Rows())
    assert isinstance(sampler, LengthGroups) and sampler.batch_size == 4
    other = trained(tmp_path / "random", stop=1, strategy="random")
    assert isinstance(other._get_train_sampler(Rows()), RandomSampler)
