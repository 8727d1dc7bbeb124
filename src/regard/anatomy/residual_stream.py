"""The surroundings of an attention: output projection, residual stream, layer norm.

    y = norm(x + branch(Σₕ Aₕ Vₕ Wₕ + b))

The projection (W, b) is found from the structure of the model; the stream x and the norms from the
inputs of its modules during the pass. The caller may supply what is not found.
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
from regard.anatomy.residual_search import ModuleInput, attention_output, find_stream, is_norm
from regard.anatomy.wrappers import inside_parallel, plain_modules
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.record import Record
from regard.types import Features, brief

_BEFORE, _AFTER = 8, 16  # module calls searched before and after an attention
_BOTH = (
    "run the model inside both: with regard.capture(model, values=True) as trace, "
    "regard.aggregate.ResidualStream(model) as residual"
)


@dataclass(frozen=True, eq=False, repr=False)
class Surroundings:
    """The surroundings of one attention.

    y = norm(residual + branch(mixed · output_weightᵀ + output_bias)). `output_weight` is (out, in),
    as that of `nn.Linear`; its columns are the heads side by side. `norm` and `branch` are None
    if absent, as both are in most pre-norm models.
    """

    output_weight: Float[Tensor, "width mixed"]
    output_bias: Float[Tensor, " width"] | None = None
    residual: Features | None = None
    norm: nn.Module | None = None
    branch: nn.Module | None = None

    def __repr__(self) -> str:
        return brief(self)


class ResidualStream:
    """Keeps the inputs of a model's modules while it runs, to find the residual stream.

    Use it together with a capture that holds the values. It copies a few tensors (batch, position,
    width) for each layer. Its hooks turn the fast path of `nn.TransformerEncoderLayer` off: the
    output is the same up to rounding.

    >>> import torch, regard
    >>> from regard.aggregate import ResidualStream
    >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    >>> with torch.no_grad(), ResidualStream(model) as residual:
    ...     with regard.capture(model, values=True) as trace:
    ...         out = model(torch.randn(1, 5, 8))
    >>> surroundings = residual.of(trace[0])
    >>> surroundings.residual.shape, surroundings.norm is model.norm1
    (torch.Size([1, 5, 8]), True)
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise RegardError(f"ResidualStream: {type(model).__name__}, expected an nn.Module")
        self.model = model
        self._hooks = ExitStack()
        self._widths: set[int] = set()
        self._inputs: list[ModuleInput] = []
        self._calls: dict[str, list[int]] = {}  # indices of each path's inputs
        self._last: tuple[Tensor, int] | None = None  # the last input, and its version

    def __enter__(self) -> ResidualStream:
        self._inputs, self._calls = [], {}
        watched = [
            (path, module) for path, module in plain_modules(self.model) if _worth_watching(module)
        ]
        norms = [module for _, module in watched if is_norm(module)]
        self._widths = {size for norm in norms for size in _sizes(norm)}
        for path, module in watched:
            hook = module.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True)
            self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        self._last = None

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        features = next(filter(self._is_features, (*args, *kwargs.values())), None)
        if features is not None:
            self._calls.setdefault(path, []).append(len(self._inputs))
            self._inputs.append(ModuleInput(module, self._copied(features)))

    def _is_features(self, argument: Any) -> bool:
        if (
            not isinstance(argument, Tensor)
            or not argument.is_floating_point()
            or argument.dim() < 2
        ):
            return False
        return not self._widths or argument.size(-1) in self._widths

    def _copied(self, features: Tensor) -> Tensor:
        """A copy, since a model may add to its stream in place; a repeated input shares one."""
        version = -1 if features.is_inference() else features._version
        if self._last is not None and self._last[0] is features and self._last[1] == version >= 0:
            return self._inputs[-1].tensor
        self._last = features, version
        return features.detach().clone()

    def of(self, record: Record) -> Surroundings:
        """The surroundings of one attention of the pass."""
        return surroundings_of(self, [record], stream=True)[0]

    def stream(self, record: Record, surroundings: Surroundings) -> Surroundings:
        """The same surroundings with the residual stream and the norms."""
        recipe = record.recipe.detach().plain()
        added, alive = attention_output(
            recipe, surroundings.output_weight, surroundings.output_bias
        )
        index = self._index(record)
        first = max(0, index - _BEFORE)
        stream = find_stream(self._inputs[first : index + _AFTER], index - first, added, alive)
        if stream is None:
            raise UnavailableError(_unknown_stream(record, self.model))
        return replace(surroundings, **stream._asdict())

    def _index(self, record: Record) -> int:
        """Index of the input of this attention's module, or of the module that contains it."""
        path = record.path
        while path and path not in self._calls:
            path = path.rpartition(".")[0]
        calls = self._calls.get(path)
        if calls is None:
            raise UnavailableError(f"{record.name}: no input of it was recorded; {_BOTH}")
        return calls[min(record.call, len(calls)) - 1]


