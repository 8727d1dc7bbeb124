"""Turns the operators of a run into records: names, filters, memory, notes."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from regard.errors import UnavailableError
from regard.interception import OPERATORS, Block, intercepting, pass_signals_on
from regard.kernel.attend import run
from regard.recipe import Dot, Edges, Given, Projected, Recipe, Recurrent, tensors
from regard.record import Note, OtherSoftmax, Record, Site, Trace
from regard.record.gradient import OutputGradient
from regard.record.site import Attends
from regard.record.stored_attention import (
    Layout,
    StoredAttention,
    StoredRecipe,
    StoredWeights,
    detached,
)
from regard.record.tokens import count
from regard.tracing import softmax_axes
from regard.tracing.dataflow.axis_roles import Contraction
from regard.tracing.dataflow.dataflow import DataFlow
from regard.tracing.dataflow.tags import Candidate, local_tensor, plain_tensors, storage_address
from regard.tracing.delta_rule import EARLIER, JOINED, STATE, DeltaRules, RuleCall
from regard.tracing.key_cache import KeyCaches
from regard.tracing.module_paths import (
    CallSite,
    ModulePaths,
    argument,
    attention_modules,
    frame_of,
    related,
)
from regard.tracing.operators import Reading, reader_of
from regard.tracing.pass_plan import Lesson, OtherEntry, SoftmaxEntry, key_of
from regard.tracing.recorder import Keep, Recorder
from regard.tracing.registry import checked
from regard.tracing.self_or_cross import of_operator, of_softmax
from regard.tracing.site_filter import Predicate, everything
from regard.types import Shape

LATE = "weights normalised after the product are stored without values and gradient"
OF_EDGES = "edges are stored without values and gradient"
REGISTERED = "a registered recipe has its own values, and no gradient"


class _ThreadState(threading.local):
    """The state of a capture in each thread."""

    following = True  # whether data flow is followed; not on the learned path
    lesson: Lesson | None = None  # the full pass that is being learned


class Collector:
    """Makes the records of one capture; the `Observer` of its data flow. Thread-safe."""

    learnable = True  # whether the learned path would see all that this one records
    sought = "attention"  # what notes say was not seen

    def __init__(
        self,
        model: nn.Module | None,
        trace: Trace,
        *,
        where: Predicate,
        asked: str,
        keep: Keep,
        max_bytes: int | None,
        values: bool,
        outputs: bool,
        grad: bool,
        attached: bool,
        tokens: Sequence[Any] | None,
        rules: frozenset[str] = frozenset(),
    ) -> None:
        self.trace, self.where, self._asked = trace, where, asked
        self.values, self.grad, self.attached = values, grad, attached
        self.recorder = Recorder(keep, max_bytes, outputs, attached, tokens, self.note)
        self.module_paths = ModulePaths(model)
        self.dataflow = DataFlow(self, grad or attached, rules)
        self.tags = self.dataflow.tags
        self.ready = False  # whether the parameters are tagged, which waits for the first operator
        self.key_caches = KeyCaches()
        self.delta_rules = DeltaRules(self.module_paths.modules.values())
        self.block = Block()  # its context is the number of the pass, in each thread
        self.here = _ThreadState()
        self.called = False  # whether a module of the model was called
        self.other = ""  # the class of a module outside the model that was called
        self.elsewhere = ""  # "thread" or "task": the model ran in one outside the capture
        self.closed = False
        self.lessons: list[tuple[Lesson, Callable[[], None]]] = []  # those that became plans
        self.cached = False  # whether an input of attention is written in place
        self._used: WeakSet[Any] = WeakSet()  # storages of the inputs of attention
        self._rewritten: WeakSet[Any] = WeakSet()  # older storages that were written in place
        self.attends: dict[tuple[str, str], Attends] = {}  # by site and line; "" for any
        self._single: dict[tuple[str, str], list[Record]] = {}  # one query of the keys' own input
        self.filtered: set[str] = set()
        self.ran: set[str] = set()  # paths of modules that are attention by name, and ran
        self.attention_paths = attention_modules(self.module_paths)
        self.waiting: list[tuple[int, Tensor, OutputGradient]] = []  # by thread
        self._calls: dict[str, int] = {}
        self._others: set[tuple[str, str, str]] = set()
        self._dropped: dict[str, list[int]] = {}  # index of a site's note, and later calls
        self._lock = threading.RLock()

    def adopt(self, module: nn.Module) -> None:
        """Learn the modules and parameters of a model that was not named beforehand."""
        self.module_paths.adopt(module)
        self.delta_rules.adopt(module.modules())
        self.ready = False
        self.attention_paths = attention_modules(self.module_paths)

    def get_ready(self) -> None:
        """Tag the parameters, before the first operator is followed."""
        with self._lock:
            if not self.closed:
                self.ready = True
                try:
                    self.tags.constants(self.module_paths.tensors())
                except Exception as error:
                    self.failed("parameters", error)

    @property
    def following(self) -> bool:
        return self.here.following

    def finish_pass(self) -> None:
        """Settle what waited for more keys of a softmax in this pass."""
        with self._lock:
            if not self.closed:
                try:
                    self.dataflow.candidates.flush()
                    self.dataflow.candidates.let_go()
                except Exception as error:
                    self.failed("softmax", error)

    def meet(self, module: nn.Module) -> None:
        """Tag parameters that a module got since (as under FSDP), before it runs."""
        try:
            for parameter in [each for each in module._parameters.values() if each is not None]:
                if any(self.tags.tag(plain) is None for plain in plain_tensors(parameter)):
                    self.tags.constants([parameter])
        except Exception as error:
            self.failed("parameters", error)

    # -- operators that the mode sees

    def before_change(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Copy what is held of tensors that are about to be changed in place."""
        with self._lock:
            if not self.closed:
                self._before_changes(plan, args, kwargs)

    def _before_changes(self, plan: Any, args: Any, kwargs: Any) -> None:
        try:
            for index in plan.changes:
                argument = args[index] if index < len(args) else kwargs.get(plan.names[index])
                for target in argument if isinstance(argument, list | tuple) else (argument,):
                    if isinstance(target, Tensor):
                        self._before_change(plan, target, args)
        except Exception as error:
            self.failed(plan.name, error)

    def _before_change(self, plan: Any, target: Tensor, args: Any) -> None:
        tag = self.tags.tag(target)
        if storage_address(target) is not None:
            storage = target.untyped_storage()
            self.cached = self.cached or storage in self._used
            if tag is None or tag.parameter:
                self._rewritten.add(storage)
        self.recorder.about_to_change(target)
        self.key_caches.forget(target)
        self.tags.protect(target)
        if plan.rule is None:
            self.tags.forget(target)
        elif plan.name == "mul_":
            self._protect_from_dropout(args)

    def _protect_from_dropout(self, args: Any) -> None:
        """Copy weights before dropout in place."""
        tag = self.tags.tag(args[0])
        noise = self.tags.tag(args[1]) if isinstance(args[1], Tensor) else None
        if tag is not None and tag.mark is not None and noise is not None and noise.noise:
            copy = args[0].detach().clone(memory_format=torch.preserve_format)
            self.dataflow.pointwise.dropout_copy(args[0], copy)

    def after(self, plan: Any, args: Any, kwargs: Any, out: Any, wrapped: bool = False) -> None:
        """An operator has run; a failure here must never break the model.

        `wrapped`: some arguments are tensor subclasses, such as shards.
        """
        with self._lock:
            if not self.closed:
                self._after(plan, args, kwargs, out, wrapped)

    def read_alone(self, plan: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that may attend, with no data flow before it."""
        if not self.ready:
            self.get_ready()
        out = plan.run(*args, **kwargs)
        self.here.following = False
        try:
            self.after(plan, args, kwargs, out)
        finally:
            self.here.following = True
        return out

    def _after(self, plan: Any, args: Any, kwargs: Any, out: Any, wrapped: bool) -> None:
        lesson = self.here.lesson
        try:
            if wrapped:
                args, kwargs, out = tree_map_only(Tensor, local_tensor, (args, kwargs, out))
            if plan.reader is not None:
                arguments = dict(zip(plan.names, args)) | kwargs
                reading = plan.reader(arguments, out, self._allowed_by)
                self._read(plan.name, reading, self.module_paths.call_site())
                if reading.value is not None and reading.output is not None:
                    self.dataflow.moves.attended(reading.query, reading.value, reading.output)
            elif plan.reads is not None:
                self._unlearnable()
                recipe = plan.reads(args, kwargs, out)
                if recipe is not None:
                    self._registered(plan.name, checked(recipe), out)
            elif plan.looks_like_attention:
                self._unread(plan.name)
            if self.delta_rules and self.delta_rules.inside():
                call = self.delta_rules.transposed(args[0]) if plan.name == "transpose" else None
                recipe = self.delta_rules.own(args[0]) if args else None
                if call is not None:
                    self._delta_rule(call)
                elif recipe is not None:
                    self._memory(recipe, args[0], out)
            elif plan.rule is not None and plan.reader is None:
                self.dataflow.follow(plan.name, plan.rule, args, kwargs, out)
            if plan.name in softmax_axes.SOFTMAXES:
                self._name_operator(plan, out)
            if plan.spelling and lesson is not None and lesson.learnable:
                self._spelled(lesson, plan, out)
        except Exception as error:
            self.failed(plan.name, error)

    def _name_operator(self, plan: Any, out: Any) -> None:
        """Tell a new candidate which operator made it."""
        tag = self.tags.tag(out) if isinstance(out, Tensor) else None
        if tag is not None and tag.mark is not None and not tag.mark.candidate.operator:
            tag.mark.candidate.operator = plan.name

    def _spelled(self, lesson: Lesson, plan: Any, out: Any) -> None:
        """Tell the lesson whether an operator by which attention is spelled makes a candidate."""
        call_site = self.module_paths.call_site()
        if call_site is None:
            return
        if plan.overload:
            lesson.refuse()
            return
        key = key_of(call_site, plan.name)
        tag = self.tags.tag(out)
        mark = None if tag is None else tag.mark or tag.log
        sides = mark.candidate.sides if mark is not None else None if tag is None else tag.sides
        lesson.ran(key, two_sided=sides is not None)
        if tag is not None and tag.mark is not None:
            lesson.softmax(key, tag.mark.candidate, out)

    def all_read(self) -> bool:
        """Whether nothing was lost, noted, or changed in place so far."""
        with self._lock:
            if self.closed or self.cached or self.recorder.changed:
                return False
            candidates = self.dataflow.candidates
            unread = candidates.lost or candidates.unasked or candidates.unfinished
            return not unread and not self.trace.notes

    def _lesson_of(self, candidate: Candidate) -> Lesson | None:
        """The lesson of a softmax; an earlier one that has it was wrong, and is forgotten."""
        lesson = self.here.lesson
        if lesson is not None and id(candidate) in lesson.softmaxes:
            return lesson
        for before, forget in self.lessons:
            if id(candidate) in before.softmaxes:
                forget()
        return lesson

    def _unlearnable(self) -> None:
        """Refuse the lesson: the learned path would miss something."""
        if self.here.lesson is not None:
            self.here.lesson.refuse()

    def failed(self, operator: str, error: Exception) -> None:
        pass_signals_on(error)
        self._unlearnable()
        call_site = self.module_paths.call_site()
        name = "" if call_site is None else call_site.name
        if isinstance(error, UnavailableError):  # a reader's own refusal
            self.note("unread", name, f"the operator {operator} cannot be read: {error}")
        else:
            self.note("error", name, f"{operator}: {type(error).__name__}: {error}")

    def _allowed_by(self, added: Tensor) -> Tensor | None:
        tag = self.tags.tag(added)
        return (
            None if tag is None or tag.negated_mask is None else tag.negated_mask.allowed_by(added)
        )

    # -- sites

    def _read(
        self,
        operator: str,
        reading: Reading,
        call_site: CallSite | None,
        attends: Attends | None = None,
    ) -> None:
        """A fused operator attended; `attends` is its learned label."""
        self.dataflow.candidates.flush()
        if call_site is None:
            return
        key, lesson = key_of(call_site, operator), self.here.lesson
        if lesson is not None:
            lesson.ran(key)
            if operator not in OPERATORS:
                lesson.refuse()
        if operator == "_transformer_encoder_layer_fwd":  # the fast path skips its attention module
            call_site = self.module_paths.inside(call_site, "self_attn")
        if not self.wants(call_site):
            if lesson is not None:
                lesson.attended(key, "unknown")
            return
        recipe = reading.recipe
        if isinstance(recipe, Dot) and (grid := _own_grid()) is not None:
            recipe = replace(recipe, grid=grid)
        attends = attends or self._between(call_site, reading)
        site = self._site(call_site, operator, attends, single=_is_single(recipe.shape))
        if lesson is not None:
            lesson.attended(key, site.attends)
        tag = self.tags.tag(reading.key)
        self._use(tensors(recipe))
        if self.values and reading.value is not None:
            recipe = replace(recipe, value=reading.value)  # type: ignore[type-var]
        elif self.values and isinstance(recipe, Projected):
            recipe = recipe.with_value()
        if not self._makes_graph() and _in_graph(recipe):
            recipe = recipe.map(detached)
        held: StoredAttention | None = None
        references = (
            isinstance(recipe, Dot) and self.recorder.keep == "recipe" and not self.attached
        )
        if references and isinstance(recipe, Dot) and recipe.value is None and recipe.grid is None:
            in_place = tag is not None and tag.written and self.recorder.max_bytes is None
            take = self.key_caches.written if in_place else self.key_caches.held
            held = take(site.base, recipe)
        if held is None and not self.following and isinstance(recipe, Dot):
            recipe = self._copied(recipe)
        gradient = None
        if self.grad and reading.output is not None and reading.value is not None:
            gradient = OutputGradient(reading.value.detach(), reading.arrange)
            self.waiting.append((threading.get_ident(), reading.output, gradient))
        output = None if reading.output is None else reading.arrange(reading.output)
        self._add(site, held or StoredRecipe(recipe), output, gradient)

    def _delta_rule(self, call: RuleCall) -> None:
        """A gated delta rule in plain torch has ended."""
        self._unlearnable()
        self.dataflow.moves.attended(*call.on_heads)
        call_site = self.module_paths.call_site()
        if call_site is None or not self.wants(call_site):
            return
        if not self._makes_graph():
            call = call.detached()
        site = self._site(call_site, "gated_delta_rule", "self")
        held, unseen = self.delta_rules.held(site.base, call, self.values)
        gradient, joined = None, held.shape.keys > held.shape.queries
        if self.grad and not joined:
            gradient = OutputGradient(call.on_heads[1].detach().float(), _as_it_is)
            self.waiting.append((threading.get_ident(), call.output, gradient))
        self._add(site, held, call.output, gradient, JOINED if self.grad and joined else "")
        if unseen and self.trace[-1].held != "dropped":
            self.note("unread", site.base, STATE)

    def _memory(self, recipe: Recurrent, mixed: Tensor, output: Tensor) -> None:
        """A memory of our own was read; `output` is `mixed` with batch and head apart."""
        assert recipe.value is not None
        self.dataflow.moves.attended(recipe.query, recipe.value, output)
        call_site, apart = self.module_paths.call_site(), recipe.shape[:2]
        reading = Reading(
            replace(recipe, value=None),  # type: ignore[type-var]
            recipe.query,
            recipe.key,
            recipe.value,
            mixed,
            lambda tensor: tensor.unflatten(0, apart),
        )
        count = len(self.trace)
        self._read("read_memory", reading, call_site)
        if recipe.memory is not None and len(self.trace) > count and call_site is not None:
            self.note("unread", call_site.name, EARLIER)

    def _use(self, inputs: Sequence[Tensor]) -> None:
        """Note whether an input of attention is a cache, or a table that is written to."""
        for tensor in inputs:
            if storage_address(tensor) is None:
                continue
            storage, tag = tensor.untyped_storage(), self.tags.tag(tensor)
            self._used.add(storage)
            written = storage in self._rewritten or (tag is not None and tag.written)
            self.cached = self.cached or written

    def _copied(self, recipe: Dot) -> Dot:
        """Copy keys and values that a cache may write to where writing is not seen."""
        if recipe.shape.keys <= recipe.shape.queries and not recipe.key.is_inference():
            return recipe  # version counters detect changes in place
        value = None if recipe.value is None else recipe.value.clone()
        return replace(recipe, key=recipe.key.clone(), value=value)

    # -- operators that the kernels of the learned path see

    def read_operator(
        self,
        operator: str,
        arguments: dict[str, Any],
        out: Any,
        call_site: CallSite,
        attends: Attends | None = None,
    ) -> None:
        """A fused operator ran; `attends` is the label from a full pass."""
        reader = reader_of(operator)
        with self._lock:
            if reader is not None and not self.closed:
                try:
                    self._read(
                        operator, reader(arguments, out, lambda added: None), call_site, attends
                    )
                except Exception as error:
                    self.failed(operator, error)

    def read_softmax(
        self,
        entry: SoftmaxEntry,
        weights: Tensor,
        dim: int,
        batches: frozenset[int],
        call_site: CallSite,
    ) -> bool:
        """A softmax with learned axes ran; returns whether they fit."""
        layout = entry.arrangement.layout(weights, dim, batches)
        if layout is None:
            return False
        with self._lock:
            if not self.closed and self.wants(call_site):
                try:
                    site = self._site(call_site, "softmax", entry.attends)
                    self._add(
                        site, StoredWeights(detached(weights), layout, entry.kind), None, None
                    )
                except Exception as error:
                    self.failed("softmax", error)
        return True

    def read_other(self, entry: OtherEntry, output: Tensor, call_site: CallSite) -> None:
        if self.wants(call_site, attention=False):
            self.other_softmax(call_site, tuple(output.shape), entry.reason)

    def other_softmax(self, call_site: CallSite, shape: tuple[int, ...], reason: str) -> None:
        """List a softmax that is not attention, once."""
        if (call_site.path, call_site.source, reason) not in self._others:
            self._others.add((call_site.path, call_site.source, reason))
            self.trace.other_softmaxes.append(
                OtherSoftmax(
                    call_site.path, call_site.module_class, call_site.source, shape, reason
                )
            )

    def _registered(self, operator: str, recipe: Recipe, out: Any) -> None:
        call_site = self.module_paths.call_site()
        if call_site is not None and self.wants(call_site):
            attends: Attends = "unknown"
            followed = isinstance(recipe, Dot) and None not in (
                self.tags.tag(recipe.query),
                self.tags.tag(recipe.key),
            )
            if followed and isinstance(recipe, Dot):
                attends = self._between(call_site, Reading(recipe, recipe.query, recipe.key))
            site = self._site(call_site, operator, attends, single=_is_single(recipe.shape))
            output = out if isinstance(out, Tensor) else None
            held = StoredRecipe(recipe if self.attached else recipe.map(detached))
            self._add(site, held, output, None, REGISTERED)

    def _between(self, call_site: CallSite, reading: Reading) -> Attends:
        """Self or cross, as a full pass found where data flow is not followed."""
        if self.following or reading.key is reading.query:
            return of_operator(reading.query, reading.key, self.dataflow)
        return self.attends.get((call_site.name, ""), "unknown")

    def accept(
        self, candidate: Candidate, contraction: Contraction, weights: Tensor | None
    ) -> None:
        """A softmax of the model's own met its values; `weights` are computed ones, if it was
        normalised after the product."""
        tensor = contraction.tensor()
        if tensor is None:
            self._unlearnable()
            return
        call_site = candidate.call_site
        roles = contraction.roles(self.module_paths.heads(call_site))
        layout = contraction.layout(roles)
        if layout is None:
            self._unlearnable()
            self.dataflow.candidates.lost[call_site.path] = candidate
            return
        if weights is not None or candidate.segments is not None or roles.gathered:
            self._unlearnable()  # not the result of one operator
        own = weights is None and candidate.segments is None and contraction.mark.kind != "signed"
        model = self.module_paths.model
        if not intercepting():  # an edit's own softmax in place of a fused operator
            softmax_axes.learn(model, call_site, candidate, roles, layout, own)
        kind: Any = contraction.mark.kind or candidate.kind
        if kind == "distribution" and layout.shape.keys < candidate.shape[candidate.key]:
            kind = "partial"  # a sink beside the keys
        gathered = roles.gathered or candidate.segments is not None
        attends = of_softmax(candidate, contraction, roles, self.tags, late=weights is not None)
        single, followed = _is_single(layout.shape), candidate.sides is not None
        site = self._site(call_site, "softmax", attends, single=single, followed=followed)
        if (weights is not None or gathered) and self.attached:
            self.note(
                "unread",
                site.base,
                "weights normalised after the product, or of edges, are not in the graph",
            )
        if weights is not None:
            self._add(
                site, StoredRecipe(Given(weights, None, kind)), contraction.output, None, LATE
            )
            return
        kept = tensor if self._makes_graph() else detached(tensor)
        edges: Edges | None = None
        if candidate.segments is not None:
            queries = int(contraction.output.shape[candidate.key])
            empty = kept.numel() == 0  # then the layout has no edge axis
            weights = kept.new_zeros(1, layout.shape.heads, 1, 0) if empty else layout.view(kept)
            edges = contraction.of_edges(weights, kind, queries)
        elif roles.gathered:
            edges = contraction.edges(roles, layout.view(kept), kind)
        if not roles.certain or (gathered and edges is None):
            site = replace(site, axes_known=False)
            unknown = (
                "keys are chosen for each query, and which is" if roles.certain else "axes are"
            )
            self.note(
                "axes",
                site.base,
                f"{unknown} not known: weights {tuple(layout.shape)} are in the model's order; "
                "name their axes with record.with_axes",
            )
        if edges is not None:
            self._add(site, StoredRecipe(edges), contraction.output, None, OF_EDGES)
            return
        value_layout = contraction.value(roles) if self.values else None
        values = contraction.values if self.attached else detached(contraction.values)
        value = None if value_layout is None else (values, value_layout)
        gradient = None
        if self.grad and tensor.requires_grad:
            gradient = OutputGradient(None, _arranged(tensor, layout))
            tensor.register_hook(gradient.arrived)
        self._use([kept])
        lesson = self._lesson_of(candidate)
        if lesson is not None:
            lesson.recorded(candidate, layout, kept, kind, site.attends)
        self._add(site, StoredWeights(kept, layout, kind, value), contraction.output, gradient)

    def reject(self, candidate: Candidate) -> None:
        lesson = self._lesson_of(candidate)
        if lesson is not None:
            lesson.rejected(candidate)
        self.other_softmax(candidate.call_site, candidate.shape, candidate.reason or "")

    def _unread(self, operator: str) -> None:
        self._unlearnable()
        call_site = self.module_paths.call_site()
        if call_site is not None:
            self.note(
                "unread",
                call_site.name,
                f"the operator {operator} looks like attention and cannot be read; "
                "register it with regard.register_recipe",
            )

    def wants(self, call_site: CallSite, attention: bool = True) -> bool:
        if self.where is everything:
            return True
        site = Site(call_site.path, call_site.module_class, call_site.source, "")
        if self.where(site):
            return True
        if attention:
            self.filtered.add(site.base)
        return False

    def _site(
        self,
        call_site: CallSite,
        operator: str,
        attends: Attends,
        *,
        single: bool = False,
        followed: bool = True,
    ) -> Site:
        """The next call of a site. `single`: one query attends to several keys; `followed`: data
        flow determined the label, which may be "unknown"."""
        with self._lock:
            base = call_site.name
            self._calls[base] = call = self._calls.get(base, 0) + 1
        line, followed = (base, call_site.source), followed and self.following
        if attends == "unknown" and followed and line in self._single:
            for record in self._single.pop(line):  # a decoder that started from its keys' state
                self.recorder.relabel(record, "unknown")
            if self.here.lesson is not None:
                self.here.lesson.doubt(call_site)
        if attends == "unknown":
            attends = self.attends.get(line if followed else (base, ""), "unknown")
        elif attends == "cross" or not single:
            self.attends.setdefault(line, attends)
            self.attends.setdefault((base, ""), attends)
        return Site(
            call_site.path,
            call_site.module_class,
            call_site.source,
            operator,
            call,
            self.step,
            attends,
        )

    def call_site(self) -> CallSite | None:
        """The module that is running, and its line."""
        return self.module_paths.call_site()

    @property
    def step(self) -> int:
        """The number of this thread's pass."""
        return max(self.block.context or 0, 0)

    def _add(
        self,
        site: Site,
        held: StoredAttention,
        output: Tensor | None,
        gradient: OutputGradient | None,
        not_kept: str = "",
    ) -> None:
        record = self.recorder.record(site, held, output, gradient, not_kept)
        if record.held == "dropped":
            self.key_caches.drop(site.base)
            self.delta_rules.drop(site.base)
        if site.attends == "self" and _is_single(record.shape):
            self._single.setdefault((site.base, site.source), []).append(record)
        self.trace.append(record)

    def _makes_graph(self) -> bool:
        """Whether weights stay in the graph; a note if there is none."""
        if self.attached and not torch.is_grad_enabled():
            self.note("unread", "", "attached=True has no effect: gradients are disabled")
            return False
        return self.attached

    def settle_hooks(self) -> None:
        """Register hooks on outputs of fused operators, in the graph only once returned."""
        here = threading.get_ident()
        with self._lock:
            waiting, self.waiting = self.waiting, []
            for thread, output, gradient in waiting:
                if thread != here and not self.closed:
                    self.waiting.append((thread, output, gradient))
                elif output.requires_grad:
                    output.register_hook(gradient.arrived)

    # -- notes

    def note(self, kind: Any, where: str, text: str) -> None:
        """Add a note once; a site that is dropped at every call is noted once, and counted."""
        note = Note(kind, where, text)
        dropped = self._dropped.get(where) if kind == "dropped" else None
        if dropped is not None:
            dropped[1] += 1
        elif note not in self.trace.notes:
            if kind == "dropped":
                self._dropped[where] = [len(self.trace.notes), 0]
            self.trace.notes.append(note)

    def close(self, failed: bool) -> None:
        """The capture ends: release tensors, and note what is missing."""
        with self._lock:
            self.closed = True
        self.settle_hooks()
        try:
            self.dataflow.candidates.flush()
        except Exception as error:
            self.failed("softmax", error)
        self.tags.clear()
        self.key_caches.clear()
        self.delta_rules.clear()
        if not failed:
            self._note_missing()
        self.recorder.close(self.trace)
        del self.dataflow, self.recorder  # they refer to us: a cycle

    def _note_missing(self) -> None:
        """Note what was dropped, lost, left unread or never seen."""
        tokens = self.recorder.tokens
        if tokens is not None and len(self.trace) and not self.recorder.labelled:
            text = f"tokens= has {count(tokens)} words; no attention has as many positions"
            self.note("filter", "", text)
        for index, later in self._dropped.values():
            if later:
                note = self.trace.notes[index]
                text = f"{note.text} (and {later} later calls)"
                self.trace.notes[index] = replace(note, text=text)
        others = self.trace.other_softmaxes
        seen = {record.path for record in self.trace} | {other.path for other in others}
        seen |= self.filtered | {note.where for note in self.trace.notes}
        self._note_unread()
        for path in sorted(self.ran):
            if not any(related(path, other) for other in seen):
                name = type(self.module_paths.modules[path]).__name__
                self.note("unseen", path, f"{name} ran, and no attention was seen in it")
        if not len(self.trace) and (self.filtered or others or not self.trace.notes):
            self._note_empty()

    def _note_unread(self) -> None:
        """Note what may be attention, and was not followed to its values."""
        candidates, others = self.dataflow.candidates, self.trace.other_softmaxes
        lines = {(record.path, record.site.source) for record in self.trace}
        lines |= {(other.path, other.source) for other in others}
        unasked = [
            (
                call_site,
                f"a product of two inputs, with {' and '.join(steps)} done to it, was multiplied "
                f"by a third: attention that is no softmax? capture(rules={steps[-1]!r}) records "
                "it",
            )
            for call_site, steps in candidates.unasked.values()
        ]
        for call_site, text in [*unasked, *candidates.unfinished.values()]:
            read = (call_site.path, call_site.source) in lines
            if not read and call_site.name not in self.filtered:
                self.note("unread", call_site.name, f"{text} ({call_site.source})")
        for lost in candidates.lost.values():
            text = f"a softmax of products, {lost.shape}, was not followed to values"
            self.note("unread", lost.call_site.name, text)

    def _note_empty(self) -> None:
        """Note why the trace is empty."""
        others, nothing = len(self.trace.other_softmaxes), f"no {self.sought} was seen"
        if self.filtered:
            sites = ", ".join(sorted(self.filtered)[:3]) + ", …" * (len(self.filtered) > 3)
            text = f"where={self._asked} matched none of {len(self.filtered)} sites: {sites}"
            self.note("filter", "", text)
            return
        if others:
            softmaxes = f"{others} softmaxes were" if others > 1 else "1 softmax was"
            text = (
                f"{nothing}; {softmaxes} taken for something else: "
                "trace.other_softmaxes has the reasons"
            )
        elif self.called:
            text = f"{nothing} in the model, which ran"
        elif self.elsewhere:
            text = (
                f"{nothing}: the model ran in a {self.elsewhere} that was started before the "
                "capture; open the capture there"
            )
        elif self.other and self.module_paths.model is not None:
            model = type(self.module_paths.model).__name__
            text = f"{nothing}: the model, {model}, did not run; {self.other} did"
        else:
            text = f"{nothing}: did the model run in the capture?"
        self.note("empty", "", text)


_RUN = inspect.unwrap(run).__code__


def _own_grid() -> tuple[int, int] | None:
    """The grid of our own recipe whose operator is running, which its arguments lack."""
    frame = frame_of({id(_RUN)})
    return None if frame is None else argument(frame, "recipe").grid


def _is_single(shape: Shape) -> bool:
    """Whether one query attends to several keys: if they are its own input, it may be a position
    among them, or the state of a decoder that sums them up."""
    return shape.queries == 1 < shape.keys


def _as_it_is(gradient: Tensor) -> Tensor:
    return gradient


def _arranged(tensor: Tensor, layout: Layout) -> Callable[[Tensor], Tensor]:
    """Bring a gradient of `tensor`'s shape into (batch, head, query, key)."""
    shape, stride, offset = tensor.shape, tensor.stride(), int(tensor.storage_offset())

    def arrange(arrived: Tensor) -> Tensor:
        strided = torch.empty_strided(shape, stride, dtype=arrived.dtype, device=arrived.device)
        strided.copy_(arrived)
        return layout._replace(offset=layout.offset - offset).view(strided)

    return arrange


def _in_graph(recipe: Recipe) -> bool:
    if isinstance(recipe, Dot) and recipe.bias is None and recipe.value is None:
        return recipe.query.requires_grad or recipe.key.requires_grad  # the usual case, quickly
    return any(tensor.requires_grad for tensor in tensors(recipe))
