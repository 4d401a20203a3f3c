"""The sentiment corpus: labels that a reader of the surface agrees with and bags of words miss; vectors."""

from __future__ import annotations

import random
import re
from collections import Counter

import numpy as np
import pytest
import torch

from hf_embinit.tasks import corpus_vectors, sentiments
from hf_embinit.tasks.corpus_vectors import corpus_tokens
from hf_embinit.tasks.sentiments import ReviewMaker, sentiment_text, sentiment_texts, sentiment_vectors
from hf_embinit.tasks.sentiments_lexicon import (
    ADJECTIVES,
    AFFECTING,
    ASPECTS,
    LIKING,
    OPENERS,
    OTHERS,
    VERDICTS,
    adjectives,
    aspects,
    past,
    with_article,
)


@pytest.fixture(scope="module")
def splits():
    return sentiment_texts()


@pytest.fixture(scope="module")
def rows(splits):
    return [row for part in splits.values() for row in part]


@pytest.fixture(scope="module")
def text():
    return sentiment_text()


# ------------------------------------------------------------------------------------------------ the corpus


def test_sizes_balance_and_no_sentence_twice(splits, rows):
    assert {split: len(part) for split, part in splits.items()} == {
        "train": 10_000,
        "validation": 900,
        "test": 900,
    }
    assert len({row["sentence"].lower() for row in rows}) == len(rows)
    for part in splits.values():
        assert 2 * sum(row["label"] for row in part) == len(part)
        labels = [row["label"] for row in part[:200]]
        assert 60 < sum(labels) < 140 and labels != sorted(labels)


def test_a_seed_makes_the_corpus_and_leaves_the_global_generators_alone(splits):
    random.seed(3)
    torch.manual_seed(3)
    states = random.getstate(), torch.get_rng_state()
    assert sentiment_texts(seed=0) == splits
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    other = {row["sentence"] for row in sentiment_texts(seed=1)["train"]}
    assert len(other & {row["sentence"] for row in splits["train"]}) < 1500


def test_sentences_are_cased_punctuated_and_have_the_right_article(rows, text):
    for sentence in [row["sentence"] for row in rows] + text:
        assert re.fullmatch(r"[A-Z][a-z]*([,;:]? [a-zIM]+)*\.", sentence), sentence
        for article, word in re.findall(r"\b(an?) (\w+)", sentence.lower()):
            vowel = re.match(r"[aeio]|u(?!s)", word) is not None
            assert (article == "an") == vowel, f"{article} {word}"


def test_tokens_are_those_of_spacy(text):
    spacy = pytest.importorskip("spacy")
    for line, doc in zip(text[-2000:], spacy.blank("en").tokenizer.pipe(text[-2000:]), strict=True):
        assert [token.text.lower() for token in doc] == corpus_tokens(line)


@pytest.mark.parametrize(
    ("phenomenon", "pattern", "at_least"),
    [
        ("not", r"\bnot\b", 1000),
        ("never, hardly, far from, anything but", r"\b(never|hardly|far from|anything but)\b", 500),
        ("neither ... nor", r"\bneither \w+ nor\b", 50),
        ("not only ... but also, which negates nothing", r"\bnot only\b", 100),
        ("could not be more, which negates nothing", r"could not (be|have been) more", 100),
        ("nobody could deny, do not doubt", r"nobody could deny|do not doubt|no doubt", 80),
        ("a concession first", r"^(Although|Even though|Though) ", 400),
        ("a concession last", r", (although|even though|though) ", 500),
        ("but", r", (but|yet) ", 800),
        ("despite", r"\b[Dd]espite the\b", 150),
        ("a comparison", r"^Unlike| far more \w+ than ", 150),
        ("opinions of others", rf"\b({'|'.join(OTHERS)})\b", 300),
    ],
)
def test_what_must_be_learnt_occurs(rows, phenomenon, pattern, at_least):
    assert sum(bool(re.search(pattern, row["sentence"])) for row in rows) >= at_least


# ---------------------------------------------------------------------------- labels, read from the surface

CONNECTED = r"(?:although|even though|though)"
NOTHING_NEGATED = (
    r"not only|could not (?:have been|be) more|nothing short of|never fail(?:s|ed)? to|nobody could deny|"
    r"do not doubt|there is no doubt|could not help but"
)
NEGATIONS = (
    r"not|never|hardly|far from|anything but|by no means|neither|nothing|no|nobody|doubt|"
    r"fail(?:s|ed)? to|would be wrong|could (?:have been|be) more"
)


