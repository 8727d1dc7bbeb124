"""Shaped attention: the paper's equation entry by entry, the identity at the start, a cache."""

import pytest
import torch

from regard import masks
from regard.errors import ShapeError
from regard.mechanisms import Shaped


def trained(values=False, dtype=torch.float64):
    """Away from the start, where attention would be the identity."""
    torch.manual_seed(0)
    module = Shaped(12, 3, values=values).to(dtype).eval()
    for parameter in module.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    return module


def by_hand(module, x, causal):
    """α I + β A − γ C, one entry at a time, and the heads' values side by side."""
    batch, length, width = x.shape
    heads, size = 3, width // 3
    query, key = x @ module.to_query.weight.T, x @ module.to_key.weight.T
    value = module.to_value(x)
    weights = torch.zeros(batch, heads, length, length, dtype=x.dtype)
    output = torch.zeros_like(x)
    for b in range(batch):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            for i in range(length):
                seen = range(i + 1) if causal else range(length)
                scores = [(query[b, i, part] @ key[b, j, part]) / size**0.5 for j in seen]
                total = sum(score.exp() for score in scores)
                for j in seen:
                    entry = module.attention_gains[h] * scores[j].exp() / total
                    entry = entry - module.uniform_gains[h] / len(seen)
                    if i == j:
                        entry = entry + module.identity_gains[h]
                    weights[b, h, i, j] = entry
                    output[b, i, part] += entry * value[b, j, part]
    return output.detach(), weights.detach()


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_equation_of_the_paper(causal, values):
    module, x = trained(values), torch.randn(2, 5, 12, dtype=torch.float64)
    output, weights = by_hand(module, x, causal)
    attended = module(x, causal=causal, weights=True)
    torch.testing.assert_close(attended.output, output)
    torch.testing.assert_close(attended.weights, weights)


@torch.no_grad()
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_at_the_start_it_is_the_identity(values, causal):
    """The decisive experiment: 2.4e-7 in float32, up to 4.8e-7 over seeds and lengths."""
    for seed, length in enumerate((1, 17, 128, 600)):
        torch.manual_seed(seed)
        module, x = Shaped(64, 4, values=values), torch.randn(2, length, 64)
        attended = module(x, causal=causal, weights=True)
        assert float((attended.output - x).abs().max()) < 1e-6
        assert float((attended.weights - torch.eye(length)).abs().max()) < 1e-6
    keep = torch.arange(length) < torch.tensor([[length], [length // 2]])
    padded = module(x, causal=causal, mask=masks.padding(keep)).output
    assert float((padded - x)[keep].abs().max()) < 1e-6


@torch.no_grad()
def test_any_other_query_breaks_the_identity():
    module, x = Shaped(64, 4), torch.randn(2, 17, 64)
    torch.nn.init.xavier_uniform_(module.to_query.weight)
    assert float((module(x, causal=True).output - x).abs().max()) > 1e-2


def test_gradients_reach_the_queries_at_the_start():
    module = Shaped(16, 4)
    module(torch.randn(2, 5, 16), causal=True).output.square().sum().backward()
    for name, parameter in module.named_parameters():
        expected = name != "to_key.weight"  # its factor, the query, is still 0
        assert bool(parameter.grad.abs().max() > 0) is expected, name


@pytest.mark.parametrize("steps", [(1,) * 9, (4, 1, 1, 3), (9,)])
def test_a_cache_gives_what_one_pass_gives(steps):
    module, x = trained(), torch.randn(2, 9, 12, dtype=torch.float64)
    full = module(x, causal=True, weights=True)
    state, outputs, start = True, [], 0
    for size in steps:
        step = module(x[:, start : start + size], causal=True, state=state, weights=True)
        state, start = step.state, start + size
        rows = full.weights[:, :, start - size : start, :start]
        torch.testing.assert_close(step.weights, rows)  # I and C follow the offset
        outputs.append(step.output)
    torch.testing.assert_close(torch.cat(outputs, 1), full.output)


def test_a_width_that_does_not_divide():
    with pytest.raises(ShapeError, match="Shaped: width 10 is not a multiple of n_heads 3"):
        Shaped(10, 3)
