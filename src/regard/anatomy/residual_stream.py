"""What stands around an attention: its output projection, the residual stream, the layer norm.

    y = norm(x + branch(Σₕ Aₕ Vₕ Wₕ + b))

The projection (W, b) is found from the structure of the model, the stream x and the norms from what
entered its modules during the pass. What is not found can be given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.anatomy.attribute_names import ATTENTION
from regard.anatomy.head_sites import HeadSite, head_sites
from regard.anatomy.residual_search import Entered, find_stream, is_norm, what_it_adds
from regard.anatomy.wrappers import inside_parallel, plain_modules
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.record import Record
from regard.types import Features, brief

_BEFORE, _AFTER = 8, 16  # how many modules entered before and after an attention are looked at
_BOTH = (
    "run the model inside both: with regard.capture(model, values=True) as trace, "
    "regard.aggregate.ResidualStream(model) as around"
)


@dataclass(frozen=True, eq=False, repr=False)
class Surroundings:
    """What stands around one attention.

    y = norm(residual + branch(mixed · output_weightᵀ + output_bias)). `output_weight` is (out, in),
    as that of `nn.Linear`; its columns are the heads side by side. `norm` and `branch` are None
    where there is none; most pre-norm models have neither.
    """

    output_weight: Float[Tensor, "width mixed"]
    output_bias: Float[Tensor, " width"] | None = None
    residual: Features | None = None
    norm: nn.Module | None = None
    branch: nn.Module | None = None

    def __repr__(self) -> str:
        return brief(self)


class ResidualStream:
    """Keeps what enters the modules of a model while it runs, to find the residual stream.

    Use it together with a capture that holds the values. It copies a few tensors (batch, position,
    width) for each layer. Hooks on the parts of `nn.TransformerEncoderLayer` turn torch's fast path
    off: meanwhile the layer runs the slower way, with the same result to rounding.

    >>> import torch, regard
    >>> from regard.aggregate import ResidualStream
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> with torch.no_grad(), ResidualStream(model) as around:
    ...     with regard.capture(model, values=True) as trace:
    ...         out = model(torch.randn(1, 5, 8))
    >>> found = around.of(trace[0])
    >>> found.residual.shape, found.norm is model.norm1
    (torch.Size([1, 5, 8]), True)
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise RegardError(f"ResidualStream: {type(model).__name__}, expected an nn.Module")
        self.model = model
        self._hooks = ExitStack()
        self._widths: set[int] = set()
        self._entered: list[Entered] = []
        self._calls: dict[str, list[int]] = {}  # where each module's calls are in the list
        self._last: tuple[Tensor, int] | None = None  # what entered last, and its version

    def __enter__(self) -> ResidualStream:
        self._entered, self._calls = [], {}
        watched = [
            (path, part) for path, part in plain_modules(self.model) if _worth_watching(part)
        ]
        norms = [part for _, part in watched if is_norm(part)]
        self._widths = {size for norm in norms for size in _sizes(norm)}
        for path, part in watched:
            hook = part.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True)
            self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        self._last = None

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = next(filter(self._is_features, (*args, *kwargs.values())), None)
        if given is not None:
            self._calls.setdefault(path, []).append(len(self._entered))
            self._entered.append(Entered(module, self._copied(given)))

    def _is_features(self, given: Any) -> bool:
        if not isinstance(given, Tensor) or not given.is_floating_point() or given.dim() < 2:
            return False
        return not self._widths or given.size(-1) in self._widths

    def _copied(self, given: Tensor) -> Tensor:
        """A copy, since a model may add to its stream in place; one for neighbours alike."""
        version = -1 if given.is_inference() else given._version
        if self._last is not None and self._last[0] is given and self._last[1] == version >= 0:
            return self._entered[-1].tensor
        self._last = given, version
        return given.detach().clone()

    def of(self, record: Record) -> Surroundings:
        """What stood around one attention of the pass that was watched."""
        return surroundings_of(self, [record], stream=True)[0]

    def stream(self, record: Record, near: Surroundings) -> Surroundings:
        """The same surroundings, with the residual stream and the norms that were seen."""
        recipe = record.recipe.detach().plain()
        added, alive = what_it_adds(recipe, near.output_weight, near.output_bias)
        site = self._place(record)
        first = max(0, site - _BEFORE)
        found = find_stream(self._entered[first : site + _AFTER], site - first, added, alive)
        if found is None:
            raise UnavailableError(_unknown_stream(record, self.model))
        return replace(near, **found._asdict())

    def _place(self, record: Record) -> int:
        """Where the module of this attention, or the one it lies in, was entered."""
        path = record.path
        while path and path not in self._calls:
            path = path.rpartition(".")[0]
        calls = self._calls.get(path)
        if calls is None:
            raise UnavailableError(f"{record.name}: nothing was seen to enter it; {_BOTH}")
        return calls[min(record.call, len(calls)) - 1]


