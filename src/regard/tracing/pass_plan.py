"""What a full pass of a model consists of, so that later passes of its kind skip the data flow.

A full pass classifies every operator that may attend, by module, line and operator: a fused
operator, a softmax whose result is the weights, a softmax that is not attention, or harmless. That
is a *plan*, and under a plan only those operators are watched. Plans belong to a model, as long as
it lives and is unchanged (`fingerprint`), and to a kind of call (`signature`). A pass with anything
else is not learned, nor is a kind of call whose passes turned out to differ.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from regard.interception import LOCK, Calls
from regard.record.site import Attends
from regard.record.stored_attention import Layout
from regard.tracing.dataflow.tags import storage_address
from regard.tracing.module_paths import CallSite, ModulePaths, related
from regard.types import Kind

Key = tuple[str, str, str]  #: module path, source line, operator
_SOFTMAXES = ("_softmax", "_safe_softmax", "_masked_softmax")
_MOST_PLANS = 64
_MOST_OBJECTS = 4096
_LONGEST = 64


def key_of(call_site: CallSite, operator: str) -> Key:
    return call_site.path, call_site.source, operator


# -- the axes of a softmax's result


class Axis(NamedTuple):
    """A dim of the softmax's result, or a factor of one in which heads and another axis merged."""

    dim: int
    heads: int = 0  # how many heads the dim holds; 0 for a dim that holds none
    whole: bool = True
    inner: bool = False  # of a merged dim: whether this factor varies fastest
    examples: int = 0  # of a merged dim: the batch size beside the heads


