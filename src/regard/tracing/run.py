"""One `with`: the mode, the hooks and the surroundings, put in place and taken back.

The dispatcher's state changes at the `with` itself, or around one call of a module and balanced:
torch restores whole sets of dispatch keys when it leaves inference mode, and a mode that was popped
in between would leave every operator of the thread looking for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _pop_mode, _push_mode

from regard.errors import RegardError
from regard.interception import OPERATORS, available, listen, unlisten
from regard.kernel import blockwise
from regard.record import Trace
from regard.tracing.collect import Collector
from regard.tracing.learned import (
    HARMLESS,
    FusedEntry,
    GateEntry,
    Lesson,
    PassPlan,
    Plans,
    Signature,
    SoftmaxEntry,
    fingerprint,
    key_of,
    plans_of,
    signature_of,
)
from regard.tracing.mode import CaptureMode
from regard.tracing.names import argument, first_argument
from regard.tracing.surroundings import eager_surroundings
from regard.tracing.where import everything

_LEFT_INSIDE = (
    "capture: torch.inference_mode(), entered outside of it, was left inside it, or the other way "
    "round; what ran after that was not recorded; leave contexts in the opposite order of entering"
)
_FAST_PATHS = (nn.TransformerEncoderLayer, nn.MultiheadAttention, torch.jit.ScriptModule)
_transforms = torch._C._functorch.peek_interpreter_stack


class _Call:
    """A call of a module that is under way in a thread, the outermost one there."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.depth = module, 1
        self.plan: PassPlan | None = None  # where the cheaper path was taken
        self.signature: Signature | None = None  # where there may be a plan, or will be
        self.lesson: Lesson | None = None
        self.mode: CaptureMode | None = None  # entered for this call
        self.listening = False
        self.told_again = False  # whether the model's own hook will tell of this very call too
        self.lines: set[tuple[str, str]] = set()  # module and line of what ran, under a plan
        self.differs = False  # whether something ran that is not in the plan
        self.below = -1  # how many modes lay under the one that was taken off


class _Here(threading.local):
    call: _Call | None = None


