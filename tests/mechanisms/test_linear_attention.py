"""Linear attention: against loops from the papers, states, and what it refuses."""

import pytest
import torch
from memory_loops import elu_plus_one, heads_of, katharopoulos
from torch import Tensor, nn
from torch._subclasses.fake_utils import CrossRefFakeMode

from regard import Entropy, HeadMean, masks
from regard.errors import MaskError, RegardError, ShapeError, StateError, UnavailableError
from regard.mechanisms import (
    DeltaRule,
    EluPlusOne,
    FixedDecay,
    GatedDecay,
    Heads,
    IdentityFeatures,
    LinearAttention,
    MultiHead,
)
from regard.recipe.linear import CHUNK


def projected(attn, x):
    """Queries, keys and values of each head of one example, made by hand."""
    return [
        heads_of(torch.nn.functional.linear(x, linear.weight, linear.bias), attn.n_heads)
        for linear in (attn.to_query, attn.to_key, attn.to_value)
    ]


def by_loop(attn, x, feature_map, decay=None, normalised=True):
    outputs = []
    for example in x:
        heads = zip(*projected(attn, example))
        mixed = [
            katharopoulos(
                feature_map(query),
                feature_map(key),
                value,
                None if decay is None else decay[head],
                normalised,
            )
            for head, (query, key, value) in enumerate(heads)
        ]
        outputs.append(torch.cat(mixed, dim=-1) @ attn.to_output.weight.T)
    return torch.stack(outputs)


@torch.no_grad()
def test_it_is_the_paper_s_recurrence():
    attn, x = LinearAttention(8, 2).double(), torch.randn(2, 70, 8, dtype=torch.float64)
    attended = attn(x, causal=True, weights=True)
    torch.testing.assert_close(attended.output, by_loop(attn, x, elu_plus_one))
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(2, 2, 70).double())


@torch.no_grad()
def test_the_fast_weights_of_1992():
    attn = LinearAttention(8, 2, feature_map=IdentityFeatures(), normalised=False, bias=False)
    attn, x = attn.double(), torch.randn(2, 10, 8, dtype=torch.float64)
    assert attn.kind == "signed"
    want = by_loop(attn, x, lambda features: features, normalised=False)
    torch.testing.assert_close(attn(x, causal=True).output, want)


@torch.no_grad()
def test_decays_fixed_and_gated():
    x = torch.randn(2, 70, 8, dtype=torch.float64)
    attn = LinearAttention(8, 2, decay=FixedDecay([0.9, 0.3])).double()
    decay = [torch.full((70,), factor) for factor in (0.9, 0.3)]
    torch.testing.assert_close(
        attn(x, causal=True).output, by_loop(attn, x, elu_plus_one, decay), atol=1e-6, rtol=1e-6
    )
    gate = GatedDecay(8, 2).double()
    attn = LinearAttention(8, 2, decay=gate).double()
    rates = torch.log1p((x[:1] @ gate.to_rate.weight.T + gate.to_rate.bias).exp())
    decay = (-gate.log_speed.exp() * rates).exp()[0].T  # (head, position)
    torch.testing.assert_close(
        attn(x[:1], causal=True).output, by_loop(attn, x[:1], elu_plus_one, decay)
    )


def test_gated_decays_start_as_in_the_paper():
    gate = GatedDecay(4, 500)
    speed = gate.log_speed.exp()
    rate = torch.nn.functional.softplus(gate.to_rate.bias)
    assert speed.min() >= 1.0 and speed.max() <= 16.0
    assert rate.min() > 0.0009 and rate.max() < 0.11


@torch.no_grad()
def test_without_causal_every_query_reads_all_keys():
    attn, x = LinearAttention(8, 2).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    free, last = attn(x, weights=True), attn(x, causal=True, weights=True)
    torch.testing.assert_close(free.output[:, -1], last.output[:, -1])
    assert (free.weights > 0).all()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(attn(x, x[:, order]).output, free.output)


@torch.no_grad()
def test_the_future_changes_nothing_at_all():
    attn, x = LinearAttention(8, 2, decay=GatedDecay(8, 2)), torch.randn(1, 100, 8)
    loud = x.clone()
    loud[:, 51:] *= 1e4
    before, after = (attn(text, causal=True).output[:, :51] for text in (x, loud))
    assert torch.equal(before, after)


@torch.no_grad()
def test_a_state_has_one_size_and_counts_what_it_took_in():
    attn, x = LinearAttention(8, Heads(2, value_width=3)), torch.randn(2, 9, 8)
    full = attn(x, causal=True).output
    state, outputs = True, []
    for piece in x.split([1, 5, 3], dim=1):
        step = attn(piece, causal=True, state=state)
        state = step.state
        assert state.memory.shape == (2, 2, 4, 3) and state.normaliser.shape == (2, 2, 4)
        outputs.append(step.output)
    torch.testing.assert_close(torch.cat(outputs, 1), full)
    assert (state.keys, state.step, state.written.tolist()) == (9, 9, [9, 9])
    assert repr(step) == "Attended(output=(2, 3, 8); state of 9 keys)"


