"""The words of the sentence-pair corpus: what is a kind of what, what excludes what, and who does what.

A line `parent : a b c` says that a, b and c are kinds of the parent that exclude each other; with `~` they
may overlap; `- a b` says only that a and b exclude each other. A `_` stands for a space.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from .captions_lexicon import english_plural

Genre = Literal["captions", "news"]

TAXONOMY = """
person ~ adult child musician athlete worker artist doctor teacher student vendor soldier official
person ~ journalist expert
adult : man woman
child : boy girl
musician : guitarist drummer violinist pianist cellist trumpeter
athlete : swimmer runner cyclist gymnast skier boxer
worker : plumber carpenter electrician gardener welder mechanic
artist : painter sculptor potter illustrator
doctor : surgeon dentist pediatrician
student : schoolboy schoolgirl
official : minister mayor governor senator ambassador councilor
journalist : reporter columnist editor photographer
expert : economist historian biologist engineer chemist lawyer
- adult child
animal ~ dog bird horse cat rabbit
- dog bird horse cat rabbit
dog : poodle terrier beagle collie
bird : parrot pigeon duck swan
horse : pony stallion mare
organization : company university charity union
company : airline bank brewery retailer publisher
vehicle : car truck bus van tractor
instrument : guitar violin flute trumpet drum
fruit : apple banana pear peach lemon
garment : jacket sweater scarf coat shirt
toy : doll kite puppet rocking_horse
piece_of_furniture : chair table sofa stool bench
tool : hammer saw wrench shovel
flower : rose tulip daisy lily
container : box bag jar suitcase basket
document : report letter contract memo petition
building : school hospital factory museum hotel warehouse
plan : reform budget project merger

big : huge enormous
small : tiny
old : ancient
happy : overjoyed
sad : heartbroken
angry : furious
dirty : filthy
red : scarlet crimson
blue : navy azure
- big small
- young elderly
- tall short
- happy sad angry calm
- new old
- clean dirty
- red blue green yellow black white
- brown gray white spotted
- cheap expensive
- heavy light
- wealthy poor
- famous unknown
- secret public
- modern outdated

walk : stroll march tiptoe
run : sprint jog
sleep : doze nap
dance : waltz
laugh : giggle chuckle
cry : sob
talk : whisper shout mumble
- walk run sleep swim sit stand dance climb
- laugh cry
clean : scrub polish wipe
hold : clutch grip
carry : lug
push : shove
pull : drag
praise : applaud
criticize : scold insult
- push pull
- repair damage
- buy sell
- open close
- pick_up put_down
- fill empty
- build dismantle
- greet ignore
- help hinder
- praise criticize
- comfort tease
- support oppose
- approve reject
- construct demolish
- defend attack
- hire fire
- fund boycott
- publish withdraw

