"""`VanillaTransformerTokenizer`: words, compacted pre-trained tokenizers, vocabularies, saving, decoding."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizer, PreTrainedTokenizerFast

from hf_embinit.models import VanillaTransformerTokenizer
from hf_embinit.models.segmentation_vanilla_transformer import TokenizerError

EN = [
    "A man's dog isn't in the old town.",
    'The boy in a t-shirt said, "We can\'t go!"',
    "Two men (one of them old) don't see the dog's tail; they're singing.",
    "A girl's t-shirt is red, blue and green: it isn't new.",
    'She says: "I\'m not a well-known singer."',
    "Is the boy's ball in the water?",
    "A woman buys 3 apples, 2 pears and a half-price melon.",
] * 5
DE = [
    "Der Hund eines Mannes läuft in der Altstadt.",
    "Der Junge im T-Shirt sagt: „Wir können nicht gehen!“",
    "Zwei Männer (einer davon alt) sehen den Hund nicht; sie singen.",
    "Das T-Shirt des Mädchens ist rot, blau und grün.",
    "Sie sagt, dass sie keine Sängerin ist.",
    "Liegt der Ball des Jungen im Wasser?",
    "Eine Frau kauft 3 Äpfel, 2 Birnen und eine Melone.",
] * 5
UNSEEN = ["Three zebras aren't outside, dreaming of Ωmega 日本!", "  ", "", "A  man\tin a\nred t-shirt"]

DATA = Path(os.environ.get("HF_EMBINIT_DATA", "nowhere"))
needs_data = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason="HF_EMBINIT_DATA is not set"),
]


def wordpiece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    backend.train_from_iterator(EN + DE, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        EN + DE, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def unigram() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=250, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(EN + DE, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


FAMILIES = {"wordpiece": wordpiece, "byte_level": byte_level, "unigram": unigram}


@pytest.fixture(scope="module")
def words() -> VanillaTransformerTokenizer:
    return VanillaTransformerTokenizer.build(DE, EN, source_lang="de", target_lang="en")


@pytest.fixture(scope="module", params=FAMILIES)
def full(request) -> PreTrainedTokenizerFast:
    return FAMILIES[request.param]()


def known_or_unk(full: PreTrainedTokenizerFast, encoder: dict[str, int], text: str) -> list[int]:
    """The compacted ids of a text, computed from the pre-trained tokenizer itself."""
    ids = full(text, add_special_tokens=False)["input_ids"]
    tokens = full.convert_ids_to_tokens(ids)
    return [1 if i == full.unk_token_id else encoder.get(t, 1) for i, t in zip(ids, tokens, strict=True)]


# --- ids


def test_special_tokens_have_the_ids_0_to_3_on_both_sides(words):
    specials = {"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3}
    for encoder in (words.encoder, words.target_encoder):
        assert {token: encoder[token] for token in specials} == specials
        assert sorted(encoder.values()) == list(range(len(encoder)))
    ids = (words.pad_token_id, words.unk_token_id, words.bos_token_id, words.eos_token_id)
    assert ids == (0, 1, 2, 3)


def test_source_and_target_are_numbered_apart(words):
    encoded = words("Der Hund ist rot.", text_target="The dog is red.")
    source, target = words.encoder, words.target_encoder
    assert encoded["input_ids"] == [source[t] for t in ("der", "hund", "ist", "rot", ".", "</s>")]
    assert encoded["labels"] == [target[t] for t in ("the", "dog", "is", "red", ".", "</s>")]
    assert encoded["attention_mask"] == [1] * 6
    assert words(text_target="The dog")["input_ids"] == [target["the"], target["dog"], 3]
    assert words("der Hund")["input_ids"] == [source["der"], source["hund"], 3]  # back in source mode
    assert len(words) == words.vocab_size == len(source)
    assert words.target_vocab_size == len(target) != len(source)


def test_words_are_those_seen_often_enough_by_falling_frequency():
    texts = ["b a c", "b a", "b d", "B a"]
    tok = VanillaTransformerTokenizer.build(texts, source_lang="en", min_frequency=2)
    assert list(tok.encoder) == ["<pad>", "<unk>", "<s>", "</s>", "b", "a"]
    assert tok("a d B")["input_ids"] == [5, 1, 4, 3]
    assert tok.token_counts(texts) == [0, 2, 0, 0, 4, 3]
    assert tok.target_encoder is tok.encoder and not tok.separate_vocabs


def test_one_vocabulary_for_both_sides():
    tok = VanillaTransformerTokenizer.build(
        ["a b"], ["a c"], source_lang="de", target_lang="en", separate_vocabs=False
    )
    assert set(tok.encoder) == {*list(tok.encoder)[:4], "a"} and tok.target_encoder is tok.encoder
    encoded = tok("a", text_target="a")
    assert encoded["input_ids"] == encoded["labels"] == [4, 3]


def test_pairs_are_separated_by_the_end_token(words):
    encoded = words("Der Hund", "der Ball", return_special_tokens_mask=True)
    der, hund, ball = (words.encoder[t] for t in ("der", "hund", "ball"))
    assert encoded["input_ids"] == [der, hund, 3, der, ball, 3]
    assert encoded["special_tokens_mask"] == [0, 0, 1, 0, 0, 1]
    assert "token_type_ids" not in encoded
    cut = words("Der Hund", "der Ball", truncation=True, max_length=5)["input_ids"]
    assert cut == [der, hund, 3, der, 3] or cut == [der, 3, der, ball, 3]


def test_truncation_keeps_the_end_token(words):
    encoded = words(DE[0], text_target=EN[0], truncation=True, max_length=4, max_target_length=3)
    assert len(encoded["input_ids"]) == 4 and encoded["input_ids"][-1] == 3
    assert len(encoded["labels"]) == 3 and encoded["labels"][-1] == 3


def test_padding_and_the_collator(words):
    batch = words(["Der Hund", "Der Ball ist rot."], text_target=["The dog", "The ball is red."])
    features = [{k: batch[k][i] for k in batch} for i in range(2)]
    padded = DataCollatorForSeq2Seq(words)([dict(f) for f in features])
    assert padded["input_ids"][0].tolist() == features[0]["input_ids"] + [0, 0, 0]
    assert padded["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert padded["labels"][0].tolist() == features[0]["labels"] + [-100, -100, -100]
    texts = words.batch_decode(padded["labels"], skip_special_tokens=True)
    assert texts == ["the dog", "the ball is red."]
    tensors = words(["Der Hund", "Der Ball ist rot."], padding=True, return_tensors="pt")
    assert torch.equal(tensors["input_ids"], padded["input_ids"])


def test_empty_text_is_the_end_token_alone(words, full):
    compact = VanillaTransformerTokenizer.build(EN, tokenizer=full)
    assert words("")["input_ids"] == words(" \n ")["input_ids"] == compact("")["input_ids"] == [3]
    assert words.decode([], skip_special_tokens=True) == ""


# --- pre-trained tokenizers


def test_compaction_keeps_the_segmentation(full):
    tok = VanillaTransformerTokenizer.build(DE, EN, tokenizer=full, min_frequency=6)
    assert len(tok.encoder) < len(full)
    for text in DE + UNSEEN:
        assert tok(text)["input_ids"] == [*known_or_unk(full, tok.encoder, text), 3]
    for text in EN + UNSEEN:
        assert tok(text_target=text)["input_ids"] == [*known_or_unk(full, tok.target_encoder, text), 3]
    counts = Counter(i for text in EN for i in full(text, add_special_tokens=False)["input_ids"])
    kept = {full.convert_ids_to_tokens(i) for i, n in counts.items() if n >= 6 and i != full.unk_token_id}
    assert set(tok.target_encoder) == kept | {"<pad>", "<unk>", "<s>", "</s>"}


def test_decoding_gives_the_text_back(full):
    tok = VanillaTransformerTokenizer.build(DE, EN, tokenizer=full)
    for text in EN[:7]:
        assert tok.decode(tok(text_target=text)["input_ids"], skip_special_tokens=True) == text
    for text in DE[:7]:
        ids = tok(text)["input_ids"]
        assert tok.decode(ids, skip_special_tokens=True, side="source") == text
        assert tok.decode_tokens(ids, side="source") == " ".join(
            full.convert_ids_to_tokens(full(text, add_special_tokens=False)["input_ids"])
        )


def test_truncation_and_padding_of_the_pretrained_tokenizer_are_dropped(full):
    full.backend_tokenizer.enable_truncation(4)
    full.backend_tokenizer.enable_padding(length=64)
    try:
        tok = VanillaTransformerTokenizer.build(EN, tokenizer=full)
        assert 4 < len(tok(EN[2])["input_ids"]) < 64
        assert full.backend_tokenizer.truncation is not None  # the caller's own is left as it was
    finally:
        full.backend_tokenizer.no_truncation()
        full.backend_tokenizer.no_padding()


# --- detokenisation


def test_words_are_written_as_text(words):
    for texts, side in ((EN, "target"), (DE, "source")):
        for text in texts[:7]:
            tokens = next(words.segment([text], side))
            assert words.convert_tokens_to_string(tokens, side=side) == text.lower()
    ids = words(text_target=EN[1])["input_ids"]
    assert words.decode(ids, skip_special_tokens=True) == EN[1].lower()


def test_lowercases_says_whether_case_is_lost(words):
    assert words.lowercases
    assert not VanillaTransformerTokenizer.build(EN, tokenizer=byte_level()).lowercases
    cased = wordpiece()
    assert not VanillaTransformerTokenizer.build(EN, tokenizer=cased).lowercases
    cased.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    assert VanillaTransformerTokenizer.build(EN, tokenizer=cased).lowercases


def test_tokens_for_token_level_bleu(words):
    assert words.tokenize_target("The zebra isn't red.") == "the zebra is n't red ."
    ids = [2, *words(text_target="The zebra isn't red.")["input_ids"], 0, 0]
    assert words.decode_tokens(ids) == "the <unk> is n't red ."
    assert words.decode_tokens(np.array([*ids, 7, 7, -100])) == "the <unk> is n't red ."


def test_ids_name_their_side(words):
    word = words.convert_ids_to_tokens(4)
    assert word == next(t for t, i in words.encoder.items() if i == 4)
    assert words.convert_ids_to_tokens([4, -100, 10**6], side="target") == [
        next(t for t, i in words.target_encoder.items() if i == 4),
        "<pad>",
        "<unk>",
    ]
    assert words.convert_tokens_to_ids(words.convert_ids_to_tokens([5, 6])) == [5, 6]


# --- added tokens


def test_added_tokens_come_last_in_both_vocabularies(words, tmp_path):
    tok = copy.deepcopy(words)
    n, m = len(words.encoder), len(words.target_encoder)
    assert tok.add_tokens(["Aragorn", "Frodo"]) == 2
    assert tok.add_special_tokens({"additional_special_tokens": ["<quest>"]}) == 1
    assert len(words.encoder) == n  # the copy is apart
    tok.save_pretrained(tmp_path)
    for loaded in (tok, VanillaTransformerTokenizer.from_pretrained(tmp_path)):
        assert len(loaded) == n + 3 and loaded.target_vocab_size == m + 3
        encoded = loaded("Der Hund Aragorn", text_target="The dog Aragorn <quest>.")
        assert encoded["input_ids"][-2:] == [n, 3]
        assert encoded["labels"][-4:] == [m, m + 2, loaded.target_encoder["."], 3]
        assert loaded.decode(encoded["labels"], skip_special_tokens=True) == "the dog Aragorn."
    assert tok.add_tokens(["Aragorn"]) == 0


def test_added_tokens_in_sub_word_text(full):
    tok = VanillaTransformerTokenizer.build(DE, EN, tokenizer=full)
    tok.add_tokens(["Aragorn"])
    ids = tok(text_target="The dog Aragorn is old.")["input_ids"]
    assert ids.count(tok.target_encoder["Aragorn"]) == 1
    assert tok.decode(ids, skip_special_tokens=True) == "The dog Aragorn is old."


# --- saving, copying, hashing

LOAD = """
import json, sys
if {remote}:
    sys.modules["hf_embinit"] = None
