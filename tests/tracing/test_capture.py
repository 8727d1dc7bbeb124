"""`regard.capture` itself: what it takes, when it begins and ends, several of them at once."""

import gc
import threading
import weakref
from contextlib import suppress

import pytest
import torch
from capture_models import Attention, Ring, Stack, fused, handmade, words
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

import regard
from regard.errors import RegardError, StateError

KINDS = {"fused": fused, "handmade": handmade}
every_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
PATHS = ["auto", "full", "fused"]
#: The fused path reads fused attention alone: see test_options.
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


# -- what it takes


@every_kind
def test_a_module(build):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
    check(trace, model.weigh(x))
    assert trace.names() == ["layers.0", "layers.1"]


@every_kind
def test_a_part_of_a_model(build):
    """Names are those of the part; what runs around it is not seen."""
    model, x = build(3), words(2, 5, 8)
    with regard.capture(model.layers[1]) as trace:
        model(x)
    check(trace, model.weigh(x)[1:2])
    assert trace.names() == ["Attention"]


@every_kind
def test_a_method(build):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model.forward) as trace:
        model.forward(x)
    check(trace, model.weigh(x))
    assert trace.names() == ["layers.0", "layers.1"]


@every_kind
def test_a_function_that_closes_over_a_model(build):
    model, other, x = build(), build(1), words(2, 5, 8)

    def run(x):
        return model(x)

    with regard.capture(run) as trace:
        run(x)
        other(x)
    check(trace, model.weigh(x))
    assert trace.names() == ["layers.0", "layers.1"]


def test_a_plain_function():
    def attend(query, key):
        return F.scaled_dot_product_attention(query, key, key)

    query, key = words(1, 2, 3, 4), words(1, 2, 5, 4, seed=1)
    with regard.capture(attend) as trace:
        attend(query, key)
        attend(query, key)
    check(trace, [(query @ key.mT / 2).softmax(-1)] * 2)
    assert trace.names() == ["function", "function#2"]


