"""The rows of head importance: which attentions and calls have one, and what is read from them."""

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from head_models import (
    BATCH,
    FAMILIES,
    HEADS,
    LENGTH,
    TEXT,
    WIDTH,
    Homegrown,
    MultiHeadOnly,
    built,
    encoder,
    hidden_loss,
    words,
)
from torch import nn

import regard
from regard.anatomy.head_sites import head_sites
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.heads.head_mask import head_mask
from regard.heads.importance import HeadImportance, head_importance

# -- where the heads are


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_are_those_of_a_trace(family):
    model, inputs = built(family), words(family)
    with torch.no_grad():
        trace = regard.trace(model, **inputs)
    sites = {site.name: site for site in head_sites(model)}
    assert sorted(sites) == sorted(trace.names())
    assert all(sites[record.name].n_heads == record.shape.heads for record in trace)


def test_sites_can_be_given():
    model = nn.Sequential(Homegrown(), Homegrown())
    x = torch.randn(2, LENGTH, WIDTH)
    loss = lambda output, inputs: output[:, 0].square().sum(-1)
    with pytest.raises(
        UnavailableError, match=r"no attention .* in Sequential; say where .*sites="
    ):
        head_importance(model, [x], loss)
    found = head_importance(model, [x], loss, sites={"0.last": HEADS, "1.last": HEADS})
    assert found.names == ("0", "1") and (found.scores > 0).all()
    for sites, told in [
        ({"2.last": 4}, "no module '2.last'"),
        ({"0.last": 3}, "takes 16 features, which 3 heads do not share evenly"),
        ({"0": 4}, "'0' is a Homegrown, expected a linear layer"),
    ]:
        with pytest.raises(RegardError, match=told):
            head_importance(model, [x], loss, sites=sites)


def test_some_of_the_sites():
    model, inputs = built("bert"), words("bert")
    all_of_it = head_importance(model, [inputs], hidden_loss)
    some = head_importance(model, [inputs], hidden_loss, sites=head_sites(model)[1:])
    torch.testing.assert_close(some.scores, all_of_it.scores[1:])


def test_a_mask_needs_a_place_and_a_number_for_each_head():
    model = encoder()
    with pytest.raises(ShapeError, match=r"mask \(2, 3, 1\), expected \(layer, head\): 2 rows"):
        head_mask(model, torch.ones(2, 3, 1)).__enter__()
    with pytest.raises(ShapeError, match=r"layers.0.self_attn has 4 heads, not \(3,\)"):
        head_mask(model, torch.ones(2, 3)).__enter__()
    with pytest.raises(RegardError, match="no attention is named 'x'"):
        head_mask(model, {"x": torch.ones(4)}).__enter__()
    nn.utils.parametrizations.weight_norm(model.layers[1].self_attn.out_proj)
    with pytest.raises(UnavailableError, match=r"layers.1.self_attn: .* is not a plain parameter"):
        head_mask(model, torch.ones(2, 4)).__enter__()


def test_attention_whose_projection_never_runs():
    class Functional(Homegrown):
        def forward(self, x):
            return F.linear(self.mixer(x)[..., :WIDTH], self.last.weight)

    with pytest.raises(UnavailableError, match=r"none of the 1 output projections .* ran"):
        head_importance(
            Functional(),
            [torch.randn(1, LENGTH, WIDTH)],
            lambda output, inputs: output[:, 0, 0],
            sites={"last": 4},
        )


# -- modules that run several times


@pytest.fixture(scope="module")
def albert():
    torch.manual_seed(0)
    config = hf.AlbertConfig(**{**TEXT, "num_hidden_layers": 3}, embedding_size=8)
    return hf.AlbertModel(config, add_pooling_layer=False).double().eval()


PLACE = "encoder.albert_layer_groups.0.albert_layers.0.attention"


@pytest.mark.parametrize("method", ["gradient", "leave_out"])
def test_every_call_of_a_shared_layer_has_a_row(albert, method):
    inputs = words("bert")
    found = head_importance(albert, [inputs], hidden_loss, method)
    assert found.names == tuple(f"{PLACE}#{call}" for call in (1, 2, 3))
    assert found.scores.shape == (3, HEADS)
    trace = regard.trace(albert, **inputs)
    assert all(name in trace or trace[name] is not None for name in found.names)
    if method == "leave_out":
        calls = 0

        def without(module, given):
            nonlocal calls
            calls += 1
            if calls == 2:
                heads = given[0].clone()
                heads[..., 4:8] = 0
                return (heads,)
            return None

        with torch.no_grad():
            whole = hidden_loss(albert(**inputs), inputs).mean()
            dense = albert.get_submodule(PLACE).dense
            handle = dense.register_forward_pre_hook(without)
            want = hidden_loss(albert(**inputs), inputs).mean() - whole
            handle.remove()
        torch.testing.assert_close(found[f"{PLACE}#2"][1], want)


