"""`prune_vocabulary`: texts of kept tokens are split as before and give the same logits."""

from __future__ import annotations

import copy

import pytest
import torch
from builders.tables import assert_consistent
from builders.tiny_tokenizers import FAMILIES, logits, model, texts, tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizer

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.manifest import read_manifest
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vocabulary import expand_vocabulary, prune_vocabulary, used_tokens

KINDS = {
    "byte_level": "gpt2",
    "sentencepiece_bpe": "llama",
    "wordpiece": "bert",
    "unigram": "bart",
    "words": "gpt2",
}


def encode(t, some) -> list[list[int]]:
    return t(list(some))["input_ids"]


@pytest.mark.parametrize("family", FAMILIES)
def test_kept_tokens_keep_their_segmentation_and_their_logits(family, tmp_path) -> None:
    old_t = tokenizer(family)
    old_m = model(KINDS[family], len(old_t) + 7)
    t, m = copy.deepcopy(old_t), copy.deepcopy(old_m)
    used = {i for ids in encode(old_t, texts()[:12]) for i in ids}
    report = prune_vocabulary(m, t, used)
    new_id = {old: new for new, old in enumerate(report.old_ids)}
    assert len(t) == m.config.vocab_size == report.new_num_embeddings < len(old_t)
    assert sorted(t.get_vocab().values()) == list(range(len(t)))

    compared = 0
    for text, before, after in zip(texts(), encode(old_t, texts()), encode(t, texts()), strict=True):
        if set(before) <= new_id.keys():
            assert after == [new_id[i] for i in before], text
            compared += 1
    assert compared >= 12
    ids = encode(old_t, texts()[:1])[0]
    expected = logits(old_m, torch.tensor([ids]))[..., report.old_ids]
    got = logits(m, torch.tensor([[new_id[i] for i in ids]]))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)

    m.save_pretrained(tmp_path)
    t.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert encode(again, texts()[:60]) == encode(t, texts()[:60])
    assert torch.equal(
        logits(type(m).from_pretrained(tmp_path), torch.tensor([[1, 2]])), logits(m, torch.tensor([[1, 2]]))
    )
    assert again.all_special_tokens == old_t.all_special_tokens
    assert read_manifest(tmp_path)[-1]["event"] == "prune_vocabulary"


def test_it_undoes_an_expansion() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    vocabulary, state = dict(t.get_vocab()), copy.deepcopy(m.state_dict())
    expand_vocabulary(m, t, [" zyxomma", " qorvex"], "mean_cov", prefixes=())
    assert len(t) == 322
    prune_vocabulary(m, t, vocabulary)
    assert t.get_vocab() == vocabulary
    assert all(torch.equal(value, state[name]) for name, value in m.state_dict().items())


def test_added_tokens_can_be_kept_beside_fewer_pieces() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    expand_vocabulary(m, t, [" zyxomma", " qorvex"], "mean_cov", prefixes=())
    row = m.transformer.wte.weight[321].detach().clone()
    prune_vocabulary(m, t, ["Ġthe", " qorvex"])
    assert " zyxomma" not in t.get_vocab()
    i = t.convert_tokens_to_ids(" qorvex")
    assert torch.equal(m.transformer.wte.weight[i], row)
    assert i in t("the qorvex")["input_ids"] and t.decode(t("the qorvex")["input_ids"]) == "the qorvex"


def test_ids_in_the_configuration_follow() -> None:
    t = tokenizer("unigram")
    m = model("bart", len(t), decoder_start_token_id=t.eos_token_id, forced_eos_token_id=t.eos_token_id)
    m.config.eos_token_id = [t.eos_token_id, 200]
    m.generation_config.suppress_tokens = [t.eos_token_id, 201]
    m.generation_config.forced_eos_token_id = t.eos_token_id
    eos, kept = t.eos_token, t.convert_ids_to_tokens(200)
    prune_vocabulary(m, t, [250, 300])
    new = t.convert_tokens_to_ids([eos, kept])
    assert m.config.eos_token_id == new and m.config.decoder_start_token_id == new[0]
    assert m.generation_config.suppress_tokens[0] == new[0]
    assert m.generation_config.forced_eos_token_id == new[0]
    tables = EmbeddingTables(m)
    assert tables.input_tables[0].padding_index == t.pad_token_id
    assert_consistent(tables)
    for module in (m.model.shared, m.model.encoder.embed_tokens, m.model.decoder.embed_tokens):
        assert module.padding_idx == t.pad_token_id


def test_the_padding_row_of_every_tied_module_follows() -> None:
    """Else the token that has the old id of the padding gets no gradient, and the padding row does."""
    t = tokenizer("unigram")
    m = model("bart", len(t))
    last = len(t) - 1
    m.model.shared.padding_idx = m.model.encoder.embed_tokens.padding_idx = last
    m.model.decoder.embed_tokens.padding_idx = last
    prune_vocabulary(m, t, [200, last])
    new = m.model.shared.padding_idx
    assert new != last and new == len(t) - 1
    assert m.model.encoder.embed_tokens.padding_idx == m.model.decoder.embed_tokens.padding_idx == new


def test_bpe_keeps_what_kept_tokens_are_merged_from() -> None:
    t = tokenizer("byte_level")
    m = model("gpt2", len(t))
    longest = max((token for token in t.get_vocab() if token.isascii() and token.isalpha()), key=len)
    report = prune_vocabulary(m, t, [longest])
    assert report.also_kept["merges"] and t.tokenize(longest) == [longest]
    assert "merges" in str(report) and f"-> {len(t)}" in str(report)
    assert t.decode(t("Überall ☃!")["input_ids"]) == "Überall ☃!"  # the alphabet stays


