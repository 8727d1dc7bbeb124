"""Sub-layers: a module, the norm before or after it, and the join of its output to the stream."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.feed_forward import FeedForward
from regard.contract import Attended, Mechanism
from regard.errors import RegardError, ShapeError
from regard.mechanisms import FromRecipe, Luong
from regard.types import Features


class NearIdentityWarning(UserWarning):
    """Self-attention without projections: each position attends almost only to itself."""


class Residual(nn.Module):
    """x + dropout(answer)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, answer: Tensor) -> Tensor:
        """The stream with the answer added; both (batch, position, width)."""
        if answer.shape[-1] != x.shape[-1]:
            raise ShapeError(
                f"Residual: answer: axis width has size {answer.shape[-1]}, expected "
                f"{x.shape[-1]}; ConcatProjection({x.shape[-1]}, {answer.shape[-1]}) joins other "
                "widths"
            )
        joined: Tensor = x + self.dropout(answer)
        return joined


class ScaledResidual(nn.Module):
    """skip · x + gain · dropout(answer), both numbers learned.

    Args:
        skip: initial factor of x.
        gain: initial factor of the answer.
        dropout: of the answer, in training.
    """

    def __init__(self, skip: float = 1.0, gain: float = 1.0, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.skip, self.gain = nn.Parameter(torch.tensor(skip)), nn.Parameter(torch.tensor(gain))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, answer: Tensor) -> Tensor:
        """The stream with the answer added; both (batch, position, width)."""
        joined: Tensor = self.skip * x + self.gain * self.dropout(answer)
        return joined


class Skipless(nn.Module):
    """gain · answer, with a learned gain and without a skip connection.

    Args:
        gain: initial factor of the answer.
    """

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, x: Tensor, answer: Tensor) -> Tensor:
        """The answer times the gain, (batch, position, width); `x` is ignored."""
        return self.gain * answer


class ConcatProjection(nn.Module):
    """activation(W [dropout(answer); x] + b): the answer and the state, concatenated and projected.

    With `activation=nn.Tanh()` this is the attentional state h̃ = tanh(W_c [c; h]) of Luong, Pham &
    Manning 2015, equation 5. The answer may be of another width than the stream.

    Args:
        width: features of the stream and of the output.
        answer_width: features of the answer; `width` when None.
        activation: a module after the projection; none by default.
        dropout: of the answer, in training.
    """

    def __init__(
        self,
        width: int,
        answer_width: int | None = None,
        *,
        activation: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.answer_width = width if answer_width is None else answer_width
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(self.answer_width + width, width)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, x: Tensor, answer: Tensor) -> Tensor:
        """The projected stream, (batch, position, width)."""
        if answer.shape[-1] != self.answer_width:
            raise ShapeError(
                f"ConcatProjection: answer: axis width has size {answer.shape[-1]}, expected "
                f"{self.answer_width}"
            )
        both = torch.cat([self.dropout(answer), x], dim=-1)
        joined: Tensor = self.activation(self.project(both))
        return joined


class Sublayer(nn.Module, ABC):
    """A module in the residual stream: its input, and the join of its output, the answer.

    Args:
        width: features of the stream.
        part: a `Mechanism`, or a module on features such as `FeedForward`.
        norm: a module on features; `nn.LayerNorm(width)` when None.
        join: a module of (stream, answer), `Residual()` when None.
    """

    def __init__(
        self,
        width: int,
        part: nn.Module,
        *,
        norm: nn.Module | None = None,
        join: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_modules(self, width, part=part, norm=norm)
        check_modules(self, None, join=join)
        self.width = width
        self.norm = nn.LayerNorm(width) if norm is None else norm
        self.part = part
        self.join = Residual() if join is None else join

    @property
    def mechanism(self) -> Mechanism:
        """The part, which must be a mechanism."""
        assert isinstance(self.part, Mechanism)
        return self.part

    @abstractmethod
    def enter(self, x: Features) -> Features:
        """The input of the part."""

    @abstractmethod
    def leave(self, x: Features, answer: Tensor) -> Features:
        """The stream after the part, from its answer."""

    def forward(self, x: Tensor, *inputs: Any, **options: Any) -> tuple[Tensor, Any]:
        """The stream after this sub-layer, and the return value of the part."""
        returned = self.part(self.enter(x), *inputs, **options)
        answer = returned.output if isinstance(returned, Attended) else returned
        return self.leave(x, answer), returned


def check_modules(owner: nn.Module, width: int | None, **modules: Any) -> None:
    """Raise unless each is a module that takes features of `width`, as far as it tells.

    `norm` and `join` may be None.
    """
    for name, module in modules.items():
        if module is None and name in ("norm", "join"):
            continue
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            kind = f"the class {module.__name__}" if isinstance(module, type) else kind
            raise RegardError(f"{type(owner).__name__}: {name} is {kind}, expected a module")
        actual = None if width is None else width_of(module, width)
        if actual not in (None, width):
            raise ShapeError(
                f"{type(owner).__name__}: {name}: {type(module).__name__} takes width {actual}, "
                f"expected {width}"
            )


def width_of(module: nn.Module | None, width: int) -> int | None:
    """Features that a module takes in a stream of `width`; None where unknown."""
    if isinstance(module, FromRecipe):
        return module.widths(width).query
    if isinstance(module, FeedForward):
        return module.widen.in_features
    if isinstance(module, nn.Linear):
        return module.in_features
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return module.normalized_shape[-1]
    return None


class PreNorm(Sublayer):
    """join(x, part(norm(x))), as in Xiong et al. 2020."""

    def enter(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed

    def leave(self, x: Tensor, answer: Tensor) -> Tensor:
        joined: Tensor = self.join(x, answer)
        return joined


class PostNorm(Sublayer):
    """norm(join(x, part(x))), as in Vaswani et al. 2017, section 3.1."""

    def enter(self, x: Tensor) -> Tensor:
        return x

    def leave(self, x: Tensor, answer: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.join(x, answer))
        return normed


def check_sublayers(block: nn.Module, **sublayers: Sublayer) -> None:
    """Raise unless these are sub-layers of one width, around mechanisms except `feed_forward`."""
    owner = type(block).__name__
    widths = set()
    for name, sublayer in sublayers.items():
        if not isinstance(sublayer, Sublayer):
            raise RegardError(
                f"{owner}: {name} is {type(sublayer).__name__}, expected a sub-layer: "
                f"PreNorm(width, part) or PostNorm(width, part)"
            )
        attends = name != "feed_forward"
        if attends != isinstance(sublayer.part, Mechanism):
            raise RegardError(
                f"{owner}: the part of {name} is {type(sublayer.part).__name__}, expected "
                + ("a regard.Mechanism, as MultiHead" if attends else "a module on features")
            )
        widths.add(sublayer.width)
    if len(widths) > 1:
        shown = ", ".join(f"{name} {sublayer.width}" for name, sublayer in sublayers.items())
        raise ShapeError(f"{owner}: sub-layers of different width: {shown}")


def warn_of_identity(block: nn.Module, attention: Mechanism) -> None:
    """Warn where queries and keys of a self-attention are the same features, unprojected."""
    scores = attention.score if isinstance(attention, Luong) else attention  # not its window
    if next(scores.parameters(), None) is None:
        warnings.warn(
            f"{type(block).__name__}: self-attention without projections is nearly the identity: "
            "after scaling by the root of the width a position's score with itself is about "
            "√width, and with others about 1. MultiHead(width, n_heads) projects",
            NearIdentityWarning,
            stacklevel=3,
        )
