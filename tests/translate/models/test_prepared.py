"""Products with a prepared weight: the same answers, and only while the weight is what it was."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.layout import (
    PreparedLinear,
    lay_out_for_search,
    prepare,
    prepared_product,
)
from regard.translate.search import SearchOptions, beam_search


class Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def prepared(self):
        return self.seen.count("_linear_pointwise")


def layer(inputs=300, outputs=500, bias=True):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias)


def was_prepared(linear, x):
    """Whether the prepared weight served; the answer is compared with the plain product."""
    with Operators() as operators:
        made = linear(x)
    expected = F.linear(x, linear.weight.to(x.dtype), None if linear.bias is None else linear.bias)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    return operators.prepared == 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8,), (64,), (9, 7), (2, 3, 5), (33, 1)])
def test_the_answer_is_that_of_the_plain_product(shape, bias):
    linear = prepare(layer(bias=bias))
    with torch.no_grad():
        assert was_prepared(linear, torch.randn(*shape, 300))
        assert was_prepared(linear, torch.randn(300, *shape).movedim(0, -1))  # not contiguous


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 0), ()])
def test_few_rows_go_the_plain_way(shape):
    linear = prepare(layer())
    with torch.no_grad():
        assert not was_prepared(linear, torch.randn(*shape, 300))


def test_two_rows_are_enough_for_a_large_weight():
    linear = prepare(layer(300, 2000))
    with torch.no_grad():
        assert was_prepared(linear, torch.randn(2, 300))
        assert not was_prepared(linear, torch.randn(1, 300))


def test_small_weights_are_not_prepared():
    assert prepared_product(torch.randn(255, 256)) is None
    assert prepared_product(torch.randn(256, 256)) is not None
    assert prepared_product(torch.randn(500, 500, dtype=torch.float64)) is None
    assert prepared_product(torch.randn(500, 500, dtype=torch.bfloat16)) is None
    with torch.inference_mode():
        assert prepared_product(torch.randn(500, 500)) is None  # its changes are not counted


def test_training_goes_the_plain_way():
    linear, x = prepare(layer()), torch.randn(64, 300)
    assert not was_prepared(linear, x)
    linear(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(500, -1))


def test_a_weight_that_changed_is_not_the_prepared_one():
    x, other = torch.randn(64, 300), layer().state_dict()
    changes = {
        "in place": lambda linear: linear.weight.mul_(2),
        "loaded": lambda linear: linear.load_state_dict({k: v + 1 for k, v in other.items()}),
        "replaced": lambda linear: setattr(linear, "weight", nn.Parameter(linear.weight + 1)),
        "data": lambda linear: setattr(linear.weight, "data", linear.weight.data + 1),
    }
    for change in changes.values():
        linear = prepare(layer())
        with torch.no_grad():
            assert was_prepared(linear, x)
            change(linear)
            assert not was_prepared(linear, x)


def test_a_step_of_an_optimiser_is_seen():
    linear, x = prepare(layer()), torch.randn(64, 300)
    optimiser = torch.optim.SGD(linear.parameters(), lr=0.1)
    linear(x).square().mean().backward()
    optimiser.step()
    with torch.no_grad():
        assert not was_prepared(linear, x)


def test_other_precisions_go_the_plain_way():
    linear, x = prepare(layer()), torch.randn(64, 300)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert linear(x).dtype == torch.bfloat16
        made = linear.double()(x.double())
        torch.testing.assert_close(made, F.linear(x.double(), linear.weight, linear.bias))


def test_switching_onednn_off_holds():
    linear, x = prepare(layer()), torch.randn(64, 300)
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of GPUs
    try:
        with torch.no_grad():
            assert not was_prepared(linear, x)
    finally:
        torch._C._set_mkldnn_enabled(True)


def test_copies_and_pickles_go_without():
    linear, x = prepare(layer()), torch.randn(64, 300)
    for made in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
        assert made.product is None
        with torch.no_grad():
            assert not was_prepared(made, x)
            torch.testing.assert_close(made(x), linear(x))


def test_hooks_and_shared_layers_stay():
    watched, shared, calls = layer(), layer(), []
    model = nn.ModuleDict({"a": nn.Sequential(watched, shared), "b": nn.Sequential(shared)})
    watched.register_forward_hook(lambda *_: calls.append(1))
    names = list(model.state_dict())
    lay_out_for_search(model)
    assert model["a"][0] is watched and type(model["a"][1]) is PreparedLinear
    assert model["a"][1] is model["b"][0]
    assert list(model.state_dict()) == names
    with torch.no_grad():
        assert was_prepared(watched, torch.randn(64, 300))
    assert calls == [1]


def transformer():
    torch.manual_seed(0)
    config = ModelConfig("transformer", hidden=256, layers=2, heads=4, feed_forward=512)
    model = build_model(config, 400, 500)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    return model.eval()


def sources(rows=40):
    torch.manual_seed(1)
    mask = torch.arange(9) < torch.randint(3, 10, (rows,))[:, None]
    return torch.randint(4, 400, mask.shape) * mask, mask


@pytest.mark.parametrize("beam", [1, 4])
def test_search_says_the_same_and_looks_at_the_same(beam):
    plain, prepared, given = transformer(), transformer(), sources()
    lay_out_for_search(prepared)
    options = SearchOptions(beam=beam, longest=12, shortest=6)
    with Operators() as operators:
        found = beam_search(prepared, *given, options)
    assert operators.prepared > 100
    for (one,), (other,) in zip(found, beam_search(plain, *given, options)):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=1e-4)
        for site, weights in other.weights.items():
            torch.testing.assert_close(one.weights[site], weights, rtol=1e-4, atol=1e-5)


def test_a_capture_sees_the_same_bits():
    model, given = transformer(), sources()
    lay_out_for_search(model)
    target = torch.randint(4, 500, (40, 6))

    def run():
        with torch.no_grad():
            return model(*given, target, torch.ones_like(target, dtype=torch.bool))

    plain = run()
    with regard.capture(model) as trace, Operators() as operators:
        assert torch.equal(run(), plain)
    assert operators.prepared > 0
    assert [record.attends for record in trace] == ["self"] * 2 + ["self", "cross"] * 2
