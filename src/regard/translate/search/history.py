"""Tokens and attention of every step of a search, with back-pointers.

Hypotheses change places at every step. Nothing that grows is moved: each step leaves the row that
each new row came from, and at the end one walk back from the last token finds the rows of the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Ends(NamedTuple):
    """Where hypotheses end: in `step`, the hypothesis at `row` says `token`."""

    step: Int[Tensor, " hypothesis"]
    row: Int[Tensor, " hypothesis"]
    token: Int[Tensor, " hypothesis"]


class History:
    """The steps so far. Step s reads rows of s tokens and says the token after them."""

    def __init__(self) -> None:
        self._weights: list[dict[str, Tensor]] = []
        self._origins: list[Tensor] = []
        self._tokens: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._weights)

    def saw(self, weights: dict[str, Float[Tensor, "row head source"]]) -> None:
        """What the rows of this step looked at."""
        self._weights.append(weights)

    def went_on(self, origins: Int[Tensor, " next"], tokens: Int[Tensor, " next"]) -> None:
        """The next step's rows: which row of this step each continues, and with which token."""
        self._origins.append(origins)
        self._tokens.append(tokens)

    def open_ends(self, rows: Int[Tensor, " hypothesis"]) -> Ends:
        """The last steps of hypotheses that are still open, by their present rows."""
        step = torch.full_like(rows, len(self._tokens) - 1)
        return Ends(step, self._origins[-1][rows], self._tokens[-1][rows])

    def trace(
        self, ends: Ends
    ) -> tuple[
        Int[Tensor, "hypothesis target"], dict[str, Float[Tensor, "hypothesis head target source"]]
    ]:
        """Tokens and weights of hypotheses; behind its end a hypothesis has zeros."""
        longest = int(ends.step.max()) + 1
        row, token = torch.zeros_like(ends.row), torch.zeros_like(ends.token)
        tokens: list[Tensor] = []
        weights: dict[str, list[Tensor]] = {site: [] for site in self._weights[0]}
        for step in reversed(range(longest)):
            last = ends.step == step
            if step < longest - 1:
                token = self._tokens[step][row]
                row = self._origins[step][row]
            row = torch.where(last, ends.row, row)
            token = torch.where(last, ends.token, token)
            reached = ends.step >= step
            row, token = row * reached, token * reached
            tokens.append(token)
            for site, seen in weights.items():
                weights_now = self._weights[step][site][row]
                seen.append(torch.where(reached[:, None, None], weights_now, 0.0))
        return torch.stack(tokens[::-1], dim=1), {
            site: torch.stack(seen[::-1], dim=2) for site, seen in weights.items()
        }
