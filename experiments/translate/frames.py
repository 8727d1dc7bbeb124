"""Sentences that Tatoeba has few of: dates, prices, times, ages, names, greetings, and speech.

Each frame is an English and a French sentence with slots. What fills them is a name, a number, the
calendar, or a short pair of Tatoeba. A source has every form that people type, a translation one.
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
NAMED = [
    ("My name is {name}.", "Je m'appelle {name}."),
    ("His name is {name}.", "Il s'appelle {name}."),
    ("Her name is {name}.", "Elle s'appelle {name}."),
    ("Our dog's name is {name}.", "Notre chien s'appelle {name}."),
    ("My {relative}'s name is {name}.", "{my} {relative} s'appelle {name}."),
    ("What is your {relative}'s name?", "Comment s'appelle {your} {relative} ?"),
    ("What is your name, {address}?", "Comment vous appelez-vous, {address} ?"),
    ("What is your name, little one?", "Comment t'appelles-tu, mon petit ?"),
    ("What is this village called?", "Comment s'appelle ce village ?"),
    ("{name} comes from {town}.", "{name} vient de {town}."),
    ("What time is it in {town}?", "Quelle heure est-il à {town} ?"),
    ("I love you, {name}.", "Je t'aime, {name}."),
    ("{name}, I love you.", "{name}, je t'aime."),
    ("I love {name}.", "J'aime {name}."),
    ("How do I get to {town}?", "Comment aller à {town} ?"),
]
NUMBERED = [
    ("I am {number} years old.", "J'ai {number} ans."),
    ("He is {number} years old.", "Il a {number} ans."),
    ("She is {number} years old.", "Elle a {number} ans."),
    ("We are both {number} years old.", "Nous avons tous les deux {number} ans."),
    ("My {relative} is {number} years old.", "{my} {relative} a {number} ans."),
    ("{name} is {number} years old.", "{name} a {number} ans."),
    ("There are {number} days left.", "Il reste {number} jours."),
    ("There are {number} people here.", "Il y a {number} personnes ici."),
    ("There are {number} houses in the village.", "Il y a {number} maisons dans le village."),
    ("There are {number} pages in this book.", "Il y a {number} pages dans ce livre."),
    ("It is the {ordinal} time.", "C'est la {ordinal} fois."),
    ("It is on the {ordinal} floor.", "C'est au {ordinal} étage."),
    ("We live on the {ordinal} floor.", "Nous habitons au {ordinal} étage."),
    ("the {ordinal} day", "le {ordinal} jour"),
]
TIMES = [
    ("It is {time} now.", "Il est {time} maintenant."),
    ("It is already {time}.", "Il est déjà {time}."),
    ("I get up at {time}.", "Je me lève à {time}."),
    ("We eat at {time}.", "Nous mangeons à {time}."),
    ("Come at {time}.", "Venez à {time}."),
    ("The bus leaves at {time}.", "Le bus part à {time}."),
    ("The plane lands at {time}.", "L'avion atterrit à {time}."),
    ("The film begins at {time}.", "Le film commence à {time}."),
    ("The shop closes at {time}.", "Le magasin ferme à {time}."),
    ("The course is at {time}.", "Le cours est à {time}."),
    ("at {time}", "à {time}"),
]
GREETINGS = [
    ("Hello, {address}.", "Bonjour, {address}."),
    ("Hi, {address}!", "Salut, {address} !"),
    ("Hey, {address}!", "Coucou, {address} !"),
    ("Good evening, {address}.", "Bonsoir, {address}."),
    ("Good night, {address}.", "Bonne nuit, {address}."),
    ("Goodbye, {address}.", "Au revoir, {address}."),
    ("See you soon, {address}.", "À bientôt, {address}."),
    ("Welcome, {address}!", "Bienvenue, {address} !"),
    ("Welcome to {town}!", "Bienvenue à {town} !"),
    ("Happy birthday, {address}!", "Joyeux anniversaire, {address} !"),
    ("Merry Christmas, {address}!", "Joyeux Noël, {address} !"),
    ("Happy New Year, {address}!", "Bonne année, {address} !"),
    ("Enjoy your meal, {address}!", "Bon appétit, {address} !"),
    ("You're welcome, {address}.", "De rien, {address}."),
    ("You're welcome, {address}.", "Je vous en prie, {address}."),
    ("Please, {address}.", "S'il vous plaît, {address}."),
    ("Sorry, {address}.", "Pardon, {address}."),
    ("Help, {address}!", "À l'aide, {address} !"),
    ("Come in, {address}!", "Entrez, {address} !"),
    ("Come in and sit down.", "Entrez et asseyez-vous."),
    ("Go straight ahead, {address}.", "Allez tout droit, {address}."),
    ("Go straight ahead to the church.", "Allez tout droit jusqu'à l'église."),
]
SIGNS = [
    ("No parking", "Défense de stationner"), ("No fishing", "Défense de pêcher"),
    ("No swimming", "Défense de nager"), ("No running", "Défense de courir"),
    ("No singing", "Défense de chanter"), ("No eating", "Défense de manger"),
    ("No talking", "Défense de parler"), ("No dancing", "Défense de danser"),
    ("No entry", "Défense d'entrer"), ("Do not open", "Ne pas ouvrir"),
    ("Do not drink", "Ne pas boire"), ("Closed on {weekday}", "Fermé le {weekday}"),
]  # fmt: skip
MENTIONED = [
    ('What does "{word}" mean?', "Que veut dire « {word} » ?"),
    ('What does the word "{word}" mean?', "Que veut dire le mot « {word} » ?"),
    ("What does this sentence mean?", "Que veut dire cette phrase ?"),
    ('He wrote "{word}" on the wall.', "Il a écrit « {word} » sur le mur."),
    ('The word "{word}" is new.', "Le mot « {word} » est nouveau."),
    ('I don\'t know the word "{word}".', "Je ne connais pas le mot « {word} »."),
    ('How do you say "{word}" in English?', "Comment dit-on « {word} » en anglais ?"),
]
#: of a family: English, French, and "my" and "your" before it in French
RELATIVES = [
    ("brother", "frère", "Mon", "ton"), ("sister", "sœur", "Ma", "ta"),
    ("father", "père", "Mon", "ton"), ("mother", "mère", "Ma", "ta"), ("son", "fils", "Mon", "ton"),
    ("daughter", "fille", "Ma", "ta"), ("uncle", "oncle", "Mon", "ton"),
    ("aunt", "tante", "Ma", "ta"), ("wife", "femme", "Ma", "ta"), ("husband", "mari", "Mon", "ton"),
]  # fmt: skip
ADDRESSES = [
    ("sir", "Monsieur"), ("madam", "Madame"), ("my friend", "mon ami"), ("my friends", "mes amis"),
    ("everyone", "tout le monde"), ("my love", "mon amour"), ("Mum", "maman"), ("Dad", "papa"),
]  # fmt: skip
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
    ("?", "{} asked Tom.", "{} demanda Tom."), ("?", "{} asked the boy.", "{} demanda le garçon."),
    (".", "{} she whispered.", "{} murmura-t-elle."),
    (".", "{} he whispered.", "{} a-t-il murmuré."),
    ("!", "{} he shouted.", "{} cria-t-il."),
    ("!", "{} she shouted.", "{} cria-t-elle."), ("", "{}", "{}"), ("", "{}", "{}"),
    ("", "He said, {}", "Il a dit : {}"), ("", "She said {}", "Elle a dit {}"),
    ("", "Tom said, {}", "Tom a dit : {}"), ("", "She answered, {}", "Elle répondit : {}"),
]  # fmt: skip
_ENGLISH_QUOTES = (('"', '"'), ('"', '"'), ("“", "”"))
_FRENCH_QUOTES = (("« ", " »"), ("« ", " »"), ('"', '"'), ("“", "”"))


def framed(chooser: random.Random, source: int, names: Sequence[str]) -> Texts:
    """A frame, filled; `source` is the side that has every form: 0, English, or 1, French."""
    frames = [DATES, PRICES, PEOPLE, NAMED, NUMBERED, TIMES, GREETINGS, SIGNS, MENTIONED]
    english, french = chooser.choice(chooser.choice(frames))
    slots: dict[str, Texts] = {
        **_date(chooser, source),
        "price": _price(chooser, source),
        "time": _time(chooser, source),
        **_person(chooser),
        **_relative(chooser),
        **_number(chooser, source),
        "word": (_made_up(chooser).lower(),) * 2,
        "name": (chooser.choice(names),) * 2,
        "town": (_made_up(chooser),) * 2,
        "address": (chooser.choice(names),) * 2,
    }
    if chooser.random() < 0.5:
        slots["address"] = chooser.choice(ADDRESSES)
    texts = [
        frame.format(**{name: words[side] for name, words in slots.items()})
        for side, frame in enumerate((english, french))
    ]
    if source == 1:
        opening, closing = chooser.choice(_FRENCH_QUOTES)
        texts[1] = texts[1].replace("« ", opening).replace(" »", closing)
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


def _date(chooser: random.Random, source: int) -> dict[str, Texts]:
    month, day = chooser.choice(list(MONTHS)), chooser.randint(1, 31)
    year = str(chooser.randint(1900, 2030)) if chooser.random() < 0.4 else ""
    forms = ["{m} {d}", "{m} {d}{e}", "{d} {m}", "the {d}{e} of {m}"]
    form = chooser.choice(forms) if source == 0 else forms[0]
    english = form.format(m=month, d=day, e=_ending(day))
    if year:
        english += f", {year}" if form.startswith("{m}") else f" {year}"
    french = f"{'1er' if day == 1 else day} {MONTHS[month]} {year}".strip()
    return {
        "date": (english, french),
        "month": (month, MONTHS[month]),
        "weekday": chooser.choice([*WEEKDAYS.items()]),
    }


def _ending(number: int) -> str:
    """Of an English ordinal."""
    return {1: "st", 2: "nd", 3: "rd"}.get(
        number % 10 if number % 100 not in (11, 12, 13) else 0, "th"
    )


def _price(chooser: random.Random, source: int) -> Texts:
    amount = chooser.choice(
        [chooser.randint(2, 99), chooser.randint(2, 99), chooser.randint(2, 5000)]
    )
    cents = f"{chooser.randint(1, 99):02}" if amount < 100 and chooser.random() < 0.4 else ""
    sign, word = chooser.choice([("$", "dollars"), ("€", "euros")])
    english, french = (f"{amount}{mark}{cents}" if cents else f"{amount}" for mark in ".,")
    if chooser.random() < 1 / 3:
        return f"{english} {word}", f"{french} {word}"
    if source == 0:
        return f"{sign}{english}", f"{french} {word}"
    return f"{sign}{english}", french + chooser.choice([" ", " ", ""]) + sign


def _time(chooser: random.Random, source: int) -> Texts:
    hour, minute = (
        chooser.randint(1, 23),
        chooser.choice([0, 0, chooser.randint(1, 59), 15, 30, 45]),
    )
    english = f"{hour}:{minute:02}" if minute or hour > 12 else f"{hour} o'clock"
    french = f"{hour} h {minute:02}" if minute else f"{hour} heure{'s' if hour > 1 else ''}"
    if source == 1 and chooser.random() < 0.4:
        french = f"{hour}{chooser.choice(['h', ':'])}{minute:02}" if minute else f"{hour} h"
    return english, french


def _number(chooser: random.Random, source: int) -> dict[str, Texts]:
    number, order = str(chooser.randint(2, 99)), chooser.randint(2, 30)
    ending = chooser.choice(["e", "e", "ème"]) if source == 1 else "e"
    return {"number": (number, number), "ordinal": (f"{order}{_ending(order)}", f"{order}{ending}")}


def _relative(chooser: random.Random) -> dict[str, Texts]:
    english, french, my, your = chooser.choice(RELATIVES)
    return {"relative": (english, french), "my": ("My", my), "your": ("your", your)}


def _person(chooser: random.Random) -> dict[str, Texts]:
    english, french, to = chooser.choice(TITLES)
    surname = chooser.choice(SURNAMES) if chooser.random() < 0.5 else _made_up(chooser)
    return {
        "person": (f"{english} {surname}", f"{french} {surname}"),
        "to_person": ("", f"{to} {surname}"),
    }


def _made_up(chooser: random.Random) -> str:
    syllables: Sequence[str] = [chooser.choice(_SYLLABLES) for _ in range(chooser.randint(1, 3))]
    return ("".join(syllables) + chooser.choice(_ENDINGS)).capitalize()
