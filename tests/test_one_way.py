"""One way through a table: what its callers have in common, and that nothing is written by halves."""

from __future__ import annotations

import copy
import math
import signal
import sys
from pathlib import Path

import pytest
import torch
from builders import tiny_tokenizers
from builders.tiny_models import V, bert, gpt2, llama, marian_with_two_vocabularies, spread, word_tokenizer
from tokenizers import AddedToken
from transformers import Gemma2Config, Gemma2ForCausalLM

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, VocabularyWarning
from hf_embinit.patching import patch, patched
from hf_embinit.rows import RowRequest
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vectors import PretrainedVectors

PACKAGE = str(Path(hf_embinit.__file__).parent)
DOOR = str(Path(hf_embinit.__file__).parent / "arguments.py")
"""Where arguments are checked: nothing has begun yet."""


def words(tokens: list[str], dim: int = 16) -> PretrainedVectors:
    matrix = torch.randn(len(tokens), dim, generator=torch.Generator().manual_seed(3))
    return PretrainedVectors(tokens, matrix, name="words")


def state(model) -> dict:
    """All that a resize may change, as values."""
    return {
        "tensors": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "config": copy.deepcopy(model.config.to_dict()),
        "sizes": {name: getattr(m, "num_embeddings", None) for name, m in model.named_modules()},
    }


def same(a: dict, b: dict) -> bool:
    tensors = a["tensors"].keys() == b["tensors"].keys() and all(
        torch.equal(tensor, b["tensors"][name]) for name, tensor in a["tensors"].items()
    )
    return tensors and a["config"] == b["config"] and a["sizes"] == b["sizes"]


# --- drifts


@pytest.mark.parametrize("caller", ["initialize", "_init_weights", "patched"])
def test_source_and_target_tables_get_different_draws(caller) -> None:
    model = marian_with_two_vocabularies()
    if caller == "initialize":
        hf_embinit.initialize(model, "normal", seed=1)
    elif caller == "_init_weights":
        patch(model, "normal", seed=1)
        for table in EmbeddingTables(model).input_tables:
            model._init_weights(table.module)
    else:
        config = model.config
        with patched("normal", seed=1):
            model = type(model)(config)
    tables = EmbeddingTables(model)
    source, target = (tables.read(t) for t in tables.input_tables)
    assert not torch.equal(source[4:37], target[4:37])
    again = marian_with_two_vocabularies()
    hf_embinit.initialize(again, "normal", seed=1)
    for table in EmbeddingTables(again).input_tables:
        assert torch.equal(table.parameter, model.get_parameter(table.name)), "all callers draw alike"


@pytest.mark.parametrize("caller", ["initialize", "patch", "expand"])
@pytest.mark.parametrize("init", ["pretrained", "pretrained_map"])
def test_special_tokens_are_not_looked_up_in_words_by_any_caller(caller, init) -> None:
    if caller == "initialize" and init == "pretrained_map":
        pytest.skip("makes rows beside a table")
    vectors = words(["[event]", "hobbit", *(f"w{i}" for i in range(V))])
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    added = [AddedToken("[event]", special=True), "hobbit"]
    if caller == "initialize":
        tokenizer.add_tokens(added)
        model = llama(vocab_size=V + 2)
        hf_embinit.initialize(model, init, tokenizer=tokenizer, vectors=vectors)
    elif caller == "patch":
        patch(model, init, tokenizer=tokenizer, vectors=vectors)
        tokenizer.add_tokens(added)
        model.resize_token_embeddings(len(tokenizer))
    else:
        hf_embinit.expand_vocabulary(model, tokenizer, added, init, vectors=vectors)
    rows = model.model.embed_tokens.weight
    event, hobbit = tokenizer.convert_tokens_to_ids(["[event]", "hobbit"])
    if init == "pretrained":
        assert torch.equal(rows[hobbit], vectors.matrix[1])
        assert not torch.equal(rows[event], vectors.matrix[0])
    else:
        mean = rows[:V].mean(0)
        assert torch.allclose(rows[event], mean, atol=1e-5)
        assert not torch.allclose(rows[hobbit], mean, atol=1e-3)


