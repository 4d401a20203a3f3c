"""`EmbeddingTables`: what it finds, reads, writes and resizes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from builders import architectures
from builders.tiny_models import (
    SEQ2SEQ,
    SMALL,
    V,
    bart,
    bert,
    gpt2,
    llama,
    marian,
    marian_with_two_vocabularies,
    mobilebert,
    t5,
    t5_with_separate_head,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.prune import l1_unstructured
from transformers import (
    BertConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    FSMTConfig,
    FSMTForConditionalGeneration,
    ViTConfig,
    ViTModel,
    XLMConfig,
    XLMWithLMHeadModel,
)

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, UnsupportedModelError
from hf_embinit.tables import EmbeddingTables


def summary(model: nn.Module) -> list[tuple[str, str, str, str | None, list[str]]]:
    tables = EmbeddingTables(model).tables
    return [(t.name, t.role, t.side, t.tied_to, [tied.name for tied in t.bias]) for t in tables]


WORDS = "bert.embeddings.word_embeddings.weight"
BERT_BIAS, BERT_OWN_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"


def test_what_is_found() -> None:
    head = "cls.predictions.decoder.weight"
    assert summary(bert()) == [
        (WORDS, "input", "shared", None, []),
        (head, "output", "shared", WORDS, [BERT_BIAS]),
    ]
    untied = summary(bert(tie_word_embeddings=False))
    assert untied[1][:4] == (head, "output", "shared", None)
    assert sorted(untied[1][4]) == [BERT_BIAS, BERT_OWN_BIAS]
    assert summary(bert().bert) == [("embeddings.word_embeddings.weight", "input", "shared", None, [])]
    wte = "transformer.wte.weight"
    assert summary(gpt2()) == [
        (wte, "input", "shared", None, []),
        ("lm_head.weight", "output", "shared", wte, []),
    ]
    assert [row[3] for row in summary(llama())] == [None, None]
    shared = "model.shared.weight"
    assert summary(bart()) == [
        (shared, "input", "shared", None, []),
        ("lm_head.weight", "output", "shared", shared, ["final_logits_bias"]),
    ]
    assert [row[0] for row in summary(bart(tie_word_embeddings=False))] == [
        shared,
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ]
    assert [row[2:4] for row in summary(t5_with_separate_head())] == [("shared", None)] * 2


def test_two_vocabularies_have_two_sides() -> None:
    tables = EmbeddingTables(marian_with_two_vocabularies())
    assert [(t.side, t.num_embeddings) for t in tables.tables] == [
        ("source", V),
        ("target", 37),
        ("target", 37),
    ]
    same_size = marian(share_encoder_decoder_embeddings=False)
    assert {t.side for t in EmbeddingTables(same_size).tables} == {"source", "target"}
    assert {t.side for t in EmbeddingTables(bart(tie_word_embeddings=False)).tables} == {"shared"}
    with pytest.raises(UnsupportedModelError, match="source and target"):
        tables.resize(70)
    result = tables.resize(40, side="target")
    assert list(result.new_ids) == [37, 38, 39]
    config = tables.model.config
    assert (config.vocab_size, config.decoder_vocab_size) == (V, 40)
    assert tables.model.final_logits_bias.shape == (1, 40)
    tables.resize(70, side="source")
    assert (config.vocab_size, config.decoder_vocab_size) == (70, 40)


def test_configs_of_an_encoder_decoder_pair() -> None:
    for size in (37, V):
        decoder = BertConfig(**{**SMALL, "vocab_size": size}, is_decoder=True, add_cross_attention=True)
        config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**SMALL), decoder)
        model = EncoderDecoderModel(config)
        tables = EmbeddingTables(model)
        tables.resize(size + 3, side="target")
        tables.resize(64, side="source")
        assert (model.config.encoder.vocab_size, model.config.decoder.vocab_size) == (64, size + 3)
        assert model.decoder.cls.predictions.bias.shape == (size + 3,)


def test_fsmt_sizes() -> None:
    sizes = {k: v for k, v in SEQ2SEQ.items() if k != "vocab_size"}
    model = FSMTForConditionalGeneration(FSMTConfig(src_vocab_size=V, tgt_vocab_size=37, **sizes))
    EmbeddingTables(model).resize(40, side="target")
    assert (model.config.src_vocab_size, model.config.tgt_vocab_size) == (V, 40)
    assert model.model.decoder.output_projection.weight.shape[0] == 40


BUILDERS = [
    bert,
    lambda: bert(tie_word_embeddings=False),
    gpt2,
    lambda: gpt2(tie_word_embeddings=False),
    llama,
    lambda: llama(tie_word_embeddings=True),
    t5,
    t5_with_separate_head,
    bart,
    lambda: bart(tie_word_embeddings=False),
    marian,
    mobilebert,
]


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_growing_keeps_everything_old(build, dtype) -> None:
    model = build().to(dtype)
    tables = EmbeddingTables(model)
    for table in tables.own_tables:
        table.parameter.requires_grad_(table.role == "output")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    identity = [[id(location.tensor) for location in table.tied.locations] for table in tables.tables]
    trainable = [table.parameter.requires_grad for table in tables.tables]
    rng = torch.get_rng_state()
    result = tables.resize(V + 7)
    assert torch.equal(rng, torch.get_rng_state())
    assert list(result.new_ids) == list(range(V, V + 7))
    assert set(result.new_rows) == {t.name for t in tables.own_tables}
    assert identity == [[id(location.tensor) for location in table.tied.locations] for table in tables.tables]
    assert trainable == [table.parameter.requires_grad for table in tables.tables]
    for name, tensor in model.state_dict().items():
        old = before[name]
        kept = tuple(slice(0, size) for size in old.shape)
        assert tensor.dtype == old.dtype == dtype
        assert torch.equal(tensor[kept], old), name
    assert model.config.vocab_size == V + 7
    fresh = EmbeddingTables(model)
    assert [(t.name, t.tied_to, t.num_embeddings) for t in fresh.tables] == [
        (t.name, t.tied_to, V + 7) for t in tables.tables
    ]


def test_shrinking_padding_and_no_op() -> None:
    model = gpt2()
    before = model.transformer.wte.weight.detach().clone()
    tables = EmbeddingTables(model)
    assert tables.resize(V).new_rows == {"transformer.wte.weight": range(V, V)}
    result = tables.resize(pad_to_multiple_of=16)
    assert (result.old_num, result.new_num) == (V, 64)
    result = tables.resize(20)
    assert list(result.new_ids) == [] and all(len(rows) == 0 for rows in result.new_rows.values())
    assert torch.equal(model.lm_head.weight, before[:20])
    assert model.config.vocab_size == 20
    model = bert(pad_token_id=50)
    EmbeddingTables(model).resize(40)
    assert model.bert.embeddings.word_embeddings.padding_idx is None
    assert model.cls.predictions.bias.shape == (40,)
    model(torch.arange(40)[None]).logits.sum().backward()


def test_a_stale_gradient_is_dropped() -> None:
    model = gpt2()
    model(torch.arange(5)[None]).logits.sum().backward()
    EmbeddingTables(model).resize(V + 3)
    assert model.transformer.wte.weight.grad is None
    model(torch.arange(V, V + 3)[None]).logits.sum().backward()


def test_an_optimizer_made_before_still_steps() -> None:
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    EmbeddingTables(model).resize(V + 3)
    model(torch.arange(V, V + 3)[None]).logits.pow(2).sum().backward()
    before = model.transformer.wte.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, model.transformer.wte.weight)


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=["plain", "fused"])
def test_an_optimizer_that_has_stepped_refuses_a_table_of_other_rows(options: dict[str, bool]) -> None:
    """Its state is of the old shape; a fused one of torch would write beyond it."""
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step(stepping: torch.optim.Optimizer) -> None:
        model(torch.arange(5)[None]).logits.pow(2).sum().backward()
        stepping.step()
        stepping.zero_grad()

    step(optimizer)
    EmbeddingTables(model).resize(V + 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=rf"the shape \[{V + 3}, .* AdamW .* \[{V}, .*anew"):
            step(optimizer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    fresh = torch.optim.AdamW(model.parameters(), **options)
    step(fresh)
    step(fresh)
    with pytest.raises(InvalidArgumentError, match="anew"):  # still, after one that may step has
        step(optimizer)
    model.transformer.wte.weight.requires_grad_(False)  # what no optimizer changes keeps what state it likes
    model.zero_grad()
    step(optimizer)


def test_states_that_have_another_shape_by_design_are_no_old_ones() -> None:
    """Adafactor keeps sums of rows and of columns; here they are of a run that goes on after the growth."""
    model = gpt2()
    EmbeddingTables(model).resize(V + 3)
    saved = None
    for _ in range(2):
        optimizer = torch.optim.Adafactor(model.parameters())
        if saved is not None:
            optimizer.load_state_dict(saved)
            EmbeddingTables(model).resize(V)
            EmbeddingTables(model).resize(V + 3)
        model(torch.arange(5)[None]).logits.pow(2).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict()


def test_read_and_write() -> None:
    model = mobilebert().to(torch.bfloat16)
    tables = EmbeddingTables(model)
    dense = next(t for t in tables.tables if t.transposed)
    assert tables.read(dense).shape == (V, 8) and dense.parameter.shape == (8, V)
    rows = torch.arange(16.0).view(2, 8)
    for ids in ([4, 60], torch.tensor([4, 60])):
        tables.write(dense, rows, ids)
        assert torch.equal(dense.parameter[:, [4, 60]].T, rows.to(torch.bfloat16))
    tables.write(dense, rows, range(7, 9))
    assert torch.equal(tables.read(dense)[7:9], rows.to(torch.bfloat16))
    assert dense.parameter.requires_grad and dense.parameter.dtype == torch.bfloat16
    head = tables.output_tables[0]
    tables.write_bias(head, [torch.tensor([1.0, 2.0])], [0, 3])
    tables.write_bias(head, [-5.0], range(10, 12))
    assert model.cls.predictions.bias[[0, 3, 10, 11]].tolist() == [1.0, 2.0, -5.0, -5.0]
    with pytest.raises(InvalidArgumentError, match=r"\(2, 8\).*3 rows"):
        tables.write(dense, rows, [1, 2, 3])
    model = marian()
    tables = EmbeddingTables(model)
    tables.write_bias(tables.output_tables[0], [torch.arange(float(V))])
    assert torch.equal(model.final_logits_bias[0], torch.arange(float(V)))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_integers_of_other_types_are_sizes(kind) -> None:
    model = gpt2()
    EmbeddingTables(model).resize(kind(70), pad_to_multiple_of=kind(8))
    assert type(model.config.vocab_size) is int and model.config.vocab_size == 72


@pytest.mark.parametrize("bad", [0, -3, True, 2.5, "7"])
def test_sizes_that_make_no_sense(bad) -> None:
    tables = EmbeddingTables(gpt2())
    with pytest.raises(InvalidArgumentError, match="new_num_tokens"):
        tables.resize(bad)
    with pytest.raises(InvalidArgumentError, match="pad_to_multiple_of"):
        tables.resize(70, pad_to_multiple_of=bad)
    assert tables.model.config.vocab_size == V


def test_refusals_leave_the_model_alone() -> None:
    with pytest.raises(UnsupportedModelError, match="no single token table"):
        EmbeddingTables(ViTModel(ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)))
    with pytest.raises(UnsupportedModelError, match="neither a transformers model"):
        EmbeddingTables(nn.Embedding(3, 4))
    with torch.device("meta"):
        on_meta = llama()
    with pytest.raises(UnsupportedModelError, match="meta device"):
        EmbeddingTables(on_meta).resize(70)
    assert on_meta.lm_head.weight.shape[0] == V and on_meta.config.vocab_size == V
    adaptive = XLMWithLMHeadModel(XLMConfig(vocab_size=V, emb_dim=16, n_layers=1, n_heads=2))
    adaptive.pred_layer.proj = nn.AdaptiveLogSoftmaxWithLoss(16, V, [20, 40])
    with pytest.raises(UnsupportedModelError, match="adaptive softmax"):
        EmbeddingTables(adaptive)
    quantised = llama()
    quantised.lm_head.weight = nn.Parameter(
        quantised.lm_head.weight.detach().to(torch.int8), requires_grad=False
    )
    with pytest.raises(UnsupportedModelError, match=r"lm_head.*quantised"):
        EmbeddingTables(quantised)


class InFloat32(nn.Sequential):
    """What notebooks of QLoRA put around a head."""

    def forward(self, x):
        return super().forward(x).float()


def wrapped(model, around):
    model.lm_head = around(model.lm_head)
    return model


@pytest.mark.parametrize("build", [llama, lambda: bart(tie_word_embeddings=False), gpt2])
def test_a_head_inside_another_module_grows_too(build) -> None:
    model, plain = wrapped(build(), InFloat32), build()
    EmbeddingTables(model).resize(V + 3)
    EmbeddingTables(plain).resize(V + 3)
    assert model.lm_head[0].weight.shape == plain.lm_head.weight.shape == (V + 3, 16)
    ids = torch.tensor([[1, 5, V + 2]])
    assert model(input_ids=ids, labels=ids).logits.shape == (1, 3, V + 3)
    padded = llama()
    padded.lm_head = InFloat32(nn.Linear(16, 64, bias=False))
    tables = EmbeddingTables(padded)
    assert [t.num_embeddings for t in tables.tables] == [V, 64]


def test_a_head_in_which_no_table_is_found_is_refused() -> None:
    class Computed(nn.Module):
        def __init__(self, head):
            super().__init__()
            self.register_buffer("codes", head.weight.detach().to(torch.int8).flatten())

    for head in (Computed, lambda head: InFloat32(nn.Linear(16, 8), nn.Linear(8, V + 1))):
        with pytest.raises(UnsupportedModelError, match=r"no single table of 61 rows.*get_output_embeddings"):
            EmbeddingTables(wrapped(llama(), head))


@pytest.mark.parametrize("kind", ["Deberta", "DebertaV2"])
def test_a_dense_layer_that_a_model_gives_as_its_head_is_none(kind) -> None:
    """Not `legacy`, the head is the input table and a bias, and `get_output_embeddings` the layer before."""
    config = getattr(transformers, f"{kind}Config")(**SMALL, legacy=False)
    model = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    words = f"{kind[:7].lower()}.embeddings.word_embeddings.weight"
    bias = "lm_predictions.lm_head.bias"
    assert summary(model) == [
        (words, "input", "shared", None, []),
        (words, "output", "shared", words, [bias]),
    ]
    old = model(input_ids=torch.tensor([[1, 5]])).logits.detach()
    EmbeddingTables(model).resize(V + 3)
    assert model.lm_predictions.lm_head.dense.weight.shape == (16, 16)
    new = model(input_ids=torch.tensor([[1, 5]]), labels=torch.tensor([[1, V + 2]])).logits
    torch.testing.assert_close(new[..., :V], old)
    assert new.shape[-1] == V + 3 == model.config.vocab_size


def test_models_that_fsdp1_has_flattened_are_refused(tmp_path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        for original in (False, True):
            flat = FullyShardedDataParallel(llama(), device_id=torch.device("cpu"), use_orig_params=original)
            for given in (flat, flat.module):  # the wrapper, and the model that a script unwraps
                with pytest.raises(UnsupportedModelError, match=r"sharded by FSDP: .*expand MODEL"):
                    EmbeddingTables(given)
    finally:
        dist.destroy_process_group()


def test_embeddings_inside_an_adapter_are_refused() -> None:
    peft = pytest.importorskip("peft")
    for config in (
        peft.LoraConfig(target_modules=["q_proj", "embed_tokens"]),
        peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
        peft.LoraConfig(target_modules=["q_proj"], trainable_token_indices=[1, 2]),
    ):
        model = peft.get_peft_model(llama(), config)
        with pytest.raises(UnsupportedModelError, match="adapter"):
            EmbeddingTables(model)
    assert (
        EmbeddingTables(peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj"]))).vocab_size()
        == V
    )


def test_extra_rows_stay_behind_the_vocabulary() -> None:
    """CpmAnt and Moshi look rows up at `vocab_size + i`; Mllama's image token keeps its id."""
    model = architectures.build("CpmAntForCausalLM")
    tables = EmbeddingTables(model)
    table = tables.input_tables[0]
    old, size = tables.read(table).clone(), tables.vocab_size()
    assert table.extra_rows == model.config.prompt_types * model.config.prompt_length > 0
    result = tables.resize(size + 5)
    assert result.new_rows[table.name] == range(size, size + 5)
    new = tables.read(table)
    assert torch.equal(new[:size], old[:size]) and torch.equal(new[size + 5 :], old[size:])
    model = architectures.build("MllamaForCausalLM")
    tables = EmbeddingTables(model)
    table, size = tables.input_tables[0], tables.vocab_size()
    old = tables.read(table).clone()
    assert (table.extra_rows, table.extra_rows_are) == (8, "fixed")
    tables.resize(size + 5)
    assert torch.equal(tables.read(table)[: size + 8], old)
    assert (table.num_embeddings, model.lm_head.weight.shape[0]) == (size + 13, size + 5)


