"""Training: exact accumulation, the loss at real tokens, checkpointing, the fast operations."""

from __future__ import annotations

import pytest
import torch
from builders.vanilla_models import KINDS
from torch import nn
from torch.utils.data import Dataset

from hf_embinit.models import (
    VanillaTransformerConfig,
    VanillaTransformerForCausalLM,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
)
from hf_embinit.models import cpu_training_vanilla_transformer as fast
from hf_embinit.models.blocks_vanilla_transformer import token_loss


def small(kind, **choices):
    sizes = {"vocab_size": 40, "d_model": 32, "num_heads": 4, "d_ff": 48, "num_layers": 2, "num_labels": 3}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(
            VanillaTransformerConfig(**sizes | {"dropout_rate": 0.0, "decoder_vocab_size": 45} | choices)
        )


def batch_for(kind, size=8, seed=0):
    """Random pairs of uneven length, padded on the right; labels padded with -100."""
    generator = torch.Generator().manual_seed(seed)
    source_lengths = torch.randint(3, 10, (size, 1), generator=generator)
    target_lengths = torch.randint(2, 8, (size, 1), generator=generator)
    mask = (torch.arange(9)[None] < source_lengths).long()
    batch = {"input_ids": torch.randint(4, 40, (size, 9), generator=generator) * mask, "attention_mask": mask}
    if kind is VanillaTransformerForSequenceClassification:
        return batch | {"labels": torch.randint(0, 3, (size,), generator=generator)}
    if kind is VanillaTransformerForCausalLM:
        return batch | {"labels": batch["input_ids"].masked_fill(mask == 0, -100)}
    labels = torch.randint(4, 45, (size, 7), generator=generator)
    return batch | {"labels": labels.masked_fill(torch.arange(7)[None] >= target_lengths, -100)}


def gradients(model):
    return {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("kind", KINDS)
def test_accumulated_quarters_are_one_batch(kind):
    model, batch = small(kind).train(), batch_for(kind)
    whole = model(**batch).loss
    whole.backward()
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    labels = batch["labels"][..., 1:] if kind is VanillaTransformerForCausalLM else batch["labels"]
    total = 0.0
    for i in range(0, 8, 2):
        quarter = {name: value[i : i + 2] for name, value in batch.items()}
        loss = model(**quarter, num_items_in_batch=labels.ne(-100).sum()).loss
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.item(), abs=1e-6)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-4)


