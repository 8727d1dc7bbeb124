"""Heads multiplied by factors while a model runs.

A hook scales the input of the output projection, where the heads lie side by side.
`nn.MultiheadAttention` never calls its projection as a module, so there the columns of its weight
are scaled instead: the product is the same, and torch's fast paths stay on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.anatomy.head_sites import HeadSite, Sites, head_sites
from regard.errors import RegardError, ShapeError, UnavailableError


@dataclass(frozen=True)
class Row:
    """The heads of one attention: in all its calls, or in one of them (from 1)."""

    site: HeadSite
    call: int | None = None

    @property
    def name(self) -> str:
        """The path of the attention, and the number of the call where there are several."""
        return self.site.name if self.call is None else f"{self.site.name}#{self.call}"


@contextmanager
def head_mask(
    model: nn.Module, mask: Tensor | Mapping[str, Tensor], *, sites: Sites = None
) -> Iterator[None]:
    """Multiply the output of each head by a number while a model runs.

    The mask may require gradients. A module that runs several times is masked every time.

    Args:
        model: any module with attention that `head_sites` finds.
        mask: (layer, head), layers in the order of `head_sites(model)`; or (head,) by name.
        sites: where the heads are, when the structure does not tell.

    >>> import torch
    >>> from regard.heads import head_mask
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with head_mask(model, torch.zeros(1, 2)):
    ...     torch.equal(model(x, x, x)[0], model.out_proj.bias.expand(1, 5, 8))
    True
    """
    by_name = {site.name: site for site in head_sites(model, sites)}
    if isinstance(mask, Tensor):
        if mask.dim() != 2 or len(mask) != len(by_name):
            raise ShapeError(
                f"mask {tuple(mask.shape)}, expected (layer, head): {len(by_name)} rows"
            )
        mask = dict(zip(by_name, mask))
    factors = {}
    for name, factor in mask.items():
        if name not in by_name:
            raise RegardError(f"mask: no attention is named {name!r}; there are {list(by_name)}")
        site = by_name[name]
        if tuple(factor.shape) != (site.n_heads,):
            raise ShapeError(f"mask: {name} has {site.n_heads} heads, not {tuple(factor.shape)}")
        factors[Row(site)] = factor
    with scaled_heads(factors):
        yield


@contextmanager
def scaled_heads(factors: Mapping[Row, Tensor]) -> Iterator[None]:
    """Scale heads by factors (head,); calls are counted from the beginning of the block."""
    by_site: dict[HeadSite, dict[int | None, Tensor]] = {}
    for row, factor in factors.items():
        by_site.setdefault(row.site, {})[row.call] = factor
    with ExitStack() as stack:
        for site, by_call in by_site.items():
            if site.in_torch:
                weight, _ = site.weight_and_axis()
                columns = by_call[None].repeat_interleave(site.head_width).to(weight.device)
                stack.enter_context(_substituted(site, "weight", _product(weight, columns)))
            else:
                stack.callback(_scale_calls(site, by_call).remove)
        yield


def _scale_calls(site: HeadSite, by_call: Mapping[int | None, Tensor]) -> Any:
    calls = 0

    def scale(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal calls
        calls += 1
        factor = by_call.get(calls, by_call.get(None))
        if factor is None:
            return None
        return (_times(args[0], factor[None], 0), *args[1:])

    return site.projection.register_forward_pre_hook(scale)


@dataclass(frozen=True)
class Leaf:
    """Ones (row, head) that the heads of one call were multiplied by.

    Rows are examples, except where these lie along a later axis or are split into windows.
    """

    site: HeadSite
    call: int
    ones: Tensor


@contextmanager
def head_leaves(sites: Iterable[HeadSite]) -> Iterator[list[Leaf]]:
    """Multiply every call's heads by ones, a leaf for each call, to be differentiated by."""
    leaves: list[Leaf] = []
    calls: Counter[str] = Counter()

    def multiply(site: HeadSite, heads: Tensor, axis: int) -> Tensor:
        calls[site.name] += 1
        kind = torch.promote_types(heads.dtype, torch.float32)
        ones = torch.ones(heads.shape[axis], site.n_heads, dtype=kind, device=heads.device)
        leaves.append(Leaf(site, calls[site.name], ones.requires_grad_()))
        return _times(heads, ones, axis)

    with ExitStack() as stack:
        for site in sites:
            if site.in_torch:
                stack.enter_context(_torch_leaves(site, multiply))
            else:
                hook = _leaf_hook(site, multiply)
                stack.callback(site.projection.register_forward_pre_hook(hook).remove)
        yield leaves


