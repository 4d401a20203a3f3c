"""The embedded sentence-pair corpus: does the hypothesis follow from the premise, and text for word vectors.

Both sentences speak of one scene at one moment. The hypothesis is drawn first and the label on its own; then
a premise is made for them, so that the hypothesis alone says nothing of the label:

- entailment: the premise says at least as much, by narrower words or more details (broader ones under `no`,
  `not` and, for the subject, `all`), by a stronger quantifier, or by an action that rules the denied one out;
- neutral: one thing the hypothesis says is left open, or who does it and to whom is exchanged;
- contradiction: one thing is another that excludes it, or one sentence denies what the other says.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..vectors import PretrainedVectors
from .corpus_vectors import corpus_vectors
from .entailment_lexicon import (
    ADJECTIVES,
    BARNS,
    FRAMES,
    MANNER_VERBS,
    MANNERS,
    PAST_ONLY,
    PLACES,
    SYNONYMS,
    Frame,
    Genre,
    ancestors,
    meaning,
    plural,
    verb_forms,
)

T = TypeVar("T")

SPLIT_SIZES = {
    "train": 16_002,
    "validation_matched": 900,
    "validation_mismatched": 900,
    "test_matched": 900,
    "test_mismatched": 900,
}
"""Pairs in each split, a third of each label."""
ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
TEXT_LINES = 45_000
NUMBERS = ("two", "three", "four", "five")
EXISTENTIAL = ("one", "some", *NUMBERS)
DENIALS = ("no", "not all")


@dataclass(frozen=True)
class Phrase:
    """A noun with what stands before it."""

    noun: str
    adjective: str = ""
    quantifier: str = "one"
    """`one`, a number, `some`, `all`, `no` or `not all`."""


@dataclass(frozen=True)
class Scene:
    """What a sentence says. Empty strings are details that it leaves open."""

    frame: Frame
    subject: Phrase
    verb: str
    object: Phrase | None = None
    place: str = ""
    manner: str = ""
    negated: bool = False
    """Says that the subject does not do it."""

    @property
    def denies(self) -> bool:
        """Whether it says that something is not so."""
        return self.negated or self.subject.quantifier in DENIALS

    @property
    def slots(self) -> tuple[str, ...]:
        """What can be said in more and in fewer words."""
        objects = ("object.noun", "object.adjective") if self.object is not None else ()
        return ("subject.noun", "subject.adjective", "verb", *objects, "place", "manner")

    def get(self, slot: str) -> str:
        """The word in a slot."""
        head, _, tail = slot.partition(".")
        return getattr(getattr(self, head), tail) if tail else getattr(self, head)

    def set(self, slot: str, value: str) -> Scene:
        """The scene with another word in a slot."""
        head, _, tail = slot.partition(".")
        changed: Any = replace(getattr(self, head), **{tail: value}) if tail else value
        return replace(self, **{head: changed})

    def opens_upward(self, slot: str) -> bool:
        """Whether a narrower word in the slot says more (else a broader one does)."""
        if slot.startswith("subject"):
            return self.subject.quantifier not in ("all", "no")
        return not self.denies


def entailment_pairs(seed: int = 0) -> dict[str, list[dict]]:
    """The splits `train` (16,002) and `validation_matched`, `validation_mismatched`, `test_matched`,
    `test_mismatched` (900 each): rows `{"premise": ..., "hypothesis": ..., "label": ..., "genre": ...}`.

    Labels are GLUE's: 0 entailment, 1 neutral, 2 contradiction, a third each. Mismatched pairs are of the
    genre `news`, all others of `captions`. No premise occurs before it, in one split or another.
    """
    maker = PairMaker(random.Random(seed))
    seen: set[str] = set()
    splits: dict[str, list[dict]] = {}
    for split, size in SPLIT_SIZES.items():
        genre: Genre = "news" if split.endswith("mismatched") else "captions"
        rows: list[dict] = []
        while len(rows) < size:
            label = len(rows) % 3
            premise, hypothesis = maker.pair(genre, label)
            if premise.lower() not in seen and premise != hypothesis:
                seen |= {premise.lower(), hypothesis.lower()}
                rows.append({"premise": premise, "hypothesis": hypothesis, "label": label, "genre": genre})
        maker.random.shuffle(rows)
        splits[split] = rows
    return splits


def entailment_text(seed: int = 0, lines: int = TEXT_LINES) -> list[str]:
    """Unlabelled sentences of both genres, those of the training pairs among them, and such as say what is a
    kind of what.

    No line is the premise of a held-out pair.
    """
    splits = entailment_pairs(seed)
    held_out = {row["premise"].lower() for split, rows in splits.items() if split != "train" for row in rows}
    text = [row[column] for row in splits["train"] for column in ("premise", "hypothesis")]
    maker = PairMaker(random.Random(f"text {seed}"))
    while len(text) < lines:
        genre: Genre = maker.pick(("captions", "news"))
        line = maker.kinds() if maker.chance(0.7) else maker.pair(genre, maker.pick((0, 1, 2)))[0]
        if line.lower() not in held_out:
            text.append(line)
    return text


def entailment_vectors(
    dim: int = 128,
    *,
    lines: int = TEXT_LINES,
    epochs: int = 30,
    seed: int = 0,
    cache_dir: str | os.PathLike | None = None,
    progress: bool = True,
) -> PretrainedVectors:
    """GloVe vectors `[V, dim]` trained on `entailment_text`, lower-cased, at the first call; then read from a
    file in `cache_dir`, or the folder that `HF_EMBINIT_CACHE` names, or `embinit` in the Hugging Face home.
    """
    return corpus_vectors(
        "entailment",
        lambda: entailment_text(seed, lines),
        dim,
        settings={"lines": lines},
        epochs=epochs,
        seed=seed,
        cache_dir=cache_dir,
        progress=progress,
    )


class PairMaker:
    """Draws hypotheses, and premises for them and a label."""

    def __init__(self, generator: random.Random) -> None:
        self.random = generator

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        """Whether it happens."""
        return self.random.random() < probability

    def pair(self, genre: Genre, label: int) -> tuple[str, str]:
        """A premise and a hypothesis of that label.

        A hypothesis for which one of the three labels has no premise is not used for the others either.
        """
        while True:
            hypothesis = self.scene(genre)
            premises = [self.premise(hypothesis, each, genre) for each in range(3)]
            if all(premises):
                break
        premise = premises[label]
        assert premise is not None
        times = {premise.manner, *ancestors(premise.manner), hypothesis.manner, *ancestors(hypothesis.manner)}
        tense = "past" if times & PAST_ONLY else self.tense(genre)
        return self.write(premise, tense), self.write(hypothesis, tense, definite=self.chance(0.5))

    def tense(self, genre: Genre) -> str:
        """progressive or past."""
        return "progressive" if self.chance(0.75 if genre == "captions" else 0.4) else "past"

    # -------------------------------------------------------------------------------------------- hypotheses

    def scene(self, genre: Genre) -> Scene:
        """Something that a sentence could say."""
        frame = self.pick(FRAMES[genre if self.chance(0.75) else "captions"])
        roll, negated, quantifier = self.random.random(), False, "one"
        if roll < 0.12:
            negated = True
        elif roll < 0.55:
            quantifier = self.pick(("some", "all", "no", "not all", *NUMBERS, *NUMBERS))
        subject = self.phrase(self.pick(frame.subjects), quantifier, 0.25)
        thing = None
        if frame.objects:
            many = self.chance(0.25) and quantifier == "one" and not negated
            thing = self.phrase(self.pick(frame.objects), self.pick(NUMBERS) if many else "one", 0.25)
            while related(thing.noun, subject.noun):
                subject = self.phrase(self.pick(frame.subjects), quantifier, 0.25)
                thing = replace(thing, noun=self.lower(self.pick(frame.objects), 0.6))
        scene = Scene(frame, subject, self.lower(self.pick(frame.verbs), 0.35), thing, negated=negated)
        if self.chance(0.3):
            scene = scene.set("place", self.lower(self.pick(PLACES[genre]), 0.7, self.places(scene)))
        if self.chance(0.15):
            scene = scene.set("manner", self.pick(self.manners(scene, genre)))
        return scene

    def phrase(self, head: str, quantifier: str, described: float) -> Phrase:
        """A noun phrase of something that is a kind of the head."""
        noun = self.lower(head, 0.6)
        if head in ("adult", "child", "musician", "athlete", "worker", "artist") and self.chance(0.1):
            noun = "person"
        phrase = Phrase(noun, quantifier=quantifier)
        return replace(phrase, adjective=self.pick(adjectives(noun))) if self.chance(described) else phrase

    def lower(self, word: str, probability: float, allowed: Callable[[str], bool] = lambda word: True) -> str:
        """The word, or a kind of it."""
        kinds = [kind for kind in meaning(word).children if allowed(kind)]
        return self.pick(kinds) if kinds and self.chance(probability) else word

    def places(self, scene: Scene) -> Callable[[str], bool]:
        """Which places are likely for who is in the scene."""
        nouns = [scene.subject.noun] + ([scene.object.noun] if scene.object else [])
        large = any({"animal", "vehicle"} & {noun, *ancestors(noun)} for noun in nouns)
        return lambda place: not large or "indoors" not in ancestors(place) or place in BARNS

    def manners(self, scene: Scene, genre: Genre) -> list[str]:
        """Adverbials that go with the scene's verb."""
        verbs = {scene.verb, *ancestors(scene.verb)}
        return [m for m in MANNERS[genre].split() if m not in MANNER_VERBS or verbs & MANNER_VERBS[m]]

    # ---------------------------------------------------------------------------------------------- premises

    def premise(self, hypothesis: Scene, label: int, genre: Genre) -> Scene | None:
        """A scene that stands in the relation to the hypothesis, or None if there is none."""
        if label == ENTAILMENT:
            options = [self.same, self.same, self.stronger_quantifier, self.ruled_out]
        elif label == NEUTRAL:
            options = [self.weaker, self.weaker, self.weaker, self.weaker_quantifier, self.exchanged]
        else:
            options = [self.excluded, self.excluded, self.other_quantifier, self.denied]
        self.random.shuffle(options)
        for option in options:
            found = option(hypothesis, genre)
            if found is None:
                continue
            scene, used = found
            least = 1 if scene == hypothesis else 0
            wanted = self.random.randint(least, 2)
            strengthened = self.strengthen(scene, hypothesis, used, wanted, genre)
            if strengthened != hypothesis:
                return strengthened
        return None

    def strengthen(self, scene: Scene, hypothesis: Scene, used: set[str], times: int, genre: Genre) -> Scene:
        """The scene with slots changed so that what makes the label stays so."""
        slots = [slot for slot in scene.slots if slot not in used]
        self.random.shuffle(slots)
        for slot in slots:
            if times == 0:
                break
            if scene.denies == hypothesis.denies:
                narrower = hypothesis.opens_upward(slot)
            elif slot.startswith("subject") and "not all" in (
                scene.subject.quantifier,
                hypothesis.subject.quantifier,
            ):
                narrower = scene.denies
            elif slot.startswith("subject") and (scene.negated or hypothesis.negated):
                narrower = True
            else:
                narrower = hypothesis.denies
            word = self.narrower(scene, slot, genre) if narrower else self.broader(scene, slot)
            if word is not None:
                scene, times = scene.set(slot, word), times - 1
        return scene

    def narrower(self, scene: Scene, slot: str, genre: Genre) -> str | None:
        """A word that says more."""
        value, allowed = scene.get(slot), self.places(scene) if slot == "place" else lambda word: True
        if value:
            options = [kind for kind in meaning(value).children if allowed(kind)]
            if slot.endswith(".noun") and value == "person":
                options = [kind for kind in options if kind in EVERYDAY_KINDS]
        elif slot.endswith("adjective"):
            options = list(adjectives(scene.get(slot.replace("adjective", "noun"))))
        elif slot == "place":
            options = [kind for head in PLACES[genre] for kind in meaning(head).children if allowed(kind)]
        else:
            options = self.manners(scene, genre)
        return self.pick(options) if options else None

    def broader(self, scene: Scene, slot: str) -> str | None:
        """A word that says less; for a detail perhaps none at all."""
        value = scene.get(slot)
        parent = meaning(value).parent
        if slot.endswith("noun") or slot == "verb":
            return parent or None
        return (parent if parent and self.chance(0.5) else "") if value else None

    def same(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]]:
        """The scene as it is."""
        return scene, set()

    def stronger_quantifier(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """`all` or a number for `some`, `no` for `not all`."""
        options = {"some": ("all", *NUMBERS), "not all": ("no",)}.get(scene.subject.quantifier)
        return self.requantified(scene, self.pick(options)) if options else None

    def weaker_quantifier(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """`some` for `all` or a number, and for `not all`."""
        found = scene.subject.quantifier
        return self.requantified(scene, "some") if found in ("all", "not all", *NUMBERS) else None

    def other_quantifier(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """Another number, or one that denies what the hypothesis says, or says what it denies."""
        quantifier = scene.subject.quantifier
        options: Sequence[str]
        if quantifier in NUMBERS:
            options = [*(n for n in NUMBERS if n != quantifier), "no"]
        else:
            options = {
                "one": (),
                "some": ("no",),
                "all": ("no", "not all"),
                "no": ("some", "one", *NUMBERS),
                "not all": ("all",),
            }[quantifier]
        if not options:
            return None
        chosen = self.pick(options)
        other = replace(scene, subject=replace(scene.subject, quantifier=chosen))
        return other, {"subject.noun", "subject.adjective"} if chosen == "all" else set()

    def requantified(self, scene: Scene, quantifier: str) -> tuple[Scene, set[str]]:
        """The scene of another number of subjects, whose noun has to stay as it is."""
        used = {"subject.noun", "subject.adjective"}
        if scene.denies and quantifier not in DENIALS:
            used |= set(scene.slots)
        return replace(scene, subject=replace(scene.subject, quantifier=quantifier)), used

    def ruled_out(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """Something else that the subject does in place of what the hypothesis denies."""
        if not scene.negated:
            return None
        rivals = self.rivals(scene, "verb")
        return (replace(scene, verb=self.pick(rivals), negated=False), set(scene.slots)) if rivals else None

    def weaker(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """One thing said less exactly (or more exactly, where that says less)."""
        slots = list(scene.slots)
        self.random.shuffle(slots)
        for slot in slots:
            upward = scene.opens_upward(slot)
            word = self.broader(scene, slot) if upward else self.narrower(scene, slot, genre)
            if word is None:
                continue
            if upward and word == "" and self.chance(0.5):
                word = self.unrelated(scene, slot, genre) or ""
            return scene.set(slot, word), {slot}
        return None

    def unrelated(self, scene: Scene, slot: str, genre: Genre) -> str | None:
        """A detail of another sort: a color in place of an age."""
        value = scene.get(slot)
        options: Sequence[str] = ()
        if slot.endswith("adjective"):
            options = adjectives(scene.get(slot.replace("adjective", "noun")))
        elif slot == "manner":
            options = self.manners(scene, genre)
        near = {value, *ancestors(value)}
        near |= {rival for word in near for rival in meaning(word).rivals}
        options = [word for word in options if word not in near and not near & set(ancestors(word))]
        return self.pick(options) if options else None

    def exchanged(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """Who does it, and to whom."""
        thing = scene.object
        if not scene.frame.swaps or thing is None or scene.denies:
            return None
        if scene.subject.quantifier != "one" or thing.quantifier != "one":
            return None
        if related(scene.subject.noun, thing.noun):
            return None
        return replace(scene, subject=thing, object=scene.subject), set()

    def excluded(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """One thing that cannot be together with what the hypothesis says."""
        if scene.denies:
            return None
        slots = [slot for slot in scene.slots if self.rivals(scene, slot)]
        if scene.subject.quantifier == "all":
            slots = [slot for slot in slots if not slot.startswith("subject")]
        if not slots:
            return None
        slot = self.pick(slots)
        return scene.set(slot, self.pick(self.rivals(scene, slot))), {slot}

    def denied(self, scene: Scene, genre: Genre) -> tuple[Scene, set[str]] | None:
        """The denial of a hypothesis about one, or what it denies."""
        if scene.subject.quantifier != "one":
            return None
        if scene.object is not None and scene.object.quantifier != "one":
            return None
        return replace(scene, negated=not scene.negated), set()

    def rivals(self, scene: Scene, slot: str) -> list[str]:
        """What excludes the word in a slot, and suits the rest of the scene."""
        value = scene.get(slot)
        words = [value, *ancestors(value)] if value else []
        found = sorted({rival for word in words for rival in meaning(word).rivals})
        if slot == "verb":
            found = [w for w in found if {w, *ancestors(w)} & set(scene.frame.verbs)]
        if slot.endswith("adjective"):
            allowed = adjectives(scene.get(slot.replace("adjective", "noun")))
            found = [w for w in found if {w, *ancestors(w)} & set(allowed)]
        if slot == "place":
            found = [w for w in found if self.places(scene)(w)]
        return found

    # ---------------------------------------------------------------------------------------------- sentences

    def write(self, scene: Scene, tense: str, definite: bool = False) -> str:
        """The sentence, with synonyms, voice and the place of the adverbial drawn."""
        thing = scene.object
        base = self.synonym(scene.verb)
        ing, past, participle = verb_forms(base)
        definite = definite or scene.negated
        passive = (
            thing is not None
            and not scene.negated
            and scene.subject.quantifier in EXISTENTIAL
            and self.chance(0.3)
        )
        subject, is_plural = self.noun_phrase(scene.subject, definite)
        other = self.noun_phrase(thing, definite)[0] if thing is not None else ""
        if passive and thing is not None:
            by, subject, is_plural = subject, other, thing.quantifier != "one"
        be = ("are" if is_plural else "is") if tense == "progressive" else ("were" if is_plural else "was")
        denial = " not" if scene.negated else ""
        if passive:
            being = " being" if tense == "progressive" else ""
            predicate = f"{be}{being} {participle} by {by}"
        elif tense == "progressive":
            predicate = f"{be}{denial} {ing}"
        else:
            predicate = f"did not {base}" if scene.negated else past
        words = [subject, predicate]
        if other and not passive:
            words.append(other)
        manner, place = spell(scene.manner), spell(scene.place)
        if manner.startswith(("in ", "at ")) and self.chance(0.3):
            words = [f"{manner},", *words, place]
        else:
            words += [manner, place] if manner.endswith("ly") else [place, manner]
        text = " ".join(word for word in words if word)
        return text[0].upper() + text[1:] + "."

    def noun_phrase(self, phrase: Phrase, definite: bool) -> tuple[str, bool]:
        """Its words, and whether it is plural."""
        noun, is_plural = self.synonym(phrase.noun), phrase.quantifier != "one"
        words = [self.synonym(phrase.adjective)] if phrase.adjective else []
        words.append(plural(noun) if is_plural else noun)
        if not is_plural:
            words.insert(0, "the" if definite else "an" if starts_with_vowel(words[0]) else "a")
        elif phrase.quantifier in ("all", "not all"):
            words = [phrase.quantifier, "the", *words]
        else:
            words.insert(0, phrase.quantifier)
        return " ".join(words), is_plural

    def synonym(self, word: str) -> str:
        """The word or another for the same, spelt."""
        return self.pick(SYNONYMS.get(word, (spell(word),)))

    def kinds(self) -> str:
        """A sentence that says what is a kind of what."""
        while True:
            head = self.pick(HEADS)
            if len(meaning(head).children) > 2:
                break
        kinds = [self.synonym(kind) for kind in self.random.sample(meaning(head).children, 3)]
        name = self.synonym(head)
        one, two, three = (plural(kind) for kind in kinds)
        heads = plural(name)
        detail = self.pick(("in this town", "in the pictures", "there", "nearby", "on the list"))
        article = "an" if starts_with_vowel(kinds[0]) else "a"
        words = self.pick(
            (
                f"{one}, {two}, {three} and other {heads}",
                f"{heads} such as {one}, {two} and {three} are common {detail}",
                f"most of the {heads} {detail} are {one}, {two} or {three}",
                f"the {kinds[0]}, the {kinds[1]} and the {kinds[2]} are {heads}",
                f"{article} {kinds[0]} is a kind of {name}",
            )
        )
        return words[0].upper() + words[1:] + "."


EVERYDAY_KINDS = frozenset({"adult", "child", "musician", "athlete", "worker", "artist", "doctor", "teacher"})
"""What `person` is made narrower to."""
HEADS = (
    *(
        "adult",
        "child",
        "musician",
        "athlete",
        "worker",
        "artist",
        "doctor",
        "student",
        "official",
        "journalist",
    ),
    *(
        "expert",
        "person",
        "animal",
        "dog",
        "bird",
        "horse",
        "organization",
        "company",
        "vehicle",
        "instrument",
    ),
    *("fruit", "garment", "toy", "tool", "flower", "container", "document", "building"),
)
"""Nouns that have kinds."""


def adjectives(noun: str) -> tuple[str, ...]:
    """Those that go with a noun."""
    for word in (noun, *ancestors(noun)):
        if word in ADJECTIVES:
            return tuple(ADJECTIVES[word].split())
    return tuple(ADJECTIVES[""].split())


def related(a: str, b: str) -> bool:
    """Whether one noun is a kind of the other."""
    return a in (b, *ancestors(b)) or b in ancestors(a)


def spell(word: str) -> str:
    """The word as it is written."""
    return word.replace("_", " ")


def starts_with_vowel(word: str) -> bool:
    """Whether a becomes an: `an apple`, `a union`."""
    return word[0] in "aeio" or (word[0] == "u" and not word.startswith("uni"))