outdoors : in_a_park in_a_garden in_a_field on_a_street on_a_beach in_a_forest in_a_parking_lot in_a_meadow
indoors : in_a_kitchen in_an_office in_a_library in_a_bedroom in_a_gym in_a_hallway in_a_barn in_a_garage
in_Europe : in_France in_Spain in_Italy in_Poland in_Norway
in_Asia : in_Japan in_India in_China in_Thailand
in_Africa : in_Egypt in_Kenya in_Morocco in_Ghana
- outdoors indoors
- in_Europe in_Asia in_Africa
- slowly quickly
- carefully carelessly
- quietly loudly
- in_the_morning in_the_afternoon in_the_evening at_night
- in_winter in_summer in_spring in_autumn
this_week : on_Monday on_Tuesday on_Wednesday on_Thursday on_Friday
- this_week last_week
"""

SYNONYMS = {
    "big": ("big", "large"),
    "small": ("small", "little"),
    "happy": ("happy", "cheerful"),
    "sad": ("sad", "unhappy"),
    "wealthy": ("wealthy", "rich"),
    "repair": ("repair", "fix"),
    "help": ("help", "assist"),
    "watch": ("watch", "observe"),
    "sofa": ("sofa", "couch"),
    "child": ("child", "kid"),
    "doctor": ("doctor", "physician"),
    "company": ("company", "firm"),
    "buy": ("buy", "purchase"),
    "demolish": ("demolish", "tear down"),
}
"""Words for the same, chosen when a sentence is written."""

SPECIAL_PLURALS = {
    "person": "people",
    "man": "men",
    "woman": "women",
    "child": "children",
    "piece of furniture": "pieces of furniture",
}

VERB_FORMS = """
run running ran run; sleep sleeping slept slept; swim swimming swam swum; sit sitting sat sat; stand
standing stood stood; nap napping napped napped; jog jogging jogged jogged; sob sobbing sobbed sobbed; hold
holding held held; grip gripping gripped gripped; lug lugging lugged lugged; drag dragging dragged dragged;
buy buying bought bought; sell selling sold sold; put putting put put; build building built built; hit
hitting hit hit; read reading read read; write writing wrote written; tear tearing tore torn; scrub
scrubbing scrubbed scrubbed; withdraw withdrawing withdrew withdrawn; begin beginning began begun; sing
singing sang sung; eat eating ate eaten; draw drawing drew drawn
"""
"""Base, -ing form, past and participle of verbs that do not add `ed` by rule."""


@dataclass(frozen=True)
class Frame:
    """Who can do what to what: heads of the taxonomy."""

    subjects: tuple[str, ...]
    verbs: tuple[str, ...]
    objects: tuple[str, ...] = ()
    swaps: bool = False
    """Whether the roles can be exchanged."""


def _frame(subjects: str, verbs: str, objects: str = "", swaps: bool = False) -> Frame:
    return Frame(tuple(subjects.split()), tuple(verbs.split()), tuple(objects.split()), swaps)


EVERYDAY = "adult child musician athlete worker artist doctor teacher student vendor soldier"
PUBLIC = "official journalist expert adult doctor teacher worker"
FRAMES: dict[Genre, tuple[Frame, ...]] = {
    "captions": (
        _frame(EVERYDAY, "walk run sleep swim sit stand dance climb laugh cry talk"),
        _frame(EVERYDAY, "walk run sleep sit laugh cry talk"),
        _frame("dog horse cat rabbit", "walk run sleep stand"),
        _frame("dog bird cat rabbit", "sleep sit"),
        _frame(EVERYDAY, "watch greet help thank praise criticize photograph comfort", EVERYDAY, swaps=True),
        _frame(EVERYDAY, "greet ignore help hinder praise criticize comfort tease", EVERYDAY, swaps=True),
        _frame(EVERYDAY, "watch photograph", "dog bird horse cat rabbit"),
        _frame(EVERYDAY, "clean push pull repair damage buy sell", "vehicle piece_of_furniture"),
        _frame(EVERYDAY, "hold carry pick_up put_down buy sell", "instrument fruit tool toy flower garment"),
        _frame(EVERYDAY, "open close fill empty carry hold", "container"),
        _frame(EVERYDAY, "build dismantle carry paint", "piece_of_furniture toy"),
    ),
    "news": (
        _frame(PUBLIC, "greet thank praise criticize help watch defend attack", PUBLIC, swaps=True),
        _frame(PUBLIC, "support oppose approve reject praise criticize", "plan"),
        _frame(PUBLIC, "sign publish withdraw read carry buy", "document"),
        _frame("company university charity union", "fund boycott support oppose", "plan"),
        _frame("company university charity union", "buy sell construct demolish open close", "building"),
        _frame(
            "company university charity union",
            "hire fire praise criticize help",
            "official expert journalist",
        ),
        _frame(PUBLIC, "talk laugh sleep walk stand"),
    ),
}

ADJECTIVES: dict[str, str] = {
    "person": "young elderly tall short happy sad angry calm wealthy poor famous",
    "animal": "big small brown gray white spotted",
    "organization": "big small famous unknown wealthy poor",
    "vehicle": "big small new old clean dirty red blue green yellow black white",
    "piece_of_furniture": "big small new old clean dirty red blue green white cheap expensive",
    "document": "secret public new old",
    "building": "big small new old modern outdated",
    "plan": "big small new old secret public",
    "": "big small new old red blue green yellow cheap expensive heavy light",
}
"""What is said of what stands under a head; the last of everything else."""

OUTSIDE = "outdoors"
PLACES: dict[Genre, tuple[str, ...]] = {
    "captions": ("outdoors", "indoors"),
    "news": ("in_Europe", "in_Asia", "in_Africa"),
}
BARNS = ("in_a_barn", "in_a_garage")
"""Where animals and vehicles are, when indoors."""
MANNERS: dict[Genre, str] = {
    "captions": "slowly quickly carefully carelessly quietly loudly "
    "in_the_morning in_the_afternoon in_the_evening at_night",
    "news": "in_winter in_summer in_spring in_autumn this_week last_week in_the_morning in_the_evening",
}
PAST_ONLY = frozenset({"this_week", "last_week"})
"""Heads of times that ask for the past."""
_MANNER_VERBS = {
    "slowly quickly": "walk run swim dance climb clean repair carry pick_up put_down push pull open close "
    "fill empty build dismantle paint",
    "carefully carelessly": "clean repair carry pick_up put_down open close fill build dismantle paint hold",
    "quietly loudly": "walk talk laugh cry open close",
}
MANNER_VERBS = {
    adverb: frozenset(verbs.split()) for adverbs, verbs in _MANNER_VERBS.items() for adverb in adverbs.split()
}
"""Adverbs of manner, and what can be done so."""


@dataclass
class Meaning:
    """What a word is a kind of, its kinds, and what excludes it."""

    parent: str = ""
    children: tuple[str, ...] = ()
    rivals: set[str] = field(default_factory=set)


@cache
def meanings() -> dict[str, Meaning]:
    """Every word of the taxonomy."""
    found: dict[str, Meaning] = {}
    for line in TAXONOMY.strip().splitlines():
        if not line:
            continue
        head, exclusive, members = _parse(line)
        for word in members:
            meaning = found.setdefault(word, Meaning())
            if head:
                meaning.parent = head
            if exclusive:
                meaning.rivals |= set(members) - {word}
        if head:
            found.setdefault(head, Meaning()).children += tuple(members)
    return found


def _parse(line: str) -> tuple[str, bool, list[str]]:
    if line.startswith("- "):
        return "", True, line[2:].split()
    head, mark, *members = line.split()
    return head, mark == ":", members


def meaning(word: str) -> Meaning:
    """That of a word, which may stand alone."""
    return meanings().get(word) or Meaning()


def ancestors(word: str) -> list[str]:
    """What the word is a kind of, the nearest first."""
    found = []
    while word := meaning(word).parent:
        found.append(word)
    return found


def plural(noun: str) -> str:
    """`women`, `boxes`, `rocking horses`."""
    return SPECIAL_PLURALS.get(noun) or english_plural(noun)


@cache
def irregular_verbs() -> dict[str, tuple[str, str, str]]:
    """-ing form, past and participle by base."""
    entries = [entry.split() for entry in VERB_FORMS.split(";")]
    return {base: (ing, past, participle) for base, ing, past, participle in entries}


def verb_forms(verb: str) -> tuple[str, str, str]:
    """-ing form, past and participle; of the first word of a verb with a particle."""
    base, _, particle = verb.partition(" ")
    if base in irregular_verbs():
        forms = irregular_verbs()[base]
    elif base.endswith("oe"):
        forms = (base + "ing", base + "d", base + "d")
    elif base.endswith("e"):
        forms = (base[:-1] + "ing", base + "d", base + "d")
    elif base.endswith("y") and base[-2] not in "aeiou":
        forms = (base + "ing", base[:-1] + "ied", base[:-1] + "ied")
    else:
        forms = (base + "ing", base + "ed", base + "ed")
    rest = " " + particle if particle else ""
    return forms[0] + rest, forms[1] + rest, forms[2] + rest