@pytest.mark.needs("transformers>=5.16")
def test_a_head_with_durations_behind_the_tokens_keeps_its_size() -> None:
    """Parakeet's cuts its scores at the vocabulary's size: rows may be others, and no more of them."""
    model = architectures.build("ParakeetForTDT")
    size = model.config.vocab_size
    with pytest.raises(UnsupportedModelError, match="durations behind the tokens in one head"):
        EmbeddingTables(model).resize(size + 2)
    assert model.decoder.embedding.num_embeddings == size
    hf_embinit.initialize(model, "xavier", seed=0)


def test_experts_by_token_grow_with_the_vocabulary() -> None:
    model = architectures.build("DeepseekV4ForCausalLM")
    tables = EmbeddingTables(model)
    assert tables.companions
    for tied in tables.companions:
        tied.tensor.copy_(torch.arange(tied.tensor.numel()).view_as(tied.tensor) % 4)
    tables.resize(tables.vocab_size() + 3)
    for tied in tables.companions:
        assert torch.equal(tied.tensor[-3:], tied.tensor[:3])


def test_sizes_equal_to_other_dimensions_confuse_nothing() -> None:
    """A vocabulary as large as the width, the positions and the feed-forward layer."""
    for model in (
        bert(vocab_size=24, max_position_embeddings=24, hidden_size=24, type_vocab_size=24),
        gpt2(vocab_size=24, n_embd=24, n_positions=24),
        llama(vocab_size=24, hidden_size=24),
        bart(vocab_size=24, d_model=24, max_position_embeddings=24),
        t5(vocab_size=24, d_model=24),
    ):
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        tables = EmbeddingTables(model)
        ours = {p.name for t in tables.tables for tied in (t.tied, *t.bias) for p in tied.locations}
        tables.resize(31)
        for name, tensor in model.state_dict().items():
            assert (tensor.shape != shapes[name]) == (name in ours), name
        again = type(model)(model.config)
        assert {k: v.shape for k, v in again.state_dict().items()} == {
            k: v.shape for k, v in model.state_dict().items()
        }