class Rows(Dataset):
    def __init__(self, batch):
        self.rows = [{name: value[i] for name, value in batch.items()} for i in range(len(batch["labels"]))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_accumulates_exactly(kind, tmp_path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    ends, losses = [], []
    for size, steps in ((8, 1), (2, 4)):
        model = small(kind)
        arguments = TrainingArguments(
            output_dir=str(tmp_path / str(size)),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            max_steps=2,
            learning_rate=0.1,
            optim="sgd",
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            seed=0,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows(batch_for(kind)))
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        ends.append(model.state_dict())
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", [VanillaTransformerForConditionalGeneration, VanillaTransformerForCausalLM])
def test_the_loss_at_real_tokens_is_the_loss(kind):
    model, batch = small(kind), batch_for(kind)
    evaluated = model.eval()(**batch)
    logits, labels = evaluated.logits, batch["labels"]
    if kind is VanillaTransformerForCausalLM:
        logits, labels = logits[:, :-1], labels[:, 1:]
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    expected.backward()
    wanted = gradients(model)
    model.zero_grad(set_to_none=True)
    trained = model.train()(**batch)
    assert trained.logits is None and evaluated.logits.shape[:2] == batch["labels"].shape
    torch.testing.assert_close(evaluated.loss, expected)
    torch.testing.assert_close(trained.loss, expected)
    (trained.loss * 2).backward()  # as loss scaling would
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, wanted[name] * 2, atol=1e-6, rtol=1e-4)
    assert "logits" in model(input_ids=batch["input_ids"], **_decoder_inputs(kind))
    assert model(input_ids=batch["input_ids"], **_decoder_inputs(kind)).logits is not None


def _decoder_inputs(kind):
    decodes = kind is VanillaTransformerForConditionalGeneration
    return {"decoder_input_ids": torch.full((8, 1), 2)} if decodes else {}


def test_a_batch_without_labels_gives_no_loss_of_nan():
    model = small(VanillaTransformerForConditionalGeneration).train()
    loss = model(torch.full((2, 3), 5), labels=torch.full((2, 4), -100)).loss
    loss.backward()
    assert loss == 0 and all(not g.any() for g in gradients(model).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary", "relative"])
def test_gradient_checkpointing_changes_nothing(kind, encoding):
    batch, seen = batch_for(kind), []
    for checkpointing in (False, True):
        model = small(kind, dropout_rate=0.3, position_encoding=encoding).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with torch.random.fork_rng():
            torch.manual_seed(5)
            loss = model(**batch).loss
            loss.backward()
        seen.append((loss, gradients(model)))
    torch.testing.assert_close(seen[0][0], seen[1][0])
    for name, gradient in seen[0][1].items():
        torch.testing.assert_close(gradient, seen[1][1][name])


@pytest.mark.parametrize(
    ("encoding", "least", "most"),
    [
        ("sinusoidal", 0.8, 1.0),
        ("learned", 0.8, 1.0),
        ("rotary", 0.4, 1.0),  # no positions in cross-attention, so reversing is learnt more slowly
        ("relative", 0.4, 1.0),
        ("none", 0.0, 0.35),  # eight tokens: chance is 0.125
    ],
)
def test_reversing_a_sequence_is_learnt_with_positions_only(encoding, least, most):
    model = small(
        VanillaTransformerForConditionalGeneration,
        position_encoding=encoding,
        norm_position="pre",
        dropout_rate=0.05,
        max_position_embeddings=64,
        num_layers=1,
        num_decoder_layers=1,
    ).train()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(300):
            source = torch.randint(4, 12, (32, 6), generator=generator)
            loss = model(source, labels=source.flip(1)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    source = torch.randint(4, 12, (64, 6), generator=generator)
    made = model.eval().generate(source, max_new_tokens=6, min_new_tokens=6)[:, 1:]
    assert least <= (made == source.flip(1)).float().mean() <= most


# --- fast operations


def test_dropout_masks_have_the_asked_rate_and_mean():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for rate in (0.1, 0.25, 0.5):
            mask = fast.keep_mask(torch.empty(101, 103, 11), rate)
            count = mask.numel()
            assert abs((mask == 0).float().mean() - rate) < 4 * (rate * (1 - rate) / count) ** 0.5
            assert mask.unique().numel() == 2 and mask.max().item() == pytest.approx(1 / (1 - rate), rel=1e-4)
            neighbours = (mask.flatten()[1:] > 0) & (mask.flatten()[:-1] > 0)
            assert abs(neighbours.float().mean() - (1 - rate) ** 2) < 0.005


def seeded(function):
    """The function with the same random numbers each time, as numerical gradients need."""

    def call(*inputs):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return function(*inputs)

    return call


def test_gradients_of_the_fast_operations():
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    check = torch.autograd.gradcheck
    assert check(lambda x: fast.SplitHeads.apply(x), numbers(2, 3, 3, 2, 4))
    assert check(seeded(lambda x: fast.DroppedRelu.apply(x, 0.3)), numbers(5, 7))
    assert check(seeded(lambda x, y: fast.add_dropped(x, y, 0.3, True)), (numbers(5, 7), numbers(5, 7)))
    q, k, v = numbers(2, 2, 3, 4), numbers(2, 2, 5, 4), numbers(2, 2, 5, 4)
    for mask in (None, numbers(1, 2, 3, 5), numbers(2, 1, 3, 5)):
        attention = seeded(lambda q, k, v, mask: fast.DroppedAttention.apply(q, k, v, mask, 0.3))
        assert check(attention, (q, k, v, mask))
    labels = torch.tensor([1, 5, 0])
    assert check(lambda x: fast.PrivateCrossEntropy.apply(x.clone(), labels, 0.25), numbers(3, 6))


def test_fast_attention_without_dropped_weights_is_attention():
    q, k, v = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    keep_all = 1e-9  # rounds to no 65536th
    for causal in (False, True):
        mask = fast.additive_mask(None, q, k, causal)
        expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
        torch.testing.assert_close(fast.DroppedAttention.apply(q, k, v, mask, keep_all), expected)


def test_cross_entropy_of_extreme_logits():
    logits = torch.tensor([[300.0, -300.0, 0.0], [0.0, 1e4, 0.0]])
    labels = torch.tensor([1, 1])
    expected = nn.functional.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(fast.PrivateCrossEntropy.apply(logits.clone(), labels, 1.0), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_in_blocks_of_rows(dtype, monkeypatch):
    """Computed in float32 whatever the dtype; the gradient is rounded once."""
    monkeypatch.setattr(fast, "NUMBERS_AT_ONCE", 25)  # two rows of 11, then one
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 11, generator=generator)).to(dtype)
    labels = torch.tensor([0, 10, 3, 3, 7])
    exact = logits.float().clone().requires_grad_()
    expected = nn.functional.cross_entropy(exact, labels)
    expected.backward()
    ours = logits.clone().requires_grad_()
    loss = fast.PrivateCrossEntropy.apply(ours.clone(), labels, 1 / 5)
    loss.backward()
    assert loss.dtype == torch.float32 and ours.grad.dtype == dtype
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, exact.grad.to(dtype))
    monkeypatch.setattr("hf_embinit.models.blocks_vanilla_transformer.NUMBERS_AT_ONCE", 25)
    with torch.no_grad():
        torch.testing.assert_close(token_loss(logits, labels), expected)
        labels[1] = -100
        expected = nn.functional.cross_entropy(logits.float(), labels)
        torch.testing.assert_close(token_loss(logits, labels), expected)


@pytest.mark.parametrize("dropout_rate", [0.0, 0.1])
@pytest.mark.parametrize("encoding", ["sinusoidal", "relative"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left_gives_finite_gradients(kind, encoding, dropout_rate):
    model = small(kind, position_encoding=encoding, dropout_rate=dropout_rate).train()
    batch = {name: value.flip(1) if value.ndim == 2 else value for name, value in batch_for(kind).items()}
    with torch.random.fork_rng():
        model(**batch).loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_trains(kind):
    model = small(kind, dropout_rate=0.1).train()
    with torch.random.fork_rng():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch_for(kind)).loss
        loss.backward()
    assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients(model).values())


@pytest.mark.parametrize("label", [-1, 50])
def test_a_label_outside_the_vocabulary_is_no_token(label):
    ids = torch.randint(4, 50, (2, 7))
    labels = ids.clone()
    labels[0, 3] = label
    with pytest.raises(IndexError, match=f"label {label} is outside the vocabulary of 50 tokens"):
        small(VanillaTransformerForCausalLM, vocab_size=50, dropout_rate=0.1).train()(ids, labels=labels)


def test_label_smoothing_of_the_trainer_shifts_the_labels(tmp_path):
    """The name of the class is how the Trainer tells a language model, whose labels are its inputs."""
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    model = small(VanillaTransformerForCausalLM, vocab_size=50)
    ids = torch.randint(4, 50, (8, 7), generator=torch.Generator().manual_seed(0))
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=1e-9, use_cpu=True)
    trainer = Trainer(model=model, args=arguments)
    loss = trainer.compute_loss(model.eval(), {"input_ids": ids, "labels": ids})
    torch.testing.assert_close(loss, model(ids, labels=ids).loss, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("problem", "labels"), [("regression", 1), ("multi_label_classification", 3)])
def test_accumulation_is_exact_for_every_kind_of_label(problem, labels):
    model = small(VanillaTransformerForSequenceClassification, num_labels=labels, dropout_rate=0.0)
    model.config.problem_type = problem
    ids, wanted = torch.randint(4, 40, (8, 7)), torch.rand(8, labels).squeeze(1)
    whole = model(ids, labels=wanted).loss
    parts = [
        model(ids[i : i + 2], labels=wanted[i : i + 2], num_items_in_batch=wanted.numel()).loss
        for i in range(0, 8, 2)
    ]
    torch.testing.assert_close(sum(parts), whole, atol=1e-6, rtol=0)


def test_second_derivatives_are_refused_where_they_would_be_wrong():
    model = small(VanillaTransformerForSequenceClassification, dropout_rate=0.1).train()
    embeds = torch.randn(2, 5, model.config.d_model, requires_grad=True)
    loss = model(inputs_embeds=embeds, labels=torch.tensor([0, 1])).loss
    (slope,) = torch.autograd.grad(loss, embeds, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()
