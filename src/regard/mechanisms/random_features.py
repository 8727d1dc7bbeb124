"""Random features of the Performer: linear attention that estimates softmax attention, FAVOR+.

With x = d^(-1/4) q and y = d^(-1/4) k a softmax weighs a pair by exp(xᵀy), and for ω ~ N(0, I)

| features      | φ(x), for each row ω of W      | what makes it so                   |
|---------------|--------------------------------|------------------------------------|
| positive      | exp(ωᵀx - ‖x‖²/2)              | E φ(x) φ(y) = exp(xᵀy)             |
| hyperbolic    | exp(± ωᵀx - ‖x‖²/2) / √2       | the mean over ω and -ω             |
| trigonometric | exp(‖x‖²/2) (cos ωᵀx, sin ωᵀx) | E cos ωᵀ(x - y) = exp(-‖x - y‖²/2) |

all divided by √m for m rows. Rows that are orthogonal in blocks of d, with lengths of their own,
estimate better than independent ones (Choromanski et al. 2021, "Rethinking Attention with
Performers", lemmas 1 and 2, theorem 2).
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.mechanisms.feature_maps import FeatureMap, Side
from regard.softmax import exp, product
from regard.types import is_eager

_LARGEST = 60.0  # of a key's exponent: sums over any number of keys stay within float32
_NORM = 40.0  # the largest ‖x‖²/2 of trigonometric features; an estimate is noise long before


def independent_rows(
    n_rows: int, width: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Rows ω ~ N(0, I), (row, width), in float64."""
    return torch.randn(n_rows, width, generator=generator, dtype=torch.float64)


