"""Tatoeba, English and French, split and made ready for the translators that ship.

    REGARD_DATA=... python experiments/translate/tatoeba.py experiments/translate/data/tatoeba

writes train.tsv, valid.tsv and test.tsv: 1000 distinct English sentences to validate with, 2000 to
test with, and the rest; with `--reverse` from French to English, without the pairs whose French
side is held out. What people type is not what these sentences are like, so the pairs to learn from
are changed; everything comes from Tatoeba but the names, and the frames of `frames.py`:

- Nearly all begin with a capital and end with a mark. Some lose either, some are all small, or in
  quotes; apostrophes, and the spaces before French marks, are written in several ways.
- Few have numbers or names other than Tom and Mary: what both sides write alike is replaced by
  other names and numbers, and number words by digits.
- Few have one to three words, and people greet first: these come several times. What stands before
  the first comma ("Yes", "Oui"), and phrases that a statistical aligner links, become pairs.
- Few have more than twelve words: one in eight comes once more with another pair behind it.
- Few have dates, prices, times, ages, titles with surnames, greetings of somebody, or what somebody
  says: frames are filled with them.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frames import Texts, calendar, framed, marks_of_language, said

from regard.files import write_text
from regard.translate.alignment.statistical import statistical_links
from regard.translate.config import DataConfig
from regard.translate.data.split import hash_value
from regard.translate.training.corpus import read_data
from regard.translate.vocabulary import tokenise

#: What is split, and how; the translators that ship remember it, so that they can be tested.
DATA = DataConfig(
    train=("$REGARD_DATA/tatoeba/eng-fra.tsv.gz",),
    source=1,
    target=2,
    valid_pairs=1000,
    test_pairs=2000,
    longest=40,
)

COPIES = {1: 36, 2: 12, 3: 5, 4: 2}  # how often a source of so many words comes
JOINED, SAID = 8, 12  # one in so many
FRAMED, CALENDAR_COPIES = 18000, 40
RENAMED, RENUMBERED = 2, 5  # one in so many of those with a name; copies of those with a number
NAME_PAIRS = 5  # pairs in which both sides write a word alike that makes it a name
SEGMENT_PAIRS, SEGMENT_COPIES = 3, 24  # pairs that begin with the same two segments
PHRASE_PAIRS, PHRASE_SHARE = 4, 0.3  # pairs with a phrase; least share of its translations
PHRASE_COPIES = {1: 4}  # how often a phrase of so many words comes
LONGEST_PHRASE = 2
FREQUENT = 100  # words that end no phrase of several

NAMES = """
Adam Agnes Ahmed Aisha Alan Albert Alex Alexandra Ali Alice Amanda Amir Amy Ana Andrea Andrew Angela
Anna Antoine Arthur Ben Benjamin Bill Bob Boris Brian Bruno Camille Carla Carlos Caroline Cathy
Cécile Charles Charlotte Chen Chloé Chris Christine Claire Clara Claude Daniel David Diana Diego
Dora Dylan Edward Elena Eli Elias Elizabeth Emily Emma Eric Erik Eva Fatima Felix Fiona Frank Fred
Gabriel George Gina Greg Guy Hannah Hans Harry Helen Henry Hiro Hugo Ian Ibrahim Igor Ines Irene
Isaac Ivan Jack Jacques Jamal James Jane Jason Jean Jenny Jim Joan Joe Jonas José Juan Judy Julia
Julie Kai Karen Karim Karl Kate Katia Katie Keith Ken Kenji Kevin Khalid Kim Klaus Kofi Kumiko Kurt
Kyle Lara Laura Lea Léo Leon Li Lily Linda Lisa Louis Lucas Lucy Luis Luke Maggie Malik Marc Marco
Maria Marie Mark Martin Max Maya Mei Mia Michael Mike Mohamed Monica Nadia Nancy Naomi Nick Nicole
Nina Noah Nora Olga Oliver Olivier Omar Oscar Pablo Pat Paul Paula Pedro Peter Pierre Priya Quentin
Rachel Rania Raj Ray Rebecca Rita Robert Rosa Ruth Ryan Sam Sandra Sara Simon Sofia Sonia Sophie
Stefan Steve Susan Sven Tanya Tara Theo Thomas Tim Tina Tom Tony Victor Vera Wang Wei Wendy Will
Xavier Yan Yara Yuki Yusuf Yves Zack Zara Zoe
Amsterdam Athens Berlin Boston Cairo Chicago Dakar Delhi Dublin Geneva Istanbul Kiev Kigali Kobe
Kyoto Lagos Lima Lyon Madrid Manila Miami Milan Montreal Nairobi Nice Osaka Oslo Ottawa Oxford Paris
Porto Prague Quebec Rabat Riga Rome Seattle Seoul Sydney Tokyo Toronto Toulouse Tunis Turin Zurich
""".split()  # noqa: SIM905
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvwz" for vowel in "aeio"]
_OTHER_LETTERS = ("αβγδεηικλμνοπρστω", "абвгдеиклмнопрст", "אבגדהלמנ", "東京大学日本人山田")
_NUMBERS = {
    "two": "deux", "three": "trois", "four": "quatre", "five": "cinq", "six": "six",
    "seven": "sept", "eight": "huit", "nine": "neuf", "ten": "dix", "eleven": "onze",
    "twelve": "douze", "fifteen": "quinze", "twenty": "vingt", "thirty": "trente",
    "forty": "quarante", "fifty": "cinquante",
}  # fmt: skip
#: as people write them; the first are those of English and French translations
_QUOTES = (('"', '"'), ("« ", " »"), ('"', '"'), ("'", "'"), ("“", "”"), ("«", "»"))
_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_VOWELS = "aeiouyhéèàâêîôû"


def names_of(pairs: Sequence[Texts]) -> set[str]:
    """Words with a capital that both sides of several pairs write alike, not at the beginning."""
    counts: Counter[str] = Counter()
    for english, french in pairs:
        later = set(_WORD.findall(english)[1:]) | set(_WORD.findall(french)[1:])
        both = set(_WORD.findall(english)) & set(_WORD.findall(french)) & later
        counts.update(word for word in both if word[0].isupper() and len(word) > 2)
    return {name for name, count in counts.items() if count >= NAME_PAIRS}


def new_name(chooser: random.Random, vowel: bool, known: Sequence[str]) -> str:
    """A name that begins with a vowel, or with none, as French elision wants; some are made up."""
    kind = chooser.random()
    if kind < 0.03:
        letters = chooser.choice(_OTHER_LETTERS)
        return "".join(chooser.choice(letters) for _ in range(chooser.randint(2, 6))).capitalize()
    while True:
        name = chooser.choice(NAMES if kind < 0.6 else known)
        if kind > 0.8:
            syllables = [chooser.choice(_SYLLABLES) for _ in range(chooser.randint(2, 3))]
            start = chooser.choice(["", "", "a", "e", "i", "o"])
            name = (
                start + "".join(syllables) + chooser.choice(["", "", "n", "r", "s", "k"])
            ).title()
        if (name[0].lower() in _VOWELS) == vowel:
            return name


def renamed(texts: Texts, chooser: random.Random, names: set[str], known: Sequence[str]) -> Texts:
    """With other names where both sides have the same ones."""
    both = set(_WORD.findall(texts[0])) & set(_WORD.findall(texts[1])) & names
    table = {name: new_name(chooser, name[0].lower() in _VOWELS, known) for name in sorted(both)}
    english, french = (
        re.sub(r"\b[^\W\d_]+\b", lambda match: table.get(match[0], match[0]), text)
        for text in texts
    )
    return english, french


def renumbered(texts: Texts, chooser: random.Random) -> Texts | None:
    """With other numbers where both sides have the same ones; None where they have not."""
    english, french = texts
    words = [word for word in re.findall(r"[a-z]+", english.lower()) if word in _NUMBERS]
    if len(words) == 1 and re.findall(rf"\b{_NUMBERS[words[0]]}\b", french, re.I).__len__() == 1:
        digits = str(chooser.choice([chooser.randint(2, 99), chooser.randint(2, 999)]))
        english = re.sub(rf"\b{words[0]}\b", digits, english, flags=re.I)
        french = re.sub(rf"\b{_NUMBERS[words[0]]}\b", digits, french, flags=re.I)
        if digits in english and digits in french:
            return priced((english, french), chooser)
        return None
    runs = [re.findall(r"\d+", text) for text in texts]
    if not runs[0] or sorted(runs[0]) != sorted(runs[1]) or len({*runs[0]}) != len(runs[0]):
        return None
    minutes = {*re.findall(r"\d:(\d\d)", english)}
    table = {}
    for run in runs[0]:
        if run in minutes:
            table[run] = f"{chooser.randint(1, 59):02}"
        elif f"{run}:" in english:
            table[run] = str(chooser.randint(1, 12))
        else:
            size = len(run) if len(run) == 4 else chooser.randint(1, 3)
            table[run] = str(chooser.randint(max(2, 10 ** (size - 1)), 10**size - 1))
    changed = tuple(re.sub(r"\d+", lambda match: table[match[0]], text) for text in texts)
    return priced((changed[0], changed[1]), chooser)


def priced(texts: Texts, chooser: random.Random) -> Texts:
    """Some dollars and euros as signs."""
    english, french = texts
    for word, sign in (("dollars", "$"), ("euros", "€")):
        pattern = rf"\b(\d+) {word}\b"
        if re.search(pattern, english) and re.search(pattern, french) and chooser.random() < 0.5:
            cents = f".{chooser.randint(1, 99):02}" if chooser.random() < 0.4 else ""
            english = re.sub(pattern, rf"{sign}\g<1>{cents}", english)
            word = f" {sign}" if chooser.random() < 0.5 else f" {word}"
            french = re.sub(pattern, rf"\g<1>{cents.replace('.', ',')}{word}", french)
    return english, french


def without_mark(text: str) -> str:
    """Without the one stop, question or exclamation mark at the end."""
    bare = text[:-1].rstrip()
    return bare if text[-1:] in ".?!" and bare[-1:].isalnum() else text


def without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFD", text.replace("œ", "oe"))
    return "".join(part for part in parts if not unicodedata.combining(part))


def without_ne(text: str) -> str:
    """French as it is spoken, without the "ne" of "ne … pas"."""
    text = re.sub(r"\b([Jj]|[Cc])e n['’](\w+ pas)\b", r"\1'\2", text)
    return re.sub(r"\b(?:ne |n['’])(\w+ pas)\b", r"\1", text)


@dataclass
class Typist:
    """Writes a source as people type it, and its translation as it should be then.

    Args:
        source: which side is the source: 0, English, or 1, French.
    """

    source: int

    def typed(self, texts: Texts, chooser: random.Random) -> Texts:
        """English and French."""
        changed = list(marks_of_language(texts, self.source))
        if texts[0].endswith("!") and texts[1].endswith("!") and chooser.random() < 1 / 3:
            changed = [text[:-1].rstrip() + "." for text in changed]
        if chooser.random() < 1 / 7:
            bare = [without_mark(text) for text in changed]
            if all(a != b for a, b in zip(bare, changed)):
                changed = bare
        kind = chooser.random()
        if kind < 0.03:
            changed[self.source] = changed[self.source].lower()
        elif kind < 0.12:
            changed = [text[:1].lower() + text[1:] for text in changed]
        elif kind < 0.14:
            marks = {
                self.source: chooser.choice(_QUOTES),
                1 - self.source: _QUOTES[1 - self.source],
            }
            changed = [marks[side][0] + text + marks[side][1] for side, text in enumerate(changed)]
        elif kind < 0.153:
            sign = chooser.choice(["🙂", "😀", "❤️", "👍", ":)", ":-)"])
            changed = [f"{text} {sign}" for text in changed]
        changed[self.source] = self._careless(changed[self.source], chooser)
        return changed[0], changed[1]

    def _careless(self, text: str, chooser: random.Random) -> str:
        """The source alone, as it is written in a hurry, or by another keyboard."""
        kind = chooser.random()
        if kind < 0.06:
            text = text.replace("’", "'").replace("'", "’")
        elif kind < 0.08 and self.source == 0:
            text = text.replace("'", "").replace("’", "")
        if self.source == 1:
            if chooser.random() < 0.4:
                text = re.sub(r"\s+([?!:;])", r"\1", text)
            if chooser.random() < 0.03:
                text = without_accents(text)
            if chooser.random() < 0.1:
                text = without_ne(text)
        return text


def segments(pairs: Sequence[Texts]) -> Iterator[Texts]:
    """What stands before the first comma where many pairs begin alike: "Yes." and "Oui."."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for english, french in pairs:
        if english.count(",") == french.count(",") >= 1:
            first = english.split(",")[0].strip(), french.split(",")[0].strip()
            if all(1 <= len(text.split()) <= 3 for text in first):
                counts[first[0]][first[1]] += 1
    for first_english, by_french in sorted(counts.items()):
        (first_french, count), *_ = by_french.most_common(1)
        if count >= SEGMENT_PAIRS and count >= PHRASE_SHARE * by_french.total():
            yield first_english + ".", first_french + "."


