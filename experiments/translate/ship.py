"""Make the small translator that ships with the package out of a finished run.

    REGARD_DATA=FOLDER python experiments/translate/ship.py RUN

Takes the better of the run's best and averaged weights (by chrF of its validation pairs, which
short sentences shake less than BLEU), stores them in half precision with the attribution that the
sentences ask for, and says what they score.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from tatoeba import DATA

from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.translate.evaluation import score
from regard.translate.training.corpus import read_data
from regard.translate.translator import Translator

SHIPPED = Path(__file__).parents[2] / "src/regard/translate/shipped/english-french.safetensors"
ATTRIBUTION = (
    "Trained on sentences of Tatoeba (tatoeba.org) in the pairs of manythings.org/anki, 2019, "
    "CC BY 2.0 FR: https://creativecommons.org/licenses/by/2.0/fr/"
)
LARGEST = 8_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="the folder of the run")
    run = parser.parse_args().run
    found: dict[float, Checkpoint] = {}
    for name in ("best", "average"):
        checkpoint = load_checkpoint(run / f"{name}.safetensors")
        valid = read_data(checkpoint.config.data).valid
        texts = Translator(checkpoint).translate([pair.source for pair in valid], show=None)
        scores = score([one[0].text for one in texts], [pair.target for pair in valid])
        print(f"{name}, validation: {scores.bleu}, {scores.chrf}")
        found[scores.chrf.value] = checkpoint
    chosen = found[max(found)]
    extra = {"languages": ["English", "French"], "attribution": ATTRIBUTION}
    SHIPPED.parent.mkdir(exist_ok=True)
    config = replace(chosen.config.without_paths(), data=DATA)
    save_checkpoint(SHIPPED, replace(chosen, config=config, extra=extra), dtype=torch.float16)
    size = SHIPPED.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{SHIPPED.name} has {size:,} bytes, more than {LARGEST:,}")
    print(f"{SHIPPED.name}: {size:,} bytes")


if __name__ == "__main__":
    main()
