"""Make the small translators that ship with the package out of finished runs.

    REGARD_DATA=FOLDER python experiments/translate/ship.py RUN [--reverse]

Takes the better of the run's best and averaged weights (by chrF of its validation pairs, which
short sentences shake less than BLEU), stores them in half precision with the attribution that the
sentences ask for, and says what they score. `--reverse` is from French to English.
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

SHIPPED = Path(__file__).parents[2] / "src/regard/translate/shipped"
ATTRIBUTION = (
    "Trained on sentences of Tatoeba (tatoeba.org) in the pairs of manythings.org/anki, 2019, "
    "CC BY 2.0 FR: https://creativecommons.org/licenses/by/2.0/fr/"
)
LARGEST = 12_500_000  # both directions together have at most 25 MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="the folder of the run")
    parser.add_argument("--reverse", action="store_true", help="from French to English")
    options = parser.parse_args()
    candidates: dict[float, Checkpoint] = {}
    for name in ("best", "average"):
        checkpoint = load_checkpoint(options.run / f"{name}.safetensors")
        valid = read_data(checkpoint.config.data).valid
        texts = Translator(checkpoint).translate([pair.source for pair in valid], show=None)
        scores = score([ranked[0].text for ranked in texts], [pair.target for pair in valid])
        print(f"{name}, validation: {scores.bleu}, {scores.chrf}")
        candidates[scores.chrf.value] = checkpoint
    chosen = candidates[max(candidates)]
    languages = ["French", "English"] if options.reverse else ["English", "French"]
    kept = {key: chosen.extra[key] for key in ("head", "confidence", "familiarity")}
    extra = {**kept, "languages": languages, "attribution": ATTRIBUTION}
    # Both directions hold out the same English sentences, so both remember the split by English.
    config = replace(chosen.config.without_paths(), data=DATA)
    path = SHIPPED / f"{'-'.join(languages).lower()}.safetensors"
    save_checkpoint(path, replace(chosen, config=config, extra=extra), dtype=torch.float16)
    size = path.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"{path.name} has {size:,} bytes, more than {LARGEST:,}")
    print(f"{path.name}: {size:,} bytes")


if __name__ == "__main__":
    main()
