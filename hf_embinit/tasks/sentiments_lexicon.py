"""The words of the sentiment corpus: what reviews speak of, and what they say about it.

Tables are text. Polar words stand in the order of their frequency, the most frequent first. A `*` marks an
adjective that is extreme already (not `very superb`), a `+` a noun in the plural.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

Polarity = Literal[0, 1]
"""1 is positive."""

ADJECTIVES: dict[str, tuple[str, str]] = {
    "any": (
        """terrible* bad awful* poor disappointing horrible* dreadful* mediocre lousy unpleasant annoying
        atrocious* abysmal* appalling* frustrating pathetic* dismal* horrendous* unacceptable* irritating
        underwhelming inadequate inferior laughable* hopeless* ghastly* wretched* woeful* pitiful* deplorable*
        lamentable* disgraceful* shameful* rotten* crummy unsatisfactory* abominable* execrable* subpar
        unbearable* worthless* vile* lackluster regrettable""",
        """great* good wonderful* excellent* nice amazing* fantastic* impressive lovely perfect* superb*
        outstanding* brilliant* pleasant terrific* remarkable delightful* satisfying splendid* marvelous*
        exceptional* magnificent* fabulous* spectacular* flawless* phenomenal* impeccable* sublime* stellar*
        exquisite* glorious* sensational* admirable superlative* faultless* commendable stupendous* peerless*
        dazzling* laudable praiseworthy rewarding unforgettable* likable""",
    ),
    "story": (
        """boring dull predictable slow silly confusing tedious shallow pointless* tiresome forgettable dreary
        contrived muddled formulaic uninspired implausible incoherent* unoriginal monotonous lifeless*
        ludicrous* plodding convoluted trite banal derivative hackneyed insipid vapid turgid preposterous*
        soporific inane""",
        """funny exciting clever gripping original moving touching witty thrilling* compelling absorbing
        hilarious* fascinating* riveting* captivating* suspenseful intriguing inventive imaginative poignant
        engrossing ingenious insightful uplifting heartwarming enthralling* profound nuanced lively
        spellbinding* mesmerizing* exhilarating* taut astute""",
    ),
    "art": (
        """ugly clumsy lazy wooden amateurish sloppy crude tacky unconvincing careless stilted garish drab
        grating pedestrian gaudy overwrought leaden inept artless mawkish slapdash""",
        """beautiful powerful stunning* elegant stylish gorgeous* graceful breathtaking* masterful* polished
        vivid expressive evocative accomplished lush radiant luminous lyrical sumptuous ravishing*
        virtuosic* resplendent*""",
    ),
    "food": (
        """cold bland stale greasy soggy tasteless* burnt* salty overcooked* rubbery bitter undercooked* mushy
        inedible* flavorless* watery revolting* disgusting* lukewarm oily rancid* unappetizing charred*
        nauseating* slimy unpalatable* gristly* acrid""",
        """delicious* tasty fresh tender juicy flavorful yummy savory mouthwatering* scrumptious* appetizing
        succulent hearty delectable* heavenly* wholesome aromatic creamy zesty luscious* velvety nourishing
        toothsome ambrosial* crispy fragrant piquant tantalizing*""",
    ),
    "staff": (
        """rude slow unfriendly unhelpful arrogant impolite careless incompetent* impatient inattentive grumpy
        unprofessional* dismissive indifferent hostile condescending surly inconsiderate forgetful snooty
        discourteous brusque curt sullen haughty negligent insolent churlish""",
        """friendly helpful polite kind attentive professional welcoming patient cheerful charming efficient
        courteous knowledgeable thoughtful gracious considerate competent prompt accommodating hospitable
        cordial obliging amiable diligent genial affable tactful solicitous""",
    ),
    "place": (
        """dirty noisy cramped uncomfortable filthy* shabby gloomy smelly stuffy cluttered depressing grimy
        dingy drafty dusty musty moldy bleak rundown dilapidated* grubby dank seedy squalid* unkempt
        claustrophobic decrepit* sordid""",
        """clean comfortable cozy quiet spacious bright charming beautiful peaceful inviting luxurious
        spotless* tidy airy elegant tasteful immaculate* roomy tranquil pretty restful serene pristine* snug
        picturesque opulent idyllic* palatial*""",
    ),
    "thing": (
        """useless* flimsy broken* cheap unreliable faulty* awkward fragile defective* bulky noisy impractical
        shaky wobbly cumbersome temperamental brittle unusable* rickety
        finicky unwieldy substandard* ineffectual tinny clunky""",
        """useful reliable solid sturdy handy practical durable convenient effective responsive sleek
        tough robust dependable versatile intuitive functional rugged ergonomic resilient foolproof*
        trustworthy nifty stalwart ingenious serviceable""",
    ),
}
"""Negative and positive adjectives, by what they are said of; `any` goes with everything."""

LIKING: tuple[str, str] = (
    "hate dislike detest loathe despise resent abhor deplore disdain scorn",
    "love like enjoy adore admire appreciate applaud relish cherish treasure",
)
"""What a person does to a thing."""

AFFECTING: tuple[str, str] = (
    """disappoint annoy bore irritate frustrate bother upset disgust infuriate dismay exasperate appall
    displease repel dishearten aggravate vex irk""",
    """impress please delight charm amuse thrill satisfy fascinate enchant captivate dazzle enthrall
    cheer gratify enrapture beguile entice""",
)
"""What a thing does to a person."""

VERDICTS: tuple[str, str] = (
    """disaster mess failure disappointment mistake letdown nightmare joke flop catastrophe fiasco
    embarrassment dud insult nuisance travesty debacle calamity abomination blunder""",
    """masterpiece treat success delight joy pleasure gem triumph treasure winner wonder marvel hit bargain
    revelation jewel sensation blessing knockout godsend""",
)
"""What a thing is."""

ITEMS: dict[str, str] = {
    "film": "film movie comedy thriller drama documentary sequel western musical",
    "book": "book novel memoir biography mystery romance textbook",
    "restaurant": "restaurant diner bistro cafe pizzeria tavern steakhouse bakery",
    "hotel": "hotel hostel inn resort lodge motel",
    "gadget": "phone laptop camera blender speaker watch tent backpack kettle printer drill lamp",
}
"""What is reviewed."""

ASPECTS: dict[str, dict[str, str]] = {
    "film": {
        "story": "plot, story, ending, script, dialogue, pacing, opening scene, +jokes, +twists, second half",
        "art": "acting, soundtrack, camera work, music, lighting, +costumes, +special effects, +performances",
    },
    "book": {
        "story": "plot, story, ending, dialogue, pacing, first chapter, +characters, +chapters, epilogue",
        "art": "prose, writing, style, +illustrations, translation, cover, +descriptions",
    },
    "restaurant": {
        "food": "food, soup, steak, pasta, bread, fish, salad, chicken, pizza, rice, +vegetables, +noodles, "
        "+pancakes, +dumplings, +fries, +desserts",
        "staff": "service, waiter/him, waitress/her, staff, bartender/him, hostess/her, cook/him, +waiters",
        "place": "dining room, terrace, garden, bar, interior, patio",
    },
    "hotel": {
        "place": "room, lobby, bathroom, bedroom, balcony, lounge, suite, +rooms, +hallways, spa",
        "staff": "service, staff, receptionist/her, manager/him, concierge/him, +porters, +housekeepers",
        "food": "breakfast, food, buffet, +snacks, +meals",
    },
    "gadget": {
        "thing": "battery, screen, handle, keyboard, case, strap, lid, design, zipper, motor, cable, "
        "+buttons, +hinges, software, switch",
        "staff": "customer service, salesman/him, support team, +technicians",
    },
}
"""What a review speaks of besides the item, by the kind of adjectives that go with it; with the pronoun where
it is not `it` or `them`."""

ITEM_KINDS = {"film": "story", "book": "story", "restaurant": "place", "hotel": "place", "gadget": "thing"}

TRIED = {
    "film": ("saw", "watched", "rented"),
    "book": ("read", "bought", "borrowed"),
    "restaurant": ("tried", "visited", "went to"),
    "hotel": ("tried", "visited", "booked"),
    "gadget": ("bought", "had", "ordered"),
}
"""What one did with the item, in the past."""

OTHERS = (
    *("my brother", "my sister", "my wife", "my husband", "my friends", "my neighbor", "my parents"),
    *("the critics", "my colleagues", "my cousin", "most people", "my roommate", "our guide", "my boss"),
)
"""People whose opinion is not the writer's."""

