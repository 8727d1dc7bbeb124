"""Talking heads: the paper's sums entry by entry, and plain attention where nothing is mixed."""

import pytest
import torch

from regard.errors import ShapeError
from regard.mechanisms import Heads, MultiHead, TalkingHeads


def attention(n_groups=4, mixed=True):
    torch.manual_seed(0)
    module = MultiHead(12, Heads(4, n_groups=n_groups), mixture=TalkingHeads(4)).double().eval()
    if mixed:
        for numbers in module.mixture.parameters():
            numbers.data.normal_()
    return module


def by_hand(module, x, causal):
    """J = QKᵀ, L = J P_l, W = softmax(L), U = W P_w, one entry at a time."""
    batch, length, _ = x.shape
    groups, before, after = module.n_groups, module.mixture.scores, module.mixture.weights
    query = module.to_query(x).view(batch, length, 4, 3)
    key = module.to_key(x).view(batch, length, groups, 3)
    value = module.to_value(x).view(batch, length, groups, 3)
    soft = torch.zeros(batch, 4, length, length, dtype=x.dtype)
    for b in range(batch):
        for h in range(4):
            for i in range(length):
                seen = i + 1 if causal else length
                row = torch.zeros(seen, dtype=x.dtype)
                for j in range(seen):
                    for g in range(4):
                        score = query[b, i, g] @ key[b, j, g * groups // 4] / 3**0.5
                        row[j] += before[h, g] * score
                soft[b, h, i, :seen] = row.exp() / row.exp().sum()
    weights = torch.zeros_like(soft)
    heads = []
    for h in range(4):
        for g in range(4):
            weights[:, h] += after[h, g] * soft[:, g]
        heads.append(weights[:, h] @ value[:, :, h * groups // 4])
    return module.to_output(torch.cat(heads, -1)), weights


@torch.no_grad()
@pytest.mark.parametrize("n_groups", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_sum_of_the_paper(causal, n_groups):
    module, x = attention(n_groups), torch.randn(2, 4, 12, dtype=torch.float64)
    output, weights = by_hand(module, x, causal)
    attended = module(x, causal=causal, weights=True)
    torch.testing.assert_close(attended.output, output)
    torch.testing.assert_close(attended.weights, weights)


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_without_talk_it_is_multi_head_attention(n_groups):
    module, plain = attention(n_groups, mixed=False), MultiHead(12, Heads(4, n_groups=n_groups))
    plain.double().eval().load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    got, want = (attn(x, causal=True, weights=True) for attn in (module, plain))
    torch.testing.assert_close(got.output, want.output, atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(got.weights, want.weights, atol=1e-14, rtol=1e-14)


def test_gradients_reach_both_mixes():
    module = attention()
    module(torch.randn(2, 5, 12, dtype=torch.float64)).output.square().sum().backward()
    for numbers in module.mixture.parameters():
        assert numbers.grad.abs().min() > 0


def test_a_mask_for_each_head_is_refused():
    allowed = torch.ones(1, 4, 5, 5, dtype=torch.bool)
    with pytest.raises(ShapeError, match="the mask differs from head to head, and heads are mixed"):
        attention()(torch.randn(2, 5, 12, dtype=torch.float64), mask=allowed)


def test_the_number_of_heads_is_that_of_the_attention():
    attn = MultiHead(16, 4, mixture=TalkingHeads(2))
    with pytest.raises(ShapeError, match="TalkingHeads: n_heads=2, expected 4, as the attention"):
        attn(torch.randn(1, 3, 16))
