"""Axial and shifted-window attention and the stem: softmax in loops over whom a position sees."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.mechanisms import RelativeBias, Rotary
from regard.vision import Axial, LocalStem, ShiftedWindow

Pixel = tuple[int, int]


def picture(*size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*size, generator=generator, dtype=torch.float64)


@torch.no_grad()
def in_loops(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sees: Callable[[Pixel, Pixel], bool],
    score: Callable[[int, Pixel, Pixel, Tensor, Tensor], float],
) -> tuple[Tensor, Tensor]:
    """Mixed (head, width, row, column) and weights (head, query, key) of (head, width, …) maps."""
    heads, _, height, width = query.shape
    positions = [(y, x) for y in range(height) for x in range(width)]
    mixed = torch.zeros_like(value)
    weights = torch.zeros(heads, len(positions), len(positions), dtype=query.dtype)
    for head in range(heads):
        for i, (y, x) in enumerate(positions):
            exps = {
                j: math.exp(score(head, (y, x), at, query[head, :, y, x], key[head, :, *at]))
                for j, at in enumerate(positions)
                if sees((y, x), at)
            }
            for j, exp in exps.items():
                weights[head, i, j] = exp / sum(exps.values())
                mixed[head, :, y, x] += weights[head, i, j] * value[head, :, *positions[j]]
    return mixed, weights


def maps(linear: nn.Linear, image: Tensor, heads: int) -> Tensor:
    """A projection of one image, (head, width, row, column)."""
    return linear(image.movedim(0, -1)).movedim(-1, 0).unflatten(0, (heads, -1))


def compare(attn: Axial | ShiftedWindow, image: Tensor, sees, score) -> None:
    attended = attn(image, weights=True)
    for example, example_image in enumerate(image):
        projections = (attn.to_query, attn.to_key, attn.to_value)
        query, key, value = (maps(linear, example_image, attn.n_heads) for linear in projections)
        mixed, weights = in_loops(query, key, value, sees, score)
        torch.testing.assert_close(attended.weights[example], weights)
        output = attn.to_output(mixed.flatten(0, 1).movedim(0, -1)).movedim(-1, 0)
        torch.testing.assert_close(attended.output[example], output)
    torch.testing.assert_close(attended.recipe.mixed(), attended.weights @ attended.recipe.value)
    assert attended.recipe.grid == image.shape[2:]


SIZES = pytest.mark.parametrize("size", [(4, 5), (1, 3), (3, 1), (1, 1)], ids=str)


@SIZES
@pytest.mark.parametrize("axis", ["row", "column"])
def test_axial_is_attention_along_one_axis(axis: str, size: Pixel) -> None:
    torch.manual_seed(0)
    attn = Axial(8, 2, axis=axis, position=RelativeBias(2, reach=2)).double()
    nn.init.normal_(attn.position.table)
    same = 0 if axis == "row" else 1

    def score(head: int, here: Pixel, there: Pixel, query: Tensor, key: Tensor) -> float:
        offset = max(-2, min(2, there[1 - same] - here[1 - same]))
        return float(query @ key / 2 + attn.position.table[head, offset + 2])

    compare(attn, picture(2, 8, *size), lambda here, there: here[same] == there[same], score)


def test_axial_with_rotary_positions_knows_distances() -> None:
    """A row that is the same everywhere is moved: weights depend on the distance alone."""
    attn = Axial(8, 2, axis="row", position=Rotary()).double()
    image = picture(1, 8, 1, 1).expand(1, 8, 1, 6)
    scores = attn(image, weights=True).recipe.weights()[0, 0].log()
    differences = scores - scores.diagonal()[:, None]
    for distance in range(1, 5):
        along = differences.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))


def test_rows_then_columns_reach_everything() -> None:
    rows, columns = (Axial(8, 2, axis=axis).double() for axis in ("row", "column"))
    image = picture(1, 8, 4, 5).requires_grad_()
    columns(rows(image).output).output[0, :, 0, 0].sum().backward()
    assert image.grad.abs().sum((0, 1)).all()


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("size", [(6, 9), (7, 5), (3, 8), (2, 4), (1, 1)], ids=str)
def test_shifted_window_is_attention_inside_windows(size: Pixel, shift: int) -> None:
    torch.manual_seed(0)
    attn = ShiftedWindow(8, 2, window=3, shift=shift).double()
    nn.init.normal_(attn.table)

    def window(pixel: Pixel) -> Pixel:
        """Windows begin at `shift`, those before them are cut off; one window alone is all."""
        starts = [shift if length > 3 else 0 for length in size]
        return tuple((at - start) // 3 for at, start in zip(pixel, starts))

    def score(head: int, here: Pixel, there: Pixel, query: Tensor, key: Tensor) -> float:
        bias = attn.table[head, there[0] - here[0] + 2, there[1] - here[1] + 2]
        return float(query @ key / 2 + bias)

    sees = lambda here, there: window(here) == window(there)
    compare(attn, picture(2, 8, *size), sees, score)


def test_weights_lie_at_their_true_places() -> None:
    """Windows of 4 moved by 2: from (2, 2) on, a window is rows and columns 2 to 5."""
    recipe = ShiftedWindow(8, 2, window=4, shift=2)(torch.randn(1, 8, 8, 8), weights=True).recipe
    offsets = recipe.offsets()
    assert offsets.dy.tolist() == list(range(-3, 4))
    assert (offsets.weights[0, 0, 2, 2, 3:, 3:] > 0).all()
    assert not offsets.weights[0, 0, 2, 2, :3].any()
    torch.testing.assert_close(offsets.weights.sum((-1, -2)), torch.ones(1, 2, 8, 8))


@pytest.mark.parametrize("size", [(8, 4), (6, 5), (2, 3), (1, 1)], ids=str)
def test_the_stem_is_the_paper(size: Pixel) -> None:
    torch.manual_seed(0)
    attn = LocalStem(3, 8, 2, window=4, n_mixtures=3).double()
    image = picture(2, 3, *size)
    attended = attn(image, weights=True)
    with torch.no_grad():
        for example, example_image in enumerate(image):
            query, key = (maps(linear, example_image, 2) for linear in (attn.to_query, attn.to_key))
            value = torch.zeros(8, *size, dtype=torch.float64)
            matrices = attn.to_value.weight.unflatten(0, (3, 8))
            for y in range(size[0]):
                for x in range(size[1]):
                    embedding = attn.row[y % 4] + attn.column[x % 4]
                    exps = [math.exp(embedding @ vector) for vector in attn.mixture]
                    for exp, matrix in zip(exps, matrices):
                        value[:, y, x] += exp / sum(exps) * (matrix @ example_image[:, y, x])
            mixed, weights = in_loops(
                query,
                key,
                value.unflatten(0, (2, -1)),
                lambda here, there: [p // 4 for p in here] == [p // 4 for p in there],
                lambda head, here, there, q, k: float(q @ k),
            )
            torch.testing.assert_close(attended.weights[example], weights)
            pooled = F.max_pool2d(mixed.flatten(0, 1)[None], 4, ceil_mode=True)[0]
            torch.testing.assert_close(attended.output[example], pooled)


def test_the_stem_can_tell_edges_and_content_alone_cannot() -> None:
    """Two halves, dark and light, left and right swapped: attention to the content of pixels is
    the same sum, values that know their place are not."""
    torch.manual_seed(0)
    image = torch.zeros(1, 1, 4, 4)
    image[..., 2:] = 1.0
    attn = LocalStem(1, 8, 2)
    assert not torch.allclose(attn(image).output, attn(image.flip(3)).output)
    nn.init.zeros_(attn.mixture)
    torch.testing.assert_close(attn(image).output, attn(image.flip(3)).output)


REFUSED = {
    "axial heads": (lambda: Axial(8, 3, axis="row"), ShapeError, "n_heads=3, expected a divisor"),
    "axial axis": (lambda: Axial(8, 2, axis="y"), RegardError, "axis='y', expected \"row\" or"),
    "axial position": (
        lambda: Axial(8, 2, axis="row", position=nn.Identity()),
        RegardError,
        r"position=Identity\(\), expected a part, as Rotary",
    ),
    "window heads": (lambda: ShiftedWindow(8, 3), ShapeError, "n_heads=3, expected a divisor of 8"),
    "window shift": (
        lambda: ShiftedWindow(8, 2, window=3, shift=3),
        RegardError,
        "window=3, shift=3, expected a window of at least 1 and a shift from 0 to window − 1",
    ),
    "stem heads": (lambda: LocalStem(3, 6), ShapeError, "n_heads=4, expected a divisor of 6 out"),
    "stem window": (lambda: LocalStem(3, 8, window=0), ShapeError, "window=0, n_mixtures=4, expec"),
}


@pytest.mark.parametrize(("build", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    without_shape_checks: None, build: Callable[[], nn.Module], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        build()


def test_a_position_of_other_heads_is_refused() -> None:
    with pytest.raises(ShapeError, match="RelativeBias has 4 heads, expected 2"):
        Axial(8, 2, axis="row", position=RelativeBias(4))
