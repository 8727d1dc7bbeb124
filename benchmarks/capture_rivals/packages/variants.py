"""Transformers with a twist: x-transformers, memories, hierarchies, several modalities."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import nn

from .target import Target
from .truth import Readings, Run, each, listed, recorded, scattered
from .zoo import local, words

PLAIN = each("b h q k -> b h q k")


def x_transformer(kind: str = "Decoder", wrapper: dict[str, Any] | None = None, **settings: Any):
    def build():
        import x_transformers

        layers = getattr(x_transformers, kind)(
            dim=32, depth=2, heads=4, attn_dim_head=8, **settings
        )
        model = x_transformers.TransformerWrapper(
            num_tokens=50, max_seq_len=16, attn_layers=layers, **(wrapper or {})
        )
        return model, (words(),), {}

    return build


def x_pair():
    from x_transformers import XTransformer

    model = XTransformer(
        dim=32, enc_num_tokens=50, enc_depth=1, enc_heads=4, enc_max_seq_len=16,
        enc_attn_dim_head=8, dec_num_tokens=50, dec_depth=1, dec_heads=4, dec_max_seq_len=16,
        dec_attn_dim_head=8,
    )  # fmt: skip
    return model, (words(2, 9), words(2, 7)), {}


def x_mixed(run: Run) -> list[dict[str, torch.Tensor]]:
    """A 1 × 1 convolution over heads after the softmax."""
    layers = [m for m in run.model.modules() if getattr(m, "post_softmax_talking_heads", None)]
    with torch.no_grad():
        return [
            {"": weights, "mixed heads": layer.post_softmax_talking_heads(weights)}
            for weights, layer in zip(run.weights, layers)
        ]


def coca():
    from torchvision_stub import imported

    encoder = imported("vit_pytorch.simple_vit_with_patch_dropout").SimpleViT
    extractor = imported("vit_pytorch.extractor").Extractor
    from coca_pytorch.coca_pytorch import CoCa

    images = extractor(
        encoder(image_size=24, patch_size=8, num_classes=11, dim=32, depth=1, heads=4, mlp_dim=48,
                patch_dropout=0.5),
        return_embeddings_only=True, detach=False,
    )  # fmt: skip
    model = CoCa(
        dim=32, img_encoder=images, image_dim=32, num_tokens=50, unimodal_depth=1,
        multimodal_depth=1, dim_head=6, heads=4, num_img_queries=7,
    )  # fmt: skip
    return model, (), {"text": words(2, 8), "images": torch.randn(2, 3, 24, 24)}


def clip():
    from torchvision_stub import imported

    model = imported("x_clip").CLIP(
        dim_text=32, dim_image=32, dim_latent=24, num_text_tokens=50, text_enc_depth=1,
        text_seq_len=9, text_heads=4, text_dim_head=6, visual_enc_depth=1, visual_image_size=24,
        visual_patch_size=8, visual_heads=4, visual_dim_head=6, visual_patch_dropout=0.0,
    )  # fmt: skip
    return model, (words(2, 9), torch.randn(2, 3, 24, 24)), {}


def few_shot():
    from cross_transformers_pytorch import CrossTransformer

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.attention = nn.Conv2d(3, 24, 4, 4), CrossTransformer(24, 12, 10)

        def forward(self, query, supports):
            return self.attention(self.backbone, query, supports)

    return Both(), (torch.randn(2, 3, 16, 20), torch.randn(2, 5, 3, 3, 16, 20)), {}


def retro():
    from retro_pytorch.retro_pytorch import RETRO

    model = RETRO(
        chunk_size=8, max_seq_len=32, enc_dim=32, enc_depth=1, dec_dim=32, dec_depth=2,
        dec_cross_attn_layers=(2,), heads=4, dim_head=48, num_tokens=50,
    )  # fmt: skip
    return model, (words(2, 24), words(2, 3, 2, 16)), {}


def block_recurrent():
    from block_recurrent_transformer_pytorch import BlockRecurrentTransformer

    model = BlockRecurrentTransformer(
        num_tokens=50, dim=32, depth=2, dim_head=8, heads=4, max_seq_len=16, block_width=8,
        num_state_vectors=6, recurrent_layers=(2,), use_compressed_mem=False,
    )  # fmt: skip
    return model, (words(2, 16),), {}


def megabyte():
    from MEGABYTE_pytorch import MEGABYTE

    model = MEGABYTE(
        num_tokens=50, dim=(32, 24), depth=(1, 1), max_seq_len=(5, 3), dim_head=8, heads=4
    )
    return model, (words(2, 12),), {}


def hierarchical():
    from simple_hierarchical_transformer import HierarchicalTransformer

    model = HierarchicalTransformer(
        num_tokens=50, dim=32, depth=1, seq_len=18, hierarchies=(1, 2), window_sizes=(6, None),
        use_flash_attn=False, dim_head=8, heads=4,
    )  # fmt: skip
    return model, (words(2, 18),), {}


def recurrent_memory():
    from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer

    model = RecurrentMemoryTransformer(
        num_tokens=50, num_memory_tokens=3, dim=32, depth=2, causal=True, dim_head=8, heads=4,
        seq_len=9, use_flash_attn=False,
    )  # fmt: skip
    return model, (words(),), {}


def feedback():
    from feedback_transformer_pytorch import FeedbackTransformer

    model = FeedbackTransformer(
        num_tokens=50, dim=32, depth=2, seq_len=3, mem_len=12, dim_head=8, heads=4
    )
    return model, (words(),), {}


def memory_xl():
    from memory_transformer_xl import MemoryTransformerXL

    model = MemoryTransformerXL(
        num_tokens=50, dim=32, heads=4, depth=2, seq_len=9, mem_len=9, lmem_len=5,
        mem_write_iters=1, memory_layers=[2], num_mem_kv=3,
    )  # fmt: skip
    return model, (words(),), {}


def hourglass():
    from hourglass_transformer_pytorch import HourglassTransformerLM

    model = HourglassTransformerLM(
        num_tokens=50,
        dim=32,
        max_seq_len=16,
        heads=4,
        dim_head=8,
        shorten_factor=2,
        depth=(1, 1, 1),
    )
    return model, (words(2, 16),), {}


def conditional():
    from colt5_attention import ConditionalRoutedAttention

    model = ConditionalRoutedAttention(
        dim=32, light_dim_head=8, light_heads=4, light_window_size=6, heavy_dim_head=8,
        heavy_heads=3, num_heavy_tokens_q=5, num_heavy_tokens_kv=6,
    )  # fmt: skip
    return model, (torch.randn(2, 18, 32),), {}


def sparse():
    from native_sparse_attention_pytorch import SparseAttention

    model = SparseAttention(
        dim=32, dim_head=8, heads=4, sliding_window_size=2, compress_block_size=4,
        compress_block_sliding_stride=2, selection_block_size=4, num_selected_blocks=2, causal=True,
    )  # fmt: skip
    return model, (torch.randn(2, 16, 32),), {}


def sparse_truth(run: Run) -> list[Readings]:
    """Compressed keys; two blocks of four that were selected, and the query's own; a window."""
    compressed, _, fine, window = (c.weights for c in run.calls if c.function == "softmax")
    chosen = next(c.weights.indices for c in run.calls if c.function == "torch:Tensor.topk")
    own = (torch.arange(16) // 4).view(1, 1, 16, 1).expand(2, 4, 16, 1)
    blocks = torch.cat([chosen, own], -1)  # batch, head, query, block
    keys = (blocks[..., None] * 4 + torch.arange(4)).flatten(3)
    fine = rearrange(fine, "b h g q s -> b (h g) q s")
    return [
        rearrange(compressed, "b h g q k -> b (h g) q k"),
        {"": scattered(fine, keys, 16), "gathered keys": fine},
        local(16, 2, 1, 0, 4)(window),
    ]


def agent(**settings: Any):
    def build():
        from agent_attention_pytorch import AgentSelfAttention

        model = AgentSelfAttention(dim=32, num_agent_tokens=5, dim_head=6, heads=4, **settings)
        return model, (torch.randn(2, 9, 32),), {}

    return build


def agent_truth(run: Run) -> list[dict[str, torch.Tensor]]:
    """Agents gather from positions, and positions from agents; heads are mixed in between."""
    first, second = run.weights
    with torch.no_grad():
        return [
            {"": second, "mixed heads": run.model.ak_talking_heads(second)},
            {"": first, "mixed heads": run.model.qa_talking_heads(first)},
        ]


def ring(**settings: Any):
    def build():
        from ring_attention_pytorch import RingAttention

        model = RingAttention(dim=32, dim_head=8, heads=4, causal=True, bucket_size=3, **settings)
        return model, (torch.randn(2, 9, 32),), {}

    return build


def ring_tiles(run: Run) -> list[torch.Tensor]:
    """The same layer with its dense attention."""
    model, calls = ring(force_regular_attn=True)()[0], []
    model.load_state_dict(run.model.state_dict())
    with recorded(calls), torch.no_grad():
        model.eval()(*run.args)
    return [call.weights for call in calls]


def titans():
    from titans_pytorch import MemoryAsContextTransformer

    model = MemoryAsContextTransformer(
        num_tokens=50, dim=32, depth=2, segment_len=8, num_persist_mem_tokens=3,
        num_longterm_mem_tokens=3, dim_head=8, heads=4, neural_memory_layers=(),
    )  # fmt: skip
    return model, (words(2, 16),), {}


def glom():
    from glom_pytorch import Glom

    model = Glom(dim=32, levels=3, image_size=24, patch_size=8)
    return model, (torch.randn(2, 3, 24, 24),), {"iters": 2}


def levels(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"": weights, "levels as examples": rearrange(weights, "b l q k -> (b l) 1 q k")}


def gated(attention: int | None):
    def build():
        from g_mlp_pytorch import gMLP

        model = gMLP(num_tokens=50, dim=32, depth=2, seq_len=9, attn_dim=attention)
        return model, (words(),), {}

    return build


def linformer():
    from linformer import LinformerSelfAttention

    model = LinformerSelfAttention(dim=32, seq_len=9, heads=4, k=5)
    return model, (torch.randn(2, 9, 32),), {}


def timesformer():
    from timesformer_pytorch import TimeSformer

    model = TimeSformer(
        dim=32, image_size=24, patch_size=8, num_frames=5, num_classes=11, depth=2, heads=4,
        dim_head=8,
    )  # fmt: skip
    return model, (torch.randn(2, 5, 3, 24, 24),), {}


def stam():
    from stam_pytorch import STAM

    model = STAM(
        dim=32, image_size=24, patch_size=8, num_frames=5, space_depth=1, space_heads=4,
        space_mlp_dim=32, time_depth=1, time_heads=3, time_mlp_dim=32, num_classes=11,
        space_dim_head=8, time_dim_head=8,
    )  # fmt: skip
    return model, (torch.randn(2, 5, 3, 24, 24),), {}


def uniformer():
    from uniformer_pytorch import Uniformer

    model = Uniformer(
        num_classes=11, dims=(8, 8, 16, 24), depths=(1, 1, 1, 1), mhsa_types=("l", "l", "g", "g"),
        dim_head=8,
    )  # fmt: skip
    return model, (torch.randn(2, 3, 4, 32, 32),), {}


def relu_attention():
    from rela_transformer import ReLATransformer

    model = ReLATransformer(num_tokens=50, dim=32, depth=1, max_seq_len=16, dim_head=8, heads=4)
    return model, (words(),), {}


def token_shift():
    from token_shift_gpt import TokenShiftGPT

    return TokenShiftGPT(num_tokens=50, dim=32, depth=1, max_seq_len=16), (words(2, 16),), {}


def resampler():
    from flamingo_pytorch import PerceiverResampler

    model = PerceiverResampler(
        dim=32, depth=2, dim_head=6, heads=4, num_latents=7, num_media_embeds=3
    )
    return model, (torch.randn(2, 3, 9, 32),), {}


def media():
    from flamingo_pytorch import GatedCrossAttentionBlock

    model = GatedCrossAttentionBlock(dim=32, dim_head=6, heads=4)
    places = torch.tensor([[1, 0, 0, 1, 0, 0, 1, 0]] * 2).bool()
    inputs = (torch.randn(2, 8, 32), torch.randn(2, 3, 5, 32))
    return model, inputs, {"media_locations": places}


def palm():
    from palm_pytorch import PaLM

    return PaLM(num_tokens=50, dim=32, depth=2, heads=4, dim_head=8), (words(),), {}


def both_ways(**settings: Any):
    def build():
        from bidirectional_cross_attention import BidirectionalCrossAttention

        model = BidirectionalCrossAttention(dim=32, heads=4, dim_head=6, context_dim=24, **settings)
        return model, (torch.randn(2, 9, 32), torch.randn(2, 7, 24)), {}

    return build


def compressed():
    from memory_compressed_attention import MemoryCompressedAttention

    model = MemoryCompressedAttention(dim=32, heads=4, causal=False, compression_factor=3)
    return model, (torch.randn(2, 9, 32),), {}


def kronecker():
    from kronecker_attention_pytorch import KroneckerSelfAttention

    return KroneckerSelfAttention(dim=32, heads=4, dim_heads=6), (torch.randn(2, 32, 5, 7),), {}


def infini():
    from infini_transformer_pytorch import InfiniTransformer

    model = InfiniTransformer(num_tokens=50, dim=32, depth=2, dim_head=8, heads=4)
    return model, (words(),), {}


def deep_cross():
    from deep_cross_attention import DCAGPT

    model = DCAGPT(num_tokens=50, dim=32, depth=2, heads=4, dim_head=8, past_layers_k=2)
    return model, (words(),), {}


def mixer():
    from mlp_mixer_pytorch import MLPMixer

    model = MLPMixer(image_size=24, patch_size=8, channels=3, dim=32, depth=2, num_classes=11)
    return model, (torch.randn(2, 3, 24, 24),), {}


def memorising():
    import tempfile

    from memorizing_transformers_pytorch import MemorizingTransformer

    class Twice(nn.Module):
        """The second pass finds what the first has put into the memory."""

        def __init__(self) -> None:
            super().__init__()
            self.model = MemorizingTransformer(
                num_tokens=50, dim=32, depth=2, dim_head=8, heads=4, memorizing_layers=(2,),
                num_retrieved_memories=3, max_knn_memories=50,
                knn_memories_directory=tempfile.mkdtemp(),
            )  # fmt: skip

        def forward(self, x):
            memories = self.model.create_knn_memories(batch_size=2)
            self.model(x, knn_memories=memories)
            return self.model(x, knn_memories=memories)

    return Twice(), (words(),), {}


def bottleneck():
    from bottleneck_transformer_pytorch import BottleStack

    model = BottleStack(
        dim=16, fmap_size=5, dim_out=24, proj_factor=2, num_layers=1, heads=4, dim_head=6,
        downsample=False,
    )  # fmt: skip
    return model, (torch.randn(2, 16, 5, 5),), {}


def halo():
    from halonet_pytorch import HaloAttention

    model = HaloAttention(dim=32, block_size=3, halo_size=1, dim_head=6, heads=4)
    return model, (torch.randn(2, 32, 6, 9),), {}


def halo_windows(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Blocks of a 6 × 9 image that see one pixel around them."""
    image = nn.functional.pad(torch.arange(54).view(1, 1, 6, 9) + 1.0, (1, 1, 1, 1))
    seen = nn.functional.unfold(image, 5, stride=3).long()[0].T - 1  # (block, slot)
    own = rearrange(torch.arange(54), "(x p y r) -> (x y) (p r)", p=3, y=3, r=3)
    blocks = rearrange(weights, "(b n h) q s -> b n h q s", b=2, n=6)
    full = weights.new_zeros(2, 4, 54, 55)
    for block in range(6):
        rows = weights.new_zeros(2, 4, 9, 55)
        keys = torch.where(seen[block] < 0, 54, seen[block]).expand(2, 4, 9, -1)
        full[:, :, own[block]] = rows.scatter_add(-1, keys, blocks[:, block])
    return {
        "": full[..., :54],
        "windows": rearrange(blocks, "b n h q s -> (b n) h q s"),
    }  # fmt: skip


def deformable():
    from deformable_attention import DeformableAttention

    model = DeformableAttention(
        dim=32, dim_head=8, heads=4, dropout=0.0, downsample_factor=4, offset_scale=4,
        offset_groups=None, offset_kernel_size=6,
    )  # fmt: skip
    return model, (torch.randn(2, 32, 12, 8),), {}


XT = "x-transformers"
TIME = ["(b h) q k -> b h q k", "(b h n) q k -> (b n) h q k"]
TARGETS = [
    Target("Decoder", XT, x_transformer(), PLAIN, "self", quick=True),
    Target("Decoder, flash", XT, x_transformer(attn_flash=True), PLAIN, "self"),
    Target("Decoder, grouped heads", XT, x_transformer(attn_kv_heads=2), PLAIN, "self"),
    Target("Decoder, one key head", XT, x_transformer(attn_kv_heads=1), PLAIN, "self"),
    Target("Encoder, memory keys", XT, x_transformer("Encoder", attn_num_mem_kv=3), PLAIN, "self"),
    Target("Encoder, talking heads", XT,
           x_transformer("Encoder", attn_pre_talking_heads=True, attn_post_talking_heads=True),
           x_mixed, "self"),
    Target("Decoder, top-k", XT, x_transformer(attn_sparse_topk=3), PLAIN, "self"),
    Target("Decoder, ALiBi", XT, x_transformer(alibi_pos_bias=True), PLAIN, "self"),
    Target("Decoder, rotary, query–key norm", XT,
           x_transformer(rotary_pos_emb=True, attn_qk_norm=True), PLAIN, "self"),
    Target("Decoder, T5 bias, gated values", XT,
           x_transformer(rel_pos_bias=True, attn_gate_values=True), PLAIN, "self"),
    Target("Encoder, memory tokens", XT,
           x_transformer("Encoder", {"num_memory_tokens": 3}), PLAIN, "self"),
    Target("Decoder, sigmoid", XT, x_transformer(attn_sigmoid=True)),
    Target("XTransformer", XT, x_pair, PLAIN, ("self", "self", "cross")),
    Target("CoCa", "CoCa-pytorch", coca, PLAIN, ("self", "self", "cross", "self", "cross")),
    Target("CLIP", "x-clip", clip, PLAIN, "self"),
    Target("CrossTransformer", "cross-transformers-pytorch", few_shot,
           each("b c h w s -> (b c) 1 (h w) s"), "cross"),
    Target("RETRO", "RETRO-pytorch", retro, PLAIN),
    Target("BlockRecurrentTransformer", "block-recurrent-transformer-pytorch", block_recurrent,
           PLAIN),
    Target("MEGABYTE", "MEGABYTE-pytorch", megabyte, PLAIN, "self"),
    Target("HierarchicalTransformer", "simple-hierarchical-transformer", hierarchical,
           listed(local(18, 6, 1, 0, 4), "b h q k -> b h q k"), "self"),
    Target("RecurrentMemoryTransformer", "recurrent-memory-transformer-pytorch", recurrent_memory,
           PLAIN, "self"),
    Target("FeedbackTransformer", "feedback-transformer-pytorch", feedback,
           lambda run: run.weights[1:]),
    Target("MemoryTransformerXL", "memory-transformer-xl", memory_xl,
           listed("b h q k -> b h q k", "b h q k -> b h q k", None, "b h n d -> b h d n")),
    Target("HourglassTransformerLM", "hourglass-transformer-pytorch", hourglass, PLAIN),
    Target("ConditionalRoutedAttention", "colt5-attention", conditional,
           listed(local(18, 3, 1, 1, 4), "b h q k -> b h q k")),
    Target("SparseAttention", "native-sparse-attention-pytorch", sparse, sparse_truth,
           record=("torch:Tensor.topk",)),
    Target("AgentSelfAttention", "agent-attention-pytorch", agent(talking_heads=False),
           agent_truth),
    Target("AgentSelfAttention, talking heads", "agent-attention-pytorch", agent(), agent_truth),
    Target("RingAttention, dense", "ring-attention-pytorch", ring(force_regular_attn=True), PLAIN,
           "self"),
    Target("RingAttention, tiles", "ring-attention-pytorch", ring(), ring_tiles, "self"),
    Target("MemoryAsContextTransformer", "titans-pytorch", titans, PLAIN, "self"),
    Target("Glom", "glom-pytorch", glom, listed(levels), "self"),
    Target("gMLP", "g-mlp-pytorch", gated(None)),
    Target("aMLP", "g-mlp-pytorch", gated(16), each("b q k -> b 1 q k"), "self"),
    Target("LinformerSelfAttention", "linformer", linformer, PLAIN, "self"),
    Target("TimeSformer", "timesformer-pytorch", timesformer, listed(*TIME, b=2, h=4)),
    Target("STAM", "STAM-pytorch", stam, PLAIN, "self"),
    Target("Uniformer", "uniformer-pytorch", uniformer, PLAIN, "self"),
    Target("ReLATransformer", "rela-transformer", relu_attention),
    Target("TokenShiftGPT", "token-shift-gpt", token_shift),
    Target("PerceiverResampler", "flamingo-pytorch", resampler,
           each("b h t q k -> (b t) h q k"), None),
    Target("GatedCrossAttentionBlock", "flamingo-pytorch", media, PLAIN, "cross"),
    Target("PaLM", "PaLM-pytorch", palm, PLAIN, "self"),
    Target("BidirectionalCrossAttention", "bidirectional-cross-attention", both_ways(),
           listed("b h q k -> b h q k", "b h k q -> b h q k"), "cross"),
    Target("MemoryCompressedAttention", "memory-compressed-attention", compressed, PLAIN, None),
    Target("KroneckerSelfAttention", "kronecker-attention-pytorch", kronecker, PLAIN, "self"),
    Target("InfiniTransformer", "infini-transformer-pytorch", infini, PLAIN, "self"),
    Target("DCAGPT", "deep-cross-attention", deep_cross, PLAIN),
    Target("MLPMixer", "mlp-mixer-pytorch", mixer),
    Target("MemorizingTransformer", "memorizing-transformers-pytorch", memorising, PLAIN),
    Target("BottleStack", "bottleneck-transformer-pytorch", bottleneck, PLAIN, "self"),
    Target("HaloAttention", "halonet-pytorch", halo, listed(halo_windows), "self"),
    Target("DeformableAttention", "deformable-attention", deformable, PLAIN),
]  # fmt: skip
