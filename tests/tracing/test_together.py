"""Several captures at once, in several threads, and exceptions in the middle of them."""

import copy
import pickle
import threading

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from capture_ways import WAYS, check, every_kind, every_way, in_thread
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import regard

# -- several at once


@pytest.mark.parametrize(
    ("build", "outer", "inner"),
    [
        pytest.param(b, one, two, id=f"{n}-{one}-{two}")
        for n, (b, ps) in WAYS.items()
        for one in ps
        for two in ps
    ],
)
def test_nested_captures_of_one_model(build, outer, inner):
    model, x = build(), words(2, 5, 8)
    truth = model.weigh(x)
    with regard.capture(model, path=outer) as wide:
        model(x)
        with regard.capture(model, path=inner) as narrow:
            for _ in range(4):
                model(x)
        model(x)
        model(x)
    check(wide, truth * 7)
    check(narrow, truth * 4)
    assert [record.step for record in narrow] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("kinds", [(fused, fused), (fused, handmade), (handmade, handmade)])
def test_two_models_at_once(kinds):
    one, other = kinds[0](2), kinds[1](1)
    x, y = words(2, 5, 8), words(1, 3, 8)
    with regard.capture(one) as first, regard.capture(other) as second:
        for _ in range(4):
            one(x)
            other(y)
    check(first, one.weigh(x) * 4)
    check(second, other.weigh(y) * 4)


def test_captures_that_do_not_end_in_order():
    """`a` is closed while `b`, which began later, goes on. (Modes of torch must end in order.)"""
    model, x = fused(), words(2, 5, 8)
    a, b = regard.capture(model, path="fused"), regard.capture(model, path="fused")
    one = a.__enter__()
    two = b.__enter__()
    model(x)
    a.__exit__(None, None, None)
    model(x)
    b.__exit__(None, None, None)
    model(x)
    check(one, model.weigh(x))
    check(two, model.weigh(x) * 2)


@every_kind
def test_a_model_inside_another(build):
    outer, x = Stack(Attention(True), build(1).layers[0]), words(2, 5, 8)
    with regard.capture(outer) as whole, regard.capture(outer.layers[1]) as part:
        for _ in range(3):
            outer(x)
    check(whole, outer.weigh(x) * 3)
    check(part, outer.weigh(x)[1:] * 3)


# -- threads


@every_way
def test_another_thread_runs_another_model(build, path):
    model, other, x = build(), build(), words(2, 5, 8)
    expected = other(x)
    stop, outputs = threading.Event(), []

    def busy():
        while not stop.is_set():
            outputs.append(torch.equal(other(x), expected))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        with regard.capture(model, path=path) as trace:
            for _ in range(10):
                model(x)
    finally:
        stop.set()
        thread.join()
    check(trace, model.weigh(x) * 10)
    assert outputs and all(outputs)


@every_way
def test_two_threads_capture_at_once(build, path):
    """Each its own model: nothing is lost, nothing is seen twice."""
    models, x = [build(), build()], words(2, 5, 8)
    gate, traces, errors = threading.Barrier(2), {}, []

    def run(number):
        try:
            gate.wait()
            with regard.capture(models[number], path=path) as trace:
                for _ in range(8):
                    models[number](x)
                    gate.wait(10)
            traces[number] = trace
        except BaseException as error:
            errors.append(error)
            gate.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for number, model in enumerate(models):
        check(traces[number], model.weigh(x) * 8)


@every_way
def test_the_model_runs_in_another_thread(build, path):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model, path=path) as trace:
        for _ in range(3):
            in_thread(lambda: model(x))
        model(x)
    check(trace, model.weigh(x) * 4)
    assert _get_current_dispatch_mode() is None


# -- exceptions