@pytest.mark.parametrize("added", [[], [AddedToken("[event]", special=True)]])
@pytest.mark.parametrize(
    "init", ["glove", "glove_xavier", "glove_shuffled", "xavier_glove", "pretrained_map"]
)
def test_rows_that_no_text_belongs_to_need_no_vectors(init, added) -> None:
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    vectors = words([f"w{i}" for i in range(V)])
    patch(model, init, tokenizer=tokenizer, vectors=vectors)
    tokenizer.add_tokens(added)
    model.resize_token_embeddings(V + 9)
    rows = model.model.embed_tokens.weight[V:]
    assert len(rows) == 9 and torch.isfinite(rows).all()
    if init == "glove":
        assert float(rows.std()) == pytest.approx(float(vectors.matrix.std()), rel=0.3)
    with pytest.raises(InvalidArgumentError, match="has 0 of the 1 tokens"):
        hf_embinit.expand_vocabulary(model, tokenizer, ["hobbit"], "glove", vectors=vectors, slots=None)


@pytest.mark.parametrize("caller", ["patch", "patched", "expand"])
def test_an_override_may_name_its_first_option_alone(caller) -> None:
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    overrides = {"x": ("copy", "w7")}
    if caller == "expand":
        hf_embinit.expand_vocabulary(model, tokenizer, ["x"], overrides=overrides)
    elif caller == "patch":
        patch(model, tokenizer=tokenizer, overrides=overrides)
        tokenizer.add_tokens(["x"])
        model.resize_token_embeddings(len(tokenizer))
    else:
        with patched(tokenizer=tokenizer, overrides=overrides):
            tokenizer.add_tokens(["x"])
            model.resize_token_embeddings(len(tokenizer))
    assert torch.equal(model.lm_head.weight[V], model.lm_head.weight[7])


# --- nothing by halves


def lines_of(call) -> list[tuple[str, int]]:
    """Every line of the package that `call` runs, once each."""
    seen: dict[tuple[str, int], None] = {}

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_filename == DOOR:
            return None
        if event == "line":
            seen[frame.f_code.co_filename, frame.f_lineno] = None
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return list(seen)


def interrupted_at(line: tuple[str, int], call) -> bool:
    """Runs `call` with Ctrl-C pressed as it first reaches a line; whether it ended by that."""
    pressed = []
    old = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

    def trace(frame, event, argument):
        if pressed or frame.f_code.co_filename != line[0]:
            return None
        if event == "line" and frame.f_lineno == line[1]:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGINT, old)
    return False


def resized():
    model, tokenizer = llama(), word_tokenizer(V - 2)
    spread(model)
    patch(model, "subword_mean", tokenizer=tokenizer)
    tokenizer.add_tokens(["w1 w2", "w3", "w4 w5", "w1 w7"])
    return model, tokenizer, lambda: model.resize_token_embeddings(V + 5)


def expanded():
    model, tokenizer = bert(), word_tokenizer(V - 2)
    spread(model)
    return (
        model,
        tokenizer,
        lambda: hf_embinit.expand_vocabulary(model, tokenizer, ["w1 w2", "w1 w7", "w2 w3"]),
    )


def initialized():
    model, tokenizer = marian_with_two_vocabularies(), word_tokenizer()
    return model, tokenizer, lambda: hf_embinit.initialize(model, "normal", seed=1)


