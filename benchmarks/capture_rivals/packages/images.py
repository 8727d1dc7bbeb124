"""Detection, matching, segmentation, diffusion and image–text models."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from .absent import imported
from .target import Target
from .truth import Run, each

SAME = "b h q k -> b h q k"
FOLDED = "(b h) q k -> b h q k"
ULTRA, MONAI, DIFFUSERS, CLIP = "ultralytics", "monai", "diffusers", "open_clip_torch"


def module(path: str, shape: tuple[int, ...], *args: Any, **settings: Any):
    def build():
        return imported(path)(*args, **settings), (torch.randn(*shape),), {}

    return build


# matching


class LightGlueLayers(nn.Module):
    """The layers of LightGlue, on descriptors and positions of two images."""

    def __init__(self) -> None:
        super().__init__()
        glue = imported("kornia.feature.lightglue")
        self.positions = glue.LearnableFourierPositionalEncoding(2, 8, 8)
        self.layers = nn.ModuleList(glue.TransformerLayer(24, 3) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor, at_x: Tensor, at_y: Tensor) -> Any:
        places = self.positions(at_x), self.positions(at_y)
        for layer in self.layers:
            x, y = layer(x, y, *places)
        return x, y


def lightglue():
    sizes = (2, 7, 24), (2, 5, 24), (2, 7, 2), (2, 5, 2)
    return LightGlueLayers(), tuple(torch.randn(*size) for size in sizes), {}


def loftr(kind: str):
    def build():
        model = imported("kornia.feature.loftr.loftr_module:LocalFeatureTransformer")(
            {"d_model": 24, "nhead": 3, "attention": kind, "layer_names": ["self", "cross"]}
        )
        return model, (torch.randn(2, 7, 24), torch.randn(2, 5, 24)), {}

    return build


def spatial_argmax():
    """Coordinates under a heat map."""

    class SoftArgmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return imported("kornia.geometry.subpix:spatial_soft_argmax2d")(x)

    return SoftArgmax(), (torch.randn(2, 3, 5, 7),), {}


# segmentation


def manet(run: Run) -> list[Tensor]:
    """One softmax over all pairs of positions."""
    return [rearrange(w, "b (q k) -> b 1 q k", q=20) for w in run.weights]


def unetr():
    model = imported("monai.networks.nets:UNETR")(
        in_channels=1, out_channels=2, img_size=(32, 32, 16), feature_size=4, hidden_size=24,
        mlp_dim=32, num_heads=3)  # fmt: skip
    return model, (torch.randn(2, 1, 32, 32, 16),), {}


def swin_unetr():
    model = imported("monai.networks.nets:SwinUNETR")(
        in_channels=1, out_channels=2, depths=(2, 1, 1, 1), num_heads=(3, 3, 6, 6), feature_size=12,
        window_size=4)  # fmt: skip
    return model, (torch.randn(1, 1, 64, 32, 32),), {}


def instances():
    """The attention of MONAI's MILModel; its backbone would come from torchvision."""
    milmodel = imported("monai.networks.nets.milmodel")
    model = milmodel.MILModel.__new__(milmodel.MILModel)
    nn.Module.__init__(model)
    model.mil_mode, model.transformer, model.net = "att", None, nn.Flatten()
    model.attention = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
    model.myfc = nn.Linear(12, 2)
    return model, (torch.randn(5, 7, 3, 2, 2),), {}


# diffusion


def unet(slices: bool = False, plain: bool = False):
    def build():
        model = imported("diffusers.models.unets.unet_2d_condition:UNet2DConditionModel")(
            sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
            block_out_channels=(24, 36), norm_num_groups=6, cross_attention_dim=20,
            attention_head_dim=(3, 3), down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))  # fmt: skip
        if slices:
            model.set_attention_slice(1)
        if plain:
            model.set_attn_processor(
                imported("diffusers.models.attention_processor:AttnProcessor")()
            )
        return model, (torch.randn(2, 4, 8, 8), 10, torch.randn(2, 7, 20)), {"return_dict": False}

    return build


