"""Attention over an image: of a whole image's patches, or of windows that each look into
themselves."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.combine_heads import Fusion, fused_map
from regard.aggregate.sources import Layer, layers_of
from regard.contract import Attended
from regard.errors import RegardError, ShapeError
from regard.plots.choices import checked_example, way_of
from regard.plots.specs import Overlay, Profile
from regard.record import Record, Trace


def overlay(
    attention: Any,
    image: Tensor,
    *,
    token: int = 0,
    how: str | None = None,
    patches: tuple[int, int] | None = None,
    example: int = 0,
    title: str | None = None,
) -> Overlay:
    """Attention over an image: of a vision transformer whose last positions are patches, of
    attention over an image's own positions, or a gate of positions.

    Args:
        attention: a Trace, a Record, an Attended that holds its recipe, or a list of tensors. Of a
            Trace with gates and no attention, its one gate of positions. A gate is shown as it is.
        image: (row, column, 3) or (3, row, column), from 0 to 1; 1 in the place of 3 is grey.
        token: the query that looks; 0 is the class token of most models.
        how: "rollout", "relevance" or "mean" over the layers. When None rollout, or the mean of
            the heads for one attention whose recipe has a grid.
        patches: rows and columns of patches; when None the recipe's grid, or else a square of the
            last positions.
        example: which one of the batch.
        title: what is shown, when None.
    """
    image = checked_image(image, "overlay")
    _check_token("overlay", token)
    drawable = _drawable(attention)
    layers = layers_of(drawable)
    grid = patches or layers[-1].recipe.grid
    if layers[0].recipe.kind == "gate":
        return _gate(layers[0], image, grid, example, title)
    if how is None:
        how = "mean" if len(layers) == 1 and patches is None and grid is not None else "rollout"
    values = way_of(how)(drawable, token)
    values = values[checked_example(example, values.shape[0])]
    rows, columns = grid or _square(values.shape[0], image)
    if rows * columns > values.shape[0]:
        raise ShapeError(
            f"overlay: {rows} × {columns} patches, but there are {values.shape[0]} positions"
        )
    first = values.shape[0] - rows * columns  # class and register tokens come before the patches
    queries, keys = layers[-1].recipe.shape[2:]
    position = token % queries - first
    marked = divmod(position, columns) if position >= 0 and queries == keys else None
    title = f"{how} to position {token}" if title is None else title
    return Overlay(image, values[first:].view(rows, columns), title, marked)


def channels(attention: Any, *, title: str | None = None) -> Profile:
    """A gate of channels: its value for each channel, a line for each example.

    Args:
        attention: a Record of kind "gate", an Attended that holds its recipe, or a Trace with one
            gate of channels.
        title: the record's name when None.
    """
    layer = layers_of(_drawable(attention, of_channels=True))[0]
    batch, heads, queries, _ = shape = layer.recipe.shape
    if layer.recipe.kind != "gate" or layer.recipe.grid is not None or heads * queries > 1:
        raise RegardError(
            f"channels: {layer.name} is {layer.recipe.kind} {tuple(shape)}, expected a gate of "
            "channels, (batch, 1, 1, channel); overlay() draws a gate of positions"
        )
    values = layer.recipe.weights()[:, 0, 0].detach()
    lines = [f"example {number}" for number in range(batch)] if batch > 1 else None
    title = layer.name if title is None else title
    return Profile(values, lines, title, place_title="channel", value_title="gate")


def windows(
    attention: Any,
    image: Tensor,
    *,
    windows: tuple[int, int],
    patches: tuple[int, int] | None = None,
    token: int | None = None,
    heads: Fusion = "mean",
    shift: int = 0,
    example: int = 0,
    title: str | None = None,
) -> Overlay:
    """Attention in windows, each at its place on the image: of a model such as TinyViT or Swin,
    whose batch holds the windows of an image one after the other, row by row.

    Args:
        attention: a Record, or a tensor (image × window, head, query, key).
        image: (row, column, 3) or (3, row, column), from 0 to 1; 1 in the place of 3 is grey.
        windows: how many windows there are down and across.
        patches: rows and columns of patches of the whole image, where windows at its lower and
            right edge are filled up beyond it; all places of all windows when None.
        token: the patch that looks, counted row by row over the image; when None, the attention
            that each patch receives, the mean over those of its window.
        heads: how heads are joined.
        shift: by how many patches the windows lie further down and to the right, as in every
            second layer of Swin; what they pass at the end comes in at the start.
        example: which image of the batch.
        title: what is shown, when None.
    """
    layers = layers_of(attention)
    if len(layers) > 1:
        raise RegardError(f"windows: {len(layers)} layers, expected one: they differ in windows")
    recipe = layers[0].recipe
    down, across = windows
    count = down * across
    shape = recipe.shape
    if min(windows) < 1 or shape.queries != shape.keys or shape.batch % count:
        raise ShapeError(
            f"windows: {down} × {across} windows, but the attention is {tuple(recipe.shape)}; "
            "expected (images × windows, heads, places, places)"
        )
    size = _window(recipe.shape.keys, windows, patches)
    whole = (down * size[0], across * size[1])
    rows, columns = patches or whole
    if rows > whole[0] or columns > whole[1]:
        raise ShapeError(
            f"windows: {rows} × {columns} patches, but windows of {size[0]} × {size[1]} reach over "
            f"{whole[0]} × {whole[1]}"
        )
    first = checked_example(example, recipe.shape.batch // count) * count
    weights = fused_map(recipe, heads)[first:][:count]  # (window, query, key)
    looks = torch.zeros(whole)  # how much each place looks
    marked = None
    if token is None:
        looks[:rows, :columns] = 1.0
    else:
        _check_token("windows", token)
        if not -rows * columns <= token < rows * columns:
            raise RegardError(f"windows: token={token}, expected from 0 to {rows * columns - 1}")
        marked = divmod(token % (rows * columns), columns)
        looks[marked] = 1.0
    looking = _cut(looks.roll((-shift, -shift), (0, 1)), windows).to(weights)  # (window, query)
    number = looking.sum(-1, keepdim=True).clamp(min=1.0)
    received = ((looking / number)[:, None] @ weights)[:, 0]  # (window, key)
    values = _joined(received, windows, size).roll((shift, shift), (0, 1))[:rows, :columns]
    if title is None:
        title = f"{layers[0].name}, {count} windows"
        title += "" if token is None else f": patch {token}"
    edges = [
        tuple(edge for edge in range(shift % step, length, step) if edge)
        for step, length in zip(size, (rows, columns))
    ]
    rims = (edges[0], edges[1])
    return Overlay(checked_image(image, "windows"), values, title, marked, rims, clip=token is None)


Places = Float[Tensor, "row column"]


def _cut(values: Places, windows: tuple[int, int]) -> Float[Tensor, "window place"]:
    """Places of an image, window by window."""
    down, across = windows
    height, width = values.shape[0] // down, values.shape[1] // across
    parts = values.view(down, height, across, width).transpose(1, 2)
    return parts.reshape(down * across, height * width)


def _joined(
    values: Float[Tensor, "window place"], windows: tuple[int, int], size: tuple[int, int]
) -> Places:
    """Windows at their places in the image."""
    parts = values.view(*windows, *size).transpose(1, 2)
    return parts.reshape(windows[0] * size[0], windows[1] * size[1])


def _window(
    positions: int, windows: tuple[int, int], patches: tuple[int, int] | None
) -> tuple[int, int]:
    """Rows and columns of a window: a square, or what the patches come to."""
    side = math.isqrt(positions)
    if side * side == positions:
        return side, side
    if patches is not None:
        size = -(-patches[0] // windows[0]), -(-patches[1] // windows[1])
        if size[0] * size[1] == positions:
            return size
    raise ShapeError(
        f"windows: {positions} positions in a window are no square; pass patches=(rows, columns) "
        f"of the whole image, which {windows[0]} × {windows[1]} windows divide"
    )


def _drawable(attention: Any, of_channels: bool = False) -> Any:
    """What `layers_of` takes; of a trace of gates the one gate of positions, or of channels."""
    if isinstance(attention, Attended):
        if attention.recipe is None:
            raise RegardError(
                "this Attended holds no recipe: ask with weights=True, as module(x, weights=True)"
            )
        return [attention.recipe]
    if isinstance(attention, Record):
        return [attention]
    if isinstance(attention, Trace) and len(attention):
        gates = [record for record in attention if record.kind == "gate"]
        if of_channels or len(gates) == len(attention):
            return [_only(gates, of_channels)]
    return attention


def _only(gates: list[Record], of_channels: bool) -> Record:
    """The gate of channels, or of positions, where there is one."""
    fitting = [gate for gate in gates if (gate.recipe.grid is None) is of_channels]
    if len(fitting) == 1:
        return fitting[0]
    what = "channels" if of_channels else "positions"
    if not fitting:
        raise RegardError(f"there is no gate of {what} in the trace")
    names = ", ".join(gate.name for gate in fitting[:3]) + ", …" * (len(fitting) > 3)
    raise RegardError(
        f"the trace has {len(fitting)} gates of {what} ({names}): take one, as "
        f"trace[{fitting[0].name!r}]"
    )


def _gate(
    gate: Layer, image: Tensor, grid: tuple[int, int] | None, example: int, title: str | None
) -> Overlay:
    """A gate over the image; of one for each channel, the mean."""
    if grid is None:
        raise RegardError(
            f"overlay: {gate.name} is a gate of channels, which have no place in an image; "
            "channels() draws it"
        )
    weights = gate.recipe.weights()
    values = weights[checked_example(example, weights.shape[0])].detach().mean((0, 1))
    if values.shape[0] != grid[0] * grid[1]:
        raise ShapeError(
            f"overlay: {grid[0]} × {grid[1]} patches, but the gate has {values.shape[0]} positions"
        )
    return Overlay(image, values.view(grid), gate.name if title is None else title)


def _square(positions: int, image: Tensor) -> tuple[int, int]:
    """The largest square of patches among so many positions, if the image is one."""
    if image.shape[0] != image.shape[1]:
        raise ShapeError(
            f"overlay: the image is {tuple(image.shape[:2])}, not a square: "
            "say patches=(rows, columns)"
        )
    side = math.isqrt(positions)
    return side, side


def _check_token(what: str, token: Any) -> None:
    if isinstance(token, bool) or not isinstance(token, int):
        raise RegardError(f"{what}: token={token!r}, expected one position")


def checked_image(image: Tensor, what: str) -> Float[Tensor, "y x 3"]:
    """The image as (row, column, 3), from 0 to 1; what the error begins with is `what`."""
    if image.dim() == 3:
        first, _, last = image.shape
        if last != 3 and (first == 3 or (first == 1 and last != 1)):
            image = image.permute(1, 2, 0)
        if image.shape[2] == 1:  # grey
            image = image.expand(-1, -1, 3)
    if image.dim() != 3 or image.shape[2] != 3 or not image.numel():
        raise ShapeError(
            f"{what}: the image is {tuple(image.shape)}, expected (row, column, 3) or "
            "(3, row, column), with 1 in the place of 3 where it is grey"
        )
    low, high = float(image.min()), float(image.max())
    if not image.is_floating_point() or not -0.001 <= low <= high <= 1.001:
        raise RegardError(
            f"{what}: an image of {image.dtype} from {low:g} to {high:g}; expected numbers from 0 "
            "to 1: divide by 255, or undo the model's normalisation"
        )
    return image
