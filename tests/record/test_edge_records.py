"""Records of sparse attention: their edges, and everything a record can do."""

import math
import pickle

import pytest
import torch
from record_examples import record

import regard
from regard.aggregate.statistics.report import Report
from regard.errors import RegardError, UnavailableError
from regard.recipe import Edges, Given
from regard.record import EdgeList, Trace
from regard.record.table import html

QUERY = torch.tensor([0, 0, 1, 2, 2, 2])
KEY = torch.tensor([0, 1, 1, 0, 2, 2])


def graph(**site):
    """Three nodes, six edges, one of them twice; node 3 has none."""
    weights = torch.tensor([0.25, 0.75, 1.0, 0.5, 0.25, 0.25]).expand(2, 6)
    recipe = Edges.between(
        QUERY, KEY, weights, queries=4, keys=4, value=torch.arange(8.0).view(1, 2, 4, 1)
    )
    return record("convs.0", recipe, attends="self", **site)


def test_edges_are_those_of_the_model():
    edges = graph().edges
    assert isinstance(edges, EdgeList) and edges.weights.shape == (1, 2, 6)
    assert torch.equal(edges.query[0, 0], QUERY) and torch.equal(edges.key[0, 0], KEY)
    assert graph().weights()[0, 1].tolist() == [
        [0.25, 0.75, 0, 0],
        [0, 1, 0, 0],
        [0.5, 0, 0.5, 0],
        [0, 0, 0, 0],
    ]


def test_a_matrix_has_no_edges():
    with pytest.raises(
        UnavailableError, match=r"layer: its weights are a matrix of 3 × 5, not .*weights\(\) has"
    ):
        record("layer").edges  # noqa: B018


def test_offsets_of_an_image_come_from_records_and_files(tmp_path):
    weights = torch.tensor([0.25, 0.75, 1.0, 0.5, 0.25, 0.25])[None, None]
    recipe = Edges(QUERY[None, None], KEY[None, None], weights, 4, 4, grid=(2, 2))
    found = record("convs.0", recipe, attends="self")
    Trace([found]).save(tmp_path / "trace.safetensors")
    loaded = regard.load_trace(tmp_path / "trace.safetensors")[0]
    for same in (found, found.with_weights(), found.detach(), loaded):
        offsets = same.offsets()
        assert same.recipe.grid == (2, 2) and offsets.dy.tolist() == [-1, 0, 1]
        # from the lower left: half upwards, half on itself
        assert offsets.weights[0, 0, 1, 0].tolist() == [[0, 0.5, 0], [0, 0.5, 0], [0, 0, 0]]
    with pytest.raises(UnavailableError, match="layer: its weights are a matrix of 3 × 5, not"):
        record("layer").offsets()
    with pytest.raises(UnavailableError, match="does not say how its keys lie in an image"):
        graph().offsets()


def test_the_number_of_edges_is_shown():
    found = graph()
    assert repr(found) == (
        "Record('convs.0': self distribution, 2 heads, 4 × 4, batch 1, 6 edges, recipe)"
    )
    trace = Trace([found, record("layer.1")])
    assert "4 × 4, 6 edges" in repr(trace) and "4 × 4, 6 edges" in html(trace)
    assert repr(trace).count("edges") == 1


