"""Luong attention: four scores on the decoder's current state, global or local."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.bias import Bias
from regard.contract import Traits
from regard.errors import RegardError
from regard.masks import Mask
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths
from regard.mechanisms.luong_scores import DotScore, Score
from regard.recipe import Given, Recipe
from regard.types import Kind


class Luong(FromRecipe):
    """aₜ(s) = softmaxₛ(score(hₜ, h̄ₛ)), cₜ = Σₛ aₜ(s) h̄ₛ; the output is the context cₜ.

    Luong, Pham & Manning 2015, "Effective approaches to attention-based neural machine
    translation", section 3. The query is the decoder's *current* state hₜ.

    | here     | paper        | meaning                                                     |
    |----------|--------------|-------------------------------------------------------------|
    | `query`  | hₜ           | (batch, query, query width)                                 |
    | `key`    | h̄ₛ           | (batch, key, key width), also what is mixed                 |
    | `score`  | score(·, ·)  | `DotScore`, `GeneralScore`, `ConcatScore`, `LocationScore`  |
    | `window` | local-m, -p  | `LocalMonotonic`, `LocalPredictive`, or None for global     |

    The attentional state h̃ₜ = tanh(W_c[cₜ; hₜ]) and input feeding belong to the decoder.
    """

    def __init__(
        self, score: Score | None = None, *, window: Window | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        for name, module, kind, example in (
            ("score", score, Score, "DotScore()"),
            ("window", window, Window, "LocalMonotonic()"),
        ):
            if module is not None and not isinstance(module, kind):
                raise RegardError(f"Luong: {name}={module!r}, expected a part, as {example}")
        self.score = DotScore() if score is None else score
        self.window = window
        self.dropout = dropout
        self.kind = "distribution" if window is None else window.kind
        longest = self.score.longest
        self.traits = Traits(
            order_matters=window is not None or longest is not None, longest=longest
        )

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return self.score.keys(key)[:, None], value[:, None]  # (batch, 1, key, width)

    def widths(self, query_width: int) -> Widths:
        return self.score.widths(query_width)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Recipe:
        """The score's recipe, within the window. Query i is decoder step `state.step` + i."""

        def global_recipe(mask: Mask | None) -> Recipe:
            return self.score.recipe(inputs.query, inputs.key, inputs.value, mask, bias)

        if self.window is None:
            return global_recipe(inputs.mask)
        centre = self.window.centre(inputs)  # (batch or 1, query)
        distance = torch.arange(inputs.shape.keys, device=centre.device) - centre[..., None]
        near = (distance + centre[..., None] - centre.floor()[..., None]).abs() <= self.window.reach
        recipe = global_recipe(masks.both(inputs.mask, masks.pairs(near[:, None])))
        if self.window.kind == "distribution":
            return recipe
        # After the softmax, and not renormalised: gradient reaches the centre only through here.
        fade = torch.exp(-distance.square() / (2 * (self.window.reach / 2) ** 2))[:, None]
        alive = (
            None
            if inputs.mask is None
            else inputs.mask.alive(*inputs.shape[2:], inputs.value.device)
        )
        return Given(recipe.weights() * fade, masks.clean(inputs.value, alive), "partial")


class Window(nn.Module):
    """Where a local attention looks: within `reach` (the paper's D) of a centre pₜ."""

    kind: Kind

    def __init__(self, reach: int = 10) -> None:
        super().__init__()
        if reach < 1:
            raise RegardError(f"{type(self).__name__}: reach={reach}, expected at least 1")
        self.reach = reach

    def centre(self, inputs: Inputs) -> Float[Tensor, "batch query"]:
        """The centre pₜ of every query, (batch or 1, query); the window is around its floor."""
        raise NotImplementedError


class LocalMonotonic(Window):
    """local-m: pₜ = t, and plain softmax within [pₜ − D, pₜ + D]."""

    kind = "distribution"

    def centre(self, inputs: Inputs) -> Float[Tensor, "batch query"]:
        step = torch.arange(inputs.shape.queries, device=inputs.query.device) + inputs.step
        return step.to(torch.promote_types(inputs.query.dtype, torch.float32))[None]


class LocalPredictive(Window):
    """local-p: pₜ = S · σ(v_pᵀ tanh(W_p hₜ)), weights times a Gaussian of σ = D/2 around pₜ.

    S is the number of keys that the query may attend to, so padding does not move the centre.
    Parameters start uniform in ±0.1.
    """

    kind = "partial"

    def __init__(self, query_width: int, reach: int = 10) -> None:
        super().__init__(reach)
        self.to_hidden = nn.Linear(query_width, query_width, bias=False)
        self.vector = nn.Parameter(torch.empty(query_width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def centre(self, inputs: Inputs) -> Float[Tensor, "batch query"]:
        share: Tensor = (self.to_hidden(inputs.query).tanh() @ self.vector).sigmoid()
        share = share.to(torch.promote_types(share.dtype, torch.float32))
        if inputs.mask is None:
            return share * inputs.shape.keys
        allowed = inputs.mask.dense(inputs.shape.queries, inputs.shape.keys, inputs.query.device)
        return share * allowed[:, 0].sum(-1)