def test_added_tokens_that_a_chat_template_writes_stay() -> None:
    """Qwen's `<think>` is no special token, and no text that a model is trained on has it."""
    t = tokenizer("byte_level")
    t.add_tokens(["<think>", "</think>", "<unused>"])
    t.chat_template = {
        "default": "{% for m in messages %}{{ m.content }}{% endfor %}<think>",
        "tool_use": "{% for m in messages %}{{ m.content }}{% endfor %}</think>",
    }
    m = model("gpt2", len(t))
    talk = [{"role": "user", "content": "the dog"}]
    before = t.convert_ids_to_tokens(t.apply_chat_template(talk, return_dict=False))
    report = prune_vocabulary(m, t, t.tokenize("the dog"))
    assert sorted(report.also_kept["template"]) == ["</think>", "<think>"]
    assert "<unused>" not in t.get_vocab()
    assert t.convert_ids_to_tokens(t.apply_chat_template(talk, return_dict=False)) == before


def test_what_a_post_processor_adds_stays() -> None:
    t = tokenizer("words")
    word = next(
        token for token in sorted(t.get_vocab()) if token.isalpha() and token not in t.all_special_tokens
    )
    t._tokenizer.post_processor = TemplateProcessing(
        single=f"{word} $A", special_tokens=[(word, t.convert_tokens_to_ids(word))]
    )
    before = t.convert_ids_to_tokens(t("the")["input_ids"])
    report = prune_vocabulary(model("gpt2", len(t)), t, ["the"])
    assert report.also_kept["processor"] == [word]
    assert t.convert_ids_to_tokens(t("the")["input_ids"]) == before


def test_what_cannot_be_pruned_is_refused_untouched() -> None:
    t = tokenizer("words")
    m = model("gpt2", len(t))
    state = copy.deepcopy(m.state_dict())
    with pytest.raises(InvalidArgumentError, match="keep has 'nowhere', which is not in"):
        prune_vocabulary(m, t, ["the", "nowhere"])
    with pytest.raises(InvalidArgumentError, match="keep has 99999"):
        prune_vocabulary(m, t, [99999])
    with pytest.raises(InvalidArgumentError, match="keep is empty"):
        prune_vocabulary(m, t, [])

    class Words(PreTrainedTokenizer):
        """A tokenizer in Python, without a tokenizer.json."""

        vocab_size = 3

        def get_vocab(self):
            return {"a": 0, "b": 1, "c": 2}

        def _convert_token_to_id(self, token):
            return self.get_vocab().get(token)

        def _convert_id_to_token(self, index):
            return "abc"[index]

        def _tokenize(self, text):
            return text.split()

    with pytest.raises(InvalidArgumentError, match="Words keeps its vocabulary in no tokenizer"):
        prune_vocabulary(m, Words(), ["a"])
    for keep in (range(len(t)), ["the"]):  # another model's tokenizer, whatever is kept of it
        with pytest.raises(InvalidArgumentError, match="but the model has 100 rows"):
            prune_vocabulary(model("gpt2", 100), t, keep)
    assert all(torch.equal(value, state[name]) for name, value in m.state_dict().items())


@pytest.mark.data
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased", "bert-base-chinese", "t5-base"])
def test_real_tokenizers_split_real_text_as_before(name, data_folder) -> None:
    import json

    old = AutoTokenizer.from_pretrained(data_folder / "tokenizers" / name)
    lines = (data_folder / "wikitext-2-v1" / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    some = [text for line in lines[:1500] if (text := json.loads(line)["text"]).strip()]
    t = copy.deepcopy(old)
    used = {i for ids in encode(old, some[:300]) for i in ids}
    m = model("gpt2", len(old))
    report = prune_vocabulary(m, t, used)
    new_id = {o: n for n, o in enumerate(report.old_ids)}
    pairs = [
        (after, [new_id[i] for i in before])
        for before, after in zip(encode(old, some), encode(t, some), strict=True)
        if set(before) <= new_id.keys()
    ]
    assert len(pairs) > 300 and all(after == expected for after, expected in pairs)


@pytest.mark.parametrize("wrong", [5.0, None, float("inf"), True])
def test_an_iterator_of_what_is_no_token_is_refused_as_a_list_is(wrong) -> None:
    old = tokenizer("byte_level")
    with pytest.raises(InvalidArgumentError, match="keep"):
        prune_vocabulary(model("gpt2", len(old)), old, (token for token in [5, wrong]))


def test_a_bar_that_is_off_loses_no_text() -> None:
    from transformers.utils import logging

    t = tokenizer("wordpiece")
    expected = used_tokens(t, ["the dog", "a man", "a man"])
    on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        bar = logging.tqdm(text for text in ["the dog", "a man", "a man"])
        assert used_tokens(t, bar) == expected
    finally:
        if on:
            logging.enable_progress_bar()


def test_the_token_that_pads_stays() -> None:
    t = tokenizer("wordpiece")
    m, pad = model("bert", len(t)), t.convert_tokens_to_ids("the")
    t.backend_tokenizer.enable_padding(pad_id=pad, pad_token="the")
    prune_vocabulary(m, t, ["man"])
    assert t.backend_tokenizer.padding["pad_id"] == t.convert_tokens_to_ids("the") != t.unk_token_id
