"""`regard.capture` itself: what it takes, what it calls things, and the ways to say it."""

import gc
import weakref

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from capture_ways import PATHS, check, every_kind, every_way, in_thread
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

import regard
from regard.errors import RegardError

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
        in_thread(lambda: other(x))
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


# -- names


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_has_one_name_on_its_fast_path_and_off_it(norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    for model, names in (
        (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), ["layers.0", "layers.1"]),
        (layer, [""]),
    ):
        x = words(2, 5, 8)
        with torch.no_grad():
            fast = regard.trace(model.eval(), x)
            some = regard.capture(model, where="*self_attn")
            with some as chosen:
                model(x)
        slow = regard.trace(model.train(), x)
        expected = [f"{name}.self_attn".removeprefix(".") for name in names]
        assert fast.names() == slow.names() == chosen.names() == expected
        assert fast[0].operator != slow[0].operator, "two ways"
        assert {r.module_class for r in [*fast, *slow]} == {"MultiheadAttention"}


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


def test_operators_that_python_alone_knows():
    """The sizes of a jagged tensor are asked for by an operator that has no kernel."""

    class Jagged(nn.Module):
        def forward(self, words):
            return words.unflatten(-1, (2, 4))

    rows = [torch.randn(3, 8), torch.randn(5, 8)]
    model, words = Jagged(), torch.nested.nested_tensor(rows, layout=torch.jagged)
    with pytest.warns(regard.CaptureWarning, match="no attention"), regard.capture(model):
        output = model(words)
    assert output.shape[-2:] == (2, 4)
