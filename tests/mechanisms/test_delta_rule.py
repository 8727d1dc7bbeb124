"""The delta rule: against loops from the papers, and against transformers' gated rule."""

import pytest
import torch
from memory_loops import elu_plus_one, heads_of, schlag
from torch.nn.functional import linear

from regard import Entropy, ReceivedAttention, masks
from regard.errors import UnavailableError
from regard.mechanisms import (
    DeltaRule,
    EluPlusOne,
    GatedDecay,
    IdentityFeatures,
    SumNormalised,
    UnitNormalised,
)


def by_loop(attn, x, feature_map, decay=None):
    outputs = []
    for number, example in enumerate(x):
        query, key, value = (
            heads_of(linear(example, projection.weight, projection.bias), attn.n_heads)
            for projection in (attn.to_query, attn.to_key, attn.to_value)
        )
        beta = 1 / (1 + (-linear(example, attn.to_strength.weight, attn.to_strength.bias)).exp())
        mixed = [
            schlag(
                attn.scale * feature_map(query[head]),
                feature_map(key[head]),
                value[head],
                beta[:, head],
                None if decay is None else decay[number, head],
            )
            for head in range(attn.n_heads)
        ]
        outputs.append(torch.cat(mixed, dim=-1) @ attn.to_output.weight.T)
    return torch.stack(outputs)


def sum_normalised(numbers):
    features = elu_plus_one(numbers)
    return torch.stack([row / row.sum() for row in features])


def unit_normalised(numbers):
    return torch.stack([row / (row.dot(row) + 1e-6).sqrt() for row in numbers])


@torch.no_grad()
def test_it_is_the_paper_s_rule():
    attn = DeltaRule(8, 2, feature_map=SumNormalised(EluPlusOne())).double()
    x = torch.randn(2, 70, 8, dtype=torch.float64)
    torch.testing.assert_close(attn(x, causal=True).output, by_loop(attn, x, sum_normalised))


@torch.no_grad()
def test_it_is_the_gated_rule():
    gate = GatedDecay(8, 2).double()
    attn = DeltaRule(8, 2, decay=gate, scale=0.5).double()
    x = torch.randn(2, 70, 8, dtype=torch.float64)
    rates = torch.log1p((x @ gate.to_rate.weight.T + gate.to_rate.bias).exp())
    decay = (-gate.log_speed.exp() * rates).exp().mT  # (batch, head, position)
    torch.testing.assert_close(
        attn(x, causal=True).output, by_loop(attn, x, unit_normalised, decay)
    )


