"""Weights over (dy, dx), compared pair by pair."""

import pytest
import torch
from torch import Tensor

from regard.errors import ShapeError, UnavailableError
from regard.recipe import Edges


def around(rows: int = 4, columns: int = 5, reach: int = 1, **changes: object) -> Edges:
    """Every position of an image and those around it, with random weights."""
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (y * columns + x, v * columns + u)
        for y in range(rows)
        for x in range(columns)
        for v in range(max(0, y - reach), min(rows, y + reach + 1))
        for u in range(max(0, x - reach), min(columns, x + reach + 1))
    ]
    query, key = torch.tensor(pairs).T.reshape(2, 1, 1, -1)
    weights = torch.rand(2, 3, len(pairs), generator=generator)
    size = rows * columns
    return Edges(query, key, weights, size, size, **({"grid": (rows, columns)} | changes))


def pair_by_pair(weights: Tensor, columns: int, dy: list[int], dx: list[int]) -> Tensor:
    """(batch, head, row, column, dy, dx) of a dense matrix."""
    rows = weights.shape[2] // columns
    result = weights.new_zeros(*weights.shape[:2], rows, columns, len(dy), len(dx))
    for y in range(rows):
        for x in range(columns):
            for i, down in enumerate(dy):
                for j, across in enumerate(dx):
                    if 0 <= y + down < rows and 0 <= x + across < columns:
                        key = (y + down) * columns + x + across
                        result[:, :, y, x, i, j] = weights[:, :, y * columns + x, key]
    return result


@pytest.mark.parametrize("size", [(4, 5, 1), (3, 7, 2), (1, 1, 0), (1, 6, 1)], ids=str)
def test_offsets_are_the_matrix_seen_from_each_query(size: tuple[int, int, int]) -> None:
    rows, columns, _ = size
    recipe = around(*size)
    offsets = recipe.offsets()
    dy, dx = offsets.dy.tolist(), offsets.dx.tolist()
    assert dy == list(range(-dy[-1], dy[-1] + 1)) and dy[-1] == min(size[2], rows - 1)
    expected = pair_by_pair(recipe.weights(), columns, dy, dx)
    torch.testing.assert_close(offsets.weights, expected)
    torch.testing.assert_close(offsets.weights.sum((-1, -2)).flatten(2), recipe.weights().sum(-1))
    torch.testing.assert_close(recipe.plain().at(1, 2).offsets().weights, expected[1:, 2:])


def test_the_reach_can_be_said() -> None:
    recipe = around()
    narrow, wide = recipe.offsets(reach=(1, 0)), recipe.offsets(reach=(3, 2))
    assert narrow.weights.shape[-2:] == (3, 1) and wide.weights.shape[-2:] == (7, 5)
    truth = pair_by_pair(recipe.weights(), 5, [-1, 0, 1], [-1, 0, 1])
    torch.testing.assert_close(narrow.weights, truth[..., 1:2])
    torch.testing.assert_close(wide.weights[..., 2:5, 1:4], truth)


def test_an_absent_edge_has_no_reach() -> None:
    recipe = around(reach=0)
    key = recipe.key_index.clone()
    key[..., -1] = 0  # padding of gathered neighbours may point anywhere
    weights = recipe.edge_weights.clone()
    weights[..., -1] = 0.0
    absent = Edges(recipe.query_index, key, weights, 20, 20, grid=(4, 5))
    assert absent.offsets().weights.shape[-2:] == (1, 1)


def test_gradients_reach_the_weights() -> None:
    recipe = around()
    leaf = recipe.edge_weights.clone().requires_grad_()
    attached = Edges(recipe.query_index, recipe.key_index, leaf, 20, 20, grid=(4, 5))
    attached.offsets().weights[..., 1, 1].sum().backward()
    own = (recipe.query_index == recipe.key_index).expand(leaf.shape)
    assert torch.equal(leaf.grad, own.float())


def test_no_edges_are_all_zero() -> None:
    empty = torch.zeros(1, 1, 0, dtype=torch.long)
    recipe = Edges(empty, empty, torch.zeros(2, 1, 0), 6, 6, grid=(2, 3))
    assert recipe.offsets().weights.shape == (2, 1, 2, 3, 1, 1)
    assert not recipe.offsets().weights.any()


def test_a_missing_grid_is_named() -> None:
    recipe = around(grid=None)
    with pytest.raises(UnavailableError, match=r"pass grid=\(rows, columns\), rows · columns = 20"):
        recipe.offsets()
    assert torch.equal(recipe.offsets(grid=(4, 5)).weights, around().offsets().weights)


def test_queries_elsewhere_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"grid=\(4, 4\) has 16 positions, .* 20 queries and 20"):
        around().offsets(grid=(4, 4))
