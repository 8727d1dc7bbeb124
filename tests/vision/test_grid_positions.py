"""Positions of two axes: rotary turns, bias tables, sinusoids."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import DtypeError, RegardError, ShapeError
from regard.kernel.position_encodings import GridTable
from regard.kernel.rotary import rotate
from regard.mechanisms import GridBias, GridRotary, MultiHead, RelativeBias
from regard.types import Block, whole
from regard.vision import GridSinusoids


def features(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_turned_products_depend_on_both_distances_alone() -> None:
    rows, columns, width = 4, 5, 8
    part = GridRotary(columns)
    query, key = (features(1, 1, 2, width)[:, :, i : i + 1] for i in range(2))
    turned = [
        part.turn(features.expand(-1, -1, rows * columns, -1), 0)[0, 0] for features in (query, key)
    ]
    products = (turned[0] @ turned[1].T).view(rows, columns, rows, columns)
    by_offset: dict[tuple[int, int], list[float]] = {}
    for (y, x, v, u), product in (
        ((y, x, v, u), float(products[y, x, v, u]))
        for y in range(rows)
        for x in range(columns)
        for v in range(rows)
        for u in range(columns)
    ):
        by_offset.setdefault((v - y, u - x), []).append(product)
    for numbers in by_offset.values():
        assert numbers == pytest.approx([numbers[0]] * len(numbers))
    assert len({round(numbers[0], 9) for numbers in by_offset.values()}) == len(by_offset)


def test_each_axis_turns_its_own_pairs() -> None:
    x = torch.ones(1, 1, 1, 8, dtype=torch.float64)
    row, column = (rotate(x, torch.tensor([offset]), 100.0) for offset in ([3, 0], [0, 3]))
    moved = [[i for i in range(8) if t[0, 0, 0, i] != 1] for t in (row, column)]
    assert moved == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
    ]  # pairs (i, i + 4): two of the row, two of the column
    for angle, feature in ((3.0, 0), (0.3, 1)):  # rates 1 and 100^(−1/2)
        assert float(row[0, 0, 0, feature]) == pytest.approx(math.cos(angle) - math.sin(angle))


def test_tokens_before_the_image_are_not_turned() -> None:
    x = features(1, 2, 7, 8)
    turned = GridRotary(3, first=1).turn(x, 0)
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])
    torch.testing.assert_close(turned[:, :, 1:], GridRotary(3).turn(x[:, :, 1:], 0))


def test_an_image_in_multi_head_attention_may_be_moved() -> None:
    """Content moved down and right inside of an empty image: its scores move along with it."""
    torch.manual_seed(0)
    attn = MultiHead(16, 2, position=GridRotary(6)).double().eval()
    image = torch.zeros(1, 6, 6, 16, dtype=torch.float64)
    image[:, :3, :3] = features(1, 3, 3, 16)
    moved = image.roll((2, 1), (1, 2))
    before, after = (
        attn(features.flatten(1, 2), weights=True).weights.log().view(2, 6, 6, 6, 6)
        for features in (image, moved)
    )
    before, after = before[:, :3, :3, :3, :3], after[:, 2:5, 1:4, 2:5, 1:4]
    difference = after - before  # the denominators of a row may differ
    torch.testing.assert_close(difference, difference[..., :1, :1].expand_as(difference))


@pytest.mark.parametrize("first", [0, 1])
def test_a_table_by_offset_in_loops(first: int) -> None:
    rows, columns, table = 3, 4, features(2, 5, 3)
    positions = first + rows * columns
    bias = GridTable(table, columns, first)
    expected = torch.zeros(1, 2, positions, positions, dtype=torch.float64)
    for q in range(first, positions):
        for k in range(first, positions):
            y, x = divmod(q - first, columns)
            v, u = divmod(k - first, columns)
            dy, dx = max(-2, min(2, v - y)), max(-1, min(1, u - x))
            expected[0, :, q, k] = table[:, dy + 2, dx + 1]
    torch.testing.assert_close(bias.block(whole(positions, positions)), expected)
    block = Block(2, 7, 1, 9, positions, positions)
    torch.testing.assert_close(bias.block(block), expected[:, :, 2:7, 1:9])
    torch.testing.assert_close(bias.at(0, 1).block(block), expected[:, 1:, 2:7, 1:9])
    torch.testing.assert_close(bias.of_heads([1, 0]).block(block), expected[:, [1, 0], 2:7, 1:9])


def test_a_grid_of_one_row_is_a_relative_table() -> None:
    grid, line = GridBias(2, 9, reach=(0, 3)), RelativeBias(2, reach=3)
    with torch.no_grad():
        grid.table.copy_(features(2, 1, 7))
        line.table.copy_(grid.table[:, 0])
    block = whole(9, 9)
    torch.testing.assert_close(grid.bias().block(block), line.bias().block(block))


def test_a_learned_bias_in_multi_head_attention_gets_a_gradient() -> None:
    attn = MultiHead(8, 2, position=GridBias(2, 3, reach=(1, 1), first=1))
    attended = attn(torch.randn(1, 7, 8), weights=True, reduce=[regard.HeadMean()])
    attended.output.square().sum().backward()
    assert attn.position.table.grad.any()
    torch.testing.assert_close(attended.reductions[0], attended.weights.mean(1))


def test_sinusoids_of_rows_and_columns() -> None:
    image = GridSinusoids(8, base=100.0)(torch.zeros(1, 8, 3, 4, dtype=torch.float64))[0]
    for row in range(3):
        for column in range(4):
            expected = [
                wave(offset * rate)
                for offset in (row, column)
                for wave in (math.sin, math.cos)
                for rate in (1.0, 0.1)
            ]
            assert image[:, row, column].tolist() == pytest.approx(expected)
    assert GridSinusoids(4)(torch.zeros(0, 4, 2, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16


REFUSED = {
    "width": (
        lambda: GridRotary(3).turn(torch.zeros(1, 1, 3, 6), 0),
        "6, expected a multiple of 4",
    ),
    "columns": (lambda: GridRotary(0), "GridRotary: columns=0, first=0, expected at least 1 and 0"),
    "bias": (lambda: GridBias(2, 3, reach=(1, -1)), r"GridBias: columns=3, reach=\(1, -1\), first"),
    "table": (
        lambda: GridTable(torch.zeros(1, 3, 2), 3),
        "GridTable: axis dx has size 2, expected",
    ),
    "channels": (lambda: GridSinusoids(6), "GridSinusoids: 6 channels, expected a multiple of 4"),
    "image": (
        lambda: GridSinusoids(4)(torch.zeros(1, 8, 2, 2)),
        r"is \(1, 8, 2, 2\), expected \(b",
    ),
}


@pytest.mark.parametrize(("build", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(build, text: str) -> None:
    with pytest.raises((RegardError, ShapeError), match=text):
        build()


def test_another_image_has_another_table() -> None:
    rotary, features = GridRotary(3), torch.randn(1, 1, 12, 8)
    rotary.turn(features, 0)
    rotary.columns = 4
    assert torch.equal(rotary.turn(features, 0), GridRotary(4).turn(features, 0))


@pytest.mark.usefixtures("without_shape_checks")
def test_sinusoids_are_not_added_to_whole_numbers() -> None:
    with pytest.raises(DtypeError, match=r"torch.int64, expected floating point"):
        GridSinusoids(8)(torch.zeros(1, 8, 2, 2, dtype=torch.long))
