"""Self or cross, where query and key part early, and come from one tensor all the same."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, D = 2, 3, 24


class Stage(nn.Module):
    """Of CvT (Wu et al. 2021): convolutions make query and key; the key's has a stride of 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = H

        def projection(out: int, stride: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False),
                nn.BatchNorm2d(width),
                nn.Conv2d(width, out, 1, bias=False),
            )

        self.q, self.kv, self.out = projection(D, 1), projection(2 * D, 2), nn.Conv2d(D, width, 1)
        self.inner = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1)
        )

    def forward(self, x):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, 1)
        q, k, v = (part.reshape(B, H, 8, -1).mT.reshape(B * H, -1, 8) for part in (q, k, v))
        weights = (torch.einsum("bid,bjd->bij", q, k) * 8**-0.5).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v).mT.reshape(B, D, *x.shape[2:])
        x = self.out(mixed) + x
        return self.inner(x) + x

    def truth(self, x):
        parts = (self.q(x), *self.kv(x).chunk(2, 1))
        q, k, v = (dense.heads(part.flatten(2).mT, H) for part in parts)
        weights = dense.weights(q, k)
        mixed = dense.merged(dense.mix(weights, v)).mT.reshape(B, D, *x.shape[2:])
        x = self.out(mixed) + x
        return weights, self.inner(x) + x


class Norm(nn.Module):
    """Over channels, by hand."""

    def forward(self, x):
        variance = torch.var(x, dim=1, unbiased=False, keepdim=True)
        return (x - x.mean(1, keepdim=True)) / (variance + 1e-5).sqrt()


class Stages(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 16, 7, 4, 3), Norm(), Stage(16)),
            *(nn.Conv2d(16, 24, 3, 2, 1), Norm(), Stage(24)),
            *(nn.Conv2d(24, 32, 3, 2, 1), Norm(), Stage(32)),
        )

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 3, 48, 40),)

    def forward(self, x):
        return self.layers(x)

    def truth(self, x):
        sites = []
        for layer in self.layers:
            if isinstance(layer, Stage):
                weights, x = layer.truth(x)
                sites.append(weights)
            else:
                x = layer(x)
        return sites, x


class PooledQueries(formulas.Model):
    """Hiera (Ryali et al. 2023): the largest of two queries asks."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = H, nn.Linear(D, 3 * D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 10, D),)

    def forward(self, x):
        q, k, v = self.qkv(x).view(B, 10, 3, H, 8).permute(2, 0, 3, 1, 4).unbind(0)
        q = q.view(B, H, 2, -1, 8).amax(2)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(B, 5, D)

    def truth(self, x):
        q, k, v = (dense.heads(part, H) for part in self.qkv(x).chunk(3, -1))
        weights = dense.weights(torch.maximum(q[:, :, :5], q[:, :, 5:]), k)
        return [weights], dense.merged(dense.mix(weights, v))


class SubsampledQueries(formulas.Model):
    """LeViT (Graham et al. 2021): every second place asks; a pooling of 1 × 1 picks them."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q, self.kv = H, nn.Conv2d(D, D, 1), nn.Conv2d(D, 2 * D, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 4, 6),)

    def forward(self, x):
        q = self.q(F.avg_pool2d(x, 1, stride=2)).view(B, H, 8, -1)
        k, v = self.kv(x).view(B, H, 16, -1).split(8, 2)
        weights = (q.mT @ k * 8**-0.5).softmax(-1)
        return (v @ weights.mT).reshape(B, D, 2, 3)

    def truth(self, x):
        q = dense.heads(self.q(x[:, :, ::2, ::2]).flatten(2).mT, H)
        kv = dense.heads(self.kv(x).flatten(2).mT, H)
        weights = dense.weights(q, kv[..., :8])
        return [weights], dense.merged(dense.mix(weights, kv[..., 8:])).mT.reshape(B, D, 2, 3)


