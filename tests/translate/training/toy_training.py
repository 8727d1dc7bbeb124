"""A folder with a small task, reversing letters, and configurations that train on it in seconds."""

import random
from pathlib import Path

from regard.translate.config import Config

LETTERS = "abcdefghij"


def write_pairs(path: Path, count: int, seed: int, shortest: int = 3, longest: int = 6) -> Path:
    chooser = random.Random(seed)
    lines = []
    for _ in range(count):
        letters = [chooser.choice(LETTERS) for _ in range(chooser.randint(shortest, longest))]
        lines.append(" ".join(letters) + "\t" + " ".join(reversed(letters)) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def toy_table(folder: Path, count: int = 200) -> dict:
    folder.mkdir(exist_ok=True)
    train = write_pairs(folder / "train.tsv", count, seed=1)
    valid = write_pairs(folder / "valid.tsv", 40, seed=2)
    return {
        "data": {"train": [str(train)], "valid": [str(valid)], "repeated": True},
        "vocabulary": {"tokenised": True},
        "model": {"name": "bahdanau", "embedding": 16, "hidden": 24, "dropout": 0.2},
        "training": {
            "epochs": 4,
            "batch_tokens": 200,
            "log_every": 1,
            "save_every": 3,
            "validation": {"average": 2},
            "optimiser": {"rate": 3e-3},
        },
        "search": {"beam": 2},
    }


def toy(folder: Path, *settings: str, count: int = 200) -> Config:
    return Config.from_table(toy_table(folder, count), settings)
