"""The Hansards, cut and spelt one way: training text, and the 447 sentences with gold links.

The gold text is cut into words, has accents, and writes contractions in full ("du" is "de le",
"l'heure" is "le heure", "don't" is "do not"). The training text is raw and has no accents. Here
both become the same: lower case, no accents, contractions in full, a space between all words.

    REGARD_DATA=... python experiments/translate/hansards.py OUT [--pairs 100000] [--gold]

writes train.en, train.fr, gold.en, gold.fr to OUT. Train on them with
`vocabulary.tokenised = true`, or with pieces of words.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import unicodedata
from pathlib import Path

_TOKEN = re.compile(
    r"""
      [A-Za-z]+\.(?:[A-Za-z]\.)+           # p.m., U.S.
    | (?:Mr|Mrs|Ms|Dr|St|No|Hon|hon|M|Me|MM|Mme)\.(?=\s)  # titles keep their stop
    | \d+(?:[.,]\d+)*                      # numbers
    | '[sS]\b                              # the English genitive
    | \.\.\. | --                          # dots and dashes
    | [^\W\d_]+'?                          # words, with what elision leaves behind
    | [^\s\w]                              # any other sign
    | \w+
    """,
    re.VERBOSE,
)
_ENGLISH = {
    "don't": "do not", "doesn't": "does not", "didn't": "did not", "isn't": "is not",
    "aren't": "are not", "wasn't": "was not", "weren't": "were not", "won't": "will not",
    "can't": "cannot", "couldn't": "could not", "wouldn't": "would not", "shouldn't": "should not",
    "haven't": "have not", "hasn't": "has not", "hadn't": "had not", "it's": "it is",
    "that's": "that is", "let's": "let us", "there's": "there is", "what's": "what is",
    "i'm": "i am", "we're": "we are", "they're": "they are", "you're": "you are",
    "i've": "i have", "we've": "we have", "they've": "they have", "you've": "you have",
    "i'll": "i will", "we'll": "we will", "they'll": "they will", "i'd": "i would",
}  # fmt: skip
_FRENCH = {
    "du": "de le", "des": "de les", "au": "a le", "aux": "a les",
    "l'": "le", "d'": "de", "n'": "ne", "qu'": "que", "s'": "se", "j'": "je", "m'": "me",
    "c'": "ce", "t'": "te", "jusqu'": "jusque", "lorsqu'": "lorsque", "quelqu'": "quelque",
    "puisqu'": "puisque",
}  # fmt: skip


def spelt(word: str) -> str:
    """A word in lower case without accents; never empty, never cut."""
    parts = unicodedata.normalize("NFKD", word.lower().replace("œ", "oe").replace("æ", "ae"))
    return "".join(letter for letter in parts if not unicodedata.combining(letter)) or word


def english(text: str) -> list[str]:
    """The words of raw English.

    >>> english("Canada's minister doesn't know: two-thirds, $6.42, Mr. Speaker!")
    ['canada', "'s", 'minister', 'does', 'not', 'know', ':', 'two', '-', 'thirds', ',', '$', '6.42',
     ',', 'mr.', 'speaker', '!']
    """
    full = re.sub(
        r"[A-Za-z]+'[A-Za-z]+", lambda found: _ENGLISH.get(found[0].lower(), found[0]), text
    )
    return [
        part for token in _TOKEN.findall(re.sub(r"(?<=\w)'(?=s\b)", " '", full, flags=re.I))
        for part in _without_mark(spelt(token))
    ]  # fmt: skip


def french(text: str) -> list[str]:
    """The words of raw French.

    >>> french("C'est aujourd'hui l'heure du depute, dit-il au ministre.")
    ['ce', 'est', "aujourd'", 'hui', 'le', 'heure', 'de', 'le', 'depute', ',', 'dit', '-', 'il',
     'a', 'le', 'ministre', '.']
    """
    words = (spelt(token) for token in _TOKEN.findall(text))
    return [part for word in words for part in _FRENCH.get(word, word).split()]


def _without_mark(word: str) -> list[str]:
    """An apostrophe behind an English word is a word of its own."""
    return [word[:-1], "'"] if len(word) > 1 and word.endswith("'") else [word]


def training(folder: Path, pairs: int) -> list[tuple[str, str]]:
    """The first pairs of the training text, cut and spelt."""
    sides = []
    for name, cut in (("en", english), ("fr", french)):
        with gzip.open(folder / f"train.{name}.gz", "rt", encoding="utf-8") as lines:
            sides.append([" ".join(cut(line)) for _, line in zip(range(pairs), lines)])
    return list(zip(*sides, strict=True))


def gold_text(folder: Path) -> list[tuple[str, str]]:
    """The sentences that have gold links; each word stays one word."""
    pairs = []
    for line in (folder / "enfr.src-tgt").read_text(encoding="utf-8").splitlines():
        source, target = line.split("|||")
        pairs.append(tuple(" ".join(map(spelt, side.split())) for side in (source, target)))
    return pairs


def data_folder() -> Path:
    """Where the Hansards are: the folder `hansards` of `REGARD_DATA`."""
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("set REGARD_DATA to the folder that holds hansards/")
    return Path(os.environ["REGARD_DATA"]) / "hansards"


def main() -> None:
    """Write the files, and say how much of the gold text the training text knows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--pairs", type=int, default=100_000, help="of the training text")
    parser.add_argument(
        "--gold", action="store_true", help="train on the gold sentences too (never their links)"
    )
    options = parser.parse_args()
    folder = data_folder()
    kept = [pair for pair in training(folder, options.pairs) if all(pair)]
    gold = gold_text(folder)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", kept + gold * options.gold), ("gold", gold)):
        for side, language in enumerate(("en", "fr")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (options.out / f"{name}.{language}").write_text(text, encoding="utf-8")
    for side, language in enumerate(("English", "French")):
        known = {word for pair in kept for word in pair[side].split()}
        words = [word for pair in gold for word in pair[side].split()]
        new = sum(word not in known for word in words)
        print(f"{language}: {new} of {len(words)} gold words are not in {len(kept)} training pairs")


if __name__ == "__main__":
    main()
