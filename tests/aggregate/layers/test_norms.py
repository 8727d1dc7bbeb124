"""Norm-based attention against sums written out, with and without residual and norm."""

import sys

import pytest
import torch
import transformers as hf
from torch import nn

import regard
from regard.aggregate.layers import norms
from regard.aggregate.layers.norms import norm_attention
from regard.anatomy.residual_stream import ResidualStream, Surroundings
from regard.cli import packaged
from regard.errors import RegardError, ShapeError

MODULE = sys.modules["regard.aggregate.layers.contributions"]  # the name is also a function's
WIDTH, HEADS, LAYERS = 12, 3, 2


def encoder(norm_first=False, seed=0):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).double().eval()
    for weight in model.parameters():
        weight.data.add_(0.3 * torch.randn_like(weight))
    return model


def watched(model, *args, **kwargs):
    with (
        torch.no_grad(),
        regard.capture(model, values=True) as trace,
        ResidualStream(model) as residual,
    ):
        model(*args, **kwargs)
    return trace, residual


def dense(model, given, padding=None, norm_first=False):
    """For each layer: norms of αf(x) by head, of their sum, with the residual, and with the norm.

    Written from the equations, one query, key and head at a time, from the model's own parameters.
    """
    found = []
    stream = given
    for layer in model.layers:
        attention, out = layer.self_attn, layer.self_attn.out_proj
        inputs = layer.norm1(stream) if norm_first else stream
        batch, length, _ = inputs.shape
        size = WIDTH // HEADS
        q, k, v = (
            inputs @ attention.in_proj_weight[part * WIDTH : (part + 1) * WIDTH].T
            + attention.in_proj_bias[part * WIDTH : (part + 1) * WIDTH]
            for part in range(3)
        )
        each = torch.zeros(batch, HEADS, length, length, dtype=torch.float64)
        vectors = torch.zeros(batch, length, length, WIDTH, dtype=torch.float64)
        for head in range(HEADS):
            some = slice(head * size, (head + 1) * size)
            scores = q[..., some] @ k[..., some].mT / size**0.5
            if padding is not None:
                scores = scores.masked_fill(padding[:, None], -torch.inf)
            weights = scores.softmax(-1)
            for i in range(length):
                for j in range(length):
                    vector = weights[:, i, j, None] * (v[:, j, some] @ out.weight[:, some].T)
                    each[:, head, i, j] = vector.norm(dim=-1)
                    vectors[:, i, j] += vector
        after = stream + vectors.sum(2) + out.bias
        with_stream = vectors.clone()
        for i in range(length):
            with_stream[:, i, i] += stream[:, i]
        with_norm = with_stream.clone()
        if not norm_first:
            norm = layer.norm1
            deviation = (after.var(-1, unbiased=False) + norm.eps).sqrt()
            for i in range(length):
                for j in range(length):
                    centred = with_stream[:, i, j] - with_stream[:, i, j].mean(-1, keepdim=True)
                    with_norm[:, i, j] = norm.weight * centred / deviation[:, i, None]
        found.append(
            {
                "each": each,
                "sum": each.sum(1),
                "attention": vectors.norm(dim=-1),
                "residual": with_stream.norm(dim=-1),
                "norm": with_norm.norm(dim=-1),
            }
        )
        if norm_first:
            stream = after + layer._ff_block(layer.norm2(after))
        else:
            stream = layer.norm1(after)
            stream = layer.norm2(stream + layer._ff_block(stream))
    return found


CASES = [
    ("each", "attention", "each"),
    ("sum", "attention", "sum"),
    ("joint", "attention", "attention"),
    ("joint", "residual", "residual"),
    ("joint", "norm", "norm"),
]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("heads", "include", "key"), CASES)
@torch.no_grad()
def test_against_sums_written_out(heads, include, key, norm_first):
    model = encoder(norm_first)
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    truth = torch.stack([layer[key] for layer in dense(model, given, norm_first=norm_first)])
    trace, residual = watched(model, given)
    options = {"heads": heads, "include": include}
    found = norm_attention(trace, residual, layers="each", **options)
    torch.testing.assert_close(found, truth, atol=1e-8, rtol=0)
    found = norm_attention(trace, residual, **options)
    torch.testing.assert_close(found, truth.mean(0), atol=1e-8, rtol=0)
    found = norm_attention(trace, residual, layers="last", **options)
    torch.testing.assert_close(found, truth[-1], atol=1e-8, rtol=0)
    for token in (2, -1, [4, 0], [1, 1]):
        found = norm_attention(trace, residual, token, **options)
        torch.testing.assert_close(found, truth.mean(0)[..., token, :], atol=1e-8, rtol=0)


def multiplied(matrices, token):
    """Rows divided by their sums, top layer first."""
    whole = None
    for matrix in matrices:
        shares = matrix / matrix.sum(-1, keepdim=True)
        whole = shares if whole is None else shares @ whole
    return whole if token is None else whole[:, token]


