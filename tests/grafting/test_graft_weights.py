"""The weights that a reuse layer is given: the attention's own, or none."""

import pytest
import torch
from graft_models import wake
from torch import nn
from torch.nn import functional as F

from regard import masks
from regard.blocks import DecoderBlock, EncoderBlock, FeedForward, PostNorm, PreNorm, Stack
from regard.errors import StateError, UnavailableError
from regard.grafting import ReuseLayer, ZeroProjection, graft
from regard.mechanisms import Additive, Decomposable, Heads, MultiHead, Scoring
from regard.reuse import GatedFlow


class Taken(nn.Module):
    """Keeps the weights it is given."""

    def forward(self, features, recipe, mask):
        self.weights = recipe.weights()
        return features


class Ends(nn.Module):
    """An attention, then something else, then a place to join."""

    def __init__(self, attention):
        super().__init__()
        self.attention, self.last = attention, nn.Identity()


def watched(model, reads="attention", into="last"):
    taken = Taken()
    graft(model, ReuseLayer(taken, reads=reads, into=into, join=ZeroProjection(8, 8)))
    return taken


@pytest.mark.parametrize("gradient", [True, False])
def test_an_input_that_is_written_into_is_noticed(gradient):
    class OfTorch(Ends):
        def forward(self, x):
            x = x.clone()
            answer = self.attention(x, x, x, need_weights=False)[0]
            x += answer
            return self.last(x)

    class Layer(Ends):
        def forward(self, x):
            y = x.clone()
            answer = self.attention(y)
            y.mul_(2)
            return self.last(answer)

    class Ours(Ends):
        def forward(self, x):
            y = x.clone()
            answer = self.attention(y).output
            y.mul_(2)
            return self.last(answer)

    models = {
        "query": OfTorch(nn.MultiheadAttention(8, 2, batch_first=True)),
        "src": Layer(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
        "query ": Ours(MultiHead(8, 2)),
    }
    for name, model in models.items():
        watched(model.eval())
        with (
            torch.set_grad_enabled(gradient),
            pytest.raises(
                StateError,
                match=rf"the input {name.strip()} of 'attention', \(2, 5, 8\), was changed in",
            ),
        ):
            model(torch.randn(2, 5, 8))


def test_a_mask_that_is_written_into_is_noticed():
    class Fused(nn.Module):
        def forward(self, x, mask):
            x = x[:, None]
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)[:, 0]

    class Model(Ends):
        def forward(self, x):
            mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
            y = self.attention(x, mask)
            mask.fill_(True)
            return self.last(y)

    model = Model(Fused())
    watched(model)
    with pytest.raises(StateError, match=r"the attn_mask inside 'attention', .* was changed"):
        model(torch.randn(2, 5, 8))


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_that_share_the_axis_of_the_batch_are_refused(heads):
    class Folded(nn.Module):
        """Heads before the batch, (head · batch, query, key)."""

        def forward(self, x):
            parts = torch.cat(x.chunk(heads, -1), 0)
            self.weights = (parts @ parts.mT).softmax(-1)
            return torch.cat((self.weights @ parts).chunk(heads, 0), -1)

    class Model(Ends):
        def forward(self, x):
            return self.last(self.attention(x))

    model = Model(Folded())
    taken = watched(model)
    if heads == 1:
        model(torch.randn(3, 5, 8))
        assert torch.equal(taken.weights[:, 0], model.attention.weights)
        return
    with pytest.raises(
        UnavailableError,
        match=r"inside 'attention' are \(6, 5, 5\) for a batch of 3; .* order cannot be told",
    ):
        model(torch.randn(3, 5, 8))


def encoder_block(attention):
    return EncoderBlock(PostNorm(8, attention), PreNorm(8, FeedForward(8)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda: MultiHead(8, Heads(2, n_groups=1), dropout=0.5),
        lambda: MultiHead(8, 2, window=(2, 2), scoring=Scoring(sinks=True)),
        lambda: Additive(8, 8, width=4),
    ],
)
def test_our_own_mechanisms_are_read(build, causal):
    attention = build()
    stack = Stack([encoder_block(attention), encoder_block(MultiHead(8, 2))]).double().eval()
    x, mask = (
        torch.randn(2, 5, 8).double(),
        masks.padding(torch.tensor([[True] * 5, [True] * 3 + [False] * 2])),
    )
    plain = stack(x, mask=mask, causal=causal, weights=True)
    taken = watched(stack, "blocks.0", "blocks.1:output")
    found = stack(x, mask=mask, causal=causal)
    assert torch.equal(found.output, plain.output) and found.attentions["0.self"].weights is None
    expected = plain.attentions["0.self"].weights
    torch.testing.assert_close(taken.weights, expected, atol=1e-8, rtol=0)


def test_a_reuse_layer_on_our_own_blocks_in_training():
    stack = Stack([encoder_block(MultiHead(8, 2, dropout=0.5)), encoder_block(MultiHead(8, 2))])
    x = torch.randn(2, 5, 8)
    torch.manual_seed(1)
    plain = stack(x).output
    part = ReuseLayer(GatedFlow(8, 2), reads="blocks.0.self_attention.part", into="blocks.1:output")
    grafted = graft(stack, part)
    torch.manual_seed(1)  # nothing more is drawn
    assert torch.equal(stack(x).output, plain)
    wake(part)
    stack(x).output.sum().backward()
    assert all(one.grad is not None for one in part.parameters())
    grafted.remove()
    torch.manual_seed(1)
    assert torch.equal(stack(x).output, plain)


def test_two_of_our_own_in_a_block_are_named():
    block = DecoderBlock(
        PreNorm(8, MultiHead(8, 2)), PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8))
    )
    stack = Stack([block])
    with pytest.raises(
        UnavailableError,
        match=r"reads='blocks\.0' holds 2 attentions; name one of "
        r"'blocks\.0\.self_attention\.part', 'blocks\.0\.cross_attention\.part'",
    ):
        watched(stack, "blocks.0", "")
    part = ReuseLayer(
        Taken(),
        reads="blocks.0.cross_attention",
        into=":output",
        join=ZeroProjection(8, 8),
    )
    graft(stack, part)
    x, context = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    expected = stack(x, context, weights=True).attentions["0.cross"].weights
    stack(x, context)
    torch.testing.assert_close(part.layer.weights, expected)


def test_weights_that_are_drawn_are_not_made_again():
    class Model(Ends):
        def forward(self, x):
            return self.last(self.attention(x).output)

    features = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    model = Model(Decomposable(features))
    taken = watched(model)
    with pytest.raises(UnavailableError, match="makes its weights with a Dropout, which differs"):
        model(torch.randn(2, 5, 8))
    model.eval()(torch.randn(2, 5, 8))
    assert taken.weights.shape == (2, 1, 5, 5)
