"""Sequence models: efficient, local, recurrent and hierarchical attention."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange

from .target import Target
from .truth import Run, each, listed, scattered

PLAIN = each("b h q k -> b h q k")
MERGED = each("(b h) q k -> b h q k", b=2)
WORDS = (2, 9)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(1, 50, shape or WORDS)


# windows and buckets


def local_windows(length: int, size: int, back: int, ahead: int) -> torch.Tensor:
    """The keys (window, 1, slot) of windows that see their neighbours, −1 for padding."""
    starts = torch.arange(0, length, size)[:, None, None]
    keys = starts + torch.arange(-back * size, (1 + ahead) * size)
    return torch.where((keys < 0) | (keys >= length), -1, keys)


def local(length: int, size: int, back: int, ahead: int, heads: int):
    """Windows (batch × head, window, query, slot): scattered, or each window as an example."""

    def reading(weights: torch.Tensor) -> dict[str, torch.Tensor]:
        keys = local_windows(length, size, back, ahead).expand(-1, size, -1).flatten(0, 1)
        rows = rearrange(weights, "(b h) w i j -> b h (w i) j", h=heads)
        windows = rearrange(weights, "(b h) w i j -> (b w) h i j", h=heads)
        return {"": scattered(rows, keys, length), "windows": windows}

    return reading


def local_transformer():
    from local_attention import LocalTransformer

    model = LocalTransformer(
        num_tokens=50, dim=32, depth=2, heads=4, dim_head=8, max_seq_len=24, causal=True,
        local_attn_window_size=5, ff_mult=1,
    )  # fmt: skip
    return model, (words(2, 15),), {}


def sinkhorn():
    from sinkhorn_transformer import SinkhornTransformerLM

    model = SinkhornTransformerLM(
        num_tokens=50, dim=32, heads=4, depth=1, bucket_size=5, max_seq_len=15, causal=False
    )
    return model, (words(2, 15),), {}


def buckets(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Keys are mixtures of sorted buckets, so that there is no matrix over positions."""
    return {"windows": rearrange(weights, "(b h) u i j -> (b u) h i j", b=2)}


def routing():
    from routing_transformer import RoutingTransformerLM

    model = RoutingTransformerLM(
        num_tokens=50, dim=32, heads=4, depth=1, window_size=6, max_seq_len=18, causal=True
    )
    return model, (words(2, 18),), {}


def hashing(**settings: Any):
    def build():
        from reformer_pytorch import LSHSelfAttention

        model = LSHSelfAttention(dim=32, heads=4, bucket_size=4, n_hashes=3, **settings)
        return model, (torch.randn(2, 16, 32),), {}

    return build


def hashing_truth(run: Run) -> list[dict[str, torch.Tensor]]:
    """The package's own sum over hash rounds, or each bucket of a round by itself."""
    from reformer_pytorch import LSHSelfAttention

    torch.manual_seed(7)
    model = LSHSelfAttention(dim=32, heads=4, bucket_size=4, n_hashes=3, return_attn=True)
    model.load_state_dict(run.model.state_dict())
    weights: list[torch.Tensor] = []
    inner = model.lsh_attn.register_forward_hook(lambda _, __, out: weights.append(out[1]))
    torch.manual_seed(7)
    with torch.no_grad():
        model.eval()(*run.args)
    inner.remove()
    full = rearrange(weights[0], "(b h) q k -> b h q k", b=2)
    chunks = next(call.weights for call in run.calls if call.function == "torch:exp")
    return [{"": full, "buckets": rearrange(chunks, "(b h) c i j -> (b c) h i j", b=2)}]


def axial():
    from axial_attention import AxialAttention

    return AxialAttention(dim=32, dim_index=1, heads=4), (torch.randn(2, 32, 5, 7),), {}


# memory-efficient forms of the softmax


def chunked(name: str, **settings: Any):
    def build():
        import memory_efficient_attention_pytorch as package

        model = getattr(package, name)(dim=32, heads=4, dim_head=6, **settings)
        return model, (torch.randn(2, 10, 32),), {}

    return build


