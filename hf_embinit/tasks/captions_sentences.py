"""Draws sentences from the grammar of captions: which words go together, and how often each structure
occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from .captions_grammar import (
    Adverbial,
    Clause,
    Determiner,
    NounPhrase,
    Predicate,
    Preposition,
    PrepositionalPhrase,
    RelativeClause,
    Slot,
    Tense,
    sentence,
)
from .captions_lexicon import Adjective, Frame, Noun, Verb, adjectives, nouns, verbs

T = TypeVar("T")

BESIDE = ("room", "landmark", "vehicle", "furniture", "person")
PLACES = (
    (Preposition("in", "dative", "in"), ("room",), 6),
    (Preposition("auf", "dative", "on"), ("ground", "furniture"), 4),
    (Preposition("an", "dative", "at"), ("edge",), 2),
    (Preposition("unter", "dative", "under"), ("shade", "furniture"), 2),
    (Preposition("hinter", "dative", "behind"), BESIDE, 2),
    (Preposition("vor", "dative", "in front of"), BESIDE, 2),
    (Preposition("neben", "dative", "next to"), BESIDE, 2),
    (Preposition("links neben", "dative", "to the left of"), BESIDE, 2),
    (Preposition("rechts neben", "dative", "to the right of"), BESIDE, 2),
    (Preposition("zwischen", "dative", "between"), ("landmark", "vehicle", "furniture"), 2),
)
"""Where: the preposition, the kinds of noun that it goes with, how often."""
INSIDE = (Preposition("in", "dative", "in"), ("container",), 4)
DIRECTIONS = (
    (Preposition("in", "accusative", "into"), ("room",), 6),
    (Preposition("auf", "accusative", "onto"), ("ground", "furniture"), 4),
    (Preposition("an", "accusative", "to"), ("edge",), 2),
    (Preposition("hinter", "accusative", "behind"), BESIDE[:4], 1),
    (Preposition("unter", "accusative", "under"), ("shade", "furniture"), 1),
    (Preposition("über", "accusative", "over"), ("obstacle",), 3),
    (Preposition("durch", "accusative", "through"), ("room",), 3),
    (Preposition("um", "accusative", "around"), ("landmark",), 2),
    (Preposition("zu", "dative", "to"), ("room", "landmark", "person"), 4),
    (Preposition("aus", "dative", "out of"), ("room",), 3),
)
"""Where to."""
TARGETS = (
    (Preposition("in", "accusative", "into"), ("container", "room"), 4),
    (Preposition("auf", "accusative", "onto"), ("furniture",), 5),
    (Preposition("unter", "accusative", "under"), ("furniture",), 2),
    (Preposition("neben", "accusative", "next to"), ("furniture", "container", "landmark"), 2),
    (Preposition("hinter", "accusative", "behind"), ("furniture", "landmark"), 2),
    (Preposition("vor", "accusative", "in front of"), ("furniture", "landmark"), 2),
)
"""Where something is put."""
WITH = Preposition("mit", "dative", "with")
WITHOUT = Preposition("ohne", "accusative", "without")

TIMES = [
    Adverbial("heute", "today"),
    Adverbial("jetzt", "now"),
    Adverbial("am Morgen", "in the morning"),
    Adverbial("am Abend", "in the evening"),
    Adverbial("in der Nacht", "at night"),
    Adverbial("am Nachmittag", "in the afternoon"),
    Adverbial("jeden Tag", "every day"),
    Adverbial("im Sommer", "in summer"),
    Adverbial("im Winter", "in winter"),
    Adverbial("am Wochenende", "on the weekend"),
]
WIDE_TIMES = [
    Adverbial(f"am {german}", f"on {english}")
    for german, english in (
        ("Montag", "Monday"),
        ("Dienstag", "Tuesday"),
        ("Mittwoch", "Wednesday"),
        ("Donnerstag", "Thursday"),
        ("Freitag", "Friday"),
        ("Samstag", "Saturday"),
        ("Sonntag", "Sunday"),
    )
]
MANNERS = [
    Adverbial("langsam", "slowly"),
    Adverbial("schnell", "quickly"),
    Adverbial("leise", "quietly"),
    Adverbial("vorsichtig", "carefully"),
    Adverbial("plötzlich", "suddenly"),
    Adverbial("gern", "gladly"),
]
CONJUNCTIONS = (("weil", "because"), ("während", "while"), ("obwohl", "although"), ("wenn", "when"))
THOUGHTS = (
    ("sieht", "sehen", "sees", "see"),
    ("weiß", "wissen", "knows", "know"),
    ("glaubt", "glauben", "believes", "believe"),
    ("sagt", "sagen", "says", "say"),
    ("hofft", "hoffen", "hopes", "hope"),
)
"""Verbs before dass: German singular and plural, English singular and plural."""
FRAMES: tuple[tuple[Frame, int], ...] = (
    ("accusative", 40),
    ("intransitive", 14),
    ("position", 14),
    ("motion", 12),
    ("placement", 8),
    ("ditransitive", 7),
    ("dative", 6),
)
TENSES: tuple[tuple[Tense, int], ...] = (
    ("present", 67),
    ("perfect", 9),
    ("future", 5),
    ("passive", 9),
    ("können", 3),
    ("wollen", 3),
    ("müssen", 2),
    ("sollen", 2),
    ("dürfen", 2),
)


SINGULAR_DETERMINERS: tuple[tuple[Determiner, int], ...] = (
    ("definite", 50),
    ("indefinite", 40),
    ("this", 7),
    ("every", 3),
)
PLURAL_DETERMINERS: tuple[tuple[Determiner, int], ...] = (
    ("definite", 40),
    ("indefinite", 25),
    ("number", 20),
    ("this", 5),
)


class Draws:
    """Uniform draws from a `torch.Generator`, fetched by the block."""

    def __init__(self, generator: torch.Generator):
        self._generator = generator
        self._block: list[float] = []

    def uniform(self) -> float:
        """A number in [0, 1)."""
        if not self._block:
            self._block = torch.rand(4096, generator=self._generator, dtype=torch.float64).tolist()
        return self._block.pop()

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.uniform() < probability

    def choice(self, options: Sequence[T]) -> T:
        """One of equally likely options."""
        return options[int(self.uniform() * len(options))]

    def early(self, options: Sequence[T]) -> T:
        """One option, the earlier ones more often: rank r has about the odds r ** -0.4."""
        return options[int(self.uniform() ** 1.7 * len(options))]

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """One of `(option, weight)`."""
        left = self.uniform() * sum(weight for _, weight in options)
        for option, weight in options:
            left -= weight
            if left < 0:
                return option
        return options[-1][0]


class SentenceMaker:
    """Makes sentences from a generator; `wide=True` uses the wider vocabulary too."""

    def __init__(self, generator: torch.Generator, *, wide: bool = False):
        self.draws = Draws(generator)
        self._nouns: dict[str, list[Noun]] = {}
        for noun in nouns():
            if wide or not noun.wide:
                for kind in sorted(noun.kinds):
                    self._nouns.setdefault(kind, []).append(noun)
        self._adjectives: dict[str, list[Adjective]] = {}
        for adjective in adjectives():
            if wide or not adjective.wide:
                for kind in sorted(adjective.kinds):
                    self._adjectives.setdefault(kind, []).append(adjective)
        self._times = TIMES + WIDE_TIMES if wide else TIMES
        self._used: set[str] = set()

    def pair(self) -> tuple[str, str]:
        """A German sentence and the English one of the same meaning."""
        self._used = set()
        kind = self.draws.weighted(
            (
                (self._simple, 56),
                (self._description, 10),
                (self._existence, 6),
                (self._subordinate, 13),
                (self._thought, 5),
                (self._purpose, 5),
                (self._coordination, 5),
            )
        )
        german, english = kind()
        return sentence(german), sentence(english)

    # ------------------------------------------------------------------------------------------- sentences

    def _simple(self) -> tuple[list[str], list[str]]:
        clause = self._clause(rich=True)
        return clause.german_main(), clause.english_main()

    def _description(self) -> tuple[list[str], list[str]]:
        clause = self._copula(
            self._phrase(("person", "animal", "vehicle", "thing", "clothes", "room"), rich=True)
        )
        return clause.german_main(), clause.english_main()

    def _existence(self) -> tuple[list[str], list[str]]:
        kinds = ("landmark", "vehicle", "animal", "person", "thing", "room")
        determiner: Determiner = self.draws.weighted((("indefinite", 6), ("no", 2), ("number", 2)))
        what = self._phrase(kinds, determiner=determiner, rich=True)
        place = self._place()
        german = (
            [*place.german(), "gibt", "es", *what.german("accusative")]
            if self.draws.chance(0.5)
            else ["es", "gibt", *place.german(), *what.german("accusative")]
        )
        return german, ["there", "are" if what.plural else "is", *what.english(), *place.english()]

    def _subordinate(self) -> tuple[list[str], list[str]]:
        german, english = self.draws.choice(CONJUNCTIONS)
        main = self._clause(rich=False)
        single = main.verb is not None and main.verb.frame in ("intransitive", "position", "motion")
        if single and self.draws.chance(0.5) and self._has_pronoun(main.subject):
            pronoun = NounPhrase(main.subject.noun, plural=main.subject.plural, pronoun=True)
            other = (
                self._copula(pronoun)
                if self.draws.chance(0.6) and main.subject.noun.kinds & self._adjectives.keys()
                else self._clause(subject=pronoun, rich=False)
            )
            first = False
        else:
            other, first = self._clause(rich=False), self.draws.chance(0.4)
        other = replace(other, front="subject")
        if first:
            return (
                main.german_main([german, *other.german_final(), ","]),
                [english, *other.english_main(), ",", *main.english_main()],
            )
        return (
            [*main.german_main(), ",", german, *other.german_final()],
            [*main.english_main(), english, *other.english_main()],
        )

    def _thought(self) -> tuple[list[str], list[str]]:
        subject = self._phrase(("person",))
        singular, plural, english_singular, english_plural = self.draws.choice(THOUGHTS)
        what = (
            self._copula(self._phrase(("person", "animal")))
            if self.draws.chance(0.25)
            else self._clause(rich=False)
        )
        return (
            [
                *subject.german("nominative"),
                plural if subject.plural else singular,
                ",",
                "dass",
                *what.german_final(),
            ],
            [
                *subject.english(),
                english_plural if subject.plural else english_singular,
                "that",
                *what.english_main(),
            ],
        )

    def _purpose(self) -> tuple[list[str], list[str]]:
        subject = self._phrase(("person",))
        verb = self.draws.choice([v for v in verbs()["motion"] if "person" in v.subjects])
        way = Clause(subject=subject, verb=verb, direction=self._place(DIRECTIONS))
        frame: Frame = self.draws.weighted(
            (("accusative", 6), ("intransitive", 1), ("dative", 1), ("ditransitive", 1))
        )
        aim = self._clause(frame=frame, subject=subject, rich=False)
        aim = replace(aim, tense="present", negated=False, time=None, manner=None)
        if aim.accusative is not None and aim.accusative.determiner == "no":
            aim = replace(aim, accusative=replace(aim.accusative, determiner="definite"))
        return (
            [*way.german_main(), ",", "um", *aim.german_infinitive()],
            [*way.english_main(), "to", *aim.english_infinitive()],
        )

    def _coordination(self) -> tuple[list[str], list[str]]:
        first, second = self._clause(rich=False), self._clause(rich=False)
        if self.draws.chance(0.6):
            return (
                [*first.german_main(), "und", *second.german_main()],
                [*first.english_main(), "and", *second.english_main()],
            )
        return (
            [*first.german_main(), ",", "aber", *second.german_main()],
            [*first.english_main(), ",", "but", *second.english_main()],
        )

    # --------------------------------------------------------------------------------------------- clauses

    def _clause(self, *, rich: bool, subject: NounPhrase | None = None, frame: Frame | None = None) -> Clause:
        """A clause with a verb that goes with the subject, if one is given."""
        draws = self.draws
        verb = self._verb(frame, None if subject is None else subject.noun)
        if subject is None:
            subject = self._phrase(verb.subjects, rich=rich, determiner="no" if draws.chance(0.02) else None)
        clause = Clause(subject=subject, verb=verb)
        can_negate = subject.determiner not in ("no", "every", "number")
        negate = can_negate and draws.chance(0.13)
        if verb.frame in ("dative", "ditransitive"):
            kinds = ("person",) if verb.frame == "ditransitive" else verb.objects
            receiver = self._phrase(kinds)
            if receiver.plural and receiver.determiner == "indefinite":
                receiver = replace(receiver, determiner="definite")  # an article shows the case
            clause = replace(clause, dative=receiver)
        if verb.frame in ("accusative", "ditransitive", "placement"):
            clause = replace(
                clause, accusative=self._object(verb, subject, rich and verb.frame == "accusative", negate)
            )
        if verb.frame == "placement":
            clause = replace(clause, direction=self._place(TARGETS))
        elif verb.frame == "motion" and draws.chance(0.75):
            clause = replace(clause, direction=self._place(DIRECTIONS))
        elif verb.frame in ("position", "motion"):
            small = not subject.noun.kinds & {"person", "animal", "landmark", "vehicle", "furniture"}
            clause = replace(
                clause, place=self._place((*PLACES[1:2], PLACES[3], INSIDE) if small else PLACES)
            )
        elif verb.frame in ("intransitive", "accusative") and draws.chance(0.3):
            clause = replace(clause, place=self._place())
        clause = replace(
            clause, negated=negate and (clause.accusative is None or clause.accusative.determiner != "no")
        )
        if clause.negated and clause.accusative is not None and clause.accusative.is_indefinite:
            clause = replace(clause, negated=False)
        clause = replace(clause, tense=self._tense(clause, negate))
        if clause.tense in ("present", "future") and draws.chance(0.2):
            clause = replace(clause, time=draws.choice(self._times))
        if (
            not negate
            and verb.frame not in ("position", "dative")
            and verb.english_ing
            and draws.chance(0.12)
        ):
            clause = replace(clause, manner=draws.choice(MANNERS))
        return replace(clause, front=self._front(clause))

    def _copula(self, subject: NounPhrase) -> Clause:
        """The subject is so: big, or bigger than another."""
        subject = replace(subject, adjectives=())  # no small house is big
        kind = min(subject.noun.kinds & self._adjectives.keys())
        first = self.draws.early(self._adjectives[kind])
        clause = Clause(subject=subject, predicate=Predicate((first,)))
        if first.comparative and not subject.pronoun and self.draws.chance(0.4):
            than = self._phrase((kind,), determiner="definite")
            degree = self.draws.weighted((("more", 3), ("equal", 1)))
            clause = replace(clause, predicate=Predicate((first,), than, degree))  # type: ignore[arg-type]
        elif self.draws.chance(0.3):
            second = self.draws.choice(self._adjectives[kind])
            if second != first:
                clause = replace(clause, predicate=Predicate((first, second)))
        can_negate = subject.determiner not in ("no", "every", "number")
        return replace(clause, negated=can_negate and self.draws.chance(0.2))

    def _verb(self, frame: Frame | None, subject: Noun | None) -> Verb:
        for _ in range(100):
            table = verbs()[self.draws.weighted(FRAMES) if frame is None else frame]
            fitting = [v for v in table if subject is None or subject.kinds & set(v.subjects)]
            if fitting:
                return self.draws.early(fitting)
        raise AssertionError(f"no verb goes with {subject}")

    def _object(self, verb: Verb, subject: NounPhrase, rich: bool, negate: bool) -> NounPhrase:
        phrase = self._phrase(verb.objects, rich=rich)
        # a possessive needs an owner with a pronoun of its own, and something that can be owned
        can_own = subject.is_person and (subject.plural or subject.noun.gender != "n")
        can_be_owned = (
            "person" not in phrase.noun.kinds and not phrase.possessor and phrase.determiner != "number"
        )
        if can_own and can_be_owned and self.draws.chance(0.15):
            return replace(phrase, determiner="possessive", possessor=subject)
        if negate and phrase.determiner == "indefinite":
            return replace(phrase, determiner="no")
        return phrase

    def _tense(self, clause: Clause, negate: bool) -> Tense:
        tense = self.draws.weighted(TENSES)
        if tense == "passive":
            patient = clause.accusative
            possible = (
                clause.verb is not None
                and clause.verb.frame == "accusative"
                and clause.verb.english_ing
                and patient is not None
                and patient.determiner not in ("no", "possessive")
                and not clause.subject.pronoun
                and clause.subject.determiner != "no"
                and not negate
            )
            return "passive" if possible else "present"
        if tense not in ("present", "perfect", "future") and not clause.subject.is_person:
            return "present"
        return tense

    def _front(self, clause: Clause) -> Slot:
        """What stands before the verb: never an object that could be taken for the subject."""
        draws, u = self.draws, self.draws.uniform()
        if clause.time is not None and u < 0.5:
            return "time"
        if clause.place is not None and u < 0.3:
            return "place"
        if clause.tense == "passive" or clause.subject.pronoun:
            return "subject"
        patient = clause.accusative
        movable = patient is not None and patient.determiner not in ("no", "possessive")
        if movable and _distinct(patient, clause.subject) and draws.chance(0.3):  # type: ignore[arg-type]
            return "accusative"
        if clause.dative is not None and draws.chance(0.25):
            return "dative"
        return "subject"

    # --------------------------------------------------------------------------------------------- phrases

    def _noun(self, kinds: Sequence[str]) -> Noun:
        for _ in range(100):
            noun = self.draws.early(self._nouns[self.draws.choice(kinds)])
            if noun.english not in self._used:
                break
        self._used.add(noun.english)
        return noun

    def _phrase(
        self, kinds: Sequence[str], *, rich: bool = False, determiner: Determiner | None = None
    ) -> NounPhrase:
        """A noun phrase of one of the kinds; a `rich` one may carry an attribute or a relative clause."""
        draws = self.draws
        noun = self._noun(kinds)
        plural = draws.chance(0.25)
        if determiner is None:
            drawn: Determiner = draws.weighted(PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
            determiner = drawn
        if determiner == "number":
            plural = True
        phrase = NounPhrase(noun, determiner, plural)
        if determiner == "number":
            phrase = replace(phrase, number=draws.early(("zwei", "drei", "viele", "einige", "vier", "fünf")))
        phrase = replace(phrase, adjectives=self._attributes(noun))
        if not rich:
            return phrase
        u = draws.uniform()
        if u < 0.09 and phrase.is_person:
            preposition = WITH if draws.chance(0.8) else WITHOUT
            worn = replace(self._phrase(("clothes",), determiner="indefinite"), plural=False)
            phrase = replace(phrase, attribute=PrepositionalPhrase(preposition, worn))
        elif u < 0.09 and determiner == "definite":
            phrase = replace(phrase, possessor=self._phrase(("person",), determiner="definite"))
        elif 0.09 <= u < 0.24 and determiner != "no":
            relative = self._relative(phrase)
            if relative is not None:
                phrase = replace(phrase, relative=relative)
        return phrase

    def _attributes(self, noun: Noun) -> tuple[Adjective, ...]:
        options = [a for kind in sorted(noun.kinds) for a in self._adjectives.get(kind, ())]
        if not options or not self.draws.chance(0.36):
            return ()
        colors = [a for a in options if a.english in COLORS]
        if colors and self.draws.chance(0.15):
            sizes = [a for a in options if a.english in ("big", "small")]
            return (self.draws.choice(sizes), self.draws.choice(colors))
        return (self.draws.early(options),)

    def _relative(self, head: NounPhrase) -> RelativeClause | None:
        """A relative clause about the noun; None where one would be ambiguous."""
        plain = NounPhrase(head.noun, plural=head.plural)
        if self.draws.chance(0.5) and head.noun.kinds & {"person", "animal", "vehicle"}:
            if self.draws.chance(0.25):
                clause = self._copula(plain)
            else:
                clause = self._clause(subject=plain, rich=False)
            if clause.tense == "passive":
                clause = replace(clause, tense="present")
            return RelativeClause(replace(clause, gap="subject"))
        for frame, gap in (("accusative", "accusative"), ("dative", "dative")):
            fitting = [v for v in verbs()[frame] if head.noun.kinds & set(v.objects)]  # type: ignore[index]
            if fitting and (gap == "accusative" or self.draws.chance(0.5)):
                verb = self.draws.early(fitting)
                subject = self._phrase(verb.subjects)
                if gap == "accusative" and not _distinct(plain, subject):
                    continue
                tense: Tense = self.draws.weighted((("present", 4), ("perfect", 1)))
                clause = Clause(subject=subject, verb=verb, tense=tense, gap=gap)  # type: ignore[arg-type]
                return RelativeClause(replace(clause, **{gap: plain}))  # type: ignore[arg-type]
        return None

    def _place(
        self, options: Sequence[tuple[Preposition, tuple[str, ...], int]] = PLACES
    ) -> PrepositionalPhrase:
        preposition, kinds = self.draws.weighted([((p, k), weight) for p, k, weight in options])
        phrase = self._phrase(kinds, determiner=self.draws.weighted((("definite", 7), ("indefinite", 3))))
        if preposition.german != "zwischen":
            return PrepositionalPhrase(preposition, phrase)
        return PrepositionalPhrase(preposition, phrase, self._phrase(kinds, determiner="definite"))

    @staticmethod
    def _has_pronoun(phrase: NounPhrase) -> bool:
        known = phrase.determiner not in ("no", "every")
        return known and (phrase.plural or not phrase.is_person or phrase.noun.gender != "n")


COLORS = frozenset({"red", "blue", "green", "yellow", "black", "white", "brown", "gray", "purple"})


def _distinct(a: NounPhrase, b: NounPhrase) -> bool:
    """Whether case or number tells which of two phrases is the subject, whatever their order."""
    return a.shows_case or b.shows_case or a.plural != b.plural