@pytest.mark.parametrize("build", [resized, expanded, initialized])
def test_an_interrupt_at_any_line_leaves_all_or_nothing(build) -> None:
    torch.manual_seed(0)
    build()[2]()  # imports what it needs
    model, tokenizer, call = build()
    start = copy.deepcopy(model.state_dict())
    lines = lines_of(call)
    after, tokens_after = state(model), dict(tokenizer.get_vocab())
    interrupts, nothing = 0, False
    for line in lines:
        if not nothing:  # after an interrupt that changed nothing, the same model must do as well
            model, tokenizer, call = build()
            model.load_state_dict(start)
            before, tokens_before = state(model), dict(tokenizer.get_vocab())
        interrupts += interrupted_at(line, call)
        now, tokens = state(model), tokenizer.get_vocab()
        nothing = same(now, before) and tokens == tokens_before
        assert nothing or (same(now, after) and tokens == tokens_after), f"by halves after {line}"
    assert interrupts > 0.9 * len(lines)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model, tokenizer: setattr(model.config, "embinit", {"event": "resize"}),
        lambda model, tokenizer: setattr(tokenizer, "get_vocab", None),
    ],
)
def test_a_resize_that_fails_leaves_the_model_as_it_was(spoil) -> None:
    model, tokenizer, call = resized()
    spoil(model, tokenizer)
    before = state(model)
    with pytest.raises((InvalidArgumentError, TypeError)):
        call()
    assert same(state(model), before)


@pytest.mark.filterwarnings("error")
def test_warnings_as_errors_leave_model_and_tokenizer_as_they_were() -> None:
    model, tokenizer = gpt2(), word_tokenizer()
    before, tokens = state(model), dict(tokenizer.get_vocab())
    with pytest.raises(VocabularyWarning, match="equal rows"):
        hf_embinit.expand_vocabulary(model, tokenizer, ["new", "newer"], "copy", of="w3")
    assert same(state(model), before) and tokenizer.get_vocab() == tokens


# --- trained rows


def test_a_token_that_was_trained_in_a_padding_row_is_never_initialized_again(caplog) -> None:
    for how in ("expand_vocabulary", "add_tokens", "padding of a resize"):
        model, tokenizer = llama(), word_tokenizer(V - 3)
        spread(model)
        patch(model, tokenizer=tokenizer)
        if how == "expand_vocabulary":
            hf_embinit.expand_vocabulary(model, tokenizer, ["hobbit"])
        else:
            if how == "padding of a resize":
                tokenizer.add_tokens(["elf"])
                model.resize_token_embeddings(V + 1)
            tokenizer.add_tokens(["hobbit"])
        row = tokenizer.convert_tokens_to_ids("hobbit")
        with torch.no_grad():
            model.model.embed_tokens.weight[row] += 1.0
        trained = model.model.embed_tokens.weight[row].detach().clone()
        tokenizer.add_tokens(["w1 w2", "w3 w4", "w5 w6", "w7 w8", "w8 w9"])
        model.resize_token_embeddings(V + 9)
        assert torch.equal(model.model.embed_tokens.weight[row], trained), how
    assert "'hobbit'" in caplog.text


# --- rows that are not finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("init", ["mean", "mean_cov", "subword_mean", "pretrained_map"])
def test_rows_that_are_not_finite_are_left_out_and_counted(bad, init) -> None:
    model, tokenizer = llama(), word_tokenizer()
    spread(model)
    with torch.no_grad():
        model.model.embed_tokens.weight[[5, 9], 3] = bad
    more = {"vectors": words([f"w{i}" for i in range(V)])} if init == "pretrained_map" else {}
    report = hf_embinit.expand_vocabulary(
        model, tokenizer, ["w5 w6", "w5", "q"][:1], init, prefixes=(), **more
    )
    assert report.tables[0]["left_out"]["not_finite"] == [5, 9] and report.tables[0]["usable"] == V - 2
    assert "2 not_finite" in str(report)
    rows = model.model.embed_tokens.weight
    assert torch.isfinite(rows[V:]).all()
    if init == "subword_mean":
        assert torch.equal(rows[V], rows[6])


