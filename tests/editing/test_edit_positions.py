"""Which axis is which, and which positions queries have, where a call does not say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.editing import forbid, replace, silence
from regard.errors import RegardError, UnavailableError
from regard.mechanisms import MultiHead

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))


class ThreeAxes(nn.Module):
    """Fused attention over (batch, position, width), or (batch · head, position, width)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.qkv = heads, nn.Linear(16, 48)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = self.num_heads
        if heads == 1:
            return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), mask)
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)


def moved(output: Tensor, plain: Tensor, axis: int) -> list[int]:
    """Where on an axis two outputs differ."""
    others = [each for each in range(output.dim()) if each != axis]
    return ((output - plain).abs().amax(others) > 1e-6).nonzero().flatten().tolist()


def test_three_axes_are_batch_query_and_width() -> None:
    model = ThreeAxes(1)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    with torch.no_grad():
        for options in ({}, {"mask": mask}):
            plain = model(X, **options)
            assert regard.trace(model, X, **options)[0].shape == (2, 1, 6, 6)
            with regard.edit(model, silence(heads=0)):
                assert not model(X, **options).any()
            example = torch.zeros(2, 6, dtype=torch.bool)
            example[1, 0] = True
            with regard.edit(model, forbid(keys=example)):
                assert moved(model(X, **options), plain, 0) == [1]
            with (
                pytest.raises(RegardError, match="it has 1 heads"),
                regard.edit(model, silence(heads=1)),
            ):
                model(X, **options)


def test_three_axes_with_heads_in_the_batch() -> None:
    model = ThreeAxes(4)
    with torch.no_grad():
        plain = model(X)
        assert regard.trace(model, X)[0].shape == (2, 4, 6, 6)
        with regard.edit(model, silence(heads=2)):
            changed = model(X)
    expected = plain.clone()
    expected[..., 8:12] = 0
    torch.testing.assert_close(changed, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("need_weights", [True, False])
def test_keys_that_are_no_cache(need_weights: bool) -> None:
    """A bias beside the keys: 7 keys of 6 queries, which no cache explains."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True).eval()
    inputs = {"query": X, "key": X, "value": X, "need_weights": need_weights}
    with torch.no_grad():
        plain = model(**inputs)[0]
        for change in (silence(queries=3), replace("self")):
            with (
                pytest.raises(UnavailableError, match="6 queries and 7 keys, and neither a cache"),
                regard.edit(model, change),
            ):
                model(**inputs)
        with regard.edit(model, forbid(keys=6)), regard.capture(model) as trace:
            changed = model(**inputs)[0]
    assert not trace[0].weights()[..., 6].any() and not torch.allclose(changed, plain)


class OwnCache(nn.Module):
    """Keeps its keys to itself, where nobody sees how many there were."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.kept = nn.Linear(16, 48), []

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        self.kept.append((k, v))
        k, v = (torch.cat(parts, 2) for parts in zip(*self.kept))
        return F.scaled_dot_product_attention(q, k, v, mask)[:, 0]


def test_positions_over_a_cache_of_the_model() -> None:
    model = OwnCache().eval()
    with torch.no_grad():
        plain = [model(X), model(X[:, :1]), model(X[:, :2])]
        model.kept.clear()
        with regard.edit(model, silence(queries=[3, 6, 8])):
            changed = [model(X), model(X[:, :1]), model(X[:, :2])]
        assert [moved(*pair, 1) for pair in zip(changed, plain)] == [[3], [0], [1]]
        with (
            pytest.raises(UnavailableError, match="1 queries and 10 keys"),
            regard.edit(model, silence(queries=9)),
        ):
            model(X[:, :1])
        keys = sum(key.shape[2] for key, _ in model.kept) + 2
        causal = torch.ones(2, keys, dtype=torch.bool).tril(keys - 2)
        with regard.edit(model, silence(queries=keys - 1)):
            output = model(X[:, :2], causal)
    assert output[:, 0].any() and not output[:, 1].any()


def test_positions_over_a_state() -> None:
    torch.manual_seed(0)
    mechanism = MultiHead(16, 4).eval()
    with torch.no_grad():
        whole = mechanism(X, causal=True).output
        state = mechanism(X[:, :4], causal=True, state=True).state
        with regard.edit(mechanism, silence(queries=5)):
            for step in (4, 5):
                attended = mechanism(X[:, step : step + 1], causal=True, state=state)
                state, output = attended.state, attended.output
                expected = whole[:, step : step + 1] if step == 4 else torch.zeros_like(output)
                torch.testing.assert_close(output, expected, atol=1e-6, rtol=0)
