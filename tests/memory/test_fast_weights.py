"""Fast weights of 1992: loops over outer products, linear attention, the delta rule, recall."""

import re

import pytest
import torch
from torch import nn

import regard
from regard.errors import DtypeError, RegardError, ShapeError, StateError, UnavailableError
from regard.mechanisms import IdentityFeatures, LinearAttention
from regard.memory import FastWeights
from regard.testing import check_mechanism

#: options of `FastWeights`, by name
RULES = {"sum": {}, "delta": {"rule": "delta"}, "squashed": {"squash": torch.tanh}}


def by_loop(memory, x):
    """Schmidhuber 1992, section 2, one example: W is value × key, as there."""
    matrix = torch.zeros(memory.value_width, memory.key_width, dtype=x.dtype)
    widths = [memory.key_width, memory.value_width, memory.key_width, memory.rule == "delta"]
    outputs = []
    for x_t in x:
        source, target, query, strength = memory.slow(x_t).split([int(w) for w in widths])
        if memory.rule == "delta":
            source, query = source / source.norm(), query / query.norm()
            beta = 1 / (1 + (-strength).exp())
            target = beta * (target - matrix @ source)
        for i in range(memory.value_width):
            for j in range(memory.key_width):
                matrix[i, j] = matrix[i, j] + target[i] * source[j]
        if memory.squash is not None:
            matrix = memory.squash(matrix)
        outputs.append(matrix @ query)
    return torch.stack(outputs), matrix


@torch.no_grad()
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_it_is_the_paper_s_rule(options):
    memory = FastWeights(6, 4, 3, **options).double()
    x = torch.randn(2, 70, 6, dtype=torch.float64)  # more than one chunk
    attended = memory(x)
    for example in range(2):
        output, matrix = by_loop(memory, x[example])
        torch.testing.assert_close(attended.output[example], output)
        torch.testing.assert_close(attended.state.memory[example, 0], matrix.T)


@torch.no_grad()
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_weights_are_of_what_was_written(rule):
    memory, x = FastWeights(6, 4, 3, rule=rule), torch.randn(2, 70, 6)
    attended = memory(x, weights=True)
    written = memory.slow(x)[..., 4:7]  # TO
    assert attended.weights.shape == (2, 1, 70, 70) and attended.recipe.kind == memory.kind
    assert not attended.weights.triu(1).any() and (attended.weights < 0).any()
    torch.testing.assert_close(attended.weights[:, 0] @ written, attended.output, rtol=0, atol=1e-4)
    torch.testing.assert_close(attended.recipe.mixed()[:, 0], attended.output, rtol=0, atol=1e-4)


@torch.no_grad()
def test_weights_of_the_sum_are_products():
    memory, x = FastWeights(6, 4, 3), torch.randn(1, 9, 6)
    source, _, query = memory.slow(x)[0].split([4, 3, 4], dim=-1)
    expected = torch.zeros(9, 9)
    for t in range(9):
        for s in range(t + 1):
            expected[t, s] = query[t] @ source[s]
    torch.testing.assert_close(memory(x, weights=True).weights[0, 0], expected)


@torch.no_grad()
@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_steps_are_one_pass(options):
    memory, x = FastWeights(6, 4, 3, **options), torch.randn(2, 100, 6)
    whole, state, outputs = memory(x), None, []
    for step in x.split(1, dim=1):
        attended = memory(step, state=state)
        state = attended.state
        outputs.append(attended.output)
    torch.testing.assert_close(torch.cat(outputs, 1), whole.output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.memory, whole.state.memory, rtol=1e-5, atol=1e-5)
    assert (state.keys, state.step, state.written.tolist()) == (100, 100, [100, 100])


@torch.no_grad()
def test_it_is_linear_attention_without_its_denominator():
    memory = FastWeights(8, 8, 8)
    attn = LinearAttention(8, 1, feature_map=IdentityFeatures(), normalised=False)
    parts = (attn.to_key, attn.to_value, attn.to_query)
    for part, weight, bias in zip(parts, memory.slow.weight.split(8), memory.slow.bias.split(8)):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    attn.to_output.weight.copy_(torch.eye(8))
    x = torch.randn(2, 20, 8)
    ours, theirs = memory(x, weights=True), attn(x, causal=True, weights=True)
    torch.testing.assert_close(ours.output, theirs.output)
    torch.testing.assert_close(ours.weights, theirs.weights)