def test_what_has_no_finite_row_is_refused() -> None:
    model, tokenizer = llama(), word_tokenizer()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    before = state(model)["config"]
    with pytest.raises(InvalidArgumentError, match=r"every old row of lm_head\.weight has NaN"):
        patch(model).resize_token_embeddings(V + 1)
    assert model.config.to_dict() == before and len(model.lm_head.weight) == V
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        model.lm_head.weight[4] = float("inf")
    with pytest.raises(InvalidArgumentError, match="of='w4'"):
        hf_embinit.expand_vocabulary(model, tokenizer, ["x"], "copy", of="w4")


def test_a_bias_of_minus_infinity_is_not_averaged() -> None:
    model = bert()
    spread(model)
    with torch.no_grad():
        model.cls.predictions.bias[-5:] = -float("inf")
    patch(model).resize_token_embeddings(V + 3)
    new = model.cls.predictions.bias[V:]
    assert torch.isfinite(new).all() and torch.allclose(
        new, model.cls.predictions.bias[1 : V - 5].mean(), atol=0.1
    )


@pytest.mark.parametrize(
    ("init", "options", "sentence"),
    [
        ("mean_cov", {"scale": float("nan")}, "scale=nan: expected a finite number at least 0"),
        ("mean_cov", {"scale": -1.0}, "scale=-1.0: expected"),
        ("mean_cov", {"scale": "1"}, "scale='1': expected"),
        ("normal", {"std": -1}, "std=-1: expected a finite number at least 0"),
        ("normal", {"mean": float("inf")}, "mean=inf: expected a finite number"),
        ("subword_mean", {"input_pooling": "max"}, "input_pooling='max': expected 'mean', 'first' or 'last'"),
        ("glove_xavier", {"per_dimension": 1.5}, "per_dimension=1.5: expected True or False"),
    ],
)
def test_options_are_checked_before_anything(init, options, sentence) -> None:
    model, tokenizer = gpt2(), word_tokenizer()
    with pytest.raises(InvalidArgumentError, match=sentence):
        patch(model, init, tokenizer=tokenizer, **options)
    with pytest.raises(InvalidArgumentError, match=sentence):
        hf_embinit.expand_vocabulary(model, tokenizer, ["x"], init, **options)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seed": "a"}, "seed='a'"),
        ({"seed": True}, "seed=True"),
        ({"exclude_rows": [0.5]}, "exclude_rows has 0.5"),
        ({"vectors": "glove.txt"}, "uses no vectors"),
        ({"overrides": {"x": ("zeros", 1)}}, "has no option"),
        ({"overrides": {"x": 3}}, "expected a name"),
    ],
)
def test_requests_are_checked_by_every_caller(arguments, sentence) -> None:
    model, tokenizer = gpt2(), word_tokenizer()
    with pytest.raises(InvalidArgumentError, match=sentence):
        patch(model, tokenizer=tokenizer, **arguments)
    with pytest.raises(InvalidArgumentError, match=sentence), patched(tokenizer=tokenizer, **arguments):
        pass
    with pytest.raises(InvalidArgumentError, match=sentence):
        hf_embinit.expand_vocabulary(model, tokenizer, ["x"], **arguments)
    assert "resize_token_embeddings" not in vars(model)


def test_a_misspelt_override_is_told() -> None:
    model, tokenizer = gpt2(), word_tokenizer()
    patch(model, tokenizer=tokenizer, overrides={"hobit": "zeros"})
    tokenizer.add_tokens(["hobbit"])
    with pytest.warns(VocabularyWarning, match=r"'hobit'.*did you mean 'hobbit'"):
        model.resize_token_embeddings(len(tokenizer))
    with pytest.raises(InvalidArgumentError, match="give tokenizer="):
        patch(gpt2(), overrides={"hobbit": "zeros"})


# --- added tokens are spelled as their text


