"""What stands around an attention: found in models of many families, checked by real outputs."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
import transformers as hf
from torch import nn

import regard
from regard.aggregate.contributions import contributions, linear_norm
from regard.aggregate.layout import Around, Surroundings, surroundings_of
from regard.cli import packaged
from regard.errors import RegardError, ShapeError, UnavailableError

IDS = torch.tensor([[5, 17, 33, 8, 21, 40], [12, 44, 9, 30, 7, 19]])
TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}
PAIR = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)}
WORDS = {"input_ids": IDS}
BOTH = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}

# Family: configuration, inputs, and where what its first attention block gives can be seen: the
# output of a module (post-norm) or its input (pre-norm).
FAMILIES = {
    "Bert": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "Roberta": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "Electra": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "DebertaV2": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "MPNet": (TEXT, WORDS, "encoder.layer.0.attention.LayerNorm", "output"),
    "DistilBert": (
        {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32},
        WORDS,
        "transformer.layer.0.sa_layer_norm",
        "output",
    ),
    "ViT": (IMAGE, PIXELS, "layers.0.layernorm_after", "input"),
    "CLIPVision": (IMAGE, PIXELS, "encoder.layers.0.layer_norm2", "input"),
    "CLIPText": (TEXT, WORDS, "encoder.layers.0.layer_norm2", "input"),
    "GPT2": (
        {**TEXT, "n_embd": 16, "n_layer": 2, "n_head": 4},
        WORDS,
        "h.0.ln_2",
        "input",
    ),
    "Llama": (GROUPED, WORDS, "layers.0.post_attention_layernorm", "input"),
    "Mistral": (GROUPED, WORDS, "layers.0.post_attention_layernorm", "input"),
    "Qwen3": ({**GROUPED, "head_dim": 8}, WORDS, "layers.0.post_attention_layernorm", "input"),
    "Gemma2": ({**GROUPED, "head_dim": 8}, WORDS, "layers.0.pre_feedforward_layernorm", "input"),
    "Olmo2": (GROUPED, WORDS, "layers.0.mlp", "input"),
    "Bloom": (
        {**TEXT, "n_layer": 2, "n_head": 4},
        WORDS,
        "h.0.post_attention_layernorm",
        "input",
    ),
    "OPT": (
        {**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16},
        WORDS,
        "decoder.layers.0.final_layer_norm",
        "input",
    ),
    "T5": (
        {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4},
        BOTH,
        "encoder.block.0.layer.1",
        "input",
    ),
    "Bart": (PAIR, BOTH, "encoder.layers.0.self_attn_layer_norm", "output"),
    "Marian": (PAIR, BOTH, "encoder.layers.0.self_attn_layer_norm", "output"),
    "Dinov2": (
        {**IMAGE, "layerscale_value": 0.5},
        PIXELS,
        "encoder.layer.0.norm2",
        "input",
    ),
}


def stirred(model, dtype=torch.float64):
    """Parameters far from their first values, so that a part left out is seen."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        weight.data.add_(0.3 * noise)
    return model.to(dtype).eval()


def family(name):
    settings, inputs, place, side = FAMILIES[name]
    config = getattr(hf, f"{name}Config")(**settings)
    model = stirred(getattr(hf, f"{name}Model")(config))
    inputs = {
        key: given.double() if given.is_floating_point() else given for key, given in inputs.items()
    }
    return model, inputs, place, side


def watched(model, *args, **kwargs):
    with torch.no_grad(), regard.capture(model, values=True) as trace, Around(model) as around:
        model(*args, **kwargs)
    return trace, around


def seen_at(model, place, side, *args, **kwargs):
    """What a module of the model took in or gave, in order."""
    seen = []
    module = model.get_submodule(place)

    def note(_, args, kwargs, output):
        seen.append(output if side == "output" else (*args, *kwargs.values())[0])

    hook = module.register_forward_hook(note, with_kwargs=True)
    with torch.no_grad():
        model(*args, **kwargs)
    hook.remove()
    return seen