else:
    import hf_embinit
from transformers import AutoTokenizer
for kind in ("unigram", "words"):
    if kind == "unigram":
        sys.modules["spacy"] = None  # which sub-words do not need
    else:
        del sys.modules["spacy"]
    tok = AutoTokenizer.from_pretrained({folder!r} + kind, trust_remote_code={remote})
    encoded = tok({source!r}, text_target={target!r})
    print(json.dumps([type(tok).__module__, encoded["input_ids"], encoded["labels"],
                      tok.batch_decode(encoded["labels"], skip_special_tokens=True),
                      tok.decode(encoded["input_ids"][0], side="source"), len(tok), tok.target_vocab_size]))
"""


@pytest.mark.parametrize("remote", [False, True], ids=["with_hf_embinit", "trust_remote_code"])
def test_save_and_load_in_another_process(remote, tmp_path):
    saved = {}
    for kind, tokenizer in (("unigram", unigram()), ("words", "words")):
        saved[kind] = VanillaTransformerTokenizer.build(
            DE, EN, tokenizer=tokenizer, source_lang="de", target_lang="en", min_frequency=6
        )
        saved[kind].save_pretrained(tmp_path / kind)
    script = LOAD.format(remote=remote, folder=f"{tmp_path}/", source=DE[:7], target=EN[:7])
    env = {**os.environ, "HF_HOME": str(tmp_path / "c"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    for tok, line in zip(saved.values(), run.stdout.splitlines(), strict=True):
        module, *there = json.loads(line)
        assert module.startswith("transformers_modules." if remote else "hf_embinit.")
        here = tok(DE[:7], text_target=EN[:7])
        assert there == [
            here["input_ids"],
            here["labels"],
            tok.batch_decode(here["labels"], skip_special_tokens=True),
            tok.decode(here["input_ids"][0], side="source"),
            len(tok),
            tok.target_vocab_size,
        ]


def test_saving_twice_gives_the_same_files(full, tmp_path):
    tok = VanillaTransformerTokenizer.build(DE, EN, tokenizer=full, model_max_length=128)
    tok.save_pretrained(tmp_path / "a")
    again = AutoTokenizer.from_pretrained(tmp_path / "a")
    assert isinstance(again, VanillaTransformerTokenizer) and again.model_max_length == 128
    again.save_pretrained(tmp_path / "b")
    for name in ("vocab.json", "target_vocab.json", "segmenter.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    left, right = (
        json.loads((tmp_path / x / "tokenizer_config.json").read_text(encoding="utf-8")) for x in "ab"
    )
    for config in (left, right):  # what transformers notes about the loading
        config.pop("is_local", None)
        config.pop("local_files_only", None)
    assert left == right


def test_pickle_and_deepcopy(words, full):
    for tok in (words, VanillaTransformerTokenizer.build(DE, EN, tokenizer=full)):
        for other in (pickle.loads(pickle.dumps(tok)), copy.deepcopy(tok)):
            assert other(UNSEEN + DE, text_target=UNSEEN + EN) == tok(UNSEEN + DE, text_target=UNSEEN + EN)


def test_using_it_does_not_change_the_fingerprint_of_datasets(full):
    fingerprint = pytest.importorskip("datasets.fingerprint").Hasher
    for tokenizer in ("words", full):
        tok = VanillaTransformerTokenizer.build(
            DE, EN, tokenizer=tokenizer, source_lang="de", target_lang="en"
        )
        before = fingerprint.hash(tok)
        encoded = tok(DE, text_target=EN)
        tok.pad({"input_ids": encoded["input_ids"]})
        tok.batch_decode(encoded["labels"])
        assert fingerprint.hash(tok) == before


# --- errors


def test_a_language_without_rules_takes_those_for_any_and_says_so(caplog):
    odd = VanillaTransformerTokenizer.build(EN, source_lang="klingon")
    assert "no rules for language 'klingon'" in caplog.text
    assert odd.get_vocab() == VanillaTransformerTokenizer.build(EN, source_lang="xx").get_vocab()


def test_errors_name_the_argument(tmp_path):
    build = VanillaTransformerTokenizer.build
    with pytest.raises(ValueError, match="source_lang="):
        build(EN)
    with pytest.raises(ValueError, match="target_lang="):
        build(DE, EN, source_lang="de")
    with pytest.raises(ValueError, match="min_frequency=0"):
        build(EN, source_lang="en", min_frequency=0)
    with pytest.raises(ValueError, match="no fast backend"):
        build(EN, tokenizer=PreTrainedTokenizerWithoutBackend())
    with pytest.raises(ValueError, match="source_texts is one string, 'a dog runs'"):
        build("a dog runs", source_lang="en")
    with pytest.raises(ValueError, match=r"pad_token='\[PAD\]': ids 0 to 3 are <pad>, <unk>, <s>, </s>"):
        build(EN, source_lang="en", pad_token="[PAD]")
    made = build(EN, source_lang="en")
    with pytest.raises(ValueError, match="eos_token='<end>'"):
        made.add_special_tokens({"eos_token": "<end>"})
    with pytest.raises(ValueError, match="pad_token='</s>'"):
        made.pad_token = made.eos_token
    assert made.pad_token == "<pad>"
    build(DE, EN, tokenizer=unigram()).save_pretrained(tmp_path)
    (tmp_path / "segmenter.json").unlink()
    with pytest.raises(ValueError, match=r"segmenter\.json"):
        VanillaTransformerTokenizer.from_pretrained(tmp_path)


class PreTrainedTokenizerWithoutBackend(PreTrainedTokenizer):
    """A slow tokenizer."""

    def get_vocab(self):
        return {}


# --- real data


def read(path: str, column: str) -> list[str]:
    with open(DATA / path, encoding="utf-8") as file:
        return [json.loads(line)[column] for line in file]


@pytest.mark.parametrize(
    ("tokenizer", "source", "target"),
    [("words", 7847, 5888), ("bert-base-multilingual-cased", 6253, 5456)],
)
class TestMulti30k:
    pytestmark = needs_data

    def test_counts_of_the_paper(self, tokenizer, source, target):
        folder = tokenizer if tokenizer == "words" else DATA / "tokenizers" / tokenizer
        de, en = (read("multi30k/train.jsonl", lang) for lang in ("de", "en"))
        tok = VanillaTransformerTokenizer.build(de, en, tokenizer=folder, source_lang="de", target_lang="en")
        # The tokens come on top of our 4 special ones; mBERT's [UNK], seen in both texts, is our <unk>.
        unknown = 0 if tokenizer == "words" else 1
        assert tok.vocab_size == source - unknown + 4
        assert tok.target_vocab_size == target - unknown + 4
        for side, lang in (("target", "en"), ("source", "de")):
            texts = [" ".join(text.split()) for text in read("multi30k/test.jsonl", lang)]
            texts = [text.lower() if tok.lowercases else text for text in texts]
            written = [tok.convert_tokens_to_string(t, side=side) for t in tok.segment(texts, side)]
            same = sum(a == b for a, b in zip(texts, written, strict=True)) / len(texts)
            assert same > 0.99, f"{side}: {same:.4f} of the texts come back as they were"


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="HF_EMBINIT_DATA is not set")
@pytest.mark.parametrize(
    "name",
    ["bert-base-multilingual-cased", "bert-base-uncased", "gpt2", "t5-base", "german-unigram-30k"],
)
def test_compaction_keeps_the_segmentation_of_real_text(name):
    folder = DATA / "tokenizers" / name
    train, test = read("multi30k/train.jsonl", "de")[:5000], read("multi30k/test.jsonl", "de")
    tok = VanillaTransformerTokenizer.build(train, tokenizer=folder)
    full = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference = AutoTokenizer.from_pretrained(folder)
    for text in test:
        encoding = full.encode(text, add_special_tokens=False)
        tokens = [reference.unk_token if i == reference.unk_token_id else t
                  for i, t in zip(encoding.ids, encoding.tokens, strict=True)]  # fmt: skip
        assert tok(text)["input_ids"] == [*(tok.encoder.get(t, 1) for t in tokens), 3]
    assert 0 < sum(tok.unk_token_id in tok(text)["input_ids"] for text in test) < len(test)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"separate_vocabs": "no"}, "separate_vocabs='no' must be True or False"),
        ({"min_frequency": 1.5}, "min_frequency=1.5 must be a whole number, 1 or more"),
        ({"min_frequency": 0}, "min_frequency=0 must be a whole number, 1 or more"),
        ({"source_texts": 3}, "source_texts=3: give a list of texts"),
        ({"source_texts": None}, "source_texts=None: give a list of texts"),
        ({"source_texts": ["a", 2]}, r"source_texts\[1\]=2: every text must be a string"),
        ({"target_texts": [None]}, r"target_texts\[0\]=None: every text must be a string"),
        ({"tokenizer": None}, "tokenizer=None: give 'words', a fast tokenizer, a folder or Hub id"),
        ({"tokenizer": "/nowhere/at/all"}, "tokenizer='/nowhere/at/all' cannot be loaded: "),
    ],
)
def test_what_no_tokenizer_is_built_of_is_said(changed, words) -> None:
    right = {"source_texts": EN, "source_lang": "en", "target_lang": "en"}
    with pytest.raises(TokenizerError, match=words):
        VanillaTransformerTokenizer.build(**{**right, **changed})
