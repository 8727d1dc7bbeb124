"""One `with`: installs the mode, the hooks and torch's settings, and restores them.

The dispatcher's state changes at the `with` itself, or around one call of a module, balanced
(`_around`): torch restores whole sets of dispatch keys when it leaves inference mode, and a mode
that was popped in between would leave every operator of the thread looking for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import (
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from regard.errors import RegardError
from regard.interception import (
    LOCK,
    OPERATORS,
    available,
    in_forked_child,
    listen,
    pass_signals_on,
    unlisten,
    unwrap_calls,
    wrap_calls,
)
from regard.record import Trace
from regard.tracing.collector import Collector
from regard.tracing.dispatch_mode import CaptureMode
from regard.tracing.gates import GateCollector
from regard.tracing.module_paths import first_argument
from regard.tracing.pass_plan import (
    HARMLESS,
    FusedEntry,
    Lesson,
    OtherEntry,
    PassPlan,
    Plans,
    Signature,
    SoftmaxEntry,
    fingerprint,
    key_of,
    plans_of,
    signature_of,
)
from regard.tracing.site_filter import everything
from regard.tracing.torch_settings import eager_torch, follow_compiler

_LEFT_INSIDE = (
    "capture: torch.inference_mode(), entered outside of it, was left inside it, or the other way "
    "round; what ran after that was not recorded; leave contexts in the opposite order of entering"
)
_UNSEEN = (
    "torch.inference_mode() was entered in a call and left after it, or the other way round; what "
    "runs from there to the next call may be missing; leave it in the function that enters it"
)
_PYTHON = torch._C.DispatchKey.Python
_transforms = torch._C._functorch.peek_interpreter_stack
#: The guard of torch that restores the dispatch keys when it is left.
_inference = torch.is_inference_mode_enabled


class _Call:
    """The outermost running call of a module in a thread."""

    def __init__(self, module: nn.Module, wrapped: bool) -> None:
        self.module, self.depth = module, 1
        self.inference = _inference()
        self.wrapped = wrapped  # whether it ends in `_around`; hooks may miss its end
        self.ended = False
        self.plan: PassPlan | None = None  # on the learned path
        self.signature: Signature | None = None  # if there may be a plan, now or later
        self.lesson: Lesson | None = None
        self.mode: CaptureMode | None = None  # entered for this call
        self.listening = False
        self.lines: set[tuple[str, str]] = set()  # under a plan: path and line of what ran
        self.differs = False  # whether something ran that is not in the plan
        self.below = -1  # how many modes were under the one that was popped


class _ThreadState(threading.local):
    call: _Call | None = None


class Session:
    """One capture between its entry and its exit."""

    def __init__(
        self,
        module: nn.Module | None,
        trace: Trace,
        path: str,
        options: dict[str, Any],
        gates: bool = False,
    ) -> None:
        self.trace, self.path, self.module = trace, path, module
        self.collector = (GateCollector if gates else Collector)(module, trace, **options)
        self.block = self.collector.block
        self.block.on_hand_over = self._hand_over
        self.root = self.collector.module_paths.modules.get("")
        self.home = threading.get_ident()
        self._stale = _thread.stale  # of the thread that entered
        self.mode: CaptureMode | None = None  # of the thread that entered
        self.alarms: dict[tuple[str, str], None] = {}  # path and operator of unread attention
        self._passes = 0
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._here = _ThreadState()
        self._stack = ExitStack()
        self._hooks: list[Any] = []  # on all modules, before and after a call
        self._wrapped: set[int] = set()  # ids of modules with `_around` around their calls
        self._handed_over = False  # whether other threads may belong to the capture
        self._plans = self._shared_plans = Plans()
        self._learning = False  # whether passes may follow plans, and be learned
        self._inference = _inference()

    def begin(self) -> Trace:
        remove_stale_modes()
        _open.add(self)
        try:
            self._stack.enter_context(eager_torch())
            self.block.open(-1)
            self._stack.callback(self.block.close)
            if self.path == "auto" and not self.collector.grad and available():
                self._recall()
            self._watch_modules()
            self._stack.callback(self._stop_watching_modules)
            if self.root is not None:
                self._wrap(self.root)
            if self.path == "fused" and available():
                listen(self._ran_fused)
                self._stack.callback(unlisten, self._ran_fused)
            else:
                self.mode = CaptureMode(self.collector)
                self.mode.__enter__()
        except BaseException:
            _open.discard(self)
            self._stack.close()
            raise
        return self.trace

    def end(self, failed: bool) -> None:
        """Restore everything. Outside the thread that entered, the mode stays on that thread's
        stack, passes everything through, and is removed by the thread's next capture."""
        try:
            if threading.get_ident() == self.home:
                call, self._here.call = self._here.call, None
                if call is not None:  # left in the middle, or by an interrupt
                    self._leave(call)
                error = self._leave_mode()
            else:
                error = None
                self._stale.append((self._leave_home, self._inference))
            self._stack.close()
        finally:
            _open.discard(self)
            self._note_alarms(ended=True)
            self.collector.close(failed)
            # They refer to us: break the cycle.
            self.block.on_hand_over = _nothing
            self.collector.lessons.clear()
        if error is not None and not failed:
            raise RegardError(error)

    def forget(self) -> None:
        """Clean up in a forked child, where the thread that entered does not exist."""
        self._lock = self.collector._lock = threading.RLock()  # that thread may have held them
        self._stack.close()

    def _leave_home(self) -> None:
        if self.mode is not None:
            self.mode.leave()
        unlisten(self._ran_fused)

    def _leave_mode(self) -> str | None:
        """Pop the mode unless that would do harm; returns an error text."""
        inference = _inference()
        if self.mode is None:
            return None if inference == self._inference else _LEFT_INSIDE
        if inference and not self._inference:
            # Its exit restores the mode's dispatch key: the mode must still be there.
            self._stale.append((self.mode.leave, self._inference))
            return (
                "capture: left before torch.inference_mode(), which was entered inside it; leave "
                "contexts in the opposite order of entering (a dead mode slows this thread down "
                "until its next capture)"
            )
        # A guard that was entered in a call and left after it has removed the key.
        seen = _modes_are_seen()
        if not seen and self._learning:
            unlisten(self._ran)  # the key of the kernels was restored instead
        if not self.mode.leave():
            return (
                "capture: its dispatch mode is no longer there: somebody left a mode twice, or out "
                "of order; what ran after that was not recorded"
            )
        return None if inference == self._inference and seen else _LEFT_INSIDE

    # -- hooks on the calls of all modules: one on a single module may turn torch's fast paths off.
    # They observe, and leave the dispatcher alone: an interrupt skips them

    def _watch_modules(self) -> None:
        with self._lock:
            if not self._hooks and not self.collector.closed:
                self._hooks = [
                    hooks.register_module_forward_pre_hook(self._before),
                    hooks.register_module_forward_hook(self._after, always_call=True),
                ]

    def _stop_watching_modules(self) -> None:
        with self._lock:
            self.collector.closed = True
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        with self._lock:
            for handle in self._hooks:
                handle.remove()
            self._hooks = []

    def _wrap(self, *modules: nn.Module) -> None:
        with self._lock:
            for module in modules:
                if id(module) not in self._wrapped and not self.collector.closed:
                    self._wrapped.add(id(module))
                    wrap_calls(module, self._around)
                    self._stack.callback(unwrap_calls, module, self._around)

    def _hand_over(self) -> None:
        """Another thread is about to join the capture: watch its calls."""
        self._handed_over = True
        self._wrap(*self.collector.module_paths.modules.values())
        self._watch_modules()

    # -- plans

    def _recall(self) -> None:
        """Look up plans of earlier captures; those of a filtered capture are its own."""
        if (
            self.module is None
            or self.collector.dataflow.products.rules
            or not self.collector.learnable
        ):
            return
        try:
            now = fingerprint(self.collector.module_paths)
            plans = plans_of(self.module)
        except Exception as error:  # a model that cannot be inspected: take the full path
            pass_signals_on(error)
            return
        if now is None:
            return
        self._learning = True
        self._shared_plans = plans
        self._shared_plans.check(now)
        if self.collector.where is everything:
            self._plans = self._shared_plans

    def _plan(self, signature: Signature) -> PassPlan | None:
        plan = self._plans.get(signature)
        if plan is None and self._plans is not self._shared_plans:
            plan = self._shared_plans.get(signature)
        if plan is not None and plan.has_weights():
            collector = self.collector
            if collector.attached or collector.values or collector.recorder.outputs:
                return None
        return plan

    def _learn(self, call: _Call) -> None:
        """Remember a full pass, if the learned path would see all of it."""
        collector, lesson, signature = self.collector, call.lesson, call.signature
        assert lesson is not None and signature is not None
        if not collector.all_read():
            return
        plan = lesson.plan()
        if plan is not None and plan.attends():
            self._plans.learn(signature, plan)
            plans = self._plans
            collector.lessons.append((lesson, lambda: plans.give_up(signature)))

    # -- calls of modules

    def _around(
        self, module: nn.Module, proceed: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Around a call: what changes for it is restored, however it ends."""
        if self._is_outside(module) or self._under_way():
            return proceed(*args, **kwargs)
        call = _Call(module, wrapped=True)
        output = None
        try:
            self._enter(call, args, kwargs)
            output = proceed(*args, **kwargs)
            return output
        finally:
            self._finish(call, output)

    def _is_outside(self, module: nn.Module) -> bool:
        """Whether this thread or task is outside the capture."""
        if self.collector.closed:
            return True
        if self.block.here():
            return False
        if module is self.root:
            home = threading.get_ident() == self.home
            self.collector.elsewhere = "task" if home else "thread"
        return True

    def _under_way(self) -> bool:
        """Whether a call is running in this thread."""
        call = self._here.call
        if call is None:
            return False
        if call.wrapped or self._running(call.module):
            return True
        self._here.call = None  # left by an interrupt, which skips hooks
        self._leave(call)
        return False

    def _before(self, module: nn.Module, args: Any) -> None:
        """The hook before a call."""
        follow_compiler()
        call = self._here.call
        if call is not None and (call.wrapped or call.module is not module):
            if call.plan is None and call.module is not module:
                self.collector.meet(module)
            self._note_running(module)
            return
        if self._is_outside(module):
            return
        self._note_called(module)
        if threading.get_ident() != self.home:
            return
        self._restore_mode()
        if call is not None:
            if self._running(module) > call.depth:
                call.depth += 1
                return
            self._here.call = None  # left by an interrupt
            self._leave(call)
        if id(module) in self.collector.module_paths.paths:
            self._here.call = _Call(module, wrapped=False)
            self._begin_pass(module)
            if self.mode is not None:
                self.mode.idle = False
        self._note_running(module)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        """The hook after a call."""
        call = self._here.call
        if call is None or call.wrapped or call.module is not module:
            return
        call.depth -= 1
        if not call.depth:
            self._finish(call, output)

    def _note_called(self, module: nn.Module) -> None:
        collector, number = self.collector, id(module)
        home = threading.get_ident() == self.home
        if home and self.module is None and number not in collector.module_paths.paths:
            collector.adopt(module)
            self.root = self.root or module
            if self._handed_over:
                self._wrap(*collector.module_paths.modules.values())
        if number in collector.module_paths.paths:
            collector.called = True
        elif not collector.other:
            collector.other = type(module).__name__

    def _note_running(self, module: nn.Module) -> None:
        path = self.collector.attention_paths.get(id(module))
        if path is not None:
            self.collector.ran.add(path)
            if self.collector.here.lesson is not None:
                self.collector.here.lesson.modules.add(path)

    def _running(self, module: nn.Module) -> int:
        """The number of running calls of a module in this thread."""
        count, frame = 0, sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name == "_call_impl" and first_argument(frame) is module:
                count += 1
            frame = frame.f_back  # type: ignore[assignment]
        return count

    def _begin_pass(self, module: nn.Module) -> None:
        if module is self.root:
            with self._lock:
                self.block.context = self._passes
                self._passes += 1
            self._note_alarms(ended=False)

    def _enter(self, call: _Call, args: Any, kwargs: Any) -> None:
        """Set up a call, with a plan or fully.

        What is changed is noted first: an interrupt may come in between.
        """
        self._here.call = call
        home = threading.get_ident() == self.home
        if home:
            self._restore_mode()
        else:
            remove_stale_modes()
        self._note_called(call.module)
        self._begin_pass(call.module)
        if call.module is self.root and self._learning:
            self._take_plan(call, args, kwargs)
        if call.plan is not None:
            self.collector.ran |= call.plan.unseen
            self._follow(call, call.plan, home)
        elif not home and self.mode is not None:
            call.mode = CaptureMode(self.collector)
            call.mode.__enter__()
        elif not home:
            call.listening = True
            listen(self._ran_fused)
        elif self.mode is not None:
            self.mode.idle = False

    def _restore_mode(self) -> None:
        """Restore the mode, if a guard entered without it in a learned pass removed its key."""
        if self.mode is not None and not _modes_are_seen() and self.mode.on_stack:
            self.mode.enter_again()
            if self._learning:
                unlisten(self._ran)  # the key of the kernels was restored instead

    def _take_plan(self, call: _Call, args: Any, kwargs: Any) -> None:
        """The plan for a call, or a lesson that may become one."""
        if _changing or _transforms() is not None or torch._C._current_graph_task_id() != -1:
            return  # a pass that is changed is no pattern; kernels would see tensors of transforms
        try:
            signature = call.signature = signature_of(call.module, args, kwargs)
        except Exception as error:  # arguments that cannot be inspected: take the full path
            pass_signals_on(error)
            return
        if any(0 in shape for shape in signature.shapes):
            return  # empty inputs: operators may return early, without attention
        plan = self._plan(signature)
        if plan is not None and (threading.get_ident() != self.home or self._on_top()):
            call.plan = plan
        elif plan is None and self._plans.open(signature):
            call.lesson = self.collector.here.lesson = Lesson()

    def _on_top(self) -> bool:
        """Whether our mode is the topmost; under inference mode also the only one: a mode below
        would decompose composite operators where kernels do not see it."""
        if self.mode is None or not self.mode.on_top:
            return False
        return not torch.is_inference_mode_enabled() or _len_torch_dispatch_stack() == 1

    def _follow(self, call: _Call, plan: PassPlan, home: bool) -> None:
        """The learned path for one call: pop the mode, listen to the kernels."""
        if home:
            assert self.mode is not None
            if not self._handed_over and plan.ran.issuperset(
                self.collector.attention_paths.values()
            ):
                self._remove_hooks()  # they cost time, and the plan knows all modules
            call.below = _len_torch_dispatch_stack() - 1
            self.mode.__exit__()
        self.collector.here.following = False
        call.listening = True
        listen(self._ran)

    def _finish(self, call: _Call, output: Any) -> None:
        """A call has ended; without an output if it failed."""
        try:
            if call.plan is None:
                self.collector.finish_pass()
            balanced = call.inference == _inference()
            if call.lesson is not None and output is not None and balanced:
                self._learn(call)
            if call.plan is not None and output is not None:
                self._check_lines(call, call.plan)
            if call.plan is not None and not balanced:
                self._give_up(call)
                self.collector.note("changed", "", _UNSEEN)
        finally:
            self._here.call = None
            self._leave(call)

    def _leave(self, call: _Call) -> None:
        """Undo `_enter`."""
        if call.ended:  # the capture was left in the middle of the call
            return
        here = self.collector.here
        here.lesson, here.following = None, True
        try:
            if call.listening:
                unlisten(self._ran if call.plan is not None else self._ran_fused)
        finally:
            if call.mode is not None:
                self._leave_thread(call, call.mode)
            elif call.below >= 0 and not self.collector.closed:
                assert self.mode is not None
                if not self.mode.on_stack:
                    _push_at(self.mode, call.below)
                self._watch_modules()
                self.mode.idle = True
            call.ended = True

    def _leave_thread(self, call: _Call, mode: CaptureMode) -> None:
        """Pop the mode in another thread than the one that entered the capture."""
        inference = _inference()
        if inference and not call.inference:  # as in `_leave_mode`
            mode.pass_through()
            _thread.stale.append((mode.leave, call.inference))
            return
        if inference != call.inference:
            self.collector.note("changed", "", _UNSEEN)
        mode.leave()

    # -- operators that the kernels see

    def _ran(self, operator: str, names: tuple[str, ...], args: Any, kwargs: Any, out: Any) -> None:
        """An operator of interest ran in a pass that follows a plan."""
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
        call_site = self.collector.module_paths.call_site()
        if call_site is None:
            return
        call.lines.add((call_site.path, call_site.source))
        entry = plan.entry(key_of(call_site, operator))
        if entry is None and operator in OPERATORS:
            entry = plan.fused_at(call_site)
        if entry is HARMLESS:
            return
        wrapped = _transforms() is not None
        if not wrapped and isinstance(entry, FusedEntry):
            arguments = dict(zip(names, args)) | kwargs
            self.collector.read_operator(operator, arguments, out, call_site, entry.attends)
        elif isinstance(entry, OtherEntry):
            self.collector.read_other(entry, out, call_site)
        elif wrapped or not isinstance(entry, SoftmaxEntry):
            self._forget(call, call_site, operator, None if wrapped else (names, args, kwargs, out))
        else:
            dim = args[names.index("dim")] if len(args) > names.index("dim") else kwargs.get("dim")
            assert call.signature is not None
            batches = call.signature.batches
            if dim is None or not self.collector.read_softmax(entry, out, dim, batches, call_site):
                self._forget(call, call_site, operator, None)

    def _check_lines(self, call: _Call, plan: PassPlan) -> None:
        """After a pass that followed a plan: check that all its attention ran."""
        path = None if call.differs else plan.missing(call.lines)
        if path is not None:
            self._give_up(call)
            self.collector.note(
                "changed",
                path,
                "did not attend in a pass, unlike before; attention that replaced it would be "
                "missing; later passes are read fully; capture(path='full') reads everything",
            )

    def _give_up(self, call: _Call) -> None:
        assert call.signature is not None
        self._plans.give_up(call.signature)
        self._shared_plans.give_up(call.signature)

    def _forget(self, call: _Call, call_site: Any, operator: str, ran: Any) -> None:
        """Something ran that is not in the plan: read it if possible, or note it."""
        call.differs = True
        self._give_up(call)
        if ran is not None and operator in OPERATORS:
            names, args, kwargs, out = ran
            self.collector.read_operator(operator, dict(zip(names, args)) | kwargs, out, call_site)
        else:
            self.alarms[call_site.name, operator] = None

    def _ran_fused(
        self, operator: str, names: tuple[str, ...], args: Any, kwargs: Any, out: Any
    ) -> None:
        """The same under `path="fused"`: read fused attention, and note the rest."""
        if torch._C._current_graph_task_id() != -1 or self.collector.closed:
            return
        if not self.block.here():
            return
        call_site = self.collector.module_paths.call_site()
        if call_site is None:
            return
        fused = operator.startswith(("_scaled", "regard::"))
        if names and fused and _transforms() is None:
            self.collector.here.following = False
            self.collector.read_operator(operator, dict(zip(names, args)) | kwargs, out, call_site)
            self.collector.here.following = True
        elif self.collector.module_paths.in_forward():
            self.alarms[call_site.name, operator] = None

    def _note_alarms(self, ended: bool) -> None:
        if self.path == "fused" and not ended:
            return
        fused = "which the fused path cannot read"
        cause = fused if self.path == "fused" else "unlike in the pass that was learned"
        later = "" if ended else "later passes are read fully; "
        for where, operator in self.alarms:
            self.collector.note(
                "changed",
                where,
                f"{operator} ran, {cause}; its weights are missing; {later}"
                "capture(path='full') reads everything",
            )
        self.alarms.clear()


_changing = 0


@contextmanager
def changing() -> Iterator[None]:
    """While attention is changed: passes are read fully, and not learned."""
    global _changing
    with LOCK:
        _changing += 1
    try:
        yield
    finally:
        with LOCK:
            _changing -= 1


def is_captured() -> bool:
    """Whether a capture reads this thread fully."""
    return any(isinstance(mode, CaptureMode) for mode in _get_current_dispatch_mode_stack())


@contextmanager
def unwatched() -> Iterator[None]:
    """Hide what runs from the captures of this thread."""
    modes = [_pop_mode() for _ in range(_len_torch_dispatch_stack())][::-1]
    for mode in modes:
        if not isinstance(mode, CaptureMode):
            _push_mode(mode)
    others = _len_torch_dispatch_stack()
    try:
        yield
    finally:
        for _ in range(others):
            _pop_mode()
        for mode in modes:
            _push_mode(mode)


def _modes_are_seen() -> bool:
    """Whether operators of this thread reach its modes."""
    return torch._C._dispatch_tls_is_dispatch_key_included(_PYTHON)


def _nothing() -> None:
    """No reaction to new threads."""


def _push_at(mode: CaptureMode, depth: int) -> None:
    """Push a mode back under those that were entered later."""
    above = [_pop_mode() for _ in range(_len_torch_dispatch_stack() - depth)]
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


class _Thread(threading.local):
    """Modes that had to stay on a thread's stack until inference mode is as it was."""

    def __init__(self) -> None:
        self.stale: list[tuple[Callable[[], Any], bool]] = []  # how to leave, in which mode


_thread = _Thread()


def remove_stale_modes() -> None:
    """Pop the modes that stayed on this thread's stack, where that is safe."""
    inference = _inference()
    stale, _thread.stale[:] = list(_thread.stale), []
    for leave, entered in stale:
        if entered == inference:
            leave()
        else:
            _thread.stale.append((leave, entered))


_open: set[Session] = set()  # in any thread


def _forget_other_threads() -> None:
    """End captures of other threads in a forked child, which has only one."""
    for session in [each for each in _open if each.home != threading.get_ident()]:
        _open.discard(session)
        session.forget()


in_forked_child(_forget_other_threads)