OPENERS = (
    *("in my opinion", "to be honest", "all in all", "in short", "once again", "on the whole", "to my mind"),
    *("for the price", "in the end", "honestly", "frankly", "this time", "without question"),
)
"""How a sentence may begin."""


@dataclass(frozen=True)
class Adjective:
    """A polar adjective; `extreme` ones take other adverbs of degree."""

    text: str
    extreme: bool


@dataclass(frozen=True)
class Topic:
    """What a clause speaks of: `the plot`, `this film`."""

    noun: str
    plural: bool
    kind: str
    pronoun: str = "it"
    """it, him, her or them, as an object."""
    is_item: bool = False


@cache
def adjectives(kind: str, polarity: Polarity) -> tuple[Adjective, ...]:
    """Those of a kind alone, in the order of frequency."""
    return tuple(Adjective(w.rstrip("*"), w.endswith("*")) for w in ADJECTIVES[kind][polarity].split())


@cache
def polar_words() -> dict[str, Polarity]:
    """Every word of opinion in the form that a dictionary has, with its polarity."""
    words: dict[str, Polarity] = {}
    tables = [*ADJECTIVES.values(), LIKING, AFFECTING, VERDICTS]
    for polarity in (0, 1):
        for table in tables:
            words |= dict.fromkeys(table[polarity].replace("*", "").split(), polarity)
    return words


@cache
def aspects(domain: str) -> tuple[Topic, ...]:
    """What a review of the domain can speak of."""
    topics = []
    for kind, names in ASPECTS[domain].items():
        for name in names.split(", "):
            noun, _, pronoun = name.lstrip("+").partition("/")
            plural = name.startswith("+")
            topics.append(Topic(noun, plural, kind, "them" if plural else pronoun or "it"))
    return tuple(topics)


def past(verb: str) -> str:
    """`liked`, `repelled`, `satisfied`."""
    if verb == "upset":
        return verb
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("fy"):
        return verb[:-1] + "ied"
    return verb + ("led" if verb == "repel" else "ed")


def with_article(words: str) -> str:
    """`a gem`, `an insult`."""
    vowel = words[0] in "aeio" or (words[0] == "u" and not words.startswith("us"))  # a useful tool
    return f"{'an' if vowel else 'a'} {words}"
