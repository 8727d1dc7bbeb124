"""Turns what the mode sees into records: names, filters, memory, and what must be said."""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from regard.errors import UnavailableError
from regard.interception import OPERATORS, Block, pass_signals_on
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
from regard.tracing.dataflow.axes import Origin, apart
from regard.tracing.dataflow.contraction import Contraction, Roles
from regard.tracing.dataflow.dataflow import DataFlow
from regard.tracing.dataflow.tags import Candidate, local_tensor, plain_tensors, storage_address
from regard.tracing.delta_rule import EARLIER, JOINED, STATE, DeltaRules, RuleCall
from regard.tracing.key_cache import KeyCaches
from regard.tracing.module_paths import CallSite, ModulePaths, argument, attentive, related
from regard.tracing.operators import Reading, reader_of
from regard.tracing.pass_plan import Lesson, OtherEntry, SoftmaxEntry, key_of
from regard.tracing.recorder import Keep, Recorder
from regard.tracing.registry import checked
from regard.tracing.site_filter import Predicate, everything
from regard.types import Shape

LATE = "of weights that were normalised after the product with the values, weights alone are kept"
OF_EDGES = "of edges, weights alone are kept"
REGISTERED = "a registered recipe has the values that it was given, and no gradient"


class _Here(threading.local):
    """What a capture knows of each thread."""

    following = True  # whether data is followed; not on the cheaper path
    lesson: Lesson | None = None  # the full pass that is being learned


