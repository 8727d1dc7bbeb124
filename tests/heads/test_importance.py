"""Scores of heads: against the chain rule written out, finite differences, models cut by hand.

Also losses and data that give none.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from head_models import (
    BATCH,
    FAMILIES,
    HEADS,
    LENGTH,
    WIDTH,
    MultiHeadOnly,
    built,
    encoder,
    hidden_loss,
    words,
)
from torch import nn

from regard.anatomy.head_sites import head_sites
from regard.errors import RegardError
from regard.heads.head_mask import head_mask
from regard.heads.importance import head_importance
from regard.mechanisms import Heads, MultiHead, Scoring

# -- by gradient


def by_chain_rule(
    model, inputs, loss, projections: dict[str, nn.Module]
) -> dict[str, torch.Tensor]:
    """|⟨head, ∂L/∂head⟩| of each example run alone, averaged: {name: (head,)}."""
    totals = {name: torch.zeros(HEADS, dtype=torch.float64) for name in projections}
    batch = len(inputs["input_ids"])
    for example in range(batch):
        alone = {key: value[example : example + 1] for key, value in inputs.items()}
        heads = {}

        def keep(name, into):
            def hook(module, given):
                given[0].retain_grad()
                into[name] = given[0]

            return hook

        handles = [
            m.register_forward_pre_hook(keep(name, heads)) for name, m in projections.items()
        ]
        loss(model(**alone), alone).sum().backward()
        for handle in handles:
            handle.remove()
        for name, head in heads.items():
            product = (head * head.grad).unflatten(-1, (HEADS, -1))
            totals[name] += product.sum((0, 1, 3)).abs() / batch
    return totals


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_the_mask_is_head_times_gradient(family):
    model, inputs = built(family), words(family)
    found = head_importance(model, [inputs], hidden_loss)
    assert list(found.names) == FAMILIES[family][2]
    projections = {site.name: site.projection for site in head_sites(model)}
    for name, score in by_chain_rule(model, inputs, hidden_loss, projections).items():
        assert score.max() > 1e-3
        torch.testing.assert_close(found[name], score, rtol=1e-8, atol=1e-12)


def layer_by_hand(layer: nn.TransformerEncoderLayer, x, heads_seen: list):
    """A post-norm layer of torch in evaluation mode, written out; its heads are put in a list."""
    attention = layer.self_attn
    query, key, value = (
        F.linear(x, weight, bias).unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        for weight, bias in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3))
    )
    weights = (query @ key.mT / math.sqrt(WIDTH // HEADS)).softmax(-1)
    heads = (weights @ value).transpose(-2, -3)  # (batch, query, head, width)
    heads.retain_grad()
    heads_seen.append(heads)
    x = layer.norm1(x + attention.out_proj(heads.flatten(-2)))
    return layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_layers_against_one_written_out(batch_first):
    model = encoder(batch_first=batch_first, enable_nested_tensor=False).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    turn = (lambda y: y) if batch_first else (lambda y: y.transpose(0, 1))
    loss = lambda output, inputs: turn(output)[:, 0, :5].pow(3).sum(-1)
    found = head_importance(model, [turn(x)], loss)
    want = [torch.zeros(HEADS, dtype=torch.float64) for _ in model.layers]
    for example in x:
        seen, y = [], example[None]
        y = y.clone().requires_grad_()
        for layer in model.layers:
            y = layer_by_hand(layer, y, seen)
        loss(turn(y), None).sum().backward()
        for row, heads in zip(want, seen):
            row += (heads * heads.grad).detach().sum((0, 1, 3)).abs() / BATCH
    torch.testing.assert_close(found.scores, torch.stack(want), rtol=1e-8, atol=1e-12)


def test_the_slope_is_that_of_the_loss_when_the_mask_moves():
    model, inputs = built("bert"), words("bert", batch=1)
    found = head_importance(model, [inputs], hidden_loss)
    step = 1e-5
    for layer, head in [(0, 1), (1, 2)]:
        at = []
        for sign in (1, -1):
            mask = torch.ones(2, HEADS, dtype=torch.float64)
            mask[layer, head] += sign * step
            with torch.no_grad(), head_mask(model, mask):
                at.append(hidden_loss(model(**inputs), inputs).item())
        slope = (at[0] - at[1]) / (2 * step)
        assert found.scores[layer, head].item() == pytest.approx(abs(slope), rel=1e-6)


def test_the_absolute_value_comes_before_the_mean():
    """Two examples whose slopes are opposite: their mean is 0, the importance is not."""
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64).expand(2, -1, -1)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss = lambda output, inputs: output[0][:, 0].sum(-1) * sign
    together = head_importance(model, [(x, x, x)], loss).scores
    alone = head_importance(
        model, [(x[:1], x[:1], x[:1])], lambda output, inputs: output[0][:, 0].sum(-1)
    ).scores
    assert together.min() > 1e-3
    torch.testing.assert_close(together, alone)


def test_batches_count_by_their_examples():
    model, inputs = built("bert"), words("bert", batch=5)
    parts = [{k: v[:2] for k, v in inputs.items()}, {k: v[2:] for k, v in inputs.items()}]
    torch.testing.assert_close(
        head_importance(model, iter(parts), hidden_loss).scores,
        head_importance(model, [inputs], hidden_loss).scores,
    )


class SequenceFirst(nn.Module):
    """Attention of one's own over (position, batch, width)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.num_heads = HEADS

    def forward(self, x):
        q, k, v = (
            f(x).transpose(0, 1).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)  # (batch, head, position, width)
        return x + self.o(mixed.transpose(1, 2).flatten(2).transpose(0, 1))


