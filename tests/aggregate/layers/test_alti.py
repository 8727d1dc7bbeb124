"""ALTI against the equations written out, its invariances, and real models."""

import copy
import sys

import pytest
import torch
import transformers as hf
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.aggregate.layers.alti import alti
from regard.anatomy.residual_stream import ResidualStream, Surroundings
from regard.cli import packaged
from regard.errors import RegardError, ShapeError

MODULE = sys.modules["regard.aggregate.layers.contributions"]  # the name is also a function's
WIDTH, HEADS, LAYERS = 12, 3, 3


def encoder(norm_first=False):
    torch.manual_seed(0)
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


@torch.no_grad()
def dense(model, given, norm_first=False, forbidden=None):
    """The matrix of every layer, from the model's own parameters, one pair at a time."""
    found, stream = [], given
    for layer in model.layers:
        attention, out, norm = layer.self_attn, layer.self_attn.out_proj, layer.norm1
        inputs = norm(stream) if norm_first else stream
        batch, length, _ = inputs.shape
        size = WIDTH // HEADS
        q, k, v = (
            inputs @ weight.T + bias
            for weight, bias in zip(
                attention.in_proj_weight.split(WIDTH), attention.in_proj_bias.split(WIDTH)
            )
        )
        vectors = torch.zeros(batch, length, length, WIDTH, dtype=torch.float64)
        for head in range(HEADS):
            some = slice(head * size, (head + 1) * size)
            scores = q[..., some] @ k[..., some].mT / size**0.5
            if forbidden is not None:
                scores = scores.masked_fill(forbidden, -torch.inf)
            weights = scores.softmax(-1)
            for i in range(length):
                for j in range(length):
                    vectors[:, i, j] += weights[:, i, j, None] * (
                        v[:, j, some] @ out.weight[:, some].T
                    )
        for i in range(length):
            vectors[:, i, i] += stream[:, i]
        after = vectors.sum(2) + out.bias
        output = after if norm_first else norm(after)
        matrix = torch.zeros(batch, length, length, dtype=torch.float64)
        for example in range(batch):
            for i in range(length):
                deviation = (after[example, i].var(unbiased=False) + norm.eps).sqrt()
                for j in range(length):
                    vector = vectors[example, i, j]
                    if not norm_first:
                        vector = norm.weight * (vector - vector.mean()) / deviation
                    y = output[example, i]
                    near = y.abs().sum() - (y - vector).abs().sum()
                    matrix[example, i, j] = max(0.0, near.item())
                matrix[example, i] /= matrix[example, i].sum()
        found.append(matrix)
        if norm_first:
            stream = after + layer._ff_block(layer.norm2(after))
        else:
            stream = layer.norm2(output + layer._ff_block(output))
    return found


def multiplied(matrices):
    whole = matrices[0]
    for matrix in matrices[1:]:
        whole = matrix @ whole
    return whole


@pytest.mark.parametrize("norm_first", [False, True])
def test_against_the_equations(norm_first):
    model = encoder(norm_first)
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    truth = dense(model, given, norm_first)
    trace, residual = watched(model, given)
    torch.testing.assert_close(
        alti(trace, residual, layers="each"), torch.stack(truth), atol=1e-8, rtol=0
    )
    torch.testing.assert_close(alti(trace, residual, layers="last"), truth[-1], atol=1e-8, rtol=0)
    whole = multiplied(truth)
    torch.testing.assert_close(alti(trace, residual), whole, atol=1e-8, rtol=0)
    for token in (0, -1, [4, 2], [3, 3]):
        found = alti(trace, residual, token)
        torch.testing.assert_close(found, whole[:, token], atol=1e-8, rtol=0)
        torch.testing.assert_close(found.sum(-1), torch.ones_like(found.sum(-1)))


def test_a_padded_batch():
    model = encoder()
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    truth = multiplied(dense(model, given, forbidden=padding[:, None]))
    trace, residual = watched(model, given, src_key_padding_mask=padding)
    found = alti(trace, residual)
    torch.testing.assert_close(found[0], truth[0], atol=1e-8, rtol=0)
    torch.testing.assert_close(found[1, :4], truth[1, :4], atol=1e-8, rtol=0)
    assert (found[1, :4, 4:] == 0).all(), "padding contributes nothing"
    alone = alti(*watched(model, given[1:, :4]))
    torch.testing.assert_close(found[1, :4, :4], alone[0], atol=1e-10, rtol=0)


def test_nothing_comes_from_later_positions():
    model = encoder()
    given = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    forbidden = torch.ones(9, 9).triu(1).bool()
    truth = multiplied(dense(model, given, forbidden=forbidden))
    found = alti(*watched(model, given, mask=forbidden))
    torch.testing.assert_close(found, truth, atol=1e-8, rtol=0)
    assert (found.triu(1) == 0).all(), "not by rounding either"


@pytest.mark.parametrize("size", [1, 100, 1 << 14])
def test_tiles_of_any_size_are_the_same(size, monkeypatch):
    trace, residual = watched(encoder(), torch.randn(2, 11, WIDTH, dtype=torch.float64))
    plain = alti(trace, residual)
    monkeypatch.setattr(MODULE, "_TILE", size)
    monkeypatch.setattr(MODULE, "_ROWS", 4)
    torch.testing.assert_close(alti(trace, residual), plain, atol=1e-12, rtol=0)
    torch.testing.assert_close(alti(trace, residual, [7, 2]), plain[:, [7, 2]], atol=1e-12, rtol=0)