class Collector:
    """One capture's records in the making. Threads tell it what they see one at a time."""

    learnable = True  # whether the cheaper path would see all that this one records
    sought = "attention"  # what a note says was not seen

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
        self.ready = False  # whether the flow knows the parameters: not before it follows anything
        self.key_caches = KeyCaches()
        self.delta_rules = DeltaRules(self.module_paths.modules.values())
        self.block = Block()  # its context is the number of the pass, in each thread
        self.here = _Here()
        self.called = False  # whether a module of the model was called
        self.other = ""  # the class of another module that was called
        self.elsewhere = ""  # a thread or task that is none of ours, in which the model ran
        self.closed = False
        self.lessons: list[tuple[Lesson, Callable[[], None]]] = []  # that became plans
        self.cached = False  # whether what attention was made from is written in place
        self._used: WeakSet[Any] = WeakSet()  # storages that attention was made from
        self._rewritten: WeakSet[Any] = WeakSet()  # that were there before, and written in place
        self.attends: dict[tuple[str, str], Attends] = {}  # by site and line; "" for any
        self._single: dict[tuple[str, str], list[Record]] = {}  # one query of the keys' own input
        self.filtered: set[str] = set()
        self.ran: set[str] = set()  # modules that are attention by name, and ran
        self.attentive = attentive(self.module_paths)
        self.waiting: list[tuple[int, Tensor, OutputGradient]] = []  # by thread
        self._calls: dict[str, int] = {}
        self._others: set[tuple[str, str, str]] = set()
        self._dropped: dict[str, list[int]] = {}  # index of a site's note, and later calls
        self._lock = threading.RLock()

    def adopt(self, module: nn.Module) -> None:
        """A model that was not named beforehand runs: learn its modules and parameters."""
        self.module_paths.adopt(module)
        self.delta_rules.adopt(module.modules())
        self.ready = False
        self.attentive = attentive(self.module_paths)

    def get_ready(self) -> None:
        """An operator is about to be followed."""
        with self._lock:
            if not self.closed:
                self.ready = True
                try:
                    self.dataflow.tags.constants(self.module_paths.tensors())
                except Exception as error:
                    self.failed("parameters", error)

    @property
    def following(self) -> bool:
        return self.here.following

    def finish_pass(self) -> None:
        """A pass has ended: what waited for more of its keys gets no more."""
        with self._lock:
            if not self.closed:
                try:
                    self.dataflow.candidates.flush()
                    self.dataflow.candidates.let_go()
                except Exception as error:
                    self.failed("softmax", error)

    def meet(self, module: nn.Module) -> None:
        """A module is about to run: learn parameters that were put there since (FSDP does)."""
        try:
            for tensor in module._parameters.values():
                if tensor is not None and any(
                    self.dataflow.tags.tag(part) is None for part in plain_tensors(tensor)
                ):
                    self.dataflow.tags.constants([tensor])
        except Exception as error:
            self.failed("parameters", error)

    # -- what the mode tells

    def before_change(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Tensors are about to be changed in place: copy what is held of them."""
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
        tag = self.dataflow.tags.tag(target)
        if storage_address(target) is not None:
            storage = target.untyped_storage()
            self.cached = self.cached or storage in self._used
            if tag is None or tag.parameter:
                self._rewritten.add(storage)
        self.recorder.about_to_change(target)
        self.key_caches.forget(target)
        self.dataflow.tags.protect(target)
        if plan.rule is None:
            self.dataflow.tags.forget(target)
        elif plan.name == "mul_":
            self._protect_from_dropout(args)

    def _protect_from_dropout(self, args: Any) -> None:
        """Dropout in place: the weights before it must be copied."""
        tag = self.dataflow.tags.tag(args[0])
        noise = self.dataflow.tags.tag(args[1]) if isinstance(args[1], Tensor) else None
        if tag is not None and tag.mark is not None and noise is not None and noise.noise:
            copy = args[0].detach().clone(memory_format=torch.preserve_format)
            self.dataflow.pointwise.dropout_copy(args[0], copy)

    def after(self, plan: Any, args: Any, kwargs: Any, out: Any, wrapped: bool = False) -> None:
        """An operator has run. Whatever fails here must never break the model.

        `wrapped`: tensors of classes of their own are among the arguments, as shards are.
        """
        with self._lock:
            if not self.closed:
                self._after(plan, args, kwargs, out, wrapped)

    def read_alone(self, plan: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that may attend where nothing was followed before it."""
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
            if plan.spelling and lesson is not None and lesson.learnable:
                self._spelled(lesson, plan, out)
        except Exception as error:
            self.failed(plan.name, error)

    def _spelled(self, lesson: Lesson, plan: Any, out: Any) -> None:
        """An operator by which attention can be spelled: does it make a candidate?"""
        call_site = self.module_paths.call_site()
        if call_site is None:
            return
        if plan.overload:
            lesson.refuse()
            return
        key = key_of(call_site, plan.name)
        tag = self.dataflow.tags.tag(out)
        mark = None if tag is None else tag.mark or tag.log
        sides = mark.candidate.sides if mark is not None else None if tag is None else tag.sides
        lesson.ran(key, two_sided=sides is not None)
        if tag is not None and tag.mark is not None:
            lesson.softmax(key, tag.mark.candidate, out)

    def all_read(self) -> bool:
        """Whether nothing so far was lost, said, or changed in place under a record's feet."""
        with self._lock:
            if self.closed or self.cached or self.recorder.changed:
                return False
            unread = (
                self.dataflow.candidates.lost
                or self.dataflow.candidates.unasked
                or self.dataflow.candidates.unfinished
            )
            return not unread and not self.trace.notes

    def _lesson_of(self, candidate: Candidate) -> Lesson | None:
        """The pass that learns from a softmax; one that has ended learned something wrong."""
        lesson = self.here.lesson
        if lesson is not None and id(candidate) in lesson.softmaxes:
            return lesson
        for before, forget in self.lessons:
            if id(candidate) in before.softmaxes:
                forget()
        return lesson

    def _unlearnable(self) -> None:
        """Something was seen that the cheaper path would not see."""
        if self.here.lesson is not None:
            self.here.lesson.refuse()

    def failed(self, operator: str, error: Exception) -> None:
        pass_signals_on(error)
        self._unlearnable()
        call_site = self.module_paths.call_site()
        where = "" if call_site is None else call_site.path or call_site.module_class
        if isinstance(error, UnavailableError):  # a reader's own refusal
            self.note("unread", where, f"the operator {operator} cannot be read: {error}")
        else:
            self.note("error", where, f"{operator}: {type(error).__name__}: {error}")

    def _allowed_by(self, added: Tensor) -> Tensor | None:
        tag = self.dataflow.tags.tag(added)
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
        """A fused operator attended; `attends` is what was learned of it."""
        self.dataflow.candidates.flush()
        if call_site is None:
            return
        key, lesson = key_of(call_site, operator), self.here.lesson
        if lesson is not None:
            lesson.ran(key)
            if operator not in OPERATORS:
                lesson.refuse()
        if operator == "_transformer_encoder_layer_fwd":  # the fast path passes by its attention
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
        tag = self.dataflow.tags.tag(reading.key)
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
        """A gated delta rule in plain torch has come to its end."""
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
        """A memory of our own was read: `mixed` by matrix, and `output` by batch and head."""
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
            self.note("unread", call_site.path or call_site.module_class, EARLIER)

    def _use(self, made_from: Sequence[Tensor]) -> None:
        """Attention was made from these: is one of them a cache, or a table that is written to?"""
        for tensor in made_from:
            if storage_address(tensor) is None:
                continue
            storage, tag = tensor.untyped_storage(), self.dataflow.tags.tag(tensor)
            self._used.add(storage)
            written = storage in self._rewritten or (tag is not None and tag.written)
            self.cached = self.cached or written

    def _copied(self, recipe: Dot) -> Dot:
        """Keys and values that a cache may write to, where writing is not seen: copies."""
        if recipe.shape.keys <= recipe.shape.queries and not recipe.key.is_inference():
            return recipe  # changed in place, its version would tell
        value = None if recipe.value is None else recipe.value.clone()
        return replace(recipe, key=recipe.key.clone(), value=value)

    # -- what the kernels of the cheaper path tell

    def read_operator(
        self,
        operator: str,
        arguments: dict[str, Any],
        out: Any,
        call_site: CallSite,
        attends: Attends | None = None,
    ) -> None:
        """An operator that attends by itself ran; self or cross is what a full pass told."""
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
        """A softmax whose axes were learned ran; whether they fit."""
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
        """A softmax that is no attention: listed once, however often it runs."""
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
                self.dataflow.tags.tag(recipe.query),
                self.dataflow.tags.tag(recipe.key),
            )
            if followed and isinstance(recipe, Dot):
                attends = self._between(call_site, Reading(recipe, recipe.query, recipe.key))
            site = self._site(call_site, operator, attends, single=_is_single(recipe.shape))
            output = out if isinstance(out, Tensor) else None
            held = StoredRecipe(recipe if self.attached else recipe.map(detached))
            self._add(site, held, output, None, REGISTERED)

    def _between(self, call_site: CallSite, reading: Reading) -> Attends:
        """Self or cross: do query and key come from one input?"""
        if reading.key is reading.query:
            return "self"
        if not self.following:
            return self.attends.get((call_site.path or call_site.module_class, ""), "unknown")
        sides = (self.dataflow.tags.sources(reading.query), self.dataflow.tags.sources(reading.key))
        if reading.query.is_nested or reading.query.dim() != 4 or reading.key.dim() != 4:
            return _told(sides)
        if self.dataflow.products.meet_others(reading.query, reading.key):
            return "cross"
        places = [
            [origin for _, origin in self.dataflow.tags.sliced_dims(tensor)[-2]]
            for tensor in (reading.query, reading.key)
        ]
        return _told_by_places(sides, *places) or _told(
            sides,
            *(  # a slice of a longer table of positions may be shared by two inputs
                {each.ancestor for each in origins if each.ancestor.size == each.size}
                for origins in places
            ),
        )

    def accept(
        self, candidate: Candidate, contraction: Contraction, weights: Tensor | None
    ) -> None:
        """A softmax that the model spelled itself met its values; `weights` are those that were
        never made, because they were normalised after the product."""
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
            self._unlearnable()  # nothing that one operator makes
        kind: Any = contraction.mark.kind or candidate.kind
        if kind == "distribution" and layout.shape.keys < candidate.shape[candidate.key]:
            kind = "partial"  # a sink beside the keys
        gathered = roles.gathered or candidate.segments is not None
        attends = self._told(candidate, contraction, roles, late=weights is not None)
        single, followed = _is_single(layout.shape), candidate.sides is not None
        site = self._site(call_site, "softmax", attends, single=single, followed=followed)
        if (weights is not None or gathered) and self.attached:
            self.note(
                "unread",
                site.base,
                "weights that were normalised late, or belong to edges, are outside the graph",
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
            some = kept.numel() > 0  # an axis of no edges is not among those of the layout
            weights = layout.view(kept) if some else kept.new_zeros(1, layout.shape.heads, 1, 0)
            edges = contraction.of_edges(weights, kind, queries)
        elif roles.gathered:
            edges = contraction.edges(roles, layout.view(kept), kind)
        if not roles.certain or (gathered and edges is None):
            site = replace(site, axes_known=False)
            what = "keys are chosen for each query, and which is" if roles.certain else "axes are"
            self.note(
                "axes",
                site.base,
                f"{what} not known: weights {tuple(layout.shape)} are as they lie; "
                "record.with_axes says what they are",
            )
        if edges is not None:
            self._add(site, StoredRecipe(edges), contraction.output, None, OF_EDGES)
            return
        lying = contraction.value(roles) if self.values else None
        values = contraction.values if self.attached else detached(contraction.values)
        value = None if lying is None else (values, lying)
        gradient = None
        if self.grad and tensor.requires_grad:
            gradient = OutputGradient(None, _arranged(tensor, layout))
            tensor.register_hook(gradient.arrived)
        self._use([kept])
        lesson = self._lesson_of(candidate)
        if lesson is not None:
            lesson.recorded(candidate, layout, kept, kind, site.attends)
        self._add(site, StoredWeights(kept, layout, kind, value), contraction.output, gradient)

    def _told(
        self, candidate: Candidate, contraction: Contraction, roles: Roles, late: bool
    ) -> Attends:
        """Self or cross: by the two sides of the scores, or by where queries and keys lie.

        `late`: the product has some of the keys only.
        """
        if candidate.segments is not None:
            chosen = {
                origin.ancestor for origin in self.dataflow.tags.chosen_from(candidate.segments)
            }
            edge = contraction.value_dims[candidate.key]
            if chosen and edge:
                return "self" if edge[-1][1].ancestor in chosen else "cross"
            return _told(candidate.sides)
        mine, theirs = ([part.origin for part in parts] for parts in (roles.query, roles.key))
        told = None if late else _told_by_places(candidate.sides, mine, theirs)
        return told or _told(
            candidate.sides,
            {origin.ancestor for origin in mine},
            {origin.ancestor for origin in theirs},
        )

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
                call_site.path or call_site.module_class,
                f"the operator {operator} looks like attention and cannot be read; "
                "regard.register_recipe tells how",
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
        """The next call of a site; `single`: one query looks at several keys; `followed`: data flow
        told what is known of the label, which may be that it cannot be told."""
        with self._lock:
            base = call_site.path or call_site.module_class
            self._calls[base] = call = self._calls.get(base, 0) + 1
        line, followed = (base, call_site.source), followed and self.following
        if attends == "unknown" and followed and line in self._single:
            for record in self._single.pop(line):  # a decoder that began with its keys' state
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
        """The number of the pass that this thread is in."""
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
        """Whether weights are to stay in the graph; said where there is none."""
        if self.attached and not torch.is_grad_enabled():
            self.note(
                "unread", "", "attached=True keeps the graph of the weights, and none is made"
            )
            return False
        return self.attached

    def settle_hooks(self) -> None:
        """Outputs of fused operators have their place in the graph only once they were returned."""
        here = threading.get_ident()
        with self._lock:
            waiting, self.waiting = self.waiting, []
            for thread, output, gradient in waiting:
                if thread != here and not self.closed:
                    self.waiting.append((thread, output, gradient))
                elif output.requires_grad:
                    output.register_hook(gradient.arrived)

    # -- what must be said

    def note(self, kind: Any, where: str, text: str) -> None:
        """Say something once; a site that is dropped at every call is named once, and counted."""
        said = Note(kind, where, text)
        again = self._dropped.get(where) if kind == "dropped" else None
        if again is not None:
            again[1] += 1
        elif said not in self.trace.notes:
            if kind == "dropped":
                self._dropped[where] = [len(self.trace.notes), 0]
            self.trace.notes.append(said)

    def close(self, failed: bool) -> None:
        """The capture ends: let go of tensors, and say what is missing."""
        with self._lock:
            self.closed = True
        self.settle_hooks()
        try:
            self.dataflow.candidates.flush()
        except Exception as error:
            self.failed("softmax", error)
        self.dataflow.tags.clear()
        self.key_caches.clear()
        self.delta_rules.clear()
        if not failed:
            self._say_what_is_missing()
        self.recorder.close(self.trace)
        del (
            self.dataflow,
            self.recorder,
        )  # they know us: without this only the collector of garbage ends it

    def _say_what_is_missing(self) -> None:
        words = self.recorder.tokens
        if words is not None and len(self.trace) and not self.recorder.labelled:
            self.note(
                "filter",
                "",
                f"tokens= has {count(words)} words; no attention has as many positions",
            )
        for index, later in self._dropped.values():
            if later:
                note = self.trace.notes[index]
                text = f"{note.text} (and {later} later calls)"
                self.trace.notes[index] = replace(note, text=text)
        seen = {record.path for record in self.trace} | {
            other.path for other in self.trace.other_softmaxes
        }
        seen |= self.filtered | {note.where for note in self.trace.notes}
        lines = {(record.path, record.site.source) for record in self.trace}
        lines |= {(other.path, other.source) for other in self.trace.other_softmaxes}
        unread = [
            (
                call_site,
                f"a product of two inputs, with {' and '.join(steps)} done to it, was multiplied "
                f"by a third: attention that is no softmax? capture(rules={steps[-1]!r}) records "
                "it",
            )
            for call_site, steps in self.dataflow.candidates.unasked.values()
        ]
        for call_site, text in [*unread, *self.dataflow.candidates.unfinished.values()]:
            name = call_site.path or call_site.module_class
            if (call_site.path, call_site.source) not in lines and name not in self.filtered:
                self.note("unread", name, f"{text} ({call_site.source})")
        for candidate in self.dataflow.candidates.lost.values():
            self.note(
                "unread",
                candidate.call_site.path or candidate.call_site.module_class,
                f"a softmax of products, {candidate.shape}, was not followed to values",
            )
        for path in sorted(self.ran):
            if not any(related(path, other) for other in seen):
                name = type(self.module_paths.modules[path]).__name__
                self.note("unseen", path, f"{name} ran, and no attention was seen in it")
        if not len(self.trace):
            if self.filtered:
                some = ", ".join(sorted(self.filtered)[:3])
                more = ", …" if len(self.filtered) > 3 else ""
                self.note(
                    "filter",
                    "",
                    f"where={self._asked} matched none of {len(self.filtered)} sites: {some}{more}",
                )
            elif self.trace.other_softmaxes:
                others = len(self.trace.other_softmaxes)
                softmaxes = f"{others} softmaxes were" if others > 1 else "1 softmax was"
                self.note(
                    "empty",
                    "",
                    f"no {self.sought} was seen; {softmaxes} taken for something else: "
                    "trace.other_softmaxes has the reasons",
                )
            elif not self.trace.notes:
                ran = f"no {self.sought} was seen in the model, which ran"
                if not self.called:
                    ran = f"no {self.sought} was seen: did the model run in the capture?"
                    if self.other and self.module_paths.model is not None:
                        model = type(self.module_paths.model).__name__
                        ran = (
                            f"no {self.sought} was seen: the model, {model}, did not run; "
                            f"{self.other} did"
                        )
                    if self.elsewhere:
                        ran = (
                            f"no {self.sought} was seen: the model ran in a {self.elsewhere} that "
                            "was started before the capture; open the capture there"
                        )
                self.note("empty", "", ran)


_RUN = inspect.unwrap(run).__code__


def _own_grid() -> tuple[int, int] | None:
    """The grid of our own recipe whose operator is running: its arguments do not tell it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        if frame.f_code is _RUN:
            grid: tuple[int, int] | None = argument(frame, "recipe").grid
            return grid
        frame = frame.f_back
    return None


def _is_single(shape: Shape) -> bool:
    """Whether one query looks at several keys: where they are its own input, that may be a position
    among them, or a state that sums them up and belongs to a decoder."""
    return shape.queries == 1 < shape.keys


def _as_it_is(gradient: Tensor) -> Tensor:
    return gradient


def _arranged(tensor: Tensor, layout: Layout) -> Callable[[Tensor], Tensor]:
    """Brings a gradient of `tensor`'s shape into (batch, head, query, key)."""
    shape, stride, offset = tensor.shape, tensor.stride(), int(tensor.storage_offset())

    def arrange(arrived: Tensor) -> Tensor:
        room = torch.empty_strided(shape, stride, dtype=arrived.dtype, device=arrived.device)
        room.copy_(arrived)
        return layout._replace(offset=layout.offset - offset).view(room)

    return arrange


def _in_graph(recipe: Recipe) -> bool:
    if isinstance(recipe, Dot) and recipe.bias is None and recipe.value is None:
        return recipe.query.requires_grad or recipe.key.requires_grad  # the usual case, quickly
    return any(tensor.requires_grad for tensor in tensors(recipe))


def _told_by_places(
    sides: Any, queries: Sequence[Origin], keys: Sequence[Origin]
) -> Attends | None:
    """Cross between slices of one axis that have nothing in common; unknown for one query, of
    which nobody knows where it lies, and a slice of the axis it may come from."""
    if apart(queries, keys):
        return "cross"
    alike = sides is not None and bool(sides[0] & sides[1])
    if alike and not queries and len(keys) == 1:
        extent = keys[0].extent
        if extent is not None and len(extent) < keys[0].ancestor.size:
            return "unknown"
    return None


def _told(
    sides: Any, queries: Set[Origin] = frozenset(), keys: Set[Origin] = frozenset()
) -> Attends:
    """Self where queries and keys lie along one axis, or the scores' two sides have an input in
    common; cross where two inputs are known and differ; unknown where the queries come from more
    than the keys, and are not as many."""
    if queries and queries == keys:
        return "self"
    learned = all(origin.kind == "parameter" for origin in queries)
    if queries and keys and learned and all(origin.kind != "parameter" for origin in keys):
        return "cross"  # learned queries look at an input
    if sides is None or not sides[0] or not sides[1]:
        return "unknown"
    if not sides[0] & sides[1]:
        return "cross"
    counts = [math.prod(origin.size for origin in axes) for axes in (queries, keys)]
    apart = bool(keys) and counts[0] != counts[1]  # one query has no axis
    return "unknown" if apart and not sides[0] <= sides[1] else "self"
