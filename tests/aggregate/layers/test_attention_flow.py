"""Flow: the worked values, every cut of small networks, invariances, a real model."""

import sys
from itertools import product

import networkx
import pytest
import torch

import regard
from regard.aggregate.layers.attention_flow import attention_flow
from regard.cli import packaged
from regard.errors import MissingExtraError, RegardError, UnavailableError

MODULE = sys.modules["regard.aggregate.layers.attention_flow"]  # the name is also a function's
LOW = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)[None, None]
HIGH = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)[None, None]


def made(seed, layers=3, batch=2, heads=2, length=3):
    torch.manual_seed(seed)
    shape = batch, heads, length, length
    return [torch.randn(*shape, dtype=torch.float64).mul(2).softmax(-1) for _ in range(layers)]


def smallest_cut(layers, example, output, inputs, residual):
    """The cut of least width between an output and some inputs, by trying all of them."""
    length, depth = layers[0].shape[-1], len(layers)
    widths = [
        residual * torch.eye(length, dtype=torch.float64) + (1 - residual) * one[example].mean(0)
        for one in layers
    ]
    free = [(level, place) for level in range(1, depth) for place in range(length)]
    least = float("inf")
    for sides in product([False, True], repeat=len(free)):
        source = dict(zip(free, sides))
        for place in range(length):
            source[depth, place] = place == output
            source[0, place] = place not in inputs  # no pipe leaves the other inputs
        cut = sum(
            widths[level - 1][i, j].item()
            for level in range(1, depth + 1)
            for i in range(length)
            for j in range(length)
            if source[level, i] and not source[level - 1, j]
        )
        least = min(least, cut)
    return least


def test_the_worked_example():
    truth = torch.tensor([[0.95, 0.35], [0.25, 0.85]], dtype=torch.float64)
    torch.testing.assert_close(attention_flow([LOW, HIGH])[0], truth, atol=1e-15, rtol=0)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5])
def test_against_every_cut(residual):
    layers = made(0)
    found = attention_flow(layers, residual=residual)
    for example, i, j in product(range(2), range(3), range(3)):
        truth = smallest_cut(layers, example, i, [j], residual)
        assert found[example, i, j].item() == pytest.approx(truth, abs=1e-8)


@pytest.mark.parametrize("inputs", [[0, 2], [1, 2], [-1, 0, 2], [1], 1])
def test_inputs_together_against_every_cut(inputs):
    layers = made(1)
    found = attention_flow(layers, inputs=inputs)
    assert found.shape == (2, 3)
    places = {place % 3 for place in ([inputs] if isinstance(inputs, int) else inputs)}
    for example, i in product(range(2), range(3)):
        truth = smallest_cut(layers, example, i, places, 0.5)
        assert found[example, i].item() == pytest.approx(truth, abs=1e-8)


def test_together_is_less_than_the_sum_where_pipes_are_shared():
    layers = made(2, layers=2)
    alone = attention_flow(layers)
    together = attention_flow(layers, inputs=[0, 1, 2])
    torch.testing.assert_close(together, torch.ones_like(together))
    assert (alone.sum(-1) > together + 0.1).all()


@pytest.mark.parametrize("token", [1, -1, [2, 0], [1, 1]])
def test_some_tokens_are_rows_of_all(token):
    layers = made(3, length=5)
    torch.testing.assert_close(attention_flow(layers, token), attention_flow(layers)[:, token])
    torch.testing.assert_close(
        attention_flow(layers, token, inputs=[0, 3]),
        attention_flow(layers, inputs=[0, 3])[:, token],
    )


@pytest.mark.parametrize("seed", range(3))
def test_never_below_rollout_and_never_above_one(seed):
    layers = made(seed, layers=4, length=6)
    found = attention_flow(layers)
    assert (found >= regard.rollout(layers) - 1e-12).all()
    assert (found <= 1 + 1e-12).all()


def test_permuting_heads_changes_nothing():
    layers = made(4, heads=3)
    torch.testing.assert_close(
        attention_flow([one[:, [2, 0, 1]] for one in layers]), attention_flow(layers)
    )


