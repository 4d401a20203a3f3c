"""Reserved slots: new tokens in the place of unused ones, and nothing else in the folder changes."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.reserved_tokenizers import COUNT, KINDS, sentencepiece_tokenizer, tokenizer
from builders.tiny_tokenizers import logits, model, texts
from builders.tiny_tokenizers import tokenizer as plain_tokenizer
from tokenizers import AddedToken
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, ByT5Tokenizer, ProcessorMixin

from hf_embinit import expand_vocabulary, load_adapter, peft_config_for_new_tokens, read_manifest
from hf_embinit.__main__ import main
from hf_embinit.errors import InvalidArgumentError, VocabularyWarning
from hf_embinit.manifest import row_ids
from hf_embinit.tables import EmbeddingTables
from hf_embinit.vectors import PretrainedVectors

NEW = ["zyxomma", AddedToken("<tool>", special=True)]
MODELS = {"bert": "bert", "llama3": "llama", "gemma": "gpt2", "t5": "bart"}
"""Tied with an output bias, untied, tied, `final_logits_bias`."""


def pair(kind: str):
    t = tokenizer(kind)
    return model(MODELS[kind], -(-len(t) // 64) * 64), t


def saved(m, t, folder: Path) -> Path:
    m.save_pretrained(folder)
    t.save_pretrained(folder)
    return folder


def masked_weights(file: Path, rows: dict[str, list[int]]) -> bytes:
    """The bytes of a safetensors file with zeros in the place of some rows of some tensors."""
    data = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    for name, ids in rows.items():
        start, end = header[name]["data_offsets"]
        width = (end - start) // header[name]["shape"][-1 if name == "final_logits_bias" else 0]
        for i in ids:
            first = 8 + size + start + i * width
            data[first : first + width] = bytes(width)
    return bytes(data)


def written(m, ids: list[int]) -> dict[str, list[int]]:
    """The rows of each tensor that may differ."""
    tables = EmbeddingTables(m)
    names = [t.name for t in tables.own_tables]
    names += [bias.name for t in tables.output_tables for bias in t.bias]
    return dict.fromkeys(names, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_byte_of_the_folder_changes(kind, tmp_path) -> None:
    m, t = pair(kind)
    before = saved(m, t, tmp_path / "before")
    report = expand_vocabulary(m, t, NEW, "mean_cov", slots="reserved", prefixes=())
    after = saved(m, t, tmp_path / "after")
    assert report.old_num_embeddings == report.new_num_embeddings == m.config.vocab_size
    files = sorted(path.name for path in before.iterdir())
    assert files == sorted(path.name for path in after.iterdir())
    for name in files:
        old, new = before / name, after / name
        if name == "config.json":  # gains the manifest and nothing else
            told = json.loads(new.read_text())
            assert told.pop("embinit")[0]["slots"] == dict(zip(names(kind), report.token_ids, strict=True))
            assert json.dumps(told, indent=2, sort_keys=True) + "\n" == old.read_text()
        elif name == "model.safetensors":
            stored = written(m, report.token_ids)
            with_header = {key: ids for key, ids in stored.items() if key.encode() in old.read_bytes()}
            assert with_header
            assert masked_weights(old, with_header) == masked_weights(new, with_header)
            assert old.read_bytes() != new.read_bytes()
        elif not name.startswith("tokenizer"):
            assert old.read_bytes() == new.read_bytes(), name
    back = dict(zip(["zyxomma", "<tool>"], names(kind), strict=True))
    spec = json.loads((after / "tokenizer.json").read_text())
    assert ids_by_name(spec, back) == ids_by_name(json.loads((before / "tokenizer.json").read_text()), {})


def names(kind: str) -> list[str]:
    """The first two slots: T5 numbers its own downwards."""
    return [KINDS[kind].format(i) for i in ((COUNT - 1, COUNT - 2) if kind == "t5" else (0, 1))]


def ids_by_name(spec: dict, back: dict[str, str]) -> dict:
    """All of a tokenizer.json but the entries of renamed tokens among the added ones."""
    vocab = spec["model"]["vocab"]
    if isinstance(vocab, list):
        spec["model"]["vocab"] = [[back.get(piece, piece), score] for piece, score in vocab]
    else:
        spec["model"]["vocab"] = {back.get(token, token): i for token, i in vocab.items()}
    renamed = {*back, *back.values(), *(n for kind in KINDS for n in names(kind))}
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] not in renamed]
    return spec


@pytest.mark.parametrize("kind", [*KINDS, "sentencepiece"])
def test_new_tokens_are_read_and_written_and_old_texts_split_as_before(kind, tmp_path) -> None:
    t = sentencepiece_tokenizer(tmp_path) if kind == "sentencepiece" else tokenizer(kind)
    m = model("gpt2", len(t) + 3)
    old = copy.deepcopy(t)
    report = expand_vocabulary(m, t, NEW, slots="reserved", prefixes=())
    t.save_pretrained(tmp_path / "saved")
    for one in (t, type(t).from_pretrained(tmp_path / "saved")):
        ids = one("the zyxomma <tool> is")["input_ids"]
        assert set(report.token_ids) <= set(ids)
        assert one.convert_tokens_to_ids(["zyxomma", "<tool>"]) == report.token_ids
        assert one.decode(ids, skip_special_tokens=True).count("zyxomma") == 1
        assert "<tool>" not in one.decode(ids, skip_special_tokens=True)
        assert [one(text)["input_ids"] for text in texts()[:40]] == [
            old(text)["input_ids"] for text in texts()[:40]
        ]
        left = set(old.get_vocab()) - set(one.get_vocab())
        assert len(left) == 2 and len(one) == len(old)
        if kind != "sentencepiece":
            assert left == set(names(kind))


@pytest.mark.parametrize("init", ["mean", "subword_mean", "mean_cov", "zeros"])
def test_predictions_over_old_tokens_stay(init) -> None:
    m, t = pair("llama3")
    ids = torch.tensor([t(texts()[0])["input_ids"]])
    before = logits(m, ids)
    report = expand_vocabulary(m, t, NEW, init, slots="reserved")
    kept = [i for i in range(m.config.vocab_size) if i not in report.token_ids]
    assert torch.equal(logits(m, ids)[..., kept], before[..., kept])
    assert report.shift is not None and report.bound is not None
    if init == "mean":
        assert report.shift.kl_max <= report.bound + 1e-6
    assert [plan.slot for plan in report.tokens] == names("llama3")
    assert "(was '<|reserved_special_token_0|>')" in str(report)
    assert report.to_dict()["tokens"][0]["slot"] == names("llama3")[0]


def test_slots_that_someone_uses_are_left_alone_and_a_named_one_is_renamed_everywhere() -> None:
    from tokenizers import processors

    m, t = pair("llama3")
    first, second, third, fourth = (KINDS["llama3"].format(i) for i in range(4))
    t.chat_template = t.chat_template.replace("<|eot|>", first)
    ids = t.convert_tokens_to_ids([first, second, third, fourth])
    t._tokenizer.post_processor = processors.Sequence(
        [processors.TemplateProcessing(single=f"{second} $A", special_tokens=[(second, ids[1])])]
    )
    m.generation_config.suppress_tokens = [ids[2]]
    t.extra_special_tokens = [fourth]
    twin, twin_model = copy.deepcopy(t), copy.deepcopy(m)
    report = expand_vocabulary(m, t, ["zyxomma"], slots="reserved", prefixes=())
    assert report.token_ids == [ids[3]] and t.extra_special_tokens == []
    report = expand_vocabulary(twin_model, twin, ["zyx", "<x>", NEW[1]], slots=list(np.array(ids)[[0, 1, 3]]))
    (event,) = read_manifest(twin_model)  # of rows that are no neighbours
    assert row_ids(event["tables"][0]["rows"]) == [ids[0], ids[1], ids[3]]
    assert "zyx" in twin.chat_template and first not in twin.chat_template
    assert twin("the")["input_ids"][0] == ids[1] == twin.convert_tokens_to_ids("<x>")
    assert twin.extra_special_tokens == ["<tool>"]
    chat = [{"role": "user", "content": "the <x>"}]
    assert twin.apply_chat_template(chat, tokenize=False).endswith("zyx")


def test_slots_that_a_processor_uses_are_left_alone() -> None:
    m, t = pair("llama3")
    first, second, third = (KINDS["llama3"].format(i) for i in range(3))
    ids = t.convert_tokens_to_ids([first, second, third])

    class Processor(ProcessorMixin):
        attributes = ("tokenizer",)
        tokenizer_class = "AutoTokenizer"

    processor = Processor(t, chat_template="{{ messages }}" + first)
    processor.image_token_id = ids[1]
    report = expand_vocabulary(m, processor, ["zyxomma"], slots="reserved", prefixes=())
    assert report.token_ids == [ids[2]]


def last_leaf(t) -> tuple[str, int]:
    """The last token that starts a word and that no other token is merged from, and its id."""
    spec = json.loads(t.backend_tokenizer.to_str())
    parts = {part for merge in spec["model"]["merges"] for part in merge}
    leaves = [(token, i) for token, i in spec["model"]["vocab"].items() if token not in parts]
    return [(token, i) for token, i in leaves if token.startswith("▁") and len(token) > 3][-1]


def test_an_ordinary_token_can_be_overwritten_when_it_is_named(tmp_path) -> None:
    """As robots' action tokens do with the last tokens of a vocabulary; its merge goes with it."""
    m, t = pair("gemma")
    leaf, i = last_leaf(t)
    text = leaf.replace("▁", " ")
    assert i in t(text)["input_ids"]
    expand_vocabulary(m, t, ["<act>"], slots=[i], prefixes=())
    assert i not in t(text)["input_ids"] and t(text)["input_ids"]
    assert i in t("the <act>")["input_ids"] and i == t.convert_tokens_to_ids("<act>")
    assert t.decode(t(text)["input_ids"]) == text.strip() or t.decode(t(text)["input_ids"]) == text


