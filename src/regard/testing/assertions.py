"""Assertions that several laws use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class Unchecked(Exception):
    """A law that cannot be checked on this module, with the reason."""


def largest(tensor: Tensor) -> float:
    """The largest absolute value, 0 for an empty tensor."""
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def close(got: Tensor, want: Tensor, tolerance: float, what: str) -> None:
    """Fail with the largest difference where two tensors are not close."""
    assert got.shape == want.shape, (
        f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    )
    got, want = got.detach().double(), want.detach().double()
    assert not got.isnan().any(), f"{what}: NaN"
    difference, allowed = largest(got - want), tolerance * max(1.0, largest(want))
    assert difference <= allowed, f"{what}: differs by {difference:.3g}, allowed {allowed:.3g}"


def refuses(call: Callable[[], Any], *words: str) -> None:
    """Fail unless the call raises an error whose text has all the words."""
    try:
        call()
    except Unchecked:
        raise
    except Exception as error:
        missing = [word for word in words if word not in str(error)]
        text = f"{type(error).__name__}: {error}"
        assert not missing, f"the error does not say {', '.join(missing)}; it says: {text}"
    else:
        raise AssertionError(
            f"wrong input was accepted; expected an error that says {', '.join(words)}"
        )


def finite_gradients(
    module: nn.Module, loss: Tensor, cause: str, required: Mapping[str, Tensor] | None = None
) -> None:
    """Fail where a gradient is not finite, or a required tensor has none."""
    if loss.requires_grad:
        loss.backward()
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), f"{cause}: gradient of {name} is not finite"
    for name, tensor in (required or {}).items():
        assert tensor.grad is not None, f"{cause}: {name} has no gradient"
        assert tensor.grad.isfinite().all(), f"{cause}: gradient of {name} is not finite"
