"""Real learning, end to end: reverse a sequence, and translate a small language."""

import itertools
import random

import torch
from toy_training import toy_table, write_pairs

from regard.tables import write_toml
from regard.translate.checkpoint import load_checkpoint
from regard.translate.config import Config, SearchOptions
from regard.translate.data import read_pairs
from regard.translate.training import train, translate_texts

PEOPLE = {"I": "je", "you": "tu", "he": "il", "she": "elle"}
VERBS = {"see": "vois", "know": "connais", "read": "lis"}
THINGS = {
    "the cat": "le chat", "the dog": "le chien", "the house": "la maison", "the book": "le livre",
    "the white cat": "le chat blanc", "the white dog": "le chien blanc",
    "the white house": "la maison blanche", "the white book": "le livre blanc",
}  # fmt: skip


def test_reversing_is_learned(tmp_path):
    """Section 2's toy, small: with attention a model reverses what it has not seen."""
    write_pairs(tmp_path / "train.tsv", 1500, seed=1, shortest=3, longest=5)
    write_pairs(tmp_path / "valid.tsv", 100, seed=2, shortest=3, longest=5)
    config = Config.from_table(
        {
            "data": {"train": str(tmp_path / "train.tsv"), "valid": str(tmp_path / "valid.tsv")},
            "vocabulary": {"tokenised": True},
            "model": {"name": "luong-general", "embedding": 24, "hidden": 48, "dropout": 0.0},
            "training": {
                "epochs": 10,
                "batch_sentences": 64,
                "label_smoothing": 0.0,
                "optimiser": {"rate": 8e-3},
                "schedule": {"name": "linear", "warmup": 20},
                "validation": {"average": 1},
            },
            "search": {"beam": 1},
        }
    )
    trained = train(config, tmp_path / "run")
    checkpoint = load_checkpoint(trained.folder.best)
    pairs = read_pairs(tmp_path / "valid.tsv")
    found = translate_texts(
        checkpoint, [pair.source for pair in pairs], SearchOptions(beam=1), torch.device("cpu")
    )
    right = sum(text == pair.target for text, pair in zip(found, pairs))
    assert right >= 90, (right, trained.best)


def test_a_small_language_is_translated(tmp_path):
    """Elision of words, gender and an adjective behind its noun, on sentences it has not seen."""
    pairs = [
        (f"{who} {does} {what}", f"{PEOPLE[who]} {VERBS[does]} {THINGS[what]}")
        for who, does, what in itertools.product(PEOPLE, VERBS, THINGS)
    ]
    random.Random(0).shuffle(pairs)
    for name, part in (("train", pairs[:76]), ("valid", pairs[76:])):
        lines = (f"{source}\t{target}\n" for source, target in part)
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    table = toy_table(tmp_path / "unused")
    table["data"] = {"train": "train.tsv", "valid": "valid.tsv"}
    table["vocabulary"] = {"kind": "pieces", "joint": True, "source_size": 340}
    table["model"] = {
        "name": "transformer", "hidden": 32, "feed_forward": 64, "layers": 2, "heads": 4,
        "dropout": 0.1, "tie": "all",
    }  # fmt: skip
    table["training"] |= {"epochs": 60, "batch_tokens": 200, "save_every": 100}
    table["training"]["optimiser"] = {"rate": 5e-3}
    table["training"]["schedule"] = {"name": "inverse-square-root", "warmup": 40}
    table["training"]["validation"] = {"metric": "bleu", "every": 60, "average": 2}
    (tmp_path / "config.toml").write_text(write_toml(table))
    trained = train(Config.from_file(tmp_path / "config.toml"), tmp_path / "run")
    assert trained.scores["best", "valid"].bleu.value > 80, trained
