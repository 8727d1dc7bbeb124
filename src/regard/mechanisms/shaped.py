"""Shaped attention: the identity, plus attention, minus what attention is at the start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.bias import Bias
from regard.contract import Traits
from regard.errors import ShapeError
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths, check_held
from regard.recipe import Dot, Identity, Mixture, Recipe, Uniform


class Shaped(FromRecipe):
    """weightsₕ = αₕ I + βₕ softmax(Qₕ Kₕᵀ / √dₖ) − γₕ C, output = concat(weightsₕ Vₕ).

    He & Hofmann 2023, "Simplifying transformer blocks", equation 5. C is uniform over the keys that
    a query may see, 1/i for the i-th of a causal attention. Queries start at 0, so that the softmax
    is C and the whole is I: a position begins with itself, without a skip connection. Values are
    the input itself, cut into heads, and nothing projects the output.

    | here              | paper    | shape                                              |
    |-------------------|----------|----------------------------------------------------|
    | `to_query`        | W_Q      | width → width, begins at 0                         |
    | `to_key`          | W_K      | width → width                                      |
    | `to_value`        | W_V      | the identity, or width → width, begins as identity |
    | `identity_gains`  | α        | one per head, begins at 1                          |
    | `attention_gains` | β        | one per head, begins at 1                          |
    | `uniform_gains`   | γ        | one per head, begins at 1                          |

    Departures: the mask may be any, C is then uniform over what it permits; dropout is of the
    softmax alone. A query stands at the position of the last keys, as with a cache: I and C follow.

    Args:
        width: features per position.
        n_heads: how many heads; divides `width`.
        values: learn W_V, as the paper keeps it in the first layer.
        dropout: of the softmax, in training.

    >>> import torch
    >>> from regard.mechanisms import Shaped
    >>> x = torch.randn(2, 5, 16)
    >>> torch.testing.assert_close(Shaped(16, 4)(x, causal=True).output, x)
    """

    kind = "signed"
    traits = Traits(order_matters=True)

    def __init__(
        self, width: int, n_heads: int, *, values: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if n_heads < 1 or width % n_heads:
            raise ShapeError(f"Shaped: width {width} is not a multiple of n_heads {n_heads}")
        self.width, self.n_heads, self.dropout = width, n_heads, dropout
        self.to_query = nn.Linear(width, width, bias=False)
        self.to_key = nn.Linear(width, width, bias=False)
        self.to_value = nn.Linear(width, width, bias=False) if values else nn.Identity()
        nn.init.zeros_(self.to_query.weight)
        nn.init.xavier_uniform_(self.to_key.weight)
        if isinstance(self.to_value, nn.Linear):
            nn.init.eye_(self.to_value.weight)
        self.identity_gains = nn.Parameter(torch.ones(n_heads))
        self.attention_gains = nn.Parameter(torch.ones(n_heads))
        self.uniform_gains = nn.Parameter(torch.ones(n_heads))

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return self._heads(self.to_key(key)), self._heads(self.to_value(value))

    def widths(self, query_width: int) -> Widths:
        return Widths(self.width, self.width, self.width)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Recipe:
        head_width = self.width // self.n_heads
        held = (inputs.shape.batch, self.n_heads, inputs.shape.keys, head_width)
        check_held(type(self).__name__, inputs.key, inputs.value, held, held)
        query, key = self._heads(self.to_query(inputs.query)), inputs.key
        attention = Dot(query, key, bias=bias, scale=head_width**-0.5)
        return Mixture(
            (Identity(query, key), attention, Uniform(query, key)),
            (self.identity_gains, self.attention_gains, -self.uniform_gains),
            inputs.value,
            inputs.mask,
        )

    def finish(self, mixed: Tensor, recipe: Recipe) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)  # (batch, query, width)

    def _heads(self, features: Tensor) -> Tensor:
        """(batch, position, width) to (batch, head, position, head width)."""
        heads: Tensor = features.unflatten(2, (self.n_heads, -1))
        return heads.transpose(1, 2)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides the projections."""
        return f"{self.n_heads} heads"
