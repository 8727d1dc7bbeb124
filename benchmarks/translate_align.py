"""Alignment error on the 447 Hansards sentences: aligners and models of ours, on the same pairs.

    REGARD_DATA=... python benchmarks/translate_align.py [--quick] [--pairs 50000]
        [--models FORWARD BACKWARD] [--peers .venv-peers/bin/python]

First the published links of a strong aligner (Dou & Neubig, 2021) are scored: 4.07 %.
eflomal (Östling & Tiedemann, 2016) is a Bayesian aligner without a network; it learns from the
pairs and the gold sentences together, never from gold links. It needs an environment of its own
(`make bench` makes it), whose Python `--peers` names. The text is that of
`experiments/translate/hansards.py`, which also writes what models are trained on; `--models` are
their checkpoints, English to French and French to English.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "translate"))
from align_hansards import RULES, forced, table
from hansards import data_folder, gold_text, training

from regard.translate.alignment import (
    SYMMETRISERS,
    Gold,
    error_rate,
    read_links,
    statistical_links,
    symmetrise,
)

# What the other environment runs: both directions; links are (source, target) in both files.
_EFLOMAL = """
import sys
from eflomal import Aligner
source, target, forward, backward = sys.argv[1:]
with open(source, encoding="utf-8") as one, open(target, encoding="utf-8") as other:
    Aligner().align(one, other, links_filename_fwd=forward, links_filename_rev=backward)
"""


def eflomal(python: Path, pairs: list[tuple[str, str]], gold: list[Gold]) -> None:
    """Print what eflomal reaches with these pairs; the last ones have the gold links."""
    with tempfile.TemporaryDirectory() as made:
        names = [str(Path(made) / name) for name in ("source", "target", "forward", "backward")]
        for side, name in enumerate(names[:2]):
            text = "".join(pair[side] + "\n" for pair in pairs)
            Path(name).write_text(text, encoding="utf-8")
        began = time.perf_counter()
        subprocess.run([str(python), "-c", _EFLOMAL, *names], check=True)
        seconds = time.perf_counter() - began
        forward, backward = (
            [one.sure for one in read_links(name)[-len(gold) :]] for name in names[2:]
        )
    print(f"eflomal, {len(pairs)} pairs, {seconds:.0f} s")
    print(f"  forward              {error_rate(forward, gold)}")
    print(f"  backward             {error_rate(backward, gold)}")
    for how in SYMMETRISERS:
        links = [symmetrise(one, other, how) for one, other in zip(forward, backward)]
        print(f"  {how:20} {error_rate(links, gold)}")


def counted(pairs: list[tuple[str, str]], gold: list[Gold]) -> None:
    """Print what our aligner by counting reaches with these pairs; the last have gold links."""
    numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
    sides = [
        [[table.setdefault(word, len(table)) for word in pair[side].split()] for pair in pairs]
        for side, table in enumerate(numbers)
    ]
    began = time.process_time()
    links = statistical_links(*sides)
    seconds = time.process_time() - began
    print(f"statistical_links, {len(pairs)} pairs, {seconds:.0f} s of the processor")
    print(f"  both directions      {error_rate(links[-len(gold) :], gold)}")


def main() -> None:
    """Print the figures of eflomal, then those of the models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2000 pairs: is all there?")
    parser.add_argument("--pairs", type=int, help="of the training text; 50,000 unless told")
    parser.add_argument("--models", type=Path, nargs=2, help="checkpoints: en to fr, fr to en")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers/bin/python"))
    options = parser.parse_args()
    pairs = options.pairs or (2000 if options.quick else 50_000)
    folder = data_folder()
    text, gold = gold_text(folder), read_links(folder / "enfr.gold", first=1)
    strong = [one.sure for one in read_links(folder / "enfr.awesome-align.out")]
    print(f"awesome-align, its links as published\n  {error_rate(strong, gold)}")
    kept = [pair for pair in training(folder, pairs) if all(pair)]
    counted(kept + text, gold)
    eflomal(options.peers, kept + text, gold)
    if options.models:
        forward, backward = options.models
        there, back = forced(forward, text), forced(backward, [pair[::-1] for pair in text])
        for name, rule in RULES.items():
            Console(width=140).print(table(there, back, gold, rule, name))


if __name__ == "__main__":
    main()
