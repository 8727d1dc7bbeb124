"""Differential attention: the paper's equations entry by entry, and transformers' DiffLlama."""

import math

import pytest
import torch
from transformers import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import (
    DiffLlamaAttention,
    DiffLlamaRotaryEmbedding,
)

from regard.errors import RegardError, ShapeError
from regard.kernel import fused
from regard.mechanisms import Alibi, Differential, Heads, MultiHead, Rotary, Scoring


def attention(n_groups=2, layer=2, dtype=torch.float64, **options):
    """Two heads of width 6 over queries of width 3, as in the paper: 2h · d = h · 2d = width."""
    torch.manual_seed(0)
    heads = Heads(2, n_groups=n_groups, head_width=3, value_width=6)
    module = MultiHead(12, heads, mixture=Differential(3, layer=layer), **options)
    for parameter in module.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return module.to(dtype).eval()


def by_hand(module, x, causal):
    """Equations 1 to 3 of the paper, one entry at a time."""
    part = module.mixture
    start = 0.8 - 0.6 * math.exp(-0.3 * (part.layer - 1))
    factor = (part.first_query @ part.first_key).exp() + start
    factor = factor - (part.second_query @ part.second_key).exp()
    query, key, value = module.to_query(x), module.to_key(x), module.to_value(x)
    batch, length, _ = x.shape
    groups = module.n_groups
    weights = torch.zeros(batch, 2, length, length, dtype=x.dtype)
    heads = []
    for h in range(2):
        group = h * groups // 2
        pairs = []
        for half in range(2):
            q = query[..., 3 * (2 * half + h) :][..., :3]
            k = key[..., 3 * (groups * half + group) :][..., :3]
            pairs.append((q, k))
        for b in range(batch):
            for i in range(length):
                seen = i + 1 if causal else length
                for sign, (q, k) in zip((1.0, -factor), pairs):
                    scores = torch.stack([q[b, i] @ k[b, j] / math.sqrt(3) for j in range(seen)])
                    weights[b, h, i, :seen] += sign * scores.exp() / scores.exp().sum()
        mixed = weights[:, h] @ value[..., 6 * group :][..., :6]
        rms = (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        heads.append((1 - start) * mixed / rms)
    return module.to_output(torch.cat(heads, -1)), weights, factor


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_equation_of_the_paper(causal, n_groups):
    module, x = attention(n_groups), torch.randn(2, 5, 12, dtype=torch.float64)
    output, weights, factor = by_hand(module, x, causal)
    attended = module(x, causal=causal, weights=True)
    torch.testing.assert_close(attended.output, output)
    torch.testing.assert_close(attended.weights, weights)
    sums = (1 - factor).expand(2, 2, 5)
    torch.testing.assert_close(attended.weights.sum(-1), sums)


@pytest.mark.parametrize("layer", [0, 3])
def test_it_is_the_attention_of_diffllama(layer):
    config = DiffLlamaConfig(
        hidden_size=32,
        num_attention_heads=8,
        num_key_value_heads=4,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    theirs = DiffLlamaAttention(config, layer_idx=layer).eval()
    heads = Heads(4, n_groups=2, head_width=4, value_width=8)
    part = Differential(4, layer=layer + 1)  # they count from 0
    ours = MultiHead(32, heads, bias=False, position=Rotary(), mixture=part).eval()
    assert part.start == theirs.lambda_init
    theirs.groupnorm.eps = 1e-5
    names = {"q_proj": "to_query", "k_proj": "to_key", "o_proj": "to_output"}
    state = {f"{names[n]}.weight": getattr(theirs, n).weight for n in names}
    # their head of values is two of theirs side by side, the first of one half of the heads
    value = theirs.v_proj.weight.view(2, 2, 4, 32).transpose(0, 1).reshape(16, 32)
    state |= {"to_value.weight": value}
    for mine, other in (("first", "1"), ("second", "2")):
        state |= {f"mixture.{mine}_query": getattr(theirs, f"lambda_q{other}")}
        state |= {f"mixture.{mine}_key": getattr(theirs, f"lambda_k{other}")}
    ours.load_state_dict(state, strict=False)
    x = torch.randn(2, 7, 32)
    positions = DiffLlamaRotaryEmbedding(config)(x, torch.arange(7)[None])
    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        want, _ = theirs(x, positions, mask)
        torch.testing.assert_close(ours(x, causal=True).output, want, atol=2e-6, rtol=1e-5)


def test_both_softmaxes_are_fused(monkeypatch):
    calls = []
    fused_attention = fused.attention

    def counted(*arguments):
        calls.append(arguments)
        return fused_attention(*arguments)

    monkeypatch.setattr(fused, "attention", counted)
    attention()(torch.randn(2, 5, 12, dtype=torch.float64), causal=True)
    assert len(calls) == 2


def test_positions_sinks_and_norms_work_on_both_halves():
    norms = (torch.nn.RMSNorm(3), torch.nn.RMSNorm(3))
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    for options in (
        {"position": Alibi(2)},
        {"scoring": Scoring(sinks=True, norms=norms)},
        {"window": (2, 0)},
    ):
        module = attention(1, **options)
        whole = module(x, causal=True, weights=True)
        first = module(x[:, :4], causal=True, state=True)
        rest = module(x[:, 4:], causal=True, state=first.state, weights=True)
        torch.testing.assert_close(rest.output, whole.output[:, 4:])
        held = rest.weights.shape[-1]  # a window has dropped the others
        torch.testing.assert_close(rest.weights, whole.weights[:, :, 4:, -held:])


def test_the_factor_begins_as_the_layer_says():
    starts = [Differential(64, layer=layer).start for layer in (1, 2, 10)]
    assert starts[0] == pytest.approx(0.2) and starts == sorted(starts) and starts[-1] < 0.8
    torch.manual_seed(0)
    factors = torch.stack([Differential(64).factor() for _ in range(200)])
    # a difference of two exponentials of sums of 64 products of numbers of deviation 0.1
    assert abs(float(factors.detach().mean()) - 0.2) < 4 * 0.113 / 200**0.5


def test_a_layer_before_the_first():
    with pytest.raises(RegardError, match="Differential: layer=0, expected 1 or more"):
        Differential(4, layer=0)


def test_the_width_of_its_heads_is_that_of_the_attention():
    attn = MultiHead(16, 4, mixture=Differential(head_width=8))
    with pytest.raises(ShapeError, match="Differential: head_width=8, expected 4, that of the att"):
        attn(torch.randn(1, 3, 16))
