"""Translations of everyday inputs, beside plain judgement of them.

    python experiments/translate/everyday.py CHECKPOINT [--list FILE] [--judged FILE]

prints a line for each input: the input, its translation, and + or − where the file of judgements
(lines of input, translation and mark, separated by tabs) has judged this very translation; then how
many of the judged are acceptable. CHECKPOINT may be english-french or french-english, which ship.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from regard.translate.translator import Translator

FOLDER = Path(__file__).parent


def judgements(path: Path) -> dict[tuple[str, str], str]:
    """The mark of each judged input and translation."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    cells = [line.split("\t") for line in lines]
    return {(text, translation): mark for text, translation, mark in cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--list", type=Path, default=FOLDER / "everyday-en.txt")
    parser.add_argument("--judged", type=Path, default=FOLDER / "everyday-judged.tsv")
    options = parser.parse_args()
    texts = options.list.read_text(encoding="utf-8").splitlines()
    translator = Translator.load(options.checkpoint)
    marks = judgements(options.judged)
    counts = {"+": 0, "-": 0, "": 0}
    for text, (best, *_) in zip(texts, translator.translate(texts, weights=False)):
        mark = marks.get((text, best.text), "")
        counts[mark] += 1
        print(f"{text}\t{best.text}\t{mark}")
    judged = counts["+"] + counts["-"]
    print(f"{counts['+']} of {judged} judged are acceptable; {counts['']} are not judged")


if __name__ == "__main__":
    main()
