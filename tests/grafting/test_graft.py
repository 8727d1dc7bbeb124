"""Grafting on a small model: nothing changes, something is learned, everything comes back."""

import copy

import pytest
import torch
from graft_models import PARTS, Small, batch, decoding, gating, outside, pooling, reusing, wake
from torch import nn

import regard
from regard.errors import (
    StateError,
)
from regard.grafting import (
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
from regard.reuse import GatedFlow


def bits(tensor):
    return tensor.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[tensor.element_size()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_outputs_are_bit_for_bit_what_they_were(name, fused, dtype):
    for training in (True, False):
        model = Small(fused).to(dtype).train(training)
        given = batch()
        given["x"] = given["x"].to(dtype)
        before = model(**given)
        part = PARTS[name]()
        grafted = graft(model, part)
        after = model(**given)
        assert torch.equal(bits(after), bits(before))
        wake(part)
        moved = model(**given)
        assert moved.dtype == dtype and moved.isfinite().all() and not torch.equal(moved, before)
        grafted.remove()
        assert torch.equal(bits(model(**given)), bits(before))


def test_minus_zero_stays_minus_zero():
    join = ZeroProjection(4, 3)
    state = torch.tensor([[-0.0, 0.0, 1.0]])
    assert torch.equal(bits(join(state, torch.randn(1, 4))), bits(state))


def test_pooling_equals_a_loop_over_positions():
    model, given = Small().double(), batch()
    given["x"] = given["x"].double()
    plain = model(**given)
    seen = []
    handle = model.layers[1].register_forward_hook(lambda _, args, out: seen.append(out))
    model(**given)
    handle.remove()
    part = pooling()
    graft(model, part)
    wake(part)
    expected = plain.clone()
    for b in range(2):
        states = [seen[0][b, s] for s in range(5) if given["attention_mask"][b, s]]
        scores = [(part.query.latents[0] @ state / 8**0.5).exp() for state in states]
        shares = [score / sum(scores) for score in scores]
        context = sum(share * state for share, state in zip(shares, states))
        expected[b] -= part.join.project.weight @ context + part.join.project.bias
    torch.testing.assert_close(model(**given), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_reuse_equals_a_loop_with_the_weights_of_the_layer(fused):
    model, given = Small(fused).double(), batch()
    given["x"] = given["x"].double()
    with regard.capture(model) as trace:
        model(**given)
    weights = trace["layers.0.attention"].weights()
    states = []
    handle = model.layers[2].register_forward_hook(lambda _, args, out: states.append(out))
    model(**given)
    handle.remove()
    part = reusing()
    graft(model, part)
    wake(part)
    expected = states[0].clone()
    for b in range(2):
        for i in range(5):
            mixed = torch.zeros(8).double()
            for j in range(5):
                for head in range(2):
                    place = slice(4 * head, 4 * head + 4)
                    mixed[place] += weights[b, head, i, j] * states[0][b, j, place]
            made = part.layer.project.weight @ mixed
            expected[b, i] -= part.join.project.weight @ made + part.join.project.bias
    found = []
    handle = model.layers[2].register_forward_hook(lambda _, args, out: found.append(out))
    model(**given)
    handle.remove()
    torch.testing.assert_close(found[0], expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_padding_moves_nothing(name, fused):
    model, given = Small(fused), batch()
    part = PARTS[name]()
    graft(model, part)
    wake(part)
    before = model(**given)
    flipped = {**given, "x": given["x"].clone()}
    flipped["x"][1, 3:] *= -1e3
    torch.testing.assert_close(model(**flipped), before)
    flipped["x"][1, 0] *= -1
    assert not torch.allclose(model(**flipped)[1], before[1])


@pytest.mark.parametrize("name", ["pooling", "decoding"])
def test_nan_in_padding_reaches_nothing(name):
    class Spoils(nn.Module):
        def __init__(self):
            super().__init__()
            self.states, self.last = nn.Linear(4, 8), nn.Linear(8, 8)

        def forward(self, x, attention_mask):
            return self.last(self.states(x)[:, 0])

    model, given = Spoils(), batch()
    part = OutputAttention(
        DotProduct() if name == "pooling" else MultiHead(8, 2),
        query=Latents(2, 8) if name == "pooling" else States(causal=False),
        reads="states",
        into="last",
        join=ZeroProjection(16 if name == "pooling" else 8, 8),
        mask="attention_mask",
    )
    graft(model, part)
    wake(part)
    before = model(**given)
    given["x"][1, 3:] = torch.nan
    after = model(**given)
    torch.testing.assert_close(after, before)
    after.sum().backward()
    assert all(one.grad.isfinite().all() for one in part.parameters())


def test_a_mask_that_says_padding():
    class Inverted(Small):
        def forward(self, x, padded):
            return super().forward(x, (~padded).long())

    torch.manual_seed(1)
    model, given = Small(), batch()
    other = Inverted()
    other.load_state_dict(model.state_dict())
    part = pooling()
    graft(model, part)
    wake(part)
    same = copy.deepcopy(part)
    same.mask = "~padded"
    graft(other, same)
    torch.testing.assert_close(
        other(given["x"], given["attention_mask"] == 0), model(**given), atol=0, rtol=0
    )


def test_positional_inputs_and_none():
    model, given = Small(), batch()
    part = pooling()
    graft(model, part)
    wake(part)
    named = model(**given)
    assert torch.equal(model(given["x"], given["attention_mask"]), named)
    assert model(given["x"]).isfinite().all()


def test_a_batch_that_is_all_padding_gets_no_context():
    model, given = Small(), batch()
    given["attention_mask"] = torch.zeros(2, 5, dtype=torch.long)
    part = pooling()
    graft(model, part)
    with pytest.warns(GraftWarning, match="'attention_mask' marks every position of an example"):
        before = model(**given)
    wake(part)
    bias = part.join.project.bias
    with pytest.warns(GraftWarning):
        after = model(**given)
    torch.testing.assert_close(after, before - bias, equal_nan=True)


@pytest.mark.parametrize("name", PARTS)
def test_everything_comes_back(name):
    model = Small().eval()
    model.layers[1].register_forward_hook(lambda *_: None)
    model.embed.weight.requires_grad_(False)
    before = outside(model)
    grafted = graft(model, PARTS[name](), freeze=True)
    added = set(model.state_dict()) - set(before["keys"])
    assert added and all(key.startswith("regard_graft.") for key in added)
    assert [p for n, p in model.named_parameters() if p.requires_grad and "graft" not in n] == []
    assert all(p.requires_grad for p in grafted.part.parameters())
    part = grafted.remove()
    assert outside(model) == before
    assert "removed" in repr(grafted) and grafts(model) == {}
    with pytest.raises(StateError, match="is not on the model any more"):
        grafted.remove()
    graft(model, part)


def test_everything_comes_back_after_an_error_in_the_middle():
    model, given = Small(), batch()
    before, plain = outside(model), model(**given)
    handle = model.layers[2].register_forward_hook(lambda *_: 1 / 0)
    grafted = graft(model, pooling())
    with pytest.raises(ZeroDivisionError):
        model(**given)
    handle.remove()
    assert torch.equal(model(**given), plain)  # nothing of the broken pass is left
    grafted.remove()
    assert outside(model) == before


def test_several_grafts_in_any_order_of_removal():
    for first, second in ((0, 1), (1, 0)):
        model, given = Small(), batch()
        before, plain = outside(model), model(**given)
        parts = [pooling(), decoding(), gating(), pooling()]
        handles = [graft(model, part, freeze=i < 2) for i, part in enumerate(parts)]
        assert list(grafts(model)) == ["output", "output_2", "reuse", "output_3"]
        assert torch.equal(model(**given), plain)
        wake(parts[2])
        alone = model(**given)
        handles[first].remove()
        frozen = [p.requires_grad for n, p in model.named_parameters() if "graft" not in n]
        assert not any(frozen)
        assert torch.equal(model(**given), alone)
        handles[second].remove()
        assert model.embed.weight.requires_grad
        handles[3].remove()
        assert not torch.equal(model(**given), plain)
        handles[2].remove()
        assert outside(model) == before


def test_gradients_reach_the_part_and_the_base_unless_frozen():
    for freeze in (True, False):
        for name in PARTS:
            model = Small()
            part = PARTS[name]()
            graft(model, part, freeze=freeze)
            wake(part)
            model(**batch()).sum().backward()
            assert all(p.grad is not None for p in part.parameters())
            assert (model.embed.weight.grad is None) == freeze


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_go_through_the_weights(fused):
    model = Small(fused).double()
    part = ReuseLayer(GatedFlow(8, 2), reads="layers.0.attention", into="layers.2")
    graft(model, part)
    wake(part)
    given = batch()
    given["x"] = given["x"].double()
    through = torch.autograd.grad(model(**given).sum(), model.layers[0].attention.qkv.weight)[0]
    step = 1e-6
    for place in ((0, 0), (9, 3)):
        with torch.no_grad():
            model.layers[0].attention.qkv.weight[place] += step
            up = model(**given).sum()
            model.layers[0].attention.qkv.weight[place] -= 2 * step
            down = model(**given).sum()
            model.layers[0].attention.qkv.weight[place] += step
        torch.testing.assert_close(through[place], (up - down) / (2 * step), atol=1e-7, rtol=1e-6)
    part.layer.gain.data.zero_()
    without = torch.autograd.grad(model(**given).sum(), model.layers[0].attention.qkv.weight)[0]
    assert not torch.allclose(through, without)