def total(found):
    """Σⱼ Tᵢ(xⱼ) + restᵢ, from the tiles."""
    added = torch.zeros_like(found.output)
    for tile in found.tiles(slice(0, found.recipe.shape.queries)):
        added += tile.vectors.sum(1)
    return added + found.rest


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # DeBERTa's own
@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_sum_to_the_real_output_of_the_block(name):
    model, inputs, place, side = family(name)
    truth = seen_at(model, place, side, **inputs)[0]
    trace, around = watched(model, **inputs)
    near = around.of(trace[0])
    found = contributions(trace[0], near)
    assert (near.norm is not None) == (side == "output")
    assert (near.branch is not None) == (name in ("Gemma2", "Olmo2", "Dinov2"))
    # Norms of these three go through float32 whatever comes in.
    slack = 1e-6 if name in ("Gemma2", "Olmo2", "T5") else 1e-10
    truth = truth.reshape(found.output.shape)
    torch.testing.assert_close(total(found), truth, atol=slack, rtol=0)
    torch.testing.assert_close(found.output, truth, atol=slack, rtol=0)


@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama", "T5", "Bart"])
def test_every_layer_is_found(name):
    model, inputs, _, _ = family(name)
    trace, around = watched(model, **inputs)
    for record in trace:
        found = contributions(record, around.of(record), "attention")
        mixed = record.mixed().transpose(1, 2).flatten(2)
        near = surroundings_of(model, [record], stream=False)[0]
        truth = nn.functional.linear(mixed, near.output_weight, near.output_bias)
        torch.testing.assert_close(total(found), truth, atol=1e-10, rtol=0)


def encoder(norm_first, batch_first=True, nested=False, layers=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first, norm_first=norm_first)
    nested = nested and not norm_first and batch_first
    return stirred(nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("sizes", [(2, 5), (3, 3), (1, 4)])
def test_encoder_layers_of_torch(norm_first, batch_first, sizes):
    model = encoder(norm_first, batch_first)
    given = torch.randn(*(sizes if batch_first else sizes[::-1]), 16, dtype=torch.float64)
    place, side = ("layers.1.norm2", "input") if norm_first else ("layers.1.norm1", "output")
    truth = seen_at(model, place, side, given)[0]
    trace, around = watched(model, given)
    near = around.of(trace[1])
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
        trace, around = watched(model, given, src_key_padding_mask=padding)
    found = contributions(trace[0], around.of(trace[0]))
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
    trace, around = watched(model, target, memory)
    for record, name in zip(trace[:2], names, strict=True):
        truth = seen_at(model, f"layers.0.{name}", side, target, memory)[0]
        near = around.of(record)
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
    trace, around = watched(attention, given, given, given)
    near = surroundings_of(attention, list(trace), stream=False)[0]
    found = contributions(trace[0], near, "attention")
    with torch.no_grad():
        truth = attention(given, given, given)[0]
    torch.testing.assert_close(total(found), truth, atol=1e-10, rtol=0)
    with pytest.raises(UnavailableError, match="no two tensors near it differ by what it adds"):
        around.of(trace[0])


def test_torch_fast_path_needs_no_hooks_for_the_projection():
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model, values=True) as trace:
        model(torch.randn(1, 5, 16))
    assert trace[0].operator == "_transformer_encoder_layer_fwd", "all of it in one operator"
    near = surroundings_of(model, list(trace), stream=False)[0]
    assert torch.equal(near.output_weight, model.self_attn.out_proj.weight)


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
    with mode, regard.capture(model, values=True) as trace, Around(model) as around:
        model(given.clone())
    found = contributions(trace[1], around.of(trace[1]))
    torch.testing.assert_close(total(found), seen[0], atol=1e-10, rtol=0)


