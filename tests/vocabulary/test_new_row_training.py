"""Training new rows alone: old rows stay to the last bit, in full fine-tuning and through PEFT."""

from __future__ import annotations

import contextlib
import copy
import warnings

import pytest
import torch
from builders.tiny_models import V, t5_with_separate_head
from builders.tiny_tokenizers import logits, model, texts, tokenizer
from peft import get_peft_model
from transformers import Trainer, TrainingArguments

from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vocabulary import (
    expand_vocabulary,
    parameter_groups,
    peft_config_for_new_tokens,
    train_new_rows_only,
)

NEW = [" zyxomma", " qorvex", " blimp"]
TEXT = f"the{NEW[0]} and the{NEW[1]} see a{NEW[2]}"


def expanded(kind: str):
    t = tokenizer("byte_level")
    m = model(kind, len(t))
    report = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=())
    return m, t, report.token_ids


def loss_of(m, ids: torch.Tensor) -> torch.Tensor:
    return m(input_ids=ids, labels=ids).loss


def entries(m) -> dict[str, torch.Tensor]:
    """Every tensor with a row per token, as `[V, ...]`."""
    tables = EmbeddingTables(m)
    found = {t.name: tables.read(t).clone() for t in tables.own_tables}
    for t in tables.output_tables:
        found.update({f"{t.name} bias {i}": b.clone() for i, b in enumerate(tables.biases(t))})
    return found


@pytest.mark.parametrize(
    ("kind", "freeze_rest", "make_optimizer"),
    [
        ("gpt2", True, torch.optim.AdamW),
        ("gpt2", False, torch.optim.AdamW),
        ("llama", False, torch.optim.AdamW),
        ("bert", True, torch.optim.AdamW),
        ("bart", False, torch.optim.AdamW),
        ("llama", False, torch.optim.SGD),  # its decay goes through the momentum
    ],
)
def test_old_rows_are_bit_identical_after_100_steps(kind, freeze_rest, make_optimizer) -> None:
    m, t, new = expanded(kind)
    ids = torch.tensor([t(TEXT)["input_ids"]])
    assert set(new) <= set(ids[0].tolist())
    before, others = entries(m), {n: p.detach().clone() for n, p in m.named_parameters()}
    trainable = {n: p.requires_grad for n, p in m.named_parameters()}
    options = {"lr": 1e-2, "weight_decay": 0.1} | (
        {"momentum": 0.9} if make_optimizer is torch.optim.SGD else {}
    )
    with train_new_rows_only(m, new, freeze_rest=freeze_rest):
        optimizer = make_optimizer([p for p in m.parameters() if p.requires_grad], **options)
        first = None
        for _ in range(100):
            loss = loss_of(m, ids)
            first = loss.item() if first is None else first
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
    assert loss.item() < first
    old = [i for i in range(323) if i not in new]
    moved = 0
    for name, rows in entries(m).items():
        assert torch.equal(rows[old], before[name][old]), name
        moved += not torch.equal(rows[new], before[name][new])
    assert moved
    tables = {p.name for t in EmbeddingTables(m).tables for p in t.tied.locations}
    tables |= {p.name for t in EmbeddingTables(m).tables for b in t.bias for p in b.locations}
    rest = {n: p for n, p in m.named_parameters() if n not in tables}
    changed = [n for n, p in rest.items() if not torch.equal(p, others[n])]
    assert (not changed) if freeze_rest else changed
    assert {n: p.requires_grad for n, p in m.named_parameters()} == trainable
    state = optimizer.state.get(EmbeddingTables(m).input_tables[0].parameter, {})
    for value in state.values():
        if make_optimizer is torch.optim.AdamW and value.dim() == 2:
            assert not value[old].any()  # the optimizer knows nothing of old rows


@pytest.mark.parametrize("again", [True, False])
def test_a_copy_of_the_model_needs_a_call_of_its_own(again) -> None:
    m, t, new = expanded("llama")
    with train_new_rows_only(m, new):
        copied = copy.deepcopy(m)
    training = train_new_rows_only(copied, new) if again else None
    old = copied.lm_head.weight[:320].detach().clone()
    optimizer = torch.optim.AdamW(copied.parameters(), lr=1e-2)
    loss_of(copied, torch.tensor([t(TEXT)["input_ids"]])).backward()
    optimizer.step()
    assert torch.equal(copied.lm_head.weight[:320], old) == again
    if training is not None:
        training.remove()


def test_it_says_which_rows_of_which_tables_it_trains() -> None:
    m, _, new = expanded("llama")
    training = train_new_rows_only(m, new)
    assert repr(training) == "<NewRowTraining: 3 rows of model.embed_tokens.weight, 3 rows of lm_head.weight>"
    training.remove()
    assert repr(training) == "<NewRowTraining: removed>"


