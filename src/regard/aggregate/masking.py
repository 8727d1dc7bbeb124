"""Heads multiplied by numbers while a model runs, and the model left as it was.

The numbers enter where the heads do, at the input of the output projection, by a hook.
`nn.MultiheadAttention` never calls its projection as a module, so there the columns of its weight
are multiplied instead: the product is the same, and torch's fast paths stay as they are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.anatomy.head_sites import HeadSite, Sites, head_sites
from regard.anatomy.modes import evaluation_mode
from regard.errors import RegardError, ShapeError, UnavailableError

#: How a model is run on one element of the data.
Run = Callable[[Any, Any], Any]


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

    Gradients by the mask flow. A module that runs several times has the same mask every time.

    Args:
        model: any module with attention that `head_sites` finds.
        mask: (layer, head), layers in the order of `head_sites(model)`; or (head,) by name.
        sites: where the heads are, when the structure does not tell.

    >>> import torch
    >>> from regard.aggregate import head_mask
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(1, 5, 8)
    >>> with head_mask(model, torch.zeros(1, 2)):
    ...     torch.equal(model(x, x, x)[0], model.out_proj.bias.expand(1, 5, 8))
    True
    """
    found = {site.name: site for site in head_sites(model, sites)}
    if isinstance(mask, Tensor):
        if mask.dim() != 2 or len(mask) != len(found):
            raise ShapeError(f"mask {tuple(mask.shape)}, expected (layer, head): {len(found)} rows")
        mask = dict(zip(found, mask))
    factors = {}
    for name, factor in mask.items():
        if name not in found:
            raise RegardError(f"mask: no attention is named {name!r}; there are {list(found)}")
        if tuple(factor.shape) != (found[name].n_heads,):
            raise ShapeError(
                f"mask: {name} has {found[name].n_heads} heads, not {tuple(factor.shape)}"
            )
        factors[Row(found[name])] = factor
    with scaled(factors):
        yield


@contextmanager
def scaled(factors: Mapping[Row, Tensor]) -> Iterator[None]:
    """Heads times factors (head,); calls are counted from the beginning of the block."""
    by_site: dict[HeadSite, dict[int | None, Tensor]] = {}
    for row, factor in factors.items():
        by_site.setdefault(row.site, {})[row.call] = factor
    with ExitStack() as stack:
        for site, by_call in by_site.items():
            if site.in_torch:
                weight, _ = site.weight_and_axis()
                columns = by_call[None].repeat_interleave(site.head_width).to(weight.device)
                stack.enter_context(_in_place_of(site, "weight", _product(weight, columns)))
            else:
                stack.callback(_scale_calls(site, by_call).remove)
        yield


