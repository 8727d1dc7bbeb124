"""Grafts among other things: fast paths, copies, threads, captures, modules that run twice."""

import copy
import importlib.util
import inspect
import pickle
import threading

import pytest
import torch
from graft_models import PARTS, Small, batch, decoding, pooling, reusing, wake
from torch import nn

import regard
from regard.errors import (
    StateError,
)
from regard.grafting import (
    Graft,
    GraftWarning,
    Latents,
    OutputAttention,
    ReuseLayer,
    States,
    ZeroProjection,
    graft,
    grafts,
)
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import Concatenation, OffsetBins, WeightedAggregation


@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_keeps_its_fast_path(norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    x, padded = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    part = ReuseLayer(WeightedAggregation(8, 2), reads="layers.0.self_attn", into="layers.2")
    pooled = OutputAttention(
        DotProduct(),
        query=Latents(2, 8, everywhere=True),
        reads="layers.1",
        into="",
        join=ZeroProjection(16, 8),
        mask="~src_key_padding_mask",
    )
    with torch.no_grad(), torch.profiler.profile() as before:
        plain = model(x, src_key_padding_mask=padded)
    graft(model, part)
    graft(model, pooled)
    with torch.no_grad(), torch.profiler.profile() as after:
        assert torch.equal(model(x, src_key_padding_mask=padded), plain)
    fast = "aten::_transformer_encoder_layer_fwd"
    for run in (before, after):
        assert sum(event.count for event in run.key_averages() if event.key == fast) == 3
    wake(part)
    wake(pooled)
    with torch.no_grad():
        quick = model(x, src_key_padding_mask=padded)
    slow = model(x, src_key_padding_mask=padded)  # with a gradient: not the fast path
    torch.testing.assert_close(quick[0], slow[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(quick[1, :3], slow[1, :3], atol=1e-4, rtol=1e-4)


def test_torch_attention_weights_are_its_own():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)
            self.last = nn.Identity()

        def forward(self, x, y):
            _, self.weights = self.attention(x, y, y, average_attn_weights=False)
            return self.last(y.transpose(0, 1))

    model = Cross().double()
    x, y = torch.randn(5, 2, 8).double(), torch.randn(4, 2, 8).double()

    class Taken(nn.Module):
        def forward(self, features, recipe, mask):
            self.recipe = recipe
            return features

    taken = Taken()
    part = ReuseLayer(taken, reads="attention", into="last", join=ZeroProjection(8, 8))
    with pytest.warns(GraftWarning, match="False in 'attention'; make sure .* output of 'last' is"):
        graft(model, part)
    model(x, y)
    torch.testing.assert_close(taken.recipe.weights(), model.weights, atol=1e-8, rtol=0)


def test_causal_states_do_not_see_the_future():
    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.last(self.first(x))

    line = Line()
    part = OutputAttention(
        MultiHead(8, 2), query=States(causal=True), reads="first", into="last",
        join=ZeroProjection(8, 8),
    )  # fmt: skip
    graft(line, part)
    wake(part)
    x = torch.randn(1, 6, 4)
    before = line(x)
    x[:, 4:] *= 1e4
    torch.testing.assert_close(line(x)[:, :4], before[:, :4])


def test_a_copy_has_grafts_of_its_own():
    model, given = Small(), batch()
    plain = model(**given)
    graft(model, reusing(), freeze=True)
    graft(model, pooling())
    twin = copy.deepcopy(model)
    wake(twin.regard_graft.output)
    assert not torch.equal(twin(**given), plain)
    assert torch.equal(model(**given), plain)
    for handle in grafts(twin).values():
        assert isinstance(handle, Graft) and handle.model is twin
        handle.remove()
    assert torch.equal(twin(**given), plain) and "regard_graft" not in dict(twin.named_children())
    assert twin.embed.weight.requires_grad and not model.embed.weight.requires_grad
    assert list(grafts(model)) == ["reuse", "output"]


def test_a_grafted_model_is_pickled_whole():
    model, given = Small(), batch()
    part = decoding()
    graft(model, part)
    wake(part)
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(**given), model(**given))
    assert [handle.model is twin for handle in grafts(twin).values()] == [True]


@pytest.mark.parametrize("name", PARTS)
def test_autocast_and_empty_batches(name):
    model, given = Small().eval(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(**given)
        part = PARTS[name]()
        graft(model, part)
        after = model(**given)
        assert after.dtype == plain.dtype and torch.equal(after, plain)
        wake(part)
        assert model(**given).isfinite().all()
    assert model(torch.randn(0, 5, 4), torch.ones(0, 5, dtype=torch.long)).shape == (0, 3)


def test_threads_do_not_mix_their_passes():
    model = Small().eval()
    part = decoding()
    graft(model, part)
    wake(part)
    inputs = [batch() for _ in range(4)]
    expected = [model(**given).detach() for given in inputs]
    wrong = []

    def run(number):
        for _ in range(20):
            with torch.no_grad():
                if not torch.equal(model(**inputs[number]), expected[number]):
                    wrong.append(number)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert wrong == []


def test_capture_sees_the_new_attention_by_name():
    model, given = Small(), batch()
    graft(model, pooling())
    with regard.capture(model) as trace:
        model(**given)
    record = trace["regard_graft.output.attention"]
    assert record.weights().shape == (2, 1, 1, 5)
    assert record.weights()[1, 0, 0, 3:].eq(0).all()


def test_no_module_has_the_name_of_the_function():
    assert regard.grafting.graft is regard.graft is graft
    assert importlib.util.find_spec("regard.grafting.graft") is None


def test_the_signature_is_still_the_models():
    model = Small()
    before = inspect.signature(model.forward)
    graft(model, pooling())
    assert inspect.signature(model.forward) == before


def test_a_sequential_and_concatenated_channels():
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    model.eval()
    x = torch.randn(2, 6, 4)
    plain = model(x)
    part = ReuseLayer(Concatenation(8, OffsetBins(2, 4)), reads="1.self_attn", into="")
    grafted = graft(model, part)
    assert torch.equal(model(x), plain)
    wake(part)
    assert not torch.equal(model(x), plain)
    grafted.remove()
    assert len(model) == 2


def test_modules_that_run_several_times():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(8, 8), nn.Identity()

        def forward(self, x):
            for _ in range(3):
                x = self.layer(x).tanh()
            return self.last(x)

    def part(reads, into="last"):
        return OutputAttention(
            DotProduct(), query=States(causal=False), reads=reads, into=into,
            join=ZeroProjection(8, 8),
        )  # fmt: skip

    model, x = Shared(), torch.randn(2, 4, 8)
    plain = model(x)
    grafted = graft(model, part("layer"))
    with pytest.raises(
        StateError, match=r"'layer' ran 3 times before 'last'; say which, as 'layer#3'"
    ):
        model(x)
    grafted.remove()
    made = []
    for call in (1, 2):
        one = part(f"layer#{call}")
        grafted = graft(model, one)
        assert torch.equal(model(x), plain)
        torch.manual_seed(0)
        wake(one)
        made.append(model(x))
        grafted.remove()
    assert not torch.allclose(*made)
    third = part("layer#1", "layer#3")
    graft(model, third)
    wake(third)
    assert not torch.equal(model(x), plain)


def test_fields_of_outputs():
    class Returns(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.states, self.form = nn.Linear(4, 8), form

        def forward(self, x):
            y = self.states(x)
            return self.form(y)

    x = torch.randn(2, 3, 4)
    forms = {
        "": lambda y: (None, y),
        ":1": lambda y: [y * 2, y],
        ":logits": lambda y: {"extra": y * 2, "logits": y},
        ":output": lambda y: regard.Attended(y),
    }
    for field, form in forms.items():
        model = Returns(form)
        part = OutputAttention(
            MultiHead(8, 2), query=States(causal=False), reads="states", into=field,
            join=ZeroProjection(8, 8),
        )  # fmt: skip
        graft(model, part)
        wake(part)
        before, after = form(model.states(x)), model(x)
        assert type(before) is type(after)
        pick = {"": lambda o: o[1], ":1": lambda o: o[1], ":logits": lambda o: o["logits"]}
        one = pick.get(field, lambda o: o.output)
        assert not torch.equal(one(before), one(after))
        if field in (":1", ":logits"):
            other = (lambda o: o[0]) if field == ":1" else (lambda o: o["extra"])
            assert torch.equal(other(before), other(after))
