"""German and English of the same meaning: noun phrases, prepositional phrases and clauses that inflect
themselves.

Every structure has a method `german(...)` and a method `english(...)` that return words, with `,` as a word
of its own. The English is a function of the German: it differs in word order (verb-second, verb-final,
object-first, the particle of a separable verb), and what German says by case (in + dative or accusative)
English says by another word (in, into).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .captions_lexicon import Adjective, Noun, Verb

Case = Literal["nominative", "accusative", "dative", "genitive"]
Determiner = Literal["definite", "indefinite", "no", "this", "every", "possessive", "number"]
Tense = Literal["present", "perfect", "future", "passive", "können", "wollen", "müssen", "sollen", "dürfen"]
Slot = Literal["subject", "time", "manner", "dative", "accusative", "place"]
CASES: tuple[Case, ...] = ("nominative", "accusative", "dative", "genitive")

# Columns: masculine, feminine, neuter, plural.
COLUMNS = ("m", "f", "n", "plural")
DEFINITE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
    "genitive": ("des", "der", "des", "der"),
}
DIESER = {
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
    "genitive": ("es", "er", "es", "er"),
}
"""Endings of dieser and jeder, and of an adjective without an article but in the genitive (strong)."""
EIN = {
    "nominative": ("", "e", "", "e"),
    "accusative": ("en", "e", "", "e"),
    "dative": ("em", "er", "em", "en"),
    "genitive": ("es", "er", "es", "er"),
}
"""Endings of ein, kein, sein and ihr."""
WEAK = {
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
    "genitive": ("en", "en", "en", "en"),
}
"""Endings of an adjective after der, dieser, jeder."""
MIXED = {
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
    "dative": ("en", "en", "en", "en"),
    "genitive": ("en", "en", "en", "en"),
}
"""Endings of an adjective after ein, kein, sein, ihr."""
RELATIVE = {**DEFINITE, "dative": ("dem", "der", "dem", "denen")}
PRONOUN = ("er", "sie", "es", "sie")
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
}
NUMBERS = {"zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "viele": "many", "einige": "some"}


def inflect_noun(noun: Noun, case: Case, plural: bool) -> str:
    """The German noun in a case and number."""
    if plural:
        return noun.plural + ("n" if case == "dative" and noun.plural[-1] not in "ns" else "")
    if noun.weak:
        return noun.singular if case == "nominative" else noun.plural
    if case == "genitive" and noun.gender != "f":
        return noun.singular + _genitive_ending(noun.singular)
    return noun.singular


def _genitive_ending(word: str) -> str:
    syllables = sum(
        c in "aeiouäöüy" and not (i and word[i - 1].lower() in "aeiouäöü") for i, c in enumerate(word.lower())
    )
    if word.endswith(("s", "ß", "x", "z", "sch")) or word in ("Bleistift",):
        return "es"
    return "es" if syllables == 1 and word[-1] not in "aeiouhw" else "s"


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner, adjectives and what follows it."""

    noun: Noun
    determiner: Determiner = "definite"
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    number: str = ""
    """The German number word, for `determiner="number"`."""
    possessor: NounPhrase | None = None
    """Whose it is: of whom sein or ihr speaks (`determiner="possessive"`), or a genitive after the noun."""
    attribute: PrepositionalPhrase | None = None
    relative: RelativeClause | None = None
    pronoun: bool = False
    """Speaks of the noun as er, sie, es."""

    @property
    def column(self) -> int:
        """Column of the paradigms."""
        return COLUMNS.index("plural" if self.plural else self.noun.gender)

    @property
    def is_person(self) -> bool:
        """Whether English says who."""
        return "person" in self.noun.kinds

    @property
    def is_indefinite(self) -> bool:
        """Whether German likes it late in the clause."""
        return self.determiner in ("indefinite", "no", "number")

    @property
    def shows_case(self) -> bool:
        """Whether nominative and accusative look different."""
        return self.column == 0

    @property
    def possessive_words(self) -> tuple[str, str]:
        """sein/ihr and his/her/its/their."""
        owner = self.possessor
        assert owner is not None
        if owner.plural:
            return "ihr", "their"
        return ("ihr" if owner.noun.gender == "f" else "sein"), owner.english_pronoun("possessive")

    def german(self, case: Case) -> list[str]:
        """The words in a case."""
        if self.pronoun:
            return [PRONOUN[self.column]]
        article, endings = self._article_and_endings(case)
        words = [article] if article else []
        words += [adjective.stem + endings[self.column] for adjective in self.adjectives]
        words.append(inflect_noun(self.noun, case, self.plural))
        if self.possessor is not None and self.determiner != "possessive":
            words += self.possessor.german("genitive")
        if self.attribute is not None:
            words += self.attribute.german()
        if self.relative is not None:
            words += [",", *self.relative.german(self), ","]
        return words

    def _article_and_endings(self, case: Case) -> tuple[str, tuple[str, ...]]:
        match self.determiner:
            case "definite":
                return DEFINITE[case][self.column], WEAK[case]
            case "this":
                return "dies" + DIESER[case][self.column], WEAK[case]
            case "every":
                return "jed" + DIESER[case][self.column], WEAK[case]
            case "no":
                return "kein" + EIN[case][self.column], MIXED[case]
            case "possessive":
                return self.possessive_words[0] + EIN[case][self.column], MIXED[case]
            case "number":
                inflected = (
                    self.number[:-1] + DIESER[case][3] if self.number in ("viele", "einige") else self.number
                )
                return inflected, DIESER[case]
        if self.plural:
            return "", DIESER[case]
        return "ein" + EIN[case][self.column], MIXED[case]

    def english(self, negated: bool = False) -> list[str]:
        """The words; `negated` in a clause that says not, where kein becomes a or any."""
        if self.pronoun:
            return [self.english_pronoun("subject")]
        words = [a.english for a in self.adjectives]
        words.append(self.noun.english_plural if self.plural else self.noun.english)
        indefinite = (
            ["any"] if self.plural else ["an" if words[0][0] in "aeio" or words[0] in VOWEL_U else "a"]
        )
        match self.determiner:
            case "definite":
                words = ["the", *words]
            case "this":
                words = ["these" if self.plural else "this", *words]
            case "every":
                words = ["every", *words]
            case "no":
                words = [*(indefinite if negated else ["no"]), *words]
            case "possessive":
                words = [self.possessive_words[1], *words]
            case "number":
                words = [NUMBERS[self.number], *words]
            case "indefinite" if not self.plural:
                words = [*indefinite, *words]
        if self.possessor is not None and self.determiner != "possessive":
            words += ["of", *self.possessor.english()]
        if self.attribute is not None:
            words += self.attribute.english()
        if self.relative is not None:
            words += self.relative.english(self)
        return words

    def english_pronoun(self, form: Literal["subject", "possessive"]) -> str:
        """he, she, it, they, or his, her, its, their."""
        forms = {"m": ("he", "his"), "f": ("she", "her"), "n": ("it", "its"), "plural": ("they", "their")}
        female = self.noun.gender == "f" or self.noun.singular == "Mädchen"
        key = "plural" if self.plural else "n" if not self.is_person else "f" if female else self.noun.gender
        return forms[key][0 if form == "subject" else 1]