@torch.no_grad()
def test_padding_is_not_written():
    attn, x = LinearAttention(8, 2).double(), torch.randn(2, 6, 8, dtype=torch.float64)
    keep = torch.tensor([[True] * 6, [True, True, False, True, False, True]])
    dirty = x.masked_fill(~keep[..., None], torch.nan)
    got = attn(dirty, causal=True, state=True, mask=masks.padding(keep))
    short = attn(x[1:, keep[1]], causal=True)
    torch.testing.assert_close(got.output[1:, keep[1]], short.output)
    assert got.state.written.tolist() == [6, 4] and got.state.keys == 6
    more = attn(x[:, :1], causal=True, state=got.state)
    whole = attn(torch.cat([x[1:, keep[1]], x[1:, :1]], 1), causal=True)
    torch.testing.assert_close(more.output[1:], whole.output[:, -1:])


@torch.no_grad()
def test_a_state_goes_on_with_the_keys_of_this_call():
    attn, x = LinearAttention(8, 2), torch.randn(1, 6, 8)
    first = attn(x[:, :4], causal=True, state=True)
    second = attn(x[:, 4:], causal=True, state=first.state, weights=True, reduce=[HeadMean()])
    full = attn(x, causal=True, weights=True)
    torch.testing.assert_close(second.weights, full.weights[:, :, 4:, 4:])
    assert second.recipe.kind == "partial"
    torch.testing.assert_close(second.reductions[0], second.weights.mean(1))


def test_a_fixed_state_is_read_and_has_no_weights():
    attn, source, x = LinearAttention(8, 2), torch.randn(2, 7, 8), torch.randn(2, 3, 8)
    memory = attn.fix(source)
    torch.testing.assert_close(attn(x, state=memory).output, attn(x, source).output)
    after = attn(x, state=memory).state
    assert (after.keys, after.step, after.growing) == (7, 3, False)
    for asked in ({"weights": True}, {"reduce": [Entropy()]}):
        with pytest.raises(UnavailableError, match="fixed state: its keys were written into a mem"):
            attn(x, state=memory, **asked)
    with pytest.raises(StateError, match="a fixed state can only be read whole"):
        attn(x, state=memory, causal=True)
    with pytest.raises(StateError, match="pass the query alone"):
        attn(x, source, state=memory)


def test_entropy_of_weights_that_have_one():
    attn, x = LinearAttention(8, 2), torch.randn(1, 5, 8)
    attended = attn(x, causal=True, weights=True, reduce=[Entropy()])
    want = -torch.xlogy(attended.weights, attended.weights).sum(-1)
    torch.testing.assert_close(attended.reductions[0], want)


def test_bfloat16_adds_up_in_float32():
    attn, x = LinearAttention(8, 2).bfloat16(), torch.randn(1, 40, 8).bfloat16()
    attended = attn(x, causal=True, state=True)
    assert attended.output.dtype == torch.bfloat16
    assert attended.state.memory.dtype == attended.state.normaliser.dtype == torch.float32
    want = attn.float()(x.float(), causal=True).output
    torch.testing.assert_close(attended.output.float(), want, atol=3e-2, rtol=3e-2)


def test_autocast():
    attn, x = LinearAttention(8, 2, decay=GatedDecay(8, 2)), torch.randn(1, 40, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = attn(x, causal=True, state=True)
        attn(x, causal=True, state=first.state).output.float().sum().backward()
    assert first.state.memory.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in attn.parameters())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"bias": torch.zeros(1, 1, 1, 4)}, UnavailableError, "there are no scores to add it to"),
        ({"mask": masks.window(2, 0)}, MaskError, "LinearAttention: mask window.2, 0.*only name k"),
        ({"mask": torch.ones(1, 1, 4, 4, dtype=torch.bool)}, MaskError, "only name keys"),
        ({"state": "cache"}, StateError, "state is str, expected a RecurrentState"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_it_cannot_do_it_refuses(options, error, words):
    with pytest.raises(error, match=words):
        LinearAttention(8, 2)(torch.randn(1, 4, 8), **options)


def test_states_of_others_are_refused():
    x = torch.randn(2, 4, 8)
    attn, softmax = LinearAttention(8, 2), MultiHead(8, 2)
    with pytest.raises(StateError, match="state is State, expected a RecurrentState"):
        attn(x, state=softmax(x, state=True).state)
    state = attn(x, state=True).state
    with pytest.raises(StateError, match="state is RecurrentState, expected a State"):
        softmax(x, state=state)
    with pytest.raises(
        ShapeError, match="memory: axis head has size 2, expected 4; another module"
    ):
        LinearAttention(8, 4)(x, state=state)
    with pytest.raises(ShapeError, match="state: axis batch has size 2, expected 1"):
        attn(x[:1], state=state)
    with pytest.raises(
        RegardError, match=r"state is torch.float32, expected torch.float64 for a q"
    ):
        LinearAttention(8, 2).double()(x.double(), state=state)


def test_what_was_written_stays_written():
    attn, x = LinearAttention(8, 2), torch.randn(1, 4, 8)
    state = attn(x, causal=True, state=True).state
    keep = torch.tensor([[True, False, True, True, True]])
    with pytest.raises(StateError, match=r"it keeps \[3\], but \[4\] keys were written"):
        attn(x[:, :1], state=state, mask=masks.padding(keep))
    with pytest.raises(StateError, match="3 queries and 1 new keys with causal=True"):
        attn(x[:, :3], x[:, :1], state=state, causal=True)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LinearAttention(8, 3), "LinearAttention: width 8 is not a multiple of n_heads 3"),
        (lambda: LinearAttention(8, 2, inputs=8), "inputs=8, expected a tuple of two"),
        (lambda: LinearAttention(8, 2, feature_map="elu"), "feature_map='elu', expected a module"),
        (
            lambda: LinearAttention(8, 2, feature_map=nn.ReLU()),
            r"feature_map=ReLU\(\), expected a module that is called as feature_map\(x, side\)",
        ),
        (lambda: LinearAttention(8, 2, decay=0.9), r"decay=0.9, expected a part, as FixedDecay\("),
        (lambda: FixedDecay([0.5, 1.5]), "a factor is 1.5, expected above 0 and at most 1"),
        (
            lambda: LinearAttention(8, 2, decay=FixedDecay([0.5]))(torch.randn(1, 4, 8)),
            r"the decay gave \(1, 1, 4\), expected \(1, 2, 4\): batch, heads, keys",
        ),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_parts_are_refused(build, words):
    with pytest.raises(RegardError, match=words):
        build()


