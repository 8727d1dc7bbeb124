"""Kinds of models, ways to capture them, and the comparison that tests of capture share."""

import threading

import pytest
import torch
from capture_models import fused, handmade

KINDS = {"fused": fused, "handmade": handmade}
every_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
PATHS = ["auto", "full", "fused"]
#: The fused path reads fused attention alone: see test_paths.
WAYS = {"fused": (fused, PATHS), "handmade": (handmade, PATHS[:2])}
every_way = pytest.mark.parametrize(
    ("build", "path"),
    [pytest.param(b, p, id=f"{n}-{p}") for n, (b, ps) in WAYS.items() for p in ps],
)


def check(trace, expected):
    """Every record once, in order, with the true weights."""
    assert len(trace) == len(expected)
    for record, truth in zip(trace, expected):
        torch.testing.assert_close(record.weights(), truth.detach())


def in_thread(run):
    """Runs in another thread, and raises what it raised."""
    errors = []

    def body():
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
