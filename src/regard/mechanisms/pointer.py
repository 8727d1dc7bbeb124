"""Pointer: the weights over the source are the output."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.bias import Bias
from regard.contract import Attended, Traits
from regard.errors import RegardError
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths, check_held
from regard.recipe import Pointing
from regard.types import whole


class Pointer(FromRecipe):
    """uᵢⱼ = vᵀ tanh(W₁ eⱼ + W₂ dᵢ), p(Cᵢ) = softmaxⱼ(uᵢⱼ): the output is the distribution.

    Vinyals, Fortunato & Jaitly 2015, "Pointer networks", equation 3. For models that
    answer with positions of their input, which may be longer than in training.

    | here       | paper | meaning                                            |
    |------------|-------|----------------------------------------------------|
    | `query`    | dᵢ    | the decoder's state, (batch, query, query width)   |
    | `key`      | eⱼ    | the encoder's states, (batch, key, key width)      |
    | `to_query` | W₂    | query width → width                                |
    | `to_key`   | W₁    | key width → width                                  |
    | `vector`   | v     | (width,)                                           |

    `output` is (batch, query, key), the weights without their head axis. Nothing is mixed, so
    `value` cannot be passed. For a loss take `log_probabilities`, which does not underflow.
    Parameters start uniform in ±0.08, as in the paper.

    >>> import torch
    >>> from regard.mechanisms import Pointer
    >>> attn = Pointer(8, 6, width=16)
    >>> attended = attn(torch.randn(2, 4, 8), torch.randn(2, 5, 6), weights=True)
    >>> attended.output.shape, attended.output.argmax(-1).shape
    (torch.Size([2, 4, 5]), torch.Size([2, 4]))
    """

    traits = Traits(takes_value=False, points=True)

    def __init__(self, query_width: int, key_width: int, *, width: int) -> None:
        super().__init__()
        self.to_query = nn.Linear(query_width, width, bias=False)
        self.to_key = nn.Linear(key_width, width, bias=False)
        self.vector = nn.Parameter(torch.empty(width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.08, 0.08)

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return self.to_key(key)[:, None], key[:, None, :, :0]  # no values: a width of 0

    def widths(self, query_width: int) -> Widths:
        return Widths(self.to_query.in_features, self.to_key.in_features)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Pointing:
        held = (inputs.shape.batch, 1, inputs.shape.keys)
        sizes = ((*held, self.to_key.out_features), (*held, 0))
        check_held(type(self).__name__, inputs.key, inputs.value, *sizes)
        query = self.to_query(inputs.query)[:, None]  # (batch, 1, query, width)
        return Pointing(query, inputs.key, self.vector, mask=inputs.mask, bias=bias)

    @staticmethod
    def log_probabilities(attended: Attended) -> Float[Tensor, "batch query key"]:
        """Logarithms of an output that was asked for with `weights=True`, within its graph;
        -1e30 where a position is masked."""
        if not isinstance(attended.recipe, Pointing):
            raise RegardError(
                f"Pointer.log_probabilities: the recipe is {attended.recipe!r}, expected that of a "
                "Pointer: call it with weights=True"
            )
        return attended.recipe.log_weights(whole(*attended.recipe.shape[2:]))[:, 0]
