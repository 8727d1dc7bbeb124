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
        q, k, v = (
            tensor.view(*tensor.shape[:2], H, -1).permute(0, 2, 1, 3) for tensor in (q, k, v)
        )
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
        self.words, self.positions = nn.Embedding(20, D), nn.Parameter(torch.randn(9, D))
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
            x = self.words(step) + self.positions[start : start + step.shape[1]]
            for block in self.blocks:
                x = block(x, encoded, cache)
            outputs.append(x)
            start += step.shape[1]
        return torch.cat(outputs, 1)

    def truth(self, ids, encoded):
        sites, outputs, seen, start = [], [], [[], []], 0
        for step in ids.split([4, 1, 1], 1):
            x = self.words(step) + self.positions[start : start + step.shape[1]]
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


class Layer(nn.Module):
    """Keys of its own are written at every step; those of what was encoded only once."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.norm = H, nn.LayerNorm(D)
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))
        self.other_q, self.other_k, self.other_v = (nn.Linear(D, D) for _ in range(3))

    def start(self, encoded: Tensor) -> None:
        self.keys, self.values = (torch.zeros(B, H, N, D // H) for _ in range(2))
        self.other_keys, self.other_values = (torch.zeros(B, H, 7, D // H) for _ in range(2))
        self.other_keys.copy_(dense.heads(self.other_k(encoded), H))
        self.other_values[:] = dense.heads(self.other_v(encoded), H)

    def forward(self, x, positions):
        normed = self.norm(x)
        q, k, v = (dense.heads(projection(normed), H) for projection in (self.q, self.k, self.v))
        keys = self.keys.index_copy_(2, positions, k)
        self.values[:, :, positions] = v
        mask = torch.ones(N, N, dtype=torch.bool).tril()[positions]
        mixed = F.scaled_dot_product_attention(q, keys, self.values, attn_mask=mask)
        x = x + self.out(dense.merged(mixed))
        q = dense.heads(self.other_q(x), H)
        mixed = F.scaled_dot_product_attention(q, self.other_keys, self.other_values)
        return x + dense.merged(mixed)

    def truth(self, x, encoded):
        normed = self.norm(x)
        q, k, v = (dense.heads(projection(normed), H) for projection in (self.q, self.k, self.v))
        k, v = (F.pad(tensor, (0, 0, 0, N - 6)) for tensor in (k, v))
        weights = dense.weights(q, k, allowed=torch.arange(N) <= torch.arange(6)[:, None])
        x = x + self.out(dense.merged(dense.mix(weights, v)))
        k, v = (dense.heads(projection(encoded), H) for projection in (self.other_k, self.other_v))
        crossing = dense.weights(dense.heads(self.other_q(x), H), k)
        return [weights, crossing], x + dense.merged(dense.mix(crossing, v))


class Buffers(formulas.Model):
    """litgpt, gpt-fast: keys of every step are written into the same tensor."""

    attends = ("self", "cross") * 6
    around = torch.no_grad

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(20, D), nn.ModuleList(Layer() for _ in range(2))

    inputs = staticmethod(HookedCache.inputs)

    def forward(self, ids, encoded):
        for layer in self.layers:
            layer.start(encoded)
        outputs = []
        for positions in torch.arange(6).split([4, 1, 1]):
            x = self.words(ids[:, positions])
            for layer in self.layers:
                x = layer(x, positions)
            outputs.append(x)
        return torch.cat(outputs, 1)

    def truth(self, ids, encoded):
        x, sites = self.words(ids), []
        for layer in self.layers:
            weights, x = layer.truth(x, encoded)
            sites += [site.split([4, 1, 1], 2) for site in weights]
        return [site[step] for step in range(3) for site in sites], x


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
