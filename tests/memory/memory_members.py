"""Every public module of `regard.memory`, with input for it. One without an entry fails the suite.

To add a member, put a `Member` into `MEMBERS` (several forms of a class are several members):

- `build` makes the module; it is called after `torch.manual_seed`.
- `inputs(batch, length)` are the tensors that its `forward` takes, batch first, float32. A module
  without an axis of length ignores `length`.
- `weights`: `forward` takes `weights=True`, and `weights_of(answer)` gives the tensors asked for.
- `recurrent`: `forward` takes `state=`, and the answer has `.output` and `.state`.

The laws are in `test_memory_laws.py`. What a module returns may be a tensor, a tuple, an `Attended`
or any other pytree: its leaves are what is compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.memory import (
    DNC,
    NTM,
    Bilinear,
    FastWeights,
    Gating,
    GeneratedConv2d,
    HyperLSTM,
    KernelGenerator,
    LowRankBilinear,
    SigmaPi,
)
from regard.memory.controllers import FeedForwardController, LSTMController


def _sequence(width: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    return lambda batch, length: (torch.randn(batch, length, width),)


def _pair(width: int, control_width: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    return lambda batch, length: (
        torch.randn(batch, length, width),
        torch.randn(batch, length, control_width),
    )


@dataclass(frozen=True)
class Member:
    """A module and how it is called."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    weights: bool = False
    recurrent: bool = False
    weights_of: Callable[[Any], Any] = lambda answer: answer.weights
    tolerance: float = 1e-5  #: float32 against float64
    half_tolerance: float = 0.05  #: bfloat16 against float64, of the largest output


MEMBERS = {
    "sigma_pi": Member(lambda: SigmaPi(4, 3, activation=torch.tanh), _sequence(4)),
    "sigma_pi_cubes": Member(
        lambda: SigmaPi(4, 2, conjuncts=[(), (0,), (1, 2), (0, 1, 3), (2, 2, 2)]), _sequence(4)
    ),
    "gating": Member(lambda: Gating(6, 3), _pair(6, 3), weights=True),
    "gating_signed": Member(
        lambda: Gating(6, network=nn.Sequential(nn.Linear(6, 1), nn.Tanh()), kind="signed"),
        _sequence(6),
        weights=True,
    ),
    "bilinear": Member(lambda: Bilinear(5, 3, 2), _pair(5, 3)),
    "bilinear_low_rank": Member(lambda: LowRankBilinear(5, 3, 2, rank=4), _pair(5, 3)),
    "kernel_generator": Member(
        lambda: KernelGenerator(2, 3, (3, 5)), lambda batch, length: (torch.randn(batch, 4),)
    ),
    "generated_conv": Member(
        lambda: GeneratedConv2d(KernelGenerator(2, 3, 3), 4, 6, stride=2),
        lambda batch, length: (torch.randn(batch, 4, length, 7),),
    ),
    "hyper_lstm": Member(
        lambda: HyperLSTM(4, 6, hyper_width=3), _sequence(4), weights=True, recurrent=True
    ),
    "hyper_lstm_plain": Member(
        lambda: HyperLSTM(4, 6, hyper_width=3, layer_norm=False, forget_bias=0.0),
        _sequence(4),
        weights=True,
        recurrent=True,
    ),
    "fast_weights": Member(
        lambda: FastWeights(4, 3, 5), _sequence(4), weights=True, recurrent=True
    ),
    "fast_weights_delta": Member(
        lambda: FastWeights(4, 3, 5, rule="delta"), _sequence(4), weights=True, recurrent=True
    ),
    "fast_weights_squashed": Member(
        lambda: FastWeights(4, 3, 5, squash=torch.tanh), _sequence(4), recurrent=True
    ),
    "ntm": Member(
        lambda: NTM(4, 3, slots=7, slot_width=5, controller=LSTMController(9, 6)),
        _sequence(4),
        weights=True,
        recurrent=True,
    ),
    "ntm_heads": Member(
        lambda: NTM(
            4,
            3,
            slots=6,
            slot_width=2,
            read_heads=2,
            write_heads=3,
            shifts=2,
            controller=FeedForwardController(8, 6),
        ),
        _sequence(4),
        weights=True,
        recurrent=True,
    ),
    "dnc": Member(
        lambda: DNC(4, 3, slots=7, slot_width=5, read_heads=2, controller=LSTMController(14, 6)),
        _sequence(4),
        weights=True,
        recurrent=True,
    ),
    "dnc_feed_forward": Member(
        lambda: DNC(4, 3, slots=6, slot_width=2, controller=FeedForwardController(6, 6)),
        _sequence(4),
        weights=True,
        recurrent=True,
    ),
}
