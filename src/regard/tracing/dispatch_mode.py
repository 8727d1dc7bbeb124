"""The dispatch mode: sees every operator of a run, and changes none."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from regard.interception import SPELLINGS
from regard.tracing import registry
from regard.tracing.dataflow.dataflow import Rule
from regard.tracing.dataflow.operator_rules import default_rule, rule_of
from regard.tracing.operators import FLEX_ARGUMENTS, Reader, reader_of
from regard.tracing.registry import Reads, registered

_OWN = ("aten", "prim", "prims", "profiler", "quantized", "c10d", "_c10d_functional", "mkldnn")


class OperatorPlan(NamedTuple):
    """How to handle an operator."""

    run: Any  # the operator, without its Python wrapper if it has one
    follow: bool = False  # whether it needs handling
    composite: bool = False  # arrives whole under inference mode: to be decomposed
    changes: tuple[int, ...] = ()  # arguments it changes in place
    rule: Rule | None = None
    reader: Reader | None = None
    reads: Reads | None = None
    names: tuple[str, ...] = ()
    name: str = ""
    looks_like_attention: bool = False
    spelling: bool = False  # attention can be spelled with it
    overload: bool = False  # not the default overload
    attends: bool = False  # may be attention: all that matters between passes


_plans: dict[
    int, dict[int, tuple[OperatorPlan, Any]]
] = {}  # of each operator, by version of the registry


def plan_of(func: Any) -> OperatorPlan:
    """How to handle an operator, by its name and schema."""
    if isinstance(func, HigherOrderOperator):
        name = func._name
        reader = reader_of(name)
        if reader is None:
            return OperatorPlan(func)
        return OperatorPlan(
            func, True, reader=reader, names=FLEX_ARGUMENTS, name=name, attends=True
        )
    if not isinstance(func, OpOverload):
        return OperatorPlan(func)
    run = func._op if type(func) is OpOverload else func
    full = func._schema.name
    space, _, name = full.partition("::")
    changes = tuple(
        index
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    reads = registered(full)
    if space not in _OWN:
        reader = reader_of(full) if reads is None else None  # a registered one comes first
        looks = any(word in name.lower() for word in ("attention", "attn", "mha", "sdpa"))
        looks = looks and "backward" not in name and "bwd" not in name
        unread = looks and reads is None and reader is None
        names = tuple(argument.name for argument in func._schema.arguments)
        return OperatorPlan(
            run,
            follow=True,
            changes=changes,
            rule=None if changes or _is_view(func) else default_rule,
            reader=reader,
            reads=reads,
            names=names,
            name=full,
            looks_like_attention=unread,
            attends=bool(reads or unread),
        )
    composite = space == "aten" and _is_composite(func)
    reader = reader_of(name) if reads is None and func._overloadname == "default" else None
    looks = reader is None and (
        reader_of(name) is not None  # another overload of it, as of quantised keys
        or name in ("_efficient_attention_forward", "_cudnn_attention_forward")
        or name in ("_triton_multi_head_attention", "_triton_scaled_dot_attention")
    )
    rule = rule_of(name) or (None if changes or _is_view(func) else default_rule)
    return OperatorPlan(
        run,
        follow=bool(composite or changes or rule or reader or reads or looks),
        composite=composite,
        changes=changes,
        rule=rule,
        reader=reader,
        reads=reads,
        names=tuple(argument.name for argument in func._schema.arguments),
        name=name,
        looks_like_attention=looks,
        spelling=name in SPELLINGS,
        overload=func._overloadname != "default",
        attends=bool(reader or reads or looks) or name in SPELLINGS,
    )


def _is_composite(func: OpOverload) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
    except RuntimeError:  # a Python-only operator, as sym_size of nested tensors
        return False


def _is_view(func: OpOverload) -> bool:
    unsafe = func._schema.name == "aten::_unsafe_view"  # a view whose schema does not say so
    return unsafe or any(returned.alias_info is not None for returned in func._schema.returns)


class _EndedCapture:
    """Stands for a collector whose capture has ended."""

    closed = True


class CaptureMode(TorchDispatchMode):
    """Runs every operator unchanged, and reports it to a collector.

    One object per thread. Its `with` pushes and pops it on the thread's stack without torch's
    flags that count modes for the compiler: they are per process, and threads that enter and leave
    in turn would leave them set. Nothing is compiled meanwhile.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Skip the wrapper that keeps the compiler out of the mode: nothing is compiled during a
        capture, and it would cost two Python frames per operator."""
        return False

    def __init__(self, collector: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.collector = collector
        self.idle = False  # between learned passes: follow nothing until attention runs
        self.shared = collector.block.in_task  # other coroutines may run in this thread
        if registry.version not in _plans:
            _plans.clear()
        self.plans = _plans.setdefault(registry.version, {})

    def __enter__(self) -> CaptureMode:
        _push_mode(self)
        return self

    def __exit__(self, kind: Any = None, error: Any = None, where: Any = None) -> None:
        _pop_mode()

    @property
    def on_top(self) -> bool:
        """Whether no other mode of this thread was entered later."""
        return _get_current_dispatch_mode() is self

    @property
    def on_stack(self) -> bool:
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def leave(self) -> bool:
        """Remove it from this thread's stack, at any depth; False if it is not there."""
        if not self.on_stack:
            return False
        self._put_back(self._take_off())
        return True

    def enter_again(self) -> None:
        """Push it again at its depth, so that torch sees the stack again."""
        above = self._take_off()
        _push_mode(self)
        self._put_back(above)

    def pass_through(self) -> None:
        """Ignore all operators from now on."""
        self.collector = _EndedCapture()

    def _take_off(self) -> list[TorchDispatchMode]:
        """Pop it, and return the modes above it."""
        above = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        return above

    @staticmethod
    def _put_back(above: list[TorchDispatchMode]) -> None:
        for mode in reversed(above):
            _push_mode(mode)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        entry = self.plans.get(id(func))  # its hash would cost a Python frame
        if entry is None:
            entry = self.plans[id(func)] = (plan_of(func), func)  # held, so the id is not reused
        plan = entry[0]
        collector = self.collector
        if not plan.follow or collector.closed:
            return plan.run(*args, **kwargs)
        if torch._C._current_graph_task_id() != -1:  # backward, and what it computes again
            return plan.run(*args, **kwargs)
        if plan.composite and not _has_own_kernel(args):
            with self:
                return func.decompose(*args, **kwargs)
        if self.shared and not collector.block.here():  # another coroutine's
            if plan.changes:
                collector.before_change(plan, args, kwargs)
            return plan.run(*args, **kwargs)
        if self.idle:
            if plan.attends and collector.module_paths.call_site() is not None:
                self.idle = False
                return collector.read_alone(plan, args, kwargs)
            if plan.changes:
                collector.before_change(plan, args, kwargs)
            return plan.run(*args, **kwargs)
        if not collector.ready:
            collector.get_ready()
        if collector.waiting:
            collector.settle_hooks()
        if plan.changes:
            collector.before_change(plan, args, kwargs)
        out = plan.run(*args, **kwargs)
        collector.after(plan, args, kwargs, out, wrapped=bool(types))
        return out


def _has_own_kernel(args: tuple[Any, ...]) -> bool:
    """Whether an unusual tensor (nested, sparse) has its own kernel of a composite operator."""
    return any(isinstance(arg, Tensor) and (arg.is_nested or arg.is_sparse) for arg in args)
