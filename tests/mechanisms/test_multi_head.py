"""Multi-head attention: the paper's equations head by head, the reversal task, the cache."""

import cmath
import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config
from torch import Tensor, nn

import regard
from regard import masks
from regard.contract import State
from regard.errors import RegardError, ShapeError
from regard.mechanisms import (
    Alibi,
    Heads,
    Mixture,
    MultiHead,
    RelativeBias,
    Rotary,
    Scoring,
    Window,
)
from regard.recipe import Entmax, Given, Recipe

#: ALiBi's slopes for six heads: those of four heads, then the first and third of eight.
SIX_SLOPES = [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def drawn(attn: MultiHead) -> MultiHead:
    """Every parameter normal (biases, sinks and tables start at 0, which would hide them)."""
    for parameter in attn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attn.double().eval()


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def turned(x: Tensor, position: int) -> Tensor:
    """Rotary: feature pairs (i, i + d/2) as complex numbers, times e^(√−1 · position · θᵢ)."""
    half = len(x) // 2
    z = [complex(x[i], x[i + half]) for i in range(half)]
    z = [z[i] * cmath.exp(1j * position * 100.0 ** (-2 * i / len(x))) for i in range(half)]
    return torch.tensor([c.real for c in z] + [c.imag for c in z], dtype=torch.float64)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / math.sqrt(sum(x * x) / len(x))


@torch.no_grad()
def reading(
    attn: MultiHead,
    inputs: tuple[Tensor, Tensor, Tensor],
    *,
    turn: Callable[[Tensor, int], Tensor] = lambda x, position: x,
    extra: Callable[..., float] = lambda attn, h, i, j: 0.0,
    sees: Callable[[int, int], bool] = lambda i, j: True,
    norms: bool = False,
    sinks: bool = False,
    score: Callable[[float], float] | None = None,
    gate: Callable[..., float] = lambda attn, x, h, feature: 1.0,
) -> tuple[Tensor, Tensor]:
    """Output and weights, a pair at a time; i and j are positions, the last of both the same.

    A query that sees nothing has weights 0 and output 0.
    """

    def project(linear: nn.Linear, x: Tensor, heads: int) -> Tensor:
        features = torch.einsum("oi,i->o", linear.weight, x)
        features = features if linear.bias is None else features + linear.bias
        return features.unflatten(0, (heads, -1))

    score = score or (lambda product: product / math.sqrt(attn.head_width))
    query, key, value = inputs
    batch, queries, keys = len(query), query.shape[1], key.shape[1]
    heads, groups = attn.n_heads, attn.n_groups
    weights = torch.zeros(batch, heads, queries, keys, dtype=torch.float64)
    mixed = torch.zeros(batch, queries, heads, attn.value_width, dtype=torch.float64)
    for b, h, row in product(range(batch), range(heads), range(queries)):
        i, g = row + keys - queries, h * groups // heads
        q = project(attn.to_query, query[b, row], heads)[h]
        q = turn(normed(q, attn.query_norm.weight) if norms else q, i)
        exps = {}
        for j in filter(lambda j: sees(i, j), range(keys)):
            k = project(attn.to_key, key[b, j], groups)[g]
            k = turn(normed(k, attn.key_norm.weight) if norms else k, j)
            exps[j] = math.exp(score(sum(q * k)) + extra(attn, h, i, j))
        total = sum(exps.values()) + (math.exp(attn.sinks[h]) if sinks else 0.0)
        for j in exps:
            weights[b, h, row, j] = exps[j] / total
            mixed[b, row, h] += exps[j] / total * project(attn.to_value, value[b, j], groups)[g]
        for feature in range(attn.value_width):
            mixed[b, row, h, feature] *= gate(attn, query[b, row], h, feature)
    output = mixed.flatten(2) @ attn.to_output.weight.T
    if attn.to_output.bias is not None:
        output += attn.to_output.bias * weights.any(3).any(1)[..., None]
    return output, weights


def sloped(attn: MultiHead, h: int, i: int, j: int) -> float:
    return -SIX_SLOPES[h] * abs(i - j)


def flat(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """ALiBi as a score function."""
    return score - torch.tensor(SIX_SLOPES, dtype=score.dtype)[head] * (query - key).abs()


def tabled(attn: MultiHead, h: int, i: int, j: int) -> float:
    return attn.position.table[h, 2 + max(-2, min(2, j - i))]


def near(i: int, j: int) -> bool:
    return i - 2 <= j <= i + 1


def gated_heads(attn: MultiHead, x: Tensor, h: int, feature: int) -> float:
    return 1 / (1 + math.exp(-sum(attn.gate.weight[h] * x) - attn.gate.bias[h]))


def gated_features(attn: MultiHead, x: Tensor, h: int, feature: int) -> float:
    return gated_heads(attn, x, h * attn.value_width + feature, feature)


def capped(product: float) -> float:
    return 2.0 * math.tanh(0.7 * product / 2.0)


norm_pair = lambda: (nn.RMSNorm(4), nn.RMSNorm(4))

VARIANTS = {
    "plain": (lambda: MultiHead(16, 4), {}),
    "no bias": (lambda: MultiHead(16, 4, bias=False), {}),
    "grouped": (lambda: MultiHead(16, Heads(4, n_groups=2)), {}),
    "multi-query": (lambda: MultiHead(16, Heads(4, n_groups=1)), {}),
    "head width": (lambda: MultiHead(10, Heads(3, head_width=4)), {}),
    "value width": (lambda: MultiHead(16, Heads(4, value_width=3)), {}),
    "input widths": (lambda: MultiHead(16, 4, inputs=(7, 5)), {}),
    "rotary": (lambda: MultiHead(16, 4, position=Rotary(base=100.0)), {"turn": turned}),
    "alibi": (lambda: MultiHead(12, 6, position=Alibi(6)), {"extra": sloped}),
    "relative": (lambda: MultiHead(16, 4, position=RelativeBias(4, reach=2)), {"extra": tabled}),
    "window": (lambda: MultiHead(16, 4, window=(2, 1)), {"sees": near}),
    "sinks": (lambda: MultiHead(16, 4, scoring=Scoring(sinks=True)), {"sinks": True}),
    "norms": (lambda: MultiHead(16, 4, scoring=Scoring(norms=norm_pair())), {"norms": True}),
    "scale": (
        lambda: MultiHead(16, 4, scoring=Scoring(scale=0.3)),
        {"score": lambda product: 0.3 * product},
    ),
    "softcap": (
        lambda: MultiHead(16, 4, scoring=Scoring(scale=0.7, softcap=2.0)),
        {"score": capped},
    ),
    "function": (
        lambda: MultiHead(12, 6, scoring=Scoring(function=flat)),
        {"extra": sloped},
    ),
    "gated heads": (lambda: MultiHead(16, 4, gate=nn.Linear(16, 4)), {"gate": gated_heads}),
    "gated features": (
        lambda: MultiHead(16, Heads(4, value_width=3), gate=nn.Linear(16, 12)),
        {"gate": gated_features},
    ),
    "many": (
        lambda: MultiHead(
            *(16, Heads(4, n_groups=2, value_width=5)),
            position=Rotary(base=100.0),
            window=(2, 1),
            scoring=Scoring(sinks=True, norms=norm_pair()),
        ),
        {"turn": turned, "sees": near, "sinks": True, "norms": True},
    ),
}


@pytest.mark.parametrize("queries", [6, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_equations_head_by_head(name: str, causal: bool, queries: int) -> None:
    build, parts = VARIANTS[name]
    attn = drawn(build())
    query, key, value = (normal(2, n, w) for n, w in zip((queries, 6, 6), attn.sizes))
    sees = parts.get("sees", lambda i, j: True)
    parts = {**parts, "sees": lambda i, j: sees(i, j) and (not causal or j <= i)}
    output, weights = reading(attn, (query, key, value), **parts)
    attended = attn(query, key, value, causal=causal, weights=True)
    torch.testing.assert_close(attended.weights, weights, rtol=0, atol=1e-10)
    torch.testing.assert_close(attended.output, output, rtol=0, atol=1e-10)


def test_a_bias_is_added_to_the_one_of_the_position() -> None:
    attn, x, bias = drawn(MultiHead(12, 6, position=Alibi(6))), normal(1, 5, 12), normal(1, 6, 5, 5)
    both = lambda attn, h, i, j: sloped(attn, h, i, j) + float(bias[0, h, i, j])
    output, _ = reading(attn, (x, x, x), extra=both)
    torch.testing.assert_close(attn(x, bias=bias).output, output, rtol=0, atol=1e-10)


def steps(attn: MultiHead, x: Tensor, chunks: list[int], **more: Tensor) -> list:
    """Outputs of `x` given in chunks, and each chunk's weights."""
    state: State | bool = True
    outputs, weights, start = [], [], 0
    for size in chunks:
        span, start = slice(start, start + size), start + size
        cut = {name: tensor[:, :, span, :start] for name, tensor in more.items()}
        attended = attn(x[:, span], causal=True, state=state, weights=True, **cut)
        state = attended.state
        outputs.append(attended.output)
        row = attended.weights.new_zeros(*attended.weights.shape[:3], x.shape[1])
        row[..., state.positions(attended.weights.shape[3])] = (
            attended.weights
        )  # others were dropped
        weights.append(row)
    return [torch.cat(outputs, 1), torch.cat(weights, 2)]


@pytest.mark.parametrize("chunks", [[1] * 8, [3, 1, 4], [5, 3]], ids=str)
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "input widths"])
def test_the_cache_gives_what_the_full_pass_gives(name: str, chunks: list[int]) -> None:
    attn = drawn(VARIANTS[name][0]())
    x = normal(2, 8, attn.sizes.query)
    full = attn(x, causal=True, weights=True)
    output, weights = steps(attn, x, chunks)
    torch.testing.assert_close(output, full.output, rtol=0, atol=1e-10)
    torch.testing.assert_close(weights, full.weights, rtol=0, atol=1e-10)
    begun = attn.begin(x[:, :3])
    for _ in range(2):  # a state is not changed by going on from it
        rest = attn(x[:, 3:], causal=True, state=begun)
        torch.testing.assert_close(rest.output, full.output[:, 3:], rtol=0, atol=1e-10)
    assert rest.state.length == 8


#: True where a pair may attend, (batch or 1, 1, query, key).
HIDING = {
    "own key": torch.ones(1, 1, 6, 6, dtype=torch.bool).tril(-1),  # seen by later queries alone
    "left padding": (torch.arange(6) >= torch.tensor([[2], [0]]))[:, None, None].expand(2, 1, 6, 6),
}


@pytest.mark.parametrize("chunks", [[1] * 6, [2, 1, 3]], ids=str)
@pytest.mark.parametrize("name", HIDING)
def test_the_cache_with_keys_that_a_chunk_does_not_see(name: str, chunks: list[int]) -> None:
    attn, x = drawn(MultiHead(16, 4)), normal(2, 6, 16)
    output, weights = steps(attn, x, chunks, mask=HIDING[name])
    full = attn(x, x, mask=HIDING[name], causal=True, weights=True)
    torch.testing.assert_close(weights, full.weights, rtol=0, atol=1e-10)
    torch.testing.assert_close(output, full.output, rtol=0, atol=1e-10)


def test_each_projection_is_xavier_by_itself() -> None:
    attn = MultiHead(64, Heads(8, n_groups=2, value_width=16), inputs=(48, 40))
    shapes = {
        "to_query": (64, 64),
        "to_key": (16, 48),
        "to_value": (32, 40),
        "to_output": (64, 128),
    }
    for name, (rows, columns) in shapes.items():
        linear, bound = getattr(attn, name), math.sqrt(6 / (rows + columns))
        assert linear.weight.shape == (rows, columns)
        assert 0.98 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (lambda: 0, "Heads: n_heads=0, expected at least 1"),
        (lambda: 3, r"MultiHead: width 16 is not a multiple of n_heads 3; Heads\(3, head_width"),
        (lambda: Heads(4, n_groups=3), "Heads: n_groups 3 is not a divisor of 4 heads"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    heads: Callable[[], int | Heads], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        MultiHead(16, heads())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: MultiHead(16, 4, gate=True),
            "MultiHead: gate=True, expected a part, as nn.Linear",
        ),
        (lambda: MultiHead(16, 4, scoring=2.0), r"scoring=2.0, expected a part, as Scoring\(sinks"),
        (
            lambda: Scoring(softcap=2.0, function=flat),
            "Scoring: softcap=2.0 with a function, expected one of them: cap the score inside",
        ),
        (
            lambda: Scoring(function=3),
            r"Scoring: function=3, expected f\(score, batch, head, query, key\)",
        ),
        (
            lambda: MultiHead(16, 4, scoring=Scoring(function=flat), mixture=Halves()),
            "MultiHead: a score function and a mixture are not offered together",
        ),
        (
            lambda: MultiHead(
                16, 4, scoring=Scoring(function=flat), window=Window(2, 0, in_cache=True)
            ),
            "MultiHead: a score function is told positions in the text, expected a window without",
        ),
        (lambda: Scoring(softcap=0.0), "Scoring: softcap=0.0, expected a positive number"),
        (lambda: Scoring(norms=nn.RMSNorm(4)), "Scoring: norms=.* expected a tuple of two modules"),
        (
            lambda: MultiHead(16, Heads(4, value_width=3), gate=nn.Linear(16, 5))(
                torch.ones(1, 2, 16)
            ),
            "MultiHead: gate: axis width has size 5, expected 4, the heads, or 12, heads × value",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    build: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # our own errors, not the type checker's
    with pytest.raises(RegardError, match=message):
        build()


def test_a_score_function_with_everything_beside_it() -> None:
    """A cache that drops keys, padding, a bias, sinks, another normaliser; by heads, in tiles."""
    function = Scoring(sinks=True, function=flat)
    attn = drawn(MultiHead(12, 6, scoring=function, window=(2, 0), normaliser=Entmax(1.5)))
    x, bias = normal(2, 7, 12), normal(1, 6, 1, 7)
    keep = torch.ones(2, 7, dtype=torch.bool)
    keep[1, :2] = False
    plain = drawn(
        MultiHead(
            *(12, 6),
            position=Alibi(6),
            scoring=Scoring(sinks=True),
            window=(2, 0),
            normaliser=Entmax(1.5),
        )
    )
    plain.load_state_dict(attn.state_dict())
    given = {"mask": masks.padding(keep), "bias": bias, "weights": True}
    reduce = [regard.ReceivedAttention(), regard.Entropy()]
    ours, theirs = attn(x, **given, reduce=reduce), plain(x, **given, reduce=reduce)
    torch.testing.assert_close(ours.weights, theirs.weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=1e-6)
    for mine, other in zip(ours.reductions, theirs.reductions):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    some = ours.recipe.of_heads([4, 1]).weights()
    torch.testing.assert_close(some, ours.weights[:, [4, 1]])
    torch.testing.assert_close(ours.recipe.at(1, 3).weights()[0, 0], ours.weights[1, 3])
    whole, state, outputs = attn(x, causal=True).output, True, []
    for step in range(7):
        attended = attn(x[:, step : step + 1], causal=True, state=state)
        state = attended.state
        outputs.append(attended.output)
    assert state.keys < 7, "the window drops keys, and positions stay those of the text"
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=0, atol=1e-9)


class Halves(Mixture):
    """A₁ − A₂ / 2, where the score heads are those of A₁, then those of A₂."""

    def score_heads(self, heads: int) -> int:
        return 2 * heads

    def recipe(self, scored: Recipe, value: Tensor) -> Recipe:
        first, second = scored.weights().chunk(2, dim=1)
        return Given(first - second / 2, value, "signed")

    def finish(self, mixed: Tensor) -> Tensor:
        return 3 * mixed


def test_a_mixture_of_two_attentions_a_head() -> None:
    attn = MultiHead(
        *(12, Heads(6, n_groups=2)),
        position=Alibi(6),
        scoring=Scoring(sinks=True),
        mixture=Halves(),
    )
    attn, x, bias = drawn(attn), normal(2, 5, 12), normal(1, 6, 5, 5)
    whole, attended = attn(x, bias=bias, causal=True), attn(x, bias=bias, causal=True, weights=True)
    assert torch.equal(whole.output, attended.output)
    assert attn.kind == attended.recipe.kind == "signed"
    weights = []
    both = lambda attn, h, i, j: sloped(attn, h, i, j) + float(bias[0, h, i, j])
    for half, factor in ((0, 1.0), (1, -0.5)):  # two attentions by the same equations
        alone = MultiHead(
            12, Heads(6, n_groups=2), scoring=Scoring(sinks=True), bias=False
        ).double()
        with torch.no_grad():
            for name in ("to_query", "to_key"):
                getattr(alone, name).weight.copy_(getattr(attn, name).weight.chunk(2)[half])
            alone.sinks.copy_(attn.sinks.chunk(2)[half])
        for linear, other in zip((alone.to_query, alone.to_key), (attn.to_query, attn.to_key)):
            linear.bias = nn.Parameter(other.bias.detach().chunk(2)[half])
        alone.to_value = attn.to_value
        near = {"sinks": True, "sees": lambda i, j: j <= i}
        weights.append(factor * reading(alone, (x, x, x), extra=both, **near)[1])
    mixed = weights[0] + weights[1]
    torch.testing.assert_close(attended.weights, mixed, rtol=0, atol=1e-10)
    values = attn.to_value(x).unflatten(-1, (2, 2)).transpose(1, 2).repeat_interleave(3, 1)
    output = attn.to_output(3 * (mixed @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attended.output, output, rtol=0, atol=1e-10)
    first = attn(x[:, :3], causal=True, state=True)
    rest = attn(x[:, 3:], causal=True, state=first.state)
    torch.testing.assert_close(rest.output, attn(x, causal=True).output[:, 3:], rtol=0, atol=1e-10)


def test_the_output_projection_may_be_any_module() -> None:
    plain, attn, x = drawn(MultiHead(16, 4)), MultiHead(16, 4).double(), normal(2, 6, 16)
    attn.load_state_dict(plain.state_dict())
    attn.to_output = nn.Sequential(attn.to_output, nn.Dropout(0.5))
    attn.eval()
    rows = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    rows[:, :, 2] = False
    for options in ({"causal": True}, {"mask": rows}):
        assert torch.equal(attn(x, **options).output, plain(x, **options).output)
    assert not attn(x, mask=rows).output[:, 2].any()
    with pytest.raises(RegardError, match=r"projections other than nn\.Linear"):
        attn.to_torch()


def reversal_accuracy(positions: Tensor) -> float:
    """Reverse 16 symbols of 10: one layer, one head, width 32, 500 steps of 128 at 1e-3."""
    embed, attn, logits = nn.Linear(10, 32), MultiHead(32, 1), nn.Linear(32, 10)
    model = lambda x: logits(attn(embed(F.one_hot(x, 10).float()) + positions).output)
    optimiser = torch.optim.Adam(nn.ModuleList([embed, attn, logits]).parameters(), lr=1e-3)
    for _ in range(500):
        x = torch.randint(10, (128, 16))
        optimiser.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten()).backward()
        optimiser.step()
    x = torch.randint(10, (512, 16))
    return float((model(x).argmax(-1) == x.flip(1)).double().mean())


def test_one_head_learns_to_reverse_when_it_has_positions() -> None:
    angle = torch.arange(16)[:, None] * 10000 ** (-torch.arange(0, 32, 2) / 32)
    assert reversal_accuracy(torch.cat([angle.sin(), angle.cos()], 1)) == 1.0
    assert reversal_accuracy(torch.zeros(16, 32)) < 0.3
