"""Gates of convolutional networks, for `capture(gates=True)`.

A gate is a tensor in [0, 1] that was computed from a tensor x and multiplies x by broadcasting:
over space, with a number per channel (squeeze-and-excitation), or over channels, with a number per
position (the spatial half of CBAM). The criteria:

- its operators bound its values: a sigmoid, a hard sigmoid, exp(−z²), or arithmetic such as
  relu6(z + 3) / 6 and 1 / (1 + exp(−z));
- it was computed from x;
- the product broadcasts it. If x has a single position nothing is broadcast, and a pooling on the
  way from x tells squeeze-and-excitation from x · sigmoid(x).

Not gates by these rules: those of an LSTM and gated linear units (no broadcasting), layer scale,
dropout and padding masks (not computed from x), norms (not bounded), softmaxes (attention).
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from regard.record.gradient import OutputGradient
from regard.record.stored_attention import Layout, StoredWeights, detached
from regard.tracing.collector import Collector
from regard.tracing.dataflow.tags import local_tensor
from regard.tracing.module_paths import CallSite

NO_VALUES = "a gate multiplies, and mixes no values"

Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)
_SPANS: dict[str, Bounds] = {
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "square": (0.0, math.inf),
    "softplus": (0.0, math.inf),
}
_SAME = ("clone", "_to_copy", "upsample_nearest2d", "upsample_bilinear2d")
_POOLS = ("mean", "sum", "amax", "max", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d")

_numbers = itertools.count(1)


class _Node:
    """The result of an operator and its inputs; later nodes have higher numbers."""

    __slots__ = ("bounds", "call_site", "number", "parents", "pools", "recorded")

    def __init__(self, parents: tuple[_Node, ...] = (), operator: str = "") -> None:
        self.number = next(_numbers)
        self.parents = parents
        self.pools = operator in _POOLS
        self.bounds = _ANY
        self.call_site: tuple[CallSite, str] | None = (
            None  # where values came to lie in [0, 1], and how
        )
        self.recorded = False


class _Thread(threading.local):
    first = 0  # the first node number of this thread's pass


class GateCollector(Collector):
    """Records gates beside attention."""

    learnable = False  # the learned path watches attention alone
    sought = "attention and no gate"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._nodes: WeakKeyDictionary[Any, _Node] = WeakKeyDictionary()  # by storage
        self._thread = _Thread()

    def finish_pass(self) -> None:
        """A pass has ended: forget its nodes."""
        super().finish_pass()
        self._thread.first = next(_numbers)

    def close(self, failed: bool) -> None:
        """The capture ends."""
        self._nodes.clear()
        super().close(failed)

    def _after(self, plan: Any, args: Any, kwargs: Any, out: Any, wrapped: bool) -> None:
        super()._after(plan, args, kwargs, out, wrapped)
        try:
            if wrapped:
                args, kwargs, out = tree_map_only(Tensor, local_tensor, (args, kwargs, out))
            self._follow(plan.name.removesuffix("_"), args, kwargs, out, bool(plan.changes))
        except Exception as error:
            self.failed(plan.name, error)

    def _node(self, tensor: Tensor) -> _Node:
        storage = tensor.untyped_storage()
        node = self._nodes.get(storage)
        if node is None or node.number < self._thread.first:
            node = self._nodes[storage] = _Node()
        return node

    def _follow(self, operator: str, args: Any, kwargs: Any, out: Any, in_place: bool) -> None:
        """An operator has run: record where its results come from, and gates in its product."""
        inputs, outputs = _strided(args), _strided((out,))
        storages = {tensor.untyped_storage()._cdata for tensor in inputs}
        if operator == "mul" and len(inputs) == 2:
            self._multiplied(inputs[0], inputs[1], outputs[0])
            self._multiplied(inputs[1], inputs[0], outputs[0])
        for tensor in outputs:
            if in_place or tensor.untyped_storage()._cdata not in storages:  # not a view
                self._add_node(operator, args, kwargs, inputs, tensor)

    def _add_node(
        self, operator: str, args: Any, kwargs: Any, inputs: list[Tensor], output: Tensor
    ) -> None:
        fresh = operator.startswith("new_") or operator.endswith("_like")
        node = _Node(() if fresh else tuple(self._node(tensor) for tensor in inputs), operator)
        node.bounds = _bounds(operator, args, kwargs, lambda tensor: self._node(tensor).bounds)
        if _in_unit(node.bounds):
            node.call_site = next(
                (each.call_site for each in node.parents if _in_unit(each.bounds)), None
            )
            call_site = self.module_paths.call_site() if node.call_site is None else None
            node.call_site = (call_site, operator) if call_site is not None else node.call_site
        self._nodes[output.untyped_storage()] = node

    def _multiplied(self, gate: Tensor, x: Tensor, output: Tensor) -> None:
        """Record a factor that gates the other."""
        node = self._node(gate)
        if node.call_site is None or node.recorded or gate.dim() != x.dim() or x.dim() < 3:
            return
        axes = _axes(gate, x, self._channel_dim(x))
        pooled = None if axes is None else _descends(node, self._node(x))
        if axes is None or pooled is None or not (pooled or _stretched(gate, x)):
            return
        node.recorded = True
        origin, operator = node.call_site
        product = self.module_paths.call_site()
        if product is not None:
            self._record(
                _gating(origin, product, self.module_paths.modules), operator, gate, axes, output
            )

    def _channel_dim(self, x: Tensor) -> int | None:
        """The only dimension that a linear map or a convolution made, if any."""
        dims = self.dataflow.tags.dims(x)
        features = [
            dim
            for dim, pieces in enumerate(dims)
            if dim and any(origin.kind == "feature" for _, origin in pieces)
        ]
        return features[0] if len(features) == 1 else None

    def _record(
        self, call_site: CallSite, operator: str, gate: Tensor, axes: _Axes, output: Tensor
    ) -> None:
        if not self.wants(call_site):
            return
        site = replace(self._site(call_site, operator, "unknown"), attends="self")
        stored = gate if self._makes_graph() else detached(gate)
        sizes = [(gate.shape[dim], gate.stride(dim)) for dim in axes.keys]
        layout_axes = (((gate.shape[0], gate.stride(0)),), (), (), tuple(sizes))
        gradient = None
        if self.grad and gate.requires_grad:
            gradient = OutputGradient(None, _arranged(axes))
            gate.register_hook(gradient.arrived)
        layout = Layout(layout_axes, int(gate.storage_offset()))
        self._add(
            site, StoredWeights(stored, layout, "gate", grid=axes.grid), output, gradient, NO_VALUES
        )


class _Axes(NamedTuple):
    """The dimensions of a gate that are its keys, and their sizes if they are an image's."""

    keys: tuple[int, ...]
    grid: tuple[int, int] | None


