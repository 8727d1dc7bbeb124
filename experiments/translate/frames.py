"""Sentences that Tatoeba has few of: dates, prices, titles with surnames, and what somebody says.

Each frame is an English and a French sentence with slots. What fills them is a name, a number, the
calendar, or a short pair of Tatoeba.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

Texts = tuple[str, str]  #: English and French

MONTHS = {
    "January": "janvier", "February": "février", "March": "mars", "April": "avril", "May": "mai",
    "June": "juin", "July": "juillet", "August": "août", "September": "septembre",
    "October": "octobre", "November": "novembre", "December": "décembre",
}  # fmt: skip
WEEKDAYS = {
    "Monday": "lundi", "Tuesday": "mardi", "Wednesday": "mercredi", "Thursday": "jeudi",
    "Friday": "vendredi", "Saturday": "samedi", "Sunday": "dimanche",
}  # fmt: skip
SURNAMES = """
Adams Andersen Baker Bauer Bernard Bianchi Carter Clark Cohen Costa Davis Diallo Dubois Durand Evans
Fischer Fontaine Foster García Gomez Green Haddad Hall Hansen Harris Horvat Ivanov Jackson Johnson
Kaplan Keller Khan Kim Klein Lambert Larsen Lee Lefebvre Lopez Marino Martinez Meyer Miller Moore
Moreau Morris Müller Murphy Nakamura Nguyen Novak Okafor Olsen Parker Petit Petrov Popov Ramos Ricci
Robinson Rossi Russo Santos Schmidt Schneider Silva Singh Smith Tanaka Taylor Thompson Turner Wagner
Walker Wang Watson Weber White Williams Wilson Wright Yamada Young Zhang
""".split()  # noqa: SIM905
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvwz" for vowel in "aeiou"]
_ENDINGS = ("", "n", "r", "s", "k", "ski", "man", "son", "dez", "lli", "tel", "ton", "berg")

DATES = [
    ("They got married on {date}.", "Ils se sont mariés le {date}."),
    ("She was born on {date}.", "Elle est née le {date}."),
    ("My father was born on {date}.", "Mon père est né le {date}."),
    ("The party is on {date}.", "La fête est le {date}."),
    ("I wrote to you on {date}.", "Je t'ai écrit le {date}."),
    ("Tomorrow is {date}.", "Demain, c'est le {date}."),
    ("Yesterday was {date}.", "Hier, c'était le {date}."),
    ("School begins on {date}.", "L'école commence le {date}."),
    ("We leave on {weekday}, {date}.", "Nous partons le {weekday} {date}."),
    ("He came back on {weekday}, {date}.", "Il est revenu le {weekday} {date}."),
    ("See you on {weekday}!", "À {weekday} !"),
    ("It happened in {month}.", "C'est arrivé en {month}."),
    ("It's cold in {month}.", "Il fait froid en {month}."),
    ("I'm free on {weekday}.", "Je suis libre {weekday}."),
    ("on {date}", "le {date}"),
    ("{weekday}", "{weekday}"),
    ("{month}", "{month}"),
]
PRICES = [
    ("I paid {price}.", "J'ai payé {price}."),
    ("The book costs {price}.", "Le livre coûte {price}."),
    ("This shirt cost me {price}.", "Cette chemise m'a coûté {price}."),
    ("That will be {price}.", "Ça fera {price}."),
    ("That makes {price}.", "Ça fait {price}."),
    ("He owes me {price}.", "Il me doit {price}."),
    ("She earns {price} an hour.", "Elle gagne {price} de l'heure."),
    ("I only have {price}.", "Je n'ai que {price}."),
    ("Can you lend me {price}?", "Peux-tu me prêter {price} ?"),
    ("The meal is {price}.", "Le repas coûte {price}."),
    ("It's {price}.", "C'est {price}."),
    ("{price}", "{price}"),
]
PEOPLE = [
    ("Where is {person}?", "Où est {person} ?"),
    ("I met {person} yesterday.", "J'ai rencontré {person} hier."),
    ("I don't know {person}.", "Je ne connais pas {person}."),
    ("Have you seen {person}?", "Avez-vous vu {person} ?"),
    ("This is {person}.", "Voici {person}."),
    ("Call {person}.", "Appelez {person}."),
    ("{person} is waiting for you.", "{person} vous attend."),
    ("{person} is our neighbour.", "{person} est notre voisin."),
    ("{person} lives here.", "{person} habite ici."),
    ("I am here with {person}.", "Je suis ici avec {person}."),
    ("I have to talk to {person}.", "Je dois parler {to_person}."),
    ("Give this to {person}.", "Donnez ceci {to_person}."),
]
TITLES = [
    ("Mr.", "M.", "à M."), ("Mrs.", "Mme", "à Mme"), ("Miss", "Mlle", "à Mlle"),
    ("Dr.", "le docteur", "au docteur"),
]  # fmt: skip
#: Of something that is said: how the sentence ends, what stands behind or before it.
SAID = [
    (".", "{} he said.", "{} dit-il."), (".", "{} she said.", "{} dit-elle."),
    (".", "{} she said.", "{} a-t-elle dit."), (".", "{} he said.", "{} a-t-il dit."),
    (".", "{} Tom said.", "{} dit Tom."), (".", "{} said Mary.", "{} dit Mary."),
    ("?", "{} he asked.", "{} demanda-t-il."), ("?", "{} she asked.", "{} demanda-t-elle."),
    ("?", "{} asked Tom.", "{} demanda Tom."), ("!", "{} he shouted.", "{} cria-t-il."),
    ("!", "{} she shouted.", "{} cria-t-elle."), ("", "{}", "{}"), ("", "{}", "{}"),
    ("", "He said, {}", "Il a dit : {}"), ("", "She said {}", "Elle a dit {}"),
    ("", "Tom said, {}", "Tom a dit : {}"), ("", "She answered, {}", "Elle répondit : {}"),
]  # fmt: skip
_ENGLISH_QUOTES = (('"', '"'), ('"', '"'), ("“", "”"))
_FRENCH_QUOTES = (("« ", " »"), ("« ", " »"), ('"', '"'), ("“", "”"))


def framed(chooser: random.Random) -> Texts:
    """A frame of dates, prices or people, filled."""
    english, french = chooser.choice(chooser.choice([DATES, PRICES, PEOPLE]))
    slots = [_date(chooser), _price(chooser), _person(chooser)]
    words = [{**slots[0][side], **slots[1][side], **slots[2][side]} for side in range(2)]
    texts = english.format(**words[0]), french.format(**words[1])
    return texts[0], texts[1][0].upper() + texts[1][1:] if english[-1] in ".?!" else texts[1]


def said(texts: Texts, source: int, chooser: random.Random) -> Texts | None:
    """A sentence as somebody says it; None if it does not end alike in both languages."""
    end = texts[0][-1]
    if end != texts[1][-1] or end not in ".?!" or any(mark in "".join(texts) for mark in '"«“'):
        return None
    needed, english, french = chooser.choice([frame for frame in SAID if frame[0] in ("", end)])
    # The translation has the marks of its own language; people type a source with any.
    opening, closing = chooser.choice(_ENGLISH_QUOTES[: 1 if source == 1 else None])
    first, last = chooser.choice(_FRENCH_QUOTES[: 1 if source == 0 else None])
    sentences = list(texts)
    if needed == ".":
        sentences = [texts[0][:-1] + ",", texts[1][:-1]]
    spoken = opening + sentences[0] + closing, first + sentences[1] + last
    behind = "," if needed == "." else ""
    return english.format(spoken[0]), french.format(spoken[1] + behind)


def marks_of_language(texts: Texts, source: int) -> Texts:
    """The translation with the quotation marks of its own language."""
    sides = list(texts)
    target = 1 - source
    for opening, closing in (("“", "”"), ("«", "»"), ('"', '"')):
        before, *rest = sides[target].split(opening, 1)
        if rest and closing in rest[0]:
            inside, after = rest[0].split(closing, 1)
            marks = ("« ", " »") if target == 1 else ('"', '"')
            sides[target] = before + marks[0] + inside.strip(" \u00a0\u202f") + marks[1] + after
            break
    return sides[0], sides[1]


def calendar() -> Iterator[Texts]:
    """Months and days of the week."""
    yield from MONTHS.items()
    yield from WEEKDAYS.items()


def _date(chooser: random.Random) -> list[dict[str, str]]:
    month, day = chooser.choice(list(MONTHS)), chooser.randint(1, 31)
    weekday = chooser.choice(list(WEEKDAYS))
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day not in (11, 12, 13) else 0, "th")
    year = str(chooser.randint(1900, 2030)) if chooser.random() < 0.4 else ""
    form = chooser.choice(["{m} {d}", "{m} {d}{e}", "{d} {m}", "the {d}{e} of {m}"])
    english = form.format(m=month, d=day, e=ending)
    if year:
        english += f", {year}" if form.startswith("{m}") else f" {year}"
    french = f"{'1er' if day == 1 else day} {MONTHS[month]} {year}".strip()
    return [
        {"date": english, "month": month, "weekday": weekday},
        {"date": french, "month": MONTHS[month], "weekday": WEEKDAYS[weekday]},
    ]


def _price(chooser: random.Random) -> list[dict[str, str]]:
    amount = chooser.choice(
        [chooser.randint(2, 99), chooser.randint(2, 99), chooser.randint(2, 5000)]
    )
    cents = f"{chooser.randint(1, 99):02}" if amount < 100 and chooser.random() < 0.4 else ""
    sign, word = chooser.choice([("$", "dollars"), ("€", "euros")])
    english = f"{amount}.{cents}" if cents else f"{amount}"
    french = f"{amount},{cents}" if cents else f"{amount}"
    english = chooser.choice([f"{sign}{english}", f"{sign}{english}", f"{english} {word}"])
    return [{"price": english}, {"price": f"{french} {word}"}]


def _person(chooser: random.Random) -> list[dict[str, str]]:
    english, french, to = chooser.choice(TITLES)
    surname = chooser.choice(SURNAMES) if chooser.random() < 0.5 else _made_up(chooser)
    return [
        {"person": f"{english} {surname}"},
        {"person": f"{french} {surname}", "to_person": f"{to} {surname}"},
    ]


def _made_up(chooser: random.Random) -> str:
    syllables: Sequence[str] = [chooser.choice(_SYLLABLES) for _ in range(chooser.randint(1, 3))]
    return ("".join(syllables) + chooser.choice(_ENDINGS)).capitalize()