def test_a_callable_object():
    class Model:
        def __call__(self, x):
            return (x @ x.mT).softmax(-1) @ x

    model, x = Model(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
    check(trace, [(x @ x.mT).softmax(-1)[:, None]])


def test_everything_in_this_thread():
    first, second, x = fused(1), handmade(1), words(2, 5, 8)
    with regard.capture() as trace:
        first(x)
        second(x)
        (x @ x.mT).softmax(-1) @ x
    check(trace, [*first.weigh(x), *second.weigh(x), (x @ x.mT).softmax(-1)[:, None]])


@pytest.mark.parametrize("path", PATHS)
def test_nothing_of_other_threads(path):
    model, other, x = fused(1), fused(1), words(2, 5, 8)
    with regard.capture(path=path) as trace:
        model(x)
        _in_thread(lambda: other(x))
        model(x)
    check(trace, model.weigh(x) * 2)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_model_that_is_none():
    with pytest.raises(RegardError, match="capture: int, expected a model or a callable"):
        regard.capture(3)
    with pytest.raises(RegardError, match="path='fast', expected 'auto', 'full' or 'fused'"):
        regard.capture(path="fast")


@every_kind
def test_a_generator(build):
    """A forward that yields: its frames are there while it runs."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x):
            for layer in self.inner.layers:
                x = x + layer(x)
                yield x

    model, x = Steps(), words(2, 5, 8)
    with regard.capture(model) as trace:
        for _ in model(x):
            pass
    check(trace, model.inner.weigh(x))
    assert trace.names() == ["inner.layers.0", "inner.layers.1"]


@every_kind
def test_a_generator_that_is_left_in_the_middle(build):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x):
            for layer in self.inner.layers:
                x = x + layer(x)
                yield x

    model, x = Steps(), words(2, 5, 8)
    with regard.capture(model) as trace:
        steps = model(x)
        next(steps)
    next(steps)  # after the capture: not seen
    check(trace, model.inner.weigh(x)[:1])


# -- calls


@every_kind
def test_a_module_that_is_used_twice(build):
    layer = build(1).layers[0]
    model, x = Stack(layer, layer), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
    assert trace.names() == ["layers.0", "layers.0#2"]
    assert [record.call for record in trace] == [1, 2]
    assert [record.step for record in trace] == [0, 0]
    assert len(trace["layers.0"]) == 2
    check(trace, model.weigh(x))


@every_way
def test_a_model_that_runs_several_times(build, path):
    model, lengths = build(), (5, 3, 4, 3)
    with regard.capture(model, path=path) as trace:
        for length in lengths:
            model(words(2, length, 8))
    check(trace, [w for length in lengths for w in model.weigh(words(2, length, 8))])
    assert trace.names()[-2:] == ["layers.0#4", "layers.1#4"]
    assert [record.step for record in trace] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [record.attends for record in trace] == ["self" if path != "fused" else "unknown"] * 8


@every_kind
def test_direct_calls_of_forward(build):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model.layers[1].forward(x)
    check(trace, [model.layers[1].weigh(x)])
    assert trace.names() == ["layers.1"]


# -- ways to say it


@every_kind
def test_regard_trace(build):
    model, x = build(), words(2, 5, 8)
    trace = regard.trace(model, x)
    check(trace, model.weigh(x))
    assert torch.equal(trace.output, model(x))


def test_regard_trace_hands_its_arguments_on():
    def model(x, *, keys, where, keep):
        return (x @ keys.mT).softmax(-1) @ keys, where, keep

    x = words(1, 3, 8)
    trace = regard.trace(model, x, keys=x, where="here", keep=3)
    assert trace.output[1:] == ("here", 3) and len(trace) == 1


@every_kind
def test_decorator(build):
    model = build()

    @regard.capture(model)
    def run(x, *, twice=False):
        """Runs the model."""
        out = model(x)
        return model(out) if twice else out

    assert run.__name__ == "run" and run.__doc__ == "Runs the model."
    x = words(2, 5, 8)
    out = run(x)
    assert torch.equal(out, model(x))
    first = run.trace
    check(first, model.weigh(x))
    run(x, twice=True)
    assert len(run.trace) == 4 and len(first) == 2


def test_a_decorated_function_that_calls_itself():
    model, x = fused(1), words(1, 3, 8)

    @regard.capture(model)
    def run(depth):
        model(x)
        return run(depth - 1) if depth else None

    run(2)
    assert len(run.trace) == 1  # of the call that began last
    assert _get_current_dispatch_mode() is None


@every_kind
def test_a_capture_can_be_used_again(build):
    model, x = build(), words(2, 5, 8)
    again = regard.capture(model)
    traces = []
    for _ in range(3):
        with again as trace:
            model(x)
        traces.append(trace)
        assert again.trace is trace
    for trace in traces:
        check(trace, model.weigh(x))


def test_many_captures_leave_nothing():
    model, x = Stack(Attention(True), Attention(False)), words(2, 5, 8)

    def objects():
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):
        regard.trace(model, x)
    before = objects()
    for _ in range(30):
        regard.trace(model, x)
    assert objects() - before < 30  # less than one for each


@every_way
def test_a_trace_that_is_gone_lets_go(build, path):
    model, x = build(), words(2, 5, 8)
    model(x)

    def tensors():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    before = tensors()
    with regard.capture(model, path=path, values=True, outputs=True, attached=True) as trace:
        model(x)
    alive = [weakref.ref(record) for record in trace]
    assert tensors() > before
    del trace
    model(x)  # so that the model itself lets go of the pass before
    assert tensors() <= before and all(there() is None for there in alive)


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


def _in_thread(run):
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
            _in_thread(lambda: model(x))
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
            _in_thread(lambda: model(x))
        _in_thread(lambda: model.inner(x))
    check(trace, model.weigh(x) * 2)


# -- tensors that change in place


def test_changed_during_the_capture():
    """What is held is copied before the model overwrites it."""

    class Reuses(nn.Module):
        def forward(self, x):
            key = x.clone()
            out = F.scaled_dot_product_attention(x, key, key)
            key.zero_()
            weights = (x @ x.mT).softmax(-1)
            out = out + weights @ x
            weights.zero_()
            return out

    model, x = Reuses(), words(1, 2, 5, 4)
    with torch.no_grad(), regard.capture(model) as trace:
        model(x)
    check(trace, [(x @ x.mT / 2).softmax(-1), (x @ x.mT).softmax(-1)])


@every_kind
def test_changed_after_the_capture(build):
    """Then nobody copies, and the record says so instead of answering wrongly."""
    model, x = build(1), words(2, 5, 8)
    with torch.no_grad():
        trace = regard.trace(model, x)
        kept = trace[0].weights().clone()
        recipe = trace[0].recipe
        held = recipe.key if build is fused else recipe.matrix
        held.add_(1)
    asked = (
        lambda r: r.weights(),
        lambda r: r.reduce(regard.Entropy()),
        lambda r: r.to("meta"),
        lambda r: r.with_weights(),
        lambda r: r.recipe,
    )
    for ask in asked:
        with pytest.raises(StateError, match="changed in place after the capture had ended"):
            ask(trace[0])
    with torch.no_grad(), regard.capture(model, keep="weights") as safe:
        model(x)
    torch.testing.assert_close(safe[0].weights(), kept)


class Grows(nn.Module):
    """A cache that grows by concatenation."""

    def __init__(self):
        super().__init__()
        self.project, self.keys = nn.Linear(8, 16), None
        self.num_heads, self.every = 2, []

    def forward(self, x):
        query, key = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(2, -1)
        )
        self.keys = key if self.keys is None else torch.cat([self.keys, key], 2)
        self.every.append((query, self.keys))
        return F.scaled_dot_product_attention(query, self.keys, self.keys)

    def truth(self):
        return [(query @ keys.mT / 2).softmax(-1) for query, keys in self.every]


@pytest.mark.parametrize("path", PATHS)
def test_a_growing_cache(path):
    model = Grows()
    with torch.no_grad(), regard.capture(model, path=path) as trace:
        for step, length in enumerate((4, 1, 2, 1, 1)):
            model(words(1, length, 8, seed=step))
    check(trace, model.truth())
    whole = model.every[-1][1]
    fed = sum(query.shape[2] for query, _ in model.every)
    lse = 4 * 2 * fed
    assert trace.nbytes <= 2 * whole.nbytes + 4 * fed * 16 + lse  # not the square of the length


@pytest.mark.parametrize("which", ["key", "query"])
def test_a_growing_cache_that_is_changed_afterwards(which):
    model = Grows()
    with torch.no_grad():
        with regard.capture(model) as trace:
            for step, length in enumerate((4, 1, 1)):
                model(words(1, length, 8, seed=step))
        truth = model.truth()
        query, keys = model.every[0 if which == "key" else 2]
        (keys if which == "key" else query).zero_()
    for record, expected in zip(trace, truth):
        with suppress(StateError):
            torch.testing.assert_close(record.weights(), expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("path", ["auto", "full"])
@pytest.mark.parametrize("lengths", [(1,) * 9, (4, 1, 1, 1, 1), (3, 2, 2)], ids=str)
def test_a_static_cache_is_exact(path, context, lengths):
    """The buffer holds other keys at every step; each record has those of its own."""
    with context():
        model = Ring(6)
        inputs = [words(1, length, 8, seed=step) for step, length in enumerate(lengths)]
        truth = []
        for x in inputs:
            model(x)
            truth.append(model.weigh(x))
        model.begin()
        with regard.capture(model, path=path) as trace:
            for x in inputs:
                model(x)
        check(trace, truth)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("values", [False, True], ids=["", "values"])
@pytest.mark.parametrize("lengths", [(1,) * 9, (6, 1, 1, 1), (4, 1, 1)], ids=str)
def test_a_static_cache_on_the_fused_path_is_right_or_refused(context, values, lengths):
    with context():
        model = Ring(6)
        inputs = [words(1, length, 8, seed=step) for step, length in enumerate(lengths)]
        truth = []
        for x in inputs:
            model(x)
            truth.append(model.weigh(x))
        model.begin()
        with regard.capture(model, path="fused", values=values) as trace:
            for x in inputs:
                model(x)
        for record, expected in zip(trace, truth, strict=True):
            with suppress(StateError):
                torch.testing.assert_close(record.weights(), expected)