@settings(max_examples=40, deadline=None)
@given(
    build=st.sampled_from([bert, gpt2, llama, t5, bart, marian]),
    tie=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    old=st.integers(5, 40),
    new=st.one_of(st.none(), st.integers(1, 60)),
    multiple=st.one_of(st.none(), st.integers(1, 17)),
    width=st.sampled_from([8, 16]),
)
def test_any_resize_keeps_old_rows_and_reloads(build, tie, dtype, old, new, multiple, width) -> None:
    wide = {"d_model": width} if build in (t5, bart, marian) else {"hidden_size": width}
    if build is gpt2:
        wide = {"n_embd": width}
    model = build(vocab_size=old, tie_word_embeddings=tie, **wide).to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tables = EmbeddingTables(model)
    result = tables.resize(new, pad_to_multiple_of=multiple)
    expected = old if new is None else new
    expected = -(-expected // multiple) * multiple if multiple else expected
    assert (result.old_num, result.new_num, tables.vocab_size()) == (old, expected, expected)
    for name, tensor in model.state_dict().items():
        both = tuple(slice(0, min(a, b)) for a, b in zip(tensor.shape, before[name].shape, strict=True))
        assert torch.equal(tensor[both], before[name][both]) and tensor.dtype == dtype
    if expected > 3:  # special tokens must fit for the class to be built again
        again = type(model)(model.config)
        assert {k: v.shape for k, v in again.state_dict().items()} == {
            k: v.shape for k, v in model.state_dict().items()
        }


def computed(kind: str, layer: nn.Module) -> None:
    """Makes the weight of a layer of others, as parametrizations and pruning masks do."""
    if kind == "weight_norm":
        nn.utils.parametrizations.weight_norm(layer)
    elif kind == "spectral_norm":
        nn.utils.parametrizations.spectral_norm(layer)
    else:
        l1_unstructured(layer, "weight", 0.3)


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "pruning mask"])
def test_weights_that_are_made_of_others(kind) -> None:
    m = llama().eval()
    computed(kind, m.model.layers[0].self_attn.q_proj)
    ids = torch.arange(5, 10)[None]
    before, rows = m(ids).logits.detach(), m.config.vocab_size
    EmbeddingTables(m).resize(rows + 3)
    assert torch.equal(m(ids).logits[..., :rows], before)
    computed(kind, m.lm_head)
    with pytest.raises(UnsupportedModelError, match=r"the weight of the head of Llama.* is made of other"):
        EmbeddingTables(m)
