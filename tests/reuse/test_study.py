"""The tasks of the study: their labels are what they say, and models have equal parameters."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

STUDY = Path(__file__).parents[2] / "experiments" / "reuse"


def read(name: str) -> ModuleType:
    """A file of the study as a module, under a name that nobody else has."""
    spec = importlib.util.spec_from_file_location(f"reuse_study_{name}", STUDY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models, tasks = read("models"), read("tasks")

SOURCE = """
class Box:
    def each(self, items, most=3):
        found = [one for one in items]
        for place in found:
            print(place, most, self.size)
        return found
"""


def test_two_hop():
    batch = tasks.TwoHop().batch(3, torch.Generator().manual_seed(0), train=False)
    for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist()):
        follows = {a: b - tasks.SYMBOLS for a, b in tokens[: tasks.SYMBOLS]}
        assert all(label == tasks.NO_LABEL for label in labels[: tasks.SYMBOLS])
        for (sign, asked), label in zip(tokens[tasks.SYMBOLS :], labels[tasks.SYMBOLS :]):
            twice = follows[follows[asked - tasks.SYMBOLS]]
            assert label == (twice if sign % 2 else tasks.NO_LABEL)


def test_names():
    (found,) = tasks.functions(SOURCE)
    asked = [label for label in found.labels if label != tasks.NO_LABEL]
    # one (loop), items, found, print, place, most, self, found: attributes are not asked
    roles = ["loop", "parameter", "assigned", "outside", "loop", "parameter", "parameter"]
    assert [tasks.ROLES[label] for label in asked] == [*roles, "assigned"]
    assert len(found.tokens) == len(found.labels)


@pytest.mark.parametrize("name", models.REUSE)
def test_equal_parameters(name):
    mine, theirs = (
        models.parameters(models.build(variant, 40, 4)) for variant in (name, f"equal to {name}")
    )
    assert abs(mine - theirs) <= models.WIDTH + 1
