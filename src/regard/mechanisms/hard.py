"""Hard attention: each query takes one key, trained through a straight-through Gumbel-softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.bias import Bias
from regard.errors import RegardError
from regard.masks import clean
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths
from regard.recipe import Given, Recipe
from regard.types import NEVER, whole


class Hard(FromRecipe):
    """In eval the key of the largest weight; in training one drawn, argmaxⱼ (log aⱼ + gⱼ), with
    the gradient of softmax((log a + g)/τ), where gⱼ ~ Gumbel(0, 1).

    Jang, Gu & Poole 2017, "Categorical reparameterization with Gumbel-softmax", and Maddison, Mnih
    & Teh 2017, "The concrete distribution". As attention: Xu et al. 2015, "Show, attend and tell",
    section 4.1 (trained there by REINFORCE).

    | here          | paper | meaning                                                          |
    |---------------|-------|------------------------------------------------------------------|
    | `mechanism`   | π     | gives the probabilities; any of kind `distribution`              |
    | `temperature` | τ     | of the gradient alone: small is less biased, and more noisy      |

    `weights` are the choices that the output is made with, 0 or 1, one 1 a row: in training those
    that were *drawn*, so that two calls differ. The argmax of log a + g is a draw from a, exactly.
    The probabilities are those of `mechanism`, called by itself. In eval the choice has no
    gradient; the values keep theirs.

    Args:
        mechanism: the attention whose weights are drawn from; `DotProduct()` when None.
        temperature: τ, above 0. May be set anew while training.

    >>> import torch
    >>> from regard.mechanisms import Hard, MultiHead
    >>> attn = Hard(MultiHead(16, 4), temperature=0.5)
    >>> weights = attn(torch.randn(2, 5, 16), weights=True).weights
    >>> weights.shape, weights.amax(-1).unique()
    (torch.Size([2, 4, 5, 5]), tensor([1.], grad_fn=<Unique2Backward0>))
    """

    def __init__(self, mechanism: FromRecipe | None = None, *, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise RegardError(f"Hard: temperature={temperature}, expected a number above 0")
        mechanism = DotProduct() if mechanism is None else mechanism
        if not isinstance(mechanism, FromRecipe):
            raise RegardError(f"Hard: {mechanism!r}, expected a mechanism, as DotProduct()")
        name, traits = type(mechanism).__name__, mechanism.traits
        if mechanism.kind != "distribution":
            raise RegardError(
                f"Hard: {name} has weights of kind {mechanism.kind!r}, expected 'distribution': "
                "there is nothing to draw from"
            )
        if traits.sequential or traits.points or traits.hard:
            raise RegardError(
                f"Hard: {name} is not made of independent rows that mix values, expected one that "
                "is, as Additive"
            )
        if traits.recurrent:
            raise RegardError(
                f"Hard: {name} writes its keys into a memory, expected a mechanism whose state "
                "keeps them to choose from, as Additive"
            )
        self.mechanism = mechanism
        self.temperature = temperature
        self.n_heads, self.dropout = mechanism.n_heads, mechanism.dropout
        self.traits = traits._replace(hard=True)

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return self.mechanism.prepare(key, value, start=start)

    def widths(self, query_width: int) -> Widths:
        return self.mechanism.widths(query_width)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Recipe:
        queries, keys = inputs.shape.queries, inputs.shape.keys
        soft = self.mechanism.recipe(inputs, bias)
        logs = soft.log_weights(whole(queries, keys))
        value = soft.value
        if inputs.mask is not None and value is not None:
            value = clean(value, inputs.mask.alive(queries, keys, value.device))
        if keys == 0:
            return Given(logs, value)
        dead = (logs.detach() <= NEVER).all(-1, keepdim=True)
        if self.training:
            logs = logs - torch.empty_like(logs).exponential_().log()
        choices = torch.zeros_like(logs).scatter(-1, logs.argmax(-1, keepdim=True), 1.0)
        if self.training:
            relaxed = (logs / self.temperature).softmax(-1)
            choices = choices + (relaxed - relaxed.detach())  # adds 0, and its gradient
        return Given(choices.masked_fill(dead, 0.0), value)

    def modulate(self, mixed: Tensor, query: Tensor) -> Tensor:
        return self.mechanism.modulate(mixed, query)

    def finish(self, mixed: Tensor, recipe: Recipe) -> Tensor:
        output = self.mechanism.finish(mixed, recipe)
        asleep = ~recipe.weights().any(-1).any(1)  # a bias must not speak where no key was chosen
        return output.masked_fill(asleep[..., None], 0.0)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides the mechanism inside."""
        return f"temperature {self.temperature}"
