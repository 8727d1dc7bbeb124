"""Alignment error on literary text: translators beside IBM's first model.

    REGARD_DATA=... python experiments/translate/literary.py [FORWARD [BACKWARD]] [--pairs 40000]

`literary/` has 20 sentences in the manner of novels of the nineteenth century, in our words, and
links that one person drew (possible ones where a phrase translates a phrase). IBM's first model
(Brown et al., 1993) learns from them, alone or with pairs of Tatoeba, and links every French word
with its most probable English word, or none. FORWARD translates English to French (the shipped
translator unless told), BACKWARD French to English.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from regard.translate import align
from regard.translate.alignment import Links, error_rate, read_links
from regard.translate.data import TableFile
from regard.translate.vocabulary import tokenise

FOLDER = Path(__file__).with_name("literary")
Words = list[str]


def ibm1(pairs: Sequence[tuple[Words, Words]], iterations: int = 5) -> dict[tuple[str, str], float]:
    """p(French word | English word), where "" is the English word of those that have none."""
    table: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        for english, french in pairs:
            for word in french:
                whole = sum(table[word, other] for other in (*english, ""))
                for other in (*english, ""):
                    share = table[word, other] / whole
                    counts[word, other] += share
                    totals[other] += share
        table = defaultdict(float, {key: n / totals[key[1]] for key, n in counts.items()})
    return table


def links(table: dict[tuple[str, str], float], english: Words, french: Words) -> Links:
    """Each French word with its most probable English word, the first of equals."""
    pairs = set()
    for target, word in enumerate(french):
        best = max(range(len(english)), key=lambda source: table[word, english[source]])
        if table[word, english[best]] > table[word, ""]:
            pairs.add((best, target))
    return frozenset(pairs)


def tatoeba(count: int) -> list[tuple[Words, Words]]:
    """The words of pairs of Tatoeba, at even distances in the file."""
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("set REGARD_DATA to the folder that holds tatoeba/")
    file = Path(os.environ["REGARD_DATA"]) / "tatoeba" / "eng-fra.tsv.gz"
    pairs = list(TableFile(file))
    chosen = islice(pairs, 0, None, max(1, len(pairs) // max(1, count)))
    return [(tokenise(pair.source.lower()), tokenise(pair.target.lower())) for pair in chosen]


def main() -> None:
    """Print the alignment error of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forward", nargs="?", default="english-french", help="checkpoint")
    parser.add_argument("backward", nargs="?", help="checkpoint, French to English")
    parser.add_argument("--pairs", type=int, default=40_000, help="of Tatoeba, for IBM's model")
    options = parser.parse_args()
    english, french = (
        (FOLDER / f"literary.{name}").read_text(encoding="utf-8").splitlines()
        for name in ("en", "fr")
    )
    gold = read_links(FOLDER / "literary.gold")
    text = [(one.lower().split(), other.lower().split()) for one, other in zip(english, french)]
    for name, pairs in (("the text", text), ("text and Tatoeba", text + tatoeba(options.pairs))):
        table = ibm1(pairs)
        print(f"IBM 1, {name:20} {error_rate([links(table, *pair) for pair in text], gold)}")
    for rule in ("strongest", "mutual"):
        one = align(options.forward, english, french, rule=rule)
        print(f"forward, {rule:18} {error_rate(one.links, gold)}")
        if options.backward:
            both = align(options.forward, english, french, backward=options.backward, rule=rule)
            print(f"grow-diag, {rule:16} {error_rate(both.links, gold)}")


if __name__ == "__main__":
    main()
