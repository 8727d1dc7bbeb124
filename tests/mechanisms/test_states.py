"""States that do not fit, autocast, inference mode: what must not pass in silence."""

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.blocks import EncoderBlock, FeedForward, PreNorm
from regard.errors import DtypeError, ShapeError, StateError
from regard.mechanisms import (
    Additive,
    ConcatScore,
    Decomposable,
    DotProduct,
    GeneralScore,
    Heads,
    Luong,
    MultiHead,
    Rotary,
    Scoring,
)

BUILDS = {
    "dot": DotProduct,
    "multi_head": lambda: MultiHead(16, Heads(4, n_groups=2)),
    "rotary": lambda: MultiHead(16, 4, position=Rotary(), scoring=Scoring(sinks=True)),
    "additive": lambda: Additive(16, 16, width=8),
    "general": lambda: Luong(GeneralScore(16, 16)),
    "concat": lambda: Luong(ConcatScore(16, 16, width=8)),
    "decomposable": lambda: Decomposable(nn.Linear(16, 8)),
}
each = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
X = torch.randn(3, 5, 16)
pytestmark = pytest.mark.usefixtures("without_shape_checks")


@each
def test_a_state_of_another_batch_is_refused(build):
    attn = build()
    for state in (attn.fix(X[:1]), attn.begin(X[:1])):
        with pytest.raises(ShapeError, match="axis batch has size 1, expected 3"):
            attn(X, state=state)


@each
def test_a_state_of_another_dtype_is_refused(build):
    attn = build()
    states = attn.fix(X), attn.begin(X), attn(X, state=True).state
    for state in states:
        with pytest.raises(DtypeError, match=r"state is torch.float32, expected torch.float64"):
            build().double()(X.double(), state=state)


def test_a_state_with_other_heads_or_widths_is_refused():
    attn = MultiHead(16, 4)
    for state in (attn.fix(X), attn.begin(X)):
        for other in (MultiHead(16, 2), MultiHead(16, Heads(8, head_width=4))):
            message = f"state: key: axis head has size 4, expected {other.n_groups}; another module"
            with pytest.raises(ShapeError, match=message):
                other(X, state=state)
        with pytest.raises(ShapeError, match="state: key: axis width has size 4, expected 5"):
            MultiHead(16, Heads(4, head_width=5, value_width=4))(X, state=state)
        with pytest.raises(ShapeError, match="state: value: axis width has size 4, expected 3"):
            MultiHead(16, Heads(4, value_width=3))(X, state=state)
    for state in (Additive(16, 16, width=6).fix(X), Additive(16, 16, width=6).begin(X)):
        with pytest.raises(ShapeError, match="key: axis width has size 6, expected 8"):
            Additive(16, 16, width=8)(X, state=state)


@each
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch's own
def test_nested_tensors_are_refused(build, layout):
    nested = torch.nested.nested_tensor([X[0, :3], *X[1:]], layout=layout)
    attn, expected = build(), "is a nested tensor, expected a padded one"
    with pytest.raises(ShapeError, match=f"{type(attn).__name__}: query {expected}"):
        attn(nested)
    with pytest.raises(ShapeError, match=f"key {expected}.*mask=masks.lengths"):
        attn(X, nested)
    with pytest.raises(ShapeError, match=f"value {expected}"):
        attn(X, X, nested)
    with pytest.raises(ShapeError, match=f"key {expected}"):
        attn.fix(nested)
    with pytest.raises(ShapeError, match=f"attend: query {expected}"):
        regard.attend(nested, nested, nested)
    block = EncoderBlock(PreNorm(16, MultiHead(16, 4)), PreNorm(16, FeedForward(16)))
    with pytest.raises(ShapeError, match=f"EncoderBlock: x {expected}"):
        block(nested)


@each
@pytest.mark.parametrize("state", ["yes", 1, (1, 2), torch.ones(1)])
def test_something_else_is_not_a_state(build, state):
    with pytest.raises(StateError, match=r"expected a State \(the .state of the last call\)"):
        build()(X, state=state)


def test_the_whole_answer_is_not_a_state():
    first = DotProduct()(X, state=True)
    with pytest.raises(StateError, match="state is Attended"):
        DotProduct()(X, state=first)


@each
def test_values_shorter_than_keys_are_refused(build):
    with pytest.raises(ShapeError, match="axis key has size 3, expected 5"):
        build().fix(X, X[:, :3])


def test_a_state_of_another_width_is_refused():
    with pytest.raises(ShapeError, match="axis width has size 8, expected 16"):
        DotProduct()(X, state=DotProduct().fix(X[..., :8]))
    with pytest.raises(ShapeError, match="axis width has size 8, expected 16"):
        MultiHead(16, 4).fix(X[..., :8])


def test_another_dtype_than_the_parameters_is_refused():
    with pytest.raises(DtypeError, match=r"float64, the parameters are torch.float32"):
        MultiHead(16, 4)(X.double())


@each
def test_nan_in_padding_of_a_fixed_state_reaches_no_gradient(build):
    attn, keep = build(), torch.ones(3, 5, dtype=torch.bool)
    keep[:, 3:] = False
    mask = masks.padding(keep)
    dirty = X.masked_fill(~keep[..., None], torch.nan)
    query = X[:, :2].clone().requires_grad_()
    attn(query, state=attn.fix(dirty, mask=mask), mask=mask).output.sum().backward()
    assert query.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attn.parameters())


@each
def test_under_autocast_weights_are_those_of_the_output(build):
    attn = build().eval()
    with torch.autocast("cpu", torch.bfloat16):
        attended = attn(X, weights=True, reduce=[regard.ReceivedAttention(), regard.Entropy()])
    assert attended.weights.dtype == torch.float32
    assert (attended.weights.sum(-1) <= 1 + 1e-5).all()
    torch.testing.assert_close(
        attended.reductions[0], attended.weights.sum(2), atol=1e-3, rtol=1e-3
    )
    calm = attn(X, weights=True)
    torch.testing.assert_close(attended.weights, calm.weights, atol=0.05, rtol=0)


def test_the_same_tensor_thrice_is_self_attention():
    attn, keep = MultiHead(16, 4), torch.ones(3, 5, dtype=torch.bool)
    keep[:, 4:] = False
    dirty = X.masked_fill(~keep[..., None], torch.nan)
    output = attn(dirty, dirty, dirty, mask=masks.padding(keep)).output[:, :4]
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in attn.parameters())
