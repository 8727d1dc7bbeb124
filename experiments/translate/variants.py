"""Every model of the registry on Multi30k English to French: one training each, one table.

    REGARD_DATA=… python experiments/translate/variants.py [--minutes 12] [--only dot,qkv]

Resumable: what is finished is not trained again, what was cut off goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from regard.translate.checkpoint import load_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import names
from regard.translate.training import Validated, Watcher, train

HERE = Path(__file__).parent
#: What a model needs besides its name: a Transformer is as wide as its embeddings.
SETTINGS = {
    "transformer": [
        "model.feed_forward=512",
        "model.layers=3",
        "training.schedule.warmup=1000",
    ]
}


class Lines(Watcher):
    """One line a look."""

    def __init__(self, name: str) -> None:
        self.name = name

    def validated(self, step: int, found: Validated, best: bool) -> None:
        print(f"{self.name}: step {step}, validation loss {found.loss:.4f}", flush=True)


def result_of(name: str, runs: Path, minutes: float) -> dict[str, float]:
    """Train one model, or read what came of it."""
    done = runs / name / "result.json"
    if done.exists():
        found: dict[str, float] = json.loads(done.read_text())
        return found
    settings = [f"model.name={name}", *SETTINGS.get(name, [])]
    config = Config.from_file(HERE / "multi30k-en-fr.toml", settings)
    trained = train(config, runs / name, resume=True, minutes=minutes, watcher=Lines(name))
    if trained.ending == "asked":
        raise SystemExit("stopped; the same command goes on")
    model = load_checkpoint(trained.folder.best).model
    test = trained.scores["average", "test"]
    found = {
        "parameters": sum(one.numel() for one in model.parameters()),
        "minutes": trained.seconds / 60,
        "steps": trained.step,
        "valid BLEU": trained.scores["average", "valid"].bleu.value,
        "test BLEU": test.bleu.value,
        "test chrF": test.chrf.value,
    }
    done.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(results: dict[str, dict[str, float]]) -> str:
    """The results as Markdown."""
    lines = [
        "| model | parameters | minutes | steps | valid BLEU | test BLEU | test chrF |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in results.items():
        numbers = [f"{found['parameters'] / 1e6:.1f} M", f"{found['minutes']:.1f}"]
        numbers += [f"{found['steps']:.0f}"]
        numbers += [f"{found[key]:.2f}" for key in ("valid BLEU", "test BLEU", "test chrF")]
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--only", default=",".join(names()))
    parser.add_argument("--runs", type=Path, default=HERE / "runs" / "variants")
    options = parser.parse_args()
    results = {
        name: result_of(name, options.runs, options.minutes) for name in options.only.split(",")
    }
    print(table(results))


if __name__ == "__main__":
    main()