def test_a_masked_gradient_alone_lets_weight_decay_move_old_rows() -> None:
    """What the helper is for: the same training with nothing but a gradient mask moves every row."""
    m, t, new = expanded("gpt2")
    weight = m.transformer.wte.weight
    before = weight.detach().clone()
    mask = torch.zeros(len(weight), 1)
    mask[new] = 1
    weight.register_hook(lambda grad: grad * mask)
    optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1)
    loss_of(m, torch.tensor([t(TEXT)["input_ids"]])).backward()
    optimizer.step()
    assert not torch.equal(weight[:320], before[:320])


class ScheduleFree(torch.optim.SGD):
    """As schedulefree's optimizers say it: `eval()` and `train()` swap what parameters hold."""

    def __init__(self, parameters, **options) -> None:
        super().__init__(parameters, **options)
        for group in self.param_groups:
            group["train_mode"] = True


@pytest.mark.parametrize("way", ["train_new_rows_only", "parameter_groups"])
def test_optimizers_that_change_rows_outside_of_their_steps_are_refused(way) -> None:
    m, _, new = expanded("gpt2")
    groups = parameter_groups(m, new_row_lr=0.1) if way == "parameter_groups" else m.parameters()
    optimizer = ScheduleFree(groups, lr=0.1)
    loss_of(m, torch.tensor([new])).backward()
    around = train_new_rows_only(m, new) if way == "train_new_rows_only" else contextlib.nullcontext()
    with around, pytest.raises(UnsupportedModelError, match=r"ScheduleFree changes parameters in eval\(\)"):
        optimizer.step()


def test_momentum_from_before_does_not_move_old_rows() -> None:
    m, t, new = expanded("gpt2")
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2)
    ids = torch.tensor([t(texts()[0])["input_ids"]])
    loss_of(m, ids).backward()
    optimizer.step()
    before = m.transformer.wte.weight[:320].clone()
    with train_new_rows_only(m, new, freeze_rest=False):
        optimizer.step()
    assert torch.equal(m.transformer.wte.weight[:320], before)
    optimizer.step()
    assert not torch.equal(m.transformer.wte.weight[:320], before)  # over when it is over


def test_with_trainer_and_accumulation(tmp_path) -> None:
    m, t, new = expanded("llama")
    row = t(TEXT)["input_ids"]
    before = entries(m)
    args = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        weight_decay=0.1,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    with train_new_rows_only(m, new):
        Trainer(m, args, train_dataset=[{"input_ids": row, "labels": row}] * 8).train()
    for name, rows in entries(m).items():
        assert torch.equal(rows[:320], before[name][:320]), name
        assert not torch.equal(rows[320:], before[name][320:]), name


@pytest.mark.parametrize("ids", [[], [-1], [323]])
def test_ids_are_checked(ids) -> None:
    m, _, _ = expanded("gpt2")
    for helper in (train_new_rows_only, peft_config_for_new_tokens):
        with pytest.raises(
            InvalidArgumentError, match=r"expected (at least one id, each from 0 to 322|an id, 0 or more)"
        ):
            helper(m, ids)


def test_a_model_that_ddp_holds_is_wrapped_too_early(tmp_path) -> None:
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        inner = model("llama", 300)
        ddp = torch.nn.parallel.DistributedDataParallel(inner)
        with pytest.raises(InvalidArgumentError, match="before the model is wrapped"):
            train_new_rows_only(ddp, [298, 299])
        assert all(parameter.requires_grad for parameter in inner.parameters())
        with pytest.warns(VocabularyWarning, match="before the model is wrapped"):
            train_new_rows_only(inner, [298, 299]).remove()
        train_new_rows_only(ddp, [298, 299], freeze_rest=False).remove()
        del ddp
        ddp = torch.nn.parallel.DistributedDataParallel(inner, find_unused_parameters=True)
        with train_new_rows_only(ddp, [298, 299]):
            for _ in range(3):
                ddp(torch.tensor([[3, 299]]), labels=torch.tensor([[3, 299]])).loss.backward()
        del ddp
        with warnings.catch_warnings(), train_new_rows_only(inner, [298, 299]):
            warnings.simplefilter("error", VocabularyWarning)
            ddp = torch.nn.parallel.DistributedDataParallel(inner)
            for _ in range(3):
                ddp(torch.tensor([[3, 299]]), labels=torch.tensor([[3, 299]])).loss.backward()
    finally:
        dist.destroy_process_group()