def _axes(gate: Tensor, x: Tensor, channel: int | None) -> _Axes | None:
    """The dimensions along which a gate varies: the channel, or all others; else None.

    If the channel is unknown, images are (batch, channel, height, width), unless the gate varies
    along the last dimension alone.
    """
    shape, varies = x.shape, _varying(gate)
    if gate.shape[0] != shape[0]:
        return None
    others = list(range(1, x.dim()))
    if channel is None:
        if x.dim() < 4:
            return None
        channel = x.dim() - 1 if varies == {x.dim() - 1} else 1
    others.remove(channel)
    if varies <= {channel} and gate.shape[channel] == shape[channel]:
        return _Axes((channel,), None)
    if not varies & {channel} and all(gate.shape[dim] == shape[dim] for dim in others):
        grid = (shape[others[0]], shape[others[1]]) if len(others) == 2 else None
        return _Axes(tuple(others), grid)
    return None


def _varying(gate: Tensor) -> set[int]:
    """Dimensions, except the batch, along which a tensor varies."""
    return {dim for dim in range(1, gate.dim()) if gate.shape[dim] > 1 and gate.stride(dim)}


def _stretched(gate: Tensor, x: Tensor) -> bool:
    """Whether the product with x broadcasts the gate."""
    varies = _varying(gate)
    return any(size > 1 and dim not in varies for dim, size in enumerate(x.shape) if dim)


