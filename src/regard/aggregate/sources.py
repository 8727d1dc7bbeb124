"""Attention from the caller, a trace, a record or plain tensors, as layers of recipes."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor, nn

from regard.contract import Attended
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.recipe import Edges, Given, Recipe
from regard.record import Record, Trace, forms
from regard.record.axes import AXES, check_rows, in_order
from regard.types import Kind

_DRAWN = 1 << 24  # weights of a sparse attention up to which its matrix is drawn
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def outside_graph_and_autocast(
    function: Callable[_Arguments, _Result],
) -> Callable[_Arguments, _Result]:
    """Run an aggregation without autograd and autocast."""

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with torch.no_grad(), ExitStack() as stack:
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return wrapper


class Layer(NamedTuple):
    """One attention: what its weights are made from, and the record it came from, if any."""

    name: str
    recipe: Recipe
    record: Record | None = None


def layer_of(record: Record) -> Layer:
    """The layer of a record, whose axes must be known."""
    record.check_axes()
    return Layer(record.name, record.recipe, record)


def layers_of(
    attention: Any,
    *,
    axes: str | None = None,
    kind: Kind = "distribution",
    part: str | None = None,
) -> list[Layer]:
    """Layers, lowest first.

    Args:
        attention: a Trace, a Record, a tensor, or a list of records or tensors.
        axes: the order of a tensor's axes in words, as "head batch query key"; "layer" may be
            among them. Four axes are (batch, head, query, key) when None.
        kind: what the rows of tensors are: "distribution" is checked to sum to 1.
        part: of the trace of an encoder–decoder model, "encoder", "decoder" or "cross".
    """
    if kind not in get_args(Kind):
        raise RegardError(f"kind={kind!r}, expected one of {', '.join(get_args(Kind))}")
    if isinstance(attention, Trace):
        if axes is not None:
            raise RegardError(f"axes={axes!r} is for tensors; a Trace knows its own")
        layers = [layer_of(record) for record in _chosen(attention, part)]
    elif part is not None:
        raise RegardError(
            f"part={part!r} chooses from a Trace; {_with_article(attention)} has no parts"
        )
    else:
        layers = list(_layers(attention, axes, kind))
    if not layers:
        raise RegardError("there is no attention in an empty list")
    for layer in layers:
        if 0 in layer.recipe.shape:
            shape = tuple(layer.recipe.shape)
            raise ShapeError(f"{layer.name}: there is nothing in an attention {shape}")
    return layers


def stack_of(attention: Any, **options: Any) -> list[Layer]:
    """Layers that follow each other over the same positions, as rollout needs them."""
    layers = layers_of(attention, **options)
    check_one_pass(layer.record for layer in layers if layer.record is not None)
    fitting = [layer for layer in layers if _over_one_sequence(layer)]
    for layer in layers:
        if not _over_one_sequence(layer):
            raise ShapeError(_cannot_chain(layer, fitting))
        (batch, _, queries, _), first = layer.recipe.shape, layers[0].recipe.shape
        if (batch, queries) != (first.batch, first.queries):
            raise ShapeError(
                f"{layer.name}: batch {batch}, {queries} positions, expected batch {first.batch}, "
                f"{first.queries} positions as in {layers[0].name}: only layers over the same "
                f"positions follow each other; {one_size(layers)}"
            )
    return layers


def _over_one_sequence(layer: Layer) -> bool:
    """Whether an attention gives the positions that it takes."""
    queries, keys = layer.recipe.shape[2:]
    return queries == keys and (layer.record is None or layer.record.attends != "cross")


def _cannot_chain(layer: Layer, fitting: Sequence[Layer]) -> str:
    """Why a layer cannot follow others, and what to do."""
    queries, keys = layer.recipe.shape[2:]
    crosses = layer.record is not None and layer.record.attends == "cross"
    if crosses:
        reason = "cross-attention reads another sequence than the one it writes"
    elif queries == 1:
        reason = "one query pools the sequence, or is a step of generate()"
    else:
        reason = "it reads other positions than it writes"
    text = (
        f"{layer.name}: {queries} {'query' if queries == 1 else 'queries'} × {keys} keys cannot "
        f"be chained with other layers: {reason}"
    )
    if fitting:
        same = "r.attends == 'self'" if crosses else "r.shape.queries == r.shape.keys"
        names = fitting[0].name if len(fitting) == 1 else f"{fitting[0].name} … {fitting[-1].name}"
        if layer.record is None:
            return f"{text}. Leave it out of the list"
        return (
            f"{text}. {len(fitting)} of the layers can be ({names}): hand over "
            f"[r for r in trace if {same}]. {_own_map_hint(layer)}"
        )
    if layer.record is None:
        return text
    whole = "" if crosses else "regard.stitch(trace, output) joins the steps of generate(); "
    return f"{text}. {whole}{_own_map_hint(layer)}"


def one_size(layers: Sequence[Layer]) -> str:
    """How to select the layers of the most common size."""
    if layers[0].record is None:
        return "leave out those of other sizes"
    sizes = Counter((layer.recipe.shape.batch, *layer.recipe.shape[2:]) for layer in layers)
    size = sizes.most_common(1)[0][0]
    return (
        "hand over those of one size, as "
        f"[r for r in trace if (r.shape.batch, *r.shape[2:]) == {size}]"
    )


def _own_map_hint(layer: Layer) -> str:
    return f"trace[{layer.name!r}].weights() has its own map"


NO_TYPE = "they have no entropy, and heads of them no type; trace.layers(...) leaves layers out"


def check_shares(layer: Layer, so: str = "they cannot be passed on as such") -> None:
    """Refuse weights that are no shares of a whole; `so` says what is impossible with them."""
    if not has_shares(layer):
        kind = layer.recipe.kind
        raise UnavailableError(f"{layer.name}: {kind} weights are no shares of a whole: {so}")


def has_shares(layer: Layer) -> bool:
    """Whether the weights of a layer are shares of a whole."""
    return layer.recipe.kind not in ("signed", "gate")


def check_drawable(layer: Layer) -> None:
    """Refuse to draw the matrix of a graph that fits in memory as edges only."""
    _, _, queries, keys = layer.recipe.shape
    if isinstance(layer.recipe, Edges) and queries * keys > _DRAWN:
        raise UnavailableError(
            f"{layer.name}: {layer.recipe.n_edges:,} edges of {queries:,} × {keys:,} positions are "
            f"too many to draw as a matrix (at most {_DRAWN:,} weights): `regard serve --trace` "
            "shows any part of it; or draw one, as "
            "regard.plots.Heatmap(record.weights(slice(0, 500), slice(0, 500))[0, 0])"
        )


def _chosen(trace: Trace, part: str | None) -> list[Record]:
    records = list(trace)
    if not records:
        raise UnavailableError("the trace is empty: trace.notes says why")
    records = forms.attending(records)
    check_one_pass(records)
    if part is not None:
        if part not in forms.PARTS:
            raise RegardError(f"part={part!r}, expected one of {', '.join(forms.PARTS)}")
        chosen = forms.PARTS[part](records)
        if not chosen:
            raise UnavailableError(
                f"part={part!r}: no such attention was captured; say {forms.parts(records)}"
            )
        return chosen
    if has_both(records):
        raise RegardError(
            f"the trace has self- and cross-attention; say which: {forms.parts(records)}"
        )
    return records


def check_one_pass(records: Iterable[Record]) -> None:
    """Refuse records of several passes of the model."""
    steps = {record.step for record in records}
    if len(steps) > 1:
        raise RegardError(several_passes(len(steps)))


def several_passes(count: int) -> str:
    """What to do with a trace of several passes."""
    return (
        f"the trace has {count} passes of the model; take one, as trace.steps[0], or put a "
        "generation together by regard.stitch(trace, output)"
    )


def check_layers(name: str, layers: str, choices: Sequence[str] = ("mean", "last", "each")) -> None:
    """Refuse another word than these for how layers are combined."""
    if layers not in choices:
        raise RegardError(f"{name}: layers={layers!r}, expected one of {', '.join(choices)}")


def has_both(records: Iterable[Record]) -> bool:
    """Whether there is cross-attention, and other attention besides."""
    return len({record.attends == "cross" for record in records}) > 1


def _layers(attention: Any, axes: str | None, kind: Kind, name: str = "") -> Iterator[Layer]:
    if isinstance(attention, Record):
        yield layer_of(attention)
    elif isinstance(attention, Recipe):
        yield Layer(name or "attention", attention)
    elif isinstance(attention, Tensor):
        for index, weights in enumerate(arranged(attention, axes)):
            layer_name = name or f"layer {index}"
            check_rows(weights, kind, layer_name, axes)
            yield Layer(layer_name, Given(weights, None, kind))
    elif isinstance(attention, list | tuple):
        for index, member in enumerate(attention):
            yield from _layers(member, axes, kind, f"layer {index}")
    else:
        raise RegardError(
            f"expected a Trace, a Record, or tensors (batch, head, query, key), not "
            f"{_with_article(attention)}{_hint(attention)}"
        )


def _with_article(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _hint(value: Any) -> str:
    """What to pass instead, where that can be told."""
    if isinstance(value, nn.Module):
        return "; run it in a capture: regard.trace(model, inputs) gives a Trace"
    if value is None:
        return "; transformers gives attentions with output_attentions=True only, a Trace always"
    if isinstance(value, Attended):
        return "; its weights are such a tensor: attended.weights, if asked with weights=True"
    if getattr(value, "attentions", None) is not None:
        return "; its attentions are such tensors: output.attentions"
    if hasattr(value, "attentions"):
        return "; it has no attentions: regard.trace(model, inputs) gives a Trace"
    return ""


def arranged(weights: Tensor, axes: str | None) -> list[Tensor]:
    """A tensor of weights as one (batch, head, query, key) tensor for each layer."""
    if not weights.is_floating_point():
        raise ShapeError(f"weights are {weights.dtype}, expected floating point numbers")
    if axes is None:
        if weights.dim() != 4:
            such = {2: '"query key"', 3: '"batch query key" or axes="head query key"'}
            raise ShapeError(
                f"weights have {weights.dim()} axes {tuple(weights.shape)}; four are (batch, head, "
                "query, key), others must be named, as axes="
                + such.get(weights.dim(), '"layer batch head query key"')
            )
        return [weights]
    return list(in_order(weights, axes, order=("layer", *AXES)))


def token_positions(token: int | Sequence[int] | None, length: int) -> list[int] | None:
    """The queries asked for, from 0; None for all of them."""
    if token is None:
        return None
    if isinstance(token, str | float):
        raise RegardError(f"token={token!r}, expected a position, or a list of positions")
    positions = [token] if single(token) else list(token)  # type: ignore[arg-type]
    if not positions:
        raise RegardError("token=[], expected at least one position")
    return [_position(position, length) for position in positions]


def single(token: Any) -> bool:
    """Whether one token is asked for, not a list of them."""
    return isinstance(token, int) or (
        hasattr(token, "__index__") and getattr(token, "ndim", 0) == 0
    )


def _position(token: Any, length: int) -> int:
    try:
        position = operator.index(token)
    except TypeError:
        position = length
    if isinstance(token, bool) or not -length <= position < length:
        raise RegardError(f"token={token!r}, expected whole numbers from {-length} to {length - 1}")
    return position % length
