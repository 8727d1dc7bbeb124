"""Decomposable attention: the attend step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from regard.contract import Attended, Mechanism, State
from regard.kernel.attend import checked_bias, run
from regard.kernel.reduce import Reducer
from regard.masks import Mask
from regard.mechanisms.inputs import Widths, gather
from regard.recipe import Bias, Dot


class Decomposable(Mechanism):
    """eᵢⱼ = F(aᵢ)ᵀ F(bⱼ), βᵢ = Σⱼ softmaxⱼ(eᵢⱼ) bⱼ.

    Parikh et al. 2016, "A decomposable attention model for natural language inference", section
    3.1. This is one side, a looking at b; the other side, αⱼ, is the same call with the sentences
    exchanged. F is applied to each side by itself, never to a pair.

    | here       | paper | meaning                                    |
    |------------|-------|--------------------------------------------|
    | `query`    | a     | (batch, query, width)                      |
    | `key`      | b     | (batch, key, width), also what is mixed    |
    | `features` | F     | a module on the last axis, shared by both  |

    Compare, aggregate and the classifier are `regard.blocks.DecomposableClassifier`.
    """

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return self.features(key)[:, None], value[:, None]  # (batch, 1, key, width)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        causal: bool = False,
        state: State | bool | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> Attended:
        """Attend; see `Mechanism.forward`."""
        widths = Widths(key=query.shape[-1])
        given = gather(
            self, query, key, value, mask=mask, causal=causal, state=state, widths=widths
        )
        recipe = Dot(
            self.features(given.query)[:, None],
            given.key,
            given.value,
            mask=given.mask,
            bias=None if bias is None else checked_bias(bias, given.shape),
        )
        attended = run(recipe, weights=weights, reduce=reduce)
        return attended.finished(attended.output[:, 0], given.state)
