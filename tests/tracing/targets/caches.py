"""Self or cross, where keys and values are kept from step to step."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, D, N = 2, 3, 24, 9  # N: the length of a buffer


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


class Buffers(formulas.Model):
    """Keys of every step are written into buffers; those of what was encoded only once."""

    attends = ("self", "cross") * 3

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.words = H, nn.Embedding(20, D)
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.other_q, self.other_k, self.other_v = (nn.Linear(D, D) for _ in range(3))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(B, H, N, D // H))
        for name in ("other_keys", "other_values"):
            self.register_buffer(name, torch.zeros(B, H, 7, D // H))

    inputs = staticmethod(HookedCache.inputs)

    def forward(self, ids, encoded):
        outputs, start = [], 0
        with torch.no_grad():
            self.other_keys.copy_(dense.heads(self.other_k(encoded), H))
            self.other_values.copy_(dense.heads(self.other_v(encoded), H))
        for step in ids.split([4, 1, 1], 1):
            x, places = self.words(step), torch.arange(start, start + step.shape[1])
            q, k, v = (dense.heads(part(x), H) for part in (self.q, self.k, self.v))
            self.keys.index_copy_(2, places, k.detach())
            self.values[:, :, places] = v.detach()
            mask = torch.arange(N) <= places[:, None]
            x = x + dense.merged(
                F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
            )
            q = dense.heads(self.other_q(x), H)
            mixed = F.scaled_dot_product_attention(q, self.other_keys, self.other_values)
            outputs.append(x + dense.merged(mixed))
            start += step.shape[1]
        return torch.cat(outputs, 1)

    def truth(self, ids, encoded):
        x = self.words(ids)
        q, k, v = (dense.heads(part(x), H) for part in (self.q, self.k, self.v))
        k, v = (F.pad(part, (0, 0, 0, N - 6)) for part in (k, v))
        weights = dense.weights(q, k, allowed=torch.arange(N) <= torch.arange(6)[:, None])
        x = x + dense.merged(dense.mix(weights, v))
        q, k, v = (
            dense.heads(part, H)
            for part in (self.other_q(x), self.other_k(encoded), self.other_v(encoded))
        )
        crossing = dense.weights(q, k)
        x = x + dense.merged(dense.mix(crossing, v))
        steps = zip(weights.split([4, 1, 1], 2), crossing.split([4, 1, 1], 2))
        return [site for step in steps for site in step], x


class OneTokenMultiQuery(formulas.Model):
    """Decoding with one key head for all: heads stand where queries do."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.q = H, nn.Linear(D, D)
        self.k, self.v = nn.Linear(D, D // H), nn.Linear(D, D // H)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 5, D),)

    def forward(self, x):
        q = self.q(x[:, -1]).view(B, H, D // H)
        weights = (q @ self.k(x).mT * (D // H) ** -0.5).softmax(-1)  # (batch, head, key)
        return (weights @ self.v(x)).flatten(1)

    def truth(self, x):
        q, k, v = dense.heads(self.q(x[:, -1:]), H), self.k(x)[:, None], self.v(x)[:, None]
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))[:, 0]


KINDS = (HookedCache, Buffers, OneTokenMultiQuery)
TARGETS = [formulas.target(kind, "caches") for kind in KINDS]
