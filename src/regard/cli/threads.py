"""Which device and how many threads a command uses.

On a busy machine, threads that wait for each other are slow.
"""

from __future__ import annotations

import os

import torch

from regard.errors import RegardError


def use_free_cores(threads: int = 0) -> None:
    """Give torch as many threads as cores are free, at least one; `OMP_NUM_THREADS` goes before.

    Two threads that share a core with other work take many times as long as one.

    Args:
        threads: exactly so many, when not 0: those a resumed training began with.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    if not threads:
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        threads = max(1, min(torch.get_num_threads(), round((os.cpu_count() or 1) - busy)))
    torch.set_num_threads(threads)


def checked_device(name: str) -> torch.device:
    """A device by its name, which must be there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise RegardError(f"--device {name} cannot be used: {reason}") from error
    return device
