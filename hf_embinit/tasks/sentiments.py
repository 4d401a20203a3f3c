"""The embedded sentiment corpus: sentences of reviews with the writer's verdict, and text for their vectors.

Nothing is stored: sentences are drawn from a grammar over `sentiments_lexicon`, and a label follows from the
derivation. Words alone do not give it: negation turns a clause round (but not `not only`, `never failed to`
or `nobody could deny that`), of two opposed clauses the main one or the one after `but` decides, and what
others say does not count.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

from ..vectors import PretrainedVectors
from .corpus_vectors import corpus_vectors
from .sentiments_lexicon import (
    AFFECTING,
    ITEM_KINDS,
    ITEMS,
    LIKING,
    OPENERS,
    OTHERS,
    TRIED,
    VERDICTS,
    Adjective,
    Polarity,
    Topic,
    adjectives,
    aspects,
    past,
    with_article,
)

T = TypeVar("T")

SPLIT_SIZES = {"train": 10_000, "validation": 900, "test": 900}
"""Sentences in each split, half of them positive."""
ZIPF_EXPONENT = 1.4
"""The opinion word of rank r among those of its kind is drawn in proportion to (r + 2) ** -exponent: half of
them are rare in the training sentences."""
FLAT_EXPONENT = 0.4
"""The same in unlabelled text and in the held-out splits, where those rare words are about as frequent as
others: a held-out sentence asks for what the training sentences hardly tell, and the unlabelled text does."""
TEXT_LINES = 30_000


def sentiment_texts(seed: int = 0) -> dict[str, list[dict]]:
    """The splits `train` (10,000), `validation` (900) and `test` (900): rows `{"sentence": ..., "label": 0 or
    1}`.

    Label 1 is positive. Each split is balanced, and no sentence occurs twice, in one split or in two.
    """
    maker = ReviewMaker(random.Random(seed))
    seen: set[str] = set()
    splits: dict[str, list[dict]] = {}
    for split, size in SPLIT_SIZES.items():
        rows: list[dict] = []
        maker.exponent = ZIPF_EXPONENT if split == "train" else FLAT_EXPONENT
        while len(rows) < size:
            label: Polarity = 1 if len(rows) % 2 else 0
            sentence = maker.sentence(label)
            if sentence.lower() not in seen:
                seen.add(sentence.lower())
                rows.append({"sentence": sentence, "label": label})
        maker.random.shuffle(rows)
        splits[split] = rows
    return splits


def sentiment_text(seed: int = 0, lines: int = TEXT_LINES) -> list[str]:
    """Unlabelled lines of the same language: the training sentences, others like them, and longer remarks.

    No line is a sentence of the validation or test split. Remarks put words of one polarity beside each
    other, as reviews do: what tells a rare word's polarity to vectors trained on this text.
    """
    splits = sentiment_texts(seed)
    held_out = {row["sentence"].lower() for split in ("validation", "test") for row in splits[split]}
    text = [row["sentence"] for row in splits["train"]]
    maker = ReviewMaker(random.Random(f"text {seed}"), FLAT_EXPONENT)
    while len(text) < lines:
        polarity: Polarity = maker.random.choice((0, 1))
        line = maker.remark(polarity) if maker.chance(0.85) else maker.sentence(polarity)
        if line.lower() not in held_out:
            text.append(line)
    return text


def sentiment_vectors(
    dim: int = 128,
    *,
    lines: int = TEXT_LINES,
    epochs: int = 30,
    seed: int = 0,
    cache_dir: str | os.PathLike | None = None,
    progress: bool = True,
) -> PretrainedVectors:
    """GloVe vectors `[V, dim]` trained on `sentiment_text`, lower-cased, at the first call; then read from a
    file in `cache_dir`, or the folder that `HF_EMBINIT_CACHE` names, or `embinit` in the Hugging Face home.
    """
    return corpus_vectors(
        "sentiments",
        lambda: sentiment_text(seed, lines),
        dim,
        settings={"lines": lines},
        epochs=epochs,
        seed=seed,
        cache_dir=cache_dir,
        progress=progress,
    )


def opposite(polarity: Polarity) -> Polarity:
    """The other one."""
    return 0 if polarity else 1


class ReviewMaker:
    """Draws sentences of reviews of a wanted polarity."""

    def __init__(self, generator: random.Random, exponent: float = ZIPF_EXPONENT) -> None:
        self.random = generator
        self.exponent = exponent
        self.domain = "film"
        self.item = ""
        self.is_past = True
        self.speaker = "I"

    # ------------------------------------------------------------------------------------------- draws

    def pick(self, options: Sequence[T]) -> T:
        """One of them, all as likely."""
        return self.random.choice(options)

    def zipf(self, words: Sequence[T]) -> T:
        """One of them, the first ones more likely."""
        weights = accumulate((rank + 2.0) ** -self.exponent for rank in range(len(words)))
        return self.random.choices(words, cum_weights=list(weights))[0]

    def chance(self, probability: float) -> bool:
        """Whether it happens."""
        return self.random.random() < probability

    def one_of(self, *weighted: tuple[float, Callable[[], str]]) -> str:
        """What one of the functions makes, drawn by weight."""
        weights, functions = zip(*weighted, strict=True)
        return self.random.choices(functions, weights)[0]()

    def start(self) -> None:
        """Chooses what the next sentence is about."""
        self.domain = self.pick(list(ITEMS))
        self.item = self.pick(ITEMS[self.domain].split())
        self.is_past = self.chance(0.8 if self.domain in ("restaurant", "hotel") else 0.5)
        self.speaker = "I" if self.chance(0.65) else "we"

    def topics(self, count: int) -> list[Topic]:
        """Different topics of the item."""
        found = self.random.sample(aspects(self.domain), count)
        if self.chance(0.25):
            found[0] = Topic(self.item, False, ITEM_KINDS[self.domain], is_item=True)
        return found

    def adjective(self, topic: Topic, polarity: Polarity, *, graded: bool | None = None) -> Adjective:
        """One that goes with the topic; of a certain grade if wanted."""
        while True:
            kind = "any" if self.chance(0.35) else topic.kind
            found = self.zipf(adjectives(kind, polarity))
            if graded is None or found.extreme != graded:
                return found

    def different(self, topic: Topic, polarity: Polarity, count: int) -> list[str]:
        """Several that go with the topic."""
        found: list[str] = []
        while len(found) < count:
            adjective = self.adjective(topic, polarity).text
            if adjective not in found:
                found.append(adjective)
        return found

    def word(self, table: tuple[str, str], polarity: Polarity) -> str:
        """A verb or a noun of a polarity."""
        return self.zipf(table[polarity].split())

    @property
    def object(self) -> str:
        """me or us."""
        return "me" if self.speaker == "I" else "us"

    # --------------------------------------------------------------------------------------- noun phrases

    def name(self, topic: Topic) -> str:
        """The topic as the sentence's first mention: `the plot`, `this film`, `the plot of this film`."""
        if topic.is_item:
            return f"this {topic.noun}"
        return f"the {topic.noun}"

    def be(self, topic: Topic) -> str:
        """The copula in the sentence's tense."""
        if self.is_past:
            return "were" if topic.plural else "was"
        return "are" if topic.plural else "is"

    def graded(self, adjective: Adjective) -> str:
        """The adjective with an adverb of degree that suits it."""
        if self.chance(0.4):
            return (
                f"{self.pick(('really', 'truly', 'so', 'quite', 'surprisingly', 'simply'))} {adjective.text}"
            )
        if adjective.extreme:
            return f"{self.pick(('absolutely', 'utterly', 'completely', 'just'))} {adjective.text}"
        return f"{self.pick(('very', 'extremely', 'rather', 'remarkably', 'incredibly'))} {adjective.text}"

    # ---------------------------------------------------------------------------------------------- clauses

    def clause(self, topic: Topic, polarity: Polarity, negated: bool | None = None) -> str:
        """A clause that says something of the topic; where it is negated, by a word of the other polarity."""
        if negated is None:
            negated = self.chance(0.25)
        word = opposite(polarity) if negated else polarity
        if topic.is_item and self.chance(0.3):
            return self.verdict(topic, word, negated)
        return self.one_of(
            (6, lambda: self.described(topic, word, negated)),
            (2, lambda: self.liked(topic, word, negated)),
            (2, lambda: self.affected(topic, word, negated)),
        )

    def described(self, topic: Topic, word: Polarity, negated: bool) -> str:
        """`the plot was not very gripping`."""
        name, be, adjective = self.name(topic), self.be(topic), self.adjective(topic, word)
        one, two = self.different(topic, word, 2)
        plain = adjective.text
        could = "could have been" if self.is_past else "could be"
        could_not = could.replace("could", "could not")
        gradable = self.adjective(topic, word, graded=True).text
        extreme = self.adjective(topic, word, graded=False).text
        if negated:
            moderate = self.pick(("very", "really", "exactly", "particularly", "at all", "even"))
            return self.one_of(
                (6, lambda: f"{name} {be} not {plain}"),
                (3, lambda: f"{name} {be} not {moderate} {gradable}"),
                (2, lambda: f"{name} {be} never {plain}"),
                (2, lambda: f"{name} {be} hardly {plain}"),
                (2, lambda: f"{name} {be} far from {plain}"),
                (2, lambda: f"{name} {be} anything but {plain}"),
                (1, lambda: f"{name} {be} by no means {plain}"),
                (2, lambda: f"{name} {be} neither {one} nor {two}"),
                (2, lambda: f"there {'was' if self.is_past else 'is'} nothing {plain} about {name}"),
                (1.5 if word else 0, lambda: f"{name} {could} more {gradable}"),
            )
        return self.one_of(
            (6, lambda: f"{name} {be} {plain}"),
            (4, lambda: f"{name} {be} {self.graded(adjective)}"),
            (1.5, lambda: f"{name} {be} both {one} and {two}"),
            (1.5, lambda: f"{name} {be} {one} and {two}"),
            (2, lambda: f"{name} {be} not only {one} but also {two}"),
            (1, lambda: f"{name} {be} nothing short of {extreme}"),
            (1, lambda: f"{name} {be} always {plain}"),
            (1, lambda: f"there {'was' if self.is_past else 'is'} something {plain} about {name}"),
            (1.5, lambda: f"{name} {could_not} more {gradable}"),
        )

    def liked(self, topic: Topic, word: Polarity, negated: bool) -> str:
        """`I did not love the plot`."""
        verb, name, i = self.word(LIKING, word), self.name(topic), self.speaker
        did = "did" if self.is_past else "do"
        if negated:
            return self.one_of(
                (4, lambda: f"{i} {did} not {verb} {name}"),
                (2, lambda: f"{i} never {past(verb)} {name}"),
                (1, lambda: f"{i} {did} not really {verb} {name}"),
                (1, lambda: f"nobody could {verb} {name}"),
            )
        finite = past(verb) if self.is_past else verb
        return self.one_of(
            (4, lambda: f"{i} {finite} {name}"),
            (2, lambda: f"{i} {self.pick(('really', 'truly', 'simply'))} {finite} {name}"),
            (1, lambda: f"{i} could not help but {verb} {name}"),
            (1, lambda: f"anybody would {verb} {name}"),
        )

    def affected(self, topic: Topic, word: Polarity, negated: bool) -> str:
        """`the plot never bored me`."""
        verb, name, me = self.word(AFFECTING, word), self.name(topic), self.object
        do = "did" if self.is_past else "do" if topic.plural else "does"
        fail = "failed" if self.is_past else "fail" if topic.plural else "fails"
        if negated:
            return self.one_of(
                (4, lambda: f"{name} {do} not {verb} {me}"),
                (2, lambda: f"{name} never {past(verb)} {me}"),
                (1.5, lambda: f"{name} {do} nothing to {verb} {me}"),
                (1.5 if word else 0, lambda: f"{name} {fail} to {verb} {me}"),
            )
        finite = past(verb) if self.is_past else verb if topic.plural else third_person(verb)
        return self.one_of(
            (4, lambda: f"{name} {finite} {me}"),
            (2, lambda: f"{name} {self.pick(('really', 'always', 'truly'))} {finite} {me}"),
            (1.5, lambda: f"{name} never {fail} to {verb} {me}"),
        )

    def verdict(self, topic: Topic, word: Polarity, negated: bool) -> str:
        """`this film is hardly a masterpiece`."""
        noun, name, be = self.word(VERDICTS, word), self.name(topic), self.be(topic)
        if negated:
            return self.one_of(
                (3, lambda: f"{name} {be} not {with_article(noun)}"),
                (3, lambda: f"{name} {be} no {noun}"),
                (1, lambda: f"{name} {be} hardly {with_article(noun)}"),
                (1, lambda: f"{name} {be} anything but {with_article(noun)}"),
                (1, lambda: f"{name} {be} far from being {with_article(noun)}"),
            )
        strong = self.pick(("real", "true", "genuine") if word else ("real", "complete", "total", "genuine"))
        return self.one_of(
            (3, lambda: f"{name} {be} {with_article(noun)}"),
            (3, lambda: f"{name} {be} {with_article(strong)} {noun}"),
            (1, lambda: f"{name} {be} nothing short of {with_article(noun)}"),
        )

    def held(self, topic: Topic, polarity: Polarity) -> str:
        """A clause inside one that affirms or denies it: `nobody could deny that the plot was gripping`."""
        be, name = self.be(topic), self.name(topic)
        if self.chance(0.45):
            lead = self.pick(
                (
                    "nobody could deny that",
                    f"{self.speaker} do not doubt that",
                    "there is no doubt that",
                    "it is true that",
                    "it is clear that",
                )
            )
            return f"{lead} {self.clause(topic, polarity)}"
        word = self.adjective(topic, opposite(polarity)).text
        lead = self.pick(
            (
                f"{self.speaker} do not think that",
                "nobody would say that",
                "it is not true that",
                f"{self.speaker} doubt that",
                "it would be wrong to say that",
            )
        )
        return f"{lead} {name} {be} {word}"

    def opinion_of_others(self, topic: Topic, polarity: Polarity) -> str:
        """What somebody else thought of it, which does not count."""
        other, name = self.pick(OTHERS), self.name(topic)
        plain = self.adjective(topic, polarity).text
        liking = past(self.word(LIKING, polarity))
        return self.one_of(
            (2, lambda: f"{other} {liking} {name}"),
            (1, lambda: f"{other} found {name} {plain}"),
            (1, lambda: f"{other} called {name} {plain}"),
        )

    def own_opinion(self, topic: Topic, polarity: Polarity) -> str:
        """What the writer thought of what is spoken of already."""
        plain = self.adjective(topic, polarity).text
        it, i = topic.pronoun, self.speaker
        contrary = self.adjective(topic, opposite(polarity)).text
        return self.one_of(
            (3, lambda: f"{i} {past(self.word(LIKING, polarity))} {it}"),
            (2, lambda: f"{i} found {it} {plain}"),
            (1, lambda: f"{i} did not find {it} {contrary}"),
            (1, lambda: f"{i} did not {self.word(LIKING, opposite(polarity))} {it}"),
        )

    # -------------------------------------------------------------------------------------------- sentences

    def sentence(self, polarity: Polarity) -> str:
        """A sentence of that polarity."""
        self.start()
        words = self.one_of(
            (48, lambda: self.simple(polarity)),
            (5, lambda: self.held(self.topics(1)[0], polarity)),
            (14, lambda: self.agreement(polarity)),
            (20, lambda: self.concession(polarity)),
            (7, lambda: self.disagreement(polarity)),
            (3, lambda: self.expectation(polarity)),
            (3, lambda: self.comparison(polarity)),
        )
        return finish(words)

    def simple(self, polarity: Polarity) -> str:
        """One clause, or a noun phrase that is all opinion."""
        topic = self.topics(1)[0]
        opener = f"{self.pick(OPENERS)}, " if self.chance(0.2) else ""
        if self.chance(0.12) and not topic.is_item:
            return opener + self.having(topic, polarity)
        return opener + self.clause(topic, polarity)

    def having(self, topic: Topic, polarity: Polarity) -> str:
        """`this is a superb film with a gripping plot`."""
        item = Topic(self.item, False, ITEM_KINDS[self.domain], is_item=True)
        of_item, of_topic = self.adjective(item, polarity).text, self.adjective(topic, polarity).text
        part = f"{of_topic} {topic.noun}"
        part = part if topic.plural or topic.noun in MASS else with_article(part)
        return f"this {'was' if self.is_past else 'is'} {with_article(of_item)} {self.item} with {part}"

    def agreement(self, polarity: Polarity) -> str:
        """Two clauses of the same polarity."""
        one, two = self.topics(2)
        link = self.pick((", and", ", and", "; moreover,", " because", ";"))
        return f"{self.clause(one, polarity)}{link} {self.clause(two, polarity)}"

    def concession(self, polarity: Polarity) -> str:
        """Two clauses of opposite polarity; the connective says which one decides."""
        minor, main = self.topics(2)
        less, more = self.clause(minor, opposite(polarity)), self.clause(main, polarity)
        despite = f"despite the {self.adjective(minor, opposite(polarity)).text} {minor.noun}"
        although = self.pick(("although", "although", "even though", "though"))
        return self.one_of(
            (3, lambda: f"{although} {less}, {more}"),
            (3, lambda: f"{more}, {although} {less}"),
            (3, lambda: f"{less}, {self.pick(('but', 'but', 'yet'))} {more}"),
            (1, lambda: f"{less}; however, {more}"),
            (1, lambda: f"{despite}, {more}"),
            (1, lambda: f"{more} {despite}"),
        )

    def disagreement(self, polarity: Polarity) -> str:
        """The writer against somebody else."""
        topic = self.topics(1)[0]
        if self.chance(0.5):
            others = self.opinion_of_others(topic, opposite(polarity))
            own = self.own_opinion(topic, polarity)
            although = self.pick(("although", "even though"))
            return f"{others}, but {own}" if self.chance(0.6) else f"{although} {others}, {own}"
        own = self.clause(topic, polarity)
        other = self.pick(OTHERS)
        opinion = self.one_of(
            (2, lambda: f"{other} {past(self.word(LIKING, opposite(polarity)))} {topic.pronoun}"),
            (1, lambda: f"{other} called {topic.pronoun} {self.adjective(topic, opposite(polarity)).text}"),
        )
        return f"{own}, {self.pick(('but', 'but', 'although', 'even though'))} {opinion}"

    def expectation(self, polarity: Polarity) -> str:
        """What was expected, and what it was."""
        topic = self.topics(1)[0]
        name, it = self.name(topic), SUBJECTS[topic.pronoun]
        expected, found = self.adjective(topic, opposite(polarity)).text, self.adjective(topic, polarity).text
        lead = self.pick(
            (
                f"{self.speaker} expected {name} to be {expected}",
                f"{self.speaker} thought that {name} would be {expected}",
                f"{name} looked {expected} at first",
            )
        )
        return f"{lead}, but {it} {found}"

    def comparison(self, polarity: Polarity) -> str:
        """This item and another one of its sort, which was the contrary."""
        topic = Topic(self.item, False, ITEM_KINDS[self.domain], is_item=True)
        found, other = self.adjective(topic, polarity), self.adjective(topic, opposite(polarity)).text
        gradable = self.adjective(topic, polarity, graded=True).text
        when = self.pick(("last year", "last month", "before", "in May", "in the summer"))
        tried = f"that {self.speaker} {self.pick(TRIED[self.domain])} {when}"
        be = self.be(topic)
        return self.one_of(
            (1, lambda: f"unlike the {other} {self.item} {tried}, this one {be} {found.text}"),
            (1, lambda: f"this {self.item} {be} far more {gradable} than the {other} one {tried}"),
        )

    def remark(self, polarity: Polarity) -> str:
        """A longer line all of one polarity, without negation: for unlabelled text."""
        self.start()
        one, two, three = self.topics(3)

        def phrase(topic: Topic) -> str:
            return f"the {self.adjective(topic, polarity).text} {topic.noun}"

        def plain(topic: Topic) -> str:
            return f"{self.name(topic)} {self.be(topic)} {self.adjective(topic, polarity).text}"

        def several(topic: Topic) -> str:
            *rest, last = self.different(topic, polarity, 3)
            return f"{', '.join(rest)} and {last}"

        first, second, third, fourth = self.different(two, polarity, 4)
        liking, noun = past(self.word(LIKING, polarity)), self.word(VERDICTS, polarity)
        affecting = [past(self.word(AFFECTING, polarity)) for _ in range(2)]
        people = self.pick(("those who", "people who", "most of us who", "some critics who"))
        it, be = two.pronoun, self.be(one)
        words = self.one_of(
            (2, lambda: f"{plain(one)}, {plain(two)}, and {self.clause(three, polarity, False)}"),
            (2, lambda: f"{self.name(one)} {be} {several(one)}, and {self.speaker} {liking} {phrase(two)}"),
            (2, lambda: f"{self.speaker} {liking} {phrase(one)}, {phrase(two)} and {phrase(three)}"),
            (2, lambda: f"{people} called {self.name(two)} {first} or {second} also called {it} {third}"),
            (
                2,
                lambda: (
                    f"{first}, {second}, {third}, {fourth}: what {with_article(noun)} this {self.item} was"
                ),
            ),
            (
                1,
                lambda: (
                    f"{self.name(one)} {affecting[0]} and {affecting[1]} {self.object} with {phrase(two)}"
                ),
            ),
            (1, lambda: f"with {phrase(two)} and {phrase(three)}, this {self.item} was {with_article(noun)}"),
        )
        return finish(words)


SUBJECTS = {"it": "it was", "him": "he was", "her": "she was", "them": "they were"}
MASS = frozenset(
    {"dialogue", "pacing", "acting", "music", "lighting", "prose", "writing", "camera work", "food", "bread"}
    | {"pasta", "rice", "fish", "chicken", "breakfast", "service", "staff", "software", "customer service"}
)
"""Topics without an indefinite article."""


def third_person(verb: str) -> str:
    """`bores`, `satisfies`, `dismays`."""
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("sh", "ch", "x", "ss")) else "s")


def finish(words: str) -> str:
    """The sentence with its capital letter and full stop."""
    return words[0].upper() + words[1:] + "."
