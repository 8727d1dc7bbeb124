"""Decomposable attention: the attend step."""

from __future__ import annotations

from torch import Tensor, nn

from regard.bias import Bias
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths
from regard.recipe import Dot


class Decomposable(FromRecipe):
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

    def widths(self, query_width: int) -> Widths:
        return Widths(key=query_width)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Dot:
        query = self.features(inputs.query)[:, None]  # (batch, 1, query, features)
        return Dot(query, inputs.key, inputs.value, mask=inputs.mask, bias=bias)