def _scale_calls(site: HeadSite, by_call: Mapping[int | None, Tensor]) -> Any:
    calls = 0

    def scale(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal calls
        calls += 1
        factor = by_call.get(calls, by_call.get(None))
        if factor is None:
            return None
        return (_times(given[0], factor[None], 0), *given[1:])

    return site.projection.register_forward_pre_hook(scale)


@dataclass(frozen=True)
class Leaf:
    """Ones (row, head) that the heads of one call were multiplied by; rows are as a rule examples.

    Where the examples lie along a later axis, or are mixed with windows, rows are something else.
    """

    site: HeadSite
    call: int
    ones: Tensor


@contextmanager
def watched(sites: Iterable[HeadSite]) -> Iterator[list[Leaf]]:
    """Every call's heads times ones of their own for each example, to be differentiated by."""
    seen: list[Leaf] = []
    calls: Counter[str] = Counter()

    def multiplied(site: HeadSite, heads: Tensor, axis: int) -> Tensor:
        calls[site.name] += 1
        kind = torch.promote_types(heads.dtype, torch.float32)
        ones = torch.ones(heads.shape[axis], site.n_heads, dtype=kind, device=heads.device)
        seen.append(Leaf(site, calls[site.name], ones.requires_grad_()))
        return _times(heads, ones, axis)

    with ExitStack() as stack:
        for site in sites:
            if site.in_torch:
                stack.enter_context(_torch_watched(site, multiplied))
            else:
                hook = _watching(site, multiplied)
                stack.callback(site.projection.register_forward_pre_hook(hook).remove)
        yield seen


Multiplied = Callable[[HeadSite, Tensor, int], Tensor]


def _watching(site: HeadSite, multiplied: Multiplied) -> Callable[..., Any]:
    return lambda module, given: (multiplied(site, given[0], 0), *given[1:])


@contextmanager
def _torch_watched(site: HeadSite, multiplied: Multiplied) -> Iterator[None]:
    """Torch's attention projects by the identity, and we project what comes out.

    That the identity asks for a gradient keeps torch off its fast paths, which would not call us.
    """
    weight, _ = site.weight_and_axis()
    bias = site.projection._parameters.get("bias")
    batch_axis = 0 if site.attention.batch_first else 1

    def project(module: nn.Module, given: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        heads = output[0]
        if heads.dim() == 2:  # one example without a batch axis
            heads = multiplied(site, heads[None], 0)[0]
        else:
            heads = multiplied(site, heads, batch_axis)
        return (F.linear(heads, weight, bias), *output[1:])

    identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    with ExitStack() as stack:
        stack.enter_context(_in_place_of(site, "weight", identity.requires_grad_()))
        if bias is not None:
            stack.enter_context(_in_place_of(site, "bias", torch.zeros_like(bias[: len(identity)])))
        stack.callback(site.attention.register_forward_hook(project).remove)
        yield


@contextmanager
def _in_place_of(site: HeadSite, name: str, tensor: Tensor) -> Iterator[None]:
    """Another tensor for a parameter: an attribute of the object comes before its parameters."""
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
    """Multiplied in at least single precision: the gradient by the factor is a long sum."""
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
            stack.callback(module.register_forward_pre_hook(_noting(order, site)).remove)
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


def _noting(order: list[HeadSite], site: HeadSite) -> Callable[..., None]:
    return lambda module, given: order.append(site)


@contextmanager
def undisturbed(
    model: nn.Module, *, evaluating: bool = True, frozen: bool = True
) -> Iterator[None]:
    """Evaluation mode and frozen parameters for a while; modes and random numbers go back."""
    asking = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    with ExitStack() as stack:
        stack.enter_context(same_chance(model))
        stack.enter_context(torch.inference_mode(False))
        if "torch._dynamo" in sys.modules:  # compiled code would not see the hooks
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if evaluating:
            stack.enter_context(evaluation_mode(model))
        stack.callback(_restore_gradients, asking)
        if frozen:
            for parameter, _ in asking:
                parameter.requires_grad_(False)
        yield


def _restore_gradients(asking: Iterable[tuple[Tensor, bool]]) -> None:
    for parameter, asks in asking:
        parameter.requires_grad_(asks)


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """Random numbers drawn inside are drawn again after it."""
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices)):
        yield


def run_on(model: Any, inputs: Any) -> Any:
    """A model on one element of the data: a mapping is named arguments, a tuple several."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    if isinstance(inputs, Tensor):
        return model(inputs)
    raise RegardError(
        f"data: an element is a {type(inputs).__name__}, expected a tensor, a tuple of arguments "
        "or a dictionary of named ones; for others say run=lambda model, inputs: …"
    )


def losses_of(loss: Callable[[Any, Any], Any], output: Any, inputs: Any) -> Tensor:
    """What the loss says, (example,) or one number as a tensor of no axes."""
    found = loss(output, inputs)
    if not isinstance(found, Tensor) or found.dim() > 1 or not found.is_floating_point():
        told = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(
            f"loss gave {told}, expected floating point losses (batch,), one for each example, as "
            "of F.cross_entropy(…, reduction='none'), or one number"
        )
    return found
