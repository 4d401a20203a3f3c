"""`expand_vocabulary`: what it adds, what it leaves alone, what it says."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from builders.tiny_models import bart, bert, marian, marian_with_two_vocabularies, word_tokenizer
from builders.tiny_tokenizers import FAMILIES, logits, model, t5_like, texts, tokenizer
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from hf_embinit import doctor
from hf_embinit.errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError, VocabularyWarning
from hf_embinit.manifest import read_manifest
from hf_embinit.measures.divergence import kl_divergence
from hf_embinit.patching import patch
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vectors import PretrainedVectors
from hf_embinit.vocabulary import effective_rank, expand_vocabulary, propose_tokens, smallest_distance

NEW = [" zyxomma", " qorvex", " blimp"]


def pair(kind: str = "gpt2", *, rows: int = 0, **config):
    """A byte-level tokenizer and a model with that many rows more than it has tokens."""
    t = tokenizer("byte_level")
    return model(kind, len(t) + rows, **config), t


def ids_of(t, text: str) -> torch.Tensor:
    return torch.tensor([t(text)["input_ids"]])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "bart"])
@pytest.mark.parametrize("init", ["mean", "mean_cov", "subword_mean", "zeros", "default"])
def test_old_logits_stay_and_the_report_is_what_a_user_would_measure(
    kind, init, global_rng_untouched
) -> None:
    m, t = pair(kind)
    before_t, text = copy.deepcopy(t), texts()[0]
    before = logits(m, ids_of(t, text))
    report = expand_vocabulary(m, t, NEW, init, prefixes=[text])
    after = logits(m, ids_of(before_t, text))
    n = len(before_t)
    assert m.config.vocab_size == len(t) == n + 3 == after.shape[-1]
    torch.testing.assert_close(after[..., :n], before, atol=1e-5, rtol=1e-5)
    kl = kl_divergence(before, after)
    assert report.shift.prefixes == kl.numel()
    assert report.shift.kl_mean == pytest.approx(float(kl.mean()), rel=1e-6)
    assert report.shift.kl_max == pytest.approx(float(kl.max()), rel=1e-6)
    mass = after.double().softmax(-1)[..., n:].sum(-1)
    assert report.shift.mass_mean == pytest.approx(float(mass.mean()), rel=1e-6)
    assert report.bound is not None and math.isclose(report.bound, math.log1p(3 / report.tables[0]["usable"]))
    if init == "mean":  # tied with a bias, final_logits_bias and untied alike
        assert report.shift.kl_max <= report.bound + 1e-6
    assert t(text)["input_ids"] == before_t(text)["input_ids"]
    assert t.decode(t(f"the{NEW[0]} is")["input_ids"]) == f"the{NEW[0]} is"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [7, 330])
def test_logits_that_give_no_distribution_are_not_compared(row, value) -> None:
    m, t = pair("llama", rows=64)
    m.lm_head.weight.data[row] = value
    with pytest.warns(VocabularyWarning, match="NaN or infinite.*not compared"):
        report = expand_vocabulary(m, t, NEW)
    assert report.shift is None and "was not measured" in str(report)
    assert torch.isfinite(m.lm_head.weight[report.token_ids]).all() and len(t) == 323


def test_masked_padding_logits_are_compared() -> None:
    m, t = pair("llama", rows=64)
    m.lm_head.register_forward_hook(
        lambda module, given, logits: logits.index_fill(-1, torch.arange(330, 384), -math.inf)
    )
    assert math.isfinite(expand_vocabulary(m, t, NEW).shift.kl_max)


@pytest.mark.parametrize("offload", ["cpu_offload", "disk_offload"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_that_accelerate_has_offloaded_are_compared_too(offload, kind, tmp_path) -> None:
    import accelerate

    (m, t), (plain, plain_t) = pair(kind), pair(kind)
    getattr(accelerate, offload)(m, *([str(tmp_path)] if offload == "disk_offload" else []))
    report = expand_vocabulary(m, t, NEW, "mean_cov")
    assert report.shift == expand_vocabulary(plain, plain_t, NEW, "mean_cov").shift
    assert torch.equal(logits(m, ids_of(t, texts()[0])), logits(plain, ids_of(t, texts()[0])))
    assert [finding.code for finding in doctor(m, t)] == [finding.code for finding in doctor(plain, plain_t)]


def test_inside_autocast_the_new_tables_are_used() -> None:
    """Autocast keeps the weights that it has cast."""
    for work in (lambda m, t: expand_vocabulary(m, t, NEW), lambda m, t: EmbeddingTables(m).resize(323)):
        m, t = pair("llama")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            m(input_ids=torch.tensor([[1, 2]]))
            work(m, t)
            assert m(input_ids=torch.tensor([[1, 322]])).logits.shape[-1] == 323


def test_numpy_integers_are_integers(tmp_path) -> None:
    (m, t), (plain, plain_t) = pair(), pair()
    report = expand_vocabulary(m, t, NEW, "mean_cov", seed=np.int64(3), pad_to_multiple_of=np.int64(64))
    expand_vocabulary(plain, plain_t, NEW, "mean_cov", seed=3, pad_to_multiple_of=64)
    assert torch.equal(m.transformer.wte.weight, plain.transformer.wte.weight)
    assert json.loads(json.dumps(report.to_dict()))["seed"] == 3
    patch(m, "mean_cov", seed=np.int64(4)).resize_token_embeddings(np.int64(385), np.int64(2))
    m.save_pretrained(tmp_path)
    assert [e["seed"] for e in read_manifest(tmp_path)] == [3, 4] and m.config.vocab_size == 386


def test_a_token_in_the_spelling_of_the_vocabulary_is_no_text() -> None:
    m, t = pair()
    with pytest.warns(VocabularyWarning, match="not where a text has the ' zzzqqq' that .* give ' zzzqqq'"):
        expand_vocabulary(m, t, ["\u0120zzzqqq"], prefixes=())


@pytest.mark.needs("tokenizers>=0.23")  # before, an added token was written as it was given
def test_a_warning_names_the_line_of_the_caller(recwarn) -> None:
    t = tokenizer("wordpiece")
    t.add_tokens(["there"])
    expand_vocabulary(model("bert", len(t)), t, ["Zyxomma", "there"], prefixes=())
    told = {str(w.message): w.filename for w in recwarn if w.category is VocabularyWarning}
    assert any("matches and writes 'zyxomma'" in message for message in told)
    assert set(told.values()) == {__file__}


def test_half_a_character_is_no_token() -> None:
    m, t = pair()
    with pytest.raises(InvalidArgumentError, match=r"'\\ud800x', in which half a character .* whole charac"):
        expand_vocabulary(m, t, ["<a>", "\ud800x"])
    assert len(t) == m.config.vocab_size == 320


def test_tokens_that_were_added_before_get_rows_as_the_error_says() -> None:
    m, t = pair()
    t.add_tokens(["<a>"])
    with (
        pytest.warns(VocabularyWarning, match="in the vocabulary already"),
        pytest.raises(InvalidArgumentError, match=r"patch\(model, init\).*resize_token_embeddings"),
    ):
        expand_vocabulary(m, t, ["<a>"])
    patch(m, "mean").resize_token_embeddings(len(t))
    assert m.config.vocab_size == 321 and read_manifest(m)[0]["init"] == "mean"


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_that_are_not_found_after_a_letter(family, recwarn) -> None:
    def told(*tokens) -> list[str]:
        t = tokenizer(family)
        recwarn.clear()
        expand_vocabulary(model("llama", len(t)), t, tokens, prefixes=())
        return [str(w.message) for w in recwarn if w.category is VocabularyWarning]

    warned = told("<tool>", "</tool>", AddedToken("zyxomma", single_word=True))
    warned = [message for message in warned if "a text does not come back" not in message]
    if family == "sentencepiece_bpe":
        (message,) = warned
        assert message.startswith("2 tokens ('<tool>', '</tool>') are found after a blank, and not after a")
        assert "of '<tool>': AddedToken('<tool>', normalized=False)" in message
        (message,) = told("<a>", AddedToken("<b>", normalized=False))
        assert message.startswith("the token '<a>' is found after a blank, and not after a letter")
        (message,) = told("<a>", "<b>", "<c>", "<d>")
        assert message.startswith("4 tokens ('<a>', '<b>', '<c>', ...) are found after a blank")
    else:
        assert not warned
    assert not told(*[AddedToken(tag, normalized=False) for tag in ("<tool>", "</tool>")])
    assert not told(AddedToken("<tool>", single_word=True))


@pytest.mark.parametrize(
    ("family", "token", "says"),
    [
        (
            "wordpiece",
            "zyxomma",
            "AddedToken('zyxomma', single_word=True) (single_word: true in a --tokens_file) "
            "keeps 'a zyxomma azyxomma zyxommas a'",
        ),
        ("wordpiece", AddedToken("zyxomma", single_word=True), None),
        (
            "t5",
            "zyxomma",
            "AddedToken(' zyxomma', normalized=False) (normalized: false in a --tokens_file) "
            "keeps 'a zyxomma azyxomma a'",
        ),
        ("t5", AddedToken("zyxomma", normalized=False), "AddedToken(' zyxomma', normalized=False)"),
        ("t5", AddedToken(" zyxomma", normalized=False), None),
        ("t5", AddedToken(" zyxomma"), "leave out words that begin longer ones"),
        ("byte_level", "zyxomma", None),
        ("byte_level", " zyxomma", None),
    ],
)
def test_a_word_that_breaks_longer_words_names_the_spelling_that_does_not(
    family, token, says, recwarn
) -> None:
    t = t5_like() if family == "t5" else tokenizer(family)
    expand_vocabulary(model("llama", len(t)), t, [token, "<tool>"], prefixes=())
    told = [m for w in recwarn if "a text does not come back" in (m := str(w.message))]
    assert len(told) == (says is not None)
    assert says is None or says in told[0]


def test_padding_rows_are_used_and_none_is_cut_off() -> None:
    """len(tokenizer) + k would shrink the matrix, and leave the new tokens on rows that nobody filled."""
    for rows, expected in ((64, 320 + 64), (2, 320 + 3), (3, 320 + 3)):
        m, t = pair(rows=rows)
        table = EmbeddingTables(m).input_tables[0]
        with torch.no_grad():
            table.parameter[len(t) :] = 0.0
        old = table.parameter.detach().clone()
        report = expand_vocabulary(m, t, NEW, "subword_mean")
        weight = m.transformer.wte.weight
        assert len(weight) == m.config.vocab_size == max(expected, len(t)) >= len(old)
        assert report.token_ids == t.convert_tokens_to_ids(NEW) == [320, 321, 322]
        kept = [i for i in range(len(old)) if i not in report.token_ids]
        assert torch.equal(weight[kept], old[kept])
        for plan in report.tokens:
            pieces = tokenizer("byte_level")(plan.token)["input_ids"]
            assert torch.allclose(weight[plan.id], old[pieces].mean(0), atol=1e-6)
            assert plan.reused == (plan.id < len(old))
            assert plan.source == t.convert_ids_to_tokens(pieces)


def test_rows_of_padding_are_initialised_and_do_not_take_the_probability() -> None:
    m, t = pair()
    report = expand_vocabulary(m, t, NEW, pad_to_multiple_of=64)
    assert m.config.vocab_size == report.new_num_embeddings == 384
    assert report.bound == pytest.approx(math.log1p(64 / 320))
    assert report.shift.kl_max <= report.bound + 1e-6
    assert report.filled_rows == list(range(320, 384))


def test_overrides_in_one_call() -> None:
    m, t = pair("llama")
    the = t(" the")["input_ids"]
    assert len(the) == 1
    old = {table.name: EmbeddingTables(m).read(table).clone() for table in EmbeddingTables(m).own_tables}
    report = expand_vocabulary(
        m,
        t,
        NEW,
        "mean",
        overrides={
            NEW[0]: ("copy", " the"),
            NEW[1]: ("description", {"text": "a man with a dog"}),
        },
    )
    pieces = tokenizer("byte_level")("a man with a dog")["input_ids"]
    for table in EmbeddingTables(m).own_tables:
        rows = EmbeddingTables(m).read(table)[320:]
        assert torch.equal(rows[0], old[table.name][the[0]])
        assert torch.allclose(rows[1], old[table.name][pieces].mean(0), atol=1e-6)
        assert torch.allclose(rows[2], old[table.name].mean(0), atol=1e-5)
    assert [plan.init for plan in report.tokens] == ["copy", "description", "mean"]
    assert report.tokens[0].source == ["Ġthe"] and report.tokens[2].source is None


def test_a_dry_run_changes_nothing_and_says_what_would_be_done() -> None:
    m, t = pair()
    state, vocabulary = copy.deepcopy(m.state_dict()), dict(t.get_vocab())
    plan = expand_vocabulary(m, t, NEW, "subword_mean", dry_run=True, pad_to_multiple_of=8)
    assert t.get_vocab() == vocabulary and not hasattr(m.config, "embinit")
    assert all(torch.equal(value, state[name]) for name, value in m.state_dict().items())
    assert (plan.dry_run, plan.old_num_embeddings, plan.new_num_embeddings) == (True, 320, 328)
    assert "would add 3 tokens by subword_mean" in str(plan)
    done = expand_vocabulary(m, t, NEW, "subword_mean", pad_to_multiple_of=8)
    assert done.tokens == plan.tokens and done.coverage == plan.coverage


@pytest.mark.parametrize(
    ("tokens", "options", "error", "message"),
    [
        ([""], {}, InvalidArgumentError, "empty token ''"),
        ([" ok", "  "], {}, InvalidArgumentError, "empty token"),
        (["Ok", 3], {}, InvalidArgumentError, "expected a string or an AddedToken"),
        ("word", {}, InvalidArgumentError, "expected a list"),
        ([], {}, InvalidArgumentError, "new_tokens is empty"),
        (["<a>"], {"exclude_rows": [5, 99999]}, InvalidArgumentError, "exclude_rows has 99999: .* 0 to "),
        (["<a>"], {"exclude_rows": range(10**4)}, InvalidArgumentError, "exclude_rows has "),
        (NEW, {"init": "meen"}, UnknownNameError, "Did you mean: mean"),
        (NEW, {"init": "wechsel_of_nothing"}, UnknownNameError, "Unknown init"),
        (NEW, {"init": "copy"}, InvalidArgumentError, "of= is missing"),
        (NEW, {"init": "copy", "of": "no such token"}, InvalidArgumentError, "is not one old token"),
        (NEW, {"init": "mean", "scale": 2.0}, InvalidArgumentError, "has no option 'scale'"),
        (NEW, {"overrides": {"other": "zeros"}}, InvalidArgumentError, "none of the new tokens"),
        (
            NEW,
            {"overrides": {NEW[0]: ("copy", "no such token")}},
            InvalidArgumentError,
            rf"'{NEW[0]}': of='no such token' is not one old token",
        ),
        (NEW, {"overrides": {NEW[0]: ("mean", "king")}}, InvalidArgumentError, "has no option"),
        (
            NEW,
            {"overrides": {NEW[0]: ["copy"]}},
            InvalidArgumentError,
            r"expected a name or \(name, option\)",
        ),
        (NEW, {"pad_to_multiple_of": 0}, InvalidArgumentError, "pad_to_multiple_of=0"),
        (NEW, {"init": "pretrained_map"}, InvalidArgumentError, "needs vectors="),
        (NEW, {"side": "target"}, UnsupportedModelError, "no target vocabulary"),
    ],
)
def test_errors_leave_model_and_tokenizer_as_they_were(tokens, options, error, message) -> None:
    m, t = pair()
    state, vocabulary, config = copy.deepcopy(m.state_dict()), dict(t.get_vocab()), m.config.to_dict()
    with pytest.raises(error, match=message):
        expand_vocabulary(m, t, tokens, **options)
    assert t.get_vocab() == vocabulary and m.config.to_dict() == config
    assert list(m.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in m.state_dict().items())


def test_a_tokenizer_of_another_model_is_an_error() -> None:
    m = model("gpt2", 300)
    with pytest.raises(InvalidArgumentError, match="ids up to 319, but the model has 300 rows"):
        expand_vocabulary(m, tokenizer("byte_level"), NEW)


def test_duplicates_and_known_tokens_are_named_and_not_added() -> None:
    m, t = pair()
    with pytest.warns(VocabularyWarning) as caught:
        report = expand_vocabulary(m, t, [NEW[0], NEW[0], "Ġthe", " the"])
    told = [str(w.message) for w in caught]
    assert told == [
        "the token ' zyxomma' is given twice; it is added once",
        "the token 'Ġthe' is in the vocabulary already; its row stays as it is",
        "the text ' the' is one token already, 'Ġthe'; its row stays as it is",
    ]
    assert [plan.token for plan in report.tokens] == [NEW[0]] and len(t) == 321
    with (
        pytest.warns(VocabularyWarning),
        pytest.raises(InvalidArgumentError, match="no token that the tokenizer"),
    ):
        expand_vocabulary(m, t, ["Ġthe"])


@pytest.mark.needs("tokenizers>=0.23")  # before, an added token was written as it was given
def test_tokens_that_the_normaliser_changes() -> None:
    t = tokenizer("wordpiece")
    m = model("bert", len(t))
    with pytest.warns(
        VocabularyWarning, match="changes the token 'Zyxomma': it matches and writes 'zyxomma'"
    ):
        expand_vocabulary(m, t, ["Zyxomma"])
    with pytest.raises(InvalidArgumentError, match="never produce"):
        expand_vocabulary(m, t, ["Qorvex", "qorveX"])  # the same to this tokenizer
    t = tokenizer("sentencepiece_bpe")
    with pytest.raises(InvalidArgumentError, match=r"never produce the new token ' Zyxomma' but makes \["):
        expand_vocabulary(model("llama", len(t)), t, [" Zyxomma"])


def test_pieces_come_from_the_tokenizer_before_the_tokens_were_added() -> None:
    """One new token inside another: averaging a fresh row is the classic mistake."""
    m, t = pair()
    old = m.transformer.wte.weight.detach().clone()
    report = expand_vocabulary(m, t, [" qor", " qorvex"], "subword_mean")
    for plan in report.tokens:
        pieces = tokenizer("byte_level")(plan.token)["input_ids"]
        assert max(pieces) < 320
        assert torch.allclose(m.transformer.wte.weight[plan.id], old[pieces].mean(0), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mean_cov_rows_stay_apart_in_low_precision(dtype) -> None:
    m, t = pair("llama")
    m.to(dtype)
    report = expand_vocabulary(m, t, [f" zyx{c}q" for c in "abcdefghij"], "mean_cov", prefixes=())
    for table in EmbeddingTables(m).own_tables:
        rows = EmbeddingTables(m).read(table)[320:].float()
        assert len(torch.unique(rows, dim=0)) == 10
        least = torch.pdist(rows).min()
        assert report.min_distance[table.name] == pytest.approx(float(least), rel=1e-4) and least > 0


def test_equal_rows_of_different_tokens_are_told() -> None:
    m, t = pair()
    with pytest.warns(VocabularyWarning, match="equal rows in transformer.wte.weight"):
        expand_vocabulary(m, t, NEW, "copy", of=" the")
    assert expand_vocabulary(*pair(), NEW, "mean").min_distance == {"transformer.wte.weight": 0.0}


def test_the_round_trip_keeps_rows_tokenizer_and_how_they_were_made(tmp_path) -> None:
    m, t = pair("llama")
    report = expand_vocabulary(m, t, NEW, "mean_cov", seed=7, overrides={NEW[2]: "zeros"}, scale=1e-3)
    m.save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    again, t2 = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = f"the{NEW[0]} and{NEW[2]}"
    assert t2(text)["input_ids"] == t(text)["input_ids"]
    assert {320, 322} <= set(t2(text)["input_ids"])
    assert torch.equal(logits(again, ids_of(t2, text)), logits(m, ids_of(t, text)))
    (event,) = read_manifest(tmp_path)
    assert (event["event"], event["init"], event["seed"], event["options"]) == (
        "expand_vocabulary",
        "mean_cov",
        7,
        {"scale": 1e-3},
    )
    assert event["tokens"] == dict(zip(NEW, report.token_ids, strict=True)) and event["rows"] == [320, 323]
    assert event["overrides"] == {NEW[2]: ["zeros", {}]}


def test_rows_that_statistics_leave_out_are_found_and_can_be_given() -> None:
    m, t = pair()
    with torch.no_grad():
        m.transformer.wte.weight[[5, 9]] = 0.0
    old = m.transformer.wte.weight.detach().clone()
    given = copy.deepcopy(m)
    report = expand_vocabulary(m, copy.deepcopy(t), NEW, prefixes=())
    assert report.tables[0]["left_out"] == {"zero": [5, 9]} and report.tables[0]["usable"] == 318
    kept = [i for i in range(320) if i not in (5, 9)]
    torch.testing.assert_close(m.transformer.wte.weight[320], old[kept].mean(0))
    assert report.bound == pytest.approx(math.log1p(3 / 318))
    report = expand_vocabulary(given, t, NEW, prefixes=(), exclude_rows=range(100))
    assert report.tables[0]["left_out"] == {"given": list(range(100))}
    torch.testing.assert_close(given.transformer.wte.weight[321], old[100:].mean(0))


def test_the_seed_decides() -> None:
    rows = []
    for seed in (0, 0, 1):
        m, t = pair()
        expand_vocabulary(m, t, NEW, "mean_cov", seed=seed, prefixes=())
        rows.append(m.transformer.wte.weight[320:].clone())
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])


def test_generated_prefixes_are_the_same_every_time_and_can_be_left_out() -> None:
    first, again = (expand_vocabulary(*pair(), NEW, "zeros") for _ in range(2))
    assert first.shift == again.shift and first.shift.prefixes == 64
    assert 0 <= first.shift.top1_agreement <= 1 and first.shift.kl_mean > 0
    assert expand_vocabulary(*pair(), NEW, "zeros", prefixes=()).shift is None


def test_training_mode_and_wrappers_stay() -> None:
    from peft import LoraConfig, get_peft_model

    m, t = pair("llama")
    m.train()
    expand_vocabulary(m, t, NEW)
    assert m.training
    wrapped = get_peft_model(m, LoraConfig(target_modules=["q_proj"]))
    report = expand_vocabulary(wrapped, t, [" morqel"])
    assert report.token_ids == [323] and wrapped.get_base_model().config.vocab_size == 324
    assert report.trainable_token_indices == {"model.embed_tokens": [323], "lm_head": [323]}


def test_special_tokens_keep_being_special() -> None:
    m, t = pair()
    report = expand_vocabulary(m, t, [AddedToken("<|im_start|>", special=True)], "description", text="start")
    ids = t("<|im_start|>the man")["input_ids"]
    assert ids[0] == report.token_ids[0]
    assert t.decode(ids, skip_special_tokens=True) == "the man"


def test_the_report_reads_and_serialises() -> None:
    import json

    m, t = pair("llama", rows=1)
    tokens = [f" zy{c}qx" for c in "abcdefghijklm"]
    report = expand_vocabulary(m, t, tokens, "subword_mean", overrides={tokens[1]: "mean"})
    text = str(report)
    assert "added 13 tokens by subword_mean (seed 0), rows 321 -> 333" in text
    assert "  320 ' zyaqx': subword_mean of Ġ" in text and "(padding row)" in text
    assert "    321 ' zybqx': mean\n" in text and "... and 3 more" in text
    assert "KL(p || p') over 64 prefixes" in text and "apart in float32, effective rank" in text
    assert "statistics over 320 rows, without 1 beyond_tokenizer, 1 refilled" in text
    assert json.loads(json.dumps(report.to_dict()))["tokens"][1]["init"] == "mean"


_WRITES_BLANKS = pytest.param("sentencepiece_bpe", marks=pytest.mark.needs("tokenizers>=0.23"))


@pytest.mark.parametrize("family", [_WRITES_BLANKS if f == "sentencepiece_bpe" else f for f in FAMILIES])
def test_every_family_gets_tokens_that_it_then_uses(family) -> None:
    t = tokenizer(family)
    m = model("bert" if family == "wordpiece" else "gpt2", len(t))
    new = propose_tokens(t, texts(), 5) if family != "words" else ["zyxomma"]
    shorter = sum(len(ids) for ids in t(list(texts()))["input_ids"])
    report = expand_vocabulary(m, t, new, "subword_mean")
    encoded = t(list(texts()))["input_ids"]
    used = {i for ids in encoded for i in ids}
    if family == "words":
        assert report.coverage == {"tokens": 1, "with_source": 0, "without_source": ["zyxomma"]}
    else:
        assert set(report.token_ids) <= used
        assert sum(len(ids) for ids in encoded) < shorter
        assert report.coverage["with_source"] == 5


def test_pretrained_map_from_a_file_of_vectors(tmp_path) -> None:
    m, t = pair()
    words = [token[1:] for token in t.get_vocab() if token.startswith("Ġ") and token[1:].isalpha()]
    g = torch.Generator().manual_seed(0)
    lines = [
        f"{word} " + " ".join(f"{x:.4f}" for x in torch.randn(6, generator=g).tolist())
        for word in [*words, "zyxomma", "qorvex"]
    ]
    (tmp_path / "v.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = expand_vocabulary(m, t, NEW, "pretrained_map", vectors=tmp_path / "v.txt")
    details = report.tables[0]["details"]
    assert details["shared_tokens"] == len(words)
    assert report.coverage == {"tokens": 3, "with_source": 2, "without_source": [" blimp"]}
    assert "2 of 3 tokens have a source of their own" in str(report)
    assert report.tables[0]["source"]["name"].endswith("v.txt")
    rows = m.transformer.wte.weight[320:]
    assert torch.isfinite(rows).all() and not torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("new", [1, 2, 40, 400])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_scale_auto_keeps_the_bound_and_its_rows_apart(kind, new) -> None:
    """Tied, untied and with a bias, by a model of large logits."""
    t = tokenizer("byte_level")
    m = model(kind, len(t))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for table in EmbeddingTables(m).own_tables:
            EmbeddingTables(m).read(table).mul_(50)
        for table in EmbeddingTables(m).output_tables:
            for bias in EmbeddingTables(m).biases(table):
                bias.normal_(0, 3, generator=generator)
    tokens = [f" zyx{i}q" for i in range(new)]
    texts = ["the man and a dog see", "two men"]
    report = expand_vocabulary(m, t, tokens, "mean_cov", scale="auto", prefixes=texts)
    assert report.shift.kl_max <= math.log1p(new / 320) * (1 + 1e-4) + 1e-7
    scale = report.tables[0]["details"]["scale"]
    repeated = 320 * (new > 320)  # copies of all old rows, and a partition for the rest
    rest = new - repeated
    assert scale == pytest.approx((repeated + rest * (rest - 1) / 319) / new, rel=0.06, abs=1e-9)
    if new > 1:
        assert min(report.min_distance.values()) > 0
        assert all(0.99 < rank < new for rank in report.effective_rank.values())
        assert "apart in float32, effective rank" in str(report)


@pytest.mark.parametrize("build", [bert, bart, marian])
def test_a_bias_is_made_of_the_entries_that_the_row_is_made_of(build) -> None:
    """So that a copy has its original's logit at each prefix, and a mean of pieces the mean of theirs."""
    t, m = tokenizer("wordpiece"), build(vocab_size=320)
    generator = torch.Generator().manual_seed(1)
    tables = EmbeddingTables(m)
    for table in tables.output_tables:
        for bias in tables.biases(table):
            with torch.no_grad():
                bias.normal_(0, 3, generator=generator)
    old = {table.name: [bias.clone() for bias in tables.biases(table)] for table in tables.output_tables}
    pieces = [i for i in t("menxdogs", add_special_tokens=False)["input_ids"] if i != t.unk_token_id]
    a, dog, the = (t.vocab[word] for word in ("a", "dog", "the"))
    expand_vocabulary(
        m, t, ["hound", "menxdogs", "beasts", "zeroed"], "subword_mean", prefixes=(), pad_to_multiple_of=5,
        overrides={"hound": ("copy", "dog"), "beasts": ("copy", {"of": ["a", "the"]}), "zeroed": "zeros"},
    )  # fmt: skip
    assert len(pieces) > 1 and EmbeddingTables(m).vocab_size() == 325
    found = 0
    for table in EmbeddingTables(m).output_tables:
        for bias, before in zip(EmbeddingTables(m).biases(table), old[table.name], strict=True):
            assert bias[320] == before[dog]
            torch.testing.assert_close(bias[321], before[pieces].mean())
            torch.testing.assert_close(bias[322], before[[a, the]].mean())
            assert bias[323] == bias[324] and abs(float(bias[323] - before.mean())) < 0.1
            found += 1
    assert found
    ids = torch.arange(5, 15)[None]
    arguments = {"input_ids": ids} | ({"decoder_input_ids": ids} if m.config.is_encoder_decoder else {})
    logits = m.eval()(**arguments).logits
    torch.testing.assert_close(logits[..., 320], logits[..., dog])