def phrases(pairs: Sequence[Texts]) -> Iterator[Texts]:
    """Phrases that a statistical aligner links to each other and to no other word."""
    words: tuple[dict[str, int], dict[str, int]] = ({}, {})
    tokens = [tuple(tokenise(text) for text in texts) for texts in pairs]
    numbers = [
        [
            [words[side].setdefault(word.lower(), len(words[side])) for word in pair[side]]
            for pair in tokens
        ]
        for side in range(2)
    ]
    counts: Counter[Texts] = Counter()
    for (english, french), links in zip(tokens, statistical_links(*numbers)):
        counts.update({*_linked(english, french, links)})
    totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for phrase_pair, count in counts.items():
        for side in range(2):
            totals[side][phrase_pair[side]] += count
    seen: set[str] = set()
    words_seen = Counter(word.lower() for english, _ in tokens for word in english)
    frequent = {word for word, _ in words_seen.most_common(FREQUENT)}
    for (english, french), count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        likely = min(count / totals[0][english], count / totals[1][french])
        whole = " " not in english or english.split()[-1].lower() not in frequent
        if count >= PHRASE_PAIRS and likely >= PHRASE_SHARE and whole and english not in seen:
            seen.add(english)
            yield english, french


def _linked(
    english: list[str], french: list[str], links: Iterable[tuple[int, int]]
) -> Iterator[Texts]:
    by_source: dict[int, set[int]] = defaultdict(set)
    by_target: dict[int, set[int]] = defaultdict(set)
    for source, target in links:
        by_source[source].add(target)
        by_target[target].add(source)
    for begin in range(len(english)):
        for end in range(begin + 1, min(begin + LONGEST_PHRASE, len(english)) + 1):
            inside = range(begin, end)
            if not (by_source[begin] and by_source[end - 1]):
                continue
            targets = set().union(*(by_source[position] for position in inside))
            low, high = min(targets), max(targets) + 1
            back = set().union(*(by_target[position] for position in range(low, high)))
            if high - low > LONGEST_PHRASE + 1 or not back <= {*inside}:
                continue
            both = english[begin:end], french[low:high]
            if all(re.fullmatch(r"[^\W\d_][\w'’-]*", word) for side in both for word in side):
                first = " ".join(both[0]).replace(" n't", "n't").replace(" '", "'")
                second = " ".join(both[1]).replace("' ", "'").replace("’ ", "’")
                yield _small(first), _small(second)


