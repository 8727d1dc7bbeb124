"""Linear mixes of attentions: the matrix they stand for, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree

import regard
from regard import masks
from regard.errors import DtypeError, ShapeError, UnavailableError
from regard.kernel import fused
from regard.kernel.attend import run
from regard.kernel.position_encodings import AlibiBias
from regard.recipe import Dot, Edges, Given, Identity, Mixture, Uniform, tensors
from regard.record.store import storable
from regard.types import whole

KEEP = torch.tensor([[True] * 5, [True, True, False, True, False]])
MASKS = {"none": None, "causal and padding": masks.causal() & masks.padding(KEEP)}


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def apart(mask=None, dtype=torch.float64, queries=3):
    """Four parts whose heads stay apart, one with a window of its own."""
    query, key = draw(2, 4, queries, 3, dtype=dtype), draw(2, 2, 5, 3, seed=1, dtype=dtype)
    parts = (
        Dot(query, key, scale=0.5),
        Dot(query.flip(3), key, mask=masks.window(1, 1)),
        Identity(query, key),
        Uniform(query, key),
    )
    numbers = tuple(draw(4, seed=seed, dtype=dtype) for seed in range(4))
    return Mixture.of(parts, numbers, value=draw(2, 2, 5, 6, seed=2, dtype=dtype), mask=mask)


def across(mask=None, dtype=torch.float64, queries=3):
    """Two heads out of four, and an identity whose heads stay apart."""
    query, key = draw(2, 4, queries, 3, dtype=dtype), draw(2, 2, 5, 3, seed=1, dtype=dtype)
    parts = (Dot(query, key, scale=0.5), Identity(query[:, :2], key))
    numbers = (draw(2, 4, seed=3, dtype=dtype), draw(2, seed=4, dtype=dtype))
    return Mixture.of(parts, numbers, value=draw(2, 1, 5, 6, seed=2, dtype=dtype), mask=mask)


def by_hand(mixture):
    """(batch, head, query, key), one head of one part at a time."""
    weights = torch.zeros(mixture.shape, dtype=torch.float64)
    for part, numbers in zip(mixture.parts, mixture.coefficients):
        if hasattr(part, "mask"):
            both = masks.both(part.mask, mixture.mask)
            part = type(part)(**{**vars(part), "mask": both})
        matrix = part.weights().double()
        for head in range(mixture.shape.heads):
            for other in range(part.shape.heads):
                if numbers.dim() == 2:
                    weights[:, head] += numbers[head, other] * matrix[:, other]
                elif head == other:
                    weights[:, head] += numbers[head] * matrix[:, other]
    return weights


every_mix = pytest.mark.parametrize("build", [apart, across])
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@every_mask
@every_mix
def test_the_matrix_is_the_sum_over_parts_and_heads(build, mask):
    mixture = build(mask)
    truth = by_hand(mixture)
    values = mixture.value.repeat_interleave(mixture.shape.heads // mixture.value.shape[1], 1)
    for same in (mixture, mixture.plain(), run(mixture, weights=True).recipe, mixture.detach()):
        torch.testing.assert_close(same.weights(), truth)
        torch.testing.assert_close(same.mixed(), truth @ values)
        torch.testing.assert_close(run(same).output, truth @ values)
        with torch.no_grad():
            block = same.weights(slice(1, 3), slice(2, 5))
            torch.testing.assert_close(block, truth[:, :, 1:3, 2:5])
            torch.testing.assert_close(same.mixed(), truth @ values)
        for head in range(mixture.shape.heads):
            torch.testing.assert_close(same.at(1, head).weights(), truth[1:, head : head + 1])
            mixed = (truth @ values)[1:, head : head + 1]
            torch.testing.assert_close(same.at(1, head).mixed(), mixed)
        torch.testing.assert_close(same.of_heads([1, 0]).weights(), truth[:, [1, 0]])
        torch.testing.assert_close(same.of_heads([1, 0]).mixed(), (truth @ values)[:, [1, 0]])


def test_heads_that_stay_apart_need_no_matrix(monkeypatch):
    calls = []
    attention = fused.attention

    def counted(*arguments):
        calls.append(arguments)
        return attention(*arguments)

    monkeypatch.setattr(fused, "attention", counted)
    for kind in (Dot, Identity, Uniform, Mixture):
        monkeypatch.setattr(kind, "weights", lambda *_: pytest.fail("the matrix was made"))
    run(apart(MASKS["causal and padding"], queries=5))
    assert len(calls) == 2  # the two dot products


@every_mask
@every_mix
@pytest.mark.parametrize("tile", [(2, 2), None])
def test_reducers_see_the_matrix(build, mask, tile):
    mixture = build(mask)
    truth = by_hand(mixture)
    mean, received = regard.reduce(
        mixture, [regard.HeadMean(), regard.ReceivedAttention()], tile=tile
    )
    torch.testing.assert_close(mean, truth.mean(1))
    torch.testing.assert_close(received, truth.sum(2))


@every_mix
def test_there_are_no_logarithms(build):
    for question in (
        lambda: build().log_weights(whole(3, 5)),
        lambda: regard.reduce(build(), [regard.Entropy()]),
    ):
        with pytest.raises(UnavailableError, match="signed weights have no logarithm"):
            question()


@every_mix
def test_gradients_are_those_of_the_matrix(build):
    mixture = build(masks.causal())
    leaves = [tensor.clone().requires_grad_() for tensor in tensors(mixture)]
    given = iter(leaves)
    attached = mixture.map(lambda tensor: next(given))

    def gradients(output):
        return torch.autograd.grad(output.square().sum(), leaves, allow_unused=True)

    values = attached.value.repeat_interleave(mixture.shape.heads // mixture.value.shape[1], 1)
    for got, want in zip(gradients(run(attached).output), gradients(attached.weights() @ values)):
        assert (got is None) == (want is None)  # nobody reads the queries of an identity
        if got is not None:
            torch.testing.assert_close(got, want)


@every_mix
def test_a_copy_is_the_same(build):
    mixture = build(MASKS["causal and padding"])
    leaves, structure = _pytree.tree_flatten(mixture)
    twins = [pickle.loads(pickle.dumps(mixture)), copy.deepcopy(mixture)]
    for twin in [*twins, _pytree.tree_unflatten(leaves, structure)]:
        assert torch.equal(twin.weights(), mixture.weights()) and twin.kind == "signed"
    held = [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert mixture.nbytes == sum({s.data_ptr(): s.nbytes() for s in held}.values())
    assert "parts=[Dot(" in repr(mixture) and "coefficients=[(" in repr(mixture)


@every_mix
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(build, dtype):
    mixture, truth = build(masks.causal(), dtype), build(masks.causal())
    assert mixture.weights().dtype == torch.float32 and run(mixture).output.dtype == dtype
    tolerance = 1e-5 if dtype is torch.float32 else 6e-2
    for got, want in (
        (mixture.weights(), truth.weights()),
        (run(mixture).output, run(truth).output),
        (mixture.mixed(), truth.mixed()),
    ):
        torch.testing.assert_close(got.double(), want, atol=tolerance, rtol=tolerance)


def test_dropout_is_of_what_was_learned():
    query, value = draw(1, 1, 400, 3), draw(1, 1, 400, 2, seed=1)
    parts = (Dot(query, query), Identity(query, query))
    mixture = Mixture.of(parts, (torch.zeros(1), torch.ones(1)), value=value)
    assert torch.equal(run(mixture, dropout=0.5).output, value)
    mixture = Mixture.of(parts, (torch.ones(1), torch.zeros(1)), value=value)
    torch.manual_seed(0)
    dropped = run(mixture, dropout=0.5).output
    assert not torch.allclose(dropped, run(mixture).output)


def test_no_batch_no_queries_no_keys():
    for size in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
        query, key = draw(size[0], 2, size[1], 3), draw(size[0], 2, size[2], 3)
        parts = [Dot(query, key), Identity(query, key), Uniform(query, key)]
        for numbers in (torch.ones(2), torch.ones(2, 2)):
            mixture = Mixture.of(parts, [numbers.double()] * 3, value=key, mask=masks.causal())
            attended = run(mixture, weights=True)
            assert attended.weights.shape == (size[0], 2, *size[1:])
            assert attended.output.shape == query.shape and not attended.output.any()


def test_parts_without_a_mask_are_taken_as_they_are():
    matrix = draw(1, 1, 2, 2).softmax(-1)
    index = torch.tensor([0, 1])
    edges = Edges.between(index, index, torch.ones(2).double(), queries=2, keys=2)
    numbers = [torch.ones(1).double()] * 2
    mixture = Mixture.of([Given(matrix), edges], numbers, mask=masks.causal(), value=matrix)
    torch.testing.assert_close(mixture.weights(), matrix + torch.eye(2))
    torch.testing.assert_close(run(mixture).output, (matrix + torch.eye(2)) @ matrix)


PARTS = {
    "parts": [Dot(draw(1, 2, 3, 4), draw(1, 2, 5, 4))],
    "coefficients": [torch.ones(2).double()],
    "value": draw(1, 2, 5, 4),
    "mask": None,
}
HEADS = torch.ones(1, 2, 3, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"parts": []}, ShapeError, "0 parts and 1 coefficients, expected one for each part"),
        ({"coefficients": [torch.ones(3)]}, ShapeError, r"is \(3,\), expected \(3, 2\)$"),
        ({"coefficients": [torch.ones(2, 3)]}, ShapeError, r"\(2, 3\), expected \(2, 2\) or \(2,"),
        ({"coefficients": [torch.ones(2).int()]}, DtypeError, r"coefficients\[0\] is torch.int32"),
        ({"value": draw(1, 2, 4, 4)}, ShapeError, r"value is \(1, 2, 4, 4\), expected \(1, 2 or a"),
        (
            {
                "parts": [*PARTS["parts"], Dot(draw(1, 2, 3, 4), draw(1, 2, 6, 4))],
                "coefficients": [torch.ones(2)] * 2,
            },
            ShapeError,
            r"parts\[1\] is \(1, 2, 3, 6\), expected batch, queries and keys 1, 3, 5",
        ),
        (
            {"parts": [Dot(draw(1, 2, 3, 4), draw(1, 2, 5, 4), draw(1, 2, 5, 4))]},
            ShapeError,
            r"parts\[0\] holds values, expected none",
        ),
        (
            {"coefficients": [torch.ones(2, 2)], "mask": masks.causal() | ~masks.pairs(HEADS)},
            ShapeError,
            "the mask differs from head to head, and heads are mixed",
        ),
    ],
)
def test_what_does_not_fit_is_refused(without_shape_checks, changes, error, text):
    def build(parts, coefficients, **options):
        return Mixture.of(parts, coefficients, **options)

    build(**PARTS)
    with pytest.raises(error, match=text):
        build(**(PARTS | changes))


def test_a_structured_bias_is_saved_as_weights():
    query, key = draw(1, 2, 3, 4), draw(1, 2, 5, 4)
    biased = Dot(query, key, bias=AlibiBias(torch.tensor([0.5, 0.25])))
    numbers = [torch.ones(2).double(), -torch.ones(2).double()]
    mixture = Mixture.of([biased, Dot(query, key)], numbers, mask=masks.causal())
    stored = storable(mixture)
    assert [type(part) for part in stored.parts] == [Given, Dot]
    torch.testing.assert_close(stored.weights(), mixture.weights())