Multiply = Callable[[HeadSite, Tensor, int], Tensor]


def _leaf_hook(site: HeadSite, multiply: Multiply) -> Callable[..., Any]:
    return lambda module, args: (multiply(site, args[0], 0), *args[1:])


@contextmanager
def _torch_leaves(site: HeadSite, multiply: Multiply) -> Iterator[None]:
    """Let torch's attention project by the identity, and project its output afterwards.

    The identity requires a gradient, which keeps torch off its fast paths: they call no hook.
    """
    weight, _ = site.weight_and_axis()
    bias = site.projection._parameters.get("bias")
    batch_axis = 0 if site.attention.batch_first else 1

    def project(module: nn.Module, args: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        heads = output[0]
        if heads.dim() == 2:  # one example without a batch axis
            heads = multiply(site, heads[None], 0)[0]
        else:
            heads = multiply(site, heads, batch_axis)
        return (F.linear(heads, weight, bias), *output[1:])

    identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    with ExitStack() as stack:
        stack.enter_context(_substituted(site, "weight", identity.requires_grad_()))
        if bias is not None:
            stack.enter_context(_substituted(site, "bias", torch.zeros_like(bias[: len(identity)])))
        stack.callback(site.attention.register_forward_hook(project).remove)
        yield


@contextmanager
def _substituted(site: HeadSite, name: str, tensor: Tensor) -> Iterator[None]:
    """Put a tensor in place of a parameter: the instance's attributes hide its parameters."""
    module = site.projection
    if name in module.__dict__:
        raise RegardError(f"{site.name}: a mask of its heads is already in place")
    module.__dict__[name] = tensor
    try:
        if getattr(module, name) is not tensor:
            raise UnavailableError(
                f"{site.name}: {name} of the output projection is parametrised and cannot be masked"
            )
        yield
    finally:
        del module.__dict__[name]


def _times(heads: Tensor, factor: Tensor, axis: int) -> Tensor:
    """Heads (…, head × width) times factors (row, head), rows along an axis."""
    shape = [1] * (heads.dim() + 1)
    shape[axis], shape[-2] = len(factor), factor.shape[1]
    split = heads.unflatten(-1, (factor.shape[1], -1))
    return _product(split, factor.to(heads.device).view(shape)).flatten(-2)


def _product(tensor: Tensor, factor: Tensor) -> Tensor:
    """Multiply in at least single precision: the gradient by the factor is a long sum."""
    kind = torch.promote_types(tensor.dtype, torch.float32)
    return (tensor.to(kind) * factor.to(kind)).to(tensor.dtype)


def rows_of(sites: Sequence[HeadSite], run: Callable[[], Any]) -> list[Row]:
    """A row for each call, in the order in which they happen in one run."""
    order: list[HeadSite] = []
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        # the fast paths of a torch layer do not call its attention
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        for site in sites:
            module = site.attention if site.in_torch else site.projection
            stack.callback(module.register_forward_pre_hook(_append_site(order, site)).remove)
        with torch.no_grad():
            run()
    if not order:
        raise UnavailableError(
            f"none of the {len(sites)} output projections that were found ran: the model does not "
            "call them as modules; the first is that of " + repr(sites[0].name)
        )
    total, calls = Counter(order), Counter[HeadSite]()
    rows = []
    for site in order:
        calls[site] += 1
        rows.append(Row(site, calls[site] if total[site] > 1 else None))
    return rows


def _append_site(order: list[HeadSite], site: HeadSite) -> Callable[..., None]:
    return lambda module, args: order.append(site)