def _descends(node: _Node, origin: _Node) -> bool | None:
    """Whether there is a pooling between `origin` and a node; None if they are unrelated."""
    pooled, waiting = {node.number: False}, [(-node.number, node)]
    while waiting:
        _, latest = heapq.heappop(waiting)  # numbers differ: nodes are never compared
        if latest is origin:
            return pooled[latest.number]
        for parent in latest.parents:
            if parent.number >= origin.number:
                if parent.number not in pooled:
                    heapq.heappush(waiting, (-parent.number, parent))
                pooled[parent.number] = (
                    pooled.get(parent.number, False) or pooled[latest.number] or latest.pools
                )
    return None


def _gating(origin: CallSite, product: CallSite, modules: dict[str, nn.Module]) -> CallSite:
    """The module that gates: where the gate was computed, or the parent of a bare activation or
    `nn.Sequential`; at most the module of the product."""
    path, module = origin.path, origin.module
    while (
        path
        and path != product.path
        and (type(module) is nn.Sequential or not (module._modules or module._parameters))
    ):
        path = path.rpartition(".")[0]
        module = modules.get(path, module)
    return CallSite(path, module, product.source)


def _arranged(axes: _Axes) -> Callable[[Tensor], Tensor]:
    """Bring a gradient of the gate, expanded or not, into (batch, 1, 1, key)."""

    def arrange(arrived: Tensor) -> Tensor:
        rest = [dim for dim in range(1, arrived.dim()) if dim not in axes.keys]
        return arrived.sum(rest).flatten(1)[:, None, None]

    return arrange


def _strided(arguments: Any) -> list[Tensor]:
    """Strided tensors among arguments, also in lists."""
    tensors = []
    for argument in arguments:
        for each in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(each, Tensor) and each.layout == torch.strided and not each.is_nested:
                tensors.append(each)
    return tensors


# -- interval arithmetic


def _in_unit(bounds: Bounds) -> bool:
    return bounds[0] >= 0 and bounds[1] <= 1


def _bounds(operator: str, args: Any, kwargs: Any, bounds_of: Callable[[Tensor], Bounds]) -> Bounds:
    """An interval that contains the result of an operator."""

    def of(argument: Any) -> Bounds:
        if isinstance(argument, int | float):
            return float(argument), float(argument)
        return bounds_of(argument) if isinstance(argument, Tensor) else _ANY

    if operator in _SPANS:
        return _SPANS[operator]
    if not args or not isinstance(args[0], Tensor):
        return _ANY
    low, high = of(args[0])
    if operator in _SAME:
        return low, high
    if operator == "exp":
        return _exp(low), _exp(high)
    if operator == "pow":
        return (0.0, math.inf) if args[1] == 2 else _ANY
    if operator == "neg":
        return -high, -low
    if operator == "reciprocal":
        return (1 / high, 1 / low) if low > 0 else _ANY
    if operator in ("relu", "clamp", "clamp_min", "clamp_max", "hardtanh"):
        least, most = _limits(operator, args, kwargs)
        return min(max(low, least), most), min(max(high, least), most)
    if operator in ("add", "sub", "rsub") and len(args) > 1:
        if kwargs.get("alpha", 1) != 1 or len(args) > 2:
            return _ANY
        below, above = of(args[1])
        if operator == "add":
            return low + below, high + above
        return (below - high, above - low) if operator == "rsub" else (low - above, high - below)
    if operator == "mul":
        products = [_times(left, right) for left in (low, high) for right in of(args[1])]
        return min(products), max(products)
    if operator == "div" and isinstance(args[1], int | float) and args[1] and not kwargs:
        ends = low / args[1], high / args[1]
        return min(ends), max(ends)
    return _ANY


def _limits(operator: str, args: Any, kwargs: Any) -> Bounds:
    """The interval to which an operator clips."""
    if operator == "relu":
        return 0.0, math.inf
    if operator == "hardtanh":
        return (-1.0, 1.0) if len(args) < 3 else (float(args[1]), float(args[2]))
    least = args[1] if len(args) > 1 and operator != "clamp_max" else kwargs.get("min")
    most = args[2] if len(args) > 2 else kwargs.get("max")
    if operator == "clamp_max":
        most = args[1]
    ends = [end for end in (least, most) if end is not None and not isinstance(end, int | float)]
    if ends:  # tensors
        return _ANY
    return float(-math.inf if least is None else least), float(math.inf if most is None else most)


def _exp(number: float) -> float:
    return math.exp(number) if number < 700 else math.inf


def _times(left: float, right: float) -> float:
    return left * right if left and right else 0.0
