"""`register_recipe`: how an operator that regard cannot know is read."""

import pytest
import torch
from capture_models import Attention, Custom, Stack, flash_attn, words

import regard
from regard.errors import RegardError
from regard.masks import pairs
from regard.recipe import Dot, Edges, Given

OVERLOAD = torch.ops.regard_tests.flash_attn.default
PACKET = torch.ops.regard_tests.flash_attn
NAME = "regard_tests::flash_attn"
WAYS = {"overload": OVERLOAD, "packet": PACKET, "definition": flash_attn, "name": NAME}
every_way = pytest.mark.parametrize("operator", WAYS.values(), ids=WAYS)


@pytest.fixture(autouse=True)
def _taken_back():
    yield
    regard.register_recipe(NAME, None)


def reads(args, kwargs, output):
    query, key, _, scale = args
    return Dot(query, key, scale=scale)


@every_way
@pytest.mark.parametrize("path", ["auto", "full"])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_registered_operator_is_read(operator, context, path):
    regard.register_recipe(operator, reads)
    model, x = Stack(Custom(), Attention()), words(2, 5, 8)
    with context(), regard.capture(model, path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.notes == [] and len(trace) == 6
    for record in trace[::2]:
        assert record.path == "layers.0" and record.operator == NAME
        torch.testing.assert_close(record.weights(), model.layers[0].weigh(x))


@every_way
def test_taken_back(operator):
    model, x = Custom(), words(2, 5, 8)
    regard.register_recipe(NAME, reads)
    regard.register_recipe(operator, None)
    with pytest.warns(regard.CaptureWarning, match=NAME), regard.capture(model) as trace:
        model(x)
    assert len(trace) == 0
    regard.register_recipe(operator, None)  # twice is fine


def test_the_last_registration_counts():
    model, x = Custom(), words(2, 5, 8)
    regard.register_recipe(NAME, lambda args, kwargs, output: None)
    regard.register_recipe(OVERLOAD, reads)
    assert len(regard.trace(model, x)) == 1


def test_it_is_known_to_the_next_capture():
    """Also where an earlier one has met the operator and learnt that it is unread."""
    model, x = Custom(), words(2, 5, 8)
    for _ in range(2):
        with pytest.warns(regard.CaptureWarning), regard.capture(model):
            model(x)
        regard.register_recipe(NAME, reads)
        assert len(regard.trace(model, x)) == 1
        regard.register_recipe(NAME, None)


def test_the_call_as_it_was():
    seen = []

    def looks(args, kwargs, output):
        seen.append((args, kwargs, output))
        return reads(args, kwargs, output)

    regard.register_recipe(NAME, looks)
    model, x = Custom(), words(2, 5, 8)
    with torch.no_grad(), regard.capture(model, outputs=True) as trace:
        out = model(x)
    ((args, kwargs, output),) = seen
    assert len(args) == 4 and args[3] == 0.5 and kwargs == {}
    torch.testing.assert_close(output.transpose(1, 2).flatten(2), out)
    torch.testing.assert_close(trace[0].output, output)


def test_a_call_that_does_not_attend():
    regard.register_recipe(NAME, lambda args, kwargs, output: None)
    model = Stack(Custom(), Attention())
    trace = regard.trace(model, words(2, 5, 8))
    assert trace.names() == ["layers.1"] and trace.notes == []


def test_options_hold_for_it():
    regard.register_recipe(NAME, lambda a, k, out: Dot(a[0], a[1], a[2], scale=a[3]))
    model, x = Stack(Custom(), Custom()), words(2, 5, 8)
    with torch.no_grad():
        expected = model.layers[0].weigh(x)
        with regard.capture(model, where=0) as some:
            model(x)
        with regard.capture(model, keep="weights") as kept:
            model(x)
        with regard.capture(model, keep=[regard.HeadMean()]) as reduced:
            model(x)
    assert some.names() == ["layers.0"]
    torch.testing.assert_close(kept[0].weights(), expected)
    torch.testing.assert_close(reduced[0].reductions[0], expected.mean(1))
    torch.testing.assert_close(some[0].mixed().transpose(1, 2).flatten(2), model.layers[0](x))


def test_detached_unless_attached():
    regard.register_recipe(NAME, reads)
    model, x = Custom(), words(2, 5, 8).requires_grad_()
    with regard.capture(model) as trace:
        model(x)
    assert not trace[0].weights().requires_grad
    with regard.capture(model, attached=True) as trace:
        model(x)
    truth = model.weigh(x)
    one, other = (torch.autograd.grad(w.square().sum(), x)[0] for w in (trace[0].weights(), truth))
    torch.testing.assert_close(one, other)


def test_given_weights_do():
    """A kernel that returns its weights: the recipe is those."""
    regard.register_recipe(NAME, lambda a, k, out: Given((a[0] @ a[1].mT * a[3]).softmax(-1), a[2]))
    model, x = Custom(), words(2, 5, 8)
    trace = regard.trace(model, x)
    torch.testing.assert_close(trace[0].weights(), model.weigh(x))


def test_self_or_cross():
    regard.register_recipe(NAME, reads)
    trace = regard.trace(Custom(), words(2, 5, 8))
    assert trace[0].attends in ("self", "unknown")
    assert trace.relabel({"Custom": "cross"})[0].attends == "cross"


@pytest.mark.parametrize(
    ("answer", "said"),
    [(3, "int"), (torch.ones(2), "Tensor"), ("Dot", "str")],
    ids=["number", "tensor", "text"],
)
def test_an_answer_that_is_no_recipe(answer, said):
    regard.register_recipe(NAME, lambda args, kwargs, output: answer)
    model, x = Custom(), words(2, 5, 8)
    expected = model(x)
    with (
        pytest.warns(regard.CaptureWarning, match=rf"{NAME}.*{said}.*Recipe"),
        regard.capture(model) as trace,
    ):
        out = model(x)
    assert torch.equal(out, expected)
    assert len(trace) == 0 and [note.kind for note in trace.notes] == ["error"]


def _mask(make):
    return lambda a: Dot(a[0], a[1], mask=make(torch.ones(2, 2, 5, 5, dtype=torch.bool)))


MISFITS = {
    "mask of three axes": (_mask(lambda m: m[0]), "mask has 3 axes (2, 5, 5), expected 4"),
    "mask of numbers": (_mask(lambda m: m.float()), "mask is torch.float32; a mask is boolean"),
    "mask of another length": (_mask(lambda m: pairs(m[..., :3])), "axis key has size 3"),
    "mask that is none": (_mask(lambda m: "causal"), "mask is str, not a Mask"),
    "matrix of three axes": (lambda a: Given(a[0][0]), "matrix has 3 axes (2, 5, 4), expected 4"),
    "matrix of whole numbers": (lambda a: Given(a[0].long()), "matrix is torch.int64, expected"),
    "query of three axes": (lambda a: Dot(a[0][0], a[1]), "query has 3 axes (2, 5, 4), expected 4"),
    "no key": (lambda a: Dot(a[0], None), "key is NoneType, expected a tensor"),
    "key of another batch": (
        lambda a: Dot(a[0], a[1][:1]),
        "key: axis batch has size 1, expected 2",
    ),
    "value of another batch": (
        lambda a: Dot(a[0], a[1], a[2][:1]),
        "value: axis batch has size 1, expected 2",
    ),
    "key of another width": (
        lambda a: Dot(a[0], a[1][..., :3]),
        "key: axis width has size 3, expected 4",
    ),
    "three key heads": (
        lambda a: Dot(a[0], a[1][:, [0, 1, 0]]),
        "key: axis head has size 3, expected a divisor of 2",
    ),
    "fewer values": (
        lambda a: Given(a[0].softmax(-1), a[2]),
        "value: axis key has size 5, expected 4",
    ),
    "bias of two axes": (
        lambda a: Dot(a[0], a[1], bias=torch.zeros(5, 5)),
        "bias has 2 axes (5, 5), expected 4",
    ),
    "sinks": (lambda a: Dot(a[0], a[1], sink=torch.zeros(3)), "sink has size 3, expected 2"),
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("answer", "said"), MISFITS.values(), ids=MISFITS)
def test_a_recipe_whose_parts_do_not_fit(answer, said):
    regard.register_recipe(NAME, lambda args, kwargs, output: answer(args))
    model, x = Custom(), words(2, 5, 8)
    with pytest.warns(regard.CaptureWarning), regard.capture(model) as trace:
        out = model(x)
    assert torch.equal(out, model(x)) and len(trace) == 0
    (note,) = trace.notes
    assert note.kind == "error" and NAME in note.text and said in note.text


@pytest.mark.usefixtures("without_shape_checks")
def test_a_boolean_mask_of_four_axes_does():
    allowed = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    regard.register_recipe(NAME, lambda a, k, out: Dot(a[0], a[1], mask=allowed, scale=a[3]))
    trace = regard.trace(Custom(), words(2, 5, 8))
    assert (trace[0].weights().masked_select(~allowed) == 0).all()
    torch.testing.assert_close(trace[0].weights().sum(-1), torch.ones(2, 2, 5))


def test_a_reader_that_fails():
    def fails(args, kwargs, output):
        raise ZeroDivisionError("in the reader")

    regard.register_recipe(NAME, fails)
    model, x = Stack(Custom(), Attention()), words(2, 5, 8)
    expected = model(x)
    with (
        pytest.warns(regard.CaptureWarning, match=r"layers\.0.*in the reader"),
        regard.capture(model) as trace,
    ):
        out = model(x)
    assert torch.equal(out, expected)
    assert trace.names() == ["layers.1"] and [note.kind for note in trace.notes] == ["error"]


def test_torchs_own_operators_can_be_read_otherwise():
    """An operator of aten that regard has no reader for."""
    name = "aten::cosine_similarity"
    regard.register_recipe(name, lambda args, kwargs, output: None)
    regard.register_recipe(name, None)


@pytest.mark.parametrize(
    "operator",
    ["flash_attn", "a::b::c", "", 3, None, torch.softmax, lambda x: x, ["a::b"]],
    ids=["no namespace", "three parts", "empty", "number", "None", "function", "lambda", "list"],
)
def test_what_is_no_operator(operator):
    with pytest.raises(RegardError, match=r"register_recipe: .*expected an operator or its name"):
        regard.register_recipe(operator, reads)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "wrong",
    [3, "reads", [reads], Dot(words(1, 1, 2, 4), words(1, 1, 2, 4))],
    ids=["number", "text", "list", "recipe"],
)
def test_what_is_no_reader(wrong):
    with pytest.raises(RegardError, match=r"register_recipe: .*expected a function"):
        regard.register_recipe(NAME, wrong)
    with pytest.warns(regard.CaptureWarning):  # nothing was registered
        regard.trace(Custom(), words(2, 5, 8))


def test_an_overload_by_name():
    regard.register_recipe("regard_tests::flash_attn.default", reads)
    assert len(regard.trace(Custom(), words(2, 5, 8))) == 1


def as_edges(args, kwargs, output):
    """Every pair as an edge."""
    weights = reads(args, kwargs, output).weights()
    query, key = (torch.cartesian_prod(torch.arange(5), torch.arange(5))).T
    return Edges(query[None, None], key[None, None], weights.flatten(2), 5, 5, args[2])


@pytest.mark.parametrize("keep", ["recipe", "weights", "folder"])
def test_an_operator_may_be_read_as_edges(tmp_path, keep):
    regard.register_recipe(NAME, as_edges)
    model, x = Custom(), words(2, 5, 8)
    with (
        torch.no_grad(),
        regard.capture(model, keep=tmp_path if keep == "folder" else keep, max_bytes=None) as trace,
    ):
        model(x)
    assert trace.notes == [] and trace[0].edges.weights.shape == (2, 2, 25)
    torch.testing.assert_close(trace[0].weights(), model.weigh(x))
    if keep == "weights":  # sparse, and not in the memory of the model
        assert isinstance(trace[0].recipe, Edges) and trace[0].recipe.value is None