@pytest.mark.parametrize("place", [0, -1])
def test_examples_along_another_axis_are_told_apart(place):
    """As many positions as examples, so that shapes alone would mislead.

    One layer, read at the first or last position: then the first or last example alone would too.
    """
    torch.manual_seed(0)
    model = SequenceFirst().double()
    x = torch.randn(4, 4, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output[place].square().sum(-1)  # (batch,)
    found = head_importance(model, [x], loss).scores
    each = [head_importance(model, [x[:, b : b + 1]], loss).scores for b in range(4)]
    torch.testing.assert_close(found, torch.stack(each).mean(0))


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_backward_pass_serves_all_examples(batch_first, monkeypatch):
    model = encoder(batch_first=batch_first, enable_nested_tensor=False)
    shape = (5, LENGTH, WIDTH) if batch_first else (LENGTH, 5, WIDTH)
    data = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    passes, plain = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: (passes.append(1), plain(*a, **k))[1]
    )
    head_importance(
        model, data, lambda output, inputs: output.sum(-1).square().sum(int(batch_first))
    )
    assert len(passes) == 2 + 3, "two to see that examples are apart, then one a batch"


def test_examples_that_meet_in_the_loss():
    """A loss within the batch: ∂L_b/∂ξ goes through every example."""
    model, inputs = built("bert"), words("bert", batch=4)

    def loss(output, inputs):
        first = F.normalize(output.last_hidden_state[:, 0], dim=-1)
        return F.cross_entropy(first @ first.T, torch.arange(4).roll(1), reduction="none")

    found = head_importance(model, [inputs], loss).scores
    mask = torch.ones(2, HEADS, dtype=torch.float64, requires_grad=True)
    with head_mask(model, mask):
        losses = loss(model(**inputs), inputs)
    slopes = [torch.autograd.grad(one, mask, retain_graph=True)[0].abs() for one in losses]
    torch.testing.assert_close(found, torch.stack(slopes).mean(0))


def test_one_example_without_a_batch_axis():
    model = nn.MultiheadAttention(WIDTH, HEADS).double()
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output[0].square().sum()[None]
    lone = head_importance(model, [(x, x, x)], loss).scores
    x = x[:, None]
    torch.testing.assert_close(lone, head_importance(model, [(x, x, x)], loss).scores)


def test_bfloat16_is_near_single_precision():
    model, inputs = built("bert", torch.float32), words("bert")
    want = head_importance(model, [inputs], hidden_loss).scores
    got = head_importance(model.to(torch.bfloat16), [inputs], hidden_loss).scores
    assert got.dtype == torch.float64
    assert ((got - want).abs() / want.max()).max() < 0.05