def broken_calls(t) -> list[tuple[object, list[str], str]]:
    """(slots, new tokens, what the sentence says)"""
    free = t.convert_tokens_to_ids(KINDS["llama3"].format(0))
    letter, part = t.convert_tokens_to_ids("z"), t.convert_tokens_to_ids("Ġa")
    return [
        ("reserve", ["x1"], "slots='reserve': expected 'reserved' or a list of integers"),
        ("", ["x1"], "slots='': expected"),
        ([], ["x1"], r"slots=\[\]: expected"),
        (7, ["x1"], "slots=7: expected"),
        ({1, 2}, ["x1"], "expected 'reserved' or a list of integers"),
        ([None], ["x1"], "slots has None: expected an integer"),
        ([True], ["x1"], "slots has True: expected an integer"),
        ([1.0], ["x1"], "slots has 1.0: expected an integer"),
        (["12"], ["x1"], "slots has '12': expected an integer"),
        ([-1], ["x1"], "slots has -1: expected ids"),
        ([10**6], ["x1"], "slots has 1000000: expected ids of the tokenizer from 0 to 328"),
        ([free, free], ["x1", "x2"], "twice: give each new token an id of its own"),
        ([0], ["x1"], "which is .*(bos_token|eos_token).*: take another id"),
        ([letter], ["x1"], r"\('z'\), which is a byte that texts are made of"),
        ([part], ["x1"], r"\('Ġa'\), which is a part that other tokens are merged from"),
        ([free], ["x1", "x2"], "there are 1 ids in slots, for 2 new tokens: name more"),
        (
            "reserved",
            [f"x{i}" for i in range(7)],
            r"there are 6 unused .* for 7 new tokens: .*\(slots=\[...\], --slots ID ID\)",
        ),
        ("reserved", [], "new_tokens is empty"),
        ("reserved", "x1", "expected a list"),
        ("reserved", [""], "empty token"),
    ]


