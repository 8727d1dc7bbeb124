"""Turns what the mode sees into records: names, filters, memory, and what must be said."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.kernel.reduce import Reducer
from regard.kernel.tiles import reduce
from regard.recipe import Dot, Given, Projected, Recipe
from regard.record import Gate, Note, Record, Site, Trace
from regard.record.gradient import OutputGradient
from regard.record.held import Held, Layout, Made, Ready, storage_bytes
from regard.record.site import Attends
from regard.tracing.flow import Flow
from regard.tracing.growth import Growth
from regard.tracing.names import Names, Place
from regard.tracing.operators import Reader, Reading
from regard.tracing.roles import Contraction
from regard.tracing.tags import Candidate
from regard.tracing.where import Predicate

_ATTENTIVE = re.compile("attn|attention", re.IGNORECASE)

Keep = str | Path | Sequence[Reducer]


class Collector:
    """One capture's records in the making."""

    def __init__(
        self,
        model: nn.Module | None,
        trace: Trace,
        *,
        where: Predicate,
        keep: Keep,
        max_bytes: int | None,
        values: bool,
        outputs: bool,
        grad: bool,
        attached: bool,
        tokens: Sequence[str] | None,
    ) -> None:
        self.model, self.trace = model, trace
        self.where, self.keep, self.max_bytes = where, keep, max_bytes
        self.values, self.outputs, self.grad, self.attached = values, outputs, grad, attached
        self.tokens = tokens
        self.names = Names(model)
        self.flow = Flow(self.names, self._made, self._rejected, self._wanted, grad or attached)
        self.flow.constants([] if model is None else [*model.parameters(), *model.buffers()])
        self.growth = Growth()
        self.step = -1
        self.fused = self.softmaxes = 0  # sites by their way, to choose the cheaper path
        self.attends: dict[str, Attends] = {}
        self.filtered: set[str] = set()
        self.ran: set[str] = set()  # modules that are attention by name, and ran
        self.attentive = _attentive(self.names)
        self.in_place = False  # whether what is held was changed in place, as a static cache is
        self.waiting: list[tuple[Tensor, OutputGradient]] = []
        self._calls: dict[str, int] = {}
        self._held: WeakSet[Held] = WeakSet()
        self._storages: dict[int, int] = {}
        self._written = 0
        self._lock = threading.RLock()

    # -- what the mode tells

    def before_change(self, plan: Any, args: Any, kwargs: Any) -> None:
        """Tensors are about to be changed in place: copy what is held of them."""
        for index in plan.changes:
            target = args[index] if index < len(args) else kwargs.get(plan.names[index])
            if isinstance(target, Tensor):
                self._about_to_change(target)
                if plan.rule is None:
                    self.flow.forget(target)
                elif plan.name == "mul_":
                    self._protect_from_dropout(args)

    def _about_to_change(self, target: Tensor) -> None:
        try:
            storage = target.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return
        if storage in self._storages:
            self.in_place = True
            for held in list(self._held):
                if storage in storage_bytes(held.tensors()):
                    held.protect(storage)
            del self._storages[storage]

    def _protect_from_dropout(self, args: Any) -> None:
        """Dropout in place: the weights before it must be copied."""
        tag = self.flow.tag(args[0])
        noise = self.flow.tag(args[1]) if isinstance(args[1], Tensor) else None
        if tag is not None and tag.mark is not None and noise is not None and noise.noise:
            copy = args[0].detach().clone(memory_format=torch.preserve_format)
            self.flow.dropout_copy(args[0], copy)

    def after(self, plan: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator has run. Whatever fails here must never break the model."""
        try:
            if plan.reader is not None:
                given = dict(zip(plan.names, args)) | kwargs
                self.read(plan.name, plan.reader(given, out, self._allowed_by))
            elif plan.reads is not None:
                recipe = plan.reads(args, kwargs, out)
                if recipe is not None:
                    self._registered(plan.name, recipe, out)
            elif plan.looks_like_attention:
                self._unread(plan.name)
            if plan.rule is not None:
                plan.rule(self.flow, args, kwargs, out)
        except RegardError:
            raise
        except Exception as error:
            place = self.names.place()
            self.note("error", place.path if place else "", f"{plan.name}: {error!r}")

    def _allowed_by(self, added: Tensor) -> Tensor | None:
        tag = self.flow.tag(added)
        allowed = None if tag is None else tag.forbids
        return allowed if allowed is not None and allowed.shape == added.shape else None

    # -- sites

    def read(self, operator: str, reading: Reading) -> None:
        """A fused operator attended."""
        place = self.names.place()
        if place is not None:
            self._fused(operator, reading, place)

    def _fused(self, operator: str, reading: Reading, place: Place) -> None:
        self.fused += 1
        if not self._wanted(place):
            return
        recipe = reading.recipe
        site = self._site(place, operator, self._between(place, reading))
        if self.values and reading.value is not None:
            recipe = replace(recipe, value=reading.value)  # type: ignore[type-var]
        elif self.values and isinstance(recipe, Projected):
            recipe = recipe.with_value()
        if not self.attached and torch.is_grad_enabled():
            recipe = recipe.detach()
        held: Held | None = None
        if isinstance(recipe, Dot) and not self.attached and recipe.value is None:
            held = self.growth.held(site.base, recipe)
        gradient = None
        if self.grad and reading.output is not None and reading.value is not None:
            gradient = OutputGradient(reading.value.detach(), lambda arrived: arrived)
            self.waiting.append((reading.output, gradient))
        self._add(site, held or Ready(recipe), reading.output, gradient)

    def read_fused(self, name: str, reader: Reader, given: dict[str, Any], out: Any) -> None:
        """The same from the cheaper path, which cannot tell self from cross: the first pass did."""
        try:
            place = self.names.place()
            if place is not None:
                self._fused(name, reader(given, out, lambda added: None), place)
        except RegardError:
            raise
        except Exception as error:
            self.note("error", "", f"{name}: {error!r}")

    def _registered(self, operator: str, recipe: Recipe, out: Any) -> None:
        place = self.names.place()
        if place is not None and self._wanted(place):
            site = self._site(place, operator, "unknown")
            output = out if isinstance(out, Tensor) else None
            self._add(site, Ready(recipe if self.attached else recipe.detach()), output, None)

    def _between(self, place: Place, reading: Reading) -> Attends:
        """Self or cross: do query and key come from one input?"""
        if reading.key is reading.query:
            return "self"
        known = self.attends.get(place.path or place.module_class)
        if known is not None:
            return known
        sides = (self.flow.sources(reading.query), self.flow.sources(reading.key))
        queries, keys = reading.recipe.shape[2:]
        return self._told(sides, queries, keys)

    def _told(self, sides: Any, queries: int, keys: int) -> Attends:
        if sides is None:
            return "unknown"
        return "self" if sides[0] & sides[1] else "cross"

    def _made(self, candidate: Candidate, contraction: Contraction) -> None:
        """A softmax that the model spelt itself met its values."""
        self.softmaxes += 1
        tensor = contraction.tensor()
        if tensor is None:
            return
        place = candidate.place
        tag = self.flow.tag(contraction.values)
        copied = None if tag is None else tag.copied
        features = tag.features[0][0] if tag is not None and tag.features else 0
        layout = contraction.layout(*self.names.heads(place), copied, features)
        shape = layout.shape
        kind: Any = candidate.kind
        if kind == "distribution" and shape.keys < candidate.shape[candidate.key]:
            kind = "partial"  # a sink beside the keys
        attends = self._told(candidate.sides, shape.queries, shape.keys)
        site = self._site(place, "softmax", attends)
        value = _values(contraction, layout) if self.values else None
        kept = tensor if self.attached else tensor.detach()
        gradient = None
        if self.grad and tensor.requires_grad:
            gradient = OutputGradient(None, _arranged(tensor, layout))
            tensor.register_hook(gradient.arrived)
        self._add(site, Made(kept, layout, kind, value), contraction.made, gradient)

    def _rejected(self, candidate: Candidate) -> None:
        self.softmaxes += 1
        place: Place = candidate.place
        self.trace.gates.append(
            Gate(
                place.path,
                place.module_class,
                place.source,
                candidate.shape,
                candidate.reason or "",
            )
        )

    def _unread(self, operator: str) -> None:
        place = self.names.place()
        if place is not None:
            self.note(
                "unread",
                place.path or place.module_class,
                f"the operator {operator} looks like attention and cannot be read; "
                "regard.register_recipe tells how",
            )

    def _wanted(self, place: Place) -> bool:
        site = Site(place.path, place.module_class, place.source, "")
        if self.where(site):
            return True
        self.filtered.add(site.base)
        return False

    def _site(self, place: Place, operator: str, attends: Attends) -> Site:
        with self._lock:
            base = place.path or place.module_class
            self._calls[base] = call = self._calls.get(base, 0) + 1
        if attends == "unknown":
            attends = self.attends.get(base, "unknown")
        else:
            self.attends.setdefault(base, attends)
        return Site(
            place.path, place.module_class, place.source, operator, call, max(self.step, 0), attends
        )

    # -- memory

    def _add(
        self, site: Site, held: Held, output: Tensor | None, gradient: OutputGradient | None
    ) -> None:
        with torch.no_grad() if not self.attached else torch.enable_grad():
            record = self._kept(site, held, gradient)
        if self.outputs and output is not None:
            record.output = output if self.attached else output.detach()
        self.trace._records.append(record)

    def _kept(self, site: Site, held: Held, gradient: OutputGradient | None) -> Record:
        known: dict[str, Any] = {"shape": held.shape, "kind": held.kind, "dtype": held.dtype}
        known["gradient"] = gradient
        if self.tokens is not None:
            for side, size in (("query", held.shape.queries), ("key", held.shape.keys)):
                if len(self.tokens) == size:
                    known[f"{side}_tokens"] = self.tokens
        if isinstance(self.keep, Path):
            self._written += 1
            file = self.keep / f"{self._written:06d}.safetensors"
            Trace([Record(site, held, **known)]).save(file)
            return Record(site, file, held_as="disk", **known)
        if not isinstance(self.keep, str):
            reductions = _unshared(reduce(held.recipe(), list(self.keep)), held)
            return Record(site, None, held_as="reductions", reductions=reductions, **known)
        if self.keep == "weights":
            size = math.prod(held.shape) * held.dtype.itemsize
            if not self._fits(site, {-len(self.trace) - 1: size}):
                return Record(site, None, held_as="dropped", **known)
            del self._storages[-len(self.trace) - 1]
            made = Ready(Given(held.recipe().weights(), None, held.kind))
            self._storages.update(storage_bytes(made.tensors()))
            self._hold(made)
            return Record(site, made, held_as="weights", **known)
        if not self._fits(site, storage_bytes(held.own())):
            return Record(site, None, held_as="dropped", **known)
        self._hold(held)
        return Record(site, held, **known)

    def _fits(self, site: Site, storages: dict[int, int]) -> bool:
        """Whether more storages fit in the budget; what does not is named."""
        if self.max_bytes is not None:
            used = sum(self._storages.values())
            more = sum(size for place, size in storages.items() if place not in self._storages)
            if used + more > self.max_bytes:
                self.note(
                    "dropped",
                    site.name,
                    f"{more:,} bytes more would pass max_bytes={self.max_bytes:,} "
                    f"({used:,} held); its weights are not there",
                )
                return False
        self._storages.update(storages)
        return True

    def _hold(self, held: Held) -> None:
        self._held.add(held)

    def settle_hooks(self) -> None:
        """Outputs of fused operators have their place in the graph only once they were returned."""
        while self.waiting:
            output, gradient = self.waiting.pop()
            if output.requires_grad:
                output.register_hook(gradient.arrived)

    # -- what must be said

    def note(self, kind: Any, where: str, text: str) -> None:
        said = Note(kind, where, text)
        if said not in self.trace.notes:
            self.trace.notes.append(said)

    def close(self, failed: bool) -> None:
        """The capture ends: let go of tensors, and say what is missing."""
        self.settle_hooks()
        self.flow.clear()
        self.growth.clear()
        self._held.clear()
        if not failed:
            self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        seen = {record.path for record in self.trace} | {gate.path for gate in self.trace.gates}
        seen |= self.filtered
        for candidate in self.flow.lost():
            self.note(
                "unread",
                candidate.place.path or candidate.place.module_class,
                f"a softmax of products, {candidate.shape}, was not followed to values",
            )
        for path in sorted(self.ran):
            if not any(_related(path, other) for other in seen):
                name = type(self.names.modules[path]).__name__
                self.note("unseen", path, f"{name} ran, and no attention was seen in it")
        if not len(self.trace):
            if self.filtered:
                some = ", ".join(sorted(self.filtered)[:3])
                self.note(
                    "filter", "", f"where= matched none of {len(self.filtered)} sites: {some}"
                )
            elif not self.trace.notes:
                self.note("empty", "", "no attention was seen: did the model run in the capture?")


def _attentive(names: Names) -> dict[int, str]:
    """Modules that are attention by class or path; parts of torch.nn that only serve it are not."""
    found = {}
    for path, module in names.modules.items():
        last = path.rpartition(".")[2]
        home = type(module).__module__
        plain = home.startswith("torch.") and not isinstance(module, nn.MultiheadAttention)
        if plain or (not list(module.children()) and not _ATTENTIVE.search(type(module).__name__)):
            continue
        if _ATTENTIVE.search(last) or _ATTENTIVE.search(type(module).__name__):
            found[id(module)] = path
    return found


def _related(path: str, other: str) -> bool:
    """Whether one path lies inside the other."""
    return path == other or f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _arranged(tensor: Tensor, layout: Layout) -> Callable[[Tensor], Tensor]:
    """Brings a gradient of `tensor`'s shape into (batch, head, query, key)."""
    shape, stride, offset = tensor.shape, tensor.stride(), int(tensor.storage_offset())

    def arrange(arrived: Tensor) -> Tensor:
        room = torch.empty_strided(shape, stride, dtype=arrived.dtype, device=arrived.device)
        room.copy_(arrived)
        return layout._replace(offset=layout.offset - offset).view(room)

    return arrange


def _unshared(results: Any, held: Held) -> Any:
    """Answers that do not lie in the model's own memory, which it may use again."""
    if isinstance(results, Tensor):
        shared = results.untyped_storage()._cdata in storage_bytes(held.tensors())
        return results.clone() if shared else results
    if isinstance(results, tuple):
        parts = [_unshared(part, held) for part in results]
        return type(results)(*parts) if hasattr(results, "_fields") else tuple(parts)
    return results


def _values(contraction: Contraction, layout: Layout) -> Tensor | None:
    """The values in the form (batch, group, key, width), where the product shows them so."""
    values, (batch, heads, _, keys) = contraction.values.detach(), layout.shape
    if contraction.spread is not None:
        return None
    if contraction.swapped:
        values = values.mT
    if values.dim() == 2:
        return values[None, None].expand(batch, 1, -1, -1)
    if values.shape[0] == batch * heads and values.shape[1] == keys:
        found: Tensor = values.unflatten(0, (batch, heads))
        return found
    if values.shape[0] == batch and values.shape[1] == keys:
        return values[:, None]
    return None