def test_a_bias_whose_only_source_was_overridden_is_the_mean() -> None:
    m, t = bert(vocab_size=320), tokenizer("wordpiece")
    (bias,) = EmbeddingTables(m).biases(EmbeddingTables(m).output_tables[0])
    with torch.no_grad():
        bias.normal_()
    mean = float(bias.mean())
    expand_vocabulary(m, t, ["hound"], "subword_mean", overrides={"hound": "zeros"}, prefixes=())
    (bias,) = EmbeddingTables(m).biases(EmbeddingTables(m).output_tables[0])
    assert float(bias[-1]) == pytest.approx(mean, abs=0.05)


def test_scale_says_what_it_takes() -> None:
    m, t = model("gpt2", 320), tokenizer("byte_level")
    with pytest.raises(
        InvalidArgumentError, match=r"scale='auot': expected a finite number at least 0 or 'auto'"
    ):
        expand_vocabulary(m, t, [" zyxomma"], "mean_cov", scale="auot")


def test_both_vocabularies_of_a_model_grow_one_after_the_other(tmp_path, recwarn) -> None:
    """The tokens that were added to the source are looked for in its tokenizer, not in the target's."""
    m, tokenizers = marian_with_two_vocabularies(), {}
    for side in ("source", "target"):
        rows = EmbeddingTables(m).vocab_size(side)
        tokenizers[side] = word_tokenizer(rows)
        report = expand_vocabulary(m, tokenizers[side], ["zyxomma"], side=side, prefixes=())
        assert report.token_ids == [rows] and EmbeddingTables(m).vocab_size(side) == rows + 1
    m.save_pretrained(tmp_path)
    again = type(m).from_pretrained(tmp_path)
    assert [EmbeddingTables(again).vocab_size(side) for side in tokenizers] == [
        len(t) for t in tokenizers.values()
    ]
    expand_vocabulary(again, tokenizers["source"], ["qorvex"], side="source", prefixes=())
    assert not [w for w in recwarn if issubclass(w.category, VocabularyWarning)]
    with pytest.warns(VocabularyWarning, match="id 37 should be 'zyxomma', and 1 of 1 added tokens are not"):
        expand_vocabulary(again, word_tokenizer(38), ["blimp"], side="target", prefixes=())