def _small(phrase: str) -> str:
    """With a small first letter, but for "I" and names of several letters in the middle."""
    return phrase if phrase.split()[0] in ("I", "I'm", "I've") else phrase[0].lower() + phrase[1:]


def as_typed(texts: Texts, chooser: random.Random) -> Texts:
    """A phrase as an input: some with a capital and a stop."""
    kind = chooser.random()
    if kind < 0.5:
        return texts
    english, french = (text[0].upper() + text[1:] for text in texts)
    return (english, french) if kind < 0.7 else (english + ".", french + ".")


def to_learn_from(pairs: list[Texts], source: int) -> Iterator[Texts]:
    """The pairs as they are typed, and those that are made of them."""
    names, typist = names_of(pairs), Typist(source)
    known = sorted(names)
    for texts in pairs:
        chooser = random.Random(hash_value("\t".join(texts), 1))
        words = len(_WORD.findall(texts[source]))
        for _ in range(COPIES.get(words, 1)):
            changed = texts
            if chooser.random() < 1 / RENAMED:
                changed = renamed(texts, chooser, names, known)
            yield typist.typed(changed, chooser)
            if chooser.randrange(SAID) == 0 and words <= 10:
                quoted = said(changed, source, chooser)
                if quoted is not None:
                    yield typist.typed(quoted, chooser)
        for _ in range(RENUMBERED if re.search(r"\d", texts[0]) else 1):
            with_numbers = renumbered(texts, chooser)
            if with_numbers is not None:
                yield typist.typed(with_numbers, chooser)
        if chooser.randrange(JOINED) == 0:
            after = [pairs[chooser.randrange(len(pairs))] for _ in range(chooser.choice([1, 1, 2]))]
            yield typist.typed(tuple(" ".join(side) for side in zip(texts, *after)), chooser)  # type: ignore[arg-type]
    chooser = random.Random(3)
    for _ in range(FRAMED):
        yield typist.typed(framed(chooser, source, NAMES), chooser)
    for texts in [*calendar()] * CALENDAR_COPIES:
        yield typist.typed(as_typed(texts, chooser), chooser)
    for texts in segments(pairs):
        chooser = random.Random(hash_value("\t".join(texts), 2))
        for _ in range(SEGMENT_COPIES):
            yield typist.typed(texts, chooser)
    for texts in phrases(pairs):
        chooser = random.Random(hash_value("\t".join(texts), 2))
        for _ in range(PHRASE_COPIES.get(len(texts[source].split()), 1)):
            yield typist.typed(as_typed(texts, chooser), chooser)


def write(path: Path, pairs: Iterable[Texts], source: int) -> None:
    """A line a pair, a tab between."""
    write_text(path, "".join(f"{texts[source]}\t{texts[1 - source]}\n" for texts in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--reverse", action="store_true", help="from French to English")
    options = parser.parse_args()
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("set REGARD_DATA to the folder that holds tatoeba/eng-fra.tsv.gz")
    parts = read_data(replace(DATA, train=tuple(map(os.path.expandvars, DATA.train))))
    source = int(options.reverse)
    held_out = {pair.target for part in (parts.valid, parts.test) for pair in part}
    options.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", parts.train), ("valid", parts.valid), ("test", parts.test)):
        pairs = [(pair.source, pair.target) for pair in part]
        if name == "train" and options.reverse:
            pairs = [texts for texts in pairs if texts[1] not in held_out]
        lines = [*to_learn_from(pairs, source)] if name == "train" else pairs
        write(options.out / f"{name}.tsv", lines, source)
        print(f"{name}.tsv: {len(part):,} pairs of Tatoeba, {len(lines):,} lines")


if __name__ == "__main__":
    main()
