"""What mechanisms whose weights come from a recipe have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from regard.contract import Attended, Mechanism, State
from regard.kernel.attend import checked_bias, run
from regard.kernel.reduce import Reducer
from regard.masks import Mask
from regard.mechanisms.inputs import Inputs, Widths, gather
from regard.recipe import Bias, Recipe


class FromRecipe(Mechanism):
    """A mechanism that says how weights are made, and leaves the rest to the library.

    Three things are a mechanism's own: what a state holds (`prepare`), how weights are made
    (`recipe`), and what becomes of the mixed values (`finish`). Defaults, checks, masks, states,
    dropout, weights and reductions are the same for all.
    """

    n_heads: int = 1
    dropout: float = 0.0

    def widths(self, query_width: int) -> Widths:
        """Features that fit, given those of the query; any where None."""
        return Widths()

    @abstractmethod
    def recipe(self, given: Inputs, bias: Tensor | Bias | None) -> Recipe:
        """What the weights are made from: checked inputs, and keys as `prepare` made them."""

    def finish(self, mixed: Tensor, recipe: Recipe) -> Tensor:
        """The output, (batch, query, width), of mixed values (batch, head, query, width)."""
        return mixed[:, 0]

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
        given = gather(
            self,
            query,
            key,
            value,
            mask=mask,
            causal=causal,
            state=state,
            widths=self.widths(query.shape[-1]),
            n_heads=self.n_heads,
        )
        recipe = self.recipe(given, None if bias is None else checked_bias(bias, given.shape))
        dropout = self.dropout if self.training else 0.0
        attended = run(recipe, dropout=dropout, weights=weights, reduce=reduce)
        return attended.finished(self.finish(attended.output, recipe), given.state)
