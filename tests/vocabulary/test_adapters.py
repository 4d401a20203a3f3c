"""Adapters with their vocabulary: equal logits, to the bit, after saving, loading, merging and reloading."""

from __future__ import annotations

import copy
import io
import json
import warnings

import pytest
import torch
from builders.adapters import quietly, round_trip, saved_base, stirred
from builders.tiny_tokenizers import logits, model, tokenizer
from peft import (
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    TrainableTokensConfig,
    get_peft_model,
)
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import hf_embinit
from hf_embinit import (
    expand_vocabulary,
    load_adapter,
    merge_adapter,
    peft_config_for_new_tokens,
    save_vocabulary,
    train_new_rows_only,
)
from hf_embinit.errors import (
    DataNotFoundError,
    InvalidArgumentError,
    UnsupportedModelError,
    VocabularyWarning,
)
from hf_embinit.vocabulary import VocabularyCallback, carry_vocabulary
from hf_embinit.vocabulary.adapter_files import MANIFEST, ROWS
from hf_embinit.vocabulary.carried_rows import bare_tables

NEW = [" zyxomma", " qorvex"]
TEXT = f"the{NEW[0]} and the{NEW[1]} see"
EMBEDDING = {"gpt2": "wte", "llama": "embed_tokens"}
ATTENTION = {"gpt2": "c_attn", "llama": "q_proj"}
CONFIGS = {
    "rows": lambda m, new, **more: hf_embinit.peft_config_for_new_tokens(m, new, **more),
    "tokens": lambda m, new, **more: TrainableTokensConfig(
        token_indices=new, target_modules=[EMBEDDING[m.config.model_type]]
    ),
    "lora": lambda m, new, **more: LoraConfig(target_modules=[ATTENTION[m.config.model_type]], **more),
    "embedding saved": lambda m, new, **more: LoraConfig(
        target_modules=[ATTENTION[m.config.model_type]],
        modules_to_save=[EMBEDDING[m.config.model_type]],
        **more,
    ),
    "head saved": lambda m, new, **more: LoraConfig(
        target_modules=[ATTENTION[m.config.model_type]], modules_to_save=["lm_head"], **more
    ),
    "lora on the embedding": lambda m, new, **more: LoraConfig(
        target_modules=[EMBEDDING[m.config.model_type]], **more
    ),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="peft")
        yield


@pytest.mark.parametrize(
    ("config", "ensure"),
    [
        *((config, False) for config in CONFIGS),
        *((config, True) for config in CONFIGS if config != "head saved"),
        pytest.param("head saved", True, marks=pytest.mark.needs("peft>=0.19")),
    ],
)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_logits_come_back_after_loading_and_after_merging(kind, config, ensure, tmp_path) -> None:
    m, t = saved_base(kind, tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    more = {"ensure_weight_tying": True} if ensure else {}
    wrapped = quietly(get_peft_model, m, CONFIGS[config](m, new, **more))
    carry_vocabulary(wrapped)
    ids = torch.tensor([t(TEXT)["input_ids"]])
    assert set(new) <= set(ids[0].tolist())
    round_trip(stirred(wrapped), type(m), tmp_path, ids, exact=config in ("rows", "tokens"))


@pytest.mark.parametrize("multiple", [None, 64])
def test_padded_tables(multiple, tmp_path) -> None:
    """New tokens on padding rows of the base, and rows that a multiple adds."""
    m, t = saved_base("llama", tmp_path / "base", padding=1)
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=(), pad_to_multiple_of=multiple).token_ids
    wrapped = get_peft_model(m, hf_embinit.peft_config_for_new_tokens(m, new, target_modules=["q_proj"]))
    round_trip(stirred(wrapped), type(m), tmp_path, torch.tensor([t(TEXT)["input_ids"]]))
    assert m.config.vocab_size == (322 if multiple is None else 384)


def test_a_head_with_a_bias(tmp_path) -> None:
    m, t = saved_base("bert", tmp_path / "base")
    expand_vocabulary(m, t, NEW, "mean_cov", prefixes=())
    wrapped = get_peft_model(m, LoraConfig(target_modules=["query"]))
    carry_vocabulary(wrapped)
    ids = torch.tensor([t(TEXT)["input_ids"]])
    round_trip(stirred(wrapped), type(m), tmp_path, ids)


