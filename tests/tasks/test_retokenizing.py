from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from builders.tiny_tokenizers import model, texts, tokenizer
from transformers import BertConfig, BertForSequenceClassification

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.tasks import retokenizing, trials
from hf_embinit.tasks.trials import bits_per_byte, load_pairs


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


def test_texts_are_read_cut_off_and_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{i} " + "a dog runs " * (30 if i % 2 else 1) for i in range(40)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    monkeypatch.setenv("HF_EMBINIT_DATA", str(tmp_path))
    t = tokenizer("byte_level")
    lm = model("llama", len(t), max_position_embeddings=512)
    trial = trials.text_trial(lm, t, ["t.jsonl:text"], 10, seed=1)
    assert len(trial.held_out) == 2 and len(trial.texts) == 8 and not set(trial.held_out) & set(trial.texts)
    assert all(200 < len(text) <= 250 and text.endswith(("dog", "runs", "a")) for text in trial.texts)
    assert trial.score(lm, t) == bits_per_byte(lm, t, trial.held_out)
    assert {name: used["rows"] for name, used in trial.data.items()} == {"train": 8, "test": 2}
    assert trial.data == trials.text_trial(lm, t, ["t.jsonl:text"], 10, seed=1).data
    other = trials.text_trial(lm, t, ["t.jsonl:text"], 10, seed=2).data
    assert all(other[name]["sha256"] != used["sha256"] for name, used in trial.data.items())
    with pytest.raises(InvalidArgumentError, match=r"--num_texts 30: t.jsonl:text has 20 texts"):
        trials.text_trial(lm, t, ["t.jsonl:text"], 30)


def test_a_text_is_read_whole_or_to_the_end_of_a_word(tmp_path: Path) -> None:
    words, chinese = "a dog runs " * 13, "一只狗在街上跑" * 40
    lines = [words.strip(), f"{words}and on " * 2, chinese, f"题目 {chinese}", *(["short", "x" * 250] * 3)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    t = tokenizer("byte_level")
    trial = trials.text_trial(model("llama", len(t)), t, [f"{tmp_path / 't.jsonl'}:text"], 7)
    read = {*trial.texts, *trial.held_out}
    assert read >= {lines[0], "x" * 250, chinese[:250], f"题目 {chinese}"[:250]}
    (cut,) = (text for text in read if "and on" in text)
    assert 240 < len(cut) <= 250 and lines[1].startswith(f"{cut} ")


def test_labelled_pairs_score_an_encoder_and_a_classifier(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    t = tokenizer("wordpiece")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    classifier = BertForSequenceClassification(BertConfig(vocab_size=len(t), num_labels=3, **sizes)).eval()
    first, second = list(texts()[:30]), list(texts()[30:60])
    batch = t(first, second, padding=True, return_tensors="pt")
    with torch.no_grad():
        labels = classifier(**batch).logits.argmax(-1).tolist()
    labels[0] = (labels[0] + 1) % 3
    rows = [
        {"premise": one, "hypothesis": other, "label": label}
        for one, other, label in zip(first, second, labels, strict=True)
    ]
    file = tmp_path / "l.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trial = trials.label_trial(classifier, [], str(file), 30)
    assert (trial.metric, trial.score(classifier, t)) == ("accuracy", pytest.approx(29 / 30))
    every_third = trials.label_trial(classifier, [], str(file), 10)
    assert [one.data["test"]["rows"] for one in (trial, every_third)] == [30, 10]
    assert every_third.score(classifier, t) == pytest.approx(9 / 10)
    assert trials.label_trial(classifier, [], str(file), 20).data["test"]["rows"] == 20
    assert trials.label_trial(classifier, [], str(file), 99).data["test"]["rows"] == 30
    body = classifier.bert
    states = [trials.mean_pooled(body, t, side) for side in (first, second)]
    cosines = torch.cosine_similarity(*states)
    for row, cosine in zip(rows, cosines.tolist(), strict=True):
        row["label"] = -cosine
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trial = trials.label_trial(body, [], str(file), 30)
    assert (trial.metric, trial.score(body, t)) == ("spearmanr", pytest.approx(-1.0))
    file.write_text('{"a": "x", "label": 1}\n')
    with pytest.raises(InvalidArgumentError, match="has the columns a, label: expected `label`"):
        trials.label_trial(body, [], str(file), 30)


def test_a_tokenizer_is_found_learnt_or_gains_words(tmp_path: Path) -> None:
    old = tokenizer("byte_level")
    some = [*texts(), *["a zyzzogeton runs"] * 5]
    grown, words = retokenizing.new_tokenizer(old, some, words=3)
    assert len(grown) == len(old) + len(words) == len(old) + 3
    other = tokenizer("byte_level")
    other.pad_token = None
    other.save_pretrained(tmp_path)
    old.pad_token = old.eos_token
    found, words = retokenizing.new_tokenizer(old, some, name=str(tmp_path))
    assert found.pad_token == found.eos_token and not words


def test_the_peak_is_what_the_block_takes() -> None:
    with trials.measured() as cost:
        torch.ones(64 * 2**20, dtype=torch.uint8).sum()
    assert cost["seconds"] > 0
    assert "transfer_mib" not in cost or 60 < cost["transfer_mib"] < 600


def test_a_classifier_is_scored_on_labels_by_name_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=320, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=2
    )
    config.id2label = {0: "no", 1: "yes"}
    classifier = BertForSequenceClassification(config).eval()
    file, scores = tmp_path / "pairs.jsonl", []
    for labels in ((0, 1), ("no", "yes"), ("no", "maybe")):
        rows = [{"sentence1": "a dog", "sentence2": "a cat", "label": label} for label in labels]
        file.write_text("\n".join(map(json.dumps, rows)))
        if "maybe" in labels:
            with pytest.raises(InvalidArgumentError, match="has the label 'maybe', and the model no, yes"):
                trials.label_trial(classifier, [], str(file), 2)
        else:
            trial = trials.label_trial(classifier, [], str(file), 2)
            scores.append(trial.score(classifier, tokenizer("wordpiece", 320)))
    assert scores == [0.5, 0.5]


def test_a_model_without_a_first_token_writes_from_the_end_of_a_text_and_a_short_one_is_told() -> None:
    language_model, words = model("gpt2", 320), tokenizer("byte_level")
    words.bos_token = None
    assert len(trials.sample_texts(language_model, words, 2, length=6)) == 2
    places = language_model.config.max_position_embeddings
    with pytest.raises(InvalidArgumentError, match=f"{places}"):
        bits_per_byte(language_model, words, ["dog " * 2 * places])
    words.eos_token = None
    with pytest.raises(InvalidArgumentError, match="neither a first nor a last token"):
        trials.sample_texts(language_model, words, 2, length=6)