def test_blocks_side_by_side_are_refused_and_can_be_given():
    model = stirred(nn.Sequential(Block(in_place=False), Block(in_place=False)))
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, around = watched(model, given)
    with pytest.raises(UnavailableError, match=r"around=\{'1.attention': regard.aggregate.Surr"):
        around.of(trace[1])
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
    trace, around = watched(model, torch.randn(2, 5, 16, dtype=torch.float64))
    with pytest.raises(UnavailableError, match="no two tensors near it differ"):
        around.of(trace[0])


def test_dropout_between_is_said():
    model = encoder(norm_first=False).train()
    trace, around = watched(model, torch.randn(2, 5, 16, dtype=torch.float64))
    with pytest.raises(UnavailableError, match=r"the model is training.*call model.eval\(\)"):
        around.of(trace[0])


def test_training_without_dropout_is_found():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double()
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    with regard.capture(layer, values=True) as trace, Around(layer) as around:
        out = layer(given)
    near = around.of(trace[0])
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
        with pytest.raises(RuntimeError), regard.capture(model, values=True), Around(model):
            model(given[..., :3])
        assert torch.equal(state, torch.get_rng_state())
        assert torch.equal(plain, model(given))
    assert hooks(model) == before and model.training == training


def test_watching_changes_nothing_in_other_models():
    loaded = packaged.minilm()
    inputs = loaded.encode("see that girl run").inputs
    with torch.no_grad():
        plain = loaded.model(**inputs).last_hidden_state
        with Around(loaded.model):
            seen = loaded.model(**inputs).last_hidden_state
    assert torch.equal(plain, seen)


def test_several_passes():
    model = encoder(norm_first=True)
    first, second = (torch.randn(2, size, 16, dtype=torch.float64) for size in (5, 7))
    with torch.no_grad(), regard.capture(model, values=True) as trace, Around(model) as around:
        model(first)
        model(second)
    for step, given in zip(trace.steps, (first, second), strict=True):
        torch.testing.assert_close(around.of(step[0]).residual, given)


@pytest.mark.parametrize(
    ("dtype", "slack"), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.bfloat16, 0.05)]
)
def test_the_real_minilm(dtype, slack):
    """Vectors and bias sum to what the attention's projection gives, and its layer norm after."""
    loaded = packaged.minilm()
    model = loaded.model if dtype == torch.float32 else copy.deepcopy(loaded.model).to(dtype)
    given = loaded.tokenizer(
        ["The animal didn't cross the street because it was too tired.", "see that girl run"],
        return_tensors="pt",
        padding=True,
    )
    trace, around = watched(model, **given)
    for layer in (0, 5):
        place = f"encoder.layer.{layer}.attention.output"
        record = trace[f"encoder.layer.{layer}.attention.self"]
        near = around.of(record)
        assert near.norm is model.get_submodule(f"{place}.LayerNorm")
        for include, part in (("attention", "dense"), ("norm", "LayerNorm")):
            truth = seen_at(model, f"{place}.{part}", "output", **given)[0].to(record.dtype)
            found = contributions(record, near, include)
            torch.testing.assert_close(total(found), truth, atol=slack, rtol=slack)


def test_the_real_albert_calls_one_layer_twelve_times():
    loaded = packaged.rxnmapper()
    inputs = loaded.encode("CCO.CC(=O)O>>CCOC(C)=O").inputs
    truth = seen_at(
        loaded.model,
        "encoder.albert_layer_groups.0.albert_layers.0.attention.LayerNorm",
        "output",
        **inputs,
    )
    trace, around = watched(loaded.model, **inputs)
    assert len(trace) == len(truth) == 12
    for record, given in zip(trace, truth, strict=True):
        found = contributions(record, around.of(record))
        torch.testing.assert_close(total(found), given, atol=1e-5, rtol=0)


def test_left_padding_of_a_causal_model():
    """Queries of padding attend to nothing; a model gives for them what it likes."""
    model, _, place, side = family("Llama")
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    inputs = {"input_ids": IDS, "attention_mask": mask}
    truth = seen_at(model, place, side, **inputs)[0]
    trace, around = watched(model, **inputs)
    found = total(contributions(trace[0], around.of(trace[0])))
    torch.testing.assert_close(found[mask.bool()], truth[mask.bool()], atol=1e-10, rtol=0)


