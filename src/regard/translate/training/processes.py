"""Device, precision and distribution, carried by Lightning Fabric."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import MissingExtraError
from regard.translate.training.resuming import random_states

_ALONE = timedelta(days=1)  # timeout: the others wait while the first process translates
_PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed"}


def new_fabric(precision: Literal["32", "bf16", "64"]) -> Any:
    """A Fabric for this process: one of several under torchrun, alone otherwise."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.precision.double import DoublePrecision
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError as error:
        raise MissingExtraError("lightning-fabric", "translate") from error

    class Double(DoublePrecision):
        """Loss and gradient are float64 too: lightning's own turns the logits into float32."""

        def convert_output(self, data: Any) -> Any:
            return data

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=local,
        num_nodes=max(ranks // local, 1),
        strategy=DDPStrategy(gradient_as_bucket_view=True, timeout=_ALONE) if ranks > 1 else "auto",
        precision=_PRECISIONS.get(precision),
        plugins=[Double()] if precision == "64" else None,
    )
    fabric.launch()
    return fabric


def sum_over_ranks(fabric: Any, value: Tensor) -> Tensor:
    """The sum of what every process has."""
    total: Tensor = fabric.all_reduce(value, reduce_op="sum")
    return total


def random_states_of_ranks(fabric: Any) -> list[dict[str, Tensor]]:
    """The generators of every process, in the order of their ranks."""
    states = random_states()
    if fabric.world_size == 1:
        return [states]
    by_rank: list[dict[str, Tensor]] = [{} for _ in range(fabric.world_size)]
    for name, tensor in states.items():
        own = tensor.to(fabric.device)
        gathered = [torch.empty_like(own) for _ in by_rank]
        torch.distributed.all_gather(gathered, own)
        for rank, copy in enumerate(gathered):
            by_rank[rank][name] = copy.cpu()
    return by_rank
