"""Two processes that train a grafted model together; run by `test_graft_training.py`."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from graft_models import Small, pooling, reusing, wake

from regard.errors import UnavailableError
from regard.grafting import graft


def built(checkpointing: str = "") -> Small:
    torch.manual_seed(0)
    model = Small(checkpointing=checkpointing)
    model.checkpointed = range(2)
    for part in (pooling(), reusing()):
        graft(model, part)
        wake(part)
    return model


def train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(1)
    x, keep = torch.randn(4, 5, 4), torch.ones(4, 5, dtype=torch.long)
    alone = built()
    alone(x, keep).square().mean().backward()
    expected = {name: one.grad for name, one in alone.named_parameters()}
    for checkpointing in ("", "again"):
        model = DistributedDataParallel(built(checkpointing))
        half = slice(2 * rank, 2 * rank + 2)
        model(x[half], keep[half]).square().mean().backward()
        for name, parameter in model.module.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)
    with pytest.raises(UnavailableError, match="already wrapped by DistributedDataParallel"):
        graft(model, pooling())
    print("equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forked: torch is imported once.
    mp.start_processes(train, (sys.argv[1],), nprocs=2, start_method="fork")
