"""The caption corpus: correct German, English that follows from it, what it is there to teach, vectors."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import product

import pytest
import torch

from hf_embinit.errors import InvalidArgumentError
from hf_embinit.tasks import corpus_vectors
from hf_embinit.tasks.captions import caption_pairs, caption_text, caption_vectors
from hf_embinit.tasks.captions_grammar import (
    Clause,
    NounPhrase,
    Predicate,
    Preposition,
    PrepositionalPhrase,
    RelativeClause,
    sentence,
)
from hf_embinit.tasks.captions_lexicon import Adjective, Noun, Verb, adjectives, nouns, verbs
from hf_embinit.tasks.captions_sentences import SentenceMaker, _distinct
from hf_embinit.tasks.corpus_vectors import corpus_tokens


@pytest.fixture(scope="module")
def pairs():
    return caption_pairs()


@pytest.fixture(scope="module")
def rows(pairs):
    return [row for split in pairs.values() for row in split]


# ------------------------------------------------------------------------------------------------ the corpus


def test_sizes_and_no_sentence_twice(pairs, rows):
    assert {split: len(part) for split, part in pairs.items()} == {
        "train": 10_000,
        "validation": 500,
        "test": 500,
    }
    for language in ("de", "en"):
        assert len({row[language].lower() for row in rows}) == len(rows)


def test_a_seed_makes_the_corpus_and_leaves_the_global_generator_alone(pairs):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert caption_pairs(seed=0) == pairs
    assert torch.equal(torch.get_rng_state(), state)
    other = {row["de"] for row in caption_pairs(seed=1)["train"]}
    assert len(other & {row["de"] for row in pairs["train"]}) < 1000


def test_vocabulary(pairs, rows):
    train = Counter(word for row in pairs["train"] for word in corpus_tokens(row["de"]))
    words = [word for word in train if word.isalpha()]
    assert len(words) > 800
    assert len({w for row in rows for w in re.findall(r"\w+", row["de"])}) > len(words)  # cased
    wide = {word for text in caption_text("de", 10_000) for word in corpus_tokens(text)}
    assert len(wide - set(words)) > 150
    unknown = [w for row in pairs["test"] for w in corpus_tokens(row["de"]) if train[w] < 2]
    assert len(unknown) < 50


def test_sentences_are_cased_and_punctuated(rows):
    for row in rows:
        for text in row.values():
            assert re.fullmatch(r"[A-ZÄÖÜ]\w*(,? \w+)*\.", text), text


@pytest.mark.parametrize(
    ("phenomenon", "pattern", "at_least"),
    [
        ("a subordinate clause before the main one", r"^(Weil|Während|Obwohl|Wenn) .*, \w+", 300),
        ("a subordinate clause", r", (weil|während|obwohl|wenn|dass) ", 800),
        ("a relative clause", r", (der|die|das|den|dem|denen) ", 1000),
        ("um ... zu", r", um .* (zu \w+|\w+zu\w+en)\b", 300),
        ("an object in front", r"^(Den|Einen|Diesen|Jeden) (?!Tag)\w+ ", 300),
        ("a dative in front", r"^(Dem|Einem|Der \w+ (hilft|folgt|dankt|gibt|zeigt))", 100),
        ("a separated particle", r" (auf|weg|an|aus|mit|ein|zu|hin|los|zurück|nach)(\.|,| und )", 400),
        ("nicht", r"\bnicht\b", 600),
        ("kein", r"\b[Kk]ein(e|en|em|er)?\b", 300),
        ("the passive", r"\b(wird|werden) .*\bvon\b|\b(wird|werden) .*\bvom\b", 150),
        ("the perfect", r"\b(hat|haben|ist|sind) .*\bge\w+(t|en)\b", 500),
        ("a genitive", r"\bdes (\w+en )?\w+s\b", 50),
        ("left of", r"\b[Ll]inks neben\b", 200),
        ("between", r"\b[Zz]wischen\b", 200),
        ("in with the accusative", r"\bins\b|\bin (den|einen) ", 200),
        ("a comparison", r"\b(\w+er als|so \w+ wie)\b", 200),
    ],
)
def test_what_must_be_learnt_occurs(rows, phenomenon, pattern, at_least):
    assert sum(bool(re.search(pattern, row["de"])) for row in rows) >= at_least


def test_german_determines_english():
    meanings = defaultdict(set)
    for seed in range(3):
        maker = SentenceMaker(torch.Generator().manual_seed(seed), wide=True)
        for _ in range(5000):
            german, english = maker.pair()
            meanings[german.lower()].add(english)
    assert not [(german, english) for german, english in meanings.items() if len(english) > 1]


def test_an_object_stands_in_front_only_when_case_or_number_shows_it():
    frau, mann, kind = (phrase(word) for word in ("Frau", "Mann", "Kind"))
    assert not _distinct(frau, kind)
    assert _distinct(frau, mann) and _distinct(mann, kind)
    assert _distinct(frau, phrase("Kind", plural=True))


# -------------------------------------------------------------------------------------------- right sentences


def noun(word: str) -> Noun:
    return next(n for n in nouns() if n.singular == word)


def adjective(form: str) -> Adjective:
    return next(a for a in adjectives() if a.form == form)


def verb(infinitive: str, frame: str = "accusative") -> Verb:
    return next(v for v in verbs()[frame] if v.infinitive == infinitive)


def phrase(word: str, determiner: str = "definite", adjectives: tuple[str, ...] = (), **more) -> NounPhrase:
    return NounPhrase(noun(word), determiner, adjectives=tuple(map(adjective, adjectives)), **more)


AUF = Preposition("auf", "accusative", "onto")
IN = Preposition("in", "dative", "in")

CLAUSES = {
    "object first": (
        Clause(
            phrase("Hund"),
            verb("jagen"),
            accusative=phrase("Vogel", adjectives=("klein",)),
            front="accusative",
        ),
        "Den kleinen Vogel jagt der Hund.",
        "The dog is chasing the small bird.",
    ),
    "separable verb": (
        Clause(phrase("Mädchen"), verb("aufheben"), accusative=phrase("Ball", "indefinite", ("groß", "rot"))),
        "Das Mädchen hebt einen großen roten Ball auf.",
        "The girl is picking up a big red ball.",
    ),
    "kein": (
        Clause(phrase("Frau"), verb("lesen"), accusative=phrase("Buch", "no", plural=True)),
        "Die Frau liest keine Bücher.",
        "The woman is not reading any books.",
    ),
    "nicht": (
        Clause(phrase("Frau"), verb("lesen"), accusative=phrase("Buch", "this"), negated=True),
        "Die Frau liest dieses Buch nicht.",
        "The woman is not reading this book.",
    ),
    "weak noun, two objects": (
        Clause(
            phrase("Junge", plural=True),
            verb("geben", "ditransitive"),
            dative=phrase("Polizist", adjectives=("alt",)),
            accusative=phrase("Apfel", "number", number="zwei", plural=True, adjectives=("frisch",)),
        ),
        "Die Jungen geben dem alten Polizisten zwei frische Äpfel.",
        "The boys are giving the old policeman two fresh apples.",
    ),
    "passive": (
        Clause(phrase("Kind", plural=True), verb("suchen"), accusative=phrase("Hase"), tense="passive"),
        "Der Hase wird von den Kindern gesucht.",
        "The hare is being looked for by the children.",
    ),
    "perfect with sein, contraction": (
        Clause(
            phrase("Ente"),
            verb("schwimmen", "intransitive"),
            tense="perfect",
            place=PrepositionalPhrase(IN, phrase("Wald", adjectives=("dunkel",))),
            front="place",
        ),
        "Im dunklen Wald ist die Ente geschwommen.",
        "The duck has swum in the dark forest.",
    ),
    "modal, direction": (
        Clause(
            phrase("Koch", possessor=phrase("König")),
            verb("stellen", "placement"),
            accusative=phrase("Topf", "indefinite", ("schwer",)),
            direction=PrepositionalPhrase(AUF, phrase("Tisch")),
            tense="müssen",
        ),
        "Der Koch des Königs muss einen schweren Topf auf den Tisch stellen.",
        "The cook of the king must put a heavy pot onto the table.",
    ),
    "possessive": (
        Clause(
            phrase("Mutter"),
            verb("waschen"),
            accusative=phrase("Auto", "possessive", ("neu",), possessor=phrase("Mutter")),
        ),
        "Die Mutter wäscht ihr neues Auto.",
        "The mother is washing her new car.",
    ),
    "copula": (
        Clause(
            phrase("Haus"), predicate=Predicate((adjective("groß"),), phrase("Turm"), "more"), negated=True
        ),
        "Das Haus ist nicht größer als der Turm.",
        "The house is not bigger than the tower.",
    ),
    "simple present in English": (
        Clause(phrase("Tiger"), verb("sehen"), accusative=phrase("Elefant"), negated=True),
        "Der Tiger sieht den Elefanten nicht.",
        "The tiger does not see the elephant.",
    ),
}


@pytest.mark.parametrize("name", CLAUSES)
def test_main_clauses(name):
    clause, german, english = CLAUSES[name]
    assert sentence(clause.german_main()) == german
    assert sentence(clause.english_main()) == english


def test_verb_last_and_relative_clauses():
    ball, kind, mann = phrase("Ball"), phrase("Kind"), phrase("Mann")
    throws = Clause(kind, verb("wegwerfen"), accusative=ball, gap="accusative", tense="perfect")
    thrown = NounPhrase(ball.noun, relative=RelativeClause(throws))
    picks = Clause(mann, verb("aufheben"), accusative=thrown)
    assert sentence(picks.german_main()) == "Der Mann hebt den Ball, den das Kind weggeworfen hat, auf."
    assert sentence(picks.english_main()) == "The man is picking up the ball that the child has thrown away."
    assert sentence(["weil", *picks.german_final()]) == (
        "Weil der Mann den Ball, den das Kind weggeworfen hat, aufhebt."
    )
    assert picks.german_infinitive()[-1] == "aufzuheben"
    helpers = NounPhrase(
        noun("Tante"),
        plural=True,
        relative=RelativeClause(Clause(mann, verb("helfen", "dative"), gap="dative")),
    )
    assert sentence(helpers.german("nominative")) == "Die Tanten, denen der Mann hilft."
    assert sentence(helpers.english()) == "The aunts whom the man is helping."


@pytest.mark.parametrize(
    ("word", "forms"),
    [
        ("Mann", "Mann Mann Mann Mannes; Männer Männer Männern Männer"),
        ("Junge", "Junge Jungen Jungen Jungen; Jungen Jungen Jungen Jungen"),
        ("Frau", "Frau Frau Frau Frau; Frauen Frauen Frauen Frauen"),
        ("Auto", "Auto Auto Auto Autos; Autos Autos Autos Autos"),
        ("Haus", "Haus Haus Haus Hauses; Häuser Häuser Häusern Häuser"),
        ("Lehrer", "Lehrer Lehrer Lehrer Lehrers; Lehrer Lehrer Lehrern Lehrer"),
        ("Bauer", "Bauer Bauern Bauern Bauern; Bauern Bauern Bauern Bauern"),
        ("Tisch", "Tisch Tisch Tisch Tisches; Tische Tische Tischen Tische"),
        ("See", "See See See Sees; Seen Seen Seen Seen"),
    ],
)
def test_declension(word, forms):
    cases = ("nominative", "accusative", "dative", "genitive")
    got = [
        " ".join(phrase(word, plural=number).german(case)[-1] for case in cases) for number in (False, True)
    ]
    assert "; ".join(got) == forms


# The paradigms, written apart from the package's: rows are cases, columns m, f, n, plural.
ARTICLES = {
    "definite": "der die das die|den die das die|dem der dem den|des der des der",
    "this": "dieser diese dieses diese|diesen diese dieses diese|"
    "diesem dieser diesem diesen|dieses dieser dieses dieser",
    "no": "kein keine kein keine|keinen keine kein keine|"
    "keinem keiner keinem keinen|keines keiner keines keiner",
    "indefinite": "ein eine ein -|einen eine ein -|einem einer einem -|eines einer eines -",
}
ENDINGS = {
    "definite": "e e e en|en e e en|en en en en|en en en en",
    "this": "e e e en|en e e en|en en en en|en en en en",
    "no": "er e es en|en e es en|en en en en|en en en en",
    "indefinite": "er e es e|en e es e|en en en en|en en en er",
}


@pytest.mark.parametrize("determiner", ARTICLES)
def test_articles_and_adjectives_agree(determiner):
    cases = ("nominative", "accusative", "dative", "genitive")
    examples = {"m": "Hut", "f": "Jacke", "n": "Kleid"}
    for (i, case), (j, column) in product(enumerate(cases), enumerate(("m", "f", "n", "plural"))):
        np = phrase(
            examples.get(column, "Hut"),
            determiner,
            adjectives=("teuer", "schwarz"),
            plural=column == "plural",
        )
        article = ARTICLES[determiner].split("|")[i].split()[j]
        ending = ENDINGS[determiner].split("|")[i].split()[j]
        words = np.german(case)
        assert words[:-1] == [article] * (article != "-") + ["teur" + ending, "schwarz" + ending]


def test_every_noun_phrase_of_the_corpus_agrees(rows):
    """Each article, adjectives and noun that stand together fit at least one case, gender and number."""
    cases, columns = ("nominative", "accusative", "dative", "genitive"), ("m", "f", "n", "plural")
    by_article, by_noun = defaultdict(set), defaultdict(set)
    for determiner, table in ARTICLES.items():
        for case, words in zip(cases, table.split("|"), strict=True):
            for column, word in zip(columns, words.split(), strict=True):
                by_article[word].add((determiner, case, column))
    for n in nouns():
        for case in cases:
            by_noun[NounPhrase(n).german(case)[-1]].add((case, n.gender))
            by_noun[NounPhrase(n, plural=True).german(case)[-1]].add((case, "plural"))
    stems = {a.stem for a in adjectives()}
    checked = 0
    for row in rows:
        words = row["de"].rstrip(".")[0].lower() + row["de"].rstrip(".")[1:]
        tokens = re.findall(r"\w+|,", words)
        for start, word in enumerate(tokens):
            if word not in by_article or (start and tokens[start - 1] == ","):  # a relative pronoun
                continue
            end = start + 1
            while end < len(tokens) and re.sub(r"(e|en|er|es|em)$", "", tokens[end]) in stems:
                end += 1
            if end == len(tokens) or tokens[end] not in by_noun:
                continue
            endings = {re.search(r"(en|er|es|em|e)$", t).group() for t in tokens[start + 1 : end]}
            fitting = [
                (case, column)
                for determiner, case, column in by_article[word]
                if (case, column) in by_noun[tokens[end]]
                and endings
                <= {ENDINGS[determiner].split("|")[cases.index(case)].split()[columns.index(column)]}
            ]
            assert fitting, " ".join(tokens[start : end + 1])
            checked += 1
    assert checked > 20_000


def test_the_lexicon_is_consistent():
    assert len(nouns()) == len({n.singular for n in nouns()})
    for n in nouns():
        assert n.singular[0].isupper() and n.plural[0].isupper() and n.english.islower()
        assert n.gender in ("m", "f", "n") and (not n.weak or n.gender == "m")
    for frame, table in verbs().items():
        assert len(table) == len({v.infinitive for v in table}), frame
        for v in table:
            assert v.subjects and (
                frame in ("intransitive", "position", "motion") or v.objects or frame == "placement"
            )
            assert v.participle.startswith(v.particle)


# ------------------------------------------------------------------------------------------ text and vectors


@pytest.mark.parametrize("language", ["de", "en"])
def test_tokens_are_those_of_spacy(language, rows):
    spacy = pytest.importorskip("spacy")
    texts = [row[language] for row in rows[:1500]] + list(caption_text(language, 1500, seed=5))
    for text, doc in zip(texts, spacy.blank(language).tokenizer.pipe(texts), strict=True):
        assert [token.text.lower() for token in doc] == corpus_tokens(text)


def test_text_is_a_function_of_the_seed_and_not_parallel():
    german, english = list(caption_text("de", 50)), list(caption_text("en", 50))
    assert german == list(caption_text("de", 50)) != list(caption_text("de", 50, seed=2))
    maker = SentenceMaker(torch.Generator().manual_seed(2), wide=True)
    assert german[0] == (first := maker.pair())[0] and english[0] != first[1]


def test_vectors_are_trained_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EMBINIT_CACHE", str(tmp_path))
    small = {"sentences": 500, "epochs": 2, "progress": False}
    vectors = caption_vectors("de", 8, **small)
    assert vectors.dim == 8 and "hund" in vectors.tokens
    with monkeypatch.context() as patched:
        patched.setattr(corpus_vectors, "train_glove", lambda *a, **k: pytest.fail("trained again"))
        again = caption_vectors("de", 8, **small)
    assert again.digest == vectors.digest and torch.equal(again.matrix, vectors.matrix)
    caption_vectors("de", 8, **{**small, "epochs": 3})
    caption_vectors("en", 8, **small)
    assert len(list(tmp_path.iterdir())) == 3
    with monkeypatch.context() as patched:
        patched.setattr(corpus_vectors, "code_digest", lambda corpus: b"newer code")
        caption_vectors("de", 8, **small)
    assert len(list(tmp_path.iterdir())) == 4


def test_vectors_know_meanings_and_spread_widely(pairs, tmp_path):
    vectors = caption_vectors("de", 64, cache_dir=tmp_path, progress=False)
    unit = torch.nn.functional.normalize(vectors.matrix, dim=1)
    index = {token: i for i, token in enumerate(vectors.tokens)}

    def nearest(word: str, k: int) -> set[str]:
        return {vectors.tokens[i] for i in (unit @ unit[index[word]]).topk(k + 1).indices.tolist()} - {word}

    assert (
        len(nearest("rote", 5) & {"blaue", "grüne", "gelbe", "schwarze", "weiße", "violette", "braune"}) >= 3
    )
    assert nearest("hund", 8) & {"katze", "vogel", "kuh", "fuchs", "wolf", "pferd", "schaf", "esel", "affe"}
    assert vectors.matrix.std() > 0.2 and vectors.matrix.abs().max() > 1.0
    words = [word for row in pairs["train"] for word in corpus_tokens(row["de"])]
    assert sum(word in index for word in words) / len(words) > 0.999


@pytest.mark.parametrize("function", [caption_text, caption_vectors])
def test_other_languages_are_refused(function):
    with pytest.raises(InvalidArgumentError, match="'fr' is not one of: de, en"):
        function("fr")
