"""Talking heads: scores mixed over heads before the softmax, weights after it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.mechanisms.mixture import Mixture
from regard.recipe import Dot, Recipe
from regard.recipe import Mixture as MixtureRecipe
from regard.types import Values


class TalkingHeads(Mixture):
    """weightsₕ = Σ_g P_w[h, g] softmax(Σ_f P_l[g, f] Q_f K_fᵀ / √d), headₕ = weightsₕ Vₕ.

    Shazeer et al. 2020, "Talking-heads attention", section 3.

    | here      | paper | shape          |
    |-----------|-------|----------------|
    | `scores`  | P_l   | (head, head)   |
    | `weights` | P_w   | (head, head)   |

    A part of `MultiHead`. Mixed scores are one dot product: of all heads' queries side by side,
    each times its number, with all heads' keys. The full matrix is materialised, as every head
    needs the weights of all.

    Departures: both mixes begin as the identity, which is plain multi-head attention; the paper has
    numbers of heads of their own for scores, softmax and values, here they are one number. Bias,
    softcap and sinks are those of mixed scores. A mask is one for all heads.

    Args:
        n_heads: how many heads.

    >>> import torch
    >>> from regard.mechanisms import MultiHead, TalkingHeads
    >>> attn = MultiHead(16, 4, mixture=TalkingHeads(4))
    >>> attn(torch.randn(2, 5, 16), causal=True, weights=True).weights.shape
    torch.Size([2, 4, 5, 5])
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.eye(n_heads))
        self.weights = nn.Parameter(torch.eye(n_heads))

    def recipe(self, scored: Recipe, value: Values) -> Recipe:
        assert isinstance(scored, Dot)
        if len(self.scores) != scored.shape.heads:
            raise ShapeError(
                f"TalkingHeads: n_heads={len(self.scores)}, expected {scored.shape.heads}, as the "
                "attention has"
            )
        mixed = replace(
            scored,
            query=self._queries(scored.query, scored.key.shape[1]),
            key=scored.key.transpose(1, 2).flatten(2)[:, None],  # (batch, 1, key, group · width)
            mask=None,
        )
        return MixtureRecipe.of([mixed], [self.weights], value=value, mask=scored.mask)

    def _queries(self, query: Tensor, groups: int) -> Tensor:
        """(batch, head, query, group · width): heads that share a key add up."""
        batch, heads, queries, width = query.shape
        numbers = self.scores.to(query.dtype).view(heads, groups, heads // groups)
        by_group = query.view(batch, groups, heads // groups, queries, width)
        side_by_side = torch.einsum("hgs,bgsqw->bhqgw", numbers, by_group)
        return side_by_side.flatten(3)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{len(self.scores)} heads"
