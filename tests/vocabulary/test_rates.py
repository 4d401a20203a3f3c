"""A learning rate of its own for new rows: the steps are those of a model with them in a table apart."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from builders.tiny_tokenizers import model, tokenizer
from torch.func import functional_call
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

import hf_embinit
from hf_embinit import expand_vocabulary, parameter_groups
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables

NEW = [" zyxomma", " qorvex"]
KINDS = ["gpt2", "llama", "bert"]
"""Tied, untied, and tied with a bias."""
OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-3),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-3),
}


def expanded(kind: str):
    t = tokenizer("byte_level")
    torch.manual_seed(0)
    m = model(kind, len(t)).eval()
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=(), scale=0.1).token_ids
    return m, new


def batches(steps: int):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        ids = torch.randint(0, 320, (2, 12), generator=generator)
        ids[:, ::3] = torch.randint(320, 322, (2, 4), generator=generator)
        yield ids


def loss_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train(m, optimizer, steps: int = 6) -> None:
    for ids in batches(steps):
        loss_of(m(input_ids=ids).logits, ids).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_apart(m, make, steps: int = 6) -> dict[str, torch.Tensor]:
    """The same with new rows that are parameters, put behind the old ones in every forward pass."""
    tables = EmbeddingTables(m)
    names = {t.name for t in tables.own_tables} | {b.name for t in tables.output_tables for b in t.bias}
    named = dict(m.named_parameters())
    old = {n: torch.nn.Parameter(p.detach()[: 320 if n in names else None].clone()) for n, p in named.items()}
    new = {n: torch.nn.Parameter(named[n].detach()[320:].clone()) for n in names}
    decayed = set(Trainer.get_decay_parameter_names(None, m))
    optimizer = make(
        [
            {"params": [p for n, p in old.items() if n in decayed], "weight_decay": 0.1},
            {"params": [p for n, p in old.items() if n not in decayed], "weight_decay": 0.0},
            {"params": list(new.values()), "lr": 0.05, "weight_decay": 0.1},
        ]
    )
    whole = lambda: {n: torch.cat([p, new[n]]) if n in new else p for n, p in old.items()}  # noqa: E731
    for ids in batches(steps):
        loss_of(functional_call(m, whole(), kwargs={"input_ids": ids}).logits, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in whole().items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_are_those_of_rows_in_a_table_apart(kind, optimizer) -> None:
    make = OPTIMIZERS[optimizer]
    expected = train_apart(expanded(kind)[0], make)
    m, new = expanded(kind)
    start = {n: p.detach().clone() for n, p in m.named_parameters()}
    train(m, make(parameter_groups(m, new_row_lr=0.05, weight_decay=0.1)))
    for name, p in m.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], atol=1e-6, rtol=1e-5, msg=name)
        assert not torch.equal(p, start[name])
    # the control: one rate for all, and a gradient that is scaled instead, end elsewhere
    same, _ = expanded(kind)
    rate = 1e-2 if optimizer == "SGD" else 1e-3
    train(same, make(parameter_groups(same, new_row_lr=rate, weight_decay=0.1)))
    rows = EmbeddingTables(same).own_tables[0].name
    assert (dict(same.named_parameters())[rows][new] - expected[rows][new]).abs().max() > 1e-3


@pytest.mark.parametrize("named", [False, True], ids=["positional", "keyword"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_closure_steps_as_without_one(optimizer, named) -> None:
    """Lightning steps so: the gradients are made within the step."""
    make = OPTIMIZERS[optimizer]
    plain, _ = expanded("llama")
    train(plain, make(parameter_groups(plain, new_row_lr=0.05, weight_decay=0.1)))
    m, new = expanded("llama")
    start = m.get_input_embeddings().weight.detach().clone()
    stepping = make(parameter_groups(m, new_row_lr=0.05, weight_decay=0.1))
    for ids in batches(6):

        def closure(ids: torch.Tensor = ids) -> torch.Tensor:
            stepping.zero_grad()
            loss = loss_of(m(input_ids=ids).logits, ids)
            loss.backward()
            return loss

        assert (stepping.step(closure=closure) if named else stepping.step(closure)) > 0
    for name, p in m.named_parameters():
        torch.testing.assert_close(p.detach(), plain.get_parameter(name).detach(), msg=name)
    assert (m.get_input_embeddings().weight.detach() - start)[new].abs().min() > 0


def test_scaled_gradients_do_not_do_it() -> None:
    """Why there is more to it than a hook: Adam's step does not know the scale of a gradient."""
    ends = []
    for factor in (1.0, 50.0):
        m, new = expanded("gpt2")
        table = m.get_input_embeddings().weight
        mask = torch.ones_like(table).index_fill_(0, torch.tensor(new), factor)
        table.register_hook(lambda grad, mask=mask: grad * mask)
        train(m, torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-12))
        ends.append(table.detach()[new])
    torch.testing.assert_close(*ends, atol=1e-5, rtol=0)


def test_trainer_trains_goes_on_and_schedules_as_ever(tmp_path) -> None:
    def run(steps, resume=None):
        m, _ = expanded("llama")
        optimizer = torch.optim.AdamW(parameter_groups(m, new_row_lr=0.05), lr=1e-3)
        args = TrainingArguments(
            str(tmp_path / "run"),
            max_steps=steps,
            save_steps=2,
            lr_scheduler_type="linear",
            gradient_accumulation_steps=2,
            per_device_train_batch_size=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        data = [{"input_ids": row, "labels": row} for ids in batches(8) for row in ids.tolist()]
        trainer = Trainer(m, args, train_dataset=data, optimizers=(optimizer, None))
        trainer.train(resume_from_checkpoint=resume)
        return m, [group["lr"] for group in optimizer.param_groups]

    through, rates = run(4)
    assert rates[2] == pytest.approx(50 * rates[0])
    again, _ = run(4, str(tmp_path / "run" / "checkpoint-2"))
    for (name, a), b in zip(through.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_rows_may_move_and_change_dtype_before_training() -> None:
    m, new = expanded("gpt2")
    optimizer = torch.optim.AdamW(parameter_groups(m, new_row_lr=0.05), lr=0.0)
    m.to(torch.bfloat16)
    before = m.get_input_embeddings().weight.detach().clone()
    train(m, optimizer, 1)
    after = m.get_input_embeddings().weight.detach()
    assert torch.equal(after[:320], before[:320])
    assert bool((after[new] != before[new]).any(1).all())


def test_what_is_named_alone_and_what_cannot_be() -> None:
    m, _ = expanded("gpt2")
    table = m.get_input_embeddings().weight
    before = table.detach().clone()
    train(m, torch.optim.SGD(parameter_groups(m, new_row_lr=1.0, token_ids=[321]), lr=0.0), 2)
    assert torch.equal(table[:321], before[:321]) and not torch.equal(table[321], before[321])
    for options, match in (
        ({"new_row_lr": -1}, "new_row_lr=-1: expected a finite number at least 0"),
        ({"new_row_lr": "1e-3"}, "new_row_lr='1e-3'"),
        ({"new_row_lr": float("nan")}, "new_row_lr=nan"),
        ({"new_row_lr": 1e-3, "token_ids": [322]}, "token_ids=.*each from 0 to 321"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            parameter_groups(m, **options)
    with pytest.raises(InvalidArgumentError, match="tells of no new rows: give token_ids="):
        parameter_groups(model("gpt2", 320), new_row_lr=1e-3)
    table.requires_grad_(False)
    with pytest.raises(InvalidArgumentError, match="is frozen"):
        parameter_groups(m, new_row_lr=1e-3)


class Around(torch.optim.Optimizer):
    """An optimizer around another, which it lets step: as Lookahead and ZeroRedundancyOptimizer do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__([p for group in inner.param_groups for p in group["params"]], {})

    def step(self, closure=None):  # type: ignore[override]
        return self.inner.step(closure)


class Split:
    """Optimizers that step one after the other, and forget their gradients at once or at the end."""

    def __init__(self, *parts: torch.optim.Optimizer, at_once: bool = False) -> None:
        self.parts, self.at_once = parts, at_once

    def step(self) -> None:
        for part in self.parts:
            part.step()
            if self.at_once:
                part.zero_grad()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()


WAYS = ["around", "around twice", "rows first", "rows last", "at once", "both around"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_steps_in_other_ways_are_the_same(kind, way) -> None:
    make = OPTIMIZERS["AdamW"]
    plain, _ = expanded(kind)
    train(plain, make(parameter_groups(plain, new_row_lr=0.05, weight_decay=0.1)))
    m, _ = expanded(kind)
    groups = parameter_groups(m, new_row_lr=0.05, weight_decay=0.1)
    if way.startswith("around"):
        optimizer = Around(make(groups)) if way == "around" else Around(Around(make(groups)))
    else:
        body, rows = make(groups[:2]), make(groups[2:])
        body, rows = (Around(body), Around(rows)) if way == "both around" else (body, rows)
        optimizer = Split(rows, body) if way == "rows first" else Split(body, rows, at_once=way == "at once")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(m, optimizer)
    for name, p in m.named_parameters():
        assert torch.equal(p, plain.get_parameter(name)), name


def test_a_closure_around_a_closure() -> None:
    make = OPTIMIZERS["AdamW"]
    plain, _ = expanded("llama")
    train(plain, make(parameter_groups(plain, new_row_lr=0.05)))
    m, _ = expanded("llama")
    optimizer = Around(make(parameter_groups(m, new_row_lr=0.05)))
    for ids in batches(6):

        def closure(ids: torch.Tensor = ids) -> torch.Tensor:
            m.zero_grad(set_to_none=False)  # which does not know the rows' own parameters
            loss = loss_of(m(input_ids=ids).logits, ids)
            loss.backward()
            return loss

        optimizer.step(closure)
    for name, p in m.named_parameters():
        torch.testing.assert_close(p, plain.get_parameter(name), msg=name)


def test_an_optimizer_without_the_rows_leaves_them_and_says_so() -> None:
    m, new = expanded("gpt2")
    groups = parameter_groups(m, new_row_lr=0.05)
    before = m.get_input_embeddings().weight.detach().clone()
    with pytest.warns(VocabularyWarning, match="an optimizer steps transformer.wte.weight without the last"):
        train(m, torch.optim.AdamW(m.parameters(), lr=1e-2), 3)
    after = m.get_input_embeddings().weight.detach()
    assert torch.equal(after[new], before[new]) and not torch.equal(after[:320], before[:320])
    del groups
    gc.collect()
    train(m, torch.optim.AdamW(m.parameters(), lr=1e-2), 1)
    assert not torch.equal(m.get_input_embeddings().weight[new], before[new])


def test_of_two_calls_the_later_counts() -> None:
    plain, m = expanded("gpt2")[0], expanded("gpt2")[0]
    train(plain, torch.optim.AdamW(parameter_groups(plain, new_row_lr=0.05), lr=1e-3))
    forgotten = parameter_groups(m, new_row_lr=0.5)
    train(m, torch.optim.AdamW(parameter_groups(m, new_row_lr=0.05), lr=1e-3))
    assert forgotten and all(map(torch.equal, plain.parameters(), m.parameters()))


@pytest.mark.parametrize("options", [{}, {"target_modules": ["q_proj"], "r": 2}], ids=["rows", "lora"])
def test_rows_that_an_adapter_trains_have_a_rate_in_its_own_parameters(options) -> None:
    peft = pytest.importorskip("peft")
    m, new = expanded("llama")
    wrapped = peft.get_peft_model(m, hf_embinit.peft_config_for_new_tokens(m, new, **options))
    for call in (
        lambda: parameter_groups(wrapped, new_row_lr=1e-3),
        lambda: hf_embinit.train_new_rows_only(wrapped, new),
    ):
        with pytest.raises(UnsupportedModelError, match="parameters named trainable_tokens_delta"):
            call()
    m, new = expanded("llama")
    wrapped = peft.get_peft_model(m, peft.LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.raises(InvalidArgumentError, match="set its requires_grad first, or train its new"):
        parameter_groups(wrapped, new_row_lr=1e-3)


def test_nothing_stays_behind() -> None:
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    count = len(_global_optimizer_pre_hooks)
    m, _ = expanded("gpt2")
    groups = hf_embinit.parameter_groups(m, new_row_lr=1e-3)
    assert len(_global_optimizer_pre_hooks) == count + 1
    del groups
    gc.collect()
    assert len(_global_optimizer_pre_hooks) == count


def test_which_rows_are_new_follows_pruning_and_another_tokenizer() -> None:
    t = tokenizer("byte_level")
    m = model("llama", len(t))
    expand_vocabulary(m, t, [" zyxomma", " qorvex"], prefixes=())
    old = [" the", *t("a man sees the dog")["input_ids"]]
    hf_embinit.prune_vocabulary(m, t, [*old[1:], " zyxomma", " qorvex"])
    ids = t.convert_tokens_to_ids([" zyxomma", " qorvex"])
    assert ids[0] < 320  # moved
    more = expand_vocabulary(m, t, [" blimp"], prefixes=()).token_ids
    rows = parameter_groups(m, new_row_lr=1e-3)[2]["params"]
    assert {len(one) for one in rows} == {3}
    table = m.get_input_embeddings().weight
    assert torch.equal(rows[0], table[sorted([*ids, *more])])
    hf_embinit.replace_tokenizer(m, t, tokenizer("byte_level"))
    with pytest.raises(InvalidArgumentError, match="tells of no new rows"):
        parameter_groups(m, new_row_lr=1e-3)


def test_the_state_of_a_checkpoint_goes_where_the_rows_have_moved() -> None:
    """As for a Trainer on a GPU: groups first, then the model is moved, then the optimizer is loaded."""

    def started():
        grown, t = model("gpt2", 320), tokenizer("byte_level")
        expand_vocabulary(grown, t, [" zyxomma", " qorvex"], prefixes=())
        optimizer = torch.optim.AdamW(parameter_groups(grown, new_row_lr=1e-2), lr=1e-3)
        return grown.to(torch.bfloat16), optimizer

    def step(grown, optimizer) -> None:
        ids = torch.tensor([[320, 321, 5, 6, 7]])
        grown(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    one, optimizer = started()
    step(one, optimizer)
    other, resumed = started()
    other.load_state_dict(one.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    for each, its in ((one, optimizer), (other, resumed)):
        step(each, its)
    tables = [each.get_input_embeddings().weight for each in (one, other)]
    torch.testing.assert_close(*tables, rtol=2e-2, atol=1e-3)


def test_rows_of_padding_that_a_later_resize_cut_off_are_no_new_rows() -> None:
    grown, t = model("gpt2", 320), tokenizer("byte_level")
    expand_vocabulary(grown, t, [" zyxomma", " qorvex"], prefixes=(), pad_to_multiple_of=64)
    grown.resize_token_embeddings(len(t))
    *_, rows = parameter_groups(grown, new_row_lr=1e-3)
    assert {len(p) for p in rows["params"]} == {2}
