"""How weights lie in memory, which search feels."""

from __future__ import annotations

from torch import Tensor, nn

from regard.translate.models.embeddings import Embeddings


def turn_weights(model: nn.Module) -> None:
    """Lay the weights of linear layers out column by column; no value, name or shape changes.

    A step of search multiplies few rows by large matrices, and the product of x and Wᵀ is faster
    where Wᵀ lies row by row: by a third at 64 rows on a CPU. Training gains nothing, as its
    backward pass multiplies by W.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = _turned(module.weight.data)
        elif isinstance(module, Embeddings):
            output = module.target.weight if module.output is None else module.output
            output.data = _turned(output.data)


def _turned(weight: Tensor) -> Tensor:
    return weight.t().contiguous().t()
