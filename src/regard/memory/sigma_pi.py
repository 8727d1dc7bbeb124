"""Sigma-pi units: weighted sums of products of inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import RegardError
from regard.memory.checks import check_width


class SigmaPi(nn.Module):
    """y_j = f(Σ_k w_jk Π_{i ∈ k} x_i).

    Rumelhart, Hinton & McClelland 1986, "A general framework for parallel distributed processing"
    (PDP volume 1, chapter 2, "Sigma-Pi units"): inputs that meet in a product gate each other,
    since a zero among them closes the whole conjunct.

    | here         | paper   | meaning                                                   |
    |--------------|---------|-----------------------------------------------------------|
    | `conjuncts`  | S_i     | the index sets k; the empty one is 1, so its weight is a bias |
    | `weight`     | w_ij    | (outputs, conjuncts)                                      |
    | `activation` | F       | f                                                         |

    Departure: an index may come twice in a conjunct, which makes a power.

    Products are multiplied factor by factor. So a negative factor needs no logarithm, and the
    gradient of a factor is the product of the *others*, with no division: right where some are 0.

    Args:
        width: features that come in.
        outputs: units.
        conjuncts: index sets over the features, as `[(0,), (1,), (0, 1)]`, or
            `all_conjuncts(width, order)`; all up to pairs when None.
        activation: f, element by element; none when None.

    >>> import torch
    >>> from regard.memory import SigmaPi
    >>> xor = SigmaPi(2, 1, conjuncts=[(0,), (1,), (0, 1)])
    >>> _ = xor.weight.data.copy_(torch.tensor([[1.0, 1.0, -2.0]]))
    >>> xor(torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))[:, 0].tolist()
    [0.0, 1.0, 1.0, 0.0]
    """

    index: Int[Tensor, "conjunct order"]

    def __init__(
        self,
        width: int,
        outputs: int = 1,
        *,
        conjuncts: Sequence[Sequence[int]] | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        check_sizes("SigmaPi", width=width, outputs=outputs)
        sets = _checked(conjuncts, width) if conjuncts is not None else all_conjuncts(width, 2)
        self.width, self.conjuncts, self.activation = width, sets, activation
        order = max(map(len, sets))
        padded = [[*conjunct, *[width] * (order - len(conjunct))] for conjunct in sets]
        index = torch.tensor(padded, dtype=torch.long).reshape(len(sets), order)
        self.register_buffer("index", index, persistent=False)  # `width` stands for a factor of 1
        self.weight = nn.Parameter(torch.empty(outputs, len(sets)))
        nn.init.uniform_(self.weight, -(len(sets) ** -0.5), len(sets) ** -0.5)

    def products(self, x: Float[Tensor, "*lead width"]) -> Float[Tensor, "*lead conjunct"]:
        """The product of each conjunct."""
        check_width(self, "x", x, self.width)
        ones = x.new_ones(()).expand(*x.shape[:-1], 1)
        factors = torch.cat([x, ones], dim=-1)
        products = ones.expand(*x.shape[:-1], len(self.conjuncts))
        for column in self.index.unbind(1):
            products = products * factors[..., column]
        return products

    def forward(self, x: Float[Tensor, "*lead width"]) -> Float[Tensor, "*lead outputs"]:
        """The units' outputs for features of any leading axes."""
        output = nn.functional.linear(self.products(x), self.weight)
        return output if self.activation is None else self.activation(output)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        order = self.index.shape[1]
        return f"{self.width} features, {len(self.conjuncts)} conjuncts of order up to {order}"


def all_conjuncts(width: int, order: int) -> tuple[tuple[int, ...], ...]:
    """All sets of at most `order` of `width` features, smallest first; the first one is empty."""
    check_sizes("all_conjuncts", width=width, order=order)
    sizes = range(min(order, width) + 1)
    return tuple(k for size in sizes for k in itertools.combinations(range(width), size))


def _checked(conjuncts: Sequence[Sequence[int]], width: int) -> tuple[tuple[int, ...], ...]:
    if not conjuncts:
        raise RegardError("SigmaPi: conjuncts is empty, expected index sets, as [(0,), (0, 1)]")
    for conjunct in conjuncts:
        whole = isinstance(conjunct, Sequence) and all(isinstance(i, int) for i in conjunct)
        if not whole or isinstance(conjunct, str):
            raise RegardError(
                f"SigmaPi: conjunct {conjunct!r}, expected a tuple of indices, as (0, 1)"
            )
        for feature in conjunct:
            if not 0 <= feature < width:
                raise RegardError(
                    f"SigmaPi: conjunct {tuple(conjunct)} has index {feature}, expected 0 to "
                    f"{width - 1}, the features"
                )
    return tuple(map(tuple, conjuncts))
