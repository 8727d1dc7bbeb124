"""What a mix of several attentions is to `MultiHead`: the slot `mixture=`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from regard.recipe import Recipe
from regard.types import Kind, Mixed, Values


class Mixture(nn.Module, ABC):
    """Attentions of some heads, mixed into those that weight the values.

    `MultiHead` projects queries for `score_heads(n_heads)` heads and keys for
    `score_heads(n_groups)`, makes the recipe of their attentions, and hands it to `recipe`, which
    answers with the mixed one. Values and output keep `n_heads` and `n_groups`.

    Head h owns the score heads h, h + n_heads, h + 2 · n_heads, …: they have its mask, its bias,
    and, as keys are stacked in the same order, its group.
    """

    kind: Kind = "signed"  #: what the rows of the mixed weights are

    def score_heads(self, heads: int) -> int:
        """How many heads of queries are projected for so many heads, or of keys for so many
        groups; a multiple of them."""
        return heads

    @abstractmethod
    def recipe(self, scored: Recipe, value: Values) -> Recipe:
        """The mixed attention: `n_heads` heads of weights, and these values.

        Args:
            scored: the attentions of all score heads, without values.
            value: (batch, group, key, value width).

        The answer has the `mask` of `scored`, of one score head for each head: a query that may
        attend to nothing is silenced by it.
        """

    def finish(self, mixed: Mixed) -> Mixed:
        """The heads' mixed values, (batch, head, query, value width), before they are joined."""
        return mixed
