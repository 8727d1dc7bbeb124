"""Self or cross, where query and key part early, and come from one tensor all the same."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Case, Target, dense, formulas

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
    attends = ["self"] * 3

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

    attends = ["self"]

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

    attends = ["self"]

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

    attends = ["self"]

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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_head = H
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x, source=None):
        source = x if source is None else source
        parts = (self.query(x), self.key(source), self.value(source))
        q, k, v = (part.view(B, -1, H, 8).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """Two blocks, each of which looks at itself, and then at what was encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.crossing = (nn.ModuleList(Block() for _ in range(2)) for _ in range(2))
        self.cache: dict[nn.Module, Tensor] = {}
        for block in self.blocks:
            block.key.register_forward_hook(self._keep)
            block.value.register_forward_hook(self._keep)

    def _keep(self, projection: nn.Module, _: Any, output: Tensor) -> Tensor:
        """As `install_kv_cache_hooks` of openai-whisper."""
        if projection in self.cache:
            output = torch.cat([self.cache[projection], output], dim=1).detach()
        self.cache[projection] = output
        return output

    def forward(self, x, encoded):
        for block, crossing in zip(self.blocks, self.crossing):
            x = crossing(block(x), encoded)
        return x


def _decode(case: Case) -> Tensor:
    """Four words at once, then two one by one."""
    x, encoded = case.args
    case.model.cache.clear()
    return torch.cat([case.model(words, encoded) for words in x.split([4, 1, 1], 1)], 1)


@torch.no_grad()
def _hooked_cache() -> Case:
    model, x, encoded = Decoder().eval(), torch.randn(B, 6, D), torch.randn(B, 7, D)
    keys = {block: [] for block in model.blocks}
    sites, labels, output = [], [], []
    for words in x.split([4, 1, 1], 1):
        for block, crossing in zip(model.blocks, model.crossing):
            keys[block].append(words)
            for layer, source in ((block, torch.cat(keys[block], 1)), (crossing, encoded)):
                # The projections themselves: a call would go through the hooks.
                linear = [F.linear(of, part.weight, part.bias) for of, part in (
                    (words, layer.query), (source, layer.key), (source, layer.value)
                )]
                q, k, v = (dense.heads(part.double(), H) for part in linear)
                sites.append(dense.weights(q, k))
                labels.append("cross" if layer is crossing else "self")
                words = words + layer.out(dense.merged(dense.mix(sites[-1], v)).float())
        output.append(words)
    expected = torch.cat(output, 1)
    return Case(model, (x, encoded), {}, sites, expected, attends=labels, call=_decode)


KINDS = (Stages, PooledQueries, SubsampledQueries, StridedKeys)
TARGETS = [formulas.target(kind, "labels") for kind in KINDS]
TARGETS.append(Target("labels_hooked_cache", "labels", _hooked_cache))
