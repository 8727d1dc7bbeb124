"""Whether calls of a module are observed, in which case fast paths must not bypass them."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module


def is_observed(module: nn.Module) -> bool:
    """Whether hooks or a capture see calls of this module, or a graft replaces its `forward`."""
    own = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    every = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    return bool(own or every)