def orthogonal_rows(n_rows: int, width: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Rows ω ~ N(0, I), (row, width), in float64, orthogonal within each block of `width` rows.

    Directions are Haar: the Q of a Gaussian matrix, its columns times the signs of R's diagonal.
    Without the signs Q depends on the convention of the QR routine, and the mean of
    exp(ωᵀz - ‖z‖²/2) along z = (1, …, 1)/√8 is 0.81 instead of 1. Lengths are those of Gaussian
    vectors, χ with `width` degrees of freedom.

    >>> from regard.mechanisms.random_features import orthogonal_rows
    >>> rows = orthogonal_rows(4, 4)
    >>> bool(((rows @ rows.T) - (rows @ rows.T).diag().diag()).abs().max() < 1e-12)
    True
    """
    n_blocks = -(-n_rows // width)
    blocks = torch.randn(n_blocks, width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(blocks)
    signs = r.diagonal(dim1=-2, dim2=-1).sign()
    directions = (q * signs[:, None, :]).flatten(0, 1)[:n_rows]  # (row, width)
    gaussian = independent_rows(n_rows, width, generator=generator)
    rows: Tensor = directions * torch.linalg.vector_norm(gaussian, dim=-1, keepdim=True)
    return rows


def positive_features(
    x: Float[Tensor, "... width"], rows: Float[Tensor, "*draw row width"]
) -> Float[Tensor, "... features"]:
    """m^(-1/2) exp(ωᵀx - ‖x‖²/2), as it stands: nothing keeps it from overflowing."""
    return (x @ rows.mT - _half_square(x)).exp() / math.sqrt(rows.shape[-2])


class RandomFeatures(FeatureMap):
    """A feature map drawn at random: what the three kinds have in common.

    The rows are a buffer, and so are the seed and the number of training passes: a checkpoint goes
    on with the rows it had, and with those it would have drawn next. In eval they are frozen. In
    training a mechanism tells of each pass that begins without a state (`advance`), and every
    `redraw_every` passes new rows are drawn; a pass that goes on from a state uses the state's.

    Args:
        width: of a head, d.
        n_rows: of W, m; d ln d, rounded up, when None.
        orthogonal: rows orthogonal in blocks of d (ORF, the + in FAVOR+), or independent.
        redraw_every: training passes between draws; None never draws again.
        seed: of the draws; taken from torch's generator when None, so that layers differ and
            `torch.manual_seed` governs them.
    """

    rows: Tensor
    seed: Tensor
    passes: Tensor

    def __init__(
        self,
        width: int,
        n_rows: int | None = None,
        *,
        orthogonal: bool = True,
        redraw_every: int | None = 1000,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        n_rows = math.ceil(width * math.log(max(width, math.e))) if n_rows is None else n_rows
        for argument, size in (
            ("width", width),
            ("n_rows", n_rows),
            ("redraw_every", redraw_every),
        ):
            if size is not None and size < 1:
                raise RegardError(f"{name}: {argument}={size}, expected at least 1")
        self.width, self.n_rows = width, n_rows
        self.orthogonal, self.redraw_every = orthogonal, redraw_every
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.register_buffer("seed", torch.tensor(seed))
        self.register_buffer("passes", torch.tensor(0))
        rows = _drawn(seed, 0, n_rows, width, orthogonal)
        self.register_buffer("rows", rows.to(torch.get_default_dtype()))

    def advance(self) -> None:
        """Count a training pass, and draw new rows when it is time."""
        if self.training and self.redraw_every is not None:
            self._advance(self.redraw_every)

    def draw_number(self) -> Int[Tensor, ""]:
        return self.passes // (self.redraw_every or 1)

    def redraw(self) -> None:
        """Draw the next rows now, in training or not; states made before are refused."""
        every = self.redraw_every or 1
        with torch.no_grad():
            self.passes.add_(every - self.passes % every - 1)
        self._advance(every)

    def _advance(self, every: int) -> None:
        torch.ops.regard.advance_random_features(
            self.rows, self.passes, self.seed, every, self.orthogonal
        )

    def forward(self, x: Tensor, side: Side) -> Tensor:
        if x.shape[-1] != self.width:
            raise ShapeError(
                f"{type(self).__name__}: axis width has size {x.shape[-1]}, expected {self.width}"
            )
        dtype = torch.promote_types(x.dtype, torch.float32)
        rows = self.rows.to(dtype)
        if self.training:  # a backward pass may come after the next draw
            rows = rows.clone()
        return self._features(x.to(dtype) * self.width**-0.25, rows, side)

    @abstractmethod
    def _features(self, x: Tensor, rows: Tensor, side: Side) -> Tensor:
        """Features of scaled inputs, at least in float32."""

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        often = "never" if self.redraw_every is None else f"every {self.redraw_every} passes"
        rows = "orthogonal" if self.orthogonal else "independent"
        return f"width={self.width}, {self.n_rows} {rows} rows, redrawn {often}"


class PositiveFeatures(RandomFeatures):
    """φ(x) = m^(-1/2) exp(Wx - ‖x‖²/2): FAVOR+, features above 0 (lemma 1).

    In a linear attention they make a Performer:

    | here                 | paper                                   |
    |----------------------|-----------------------------------------|
    | `width`, `n_rows`    | d, m                                    |
    | `rows`               | W, with rows ω₁ … ω_m                   |
    | `orthogonal`         | orthogonal random features (ORFs)       |
    | `redraw_every`       | feature redrawing                       |

    Departures: orthogonal blocks have the sign correction that makes them Haar; no ε is added to
    features. The maximum over keys that is usually subtracted lets the future into a causal
    attention, and differs from step to step. Instead a constant exp(c) of each row is moved from
    the keys' feature to the queries', which leaves products as they are: ωᵀx - ‖x‖²/2 is at most
    ‖ω‖²/2, and c keeps that below 60. A query's features are divided by their largest, and m^(-1/2)
    is left out, which a normaliser cancels: use them where weights are normalised, or in
    `SumNormalised`.

    The arguments are those of `RandomFeatures`.

    >>> import torch
    >>> from regard.mechanisms import PositiveFeatures
    >>> features = PositiveFeatures(8, 16, seed=0)
    >>> features(torch.randn(1, 2, 5, 8), "key").shape
    torch.Size([1, 2, 5, 16])
    """

    nonnegative = True

    def _features(self, x: Tensor, rows: Tensor, side: Side) -> Tensor:
        return _stabilised(x, rows, side)


class HyperbolicFeatures(RandomFeatures):
    """φ(x) = (2m)^(-1/2) (exp(Wx - ‖x‖²/2), exp(-Wx - ‖x‖²/2)): 2m features above 0 (lemma 1).

    At the same m the squared error is below half of that of `PositiveFeatures`. Stabilised alike.
    The arguments are those of `RandomFeatures`; `n_rows` is m.

    >>> import torch
    >>> from regard.mechanisms import HyperbolicFeatures
    >>> HyperbolicFeatures(8, 16, seed=0)(torch.randn(1, 2, 5, 8), "key").shape
    torch.Size([1, 2, 5, 32])
    """

    nonnegative = True

    def _features(self, x: Tensor, rows: Tensor, side: Side) -> Tensor:
        return _stabilised(x, torch.cat([rows, -rows]), side)


class TrigonometricFeatures(RandomFeatures):
    """φ(x) = m^(-1/2) exp(‖x‖²/2) (cos Wx, sin Wx): 2m features of either sign.

    The estimate may be negative, and so may a normaliser be, which is why the paper prefers
    positive features: weights are `signed`, and where true weights are small they are mostly noise.
    Queries leave exp(‖x‖²/2) out, and both m^(-1/2), which a normaliser cancels; for keys ‖x‖²/2
    counts as 40 at most.
    The arguments are those of `RandomFeatures`; `n_rows` is m.

    >>> import torch
    >>> from regard.mechanisms import TrigonometricFeatures
    >>> TrigonometricFeatures(8, 16, seed=0)(torch.randn(1, 2, 5, 8), "key").shape
    torch.Size([1, 2, 5, 32])
    """

    def _features(self, x: Tensor, rows: Tensor, side: Side) -> Tensor:
        angles = product(x, rows.mT)
        features = torch.cat([angles.cos(), angles.sin()], -1)
        return features if side == "query" else features * _half_square(x).clamp_max(_NORM).exp()


def _stabilised(x: Tensor, rows: Tensor, side: Side) -> Tensor:
    """exp(ωᵀx - ‖x‖²/2) for each row, (…, row), of which neither side overflows."""
    shift = (_half_square(rows) - _LARGEST).clamp_min(0.0)  # of each row, whatever the key
    shift = shift if side == "query" else -shift
    # One product gives the whole exponent: passes over as many numbers would cost more than it.
    ones = torch.ones_like(shift)
    x = torch.cat([x, -_half_square(x), torch.ones_like(x[..., :1])], -1)
    exponents = product(x, torch.cat([rows, ones, shift], -1).mT)  # (batch, head, position, row)
    own = not exponents.requires_grad and is_eager(exponents)  # nobody else needs them
    if side == "query":
        largest = exponents.detach().amax(-1, keepdim=True)
        exponents = exponents.sub_(largest) if own else exponents - largest
    return exp(exponents, out=exponents if own else None)


def _half_square(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True) / 2


def _drawn(seed: int, number: int, n_rows: int, width: int, orthogonal: bool) -> Tensor:
    """The rows of one draw, the same whenever they are drawn."""
    generator = torch.Generator().manual_seed((seed + number * 0x9E3779B97F4A7C15) % 2**63)
    draw = orthogonal_rows if orthogonal else independent_rows
    return draw(n_rows, width, generator=generator)


# An operator, so that a compiled pass draws as a plain one does.
torch.library.define(
    "regard::advance_random_features",
    "(Tensor(a!) rows, Tensor(b!) passes, Tensor seed, int every, bool orthogonal) -> ()",
)


@torch.library.impl("regard::advance_random_features", "CompositeExplicitAutograd")
def _advance(rows: Tensor, passes: Tensor, seed: Tensor, every: int, orthogonal: bool) -> None:
    """Count one training pass more, and draw when it is time."""
    if torch._C._current_graph_task_id() != -1:  # checkpointing computes a pass again: none more
        return
    passes.add_(1)
    number, left = divmod(int(passes), every)
    if left == 0:
        rows.copy_(_drawn(int(seed), number, rows.shape[0], rows.shape[1], orthogonal))


@torch.library.register_fake("regard::advance_random_features")  # type: ignore[untyped-decorator]
def _advance_traced(*arguments: object) -> None:
    """Nothing comes out."""