class _Hook:
    """A hook on the model; a copy of the model, made meanwhile, gets one that does nothing."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = WeakMethod(hook)

    def __call__(self, *args: Any) -> None:
        hook = self._hook()
        if hook is not None:
            hook(*args)

    def __deepcopy__(self, _: Any) -> Any:
        return _no_hook

    def __reduce__(self) -> Any:
        return _no_hook_of, ()


def _no_hook(*_: Any) -> None:
    """What a copied model calls in the place of our hooks."""


def _no_hook_of() -> Callable[..., None]:
    return _no_hook


class _Guards(NamedTuple):
    """Guards of torch that restore the dispatch keys when they are left."""

    inference: bool

    @classmethod
    def now(cls) -> _Guards:
        return cls(torch.is_inference_mode_enabled())


class Run:
    """What happens between the entry and the exit of one capture."""

    def __init__(
        self, module: nn.Module | None, trace: Trace, path: str, options: dict[str, Any]
    ) -> None:
        self.trace, self.path, self.module = trace, path, module
        self.collector = Collector(module, trace, **options)
        self.block = self.collector.block
        self.block.on_hand_over = self._hand_over
        self.root = self.collector.names.modules.get("")
        self.home = threading.get_ident()
        self.mode: CaptureMode | None = None  # of the thread that entered
        self.alarms: dict[tuple[str, str], None] = {}  # where attention was not read, its operator
        self._passes = 0
        self._lock = threading.Lock()
        self._here = _Here()
        self._inside: set[int] = set()  # other threads in which a call is under way
        self._stack = ExitStack()
        self._hooks: list[Any] = []  # on all modules: before a call, after it
        self._own_hooks = False  # whether the model itself has them too
        self._handed_over = False  # whether other threads may belong to the capture
        self._plans = self._shared_plans = Plans()
        self._recalled = False  # whether passes may follow plans, and be learned
        self._guards = _Guards.now()

    def begin(self) -> Trace:
        _bury()
        try:
            self._stack.enter_context(eager_surroundings())
            self.block.open(-1)
            self._stack.callback(self.block.close)
            if self.path == "auto" and not self.collector.grad and available():
                self._recall()
            self._watch_modules()
            self._stack.callback(self._stop_watching_modules)
            if self.path == "fused" and available():
                listen(self._ran_fused)
                self._stack.callback(unlisten, self._ran_fused)
            else:
                self.mode = CaptureMode(self.collector)
                self.mode.__enter__()
        except BaseException:
            self._stack.close()
            raise
        return self.trace

    def end(self, failed: bool) -> None:
        try:
            call, self._here.call = self._here.call, None
            if call is not None:  # an interrupt, which skips hooks
                self._leave(call)
            error = self._leave_mode()
            self._stack.close()
        finally:
            self._say_alarms("its weights are not there")
            self.collector.close(failed)
            # They know us: without this only the collector of garbage ends it.
            self.block.on_hand_over = _nothing
            self.collector.lessons.clear()
        if error is not None and not failed:
            raise RegardError(error)

    def _leave_mode(self) -> str | None:
        """The mode off the stack, unless that would do harm; what is wrong, if anything."""
        now = _Guards.now()
        if self.mode is None:
            return None if now == self._guards else _LEFT_INSIDE
        if now.inference and not self._guards.inference:
            # Its exit will bring the mode's dispatch key back: the mode must be there to meet it.
            _dead.modes = (*_dead.modes, (self.mode, self._guards))
            return (
                "capture: left before torch.inference_mode(), which was entered inside it; leave "
                "contexts in the opposite order of entering (a dead mode slows this thread down "
                "until its next capture)"
            )
        if not self.mode.leave():
            return (
                "capture: its dispatch mode is no longer there: somebody left a mode twice, or out "
                "of order; what ran after that was not recorded"
            )
        return None if now == self._guards else _LEFT_INSIDE

    # -- hooks: on the calls of all modules, as one on a single module may turn torch's fast paths
    # off; on the model alone where that is safe and nothing else is asked for, as they cost time

    def _watch_modules(self) -> None:
        with self._lock:
            if not self._hooks and not self.collector.closed:
                self._hooks = [
                    hooks.register_module_forward_pre_hook(self._before),
                    hooks.register_module_forward_hook(self._after, always_call=True),
                ]

    def _stop_watching_modules(self) -> None:
        """Threads that are still in a call need the hook that lets them leave."""
        with self._lock:
            self.collector.closed = True
            hooks = [(handle, self._inside) for handle in self._hooks]
        _remove_leftover(hooks)

    def _watch_model(self, call: _Call) -> None:
        """The hooks on the model take over for one call."""
        root = self.root
        assert root is not None
        call.told_again = self._own_hooks
        if not self._own_hooks:
            if self._handed_over or self.module is not root or isinstance(root, _FAST_PATHS):
                return
            if root._compiled_call_impl is not None:  # type: ignore[unused-ignore]
                return
            self._own_hooks = True
            before = root.register_forward_pre_hook(_Hook(self._before_model))
            after = root.register_forward_hook(_Hook(self._after), always_call=True)
            self._stack.callback(before.remove)
            self._stack.callback(after.remove)
        assert call.plan is not None
        all_ran = call.plan.ran.issuperset(self.collector.attentive.values())
        if all_ran and not self._handed_over:
            with self._lock:
                for handle in self._hooks:
                    handle.remove()
                self._hooks = []

    def _before_model(self, module: nn.Module, args: Any) -> None:
        call = self._here.call
        if call is not None and call.told_again:
            call.told_again = False
        elif not self._hooks:  # a call inside one of its own, or after an interrupt
            self._before(module, args)

    def _hand_over(self) -> None:
        """Another thread is about to belong to the capture: its calls must be seen."""
        self._handed_over = True
        self._watch_modules()

    # -- plans

    def _recall(self) -> None:
        """Plans of earlier captures; a filter's own are no use to others."""
        if self.module is None or self.collector.flow.rules:
            return
        try:
            now = fingerprint(self.collector.names)
            plans = plans_of(self.module)
        except Exception:  # a model that cannot be looked at: the full path serves
            return
        if now is None:
            return
        self._recalled = True
        self._shared_plans = plans
        self._shared_plans.check(now)
        if self.collector.where is everything:
            self._plans = self._shared_plans

    def _plan(self, signature: Signature) -> PassPlan | None:
        plan = self._plans.get(signature)
        if plan is None and self._plans is not self._shared_plans:
            plan = self._shared_plans.get(signature)
        if plan is not None and plan.has_weights():
            mine = self.collector
            if mine.attached or mine.values or mine.keeper.outputs:
                return None
        return plan

    def _learn(self, call: _Call) -> None:
        """A full pass has ended: remember it, where the cheaper path would see all there was."""
        mine, lesson, signature = self.collector, call.lesson, call.signature
        assert lesson is not None and signature is not None
        if not mine.all_read():
            return
        plan = lesson.plan()
        if plan is not None and plan.attends():
            self._plans.learn(signature, plan)
            plans = self._plans
            mine.lessons.append((lesson, lambda: plans.give_up(signature)))

    # -- calls of modules

    def _before(self, module: nn.Module, args: Any) -> None:
        call = self._here.call
        if call is not None and call.module is not module:
            if call.plan is None:
                self.collector.meet(module)
            if self.collector.attentive:
                self._mind(module)
            return
        if self.collector.closed:
            return
        home = threading.get_ident() == self.home
        if not home and not self.block.here():
            self.collector.elsewhere = self.collector.elsewhere or module is self.root
            return
        number = id(module)
        if home and self.module is None and number not in self.collector.names.paths:
            self.collector.adopt(module)
            self.root = self.root or module
        if number in self.collector.names.paths:
            self.collector.called = True
        elif not self.collector.other:
            self.collector.other = type(module).__name__
        if call is not None:
            if self._running(module) > call.depth:
                call.depth += 1
                return
            self._here.call = None  # left by an interrupt, which skips hooks
            self._leave(call)
        if number in self.collector.names.paths:
            self._enter(module, args, home)
        self._mind(module)

    def _mind(self, module: nn.Module) -> None:
        path = self.collector.attentive.get(id(module))
        if path is not None:
            self.collector.ran.add(path)
            if self.collector.here.lesson is not None:
                self.collector.here.lesson.modules.add(path)

    def _running(self, module: nn.Module) -> int:
        """How many calls of a module are under way in this thread."""
        count, frame = 0, sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "_call_impl" and first_argument(frame) is module:
                count += 1
            frame = frame.f_back  # type: ignore[assignment]
        return count

    def _enter(self, module: nn.Module, args: Any, home: bool) -> None:
        call = _Call(module)
        if module is self.root:
            with self._lock:
                self.block.context = self._passes
                self._passes += 1
            self._say_alarms("later passes are read fully")
            if self._recalled:
                self._take_plan(call, args)
        if call.plan is not None:
            self.collector.ran |= call.plan.unseen
            self._listen(call, home)
        elif not home:
            self._inside.add(threading.get_ident())
            if self.mode is None:
                listen(self._ran_fused)
                call.listening = True
            else:
                call.mode = CaptureMode(self.collector)
                call.mode.__enter__()
        elif self.mode is not None:
            self.mode.idle = False
        self._here.call = call

    def _take_plan(self, call: _Call, args: Any) -> None:
        """The plan for a call, or a lesson that may become one."""
        if _transforms() is not None or torch._C._current_graph_task_id() != -1:
            return  # kernels would see the tensors of transforms
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != hooks.__file__:
            frame = frame.f_back
        if frame is None:  # not called by torch's own `__call__`: the arguments are not known
            return
        kwargs = argument(frame, "kwargs") or {}
        try:
            signature = call.signature = signature_of(call.module, args, kwargs)
        except Exception:  # arguments that cannot even be looked at: the full path serves
            return
        plan = self._plan(signature)
        if plan is not None and (threading.get_ident() != self.home or self._on_top()):
            call.plan = plan
        elif plan is None and self._plans.open(signature):
            call.lesson = self.collector.here.lesson = Lesson()

    def _on_top(self) -> bool:
        return self.mode is not None and self.mode.on_top

    def _listen(self, call: _Call, home: bool) -> None:
        """The cheaper path for one call: the mode goes, and the kernels tell."""
        if home:
            assert self.mode is not None
            self._watch_model(call)
            self.mode.__exit__()
            call.below = _len_torch_dispatch_stack()
        else:
            self._inside.add(threading.get_ident())
        self.collector.here.following = False
        listen(self._ran)
        call.listening = True

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._here.call
        if call is None or call.module is not module:
            return
        call.depth -= 1
        if not call.depth:
            self._here.call = None
            try:
                if call.plan is None:
                    self.collector.finish_pass()
                if call.lesson is not None and output is not None:
                    self._learn(call)
                if call.plan is not None and output is not None:
                    self._check_lines(call, call.plan)
            finally:
                self._leave(call)

    def _leave(self, call: _Call) -> None:
        """What `_enter` changed goes back."""
        here = self.collector.here
        here.lesson, here.following = None, True
        if call.listening:
            unlisten(self._ran if call.plan is not None else self._ran_fused)
        if call.mode is not None:
            call.mode.leave()
        elif call.below >= 0:
            assert self.mode is not None
            _push_at(self.mode, call.below)
            self._watch_modules()
            self.mode.idle = True
        self._inside.discard(threading.get_ident())

    # -- what the kernels tell

    def _ran(self, operator: str, names: tuple[str, ...], args: Any, kwargs: Any, out: Any) -> None:
        """An operator that counts ran in a pass that follows a plan."""
        call = self._here.call
        if call is None or call.plan is None or torch._C._current_graph_task_id() != -1:
            return
        try:
            self._follow_plan(call, call.plan, operator, names, args, kwargs, out)
        except Exception as error:
            self.collector.failed(operator, error)

    def _follow_plan(
        self,
        call: _Call,
        plan: PassPlan,
        operator: str,
        names: tuple[str, ...],
        args: Any,
        kwargs: Any,
        out: Any,
    ) -> None:
        place = self.collector.names.place()
        if place is None:
            return
        call.lines.add((place.path, place.source))
        entry = plan.entry(key_of(place, operator))
        if entry is None and operator in OPERATORS:
            entry = plan.fused_at(place)
        if entry is HARMLESS:
            return
        wrapped = _transforms() is not None
        if not wrapped and isinstance(entry, FusedEntry):
            arguments = dict(zip(names, args)) | kwargs
            self.collector.read_operator(operator, arguments, out, place, entry.attends)
        elif isinstance(entry, GateEntry):
            self.collector.read_gate(entry, out, place)
        elif wrapped or not isinstance(entry, SoftmaxEntry):
            self._forget(call, place, operator, None if wrapped else (names, args, kwargs, out))
        else:
            dim = args[names.index("dim")] if len(args) > names.index("dim") else kwargs.get("dim")
            assert call.signature is not None
            batches = call.signature.batches
            if dim is None or not self.collector.read_softmax(entry, out, dim, batches, place):
                self._forget(call, place, operator, None)

    def _check_lines(self, call: _Call, plan: PassPlan) -> None:
        """A pass that followed a plan has ended: did all that attends there attend?"""
        path = None if call.differs else plan.missing(call.lines)
        if path is not None:
            self._give_up(call)
            self.collector.note(
                "changed",
                path,
                "did not attend in a pass, as it had in others; had something else attended in its "
                "stead, it would not be there; later passes are read fully; "
                "capture(path='full') reads everything",
            )

    def _give_up(self, call: _Call) -> None:
        assert call.signature is not None
        self._plans.give_up(call.signature)
        self._shared_plans.give_up(call.signature)

    def _forget(self, call: _Call, place: Any, operator: str, ran: Any) -> None:
        """Something runs that no pass of the kind had: it is read if it can be, or said."""
        call.differs = True
        self._give_up(call)
        if ran is not None and operator in OPERATORS:
            names, args, kwargs, out = ran
            self.collector.read_operator(operator, dict(zip(names, args)) | kwargs, out, place)
        else:
            self.alarms[place.path or place.module_class, operator] = None

    def _ran_fused(
        self, operator: str, names: tuple[str, ...], args: Any, kwargs: Any, out: Any
    ) -> None:
        """The same under `path="fused"`: fused attention is read, and the rest is said."""
        if torch._C._current_graph_task_id() != -1:
            return
        place = self.collector.names.place()
        if place is None:
            return
        fused = operator.startswith("_scaled") or operator == blockwise.OPERATOR
        if names and fused and _transforms() is None:
            self.collector.here.following = False
            self.collector.read_operator(operator, dict(zip(names, args)) | kwargs, out, place)
            self.collector.here.following = True
        elif self.collector.names.in_forward():
            self.alarms[place.path or place.module_class, operator] = None

    def _say_alarms(self, later: str) -> None:
        if self.path == "fused" and later.startswith("later"):
            return
        for where, operator in self.alarms:
            self.collector.note(
                "changed",
                where,
                f"{operator} ran, which the fused path cannot read; {later}; "
                "capture(path='full') reads everything",
            )
        self.alarms.clear()


def _nothing() -> None:
    """Nobody is to be told of new threads."""


def _push_at(mode: CaptureMode, depth: int) -> None:
    """A mode back where it lay, under those that were entered later and are still there."""
    above = [_pop_mode() for _ in range(_len_torch_dispatch_stack() - depth)]
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


class _Dead(threading.local):
    modes: tuple[tuple[CaptureMode, _Guards], ...] = ()


_dead = _Dead()
_leftover: list[tuple[Any, set[int]]] = []  # hooks, and the threads that are inside them
_leftover_lock = threading.Lock()


def _bury() -> None:
    """Modes that had to stay on this thread's stack go when the guard they waited for is gone."""
    now = _Guards.now()
    for mode, guards in _dead.modes:
        if guards == now:
            mode.leave()
    _dead.modes = tuple(entry for entry in _dead.modes if entry[1] != now)
    _remove_leftover([])


def _remove_leftover(more: list[tuple[Any, set[int]]]) -> None:
    """Take hooks away; those that a thread still needs wait for the next capture."""
    with _leftover_lock:
        _leftover[:] = [entry for entry in (*_leftover, *more) if not _removed(*entry)]


def _removed(handle: Any, inside: set[int]) -> bool:
    if inside:
        return False
    handle.remove()
    return True