def polar_forms() -> dict[str, int]:
    forms: dict[str, int] = {}
    for label in (0, 1):
        for table in ADJECTIVES.values():
            forms |= dict.fromkeys(table[label].replace("*", "").split(), label)
        forms |= dict.fromkeys(VERDICTS[label].split(), label)
        for verb in (LIKING[label] + " " + AFFECTING[label]).split():
            forms |= dict.fromkeys([verb, past(verb), verb + "s", verb + "es", verb[:-1] + "ies"], label)
    return forms


FORMS = polar_forms()


def deciding_part(sentence: str) -> str:
    """What is left when concessions, comparisons and the opinions of others are taken away."""
    text = sentence.rstrip(".").lower()
    for opener in OPENERS:
        text = text.removeprefix(opener + ", ")
    if text.startswith("unlike "):
        return text.split(", ", 1)[1]
    text = re.sub(r" than the .*", "", text)
    text = re.sub(r"^despite the [^,]*, | despite the .*", "", text)
    if found := re.fullmatch(rf"{CONNECTED} (.*?), (.*)", text):
        return found[2]
    if found := re.fullmatch(rf"(.*), {CONNECTED} (.*)", text):
        return found[1]
    if found := re.fullmatch(r"(.*), (?:but|yet) (.*)", text):
        others = found[2].startswith(OTHERS)
        return found[1] if others else found[2]
    if "; however, " in text:
        return text.split("; however, ")[1]
    return re.split(r", and | because |;", text)[0]


def read_label(sentence: str) -> int:
    part = re.sub(rf"\b(?:{NOTHING_NEGATED})\b", "", deciding_part(sentence))
    flips = len(re.findall(rf"\b(?:{NEGATIONS})\b", part))
    label = next(FORMS[word] for word in part.split() if word in FORMS)
    return label ^ (flips % 2)


def test_a_reader_of_the_surface_agrees_with_every_label(rows):
    wrong = [row for row in rows if read_label(row["sentence"]) != row["label"]]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("The plot was not gripping.", 0),
        ("The plot was not only gripping but also clever.", 1),
        ("Although the plot was dull, the acting was superb.", 1),
        ("The plot was dull, although the acting was superb.", 0),
        ("I loved the ending, but my brother hated it.", 1),
        ("My brother loved the ending, but I hated it.", 0),
        ("Nobody could deny that the soup never failed to impress me.", 1),
        ("I doubt that the waiters were rude.", 1),
        ("This phone is far more sturdy than the flimsy one that I had before.", 1),
    ],
)
def test_the_reader_reads(sentence, label):
    assert read_label(sentence) == label


def test_no_sentence_has_two_labels():
    labels: dict[str, int] = {}
    maker = ReviewMaker(random.Random(7))
    for i in range(20_000):
        sentence = maker.sentence(i % 2)
        assert labels.setdefault(sentence, i % 2) == i % 2, sentence


def test_the_same_words_in_another_order_have_another_label(rows):
    """`A, but B` and `B, but A`."""
    turned = 0
    for row in rows:
        found = re.fullmatch(r"(.*), (but|yet) (.*)\.", row["sentence"].lower())
        if (
            found
            and not found[3].startswith(("it ", "they ", "he ", "she ", *OTHERS))
            and "," not in found[1]
        ):
            swapped = f"{found[3]}, {found[2]} {found[1]}."
            assert sorted(corpus_tokens(swapped)) == sorted(corpus_tokens(row["sentence"]))
            turned += read_label(swapped) != row["label"]
    assert turned > 300


# ------------------------------------------------------------------------------------------- bags of words


def bag_of_words_accuracy(splits, *, known_polarity: bool = False) -> float:
    """A logistic regression on word counts, trained on `train`, tested on `validation` and `test`."""
    index: dict[str, int] = {}
    for row in splits["train"]:
        for token in corpus_tokens(row["sentence"]):
            index.setdefault(token, len(index))

    def counts(rows):
        x = torch.zeros(len(rows), len(index) + 1)
        for i, row in enumerate(rows):
            for token in corpus_tokens(row["sentence"]):
                if token in index:
                    x[i, index[token]] += 1
                if known_polarity and token in FORMS:
                    x[i, -1] += 2 * FORMS[token] - 1
        return x, torch.tensor([row["label"] for row in rows], dtype=torch.float)

    x, y = counts(splits["train"])
    weight, bias = torch.zeros(x.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=0.05)
    for _ in range(60):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ weight + bias, y)
        loss = loss + 1e-4 * weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = counts(splits["validation"] + splits["test"])
    with torch.no_grad():
        return float(((x @ weight + bias > 0) == (y > 0)).float().mean())


