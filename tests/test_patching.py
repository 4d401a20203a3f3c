"""`patch` and `unpatch`: transformers' own calls, by the registry, on one model."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import warnings

import pytest
import torch
from builders.tables import mean_rows, uniform_rows
from builders.tiny_models import (
    SMALL,
    V,
    bart,
    bert,
    encoder_decoder,
    gpt2,
    llama,
    marian,
    marian_with_two_vocabularies,
    spread,
    t5,
    word_tokenizer,
)
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    IBertConfig,
    IBertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MobileBertConfig,
    MobileBertForMaskedLM,
    ViTConfig,
    ViTModel,
)

from hf_embinit.errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError, VocabularyWarning
from hf_embinit.manifest import read_manifest, record_event
from hf_embinit.patching import patch, patched, unpatch


def test_patch_gives_the_model_back_and_is_invisible() -> None:
    model = bert()
    keys = set(model.state_dict())
    modules = [name for name, _ in model.named_modules()]
    assert patch(model) is model
    assert set(model.state_dict()) == keys and [name for name, _ in model.named_modules()] == modules
    assert unpatch(model) is model
    assert "resize_token_embeddings" not in vars(model) and "_init_weights" not in vars(model.bert)
    unpatch(model)


@pytest.mark.parametrize("build", [bert, gpt2, llama, t5, bart, marian])
def test_every_call_of_transformers_goes_through(build) -> None:
    model = build()
    spread(model)
    patch(model)
    state = torch.get_rng_state()
    module = model.resize_token_embeddings(V + 5)
    assert torch.equal(state, torch.get_rng_state())
    assert isinstance(module, nn.Embedding) and module is model.get_input_embeddings()
    assert module.num_embeddings == V + 5 and mean_rows(model)
    assert model.resize_token_embeddings() is module
    model.resize_token_embeddings(V + 5, 16, False)
    assert model.get_input_embeddings().num_embeddings == 80
    model.resize_token_embeddings(new_num_tokens=V + 5, pad_to_multiple_of=None, mean_resizing=True)
    assert model.config.vocab_size == V + 5
    model.resize_token_embeddings(20)
    assert model.get_input_embeddings().num_embeddings == 20


def test_a_padded_table_keeps_its_rows_unless_one_means_it() -> None:
    model = gpt2(vocab_size=128)
    spread(model)
    before = model.transformer.wte.weight.detach().clone()
    patch(model)
    with pytest.warns(VocabularyWarning, match=r"keep their 128 rows, though 66 were asked for: .*padded"):
        module = model.resize_token_embeddings(V + 5)
    assert module.num_embeddings == model.config.vocab_size == model.vocab_size == 128
    assert torch.equal(model.transformer.wte.weight, before)
    with patched(), pytest.warns(VocabularyWarning, match="keep their 128 rows"):
        unpatch(model).resize_token_embeddings(V + 5, pad_to_multiple_of=4)
    patch(model, shrink="allow").resize_token_embeddings(V + 5)
    assert model.config.vocab_size == V + 5
    for wrong in ("no", None, True):
        with pytest.raises(InvalidArgumentError, match=f"shrink={wrong!r}: expected 'refuse' or 'allow'"):
            patch(gpt2(), shrink=wrong)


@pytest.mark.parametrize("name", ["resize_token_embeddings", "resize_decoder_token_embeddings"])
def test_a_warning_points_at_the_line_that_resizes(name) -> None:
    code, tokenizer = compile("resize(20)", "a script", "exec"), word_tokenizer(30)
    for inside in (True, False):
        model, options = (
            marian_with_two_vocabularies(),
            {"tokenizer": tokenizer, "overrides": {"no": "zeros"}},
        )
        with patched(**options) if inside else contextlib.nullcontext():
            model = model if inside else patch(model, **options)
            with warnings.catch_warnings(record=True) as caught:
                exec(code, {"__name__": "script", "resize": getattr(model, name)})
        told = [w for w in caught if issubclass(w.category, VocabularyWarning)]
        assert [(w.filename, w.lineno) for w in told] == [("a script", 1)] * 2


def test_rows_that_tokens_have_are_not_cut_off() -> None:
    model, tokenizer = llama(vocab_size=V + 9), word_tokenizer(V)
    patch(model, tokenizer=tokenizer)
    with pytest.warns(VocabularyWarning, match="though 58 were asked for: the tokenizer has 3 tokens beyond"):
        model.resize_token_embeddings(V - 3)
    model.resize_token_embeddings(V)
    assert model.config.vocab_size == V


def test_marian_with_padding_has_a_bias_as_long_as_its_logits() -> None:
    model = patch(marian())
    model.resize_token_embeddings(V + 3, pad_to_multiple_of=16)
    ids = torch.arange(4, 12)[None]
    assert model(input_ids=ids, decoder_input_ids=ids).logits.shape[-1] == 64
    assert model.final_logits_bias.shape == (1, 64)


def test_signatures_of_overriding_classes_are_met() -> None:
    sizes = {"embedding_size": 16, "intra_bottleneck_size": 8, "true_hidden_size": 8}
    for model in (
        MobileBertForMaskedLM(MobileBertConfig(**{**SMALL, **sizes})),
        IBertForMaskedLM(IBertConfig(**SMALL)),
    ):
        spread(model)
        patch(model).resize_token_embeddings(V + 3, pad_to_multiple_of=8, mean_resizing=False)
        assert model(torch.arange(V, V + 3)[None]).logits.shape[-1] == 64


def test_two_vocabularies() -> None:
    model = patch(marian_with_two_vocabularies())
    model.resize_token_embeddings(V + 3)
    module = model.resize_decoder_token_embeddings(40)
    assert module is model.model.decoder.embed_tokens and module.num_embeddings == 40
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (V + 3, 40)
    assert model.final_logits_bias.shape == (1, 40)
    pair = patch(encoder_decoder())
    with pytest.raises(UnsupportedModelError, match="two vocabularies"):
        pair.resize_token_embeddings(70)
    pair.decoder.resize_token_embeddings(40)
    pair.encoder.resize_token_embeddings(70)
    assert (pair.config.encoder.vocab_size, pair.config.decoder.vocab_size) == (70, 40)
    assert [event["side"] for event in pair.config.embinit] == ["target", "source"]


def test_inner_models_resize_the_whole() -> None:
    model = bert()
    spread(model)
    patch(model)
    module = model.bert.resize_token_embeddings(V + 4)
    assert module is model.bert.embeddings.word_embeddings
    assert model.cls.predictions.bias.shape == (V + 4,) and mean_rows(model)
    assert read_manifest(model)[-1]["rows"] == [V, V + 4]


def test_through_a_peft_wrapper_made_before_or_after() -> None:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(target_modules=["q_proj"])
    for order in ("patch first", "wrap first"):
        model = llama()
        spread(model)
        if order == "patch first":
            wrapped = peft.get_peft_model(patch(model), lora)
        else:
            wrapped = patch(peft.get_peft_model(model, lora))
        wrapped.resize_token_embeddings(V + 4)
        assert mean_rows(model) and model.lm_head.out_features == V + 4
        merged = wrapped.merge_and_unload()
        merged.resize_token_embeddings(V + 6)
        assert read_manifest(merged)[-1]["rows"] == [V + 4, V + 6]
        assert unpatch(wrapped) is wrapped and "resize_token_embeddings" not in vars(model)


def test_a_resize_that_changes_nothing_passes_where_peft_has_copied_tables() -> None:
    peft = pytest.importorskip("peft")
    model, tokenizer = llama(), word_tokenizer()
    patch(model, tokenizer=tokenizer)
    tokenizer.add_tokens(["new"])
    model.resize_token_embeddings(V + 1)
    copied = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    wrapped = peft.get_peft_model(model, copied)
    assert wrapped.resize_token_embeddings(V + 1) is model.get_input_embeddings()
    with pytest.raises(UnsupportedModelError, match="copied by an adapter"):
        wrapped.resize_token_embeddings(V + 2)
    tokenizer.add_tokens(["newer"])
    with pytest.raises(UnsupportedModelError, match="copied by an adapter"):
        wrapped.resize_token_embeddings(V + 1)


def test_deepcopy_and_pickle_carry_the_patch_and_nothing_else() -> None:
    model = patch(bert(), "zeros")
    copied = copy.deepcopy(model)
    pickled = pickle.loads(pickle.dumps(model))
    inner = copy.deepcopy(model.bert)
    for other in (copied, pickled):
        other.bert.resize_token_embeddings(V + 2)
        assert other.cls.predictions.bias.shape == (V + 2,)
        assert not other.bert.embeddings.word_embeddings.weight[V:].any()
    inner.resize_token_embeddings(V + 2)
    assert inner.config.vocab_size == V + 2
    assert model.config.vocab_size == V and model.cls.predictions.bias.shape == (V,)
    assert not read_manifest(model)


@pytest.mark.parametrize(
    ("init", "options"), [("subword_mean", {}), ("copy", {"of": "w3"}), ("mean_cov", {})]
)
def test_a_patched_model_pickles_whatever_makes_its_rows(init, options) -> None:
    t = word_tokenizer()
    model = pickle.loads(pickle.dumps(patch(gpt2(), init, tokenizer=t, **options)))
    model.resize_token_embeddings(V + 1)
    assert read_manifest(model)[-1]["init"] == init


def test_other_models_are_untouched_and_patching_again_replaces() -> None:
    model, other = patch(gpt2(), "zeros"), gpt2()
    other.resize_token_embeddings(V + 1)
    assert other.transformer.wte.weight[V:].any() and not read_manifest(other)
    patch(patch(model, "mean_cov"), "zeros").resize_token_embeddings(V + 1)
    assert not model.transformer.wte.weight[V:].any()
    unpatch(model).resize_token_embeddings(V + 2)
    assert model.transformer.wte.weight[V + 1 :].any()


def test_two_patched_models_with_one_seed_agree() -> None:
    first = llama()
    spread(first)
    second = copy.deepcopy(first)
    torch.manual_seed(1)
    patch(first, "mean_cov", seed=4).resize_token_embeddings(V + 5)
    torch.manual_seed(2)
    patch(second, "mean_cov", seed=4).resize_token_embeddings(V + 5)
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert torch.equal(first.model.embed_tokens.weight, second.model.embed_tokens.weight)


def test_bad_requests_change_nothing() -> None:
    model = gpt2()
    for kwargs, error in (
        ({"init": "maen"}, UnknownNameError),
        ({"init": "mean", "scale": 1.0}, InvalidArgumentError),
        ({"init": "subword_mean"}, InvalidArgumentError),
    ):
        with pytest.raises(error):
            patch(model, **kwargs)
        with pytest.raises(error), patched(**kwargs):
            pass
    with pytest.raises(UnsupportedModelError):
        patch(ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)))
    patch(model)
    with pytest.raises(InvalidArgumentError):
        model.resize_token_embeddings(-1)
    assert model.config.vocab_size == V and not read_manifest(model)


def test_a_failing_initializer_leaves_the_model_as_it_was() -> None:
    model = llama()
    spread(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokenizer = word_tokenizer()
    patch(model, "copy", tokenizer=tokenizer, of="no such token")
    tokenizer.add_tokens(["new", "newer"])
    with pytest.raises(InvalidArgumentError):
        model.resize_token_embeddings(V + 2)
    assert model.config.vocab_size == V and not read_manifest(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_events_survive_saving(tmp_path) -> None:
    model = llama()
    spread(model)
    patch(model, "mean_cov", seed=3, scale=1e-4).resize_token_embeddings(V + 2)
    model.resize_token_embeddings(V + 4)
    model.save_pretrained(tmp_path)
    events = read_manifest(tmp_path)
    assert events == read_manifest(str(tmp_path)) == read_manifest(tmp_path / "config.json")
    assert events == json.loads(json.dumps(read_manifest(model)))
    assert events == read_manifest(AutoModelForCausalLM.from_pretrained(tmp_path))
    first = events[0]
    assert (first["event"], first["init"], first["seed"], first["rows"]) == (
        "resize",
        "mean_cov",
        3,
        [V, V + 2],
    )
    assert first["options"] == {"scale": 1e-4} and first["version"]
    assert [table["name"] for table in first["tables"]] == ["model.embed_tokens.weight", "lm_head.weight"]
    assert first["tables"][0]["rows"] == [V, V + 2]
    assert "resize_token_embeddings" not in vars(AutoModelForCausalLM.from_pretrained(tmp_path))


def test_manifest_errors(tmp_path) -> None:
    from hf_embinit.errors import DataNotFoundError

    with pytest.raises(DataNotFoundError, match=r"config\.json"):
        read_manifest(tmp_path)
    config = GPT2Config()
    assert read_manifest(config) == []
    config.embinit = "by hand"
    with pytest.raises(InvalidArgumentError, match=r"config\.embinit"):
        record_event(config, "initialize")
    config = GPT2Config()
    entry = record_event(
        config, "x", rows=range(2), value=torch.tensor([1.5]), bad=float("nan"), path=tmp_path
    )
    assert entry["rows"] == [0, 1] and entry["value"] == [1.5] and entry["bad"] == "nan"
    assert json.loads(json.dumps(config.embinit)) == config.embinit
    shallow = copy.copy(config)
    record_event(shallow, "y")
    assert len(config.embinit) == 1


def test_init_weights_of_a_patched_model_uses_the_registry(tmp_path) -> None:
    model = patch(bert(), "xavier", seed=1)
    words = model.bert.embeddings.word_embeddings
    other = model.bert.embeddings.position_embeddings.weight.detach().clone()
    model._init_weights(words)
    assert uniform_rows(model)
    assert torch.equal(other, model.bert.embeddings.position_embeddings.weight)
    before = words.weight.detach().clone()
    patch(model, "mean")._init_weights(words)  # needs an old table: the model's own initialisation
    assert not torch.equal(before, words.weight) and not uniform_rows(model)
    patch(model, "xavier")
    for module in model.modules():
        module._is_hf_initialized = False
    model.init_weights()
    assert uniform_rows(model)


def test_the_meta_device_is_refused_before_anything_changes() -> None:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SMALL))
    patch(model)
    with pytest.raises(UnsupportedModelError, match="meta device"):
        model.resize_token_embeddings(V + 1)
    assert model.config.vocab_size == V and model.lm_head.weight.shape[0] == V
    with patched("xavier"), torch.device("meta"):
        LlamaForCausalLM(LlamaConfig(**SMALL))
