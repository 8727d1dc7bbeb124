"""The spatial half of CBAM: a factor for each position, from its neighbourhood."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError
from regard.vision.from_timm import check_class, child_of, convolution
from regard.vision.gate import Gate, check_parts


class SpatialGate(Gate):
    """Spatial attention of CBAM (Woo, Park, Lee, Kweon 2018, arXiv 1807.06521, equation 3).

        M_s = σ(f([max; mean])),    output = M_s ∘ F

    Maximum and mean are over channels, and f is a convolution with one kernel.

    | here          | paper                                                |
    |---------------|------------------------------------------------------|
    | `image`       | F, (channel, height, width)                          |
    | `convolution` | f, 7 × 7, without bias                               |
    | `norm`        | none in the equation                                 |
    | `weights`     | M_s, (batch, 1, 1, height · width)                   |

    As the authors' code and other than the equation: the maximum comes before the mean, and a batch
    norm with momentum 0.01 follows the convolution (`norm=nn.Identity()` leaves it out). Beyond the
    border the image is 0.

    >>> import torch
    >>> from regard.vision import SpatialGate
    >>> attended = SpatialGate()(torch.randn(2, 64, 7, 5), weights=True)
    >>> attended.weights.shape, attended.recipe.grid
    (torch.Size([2, 1, 1, 35]), (7, 5))
    """

    def __init__(
        self, *, kernel: int = 7, norm: nn.Module | None = None, gate: nn.Module | None = None
    ) -> None:
        """A gate of positions, for images of any number of channels.

        Args:
            kernel: height and width of the convolution; odd.
            norm: after the convolution, of one channel; `nn.BatchNorm2d(1, momentum=0.01)` when
                None.
            gate: scores to numbers between 0 and 1; a sigmoid when None.
        """
        super().__init__()
        name = type(self).__name__
        if kernel < 1 or kernel % 2 == 0:
            raise RegardError(f"{name}: kernel={kernel}, expected an odd number")
        check_parts(name, norm=norm, gate=gate)
        self.convolution = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(1, momentum=0.01) if norm is None else norm
        self.gate = nn.Sigmoid() if gate is None else gate

    def factors(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch 1 height width"]:
        # Backward goes the other way, and is slower where it comes to the mean first.
        mean, largest = image.mean(1, keepdim=True), image.amax(1, keepdim=True)
        pooled = torch.cat([largest, mean], 1)
        factors: Tensor = self.gate(self.norm(self.convolution(pooled)))
        return factors

    @classmethod
    def from_timm(cls, module: nn.Module) -> SpatialGate:
        """The same gate as timm's `SpatialAttn`, its weights and statistics copied.

        timm stacks the mean before the maximum, so the kernel's two input channels are swapped.
        """
        name = cls.__name__
        check_class(name, module, "SpatialAttn")
        block = child_of(name, module, "conv")  # a convolution and its norm
        kernel, norm = convolution(name, block, "conv"), child_of(name, block, "bn")
        gate = cls(
            kernel=kernel.kernel_size[0],
            norm=copy.deepcopy(norm),
            gate=copy.deepcopy(child_of(name, module, "gate")),
        )
        gate.convolution.to(kernel.weight.device, kernel.weight.dtype)
        gate.convolution.load_state_dict({"weight": kernel.weight.detach().flip(1)})
        return gate.train(module.training)
