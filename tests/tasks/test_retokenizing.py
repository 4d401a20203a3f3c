from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from builders.tiny_tokenizers import model, texts, tokenizer

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.tasks import retokenizing
from hf_embinit.tasks.retokenizing import bits_per_byte, load_pairs


def test_pairs_are_embedded_or_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = load_pairs(["tatoeba"], "train", limit=50, seed=3)
    assert len(set(pairs)) == 50 and pairs == load_pairs(["tatoeba"], "train", limit=50, seed=3)
    assert pairs != load_pairs(["tatoeba"], "train", limit=50, seed=4)
    assert sum(" the " in pair.old for pair in pairs) > sum(" the " in pair.new for pair in pairs)
    (tmp_path / "p.jsonl").write_text(json.dumps({"de": "Hund", "en": "dog"}) + "\n")
    monkeypatch.setenv("HF_EMBINIT_DATA", str(tmp_path))
    assert load_pairs(["p.jsonl:en,de", str(tmp_path / "p.jsonl:de,en")], "train") == [
        ("dog", "Hund"),
        ("Hund", "dog"),
    ]


@pytest.mark.parametrize("family", ["sentencepiece_bpe", "byte_level"])
def test_bits_per_byte_is_the_definition(family: str) -> None:
    t = tokenizer(family)
    lm = model("llama", len(t), max_position_embeddings=64)
    some = list(texts()[:3])
    found = bits_per_byte(lm, t, some, length=64)
    nats = 0.0
    for text in some:
        ids = torch.tensor([[t.bos_token_id, *t(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            logs = torch.log_softmax(lm(input_ids=ids).logits[0].double(), 1)
        nats -= sum(float(logs[i, ids[0, i + 1]]) for i in range(ids.shape[1] - 1))
    assert found == pytest.approx(nats / math.log(2) / sum(len(text.encode()) for text in some), rel=1e-6)
    with pytest.raises(InvalidArgumentError, match="has more than 3 tokens"):
        bits_per_byte(lm, t, some, length=3)


def test_a_vocabulary_is_learnt_without_merges_across_words() -> None:
    learnt = retokenizing.train_tokenizer(tokenizer("sentencepiece_bpe"), list(texts()), 700)
    assert len(learnt) <= 700 and len(learnt) > 600
    assert not [token for token in learnt.get_vocab() if "▁" in token[1:]]
    assert learnt.decode(learnt("a dog runs", add_special_tokens=False)["input_ids"]) == "a dog runs"


def test_training_of_tables_leaves_the_rest() -> None:
    t = tokenizer("byte_level")
    lm = model("llama", len(t), max_position_embeddings=64)
    before = {name: value.clone() for name, value in lm.state_dict().items()}
    some, score = list(texts()[:100]), bits_per_byte(lm, t, texts()[:20], length=64)
    retokenizing.train_briefly(lm, t, some, 30, 1e-2, tables_only=True, length=32)
    changed = {name for name, value in lm.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"model.embed_tokens.weight", "lm_head.weight"}
    assert bits_per_byte(lm, t, texts()[:20], length=64) < score - 0.5
    retokenizing.train_briefly(lm, t, some, 1, 1e-2, tables_only=False, length=32)
    assert not torch.equal(lm.state_dict()["model.norm.weight"], before["model.norm.weight"])


def test_a_dictionary_of_words_is_learnt_from_pairs() -> None:
    words = {new: old for old, new in retokenizing.word_dictionary(load_pairs(["tatoeba"], "train"))}
    known = {"haus": "house", "wasser": "water", "hund": "dog", "buch": "book", "und": "and", "wir": "we"}
    assert {new: words.get(new) for new in known} == known and len(words) > 500


@pytest.mark.parametrize(
    ("init", "keys"),
    [
        ("auto", {"parallel"}),
        ("trans_tokenizer", {"parallel"}),
        ("focus", {"texts"}),
        ("wechsel", {"vectors", "dictionary"}),
        ("omp", {"donor"}),
        ("fvt", set()),
    ],
)
def test_each_method_is_given_what_it_reads(init: str, keys: set[str]) -> None:
    pairs = load_pairs(["tatoeba"], "train", limit=300)
    t = retokenizing.train_tokenizer(tokenizer("wordpiece"), [pair.new for pair in pairs], 300)
    assert set(retokenizing.help_for(init, t, pairs, [pair.new for pair in pairs], 0)) == keys