@torch.no_grad()
def test_a_later_call_reads_what_an_earlier_one_wrote():
    memory, x = FastWeights(6, 4, 3), torch.randn(2, 10, 6)
    first = memory(x[:, :6])
    second = memory(x[:, 6:], state=first.state, weights=True)
    whole = memory(x, weights=True)
    torch.testing.assert_close(second.weights, whole.weights[:, :, 6:, 6:])
    torch.testing.assert_close(second.recipe.mixed()[:, 0], whole.output[:, 6:])


@torch.no_grad()
def test_squashed_weights_stay_bounded():
    memory = FastWeights(2, 3, 3, squash=torch.tanh)
    attended = memory(100 * torch.randn(1, 50, 2))
    assert attended.state.memory.abs().max() <= 1.0
    with pytest.raises(UnavailableError, match="a squashed W is no sum of what was written"):
        memory(torch.randn(1, 2, 2), weights=True)


def test_the_slow_network_is_a_part():
    """A recurrent slow network, and units that squash, as in the paper."""

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(6, 8, batch_first=True)
            self.emit = nn.Linear(8, 11)

        def forward(self, x):
            return self.emit(self.recurrent(x)[0]).tanh()

    memory = FastWeights(6, 4, 3, slow=Slow())
    memory(torch.randn(2, 5, 6)).output.square().sum().backward()
    assert memory.emitted == 11 and all(p.grad.any() for p in memory.parameters())


def test_it_learns_to_bind():
    """Three pairs are written, then a key is asked for: the slow network learns FROM, TO and q."""
    torch.manual_seed(0)
    n_keys, pairs = 6, 3
    memory = FastWeights(2 * n_keys + 1, 8, n_keys, rule="delta")
    optimiser = torch.optim.Adam(memory.parameters(), lr=0.03)
    for update in range(201):
        keys = torch.rand(64, n_keys).argsort(1)[:, :pairs]
        values = torch.randint(n_keys, (64, pairs))
        asked = torch.randint(pairs, (64, 1))
        shown = torch.cat([keys, keys.gather(1, asked)], dim=1)
        x = torch.zeros(64, pairs + 1, 2 * n_keys + 1)
        x.scatter_(2, shown[..., None], 1.0)
        x[:, :pairs].scatter_(2, n_keys + values[..., None], 1.0)
        x[:, -1, -1] = 1.0  # a question
        answer = memory(x).output[:, -1]
        wanted = values.gather(1, asked)[:, 0]
        loss = nn.functional.cross_entropy(answer, wanted)
        if update < 200:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert (answer.argmax(-1) == wanted).float().mean() > 0.8  # chance is 1/6


def test_signed_weights_reduce():
    attended = FastWeights(6, 4, 3)(torch.randn(1, 5, 6), weights=True)
    received = regard.reduce(attended.recipe, [regard.ReceivedAttention()])[0]
    torch.testing.assert_close(received, attended.weights.sum(2).detach())


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_parts_are_named():
    memory, x = FastWeights(6, 4, 3), torch.randn(2, 5, 6)
    state = memory(x).state
    for wrong, error, text in (
        (True, StateError, "state is bool, expected a RecurrentState, the .state of the call"),
        (FastWeights(6, 4, 2)(x).state, ShapeError, "expected (2, 1, 4, 3): batch, 1, key width"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            memory(x, state=wrong)
    with pytest.raises(DtypeError, match=r"state is torch.float32, expected torch.float64"):
        memory.double()(x.double(), state=state)
    for slow, text in (
        (nn.Linear(6, 10), "slow gave (2, 5, 10), expected (2, 5, 11): batch, steps, and the"),
        (nn.LSTM(6, 11, batch_first=True), "slow gave tuple, expected (2, 5, 11)"),
    ):
        with pytest.raises(ShapeError, match=re.escape(text)):
            FastWeights(6, 4, 3, slow=slow)(x)
    with pytest.raises(RegardError, match="rule='hebb', expected 'sum' or 'delta'"):
        FastWeights(6, 4, 3, rule="hebb")
    with pytest.raises(RegardError, match="squash with rule='delta', which bounds W by itself"):
        FastWeights(6, 4, 3, rule="delta", squash=torch.tanh)


class Adapter(nn.Module):
    """Fast weights as a self-attention, for the laws of the contract that need no key."""

    kind = "signed"

    def __init__(self):
        super().__init__()
        self.memory = FastWeights(8, 4, 8)

    def forward(self, query, *, weights=False):
        return self.memory(query, weights=weights)


def test_laws_of_the_contract_that_apply():
    report = check_mechanism(Adapter, width=8, without=["copies", "compiles", "exports"])
    applying = "asking_changes_nothing declared_kind dtypes empty examples_apart gradients"
    assert set(report.passed) >= set(f"{applying} leaves_no_trace weights_times_values".split())
