"""What stands around an attention: in layers of torch and in blocks of one's own.

Also that watching leaves nothing behind, and what is refused.
"""

import warnings

import pytest
import torch
from residual_models import encoder, seen_at, stirred, total, watched
from torch import nn

import regard
from regard.aggregate.layers.contributions import contributions
from regard.anatomy.residual_stream import ResidualStream, Surroundings, surroundings_of
from regard.cli import packaged
from regard.errors import RegardError, ShapeError, UnavailableError

# -- layers of torch


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("sizes", [(2, 5), (3, 3), (1, 4)])
def test_encoder_layers_of_torch(norm_first, batch_first, sizes):
    model = encoder(norm_first, batch_first)
    given = torch.randn(*(sizes if batch_first else sizes[::-1]), 16, dtype=torch.float64)
    place, side = ("layers.1.norm2", "input") if norm_first else ("layers.1.norm1", "output")
    truth = seen_at(model, place, side, given)[0]
    trace, residual = watched(model, given)
    near = residual.of(trace[1])
    assert near.norm is (None if norm_first else model.layers[1].norm1)
    truth = truth if batch_first else truth.transpose(0, 1)
    torch.testing.assert_close(total(contributions(trace[1], near)), truth, atol=1e-10, rtol=0)


@pytest.mark.parametrize("nested", [False, True])
def test_a_padded_batch_of_torch(nested):
    model = encoder(norm_first=False, nested=nested)
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
        trace, residual = watched(model, given, src_key_padding_mask=padding)
    found = contributions(trace[0], residual.of(trace[0]))
    layer = model.layers[0]
    with torch.no_grad():
        attended = layer.self_attn(given, given, given, key_padding_mask=padding)[0]
        truth = layer.norm1(given + attended)
    torch.testing.assert_close(total(found)[0], truth[0], atol=1e-10, rtol=0)
    torch.testing.assert_close(total(found)[1, :3], truth[1, :3], atol=1e-10, rtol=0)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layers_of_torch(norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = stirred(nn.TransformerDecoder(layer, 2))
    target, memory = torch.randn(2, 4, 16).double(), torch.randn(2, 6, 16).double()
    names = ("norm2", "norm3") if norm_first else ("norm1", "norm2")
    side = "input" if norm_first else "output"
    trace, residual = watched(model, target, memory)
    for record, name in zip(trace[:2], names, strict=True):
        truth = seen_at(model, f"layers.0.{name}", side, target, memory)[0]
        near = residual.of(record)
        if record.attends == "self":
            found = total(contributions(record, near))
            torch.testing.assert_close(found, truth, atol=1e-10, rtol=0)
        else:
            with pytest.raises(UnavailableError, match="is not among the keys"):
                contributions(record, near)
        assert (near.norm is None) == norm_first
        assert near.residual.shape == (2, 4, 16)


def test_attention_alone_has_a_projection_and_no_stream():
    attention = stirred(nn.MultiheadAttention(16, 4, batch_first=True))
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, residual = watched(attention, given, given, given)
    near = surroundings_of(attention, list(trace), stream=False)[0]
    found = contributions(trace[0], near, "attention")
    with torch.no_grad():
        truth = attention(given, given, given)[0]
    torch.testing.assert_close(total(found), truth, atol=1e-10, rtol=0)
    with pytest.raises(UnavailableError, match="no two tensors near it differ by what it adds"):
        residual.of(trace[0])


def test_torch_fast_path_needs_no_hooks_for_the_projection():
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model, values=True) as trace:
        model(torch.randn(1, 5, 16))
    assert trace[0].operator == "_transformer_encoder_layer_fwd", "all of it in one operator"
    near = surroundings_of(model, list(trace), stream=False)[0]
    assert torch.equal(near.output_weight, model.self_attn.out_proj.weight)


# -- blocks of one's own


class Block(nn.Module):
    """A pre-norm block that adds to its stream in place, with parts under names of its own."""

    def __init__(self, in_place=True, scale=1.0):
        super().__init__()
        self.in_place, self.scale = in_place, scale
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.forward_part = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, stream):
        normed = self.first(stream)
        added = self.scale * self.attention(normed, normed, normed)[0]
        if self.in_place:
            stream += added
            stream += self.forward_part(self.second(stream))
            return stream
        return stream + added + self.forward_part(normed)  # side by side, as in GPT-J


@pytest.mark.parametrize("inference", [False, True])
def test_a_stream_that_is_added_to_in_place(inference):
    model = stirred(nn.Sequential(Block(), Block()))
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    seen = []
    model[1].second.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    mode = torch.inference_mode() if inference else torch.no_grad()
    with mode, regard.capture(model, values=True) as trace, ResidualStream(model) as residual:
        model(given.clone())
    found = contributions(trace[1], residual.of(trace[1]))
    torch.testing.assert_close(total(found), seen[0], atol=1e-10, rtol=0)


