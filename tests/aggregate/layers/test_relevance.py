"""Gradient-weighted relevance and gradient × attention, against the papers' equations."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import RegardError, ShapeError, StateError, UnavailableError

EYE = torch.eye


def made(layers: int = 3, batch: int = 2, heads: int = 3, length: int = 7):
    torch.manual_seed(0)
    shape = (batch, heads, length, length)
    weights = [torch.randn(shape, dtype=torch.float64).softmax(-1) for _ in range(layers)]
    return weights, [torch.randn(shape, dtype=torch.float64) for _ in range(layers)]


def mean_of_positive(weights, gradient):
    """E_h[(∇A ∘ A)⁺], one head after another."""
    heads = weights.shape[1]
    return sum((weights[:, h] * gradient[:, h]).clamp(min=0) for h in range(heads)) / heads


def dense(weights, gradients):
    whole = EYE(weights[0].shape[-1], dtype=weights[0].dtype).expand(len(weights[0]), -1, -1)
    for one, gradient in zip(weights, gradients):
        whole = whole + torch.einsum("bij,bjk->bik", mean_of_positive(one, gradient), whole)
    return whole


@pytest.mark.parametrize("token", [None, 2, -1, [0, 3], list(range(7))])
def test_against_the_equation(token):
    weights, gradients = made()
    truth = dense(weights, gradients)
    truth = truth if token is None else truth[:, token]
    found = regard.relevance(weights, token, gradients=gradients)
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


def test_heads_may_change_places():
    weights, gradients = made()
    order = [2, 0, 1]
    again = regard.relevance(
        [one[:, order] for one in weights], 1, gradients=[one[:, order] for one in gradients]
    )
    torch.testing.assert_close(again, regard.relevance(weights, 1, gradients=gradients))


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("layers", ["mean", "last", "each"])
@pytest.mark.parametrize("token", [None, 1, [0, -1], list(range(7))])
def test_gradient_times_attention(token, layers, positive):
    weights, gradients = made()
    products = torch.stack([one * gradient for one, gradient in zip(weights, gradients)])
    products = products.clamp(min=0) if positive else products
    products = products.sum(2)
    truth = products.sum(2) if token is None else products[:, :, token]
    truth = {"mean": truth.mean(0), "last": truth[-1], "each": truth}[layers]
    found = regard.gradient_attention(
        weights, token, gradients=gradients, layers=layers, positive=positive
    )
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


class Classifier(nn.Module):
    """Layers whose attention is fused, or spelt out so that its weights can be looked at."""

    def __init__(self, spelt: bool, causal: bool = False) -> None:
        super().__init__()
        self.spelt, self.causal, self.seen = spelt, causal, []
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(3))
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        self.seen = []
        for layer in self.layers:
            q, k, v = (p.unflatten(-1, (4, 4)).transpose(1, 2) for p in layer(x).chunk(3, -1))
            if self.spelt:
                scores = q @ k.mT / 2
                if self.causal:
                    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                    scores = scores.masked_fill(later, -torch.inf)
                weights = scores.softmax(-1)
                weights.retain_grad()
                self.seen.append(weights)
                mixed = weights @ v
            else:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + mixed.transpose(1, 2).flatten(2)
        return self.out(x[:, -1])


@pytest.mark.parametrize("length", [5, 600])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spelt", [False, True])
def test_captured_fused_and_spelt_out(spelt, causal, length):
    torch.manual_seed(0)
    model, truth = Classifier(spelt, causal).double(), Classifier(True, causal).double()
    truth.load_state_dict(model.state_dict())
    x = torch.randn(2, length, 16, dtype=torch.float64)
    truth(x)[:, 1].sum().backward()
    with regard.capture(model, grad=True) as trace:
        logits = model(x)
    logits[:, 1].sum().backward()
    gradients = [weights.grad for weights in truth.seen]
    whole = dense([weights.detach() for weights in truth.seen], gradients)
    for token in (-1, [0, -1]):
        torch.testing.assert_close(
            regard.relevance(trace, token), whole[:, token], atol=1e-8, rtol=0
        )
    torch.testing.assert_close(regard.relevance(trace), whole, atol=1e-8, rtol=0)
    products = torch.stack([w.detach() * g for w, g in zip(truth.seen, gradients)])
    torch.testing.assert_close(
        regard.gradient_attention(trace), products.sum((2, 3)).mean(0), atol=1e-8, rtol=0
    )


def by_the_paper(weights, gradients, kinds):
    """The rules for two sequences, in the words of the paper: s attends to q in `cross`."""

    def mean(name):
        return mean_of_positive(weights[name], gradients[name])[0]

    def normalised(relevant):
        beyond = relevant - EYE(len(relevant), dtype=relevant.dtype)
        out = torch.zeros_like(beyond)
        for row in range(len(beyond)):
            if beyond[row].sum() > 0:
                out[row] = beyond[row] / beyond[row].sum()
        return out + EYE(len(relevant), dtype=relevant.dtype)

    dtype = next(iter(weights.values())).dtype
    encoder = EYE(next(weights[n].shape[-1] for n, k in kinds.items() if k == "e"), dtype=dtype)
    own = EYE(next(weights[n].shape[-1] for n, k in kinds.items() if k == "d"), dtype=dtype)
    across = torch.zeros(len(own), len(encoder), dtype=dtype)
    for name, kind in kinds.items():
        if kind == "e":
            encoder = encoder + mean(name) @ encoder
    for name, kind in kinds.items():
        if kind == "d":
            across = across + mean(name) @ across
            own = own + mean(name) @ own
        if kind == "c":
            across = across + normalised(own).T @ mean(name) @ normalised(encoder)
    return own, across


def test_encoder_and_decoder():
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True).double()
    source, target = torch.randn(1, 6, 16).double(), torch.randn(1, 4, 16).double()
    with regard.capture(model, grad=True) as trace:
        out = model(source, target)
    out[0, -1, 3].backward()
    names = trace.names()
    kinds = {
        name: "c" if "multihead" in name else "e" if name.startswith("encoder") else "d"
        for name in names
    }
    assert sorted(kinds.values()) == ["c", "c", "d", "d", "e", "e"]
    weights = {name: trace[name].weights() for name in names}
    gradients = {name: trace[name].gradient() for name in names}
    own, across = by_the_paper(weights, gradients, kinds)
    found = regard.relevance(trace)
    torch.testing.assert_close(found.decoder[0], own, atol=1e-10, rtol=0)
    torch.testing.assert_close(found.encoder[0], across, atol=1e-10, rtol=0)
    one = regard.relevance(trace, -1)
    torch.testing.assert_close(one.encoder[0], across[-1])
    assert regard.relevance(trace, [0, 1]).decoder.shape == (1, 2, 4)
    alone = regard.relevance(trace, 0, part="encoder")
    assert alone.shape == (1, 6)


def test_what_is_refused():
    weights, gradients = made()
    with pytest.raises(RegardError, match="carry no gradient"):
        regard.relevance(weights)
    with pytest.raises(ShapeError, match="2 tensors for 3 layers"):
        regard.relevance(weights, gradients=gradients[:2])
    with pytest.raises(ShapeError, match="the gradient is"):
        regard.relevance(weights, gradients=[one[:, :1] for one in gradients])
    with pytest.raises(RegardError, match="layers='top'"):
        regard.gradient_attention(weights, gradients=gradients, layers="top")


def test_before_backward_and_without_grad():
    model = Classifier(spelt=False)
    with regard.capture(model, grad=True) as trace:
        model(torch.randn(1, 4, 16))
    with pytest.raises(StateError, match="backward has not run"):
        regard.relevance(trace, 0)
    with regard.capture(model) as trace:
        model(torch.randn(1, 4, 16))
    with pytest.raises(UnavailableError, match="grad=True"):
        regard.relevance(trace, 0)


def test_tokens_in_a_range_and_axes_by_name():
    weights, gradients = made()
    truth = regard.gradient_attention(weights, [0, 1], gradients=gradients)
    found = regard.gradient_attention(weights, range(2), gradients=gradients)
    torch.testing.assert_close(found, truth)
    turned = [one.permute(1, 0, 3, 2) for one in weights]
    by_name = regard.relevance(
        turned,
        0,
        gradients=[one.permute(1, 0, 3, 2) for one in gradients],
        axes="head batch key query",
    )
    torch.testing.assert_close(by_name, regard.relevance(weights, 0, gradients=gradients))


def test_an_encoder_and_a_decoder_in_a_list():
    """Where the two stacks have numbers for names, they are told apart all the same."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
            self.parts = nn.ModuleList([inner.encoder, inner.decoder])

        def forward(self, source, target):
            return self.parts[1](target, self.parts[0](source))

    torch.manual_seed(0)
    model = Listed()
    with regard.capture(model, grad=True) as trace:
        out = model(torch.randn(1, 5, 16), torch.randn(1, 5, 16))
    out[0, -1, 3].backward()
    assert len(trace.encoder_attentions) == len(trace.decoder_attentions) == 2
    assert regard.relevance(trace, -1).encoder.shape == (1, 5)


def test_a_part_that_was_not_captured():
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model, where="decoder.*") as trace:
        model(torch.randn(1, 5, 16), torch.randn(1, 4, 16))
    with pytest.raises(UnavailableError, match="no such attention"):
        regard.rollout(trace, 0, part="encoder")


def test_one_class_after_another():
    torch.manual_seed(0)
    model, x = Classifier(spelt=False), torch.randn(1, 4, 16)
    single = []
    for number in range(2):
        with regard.capture(model, grad=True) as trace:
            logits = model(x)
        logits[0, number].backward()
        single.append(regard.relevance(trace, -1))
    with regard.capture(model, grad=True) as trace:
        logits = model(x)
    for number in range(2):
        trace.clear_gradients()
        logits[0, number].backward(retain_graph=True)
        torch.testing.assert_close(regard.relevance(trace, -1), single[number])
