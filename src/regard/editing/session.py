"""One `with regard.edit(...)`: which operators it changes, in which threads and calls.

The kernels are switched on for the outermost call of one of the model's modules, in the threads
that belong to the block, and off when it ends, however it ends.
"""

from __future__ import annotations

import difflib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from regard.contract import State
from regard.editing import operators
from regard.editing.call import AttentionCall, Words
from regard.editing.changes import Change
from regard.editing.plan import Plan, masked
from regard.editing.selection import select
from regard.editing.sites import Sites, sites_of
from regard.errors import RegardError, UnavailableError
from regard.interception import (
    Block,
    Operator,
    available,
    intercepted,
    note_change,
    unwrap_calls,
    wrap_calls,
)
from regard.kernel import fused
from regard.record import Site, Trace
from regard.tracing.module_paths import CallSite, ModulePaths
from regard.tracing.session import changing, is_captured
from regard.tracing.site_filter import Predicate, predicate, shown
from regard.tracing.softmax_axes import SoftmaxAxes
from regard.tracing.torch_settings import eager_torch, follow_compiler
from regard.types import Shape


class Touch(NamedTuple):
    """A change at a site."""

    change: int  # its number
    site: str


class Pass:
    """One outermost call of a module of the model, in one thread."""

    def __init__(self, session: EditSession, cached: int | None) -> None:
        self.session = session
        self.cached = cached  # positions in the cache it was given; None if there is none
        self.first: int | None = 0  # position of the first query, by the last self-attention
        self.calls: Counter[str] = Counter()  # of each module
        self.again = _in_backward()  # recomputed for a backward pass
        self.differentiable = torch.is_grad_enabled() or _in_reentrant_checkpoint()


_numbers = itertools.count()


class _ThreadState(threading.local):
    passes: tuple[Pass, ...] = ()
    learning = False  # a pass is captured, in which nothing is changed


_here = _ThreadState()