def test_calls_share_a_mask_when_asked(albert):
    inputs = words("bert")
    found = head_importance(albert, [inputs], hidden_loss, calls="shared")
    assert found.names == (PLACE,)
    slopes = []
    for example in range(BATCH):
        mask = torch.ones(1, HEADS, dtype=torch.float64, requires_grad=True)
        with head_mask(albert, mask):
            loss = hidden_loss(albert(**inputs), inputs)[example]
        slopes.append(torch.autograd.grad(loss, mask)[0].abs())
    torch.testing.assert_close(found.scores, torch.stack(slopes).mean(0))
    each = head_importance(albert, [inputs], hidden_loss)
    assert (each.scores.sum(0) >= found.scores[0] - 1e-12).all(), "|a + b| ≤ |a| + |b|"


def test_torch_attention_that_runs_twice():
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            for _ in range(2):
                x = x + self.attention(x, x, x)[0]
            return x

    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output[:, 0].square().sum(-1)
    each = head_importance(Twice(), [x], loss)
    assert each.names == ("attention#1", "attention#2")
    with pytest.raises(RegardError, match=r"attention runs several times .* calls='shared'"):
        head_importance(Twice(), [x], loss, "leave_out")
    assert head_importance(Twice(), [x], loss, "leave_out", calls="shared").scores.shape == (1, 4)


# -- the answer


def test_scores_weigh_the_heads_of_a_rollout():
    model, inputs = built("bert"), words("bert", batch=2)
    weights = head_importance(model, [inputs], hidden_loss).weights()
    torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))
    with torch.no_grad():
        trace = regard.trace(model, **inputs)
    got = regard.rollout(trace, token=0, heads=weights)
    maps = [
        torch.einsum("bhqk,h->bqk", record.weights(), share)
        for record, share in zip(trace, weights)
    ]
    eye = torch.eye(LENGTH, dtype=torch.float64)
    want = (0.5 * eye + 0.5 * maps[1]) @ (0.5 * eye + 0.5 * maps[0])
    torch.testing.assert_close(got, want[:, 0])


def test_shares_of_heads_that_harm_or_do_nothing():
    scores = torch.tensor([[3.0, 1.0, -2.0], [0.0, -1.0, 0.0], [1.0, 1.0, float("nan")]])
    found = HeadImportance(("a", "b", "c"), scores.double(), "leave_out")
    want = torch.tensor([[0.75, 0.25, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]])
    torch.testing.assert_close(found.weights(), want.double())
    assert found["c"].tolist() == [1.0, 1.0] and found[0].tolist() == [3.0, 1.0, -2.0]
    assert found.least(2) == {"a": [2], "b": [1]}
    assert found.most(3) == {"a": [0, 1], "c": [0]} and found.least(0) == {}
    torch.testing.assert_close(
        found.normalised()["c"], torch.full((2,), 0.5**0.5, dtype=torch.float64)
    )
    with pytest.raises(RegardError, match="count=9, expected from 0 to 8 heads"):
        found.least(9)
    with pytest.raises(RegardError, match=r"no attention is named 'd'; there are \['a'"):
        found["d"]


def test_the_table():
    scores = torch.tensor([[5e-3, 2.5e-4], [1e-5, float("nan")]], dtype=torch.float64)
    text = repr(HeadImportance(("attention.a", "b"), scores, "gradient"))
    assert [line.split() for line in text.splitlines()] == [
        ["Head", "importance", "by", "gradient,", "times", "1e-3:", "2", "×", "2"],
        ["attention", "0", "1"],
        ["attention.a", "5.00", "0.25"],
        ["b", "0.01"],
    ]
    assert len({len(line) for line in text.splitlines()[1:3]}) == 1, "columns are aligned"


def test_layers_with_different_numbers_of_heads():
    torch.manual_seed(0)
    model = nn.Sequential(MultiHeadOnly(2), MultiHeadOnly(4))
    x = torch.randn(2, LENGTH, WIDTH)
    found = head_importance(model, [x], lambda output, inputs: output[:, 0].square().sum(-1))
    assert found.scores.isnan().tolist() == [[False, False, True, True], [False] * 4]
    assert found[0].shape == (2,) and (found.weights()[0, 2:] == 0).all()
