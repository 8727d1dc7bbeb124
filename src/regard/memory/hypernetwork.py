"""Static hypernetworks: a small network that makes the kernels of convolutions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import RegardError, ShapeError
from regard.memory.checks import check_width


class KernelGenerator(nn.Module):
    """K = g(z): a_i = W_i z + B_i for each input channel i, K_i = ⟨W_out, a_i⟩ + B_out.

    Ha, Dai & Le 2016, "HyperNetworks", section 3.1, "Static hypernetwork": an embedding z of a
    layer becomes that layer's kernel, through two linear layers that all layers share.

    | here              | paper       | meaning                                               |
    |-------------------|-------------|-------------------------------------------------------|
    | `to_rows`         | W_i, B_i    | z to a vector a_i for each input channel              |
    | `to_kernel`       | W_out, B_out| a_i to that channel's kernels, one for each output    |
    | `embedding_width` | N_z         | numbers in z                                          |
    | `row_width`       | d           | numbers in a_i; N_z in the paper's experiments        |

    The kernel lies as `torch.nn.functional.conv2d` wants it, (out, in, height, width). The authors'
    notebook reshapes (in, out · height · width) straight to (out, in, height, width), which swaps
    the two axes where they are equal and scrambles them where they are not; here they are moved.

    With 16 × 16 channels, 7 × 7 and embeddings of 4 numbers, 4,240 parameters make kernels of
    12,544. Weights begin as a truncated normal with deviation 0.01, biases as 0.

    Args:
        in_channels: of the kernel; a layer may have a multiple of it.
        out_channels: of the kernel; a layer may have a multiple of it.
        kernel_size: of the kernel, height and width or one number for both.
        embedding_width: numbers that tell a kernel from others.
        row_width: numbers for each input channel between the two layers; `embedding_width` when
            None.

    >>> import torch
    >>> from regard.memory import KernelGenerator
    >>> generator = KernelGenerator(16, 16, 7)
    >>> sum(parameter.numel() for parameter in generator.parameters())
    4240
    >>> generator(torch.randn(4)).shape
    torch.Size([16, 16, 7, 7])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        *,
        embedding_width: int = 4,
        row_width: int | None = None,
    ) -> None:
        super().__init__()
        height, width = _pair("KernelGenerator", "kernel_size", kernel_size)
        row_width = embedding_width if row_width is None else row_width
        sizes = {"in_channels": in_channels, "out_channels": out_channels}
        widths = {"embedding_width": embedding_width, "row_width": row_width}
        check_sizes("KernelGenerator", **sizes, **widths)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.embedding_width = (height, width), embedding_width
        self.to_rows = nn.Linear(embedding_width, in_channels * row_width)
        self.to_kernel = nn.Linear(row_width, out_channels * height * width)
        for linear in (self.to_rows, self.to_kernel):
            nn.init.trunc_normal_(linear.weight, std=0.01, a=-0.02, b=0.02)
            nn.init.zeros_(linear.bias)

    def forward(
        self, embedding: Float[Tensor, "*lead embedding_width"]
    ) -> Float[Tensor, "*lead out_channels in_channels height width"]:
        """The kernel of each embedding."""
        check_width(self, "embedding", embedding, self.embedding_width)
        rows = self.to_rows(embedding).unflatten(-1, (self.in_channels, -1))  # (…, in, row width)
        kernels: Tensor = self.to_kernel(rows)  # (…, in, out · height · width)
        kernels = kernels.unflatten(-1, (self.out_channels, *self.kernel_size))
        return kernels.transpose(-4, -3)  # (…, in, out, height, width) to (…, out, in, …)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        height, width = self.kernel_size
        return f"kernels {self.out_channels} × {self.in_channels} × {height} × {width}"


