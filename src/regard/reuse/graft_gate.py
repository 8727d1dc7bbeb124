"""A gate on an image in somebody else's convolutional network."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError
from regard.masks import Mask
from regard.reuse.graft_part import Call, Part, check_names, dtype_of
from regard.reuse.graft_sites import Place

Image = Float[Tensor, "batch channel height width"]


class GateLayer(Part):
    """x + γ · (gate · x − x), at the output of `into`, with one number γ that starts at 0.

    Then the output is x, bit for bit: what is computed is x − γ · (x − gate · x), since −0.0 + 0.0
    is 0.0, but −0.0 − 0.0 is −0.0. Where x or the gate is infinite or NaN the difference counts as
    0, so that 0 · ∞ does not make NaN of what the network had: there x stays as it is, also later.

    At γ = 0 the gate itself has no gradient: the first step of training moves γ alone.

    Args:
        gate: a gate of `regard.vision`, as `SqueezeExcitation` or `CBAM`; or any module of kind
            "gate" whose output is the image times numbers in [0, 1].
        into: the place whose output (batch, channel, height, width) is gated.

    >>> import torch
    >>> from regard.reuse import GateLayer, graft
    >>> from regard.vision import SqueezeExcitation
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU()).eval()
    >>> x = torch.randn(2, 3, 9, 7)
    >>> before = model(x)
    >>> grafted = graft(model, GateLayer(SqueezeExcitation(16), into="0"))
    >>> torch.equal(model(x), before)
    True
    """

    reads_states = False
    takes_images = True

    def __init__(self, gate: nn.Module, *, into: str) -> None:
        super().__init__()
        if not isinstance(gate, nn.Module) or getattr(gate, "kind", None) != "gate":
            shown = gate.__name__ if isinstance(gate, type) else type(gate).__name__
            raise RegardError(
                f"GateLayer: gate is {shown}, expected a gate of regard.vision, as "
                "SqueezeExcitation(channels) or CBAM(channels)"
            )
        check_names("GateLayer", into, into, None)
        self.gate = gate
        self.gamma = nn.Parameter(torch.zeros(()))
        self.reads = self.into = into

    def watch(
        self, place: Place, module: nn.Module, call: Call, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Run the module: its output is all that is needed."""
        return call(*args, **kwargs), None

    def forward(self, state: Image, seen: None, mask: Mask | None) -> Image:
        """The image, gated as far as γ says."""
        image = state.to(dtype_of(self.gate, state.dtype))
        gated: Tensor = self.gate(image).output
        taken = torch.nan_to_num(image - gated, nan=0.0, posinf=0.0, neginf=0.0)
        return state - (self.gamma * taken).to(state.dtype)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        return f"into '{self.into}'"
