"""Pictures and pages of a graph: its matrix where it is small, a reason where it is not."""

import pytest
import torch

from regard import plots, viewer
from regard.errors import UnavailableError
from regard.recipe import Edges
from regard.record import Record, Site, Trace
from regard.record.stored_attention import StoredRecipe


def graph(nodes=12, heads=2, path="convs.0"):
    """Each node attends to itself and to the next two."""
    query = torch.arange(nodes).repeat_interleave(3)
    key = (query + torch.arange(3).repeat(nodes)) % nodes
    weights = torch.rand(heads, nodes, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    recipe = Edges.between(query, key, weights.flatten(1), queries=nodes, keys=nodes)
    site = Site(path, "GATConv", "model.py:1", "softmax", attends="self")
    return Record(
        site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
    ).with_tokens([f"node {n}" for n in range(nodes)], [f"node {n}" for n in range(nodes)])


def test_a_heatmap_is_of_the_matrix(tmp_path):
    spec = Trace([graph()]).plot(heads=1)
    torch.testing.assert_close(spec.values, graph().weights()[0, 1])
    assert list(spec.rows)[:2] == ["node 0", "node 1"]
    assert spec.save(tmp_path / "graph.png").stat().st_size > 1000


def test_a_grid_has_every_head():
    spec = Trace([graph(), graph(path="convs.1")]).plot()
    assert [tuple(maps.shape) for maps in spec.maps] == [(2, 12, 12)] * 2
    torch.testing.assert_close(spec.maps[0], graph().weights()[0])


def test_a_page_shows_it(tmp_path):
    page = Trace([graph()]).save(tmp_path / "graph.html")
    assert "node 11" in page.read_text()


DRAWN = {
    "heatmap": plots.heatmap,
    "grid": lambda found: plots.grid(Trace([found]), types=False),
    "page": viewer.page,
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_large_graph_is_not_drawn_as_a_matrix(draw):
    with pytest.raises(
        UnavailableError,
        match=r"convs\.0: 60,000 edges of 20,000 × 20,000 positions are too many to draw.*Heatmap",
    ):
        draw(graph(nodes=20_000))
    part = graph(nodes=20_000).weights(slice(0, 500), slice(0, 500))[0, 0]
    assert plots.Heatmap(part).values.shape == (500, 500)
