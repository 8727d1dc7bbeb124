"""What may be handed to an aggregation, and what is refused."""

import pytest
import torch
from torch import nn

import regard
from regard.aggregate.sources import arranged, layers_of, stack_of, token_positions
from regard.errors import RegardError, ShapeError
from regard.mechanisms import DotProduct

torch.manual_seed(0)


def made(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).softmax(-1)


def encoder_decoder_trace() -> regard.Trace:
    model = nn.Transformer(8, 2, 2, 1, 16, batch_first=True, dropout=0.0).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        model(torch.randn(2, 5, 8), torch.randn(2, 3, 8))
    return trace


@pytest.mark.parametrize(
    ("axes", "order"),
    [
        ("head batch query key", (1, 0, 2, 3)),
        ("batch query key head", (0, 2, 3, 1)),
        ("key, query, head, batch", (3, 2, 1, 0)),
    ],
)
def test_axes_by_name(axes, order):
    weights = made(2, 3, 4, 5)
    assert torch.equal(arranged(weights.permute(order), axes)[0], weights)


def test_axes_that_are_missing_are_added():
    weights = made(4, 5)
    assert torch.equal(arranged(weights, "query key")[0], weights[None, None])
    stack = made(6, 2, 3, 4, 5)
    assert torch.equal(torch.stack(arranged(stack, "layer batch head query key")), stack)
    assert torch.equal(
        torch.stack(arranged(stack[:, 0], "layer head query key"))[:, 0], stack[:, 0]
    )


@pytest.mark.parametrize(
    ("weights", "axes", "said"),
    [
        (made(3, 4, 5), None, "others must be named"),
        (made(2, 3, 4, 5), "head query key", "names 3 axes of 4"),
        (made(2, 3, 4, 5), "head head query key", "each once"),
        (made(2, 3, 4, 5), "a b query key", "expected 'query'"),
        (made(2, 3, 4, 5).mT, None, 'Axis 2 does.*axes="batch head key query"'),
        (made(2, 3, 4, 5).movedim(-1, 1), None, 'Axis 1 does.*axes="batch key head query"'),
        (made(2, 3, 4, 5) * 0.7, None, "rows do not sum to 1"),
        (made(2, 3, 4, 5) - 0.5, None, "smallest weight"),
        (torch.ones(1, 1, 2, 2, dtype=torch.long), None, "floating point"),
    ],
)
def test_a_tensor_that_is_not_what_it_should_be(weights, axes, said):
    with pytest.raises(ShapeError, match=said):
        layers_of(weights, axes=axes)


def test_kinds_that_sum_to_something_else_are_said():
    assert layers_of(made(1, 2, 3, 3) * 0.7, kind="partial")[0].recipe.kind == "partial"
    assert layers_of(torch.randn(1, 2, 3, 3), kind="signed")[0].recipe.kind == "signed"


def test_a_row_of_nothing_is_a_row():
    weights = made(1, 1, 3, 3)
    weights[0, 0, 1] = 0.0
    assert len(layers_of(weights)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_half_precision_sum_roughly(dtype):
    assert len(layers_of(torch.randn(1, 2, 64, 64).softmax(-1).to(dtype))) == 1


def test_lists_records_recipes_and_traces():
    trace = encoder_decoder_trace()
    assert [layer.name for layer in layers_of(trace, part="cross")] == [trace[-1].name]
    assert len(layers_of(trace, part="encoder")) == 2 and len(layers_of(trace, part="decoder")) == 1
    record = trace[0]
    assert layers_of(record)[0].record is record
    assert len(layers_of([record, record.recipe, record.weights()])) == 3


@pytest.mark.parametrize(
    ("attention", "options", "said"),
    [
        ([], {}, "empty list"),
        ("weights", {}, "not a str"),
        (regard.Trace(), {}, "trace is empty"),
        (made(1, 1, 2, 2), {"part": "encoder"}, "has no parts"),
    ],
)
def test_what_is_refused(attention, options, said):
    with pytest.raises(RegardError, match=said):
        layers_of(attention, **options)


def test_parts_must_be_chosen_where_there_are_several():
    trace = encoder_decoder_trace()
    with pytest.raises(RegardError, match="part='encoder'"):
        layers_of(trace)
    with pytest.raises(RegardError, match="expected one of encoder"):
        layers_of(trace, part="middle")


def test_several_passes_must_be_chosen_from():
    model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(2):
            model(*[torch.randn(1, 3, 8)] * 3)
    with pytest.raises(RegardError, match=r"trace\.steps\[0\]"):
        layers_of(trace)
    assert len(layers_of(trace.steps[1])) == 1


def test_a_stack_has_one_size():
    with pytest.raises(ShapeError, match="3 queries × 5 keys"):
        stack_of(made(1, 1, 3, 5))
    with pytest.raises(ShapeError, match="expected batch 1, 3 positions"):
        stack_of([made(1, 1, 3, 3), made(1, 1, 4, 4)])


@pytest.mark.usefixtures("without_shape_checks")
def test_tokens():
    assert token_positions(None, 5) is None
    assert token_positions(-1, 5) == [4] and token_positions([0, -5], 5) == [0, 0]
    for bad in (5, -6, [1.5], []):
        with pytest.raises(RegardError, match="token="):
            token_positions(bad, 5)


def test_nothing_is_refused():
    for shape in ((0, 2, 3, 3), (1, 0, 3, 3), (1, 2, 0, 3), (1, 2, 3, 0)):
        with pytest.raises(ShapeError, match="there is nothing in an attention"):
            layers_of(torch.zeros(shape))


def test_axes_are_for_tensors():
    with pytest.raises(RegardError, match="a Trace knows its own"):
        layers_of(encoder_decoder_trace(), axes="head batch query key", part="cross")


@pytest.mark.usefixtures("without_shape_checks")
def test_words_that_are_none():
    weights = made(1, 2, 3, 3)
    with pytest.raises(RegardError, match="kind='distributon'"):
        layers_of(weights, kind="distributon")
    with pytest.raises(RegardError, match="expected words in a string"):
        layers_of(weights, axes=["head", "batch", "query", "key"])
    with pytest.raises(ShapeError, match="calls 'query' does"):
        layers_of(weights, axes="batch head key query")
    for token in ("she", 1.0):
        with pytest.raises(RegardError, match="expected a position"):
            token_positions(token, 5)


def test_what_a_mechanism_returns_is_no_layer_but_has_weights():
    attended = DotProduct()(torch.randn(1, 3, 4), weights=True)
    with pytest.raises(RegardError, match="not an Attended; its weights are such a tensor: att"):
        layers_of(attended)
    assert len(layers_of(attended.weights)) == 1