def test_other_ways_to_join_heads():
    layers = made(5, heads=2)
    torch.testing.assert_close(
        attention_flow(layers, heads=1), attention_flow([one[:, 1:] for one in layers])
    )
    most = [one.amax(1, keepdim=True) for one in layers]
    most = [one / one.sum(-1, keepdim=True) for one in most]
    torch.testing.assert_close(attention_flow(layers, heads="max"), attention_flow(most))


def test_nothing_flows_from_what_comes_later():
    scores = torch.randn(3, 1, 2, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    found = attention_flow(list(scores.softmax(-1)))[0]
    assert found.triu(1).eq(0).all() and found.tril().gt(0).sum() == 15


def test_a_row_that_attends_to_nothing_keeps_to_itself():
    layers = [one.clone() for one in made(6)]
    for one in layers:
        one[:, :, 1] = 0.0
    expected = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand(2, 3)
    torch.testing.assert_close(attention_flow(layers, token=1), expected)


def test_dtype_is_that_of_the_weights():
    for dtype, answer in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        layers = [one.to(dtype) for one in made(7)]
        assert attention_flow(layers, 0).dtype == answer


def test_what_is_wrong_is_said():
    layers = made(8)
    with pytest.raises(RegardError, match=r"residual=1\.0, expected from 0 to below 1"):
        attention_flow(layers, residual=1.0)
    with pytest.raises(RegardError, match=r"inputs has 3, expected whole numbers from -3 to 2"):
        attention_flow(layers, inputs=[0, 3])
    with pytest.raises(RegardError, match=r"inputs=\[\] asks for nothing"):
        attention_flow(layers, inputs=[])
    with pytest.raises(RegardError, match="'concat' gives no single map"):
        attention_flow(layers, heads="concat")
    signed = regard.recipe.Given(layers[0], None, "signed")
    with pytest.raises(UnavailableError, match="signed weights are no shares"):
        attention_flow([signed])


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingExtraError, match=r"'scipy'.*regard\[flow\]"):
        attention_flow(made(9))


@pytest.mark.parametrize("rich", [True, False])
def test_long_work_away_from_a_terminal_shows_nothing(monkeypatch, capsys, rich):
    monkeypatch.setattr(MODULE, "_LONG", 0)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    attention_flow(made(10))
    assert capsys.readouterr() == ("", "")


def test_long_work_at_a_terminal_shows_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(MODULE, "_LONG", 0)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    plain = attention_flow(made(11))
    assert "attention flow" in capsys.readouterr().err
    monkeypatch.setattr(MODULE, "_LONG", 1 << 60)
    torch.testing.assert_close(plain, attention_flow(made(11)))


def test_a_real_model_against_another_library():
    loaded = packaged.minilm()
    given = loaded.encode("The animal didn't cross the street because it was too tired.")
    with torch.no_grad():
        trace = regard.trace(loaded.model, **given.inputs)
    place, noun = given.tokens.index("it"), given.tokens.index("animal")
    found = attention_flow(trace, place)
    graph = networkx.DiGraph()
    for level, record in enumerate(trace):
        weights = record.weights()[0].mean(0).double()
        weights = 0.5 * weights / weights.sum(-1, keepdim=True)
        for i, row in enumerate((weights + 0.5 * torch.eye(len(weights))).tolist()):
            for j, width in enumerate(row):
                graph.add_edge((level + 1, i), (level, j), capacity=width)
    truth = networkx.maximum_flow_value(graph, (6, place), (0, noun))
    assert found[0, noun].item() == pytest.approx(truth, abs=1e-6)
    assert (found >= regard.rollout(trace, place) - 1e-5).all()
    together = attention_flow(trace, place, inputs=[noun, given.tokens.index("street")])
    assert found[0, noun] < together <= 1.00001


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0]])
def test_a_weighting_that_has_no_whole(weights):
    with pytest.raises(RegardError, match="no positive sum"):
        attention_flow(made(12, heads=2), heads=torch.tensor(weights))


def test_autocast_changes_nothing():
    layers = [one.float() for one in made(13)]
    with torch.autocast("cpu", torch.bfloat16):
        found = attention_flow(layers)
    torch.testing.assert_close(found, attention_flow(layers), atol=0, rtol=0)