def sd3():
    model = imported("diffusers.models.transformers.transformer_sd3:SD3Transformer2DModel")(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=3, joint_attention_dim=20, caption_projection_dim=24,
        pooled_projection_dim=16, out_channels=4)  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(2, 4, 8, 8), "encoder_hidden_states": torch.randn(2, 7, 20),
        "pooled_projections": torch.randn(2, 16), "timestep": torch.tensor([3, 5]),
        "return_dict": False}  # fmt: skip
    return model, (), inputs


def autoencoder():
    model = imported("diffusers.models.autoencoders.autoencoder_kl:AutoencoderKL")(
        block_out_channels=(12,), norm_num_groups=6, layers_per_block=1, sample_size=8)  # fmt: skip
    return model, (torch.randn(2, 3, 8, 6),), {"return_dict": False}


# image and text


def clip(**vision: Any):
    def build():
        module = imported("open_clip.model")
        model = module.CLIP(
            16,
            {"layers": 2, "width": 24, "head_width": 8, "image_size": 32, "patch_size": 8} | vision,
            {"context_length": 7, "vocab_size": 50, "width": 36, "heads": 4, "layers": 2},
        )
        return model, (torch.randn(2, 3, 32, 32), torch.randint(50, (2, 7))), {}

    return build


def coca_pooler():
    model = imported("open_clip.transformer:AttentionalPooler")(12, 24, n_head=3, n_queries=5)
    return model, (torch.randn(2, 7, 24),), {}


TARGETS = [
    Target("LightGlue", "kornia", lightglue, each(SAME), ("self", "self", "cross", "cross") * 2),
    Target("LoFTR, full attention", "kornia", loftr("full"), each("b q k h -> b h q k"),
           ("self", "self", "cross", "cross")),
    Target("LoFTR, linear attention", "kornia", loftr("linear")),
    Target("spatial_soft_argmax2d", "kornia", spatial_argmax),
    Target("MAnet attention, one softmax over the map", "segmentation-models-pytorch", module(
        "segmentation_models_pytorch.decoders.manet.decoder:PABBlock", (2, 12, 4, 5), 12, 6),
        manet, "self"),
    Target("UNETR", MONAI, unetr, each(SAME), "self"),
    Target("SwinUNETR", MONAI, swin_unetr, each(SAME), "self"),
    Target("MILModel attention", MONAI, instances, each("b k 1 -> b 1 1 k")),
    Target("CABlock, attention of channels", MONAI, module(
        "monai.networks.blocks.cablock:CABlock", (2, 24, 4, 5), 2, 24, 3, False),
        each(SAME), "self"),
    Target("SABlock with relative positions", MONAI, module(
        "monai.networks.blocks.selfattention:SABlock", (2, 20, 24), 24, 3,
        rel_pos_embedding="decomposed", input_size=(4, 5)), each(SAME), "self"),
    Target("PSA attention", ULTRA, module(
        "ultralytics.nn.modules.block:Attention", (2, 24, 4, 5), 24, num_heads=3),
        each(SAME), "self"),
    Target("AAttn, areas as batch", ULTRA, module(
        "ultralytics.nn.modules.block:AAttn", (2, 24, 4, 6), 24, 3, 4), each(SAME), "self"),
    Target("DFL", ULTRA, module("ultralytics.nn.modules.block:DFL", (2, 64, 7))),
    Target("UNet2DConditionModel", DIFFUSERS, unet(), each(SAME), None, quick=True),
    Target("UNet2DConditionModel, plain processor", DIFFUSERS, unet(plain=True),
           each(FOLDED, h=3), None),
    Target("UNet2DConditionModel, sliced attention", DIFFUSERS, unet(slices=True),
           each("1 q k -> 1 1 q k"), None),
    Target("SD3Transformer2DModel", DIFFUSERS, sd3, each(SAME), None),
    Target("AutoencoderKL", DIFFUSERS, autoencoder, each(SAME), "self"),
    Target("CLIP", CLIP, clip(), each(SAME), "self"),
    Target("CLIP with an attentional pooler", CLIP, clip(
        attentional_pool=True, attn_pooler_queries=5, attn_pooler_heads=4), each(SAME), None),
    Target("AttentionalPooler", CLIP, coca_pooler, each(SAME), "cross"),
]  # fmt: skip