VOWEL_U = frozenset({"umbrella", "uncle"})


@dataclass(frozen=True)
class Preposition:
    """A German preposition with the case that it takes here, and what English says."""

    german: str
    case: Case
    english: str


@dataclass(frozen=True)
class PrepositionalPhrase:
    """A preposition and its noun phrase; two of them for zwischen."""

    preposition: Preposition
    phrase: NounPhrase
    second: NounPhrase | None = None

    def german(self) -> list[str]:
        """The words, contracted (im, zum) unless a relative clause follows."""
        *before, preposition = self.preposition.german.split()
        words = self.phrase.german(self.preposition.case)
        if (preposition, words[0]) in CONTRACTIONS and self.phrase.relative is None:
            words = [CONTRACTIONS[preposition, words[0]], *words[1:]]
        else:
            words = [preposition, *words]
        if self.second is not None:
            words += ["und", *self.second.german(self.preposition.case)]
        return before + words

    def english(self) -> list[str]:
        """The words."""
        second = ["and", *self.second.english()] if self.second is not None else []
        return [*self.preposition.english.split(), *self.phrase.english(), *second]


@dataclass(frozen=True)
class Adverbial:
    """A fixed phrase of time or manner."""

    german: str
    english: str


@dataclass(frozen=True)
class Predicate:
    """What a copula says of the subject: one or two adjectives, or a comparison."""

    adjectives: tuple[Adjective, ...]
    than: NounPhrase | None = None
    degree: Literal["equal", "more"] | None = None

    def german(self) -> list[str]:
        """The words: klein und nass; kleiner als der Hund; so klein wie der Hund."""
        first = self.adjectives[0]
        if self.than is not None:
            other = self.than.german("nominative")
            return (
                [first.comparative, "als", *other]
                if self.degree == "more"
                else ["so", first.form, "wie", *other]
            )
        return " und ".join(a.form for a in self.adjectives).split()

    def english(self) -> list[str]:
        """The words."""
        first = self.adjectives[0]
        if self.than is not None:
            other = self.than.english()
            if self.degree == "more":
                return [*first.english_comparative.split(), "than", *other]
            return ["as", first.english, "as", *other]
        return " and ".join(a.english for a in self.adjectives).split()


