"""Every module of `regard.memory` under laws that hold for all; members are discovered."""

import copy

import pytest
import torch
from memory_members import MEMBERS
from torch import nn
from torch.utils import _pytree

import regard.memory
from regard.errors import RegardError

LENGTH = 5


def members_where(condition):
    names = [name for name, member in MEMBERS.items() if condition(member)]
    return pytest.mark.parametrize("name", names)


members = members_where(lambda member: True)


def built(name, dtype=torch.float32):
    """A member whose parameters are all off their initial values, so that none is idle."""
    torch.manual_seed(0)
    module = MEMBERS[name].build()
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return module.to(dtype)


def inputs_of(name, batch=3, length=LENGTH, dtype=torch.float32):
    torch.manual_seed(1)
    return tuple(tensor.to(dtype) for tensor in MEMBERS[name].inputs(batch, length))


def leaves(answer):
    """Tensors of numbers in an answer, in order."""
    tensors = [part for part in _pytree.tree_leaves(answer) if isinstance(part, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def first(answer):
    return leaves(answer)[0]


def test_every_public_module_is_a_member():
    public = {getattr(regard.memory, name) for name in regard.memory.__all__}
    modules = {cls for cls in public if isinstance(cls, type) and issubclass(cls, nn.Module)}
    assert modules == {type(member.build()) for member in MEMBERS.values()}


@members
@torch.no_grad()
def test_dtypes(name):
    """The output has the input's dtype; half precision and float32 stay near float64."""
    member = MEMBERS[name]
    truth = first(built(name, torch.float64)(*inputs_of(name, dtype=torch.float64)))
    assert truth.dtype == torch.float64 and truth.isfinite().all()
    largest = truth.abs().max()
    for dtype, bound in (
        (torch.float32, member.tolerance),
        (torch.bfloat16, member.half_tolerance),
    ):
        output = first(built(name, dtype)(*inputs_of(name, dtype=dtype)))
        assert output.dtype == dtype
        assert (output.double() - truth).abs().max() <= bound * largest.clamp_min(1.0)


@members
@torch.no_grad()
def test_examples_do_not_meet(name):
    module, inputs = built(name, torch.float64), inputs_of(name, dtype=torch.float64)
    together = leaves(module(*inputs))
    for example in range(3):
        alone = leaves(module(*(tensor[example : example + 1] for tensor in inputs)))
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[example : example + 1], part)


@members
def test_an_empty_batch(name):
    module = built(name)
    output = first(module(*inputs_of(name, batch=0)))
    assert output.shape[0] == 0 and output.shape[1:] == first(module(*inputs_of(name))).shape[1:]
    output.sum().backward()
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in module.parameters()
    )


@members_where(lambda member: member.inputs(1, 2)[0].dim() == 3)
def test_an_empty_sequence(name):
    module, inputs = built(name), inputs_of(name, length=0)
    output = first(module(*inputs))
    assert output.shape[:2] == (3, 0)
    assert output.shape[2:] == first(module(*inputs_of(name))).shape[2:]


@members
def test_calls_repeat(name):
    """The same answer twice, in training with the same seed, and the module as it was."""
    module, inputs = built(name), inputs_of(name)
    before = copy.deepcopy(module.state_dict()), [tensor.clone() for tensor in inputs]
    for mode in (True, False):
        module.train(mode)
        answers = []
        for _ in range(2):
            torch.manual_seed(2)
            answers.append(leaves(module(*inputs)))
        assert all(map(torch.equal, *answers))
        assert module.training == mode
    assert all(map(torch.equal, before[0].values(), module.state_dict().values()))
    assert all(map(torch.equal, before[1], inputs))


@members_where(lambda member: member.weights)
def test_asking_changes_nothing(name):
    member = MEMBERS[name]
    module, inputs = built(name), inputs_of(name)
    asked = module(*inputs, weights=True)
    assert torch.equal(first(asked), first(module(*inputs)))
    weights = leaves(member.weights_of(asked))
    assert weights and all(tensor.dim() == 4 and tensor.isfinite().all() for tensor in weights)
    assert all(tensor.requires_grad for tensor in weights)
    none = module(*inputs_of(name, batch=0), weights=True)
    assert all(tensor.shape[0] == 0 for tensor in leaves(member.weights_of(none)))


@members_where(lambda member: member.recurrent)
@torch.no_grad()
def test_pieces_are_one_pass(name):
    module, (x,) = built(name), inputs_of(name, length=9)
    whole, outputs, state = module(x), [], None
    for piece in x.split([1, 1, 4, 3], dim=1):
        answer = module(piece, state=state)
        outputs.append(answer.output)
        state = answer.state
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole.output, rtol=1e-5, atol=1e-5)
    for got, want in zip(leaves(state), leaves(whole.state), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@members
def test_gradients_reach_every_parameter_and_input(name):
    module, inputs = built(name), inputs_of(name)
    inputs = tuple(tensor.requires_grad_() for tensor in inputs)
    first(module(*inputs)).square().sum().backward()
    for parameter in (*module.parameters(), *inputs):
        assert parameter.grad.isfinite().all() and parameter.grad.any()


@members
@torch.no_grad()
def test_copies_and_saved_parameters(name):
    module, inputs = built(name), inputs_of(name)
    other = MEMBERS[name].build()
    other.load_state_dict(module.state_dict())
    want = first(module(*inputs))
    assert torch.equal(first(other(*inputs)), want)
    assert torch.equal(first(copy.deepcopy(module)(*inputs)), want)
    assert type(module).__name__ in repr(module)


@members
@torch.no_grad()
def test_autocast(name):
    module, inputs = built(name), inputs_of(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = first(module(*inputs))
    assert (output - first(module(*inputs))).abs().max() <= 0.1 * output.abs().max().clamp_min(1.0)


@members
@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_input_is_named(name):
    module, inputs = built(name), inputs_of(name)
    axis = 1 if inputs[0].dim() == 4 else -1
    narrow = (inputs[0].narrow(axis, 0, inputs[0].shape[axis] - 1), *inputs[1:])
    with pytest.raises(RegardError, match=f"{type(module).__name__}.*size.*expected"):
        module(*narrow)
    with pytest.raises(
        RegardError, match=f"{type(module).__name__}.*float64.*the parameters are.*float32"
    ):
        module(inputs[0].double(), *inputs[1:])
    with pytest.raises(RegardError, match=f"{type(module).__name__}.*int64"):
        module(inputs[0].long(), *inputs[1:])


def compiled_members():
    """Compiling takes seconds: of each class the first form, and the others in the slow tests."""
    classes = set()
    for name, member in MEMBERS.items():
        cls = type(member.build())
        marks = [pytest.mark.compiled, *[pytest.mark.slow] * (cls in classes)]
        classes.add(cls)
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(compiled_members()))
def test_compiles(name):
    """Whole, with its weights. Steps are unrolled, so two of them tell as much as many."""
    module, inputs = built(name), inputs_of(name, length=2)
    options = {"weights": True} if MEMBERS[name].weights else {}
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        pairs = zip(leaves(compiled(*inputs, **options)), leaves(module(*inputs, **options)))
        for got, want in pairs:
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", list(compiled_members()))
def test_exports(name):
    module, inputs = built(name), inputs_of(name, length=2)
    program = torch.export.export(module, inputs, strict=False)
    for got, want in zip(leaves(program.module()(*inputs)), leaves(module(*inputs)), strict=True):
        torch.testing.assert_close(got, want)