def test_blocks_side_by_side_are_refused_and_can_be_given():
    model = stirred(nn.Sequential(Block(in_place=False), Block(in_place=False)))
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, residual = watched(model, given)
    with pytest.raises(UnavailableError, match=r"residual=\{'1.attention': regard.aggregate.Surr"):
        residual.of(trace[1])
    stream = seen_at(model, "1", "input", given)[0]
    out = model[1].attention.out_proj
    near = Surroundings(out.weight.detach(), out.bias.detach(), stream)
    found = surroundings_of({"1.attention": near}, [trace[1]], stream=True)[0]
    normed = model[1].first(stream)
    truth = stream + model[1].attention(normed, normed, normed)[0]
    torch.testing.assert_close(
        total(contributions(trace[1], found)), truth.detach(), atol=1e-10, rtol=0
    )


def test_a_scale_that_is_no_module_is_refused():
    model = stirred(nn.Sequential(Block(scale=0.5)))
    trace, residual = watched(model, torch.randn(2, 5, 16, dtype=torch.float64))
    with pytest.raises(UnavailableError, match="no two tensors near it differ"):
        residual.of(trace[0])


def test_a_model_whose_projection_has_no_known_name():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x):
            parts = self.up(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts)
            return self.down(mixed.transpose(1, 2).flatten(2))

    model = stirred(Odd())
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, _ = watched(model, given)
    with pytest.raises(UnavailableError, match=r"no output projections were found.*Give it"):
        surroundings_of(model, list(trace), stream=False)
    near = Surroundings(model.down.weight.detach(), model.down.bias.detach())
    found = contributions(trace[0], near, "attention")
    torch.testing.assert_close(total(found), model(given).detach(), atol=1e-10, rtol=0)


# -- watching


def test_dropout_between_is_said():
    model = encoder(norm_first=False).train()
    trace, residual = watched(model, torch.randn(2, 5, 16, dtype=torch.float64))
    with pytest.raises(UnavailableError, match=r"the model is training.*call model.eval\(\)"):
        residual.of(trace[0])


def test_training_without_dropout_is_found():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    with regard.capture(layer, values=True) as trace, ResidualStream(layer) as residual:
        out = layer(given)
    near = residual.of(trace[0])
    assert out.requires_grad and not near.residual.requires_grad
    torch.testing.assert_close(near.residual, given)


def hooks(model):
    names = ("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs")
    return {path: [dict(getattr(m, name)) for name in names] for path, m in model.named_modules()}


def test_nothing_is_left_behind():
    model = encoder(norm_first=False)
    before, training = hooks(model), model.training
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        plain = model(given)
        state = torch.get_rng_state()
        watched(model, given)
        with pytest.raises(RuntimeError), regard.capture(model, values=True), ResidualStream(model):
            model(given[..., :3])
        assert torch.equal(state, torch.get_rng_state())
        assert torch.equal(plain, model(given))
    assert hooks(model) == before and model.training == training


def test_watching_changes_nothing_in_other_models():
    loaded = packaged.minilm()
    inputs = loaded.encode("see that girl run").inputs
    with torch.no_grad():
        plain = loaded.model(**inputs).last_hidden_state
        with ResidualStream(loaded.model):
            seen = loaded.model(**inputs).last_hidden_state
    assert torch.equal(plain, seen)


def test_several_passes():
    model = encoder(norm_first=True)
    first, second = (torch.randn(2, size, 16, dtype=torch.float64) for size in (5, 7))
    with (
        torch.no_grad(),
        regard.capture(model, values=True) as trace,
        ResidualStream(model) as residual,
    ):
        model(first)
        model(second)
    for step, given in zip(trace.steps, (first, second), strict=True):
        torch.testing.assert_close(residual.of(step[0]).residual, given)


# -- what is refused


def test_what_is_wrong_is_said():
    model = encoder(norm_first=False)
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, _ = watched(model, given)
    records = list(trace)
    with pytest.raises(RegardError, match=r"this needs the residual stream: run the model inside"):
        surroundings_of(model, records, stream=True)
    with pytest.raises(RegardError, match=r"None for 'layers.0.self_attn', expected Surr"):
        surroundings_of({}, records, stream=False)
    with pytest.raises(UnavailableError, match="no input of it was recorded; run the model"):
        ResidualStream(model).of(records[0])
    weight = torch.zeros(16, 12, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"takes 12 features, expected 4 heads × 4 = 16"):
        surroundings_of(Surroundings(weight), records, stream=False)
    short = Surroundings(torch.zeros(16, 16), residual=torch.zeros(2, 4, 16))
    with pytest.raises(ShapeError, match=r"stream is \(2, 4, 16\), expected \(2, 5, 16\)"):
        surroundings_of(short, records, stream=True)
    with torch.no_grad(), regard.capture(model) as trace:
        model(given)
    with pytest.raises(UnavailableError, match=r"no values were kept.*values=True"):
        surroundings_of(model, list(trace), stream=False)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_source_of_another_kind():
    trace, _ = watched(encoder(norm_first=False), torch.randn(1, 5, 16, dtype=torch.float64))
    with pytest.raises(
        RegardError, match="residual is a int, expected the model, a ResidualStream"
    ):
        surroundings_of(3, list(trace), stream=False)
    with pytest.raises(RegardError, match=r"ResidualStream: str, expected an nn\.Module"):
        ResidualStream("model")
