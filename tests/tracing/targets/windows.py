"""Windows, frames and columns: blocks of queries that share their keys.

A block is an example: (batch × block, head, query in the block, key in the block), in the order
that the model has them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, D, W = 2, 4, 32, 6  # W: width of a head


class Windowed(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = H, nn.Linear(D, 3 * H * W, bias=False)

    def qkv_heads(self, x: Tensor) -> list[Tensor]:
        """Query, key and value, (batch, head, position, width)."""
        return [dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1)]


class Local(Windowed):
    """local-attention: windows of 5 positions, which also see the window before them."""

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 15, D),)

    def forward(self, x):
        q, k, v = (tensor.reshape(B * H, 3, 5, W) for tensor in self.qkv_heads(x))
        padded = (F.pad(tensor, (0, 0, 0, 0, 1, 0), value=-1.0) for tensor in (k, v))
        k, v = (torch.cat([tensor[:, :-1], tensor[:, 1:]], 2) for tensor in padded)
        queries = torch.arange(15).view(3, 5, 1)
        keys = (torch.arange(3)[:, None] * 5 + torch.arange(-5, 5))[:, None]  # (window, 1, key)
        scores = torch.einsum("bwid,bwjd->bwij", q * W**-0.5, k)
        scores = scores.masked_fill((keys < 0) | (keys > queries), -3e38)
        mixed = torch.einsum("bwij,bwjd->bwid", scores.softmax(-1), v)
        return mixed.reshape(B, H, 15, W).transpose(1, 2).reshape(B, 15, H * W)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        k, v = (F.pad(tensor, (0, 0, 5, 0)) for tensor in (k, v))
        causal = torch.ones(5, 10, dtype=torch.bool).tril(5)
        weights, mixed = [], []
        for start in (0, 5, 10):
            keys = slice(start, start + 10)  # of the padded ones
            allowed = causal & (torch.arange(start, start + 10) >= 5)
            site = dense.weights(q[:, :, start : start + 5], k[:, :, keys], allowed=allowed)
            weights.append(site)
            mixed.append(dense.mix(site, v[:, :, keys]))
        return [torch.stack(weights, 1).flatten(0, 1)], dense.merged(torch.cat(mixed, 2))


class Packed(Local):
    """The same with `einops.pack`, which joins a single tensor."""

    def qkv_heads(self, x):
        return [
            torch.cat([tensor.reshape(-1, 15, W)], 0).view(B, H, 15, W)
            for tensor in super().qkv_heads(x)
        ]


class Time(Windowed):
    """TimeSformer: every patch looks at itself in all frames; heads stand between the two."""

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 45, D),)  # 5 frames of 9 patches

    def forward(self, x):
        q, k, v = (tensor.reshape(B * H, 45, W) for tensor in self.qkv_heads(x))
        q, k, v = (  # (batch × head × patch, frame, width)
            tensor.view(-1, 5, 9, W).transpose(1, 2).reshape(-1, 5, W) for tensor in (q, k, v)
        )
        weights = (torch.einsum("bid,bjd->bij", q, k) * W**-0.5).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v)
        mixed = mixed.view(B * H, 9, 5, W).transpose(1, 2).reshape(B, H, 45, W)
        return mixed.transpose(1, 2).reshape(B, 45, H * W)

    def truth(self, x):
        q, k, v = (self._by_patch(tensor) for tensor in self.qkv_heads(x))
        weights = dense.weights(q, k)
        return [weights], self._by_frame(dense.mix(weights, v))

    @staticmethod
    def _by_patch(tensor: Tensor) -> Tensor:
        """(batch × patch, head, frame, width) of (batch, head, frame × patch, width)."""
        return tensor.reshape(B, H, 5, 9, W).permute(0, 3, 1, 2, 4).flatten(0, 1)

    @staticmethod
    def _by_frame(mixed: Tensor) -> Tensor:
        return mixed.view(B, 9, H, 5, W).permute(0, 3, 1, 2, 4).reshape(B, 45, H * W)


class TimeWithClass(Time):
    """A class token in front is a key of every patch."""

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 46, D),)

    def forward(self, x):
        q, k, v = (tensor.reshape(B * H, 46, W) for tensor in self.qkv_heads(x))
        (_, q), (first_k, k), (first_v, v) = ((t[:, :1], t[:, 1:]) for t in (q, k, v))
        q, k, v = (
            tensor.reshape(-1, 5, 9, W).transpose(1, 2).reshape(-1, 5, W) for tensor in (q, k, v)
        )
        first_k, first_v = (
            tensor[:, None].expand(-1, 9, -1, -1).reshape(-1, 1, W) for tensor in (first_k, first_v)
        )
        k, v = torch.cat((first_k, k), 1), torch.cat((first_v, v), 1)
        weights = (torch.einsum("bid,bjd->bij", q, k) * W**-0.5).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v)
        mixed = mixed.view(B * H, 9, 5, W).transpose(1, 2).reshape(B, H, 45, W)
        return mixed.transpose(1, 2).reshape(B, 45, H * W)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        first = (tensor[:, :, :1].repeat_interleave(9, 0) for tensor in (k, v))
        k, v = (
            torch.cat([token, self._by_patch(tensor[:, :, 1:])], 2)
            for token, tensor in zip(first, (k, v))
        )
        weights = dense.weights(self._by_patch(q[:, :, 1:]), k)
        return [weights], self._by_frame(dense.mix(weights, v))


class Halo(Windowed):
    """HaloNet (Vaswani et al. 2021): blocks of 3 × 3 pixels see 5 × 5; zeros lie around."""

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 6, 9),)

    def forward(self, x):
        blocks = x.view(B, D, 2, 3, 3, 3).permute(0, 2, 4, 3, 5, 1).reshape(B * 6, 9, D)
        around = F.unfold(x, 5, stride=3, padding=1).view(B, D, 25, 6)
        around = around.permute(0, 3, 2, 1).reshape(B * 6, 25, D)
        projected = (self.qkv_heads(blocks)[0], *self.qkv_heads(around)[1:])
        q, k, v = (tensor.reshape(B * 6 * H, -1, W) for tensor in projected)
        weights = torch.einsum("bid,bjd->bij", q * W**-0.5, k).softmax(-1)
        mixed = torch.einsum("bij,bjd->bid", weights, v).view(B * 6, H, 9, W)
        return mixed.transpose(1, 2).reshape(B * 6, 9, H * W)

    def truth(self, x):
        padded = F.pad(x, (1, 1, 1, 1))
        corners = [
            (example, 3 * y, 3 * z) for example in range(B) for y in (0, 1) for z in range(3)
        ]
        blocks = [x[e, :, y : y + 3, z : z + 3].flatten(1).mT for e, y, z in corners]
        around = [padded[e, :, y : y + 5, z : z + 5].flatten(1).mT for e, y, z in corners]
        q, (_, k, v) = self.qkv_heads(torch.stack(blocks))[0], self.qkv_heads(torch.stack(around))
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class HaloOfChannels(formulas.Model):
    """As in timm: heads from channels that come first, windows beside batch × head."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q, self.kv = 3, nn.Conv2d(24, 24, 1), nn.Conv2d(24, 48, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 24, 8, 12),)

    def forward(self, x):
        q = self.q(x).reshape(-1, 8, 2, 4, 3, 4).permute(0, 1, 3, 5, 2, 4)
        q = q.reshape(B * 3, 8, 16, -1).transpose(1, 3)  # (batch × head, window, pixel, width)
        kv = F.pad(self.kv(x), (1, 1, 1, 1)).unfold(2, 6, 4).unfold(3, 6, 4)
        k, v = kv.reshape(B * 3, 16, 6, -1).permute(0, 2, 3, 1).split(8, -1)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 3)

    def truth(self, x):
        q, kv = self.q(x), F.pad(self.kv(x), (1, 1, 1, 1))
        corners = [
            (example, 4 * y, 4 * z) for example in range(B) for y in (0, 1) for z in range(3)
        ]
        q = torch.stack([q[e, :, y : y + 4, z : z + 4].flatten(1) for e, y, z in corners])
        kv = torch.stack([kv[e, :, y : y + 6, z : z + 6].flatten(1) for e, y, z in corners])
        q, kv = q.view(-1, 3, 8, 16).mT, kv.view(-1, 3, 16, 36).mT  # (window, head, pixel, width)
        weights = dense.weights(q, kv[..., :8], scale=1.0)
        mixed = dense.mix(weights, kv[..., 8:]).view(B, 6, 3, 16, 8)
        return [weights], mixed.permute(0, 2, 4, 3, 1).reshape(B * 3, 8, 16, 6)


class Columns(formulas.Model):
    """MSA Transformer (Rao et al. 2021): rows of a column. Columns come before the batch."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.q, self.k, self.v = (nn.Linear(D, H * 8) for _ in range(3))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(3, 9, B, D),)

    def forward(self, x):
        q, k, v = (projection(x).view(3, 9, B, H, 8) for projection in (self.q, self.k, self.v))
        weights = torch.einsum("icnhd,jcnhd->hcnij", q * 8**-0.5, k).softmax(-1)
        return torch.einsum("hcnij,jcnhd->icnhd", weights, v).contiguous().view(x.shape)

    def truth(self, x):
        columns = x.permute(1, 2, 0, 3).flatten(0, 1)  # (column × batch, row, width)
        q, k, v = (dense.heads(projection(columns), H) for projection in (self.q, self.k, self.v))
        weights = dense.weights(q, k)
        mixed = dense.merged(dense.mix(weights, v)).view(9, B, 3, D)
        return [weights], mixed.permute(2, 0, 1, 3)


class Buckets(Windowed):
    """Reformer (Kitaev et al. 2020), one round: sorted by hash, then windows, then sorted back.

    Every window is an example of its own, as it lies when it is attended to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rotation", torch.randn(W, 2))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 15, D),)

    def _order(self, q: Tensor) -> Tensor:
        turned = q @ self.rotation
        hashes = torch.cat([turned, -turned], -1).argmax(-1)
        return (hashes * 15 + torch.arange(15)).argsort(-1)  # (…, position), stable

    def forward(self, x):
        projected = [tensor.reshape(B * H, 15, W) for tensor in self.qkv_heads(x)]
        order = self._order(projected[0])
        index = order[..., None].expand(-1, -1, W)
        q, k, v = (tensor.gather(1, index).view(B * H, 5, 3, W) for tensor in projected)
        k, v = (torch.cat([tensor.roll(1, 1), tensor], 2) for tensor in (k, v))
        weights = (torch.einsum("bwid,bwjd->bwij", q, k) * W**-0.5).softmax(-1)
        mixed = torch.einsum("bwij,bwjd->bwid", weights, v).view(B * H, 15, W)
        mixed = mixed.gather(1, order.argsort(-1)[..., None].expand(-1, -1, W))
        return dense.merged(mixed.view(B, H, 15, W))

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        order = self._order(q)
        window = order.argsort(-1) // 3
        before = window[..., :, None] - window[..., None, :]
        weights = dense.weights(q, k, allowed=(before == 0) | (before % 5 == 1))
        windows = order.view(B, H, 5, 3)
        seen = torch.cat([windows.roll(1, 2), windows], -1)  # (batch, head, window, key)
        rows = weights.gather(2, order[..., None].expand(-1, -1, -1, 15)).view(B, H, 5, 3, 15)
        cut = rows.gather(4, seen[:, :, :, None].expand(-1, -1, -1, 3, -1))
        cut = cut.transpose(1, 2).flatten(0, 1)  # (batch × window, head, query, key)
        return [cut], dense.merged(dense.mix(weights, v))


class Axial(formulas.Model):
    """Ho et al. 2019: along the rows of an image, and then along its columns."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.along = nn.ModuleList(nn.MultiheadAttention(D, H, batch_first=True) for _ in range(2))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 3, 5, D),)

    def forward(self, x):
        rows = x.flatten(0, 1)
        x = x + self.along[0](rows, rows, rows, need_weights=False)[0].view(x.shape)
        columns = x.transpose(1, 2).flatten(0, 1)
        mixed = self.along[1](columns, columns, columns, need_weights=False)[0]
        return x + mixed.view(B, 5, 3, D).transpose(1, 2)

    def truth(self, x):
        sites = []
        for layer in self.along:
            lines = x.flatten(0, 1)
            projected = F.linear(lines, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
            q, k, v = (dense.heads(tensor, H) for tensor in projected)
            sites.append(dense.weights(q, k))
            mixed = layer.out_proj(dense.merged(dense.mix(sites[-1], v)))
            x = (x + mixed.view(x.shape)).transpose(1, 2)
        return sites, x


KINDS = (Local, Packed, Time, TimeWithClass, Halo, HaloOfChannels, Columns, Buckets, Axial)
TARGETS = [formulas.target(kind, "windows") for kind in KINDS]