class StridedKeys(formulas.Model):
    """Segformer, PVT: a convolution with a stride, then a norm, reduces the keys."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q, self.kv = H, nn.Linear(D, D), nn.Linear(D, 2 * D)
        self.reduce, self.norm = nn.Conv2d(D, D, 2, stride=2), nn.LayerNorm(D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 24, D),)  # 4 × 6 places

    def forward(self, x):
        q = self.q(x).view(B, -1, H, 8).transpose(1, 2)
        fewer = self.norm(self.reduce(x.mT.reshape(B, D, 4, 6)).flatten(2).mT)
        k, v = self.kv(fewer).view(B, -1, 2, H, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, 24, D)

    def truth(self, x):
        fewer = self.norm(self.reduce(x.mT.reshape(B, D, 4, 6)).flatten(2).mT)
        parts = (self.q(x), *self.kv(fewer).chunk(2, -1))
        q, k, v = (dense.heads(part, H) for part in parts)
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class Attention(nn.Module):
    """Of openai-whisper: what it looked at is kept by hooks on its projections."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.key = H, nn.Linear(D, D, bias=False)
        self.query, self.value, self.out = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x, encoded=None, cache=None):
        q = self.query(x)
        if encoded is None or self.key not in cache:
            source = x if encoded is None else encoded
            k, v = self.key(source), self.value(source)  # a hook joins it with what is kept
        else:
            k, v = cache[self.key], cache[self.value]
        q, k, v = (part.view(*part.shape[:2], H, -1).permute(0, 2, 1, 3) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.permute(0, 2, 1, 3).flatten(start_dim=2))

    def truth(self, x, source):
        q, k, v = (
            dense.heads(F.linear(inputs, projection.weight, projection.bias), H)  # without hooks
            for inputs, projection in ((x, self.query), (source, self.key), (source, self.value))
        )
        weights = dense.weights(q, k)
        return weights, self.out(dense.merged(dense.mix(weights, v)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.cross_attn = Attention(), Attention()
        self.attn_ln, self.cross_attn_ln, self.mlp_ln = (nn.LayerNorm(D) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, encoded, cache):
        x = x + self.attn(self.attn_ln(x), cache=cache)
        x = x + self.cross_attn(self.cross_attn_ln(x), encoded, cache)
        return x + self.mlp(self.mlp_ln(x))


class HookedCache(formulas.Model):
    """Keys and values are kept by hooks, which answer with all there are so far."""

    attends = ("self", "cross") * 6

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, D), nn.Parameter(torch.randn(9, D))
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randint(20, (B, 6)), torch.randn(B, 7, D)

    def forward(self, ids, encoded):
        """Four words at once, then two one by one."""
        cache: dict[nn.Module, Tensor] = {}

        def keep(projection, _, output):
            if projection in cache:
                cache[projection] = torch.cat([cache[projection], output], dim=1).detach()
            else:
                cache[projection] = output
            return cache[projection]

        layers = [layer for layer in self.modules() if isinstance(layer, Attention)]
        hooks = [
            projection.register_forward_hook(keep)
            for layer in layers
            for projection in (layer.key, layer.value)
        ]
        try:
            return self._steps(ids, encoded, cache)
        finally:
            for hook in hooks:
                hook.remove()

    def _steps(self, ids, encoded, cache):
        outputs, start = [], 0
        for step in ids.split([4, 1, 1], 1):
            x = self.words(step) + self.places[start : start + step.shape[1]]
            for block in self.blocks:
                x = block(x, encoded, cache)
            outputs.append(x)
            start += step.shape[1]
        return torch.cat(outputs, 1)

    def truth(self, ids, encoded):
        sites, outputs, seen, start = [], [], [[], []], 0
        for step in ids.split([4, 1, 1], 1):
            x = self.words(step) + self.places[start : start + step.shape[1]]
            for block, inputs in zip(self.blocks, seen):
                inputs.append(block.attn_ln(x))
                weights, mixed = block.attn.truth(inputs[-1], torch.cat(inputs, 1))
                x = x + mixed
                crossing, mixed = block.cross_attn.truth(block.cross_attn_ln(x), encoded)
                x = x + mixed
                x = x + block.mlp(block.mlp_ln(x))
                sites += [weights, crossing]
            outputs.append(x)
            start += step.shape[1]
        return sites, torch.cat(outputs, 1)


KINDS = (Stages, PooledQueries, SubsampledQueries, StridedKeys, HookedCache)
TARGETS = [formulas.target(kind, "labels") for kind in KINDS]
