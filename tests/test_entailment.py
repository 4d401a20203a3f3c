"""The sentence-pair corpus: labels that a reader of the surface agrees with, hypotheses that say nothing."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch

from hf_embinit.tasks import corpus_vectors, entailment
from hf_embinit.tasks.corpus_vectors import corpus_tokens
from hf_embinit.tasks.entailment import (
    CONTRADICTION,
    ENTAILMENT,
    HEADS,
    NEUTRAL,
    NUMBERS,
    PairMaker,
    Phrase,
    Scene,
    entailment_pairs,
    entailment_text,
    entailment_vectors,
)
from hf_embinit.tasks.entailment_lexicon import (
    ADJECTIVES,
    FRAMES,
    MANNERS,
    SYNONYMS,
    ancestors,
    meaning,
    meanings,
    plural,
    verb_forms,
)

SIZES = {
    "train": 16_002,
    "validation_matched": 900,
    "validation_mismatched": 900,
    "test_matched": 900,
    "test_mismatched": 900,
}


@pytest.fixture(scope="module")
def splits():
    return entailment_pairs()


@pytest.fixture(scope="module")
def rows(splits):
    return [row for part in splits.values() for row in part]


@pytest.fixture(scope="module")
def text():
    return entailment_text()


# ------------------------------------------------------------------------------------------------ the corpus


def test_sizes_balance_genres_and_no_premise_twice(splits, rows):
    assert {split: len(part) for split, part in splits.items()} == SIZES
    assert len({row["premise"].lower() for row in rows}) == len(rows)
    for split, part in splits.items():
        assert set(Counter(row["label"] for row in part).values()) == {len(part) // 3}
        assert {row["genre"] for row in part} == {"news" if split.endswith("mismatched") else "captions"}
        assert all(row["premise"] != row["hypothesis"] for row in part)


def test_a_seed_makes_the_corpus_and_leaves_the_global_generators_alone(splits):
    random.seed(3)
    torch.manual_seed(3)
    states = random.getstate(), torch.get_rng_state()
    assert entailment_pairs(seed=0) == splits
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
    other = {row["premise"] for row in entailment_pairs(seed=1)["train"]}
    assert len(other & {row["premise"] for row in splits["train"]}) < 1500


def test_sentences_are_cased_punctuated_and_have_the_right_article(rows, text):
    sentences = {row[column] for row in rows for column in ("premise", "hypothesis")} | set(text)
    for sentence in sentences:
        assert re.fullmatch(r"[A-Z][a-z]*(,? [A-Z]?[a-z]+)*\.", sentence), sentence
        for article, word in re.findall(r"\b(an?) (\w+)", sentence.lower()):
            assert (article == "an") == (re.match(r"[aeio]|u(?!ni)", word) is not None), sentence
        assert not re.search(r"\b(is|was|a|an|one) (people|men|women|children|\w+ (are|were))\b", sentence)


def test_tokens_are_those_of_spacy(text):
    spacy = pytest.importorskip("spacy")
    for line, doc in zip(text[-2000:], spacy.blank("en").tokenizer.pipe(text[-2000:]), strict=True):
        assert [token.text.lower() for token in doc] == corpus_tokens(line)


@pytest.mark.parametrize(
    ("phenomenon", "pattern", "at_least"),
    [
        ("not", r"\b(is|was|did) not\b", 800),
        ("no", r"^(In the \w+, |At night, )?[Nn]o ", 500),
        ("all", r"\b[Aa]ll the\b", 800),
        ("not all", r"\b[Nn]ot all the\b", 300),
        ("some", r"\b[Ss]ome\b", 500),
        ("numbers", r"\b([Tt]wo|[Tt]hree|[Ff]our|[Ff]ive)\b", 2000),
        ("passives", r"\b(is|are|was|were) (being )?\w+ed (\w+ )?by\b", 1000),
    ],
)
def test_what_must_be_learnt_occurs(rows, phenomenon, pattern, at_least):
    for column in ("premise", "hypothesis"):
        assert sum(bool(re.search(pattern, row[column])) for row in rows) >= at_least


def test_the_mismatched_genre_has_words_of_its_own_and_many_in_common(splits):
    words = {
        split: Counter(w for r in part for c in ("premise", "hypothesis") for w in corpus_tokens(r[c]))
        for split, part in splits.items()
    }
    train = words["train"]

    def unknown(split: str) -> float:
        return sum(n for w, n in words[split].items() if train[w] < 2) / sum(words[split].values())

    assert unknown("test_matched") < 0.005
    assert 0.1 < unknown("test_mismatched") < 0.4


# ---------------------------------------------------------------------------- labels, read from the surface


def spell(word: str) -> str:
    return word.replace("_", " ")


def written(word: str) -> tuple[str, ...]:
    return SYNONYMS.get(word, (spell(word),))


class Reader:
    """Takes a sentence apart again, by the words it can be written in."""

    def __init__(self) -> None:
        words = set(meanings()) | {w for line in ADJECTIVES.values() for w in line.split()}
        words |= {w for frames in FRAMES.values() for frame in frames for w in frame.verbs}
        verbs = {w for frames in FRAMES.values() for frame in frames for w in frame.verbs}
        verbs |= {w for w in words if set(ancestors(w)) & verbs}
        self.verbs: dict[str, str] = {}
        for verb in verbs:
            for form in written(verb):
                self.verbs |= dict.fromkeys([form, *verb_forms(form)], verb)
        heads = {
            "person",
            "animal",
            "organization",
            "vehicle",
            "instrument",
            "fruit",
            "garment",
            "toy",
            "tool",
        }
        heads |= {"flower", "container", "document", "building", "plan", "piece_of_furniture"}
        nouns = {w for w in words if heads & {w, *ancestors(w)}}
        self.nouns: dict[str, str] = {}
        for noun in nouns:
            for form in written(noun):
                self.nouns |= {form: noun, plural(form): noun}
        adjectives = {w for line in ADJECTIVES.values() for w in line.split()}
        adjectives |= {w for w in words if set(ancestors(w)) & adjectives}
        self.adjectives = {form: a for a in adjectives for form in written(a)}
        manners = {m for line in MANNERS.values() for m in line.split()}
        manners |= {m for m in words if set(ancestors(m)) & manners}
        self.manners = {spell(m): m for m in manners}
        self.places = {spell(p): p for p in words if {p, *ancestors(p)} & PLACE_HEADS}

    def take(self, text: str, table: dict[str, str]) -> tuple[str, str]:
        """The word of the table that stands in the text, and the text without it."""
        for form in sorted(table, key=len, reverse=True):
            if re.search(rf"(^| ){form}(,? |$)", text):
                return table[form], re.sub(rf"(^| ){form}(,? |$)", " ", text, count=1).strip()
        return "", text

    def phrase(self, text: str) -> Phrase:
        quantifier = "one"
        for marker in ("not all the", "all the", "no", "some", *NUMBERS, "a", "an", "the"):
            if text.startswith(marker + " "):
                quantifier = {"not all the": "not all", "all the": "all"}.get(marker, marker)
                text = text.removeprefix(marker + " ")
                break
        quantifier = "one" if quantifier in ("a", "an", "the") else quantifier
        adjective = ""
        first = text.split()[0]
        if first in self.adjectives and first not in self.nouns:
            adjective, text = self.adjectives[first], text.removeprefix(first + " ")
        return Phrase(self.nouns[text], adjective, quantifier)

    def read(self, sentence: str) -> Scene:
        text = sentence.lower().rstrip(".")
        manner, text = self.take(text, {k.lower(): v for k, v in self.manners.items()})
        place, text = self.take(text, {k.lower(): v for k, v in self.places.items()})
        negated = bool(re.search(r"\b(is|was|did) not\b", text))
        text = re.sub(r"\b(is|was|did) not\b", "@", text)
        text = re.sub(r"\b(is|are|was|were)( being)?\b", "@", text)
        if found := re.fullmatch(r"(.*?) @ (.*?) by (.*)", text):
            subject, verb, thing = self.phrase(found[3]), self.verbs[found[2]], self.phrase(found[1])
        else:
            text = text.replace(" @", "")
            form = next(
                f
                for f in sorted(self.verbs, key=len, reverse=True)
                if re.search(rf"(?<=\w) {f}( |$)", text) and self.splits(text, f)
            )
            before, after = re.split(rf" {form}(?: |$)", text, maxsplit=1)
            subject, verb = self.phrase(before), self.verbs[form]
            thing = self.phrase(after) if after else None
        return Scene(FRAMES["captions"][0], subject, verb, thing, place, manner, negated)

    def splits(self, text: str, form: str) -> bool:
        before = re.split(rf" {form}(?: |$)", text, maxsplit=1)[0]
        return any(before.endswith(noun) for noun in self.nouns)


PLACE_HEADS = {"outdoors", "indoors", "in_Europe", "in_Asia", "in_Africa"}


def implies(narrow: str, broad: str) -> bool:
    return not broad or broad in (narrow, *ancestors(narrow))


def excludes(a: str, b: str) -> bool:
    return any(y in meaning(x).rivals for x in (a, *ancestors(a)) if a for y in (b, *ancestors(b)) if b)


def event_implies(p: Scene, h: Scene) -> bool:
    """What the verb, its object, the place and the adverbial say, without the subject."""
    objects = (p.object is None) == (h.object is None)
    if objects and p.object is not None and h.object is not None:
        objects = noun_implies(p.object, h.object) and p.object.quantifier == h.object.quantifier
    return objects and all(implies(p.get(s), h.get(s)) for s in ("verb", "place", "manner"))


def event_excludes(p: Scene, h: Scene) -> bool:
    objects = p.object is not None and h.object is not None and noun_excludes(p.object, h.object)
    return objects or any(excludes(p.get(s), h.get(s)) for s in ("verb", "place", "manner"))


def noun_implies(p: Phrase, h: Phrase) -> bool:
    return implies(p.noun, h.noun) and implies(p.adjective, h.adjective)


def noun_excludes(p: Phrase, h: Phrase) -> bool:
    return excludes(p.noun, h.noun) or excludes(p.adjective, h.adjective)


def read_label(p: Scene, h: Scene) -> int:
    """The relation of two scenes by the logic of their quantifiers, apart from how the corpus makes pairs."""
    positive, negative = replace(p, negated=False), replace(h, negated=False)
    if p.negated and not h.negated:
        return CONTRADICTION if noun_implies(p.subject, h.subject) and event_implies(h, p) else NEUTRAL
    if h.negated and not p.negated:
        if noun_implies(p.subject, h.subject) and event_implies(p, h):
            return CONTRADICTION
        return ENTAILMENT if event_excludes(positive, negative) else NEUTRAL
    if h.negated:
        return ENTAILMENT if noun_implies(p.subject, h.subject) and event_implies(h, p) else NEUTRAL
    narrower, broader = noun_implies(p.subject, h.subject), noun_implies(h.subject, p.subject)
    match p.subject.quantifier, h.subject.quantifier:
        case ("no", "no"):
            return ENTAILMENT if broader and event_implies(h, p) else NEUTRAL
        case ("no", "not all"):
            return ENTAILMENT if broader and event_implies(h, p) else NEUTRAL
        case ("no", _):
            return CONTRADICTION if broader and event_implies(h, p) else NEUTRAL
        case (_, "no"):
            return CONTRADICTION if narrower and event_implies(p, h) else NEUTRAL
        case ("not all", "not all"):
            return ENTAILMENT if narrower and event_implies(h, p) else NEUTRAL
        case ("not all", "all"):
            return CONTRADICTION if narrower and event_implies(h, p) else NEUTRAL
        case ("all", "not all"):
            return CONTRADICTION if broader and event_implies(p, h) else NEUTRAL
        case (_, "not all"):
            return NEUTRAL
        case ("all", "all"):
            if event_excludes(p, h):
                return CONTRADICTION
            return ENTAILMENT if broader and event_implies(p, h) else NEUTRAL
        case (a, b):
            if a in NUMBERS and b in NUMBERS and a != b:
                return CONTRADICTION
            single = a == b == "one" and all(
                o is not None and o.quantifier == "one" for o in (p.object, h.object)
            )
            exchanged = single and same_pair(p, h)
            if not exchanged and (noun_excludes(p.subject, h.subject) or event_excludes(p, h)):
                return CONTRADICTION
            enough = a == b or (b == "some" and (a == "all" or a in NUMBERS))
            return ENTAILMENT if enough and narrower and event_implies(p, h) else NEUTRAL


def same_pair(p: Scene, h: Scene) -> bool:
    """Whether the two in the scene have changed places."""
    straight = noun_excludes(p.subject, h.subject) or noun_excludes(p.object, h.object)
    crossed = noun_excludes(p.subject, h.object) or noun_excludes(p.object, h.subject)
    related = any_related(p.subject, h.object) and any_related(p.object, h.subject)
    return related and not crossed and (straight or not any_related(p.subject, h.subject))


def any_related(a: Phrase, b: Phrase) -> bool:
    return implies(a.noun, b.noun) or implies(b.noun, a.noun)


def test_a_reader_of_the_surface_agrees_with_the_labels(splits):
    reader = Reader()
    sample = splits["train"][:2500] + splits["test_mismatched"]
    wrong = []
    for row in sample:
        p, h = reader.read(row["premise"]), reader.read(row["hypothesis"])
        if read_label(p, h) != row["label"]:
            wrong.append((row["premise"], row["hypothesis"], row["label"], read_label(p, h)))
    assert not wrong, (len(wrong), wrong[:12])


SCENES = {
    "narrower noun, detail dropped": ("A poodle is sleeping in a park.", "The dog is sleeping.", ENTAILMENT),
    "detail added": ("A dog is sleeping.", "The dog is sleeping in a park.", NEUTRAL),
    "sister noun": ("A poodle is sleeping.", "A beagle is sleeping.", CONTRADICTION),
    "antonym": ("A tall man is pushing a car.", "The short man is pushing the car.", CONTRADICTION),
    "passive, same roles": (
        "A boy is watching a painter.",
        "A painter is being watched by the boy.",
        ENTAILMENT,
    ),
    "exchanged roles": ("A boy is watching a painter.", "The boy is being watched by the painter.", NEUTRAL),
    "no, downward": ("No animals are sleeping.", "No dogs are sleeping in a park.", ENTAILMENT),
    "no, upward": ("No dogs are sleeping in a park.", "No animals are sleeping.", NEUTRAL),
    "no and some": ("No animals are sleeping.", "Some dogs are sleeping.", CONTRADICTION),
    "all and some": ("All the dogs are sleeping.", "Some dogs are sleeping.", ENTAILMENT),
    "some and all": ("Some dogs are sleeping.", "All the dogs are sleeping.", NEUTRAL),
    "not all": ("All the dogs are sleeping.", "Not all the dogs are sleeping.", CONTRADICTION),
    "numbers": ("Two dogs are sleeping.", "Three dogs are sleeping.", CONTRADICTION),
    "number and some": ("Two dogs are sleeping.", "Some dogs are sleeping.", ENTAILMENT),
    "negation": ("A dog is sleeping in a park.", "The dog is not sleeping.", CONTRADICTION),
    "negation ruled out": ("A dog is running.", "The dog is not sleeping.", ENTAILMENT),
    "negation, downward": ("The dog is not running.", "The dog is not sprinting in a park.", ENTAILMENT),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_reader_reads(name):
    premise, hypothesis, label = SCENES[name]
    reader = Reader()
    assert read_label(reader.read(premise), reader.read(hypothesis)) == label


def test_hypotheses_are_drawn_apart_from_labels():
    """The same hypothesis gets a premise of each label."""
    maker = PairMaker(random.Random(3))
    reader = Reader()
    for _ in range(200):
        hypothesis = maker.scene("captions")
        premises = [maker.premise(hypothesis, label, "captions") for label in range(3)]
        if not all(premises):
            continue
        for label, premise in enumerate(premises):
            sentences = [maker.write(scene, "past") for scene in (premise, hypothesis)]
            assert read_label(*(reader.read(s) for s in sentences)) == label, sentences


def test_exchanging_premise_and_hypothesis_matters(splits):
    """What is entailed seldom entails."""
    reader = Reader()
    entailed = [row for row in splits["train"] if row["label"] == ENTAILMENT][:600]
    back = [read_label(reader.read(row["hypothesis"]), reader.read(row["premise"])) for row in entailed]
    assert back.count(NEUTRAL) > 0.9 * len(back)


# ------------------------------------------------------------------------------------------- bags of words


def accuracy(splits, features, test: str) -> float:
    """Of a softmax regression on sets of features, trained on `train`."""
    index: dict[object, int] = {}
    for row in splits["train"]:
        for feature in features(row):
            index.setdefault(feature, len(index))

    def table(rows):
        x = torch.zeros(len(rows), len(index))
        for i, row in enumerate(rows):
            x[i, [index[f] for f in features(row) if f in index]] = 1.0
        return x, torch.tensor([row["label"] for row in rows])

    x, y = table(splits["train"])
    weight, bias = torch.zeros(len(index), 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=0.03)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(x @ weight + bias, y) + 1e-4 * weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = table(splits[test])
    with torch.no_grad():
        return float(((x @ weight + bias).argmax(1) == y).float().mean())


def of_hypothesis(row):
    return set(corpus_tokens(row["hypothesis"]))


def of_both(row):
    return {("p", w) for w in corpus_tokens(row["premise"])} | {("h", w) for w in of_hypothesis(row)}


def aligned(row):
    premise, hypothesis = set(corpus_tokens(row["premise"])), of_hypothesis(row)
    return {("p", w) for w in premise - hypothesis} | {("h", w) for w in hypothesis - premise}


@pytest.mark.parametrize("test", ["test_matched", "test_mismatched"])
def test_the_hypothesis_alone_says_nothing(splits, test):
    assert accuracy(splits, of_hypothesis, test) < 0.38


def test_words_stay_far_from_the_truth(splits):
    """Two bags of words, and even the words that one sentence has and the other has not."""
    assert accuracy(splits, of_both, "test_matched") < 0.6
    assert accuracy(splits, aligned, "test_matched") < 0.85


# --------------------------------------------------------------------------------------------- the lexicon


def test_the_taxonomy_is_consistent():
    for word, found in meanings().items():
        assert word not in ancestors(word)
        assert all(meaning(kind).parent == word for kind in found.children)
        assert not found.rivals & {word, *ancestors(word), *found.children}, word
        assert all(word in meaning(rival).rivals for rival in found.rivals), word


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("tiptoe", ("tiptoeing", "tiptoed", "tiptoed")),
        ("carry", ("carrying", "carried", "carried")),
        ("buy", ("buying", "bought", "bought")),
        ("pick up", ("picking up", "picked up", "picked up")),
        ("tear down", ("tearing down", "tore down", "torn down")),
        ("observe", ("observing", "observed", "observed")),
    ],
)
def test_verb_forms(verb, forms):
    assert verb_forms(verb) == forms


def test_plurals():
    nouns = ("woman", "bus", "pony", "piece of furniture", "brewery", "person")
    assert [plural(n) for n in nouns] == [
        *("women", "buses", "ponies", "pieces of furniture", "breweries", "people")
    ]


# ------------------------------------------------------------------------------------------ text and vectors


def test_text_holds_the_training_sentences_and_none_that_is_held_out(splits, text):
    lines = {line.lower() for line in text}
    assert len(text) == 45_000
    held_out = [row for split, part in splits.items() if split != "train" for row in part]
    assert not {row["premise"].lower() for row in held_out} & lines
    assert {row["premise"].lower() for row in splits["train"]} <= lines
    assert any(re.search(r"poodles .*and other dogs", line) for line in text)


def test_vectors_are_trained_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EMBINIT_CACHE", str(tmp_path))
    small = {"lines": 25_000, "epochs": 1, "progress": False}
    vectors = entailment_vectors(8, **small)
    assert vectors.dim == 8 and "poodle" in vectors.tokens
    monkeypatch.setattr(corpus_vectors, "train_glove", lambda *a, **k: pytest.fail("trained again"))
    monkeypatch.setattr(entailment, "entailment_text", lambda *a, **k: pytest.fail("text made again"))
    assert entailment_vectors(8, **small).digest == vectors.digest


def test_vectors_know_kinds(tmp_path):
    """Words for things of one kind are closer to each other than to those for others."""
    vectors = entailment_vectors(64, cache_dir=tmp_path, progress=False)
    index = {token: i for i, token in enumerate(vectors.tokens)}
    kinds = {plural(kind): head for head in HEADS for kind in meaning(head).children}
    kinds = {word: head for word, head in kinds.items() if word in index and head not in ("person", "animal")}
    unit = torch.nn.functional.normalize(vectors.matrix[[index[word] for word in kinds]], dim=1)
    similar, heads = unit @ unit.T, list(kinds.values())
    same = torch.tensor([[a == b for b in heads] for a in heads]) & ~torch.eye(len(heads), dtype=torch.bool)
    different = torch.tensor([[a != b for b in heads] for a in heads])
    assert similar[same].mean() > similar[different].mean() + 0.1
