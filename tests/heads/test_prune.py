"""Pruning of any model: masks that come off, the metric, copies and files, and what is refused.

Attentions that cannot be cut are masked instead, and those without whose heads the model does not
run or gives another output.
"""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from head_models import (
    FAMILIES,
    HEADS,
    LENGTH,
    WIDTH,
    Homegrown,
    built,
    encoder,
    hidden_loss,
    masked_by_hand,
    near,
    words,
)
from torch import nn

from regard.errors import RegardError, UnavailableError
from regard.heads.head_mask import head_mask
from regard.heads.prune import prune

# -- masks that come off


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_masked_heads_come_back(family):
    model, inputs = built(family), words(family)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    heads = {FAMILIES[family][2][0]: [1, 2]}
    want = masked_by_hand(model, heads)
    parameters = list(model.parameters())
    result = prune(model, heads, remove=False)
    assert result.masked == heads and not result.removed and not result.reasons
    assert result.parameters[0] == result.parameters[1]
    assert all(one is other for one, other in zip(parameters, model.parameters()))
    with torch.no_grad():
        near(model(**inputs).last_hidden_state, want(**inputs).last_hidden_state)
    result.restore()
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_removed_heads_do_not():
    result = prune(encoder(), {0: [1]})
    with pytest.raises(RegardError, match=r"removed from layers.0.self_attn, and cannot come back"):
        result.restore()


# -- the metric


def test_the_metric_before_and_after():
    model, inputs = built("bert"), words("bert")
    model.train()
    name = FAMILIES["bert"][2][0]
    eager = masked_by_hand(model, {name: [0, 1]}).eval()
    with torch.no_grad():
        after = hidden_loss(eager(**inputs), inputs).mean().item()
        before = hidden_loss(model.eval()(**inputs), inputs).mean().item()
    model.train()
    chance = torch.get_rng_state()
    result = prune(model, {0: [0, 1]}, metric=hidden_loss, data=iter([inputs]))
    assert result.metric == (pytest.approx(before), pytest.approx(after))
    assert model.training and torch.equal(chance, torch.get_rng_state())
    seen = []

    def metric(of):
        seen.append(of.training)
        return torch.tensor(float(len(seen)))

    result = prune(model, {1: [2]}, metric=metric)
    assert result.metric == (1.0, 2.0) and seen == [False, False]
    assert repr(result) == (
        "Pruned 1 of 6 heads: 1 removed; "
        f"{result.parameters[0]:,} → {result.parameters[1]:,} parameters "
        f"({100 * (1 - result.parameters[1] / result.parameters[0]):.1f} % fewer); metric 1 → 2"
    )


# -- copies and files


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "torch"])
def test_copies_files_and_states(family):
    fresh = encoder(enable_nested_tensor=False).eval() if family == "torch" else built(family)
    model = copy.deepcopy(fresh)
    if family == "torch":
        inputs = {"src": torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)}
    else:
        inputs = words(family)
    heads = {1: [2, 3]}
    prune(model, heads)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = copy.deepcopy(fresh)
    prune(again, heads)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        want = model(**inputs)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False), again):
            got = other(**inputs)
            near(got if family == "torch" else got[0], want if family == "torch" else want[0])


# -- what is refused, and leaves the model as it was


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("heads", "told"),
    [
        ({}, "heads is {}, expected numbers of heads"),
        ([1], r"heads is \[1\], expected"),
        ({0: []}, "heads names no head"),
        ({0: [4]}, r"heads: \[4\] for 0, expected a list of numbers from 0 to 3"),
        ({0: [-1]}, r"heads: \[-1\] for 0"),
        ({0: 1}, r"heads: 1 for 0"),
        ({0: [True]}, r"heads: \[True\] for 0"),
        ({2: [1]}, "no attention is 2; there are .* or numbers from 0 to 1"),
        ({"layers.0": [1]}, "no attention is 'layers.0'; there are"),
        ({0: [1], "layers.1.self_attn": [9]}, r"heads: \[9\] for 'layers.1.self_attn'"),
    ],
)
def test_heads_that_are_refused(heads, told):
    model = encoder()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with pytest.raises(RegardError, match=told):
        prune(model, heads)
    now = model.state_dict()
    assert all(torch.equal(before[name], now[name]) for name in before)


@pytest.mark.parametrize("remove", [True, False])
def test_all_or_nothing(remove):
    """The metric fails after the heads are gone: they come back."""
    model = encoder(enable_nested_tensor=False)
    twin = copy.deepcopy(model)
    count = 0

    def metric(of):
        nonlocal count
        count += 1
        if count == 2:
            raise RuntimeError("stop")
        return 0.0

    with pytest.raises(RuntimeError, match="stop"):
        prune(model, {0: [1], 1: [0, 2]}, metric=metric, remove=remove)
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention
    assert [sorted(vars(m)) for m in model.modules()] == [sorted(vars(m)) for m in twin.modules()]
    assert str(model) == str(twin)
    state, want = model.state_dict(), twin.state_dict()
    assert all(torch.equal(state[name], want[name]) for name in want)