def test_states_of_other_rules_are_refused():
    """Their memories have one shape; the normaliser tells them apart."""
    x = torch.randn(1, 3, 8)
    normalised, plain = LinearAttention(8, 2), LinearAttention(8, 2, normalised=False)
    delta = DeltaRule(8, 2)
    for other in (plain, delta):
        state = other(x, causal=True, state=True).state
        with pytest.raises(StateError, match="LinearAttention: state has no normaliser, expected"):
            normalised(x, causal=True, state=state)
    state = normalised(x, causal=True, state=True).state
    for other in (plain, delta):
        with pytest.raises(StateError, match="state has a normaliser, expected none; another"):
            other(x, causal=True, state=state)


def test_print():
    text = str(LinearAttention(8, 2, normalised=False, feature_map=IdentityFeatures()))
    assert "2 heads, head width 4, not normalised" in text and "IdentityFeatures" in text


def test_it_learns():
    """Which symbol came first: a sum over all keys, found by gradients through the chunks."""
    torch.manual_seed(0)
    attn, head = LinearAttention(16, 2), nn.Linear(16, 4)
    marks = torch.randn(5, 16)
    optimiser = torch.optim.Adam([*attn.parameters(), *head.parameters()], 1e-2)
    for _ in range(150):
        symbols = torch.randint(4, (32, 80))
        x = marks[symbols]
        x[:, 0] += marks[4]
        loss = nn.functional.cross_entropy(head(attn(x, causal=True).output[:, -1]), symbols[:, 0])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.3  # chance is log 4 = 1.39


@pytest.mark.compiled
@pytest.mark.parametrize("mechanism", [LinearAttention, DeltaRule])
def test_a_graph_exported_for_one_length_keeps_its_chunks(mechanism):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = mechanism(8, 2)

        def forward(self, x):
            return self.attn(x, causal=True).output

    causal, x = Causal().eval(), torch.randn(1, 3 * CHUNK + 5, 8)
    program = torch.export.export(causal, (x,))
    values = [node.meta.get("val") for node in program.graph.nodes]
    pairs = [v.shape[-2] * v.shape[-1] for v in values if isinstance(v, Tensor) and v.dim() == 3]
    assert max(pairs) <= max(CHUNK * CHUNK, 8 * x.shape[1])  # no matrix of all queries and keys
    torch.testing.assert_close(program.module()(x), causal(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the mode reads it of its own copies
@pytest.mark.parametrize("mechanism", [LinearAttention, DeltaRule])
def test_gradients_lie_as_a_compiled_graph_expects(mechanism):
    """Operators whose gradient has other strides than their meta kernel says (elu, softplus) break
    the backward pass of a compiled block."""
    attn = mechanism(16, 4, decay=GatedDecay(16, 4))
    keep = torch.tensor([[True] * 4 + [False]])
    with CrossRefFakeMode(check_strides=True, check_aliasing=False):
        x = torch.randn(1, 5, 16, requires_grad=True)
        attended = attn(x, mask=masks.padding(keep), weights=True)
        (attended.output.sin().sum() + attended.weights.sin().sum()).backward()


def test_features_far_below_zero_are_above_zero():
    features = EluPlusOne()(torch.tensor([[[[-30.0, -200.0]]]]), "key")
    torch.testing.assert_close(features[..., :1], torch.full((1, 1, 1, 1), -30.0).exp())
    assert (features > 0).all()
