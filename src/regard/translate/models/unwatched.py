"""Whether a module may be gone round: its work done for it, without a call."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as everywhere


def unwatched(module: nn.Module) -> bool:
    """Nobody hears this module called (hooks, a capture) or answers in its stead (a graft)."""
    own = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    of_all = everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks
    return not (own or of_all)