class Stubborn(nn.Module):
    """Attention that reshapes by a number we cannot see."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.num_heads = HEADS

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return self.o(mixed.reshape(*x.shape[:2], 16))


class Plain(Stubborn):
    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_heads_without_which_a_model_does_not_run_are_masked():
    model = Stubborn()
    x = torch.randn(2, LENGTH, WIDTH)
    before, want = model(x), masked_by_hand(model, {"Stubborn": [1]})(x)
    result = prune(model, {0: [1]}, data=[x])
    assert result.masked == {"Stubborn": [1]} and not result.removed
    reason = "without these heads the model does not run (RuntimeError)"
    assert result.reasons == {"Stubborn": reason}
    assert torch.equal(model(x), want) and model.num_heads == HEADS
    result.restore()
    assert torch.equal(model(x), before)
    with pytest.raises(RegardError, match="data is empty"):
        prune(model, {0: [1]}, data=[])
    with pytest.raises(RegardError, match=r"data is a Tensor of shape .*expected a list or a load"):
        prune(model, {0: [1]}, data=x)


def test_heads_without_which_the_output_differs_are_masked():
    class Odd(Stubborn):
        def forward(self, x):
            q, k, v = (
                f(x).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) * (
                self.num_heads
            )

    model = nn.Sequential(Plain(), Odd(), Plain())
    x = torch.randn(2, LENGTH, WIDTH)
    heads = {"0": [1, 2], "1": [1, 2], "2": [0]}
    want = masked_by_hand(model, heads)(x)
    result = prune(model, heads, data=[x])
    assert result.masked == {"1": [1, 2]} and result.removed == {"0": [1, 2], "2": [0]}
    assert "output differs from that with the heads masked" in result.reasons["1"]
    near(model(x), want, 1e-6)


def test_an_error_of_the_model_leaves_it_as_it_was():
    class Counting(Plain):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == self.last:
                raise KeyboardInterrupt
            return super().forward(x)

    for last in (1, 2):  # with the heads masked, without them
        model = Counting()
        model.last = last
        x = torch.randn(2, LENGTH, WIDTH)
        before = {name: p.clone() for name, p in model.state_dict().items()}
        with pytest.raises(KeyboardInterrupt):
            prune(model, {0: [1]}, data=[x])
        assert model.calls == last and model.num_heads == HEADS
        now = model.state_dict()
        assert all(torch.equal(before[name], now[name]) for name in before)


# -- what cannot be cut, and is masked


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda m: m.register_parameter("slopes", nn.Parameter(torch.ones(HEADS))), "slopes"),
        (lambda m: m.register_buffer("slopes", torch.ones(HEADS)), "slopes"),
        (lambda m: setattr(m, "q", nn.Bilinear(2, 2, 2)), "not projected one by one"),
        (lambda m: nn.utils.parametrizations.weight_norm(m.q), "not a plain linear layer"),
    ],
)
def test_structures_that_are_masked_instead(spoil, told):
    model = Plain()
    x = torch.randn(2, LENGTH, WIDTH)
    want = masked_by_hand(model, {"Plain": [1]})(x)
    assert prune(copy.deepcopy(model), {0: [1]}, data=[x]).removed == {"Plain": [1]}
    spoil(model)
    result = prune(model, {0: [1]}, sites={"o": HEADS})
    assert result.masked == {"Plain": [1]} and told in result.reasons["Plain"]
    if not isinstance(model.q, nn.Bilinear):
        near(model(x), want, 1e-6)


def test_hand_written_attention_is_masked_without_data():
    """Its code may take the number of heads from elsewhere, and then mix features in silence."""
    model = Plain()
    x = torch.randn(2, LENGTH, WIDTH)
    want = masked_by_hand(model, {"Plain": [1]})(x)
    result = prune(model, {0: [1]})
    assert result.masked == {"Plain": [1]} and "pass data=" in result.reasons["Plain"]
    near(model(x), want, 1e-6)


def test_projections_that_are_shared():
    """Two attentions with one projection of queries, and two with one of the output."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Plain(), Plain()

        def forward(self, x):
            return self.one(x) + self.two(x)

    model = Two()
    model.two.q = model.one.q
    x = torch.randn(2, LENGTH, WIDTH)
    want = masked_by_hand(model, {"one": [1]})(x)
    result = prune(model, {"one": [1]})
    assert result.reasons == {"one": "it shares a projection with another module"}
    near(model(x), want, 1e-6)
    model.two.o.weight = model.one.o.weight
    for remove in (True, False):
        with pytest.raises(UnavailableError, match="one: its output projection belongs to another"):
            prune(model, {"one": [2]}, remove=remove)


def test_sites_that_were_given_are_masked():
    model = nn.Sequential(Homegrown())
    x = torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad(), head_mask(model, torch.tensor([[1.0, 0, 1, 1]]), sites={"0.last": HEADS}):
        want = model(x)
    result = prune(model, {"0": [1]}, sites={"0.last": HEADS})
    assert result.masked == {"0": [1]}
    near(model(x), want, 1e-6)
