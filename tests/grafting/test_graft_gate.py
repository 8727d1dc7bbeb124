"""A gate grafted onto a convolutional network: nothing moves at first, then it is trained."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.grafting import GateLayer, graft, grafts
from regard.mechanisms import DotProduct
from regard.vision import CBAM, ChannelGate, SqueezeExcitation

CHANNELS = 6
GATES = {
    "se": lambda: SqueezeExcitation(CHANNELS, reduction=2),
    "cbam": lambda: cbam(CHANNELS),
}


def cbam(channels):
    return CBAM(channels, channel=ChannelGate(channels, reduction=2))


class Network(nn.Module):
    """Two convolutions with norms, a mean, a classifier."""

    def __init__(self, checkpointing=False):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS))
        self.second = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3), nn.ReLU())
        self.classify, self.checkpointing = nn.Linear(CHANNELS, 4), checkpointing

    def forward(self, x):
        x = self.first(x)
        x = (
            checkpoint(self.second, x, use_reentrant=False)
            if self.checkpointing
            else self.second(x)
        )
        return self.classify(x.mean((2, 3)))


def image(dtype=torch.float32):
    return torch.randn(2, 3, 9, 7, dtype=dtype)


def bits(tensor):
    return tensor.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[tensor.element_size()])


def wake(part):
    """As after training."""
    with torch.no_grad():
        part.gamma.fill_(0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("into", ["first", "second"])
def test_outputs_are_bit_for_bit_what_they_were(name, into, dtype):
    for training in (True, False):
        model, x = Network().to(dtype).train(training), image(dtype)
        before = model(x)
        part = GateLayer(GATES[name](), into=into)
        grafted = graft(model, part)
        assert torch.equal(bits(model(x)), bits(before))
        wake(part)
        moved = model(x)
        assert moved.dtype == dtype and moved.isfinite().all() and not torch.equal(moved, before)
        grafted.remove()
        assert torch.equal(bits(model(x)), bits(before))


@pytest.mark.parametrize("name", GATES)
def test_zeros_infinities_and_nan_of_the_base_stay(name):
    part = GateLayer(GATES[name](), into="")
    odd = [-0.0, 0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -3.4e38]
    state = torch.randn(2, CHANNELS, 4, 4)
    state[0, :, 0, :] = torch.tensor(odd[:4])  # the whole of the first example's gates is NaN
    state[1, 0, 0, :3] = torch.tensor([-0.0, *odd[5:]])
    assert torch.equal(bits(part(state, None, None)), bits(state))
    state[0, 0, 1, 0] = torch.nan
    assert torch.equal(part(state, None, None).isnan(), state.isnan())


@pytest.mark.parametrize("name", GATES)
def test_the_equation(name):
    part, x = GateLayer(GATES[name](), into="").double(), torch.randn(2, CHANNELS, 5, 3).double()
    with torch.no_grad():
        part.gamma.fill_(0.3)
    gated = part.gate(x).output
    torch.testing.assert_close(part(x, None, None), x + 0.3 * (gated - x))
    with torch.no_grad():
        part.gamma.fill_(1.0)
    torch.testing.assert_close(part(x, None, None), gated)


def test_trained_saved_alone_loaded_and_removed(tmp_path):
    model, x, target = Network().eval(), image(), torch.tensor([0, 3])
    fresh, before = copy.deepcopy(model), model(x)
    keys = set(model.state_dict())
    part = GateLayer(SqueezeExcitation(CHANNELS, reduction=2), into="second")
    with pytest.warns(UserWarning, match="running statistics"):
        grafted = graft(model, part, freeze=True)
    assert grafted.name == "gate" and grafts(model) == {"gate": grafted}
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == {f"regard_graft.gate.{name}" for name, _ in part.named_parameters()}
    optimiser = torch.optim.Adam(part.parameters(), lr=0.1)
    losses = []
    for step in range(20):
        loss = nn.functional.cross_entropy(model(x), target)
        losses.append(float(loss.detach()))
        optimiser.zero_grad()
        loss.backward()
        if step == 0:  # gamma is 0: the gate itself waits
            assert part.gamma.grad and not part.gate.excitation.widen.weight.grad.any()
        optimiser.step()
    assert losses[-1] < losses[0] - 0.01 and part.gate.excitation.widen.weight.grad.any()
    grafted.save(tmp_path / "gate.safetensors")
    assert (tmp_path / "gate.safetensors").stat().st_size < 3000
    again = GateLayer(SqueezeExcitation(CHANNELS, reduction=2), into="second")
    graft(fresh, again).load(tmp_path / "gate.safetensors")
    assert torch.equal(fresh(x), model(x)) and not torch.equal(model(x), before)
    other = graft(Network().eval(), GateLayer(SqueezeExcitation(CHANNELS, hidden=3), into="second"))
    with pytest.raises(RegardError, match="another base model"):
        other.load(tmp_path / "gate.safetensors")
    assert grafted.remove() is part
    assert torch.equal(model(x), before) and set(model.state_dict()) == keys


def test_gates_are_captured_by_name():
    model, x = Network().eval(), image()
    graft(model, GateLayer(SqueezeExcitation(CHANNELS, reduction=2), into="first"))
    part = GateLayer(cbam(CHANNELS), into="second")
    graft(model, part, name="cbam")
    seen = []
    model.second.register_forward_hook(lambda _, __, out: seen.append(out))
    with torch.no_grad(), regard.capture(model, gates=True) as trace:
        model(x)
    assert trace.names() == [
        "regard_graft.gate.gate",
        "regard_graft.cbam.gate.channel",
        "regard_graft.cbam.gate.spatial",
    ]
    assert trace[2].recipe.grid == (7, 5)
    with torch.no_grad():
        gates = part.gate(seen[0], weights=True).attentions
    assert torch.equal(trace[1].weights(), gates["channel"].weights)


def test_checkpointed():
    model = Network(checkpointing=True)
    graft(model, GateLayer(SqueezeExcitation(CHANNELS, reduction=2), into="second.0"))
    with pytest.raises(UnavailableError, match=r"into='second\.0' is inside an activation checkp"):
        model(image())


def test_norms_of_a_gate_are_no_part_of_the_frozen_base():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3))
        graft(model, GateLayer(cbam(CHANNELS), into="0"), freeze=True)


def test_what_does_not_fit():
    with pytest.raises(RegardError, match="gate is DotProduct, expected a gate of regard"):
        GateLayer(DotProduct(), into="first")
    with pytest.raises(RegardError, match="has no module of that path; the nearest are 'first'"):
        graft(Network(), GateLayer(cbam(CHANNELS), into="firs"))
    model = Network()
    graft(model, GateLayer(cbam(CHANNELS), into="classify"))
    with pytest.raises(ShapeError, match=r"'classify' has 2 axes \(2, 4\), expected \(batch, chan"):
        model(image())
    model = Network()
    graft(model, GateLayer(cbam(8), into="second"))
    with pytest.raises(ShapeError, match="channel has size 6, expected 8"):
        model(image())


@pytest.mark.compiled
def test_compiled_and_exported():
    torch.compiler.reset()
    model, x = Network().eval(), image()
    part = GateLayer(cbam(CHANNELS), into="second")
    graft(model, part)
    wake(part)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), expected)
        program = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), expected)
    torch.compiler.reset()