@pytest.mark.parametrize("case", range(20))
def test_wrong_calls_are_one_sentence_and_change_nothing(case) -> None:
    m, t = pair("llama3")
    slots, new, match = broken_calls(t)[case]
    weights, spec = copy.deepcopy(m.state_dict()), t.backend_tokenizer.to_str()
    with pytest.raises(InvalidArgumentError, match=match) as told:
        expand_vocabulary(m, t, new, slots=slots)
    assert "\n" not in str(told.value)
    assert t.backend_tokenizer.to_str() == spec and read_manifest(m) == []
    assert all(torch.equal(tensor, weights[name]) for name, tensor in m.state_dict().items())


def test_what_else_does_not_go_together() -> None:
    m, t = pair("gemma")
    with pytest.raises(InvalidArgumentError, match="pad_to_multiple_of=8 grows the tables"):
        expand_vocabulary(m, t, ["x1"], slots="reserved", pad_to_multiple_of=8)
    leaf, i = last_leaf(t)
    with pytest.raises(InvalidArgumentError, match=f"which is a piece of the new token '{leaf[1:]}q'"):
        expand_vocabulary(m, t, [f"{leaf[1:]}q"], "subword_mean", slots=[i])
    with pytest.raises(InvalidArgumentError, match="a ByT5Tokenizer has neither"):
        expand_vocabulary(model("gpt2", 400), ByT5Tokenizer(), ["zyxomma"], slots="reserved")


def test_a_dry_run_names_the_slots_and_changes_nothing() -> None:
    m, t = pair("bert")
    spec = t.backend_tokenizer.to_str()
    report = expand_vocabulary(m, t, NEW, slots="reserved", dry_run=True)
    assert [plan.slot for plan in report.tokens] == names("bert")
    assert t.backend_tokenizer.to_str() == spec and read_manifest(m) == []


