"""`values=True`, `outputs=True` and tokens: what a record holds beside its weights."""

import pytest
import torch
from capture_models import Attention, Ring, Stack, fused, handmade, words
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import regard
from regard.errors import RegardError


def test_values_of_fused_and_handmade_attention():
    for groups in (1, 2):
        model = Stack(*(Attention(kind, groups) for kind in (True, False, True, False)))
        with regard.capture(model, values=True) as trace:
            model(words(2, 5, 8))
        for record, layer in zip(trace, model.layers):
            assert record.value_held
            torch.testing.assert_close(record.mixed(), layer.mixed.detach())


def test_values_with_causal_masks():
    model = fused(2, causal=True)
    with regard.capture(model, values=True) as trace:
        model(words(2, 5, 8))
    for record, layer in zip(trace, model.layers):
        torch.testing.assert_close(record.mixed(), layer.mixed.detach())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_values_of_native_attention(norm_first, padded):
    """What the encoder layer's fast path mixes shows only in its output."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval()
    x = words(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    with torch.no_grad(), regard.capture(layer, values=True) as trace:
        out = layer(x, src_key_padding_mask=mask)
        assert "encoder_layer" in trace[0].operator
        mixed = trace[0].mixed().transpose(1, 2).flatten(2)
        after = x + layer.self_attn.out_proj(mixed)
        if not norm_first:
            after = layer.norm1(after)
        fed = layer.norm2(after) if norm_first else after
        expected = after + layer.linear2(layer.linear1(fed).relu())
        expected = expected if norm_first else layer.norm2(expected)
    real = slice(None) if mask is None else ~mask
    torch.testing.assert_close(expected[real], out[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_values_of_multi_head_attention(need_weights, grad):
    module, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), words(2, 5, 8)
    with torch.set_grad_enabled(grad), regard.capture(module, values=True) as trace:
        out, _ = module(x, x, x, need_weights=need_weights)
    mixed = module.out_proj(trace[0].mixed().transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, out, atol=1e-5, rtol=1e-5)


class Spelt(nn.Module):
    """A spelling of weights times values: gives (batch, head, query, width) beside its output."""

    num_heads = 2

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        query, value = self.query(x), self.value(x)
        self.mixed = self.spelling(query, value)
        return self.mixed * 1.0


def _heads(x):
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def _weigh(query):
    return (_heads(query) @ _heads(query).mT).softmax(-1)


def _head_major(query, value):
    def cut(x):
        return x.view(*x.shape[:2], 2, 4).permute(2, 0, 1, 3).reshape(-1, x.shape[1], 4)

    weights = torch.bmm(cut(query), cut(query).transpose(1, 2)).softmax(2)
    return torch.bmm(weights, cut(value)).view(2, -1, *query.shape[1:2], 4).transpose(0, 1)


def _one_by_one(query, value):
    return torch.stack(
        [_weigh(query[n : n + 1])[0] @ _heads(value[n : n + 1])[0] for n in range(len(query))]
    )


SPELLINGS = {
    "matmul": lambda q, v: _weigh(q) @ _heads(v),
    "einsum": lambda q, v: torch.einsum("bhqk,bhkd->bhqd", _weigh(q), _heads(v)),
    "einsum, heads last": lambda q, v: torch.einsum(
        "bhqk,bkhd->bqhd", _weigh(q), v.unflatten(-1, (2, 4))
    ).transpose(1, 2),
    "values first": lambda q, v: (_heads(v).mT @ _weigh(q).mT).mT,
    "bmm": lambda q, v: torch.bmm(_weigh(q).flatten(0, 1), _heads(v).flatten(0, 1)).unflatten(
        0, (-1, 2)
    ),
    "head-major": _head_major,
    "einsum, heads first": lambda q, v: torch.einsum(
        "hbqk,hbkd->hbqd", _weigh(q).transpose(0, 1).contiguous(), _heads(v).transpose(0, 1)
    ).transpose(0, 1),
    "multiply and sum": lambda q, v: (_weigh(q)[..., None] * _heads(v)[:, :, None]).sum(3),
    "one value for all heads": lambda q, v: _weigh(q) @ v[:, None, :, :4],
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_values_in_any_spelling_are_right_or_refused(spelling):
    model, x = Spelt(spelling), words(3, 5, 8)
    with regard.capture(model, values=True) as trace:
        model(x)
    assert trace[0].shape == (3, 2, 5, 5)
    if trace[0].value_held:
        torch.testing.assert_close(trace[0].mixed(), model.mixed.detach())
    else:
        with pytest.raises(RegardError, match="no values were kept"):
            trace[0].mixed()


def test_values_are_held_in_the_common_spellings():
    for name in ("matmul", "einsum", "bmm", "head-major", "values first"):
        model = Spelt(SPELLINGS[name])
        with regard.capture(model, values=True) as trace:
            model(words(3, 5, 8))
        assert trace[0].value_held, name


def test_values_of_flex():
    class Flexible(nn.Module):
        def forward(self, x):
            return flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: s + h * (q - k))

    model, x = Flexible(), words(2, 2, 5, 4)
    with torch.no_grad(), regard.capture(model, values=True, outputs=True) as trace:
        out = model(x)
    torch.testing.assert_close(trace[0].mixed(), out)
    torch.testing.assert_close(trace[0].output, out)


@pytest.mark.parametrize("build", [fused, handmade])
def test_outputs(build):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model, outputs=True) as trace:
        model(x)
    for record, layer in zip(trace, model.layers):
        assert record.output.numel() == layer.mixed.numel() and not record.output.requires_grad
        torch.testing.assert_close(record.output.reshape(layer.mixed.shape), layer.mixed.detach())


def test_tokens():
    model = Ring(6)
    with torch.no_grad(), regard.capture(model, tokens=list("abcdef")) as trace:
        model(words(1, 6, 8))
        model(words(1, 1, 8))
    assert trace[0].query_tokens == trace[0].key_tokens == list("abcdef")
    assert trace[1].query_tokens is None and trace[1].key_tokens == list("abcdef")


@pytest.mark.parametrize("path", ["full", "fused"])
def test_tokens_of_each_example(path, tmp_path):
    texts = [list("abcde"), ["v", "w", "x", "y", "[PAD]"]]
    model = fused()
    for keep in ("recipe", tmp_path / path):
        with torch.no_grad(), regard.capture(model, keep=keep, tokens=texts, path=path) as trace:
            model(words(2, 5, 8))
            model(words(3, 5, 8))
        assert trace[0].query_tokens == trace[0].key_tokens == texts
        assert trace[2].query_tokens is None, "a batch of another size"
    assert regard.load_trace(tmp_path / path)[0].key_tokens == texts
    assert "2" in repr(trace)


def test_tokens_that_fit_nothing_are_said():
    model = fused()
    for tokens, count in ((list("abc"), "3"), ([list("abcde")], "1 × 5")):
        with (
            pytest.warns(regard.CaptureWarning, match=f"tokens= has {count} words"),
            regard.capture(model, tokens=tokens) as trace,
        ):
            model(words(2, 5, 8))
        assert trace[0].query_tokens is None


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("tokens", ["abcde", [1, 2], 5, [["a"], "b"], [["a"], ["b", "c"]]], ids=str)
def test_tokens_that_are_none(tokens):
    with pytest.raises(RegardError, match=r"capture: tokens=: .*words"):
        regard.capture(None, tokens=tokens)


def _late(query, value):
    scores = query.unflatten(-1, (2, 4)).transpose(1, 2)
    powers = (scores @ scores.mT).exp()
    return powers @ _heads(value) / powers.sum(-1, keepdim=True)


class Graph(nn.Module):
    """A softmax over the edges that end in the same node."""

    def __init__(self):
        super().__init__()
        self.project, self.score = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x, source, target):
        x = self.project(x)
        powers = self.score(x[source] * x[target]).exp()
        total = x.new_zeros(len(x), 1).index_add_(0, target, powers)
        weights = powers / total[target]
        return torch.zeros_like(x).index_add_(0, target, weights * x[source])


EDGES = torch.tensor([[0, 1, 2, 2, 3, 0], [0, 0, 0, 1, 2, 2]])
WITHOUT_VALUES = {
    "late": (lambda: Spelt(_late), (words(3, 5, 8),), "normalised after the product"),
    "edges": (Graph, (words(4, 8), *EDGES), "edges are stored without"),
}


@pytest.mark.parametrize(("model", "inputs", "reason"), WITHOUT_VALUES.values(), ids=WITHOUT_VALUES)
def test_why_there_are_neither_values_nor_a_gradient(model, inputs, reason):
    model = model()
    with regard.capture(model, values=True, grad=True) as trace:
        model(*inputs).sum().backward()
    for record in (trace[0], trace[0].of_heads(0)):
        with pytest.raises(RegardError, match=f"no values were kept: .*{reason}"):
            record.mixed()
        with pytest.raises(RegardError, match=f"there is no gradient: .*{reason}"):
            record.gradient()