class Fails(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x = self.inner(x)
        raise ZeroDivisionError("in the middle")

    def weigh(self, x):
        return self.inner.weigh(x)


@every_way
def test_an_exception_inside(build, path):
    """It comes through as it is; what was seen before it is there; nothing is left behind."""
    model, x = Fails(build()), words(2, 5, 8)
    with (
        pytest.raises(ZeroDivisionError, match="in the middle"),
        regard.capture(model, path=path) as trace,
    ):
        model(x)
    check(trace, model.weigh(x))
    assert _get_current_dispatch_mode() is None
    assert not torch.nn.modules.module._global_forward_pre_hooks
    after = regard.trace(model.inner, x)
    check(after, model.weigh(x))


def test_an_exception_before_any_attention_says_no_more_than_itself():
    """No warning about an empty trace on top of it (warnings are errors here)."""
    model = Fails(nn.Identity())
    with pytest.raises(ZeroDivisionError), regard.capture(model):
        model(words(2, 5, 8))


def test_an_exception_that_the_model_catches():
    class Tries(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Fails(Attention()), Attention()

        def forward(self, x):
            try:
                return self.first(x)
            except ZeroDivisionError:
                return self.second(x)

    model, x = Tries(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
    assert trace.names() == ["first.inner", "second"]


def test_an_exception_in_another_thread():
    model, x = Fails(fused()), words(2, 5, 8)
    with regard.capture(model, path="full") as trace:
        with pytest.raises(ZeroDivisionError):
            in_thread(lambda: model(x))
        in_thread(lambda: model.inner(x))
    check(trace, model.weigh(x) * 2)


# -- the compiler


@pytest.mark.compiled
def test_a_capture_inside_a_compiled_function_is_refused():
    model, x = fused(), words(2, 5, 8)

    @torch.compile(backend="eager")
    def run(x):
        with regard.capture(model):
            return model(x)

    with pytest.raises(regard.RegardError, match=r"inside a function that torch.compile runs"):
        run(x)
    check(regard.trace(model, x), model.weigh(x))


@pytest.mark.compiled
def test_a_model_that_is_compiled_in_place_meanwhile():
    """The slot of a module for its compiled call is ours for the time of the capture."""
    model, x = fused(), words(2, 5, 8)
    expected = model(x)
    with regard.capture(model) as trace:
        model(x)
        model.compile(backend="eager")
        model(x)
    compiled = model._compiled_call_impl
    with regard.capture(model) as again:
        model(x)
        model(x)
    check(trace, model.weigh(x) * 2)
    check(again, model.weigh(x) * 2)
    assert model._compiled_call_impl is compiled
    torch.testing.assert_close(model(x), expected)


# -- copies of a model that is captured


def test_a_replica_runs_itself():
    """It shares what lies in the module: what is around the module's calls is not around its."""
    model, x = fused(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
        replica = model._replicate_for_data_parallel()
        replica.layers = fused().layers
        assert torch.equal(replica(x), Stack(*replica.layers)(x))
    assert torch.equal(replica(x), Stack(*replica.layers)(x))
    check(trace, model.weigh(x))


class KeepsEverything(Stack):
    def __getstate__(self):
        return dict(self.__dict__)


def test_a_copy_by_a_model_that_pickles_all_it_has():
    model, x = KeepsEverything(Attention()), words(2, 5, 8)
    with torch.no_grad(), regard.capture(model) as trace:
        model(x)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for each in copies:
            assert torch.equal(each(x), model(x))
    check(trace, model.weigh(x) * 3)


@pytest.mark.parametrize("kinds", [(fused, handmade), (handmade, fused)])
def test_two_learned_models_under_inference_mode(kinds):
    """The mode of one lies under that of the other, and takes its operators apart."""
    one, other, x = kinds[0](), kinds[1](), words(2, 5, 8)
    for _ in range(2):
        with regard.capture(one) as first, regard.capture(other) as second:
            for _ in range(3):
                with torch.inference_mode():
                    one(x)
                    other(x)
        check(first, one.weigh(x) * 3)
        check(second, other.weigh(x) * 3)