#: Where surroundings come from.
Source = nn.Module | ResidualStream | Surroundings | Mapping[str, Surroundings]


def surroundings_of(
    source: Source, records: Sequence[Record], *, stream: bool
) -> list[Surroundings]:
    """What stands around each record; with the residual stream where that is needed.

    Args:
        source: the model, a `ResidualStream` of it, or `Surroundings`: one for all, or by name.
        records: attentions with their values.
        stream: whether residual stream and norms are needed; a model alone does not have them.
    """
    model = source.model if isinstance(source, ResidualStream) else source
    sites = _sites(model) if isinstance(model, nn.Module) else []
    found = []
    for record in records:
        near = _first_found(source, model, record, sites)
        _check_weight(record, near)
        if stream and isinstance(source, ResidualStream):
            near = source.stream(record, near)
        if stream:
            _check_residual(record, near)
        found.append(near)
    return found


def _first_found(source: Any, model: Any, record: Record, sites: list[HeadSite]) -> Surroundings:
    if isinstance(source, Surroundings):
        return source
    if isinstance(model, nn.Module):
        return _projection(model, record, sites)
    if not isinstance(source, Mapping):
        raise RegardError(
            f"around is a {type(source).__name__}, expected the model, a ResidualStream, or "
            "{name: Surroundings}"
        )
    near = source.get(record.name, source.get(record.site.base))
    if not isinstance(near, Surroundings):
        raise RegardError(
            f"around: {near!r} is given for {record.name!r}, expected Surroundings for each name"
        )
    return near


def _projection(model: nn.Module, record: Record, sites: list[HeadSite]) -> Surroundings:
    """The output projection of an attention, by the structure of its model."""
    path = record.path
    exact = [site for site in sites if site.name == path]
    inside = [site for site in sites if not path or site.name.startswith(f"{path}.")]
    outside = [site for site in sites if path.startswith(f"{site.name}.")]
    near = exact or inside or outside
    if len(near) != 1:
        raise UnavailableError(
            f"{record.name}: {len(near) or 'no'} output projections were found for it in "
            f"{type(model).__name__}. Give it: around={{{record.name!r}: "
            "regard.aggregate.Surroundings(output_weight, output_bias)}"
        )
    weight, axis = near[0].weight_and_axis()
    bias = near[0].projection._parameters.get("bias")
    return Surroundings(
        weight.detach() if axis == 1 else weight.detach().T,
        None if bias is None else bias.detach(),
    )


def _sites(model: nn.Module) -> list[HeadSite]:
    try:
        return head_sites(inside_parallel(model))
    except UnavailableError:
        return []


def _check_weight(record: Record, near: Surroundings) -> None:
    value = record.checked_values()
    width = record.shape.heads * value.shape[-1]
    if near.output_weight.shape[1] != width:
        raise ShapeError(
            f"{record.name}: the output projection takes {near.output_weight.shape[1]} features, "
            f"expected {record.shape.heads} heads × {value.shape[-1]} = {width}"
        )


def _check_residual(record: Record, near: Surroundings) -> None:
    if near.residual is None:
        raise RegardError(
            f"{record.name}: this needs the residual stream: {_BOTH}; or give "
            "Surroundings(residual=...)"
        )
    want = (record.shape.batch, record.shape.queries, near.output_weight.shape[0])
    if tuple(near.residual.shape) != want:
        raise ShapeError(
            f"{record.name}: the residual stream is {tuple(near.residual.shape)}, expected {want}: "
            "batch, query, width"
        )


def _unknown_stream(record: Record, model: nn.Module) -> str:
    training = any(part.training for part in model.modules())
    why = " (the model is training, and dropout stands between: call model.eval())"
    return (
        f"{record.name}: no two tensors near it differ by what it adds, so the residual stream is "
        f"not known{why if training else ''}. Give it: around={{{record.name!r}: "
        "regard.aggregate.Surroundings(output_weight, output_bias, residual, norm)}"
    )


def _worth_watching(module: nn.Module) -> bool:
    named = ATTENTION.search(type(module).__name__)
    return bool(module._modules) or is_norm(module) or named is not None


def _sizes(norm: nn.Module) -> set[int]:
    return {weight.shape[0] for weight in norm.parameters() if weight.dim() == 1}