def test_a_resize_meanwhile_is_an_error() -> None:
    m, _, new = expanded("gpt2")
    with train_new_rows_only(m, new):
        optimizer = torch.optim.SGD([m.transformer.wte.weight], lr=0.1)
        m.resize_token_embeddings(400)
        m(input_ids=torch.tensor([[1]])).logits.sum().backward()
        with pytest.raises(InvalidArgumentError, match="was resized, or flattened by FSDP 1, while"):
            optimizer.step()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("lora", [{}, {"r": 2, "target_modules": "all-linear"}], ids=["tokens", "lora"])
def test_peft_trains_input_and_output_rows_and_saving_keeps_them(kind, lora, tmp_path) -> None:
    from peft import PeftModel

    t = tokenizer("byte_level")
    base = model(kind, len(t))
    base.save_pretrained(tmp_path / "base")
    m, t, new = expanded(kind)
    before = entries(m)
    if kind == "gpt2" and lora:
        lora = {**lora, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    wrapped = get_peft_model(copy.deepcopy(m), peft_config_for_new_tokens(m, new, **lora))
    ids = torch.tensor([t(TEXT)["input_ids"]])
    torch.testing.assert_close(logits(wrapped, ids), logits(m, ids))
    wrapped.train()
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(5):
        loss_of(wrapped, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    wrapped.eval().save_pretrained(tmp_path / "adapter")

    again, t2 = type(base).from_pretrained(tmp_path / "base"), tokenizer("byte_level")
    expand_vocabulary(again, t2, NEW, "zeros", prefixes=())  # whatever was there, the adapter brings its rows
    loaded = PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(loaded, ids), logits(wrapped, ids), atol=1e-5, rtol=1e-5)
    merged = loaded.merge_and_unload()
    torch.testing.assert_close(logits(merged, ids), logits(wrapped, ids), atol=1e-5, rtol=1e-5)
    for name, rows in entries(merged).items():
        assert torch.equal(rows[:320], before[name][:320]), name
        assert not torch.equal(rows[320:], before[name][320:]), name  # the output side of an untied head too


def test_peft_is_refused_where_it_would_train_something_else() -> None:
    m, _, new = expanded("bert")
    with pytest.raises(UnsupportedModelError, match="has a bias, which PEFT drops"):
        peft_config_for_new_tokens(m, new)
    t5 = t5_with_separate_head()  # as flan-T5 and mT5, whose configurations say that it is tied
    assert t5.config.tie_word_embeddings
    with pytest.raises(UnsupportedModelError, match=r"separate from .* set it to False first"):
        peft_config_for_new_tokens(t5, [V - 1])


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["c_attn", "lm_head"]},
        {"target_modules": r".*\.wte"},
        {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]},
    ],
)
def test_rows_that_something_else_of_the_adapter_trains_too_are_refused(options) -> None:
    m, _, new = expanded("gpt2")
    with pytest.raises(InvalidArgumentError, match="whose rows token_ids= trains: leave it out"):
        peft_config_for_new_tokens(m, new, **options)
    for good in ({"target_modules": "all-linear"}, {"target_modules": ["c_attn"]}):
        get_peft_model(copy.deepcopy(m), peft_config_for_new_tokens(m, new, **good))


def test_configurations_of_two_adapters_are_made_before_the_first_is_added() -> None:
    m = model("llama", 300)
    second = peft_config_for_new_tokens(m, [299], target_modules=["q_proj"])
    wrapped = get_peft_model(m, peft_config_for_new_tokens(m, [298], target_modules=["q_proj"]))
    for given in (wrapped, m):
        with pytest.raises(UnsupportedModelError, match="of all its adapters before the first is added"):
            peft_config_for_new_tokens(given, [299])
    wrapped.add_adapter("second", second)


def test_peft_drops_the_bias_of_a_head_that_it_wraps() -> None:
    """Why a head with a bias is refused; when this fails, PEFT no longer does, and the refusal can go."""
    from peft import TrainableTokensConfig

    m, t, new = expanded("bert")
    ids = torch.tensor([t(TEXT)["input_ids"]])
    before = logits(m, ids)
    wrapped = get_peft_model(m, TrainableTokensConfig(token_indices=new))
    assert not torch.allclose(logits(wrapped, ids), before, atol=1e-3)


def test_the_report_s_indices_work_in_a_lora_config() -> None:
    from peft import LoraConfig

    t = tokenizer("byte_level")
    m = model("llama", len(t))
    report = expand_vocabulary(m, t, NEW, prefixes=())
    wrapped = get_peft_model(
        m, LoraConfig(target_modules=["q_proj"], trainable_token_indices=report.trainable_token_indices)
    )
    assert sum("trainable_tokens_delta" in n for n, p in wrapped.named_parameters() if p.requires_grad) == 2