def test_an_adapter_of_such_a_model_loads_and_nothing_grows(tmp_path) -> None:
    from peft import get_peft_model

    m, t = pair("llama3")
    base = copy.deepcopy(m)
    rows = base.config.vocab_size
    ids = expand_vocabulary(m, t, NEW, "mean_cov", slots="reserved", prefixes=()).token_ids
    wrapped = get_peft_model(m, peft_config_for_new_tokens(m, ids, target_modules=["q_proj"], r=2))
    with torch.no_grad():
        for p in wrapped.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) / 10)
    wrapped.save_pretrained(tmp_path)
    text = torch.tensor([t("the zyxomma <tool> is")["input_ids"]])
    loaded = load_adapter(base, tmp_path).eval()
    assert torch.equal(logits(loaded, text), logits(wrapped.eval(), text))
    assert base.config.vocab_size == rows and base.get_input_embeddings().weight.shape[0] == rows


def test_the_command(tmp_path, capsys) -> None:
    m, t = pair("llama3")
    folder = str(saved(m, t, tmp_path / "model"))
    new = ["--tokens", "zyxomma", "<tool>"]
    output = str(tmp_path / "new")
    assert main(["expand", folder, *new, "--slots", "reserved", "--output_dir", output, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["old_num_embeddings"] == told["new_num_embeddings"] == m.config.vocab_size
    free = [str(i) for i in t.convert_tokens_to_ids([KINDS["llama3"].format(i) for i in (3, 2)])]
    assert main(["expand", folder, *new, "--slots", *free, "--dry_run", "--json"]) == 0
    assert [str(one["id"]) for one in json.loads(capsys.readouterr().out)["tokens"]] == free
    assert main(["expand", folder, *new, "--slots", "reserv", "--dry_run"]) == 2
    assert "--slots reserv: expected the word reserved" in capsys.readouterr().err
    more = [f"x{i}" for i in range(8)]
    assert main(["expand", folder, "--tokens", *more, "--slots", "reserved", "--dry_run"]) == 1
    assert "there are 6 unused tokens" in capsys.readouterr().err


@pytest.mark.data
@pytest.mark.parametrize(("name", "slot"), [("bert-base-uncased", "[unused0]"), ("t5-base", "<extra_id_99>")])
def test_tokenizers_of_the_hub(name, slot, data_folder, tmp_path) -> None:
    t = AutoTokenizer.from_pretrained(data_folder / "tokenizers" / name)
    size = -(-len(t) // 128) * 128
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    m = BertForMaskedLM(BertConfig(vocab_size=size, **tiny))
    old = copy.deepcopy(t)
    report = expand_vocabulary(m, t, NEW, "subword_mean", slots="reserved", prefixes=())
    assert report.tokens[0].slot == slot
    t.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert type(again) is type(old) and len(again) == len(old)
    text = "the zyxomma and <tool> again"
    assert again(text)["input_ids"] == t(text)["input_ids"]
    assert set(report.token_ids) <= set(again(text)["input_ids"])
    assert again(texts()[0])["input_ids"] == old(texts()[0])["input_ids"]
    count = 994 if name.startswith("bert") else 100
    with pytest.raises(InvalidArgumentError, match=f"there are {count} unused tokens"):
        expand_vocabulary(m, old, [f"new{i}x" for i in range(count + 1)], slots="reserved")


def test_sentinels_that_texts_use_most_are_taken_last() -> None:
    m, t = model("bart", 420), plain_tokenizer("unigram")
    t.add_tokens([f"<extra_id_{i}>" for i in range(100)])  # counting upwards, unlike T5's own
    report = expand_vocabulary(m, t, NEW, slots="reserved", prefixes=())
    assert [token.slot for token in report.tokens] == [f"<extra_id_{99 - i}>" for i in range(len(NEW))]


def test_a_token_for_whole_words_is_a_piece_in_its_slot_and_that_is_said() -> None:
    m, t = pair("bert")
    with pytest.warns(VocabularyWarning, match=r"in a slot 'zyx' is a piece .*single_word or not") as told:
        expand_vocabulary(m, t, [AddedToken("zyx", single_word=True)], slots="reserved", prefixes=())
    assert {w.filename for w in told} == {__file__}
    assert t.tokenize("zyxthe")[0] == "zyx"


def test_an_ordinary_token_in_the_slot_of_a_special_one_is_looked_up(tmp_path) -> None:
    t = tokenizer("llama3")
    words = [*(word for word in sorted(t.get_vocab()) if word.isalpha())][:50]
    rows = torch.randn(len(words) + 1, 16, generator=torch.Generator().manual_seed(0))
    vectors = PretrainedVectors([*words, "zyxomma"], rows, "v")
    grown = model("gpt2", len(t))
    report = expand_vocabulary(
        grown, t, ["zyxomma"], "pretrained_map", vectors=vectors, slots="reserved", prefixes=()
    )
    assert report.coverage == {"tokens": 1, "with_source": 1, "without_source": []}
    assert not t.added_tokens_decoder[report.token_ids[0]].special