def test_a_model_that_grew_under_patch(tmp_path) -> None:
    m, t = saved_base("gpt2", tmp_path / "base")
    hf_embinit.patch(m)
    t.add_tokens(NEW)
    m.resize_token_embeddings(len(t))
    wrapped = get_peft_model(m, hf_embinit.peft_config_for_new_tokens(m, [320, 321]))
    round_trip(stirred(wrapped), type(m), tmp_path, torch.tensor([t(TEXT)["input_ids"]]))


def test_rows_trained_beside_lora_are_not_lost(tmp_path) -> None:
    m, t = saved_base("gpt2", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    wrapped = get_peft_model(m, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    ids = torch.tensor([t(TEXT)["input_ids"]])
    before = m.transformer.wte.weight[new].clone()
    with (
        pytest.warns(VocabularyWarning, match="the adapter does not hold them"),
        train_new_rows_only(wrapped, new, freeze_rest=False),
    ):
        optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            wrapped(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not torch.equal(m.transformer.wte.weight[new], before)
    round_trip(wrapped.eval(), type(m), tmp_path, ids)


def test_rows_trained_beside_lora_come_back_when_a_trainer_resumes_or_loads_its_best(tmp_path) -> None:
    saved_base("llama", tmp_path / "base")
    t = tokenizer("byte_level")
    ids = t(TEXT)["input_ids"]
    data = [{"input_ids": ids, "labels": ids}] * 8

    def run(folder, *, resume=None, **settings):
        """The model, and its evaluations: after each save, and at the end."""
        m, t = type(model("llama", 300)).from_pretrained(tmp_path / "base"), tokenizer("byte_level")
        new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
        torch.manual_seed(1)
        wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"]))
        args = TrainingArguments(
            str(tmp_path / folder), max_steps=4, save_steps=2, eval_strategy="steps", eval_steps=2, seed=0,
            learning_rate=1e-2, use_cpu=True, report_to=[], disable_tqdm=True, **settings,
        )  # fmt: skip
        trainer = Trainer(wrapped, args, train_dataset=data, eval_dataset=data)
        with (
            pytest.warns(VocabularyWarning, match="the adapter does not hold them"),
            train_new_rows_only(wrapped, new, freeze_rest=False),
        ):
            quietly(trainer.train, resume_from_checkpoint=resume)
            at_end = trainer.evaluate()["eval_loss"]
        assert "load_adapter" not in vars(wrapped)
        losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
        return m, losses, at_end

    whole, losses, _ = run("run")
    resumed, _, _ = run("run", resume=str(tmp_path / "run" / "checkpoint-2"))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    worst = {"metric_for_best_model": "loss", "greater_is_better": True}  # so that the best is not the last
    _, losses, at_end = run("best", load_best_model_at_end=True, **worst)
    assert losses[0] > losses[1] and at_end == pytest.approx(losses[0], rel=1e-6)


def test_rows_beside_an_adapter_of_other_tables_are_not_put_in(adapter) -> None:
    folder, base_class = adapter
    m, t = base_class.from_pretrained(folder / "base"), tokenizer("byte_level")
    new = expand_vocabulary(m, t, [*NEW, " wubbulous"], prefixes=()).token_ids
    wrapped = get_peft_model(m, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    with (
        pytest.warns(VocabularyWarning),
        train_new_rows_only(wrapped, new, freeze_rest=False),
        pytest.raises((InvalidArgumentError, RuntimeError), match=r"other tables|size mismatch"),
    ):
        wrapped.load_adapter(folder / "adapter", "other")


def test_rows_that_peft_froze_afterwards_are_an_error() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    new = expand_vocabulary(m, t, NEW, prefixes=()).token_ids
    with train_new_rows_only(m, new, freeze_rest=False):
        wrapped = get_peft_model(m, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
        optimizer = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.1)
        wrapped(input_ids=torch.tensor([new]), labels=torch.tensor([new])).loss.backward()
        with pytest.raises(InvalidArgumentError, match="was frozen after train_new_rows_only"):
            optimizer.step()


def test_checkpoints_of_trainer_carry_it_by_the_callback(tmp_path) -> None:
    m, t = saved_base("llama", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    rows = {"embed_tokens": new, "lm_head": new}
    wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"], trainable_token_indices=rows))
    ids = t(TEXT)["input_ids"]
    args = TrainingArguments(
        str(tmp_path / "run"), max_steps=2, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True
    )
    data = [{"input_ids": ids, "labels": ids}] * 8
    quietly(Trainer(wrapped, args, train_dataset=data, callbacks=[VocabularyCallback()]).train)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert (checkpoint / MANIFEST).is_file() and (checkpoint / ROWS).stat().st_size < 2000
    base = type(m).from_pretrained(tmp_path / "base")
    loaded = load_adapter(base, checkpoint).eval()
    ids = torch.tensor([ids])
    assert torch.equal(logits(loaded, ids), logits(wrapped.eval(), ids))


def test_the_callback_writes_nothing_for_models_that_have_nothing_to_carry(tmp_path) -> None:
    """One without an adapter, one that has not grown, a module of torch, a checkpoint without a folder."""
    from types import SimpleNamespace

    grown = model("llama", 320)
    expand_vocabulary(grown, tokenizer("byte_level"), NEW, "mean_cov", prefixes=())
    plain = get_peft_model(model("llama", 320), LoraConfig(target_modules=["q_proj"]))
    args = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(global_step=1, is_world_process_zero=True)
    (tmp_path / "checkpoint-1").mkdir()
    callback = VocabularyCallback()
    for one in (grown, plain):
        callback.on_init_end(args, state, None, model=one)
        callback.on_save(args, state, None, model=one)
        assert not [*(tmp_path / "checkpoint-1").iterdir()]
    callback.on_init_end(args, state, None, model=torch.nn.Linear(2, 2))
    callback.on_init_end(args, state, None)
    carried = get_peft_model(grown, LoraConfig(target_modules=["q_proj"]))
    callback.on_save(args, SimpleNamespace(global_step=2, is_world_process_zero=True), None, model=carried)
    callback.on_save(args, SimpleNamespace(global_step=1, is_world_process_zero=False), None, model=carried)
    assert not [*(tmp_path / "checkpoint-1").iterdir()] and not (tmp_path / "checkpoint-2").exists()
    callback.on_save(args, state, None, model=carried)
    assert (tmp_path / "checkpoint-1" / MANIFEST).is_file()


@pytest.fixture
def adapter(tmp_path):
    """Folder of a base and of an adapter, and the base's class."""
    m, t = saved_base("gpt2", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    m.save_pretrained(tmp_path / "expanded")
    wrapped = get_peft_model(m, hf_embinit.peft_config_for_new_tokens(m, new))
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    return tmp_path, type(m)


def test_a_base_that_has_grown_alike_is_as_good(adapter) -> None:
    folder, base_class = adapter
    loaded = load_adapter(base_class.from_pretrained(folder / "expanded"), folder / "adapter")
    assert loaded.config.vocab_size == 322
    assert len(hf_embinit.read_manifest(loaded.get_base_model())) == 1


PROMPTS = {
    "prompt": lambda: PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prefix": lambda: PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "p-tuning": lambda: PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8
    ),
}


@pytest.mark.parametrize("config", PROMPTS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_adapters_of_virtual_tokens(kind, config, tmp_path) -> None:
    base, t = saved_base(kind, tmp_path / "base")
    expand_vocabulary(base, t, NEW, prefixes=())
    wrapped = stirred(get_peft_model(base, PROMPTS[config]()))
    carry_vocabulary(wrapped)
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    loaded = quietly(load_adapter, type(base).from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    ids = t(TEXT, return_tensors="pt").input_ids
    assert torch.equal(logits(loaded.eval(), ids), logits(wrapped, ids))
    with pytest.raises(UnsupportedModelError, match="virtual tokens, which no weight can hold: serve it as"):
        merge_adapter(loaded)


def test_a_loaded_adapter_is_saved_with_its_vocabulary_again(adapter, tmp_path) -> None:
    folder, base_class = adapter
    loaded = load_adapter(base_class.from_pretrained(folder / "base"), folder / "adapter", is_trainable=True)
    quietly(loaded.save_pretrained, tmp_path / "again")
    again = load_adapter(base_class.from_pretrained(folder / "base"), tmp_path / "again")
    ids = torch.tensor([[5, 320, 7, 321]])
    assert torch.equal(logits(again.eval(), ids), logits(loaded.eval(), ids))


@pytest.mark.parametrize(
    "name", ["is_trainble", "is_trainabel", "trainable", "adapter_nam", "low_cpu_mem_usge"]
)
def test_misspelt_options_are_told_before_anything_changes(name: str, adapter) -> None:
    folder, base_class = adapter
    base = base_class.from_pretrained(folder / "base")
    with pytest.raises(InvalidArgumentError, match=f"{name}= is no argument of load_adapter: did you mean "):
        load_adapter(base, folder / "adapter", **{name: True})
    assert base.config.vocab_size == 320
    load_adapter(base, folder / "adapter", torch_device="cpu")  # of those that PEFT takes unnamed


def test_adapters_that_are_added_later_carry_it_too(tmp_path) -> None:
    m, t = saved_base("gpt2", tmp_path / "base")
    expand_vocabulary(m, t, NEW, "mean_cov", prefixes=())
    wrapped = get_peft_model(m, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    carry_vocabulary(wrapped)
    wrapped.add_adapter("two", LoraConfig(target_modules=["c_proj"], fan_in_fan_out=True))
    for one in (wrapped, copy.deepcopy(wrapped)):
        quietly(one.save_pretrained, tmp_path / "adapters")
        for place in (tmp_path / "adapters", tmp_path / "adapters" / "two"):
            (place / MANIFEST).unlink()


def test_a_vocabulary_of_an_adapter_that_was_there_before_is_not_believed(adapter) -> None:
    folder, base_class = adapter
    plain = get_peft_model(
        base_class.from_pretrained(folder / "base"),
        LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True),
    )
    quietly(plain.save_pretrained, folder / "adapter")
    refused(base_class.from_pretrained(folder / "base"), folder, "is not of the adapter beside it")
    assert not save_vocabulary(plain, folder / "adapter")
    assert not any((folder / "adapter" / name).exists() for name in (MANIFEST, ROWS))
    grown = base_class.from_pretrained(folder / "expanded")
    wrapped = get_peft_model(grown, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    quietly(wrapped.save_pretrained, folder / "adapter")
    assert save_vocabulary(wrapped, folder / "adapter")
    load_adapter(base_class.from_pretrained(folder / "base"), folder / "adapter")


def test_an_adapter_in_a_subfolder(adapter) -> None:
    folder, base_class = adapter
    ids = torch.tensor([[5, 320, 7, 321]])
    expected = load_adapter(base_class.from_pretrained(folder / "base"), folder / "adapter").eval()
    base = base_class.from_pretrained(folder / "base")
    loaded = load_adapter(base, folder, subfolder="adapter").eval()
    assert torch.equal(logits(loaded, ids), logits(expected, ids))
    opened = hf_embinit.open_checkpoint(folder / "base")
    assert load_adapter(opened, folder, subfolder="adapter").config.vocab_size == 322
    with pytest.raises(DataNotFoundError, match=r"other has no embinit\.json"):
        load_adapter(base_class.from_pretrained(folder / "base"), folder, subfolder="other")


def refused(base, folder, match) -> None:
    state, config = copy.deepcopy(base.state_dict()), base.config.to_dict()
    with pytest.raises(InvalidArgumentError, match=match):
        load_adapter(base, folder / "adapter")
    assert base.config.to_dict() == config and not hasattr(base, "peft_config")
    assert all(torch.equal(v, state[k]) for k, v in base.state_dict().items())


def test_other_bases_are_refused_untouched(adapter) -> None:
    folder, base_class = adapter
    load = base_class.from_pretrained
    refused(model("gpt2", 300), folder, "base has 300 rows, but .* a model of 320 before it grew to 322")
    refused(model("gpt2", 322), folder, "base has 322 rows")
    other = load(folder / "base")
    other.transformer.wte.weight.data[7] += 1
    refused(other, folder, "the old rows of transformer.wte.weight are not those")
    other = load(folder / "base")
    other.config.embinit = [{"event": "initialize"}]
    refused(other, folder, "a history of its own")
    refused(model("llama", 320), folder, "base, a LlamaForCausalLM, has no transformer.wte.weight")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_base_in_a_coarser_dtype_is_known(adapter, dtype) -> None:
    folder, base_class = adapter
    loaded = load_adapter(base_class.from_pretrained(folder / "base", dtype=dtype), folder / "adapter")
    assert loaded.get_base_model().transformer.wte.weight.dtype == dtype


@pytest.mark.parametrize(("then", "now"), [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_a_base_in_float32_is_known_in_either_half(then, now, tmp_path) -> None:
    m, t = saved_base("llama", tmp_path / "base")

    def load(dtype):
        return type(m).from_pretrained(tmp_path / "base", dtype=getattr(torch, dtype))

    trained = load(then)
    new = expand_vocabulary(trained, t, NEW, "mean_cov", prefixes=()).token_ids
    wrapped = get_peft_model(trained, hf_embinit.peft_config_for_new_tokens(trained, new))
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    for dtype in (then, now, "float32"):
        assert load_adapter(load(dtype), tmp_path / "adapter").config.vocab_size == 322
    other = load(now)
    other.lm_head.weight.data += 0.01 * torch.randn(other.lm_head.weight.shape).to(other.dtype)
    refused(other, tmp_path, f"the old rows of lm_head.weight are not those.*loaded in {then}")
    file = tmp_path / "adapter" / MANIFEST  # as adapters were saved that have no sample
    manifest = json.loads(file.read_text())
    for table in manifest["tables"].values():
        del table["sample"]
    file.write_text(json.dumps(manifest))
    refused(load(now), tmp_path, f"loaded in {then}")
    for dtype in (then, "float32"):
        assert load_adapter(load(dtype), tmp_path / "adapter").config.vocab_size == 322


def test_peft_alone_on_the_base_names_the_way_out(adapter) -> None:
    folder, base_class = adapter
    with (
        pytest.warns(UserWarning, match="load_with_hf_embinit_load_adapter"),
        pytest.raises(IndexError),
    ):
        PeftModel.from_pretrained(base_class.from_pretrained(folder / "base"), folder / "adapter")


def test_damaged_and_absent_files(adapter) -> None:
    folder, base_class = adapter
    base = base_class.from_pretrained(folder / "base")
    file = folder / "adapter" / MANIFEST
    good = file.read_text()
    for text in ("", "[]", "{}", '{"sides": {"shared": {"rows": "x", "ids": []}}}', good[:-20]):
        file.write_text(text)
        refused(base, folder, "cannot be read")
    file.write_text(good)
    weights = folder / "adapter" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    refused(base, folder, r"adapter_model.safetensors cannot be read")
    weights.unlink()
    with pytest.raises(DataNotFoundError, match=r"has no adapter_model\.safetensors"):
        load_adapter(base, folder / "adapter")
    weights.write_bytes(whole)
    (folder / "adapter" / ROWS).write_bytes(b"nothing")
    refused(base, folder, "cannot be read")
    (folder / "adapter" / ROWS).unlink()
    refused(base, folder, r"has embinit\.json and no embinit\.safetensors")
    file.unlink()
    with pytest.raises(DataNotFoundError, match=r"has no embinit\.json"):
        load_adapter(base, folder / "adapter")


def test_what_peft_cannot_put_on_a_base_says_that_the_base_is_changed(adapter) -> None:
    folder, base_class = adapter
    file = folder / "adapter" / "adapter_config.json"
    good = json.loads(file.read_text())
    for key, value, why in (
        ("trainable_token_indices", {"transformer.wte": [900, 901]}, "out of bounds"),
        ("trainable_token_indices", {"transformer.wte": [1, 2, 3]}, "size mismatch"),
        ("peft_type", "FOO", "it lacks 'FOO'"),
    ):
        file.write_text(json.dumps({**good, key: value}))
        base = base_class.from_pretrained(folder / "base")
        with pytest.raises(InvalidArgumentError, match=rf"(?s)put on base: .*{why}.* load it anew"):
            load_adapter(base, folder / "adapter")


def test_what_peft_cannot_merge_is_refused_and_stays_tied(tmp_path) -> None:
    tied = model("llama", 300, tie_word_embeddings=True)
    stirred_bias = LoraConfig(target_modules=["q_proj"], lora_bias=True, init_lora_weights=False)
    biased = get_peft_model(tied, stirred_bias).eval()
    ids = torch.tensor([[3, 5, 7]])
    before = logits(biased, ids)
    with pytest.raises(
        UnsupportedModelError, match=r"lora_bias=True, and model\.layers\.0\.self_attn\.q_proj"
    ):
        merge_adapter(biased)
    assert torch.equal(logits(biased, ids), before)
    unwrapped = biased.unload()
    assert unwrapped.lm_head.weight is unwrapped.model.embed_tokens.weight
    assert unwrapped.config.tie_word_embeddings
    base, _ = saved_base("gpt2", tmp_path)
    rows = {"transformer.wte": [3, 5]}
    around = LoraConfig(target_modules=["lm_head"], trainable_token_indices=rows)
    wrapped = quietly(get_peft_model, copy.deepcopy(base), around)
    before = logits(wrapped, ids)
    with pytest.raises(UnsupportedModelError, match=r"lm_head has LoRA, and its table, .* cannot merge it"):
        merge_adapter(wrapped)
    assert torch.equal(logits(wrapped, ids), before)
    twice = LoraConfig(target_modules=["q_proj"], layer_replication=[[0, 2], [1, 2]], task_type="CAUSAL_LM")
    base, _ = saved_base("llama", tmp_path)
    with pytest.raises(UnsupportedModelError, match="layer_replication, whose layers share one matrix"):
        merge_adapter(get_peft_model(base, twice))


@pytest.mark.parametrize("tied", [True, False])
def test_a_merge_that_fails_in_the_midst_is_undone(tied) -> None:
    base = model("llama", 300, tie_word_embeddings=tied)
    parts = LoraConfig(target_modules=["q_proj", "embed_tokens"], init_lora_weights=False)
    wrapped = quietly(get_peft_model, base, parts).eval()
    ids = torch.tensor([[3, 5, 7]])
    before, names = logits(wrapped, ids), set(wrapped.state_dict())
    last = wrapped.get_submodule("base_model.model.model.layers.1.self_attn.q_proj")
    last.merge = lambda *args, **kwargs: (_ for _ in ()).throw(RuntimeError("out of luck"))
    with pytest.raises(UnsupportedModelError, match="PEFT cannot merge this adapter: out of luck"):
        merge_adapter(wrapped)
    assert set(wrapped.state_dict()) == names
    torch.testing.assert_close(logits(wrapped, ids), before)
    assert (base.lm_head.weight is wrapped.get_base_model().get_input_embeddings().weight) == tied
    del last.merge
    torch.testing.assert_close(logits(merge_adapter(wrapped), ids), before, atol=1e-5, rtol=1e-4)


def test_an_end_without_a_row_is_refused_before_the_merge() -> None:
    wrapped = get_peft_model(model("llama", 300), LoraConfig(target_modules=["q_proj"]))
    t = tokenizer("byte_level")
    t.add_special_tokens({"eos_token": "<|far|>"})
    assert t.eos_token_id >= 300
    ends = wrapped.config.eos_token_id
    with pytest.raises(
        InvalidArgumentError, match=r"the tokenizer has ids up to \d+, but the model has 300 rows"
    ):
        merge_adapter(wrapped, t)
    assert wrapped.config.eos_token_id == ends and any("lora_A" in name for name in wrapped.state_dict())


def test_repaired_rows_and_padding_that_was_taken_back_are_carried(tmp_path) -> None:
    """The repair that `doctor` asks for, and a resize after a padded one, leave a growth of the base."""
    m, t = saved_base("llama", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, prefixes=(), pad_to_multiple_of=64).token_ids
    assert hf_embinit.repair(m, t, findings=hf_embinit.doctor(m, t), init="mean_cov")[:2] == new
    m = hf_embinit.patch(m, tokenizer=t)
    m.resize_token_embeddings(len(t))
    wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    carry_vocabulary(wrapped)
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    loaded = load_adapter(type(m).from_pretrained(tmp_path / "base"), tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, torch.tensor([[3, *new]])), logits(wrapped, torch.tensor([[3, *new]])))
    hf_embinit.repair(m, t, rows=[5])
    quietly(wrapped.save_pretrained, tmp_path / "old" / "adapter")
    refused(type(m).from_pretrained(tmp_path / "base"), tmp_path / "old", "was changed by 'repair'")


def test_rows_of_a_plain_resize_are_told_before_the_training(tmp_path) -> None:
    saved_base("llama", tmp_path / "base")
    m = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    rows = len(m.get_input_embeddings().weight)
    quietly(m.resize_token_embeddings, rows + 2)
    match = f"the model has {rows + 2} rows, its checkpoint .*base has {rows}, and config.embinit tells of no"
    with pytest.warns(VocabularyWarning, match=match):
        peft_config_for_new_tokens(m, [rows, rows + 1])
    with pytest.warns(VocabularyWarning, match=match):
        carry_vocabulary(get_peft_model(m, LoraConfig(target_modules=["q_proj"])))
    m = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with warnings.catch_warnings():
        warnings.simplefilter("error", VocabularyWarning)
        carry_vocabulary(get_peft_model(m, LoraConfig(target_modules=["q_proj"])))


def test_what_an_adapter_cannot_say_is_refused(adapter) -> None:
    folder, base_class = adapter
    file = folder / "adapter" / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["events"].append({"event": "prune_vocabulary", "rows": [322, 300]})
    file.write_text(json.dumps(manifest))
    refused(base_class.from_pretrained(folder / "base"), folder, "was changed by 'prune_vocabulary'")


def test_nothing_is_written_where_nothing_grew(tmp_path) -> None:
    m = model("gpt2", 320)
    assert not save_vocabulary(m, tmp_path)
    wrapped = get_peft_model(m, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    carry_vocabulary(wrapped)
    quietly(wrapped.save_pretrained, tmp_path)
    assert not (tmp_path / MANIFEST).exists()
    with pytest.raises(InvalidArgumentError, match="expected a PeftModel"):
        merge_adapter(model("gpt2", 320))


@pytest.mark.needs("peft>=0.19")
def test_lora_on_both_tied_tables_that_peft_cannot_load_is_refused(tmp_path) -> None:
    m, t = saved_base("gpt2", tmp_path / "base")
    expand_vocabulary(m, t, NEW, prefixes=())
    config = LoraConfig(target_modules=["wte", "lm_head"], ensure_weight_tying=True)
    wrapped = quietly(get_peft_model, m, config)
    carry_vocabulary(wrapped)
    quietly(wrapped.save_pretrained, tmp_path / "adapter")
    with pytest.raises(InvalidArgumentError, match="PEFT left 2 tensors"):
        quietly(load_adapter, type(m).from_pretrained(tmp_path / "base"), tmp_path / "adapter")


def test_a_configuration_that_carries_can_be_copied_and_outlives_its_model(tmp_path) -> None:
    import gc
    import pickle

    m, t = saved_base("gpt2", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, prefixes=()).token_ids
    config = hf_embinit.peft_config_for_new_tokens(m, new)
    copy.deepcopy(config).save_pretrained(tmp_path / "copied")
    assert (tmp_path / "copied" / MANIFEST).is_file()
    pickle.loads(pickle.dumps(config)).save_pretrained(tmp_path / "pickled")
    del m
    gc.collect()
    with pytest.warns(VocabularyWarning, match="without new rows"):
        config.save_pretrained(tmp_path / "alone")


def stored_and_loaded(one):
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("carried", [True, False], ids=["carried", "by the configuration"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, stored_and_loaded])
def test_a_copied_or_stored_model_saves_its_own_rows(duplicate, carried, tmp_path) -> None:
    m, t = saved_base("llama", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, "mean_cov", prefixes=()).token_ids
    wrapped = get_peft_model(m, hf_embinit.peft_config_for_new_tokens(m, new))
    if carried:
        carry_vocabulary(wrapped)
    other = duplicate(stirred(wrapped))
    rows = bare_tables(other.get_base_model()).input_tables[0].tied.tensor
    rows.data[new] += 1
    assert other.get_base_model().get_output_embeddings().bias is None
    if duplicate is stored_and_loaded and not carried:
        with pytest.warns(VocabularyWarning, match=r"without new rows; hf_embinit\.save_vocabulary"):
            other.save_pretrained(tmp_path / "adapter")
        save_vocabulary(other, tmp_path / "adapter")
    else:
        quietly(other.save_pretrained, tmp_path / "adapter")
    assert torch.equal(load_file(tmp_path / "adapter" / ROWS)["model.embed_tokens.weight"], rows[new])


def test_an_adapter_on_the_hub(hub, writer, adapter) -> None:
    """Uploaded as a folder, loaded and merged by its id; another process asks a Hub on this machine."""
    folder, _ = adapter
    grown = tokenizer("byte_level")
    grown.add_tokens(NEW)
    grown.save_pretrained(folder / "tokenizer")
    code = """
import os, shutil, torch, hf_embinit
from huggingface_hub import HfApi
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from hf_embinit.__main__ import main
api = HfApi()
api.create_repo("user/adapter")
AutoTokenizer.from_pretrained(folder + "/tokenizer").save_pretrained(folder + "/adapter")
api.upload_folder(repo_id="user/adapter", folder_path=folder + "/adapter")
load = lambda name: AutoModelForCausalLM.from_pretrained(folder + "/" + name).eval()
ids = torch.tensor([[5, 320, 7, 321]])
with torch.no_grad():
    expected = hf_embinit.load_adapter(load("base"), folder + "/adapter").eval()(input_ids=ids).logits
    got = hf_embinit.load_adapter(load("base"), "user/adapter").eval()(input_ids=ids).logits
    assert torch.equal(got, expected)
    assert main(["merge", folder + "/base", "user/adapter", "--output_dir", folder + "/merged"]) == 0
    torch.testing.assert_close(load("merged")(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)
    assert len(AutoTokenizer.from_pretrained(folder + "/merged")) == 322  # that of the adapter
    shutil.copytree(folder + "/adapter", folder + "/pickled")
    weights = folder + "/pickled/adapter_model.safetensors"
    torch.save(load_file(weights), folder + "/pickled/adapter_model.bin")
    os.remove(weights)
    api.create_repo("user/pickled")
    api.upload_folder(repo_id="user/pickled", folder_path=folder + "/pickled")
    words = ["merge", folder + "/base", "user/pickled", "--output_dir", folder + "/unpickled"]
    assert main(words) == 1
    assert main([*words, "--allow_pickle"]) == 0
    assert torch.equal(load("unpickled")(input_ids=ids).logits, load("merged")(input_ids=ids).logits)
try:
    hf_embinit.load_adapter(load("base"), "user/absent")
except hf_embinit.EmbinitError as error:
    assert "user/absent" in str(error) and "\\n" not in str(error), error
else:
    raise AssertionError
"""
    writer.run(code, folder=str(folder))


@pytest.mark.parametrize("known", [True, False], ids=["a base that PEFT finds", "an unknown base"])
def test_lora_alone_on_a_base_that_has_not_grown(known, tmp_path) -> None:
    """PEFT saves whole tables where it finds a base with fewer rows, and refuses them when it loads.

    Of a base that it cannot find it saves none: it warns when it loads, and the first new id fails.
    """
    m, t = saved_base("llama", tmp_path / "base")
    new = expand_vocabulary(m, t, NEW, prefixes=()).token_ids
    m.name_or_path = m.name_or_path if known else "nowhere"
    wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"]))
    carry_vocabulary(wrapped)
    quietly(wrapped.save_pretrained, tmp_path / "adapter")

    def alone():
        base = type(m).from_pretrained(tmp_path / "base")
        return PeftModel.from_pretrained(base, tmp_path / "adapter")(input_ids=torch.tensor([new]))

    error, match = (
        (RuntimeError, r"size mismatch for .*\[322, 16\]") if known else (IndexError, "out of range")
    )
    with (
        pytest.warns(UserWarning, match="load_with_hf_embinit_load_adapter"),
        pytest.raises(error, match=match),
    ):
        alone()
    fixed = load_adapter(type(m).from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert fixed(input_ids=torch.tensor([new])).logits.shape[-1] == 322


@pytest.mark.parametrize(("before", "after"), [(5, 321), ([5, 6], [5, 6, 321]), ([321], [321]), (None, 321)])
def test_a_merged_model_ends_where_the_tokenizer_says(before, after) -> None:
    m, t = model("llama", 320), tokenizer("byte_level")
    expand_vocabulary(m, t, ["<|im_start|>", "<|im_end|>"], prefixes=())
    t.eos_token = "<|im_end|>"
    m.config.eos_token_id = m.generation_config.eos_token_id = before
    wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"]))
    untold = merge_adapter(copy.deepcopy(wrapped))
    assert untold.generation_config.eos_token_id == before
    merged = merge_adapter(wrapped, t)
    assert merged.generation_config.eos_token_id == merged.config.eos_token_id == after


@pytest.mark.parametrize("rows", [{"new_num_tokens": 324}, {"pad_to_multiple_of": 64}])
def test_rows_of_a_plain_resize_after_an_expansion_are_carried(rows, tmp_path) -> None:
    m, t = saved_base("llama", tmp_path / "base")
    new = expand_vocabulary(m, t, [" zyxomma"], prefixes=()).token_ids
    m.resize_token_embeddings(rows.get("new_num_tokens"), rows.get("pad_to_multiple_of"))  # leaves no event
    wrapped = get_peft_model(m, hf_embinit.peft_config_for_new_tokens(m, new))
    round_trip(wrapped, type(m), tmp_path, torch.tensor([[1, 2, 320]]))
