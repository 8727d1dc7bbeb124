"""Vision transformers of vit-pytorch. Windows that do not overlap are examples of the batch."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange

from .target import Target
from .truth import Run, each, listed


def vit(module: str, name: str, shape: tuple[int, ...], **settings: Any):
    """A model on two images of `shape`, without the channels."""

    def build():
        from torchvision_stub import imported

        model = getattr(imported(f"vit_pytorch.{module}"), name)(**settings)
        return model, (torch.randn(2, 3, *shape),), {}

    return build


PLAIN = each("b h q k -> b h q k")
SMALL = {"num_classes": 11, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 48}
HEAD = {"dim_head": 6}
PATCH = {"image_size": 24, "patch_size": 8}
IMAGE = (24, 24)


def mixed(name: str):
    """Heads that are mixed after the softmax: the softmax, or what meets the values."""

    def truth(run: Run) -> list[dict[str, torch.Tensor]]:
        layers = [m for m in run.model.modules() if hasattr(m, name)]
        sites = []
        for weights, layer in zip(run.weights, layers):
            after = torch.einsum("bhij,hg->bgij", weights, getattr(layer, name).detach())
            if name == "reattn_weights":
                after = layer.reattn_norm(after).detach()
            sites.append({"": weights, "mixed heads": after})
        return sites

    return truth


def depth_attention(weights: torch.Tensor) -> torch.Tensor:
    """Queries are streams (here without heads) of one token, keys are earlier layers."""
    return rearrange(weights, "s h l b n -> (b n) h s l")


SAMPLE = "vit_pytorch.ats_vit:batched_index_select"


def sampled_rows(run: Run) -> list[dict[str, torch.Tensor]]:
    """Some rows of the softmax are drawn, and only they meet the values."""
    rows = [c.weights for c in run.calls if c.function == SAMPLE and c.weights.dim() == 4]
    full = [c.weights for c in run.calls if c.function == "softmax"]
    return [{"": weights, "drawn rows": drawn} for weights, drawn in zip(full, rows)]


def navit():
    from torchvision_stub import imported

    model = imported("vit_pytorch.na_vit").NaViT(image_size=32, patch_size=8, **SMALL, **HEAD)
    first = [torch.randn(3, 16, 24), torch.randn(3, 8, 16)]
    return model, ([first, [torch.randn(3, 24, 24)]],), {}


def crossvit():
    from torchvision_stub import imported

    model = imported("vit_pytorch.cross_vit").CrossViT(
        image_size=24, num_classes=11, depth=1, sm_dim=20, lg_dim=24, sm_patch_size=6,
        sm_enc_depth=1, sm_enc_heads=4, sm_enc_mlp_dim=32, sm_enc_dim_head=6, lg_patch_size=8,
        lg_enc_depth=1, lg_enc_heads=3, lg_enc_mlp_dim=32, lg_enc_dim_head=6, cross_attn_depth=1,
        cross_attn_heads=5, cross_attn_dim_head=6,
    )  # fmt: skip
    return model, (torch.randn(2, 3, 24, 24),), {}


VIT = "vit-pytorch"
TARGETS = [
    Target(
        "ViT", VIT, vit("vit", "ViT", IMAGE, **PATCH, **SMALL, **HEAD), PLAIN, "self", quick=True
    ),
    Target(
        "SimpleViT, flash", VIT,
        vit("simple_flash_attn_vit", "SimpleViT", IMAGE, **PATCH, **SMALL, **HEAD), PLAIN, "self",
    ),
    Target(
        "CaiT", VIT, vit("cait", "CaiT", IMAGE, **PATCH, **SMALL, **HEAD, cls_depth=1),
        mixed("mix_heads_post_attn"), ("self", "self", None),
    ),
    Target(
        "DeepViT", VIT, vit("deepvit", "DeepViT", IMAGE, **PATCH, **SMALL, **HEAD),
        mixed("reattn_weights"), "self",
    ),
    Target(
        "XCiT", VIT, vit("xcit", "XCiT", IMAGE, **PATCH, **SMALL, **HEAD, cls_depth=1), PLAIN,
        (None, None, None),
    ),
    Target(
        "CCT", VIT,
        vit("cct", "CCT", IMAGE, img_size=24, embedding_dim=32, n_conv_layers=1, kernel_size=3,
            stride=2, padding=1, num_layers=2, num_heads=4, mlp_ratio=2.0, num_classes=11,
            positional_embedding="learnable"),
        listed("b h q k -> b h q k", "b h q k -> b h q k", "b k -> b 1 1 k"),
        ("self", "self", None),
    ),
    Target("CrossViT", VIT, crossvit, PLAIN),
    Target(
        "CvT", VIT,
        vit("cvt", "CvT", (48, 48), num_classes=11, s1_emb_dim=16, s1_heads=1, s2_emb_dim=24,
            s2_heads=3, s2_depth=1, s3_emb_dim=32, s3_heads=5, s3_depth=1),
        each("(b h) q k -> b h q k", b=2), "self",
    ),
    Target(
        "CrossFormer", VIT,
        vit("crossformer", "CrossFormer", (64, 64), num_classes=11, dim=(32, 32, 64, 96),
            depth=(1, 1, 1, 1), global_window_size=(4, 2, 2, 1), local_window_size=(4, 4, 2, 2)),
        PLAIN, "self",
    ),
    Target(
        "LeViT", VIT,
        vit("levit", "LeViT", (48, 48), image_size=48, num_classes=11, stages=2, dim=(32, 48),
            depth=1, heads=(4, 5), mlp_mult=2, dim_key=6, dim_value=10),
        PLAIN, "self",
    ),
    Target(
        "LookViT", VIT,
        vit("look_vit", "LookViT", IMAGE, image_size=24, num_classes=11, dim=32, depth=1, heads=4,
            dim_head=6, patch_size=8, highres_patch_size=6, cross_attn_heads=5,
            cross_attn_dim_head=6),
        PLAIN, (None, "self", None),
    ),
    Target(
        "MaxViT", VIT,
        vit("max_vit", "MaxViT", (32, 32), num_classes=11, dim=24, depth=(1,), dim_head=6,
            window_size=4),
        PLAIN, "self",
    ),
    Target(
        "MobileViT", VIT,
        vit("mobile_vit", "MobileViT", (64, 64), image_size=(64, 64), dims=[24, 28, 32],
            channels=[8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 48], num_classes=11, depths=(1, 1, 1)),
        each("b p h q k -> (b p) h q k"), "self",
    ),
    Target(
        "NesT", VIT,
        vit("nest", "NesT", (48, 48), image_size=48, patch_size=4, num_classes=11, dim=30, heads=3,
            num_hierarchies=2, block_repeats=(1, 1)),
        PLAIN, "self",
    ),
    Target(
        "RegionViT", VIT,
        vit("regionvit", "RegionViT", (64, 64), dim=(32, 32, 32, 64), depth=(1, 1, 1, 1),
            window_size=2, num_classes=11),
        PLAIN,
    ),
    Target(
        "ScalableViT", VIT,
        vit("scalable_vit", "ScalableViT", (32, 32), num_classes=11, dim=32, heads=(3, 5),
            depth=(1, 1), ssa_dim_key=(8, 8), reduction_factor=(4, 2), window_size=(4, None)),
        PLAIN, "self",
    ),
    Target(
        "SepViT", VIT,
        vit("sep_vit", "SepViT", (84, 56), num_classes=11, dim=24, dim_head=6, heads=(3,),
            depth=(1,), window_size=7),
        PLAIN, "self",
    ),
    Target(
        "Twins-SVT", VIT,
        vit("twins_svt", "TwinsSVT", (96, 96), num_classes=11, s1_emb_dim=16, s1_local_patch_size=4,
            s1_global_k=6, s2_emb_dim=16, s2_local_patch_size=3, s2_global_k=3, s3_emb_dim=24,
            s3_local_patch_size=3, s3_global_k=2, s3_depth=1, s4_emb_dim=24, s4_local_patch_size=3,
            s4_global_k=3, s4_depth=1),
        each("(b h) q k -> b h q k", h=8),
    ),
    Target(
        "ViViT, space then time", VIT,
        vit("vivit", "ViViT", (10, 24, 24), image_size=24, frames=10, image_patch_size=8,
            frame_patch_size=2, num_classes=11, dim=32, spatial_depth=1, temporal_depth=1, heads=4,
            mlp_dim=48, dim_head=6, use_flash_attn=False),
        PLAIN, "self",
    ),
    Target(
        "ViViT, factorised self-attention", VIT,
        vit("vivit", "ViViT", (10, 24, 24), image_size=24, frames=10, image_patch_size=8,
            frame_patch_size=2, num_classes=11, dim=32, spatial_depth=1, temporal_depth=1, heads=4,
            mlp_dim=48, dim_head=6, variant="factorized_self_attention"),
        PLAIN, "self",
    ),
    Target(
        "RvT", VIT, vit("rvt", "RvT", IMAGE, **PATCH, **SMALL, dim_head=12),
        each("(b h) q k -> b h q k", b=2), "self",
    ),
    Target(
        "PiT", VIT,
        vit("pit", "PiT", (40, 40), image_size=40, patch_size=8, num_classes=11, dim=32,
            depth=(1, 1), heads=4, mlp_dim=48, dim_head=6),
        PLAIN, "self",
    ),
    Target(
        "ViT, patch merger", VIT,
        vit("vit_with_patch_merger", "ViT", IMAGE, **PATCH, **SMALL, **HEAD, patch_merge_layer=1,
            patch_merge_num_tokens=5),
        listed("b h q k -> b h q k", "b q k -> b 1 q k", "b h q k -> b h q k"),
        ("self", None, "self"),
    ),
    Target(
        "ViT, small datasets", VIT,
        vit("vit_for_small_dataset", "ViT", IMAGE, **PATCH, **SMALL, **HEAD), PLAIN, "self",
    ),
    Target(
        "SimpleViT, attention over depth", VIT,
        vit("attn_residual_with_dca_simple_vit", "SimpleViT", IMAGE, **PATCH, **SMALL, **HEAD),
        listed(depth_attention, "b h q k -> b h q k"), (None, "self", None, "self"),
    ),
    Target(
        "ATS-ViT", VIT,
        vit("ats_vit", "ViT", IMAGE, **PATCH, **SMALL, **HEAD, max_tokens_per_depth=(7, 5)),
        sampled_rows, "self", (SAMPLE,),
    ),
    Target("NaViT", VIT, navit, PLAIN, ("self", "self", "cross")),
]  # fmt: skip