def test_rows_that_differ_by_float32_s_rounding_have_an_effective_rank_and_equal_ones_none() -> None:
    row = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    near = row + 2e-7 * torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    assert len(near.unique(dim=0)) == 50 and effective_rank(near) > 30
    assert effective_rank(row.repeat(50, 1)) == effective_rank(row.double().repeat(1000, 1) / 3) == 0


def test_the_smallest_distance_of_rows_in_tight_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        centers = torch.randn(2, 64, generator=generator)
        rows = (centers[:, None] + 1e-5 * torch.randn(2, 4, 64, generator=generator)).reshape(8, 64)
        expected = float(torch.pdist(rows.double()).min())
        assert smallest_distance(rows) == pytest.approx(expected, rel=1e-6)
        rows[3] = rows[0]
        assert smallest_distance(rows) == 0


def test_a_latin_letter_that_is_the_sign_of_a_byte() -> None:
    m, t = pair()
    assert "é" in t.get_vocab() and len(t("é")["input_ids"]) == 2
    with pytest.warns(VocabularyWarning, match=r"'é' as the sign of a byte.*' é', it can"):
        expand_vocabulary(m, t, ["é", "<a>"], prefixes=())
    with pytest.raises(InvalidArgumentError, match=r"of='é' is not one old token but 'Ã', '©'"):
        expand_vocabulary(m, t, ["<b>"], "copy", of="é", prefixes=())
    expand_vocabulary(m, t, [AddedToken(" é", normalized=False)], prefixes=())
    assert t.decode(t("a é a")["input_ids"]) == "a é a"