class EditSession:
    """The changes of one block while it is open."""

    def __init__(
        self, model: nn.Module, changes: tuple[Change, ...], like: Trace | None, words: Words
    ) -> None:
        self.model, self.changes = model, changes
        self.module_paths = ModulePaths(model)
        self.words = words
        self.words_of: dict[str, Words] = {}
        self.predicates: list[Predicate] = [predicate(change.where) for change in changes]
        self.sites: Sites = sites_of(model)
        self.like = like
        self.told = False  # whether `like` tells all sites, so that no pass is captured
        self.block = Block()
        self.touched: Counter[Touch] = Counter()
        self.missed: dict[
            int, AttentionCall
        ] = {}  # by number, a call of which a change has nothing
        self.matched: set[int] = set()  # numbers of changes whose `where` matched a site
        self.in_checkpoints = 0  # changed calls that a backward pass will run again
        self.recomputed = 0
        self.lengths: dict[Any, int] = {}  # how many keys there were in the last pass, by call
        self._wanted: dict[Any, tuple[int, ...]] = {}
        self._checked: Any = None  # what was known of the sites when they were last checked
        self.passes = 0  # outermost calls
        self._stack = ExitStack()
        self._watched: set[int] = set()  # ids of modules whose calls are wrapped
        self._closed = True
        self.number = next(_numbers)  # outer blocks come first

    # -- entering and leaving

    def begin(self) -> None:
        if not available():
            raise UnavailableError(
                "edit: torch's dispatch key TESTING_ONLY_GenericMode has a fallback of somebody "
                "else, so attention cannot be changed in this process"
            )
        with ExitStack() as stack:
            stack.enter_context(eager_torch())
            self.sites.check(self.module_paths)
            if self.like is not None:
                self._adopt(self.like)
            self.block.open()
            stack.callback(self.block.close)
            stack.enter_context(changing())
            self._stack = stack.pop_all()
            self._watch_entrances()
        self._closed = False

    def end(self) -> None:
        self._closed = True
        self._stack.close()

    def _watch_entrances(self) -> None:
        """Wrap modules whose calls may be outermost: the model, and those that hold others or
        attend themselves."""
        attending = {path for path, _ in self.sites.sites}
        for path, module in [("", self.model), *self.module_paths.modules.items()]:
            outer = module is self.model or module._modules or path in attending
            if outer and id(module) not in self._watched:
                self._watched.add(id(module))
                wrap_calls(module, self._around)
                self._stack.callback(unwrap_calls, module, self._around)

    def _adopt(self, trace: Trace) -> None:
        for record in trace:
            if record.path not in self.module_paths.modules:
                raise RegardError(
                    f"edit: like=: the trace has attention at '{record.path}', where this model "
                    "has no module; expected a trace of it"
                )
            if record.query_tokens is not None or record.key_tokens is not None:
                self.words_of[record.path] = Words(record.query_tokens, record.key_tokens)
        sites = self.sites.extended(trace)
        if sites is not None:
            self.sites, self.told = sites, True
            self._check_sites(everything=True)

    # -- calls

    def _around(
        self, module: nn.Module, proceed: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Around a call of a module: the outermost one is a pass."""
        passes = _here.passes
        inside = _here.learning or any(each.session is self for each in passes)
        if inside or self._closed or not self.block.here():
            return proceed(*args, **kwargs)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise UnavailableError(
                "edit: the model was called inside a transform of torch.func, such as vmap, where "
                "its attention cannot be changed"
            )
        follow_compiler()
        self.passes += 1
        current = Pass(self, _cached_positions((args, kwargs)))
        _here.passes = (*passes, current)
        try:
            if not (current.again or self.told or self.sites.knows(module, args, kwargs)):
                _here.learning = True
                try:
                    self.sites.learn(self.module_paths, module, args, kwargs)
                finally:
                    _here.learning = False
                self._wanted.clear()
                self._watch_entrances()
            self._check_sites(everything=module is self.module_paths.modules.get(""))
            with intercepted(_intercept):
                return proceed(*args, **kwargs)
        finally:
            _here.passes = passes

    # -- sites

    def _check_sites(self, everything: bool) -> None:
        """Raise where a change matches no site, if all are known, or one that cannot change."""
        sites = self.sites
        state = (everything, len(sites.sites), len(sites.axes), len(sites.unread))
        if state == self._checked:
            return
        self._checked = state
        for number, matches in enumerate(self.predicates):
            for site in list(self.sites.sites.values()):
                if not matches(site):
                    continue
                self.matched.add(number)
                reason = self.sites.refusal(site)
                if reason is not None:
                    raise UnavailableError(
                        f"{self.changes[number]}: '{site.base}' ({site.source}) cannot be changed: "
                        f"{reason}; leave it out with where="
                    )
            for note in self.sites.unread:
                if matches(Site(note.where, "", "", "")):
                    raise UnavailableError(f"{self.changes[number]}: {note}")
            # Without any site the operators that run now say more, or the end of the block does.
            if everything and sites.sites and number not in self.matched:
                raise RegardError(self.no_match(number))

    def no_match(self, number: int) -> str:
        """Why a change has no site."""
        change = self.changes[number]
        names = list(dict.fromkeys(site.base for site in self.sites.sites.values()))
        if not names:
            return f"{change}: the model has no attention that can be seen"
        where = change.where if isinstance(change.where, str) else shown(change.where)
        near = difflib.get_close_matches(str(where), names, 3, 0.3) or names[:3]
        return (
            f"{change}: where={shown(change.where)} matches none of {len(names)} sites; near: "
            f"{', '.join(map(repr, near))}"
        )

    def wanted(self, site: Site) -> tuple[int, ...]:
        """Numbers of the changes that concern a site."""
        key = (site.path, site.source, site.call, site.attends)
        numbers = self._wanted.get(key)
        if numbers is None:
            matching = (n for n, matches in enumerate(self.predicates) if matches(site))
            numbers = self._wanted[key] = tuple(matching)
        return numbers

    def note_checkpoint(self, current: Pass) -> None:
        """Count changed calls inside activation checkpoints, and those that run again."""
        if current.again:
            self.recomputed += 1
        elif current.differentiable and _in_checkpoint():
            self.in_checkpoints += 1


# -- operators


class _Planner:
    """Collects what all open blocks of this thread change at one operator."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.here: list[tuple[Pass, Site]] = []
        for current in sorted(_here.passes, key=lambda each: each.session.number):
            call_site = current.session.module_paths.call_site()
            if call_site is None:
                continue
            if operator == "_transformer_encoder_layer_fwd":
                call_site = current.session.module_paths.inside(call_site, "self_attn")
            self.here.append((current, _site(current, call_site)))

    @property
    def wanted(self) -> bool:
        return any(current.session.wanted(site) for current, site in self.here)

    @property
    def axes(self) -> SoftmaxAxes | None:
        current, site = self.here[0]
        axes = current.session.sites.axes.get((site.path, site.source))
        return axes if isinstance(axes, SoftmaxAxes) else None

    def refuse(self, reason: str) -> None:
        for current, site in self.here:
            numbers = current.session.wanted(site)
            if numbers:
                change = current.session.changes[numbers[0]]
                raise UnavailableError(
                    f"{change}: '{site.name}' ({site.source}) cannot be changed: {reason}"
                )

    def plan(
        self,
        shape: Shape,
        like: Tensor,
        mask: Callable[[], Tensor | None] = lambda: None,
        gathered: bool = False,
        visible: bool = False,
    ) -> Plan | None:
        if 0 in shape:
            return None
        plan: Plan | None = None
        for current, site in self.here:
            current.calls[site.base] += 1
            first, first_key = _positions(current, site, shape, mask)
            session = current.session
            numbers = session.wanted(site)
            if not numbers:
                continue
            self._check(current, site)
            call = AttentionCall(
                site,
                shape,
                first,
                first_key,
                torch.promote_types(like.dtype, torch.float32),
                like.device,
                session.words_of.get(site.path, session.words),
                gathered,
                session.passes == 1,
                current.cached is not None or bool(first),
            )
            plan = plan or Plan(call)
            for number in numbers:
                change = session.changes[number]
                selection = select(call, change.heads, change.queries, change.keys)
                if selection is None:
                    session.missed[number] = call
                    continue
                change.extend(plan, selection, call)
                session.touched[Touch(number, site.base)] += 1
        if plan is None:
            return None
        if visible or is_captured():
            plan.spell_out()
        else:
            plan.simplify()
        return None if plan.empty else plan

    def _check(self, current: Pass, site: Site) -> None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            self.refuse("it runs inside a transform of torch.func, such as vmap")
        if current.again and site.call > 1:
            self.refuse(
                "its module runs more than once in a pass, and is run again for a backward pass, "
                "where its calls cannot be told apart; switch activation checkpointing off"
            )
        current.session.note_checkpoint(current)


def _intercept(operator: Operator, args: Any, kwargs: Any) -> Any:
    """Runs instead of an attention operator."""
    name = operator.name
    softmax = name in operators.SOFTMAXES
    if not softmax and name not in operators.FUSED and name not in operators.CLOSED:
        return operator.run(*args, **kwargs)
    planner = _Planner(name)
    if name in operators.CLOSED:
        planner.refuse(f"it is computed by {name}, which has no softmax to change")
    if not planner.here or name in operators.CLOSED:
        return operator.run(*args, **kwargs)
    arguments = operators.named(operator, args, kwargs)
    captured = is_captured()
    output = None
    if softmax:
        output = _softmax(planner, arguments)
    elif name == "scaled_dot_product_attention":
        output = operators.scaled_dot_product(arguments, planner, captured)
    elif name == "_scaled_dot_product_flash_attention_for_cpu":
        run = lambda: operator.run(*args, **kwargs)
        output = operators.flash(arguments, planner, captured, run)
    elif name == fused.OPERATOR:
        output = operators.own_attention(arguments, planner, captured)
    elif name == "_native_multi_head_attention":
        output = operators.native_attention(arguments, planner, captured)
    elif name == "_transformer_encoder_layer_fwd":
        output = operators.encoder_layer(arguments, planner, captured)
    else:
        output = operators.flex(arguments, planner, captured)
    if output is None:
        return operator.run(*args, **kwargs)
    note_change()
    return output


def _softmax(planner: _Planner, arguments: Any) -> Tensor | None:
    current, site = planner.here[0]
    line, axes = (site.path, site.source), planner.axes
    if arguments["self"].is_nested:
        planner.refuse("its tensors are nested")
        return None
    dim = arguments["dim"]
    rank = arguments["self"].dim()
    fits = axes is not None and rank == len(axes.dims) and dim % rank == axes.dim
    if axes is not None and fits:
        return operators.softmax(axes, arguments, planner)
    if axes is not None or line not in current.session.sites.softmaxes:
        planner.refuse(
            "a softmax ran there that the captured pass did not see, or over another axis, so it "
            "is not known whether it is attention; pass like=regard.trace(model, ...) of such a "
            "call"
        )
    return None


def _site(current: Pass, call_site: CallSite) -> Site:
    path, source = call_site.path, call_site.source
    learned = current.session.sites.sites.get((path, source))
    attends = "unknown" if learned is None else learned.attends
    operator = "" if learned is None else learned.operator
    call = current.calls[call_site.name] + 1
    return Site(path, call_site.module_class, source, operator, call, 0, attends)


def _positions(
    current: Pass, site: Site, shape: Shape, mask: Callable[[], Tensor | None]
) -> tuple[int | None, int]:
    """Absolute positions of the first query, if it is known, and of the first key."""
    lengths, line = current.session.lengths, (site.path, site.source, site.call)
    before, lengths[line] = lengths.get(line), shape.keys
    if site.attends == "cross":
        return current.first if current.cached is None else current.cached, 0
    first: int | None = 0
    first_key = 0
    if current.cached is not None:
        first = current.cached
        first_key = max(0, first + shape.queries - shape.keys)
    elif before is not None and before + shape.queries == shape.keys:
        first = before  # a cache that the model keeps to itself grew
    elif shape.keys > shape.queries:
        first = _first_by_mask(mask())
    current.first = first
    return first, first_key


def _first_by_mask(mask: Tensor | None) -> int | None:
    """The position of the first query where the mask is causal: each query sees one key more."""
    if mask is None:
        return None
    visible = mask if mask.dtype == torch.bool else ~masked(mask)
    keys = visible.shape[-1]
    last = (visible * torch.arange(1, keys + 1, device=visible.device)).amax((0, 1, 3)) - 1
    queries = torch.arange(len(last), device=last.device)
    hides = len(last) > 1 or int(last[0]) < keys - 1
    return int(last[0]) if hides and bool((last - queries == last[0]).all()) else None


def _cached_positions(inputs: Any) -> int | None:
    """How many positions the cache among some inputs has seen; None if there is no cache."""
    if isinstance(inputs, State):  # whose keys have no gap
        return inputs.length if inputs.growing and not (inputs.first and inputs.dropped) else None
    if isinstance(inputs, dict):
        inputs = list(inputs.values())
    if isinstance(inputs, tuple | list):
        lengths = [_cached_positions(each) for each in inputs if not isinstance(each, Tensor)]
        return next((length for length in lengths if length is not None), None)
    length = getattr(inputs, "get_seq_length", None)
    return int(length()) if callable(length) and not isinstance(inputs, nn.Module) else None


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _in_checkpoint() -> bool:
    """Whether torch's activation checkpointing is among the callers."""
    return any(True for _ in _checkpoint_frames())


def _in_reentrant_checkpoint() -> bool:
    """Whether a checkpoint that runs without gradients, and again for a backward pass, is among the
    callers: an autograd function, which has edges where there is a backward pass."""
    forward = checkpoint.CheckpointFunction.forward.__code__
    frames = (frame for frame in _checkpoint_frames() if frame.f_code is forward)
    return any(frame.f_locals["ctx"].next_functions for frame in frames)


def _checkpoint_frames() -> Iterator[Any]:
    """The callers in torch's activation checkpointing."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == checkpoint.__file__:
            yield frame
        frame = frame.f_back