def chunked_truth(causal: bool = False):
    """The dense softmax of the same projections."""

    def truth(run: Run) -> list[torch.Tensor]:
        x, layer = run.args[0], run.model
        with torch.no_grad():
            query, key = layer.to_q(x), layer.to_kv(x).chunk(2, dim=-1)[0]
            query, key = (rearrange(t, "b n (h d) -> b h n d", h=4) for t in (query, key))
            scores = query @ key.mT * query.shape[-1] ** -0.5
            if causal:
                scores = scores.masked_fill(~torch.ones(10, 10).tril().bool(), float("-inf"))
            return [scores.exp() / scores.exp().sum(-1, keepdim=True)]

    return truth


# others


def slots(heads: int):
    def build():
        from slot_attention import MultiHeadSlotAttention, SlotAttention

        if heads == 1:
            model = SlotAttention(num_slots=3, dim=32, iters=2)
        else:
            model = MultiHeadSlotAttention(num_slots=3, dim=32, heads=heads, iters=2)
        return model, (torch.randn(2, 9, 32),), {}

    return build


def slots_truth(run: Run) -> list[dict[str, torch.Tensor]]:
    """A softmax over slots, then normalised over positions, which is what mixes the values."""
    sites = []
    for weights in run.weights:
        weights = weights if weights.dim() == 4 else weights[:, None]
        share = weights.abs().sum(-1, keepdim=True).clamp(min=1e-8)
        plus = (weights + 1e-8) / (weights + 1e-8).sum(-1, keepdim=True)
        sites.append({"": weights / share, "with its epsilon": plus, "over slots": weights})
    return sites


def nystrom():
    from nystrom_attention import NystromAttention

    model = NystromAttention(dim=32, dim_head=6, heads=4, num_landmarks=5, residual_conv_kernel=3)
    return model, (torch.randn(2, 10, 32),), {}


def nystrom_truth(run: Run) -> list[dict[str, torch.Tensor]]:
    """Landmarks look at positions; positions at landmarks, by way of an inverted kernel."""
    with torch.no_grad():
        _, (first, inverse, third) = run.model(*run.args, return_attn_matrices=True)
    return [{"": third}, {"": first, "times the inverse": first @ inverse}]


def perceiver():
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3, input_axis=2, num_freq_bands=2, max_freq=4.0, depth=2, num_latents=7,
        latent_dim=24, cross_heads=1, latent_heads=4, cross_dim_head=6, latent_dim_head=6,
        num_classes=11,
    )  # fmt: skip
    return model, (torch.randn(2, 5, 3, 3),), {}


def perceiver_io():
    from perceiver_pytorch import PerceiverIO

    model = PerceiverIO(
        dim=20, queries_dim=16, logits_dim=11, depth=1, num_latents=7, latent_dim=24,
        cross_heads=3, latent_heads=4, cross_dim_head=6, latent_dim_head=6,
    )  # fmt: skip
    return model, (torch.randn(2, 9, 20),), {"queries": torch.randn(5, 16)}


def perceiver_ar():
    from perceiver_ar_pytorch import PerceiverAR

    model = PerceiverAR(
        num_tokens=50, dim=32, depth=1, heads=4, dim_head=32, max_seq_len=20, cross_attn_seq_len=9
    )
    return model, (words(2, 16),), {}


def conformer():
    from conformer import Conformer

    model = Conformer(dim=32, depth=2, dim_head=6, heads=4, conv_kernel_size=3)
    return model, (torch.randn(2, 9, 32),), {}


def mega(laplacian: bool):
    def build():
        from mega_pytorch import Mega

        model = Mega(
            num_tokens=50, dim=32, depth=2, ema_heads=4, attn_dim_qk=8, attn_dim_value=24,
            laplacian_attn_fn=laplacian,
        )  # fmt: skip
        return model, (words(),), {}

    return build


def itransformer():
    from iTransformer import iTransformer

    model = iTransformer(
        num_variates=7, lookback_len=12, dim=32, depth=2, heads=4, dim_head=6, pred_length=(3,)
    )
    return model, (torch.randn(2, 12, 7),), {}


