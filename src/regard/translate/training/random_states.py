"""The random numbers of torch, numpy and Python: taken down, put back, left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy
import torch
from torch import Tensor


def random_states() -> dict[str, Tensor]:
    """Where every generator stands, as tensors."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = numpy.random.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.tensor([*map(int, keys), int(position), int(has_gauss)]),
        "numpy_gauss": torch.tensor(float(cached), dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Tensor]) -> None:
    """Put every generator where it stood."""
    has_python_gauss, gauss = states["python_gauss"].tolist()
    words = tuple(states["python"].tolist())
    random.setstate((3, words, gauss if has_python_gauss else None))
    *keys, position, has_gauss = states["numpy"].tolist()
    uniform = numpy.array(keys, dtype=numpy.uint32)
    cached = states["numpy_gauss"].item()
    numpy.random.set_state(("MT19937", uniform, position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def seed_all(seed: int) -> None:
    """Begin every generator from one number."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Whatever happens inside, every generator stands afterwards where it stood before."""
    before = random_states()
    try:
        yield
    finally:
        restore_random_states(before)
