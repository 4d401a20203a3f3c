"""The words of the caption corpus: German entries with all that inflection needs, each with its English
translation.

Tables are text, a line an entry. English forms are derived by rule where a table does not spell them out. An
entry that starts with `+` belongs to the wider vocabulary: it occurs in monolingual text only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

Gender = Literal["m", "f", "n"]


@dataclass(frozen=True)
class Noun:
    """A noun: gender, singular and plural in both languages, and what it can do in a caption."""

    gender: Gender
    singular: str
    plural: str
    english: str
    english_plural: str
    kinds: frozenset[str]
    weak: bool
    """Weak masculines (der Junge, den Jungen) take the plural's form in all cases but the nominative
    singular."""
    wide: bool
    """In monolingual text only."""


@dataclass(frozen=True)
class Adjective:
    """An adjective: the predicative form, the stem that endings are put to, the comparative, and what it
    describes."""

    form: str
    stem: str
    comparative: str
    english: str
    english_comparative: str
    kinds: frozenset[str]
    wide: bool


Frame = Literal["intransitive", "accusative", "dative", "ditransitive", "position", "motion", "placement"]


@dataclass(frozen=True)
class Verb:
    """A verb in the third person: `singular` hebt, `plural` heben, `particle` auf, `participle`
    aufgehoben."""

    frame: Frame
    plural: str
    singular: str
    particle: str
    participle: str
    auxiliary: Literal["haben", "sein"]
    english: str
    english_ing: str
    """`reading`, or empty for a verb that English has in the simple present: sees."""
    english_participle: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]

    @property
    def infinitive(self) -> str:
        """`aufheben`."""
        return self.particle + self.plural

    @property
    def to_infinitive(self) -> str:
        """`aufzuheben`, `zu lesen`."""
        return f"{self.particle}zu{self.plural}" if self.particle else f"zu {self.plural}"


# Kind: entries `gender singular plural english [english plural]`, separated by `;`. `m*` is a weak masculine.
NOUNS = {
    "person": """
        m Mann Männer man men; f Frau Frauen woman women; n Kind Kinder child children; m* Junge Jungen boy;
        n Mädchen Mädchen girl; m Vater Väter father; f Mutter Mütter mother; m Bruder Brüder brother;
        f Schwester Schwestern sister; m Großvater Großväter grandfather; f Großmutter Großmütter grandmother;
        m Lehrer Lehrer teacher; f Lehrerin Lehrerinnen teacher; m Arzt Ärzte doctor;
        f Ärztin Ärztinnen doctor; m Koch Köche cook; f Köchin Köchinnen cook; m Maler Maler painter;
        f Malerin Malerinnen painter; m Sänger Sänger singer; f Sängerin Sängerinnen singer;
        f Tänzerin Tänzerinnen dancer; m* Polizist Polizisten policeman policemen;
        f Polizistin Polizistinnen policewoman policewomen; m* Bauer Bauern farmer;
        m Feuerwehrmann Feuerwehrmänner firefighter; m* Student Studenten student;
        f Studentin Studentinnen student; m Schüler Schüler pupil; f Schülerin Schülerinnen pupil;
        m Gärtner Gärtner gardener; m Kellner Kellner waiter; f Kellnerin Kellnerinnen waitress;
        m* Nachbar Nachbarn neighbor; f Nachbarin Nachbarinnen neighbor; m* Tourist Touristen tourist;
        m Arbeiter Arbeiter worker; m* Soldat Soldaten soldier; m Onkel Onkel uncle; f Tante Tanten aunt;
        m Sohn Söhne son; f Tochter Töchter daughter; m König Könige king; f Königin Königinnen queen;
        m Bäcker Bäcker baker; m Clown Clowns clown; m Radfahrer Radfahrer cyclist; n Baby Babys baby;
        +m* Prinz Prinzen prince; +f Prinzessin Prinzessinnen princess; +m Musiker Musiker musician;
        +m* Fotograf Fotografen photographer; +m* Pilot Piloten pilot; +m Schwimmer Schwimmer swimmer;
        +m Reiter Reiter rider; +m Verkäufer Verkäufer salesman salesmen; +m Läufer Läufer runner;
        +f Verkäuferin Verkäuferinnen saleswoman saleswomen; +m Tänzer Tänzer dancer;
        +m Fischer Fischer fisherman fishermen; +m* Matrose Matrosen sailor; +m Zauberer Zauberer magician; +m
        Richter Richter judge; +f Richterin Richterinnen judge; +m Metzger Metzger butcher; +m Tischler
        Tischler carpenter""",
    "animal": """
        m Hund Hunde dog; f Katze Katzen cat; n Pferd Pferde horse; m Vogel Vögel bird; f Kuh Kühe cow;
        n Schaf Schafe sheep sheep; n Schwein Schweine pig; f Ziege Ziegen goat; f Ente Enten duck;
        n Huhn Hühner chicken; f Maus Mäuse mouse mice; m* Hase Hasen hare; n Kaninchen Kaninchen rabbit;
        m* Affe Affen monkey; m* Elefant Elefanten elephant; m* Löwe Löwen lion; m Tiger Tiger tiger;
        m* Bär Bären bear; m Wolf Wölfe wolf wolves; m Fuchs Füchse fox; m Frosch Frösche frog;
        m Esel Esel donkey; f Gans Gänse goose geese; m* Welpe Welpen puppy; f Taube Tauben pigeon;
        n Lamm Lämmer lamb; +n Kamel Kamele camel; +f Schlange Schlangen snake; +m Schwan Schwäne swan;
        +f Biene Bienen bee; +m Schmetterling Schmetterlinge butterfly;
        +n Eichhörnchen Eichhörnchen squirrel; +m Igel Igel hedgehog; +m Hamster Hamster hamster;
        +f Giraffe Giraffen giraffe; +m Pinguin Pinguine penguin; +m Hahn Hähne rooster; +m Hirsch Hirsche
        deer deer; +f Eule Eulen owl; +n Zebra Zebras zebra""",
    "clothes": """
        m Hut Hüte hat; n Hemd Hemden shirt; n Kleid Kleider dress; m Mantel Mäntel coat;
        f Jacke Jacken jacket; m Rock Röcke skirt; f Mütze Mützen cap; m Schal Schals scarf scarves;
        m Pullover Pullover sweater; m Anzug Anzüge suit; f Uniform Uniformen uniform; m Helm Helme helmet;
        m Gürtel Gürtel belt; f Schürze Schürzen apron; +f Weste Westen vest; +f Krawatte Krawatten tie;
        +m Bademantel Bademäntel bathrobe; +m Kittel Kittel smock; +f Bluse Blusen blouse""",
    "food": """
        m Apfel Äpfel apple; f Banane Bananen banana; m Kuchen Kuchen cake; n Ei Eier egg;
        f Birne Birnen pear; f Orange Orangen orange; f Tomate Tomaten tomato tomatoes;
        f Kartoffel Kartoffeln potato potatoes; f Karotte Karotten carrot; f Pizza Pizzas pizza;
        f Wurst Würste sausage; m Keks Kekse cookie; f Kirsche Kirschen cherry;
        f Erdbeere Erdbeeren strawberry; m Pfannkuchen Pfannkuchen pancake; +m Salat Salate salad;
        +f Zwiebel Zwiebeln onion; +m Pfirsich Pfirsiche peach; +f Melone Melonen melon; +f Nuss Nüsse nut;
        +m Pilz Pilze mushroom; +f Suppe Suppen soup; +f Gurke Gurken cucumber; +f Pflaume Pflaumen plum""",
    "text": """
        n Buch Bücher book; f Zeitung Zeitungen newspaper; m Brief Briefe letter; n Heft Hefte notebook;
        f Landkarte Landkarten map; f Postkarte Postkarten postcard; m Roman Romane novel;
        f Zeitschrift Zeitschriften magazine; +n Gedicht Gedichte poem; +n Märchen Märchen fairytale;
        +n Rezept Rezepte recipe""",
    "toy": """
        m Ball Bälle ball; m Stock Stöcke stick; m Stein Steine stone; f Puppe Puppen doll;
        m Luftballon Luftballons balloon; m Schneeball Schneebälle snowball; m Drachen Drachen kite;
        +f Murmel Murmeln marble; +m Würfel Würfel cube""",
    "thing": """
        f Tasche Taschen bag; m Koffer Koffer suitcase; m Rucksack Rucksäcke backpack;
        f Flasche Flaschen bottle; n Glas Gläser glass; f Tasse Tassen cup; m Teller Teller plate;
        m Topf Töpfe pot; m Löffel Löffel spoon; n Messer Messer knife knives; m Schlüssel Schlüssel key;
        m Regenschirm Regenschirme umbrella; f Decke Decken blanket; n Kissen Kissen pillow;
        f Kerze Kerzen candle; n Bild Bilder picture; m Spiegel Spiegel mirror; f Blume Blumen flower;
        n Seil Seile rope; m Hammer Hämmer hammer; m Pinsel Pinsel brush; m Besen Besen broom;
        f Schaufel Schaufeln shovel; f Fahne Fahnen flag; m Bleistift Bleistifte pencil; f Gabel Gabeln fork;
        f Schüssel Schüsseln bowl; +f Leiter Leitern ladder; +f Säge Sägen saw; +f Kanne Kannen jug;
        +m Krug Krüge pitcher; +m Blumenstrauß Blumensträuße bouquet; +f Vase Vasen vase; +n Handtuch
        Handtücher towel""",
    "device": """
        f Lampe Lampen lamp; n Radio Radios radio; m Computer Computer computer;
        m Fernseher Fernseher television; f Kamera Kameras camera; n Telefon Telefone telephone;
        +m Ventilator Ventilatoren fan; +m Wecker Wecker alarm""",
    "container": """
        m Korb Körbe basket; f Kiste Kisten box; m Eimer Eimer bucket; m Schrank Schränke cupboard;
        +f Truhe Truhen chest; +f Schublade Schubladen drawer; +n Fass Fässer barrel""",
    "furniture": """
        m Tisch Tische table; m Stuhl Stühle chair; n Sofa Sofas sofa; n Bett Betten bed; f Bank Bänke bench;
        m Teppich Teppiche carpet; n Regal Regale shelf shelves; m Sessel Sessel armchair;
        +m Hocker Hocker stool; +f Matratze Matratzen mattress""",
    "instrument": """
        f Gitarre Gitarren guitar; f Geige Geigen violin; f Flöte Flöten flute; f Trommel Trommeln drum;
        f Trompete Trompeten trumpet; +f Harfe Harfen harp; +n Cello Cellos cello""",
    "vehicle": """
        n Auto Autos car; m Bus Busse bus; m Zug Züge train; n Fahrrad Fahrräder bicycle; n Boot Boote boat;
        n Schiff Schiffe ship; m Lastwagen Lastwagen truck; n Motorrad Motorräder motorcycle;
        m Traktor Traktoren tractor; f Straßenbahn Straßenbahnen tram; +n Taxi Taxis taxi;
        +n Flugzeug Flugzeuge airplane; +m Roller Roller scooter; +f Kutsche Kutschen carriage; +m
        Hubschrauber Hubschrauber helicopter""",
    "room": """
        m Garten Gärten garden; m Park Parks park; f Küche Küchen kitchen; m Wald Wälder forest;
        n Haus Häuser house; f Schule Schulen school; n Zimmer Zimmer room; f Stadt Städte city;
        n Dorf Dörfer village; m Laden Läden shop; f Kirche Kirchen church;
        n Restaurant Restaurants restaurant; n Zelt Zelte tent; f Scheune Scheunen barn;
        m Stall Ställe stable; n Museum Museen museum; f Garage Garagen garage; n Schloss Schlösser castle;
        +f Höhle Höhlen cave; +f Bibliothek Bibliotheken library; +n Krankenhaus Krankenhäuser hospital;
        +n Theater Theater theater; +m Keller Keller cellar; +f Werkstatt Werkstätten workshop""",
    "ground": """
        f Straße Straßen street; f Wiese Wiesen meadow; f Brücke Brücken bridge; m Platz Plätze square;
        m Hügel Hügel hill; n Feld Felder field; f Bühne Bühnen stage; n Dach Dächer roof;
        m Balkon Balkone balcony; f Mauer Mauern wall; +f Insel Inseln island; +m Weg Wege path; +f Terrasse
        Terrassen terrace""",
    "edge": """
        m See Seen lake; m Strand Strände beach; m Fluss Flüsse river; n Fenster Fenster window;
        f Tür Türen door; +m Teich Teiche pond; +f Küste Küsten coast; +m Hafen Häfen harbor""",
    "landmark": """
        m Baum Bäume tree; m Zaun Zäune fence; m Turm Türme tower; m Brunnen Brunnen fountain;
        n Tor Tore gate; m Busch Büsche bush; +m Felsen Felsen rock; +f Statue Statuen statue; +f Laterne
        Laternen lantern""",
}

MORE_KINDS = {
    "dog": ("Hund", "Welpe"),
    "lamp": ("Lampe", "Bild"),
    "obstacle": ("Zaun", "Mauer", "Brücke", "Hügel", "Busch"),
    "shade": ("Baum", "Brücke", "Dach", "Balkon", "Turm"),
}
"""Kinds that cut across the tables."""

# `form[:stem[:comparative]] english[:comparative] kinds`, `-` for no comparative.
ADJECTIVES = """
    groß::größer big:bigger all; klein::kleiner small:smaller all; alt::älter old:older all;
    jung::jünger young:younger living; neu::neuer new:newer object; rot red color; blau blue color;
    grün green color; gelb yellow color; schwarz black color; weiß white color; braun brown color,fur;
    grau gray color,fur; schön::schöner beautiful:more_beautiful all; müde::müder tired:more_tired living;
    traurig::trauriger sad:sadder living; fröhlich::fröhlicher cheerful:more_cheerful living;
    nass::nasser wet:wetter all; schmutzig::schmutziger dirty:dirtier all;
    schwer::schwerer heavy:heavier object; leer empty vessel; voll full vessel; kaputt broken machine;
    lang::länger long:longer long; kurz::kürzer short:shorter long;
    hungrig::hungriger hungry:hungrier living; krank::kränker sick:sicker living;
    schnell::schneller fast:faster mover; dick::dicker fat:fatter living;
    stark::stärker strong:stronger living; freundlich::freundlicher friendly:friendlier living;
    frisch::frischer fresh:fresher food; süß::süßer sweet:sweeter food; reif::reifer ripe:riper food;
    dunkel:dunkl:dunkler dark:darker place; ruhig::ruhiger quiet:quieter place;
    teuer:teur:teurer expensive:more_expensive object; billig::billiger cheap:cheaper object;
    sauber::sauberer clean:cleaner object; schwach::schwächer weak:weaker living;
    wild::wilder wild:wilder animal; +mutig::mutiger brave:braver living; +faul::fauler lazy:lazier living;
    +rund round object; +warm::wärmer warm:warmer place; +kalt::kälter cold:colder place;
    +leicht::leichter light:lighter object; +modern::moderner modern:more_modern object;
    +klug::klüger clever:cleverer living; +stolz::stolzer proud:prouder living;
    +nervös::nervöser nervous:more_nervous living; +violett purple color; +zahm::zahmer tame:tamer animal;
    +eng::enger narrow:narrower place; +breit::breiter wide:wider long
