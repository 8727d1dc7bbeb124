"""One `with`: the mode, the hooks and the surroundings, put in place and taken back.

The dispatcher's state changes at the `with` itself, or around one call of a module and balanced
(`_around`): torch restores whole sets of dispatch keys when it leaves inference mode, and a mode
that was popped in between would leave every operator of the thread looking for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C import _len_torch_dispatch_stack
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import _pop_mode, _push_mode

from regard.errors import RegardError
from regard.interception import (
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
from regard.tracing.torch_settings import eager_surroundings, follow_compiler

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


class _Guards(NamedTuple):
    """Guards of torch that restore the dispatch keys when they are left."""

    inference: bool

    @classmethod
    def now(cls) -> _Guards:
        return cls(torch.is_inference_mode_enabled())


class _Call:
    """A call of a module that is under way in a thread, the outermost one there."""

    def __init__(self, module: nn.Module, wrapped: bool) -> None:
        self.module, self.depth = module, 1
        self.guards = _Guards.now()
        self.wrapped = wrapped  # whether it ends in `_around`; hooks may miss its end
        self.ended = False
        self.plan: PassPlan | None = None  # where the cheaper path was taken
        self.signature: Signature | None = None  # where there may be a plan, or will be
        self.lesson: Lesson | None = None
        self.mode: CaptureMode | None = None  # entered for this call
        self.listening = False
        self.lines: set[tuple[str, str]] = set()  # module and line of what ran, under a plan
        self.differs = False  # whether something ran that is not in the plan
        self.below = -1  # how many modes lie under the one that was taken off


class _Here(threading.local):
    call: _Call | None = None


class Session:
    """What happens between the entry and the exit of one capture."""

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
        self._dead = _thread.dead  # of the thread that entered
        self.mode: CaptureMode | None = None  # of the thread that entered
        self.alarms: dict[tuple[str, str], None] = {}  # where attention was not read, its operator
        self._passes = 0
        self._lock = threading.RLock()  # a signal handler may come in between
        self._here = _Here()
        self._stack = ExitStack()
        self._hooks: list[Any] = []  # on all modules: before a call, after it
        self._wrapped: set[int] = set()  # modules that have `_around` around their calls
        self._handed_over = False  # whether other threads may belong to the capture
        self._plans = self._shared_plans = Plans()
        self._recalled = False  # whether passes may follow plans, and be learned
        self._guards = _Guards.now()

    def begin(self) -> Trace:
        bury()
        _open.add(self)
        try:
            self._stack.enter_context(eager_surroundings())
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
        """Everything goes back. In another thread than the one that entered, its mode stays there,
        passes everything through, and goes with the next capture of that thread."""
        try:
            if threading.get_ident() == self.home:
                call, self._here.call = self._here.call, None
                if call is not None:  # left in the middle of it, or by an interrupt
                    self._leave(call)
                error = self._leave_mode()
            else:
                error = None
                self._dead.append((self._leave_home, self._guards))
            self._stack.close()
        finally:
            _open.discard(self)
            self._say_alarms(ended=True)
            self.collector.close(failed)
            # They know us: without this only the collector of garbage ends it.
            self.block.on_hand_over = _nothing
            self.collector.lessons.clear()
        if error is not None and not failed:
            raise RegardError(error)

    def forget(self) -> None:
        """The thread that entered is gone, without a chance to leave: it is not in this process."""
        self._lock = self.collector._lock = threading.RLock()  # it may have held them
        self._stack.close()

    def _leave_home(self) -> None:
        if self.mode is not None:
            self.mode.leave()
        unlisten(self._ran_fused)

    def _leave_mode(self) -> str | None:
        """The mode off the stack, unless that would do harm; what is wrong, if anything."""
        now = _Guards.now()
        if self.mode is None:
            return None if now == self._guards else _LEFT_INSIDE
        if now.inference and not self._guards.inference:
            # Its exit will bring the mode's dispatch key back: the mode must be there to meet it.
            self._dead.append((self.mode.leave, self._guards))
            return (
                "capture: left before torch.inference_mode(), which was entered inside it; leave "
                "contexts in the opposite order of entering (a dead mode slows this thread down "
                "until its next capture)"
            )
        # A guard that was entered in a call, and left after it, has taken the key away.
        seen = _modes_are_seen()
        if not seen and self._recalled:
            unlisten(self._ran)  # the key of the kernels came back instead
        if not self.mode.leave():
            return (
                "capture: its dispatch mode is no longer there: somebody left a mode twice, or out "
                "of order; what ran after that was not recorded"
            )
        return None if now == self._guards and seen else _LEFT_INSIDE

    # -- hooks on the calls of all modules: one on a single module may turn torch's fast paths off.
    # They tell what runs, and change nothing of the dispatcher: an interrupt skips them

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
        """Another thread is about to belong to the capture: its calls must be seen."""
        self._handed_over = True
        self._wrap(*self.collector.module_paths.modules.values())
        self._watch_modules()

    # -- plans

    def _recall(self) -> None:
        """Plans of earlier captures; a filter's own are no use to others."""
        if (
            self.module is None
            or self.collector.dataflow.products.rules
            or not self.collector.learnable
        ):
            return
        try:
            now = fingerprint(self.collector.module_paths)
            plans = plans_of(self.module)
        except Exception as error:  # a model that cannot be looked at: the full path serves
            pass_signals_on(error)
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
            if mine.attached or mine.values or mine.recorder.outputs:
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

    def _around(
        self, module: nn.Module, proceed: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Around a call: what changes for it goes back, whatever ends it."""
        if self._is_strange(module) or self._under_way():
            return proceed(*args, **kwargs)
        call = _Call(module, wrapped=True)
        output = None
        try:
            self._enter(call, args, kwargs)
            output = proceed(*args, **kwargs)
            return output
        finally:
            self._finish(call, output)

    def _is_strange(self, module: nn.Module) -> bool:
        """Whether this thread or task works for somebody else."""
        if self.collector.closed:
            return True
        if self.block.here():
            return False
        if module is self.root:
            home = threading.get_ident() == self.home
            self.collector.elsewhere = "task" if home else "thread"
        return True

    def _under_way(self) -> bool:
        """Whether this thread is in a call already."""
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
            self._mind(module)
            return
        if self._is_strange(module):
            return
        self._say_called(module)
        if threading.get_ident() != self.home:
            return
        self._see_again()
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
        self._mind(module)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        """The hook after a call."""
        call = self._here.call
        if call is None or call.wrapped or call.module is not module:
            return
        call.depth -= 1
        if not call.depth:
            self._finish(call, output)

    def _say_called(self, module: nn.Module) -> None:
        mine, number = self.collector, id(module)
        home = threading.get_ident() == self.home
        if home and self.module is None and number not in mine.module_paths.paths:
            mine.adopt(module)
            self.root = self.root or module
            if self._handed_over:
                self._wrap(*mine.module_paths.modules.values())
        if number in mine.module_paths.paths:
            mine.called = True
        elif not mine.other:
            mine.other = type(module).__name__

    def _mind(self, module: nn.Module) -> None:
        path = self.collector.attention_paths.get(id(module))
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

    def _begin_pass(self, module: nn.Module) -> None:
        if module is self.root:
            with self._lock:
                self.block.context = self._passes
                self._passes += 1
            self._say_alarms(ended=False)

    def _enter(self, call: _Call, args: Any, kwargs: Any) -> None:
        """What a call needs, by way of a plan or fully.

        What is changed is noted before it is: an interrupt may come in between.
        """
        self._here.call = call
        home = threading.get_ident() == self.home
        if home:
            self._see_again()
        else:
            bury()
        self._say_called(call.module)
        self._begin_pass(call.module)
        if call.module is self.root and self._recalled:
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

    def _see_again(self) -> None:
        """The mode, where a guard that was entered without it in a learned pass has come back."""
        if self.mode is not None and not _modes_are_seen() and self.mode.on_stack:
            self.mode.enter_again()
            if self._recalled:
                unlisten(self._ran)  # the key of the kernels came back instead

    def _take_plan(self, call: _Call, args: Any, kwargs: Any) -> None:
        """The plan for a call, or a lesson that may become one."""
        if _transforms() is not None or torch._C._current_graph_task_id() != -1:
            return  # kernels would see the tensors of transforms
        try:
            signature = call.signature = signature_of(call.module, args, kwargs)
        except Exception as error:  # arguments that cannot be looked at: the full path serves
            pass_signals_on(error)
            return
        if any(0 in shape for shape in signature.shapes):
            return  # operators may leave early, and attention stay away
        plan = self._plan(signature)
        if plan is not None and (threading.get_ident() != self.home or self._on_top()):
            call.plan = plan
        elif plan is None and self._plans.open(signature):
            call.lesson = self.collector.here.lesson = Lesson()

    def _on_top(self) -> bool:
        """Whether nobody else's mode comes in between. Under inference mode, which leaves operators
        whole, one that lies below ours would take them apart where kernels do not see it."""
        if self.mode is None or not self.mode.on_top:
            return False
        return not torch.is_inference_mode_enabled() or _len_torch_dispatch_stack() == 1

    def _follow(self, call: _Call, plan: PassPlan, home: bool) -> None:
        """The cheaper path for one call: the mode goes, and the kernels tell."""
        if home:
            assert self.mode is not None
            if not self._handed_over and plan.ran.issuperset(
                self.collector.attention_paths.values()
            ):
                self._remove_hooks()  # they cost time, and there is nothing they could tell
            call.below = _len_torch_dispatch_stack() - 1
            self.mode.__exit__()
        self.collector.here.following = False
        call.listening = True
        listen(self._ran)

    def _finish(self, call: _Call, output: Any) -> None:
        """A call has ended; without an output where it failed."""
        try:
            if call.plan is None:
                self.collector.finish_pass()
            balanced = call.guards == _Guards.now()
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
        """What `_enter` changed goes back."""
        if call.ended:  # the capture was left in the middle of it
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
        """The mode off the stack of another thread than the one that entered the capture."""
        now = _Guards.now()
        if now.inference and not call.guards.inference:  # as in `_leave_mode`
            mode.pass_through()
            _thread.dead.append((mode.leave, call.guards))
            return
        if now != call.guards:
            self.collector.note("changed", "", _UNSEEN)
        mode.leave()

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

    def _forget(self, call: _Call, call_site: Any, operator: str, ran: Any) -> None:
        """Something runs that no pass of the kind had: it is read if it can be, or said."""
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
        """The same under `path="fused"`: fused attention is read, and the rest is said."""
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

    def _say_alarms(self, ended: bool) -> None:
        if self.path == "fused" and not ended:
            return
        fused = "which the fused path cannot read"
        cause = fused if self.path == "fused" else "unlike in the pass that was learned"
        later = "" if ended else "later passes are read fully; "
        for where, operator in self.alarms:
            self.collector.note(
                "changed",
                where,
                f"{operator} ran, {cause}; its weights are not there; {later}"
                "capture(path='full') reads everything",
            )
        self.alarms.clear()


def _modes_are_seen() -> bool:
    """Whether operators of this thread go to its modes."""
    return torch._C._dispatch_tls_is_dispatch_key_included(_PYTHON)


def _nothing() -> None:
    """Nobody is to be told of new threads."""


def _push_at(mode: CaptureMode, depth: int) -> None:
    """A mode back where it lay, under those that were entered later and are still there."""
    above = [_pop_mode() for _ in range(_len_torch_dispatch_stack() - depth)]
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


Dead = list[tuple[Callable[[], Any], _Guards]]  # how each is left, and when it can be


class _Thread(threading.local):
    """What had to stay in a thread until its guards are what they were; it goes with the thread."""

    def __init__(self) -> None:
        self.dead: Dead = []


_thread = _Thread()


def bury() -> None:
    """What stayed in this thread goes, if it can."""
    now = _Guards.now()
    stayed, _thread.dead[:] = list(_thread.dead), []
    for leave, guards in stayed:
        if guards == now:
            leave()
        else:
            _thread.dead.append((leave, guards))


_open: set[Session] = set()  # in any thread


def _forget_other_threads() -> None:
    """A forked child has one thread: captures of the others will never be left there."""
    for run in [run for run in _open if run.home != threading.get_ident()]:
        _open.discard(run)
        run.forget()


in_forked_child(_forget_other_threads)
