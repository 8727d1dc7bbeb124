"""Schedules of the learning rate and of teacher forcing."""

from __future__ import annotations

import math

from regard.translate.config import ForcingConfig, ScheduleConfig


def rate_factor(config: ScheduleConfig, step: int, total: int | None, epochs: float) -> float:
    """The factor of the learning rate at a step.

    >>> inverse = ScheduleConfig("inverse-square-root", warmup=100)
    >>> [rate_factor(inverse, step, 1000, 0.0) for step in (0, 49, 99, 399)]
    [0.01, 0.5, 1.0, 0.5]
    >>> luong = ScheduleConfig("halving", halve_after=5.0)
    >>> [rate_factor(luong, epoch * 50, 1000, epoch) for epoch in (0, 4, 5, 6)]
    [1.0, 1.0, 0.5, 0.25]

    Args:
        config: the schedule.
        step: how many steps have been made.
        total: how many there will be; None if that is not known, as `linear` and `cosine` need.
        epochs: how many epochs have been made, the current one in part.
    """
    now = step + 1
    if now <= config.warmup:
        return now / config.warmup
    if config.name == "inverse-square-root":
        return math.sqrt(max(config.warmup, 1) / now)
    if config.name == "halving":
        past = epochs - config.halve_after
        return 1.0 if past < 0 else 0.5 ** (math.floor(past / config.halve_every) + 1)
    if total is None or config.name == "constant":
        return 1.0
    after = min((now - config.warmup) / max(total - config.warmup, 1), 1.0)
    if config.name == "linear":
        return 1 - (1 - config.floor) * after
    return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * after))


def forcing_at(config: ForcingConfig, step: int) -> float:
    """The probability of teacher forcing at a step (Bengio et al., 2015, section 2.4).

    Their decays run from 1 to 0. Here they run from `start` to `end`: `linear` over `steps` steps,
    `exponential` (kⁱ) to a hundredth of the way left, and `inverse-sigmoid` (k / (k + exp(i / k)))
    with its middle at half of them.

    >>> linear = ForcingConfig("linear", start=1.0, end=0.5, steps=100)
    >>> [forcing_at(linear, step) for step in (0, 50, 100, 1000)]
    [1.0, 0.75, 0.5, 0.5]
    """
    if config.name == "constant":
        return config.start
    share = min(step / config.steps, 1.0)
    if config.name == "exponential":
        left = math.exp(math.log(0.01) * step / config.steps)
    elif config.name == "inverse-sigmoid":
        left = _inverse_sigmoid(step, config.steps)
    else:
        left = 1 - share
    return config.end + (config.start - config.end) * left


def least_forcing(config: ForcingConfig) -> float:
    """The lowest probability of a training."""
    return config.start if config.name == "constant" else min(config.start, config.end)


def _inverse_sigmoid(step: int, steps: int) -> float:
    """k / (k + exp(i / k)); k is chosen so that the half, at i = k ln k, is at steps / 2."""
    k = _solve_k(steps / 2)
    slope = step / k
    return 0.0 if slope > 700 else k / (k + math.exp(slope))


def _solve_k(middle: float) -> float:
    """The k with k ln k = middle, by Newton's method; k ln k grows from k = 1/e on."""
    k = max(middle, 1.0) + 1.0
    for _ in range(50):
        k -= (k * math.log(k) - middle) / (math.log(k) + 1)
    return k
