"""Pruning of torch's own attention and layers on every path, and of regard's attention."""

import pytest
import torch
from head_models import HEADS, LENGTH, WIDTH, encoder, masked_by_hand, near
from torch import nn

import regard
from regard.anatomy.head_sites import head_sites
from regard.heads.prune import prune
from regard.heads.pruned_attention import PrunedMultiheadAttention
from regard.mechanisms import Alibi, Heads, MultiHead, Scoring

# -- torch


def attention(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, **options).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


WAYS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without bias": {"bias": False},
    "other widths": {"kdim": 6, "vdim": 10},
    "added key": {"add_bias_kv": True, "add_zero_attn": True},
}


def given_for(module, batch_first):
    torch.manual_seed(1)
    sizes = (WIDTH, module.kdim, module.vdim)
    lengths = (LENGTH, 7, 7)
    parts = [torch.randn(2, n, w, dtype=torch.float64) for n, w in zip(lengths, sizes)]
    return parts if batch_first else [part.transpose(0, 1) for part in parts]


@pytest.mark.parametrize("heads", [[1], [0, 3], [0, 1, 2]])
@pytest.mark.parametrize("way", WAYS)
def test_torch_attention(way, heads):
    module = attention(**WAYS[way])
    want = masked_by_hand(module, {"MultiheadAttention": heads})
    result = prune(module, {0: heads})
    kept = [head for head in range(HEADS) if head not in heads]
    assert isinstance(module, PrunedMultiheadAttention) and isinstance(
        module, nn.MultiheadAttention
    )
    assert module.num_heads == len(kept) and module.kept == tuple(kept)
    given = given_for(module, module.batch_first)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    causal = torch.ones(LENGTH, 7, dtype=torch.bool).triu(2)
    for_heads = torch.randn(2 * HEADS, LENGTH, 7, dtype=torch.float64)
    for options in (
        {},
        {"need_weights": False},
        {"key_padding_mask": padding, "attn_mask": causal},
        {"key_padding_mask": padding, "need_weights": False},
        {"attn_mask": for_heads},
        {"attn_mask": causal, "need_weights": False, "is_causal": False},
    ):
        got, weights = module(*given, average_attn_weights=False, **options)
        true, true_weights = want(*given, average_attn_weights=False, **options)
        near(got, true)
        if true_weights is not None:
            near(weights, true_weights[:, kept])
        else:
            assert weights is None
    near(module(*given)[1], want(*given, average_attn_weights=False)[1][:, kept].mean(1))
    assert result.parameters[1] == sum(p.numel() for p in module.parameters())


def test_torch_attention_of_one_example_and_causal_hint():
    module = attention()
    want = masked_by_hand(module, {"MultiheadAttention": [0, 1]})
    prune(module, {0: [0, 1]})
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    near(module(x, x, x)[0], want(x, x, x)[0])
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
    options = {"attn_mask": mask, "is_causal": True, "need_weights": False}
    near(module(x, x, x, **options)[0], want(x, x, x, **options)[0])


def test_pruned_again():
    module = attention(batch_first=True)
    want = masked_by_hand(module, {"MultiheadAttention": [0, 2, 3]})
    prune(module, {0: [2]})
    prune(module, {0: [0, 2]})  # heads are counted anew: 0, 1 and 3 were left
    assert module.kept == (1,) and module.heads_before == HEADS
    given = given_for(module, True)
    near(module(*given)[0], want(*given)[0])
    for_heads = torch.randn(2 * HEADS, LENGTH, 7, dtype=torch.float64)
    near(module(*given, attn_mask=for_heads)[0], want(*given, attn_mask=for_heads)[0])
    assert prune(module, {0: [0]}).masked == {"PrunedMultiheadAttention": [0]}, (
        "the last head stays, and says nothing"
    )
    near(module(*given)[0], module.out_proj.bias.expand(2, LENGTH, WIDTH))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layers", [[0], [1], [0, 1]])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_on_every_path(layers, nested, norm_first):
    """Nested tensors and the fused layer in evaluation, plain operations in training."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, batch_first=True, dropout=0.0, norm_first=norm_first
    )
    nested = nested and not norm_first
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).double()
    want = masked_by_hand(model, {f"layers.{i}.self_attn": [1, 2] for i in layers})
    prune(model, {i: [1, 2] for i in layers})
    x = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64)
    padding = torch.zeros(3, LENGTH, dtype=torch.bool)
    padding[1, 4:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
    for training in (False, True):
        model.train(training)
        want.train(training)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                near(model(x), want(x))
                near(model(x, mask=causal, is_causal=True), want(x, mask=causal, is_causal=True))
                got = model(x, src_key_padding_mask=padding)
                near(got, want(x, src_key_padding_mask=padding))
    model.zero_grad()
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_torch_encoder_and_decoder():
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 24, dropout=0.0).double()
    names = [site.name for site in head_sites(model)]
    assert names[0] == "encoder.layers.0.self_attn"
    assert names[-1] == "decoder.layers.1.multihead_attn"
    heads = {name: [i % HEADS, 3] for i, name in enumerate(names)}
    want = masked_by_hand(model, heads)
    prune(model, heads)
    source, target = (torch.randn(n, 2, WIDTH, dtype=torch.float64) for n in (6, 4))
    near(model(source, target), want(source, target))


def test_a_capture_of_a_pruned_torch_model():
    model = encoder(enable_nested_tensor=False).eval()
    prune(model, {0: [1]})
    with torch.no_grad():
        trace = regard.trace(model, torch.randn(1, LENGTH, WIDTH, dtype=torch.float64))
    assert [record.shape.heads for record in trace] == [3, 4]
    assert not trace.notes


def test_dropout_in_training():
    model = encoder(enable_nested_tensor=False).train()
    prune(model, {0: [0], 1: [1, 2]})
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    assert not torch.equal(model(x), model(x)), "dropout is drawn"
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    before = model(x).square().mean().item()
    for _ in range(20):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        optimiser.step()
    assert model(x).square().mean().item() < before


# -- regard's own


def test_regards_own_attention():
    torch.manual_seed(0)
    model = MultiHead(
        WIDTH,
        Heads(HEADS, n_groups=2, value_width=3),
        scoring=Scoring(sinks=True, norms=(nn.RMSNorm(4), nn.RMSNorm(4))),
    ).double()
    with torch.no_grad():
        model.sinks.copy_(torch.randn(HEADS))
    want = masked_by_hand(model, {"MultiHead": [0, 1]})
    assert prune(model, {0: [0, 1]}).removed == {"MultiHead": [0, 1]}
    assert (model.n_heads, model.n_groups, len(model.sinks)) == (2, 1, 2)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    near(model(x, causal=True).output, want(x, causal=True).output)
    near(model(x, weights=True).weights, want(x, weights=True).weights[:, 2:])
    slopes = MultiHead(WIDTH, HEADS, position=Alibi(HEADS))
    assert prune(slopes, {0: [0]}).masked == {"MultiHead": [0]}, "a slope belongs to each head"
    told = MultiHead(WIDTH, HEADS, scoring=Scoring(function=lambda score, b, h, q, k: score * h))
    assert prune(told, {0: [0]}).masked == {"MultiHead": [0]}, "a function is told the head"
    gated = MultiHead(WIDTH, HEADS, gate=nn.Linear(WIDTH, HEADS))
    assert prune(gated, {0: [0]}).masked == {"MultiHead": [0]}, "a gate belongs to each head"