def step(m, t, parameters, lr: float = 0.1) -> None:
    ids = torch.tensor([t(TEXT)["input_ids"]])
    optimizer = torch.optim.SGD(parameters, lr=lr)
    m.zero_grad()
    loss_of(m, ids).backward()
    optimizer.step()


def test_of_two_calls_for_a_table_the_later_counts() -> None:
    m, t, new = expanded("llama")
    trainable = {n: p.requires_grad for n, p in m.named_parameters()}
    first = train_new_rows_only(m, new[:1])
    before = entries(m)
    second = train_new_rows_only(m, new[1:])
    assert repr(first) == "<NewRowTraining: removed>"
    step(m, t, [p for p in m.parameters() if p.requires_grad])
    for name, table in entries(m).items():
        moved = (table != before[name]).flatten(1).any(1).nonzero().flatten().tolist()
        assert moved and set(moved) <= set(new[1:]), name
    first.remove()
    second.remove()
    assert {n: p.requires_grad for n, p in m.named_parameters()} == trainable


@pytest.mark.parametrize("order", [0, 1])
def test_both_sides_of_two_vocabularies_at_once(order) -> None:
    from builders.tiny_models import marian_with_two_vocabularies

    m = marian_with_two_vocabularies()
    trainable = {n: p.requires_grad for n, p in m.named_parameters()}
    before = entries(m)
    both = [train_new_rows_only(m, [5], side="source"), train_new_rows_only(m, [4], side="target")]
    assert sum(p.requires_grad for p in m.parameters()) >= 2
    ids = torch.tensor([[5, 4, 6]])
    optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    loss_of(m, ids).backward()
    optimizer.step()
    moved = {}
    for name, table in entries(m).items():
        moved[name] = (table != before[name]).reshape(len(table), -1).any(1).nonzero().flatten().tolist()
    assert [moved[f"model.{one}.embed_tokens.weight"] for one in ("encoder", "decoder")] == [[5], [4]]
    assert sum(map(len, moved.values())) <= 3, moved
    both[order].remove()
    assert any(p.requires_grad for p in m.parameters()) and not all(p.requires_grad for p in m.parameters())
    both[1 - order].remove()
    assert {n: p.requires_grad for n, p in m.named_parameters()} == trainable


def test_optimizers_that_step_copies_are_refused() -> None:
    m, t, new = expanded("llama")
    with (
        pytest.warns(VocabularyWarning, match=r"old rows of .* are not what they were"),
        pytest.raises(UnsupportedModelError, match=r"SGD steps copies of .*whose old rows have moved"),
        train_new_rows_only(m, new),
    ):
        trained = [p for p in m.parameters() if p.requires_grad]
        copies = [torch.nn.Parameter(p.detach().clone()) for p in trained]
        optimizer = torch.optim.SGD(copies, lr=0.1, weight_decay=0.1)
        for _ in range(2):
            m.zero_grad()
            loss_of(m, torch.tensor([t(TEXT)["input_ids"]])).backward()
            for mine, theirs in zip(copies, trained, strict=True):
                mine.grad = theirs.grad.clone()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(copies, trained, strict=True):
                    theirs.copy_(mine)


def test_another_parameter_in_a_table_s_place_is_an_error() -> None:
    m, t, new = expanded("llama")
    with (
        pytest.raises(InvalidArgumentError, match=r"replaced by another tensor .*call it again"),
        train_new_rows_only(m, new),
    ):
        m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True)
        step(m, t, list(m.parameters()))


def test_an_optimizer_of_another_model_knows_nothing_of_one_that_is_frozen() -> None:
    m, other = model("llama", 20), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with train_new_rows_only(m, [19]):
        m.requires_grad_(False)  # a teacher, or a phase of alternating training
        other(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        ours = torch.optim.SGD([m.lm_head.weight], lr=0.1)
        with pytest.raises(InvalidArgumentError, match="was frozen after train_new_rows_only"):
            ours.step()


def test_sparse_gradients_are_refused() -> None:
    m, _, new = expanded("llama")
    m.get_input_embeddings().sparse = True
    with pytest.raises(UnsupportedModelError, match="sparse gradients: build it with sparse=False"):
        train_new_rows_only(m, new)


def test_a_second_call_leaves_an_adapter_loading_the_rows_too() -> None:
    from peft import LoraConfig

    m, _, new = expanded("llama")
    wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VocabularyWarning)
        train_new_rows_only(wrapped, new, freeze_rest=False)
        second = train_new_rows_only(wrapped, new, freeze_rest=False)
    assert "load_adapter" in vars(wrapped)
    second.remove()
    assert "load_adapter" not in vars(wrapped)
