"""timm: one target for each way in which its families spell attention.

Windows are a batch of their own: a window attends to itself alone.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from .target import Target
from .truth import Run, each

TIMM = "timm"
SAME = "b h q k -> b h q k"


def model(path: str, image: tuple[int, ...] = (32, 32), batch: int = 2, **settings: Any):
    """`module.Class` of timm.models, on images."""

    def build():
        from torchvision_stub import imported

        imported("timm")
        module, name = path.split(".")
        made = getattr(imported(f"timm.models.{module}"), name)(num_classes=11, **settings)
        return made, (torch.randn(batch, 3, *image),), {}

    return build


def layer(path: str, shape: tuple[int, ...], *args: Any, **settings: Any):
    """`module.Class` of timm, on features."""

    def build():
        from torchvision_stub import imported

        imported("timm")
        module, name = path.rsplit(".", 1)
        made = getattr(imported(f"timm.{module}"), name)(*args, **settings)
        return made, (torch.randn(*shape),), {}

    return build


def convit(run: Run) -> list[Tensor]:
    """Gated positional attention: two softmaxes, mixed by a gate for each head."""
    sites, weights = [], list(run.weights)
    for block in run.model.blocks:
        if type(block.attn).__name__ == "MHSA":
            sites.append(weights.pop(0))
            continue
        gate = torch.sigmoid(block.attn.gating_param).view(1, -1, 1, 1)
        mixed = (1 - gate) * weights.pop(0) + gate * weights.pop(0)
        sites.append(mixed / mixed.sum(-1, keepdim=True))
    return [site.detach() for site in sites]


def cait(run: Run) -> list[Tensor | dict[str, Tensor]]:
    """Talking heads: the softmax of each head, then a linear map over heads."""
    sites: list[Tensor | dict[str, Tensor]] = []
    for block, weights in zip(run.model.blocks, run.weights):
        mixed = block.attn.proj_w(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).detach()
        sites.append({"after mixing heads": mixed, "before mixing heads": weights})
    return sites + run.weights[len(sites) :]


def maxvit():
    """Blocks of neighbours, then a grid over the whole image."""
    from torchvision_stub import imported

    imported("timm")
    module = imported("timm.models.maxxvit")
    config = module.MaxxVitTransformerCfg(dim_head=8, window_size=(2, 4), grid_size=(4, 2))
    parts = [module.PartitionAttentionCl(24, kind, config) for kind in ("block", "grid")]
    return torch.nn.Sequential(*parts), (torch.randn(2, 8, 12, 24),), {}


def coat():
    from torchvision_stub import imported

    imported("timm")
    module = imported("timm.models.coat")
    positions = module.ConvRelPosEnc(8, 3, 3)
    model = module.FactorAttnConvRelPosEnc(24, num_heads=3, shared_crpe=positions)
    return model, (torch.randn(2, 21, 24),), {"size": (4, 5)}


def unfused():
    model, args, kwargs = layer(
        "layers.diff_attention.DiffAttention", (2, 7, 30), 30, num_heads=5)()  # fmt: skip
    model.fused_attn = False
    return model, args, kwargs


def efficientformer_v2(run: Run) -> list[Tensor | dict[str, Tensor]]:
    attentions = [m for m in run.model.modules() if hasattr(m, "attention_biases")]
    sites: list[Tensor | dict[str, Tensor]] = []
    for attention, weights in zip(attentions, run.weights, strict=True):
        if not hasattr(attention, "talking_head2"):
            sites.append(weights)
            continue
        mixed = attention.talking_head2(weights).detach()
        sites.append({"after mixing heads": mixed, "before mixing heads": weights})
    return sites


def differential(run: Run) -> list[Tensor]:
    """One map: the first softmax less λ times the second."""
    (weights,) = run.weights
    first, second = rearrange(weights, "b (h two) q k -> two b h q k", two=2)
    return [(first - run.model._compute_lambda() * second).detach()]


def windows(pattern: str):
    """Windows with an axis of their own, where there are any; other sites as they are."""
    return lambda run: [w if w.dim() == 4 else rearrange(w, pattern) for w in run.weights]


def mvit():
    from torchvision_stub import imported

    imported("timm")
    module = imported("timm.models.mvitv2")
    config = module.MultiScaleVitCfg(
        depths=(1, 1), embed_dim=(12, 24), num_heads=(3, 4), stride_q=((1, 1), (2, 2)))  # fmt: skip
    model = module.MultiScaleVit(config, img_size=(64, 64), num_classes=11)
    return model, (torch.randn(2, 3, 64, 64),), {}


TARGETS = [
    Target("SwinTransformer", TIMM, model(
        "swin_transformer.SwinTransformer", (40, 40), img_size=40, patch_size=2, window_size=5,
        embed_dim=24, depths=(2, 2), num_heads=(3, 4)), each(SAME), "self"),
    Target("SwinTransformerV2", TIMM, model(
        "swin_transformer_v2.SwinTransformerV2", (40, 40), img_size=40, patch_size=2, window_size=5,
        embed_dim=24, depths=(2, 2), num_heads=(3, 4)), each(SAME), "self"),
    Target("MaxViT blocks and grids", TIMM, maxvit, each(SAME), "self"),
    Target("XCiT", TIMM, model(
        "xcit.Xcit", (32, 48), img_size=(32, 48), patch_size=8, embed_dim=32, depth=2, num_heads=4,
        cls_attn_layers=1), each(SAME), "self"),
    Target("CaiT", TIMM, model(
        "cait.Cait", (32, 48), img_size=(32, 48), patch_size=8, embed_dim=30, depth=2, num_heads=5),
        cait, "self"),
    Target("MViTv2", TIMM, mvit, each(SAME), "self"),
    Target("Hiera", TIMM, model(
        "hiera.Hiera", (64, 64), img_size=(64, 64), embed_dim=12, num_heads=3, stages=(2, 1),
        q_pool=1, mask_unit_size=(4, 4), mask_unit_attn=(True, False)),
        windows("b h w q k -> (b w) h q k"), "self"),
    Target("EVA-02 with rotary positions", TIMM, model(
        "eva.Eva", (32, 40), img_size=(32, 40), patch_size=8, embed_dim=48, depth=2, num_heads=3,
        use_rot_pos_emb=True), each(SAME), "self"),
    Target("BEiT with relative bias", TIMM, model(
        "beit.Beit", (32, 40), img_size=(32, 40), patch_size=8, embed_dim=30, depth=2, num_heads=5,
        use_abs_pos_emb=False, use_rel_pos_bias=True), each(SAME), "self"),
    Target("LeViT with strided queries", TIMM, model(
        "levit.Levit", (64, 96), img_size=(64, 96), embed_dim=(32, 48), key_dim=8, depth=(1, 1),
        num_heads=(3, 5)), each(SAME), "self"),
    Target("LeViT of convolutions", TIMM, model(
        "levit.Levit", (64, 96), img_size=(64, 96), embed_dim=(32, 48), key_dim=8, depth=(1, 1),
        num_heads=(3, 5), use_conv=True), each(SAME), "self"),
    Target("NesT", TIMM, model(
        "nest.Nest", (32, 32), img_size=32, patch_size=4, num_levels=2, embed_dims=(24, 40),
        num_heads=(3, 5), depths=(1, 1)), windows("b h w q k -> (b w) h q k"), "self"),
    Target("Twins-SVT", TIMM, model(
        "twins.Twins", (48, 32), img_size=(48, 32), patch_size=4, embed_dims=(24, 40),
        depths=(2, 2), num_heads=(3, 5), mlp_ratios=(2, 2), sr_ratios=(2, 1), wss=(4, 2)),
        windows("b w h q k -> (b w) h q k"), None),
    Target("VOLO outlook attention", TIMM, layer(
        "models.volo.OutlookAttention", (2, 8, 6, 24), 24, 3, kernel_size=3, padding=1, stride=2)),
    Target("VOLO class attention", TIMM, layer(
        "models.volo.ClassAttention", (2, 7, 24), 24, num_heads=3), each(SAME), "self"),
    Target("PVTv2", TIMM, model(
        "pvt_v2.PyramidVisionTransformerV2", (64, 96), embed_dims=(10, 15, 20, 30),
        depths=(1, 1, 1, 1), num_heads=(1, 3, 4, 5), sr_ratios=(8, 4, 2, 1),
        mlp_ratios=(2, 2, 2, 2)), each(SAME), None),
    Target("BotNet attention", TIMM, layer(
        "layers.bottleneck_attn.BottleneckAttn", (2, 24, 4, 5), 24, feat_size=(4, 5), num_heads=3),
        each("(b h) q k -> b h q k", h=3), "self"),
    Target("HaloNet attention", TIMM, layer(
        "layers.halo_attn.HaloAttn", (2, 24, 8, 12), 24, num_heads=3, block_size=4, halo_size=1),
        each("(b h) w q k -> (b w) h q k", h=3), "self"),
    Target("LambdaLayer", TIMM, layer(
        "layers.lambda_layer.LambdaLayer", (2, 24, 4, 5), 24, feat_size=(4, 5), num_heads=3),
        each("b c k -> b 1 c k")),
    Target("CoaT factorised attention", TIMM, coat, each("b h k c -> b h c k")),
    Target("ConViT", TIMM, model(
        "convit.ConVit", (32, 32), img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3,
        local_up_to_layer=2), convit, "self"),
    Target("CrossViT", TIMM, model(
        "crossvit.CrossVit", (48, 48), img_size=48, img_scale=(1.0, 1.0), patch_size=(8, 12),
        embed_dim=(24, 40), depth=((1, 1, 0),), num_heads=(3, 5), mlp_ratio=(2.0, 2.0, 1.0)),
        each(SAME), None),
    Target("DaViT channel attention", TIMM, layer(
        "models.davit.ChannelAttention", (2, 7, 24), 24, num_heads=3), each(SAME), "self"),
    Target("GCViT", TIMM, model(
        "gcvit.GlobalContextVit", (64, 64), img_size=64, window_size=(4, 4, 2, 2),
        window_ratio=None, embed_dim=12, depths=(2, 2, 1, 1), num_heads=(1, 3, 3, 4)),
        each(SAME), None),
    Target("EfficientFormerV2", TIMM, model(
        "efficientformer_v2.EfficientFormerV2", (96, 96), img_size=96, depths=(1, 1, 1, 2),
        embed_dims=(12, 16, 24, 32), num_vit=1), efficientformer_v2, "self"),
    Target("DiffAttention", TIMM, layer(
        "layers.diff_attention.DiffAttention", (2, 7, 30), 30, num_heads=5), each(SAME), "self"),
    Target("DiffAttention, not fused", TIMM, unfused, differential, "self"),
    Target("MobileViTv2 separable attention", TIMM, layer(
        "models.mobilevit.LinearSelfAttention", (2, 24, 4, 7), 24), lambda run: [
            {"pixels as batch": rearrange(w, "b 1 p k -> (b p) 1 1 k"), "pixels as queries": w}
            for w in run.weights]),
    Target("TNT", TIMM, model(
        "tnt.TNT", (32, 48), img_size=(32, 48), patch_size=16, embed_dim=30, inner_dim=12, depth=2,
        num_heads_inner=3, num_heads_outer=5), each(SAME), "self"),
    Target("MultiQueryAttentionV2", TIMM, layer(
        "layers.attention2d.MultiQueryAttentionV2", (2, 24, 4, 5), 24, num_heads=3, key_dim=8,
        value_dim=8), each("b q h k -> b h q k"), "self"),
    Target("NonLocalAttn", TIMM, layer(
        "layers.non_local_attn.NonLocalAttn", (2, 24, 4, 5), 24), each("b q k -> b 1 q k"), "self"),
    Target("GlobalContext", TIMM, layer(
        "layers.global_context.GlobalContext", (2, 24, 4, 5), 24, use_attn=True),
        each("b 1 k -> b 1 1 k")),
    Target("SplitAttn (ResNeSt)", TIMM, layer(
        "layers.split_attn.SplitAttn", (2, 24, 4, 5), 24)),
    Target("SelectiveKernel (SKNet)", TIMM, layer(
        "layers.selective_kernel.SelectiveKernel", (2, 24, 4, 5), 24)),
]  # fmt: skip