#: Where surroundings come from.
ResidualSource = nn.Module | ResidualStream | Surroundings | Mapping[str, Surroundings]


def surroundings_of(
    residual: ResidualSource, records: Sequence[Record], *, stream: bool
) -> list[Surroundings]:
    """The surroundings of each record, with the residual stream where `stream` asks for it.

    Args:
        residual: the model, a `ResidualStream` of it, or `Surroundings`, for all or by name.
        records: attentions with their values.
        stream: whether residual stream and norms are needed; a model alone does not have them.
    """
    model = residual.model if isinstance(residual, ResidualStream) else residual
    sites = _sites(model) if isinstance(model, nn.Module) else []
    all_surroundings = []
    for record in records:
        surroundings = _surroundings_from(residual, model, record, sites)
        _check_weight(record, surroundings)
        if stream and isinstance(residual, ResidualStream):
            surroundings = residual.stream(record, surroundings)
        if stream:
            _check_residual(record, surroundings)
        all_surroundings.append(surroundings)
    return all_surroundings


def _surroundings_from(
    residual: Any, model: Any, record: Record, sites: list[HeadSite]
) -> Surroundings:
    if isinstance(residual, Surroundings):
        return residual
    if isinstance(model, nn.Module):
        return _projection(model, record, sites)
    if not isinstance(residual, Mapping):
        raise RegardError(
            f"residual is a {type(residual).__name__}, expected the model, a ResidualStream, or "
            "{name: Surroundings}"
        )
    surroundings = residual.get(record.name, residual.get(record.site.base))
    if not isinstance(surroundings, Surroundings):
        raise RegardError(
            f"residual: {surroundings!r} for {record.name!r}, expected Surroundings for each name"
        )
    return surroundings


def _projection(model: nn.Module, record: Record, sites: list[HeadSite]) -> Surroundings:
    """The output projection of an attention, by the structure of its model."""
    path = record.path
    exact = [site for site in sites if site.name == path]
    inside = [site for site in sites if not path or site.name.startswith(f"{path}.")]
    outside = [site for site in sites if path.startswith(f"{site.name}.")]
    candidates = exact or inside or outside
    if len(candidates) != 1:
        raise UnavailableError(
            f"{record.name}: {len(candidates) or 'no'} output projections were found for it in "
            f"{type(model).__name__}. Give it: residual={{{record.name!r}: "
            "regard.aggregate.Surroundings(output_weight, output_bias)}"
        )
    weight, axis = candidates[0].weight_and_axis()
    bias = candidates[0].projection._parameters.get("bias")
    return Surroundings(
        weight.detach() if axis == 1 else weight.detach().T,
        None if bias is None else bias.detach(),
    )


def _sites(model: nn.Module) -> list[HeadSite]:
    try:
        return head_sites(inside_parallel(model))
    except UnavailableError:
        return []


def _check_weight(record: Record, surroundings: Surroundings) -> None:
    value = record.checked_values()
    width = record.shape.heads * value.shape[-1]
    features = surroundings.output_weight.shape[1]
    if features != width:
        raise ShapeError(
            f"{record.name}: the output projection takes {features} features, expected "
            f"{record.shape.heads} heads × {value.shape[-1]} = {width}"
        )


def _check_residual(record: Record, surroundings: Surroundings) -> None:
    if surroundings.residual is None:
        raise RegardError(
            f"{record.name}: this needs the residual stream: {_BOTH}; or give "
            "Surroundings(residual=...)"
        )
    expected = (record.shape.batch, record.shape.queries, surroundings.output_weight.shape[0])
    shape = tuple(surroundings.residual.shape)
    if shape != expected:
        raise ShapeError(
            f"{record.name}: the residual stream is {shape}, expected {expected}: "
            "batch, query, width"
        )


def _unknown_stream(record: Record, model: nn.Module) -> str:
    training = any(module.training for module in model.modules())
    reason = " (the model is training, and dropout stands between: call model.eval())"
    return (
        f"{record.name}: no two tensors near it differ by what it adds, so the residual stream was "
        f"not found{reason if training else ''}. Give it: residual={{{record.name!r}: "
        "regard.aggregate.Surroundings(output_weight, output_bias, residual, norm)}"
    )


def _worth_watching(module: nn.Module) -> bool:
    named = ATTENTION.search(type(module).__name__)
    return bool(module._modules) or is_norm(module) or named is not None


def _sizes(norm: nn.Module) -> set[int]:
    return {weight.shape[0] for weight in norm.parameters() if weight.dim() == 1}
