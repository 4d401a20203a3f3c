"""Refinements of rows: `token_distillation`, `tokens2words`, and what `refine=` and `untie=` refuse."""

from __future__ import annotations

import collections
import copy
import math
from typing import Any

import pytest
import torch
from builders.tiny_models import bart, spread
from builders.tiny_tokenizers import model, texts, tokenizer
from transformers.utils import logging

import hf_embinit
from hf_embinit.errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError
from hf_embinit.manifest import read_manifest
from hf_embinit.retokenize import Body, Step, split_tokens
from hf_embinit.tables import EmbeddingTables, open_checkpoint

FAMILY = {"gpt2": "byte_level", "llama": "sentencepiece_bpe", "bert": "wordpiece"}
SHORT = "token_distillation:steps=60,batch_size=8,length=24"


def made(kind: str) -> tuple[Any, Any, Any]:
    """A model, its tokenizer, and one with other tokens."""
    words = tokenizer(FAMILY[kind], 320)
    return model(kind, len(words)), words, tokenizer(FAMILY[kind], 450)


def replaced(kind: str, refine: str | None, **given: Any) -> tuple[Any, Any, Any]:
    """The model by `fvt` and then `refine`, its report, and the model before."""
    lm, old, new = made(kind)
    before = copy.deepcopy(lm)
    given = {"untie": kind != "llama", **given}
    return lm, hf_embinit.replace_tokenizer(lm, old, new, "fvt", refine=refine, **given), before


@pytest.mark.parametrize("kind", FAMILY)
def test_distillation_moves_free_input_rows_alone_and_lessens_the_error(kind: str) -> None:
    state = torch.random.get_rng_state()
    some = list(texts()[:200])
    lm, report, before = replaced(kind, SHORT, texts=some)
    plain, _, _ = replaced(kind, None)
    assert torch.equal(state, torch.random.get_rng_state())
    step = report.coefficients.step
    rows, start = (m.get_input_embeddings().weight.detach() for m in (lm, plain))
    changed = (rows != start).any(1)
    free = (step != Step.COPIED) & (step != Step.OVERLAP)
    assert int(changed.sum()) > 0 and not bool(changed[: len(free)][~free].any())
    output, same = (m.get_output_embeddings().weight.detach() for m in (lm, plain))
    assert torch.equal(output, same)
    first, last = report.details["distilled"]["loss"]
    assert last < (0.95 if kind == "bert" else 0.6) * first, (first, last)
    for name, value in before.state_dict().items():  # the layers, and no gradient on them
        if value.shape == lm.state_dict()[name].shape:
            assert torch.equal(value, lm.state_dict()[name])
    assert all(p.grad is None for p in lm.parameters())
    again, _, _ = replaced(kind, SHORT, texts=some)
    assert torch.equal(again.get_input_embeddings().weight, rows)


def test_distillation_shows_its_steps_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    def bar(steps: range, **options: Any) -> range:
        shown.append((len(steps), options["disable"]))
        return steps

    monkeypatch.setattr(logging, "tqdm", bar)
    replaced("gpt2", "token_distillation:steps=2,batch_size=1", texts=list(texts()[:20]))
    assert (2, None) in shown


def test_texts_are_cut_off_where_the_positions_end() -> None:
    long = [" ".join(texts()[:20])]
    for refine in ("token_distillation:steps=1,batch_size=1", "first_piece_shares"):
        _, report, _ = replaced("gpt2", refine, texts=long)  # 64 positions
        assert report.refine[0]["init"] == refine.split(":")[0]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_words_are_read_from_the_layer_that_explains_their_pieces_best(kind: str) -> None:
    lm, report, _ = replaced(kind, "tokens2words")
    plain, _, _ = replaced(kind, None)
    found = report.details["words"]
    assert 1 <= found["layer"] <= found["layers"] == 2 and found["rows"] > 50
    rows, start = (m.get_input_embeddings().weight.detach() for m in (lm, plain))
    assert int((rows != start).any(1).sum()) == found["rows"]
    assert torch.equal(lm.get_output_embeddings().weight, plain.get_output_embeddings().weight)


