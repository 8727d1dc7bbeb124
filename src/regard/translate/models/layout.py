"""Memory layout of weights for faster search."""

from __future__ import annotations

from torch import Tensor, nn

from regard.translate.models.embeddings import Embeddings
from regard.translate.models.observed import is_observed
from regard.translate.models.prepared import PreparedLinear, prepared_product


def lay_out_for_search(model: nn.Module) -> None:
    """Store the weights of linear layers and of the output layer for products with few rows.

    Values, names and shapes stay the same. Column-major weights take a third to a half less time
    for a single row; large ones are also copied into the layout of `PreparedProduct`. Training
    gains nothing: its backward pass multiplies by W, and its weights change.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = _turned(module.weight.data)
        elif isinstance(module, Embeddings):
            module.output_weight.data = _turned(module.output_weight.data)
            module.product = prepared_product(module.output_weight)
    _prepare_layers(model)


def _prepare_layers(model: nn.Module) -> None:
    prepared: dict[nn.Module, PreparedLinear] = {}  # a layer that stands in two places stays one
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear and not is_observed(child):
                if child not in prepared:
                    prepared[child] = PreparedLinear.of(child)
                setattr(parent, name, prepared[child])


def _turned(weight: Tensor) -> Tensor:
    return weight.t().contiguous().t()
