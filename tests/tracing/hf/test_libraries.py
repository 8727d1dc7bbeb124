"""Other libraries of models, as they come: x-transformers, vit-pytorch, timm, diffusers; LLaVA."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import transformers as hf
from examine import output_error, same
from tiny import randomise
from torch import nn
from torchvision_stub import imported
from truth import eager_weights

import regard

x_transformers = imported("x_transformers")
vit_pytorch = imported("vit_pytorch")
timm = imported("timm")
diffusers = imported("diffusers")

BATCH, LENGTH = 2, 12


def captured(model: nn.Module, *args, **given):
    """The trace of one run; nothing changed, and weights times values are the output."""
    with torch.no_grad():
        plain = model(*args, **given)
        with regard.capture(model, values=True, outputs=True) as trace:
            watched = model(*args, **given)
    assert same(plain, watched)
    assert not trace.notes
    for record in trace:
        error = output_error(record)
        assert error is not None and error < 1e-5, record
        if record.kind == "distribution":
            sums = record.weights().sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums))
    return trace


def ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(5, 99, (BATCH, length), generator=torch.Generator().manual_seed(1))


def image(size: int = 32) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(1))


# x-transformers: its own way of returning weights is the truth


def x_model(flash: bool, **more) -> nn.Module:
    torch.manual_seed(0)
    layers = x_transformers.Decoder(dim=64, depth=2, heads=4, attn_flash=flash, **more)
    model = x_transformers.TransformerWrapper(num_tokens=99, max_seq_len=32, attn_layers=layers)
    randomise(model)
    return model.eval()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"rotary_pos_emb": True},
        {"alibi_pos_bias": True},
        {"attn_kv_heads": 2},
        {"attn_qk_norm": True},
    ],
    ids=["plain", "rotary", "alibi", "grouped", "normalised"],
)
@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
def test_x_transformers(flash, more):
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[1, -4:] = False
    trace = captured(x_model(flash, **more), ids(), mask=mask)
    assert len(trace) == 2
    with torch.no_grad():
        _, want = x_model(False, **more)(ids(), mask=mask, return_attn=True)
    for record, true in zip(trace, want, strict=True):
        torch.testing.assert_close(record.weights(), true, atol=1e-5, rtol=0)


def test_x_transformers_encoder_and_decoder():
    torch.manual_seed(0)
    model = x_transformers.XTransformer(
        dim=64,
        enc_num_tokens=99,
        enc_depth=2,
        enc_heads=4,
        enc_max_seq_len=32,
        dec_num_tokens=99,
        dec_depth=2,
        dec_heads=4,
        dec_max_seq_len=32,
    ).eval()
    randomise(model)
    trace = captured(model, ids(), ids(8))
    assert [record.attends for record in trace] == [
        "self",
        "self",
        "self",
        "cross",
        "self",
        "cross",
    ]


# vit-pytorch: a Recorder of its own


def test_vit_pytorch():
    from vit_pytorch.recorder import Recorder

    torch.manual_seed(0)
    model = vit_pytorch.ViT(
        image_size=32, patch_size=8, num_classes=5, dim=64, depth=2, heads=4, mlp_dim=96
    ).eval()
    randomise(model)
    trace = captured(model, image())
    with torch.no_grad():
        _, want = Recorder(model)(image())  # (batch, layer, head, query, key)
    assert len(trace) == 2
    for record, true in zip(trace, want.unbind(1), strict=True):
        torch.testing.assert_close(record.weights(), true, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "sites", "kind"),
    [
        ("simple_vit", 2, "distribution"),
        ("cross_vit", 6, "distribution"),
        ("cait", 4, "signed"),  # talking heads: a parameter mixes the maps after the softmax
    ],
)
def test_other_models_of_vit_pytorch(name, sites, kind):
    torch.manual_seed(0)
    common = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 64, "heads": 4}
    if name == "simple_vit":
        model = vit_pytorch.SimpleViT(**common, depth=2, mlp_dim=96)
    elif name == "cait":
        model = imported("vit_pytorch.cait").CaiT(**common, depth=2, cls_depth=2, mlp_dim=96)
    else:
        model = imported("vit_pytorch.cross_vit").CrossViT(
            image_size=32, num_classes=5, depth=1, sm_patch_size=4, lg_patch_size=8,
            sm_dim=32, lg_dim=64, sm_enc_depth=1, lg_enc_depth=1, cross_attn_depth=2,
        )  # fmt: skip
    randomise(model)
    trace = captured(model.eval(), image())
    assert [record.kind for record in trace] == [kind] * sites


def test_attention_that_is_normalised_anew():
    """DeepViT mixes its heads and puts a layer norm between its weights and the values."""
    torch.manual_seed(0)
    model = (
        imported("vit_pytorch.deepvit")
        .DeepViT(image_size=32, patch_size=8, num_classes=5, dim=64, heads=4, depth=2, mlp_dim=96)
        .eval()
    )
    truth = []
    handles = [
        layer[0].reattn_norm.register_forward_hook(lambda _, __, out: truth.append(out))
        for layer in model.transformer.layers
    ]
    with torch.no_grad():
        model(image())
        for handle in handles:
            handle.remove()
        trace = regard.trace(model, image())
    assert trace.names() == [f"transformer.layers.{i}.0" for i in range(2)]
    assert [record.kind for record in trace] == ["signed", "signed"]
    torch.testing.assert_close([record.weights() for record in trace], truth)


# timm: weights from the unfused form of the same module


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
        ("deit_tiny_distilled_patch16_224", {"img_size": 64, "depth": 2}),
        ("eva02_tiny_patch14_224", {"img_size": 56, "depth": 2}),
        ("beit_base_patch16_224", {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4}),
        ("swin_tiny_patch4_window7_224", {"img_size": 56, "depths": (1, 1), "num_heads": (3, 6)}),
        ("cait_xxs24_224", {"img_size": 64, "depth": 2}),
        (
            "vit_base_patch16_siglip_224",
            {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4},
        ),
    ],
)
def test_timm(name, options):
    torch.manual_seed(0)
    model = timm.create_model(name, **options).eval()
    randomise(model)
    given = image(options["img_size"])
    with torch.no_grad():
        plain = model(given)
        with regard.capture(model, values=True, outputs=True) as trace:
            watched = model(given)
        assert torch.equal(plain, watched)
        switches = [module for module in model.modules() if hasattr(module, "fused_attn")]
        for module in switches:
            module.fused_attn = False
        unfused = regard.trace(model, given)
    assert len(trace) == len(unfused) >= 2
    assert trace.names() == unfused.names()
    for fused, true in zip(trace, unfused):
        torch.testing.assert_close(fused.weights(), true.weights(), atol=1e-5, rtol=0)
        error = output_error(fused)
        assert error is None or error < 1e-5


def with_cbam():
    """A small ResNet whose blocks have a CBAM each."""
    resnet, cbam = (imported(f"timm.{name}") for name in ("models.resnet", "layers.cbam"))
    settings = {"attn_layer": cbam.CbamModule}
    return resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), channels=(16,) * 4, block_args=settings)


@pytest.mark.parametrize(
    ("name", "channel", "spatial"),
    [
        ("lcnet_050", 2, 0),  # squeeze-and-excitation, hard sigmoid
        ("mobilenetv3_small_050", 9, 0),
        ("ese_vovnet19b_slim_dw", 4, 0),  # effective squeeze-and-excitation
        ("eca_resnext26ts", 8, 0),  # efficient channel attention
        ("with_cbam", 4, 4),
        ("mobilenetv2_035", 0, 0),
        ("resnet10t", 0, 0),
    ],
)
def test_timm_gates(name, channel, spatial):
    """Gates are what the modules named so put out, at a size where some have one position."""
    torch.manual_seed(0)
    model = (with_cbam() if name == "with_cbam" else timm.create_model(name)).eval()
    randomise(model)
    truth = []
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == "gate":
            site = path.rpartition(".")[0]
            module.register_forward_hook(lambda _, __, out, site=site: truth.append((site, out)))
    given = torch.randn(BATCH, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", regard.CaptureWarning)  # of a model without any
        plain = model(given)
        truth.clear()
        with regard.capture(model, gates=True) as trace:
            assert torch.equal(model(given), plain)
    grids = [record.recipe.grid for record in trace]
    assert [grids.count(None), len(grids) - grids.count(None)] == [channel, spatial]
    assert trace.names() == [site for site, _ in truth]
    for record, (_, gate) in zip(trace, truth, strict=True):
        assert record.kind == "gate"
        assert torch.equal(record.weights(), gate.reshape(BATCH, 1, 1, -1))


# a picture in a text


def test_llava():
    """A tower of vision, a projector, and a language model that reads both."""
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(
            **size, intermediate_size=96, image_size=32, patch_size=8
        ),
        text_config=hf.LlamaConfig(
            **size, intermediate_size=96, vocab_size=99, num_key_value_heads=2
        ),
        image_token_index=98,
    )
    torch.manual_seed(0)
    model = hf.LlavaForConditionalGeneration(config).eval()
    randomise(model)
    text = ids().clamp_max(97)
    text = torch.cat([text[:, :3], torch.full((BATCH, 16), 98), text[:, 3:]], 1)
    given = {"input_ids": text, "pixel_values": image()}
    trace = captured(model, **given)
    twin = type(model)._from_config(config, attn_implementation="eager").eval()
    twin.load_state_dict(model.state_dict())
    want = eager_weights(twin, given)
    assert trace.names() == [name for name, _ in want]
    assert len(want) == 4
    for record, (_, true) in zip(trace, want):
        torch.testing.assert_close(record.weights(), true, atol=1e-5, rtol=0)


# diffusion


def test_a_diffusion_transformer_block():
    """Self- and cross-attention of Stable Diffusion's block; truth: diffusers' own scores."""
    block = imported("diffusers.models.attention").BasicTransformerBlock(
        dim=64, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=32
    )
    torch.manual_seed(0)
    randomise(block)
    block.eval()
    state, text = torch.randn(BATCH, 16, 64), torch.randn(BATCH, 7, 32)
    trace = captured(block, state, encoder_hidden_states=text)
    assert trace.names() == ["attn1", "attn2"]
    assert [record.attends for record in trace] == ["self", "cross"]
    seen = {}
    for name in ("attn1", "attn2"):
        getattr(block, name).register_forward_pre_hook(
            lambda module, args, named, name=name: seen.update({name: (args, named)}),
            with_kwargs=True,
        )
    with torch.no_grad():
        block(state, encoder_hidden_states=text)
        for record in trace:
            module = getattr(block, record.name)
            args, named = seen[record.name]
            hidden = args[0] if args else named["hidden_states"]
            other = named.get("encoder_hidden_states")
            query = module.head_to_batch_dim(module.to_q(hidden))
            key = module.head_to_batch_dim(module.to_k(hidden if other is None else other))
            want = module.get_attention_scores(query, key).unflatten(0, (BATCH, 4))
            torch.testing.assert_close(record.weights(), want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("processor", ["AttnProcessor", "AttnProcessor2_0"])
def test_a_diffusion_unet(processor):
    """The whole network: convolutions around attention, text on the side."""
    torch.manual_seed(0)
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()
    chosen = getattr(imported("diffusers.models.attention_processor"), processor)
    model.set_attn_processor(chosen())
    given = (torch.randn(1, 4, 8, 8), torch.tensor([10]), torch.randn(1, 7, 32))
    trace = captured(model, *given)
    names = {name for name, module in model.named_modules() if type(module).__name__ == "Attention"}
    assert set(trace.names()) == names and len(trace) == len(names) == 8
    for record in trace:
        assert record.attends == ("self" if record.name.endswith("attn1") else "cross")


def test_hand_written_cross_attention_with_convolutions():
    """As in the first latent diffusion code: projections are 1 × 1 convolutions."""

    class Spatial(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)
            self.v, self.out = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

        def forward(self, x):
            b, c, h, w = x.shape
            q, k, v = (f(x).reshape(b, c, h * w) for f in (self.q, self.k, self.v))
            scores = torch.einsum("bci,bcj->bij", q, k) / math.sqrt(c)
            weights = scores.softmax(2)
            self.weights = weights
            return x + self.out(torch.einsum("bij,bcj->bci", weights, v).reshape(b, c, h, w))

    torch.manual_seed(0)
    model = Spatial()
    with torch.no_grad():
        trace = regard.trace(model, torch.randn(2, 16, 4, 4))
    assert len(trace) == 1
    torch.testing.assert_close(trace[0].weights(), model.weights[:, None])