@pytest.mark.parametrize("token", [None, 1, [5, 2]])
@pytest.mark.parametrize(("heads", "include", "key"), CASES[1:])
@torch.no_grad()
def test_layers_multiplied(heads, include, key, token):
    model = encoder()
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    truth = multiplied([layer[key] for layer in dense(model, given)], token)
    trace, residual = watched(model, given)
    found = norm_attention(trace, residual, token, heads=heads, include=include, layers="product")
    torch.testing.assert_close(found, truth, atol=1e-8, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found.sum(-1)))


@torch.no_grad()
def test_a_padded_batch():
    model = encoder()
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    truth = dense(model, given, padding)
    trace, residual = watched(model, given, src_key_padding_mask=padding)
    for heads, include, key in CASES:
        found = norm_attention(trace, residual, heads=heads, include=include, layers="each")
        for layer, matrix in zip(found, truth, strict=True):
            torch.testing.assert_close(layer[0], matrix[key][0], atol=1e-8, rtol=0)
            real = layer[1, ..., :4, :4], matrix[key][1, ..., :4, :4]
            torch.testing.assert_close(*real, atol=1e-8, rtol=0)
            assert (layer[1, ..., :4, 4:] == 0).all()


def permuted(model, order):
    """The same model, its heads in another order."""
    size = WIDTH // HEADS
    rows = torch.cat([torch.arange(head * size, (head + 1) * size) for head in order])
    twin = encoder()
    twin.load_state_dict(model.state_dict())
    for layer in twin.layers:
        attention = layer.self_attn
        parts = torch.cat([rows + part * WIDTH for part in range(3)])
        attention.in_proj_weight.data = attention.in_proj_weight.data[parts]
        attention.in_proj_bias.data = attention.in_proj_bias.data[parts]
        attention.out_proj.weight.data = attention.out_proj.weight.data[:, rows]
    return twin


