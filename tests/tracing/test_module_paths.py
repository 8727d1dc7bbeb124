"""ModulePaths are read from the frames of running functions: those must not notice."""

import sys
import weakref

import pytest
import torch
from capture_models import words
from torch import nn
from torch.nn import functional as F

import regard
from regard.tracing.module_paths import first_argument

watched = pytest.mark.skipif(
    sys.gettrace() is not None or sys.getprofile() is not None,
    reason="a debugger or profiler is at work: locals are left alone",
)
PATHS = [("full", True), ("full", False), ("fused", True)]


class Attends(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused


class Deletes(Attends):
    """Lets go of a tensor after its attention, and looks whether it is gone."""

    def forward(self, x):
        large = x.new_zeros(1000)
        gone = weakref.ref(large)
        if self.fused:
            x = F.scaled_dot_product_attention(x, x, x)
        else:
            x = (x @ x.mT).softmax(-1) @ x
        del large
        self.freed = gone() is None
        return x


@watched
@pytest.mark.parametrize(("path", "fused"), PATHS)
def test_what_a_function_deletes_is_freed(path, fused):
    model = Deletes(fused)
    with torch.no_grad(), regard.capture(model, path=path) as trace:
        model(words(2, 2, 5, 8))
    assert trace.names() == ["Deletes"] and model.freed


class Locals(Attends):
    """Holds its locals as a dictionary, and has a name there that it does not have in its code."""

    def forward(self, x):
        double = 2

        def inner():
            return double

        exec("made = 3")
        mine = locals()
        x = F.scaled_dot_product_attention(x, x, x) if self.fused else (x @ x.mT).softmax(-1) @ x
        self.seen = (mine["double"], mine["made"], mine["self"] is self, inner())
        del mine
        x = F.scaled_dot_product_attention(x, x, x) if self.fused else (x @ x.mT).softmax(-1) @ x
        self.later = (locals()["made"], locals()["double"], double, inner())
        return x


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="`exec` no longer leaves names there")
@pytest.mark.parametrize(("path", "fused"), PATHS)
def test_locals_are_what_they_were(path, fused):
    model = Locals(fused)
    x = words(2, 2, 5, 8)
    for watch in (False, True):
        if watch:
            with torch.no_grad(), regard.capture(model, path=path) as trace:
                model(x)
            assert trace.names() == ["Locals", "Locals#2"]
        else:
            model(x)
        assert model.seen == (2, 3, True, 2) and model.later == (3, 2, 2, 2)


def test_a_debugger_may_write_locals_back():
    """Inside a tracer's call Python restores a function's variables from what it was shown."""
    module = nn.Linear(1, 1)
    seen = []

    def tracer(frame, event, _):
        if frame.f_code is not traced.__code__:
            return None
        seen.append(first_argument(frame) is module)
        return tracer

    def traced(first, second):
        third = second + 1
        return first, second, third

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        answer = traced(module, 2)
    finally:
        sys.settrace(before)
    assert answer == (module, 2, 3) and all(seen) and len(seen) >= 3


def test_an_argument_that_is_gone():
    def forgets(first):
        del first
        return first_argument(sys._getframe())

    def closes_over(first):
        return (lambda: first)(), first_argument(sys._getframe())

    assert forgets(3) is None and closes_over(3) == (3, 3)