WAYS = {
    "to": lambda found: found.to("cpu"),
    "detach": lambda found: found.detach(),
    "with weights": lambda found: found.with_weights(),
    "pickled": lambda found: pickle.loads(pickle.dumps(found)),
    "relabelled": lambda found: found.relabelled("cross"),
    "its heads": lambda found: found.of_heads(0, 1),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_changed_record_still_has_its_edges(way):
    found = graph()
    again = way(found)
    assert again.n_edges == 6 and again.shape == found.shape
    assert torch.equal(again.weights(), found.weights())
    for mine, theirs in zip(again.edges, found.edges):
        assert torch.equal(mine, theirs)


def test_one_head():
    recipe = graph().recipe
    mine = Edges(
        torch.stack([QUERY, KEY])[None],
        torch.stack([KEY, QUERY])[None],
        recipe.edge_weights,
        4,
        4,
    )
    picked = record("a", mine).of_heads(1)
    assert torch.equal(picked.edges.query[0, 0], KEY) and picked.shape.heads == 1
    assert torch.equal(picked.weights()[0, 0], graph().weights()[0, 0].T)


def test_edges_on_disk(tmp_path):
    found = graph()
    loaded = regard.load_trace(Trace([found]).save(tmp_path / "graph.safetensors"))[0]
    assert loaded.site == found.site and isinstance(loaded.recipe, Edges)
    assert torch.equal(loaded.weights(), found.weights())
    assert torch.equal(loaded.mixed(), found.mixed())
    assert loaded.edges.query.shape == (1, 1, 6)


def test_no_edges_on_disk(tmp_path):
    none = torch.zeros(0).long()
    recipe = Edges.between(none, none, torch.zeros(2, 0), queries=3, keys=5, of="partial")
    loaded = regard.load_trace(Trace([record("conv", recipe)]).save(tmp_path / "none.safetensors"))[
        0
    ]
    assert loaded.shape == (1, 2, 3, 5) and loaded.kind == "partial" and loaded.n_edges == 0
    assert not loaded.weights().any()


def test_a_file_with_an_edge_to_nowhere_is_refused(tmp_path):
    recipe = Edges(QUERY[None, None], KEY[None, None], torch.ones(1, 1, 6), 3, 2)
    file = Trace([record("conv", recipe)]).save(tmp_path / "forged.safetensors")
    with pytest.raises(RegardError, match="key_index holds 2, expected 0 to 1"):
        regard.load_trace(file)


def test_weights_stay_sparse():
    n = 50_000  # the matrix would have 10 GB
    nodes = torch.arange(n)
    recipe = Edges.between(nodes, nodes, torch.ones(n), queries=n, keys=n)
    found = record("conv", recipe).with_weights()
    assert found.held == "weights" and found.nbytes == 12 * n  # one index for both sides


def test_gradients_reach_the_edges():
    weights = torch.rand(1, 1, 6, requires_grad=True)
    found = record("conv", Edges.between(QUERY, KEY, weights, queries=4, keys=4))
    (gradient,) = torch.autograd.grad(found.weights()[..., 2].sum(), weights)
    assert gradient[0, 0].tolist() == [0, 0, 0, 0, 1, 1]
    assert not found.detach().edges.weights.requires_grad


def divergence(records):
    return regard.aggregate.head_divergence(records).matrix


def test_aggregations_are_those_of_the_matrix():
    sparse = [graph(), graph()]
    dense = [record("convs.0", Given(found.weights()), attends="self") for found in sparse]
    for ask in (regard.rollout, regard.mean_attention, divergence):
        torch.testing.assert_close(ask(sparse), ask(dense), equal_nan=True)
    torch.testing.assert_close(
        regard.combine_heads(sparse[0], "max"), regard.combine_heads(dense[0], "max")
    )
    tokens = torch.arange(sparse[0].shape.keys)  # a sequence, not a graph
    for asked in ({"tokens": tokens}, {"cross": False}):
        reports = [Report.of(Trace([layers[0]]), **asked).to_dict() for layers in (sparse, dense)]
        for name, column in reports[0].items():
            assert column == pytest.approx(reports[1][name], nan_ok=True)


def test_nodes_of_a_graph_have_no_order():
    """Each node attends evenly to itself and the one before: no distance, and broad, not sharp."""
    n = 50
    nodes = torch.arange(n)
    query, key = torch.cat([nodes, nodes[1:]]), torch.cat([nodes, nodes[:-1]])
    weights = torch.full((2 * n - 1,), 0.5)
    weights[0] = 1.0
    recipe = Edges.between(query, key, weights, queries=n, keys=n)
    report = Trace([record("conv", recipe, attends="self")]).report()
    (row,) = report
    absent = ("distance", "spread", "itself", "previous", "next", "sink", "local", "positional")
    assert all(math.isnan(getattr(row, name)) for name in absent)
    assert row.evenness == pytest.approx(1) and row.type == "broad"
    assert row.entropy == pytest.approx(math.log(2) * (n - 1) / n)
    assert len(report.notes) == 1 and "conv: edges, maybe of a graph" in repr(report)
    assert "dist" not in report.table()


def test_a_recipe_that_a_user_registers_is_checked():
    from regard.tracing.registry import checked

    with pytest.raises(regard.errors.ShapeError, match="key_index holds 2, expected 0 to 1"):
        checked(Edges(QUERY[None, None], KEY[None, None], torch.ones(1, 1, 6), 3, 2))
    recipe = graph().recipe
    assert checked(recipe) is recipe