def test_rows_that_a_refinement_leaves_are_as_exact_as_they_were() -> None:
    some = list(texts()[:50])
    lm, old, new = made("llama")
    torch.manual_seed(0)
    for weight in (lm.double().get_input_embeddings().weight, lm.get_output_embeddings().weight):
        torch.nn.init.normal_(weight)
    plain = copy.deepcopy(lm)
    hf_embinit.replace_tokenizer(plain, old, new, "fvt", untie=True)
    hf_embinit.replace_tokenizer(lm, old, new, "fvt", refine="first_piece_shares", texts=some, untie=True)
    rows, start = (m.get_input_embeddings().weight.detach() for m in (lm, plain))
    assert rows.dtype == torch.float64 and torch.equal(rows, start)
    assert not torch.equal(start, start.float().double())  # it would be seen if they were rounded
    assert not torch.equal(lm.get_output_embeddings().weight, plain.get_output_embeddings().weight)


def test_a_new_token_is_as_probable_as_its_first_piece_times_its_share() -> None:
    some = list(texts()[:100])
    lm, old, new = made("gpt2")
    lm.transformer.ln_f.bias.data[:4] = 2.0  # states of trained models have a direction in common
    before = copy.deepcopy(lm)
    report = hf_embinit.replace_tokenizer(
        lm, old, new, "fvt", refine="tokens2words+first_piece_shares", texts=some, untie=True
    )
    assert "by fvt, then tokens2words, then first_piece_shares" in str(report)
    assert report.details["words"]["rows"] > 50 and report.details["shares"]["unit"][0] == pytest.approx(
        1, abs=0.1
    )
    ours, theirs = (m.get_output_embeddings().weight.detach().double() for m in (lm, before))
    side = report.sides["shared"]
    ids = [i for i, token in enumerate(side.new.tokens) if token and i not in side.new.special]
    split = split_tokens(side.new, ids, side.old)
    first = {i: pieces[0] for i, pieces in zip(ids, split, strict=True) if pieces}
    counts = collections.Counter(i for ids in new(some, add_special_tokens=False)["input_ids"] for i in ids)
    word = next(i for i, p in zip(ids, split, strict=True) if len(p) > 1 and counts[i] > 2)
    same = [i for i, piece in first.items() if piece == first[word]]
    with torch.no_grad():
        inputs = [torch.tensor([one[:60]]) for one in old(some, add_special_tokens=False)["input_ids"]]
        h = torch.cat([before.base_model(one).last_hidden_state[0] for one in inputs]).double()
    share = (counts[word] + 1) / sum(counts[i] + 1 for i in same)
    shift = (h @ (ours[word] - theirs[first[word]])).mean()
    assert len(same) > 1 and share < 0.7 and float(shift) == pytest.approx(math.log(share), rel=0.1)
    together = torch.logsumexp(h @ ours[same].T, 1) - h @ theirs[first[word]]
    assert float(together.mean()) == pytest.approx(0, abs=0.1)  # they have what the piece had


@pytest.mark.needs("transformers>=5.6")  # 5.0 cannot build Phi
def test_an_output_bias_is_that_of_the_first_piece() -> None:
    from transformers import PhiConfig, PhiForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    _, old, new = made("gpt2")
    torch.manual_seed(0)
    lm = PhiForCausalLM(PhiConfig(vocab_size=len(old), max_position_embeddings=64, **sizes)).eval()
    spread(lm)
    before = lm.lm_head.bias.detach().clone()
    refine, some = "first_piece_shares+tokens2words", list(texts()[:20])
    side = hf_embinit.replace_tokenizer(lm, old, new, "fvt", refine=refine, texts=some).sides["shared"]
    ids = [i for i, token in enumerate(side.new.tokens) if token and i not in side.new.special]
    pairs = zip(ids, split_tokens(side.new, ids, side.old), strict=True)
    first = {i: pieces[0] for i, pieces in pairs if pieces}
    assert len(first) > 400
    assert torch.equal(lm.lm_head.bias[list(first)], before[list(first.values())])


