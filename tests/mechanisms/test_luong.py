"""Luong attention: four scores and two windows in loops, and the arithmetic of local-p."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import RegardError, ShapeError
from regard.mechanisms import (
    ConcatScore,
    DotScore,
    GeneralScore,
    LocalMonotonic,
    LocalPredictive,
    LocationScore,
    Luong,
)

#: name -> (build, width of the keys, the paper's eq. 8 for one pair, s being the key's place)
SCORES = {
    "dot": (DotScore, 4, lambda score, h, key, s: h @ key),
    "general": (
        lambda: GeneralScore(4, 3),
        3,
        lambda score, h, key, s: h @ (score.to_key.weight @ key),
    ),
    "concat": (
        lambda: ConcatScore(4, 3, width=5),
        3,
        lambda score, h, key, s: (
            score.vector
            @ (
                torch.cat([score.to_query.weight, score.to_key.weight], 1) @ torch.cat([h, key])
            ).tanh()
        ),
    ),
    "location": (
        lambda: LocationScore(4, longest=12),
        3,
        lambda score, h, key, s: (score.to_scores.weight @ h)[s],
    ),
}
WINDOWS = {
    "global": lambda: None,
    "local-m": lambda: LocalMonotonic(2),
    "local-p": lambda: LocalPredictive(4, 2),
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def drawn(luong: Luong) -> Luong:
    for parameter in luong.parameters():
        nn.init.normal_(parameter)
    return luong.double()


@torch.no_grad()
def reading(name: str, luong: Luong, h: Tensor, keys: Tensor, t: int) -> list[Tensor]:
    """Weights and context of one state at step t, over the keys of one sentence."""
    score, window, size = SCORES[name][2], luong.window, len(keys)
    centre = float(t)
    if isinstance(window, LocalPredictive):
        inside = sum(window.vector * (window.to_hidden.weight @ h).tanh())
        centre = size / (1 + math.exp(-inside))
    reach = size if window is None else window.reach
    near = [s for s in range(size) if abs(s - math.floor(centre)) <= reach]
    exps = {s: math.exp(score(luong.score, h, keys[s], s)) for s in near}
    weights = torch.zeros(size, dtype=torch.float64)
    for s in near:
        weights[s] = exps[s] / sum(exps.values())
        if isinstance(window, LocalPredictive):
            weights[s] *= math.exp(-((s - centre) ** 2) / (2 * (reach / 2) ** 2))
    return [weights, sum(weights[s] * keys[s] for s in range(size))]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("local", WINDOWS)
@pytest.mark.parametrize("name", SCORES)
def test_scores_and_windows_in_loops(name: str, local: str, fixed: bool) -> None:
    build, width, _ = SCORES[name]
    luong, lengths = drawn(Luong(build(), window=WINDOWS[local]())), [9, 6]
    states, keys = normal(2, 5, 4), normal(2, 9, width)
    mask = masks.lengths(torch.tensor(lengths), 9)
    given = {"state": luong.fix(keys)} if fixed else {"key": keys}
    attended = luong(states, **given, mask=mask, weights=True)
    for b, t in [(b, t) for b in range(2) for t in range(5)]:
        weights, context = reading(name, luong, states[b, t], keys[b, : lengths[b]], t)
        row = attended.weights[b, 0, t]
        torch.testing.assert_close(row[: lengths[b]], weights, rtol=0, atol=1e-12)
        assert not row[lengths[b] :].any()
        torch.testing.assert_close(attended.output[b, t], context, rtol=0, atol=1e-12)


@pytest.mark.parametrize("local", WINDOWS)
@pytest.mark.parametrize("name", SCORES)
def test_padding_in_a_fixed_state_may_hold_nan(name: str, local: str) -> None:
    build, width, _ = SCORES[name]
    luong = drawn(Luong(build(), window=WINDOWS[local]()))
    states, keys = normal(1, 3, 4), normal(1, 8, width)
    short = luong(states, state=luong.fix(keys[:, :6])).output
    keys[:, 6:] = math.nan
    padded = luong(states, state=luong.fix(keys), mask=masks.lengths(torch.tensor([6]), 8)).output
    torch.testing.assert_close(padded, short, rtol=0, atol=1e-12)


def test_location_refuses_more_keys_than_it_has_places() -> None:
    luong = Luong(LocationScore(4, longest=12))
    assert luong(torch.randn(1, 1, 4), torch.randn(1, 12, 3)).output.shape == (1, 1, 3)
    message = "Luong: axis key has size 13, expected at most 12"
    with pytest.raises(ShapeError, match=message):
        luong(torch.randn(1, 1, 4), torch.randn(1, 13, 3))
    with pytest.raises(ShapeError, match=message):
        luong(torch.randn(1, 1, 4), state=luong.fix(torch.randn(1, 13, 3)))


def test_parameters_start_uniform_within_a_tenth() -> None:
    luong = Luong(ConcatScore(60, 60, width=60), window=LocalPredictive(60))
    for parameter in [*luong.parameters(), GeneralScore(60, 60).to_key.weight]:
        values = parameter.detach()
        assert 0.09 < values.abs().max() <= 0.1
        assert float(values.std()) == pytest.approx(0.2 / math.sqrt(12), rel=0.25)


def predicting(centre: float, keys: int, reach: int = 10) -> tuple[Luong, Tensor, Tensor]:
    """local-p with p = `centre` of `keys` keys of equal score, its query and its keys."""
    luong = Luong(window=LocalPredictive(1, reach)).double()
    share = centre / keys
    with torch.no_grad():
        luong.window.to_hidden.weight.fill_(1.0)
        luong.window.vector.fill_((math.log(share) - math.log1p(-share)) / math.tanh(1.0))
    query, zeros = torch.ones(1, 1, 1).double(), torch.zeros(1, keys, 1).double()
    return luong, query, zeros


def test_the_gaussian_is_not_renormalised() -> None:
    """Equal scores, centre 21 of 42, D = 10: 21 weights that sum to 0.5757."""
    luong, query, keys = predicting(21.0, 42)
    attended = luong(query, keys, torch.ones_like(keys), weights=True)
    weights = attended.weights[0, 0, 0].detach()
    assert weights.nonzero().flatten().tolist() == list(range(11, 32))
    assert float(weights.sum()) == pytest.approx(0.5757, abs=5e-5)
    assert float(weights[21]) == pytest.approx(0.0476, abs=5e-5)
    assert float(weights[11]) == pytest.approx(0.00644, abs=5e-6)
    assert float(weights[31]) == pytest.approx(float(weights[11]), abs=1e-12)
    assert float(attended.output.detach()) == pytest.approx(0.5757, abs=5e-5)
    assert luong.kind == "partial"


@pytest.mark.parametrize("centre", [21.05, 21.5, 21.95])
def test_the_window_is_around_the_floor_and_the_gaussian_around_the_centre(centre: float) -> None:
    luong, query, keys = predicting(centre, 42, reach=4)
    weights = luong(query, keys, weights=True).weights[0, 0, 0].detach()
    assert weights.nonzero().flatten().tolist() == list(range(17, 26))
    for s in range(17, 26):
        faded = math.exp(-((s - centre) ** 2) / (2 * 2.0**2)) / 9
        assert float(weights[s]) == pytest.approx(faded, abs=1e-12)


def test_gradient_reaches_the_centre_through_the_gaussian_alone() -> None:
    """∂a(s)/∂p = a(s) (s − p) / σ², and p = S · σ(v tanh(W h))."""
    centre, size, reach = 21.4, 42, 4
    luong, query, keys = predicting(centre, size, reach)
    wanted = normal(size)
    weights = luong(query, keys, weights=True).weights[0, 0, 0]
    (weights * wanted).sum().backward()
    slope = 0.0
    for s in range(17, 26):
        faded = math.exp(-((s - centre) ** 2) / (2 * (reach / 2) ** 2)) / 9
        slope += float(wanted[s]) * faded * (s - centre) / (reach / 2) ** 2
    share = centre / size
    expected = slope * size * share * (1 - share) * math.tanh(1.0)
    assert abs(expected) > 0.1
    assert float(luong.window.vector.grad) == pytest.approx(expected, rel=1e-9)


def test_local_m_goes_on_from_step_to_step() -> None:
    luong, states, keys = Luong(window=LocalMonotonic(2)), normal(1, 6, 4), normal(1, 9, 4)
    at_once = luong(states, keys, weights=True)
    state = luong.fix(keys)
    for t in range(6):
        attended = luong(states[:, t : t + 1], state=state, weights=True)
        state = attended.state
        near = attended.weights[0, 0, 0].nonzero().flatten().tolist()
        assert near == list(range(max(0, t - 2), t + 3))
        assert float(attended.weights.sum()) == pytest.approx(1.0)  # plain softmax, no Gaussian
        torch.testing.assert_close(attended.output[:, 0], at_once.output[:, t], rtol=0, atol=1e-12)
    assert state.step == 6


def test_padding_does_not_move_the_centre_of_local_p() -> None:
    luong, query, keys = predicting(21.0, 42)
    alone = luong(query, keys, weights=True).weights
    longer = torch.cat([keys, torch.zeros(1, 30, 1).double()], 1)
    mask = masks.lengths(torch.tensor([42]), 72)
    padded = luong(query, longer, mask=mask, weights=True).weights
    torch.testing.assert_close(padded[..., :42], alone, rtol=0, atol=1e-12)
    assert not padded[..., 42:].any()
    moved = luong(query, longer, weights=True).weights[0, 0, 0]
    assert int(moved.argmax()) == 36  # without the mask S is 72


def test_parts_that_are_none(without_shape_checks: None) -> None:
    with pytest.raises(RegardError, match=r"Luong: score='dot', expected a part, as DotScore\(\)"):
        Luong("dot")
    with pytest.raises(RegardError, match=r"Luong: window=3, expected a part, as LocalMonotonic"):
        Luong(window=3)
