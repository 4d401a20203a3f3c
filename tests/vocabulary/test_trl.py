"""New tokens in TRL's `SFTTrainer`, as released: its loss sees their rows, its checkpoints keep them."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys

import pytest
import torch
from builders.tiny_tokenizers import logits, model, tokenizer
from tokenizers import AddedToken

from hf_embinit import (
    VocabularyCallback,
    expand_vocabulary,
    load_adapter,
    patch,
    patched,
    peft_config_for_new_tokens,
)
from hf_embinit.errors import UnsupportedModelError, VocabularyWarning
from hf_embinit.tables import EmbeddingTables

trl = pytest.importorskip("trl", reason="TRL is not installed")

NEW = [" zyxomma", " qorvex"]
TEXT = "the zyxomma and the qorvex see a zyxomma"
TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj"]}
KINDS = [pytest.param("gpt2", id="tied"), pytest.param("llama", id="untied")]
LORA = [pytest.param(False, id="tokens"), pytest.param(True, id="lora")]


def expanded(kind: str):
    t = tokenizer("byte_level")
    m = model(kind, len(t))
    t.pad_token = t.eos_token
    return m, t, expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids


def trainer(m, t, config, folder, callbacks=None, **arguments):
    from datasets import Dataset

    args = trl.SFTConfig(
        str(folder),
        max_steps=3,
        save_steps=3,
        learning_rate=1e-1,
        per_device_train_batch_size=2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        **arguments,
    )
    data = Dataset.from_dict({"text": [TEXT] * 8})
    return trl.SFTTrainer(
        m, args=args, train_dataset=data, processing_class=t, peft_config=config, callbacks=callbacks
    )


def fused_loss(m, ids: torch.Tensor) -> torch.Tensor:
    return -m.get_base_model()(input_ids=ids, labels=ids, fused_lm_head=True).log_probs.mean()


def row_gradients(m, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    m.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in m.named_parameters() if "trainable_tokens_delta" in n}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lora", LORA)
def test_sft_trains_the_rows_and_its_checkpoint_keeps_them(kind, lora, tmp_path) -> None:
    from peft import PeftModel

    m, t, new = expanded(kind)
    options = {"target_modules": TARGETS[kind], "r": 2} if lora else {}
    config = peft_config_for_new_tokens(m, new, task_type="CAUSAL_LM", **options)
    run = trainer(m, t, config, tmp_path)
    ids = torch.tensor([t(TEXT)["input_ids"]])
    assert set(new) <= set(ids[0].tolist())
    before = logits(run.model.eval(), ids)
    run.train()
    trained = run.model.eval()
    after = logits(trained, ids)
    assert not torch.allclose(after[..., new], before[..., new], atol=1e-2)
    rows = {n: p for n, p in trained.named_parameters() if "trainable_tokens_delta" in n}
    assert len(rows) == len(EmbeddingTables(expanded(kind)[0]).own_tables)

    base, _, _ = expanded(kind)
    loaded = PeftModel.from_pretrained(base, tmp_path / "checkpoint-3").eval()
    assert torch.equal(logits(loaded, ids), after)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_loss_reads_the_trained_rows_and_gives_their_gradients(kind, tmp_path) -> None:
    m, t, new = expanded(kind)
    run = trainer(m, t, peft_config_for_new_tokens(m, new), tmp_path, activation_checkpointing=False)
    wrapped = run.model.eval()
    ids = torch.tensor([t(TEXT)["input_ids"]])

    def plain_loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(wrapped(input_ids=ids).logits[0, :-1], ids[0, 1:])

    torch.testing.assert_close(fused_loss(wrapped, ids), plain_loss())
    with torch.no_grad():
        for name, p in wrapped.named_parameters():
            if "trainable_tokens_delta" in name:
                p.add_(1.0)
    torch.testing.assert_close(fused_loss(wrapped, ids), plain_loss())
    fused, plain = row_gradients(wrapped, fused_loss(wrapped, ids)), row_gradients(wrapped, plain_loss())
    assert fused.keys() == plain.keys() and fused
    for name in fused:
        assert fused[name].abs().sum() > 0
        torch.testing.assert_close(fused[name], plain[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ours", [True, False], ids=["our configuration", "own configuration and callback"])
def test_its_checkpoint_grows_the_base(kind, ours, tmp_path) -> None:
    from peft import LoraConfig

    base = model(kind, 320)
    m, t, new = expanded(kind)
    if ours:
        config, callbacks = peft_config_for_new_tokens(m, new), []
    else:
        rows = dict.fromkeys({"gpt2": ["wte"], "llama": ["embed_tokens", "lm_head"]}[kind], new)
        config = LoraConfig(target_modules=TARGETS[kind], trainable_token_indices=rows)
        callbacks = [VocabularyCallback()]
    run = trainer(m, t, config, tmp_path, callbacks=callbacks)
    run.train()
    ids = torch.tensor([t(TEXT)["input_ids"]])
    loaded = load_adapter(base, tmp_path / "checkpoint-3").eval()
    assert torch.equal(logits(loaded, ids), logits(run.model.eval(), ids))


def chat_source(folder) -> str:
    """A tokenizer with a chat template, two control tokens and the end-of-text token of `tokenizer`."""
    source = tokenizer("byte_level")
    source.add_tokens([AddedToken(token, special=True) for token in ("<|turn|>", "<|over|>")])
    source.chat_template = (
        "{% for m in messages %}<|turn|>{{ m['role'] }} {% generation %}{{ m['content'] }}<|over|>"
        "{% endgeneration %}{% endfor %}"
    )
    source.save_pretrained(folder)
    return str(folder)


def test_what_trl_does_alone(tmp_path) -> None:
    """When this fails, TRL has changed, and `patched` may have less to do."""
    m, t = model("gpt2", 512), tokenizer("byte_level")
    m, _, added = trl.clone_chat_template(m, t, chat_source(tmp_path))
    assert m.config.vocab_size == 384 and len(added) == 384 - 320


@pytest.mark.parametrize("kind", KINDS)
def test_a_cloned_chat_template_cuts_no_row_off_and_trains_no_dummy(kind, tmp_path) -> None:
    clone_chat_template = trl.clone_chat_template
    m, t = model(kind, 512), tokenizer("byte_level")
    old = {n: p.detach().clone() for n, p in m.named_parameters()}
    signature = inspect.signature(clone_chat_template)
    with patched(), pytest.warns(VocabularyWarning, match="keep their 512 rows"):
        assert inspect.signature(clone_chat_template) == signature
        m, t, added = clone_chat_template(m, t, chat_source(tmp_path))  # by a name from before
    assert m.config.vocab_size == m.get_input_embeddings().num_embeddings == len(t) == 512
    assert t.convert_ids_to_tokens(added) == ["<|turn|>", "<|over|>"]
    mean = old[EmbeddingTables(m).own_tables[0].name][:320].mean(0)
    torch.testing.assert_close(m.get_input_embeddings().weight[added], mean.expand(2, -1))
    for name, parameter in m.named_parameters():
        if len(parameter) == 512:
            kept = [i for i in range(512) if i not in added]
            parameter, before = parameter[kept], old[name][kept]
        else:
            before = old[name]
        assert torch.equal(parameter, before), name
    assert not hasattr(clone_chat_template, "__wrapped__")
    again = trl.clone_chat_template(model(kind, 512), tokenizer("byte_level"), chat_source(tmp_path))
    assert len(again[2]) == 384 - 320  # as TRL does it


def test_a_template_is_cloned_first_inside_patched(tmp_path, monkeypatch) -> None:
    """TRL imports its parts on first use: in a script, that is after `patched` began."""
    m, t = model("gpt2", 320), tokenizer("byte_level")
    assert trl.clone_chat_template and trl.chat_template_utils
    for name in ("clone_chat_template", "chat_template_utils"):
        monkeypatch.delitem(vars(trl), name)
    monkeypatch.delitem(sys.modules, "trl.chat_template_utils")
    with patched():
        m, t, added = trl.clone_chat_template(m, t, chat_source(tmp_path))
    assert t.convert_ids_to_tokens(added) == ["<|turn|>", "<|over|>"]
    assert not hasattr(trl.clone_chat_template, "__wrapped__")


def with_a_template(m, t, tmp_path, **arguments):
    """A trainer on conversations, inside `patched`."""
    from datasets import Dataset

    t.pad_token = t.eos_token
    chat = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "a zyxomma"}]
    args = trl.SFTConfig(
        str(tmp_path / "out"),
        max_steps=1,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        chat_template_path=arguments.pop("chat_template_path", None),
        per_device_train_batch_size=1,
    )
    data = Dataset.from_dict({"messages": [chat] * 2})
    return trl.SFTTrainer(m, args=args, train_dataset=data, processing_class=t, **arguments)


@pytest.mark.parametrize("known", [True, False], ids=["tokenizer", "no tokenizer"])
def test_patch_alone_cuts_no_row_off_but_cannot_take_dummies_back(known, tmp_path) -> None:
    """It stands in for a method of one model; what a function of TRL returns only `patched` sees."""
    m, t = model("gpt2", 512), tokenizer("byte_level")
    old = m.get_input_embeddings().weight.detach().clone()
    patch(m, tokenizer=t if known else None)
    with pytest.warns(VocabularyWarning, match="keep their 512 rows"):
        m, t, added = trl.clone_chat_template(m, t, chat_source(tmp_path))
    rows = m.get_input_embeddings().weight
    assert len(rows) == len(t) == 512 and len(added) == 512 - 320
    assert torch.equal(rows[:320], old[:320])
    assert torch.equal(rows[320:322], old[320:322]) is not known


def test_sft_with_a_cloned_chat_template_trains_its_tokens_alone(tmp_path) -> None:
    from peft import LoraConfig

    m, t = model("llama", 512), tokenizer("byte_level")
    m.save_pretrained(tmp_path / "base")
    source = chat_source(tmp_path / "source")
    config = LoraConfig(target_modules=["q_proj"], r=2)
    with patched("mean_cov"), pytest.warns(VocabularyWarning, match="keep their 512 rows"):
        run = with_a_template(
            m, t, tmp_path, chat_template_path=source, peft_config=config, callbacks=[VocabularyCallback()]
        )
    run.train()
    deltas = {n: p for n, p in run.model.named_parameters() if "trainable_tokens_delta" in n}
    assert [len(p) for p in deltas.values()] == [2]
    run.save_model(str(tmp_path / "adapter"))
    ids = torch.tensor([[5, 320, 321, 7]])
    again = load_adapter(type(m).from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(logits(again.eval(), ids), logits(run.model.eval(), ids))


def test_a_chat_template_and_an_adapter_of_a_tied_model(tmp_path) -> None:
    """TRL puts the head into `modules_to_save` beside the rows of the embedding, which are one table here."""
    from peft import LoraConfig

    m, t = model("llama", 512, tie_word_embeddings=True), tokenizer("byte_level")
    m.save_pretrained(tmp_path / "base")
    source, lora = chat_source(tmp_path / "source"), {"target_modules": ["q_proj"], "r": 2}
    twice = {"chat_template_path": source, "peft_config": LoraConfig(**lora)}
    told = r"^lm_head is in modules_to_save, .* give the trainer peft_config_for_new_tokens\(model, new\)$"
    with patched(), pytest.warns(VocabularyWarning), pytest.raises(UnsupportedModelError, match=told):
        with_a_template(
            copy.deepcopy(m), copy.deepcopy(t), tmp_path, callbacks=[VocabularyCallback()], **twice
        )
    with patched(), pytest.warns(VocabularyWarning):
        m, t, new = trl.clone_chat_template(m, t, source)
    config = peft_config_for_new_tokens(m, new, **lora)
    run = with_a_template(m, t, tmp_path, peft_config=config)
    run.train()
    run.save_model(str(tmp_path / "adapter"))
    ids = torch.tensor([[5, 320, 321, 7]])
    again = load_adapter(type(m).from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(logits(again.eval(), ids), logits(run.model.eval(), ids))


def test_the_model_can_still_be_copied_pickled_and_saved(tmp_path) -> None:
    m, _, new = expanded("llama")
    peft_config_for_new_tokens(m, new)
    twin = copy.deepcopy(m)
    assert twin.get_output_embeddings() is twin.lm_head and m.get_output_embeddings() is m.lm_head
    assert pickle.loads(pickle.dumps(m)).get_output_embeddings().weight.shape == m.lm_head.weight.shape
    m.save_pretrained(tmp_path)
    assert torch.equal(type(m).from_pretrained(tmp_path).lm_head.weight, m.lm_head.weight)


def test_why_the_head_is_told_to_answer() -> None:
    """PEFT's wrapper has no bias, which TRL's loss asks for; when this fails, the help is not needed."""
    from peft import LoraConfig, get_peft_model

    m, _, new = expanded("llama")
    config = LoraConfig(target_modules=["q_proj"], trainable_token_indices={"lm_head": new})
    with pytest.raises(AttributeError, match="bias"):
        get_peft_model(m, config).get_output_embeddings().bias  # noqa: B018
