"""`patched`: the same for every model of a block, and nothing left after it."""

from __future__ import annotations

import contextvars
import copy
import threading

import pytest
import torch
from builders.tables import mean_rows, uniform_rows
from builders.tiny_models import (
    SEQ2SEQ,
    SMALL,
    V,
    bart,
    bert,
    gpt2,
    llama,
    marian,
    spread,
    word_tokenizer,
)
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
)

from hf_embinit.manifest import read_manifest
from hf_embinit.patching import patched
from hf_embinit.tables import EmbeddingTables

CONFIGS = [
    BertConfig(**SMALL),
    GPT2Config(vocab_size=V, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0),
    LlamaConfig(**SMALL),
    BartConfig(**SEQ2SEQ),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.model_type)
def test_models_built_inside_are_initialized_by_name(config) -> None:
    config = copy.deepcopy(config)
    torch.manual_seed(0)
    with patched("xavier", seed=2):
        model = AutoModel.from_config(config)
    assert uniform_rows(model)
    assert [(event["event"], event["init"]) for event in read_manifest(model)] == [("initialize", "xavier")]
    torch.manual_seed(0)
    plain = AutoModel.from_config(copy.deepcopy(config))
    assert not uniform_rows(plain)
    tables = {t.name for t in EmbeddingTables(model).input_tables}
    for name, tensor in model.named_parameters():
        if name not in tables:
            assert torch.equal(tensor, plain.get_parameter(name)), f"{name} changed"


def test_patched_equals_initialize() -> None:
    from hf_embinit.initialization import initialize

    with patched("xavier", seed=5):
        inside = BertForMaskedLM(BertConfig(**SMALL))
    outside = bert()
    initialize(outside, "xavier", seed=5)
    weight = inside.bert.embeddings.word_embeddings.weight
    assert torch.equal(weight, outside.bert.embeddings.word_embeddings.weight)
    assert inside.cls.predictions.decoder.weight is weight


def test_loaded_rows_are_never_initialized_again(tmp_path) -> None:
    model = llama()
    model.save_pretrained(tmp_path)
    with patched("xavier"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert torch.equal(base.embed_tokens.weight, model.model.embed_tokens.weight)
    assert not read_manifest(loaded)


def test_loaded_rows_of_tokens_that_were_there_before_stay(tmp_path) -> None:
    model, tokenizer = llama(), word_tokenizer(V - 2)
    spread(model)
    model.save_pretrained(tmp_path)
    with patched("zeros", tokenizer=tokenizer):
        tokenizer.add_tokens(["trained"])
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        loaded.resize_token_embeddings(V)
        assert torch.equal(loaded.model.embed_tokens.weight, model.model.embed_tokens.weight)
        tokenizer.add_tokens(["new"])
        loaded.resize_token_embeddings(V)
    expected = model.model.embed_tokens.weight.clone()
    expected[V - 1] = 0.0
    assert torch.equal(loaded.model.embed_tokens.weight, expected)


def test_patched_serves_helpers_that_resize(tmp_path) -> None:
    """The model comes from elsewhere, and the helper knows nothing of us."""

    def helper(model: PreTrainedModel) -> None:
        model.resize_token_embeddings(V + 2, pad_to_multiple_of=4)

    for build in (llama, bart, marian, bert):
        model = build()
        spread(model)
        with patched("mean"):
            helper(model)
        assert mean_rows(model) and read_manifest(model)[-1]["init"] == "mean"
        assert not vars(model).keys() & {"resize_token_embeddings", "_init_weights"}
        model.resize_token_embeddings(V + 9)
        assert len(read_manifest(model)) == 1


def methods() -> dict[tuple[type, str], object]:
    found = {}
    classes = [PreTrainedModel]
    for cls in classes:
        classes.extend(c for c in cls.__subclasses__() if c not in classes)
        for name in ("resize_token_embeddings", "resize_decoder_token_embeddings", "initialize_weights"):
            if name in vars(cls):
                found[cls, name] = vars(cls)[name]
    return found


def test_transformers_is_restored_after_exceptions_and_nesting() -> None:
    before = methods()
    model = llama()
    spread(model)
    with pytest.raises(RuntimeError, match="ours"), patched("zeros"):
        with patched("mean"):
            assert methods() != before
            model.resize_token_embeddings(V + 1)
        model.resize_token_embeddings(V + 2)
        raise RuntimeError("ours")
    assert methods() == before
    assert [event["init"] for event in read_manifest(model)] == ["mean", "zeros"]
    with patched("xavier"):
        import transformers.models.opt.modeling_opt as opt  # a class that is imported inside
        from transformers import OPTConfig

        config = OPTConfig(
            vocab_size=V, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=24
        )
        inside = opt.OPTForCausalLM(config)
    assert uniform_rows(inside) and methods().items() >= before.items()
    assert not any(hasattr(method, "_hf_embinit_original") for method in methods().values())


def test_threads_do_not_see_each_other() -> None:
    before = methods()
    barrier = threading.Barrier(3, timeout=30)
    results: dict[str, list[str]] = {}
    failures: list[BaseException] = []

    def work(init: str | None) -> None:
        try:
            model = llama()
            barrier.wait()
            if init is None:
                barrier.wait()
                model.resize_token_embeddings(V + 2)
            else:
                with patched(init):
                    barrier.wait()
                    model.resize_token_embeddings(V + 2)
            results[str(init)] = [event["init"] for event in read_manifest(model)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(init,)) for init in ("mean", "zeros", None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert results == {"mean": ["mean"], "zeros": ["zeros"], "None": []}
    assert methods() == before


def test_a_block_that_another_context_closes_is_over_everywhere() -> None:
    before = methods()

    def block():
        with patched("zeros"):
            yield

    generator, context = block(), contextvars.copy_context()
    context.run(next, generator)
    generator.close()
    assert methods() == before
    model = gpt2()
    with patched("mean"):  # the methods are wrapped again
        context.run(model.resize_token_embeddings, V + 1)
    assert not read_manifest(model)