class Arrangement(NamedTuple):
    """(batch, head, query, key) by dims of the softmax's result."""

    rank: int
    dim: int  # of the softmax
    single: frozenset[int]  # dims of size one with unknown role
    roles: tuple[tuple[Axis, ...], ...]

    def layout(self, weights: Tensor, dim: int, batches: frozenset[int]) -> Layout | None:
        """The layout of the weights in a result of other sizes; None if it does not fit.

        `batches` are batch sizes of the call, now and when it was learned.
        """
        shape, stride = weights.shape, weights.stride()
        if len(shape) != self.rank or dim % self.rank != self.dim:
            return None
        if any(shape[index] != 1 for index in self.single):
            return None
        axes = []
        for role, parts in enumerate(self.roles):
            axis = []
            for index, heads, whole, inner, examples in parts:
                size, step = shape[index], stride[index]
                if whole:
                    if heads and size != heads:
                        return None
                    axis.append((size, step))
                    continue
                if size % heads:
                    return None
                length = heads if role == 1 else size // heads
                if examples in batches and length != examples:
                    return None
                axis.append((length, step if inner else step * (size // length)))
            axes.append(tuple(axis))
        return Layout(tuple(axes), int(weights.storage_offset()))

    def merged(self, other: Arrangement) -> Arrangement | None:
        """The more specific of two, if they agree."""
        if self.single > other.single:
            return other.merged(self)
        roles = tuple(
            tuple(axis for axis in parts if axis.dim not in other.single) for parts in self.roles
        )
        agree = (self.rank, self.dim, roles) == (other.rank, other.dim, other.roles)
        return self if agree and self.single <= other.single else None


def arrangement_of(layout: Layout, dim: int, geometry: _Geometry) -> Arrangement | None:
    """The roles of the dims by a recorded layout; None if it does not cover the whole result."""
    shape, stride, offset = geometry
    if layout.offset != offset:
        return None
    cover: dict[int, list[tuple[int, int, int, int]]] = {}
    for role, parts in enumerate(layout.axes):
        for order, (size, step) in enumerate(parts):
            if size == 1:
                continue
            dims = [
                (stride[index], index)
                for index in range(len(shape))
                if shape[index] > 1 and 0 < stride[index] <= step < stride[index] * shape[index]
            ]
            if not dims:
                return None
            cover.setdefault(max(dims)[1], []).append((step, size, role, order))
    axes: dict[tuple[int, int], Axis] = {}
    for index, size in enumerate(shape):
        if size == 1:
            continue
        inside = sorted(cover.pop(index, []))
        steps = [part[0] for part in inside]
        sizes = [part[1] for part in inside]
        roles = [part[2] for part in inside]
        if sizes == [size] and steps == [stride[index]]:
            axes[roles[0], inside[0][3]] = Axis(index, size if roles[0] == 1 else 0)
        elif len(inside) == 2 and roles.count(1) == 1 and sizes[0] * sizes[1] == size:
            if steps != [stride[index], stride[index] * sizes[0]]:
                return None
            heads = sizes[roles.index(1)]
            for number, (_, count, role, order) in enumerate(inside):
                examples = count if role == 0 else 0
                axes[role, order] = Axis(index, heads, False, number == 0, examples)
        else:
            return None
    if cover:
        return None
    single = frozenset(index for index, size in enumerate(shape) if size == 1)
    if dim in single:  # one key here, maybe more later
        axes[3, 0] = Axis(dim)
        single -= {dim}
    unknown = [role for role in range(3) if not any(at[0] == role for at in axes)]
    if len(single) == len(unknown) == 1:
        axes[unknown[0], 0] = Axis(min(single), heads=int(unknown[0] == 1))
        single = frozenset()
    role_axes = tuple(tuple(axes[at] for at in sorted(axes) if at[0] == role) for role in range(4))
    if any(axis.dim != dim for axis in role_axes[3]):
        return None
    return Arrangement(len(shape), dim, single, role_axes)


# -- plans


class FusedEntry(NamedTuple):
    """A fused operator."""

    attends: Attends


class SoftmaxEntry(NamedTuple):
    """A softmax whose result is the weights."""

    arrangement: Arrangement
    kind: Kind
    attends: Attends


class OtherEntry(NamedTuple):
    """A softmax that is not attention."""

    reason: str


class _Harmless(enum.Enum):
    HARMLESS = "neither attention nor listed beside it"


HARMLESS = _Harmless.HARMLESS
Entry = FusedEntry | SoftmaxEntry | OtherEntry | _Harmless


class PassPlan(NamedTuple):
    """What a kind of pass consists of."""

    entries: dict[Key, Entry]
    ran: frozenset[str]  # paths of modules that are attention by name, and ran
    unseen: frozenset[str]  # those of them in which no attention was seen
    depends_on_lengths: bool = False  # a softmax of two inputs' scores was not attention

    def entry(self, key: Key) -> Entry | None:
        """The class of an operator; None if the plan does not have it."""
        return self.entries.get(key)

    def fused_at(self, call_site: CallSite) -> FusedEntry | None:
        """Another fused operator at the same line: torch chooses among them."""
        for (path, source, _), entry in self.entries.items():
            if (path, source) == (call_site.path, call_site.source) and isinstance(
                entry, FusedEntry
            ):
                return entry
        return None

    def attends(self) -> bool:
        return any(isinstance(entry, FusedEntry | SoftmaxEntry) for entry in self.entries.values())

    def has_weights(self) -> bool:
        return any(isinstance(entry, SoftmaxEntry) for entry in self.entries.values())

    def missing(self, lines: set[tuple[str, str]]) -> str | None:
        """The path of a module whose attention is not among these lines."""
        for key, entry in self.entries.items():
            if isinstance(entry, FusedEntry | SoftmaxEntry) and key[:2] not in lines:
                return key[0]
        return None


class _Geometry(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Softmax(NamedTuple):
    candidate: Any  # held, so that its id is not reused
    key: Key
    geometry: _Geometry
    storage: ref[Any]


class Lesson:
    """A full pass that is being learned."""

    def __init__(self) -> None:
        self.learnable = True
        self.softmaxes: dict[int, _Softmax] = {}
        self.modules: set[str] = set()  # paths of modules that are attention by name, and ran
        self._met: list[int] = []  # softmaxes, in the order in which they met their values
        self._calls: dict[Key, int] = {}
        self._two_sided: set[Key] = set()  # operators on scores of two inputs
        self._outcomes: dict[Key, list[Entry]] = {}
        self._doubted: set[tuple[str, str]] = set()  # path and line

    def refuse(self) -> None:
        """Something ran that a plan cannot express."""
        self.learnable = False
        self.softmaxes.clear()

    def ran(self, key: Key, two_sided: bool = False) -> None:
        """An operator of interest ran."""
        if self.learnable:
            self._calls[key] = self._calls.get(key, 0) + 1
            if two_sided:
                self._two_sided.add(key)

    def doubt(self, call_site: CallSite) -> None:
        """The labels of a line were withdrawn."""
        self._doubted.add((call_site.path, call_site.source))

    def softmax(self, key: Key, candidate: Any, output: Tensor) -> None:
        """An operator made a candidate."""
        if self.learnable and key[2] in _SOFTMAXES:
            geometry = _Geometry(tuple(output.shape), output.stride(), int(output.storage_offset()))
            storage = ref(output.untyped_storage())
            self.softmaxes[id(candidate)] = _Softmax(candidate, key, geometry, storage)

    def attended(self, key: Key, attends: Attends) -> None:
        self._outcome(key, FusedEntry(attends))

    def recorded(
        self, candidate: Any, layout: Layout, kept: Tensor, kind: Kind, label: Attends
    ) -> None:
        """A candidate was recorded as attention; `kept` has the weights."""
        softmax = self.softmaxes.get(id(candidate))
        storage = None if softmax is None else softmax.storage()
        if softmax is None or storage is None:
            self.refuse()
            return
        own = storage._cdata == kept.untyped_storage()._cdata
        arrangement = arrangement_of(layout, candidate.key, softmax.geometry) if own else None
        if arrangement is None or kind != "distribution":
            self.refuse()
            return
        self._met.append(id(candidate))
        self._outcome(softmax.key, SoftmaxEntry(arrangement, kind, label))

    def rejected(self, candidate: Any) -> None:
        softmax = self.softmaxes.get(id(candidate))
        if softmax is None:
            self.refuse()
        else:
            self._outcome(softmax.key, OtherEntry(candidate.reason or ""))

    def _outcome(self, key: Key, entry: Entry) -> None:
        if self.learnable:
            self._outcomes.setdefault(key, []).append(entry)

    def plan(self) -> PassPlan | None:
        """The plan; None if calls of one line differed, or a plan cannot express the pass."""
        met = set(self._met)
        in_order = [number for number in self.softmaxes if number in met]
        if not self.learnable or self._met != in_order:
            return None
        entries: dict[Key, Entry] = dict.fromkeys(self._calls, HARMLESS)
        for key, outcomes in self._outcomes.items():
            if key[:2] in self._doubted:
                outcomes = [_unlabelled(outcome) for outcome in outcomes]
            entry = _same(outcomes)
            if entry is None or len(outcomes) != self._calls.get(key):
                return None
            entries[key] = entry
        depends = any(not isinstance(entries[key], SoftmaxEntry) for key in self._two_sided)
        seen = {key[0] for key, entry in entries.items() if entry is not HARMLESS}
        unseen = {path for path in self.modules if not any(related(path, s) for s in seen)}
        return PassPlan(entries, frozenset(self.modules), frozenset(unseen), depends)


def _same(outcomes: list[Entry]) -> Entry | None:
    entry = outcomes[0]
    for other in outcomes[1:]:
        if isinstance(entry, SoftmaxEntry) and isinstance(other, SoftmaxEntry):
            both = entry.arrangement.merged(other.arrangement)
            if both is None or entry[1:] != other[1:]:
                return None
            entry = entry._replace(arrangement=both)
        elif entry != other:
            return None
    return entry


def _unlabelled(entry: Entry) -> Entry:
    if isinstance(entry, FusedEntry | SoftmaxEntry):
        return entry._replace(attends="unknown")
    return entry


# -- plans of a model


class Plans:
    """The plans of one model, by kind of call."""

    def __init__(self) -> None:
        self.fingerprint: Any = None
        self._plans: dict[Any, PassPlan] = {}
        self._differing: set[Any] = set()  # kinds of call whose passes differ

    def check(self, fingerprint: Any) -> None:
        """Forget all plans if the model has changed."""
        with LOCK:
            if fingerprint != self.fingerprint:
                self.fingerprint = fingerprint
                self._plans.clear()
                self._differing.clear()

    def get(self, call: Signature) -> PassPlan | None:
        for key in (call.kind, (call.kind, call.sizes), call):
            plan = self._plans.get(key)
            if plan is not None:
                return plan
        return None

    def open(self, call: Signature) -> bool:
        """Whether passes of this kind may be learned."""
        return call.kind not in self._differing

    def learn(self, call: Signature, plan: PassPlan) -> None:
        with LOCK:
            while len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            if call.kind not in self._differing:
                self._plans[call.holds_for(plan)] = plan

    def give_up(self, call: Signature) -> None:
        """Forget passes of this kind, which differ, for good."""
        with LOCK:
            if len(self._differing) >= _MOST_PLANS:
                self._differing.clear()
            self._differing.add(call.kind)
            for key in (call.kind, (call.kind, call.sizes), call):
                self._plans.pop(key, None)


_plans: WeakKeyDictionary[nn.Module, Plans] = WeakKeyDictionary()


def plans_of(model: nn.Module) -> Plans:
    with LOCK:
        return _plans.setdefault(model, Plans())


class Signature(NamedTuple):
    """A kind of call, and the sizes that the roles of its axes may depend on."""

    kind: tuple[Any, ...]
    sizes: tuple[Any, ...]  # batch sizes, axes of size one, integers
    shapes: tuple[Any, ...]  # of every tensor

    def holds_for(self, plan: PassPlan) -> Any:
        """The key of a plan: as much of the call as the plan depends on."""
        if plan.depends_on_lengths:
            return self
        return (self.kind, self.sizes) if plan.has_weights() else self.kind

    @property
    def batches(self) -> frozenset[int]:
        """The first sizes of the tensors."""
        return frozenset(shape[0] for shape in self.shapes if shape)


def signature_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """What determines the operators of a call: its arguments, and the state of torch."""
    form = _Form()
    arguments = form.of(args), form.of(kwargs)
    cuda, cpu = torch.backends.cuda, torch.is_autocast_enabled("cpu")
    state = (
        model.training,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        cpu,
        torch.get_autocast_dtype("cpu") if cpu else None,
        torch.is_autocast_enabled("cuda"),
        cuda.flash_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        torch._C._len_torch_function_stack(),
    )
    return Signature((state, arguments), tuple(form.sizes), tuple(form.shapes))


class _Form:
    """The form of arguments, apart from sizes and contents."""

    def __init__(self) -> None:
        self.sizes: list[Any] = []
        self.shapes: list[Any] = []
        self._seen: dict[Any, int] = {}  # tensors, to recognise repeated ones
        self._storages: dict[int, int] = {}  # to recognise views of one storage

    def of(self, argument: Any) -> Any:
        """Tensors by type, rank and dtype, plain values as they are, other objects by class and
        their plain attributes."""
        kind = type(argument)
        if isinstance(argument, Tensor):
            return self._tensor(argument)
        if kind is dict:
            return tuple((name, self.of(value)) for name, value in argument.items())
        if kind in (tuple, list):
            return kind, tuple(self.of(value) for value in argument)
        if kind is int:
            self.sizes.append(argument)
            return kind, argument if -1 <= argument <= 1 else 2
        if kind in (bool, str, type(None), torch.dtype, torch.device):
            return argument
        if isinstance(argument, dict):  # a tokenizer's batch, a model's output
            return kind, tuple((str(name), self.of(value)) for name, value in argument.items())
        inside = getattr(argument, "__dict__", {})
        return kind, tuple((name, _brief(value)) for name, value in inside.items())

    def _tensor(self, tensor: Tensor) -> Any:
        shape = tensor.shape
        self.sizes.append((shape[:1], tuple(size == 1 for size in shape)))
        self.shapes.append(tuple(shape))
        address = storage_address(tensor)
        start = (address, tensor.storage_offset()) if address else len(self._seen)
        number = self._seen.setdefault(start, len(self._seen))
        storage = self._storages.setdefault(address or number, len(self._storages))
        kind = (type(tensor), len(shape), tensor.dtype, tensor.device, tensor.requires_grad)
        return *kind, number, storage


def _brief(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return -1 <= value <= 1 and value
    return value if kind in (bool, str, type(None)) else kind


_PLAIN = {bool, int, float, str, type(None)}
_PARTS = _PLAIN | {dict, OrderedDict, set, list, tuple, Tensor, nn.Parameter, Calls}
_OF_EVERY_MODULE = len(nn.Module().__dict__)


def fingerprint(module_paths: ModulePaths) -> tuple[Any, ...] | None:
    """A model's modules, their hooks and their plain settings.

    Settings may be in lists, or in objects that modules share, such as a configuration. None if
    there are too many of these.
    """
    parts: list[Any] = []
    others: dict[int, Any] = {}
    for path, module in module_paths.modules.items():
        own = module.__dict__
        values = list(own.values())
        if next(iter(own)) == "training":  # the attributes of every module are no settings
            values = values[_OF_EVERY_MODULE:]
        parts += (path, id(module), type(module), module.training, id(own.get("forward")))
        parts += _settings(values, others)
        if module._forward_hooks or module._forward_pre_hooks:
            local = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            parts += [id(hook) for hook in local]
    if len(others) > _MOST_OBJECTS:
        return None
    for value in others.values():
        parts += _settings(getattr(value, "__dict__", {}).values(), {})
    return tuple(parts)


def _settings(values: Iterable[Any], others: dict[int, Any]) -> list[Any]:
    """Plain values, also in short lists, and functions by id; other objects go to `others`."""
    plain: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            plain.append(value)
        elif kind in (list, tuple, set) and len(value) <= _LONGEST:
            plain.append(tuple(each for each in value if type(each) in _PLAIN))
        elif kind is dict and len(value) <= _LONGEST:
            plain.append(tuple(pair for pair in value.items() if type(pair[1]) in _PLAIN))
        elif kind is FunctionType:
            plain.append(id(value))
        elif kind not in _PARTS:
            others[id(value)] = value
    return plain
