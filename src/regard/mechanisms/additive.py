"""Additive attention: a small network scores every pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.bias import Bias
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths
from regard.recipe import Additive as AdditiveRecipe


class Additive(FromRecipe):
    """eᵢⱼ = vₐᵀ tanh(Wₐ sᵢ₋₁ + Uₐ hⱼ), αᵢ = softmaxⱼ(eᵢⱼ), cᵢ = Σⱼ αᵢⱼ hⱼ.

    Bahdanau, Cho & Bengio 2015, "Neural machine translation by jointly learning to align and
    translate", section 3.1 and appendix A.1.2. Encyclopaedias often leave out vₐᵀ; without it the
    formula gives a vector, not a score.

    | here       | paper | meaning                                                          |
    |------------|-------|------------------------------------------------------------------|
    | `query`    | sᵢ₋₁  | the decoder's *previous* state, (batch, query, query width)      |
    | `key`      | hⱼ    | the annotations, (batch, key, key width)                         |
    | `to_query` | Wₐ    | query width → width, drawn from N(0, 0.001²)                     |
    | `to_key`   | Uₐ    | key width → width, drawn from N(0, 0.001²)                       |
    | `vector`   | vₐ    | (width,), 0 at the start, so that every weight is 1/T at first   |

    Because vₐ starts at 0, Wₐ and Uₐ get no gradient on the first step. `fix(key)` computes Uₐ h
    once per sentence. The original exponentiates without subtracting the maximum; this does not.
    """

    def __init__(
        self, query_width: int, key_width: int, *, width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.sizes = Widths(query_width, key_width)
        self.to_query = nn.Linear(query_width, width, bias=False)
        self.to_key = nn.Linear(key_width, width, bias=False)
        self.vector = nn.Parameter(torch.zeros(width))
        self.dropout = dropout
        for linear in (self.to_query, self.to_key):
            nn.init.normal_(linear.weight, std=0.001)

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return self.to_key(key)[:, None], value[:, None]  # (batch, 1, key, width)

    def widths(self, query_width: int) -> Widths:
        return self.sizes

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> AdditiveRecipe:
        query = self.to_query(inputs.query)[:, None]  # (batch, 1, query, width)
        return AdditiveRecipe(query, inputs.key, self.vector, inputs.value, inputs.mask, bias)