def test_permuting_heads_changes_nothing():
    model, twin = encoder(), encoder()
    order = torch.tensor([2, 0, 1])
    rows = (order[:, None] * (WIDTH // HEADS) + torch.arange(WIDTH // HEADS)).flatten()
    for layer in twin.layers:
        attention = layer.self_attn
        parts = torch.cat([rows + part * WIDTH for part in range(3)])
        attention.in_proj_weight.data = attention.in_proj_weight.data[parts]
        attention.in_proj_bias.data = attention.in_proj_bias.data[parts]
        attention.out_proj.weight.data = attention.out_proj.weight.data[:, rows]
    given = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    one, other = alti(*watched(model, given)), alti(*watched(twin, given))
    torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def test_a_block_that_passes_its_stream_on_is_itself():
    """With no values there is nothing but the stream, and every position keeps to itself."""
    model = encoder(norm_first=True)
    for layer in model.layers:
        layer.self_attn.in_proj_weight.data[2 * WIDTH :] = 0.0
        layer.self_attn.in_proj_bias.data[2 * WIDTH :] = 0.0
        layer.self_attn.out_proj.bias.data.zero_()
    given = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    with torch.no_grad(), regard.capture(model, values=True) as trace:
        model(given)
    out = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    found = alti(trace, Surroundings(out, None, given))
    torch.testing.assert_close(found[0], torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_causal_language_models(name):
    settings = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "Llama":
        settings |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
        settings |= {"num_key_value_heads": 2, "intermediate_size": 32}
    else:
        settings |= {"n_embd": 16, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    model = getattr(hf, f"{name}Model")(getattr(hf, f"{name}Config")(**settings)).double().eval()
    ids = torch.tensor([[5, 17, 33, 8, 21, 40], [9, 9, 12, 44, 9, 30]])
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    found = alti(*watched(model, input_ids=ids, attention_mask=mask))
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 6, dtype=torch.float64))
    assert (found.triu(1) == 0).all()
    assert (found[1, 2:, :2] == 0).all(), "nothing comes from padding"


def test_parts_of_an_encoder_decoder():
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, 2, 2, 2, 24, batch_first=True).double().eval()
    source, target = torch.randn(2, 7, WIDTH).double(), torch.randn(2, 4, WIDTH).double()
    trace, residual = watched(model, source, target)
    assert alti(trace, residual, part="encoder").shape == (2, 7, 7)
    assert alti(trace, residual, 0, part="decoder").shape == (2, 4)
    with pytest.raises(RegardError, match="self- and cross-attention; say which"):
        alti(trace, residual)
    with pytest.raises(ShapeError, match="4 queries × 7 keys"):
        alti(trace, residual, part="cross")


def test_the_vectors_are_never_whole():
    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.most = max(self.most, out.numel())
            return out

    length = 1200
    model = encoder().float()
    trace, residual = watched(model, torch.randn(1, length, WIDTH))
    with Largest() as seen:
        alti(trace, residual, 5)
    assert seen.most <= 1 << 22, "they would be 17 million numbers"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_pronoun_of_a_real_model_is_made_of_its_noun(dtype):
    loaded = packaged.minilm()
    given = loaded.encode("The animal didn't cross the street because it was too tired.")
    trace, residual = watched(copy.deepcopy(loaded.model).to(dtype), **given.inputs)
    found = alti(trace, residual, given.tokens.index("it"))[0]
    assert found.dtype == torch.float32
    assert given.tokens[int(found.argmax())] == "animal"
    assert found[given.tokens.index("animal")].item() == pytest.approx(0.28, abs=0.02)
    assert found[0] < 0.02, "[CLS], where rollout sees most"
    assert regard.rollout(trace, given.tokens.index("it"))[0, 0] > 0.5


def test_one_layer_called_twelve_times():
    loaded = packaged.rxnmapper()
    given = loaded.encode("CCO.CC(=O)O>>CCOC(C)=O")
    trace, residual = watched(loaded.model, **given.inputs)
    each = alti(trace, residual, layers="each")
    assert each.shape == (12, 1, len(given.tokens), len(given.tokens))
    torch.testing.assert_close(alti(trace, residual), multiplied(list(each)), atol=1e-5, rtol=0)


def test_what_is_wrong_is_said():
    model = encoder()
    trace, residual = watched(model, torch.randn(1, 4, WIDTH, dtype=torch.float64))
    with pytest.raises(RegardError, match="layers='mean', expected one of product, last, each"):
        alti(trace, residual, layers="mean")
    with pytest.raises(RegardError, match="this needs the residual stream: run the model inside"):
        alti(trace, model)
    with pytest.raises(RegardError, match="this needs values, which a Trace has"):
        alti([trace[0].weights()], residual)
    with pytest.raises(RegardError, match="token=4, expected whole numbers from -4 to 3"):
        alti(trace, residual, 4)