@pytest.mark.parametrize("family", ["wordpiece", "unigram", "words"])
def test_an_unknown_token_that_no_role_names_is_no_source_of_a_row(family) -> None:
    named = tokenizer(family)
    t = PreTrainedTokenizerFast(tokenizer_object=named.backend_tokenizer)
    m = model("gpt2", len(t))
    assert t.unk_token is None and named.unk_token_id in t("日")["input_ids"]
    assert [str(token) for token in propose_tokens(t, ["日 日"], 1)] == ["日"]
    report = expand_vocabulary(m, t, ["日"], "subword_mean", prefixes=())
    assert report.tokens[0].source == [] and report.coverage["without_source"] == ["日"]


def test_the_mark_of_a_word_start_alone_is_no_source_of_a_row() -> None:
    t = tokenizer("unigram")
    m = model("gpt2", len(t))
    assert t.tokenize("日") == ["▁", "日"]
    report = expand_vocabulary(m, t, ["日", "the日"], "subword_mean", prefixes=())
    assert [token.source for token in report.tokens] == [[], ["▁the"]]
    rows = m.get_input_embeddings().weight
    assert not torch.equal(rows[report.token_ids[0]], rows[t.convert_tokens_to_ids("▁")])


def test_tokens_with_an_initialiser_of_their_own_are_no_tokens_without_a_vector() -> None:
    words = [word.removeprefix("Ġ") for word in tokenizer("byte_level").get_vocab() if word.startswith("Ġ")]
    words = list(dict.fromkeys(word for word in words if len(word) > 1))[:50]
    rows = torch.randn(len(words) + 1, 16, generator=torch.Generator().manual_seed(0))
    report = expand_vocabulary(
        model("gpt2", 320), tokenizer("byte_level"), [" zyxomma", " qorvex", " blimp"], "pretrained_map",
        vectors=PretrainedVectors([*words, "zyxomma"], rows, "v"), prefixes=(),
        overrides={" qorvex": "zeros", " blimp": "mean"}, exclude_rows=np.array([1, 2]),
    )  # fmt: skip
    assert report.coverage == {"tokens": 1, "with_source": 1, "without_source": []}


def test_nothing_is_compared_where_the_encoder_cannot_read_the_tokens() -> None:
    translator = marian_with_two_vocabularies()
    rows = translator.get_decoder().get_input_embeddings().num_embeddings
    words = word_tokenizer(rows)
    with pytest.raises(InvalidArgumentError, match=r"prefixes=.* with side='target': the encoder reads"):
        expand_vocabulary(translator, words, ["zyxomma"], side="target", prefixes=["w1 w2"])
    report = expand_vocabulary(translator, words, ["zyxomma"], side="target")
    assert report.token_ids == [rows]
