"""Multiplicative modules: one signal gates another, feature by feature or through a tensor."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.contract import Attended
from regard.errors import RegardError, ShapeError
from regard.memory.checks import check_broadcast, check_features, check_width
from regard.recipe import Given
from regard.types import Features, Kind


class Gating(nn.Module):
    """y = x ∘ g(z).

    A multiplicative module: the signal z decides which features of x pass. Its ancestors are the
    sigma-pi units of 1986 (see `SigmaPi`) and Hinton 1981, "A parallel computation that assigns
    canonical object-based frames of reference"; LSTM gates, GLU (Dauphin et al. 2017, eq. 1) and
    squeeze-and-excitation are such modules.

    | here      | formula | meaning                                       |
    |-----------|---------|-----------------------------------------------|
    | `x`       | x       | what is gated                                 |
    | `control` | z       | what decides                                  |
    | `network` | g       | a factor for each feature, or per position    |

    The weights are the gate, (batch, 1, position, width): a row for each position, a column for
    each feature that it scales; `output == x * weights[:, 0]`.

    Args:
        width: features of x.
        control_width: features of z; `width` when None.
        network: g, a module from z to `width` factors, or to 1 for all features; a linear layer and
            a sigmoid when None.
        kind: what the factors are: "gate" from 0 to 1, "signed" where they may be anything.

    >>> import torch
    >>> from regard.memory import Gating
    >>> attended = Gating(8, 3)(torch.randn(2, 5, 8), torch.randn(2, 5, 3), weights=True)
    >>> attended.output.shape, attended.weights.shape, attended.recipe.kind
    (torch.Size([2, 5, 8]), torch.Size([2, 1, 5, 8]), 'gate')
    """

    def __init__(
        self,
        width: int,
        control_width: int | None = None,
        *,
        network: nn.Module | None = None,
        kind: Kind = "gate",
    ) -> None:
        super().__init__()
        self.width = width
        self.control_width = width if control_width is None else control_width
        check_sizes("Gating", width=width, control_width=self.control_width)
        if kind not in ("gate", "signed"):
            raise RegardError(f"Gating: kind={kind!r}, expected 'gate' or 'signed'")
        if network is None:
            network = nn.Sequential(nn.Linear(self.control_width, width), nn.Sigmoid())
        self.network = network
        self.kind: Kind = kind

    def forward(
        self,
        x: Features,
        control: Float[Tensor, "#batch #position control_width"] | None = None,
        *,
        weights: bool = False,
    ) -> Attended:
        """Gate x by the control, which is x itself when None; a control of one position is for all.

        With `weights` the gate comes back too, and a recipe of it.
        """
        check_features(self, "x", x, self.width, ("batch", "position"))
        control = x if control is None else control
        check_features(self, "control", control, self.control_width, ("batch", "position"))
        for axis, size, want in zip(("batch", "position"), control.shape, x.shape):
            if size not in (1, want):
                raise ShapeError(
                    f"Gating: control: axis {axis} has size {size}, expected {want} or 1"
                )
        gate = self.network(control)
        sizes = zip(gate.shape, (*x.shape[:2], self.width))
        if gate.dim() != 3 or any(size not in (1, want) for size, want in sizes):
            raise ShapeError(
                f"Gating: network gave {tuple(gate.shape)} for a control of "
                f"{tuple(control.shape)}, expected {self.width} features, or 1, a position"
            )
        output = x * gate
        if not weights:
            return Attended(output)
        recipe = Given(gate.expand_as(x)[:, None], of=self.kind)
        return Attended(output, recipe.weights(), recipe=recipe)


class Bilinear(nn.Module):
    """y_k = Σ_ij W_kij x_i z_j + b_k: every feature of x meets every feature of z.

    The full three-way tensor, as in Tenenbaum & Freeman 2000, "Separating style and content with
    bilinear models" (their symmetric model; style is x, content z). Parameters have the names and
    shapes of `torch.nn.Bilinear`. What it adds: leading axes that broadcast, and `matrix(control)`,
    the linear map that z makes of the tensor, so that y = matrix(z) x.

    Args:
        width: features of x.
        control_width: features of z.
        outputs: features of y.
        bias: whether b is there.

    >>> import torch
    >>> from regard.memory import Bilinear
    >>> unit, x, z = Bilinear(4, 3, 2), torch.randn(5, 4), torch.randn(5, 3)
    >>> by_matrix = (unit.matrix(z) @ x[..., None])[..., 0] + unit.bias
    >>> torch.testing.assert_close(unit(x, z), by_matrix)
    """

    def __init__(
        self, width: int, control_width: int, outputs: int = 1, *, bias: bool = True
    ) -> None:
        super().__init__()
        check_sizes("Bilinear", width=width, control_width=control_width, outputs=outputs)
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, width, control_width))
        nn.init.uniform_(self.weight, -bound, bound)
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound)) if bias else None

    def matrix(
        self, control: Float[Tensor, "*lead control_width"]
    ) -> Float[Tensor, "*lead outputs width"]:
        """M(z)_ki = Σ_j W_kij z_j, the linear map on x that the control stands for."""
        check_width(self, "control", control, self.weight.shape[2])
        return torch.einsum("kij,...j->...ki", self.weight, control)

    def forward(
        self, x: Float[Tensor, "*#lead width"], control: Float[Tensor, "*#lead control_width"]
    ) -> Float[Tensor, "*_ outputs"]:
        """The output; leading axes of x and of the control broadcast."""
        check_width(self, "x", x, self.weight.shape[1])
        check_width(self, "control", control, self.weight.shape[2])
        check_broadcast(self, x, control)
        pairs = x[..., :, None] * control[..., None, :]  # (…, width, control width)
        return nn.functional.linear(pairs.flatten(-2), self.weight.flatten(1), self.bias)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        outputs, width, control_width = self.weight.shape
        return f"{width} × {control_width} features, {outputs} outputs"


class LowRankBilinear(nn.Module):
    """y = P ((U x) ∘ (V z)) + b: a bilinear map whose tensor has rank R.

    Kim et al. 2017, "Hadamard product for low-rank bilinear pooling", section 2 (no activation):
    W_kij = Σ_r P_kr U_ri V_rj, which `full()` gives. Parameters grow with the sum of the three
    widths, not with their product. With P the identity this is gating by a linear gate.

    | here         | paper | meaning                           |
    |--------------|-------|-----------------------------------|
    | `to_factors` | U     | of x, (rank, width), no bias      |
    | `to_gates`   | V     | of z, (rank, control width)       |
    | `to_output`  | Pᵀ, b | (outputs, rank), and the bias     |

    Args:
        width: features of x.
        control_width: features of z.
        outputs: features of y.
        rank: R, how many products there are.
        bias: whether b is there.

    >>> import torch
    >>> from regard.memory import LowRankBilinear
    >>> LowRankBilinear(64, 32, 16, rank=8).full().shape
    torch.Size([16, 64, 32])
    """

    def __init__(
        self, width: int, control_width: int, outputs: int = 1, *, rank: int, bias: bool = True
    ) -> None:
        super().__init__()
        sizes = {"width": width, "control_width": control_width, "outputs": outputs, "rank": rank}
        check_sizes("LowRankBilinear", **sizes)
        self.to_factors = nn.Linear(width, rank, bias=False)
        self.to_gates = nn.Linear(control_width, rank, bias=False)
        self.to_output = nn.Linear(rank, outputs, bias=bias)

    def full(self) -> Float[Tensor, "outputs width control_width"]:
        """W, the tensor of the `Bilinear` that this is."""
        factors, gates, mix = (
            linear.weight for linear in (self.to_factors, self.to_gates, self.to_output)
        )
        return torch.einsum("kr,ri,rj->kij", mix, factors, gates)

    def matrix(
        self, control: Float[Tensor, "*lead control_width"]
    ) -> Float[Tensor, "*lead outputs width"]:
        """M(z) = P diag(V z) U, the linear map on x that the control stands for."""
        check_width(self, "control", control, self.to_gates.in_features)
        scaled = self.to_output.weight * self.to_gates(control)[..., None, :]  # (…, outputs, rank)
        return torch.matmul(scaled, self.to_factors.weight)

    def forward(
        self, x: Float[Tensor, "*#lead width"], control: Float[Tensor, "*#lead control_width"]
    ) -> Float[Tensor, "*_ outputs"]:
        """The output; leading axes of x and of the control broadcast."""
        check_width(self, "x", x, self.to_factors.in_features)
        check_width(self, "control", control, self.to_gates.in_features)
        check_broadcast(self, x, control)
        output: Tensor = self.to_output(self.to_factors(x) * self.to_gates(control))
        return output
