"""Hard attention: choices, their distribution and gradient, and values that come out unmixed."""

import pytest
import torch
from torch import Tensor, nn

from regard import RegardError
from regard.mechanisms import (
    Additive,
    Coverage,
    DotProduct,
    Hard,
    LinearAttention,
    LocalPredictive,
    Luong,
    MultiHead,
    MultiHeadLatent,
    Pointer,
)


@pytest.mark.parametrize(
    "build",
    [
        DotProduct,
        lambda: MultiHead(8, 2),
        lambda: Additive(8, 8, width=5),
        lambda: MultiHeadLatent(8, 2, latent_width=4),
    ],
)
def test_eval_takes_the_key_of_the_largest_weight(build) -> None:
    torch.manual_seed(0)
    mechanism = build().double().eval()
    for parameter in mechanism.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    soft = mechanism(x, causal=True, weights=True)
    attended = Hard(mechanism).eval()(x, causal=True, weights=True)
    for row, choice in zip(soft.weights.flatten(0, 2), attended.weights.flatten(0, 2)):
        assert choice.tolist() == [float(j == int(row.argmax())) for j in range(5)]
    mixed = attended.weights @ attended.recipe.value.repeat_interleave(
        attended.weights.shape[1] // attended.recipe.value.shape[1], 1
    )
    torch.testing.assert_close(attended.recipe.mixed(), mixed)


def test_training_draws_from_the_weights() -> None:
    """Shares of 20 000 draws are the probabilities; a forbidden key is never drawn."""
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 4).expand(1, 20000, 4), torch.randn(1, 5, 4)
    mask = torch.tensor([True, True, False, True, True])[None, None, None]
    probabilities = DotProduct()(query[:, :1], key, mask=mask, weights=True).weights[0, 0, 0]
    weights = Hard(temperature=0.3)(query, key, mask=mask, weights=True).weights[0, 0]
    assert set(weights.unique().tolist()) == {0.0, 1.0}
    assert (weights.sum(-1) == 1).all()
    assert (weights.mean(0) - probabilities).abs().max() < 0.02  # five deviations
    assert not weights[:, 2].any()


def test_gradient_is_that_of_the_relaxed_draw() -> None:
    """With the same noise, softmax((log a + g) / τ) by hand has the same gradient."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 2, 4), torch.randn(1, 5, 4), torch.randn(1, 5, 3)
    query.requires_grad_()
    torch.manual_seed(3)
    output = Hard(temperature=0.7)(query, key, value).output
    (gradient,) = torch.autograd.grad(output.square().sum(), query)
    torch.manual_seed(3)
    noise = -torch.empty(1, 1, 2, 5).exponential_().log()[:, 0]
    relaxed = (((query @ key.mT / 2).log_softmax(-1) + noise) / 0.7).softmax(-1)
    (want,) = torch.autograd.grad((2 * output.detach() * (relaxed @ value)).sum(), query)
    torch.testing.assert_close(gradient, want)


def test_weights_are_what_the_output_was_made_with() -> None:
    attn, x = Hard(), torch.randn(2, 6, 4)
    attended = attn.train()(x, weights=True)
    torch.testing.assert_close(attended.output, attended.weights[:, 0] @ x, rtol=0, atol=0)


@pytest.mark.usefixtures("without_shape_checks")
def test_what_cannot_be_drawn_from_is_refused() -> None:
    with pytest.raises(RegardError, match=r"temperature=0\.0, expected a number above 0"):
        Hard(temperature=0.0)
    with pytest.raises(RegardError, match="Luong has weights of kind 'partial', expected 'distr"):
        Hard(Luong(window=LocalPredictive(4)))
    for mechanism in (Coverage(4, 4, width=3), Pointer(4, 4, width=3), Hard()):
        with pytest.raises(RegardError, match="is not made of independent rows that mix values"):
            Hard(mechanism)
    with pytest.raises(RegardError, match="LinearAttention writes its keys into a memory"):
        Hard(LinearAttention(4, 2))
    with pytest.raises(RegardError, match=r"expected a mechanism, as DotProduct\(\)"):
        Hard(nn.Linear(4, 4))


@pytest.mark.parametrize("hard", [True, False])
def test_selects_one_key(hard: bool) -> None:
    """One of seven keys is flagged and its value wanted. Both attentions find it in all of 500;
    what hard attention gives is the value itself, and soft attention 0.08 from it."""
    torch.manual_seed(0)
    attn = Hard() if hard else DotProduct()
    to_key, query = nn.Linear(8, 8), nn.Parameter(torch.randn(8))
    optimiser = torch.optim.Adam([*to_key.parameters(), query], lr=2e-2)

    def looked(count: int) -> tuple[Tensor, Tensor]:
        x, flagged = torch.randn(count, 7, 8), torch.randint(7, (count,))
        x[..., 0] = nn.functional.one_hot(flagged, 7)
        output = attn(query.expand(count, 1, 8), to_key(x), x).output[:, 0]
        return output, x[torch.arange(count), flagged]

    for _ in range(200):
        output, value = looked(32)
        loss = (output - value).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    attn.eval()
    with torch.no_grad():
        output, value = looked(500)
    apart = float((output - value).abs().max())
    assert apart == 0.0 if hard else 0.01 < apart < 0.5
