"""How outputs and weights are compared, and how targets become parameters of a test."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from . import Case, Target


def params(targets: Iterable[Target]) -> list[Any]:
    """With the marks that a target needs: its own warnings, and no others, are let pass."""
    found = []
    for target in targets:
        marks = [pytest.mark.filterwarnings(text) for text in target.warns]
        if target.compiled:
            marks.append(pytest.mark.compiled)
        found.append(pytest.param(target, id=target.name, marks=marks))
    return found


def sampled(targets: Iterable[Target], every: int = 4) -> list[Any]:
    """The same, all but one of so many marked slow."""
    slow = pytest.mark.slow
    return [
        each
        if index % every == 0
        else pytest.param(*each.values, id=each.id, marks=[*each.marks, slow])
        for index, each in enumerate(params(targets))
    ]


def tensors(output: Any) -> list[Tensor]:
    """Every tensor of what a model returned; nested tensors as padded ones."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    return [leaf.to_padded_tensor(0.0) if leaf.is_nested else leaf for leaf in leaves]


def same(left: Any, right: Any) -> None:
    """Bit for bit; NaN is the same as NaN."""
    ours, theirs = tensors(left), tensors(right)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def close(output: Any, expected: Any) -> None:
    """Equal up to rounding in the type of the output; an output may have more than is expected."""
    for a, b in zip(tensors(output), tensors(expected)):
        atol = 2e-2 if a.dtype in (torch.bfloat16, torch.float16) else 5e-6
        torch.testing.assert_close(a, b, rtol=1e-5, atol=atol, check_dtype=False)


def compare(case: Case, found: list[Tensor]) -> None:
    """The weights of every record with the truth. NaN in a truth: any number may stand there."""
    assert [tuple(w.shape) for w in found] == [tuple(w.shape) for w in case.truth]
    for site, (weights, truth) in enumerate(zip(found, case.truth)):
        assert weights.dtype in (torch.float32, torch.float64)
        assert weights.isfinite().all()
        error = (weights.double() - truth).nan_to_num(0.0).abs().max().item()
        assert error <= case.tolerance, f"site {site}: off by {error:.2e}"