MODALS: dict[str, tuple[str, str, str, str, str, str]] = {
    # singular, plural, English singular and plural, the same negated
    "können": ("kann", "können", "can", "can", "is not able to", "are not able to"),
    "wollen": ("will", "wollen", "wants to", "want to", "does not want to", "do not want to"),
    "müssen": ("muss", "müssen", "must", "must", "does not have to", "do not have to"),
    "sollen": ("soll", "sollen", "should", "should", "should not", "should not"),
    "dürfen": (
        "darf",
        "dürfen",
        "is allowed to",
        "are allowed to",
        "is not allowed to",
        "are not allowed to",
    ),
    "future": ("wird", "werden", "will", "will", "will not", "will not"),
}


@dataclass(frozen=True)
class Clause:
    """Who does what, to whom, where, when and how; or, without a verb, what the subject is like
    (`predicate`)."""

    subject: NounPhrase
    verb: Verb | None = None
    predicate: Predicate | None = None
    dative: NounPhrase | None = None
    accusative: NounPhrase | None = None
    place: PrepositionalPhrase | None = None
    direction: PrepositionalPhrase | None = None
    time: Adverbial | None = None
    manner: Adverbial | None = None
    tense: Tense = "present"
    negated: bool = False
    front: Slot = "subject"
    gap: Literal["subject", "accusative", "dative"] | None = None
    """What a relative pronoun stands for."""

    # ----------------------------------------------------------------------------------------------- German

    def german_main(self, before: list[str] | None = None) -> list[str]:
        """Verb second: one part (or the words `before`) in front, the finite verb, the rest, what belongs to
        the verb."""
        finite, tail = self._german_verb()
        slots = self._german_slots()
        front = slots.pop(self.front) if before is None else before
        return [*front, finite, *(word for words in slots.values() for word in words), *tail]

    def german_final(self) -> list[str]:
        """Verb last, as after weil and in relative clauses."""
        finite, tail = self._german_verb()
        words = [word for words in self._german_slots().values() for word in words]
        if self.verb is not None and self.tense == "present":
            return [*words, self.verb.particle + finite]
        return [*words, *tail, finite]

    def german_infinitive(self) -> list[str]:
        """Without the subject, ending in zu and the infinitive, as after um."""
        assert self.verb is not None
        slots = self._german_slots()
        slots.pop("subject")
        return [*(word for words in slots.values() for word in words), *self.verb.to_infinitive.split()]

    def _german_verb(self) -> tuple[str, list[str]]:
        """The finite verb and what stands at the end of a main clause."""
        plural = self._grammatical_subject.plural
        if self.verb is None:
            return "sind" if plural else "ist", []
        if self.tense == "present":
            return (self.verb.plural if plural else self.verb.singular), [self.verb.particle] * bool(
                self.verb.particle
            )
        if self.tense == "perfect":
            forms = ("hat", "haben") if self.verb.auxiliary == "haben" else ("ist", "sind")
            return forms[plural], [self.verb.participle]
        if self.tense == "passive":
            return ("wird", "werden")[plural], [self.verb.participle]
        return MODALS[self.tense][plural], [self.verb.infinitive]

    @property
    def _grammatical_subject(self) -> NounPhrase:
        if self.tense == "passive":
            assert self.accusative is not None
            return self.accusative
        return self.subject

    def _german_slots(self) -> dict[str, list[str]]:
        """The parts of the clause but the verb, in the order of the middle field."""
        accusative, indefinite = (
            self.accusative,
            self.accusative is not None and self.accusative.is_indefinite,
        )
        slots: dict[str, list[str]] = {"subject": [], "time": [], "dative": []}
        if self.gap != "subject":
            slots["subject"] = self._grammatical_subject.german("nominative")
        if self.time is not None:
            slots["time"] = self.time.german.split()
        if self.dative is not None and self.gap != "dative":
            slots["dative"] = self.dative.german("dative")
        object_words: list[str] = []
        if self.tense == "passive":
            object_words = PrepositionalPhrase(AGENT, self.subject).german()
        elif accusative is not None and self.gap != "accusative":
            object_words = accusative.german("accusative")
        if not indefinite or self.tense == "passive":  # das Buch nicht im Garten, but: im Garten ein Buch
            slots["accusative"] = object_words
        if self.negated:
            slots["time"] = slots.pop("time")  # das Buch heute nicht
            slots["negation"] = ["nicht"]
        if self.manner is not None:
            slots["manner"] = self.manner.german.split()
        if self.place is not None:
            slots["place"] = self.place.german()
        if "accusative" not in slots:
            slots["accusative"] = object_words
        if self.direction is not None:
            slots["direction"] = self.direction.german()
        if self.predicate is not None:
            slots["predicate"] = self.predicate.german()
        return slots

    # ---------------------------------------------------------------------------------------------- English

    def english_main(self) -> list[str]:
        """Subject, verb, objects, adverbials."""
        return [*self._grammatical_subject.english(), *self.english_predicate()]

    def english_infinitive(self) -> list[str]:
        """The verb's base form and all that follows it."""
        assert self.verb is not None
        return [*self.verb.english.split(), *self._english_rest(False)]

    def english_predicate(self) -> list[str]:
        """The clause without its subject."""
        plural = self._grammatical_subject.plural
        negated = self.negated or (
            self.accusative is not None and self.accusative.determiner == "no" and self.tense != "passive"
        )
        be = "are" if plural else "is"
        no = ["not"] if negated else []
        manner = self.manner.english.split() if self.manner is not None else []
        if self.verb is None:
            assert self.predicate is not None
            words = [be, *no, *self.predicate.english()]
        elif self.tense == "present" and self.verb.english_ing:
            words = [be, *no, *manner, *self.verb.english_ing.split()]
        elif self.tense == "present" and negated:
            words = ["do" if plural else "does", "not", *self.verb.english.split()]
        elif self.tense == "present":
            words = [*manner, self.verb.english + ("" if plural else "s")]
        elif self.tense == "perfect":
            words = ["have" if plural else "has", *no, *manner, *self.verb.english_participle.split()]
        elif self.tense == "passive":
            words = [be, *no, *manner, "being", *self.verb.english_participle.split()]
        else:
            modal = MODALS[self.tense][(4 if negated else 2) + plural]
            words = [*modal.split(), *manner, *self.verb.english.split()]
        return words + self._english_rest(negated)

    def _english_rest(self, negated: bool) -> list[str]:
        words: list[str] = []
        if self.dative is not None and self.gap != "dative":
            words += self.dative.english()
        if self.tense == "passive":
            words += ["by", *self.subject.english()]
        elif self.accusative is not None and self.gap != "accusative":
            words += self.accusative.english(negated)
        for part in (self.direction, self.place):
            if part is not None:
                words += part.english()
        if self.time is not None:
            words += self.time.english.split()
        return words


AGENT = Preposition("von", "dative", "by")


@dataclass(frozen=True)
class RelativeClause:
    """A clause with a gap that the noun before it fills."""

    clause: Clause

    def german(self, head: NounPhrase) -> list[str]:
        """The relative pronoun in the gap's case, and the clause with its verb last."""
        case: dict[str | None, Case] = {
            "subject": "nominative",
            "accusative": "accusative",
            "dative": "dative",
        }
        return [RELATIVE[case[self.clause.gap]][head.column], *self.clause.german_final()]

    def english(self, head: NounPhrase) -> list[str]:
        """who, whom or that, and the clause."""
        if self.clause.gap == "subject":
            return ["who" if head.is_person else "that", *self.clause.english_predicate()]
        return ["whom" if head.is_person else "that", *self.clause.english_main()]


def sentence(words: list[str]) -> str:
    """Words as a sentence: commas that meet or end it become one or none, a capital in front, a full stop
    behind."""
    text = " ".join(words).replace(" ,", ",")
    while ",," in text:
        text = text.replace(",,", ",")
    text = text.rstrip(",")
    return text[0].upper() + text[1:] + "."