def test_the_report_and_the_manifest_name_the_refinement(tmp_path: Any) -> None:
    lm, report, _ = replaced("llama", "tokens2words:max_tokens=100")
    named = [{"init": "tokens2words", "options": {"max_tokens": 100}}]
    assert report.to_dict()["refine"] == named and read_manifest(lm)[-1]["refine"] == named
    assert "by fvt, then tokens2words" in str(report)


def test_rows_are_scaled_as_the_model_scales_what_it_looks_up() -> None:
    from transformers import Gemma3Config, Gemma3ForCausalLM

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    torch.manual_seed(0)
    config = Gemma3Config.sub_configs["text_config"](
        vocab_size=50, hidden_size=16, intermediate_size=16, **sizes
    )
    lm = Gemma3ForCausalLM(config).eval()
    spread(lm)
    table = EmbeddingTables(lm).input_tables[0]
    body = Body(lm, table)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        states = body.hidden_states(table.parameter[ids], torch.ones_like(ids))
        assert torch.allclose(states[-1], lm.model(ids).last_hidden_state, atol=1e-5)
    assert body.scale == pytest.approx(4.0, rel=0.01) and body.causal and len(states) == 2


def test_what_cannot_be_refined_is_refused_and_nothing_changes(tmp_path: Any) -> None:
    lm, old, new = made("gpt2")
    before = {name: value.clone() for name, value in lm.state_dict().items()}
    some = list(texts()[:20])

    def refused(error: type[Exception], match: str, **given: Any) -> None:
        with pytest.raises(error, match=match):
            hf_embinit.replace_tokenizer(lm, old, new, "fvt", **given)
        assert lm.state_dict().keys() == before.keys() and lm.config.tie_word_embeddings
        assert all(torch.equal(value, before[name]) for name, value in lm.state_dict().items())

    refused(InvalidArgumentError, "untie=True", refine=SHORT, texts=some)
    refused(InvalidArgumentError, "needs texts=", refine=SHORT, untie=True)
    refused(InvalidArgumentError, "no text", refine=SHORT, untie=True, texts=["  "])
    refused(InvalidArgumentError, "reads no texts=", refine="tokens2words", untie=True, texts=some)
    refused(UnknownNameError, "refinement 'focus'", refine="tokens2words+focus")
    refused(UnknownNameError, "token_distillation", refine="token_distilation")
    refused(InvalidArgumentError, "steps", refine="token_distillation:steps=0", texts=some)
    bert, words, other = made("bert")
    with pytest.raises(UnsupportedModelError, match="looks both ways"):
        hf_embinit.replace_tokenizer(bert, words, other, "fvt", refine="tokens2words", untie=True)
    with pytest.raises(UnsupportedModelError, match="looks both ways"):
        hf_embinit.replace_tokenizer(
            bert, words, other, "fvt", refine="first_piece_shares", untie=True, texts=some
        )
    with pytest.raises(UnsupportedModelError, match="one stack"):
        hf_embinit.replace_tokenizer(bart(), new, new, "fvt", refine=SHORT, texts=some)
    lm.save_pretrained(tmp_path)
    for given in ({"refine": "tokens2words"}, {"untie": True}):
        with pytest.raises(UnsupportedModelError, match="from_pretrained"):
            hf_embinit.replace_tokenizer(open_checkpoint(tmp_path), old, new, "fvt", **given)


def test_a_refinement_makes_no_rows_elsewhere() -> None:
    lm, old, _ = made("llama")
    with pytest.raises(InvalidArgumentError, match="replace_tokenizer"):
        hf_embinit.expand_vocabulary(lm, old, ["Aragorn"], init="tokens2words")
    with pytest.raises(InvalidArgumentError, match="replace_tokenizer"):
        hf_embinit.initialize(lm, "token_distillation", tokenizer=old)