@pytest.mark.parametrize("family", ["byte_level", "sentencepiece_bpe", "wordpiece", "unigram"])
def test_added_words_are_found_in_vectors_whatever_the_tokenizer(family) -> None:
    tokenizer = tiny_tokenizers.tokenizer(family)
    vectors = words(["Zyxomma", "zyxomma", "qorvex"])
    model = tiny_tokenizers.model("gpt2", len(tokenizer))
    report = hf_embinit.expand_vocabulary(model, tokenizer, ["zyxomma"], "pretrained", vectors=vectors)
    assert torch.equal(model.transformer.wte.weight[report.token_ids[0]], vectors.matrix[1])
    patch(model, "pretrained", tokenizer=tokenizer, vectors=vectors)
    tokenizer.add_tokens(["qorvex"])
    model.resize_token_embeddings(len(tokenizer))
    assert torch.equal(model.transformer.wte.weight[-1], vectors.matrix[2])
    report = hf_embinit.initialize(model, "pretrained", tokenizer=tokenizer, vectors=vectors)
    assert report.tables[0].coverage["types_found"] >= 2
    assert torch.equal(model.transformer.wte.weight[-1], vectors.matrix[2])


# --- sizes


@pytest.mark.parametrize("call", ["patch", "expand"])
def test_sizes_that_do_not_fit_into_memory_are_one_sentence(call) -> None:
    model, tokenizer = gpt2(), word_tokenizer()
    with pytest.raises(InvalidArgumentError, match=r"GiB on cpu, where .* free"):
        if call == "patch":
            patch(model).resize_token_embeddings(V + 1, pad_to_multiple_of=10**12)
        else:
            hf_embinit.expand_vocabulary(model, tokenizer, ["x"], pad_to_multiple_of=10**12)
    assert len(model.transformer.wte.weight) == V and "x" not in tokenizer.get_vocab()


def test_submodules_in_eval_mode_stay_so() -> None:
    model, tokenizer = llama(), word_tokenizer()
    model.train()
    model.model.layers[0].self_attn.eval()
    before = {name: module.training for name, module in model.named_modules()}
    hf_embinit.expand_vocabulary(model, tokenizer, ["x"])
    assert before == {name: module.training for name, module in model.named_modules()}


def test_capped_logits_have_a_bound_of_their_own() -> None:
    """At a head that makes one old logit huge and the others low, log(1 + m / n) does not hold."""
    config = Gemma2Config(
        vocab_size=V, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=16, tie_word_embeddings=False, final_logit_softcapping=30.0,
    )  # fmt: skip
    model, tokenizer = Gemma2ForCausalLM(config), word_tokenizer()
    report = hf_embinit.expand_vocabulary(copy.deepcopy(model), tokenizer, ["x"], prefixes=["w7"])
    plain = math.log1p(1 / report.tables[-1]["usable"])
    assert report.shift is not None and report.shift.bound == pytest.approx(plain)
    assert report.shift.kl_max <= plain + 1e-6
    assert "logits are capped at 30, the largest is" in str(report)
    assert report.bound == pytest.approx(math.log(2)) and report.logit_cap == 30

    hidden = model.model(torch.tensor([tokenizer("w7")["input_ids"]])).last_hidden_state[0, 0].detach()
    with torch.no_grad():  # logits of 4000 for one token and -20 for the others, before they are capped
        wanted = torch.full((V, 1), -20.0).index_fill_(0, torch.tensor([4]), 4000.0)
        model.lm_head.weight.copy_(wanted * hidden / hidden.dot(hidden))
    report = hf_embinit.expand_vocabulary(model, word_tokenizer(), ["x"], prefixes=["w7"])
    assert report.shift is not None and report.shift.kl_max > plain + 0.01
    assert report.shift.kl_max <= report.bound + 1e-6 and report.shift.bound == report.bound


def test_a_request_can_be_asked_twice() -> None:
    request = RowRequest("copy", options={"of": 3}, tokenizer=word_tokenizer())
    assert request.record.name == "copy" and request.record.pieces is not None