class Plain(nn.Module):
    """The norm of the annotated transformer: divided by the standard deviation of a sample."""

    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x):
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (deviation + 1e-6) + self.shift


@pytest.mark.parametrize("width", [8, 7])
@pytest.mark.parametrize(
    "norm", [nn.LayerNorm, nn.RMSNorm, Plain, lambda width: nn.LayerNorm(width, bias=False)]
)
def test_any_norm_is_made_linear(norm, width):
    torch.manual_seed(0)
    norm = stirred(norm(width))
    given = torch.randn(2, 5, width, dtype=torch.float64) * 3 + 1
    found = linear_norm(norm, given)
    truth = norm(given).detach()
    torch.testing.assert_close(found.whole(given), truth, atol=1e-10, rtol=0)
    parts = torch.randn(4, 2, 5, width, dtype=torch.float64)
    parts = torch.cat([parts, (given - parts.sum(0))[None]])
    summed = (found.part(parts) * found.scale[..., None]).sum(0) + found.shift
    torch.testing.assert_close(summed, truth, atol=1e-10, rtol=0)
    assert found.centred == (not isinstance(norm, nn.RMSNorm))


def test_a_norm_of_the_branch_and_one_of_the_sum():
    model = encoder(norm_first=False, layers=1)
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, around = watched(model, given)
    branch, norm = stirred(nn.LayerNorm(16)), stirred(nn.RMSNorm(16))
    near = replace(around.of(trace[0]), branch=branch, norm=norm)
    attended = model.layers[0].self_attn(given, given, given)[0]
    for include, truth in (
        ("attention", attended),
        ("residual", given + branch(attended)),
        ("norm", norm(given + branch(attended))),
    ):
        found = contributions(trace[0], near, include)
        torch.testing.assert_close(total(found), truth.detach(), atol=1e-10, rtol=0)


def test_what_is_no_norm_is_refused():
    given = torch.randn(2, 5, 8)
    with pytest.raises(UnavailableError, match=r"GELU.*cannot be made linear"):
        linear_norm(nn.GELU(), given)


def test_what_is_wrong_is_said():
    model = encoder(norm_first=False)
    given = torch.randn(2, 5, 16, dtype=torch.float64)
    trace, _ = watched(model, given)
    records = list(trace)
    with pytest.raises(RegardError, match=r"this needs the residual stream: run the model inside"):
        surroundings_of(model, records, stream=True)
    with pytest.raises(RegardError, match=r"None is given for 'layers.0.self_attn', expected Surr"):
        surroundings_of({}, records, stream=False)
    with pytest.raises(UnavailableError, match="nothing was seen to enter it; run the model"):
        Around(model).of(records[0])
    weight = torch.zeros(16, 12, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"takes 12 features, expected 4 heads × 4 = 16"):
        surroundings_of(Surroundings(weight), records, stream=False)
    short = Surroundings(torch.zeros(16, 16), residual=torch.zeros(2, 4, 16))
    with pytest.raises(ShapeError, match=r"stream is \(2, 4, 16\), expected \(2, 5, 16\)"):
        surroundings_of(short, records, stream=True)
    with torch.no_grad(), regard.capture(model) as trace:
        model(given)
    with pytest.raises(UnavailableError, match=r"its values are not held.*values=True"):
        surroundings_of(model, list(trace), stream=False)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_source_of_another_kind():
    trace, _ = watched(encoder(norm_first=False), torch.randn(1, 5, 16, dtype=torch.float64))
    with pytest.raises(RegardError, match="around is a int, expected the model, an Around"):
        surroundings_of(3, list(trace), stream=False)
    with pytest.raises(RegardError, match=r"Around: str, expected an nn\.Module"):
        Around("model")


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