@pytest.mark.parametrize(("heads", "include"), [case[:2] for case in CASES[1:]])
def test_permuting_heads_changes_nothing(heads, include):
    model = encoder()
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    one, other = watched(model, given), watched(permuted(model, [2, 0, 1]), given)
    torch.testing.assert_close(
        norm_attention(*one, heads=heads, include=include),
        norm_attention(*other, heads=heads, include=include),
        atol=1e-10,
        rtol=0,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_are_the_same_as_rows(causal, monkeypatch):
    """Long sequences go through layers as vectors over tiles, never as rows."""
    model = encoder()
    given = torch.randn(2, 40, WIDTH, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(40, dtype=torch.float64)
    trace, residual = watched(model, given, mask=mask if causal else None, is_causal=causal)
    plain = norm_attention(trace, residual, [7, 39], layers="product")
    walks = []
    tiles = norms.chain.received
    monkeypatch.setattr(norms.chain, "received", lambda *given: walks.append(0) or tiles(*given))
    monkeypatch.setattr(norms, "BLOCK", 2 * HEADS * 40 * 2)  # two rows at once
    tiled = norm_attention(trace, residual, [7, 39], layers="product")
    assert len(walks) == LAYERS - 1, "the few rows of the top layer are made as they are"
    torch.testing.assert_close(tiled, plain, atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [1, 60, 1 << 12])
def test_blocks_of_any_size_are_the_same(size, monkeypatch):
    model = encoder()
    trace, residual = watched(model, torch.randn(2, 9, WIDTH, dtype=torch.float64))
    plain = norm_attention(trace, residual, heads="joint", include="norm")
    monkeypatch.setattr(MODULE, "_TILE", size)
    monkeypatch.setattr(MODULE, "_ROWS", 4)
    tiled = norm_attention(trace, residual, heads="joint", include="norm")
    torch.testing.assert_close(tiled, plain, atol=1e-12, rtol=0)


def test_rows_that_attend_to_nothing_keep_to_themselves():
    model = encoder()
    given = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    mask = torch.zeros(6, 6, dtype=torch.float64)
    mask[2] = -torch.inf
    with torch.no_grad(), regard.capture(model, values=True) as trace:
        model(given, mask=mask)
    assert trace[0].weights()[:, :, 2].eq(0).all()
    found = norm_attention(trace[:1], model, 2, layers="product")
    torch.testing.assert_close(found, torch.eye(6, dtype=torch.float64)[2:3])


@pytest.mark.parametrize("size", [3, 5])
def test_grouped_heads_of_a_llama(size):
    config = hf.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        head_dim=size * 2,
    )
    torch.manual_seed(0)
    model = hf.LlamaModel(config).double().eval()
    ids = torch.tensor([[5, 17, 33, 8, 21, 40]])
    trace, residual = watched(model, input_ids=ids)
    record, out = trace[1], model.layers[1].self_attn.o_proj.weight
    weights, values = record.weights(), record.recipe.value
    truth = torch.zeros(1, 4, 6, 6, dtype=torch.float64)
    for head in range(4):
        some = slice(head * size * 2, (head + 1) * size * 2)
        for i in range(6):
            for j in range(6):
                vector = weights[0, head, i, j] * values[0, head // 2, j] @ out[:, some].T
                truth[0, head, i, j] = vector.norm()
    found = norm_attention(trace, model, heads="each", layers="last")
    torch.testing.assert_close(found, truth.detach(), atol=1e-10, rtol=0)
    assert norm_attention(trace, residual, -1, heads="joint", include="norm").shape == (1, 6)


def test_cross_attention():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 24, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).double().eval()
    target, memory = torch.randn(2, 4, WIDTH).double(), torch.randn(2, 7, WIDTH).double()
    trace, residual = watched(model, target, memory)
    assert norm_attention(trace, model, part="cross").shape == (2, 4, 7)
    assert norm_attention(
        trace, residual, 1, part="decoder", heads="joint", include="norm"
    ).shape == (
        2,
        4,
    )
    with pytest.raises(ShapeError, match="4 queries × 7 keys"):
        norm_attention(trace, residual, part="cross", heads="joint", include="norm")
    trace, residual = watched(model, target, memory[:, :4])
    with pytest.raises(ShapeError, match=r"4 queries × 4 keys .*cross-attention reads another"):
        norm_attention(trace, residual, part="cross", heads="joint", include="norm")


def test_values_of_padding_may_be_anything():
    """What nobody may look at reaches nothing, NaN included."""
    q = torch.randn(1, 2, 4, 3, dtype=torch.float64)
    keep = torch.tensor([[True, True, True, False]])
    attended = [
        regard.attend(q, q, value, mask=regard.masks.padding(keep), weights=True).recipe
        for value in (q, torch.cat([q[:, :, :3], torch.full_like(q[:, :, 3:], torch.nan)], 2))
    ]
    near = Surroundings(torch.randn(5, 6, dtype=torch.float64))
    lengths = [norms.vector_lengths(norms.values_of(recipe), near) for recipe in attended]
    assert torch.equal(lengths[0][..., :3], lengths[1][..., :3]) and lengths[1].isfinite().all()


def test_a_real_model_rests_its_weights_where_vectors_are_short():
    """Half of the weight lies on [CLS] and takes next to nothing from there."""
    loaded = packaged.minilm()
    given = loaded.encode("The animal didn't cross the street because it was too tired.")
    with torch.no_grad(), regard.capture(loaded.model, values=True) as trace:
        loaded.model(**given.inputs)
    plain = regard.mean_attention(trace, layers="each").mean(2)[:, 0]  # (layer, key)
    normed = norm_attention(trace, loaded.model, layers="each").mean(2)[:, 0]
    share, shorter = (rows[:, 0] / rows.sum(1) for rows in (plain, normed))
    assert (share[1:5] > 0.45).all() and (shorter < 0.07).all()


def test_memory_does_not_grow_with_the_square():
    """A chain over 1,500 positions makes nothing that is as large as one map of all heads."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.most = max(self.most, out.numel())
            return out

    length = 1500
    model = encoder().float()
    with torch.no_grad(), regard.capture(model, values=True) as trace:
        model(torch.randn(1, length, WIDTH))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "BLOCK", 1 << 16)
        with Largest() as seen:
            norm_attention(trace, model, 3, layers="product")
    assert seen.most < length * length / 4


def test_what_is_wrong_is_said():
    model = encoder()
    trace, residual = watched(model, torch.randn(1, 4, WIDTH, dtype=torch.float64))
    with pytest.raises(RegardError, match="heads='mean', expected one of sum, joint, each"):
        norm_attention(trace, model, heads="mean")
    with pytest.raises(RegardError, match="layers='first', expected one of mean, last, each, prod"):
        norm_attention(trace, model, layers="first")
    with pytest.raises(RegardError, match="belongs to no head, so heads='joint' is needed"):
        norm_attention(trace, residual, include="residual")
    with pytest.raises(RegardError, match="'each' gives no single matrix to multiply"):
        norm_attention(trace, model, heads="each", layers="product")
    with pytest.raises(RegardError, match="layer 0: this needs values, which a Trace has"):
        norm_attention([trace[0].weights()], model)
    with pytest.raises(RegardError, match="this needs the residual stream"):
        norm_attention(trace, model, heads="joint", include="norm")


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_word_for_what_is_included():
    model = encoder()
    trace, _ = watched(model, torch.randn(1, 4, WIDTH, dtype=torch.float64))
    with pytest.raises(RegardError, match="include='mlp', expected one of attention, residual, no"):
        norm_attention(trace, model, include="mlp")
