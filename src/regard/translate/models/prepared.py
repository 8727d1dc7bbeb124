"""Products with a large weight that was laid out beforehand, the way oneDNN multiplies.

A step of search multiplies few rows by large matrices. The general product lays the matrix out anew
each time; with one that lies so already, 5 to 30 rows take half the time or less, and 64 rows a
tenth to a third less.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST = 1 << 16  # entries of a weight from which it is prepared
_FEWEST = 2  # rows from which it pays: a single one is bound by memory either way
_WORTH_IT = 1 << 20  # multiplications from which it pays: the operator takes longer to begin


class PreparedProduct:
    """`F.linear` with one weight, faster for few rows where nothing is trained.

    It holds a second copy of the weight, used while the weight is what it was, on a CPU, in float32
    and without gradients; everything else goes to `F.linear`. What is written through `.data`
    escapes torch's count of changes, and so this class.

    Args:
        weight: (output, input), which every call is then given again.
    """

    def __init__(self, weight: Tensor) -> None:
        plain = weight.detach().contiguous()
        self._prepared = torch.ops.mkldnn._reorder_linear_weight(plain, None)
        self._was = _identity(weight)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._serves(x, weight, bias):
            return F.linear(x, weight, bias)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._prepared, bias, "none", [], "")
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model has weights of its own: it goes without."""

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Nothing of it is pickled: the loaded model goes without."""
        return type(None), ()

    def _serves(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        return (
            x.dtype == torch.float32
            and x.device.type == "cpu"
            and x.numel() >= _FEWEST * weight.shape[1]
            and x.numel() * weight.shape[0] >= _WORTH_IT
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
            and torch._C._get_mkldnn_enabled()
            and (bias is None or bias.dtype == torch.float32)
            and _identity(weight) == self._was
        )


class PreparedLinear(nn.Linear):
    """A linear layer with a prepared weight beside its own: the same parameters and names."""

    product: PreparedProduct | None

    @classmethod
    def of(cls, linear: nn.Linear) -> PreparedLinear:
        """A layer with the very parameters of another."""
        outputs, inputs = linear.weight.shape
        layer = cls(inputs, outputs, linear.bias is not None, device="meta")
        layer.weight, layer.bias = linear.weight, linear.bias
        layer.product = prepared_product(linear.weight)
        return layer.train(linear.training)

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        return product(self.product, x, self.weight, self.bias)


def prepared_product(weight: Tensor) -> PreparedProduct | None:
    """The product with a weight, prepared; None where that is not possible or does not pay."""
    possible = (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.dim() == 2
        and not weight.is_inference()
        and torch.backends.mkldnn.is_available()
    )
    return PreparedProduct(weight) if possible and weight.numel() >= _LEAST else None


def product(
    prepared: PreparedProduct | None, x: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """x Wᵀ + b, by the prepared weight where there is one."""
    return F.linear(x, weight, bias) if prepared is None else prepared(x, weight, bias)


def _identity(weight: Tensor) -> tuple[int, int]:
    """What changes when a weight is written into, moved or put in another's place."""
    return weight.data_ptr(), weight._version
