"""Hard concrete gates: against their closed forms, and on models whose heads are planted."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.errors import RegardError
from regard.heads.gates import HardConcrete, learn_gates
from regard.heads.importance import head_importance

WIDTH, HEADS, LENGTH, BATCH = 16, 4, 5, 8


# -- the distribution


@pytest.mark.parametrize("temperature", [1 / 3, 2 / 3])
@pytest.mark.parametrize("log_alpha", [-1.5, 0.0, 0.8])
def test_draws_have_the_shares_of_zero_and_one_that_the_formula_gives(temperature, log_alpha):
    low, high = -0.1, 1.1
    count = 200_000
    gates = HardConcrete(count, temperature=temperature, start=log_alpha)
    drawn = gates(torch.Generator().manual_seed(0)).detach()
    logistic = lambda x: 1 / (1 + math.exp(-x))
    # P(s ≤ t) = σ(β logit(t) − log α); z is 0 for s ≤ −γ/(ζ − γ), and 1 for s ≥ (1 − γ)/(ζ − γ)
    at = lambda place: logistic(temperature * math.log(place / (1 - place)) - log_alpha)
    zero = at(-low / (high - low))
    one = 1 - at((1 - low) / (high - low))
    assert (drawn == 0).double().mean().item() == pytest.approx(zero, abs=4e-3)
    assert (drawn == 1).double().mean().item() == pytest.approx(one, abs=4e-3)
    assert gates.open_probability()[0].item() == pytest.approx(1 - zero, rel=1e-5)
    assert gates.penalty().item() == pytest.approx(count * (1 - zero), rel=1e-4)
    mean = _mean_by_quadrature(temperature, log_alpha, low, high)
    assert drawn.double().mean().item() == pytest.approx(mean, abs=4e-3)


def _mean_by_quadrature(temperature, log_alpha, low, high):
    """E[z] over u, at the middle of many equal parts."""
    u = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    coin = torch.sigmoid((torch.log(u) - torch.log(1 - u) + log_alpha) / temperature)
    return torch.clamp(coin * (high - low) + low, 0, 1).mean().item()


def test_the_gate_of_evaluation():
    gates = HardConcrete(5).eval()
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor([-5.0, -1.0, 0.0, 1.0, 5.0]))
    want = [min(1.0, max(0.0, 1.2 / (1 + math.exp(-x)) - 0.1)) for x in gates.log_alpha.tolist()]
    torch.testing.assert_close(gates(), torch.tensor(want))
    assert want[0] == 0 and want[-1] == 1
    assert torch.equal(gates(), gates()), "nothing is drawn"


def test_gradients_flow_through_draws_that_are_neither_zero_nor_one():
    gates = HardConcrete(1000, start=0.0)
    drawn = gates(torch.Generator().manual_seed(0))
    slope = torch.autograd.grad(drawn.sum(), gates.log_alpha)[0]
    inside = (drawn > 0) & (drawn < 1)
    assert inside.any() and (slope[inside] > 0).all() and (slope[~inside] == 0).all()
    assert slope.isfinite().all()


def test_draws_follow_the_generator():
    gates = HardConcrete(10, start=0.0)
    draw = lambda seed: gates(torch.Generator().manual_seed(seed))
    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    assert "10, temperature 0.333" in repr(gates)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"temperature": 0.0}, "temperature=0.0"), ({"stretch": (0.1, 1.1)}, r"stretch=\(0.1, 1.1\)")],
)
def test_numbers_that_make_no_gate(options, told):
    with pytest.raises(RegardError, match=told):
        HardConcrete(2, **options)


# -- learning


class Planted(nn.Module):
    """Two attentions of which only some heads reach the answer: the others' columns are noise that
    a reader at the end is blind to."""

    matter = ([1], [0, 3])

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in self.matter
        )
        with torch.no_grad():
            for layer, heads in zip(self.layers, self.matter):
                columns = layer.out_proj.weight.view(WIDTH, HEADS, -1)
                for head in set(range(HEADS)) - set(heads):
                    columns[:, head] = 0
                    columns[-1, head] = 1.0  # into a feature that nobody reads
                layer.in_proj_weight[:, -1] = 0
                columns[-1, heads] = 0

    def forward(self, x):
        total = 0
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
            total = total + x[..., :-1]
        return total


@pytest.fixture(scope="module")
def planted():
    torch.manual_seed(0)
    model = Planted().eval()
    data = [torch.randn(BATCH, LENGTH, WIDTH) for _ in range(4)]
    with torch.no_grad():
        targets = {id(x): model(x) for x in data}

    def loss(output, inputs):
        return (output - targets[id(inputs)]).square().mean((1, 2))

    return model, data, loss


def test_only_the_heads_that_matter_stay_open(planted):
    model, data, loss = planted
    learned = learn_gates(model, data, loss, penalty=1e-3, steps=250)
    scores = learned.importance.scores
    assert learned.importance.names == ("layers.0", "layers.1")
    for row, heads in zip(scores, Planted.matter):
        closed = [head for head in range(HEADS) if head not in heads]
        assert row[heads].min() > 0.9, "these carry the answer"
        assert row[closed].max() < 0.2, "these cost and do nothing"
    assert learned.closed() == {"layers.0": [0, 2, 3], "layers.1": [1, 2]}
    assert "5 of 8 gates are closed" in repr(learned)
    assert learned.losses.shape == (250,)


def test_a_penalty_above_all_loss_closes_everything(planted):
    model, data, loss = planted
    learned = learn_gates(model, data, loss, penalty=10.0, steps=120)
    assert learned.importance.scores.max() < 0.5
    without = learn_gates(model, data, loss, penalty=0.0, steps=20)
    assert without.importance.scores.min() > 0.9


def test_the_seed_decides(planted):
    model, data, loss = planted
    learn = lambda seed: learn_gates(model, data, loss, steps=5, seed=seed)
    first, again, other = learn(0), learn(0), learn(1)
    assert torch.equal(first.importance.scores, again.importance.scores)
    assert torch.equal(first.losses, again.losses)
    assert not torch.equal(first.losses, other.losses)


def test_the_first_step_by_hand(planted):
    """Adam's first step is the rate times the sign of the gradient of loss plus penalty."""
    model, data, loss = planted
    learned = learn_gates(model, data[:1], loss, penalty=0.05, steps=1, rate=0.1)
    gates = HardConcrete(2 * HEADS)
    drawn = gates(torch.Generator().manual_seed(0))
    x = data[0]
    total = 0
    for layer, own in zip(model.layers, drawn.split(HEADS)):
        query, key, value = (
            F.linear(x, weight, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for weight, bias in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3))
        )
        heads = (query @ key.mT / 2).softmax(-1) @ value  # (batch, head, position, width)
        heads = heads * own[:, None, None]
        x = x + layer.out_proj(heads.transpose(1, 2).flatten(2))
        total = total + x[..., :-1]
    found = loss(total, data[0]).mean()
    (found + 0.05 * gates.penalty()).backward()
    torch.testing.assert_close(learned.losses[0], found.detach())
    want = 2.5 - 0.1 * gates.log_alpha.grad.sign()
    torch.testing.assert_close(learned.gates.log_alpha.detach(), want, atol=1e-4, rtol=0)


