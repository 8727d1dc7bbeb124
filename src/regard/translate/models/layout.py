"""How weights lie in memory, which search feels."""

from __future__ import annotations

from torch import Tensor, nn

from regard.translate.models.embeddings import Embeddings
from regard.translate.models.observed import is_observed
from regard.translate.models.prepared import PreparedLinear, prepared_product


def lay_out_for_search(model: nn.Module) -> None:
    """Lay the weights of linear layers and of the output layer out for the few rows of a step.

    No value, name or shape changes. They lie column by column, which takes a third to a half
    less time for a single row; those that are large are held once more, as `PreparedProduct`
    multiplies them. Training gains nothing: its backward pass multiplies by W, and its weights
    change.
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