class GeneratedConv2d(nn.Module):
    """A convolution whose kernel a generator makes from this layer's own embeddings.

    Ha, Dai & Le 2016, section 3.1: several layers share the generator, and each learns an embedding
    of a few numbers. A layer with more channels than the generator has puts its kernel together
    from several, one embedding each, side by side: with a generator of 16 × 16, a layer of 32 × 64
    has eight.

    Departure: the authors' code draws the embedding with mean 0.01 and deviation 1, an argument in
    the wrong place; here the mean is 0. The kernel then begins with a deviation near 3e-4 for
    N_z = 4, and Adam takes it from there.

    Args:
        generator: what makes kernels; share it between layers.
        in_channels: a multiple of the generator's.
        out_channels: a multiple of the generator's.
        stride: of the convolution.
        padding: of the convolution; half a kernel when None, which at stride 1 keeps the size
            for odd kernels.
        bias: whether there is a bias for each output channel, which is not generated.

    >>> import torch
    >>> from regard.memory import GeneratedConv2d, KernelGenerator
    >>> generator = KernelGenerator(8, 8, 3)
    >>> network = torch.nn.Sequential(
    ...     GeneratedConv2d(generator, 8, 16), torch.nn.ReLU(), GeneratedConv2d(generator, 16, 24)
    ... )
    >>> network(torch.randn(2, 8, 9, 9)).shape, network[2].kernel().shape
    (torch.Size([2, 24, 9, 9]), torch.Size([24, 16, 3, 3]))
    """

    def __init__(
        self,
        generator: KernelGenerator,
        in_channels: int,
        out_channels: int,
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_sizes("GeneratedConv2d", in_channels=in_channels, out_channels=out_channels)
        for argument, channels, unit in (
            ("in_channels", in_channels, generator.in_channels),
            ("out_channels", out_channels, generator.out_channels),
        ):
            if channels % unit:
                raise RegardError(
                    f"GeneratedConv2d: {argument}={channels}, expected a multiple of {unit}, the "
                    "channels of the generator"
                )
        height, width = generator.kernel_size
        if padding is None:
            padding = (height // 2, width // 2)
        self.generator, self.in_channels, self.out_channels = generator, in_channels, out_channels
        self.stride = _pair("GeneratedConv2d", "stride", stride)
        self.padding = _pair("GeneratedConv2d", "padding", padding, least=0)
        tiles = (out_channels // generator.out_channels, in_channels // generator.in_channels)
        self.embedding = nn.Parameter(torch.empty(*tiles, generator.embedding_width))
        nn.init.trunc_normal_(self.embedding)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def kernel(self) -> Float[Tensor, "out_channels in_channels height width"]:
        """The kernel, put together from the generator's."""
        tiles = self.generator(self.embedding)  # (out tile, in tile, out, in, height, width)
        kernel: Tensor = tiles.transpose(1, 2).flatten(0, 1).flatten(1, 2)
        return kernel

    def forward(
        self, x: Float[Tensor, "batch in_channels height width"]
    ) -> Float[Tensor, "batch out_channels out_height out_width"]:
        """The convolution of x with the kernel as it is now."""
        if x.dim() != 4:
            raise ShapeError(
                f"GeneratedConv2d: x has {x.dim()} axes {tuple(x.shape)}, expected 4: "
                "(batch, channel, height, width)"
            )
        if x.shape[1] != self.in_channels:
            raise ShapeError(
                f"GeneratedConv2d: x: axis channel has size {x.shape[1]}, expected "
                f"{self.in_channels}"
            )
        check_width(self, "x", x, x.shape[3])
        return nn.functional.conv2d(
            x, self.kernel(), self.bias, stride=self.stride, padding=self.padding
        )

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        tiles = self.embedding.shape[0] * self.embedding.shape[1]
        return (
            f"{self.in_channels}, {self.out_channels}, {tiles} embeddings, stride={self.stride}, "
            f"padding={self.padding}"
        )


def _pair(
    name: str, argument: str, value: int | tuple[int, int], least: int = 1
) -> tuple[int, int]:
    """Height and width, of one number or of two."""
    pair = (value, value) if isinstance(value, int) else value
    whole = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(n, int) for n in pair)
    if not whole or min(pair) < least:
        raise RegardError(
            f"{name}: {argument}={value!r}, expected a whole number from {least} on, or two"
        )
    return pair
