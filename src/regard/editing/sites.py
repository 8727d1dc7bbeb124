"""The attention sites of a model, from one captured pass.

Before the outermost call of a kind that is not known yet, the same call runs once under capture, on
copies of its inputs. That tells which softmaxes are attention, along which axes, and what the sites
are called. Sites stay known as long as the model lives and is unchanged.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from regard.errors import UnavailableError
from regard.interception import LOCK, listen, silent, unlisten
from regard.kernel import blockwise
from regard.record import Note, Site, Trace
from regard.tracing import capture
from regard.tracing.module_paths import ModulePaths
from regard.tracing.pass_plan import fingerprint, signature_of
from regard.tracing.session import unwatched
from regard.tracing.softmax_axes import Line, SoftmaxAxes, Table, softmax_axes

_FUSED = (
    "_scaled_dot_product_",
    "_native_multi_head",
    "_transformer_encoder_layer",
    "flex_",
    blockwise.OPERATOR,
)


class _Reading(capture):
    """A capture whose notes concern an edit only where it selects them."""

    _warns = False


class Sites:
    """The sites of one model, to which it holds no reference."""

    def __init__(self, axes: Table) -> None:
        self.axes = axes  #: of softmaxes that attend
        self.sites: dict[Line, Site] = {}
        self.unread: list[Note] = []  #: attention that capture could not read
        self.softmaxes: set[Line] = set()  #: all that ran, attention or not
        self._kinds: set[Any] = set()  # of calls that were captured
        self._fingerprint: Any = None

    def check(self, module_paths: ModulePaths) -> None:
        """Forget everything if the model has changed."""
        now = fingerprint(module_paths)
        with LOCK:
            if now != self._fingerprint:
                if self._fingerprint is not None:  # what captures found before is of this model
                    self.axes.clear()
                self._fingerprint = now
                self._kinds.clear()
                self.sites.clear()
                self.softmaxes.clear()
                self.unread.clear()

    def extended(self, trace: Trace) -> Sites | None:
        """These and the sites of a trace; None where it does not tell all that there is to know,
        since it is of another model, or older than a change of this one."""
        twin = Sites(self.axes)
        twin.sites, twin.softmaxes = dict(self.sites), set(self.softmaxes)
        twin.unread = list(self.unread)
        twin.adopt(trace)
        spelled = (site for site in twin.sites.values() if site.operator == "softmax")
        return twin if all((s.path, s.source) in self.axes for s in spelled) else None

    def adopt(self, trace: Trace) -> None:
        """Take the sites of a trace."""
        for record in trace:
            line = (record.path, record.source)
            self.sites.setdefault(line, record.site)
            if not record.operator.startswith(_FUSED):
                self.softmaxes.add(line)
        self.softmaxes |= {(other.path, other.source) for other in trace.other_softmaxes}
        self.unread += [note for note in trace.notes if note.kind in ("unread", "unseen")]

    def refusal(self, site: Site) -> str | None:
        """Why a site cannot be changed; None if it can."""
        axes = self.axes.get((site.path, site.source))
        if site.operator.startswith(_FUSED) or isinstance(axes, SoftmaxAxes):
            return None
        if site.operator != "softmax":
            return f"its weights are computed by {site.operator}, which has no softmax to change"
        if axes is None:
            return "the captured pass did not tell the axes of its softmax"
        return f"its weights are not the result of one softmax whose axes are known: {axes}"

    def knows(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether calls of this kind were captured before."""
        return _kind(module, args, kwargs) in self._kinds

    def learn(self, module_paths: ModulePaths, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Run a call under capture, on copies of its inputs, and take its sites."""
        model = module_paths.model
        assert model is not None
        kind = _kind(module, args, kwargs)
        args, kwargs = _copied((args, kwargs))

        def note(operator: str, *_: Any) -> None:
            call_site = module_paths.call_site()
            if call_site is not None and "softmax" in operator:
                self.softmaxes.add((call_site.path, call_site.source))

        with silent(), unwatched(), _restored(model):
            listen(note)
            try:
                with _Reading(model, path="full") as trace:
                    # Hooks of the module itself run twice; without any, those of others do not.
                    hooked = module._forward_pre_hooks or module._forward_hooks
                    run_once: Any = module._call_impl if hooked else module.forward
                    run_once(*args, **kwargs)
            finally:
                unlisten(note)
        self.adopt(trace)
        self._kinds.add(kind)


def _kind(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """What calls with the same sites have in common."""
    try:
        return id(module), signature_of(module, args, kwargs).kind
    except RuntimeError:  # a nested tensor has no shape
        return id(module), "nested", torch.is_grad_enabled()


_known: WeakKeyDictionary[nn.Module, Sites] = WeakKeyDictionary()


def sites_of(model: nn.Module) -> Sites:
    """The sites of a model that is known, or will be."""
    with LOCK:
        return _known.setdefault(model, Sites(softmax_axes(model)))


def _copied(arguments: Any) -> Any:
    """Arguments that may be written to, with tensors that are shared still shared."""
    memo: dict[int, Any] = {}
    tensors: dict[int, Tensor] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in tensors:
                clone = value.detach().clone()
                tensors[id(value)] = clone.requires_grad_(value.requires_grad)
            return tensors[id(value)]
        if isinstance(value, nn.Module) or callable(value):
            return value
        try:
            return copy.deepcopy(value, memo)
        except Exception as error:
            raise UnavailableError(
                f"edit: a {type(value).__name__} among the inputs cannot be copied for the "
                f"captured pass ({error}); pass like=regard.trace(model, ...)"
            ) from error

    return pytree.tree_map(leaf, arguments)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Give a model back what its buffers, attributes and their lists, dicts and sets held, and
    Python, numpy and torch their random numbers."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    own = [holder for module in model.modules() for holder in (module.__dict__, module._buffers)]
    # FSDP exchanges parameters, and knows which are there.
    inner = [value for holder in own for key, value in holder.items() if key != "_parameters"]
    holders = {id(each): each for each in (*own, *inner) if isinstance(each, list | dict | set)}
    before = [(holder, _items(holder)) for holder in holders.values()]
    numpy = sys.modules.get("numpy")  # who has not imported it draws nothing there
    draws, numpy_draws = random.getstate(), numpy and numpy.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(draws)
        if numpy is not None:
            numpy.random.set_state(numpy_draws)
        for holder, items in before:
            _refill(holder, items)
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _refill(holder: Any, items: list[Any]) -> None:
    """Give a list, dict or set back its items, where it has others now."""
    if [_identity(item) for item in _items(holder)] == [_identity(item) for item in items]:
        return
    holder.clear()
    if isinstance(holder, list):
        holder.extend(items)
    else:
        holder.update(items)


def _items(holder: Any) -> list[Any]:
    return list(holder.items() if isinstance(holder, dict) else holder)


def _identity(item: Any) -> Any:
    return [id(part) for part in item] if isinstance(item, tuple) else id(item)
