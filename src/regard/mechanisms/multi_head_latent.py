"""Multi-head latent attention: keys and values compressed to one small vector per position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.bias import Bias
from regard.contract import Traits
from regard.errors import RegardError, ShapeError
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths, check_held
from regard.mechanisms.positions import Rotary
from regard.recipe import Dot, Recipe


class MultiHeadLatent(FromRecipe):
    """c = norm(W_DKV h), kᵢ = [W_UK,ᵢ c; rope(W_KR h)], vᵢ = W_UV,ᵢ c; output = concat(heads) Wᴼ.

    DeepSeek-AI 2024, "DeepSeek-V2: a strong, economical, and efficient mixture-of-experts language
    model", section 2.1 and appendix C; norms: section 3.1.2. A state holds c and the one rotary key
    that all heads share: `latent_width` + `rotary_width` numbers per position, whatever the heads.

    | here                           | paper                  | shape                              |
    |--------------------------------|------------------------|------------------------------------|
    | `to_latent`, `latent_norm`     | W_DKV                  | width → d_c                        |
    | `to_rotary_key`                | W_KR                   | width → d_r, one for all heads     |
    | `to_key`, `to_value`           | W_UK, W_UV             | d_c → heads × d_h, heads × dᵥ      |
    | `to_query_latent`, its norm    | W_DQ                   | width → d_c'                       |
    | `to_query`                     | W_UQ and W_QR by head  | d_c' or width → heads × (d_h+d_r)  |
    | `to_output`                    | Wᴼ                     | heads × dᵥ → width                 |

    Scores are scaled by 1/√(d_h + d_r). The keys need not be made: q·(W_UK c) = (W_UKᵀ q)·c, and
    W_UV is applied to the mixed c. This *absorbed* form is used where a state is given and the
    queries are few (`absorbs`), the expanded one elsewhere; they differ by rounding alone.

    Departures: rotary features are paired as in `Rotary` (i with i + d_r/2), not in neighbours;
    values are made from the keys' input, so `value` cannot be passed apart.

    Args:
        width: features per position of inputs and output.
        n_heads: how many heads.
        latent_width: features of the compressed keys and values, d_c.
        head_width: features of a query or key in one head without position, d_h; by default
            `width` / `n_heads`.
        value_width: features of a value in one head, dᵥ; `head_width` when None.
        rotary_width: features of a query or key that carry the position, d_r; an even number, by
            default half of `head_width`.
        query_latent_width: features of compressed queries, d_c'; None leaves them as they are.
        rotary: how positions turn features.
        dropout: of the weights, in training.

    >>> import torch
    >>> from regard.mechanisms import MultiHeadLatent
    >>> attn = MultiHeadLatent(64, 8, latent_width=16)
    >>> attended = attn(torch.randn(2, 5, 64), causal=True, state=True, weights=True)
    >>> attended.weights.shape, attended.state.key.shape, attended.state.value.shape
    (torch.Size([2, 8, 5, 5]), torch.Size([2, 1, 5, 4]), torch.Size([2, 1, 5, 16]))
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        *,
        latent_width: int,
        head_width: int | None = None,
        value_width: int | None = None,
        rotary_width: int | None = None,
        query_latent_width: int | None = None,
        rotary: Rotary | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if n_heads < 1:
            raise ShapeError(f"{name}: n_heads={n_heads}, expected at least 1")
        if head_width is None and width % n_heads:
            raise ShapeError(f"{name}: width {width} is not a multiple of n_heads {n_heads}")
        if rotary is not None and not isinstance(rotary, Rotary):
            raise RegardError(f"{name}: rotary={rotary!r}, expected a part, as Rotary()")
        self.n_heads = n_heads
        self.head_width = width // n_heads if head_width is None else head_width
        self.value_width = self.head_width if value_width is None else value_width
        self.rotary_width = self.head_width // 2 if rotary_width is None else rotary_width
        if self.rotary_width < 2 or self.rotary_width % 2:
            raise ShapeError(
                f"{name}: rotary_width is {self.rotary_width}, expected an even number from 2"
            )
        self.latent_width = latent_width
        self.sizes = Widths(width, width, width)
        self.dropout = dropout
        self.rotary = Rotary() if rotary is None else rotary
        query_in = width if query_latent_width is None else query_latent_width
        query_out = n_heads * (self.head_width + self.rotary_width)
        self.to_query_latent: nn.Module = nn.Identity()
        self.query_norm: nn.Module = nn.Identity()
        if query_latent_width is not None:
            self.to_query_latent = _linear(width, query_latent_width)
            self.query_norm = nn.RMSNorm(query_latent_width, eps=1e-6)
        self.to_query = _linear(query_in, query_out)
        self.to_latent = _linear(width, latent_width)
        self.latent_norm = nn.RMSNorm(latent_width, eps=1e-6)
        self.to_rotary_key = _linear(width, self.rotary_width)
        self.to_key = _linear(latent_width, n_heads * self.head_width)
        self.to_value = _linear(latent_width, n_heads * self.value_width)
        self.to_output = _linear(n_heads * self.value_width, width)
        self.traits = Traits(order_matters=True, takes_value=False)

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        """The shared rotary key (batch, 1, key, d_r), and the latents c (batch, 1, key, d_c)."""
        rotary_key = self.rotary.turn(self.to_rotary_key(key)[:, None], start)
        return rotary_key, self.latent_norm(self.to_latent(key))[:, None]

    def widths(self, query_width: int) -> Widths:
        return self.sizes

    def absorbs(self, queries: int) -> bool:
        """Whether so few queries cost less in the absorbed form than making keys and values does.

        For each key and head, expanding costs d_c · (d_h + dᵥ) products; absorbed, each query
        costs 2·d_c − d_h − dᵥ more.
        """
        expanded = self.head_width + self.value_width
        return self.n_heads > 1 and queries * (2 * self.latent_width - expanded) < (
            self.latent_width * expanded
        )

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Dot:
        batch, _, queries, keys = inputs.shape
        rotary_key, latent = inputs.key, inputs.value
        held = (batch, 1, keys)
        check_held(
            type(self).__name__,
            rotary_key,
            latent,
            (*held, self.rotary_width),
            (*held, self.latent_width),
        )
        query = self.to_query(self.query_norm(self.to_query_latent(inputs.query)))
        query = query.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        query, rotary_query = query.split([self.head_width, self.rotary_width], dim=-1)
        rotary_query = self.rotary.turn(rotary_query, keys - queries)
        if inputs.state is not None and self.absorbs(queries):
            query = query @ self._by_head(self.to_key)  # (batch, head, query, d_c)
            key, value = latent, latent
        else:
            key = self._expanded(latent, self.to_key)  # (batch, head, key, d_h)
            value = self._expanded(latent, self.to_value)  # (batch, head, key, value width)
            rotary_key = rotary_key.expand(-1, self.n_heads, -1, -1)
        return Dot(
            torch.cat([query, rotary_query], dim=-1),
            torch.cat([key, rotary_key], dim=-1),
            value,
            mask=inputs.mask,
            bias=bias,
            scale=(self.head_width + self.rotary_width) ** -0.5,
        )

    def finish(self, mixed: Tensor, recipe: Recipe) -> Tensor:
        assert recipe.value is not None
        if recipe.value.shape[1] < self.n_heads:  # absorbed: what was mixed are the latents
            mixed = mixed @ self._by_head(self.to_value).mT
        output: Tensor = self.to_output(mixed.transpose(1, 2).flatten(2))
        return output

    def _by_head(self, linear: nn.Linear) -> Tensor:
        """(head, head or value width, d_c)"""
        weight: Tensor = linear.weight.unflatten(0, (self.n_heads, -1))
        return weight

    def _expanded(self, latent: Tensor, linear: nn.Linear) -> Tensor:
        """(batch, 1, key, d_c) to (batch, head, key, head or value width)"""
        expanded: Tensor = linear(latent[:, 0]).unflatten(-1, (self.n_heads, -1))
        return expanded.transpose(1, 2)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides the projections."""
        return (
            f"{self.n_heads} heads, {self.latent_width} + {self.rotary_width} numbers a position "
            "in a state"
        )


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A projection without bias, Xavier-uniform."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear
