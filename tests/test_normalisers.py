"""Normalisers: the optimality conditions of their papers, loops over numbers, and every recipe."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree

import regard
from regard import masks
from regard.errors import RegardError, UnavailableError
from regard.kernel.reduce import reduce
from regard.recipe import Additive, Dot, Entmax, Recipe, Sigmoid, Softmax, Sparsemax
from regard.recipe import softmaxed as softmaxed_file
from regard.types import NEVER, Block
from regard.viewer.forms import Factors

ALPHAS = [1.1, 1.5, 1.7, 2.0, 3.0]
NORMALISERS = {
    "sigmoid": Sigmoid(bias=-0.5),
    "sparsemax": Sparsemax(),
    "entmax": Entmax(1.5),
    "bisected": Entmax(1.3),
}
every_normaliser = pytest.mark.parametrize("name", NORMALISERS)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def normaliser_of(alpha: float) -> Entmax:
    return Sparsemax() if alpha == 2.0 else Entmax(alpha)


def entmax_row(scores: list[float], alpha: float) -> list[float]:
    """p = [(α − 1) s − τ]₊^(1 / (α − 1)), τ between bounds for which Σ p is above and below 1."""
    if all(score == -math.inf for score in scores):
        return [0.0] * len(scores)

    def rows(threshold: float) -> list[float]:
        return [max(0.0, (alpha - 1) * s - threshold) ** (1 / (alpha - 1)) for s in scores]

    high = (alpha - 1) * max(scores)
    low = high - 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(rows(middle)) >= 1 else (low, middle)
    return rows(low)


def test_the_example_of_the_paper() -> None:
    weights = Sparsemax().weights(torch.tensor([[[[1.0, 0.5, -1.0]]]]))
    assert weights.tolist() == [[[[0.75, 0.25, 0.0]]]]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_by_loops_over_numbers(alpha: float) -> None:
    scores = normal(2, 2, 6, 9) * torch.tensor([0.3, 3.0])[:, None, None]
    scores[0, 0, 1, 3:] = -torch.inf
    scores[0, 1, 2] = -torch.inf  # nothing may be attended
    scores[1, 0, 3, 1:] = -torch.inf
    scores[1, 1, 4] = 7.0  # ties
    weights = normaliser_of(alpha).weights(scores)
    for example, head, row in product(range(2), range(2), range(6)):
        row_scores, row_weights = (t[example, head, row].tolist() for t in (scores, weights))
        assert row_weights == pytest.approx(entmax_row(row_scores, alpha), abs=1e-9)
    in_single = normaliser_of(alpha).weights(scores.float())
    torch.testing.assert_close(in_single.double(), weights, rtol=0, atol=2e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_entmax_solves_its_problem(alpha: float) -> None:
    """max over the simplex of p·s + (Σ pᵢ − pᵢ^α) / (α (α − 1)): where p > 0 the derivative
    sᵢ − pᵢ^(α−1) / (α − 1) is the same for all, where p = 0 no larger."""
    scores = normal(1, 1, 50, 12, seed=1)
    weights = normaliser_of(alpha).weights(scores)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 50, dtype=torch.float64))
    derivative = scores - weights.pow(alpha - 1) / (alpha - 1)
    inside = derivative.masked_fill(weights == 0, -torch.inf)
    price = inside.amax(-1, keepdim=True)
    assert (inside.masked_fill(weights == 0, torch.inf).amin(-1, keepdim=True) > price - 1e-6).all()
    assert (derivative <= price + 1e-9).all()
    assert alpha < 1.4 or (weights == 0).any()


def test_entmax_nears_softmax() -> None:
    scores = normal(1, 1, 4, 6)
    torch.testing.assert_close(
        Entmax(1.0001).weights(scores), scores.softmax(-1), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3, 3.0])
def test_many_keys_in_single_precision(alpha: float) -> None:
    """Thousands of keys in the support: sums of many small numbers, which must not drift."""
    scores = 1e-4 * normal(1, 1, 3, 8192, seed=2) + 1000.0
    exact = scores.float().double()
    weights = normaliser_of(alpha).weights(scores.float())
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 3), rtol=0, atol=1e-5)
    expected = normaliser_of(alpha).weights(exact)
    torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own, in forward mode
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_gradients_of_entmax(alpha: float) -> None:
    scores = normal(1, 1, 4, 6, seed=3)
    scores[0, 0, 1, 4:] = -torch.inf
    scores[0, 0, 2] = -torch.inf
    scores.requires_grad_()
    normaliser = normaliser_of(alpha)
    weights = normaliser.weights(scores)
    jacobian = torch.autograd.functional.jacobian(normaliser.weights, scores)[0, 0, :, :, 0, 0]
    for row in range(4):
        p = weights[0, 0, row].tolist()
        g = [x ** (2 - alpha) if x > 0 else 0.0 for x in p]
        for i, j in product(range(6), range(6)):
            share = g[i] * g[j] / sum(g) if sum(g) else 0.0
            expected = (g[i] if i == j else 0.0) - share
            assert float(jacobian[row, i, row, j]) == pytest.approx(expected, abs=1e-9)
    finite = normal(1, 1, 3, 5, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(normaliser.weights, finite, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(normaliser.weights, finite)


@pytest.mark.compiled
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_gradients_inside_a_compiled_graph(alpha: float) -> None:
    scores, along = normal(2, 1, 3, 5, seed=5), normal(2, 1, 3, 5, seed=6)
    scores[0, 0, 1, 3:] = -torch.inf
    scores[1, 0, 2] = -torch.inf
    compiled = torch.compile(normaliser_of(alpha).weights, backend="aot_eager", fullgraph=True)
    gradients = []
    for function in (normaliser_of(alpha).weights, compiled):
        leaf = scores.clone().requires_grad_()
        weights = function(leaf)
        gradients.append(torch.autograd.grad((weights * along).sum(), leaf)[0])
        torch.testing.assert_close(weights, normaliser_of(alpha).weights(scores))
    torch.testing.assert_close(*gradients)


def test_a_sigmoid_is_each_weight_by_itself() -> None:
    scores = normal(1, 1, 2, 3)
    scores[0, 0, 1, 2] = -torch.inf
    weights = Sigmoid(bias=-1.0).weights(scores)
    for row, column in product(range(2), range(3)):
        expected = 1 / (1 + math.exp(1.0 - float(scores[0, 0, row, column])))
        assert float(weights[0, 0, row, column]) == pytest.approx(expected)
    assert weights[0, 0, 1, 2] == 0


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_a_sink_is_one_more_score(alpha: float) -> None:
    scores, sink = normal(1, 2, 3, 4), torch.tensor([0.5, -1.0], dtype=torch.float64)
    column = sink[None, :, None, None].expand(1, 2, 3, 1)
    expected = normaliser_of(alpha).weights(torch.cat([scores, column], dim=-1))[..., :4]
    assert torch.equal(normaliser_of(alpha).weights(scores, sink[None, :, None, None]), expected)
    dot = Dot(
        0.1 * normal(1, 2, 3, 4), normal(1, 2, 5, 4), sink=sink, normaliser=normaliser_of(alpha)
    )
    assert dot.kind == "partial" and (dot.weights().sum(-1)[:, 0] < 1).all()


# -- in recipes


def dot(name: str, queries: int = 7, keys: int = 9) -> Dot:
    keep = torch.ones(2, keys, dtype=torch.bool)
    keep[1, keys // 2 :] = False
    mask = masks.padding(keep) & masks.window(4, 2)
    key = normal(2, 2, keys, 4, seed=1).masked_fill(~keep[:, None, :, None], torch.nan)
    return Dot(
        *(2.0 * normal(2, 4, queries, 4), key, normal(2, 2, keys, 3, seed=2)),
        mask=mask,
        bias=normal(1, 4, 1, keys, seed=3),
        softcap=3.0,
        normaliser=NORMALISERS[name],
    )


def additive(name: str) -> Additive:
    sides = normal(2, 1, 5, 4), normal(2, 1, 6, 4, seed=1), normal(4, seed=2)
    return Additive(*sides, normal(2, 1, 6, 3, seed=3), normaliser=NORMALISERS[name])


BUILDS = {"dot": dot, "additive": additive}
every_recipe = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)


@every_recipe
@every_normaliser
def test_recipes_give_blocks_logarithms_and_matrices(name: str, build) -> None:
    recipe: Recipe = build(name)
    weights = NORMALISERS[name].weights(
        recipe.scores(Block(0, *recipe.shape[2:3], 0, recipe.shape[3], *recipe.shape[2:]))
    )
    rows, columns = slice(1, 4), slice(2, 5)
    with torch.no_grad():
        assert recipe.with_lse() is recipe
        assert torch.equal(recipe.weights(), weights)
        torch.testing.assert_close(recipe.weights(rows, columns), weights[..., rows, columns])
        for batch, head in product(range(2), range(recipe.shape.heads)):
            one = recipe.at(batch, head)
            torch.testing.assert_close(one.weights()[0, 0], weights[batch, head])
        torch.testing.assert_close(recipe.of_heads([0]).weights(), weights[:, :1])
        leaves, structure = _pytree.tree_flatten(recipe)
        again = _pytree.tree_unflatten(leaves, structure)
        assert again.normaliser == NORMALISERS[name] and torch.equal(again.weights(), weights)
        block = Block(1, 4, 2, 5, *recipe.shape[2:])
        if recipe.kind == "gate":
            with pytest.raises(UnavailableError, match="gate weights have no logarithm"):
                recipe.log_weights(block)
            return
        logs = recipe.log_weights(block)
        part = weights[..., rows, columns]
        assert (logs[part == 0] == NEVER).all()
        torch.testing.assert_close(logs[part > 0].exp(), part[part > 0])
    with pytest.raises(UnavailableError, match=r"log_sum_exp: .*max\(alpha=.* has none"):
        recipe.log_sum_exp()


@every_normaliser
def test_reducers_see_the_same_weights_in_tiles(name: str) -> None:
    recipe = dot(name)
    weights = recipe.weights()
    reducers = [regard.HeadMean(), regard.ReceivedAttention(), regard.QueryRows([0, -1])]
    if recipe.kind != "gate":
        reducers += [regard.Entropy(), regard.TopK(3), regard.Histogram()]
    for tile in (None, (3, 4)):
        mean, received, ends, *logarithmic = reduce(recipe, reducers, tile=tile)
        torch.testing.assert_close(mean, weights.mean(1))
        torch.testing.assert_close(received, weights.sum(2))
        torch.testing.assert_close(ends, weights[:, :, [0, -1]])
        if logarithmic:
            entropy, top, histogram = logarithmic
            torch.testing.assert_close(entropy, -torch.xlogy(weights, weights).sum(-1))
            torch.testing.assert_close(top.weights, weights.topk(3, dim=-1).values)
            assert histogram.sum() == (weights > 0).sum()
    if recipe.kind == "gate":
        with pytest.raises(UnavailableError, match="Entropy: gate weights have no logarithm"):
            reduce(recipe, [regard.Entropy()])


@every_normaliser
def test_large_matrices_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, whole = dot(name), dot(name).weights()
    monkeypatch.setattr(softmaxed_file, "_PIECE", 20)
    with torch.no_grad():
        torch.testing.assert_close(recipe.weights(), whole)


@every_normaliser
def test_attend(name: str) -> None:
    recipe = dot(name)
    given = {"mask": recipe.mask, "bias": recipe.bias, "softcap": 3.0, "scale": 1.0}
    given["normaliser"] = NORMALISERS[name]
    sides = recipe.query, recipe.key, recipe.value
    attended = regard.attend(*sides, **given, weights=True)
    assert torch.equal(attended.weights, recipe.weights())
    assert torch.equal(attended.output, regard.attend(*sides, **given).output)
    torch.testing.assert_close(attended.output, recipe.mixed())
    plain = normal(1, 2, 3, 4)
    alone = regard.attend(plain, plain, plain, normaliser=NORMALISERS[name]).output
    assert not torch.allclose(alone, regard.attend(plain, plain, plain).output)
    assert torch.equal(
        regard.attend(plain, plain, plain, normaliser=Softmax()).output,
        regard.attend(plain, plain, plain).output,
    )


@every_normaliser
def test_half_precision_and_no_keys(name: str) -> None:
    recipe = Dot(
        *(normal(1, 2, 3, 4, dtype=torch.bfloat16), normal(1, 2, 5, 4, dtype=torch.bfloat16)),
        normaliser=NORMALISERS[name],
    )
    assert recipe.weights().dtype == torch.float32
    torch.testing.assert_close(
        recipe.weights().double(), recipe.map(Tensor.double).weights(), rtol=0, atol=1e-6
    )
    sides = normal(1, 2, 3, 4), normal(1, 2, 0, 4), normal(1, 2, 0, 5)
    empty = Dot(*sides, normaliser=recipe.normaliser)
    assert empty.weights().shape == (1, 2, 3, 0) and not empty.mixed().any()


def test_a_page_does_not_take_a_softmax_of_other_scores() -> None:
    query, key = normal(1, 1, 3, 4).float(), normal(1, 1, 5, 4).float()
    assert Factors.of(Dot(query, key), 0) is not None
    for normaliser in NORMALISERS.values():
        assert Factors.of(Dot(query, key, normaliser=normaliser), 0) is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Entmax(1.0), r"Entmax: alpha=1.0, expected a number above 1; Softmax\(\) is its"),
        (lambda: Sparsemax(1.5), "Sparsemax: alpha=1.5, expected 2; Entmax takes others"),
        (
            lambda: Sigmoid().weights(normal(1, 1, 1, 2), normal(1, 1, 1, 1)),
            "Sigmoid: a sink takes nothing from weights that do not share a sum",
        ),
        (
            lambda: regard.mechanisms.MultiHead(
                *(8, 2),
                scoring=regard.mechanisms.Scoring(sinks=True),
                normaliser=Sigmoid(),
            ),
            r"MultiHead: sinks with Sigmoid\(\): its weights do not share a sum",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(build, message: str) -> None:
    with pytest.raises(RegardError, match=message):
        build()