@torch.no_grad()
def test_it_is_transformers_gated_delta_rule():
    """The functions of the hybrid models, whole and step by step, from the same projections."""
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    attn, x = DeltaRule(16, 2, decay=GatedDecay(16, 2), scale=8**-0.5), torch.randn(2, 100, 16)
    attended = attn(x, causal=True, weights=True, state=True)
    recipe = attended.recipe
    query, key, value = (
        projection(x).unflatten(-1, (2, 8))
        for projection in (attn.to_query, attn.to_key, attn.to_value)
    )
    options = {"initial_state": None, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        theirs, memory = getattr(qwen, name)(
            query, key, value, recipe.log_decay.mT, recipe.strength.mT, **options
        )
        mixed = (attended.weights @ recipe.value).transpose(1, 2)
        torch.testing.assert_close(theirs, mixed, rtol=0, atol=1e-5)
        torch.testing.assert_close(memory, attended.state.memory, rtol=0, atol=1e-5)
        ours = attn.to_output(theirs.flatten(2))
        torch.testing.assert_close(ours, attended.output, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_value_written_again_replaces_the_old_one():
    """Addition remembers both; the delta rule the last one alone. One key, two values."""
    attn = DeltaRule(2, 1, bias=False, feature_map=UnitNormalised(epsilon=0.0))
    for projection in (attn.to_query, attn.to_key, attn.to_value, attn.to_output):
        projection.weight.copy_(torch.eye(2))
    attn.to_strength.weight.zero_()
    attn.to_strength.bias.fill_(30.0)  # β = 1
    key = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    value = torch.tensor([[[5.0, 0.0], [0.0, 7.0]]])
    attended = attn(key[:, :1], key, value, weights=True)
    torch.testing.assert_close(attended.output, value[:, 1:])
    torch.testing.assert_close(attended.weights, torch.tensor([[[[0.0, 1.0]]]]))


@torch.no_grad()
def test_the_future_changes_nothing_at_all():
    attn, x = DeltaRule(8, 2, decay=GatedDecay(8, 2)), torch.randn(1, 100, 8)
    loud = x.clone()
    loud[:, 51:] *= 1e4
    before, after = (attn(text, causal=True).output[:, :51] for text in (x, loud))
    assert torch.equal(before, after)


@torch.no_grad()
def test_padding_is_as_if_deleted():
    attn = DeltaRule(8, 2, decay=GatedDecay(8, 2)).double()
    x = torch.randn(2, 90, 8, dtype=torch.float64)
    keep = torch.rand(2, 90) > 0.3
    dirty = x.masked_fill(~keep[..., None], torch.nan)
    got = attn(dirty, causal=True, mask=masks.padding(keep), weights=True)
    for example in range(2):
        real = keep[example]
        want = attn(x[example : example + 1, real], causal=True, weights=True)
        torch.testing.assert_close(got.output[example, real], want.output[0])
        weights = got.weights[example][:, real]
        torch.testing.assert_close(weights[..., real], want.weights[0])
        assert not weights[..., ~real].any()


@torch.no_grad()
def test_steps_and_pieces_are_one_pass():
    attn, x = DeltaRule(8, 2, decay=GatedDecay(8, 2)), torch.randn(2, 100, 8)
    full = attn(x, causal=True, state=True)
    for sizes in ([1] * 100, [3, 64, 1, 32]):
        state, outputs = True, []
        for piece in x.split(sizes, dim=1):
            step = attn(piece, causal=True, state=state)
            state = step.state
            outputs.append(step.output)
        torch.testing.assert_close(torch.cat(outputs, 1), full.output, rtol=0, atol=1e-5)
        torch.testing.assert_close(state.memory, full.state.memory, rtol=0, atol=1e-5)
    assert state.memory.shape == (2, 2, 4, 4) and state.normaliser is None


def test_signed_weights_have_no_entropy():
    attn, x = DeltaRule(8, 2), torch.randn(1, 5, 8)
    attended = attn(x, causal=True, weights=True, reduce=[ReceivedAttention()])
    assert (attended.weights < 0).any()
    torch.testing.assert_close(attended.reductions[0], attended.weights.sum(2))
    with pytest.raises(
        UnavailableError, match="Entropy: signed weights have no logarithm, as they"
    ):
        attn(x, reduce=[Entropy()])
    with pytest.raises(UnavailableError, match="signed weights have no logarithm"):
        attended.recipe.log_weights(_block(5))


def _block(length):
    from regard.types import whole

    return whole(length, length)


def test_the_feature_map_is_a_part():
    x = torch.randn(1, 5, 8)
    default, other = DeltaRule(8, 2), DeltaRule(8, 2, feature_map=SumNormalised(EluPlusOne()))
    other.load_state_dict(default.state_dict())
    assert not torch.allclose(default(x).output, other(x).output)
    assert "scale 0.5" in str(DeltaRule(8, 2, scale=0.5))


def test_features_that_are_not_normalised_diverge_and_warn():
    message = "features of IdentityFeatures are not normalised: the memory grows without bound"
    with pytest.warns(UserWarning, match=message):
        attn = DeltaRule(8, 1, feature_map=IdentityFeatures())
    x = 4.0 * torch.randn(1, 400, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert not attn(x, causal=True, state=True).state.memory.abs().max() < 1e6  # or NaN
        unit = DeltaRule(8, 1, feature_map=UnitNormalised(IdentityFeatures()))
        assert unit(x, causal=True, state=True).state.memory.abs().max() < 1e2
    feature_map = IdentityFeatures()
    feature_map.normalised = True  # as somebody says whose features are short
    DeltaRule(8, 1, feature_map=feature_map)


def test_gradients_reach_every_parameter():
    attn, x = DeltaRule(8, 2, decay=GatedDecay(8, 2)), torch.randn(2, 70, 8)
    attn(x, causal=True).output.square().sum().backward()
    assert all(parameter.grad.any() for parameter in attn.parameters())