def test_bags_of_words_stay_far_from_the_truth(splits):
    """Even with the polarity of every word given."""
    assert 0.55 < bag_of_words_accuracy(splits) < 0.75
    assert bag_of_words_accuracy(splits, known_polarity=True) < 0.78


# --------------------------------------------------------------------------------------------- the lexicon


def test_the_lexicon_is_consistent():
    for kind in ADJECTIVES:
        words = [[a.text for a in adjectives(kind, label)] for label in (0, 1)]
        assert len(set(words[0] + words[1])) == len(words[0] + words[1]), kind
    for label, other in ((0, 1), (1, 0)):
        ours = {word for table in ADJECTIVES.values() for word in table[label].replace("*", "").split()}
        theirs = {word for table in ADJECTIVES.values() for word in table[other].replace("*", "").split()}
        assert not ours & theirs
    nouns = {topic.noun for domain in ASPECTS for topic in aspects(domain)}
    assert not {word for noun in nouns for word in noun.split()} & set(FORMS)


@pytest.mark.parametrize(
    ("verb", "form"), [("love", "loved"), ("satisfy", "satisfied"), ("annoy", "annoyed"), ("upset", "upset")]
)
def test_past(verb, form):
    assert past(verb) == form


def test_articles():
    assert [with_article(w) for w in ("ugly book", "useful tool", "insult", "gem")] == [
        *("an ugly book", "a useful tool", "an insult", "a gem")
    ]


# ------------------------------------------------------------------------------------------ text and vectors


def test_text_holds_the_training_sentences_and_none_that_is_held_out(splits, text):
    lines = {line.lower() for line in text}
    assert len(text) == 30_000
    assert {row["sentence"].lower() for row in splits["train"]} <= lines
    for split in ("validation", "test"):
        assert not {row["sentence"].lower() for row in splits[split]} & lines
    assert sentiment_text(lines=12_000) == text[:12_000]


def test_many_polar_words_are_rare_in_training_and_frequent_in_the_text(splits, text):
    train = Counter(word for row in splits["train"] for word in corpus_tokens(row["sentence"]))
    wide = Counter(word for line in text for word in corpus_tokens(line))
    rare = [word for word in FORMS if 1 <= train[word] < 12]
    assert len(rare) > 100
    assert np.median([wide[word] for word in rare]) > 30
    held_out = [
        w for split in ("validation", "test") for r in splits[split] for w in corpus_tokens(r["sentence"])
    ]
    polar = [word for word in held_out if word in FORMS]
    assert sum(train[word] < 12 for word in polar) / len(polar) > 0.03


def test_vectors_are_trained_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EMBINIT_CACHE", str(tmp_path))
    small = {"lines": 10_500, "epochs": 1, "progress": False}
    vectors = sentiment_vectors(8, **small)
    assert vectors.dim == 8 and "plot" in vectors.tokens
    with monkeypatch.context() as patched:
        patched.setattr(corpus_vectors, "train_glove", lambda *a, **k: pytest.fail("trained again"))
        patched.setattr(sentiments, "sentiment_text", lambda *a, **k: pytest.fail("text made again"))
        again = sentiment_vectors(8, **small)
    assert again.digest == vectors.digest and torch.equal(again.matrix, vectors.matrix)
    monkeypatch.setattr(corpus_vectors, "code_digest", lambda corpus: b"newer code")
    sentiment_vectors(8, **small)
    assert len(list(tmp_path.iterdir())) == 2


def test_vectors_know_polarity(tmp_path):
    """The polarity of most words is that of most of their neighbors."""
    vectors = sentiment_vectors(64, cache_dir=tmp_path, progress=False)
    index = {token: i for i, token in enumerate(vectors.tokens)}
    words = [word for word in FORMS if word in index]
    unit = torch.nn.functional.normalize(vectors.matrix[[index[word] for word in words]], dim=1)
    labels = torch.tensor([FORMS[word] for word in words])
    similar = unit @ unit.T
    similar.fill_diagonal_(-1)
    votes = labels[similar.topk(5, dim=1).indices].float().mean(1) > 0.5
    assert (votes == (labels > 0)).float().mean() > 0.7