def test_regards_own_attention():
    torch.manual_seed(0)
    model = MultiHead(WIDTH, Heads(HEADS, n_groups=2), scoring=Scoring(sinks=True)).double()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output.output[:, 0].square().sum(-1)
    found = head_importance(model, [x], loss)
    assert found.names == ("MultiHead",) and found.scores.shape == (1, HEADS)
    heads = []
    handle = model.to_output.register_forward_pre_hook(lambda m, given: heads.append(given[0]))
    losses = loss(model(x), x)
    handle.remove()
    slope = torch.autograd.grad(losses.sum(), heads)[0]
    want = (heads[0] * slope).unflatten(-1, (HEADS, -1)).sum((1, 3)).abs().mean(0)
    torch.testing.assert_close(found.scores[0], want)


# -- by leaving out


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_leaving_out_is_the_loss_of_a_model_cut_by_hand(family):
    model, inputs = built(family), words(family)
    found = head_importance(model, [inputs], hidden_loss, "leave_out")
    with torch.no_grad():
        whole = hidden_loss(model(**inputs), inputs).mean()
        for name, head in [(found.names[0], 2), (found.names[-1], 0)]:
            other = copy.deepcopy(model)
            site = next(site for site in head_sites(other) if site.name == name)
            weight = site.projection.weight if family != "gpt2" else site.projection.weight.T
            weight[:, head * 4 : head * 4 + 4] = 0
            want = hidden_loss(other(**inputs), inputs).mean() - whole
            assert abs(want) > 1e-4
            torch.testing.assert_close(found[name][head], want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_keeps_its_fast_path_when_heads_are_left_out():
    """In evaluation with padding torch's encoder gives zeros there; a loss may rely on it."""
    model = encoder().eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, 3:] = True
    run = lambda model, x: model(x, src_key_padding_mask=padding)
    loss = lambda output, inputs: output.square().sum((1, 2))
    found = head_importance(model, [x], loss, "leave_out", run=run)
    with torch.no_grad():
        assert run(model, x)[1, 3:].eq(0).all(), "the fast path"
        whole = loss(run(model, x), x).mean()
        other = copy.deepcopy(model)
        other.layers[1].self_attn.out_proj.weight[:, 4:8] = 0
        want = loss(run(other, x), x).mean() - whole
    torch.testing.assert_close(found.scores[1, 1], want)
    assert found.names == ("layers.0.self_attn", "layers.1.self_attn")


# -- what is refused


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda output, inputs: output[:, 0].square().sum(), r"one number for inputs of 2 rows"),
        (lambda output, inputs: output.square().sum(-1), r"loss gave \(2, 6\), expected"),
        (lambda output, inputs: 1.0, "loss gave float, expected"),
        (lambda output, inputs: output[:, 0, 0].detach(), "no gradient by the heads"),
    ],
)
def test_losses_that_are_refused(loss, told):
    with pytest.raises(RegardError, match=told):
        head_importance(MultiHeadOnly(4), [torch.randn(2, LENGTH, WIDTH)], loss)


@pytest.mark.usefixtures("without_shape_checks")
def test_other_input_that_is_refused():
    loss = lambda output, inputs: output[:, 0, 0]
    x = torch.randn(2, LENGTH, WIDTH)
    for call, told in [
        (lambda: head_importance(MultiHeadOnly(4), [], loss), "data is empty"),
        (
            lambda: head_importance(MultiHeadOnly(4), x, loss),
            r"Tensor of shape \(2, .*data=\[batch\]",
        ),
        (
            lambda: head_importance(MultiHeadOnly(4), {"x": x}, loss),
            "data is a dict, expected a li",
        ),
        (lambda: head_importance(MultiHeadOnly(4), [x], loss, "norm"), "method='norm', expected"),
        (lambda: head_importance(MultiHeadOnly(4), ["x"], loss), "an element is a str"),
        (lambda: head_importance(len, [x], loss), "expected an nn.Module"),
        (lambda: head_importance(MultiHeadOnly(4), [x], loss, calls="all"), "calls='all'"),
        (lambda: head_importance(MultiHeadOnly(4), [x], loss, sites=[3]), "sites: 3, expected"),
    ]:
        with pytest.raises(RegardError, match=told):
            call()


def test_one_number_is_enough_for_one_example():
    x = torch.randn(1, LENGTH, WIDTH)
    model = MultiHeadOnly(4)
    lone = head_importance(model, [x], lambda output, inputs: output[0, 0].square().sum())
    each = head_importance(model, [x], lambda output, inputs: output[:, 0].square().sum(-1))
    torch.testing.assert_close(lone.scores, each.scores)