def test_weights_of_the_model_are_trained_when_asked(planted):
    model, data, _ = planted
    mine = copy.deepcopy(model).train()
    targets = [model(x).detach() for x in data]
    near = lambda output, inputs: (output - targets[0]).square().mean((1, 2))
    mine.layers[0].in_proj_bias.requires_grad_(False)
    mine.layers[1].out_proj.bias.grad = torch.ones(WIDTH)
    before = {name: p.detach().clone() for name, p in mine.named_parameters()}
    learn_gates(mine, data[:1], near, steps=5, model_rate=1e-3)
    moved = {name for name, p in mine.named_parameters() if not torch.equal(before[name], p)}
    assert "layers.0.out_proj.weight" in moved and "layers.0.in_proj_bias" not in moved
    assert mine.training and (mine.layers[1].out_proj.bias.grad == 1).all()
    assert all(
        p.grad is None for name, p in mine.named_parameters() if name != "layers.1.out_proj.bias"
    )


def test_importance_by_gates(planted):
    model, data, loss = planted
    want = learn_gates(model, data, loss).importance
    found = head_importance(model, data, loss, "gates")
    assert found.method == "gates" and found.names == want.names
    assert torch.equal(found.scores, want.scores)


def test_data_that_can_be_seen_once(planted):
    model, data, loss = planted
    assert learn_gates(model, iter(data), loss, steps=4).losses.shape == (4,)
    with pytest.raises(RegardError, match=r"data ran out .* give a list or a loader"):
        learn_gates(model, iter(data), loss, steps=5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"steps": 0}, "steps=0, expected at least 1"),
        ({"penalty": -1.0}, "penalty=-1.0"),
        ({"rate": 0.0}, "rate=0.0"),
    ],
)
def test_numbers_that_are_refused(planted, options, told):
    model, data, loss = planted
    with pytest.raises(RegardError, match=told):
        learn_gates(model, data, loss, **options)