def isab():
    from isab_pytorch import ISAB

    return ISAB(dim=32, heads=4, num_latents=5), (torch.randn(2, 9, 32),), {}


def performer():
    from performer_pytorch import PerformerLM

    model = PerformerLM(
        num_tokens=50, dim=32, heads=4, depth=1, max_seq_len=20, causal=False, dim_head=8
    )
    return model, (words(),), {}


def linear_attention():
    """Efficient attention (Shen et al. 2021): each key feature is a map over positions."""
    from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(
        num_tokens=50, dim=32, heads=4, depth=1, max_seq_len=20, dim_head=8
    )
    return model, (words(2, 20),), {}


def lambdas():
    from lambda_networks import LambdaLayer

    model = LambdaLayer(dim=32, dim_out=32, r=3, dim_k=8, heads=4, dim_u=1)
    return model, (torch.randn(2, 32, 5, 7),), {}


def quantiser():
    from vector_quantize_pytorch import VectorQuantize

    return VectorQuantize(dim=16, codebook_size=11), (torch.randn(2, 9, 16),), {}


MEMORY = "memory-efficient-attention-pytorch"
SMALL = {"q_bucket_size": 4, "k_bucket_size": 3}
TARGETS = [
    Target("LocalTransformer", "local-attention", local_transformer,
           listed(local(15, 5, 1, 0, 4)), "self"),
    Target("SinkhornTransformerLM", "sinkhorn_transformer", sinkhorn,
           listed(None, None, buckets), "self"),
    Target("RoutingTransformerLM", "routing_transformer", routing,
           listed(lambda w: {"clusters": rearrange(w, "b h c i j -> (b c) h i j")}), "self"),
    Target("LSHSelfAttention", "reformer-pytorch", hashing(), hashing_truth, "self",
           record=("torch:exp",)),
    Target("FullQKAttention", "reformer-pytorch", hashing(use_full_attn=True), MERGED, "self"),
    Target("AxialAttention", "axial-attention", axial,
           listed("(b h) q k -> b h q k", h=4), "self"),
    Target("Attention, plain", MEMORY, chunked("Attention"), PLAIN, "self"),
    Target("Attention, one chunk", MEMORY, chunked("Attention", memory_efficient=True),
           chunked_truth(), "self", quick=True),
    Target("Attention, chunks", MEMORY, chunked("Attention", memory_efficient=True, **SMALL),
           chunked_truth(), "self"),
    Target("FlashAttention, one tile", MEMORY, chunked("FlashAttention"), chunked_truth(), "self"),
    Target("FlashAttention, tiles", MEMORY, chunked("FlashAttention", causal=True, **SMALL),
           chunked_truth(True), "self"),
    Target("SlotAttention", "slot-attention", slots(1), slots_truth, "cross", quick=True),
    Target("MultiHeadSlotAttention", "slot-attention", slots(4), slots_truth, "cross"),
    Target("NystromAttention", "nystrom-attention", nystrom, nystrom_truth),
    Target("Perceiver", "perceiver-pytorch", perceiver, MERGED, ("cross", "self") * 2),
    Target("PerceiverIO", "perceiver-pytorch", perceiver_io, MERGED, ("cross", "self", "cross")),
    Target("PerceiverAR", "perceiver-ar-pytorch", perceiver_ar, PLAIN, (None, None, "self")),
    Target("Conformer", "conformer", conformer, PLAIN, "self", quick=True),
    Target("Mega", "mega-pytorch", mega(False), each("b q k -> b 1 q k"), "self"),
    Target("Mega, Laplacian", "mega-pytorch", mega(True)),
    Target("iTransformer", "iTransformer", itransformer, PLAIN, "self"),
    Target("ISAB", "isab-pytorch", isab, PLAIN, "cross"),
    Target("PerformerLM", "performer-pytorch", performer),
    Target("LinearAttentionTransformerLM", "linear-attention-transformer", linear_attention,
           listed(None, "b h n d -> b h d n")),
    Target("LambdaLayer", "lambda-networks", lambdas, PLAIN),
    Target("VectorQuantize", "vector-quantize-pytorch", quantiser),
]  # fmt: skip