"""

ADJECTIVE_KINDS: dict[str, tuple[str, ...]] = {
    "all": (
        "person",
        "animal",
        "clothes",
        "toy",
        "thing",
        "vehicle",
        "room",
        "landmark",
        "furniture",
        "container",
    ),
    "living": ("person", "animal"),
    "animal": ("animal",),
    "fur": ("animal",),
    "object": ("clothes", "toy", "thing", "device", "container", "furniture", "instrument", "vehicle"),
    "color": ("clothes", "toy", "thing", "container", "furniture", "vehicle"),
    "vessel": ("container",),
    "machine": ("device", "vehicle", "instrument"),
    "mover": ("vehicle",),
    "food": ("food",),
    "place": ("room",),
    "long": ("clothes",),
}
"""The kinds of noun that the kinds of adjective go with."""

# `[particle|]infinitive singular participle auxiliary / english [ing [participle]] / subjects [/ objects]`
VERBS: dict[Frame, str] = {
    "intransitive": """
        lachen lacht gelacht h / laugh / person; schlafen schläft geschlafen h / sleep sleeping slept /
        living; tanzen tanzt getanzt h / dance / person; singen singt gesungen h / sing singing sung / person;
        warten wartet gewartet h / wait / living; arbeiten arbeitet gearbeitet h / work / person;
        spielen spielt gespielt h / play / living; weinen weint geweint h / cry / person;
        kochen kocht gekocht h / cook / person; schwimmen schwimmt geschwommen s / swim swimming swum /
        living; träumen träumt geträumt h / dream / living; bellen bellt gebellt h / bark / dog;
        auf|stehen steht aufgestanden s / get_up getting_up gotten_up / living;
        weg|laufen läuft weggelaufen s / run_away running_away run_away / living;
        ein|schlafen schläft eingeschlafen s / fall_asleep falling_asleep fallen_asleep / living;
        zurück|kommen kommt zurückgekommen s / come_back coming_back come_back / living;
        hin|fallen fällt hingefallen s / fall_down falling_down fallen_down / living;
        an|halten hält angehalten h / stop stopping stopped / vehicle;
        los|fahren fährt losgefahren s / drive_off driving_off driven_off / vehicle""",
    "accusative": """
        sehen sieht gesehen h / see - seen / living / living,vehicle,landmark,toy;
        lesen liest gelesen h / read reading read / person / text;
        tragen trägt getragen h / wear wearing worn / person / clothes;
        essen isst gegessen h / eat eating eaten / living / food;
        werfen wirft geworfen h / throw throwing thrown / person / toy;
        halten hält gehalten h / hold holding held / person / thing,toy,food,text;
        suchen sucht gesucht h / look_for looking_for looked_for / living / living,thing,toy;
        finden findet gefunden h / find - found / living / thing,toy,food,animal;
        kaufen kauft gekauft h / buy buying bought / person / food,thing,clothes,text,device,vehicle;
        jagen jagt gejagt h / chase / animal / animal; füttern füttert gefüttert h / feed feeding fed / person
        / animal; malen malt gemalt h / paint / person / animal,person,landmark,vehicle;
        waschen wäscht gewaschen h / wash / person / vehicle,clothes,animal,food;
        reparieren repariert repariert h / repair / person / vehicle,device,furniture;
        fotografieren fotografiert fotografiert h / photograph / person / living,landmark,vehicle;
        spielen spielt gespielt h / play / person / instrument;
        schieben schiebt geschoben h / push / person / vehicle,container,furniture;
        ziehen zieht gezogen h / pull / living / container,vehicle;
        streicheln streichelt gestreichelt h / stroke stroking stroked / person / animal;
        umarmen umarmt umarmt h / hug hugging hugged / person / person;
        begrüßen begrüßt begrüßt h / greet / person / person; besuchen besucht besucht h / visit / person /
        person; verstecken versteckt versteckt h / hide hiding hidden / person / thing,toy,food,text;
        schreiben schreibt geschrieben h / write writing written / person / text;
        bauen baut gebaut h / build building built / person / furniture,landmark,room;
        auf|heben hebt aufgehoben h / pick_up picking_up picked_up / person / toy,thing,text;
        an|schauen schaut angeschaut h / look_at looking_at looked_at / living / living,thing,text,landmark;
        an|ziehen zieht angezogen h / put_on putting_on put_on / person / clothes;
        aus|ziehen zieht ausgezogen h / take_off taking_off taken_off / person / clothes;
        weg|werfen wirft weggeworfen h / throw_away throwing_away thrown_away / person / toy,thing,text,food;
        ein|packen packt eingepackt h / pack / person / thing,clothes,text,toy;
        an|rufen ruft angerufen h / call / person / person; ein|schalten schaltet eingeschaltet h / switch_on
        switching_on switched_on / person / device; aus|schalten schaltet ausgeschaltet h / switch_off
        switching_off switched_off / person / device; mit|nehmen nimmt mitgenommen h / take_along taking_along
        taken_along / person / thing,toy,text,animal""",
    "dative": """
        helfen hilft geholfen h / help / person / person; folgen folgt gefolgt s / follow / living / living;
        danken dankt gedankt h / thank / person / person;
        zu|hören hört zugehört h / listen_to listening_to listened_to / living / person;
        zu|schauen schaut zugeschaut h / watch / living / living;
        nach|laufen läuft nachgelaufen s / run_after running_after run_after / animal / living;
        zu|winken winkt zugewinkt h / wave_at waving_at waved_at / person / person""",
    "ditransitive": """
        geben gibt gegeben h / give giving given / person / toy,thing,food,text;
        zeigen zeigt gezeigt h / show showing shown / person / toy,thing,text,device,vehicle;
        bringen bringt gebracht h / bring bringing brought / person / food,thing,text;
        verkaufen verkauft verkauft h / sell selling sold / person / food,thing,clothes,device;
        schicken schickt geschickt h / send sending sent / person / text,thing,clothes""",
    "position": """
        sitzen sitzt gesessen h / sit sitting sat / living; stehen steht gestanden h / stand standing stood /
        living,landmark,vehicle,furniture; liegen liegt gelegen h / lie lying lain /
        living,thing,toy,text,food,clothes; hängen hängt gehangen h / hang hanging hung / clothes,lamp""",
    "motion": """
        gehen geht gegangen s / go going gone / person; laufen läuft gelaufen s / run running run / living;
        springen springt gesprungen s / jump / living; klettern klettert geklettert s / climb / living;
        rennen rennt gerannt s / race racing raced / living; fahren fährt gefahren s / drive driving driven /
        vehicle""",
    "placement": """
        legen legt gelegt h / lay laying laid / person / thing,toy,text,food,clothes;
        stellen stellt gestellt h / put putting put / person / thing,container,device,furniture;
        werfen wirft geworfen h / throw throwing thrown / person / toy;
        hängen hängt gehängt h / hang hanging hung / person / clothes;
        tragen trägt getragen h / carry carrying carried / person / container,thing,furniture""",
}

SUBJECT_KINDS: dict[str, tuple[str, ...]] = {"living": ("person", "animal")}
"""Kinds of subject or object that stand for several kinds of noun."""


def english_plural(word: str) -> str:
    """The regular plural of an English noun."""
    if word.endswith(("s", "x", "sh", "ch")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _english_verb(forms: list[str]) -> tuple[str, str, str]:
    """Base, -ing form and participle, the regular ones derived; `-` is for no -ing form."""
    base = forms[0]
    stem = base[:-1] if base.endswith("e") and not base.endswith("ee") else base
    past = base[:-1] + "ied" if base.endswith("y") and base[-2] not in "aeiou" else stem + "ed"
    ing = forms[1] if len(forms) > 1 else stem + "ing"
    participle = forms[2] if len(forms) > 2 else past
    return base.replace("_", " "), ing.strip("-").replace("_", " "), participle.replace("_", " ")


@cache
def nouns() -> tuple[Noun, ...]:
    """Every noun, in the order of the tables."""
    entries = []
    for kind, table in NOUNS.items():
        for line in table.split(";"):
            gender, singular, plural, english, *more = line.split()
            kinds = {kind, *(extra for extra, words in MORE_KINDS.items() if singular in words)}
            entries.append(
                Noun(
                    gender=gender.strip("+*"),  # type: ignore[arg-type]
                    singular=singular,
                    plural=plural,
                    english=english,
                    english_plural=more[0] if more else english_plural(english),
                    kinds=frozenset(kinds),
                    weak="*" in gender,
                    wide="+" in gender,
                )
            )
    return tuple(entries)


@cache
def adjectives() -> tuple[Adjective, ...]:
    """Every adjective."""
    entries = []
    for line in ADJECTIVES.split(";"):
        german, english, kinds = line.split()
        form, stem, comparative = [*german.lstrip("+").split(":"), "", ""][:3]
        base, more = ([*english.split(":"), ""])[:2]
        nouns_described = {noun for kind in kinds.split(",") for noun in ADJECTIVE_KINDS[kind]}
        entries.append(
            Adjective(
                form=form,
                stem=stem or form.removesuffix("e"),
                comparative=comparative,
                english=base,
                english_comparative=more.replace("_", " "),
                kinds=frozenset(nouns_described),
                wide=german.startswith("+"),
            )
        )
    return tuple(entries)


@cache
def verbs() -> dict[Frame, tuple[Verb, ...]]:
    """Every verb, by frame."""
    tables: dict[Frame, tuple[Verb, ...]] = {}
    for frame, table in VERBS.items():
        entries = []
        for line in table.split(";"):
            german, english, subjects, *objects = (part.strip() for part in line.split("/"))
            infinitive, singular, participle, auxiliary = german.split()
            particle, _, plural = infinitive.rpartition("|")
            base, ing, past = _english_verb(english.split())
            entries.append(
                Verb(
                    frame=frame,
                    plural=plural,
                    singular=singular,
                    particle=particle,
                    participle=participle,
                    auxiliary="sein" if auxiliary == "s" else "haben",
                    english=base,
                    english_ing=ing,
                    english_participle=past,
                    subjects=_kinds(subjects),
                    objects=_kinds(objects[0]) if objects else (),
                )
            )
        tables[frame] = tuple(entries)
    return tables


def _kinds(text: str) -> tuple[str, ...]:
    return tuple(kind for name in text.split(",") for kind in SUBJECT_KINDS.get(name, (name,)))
