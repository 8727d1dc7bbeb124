"""Laws of outputs and weights."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.sets import SetBlock
from regard.contract import Attended
from regard.kernel.reducers import Entropy, HeadMean
from regard.recipe import Mixture, per_head
from regard.testing.assertions import Unchecked, close, finite_gradients, largest, refuses
from regard.testing.law import law
from regard.testing.subject import (
    BlockSubject,
    ImageSubject,
    MechanismSubject,
    Result,
    Subject,
    all_weights,
    attentions,
    call,
    last_name,
    weights_of,
)
from regard.tracing import capture
from regard.tracing.capture import CaptureWarning
from regard.types import Kind


@law(
    "output is (batch, query, width), weights are (batch, head, query, key), None when not asked",
    "mechanism",
)
def shapes(subject: MechanismSubject) -> None:
    query, key, value = subject.inputs()
    module = subject.module()
    attended = call(module, query, key, value, weights=True)
    weights = weights_of(attended)
    assert attended.output.dim() == 3, f"output has {attended.output.dim()} axes, expected 3"
    assert attended.output.shape[:2] == query.shape[:2], (
        f"output is {tuple(attended.output.shape)}, expected {tuple(query.shape[:2])} and a width"
    )
    _check_axes("weights", weights)
    expected = (query.shape[0], weights.shape[1], query.shape[1], key.shape[1])
    assert weights.shape == expected, f"weights are {tuple(weights.shape)}, expected {expected}"
    _check_unasked(call(module, query, key, value))


@law(
    "the output has x's shape, each attention is named, its weights have four axes",
    "block",
    name="shapes",
)
def block_shapes(subject: BlockSubject) -> None:
    inputs, module = subject.sides(), subject.module()
    x, result = inputs[0], subject.run(module, *inputs, weights=True)
    check_block_shape(subject, result.output, x, "a plain call")
    lengths = {"self": x.shape[1], "cross": inputs[-1].shape[1]}
    for label, weights in all_weights(result).items():
        name = last_name(label)
        assert name in lengths, f"an attention is named {name!r}, expected self or cross"
        _check_axes(label, weights)
        expected = (x.shape[0], weights.shape[1], x.shape[1], lengths[name])
        if subject.takes_sets:  # learned queries ask, or are asked, or both
            expected = (x.shape[0], *weights.shape[1:])
        assert weights.shape == expected, f"{label} are {tuple(weights.shape)}, expected {expected}"
    if subject.attends_itself:
        all_weights(result, "self")
    if subject.takes_context:
        all_weights(result, "cross")
    _check_unasked(subject.run(module, *inputs))


@law(
    "output is (batch, channel, height, width), weights are (batch, head, query, key), None when "
    "not asked",
    "image",
    name="shapes",
)
def image_shapes(subject: ImageSubject) -> None:
    image, module = subject.image(), subject.module()
    result = subject.run(module, image, weights=True)
    assert result.output.dim() == 4, f"output has {result.output.dim()} axes, expected 4"
    assert len(result.output) == len(image), f"{len(image)} images in, {len(result.output)} out"
    for label, weights in all_weights(result).items():
        _check_axes(label, weights)
        assert len(weights) == len(image), f"{label}: {len(weights)} images, expected {len(image)}"
    _check_unasked(subject.run(module, image))


def check_block_shape(subject: BlockSubject, output: Tensor, x: Tensor, what: str) -> None:
    """Fail where the output has not x's shape, or not as many positions as a set's module says."""
    module, got, want = subject.build(), tuple(output.shape), tuple(x.shape)
    if isinstance(module, SetBlock) and module.n_outputs is not None:
        got, want = got[:2], (want[0], module.n_outputs)  # its width is its own
    assert got == want, f"{what}: output is {got}, expected {want}"


def _check_axes(label: str, weights: Tensor) -> None:
    assert weights.dim() == 4, f"{label} have {weights.dim()} axes, expected 4: the head axis too"


def _check_unasked(result: Result) -> None:
    for label, attended in attentions(result).items():
        assert attended.weights is None, f"{label} came although they were not asked for"
        assert attended.recipe is None, f"{label}: a recipe was kept although nothing was asked"


@law("images that are not square, odd, or as small as the module says have their answer", "image")
def sizes(subject: ImageSubject) -> None:
    module, (rows, columns) = subject.module(), subject.smallest
    for height, width in ((rows, columns), (rows, columns + 3), (rows + 4, columns)):
        image = subject.image(height=height, width=width)
        result = subject.run(module, image, weights=True)
        for name, tensor in (("output", result.output), *all_weights(result).items()):
            assert tensor.isfinite().all(), f"{name} of a {height} × {width} image is not finite"
        if subject.kind == "gate":
            _check_gates(result, image, f"a {height} × {width} image")


@law("rows sum as the declared kind says", "mechanism")
def row_sums(subject: MechanismSubject) -> None:
    weights = weights_of(call(subject.module(), *subject.inputs(), weights=True))
    if subject.traits.hard:
        assert ((weights == 0) | (weights == 1)).all(), "a hard weight is neither 0 nor 1"
    if subject.kind not in ("distribution", "partial"):
        raise Unchecked(f"rows of kind {subject.kind!r} have no law for their sums")
    check_rows("weights", weights, subject.kind)


def check_rows(label: str, weights: Tensor, kind: Kind) -> None:
    """Fail where weights are not of a kind: their signs, the sums of their rows, a gate's bound."""
    least, sums = float(weights.detach().min()), weights.sum(-1)
    assert least >= 0 or kind == "signed", f"{label}: a {kind} has a negative weight, {least:.3g}"
    if kind == "distribution":
        close(sums, torch.ones_like(sums), 1e-6, f"{label}: row sums of a distribution")
    elif kind == "partial":
        assert (sums <= 1 + 1e-6).all(), f"{label}: a row sums to {largest(sums):.6g}, above 1"
    elif kind == "gate":
        most = largest(weights)
        assert most <= 1 + 1e-9, f"{label}: a gate has the weight {most:.3g}, expected at most 1"


@law("the recipe is of the kind that the module declares", "mechanism")
def declared_kind(subject: MechanismSubject) -> None:
    attended = call(subject.module(), *subject.inputs(), weights=True)
    if attended.recipe is None:
        raise Unchecked("no recipe is kept")
    _check_recipe_kinds(attended, subject.kind)


@law(
    "weights are as the declared kind says: gates from 0 to 1, rows of a distribution sum to 1",
    "image",
    name="declared_kind",
)
def image_declared_kind(subject: ImageSubject) -> None:
    for scale in (3.0, 1e3):  # a gate function without a bound may stay below 1 on a tame image
        result = subject.run(subject.module(), scale * subject.image(), weights=True)
        _check_recipe_kinds(result, subject.kind)
        for label, weights in all_weights(result).items():
            check_rows(label, weights, subject.kind)


def _check_recipe_kinds(result: Result, declared: Kind) -> None:
    for label, attended in attentions(result).items():
        if attended.recipe is not None:
            kind = attended.recipe.kind
            assert kind == declared, (
                f"the module declares kind {declared!r}, the recipe of {label} is {kind!r}"
            )


@law(
    "the output is made with the returned weights: a value moves it as far as its weight says",
    "mechanism",
)
def weights_of_the_output(subject: MechanismSubject) -> None:
    """∂ output[q] / ∂ value[k] = Σₕ weights[h, q, k] Gₕ, where Gₕ is what projections make of a
    value: the same for every key. So for each query the gradient lies in the span of the weights.
    Where values cannot be passed, the weights are compared with those that capture sees.
    """
    module = subject.module()
    if subject.traits.points:
        attended = call(module, *subject.inputs(), weights=True)
        close(attended.output, weights_of(attended)[:, 0], 0.0, "the output, which is the weights")
        return
    if subject.traits.self_only or not subject.takes_value:
        _check_captured(subject, module)
        return
    heads = weights_of(call(module, *subject.inputs(), weights=True)).shape[1]
    keys = min(subject.sizes.keys + heads, subject.traits.longest or 2**30)
    query, key, value = subject.inputs(keys=keys)  # more keys than heads, or any gradient fits
    value = value.clone().requires_grad_()
    attended = call(module, query, key, value, weights=True)
    weights, output = weights_of(attended).detach(), attended.output
    assert output.requires_grad, "the output does not depend on `value`"
    random = torch.Generator().manual_seed(6)
    direction = torch.randn(output.shape[-1], generator=random, dtype=torch.float64)
    projected = (output * direction).sum(-1)  # (batch, query)
    for example, row in itertools.product(*map(range, projected.shape)):
        (gradient,) = torch.autograd.grad(
            projected[example, row], value, retain_graph=True, allow_unused=True
        )
        attends = bool(weights[example, :, row].any())  # a hard choice may be of no key
        moved = gradient is not None and bool(gradient.any())
        assert moved or not attends, "the output does not depend on `value`"
        by_head = weights[example, :, row].mT.double()  # (key, head)
        spanned = by_head @ torch.linalg.pinv(by_head) @ gradient[example]
        what = "what the returned weights explain of the output's gradient by the values"
        close(spanned, gradient[example], 10 * subject.fine, what)


def _check_captured(subject: MechanismSubject, module: nn.Module) -> None:
    """Compare the weights with those of the one attention that capture sees."""
    inputs = subject.inputs()
    weights = weights_of(call(module, *inputs, weights=True))
    with warnings.catch_warnings(), torch.no_grad(), capture(module) as trace:
        warnings.simplefilter("ignore", CaptureWarning)  # what it cannot see is said below
        call(module, *inputs)
    if len(trace) != 1 or tuple(trace[0].shape) != tuple(weights.shape):
        raise Unchecked(
            f"forward takes no `value`, and capture saw {len(trace)} attentions, expected one of "
            f"{tuple(weights.shape)}"
        )
    close(weights, trace[0].weights(), subject.fine, "the returned weights, as capture sees them")


@law(
    "the returned weights are those that made the output, as capture sees them",
    "block",
    name="weights_of_the_output",
)
def block_weights_of_the_output(subject: BlockSubject) -> None:
    subject.needs_scores("capture sees no weights there")
    inputs, module = subject.sides(), subject.module()
    result = subject.run(module, *inputs, weights=True)
    returned = all_weights(result)
    if any(isinstance(attended.recipe, Mixture) for attended in result.attentions.values()):
        raise Unchecked("capture sees the attentions that a mixture is made of, one by one")
    with torch.no_grad(), capture(module) as trace:
        subject.run(module, *inputs)
    if len(trace) != len(returned):
        raise Unchecked(f"capture saw {len(trace)} attentions, {len(returned)} were returned")
    for record, (label, weights) in zip(trace, returned.items()):
        captured = record.weights()[..., -weights.shape[-1] :]  # a sink is one more key in front
        close(weights, captured, subject.fine, f"{label}, against those of {record.name}")


@law("a gate's output is the image times the returned weights, by channel or position", "image")
def gates_multiply(subject: ImageSubject) -> None:
    if subject.kind != "gate":
        raise Unchecked(f"weights of kind {subject.kind!r} are not factors of the image")
    image = subject.image()
    _check_gates(subject.run(subject.module(), image, weights=True), image, "the image")


def _check_gates(result: Result, image: Tensor, what: str) -> None:
    """Fail unless the output is the image times every gate of the result.

    A gate (batch, 1, 1, channel) is of channels, (batch, 1 or channel, 1, height · width) of
    positions; which of the two the recipe's grid says, or else the number of keys.
    """
    batch, channels, height, width = image.shape
    want = image
    for label, attended in attentions(result).items():
        weights = weights_of(attended, label)
        grid = getattr(attended.recipe, "grid", None)
        of_positions = weights.shape[3] != channels if attended.recipe is None else grid is not None
        if of_positions:
            assert grid is None or tuple(grid) == (height, width), (
                f"{label}: the grid is {grid}, expected {(height, width)}"
            )
            expected: tuple[int, ...] = (batch, weights.shape[1], 1, height * width)
        else:
            expected = (batch, 1, 1, channels)
        assert weights.shape == expected and weights.shape[1] in (1, channels), (
            f"{label} are {tuple(weights.shape)}, expected (batch, 1, 1, channel), or (batch, 1 or "
            f"channel, 1, height · width): {expected}"
        )
        whole = (batch, -1, height, width) if of_positions else (batch, channels, 1, 1)
        want = want * weights.reshape(whole)
    close(result.output, want, 1e-9, f"{what}: output against the image times the gates")


@law(
    "in eval mode weights times values are the mixed values, and the recipe gives both again",
    "mechanism",
)
def weights_times_values(subject: MechanismSubject) -> None:
    attended = call(subject.module(), *subject.inputs(), weights=True)
    weights, recipe = weights_of(attended), attended.recipe
    if recipe is None or (recipe.value is None and not subject.traits.points):
        raise Unchecked(_NO_VALUES)
    close(recipe.weights(), weights, subject.fine, "recipe.weights()")
    mixed = weights
    if recipe.value is not None:
        mixed = weights @ per_head(recipe.value, weights.shape[1])
    close(recipe.mixed(), mixed, subject.fine, "mixed values")
    with torch.no_grad():
        close(recipe.mixed(), recipe.mixed(), 0.0, "recipe.mixed() asked twice")
        half = slice(0, max(1, recipe.shape.keys // 2))
        block = recipe.weights(columns=half)
        close(block, weights[..., half], subject.fine, "a block of weights")


@law("the returned weights times the recipe's values are its mixed values", "image")
def mixes(subject: ImageSubject) -> None:
    for label, attended in _mixing(subject, subject.image())[1].items():
        recipe, weights = attended.recipe, attended.weights
        assert recipe is not None and recipe.value is not None and weights is not None
        values = per_head(recipe.value, weights.shape[1])
        close(recipe.mixed(), weights @ values, subject.fine, f"mixed values of {label}")


@law("the output of a position is a linear map of its mixed values, plus one of the image", "image")
def output_of_mixed(subject: ImageSubject) -> None:
    image = subject.image(batch=16)
    result, mixing = _mixing(subject, image)
    if result.output.shape[2:] != image.shape[2:] or len(mixing) > 1:
        raise Unchecked(f"{len(mixing)} attentions, output {tuple(result.output.shape)}")
    (attended,) = mixing.values()
    assert attended.recipe is not None
    mixed = attended.recipe.mixed().detach().transpose(1, 2).flatten(2)
    columns = [mixed, image.flatten(2).mT, mixed.new_ones(*mixed.shape[:2], 1)]
    features = torch.cat(columns, 2).flatten(0, 1)  # (batch · position, features of both, and 1)
    positions, width = features.shape
    if positions < 2 * width:
        raise Unchecked(f"{positions} positions are too few for {width} features")
    output = result.output.detach().flatten(2).mT.flatten(0, 1)
    # gelsd: features may depend on each other, as mixed values of a single position on its image
    linear = torch.linalg.lstsq(features, output, driver="gelsd").solution
    close(output, features @ linear, 1e-6, "output against the best linear map of the mixed values")


_NO_VALUES = "no recipe with values is kept, so the mixed values cannot be seen"


def _mixing(subject: ImageSubject, image: Tensor) -> tuple[Result, dict[str, Attended]]:
    """A result, and those of its attentions whose recipes have values to mix."""
    if subject.kind == "gate":
        raise Unchecked("a gate multiplies; it mixes no values")
    result = subject.run(subject.module(), image, weights=True)
    mixing = {
        label: attended
        for label, attended in attentions(result).items()
        if attended.recipe is not None and attended.recipe.value is not None
    }
    if not mixing:
        raise Unchecked(_NO_VALUES)
    return result, mixing


@law("results for an example do not depend on the rest of its batch", "mechanism", "image")
def examples_apart(subject: Subject) -> None:
    alone, others = subject.sample(), subject.sample(seed=8)
    together = [torch.cat([first, 2 * second]) for first, second in zip(alone, others)]
    module, batch = subject.module(), subject.sizes.batch
    want, got = (subject.run(module, *inputs, weights=True) for inputs in (alone, together))
    close(got.output[:batch], want.output, subject.fine, "output beside other examples")
    beside = all_weights(got)
    for label, weights in all_weights(want).items():
        close(beside[label][:batch], weights, subject.fine, f"{label} beside other examples")


@law(
    "the output does not depend on whether weights or reductions are asked",
    "mechanism",
    "block",
    "image",
)
def asking_changes_nothing(subject: Subject) -> None:
    inputs = subject.sample(torch.float32)
    questions: list[dict[str, Any]] = [{}, {"weights": True}]
    if subject.reduces:
        questions.append({"reduce": [subject.reducer]})
    for training in (False, True):
        outputs = []
        for options in questions:
            module = subject.module(torch.float32).train(training)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                outputs.append(subject.run(module, *inputs, **options).output)
        for options, output in zip(questions, outputs):
            same = torch.equal(outputs[0], output)
            assert same, f"training={training}: the output moved when {list(options)} was asked"


@law(
    "reductions equal the same question put to the full weights, detached, in the order asked",
    "mechanism",
    "block",
    "image",
)
def reductions(subject: Subject) -> None:
    subject.takes("reduce")
    inputs, reducer = subject.sample(), subject.reducer
    result = subject.run(subject.module(), *inputs, weights=True, reduce=[HeadMean(), reducer])
    for label, attended in attentions(result).items():
        weights = weights_of(attended, label).detach()
        assert attended.recipe is not None, f"{label}: no recipe was kept although it was asked"
        close(attended.recipe.weights(), weights, subject.fine, f"recipe.weights() of {label}")
        mean, other = attended.reductions
        close(mean, weights.mean(1), subject.fine, f"HeadMean of {label}")
        assert not mean.requires_grad, f"a reduction of {label} is still in the graph"
        entropy = isinstance(reducer, Entropy)
        want = -torch.xlogy(weights, weights).sum(-1) if entropy else weights.sum(2)
        close(other, want, 10 * subject.fine, f"{type(reducer).__name__} of {label}")
    if subject.kind in ("signed", "gate"):
        entropy_of = lambda: subject.run(subject.module(), *inputs, reduce=[Entropy()])
        refuses(entropy_of, "Entropy", "logarithm")


@law(
    "a number added to some scores by `bias` changes the weights, and one added to all does not",
    "mechanism",
)
def bias(subject: MechanismSubject) -> None:
    query, key, value = subject.inputs()
    module = subject.module()
    plain = weights_of(call(module, query, key, value, weights=True))
    ramp = torch.linspace(-2, 2, key.shape[1], dtype=query.dtype)[None, None, None]
    if not subject.traits.scored:
        refuses(lambda: call(module, query, key, value, bias=ramp), "bias", "scores")
        return
    tilted = weights_of(call(module, query, key, value, bias=ramp, weights=True))
    assert not torch.allclose(plain, tilted), "bias was accepted and never applied"
    if subject.kind == "distribution":
        shift = torch.full_like(ramp, 3.0)
        shifted = weights_of(call(module, query, key, value, bias=shift, weights=True))
        close(shifted, plain, subject.fine, "weights after adding one number to every score")


@law("permuting the keys permutes the weights and leaves the output", "mechanism")
def key_permutation(subject: MechanismSubject) -> None:
    if subject.traits.order_matters or subject.traits.self_only:
        raise Unchecked("the module declares that order matters")
    query, key, value = subject.inputs()
    order = torch.randperm(key.shape[1], generator=torch.Generator().manual_seed(5))
    module = subject.module()
    before = call(module, query, key, value, weights=True)
    after = call(module, query, key[:, order], value[:, order], weights=True)
    want = before.output[..., order] if subject.traits.points else before.output
    close(after.output, want, subject.fine, "output after permuting the keys")
    permuted = weights_of(before)[..., order]
    close(weights_of(after), permuted, subject.fine, "weights after permuting the keys")


@law(
    "float32, float64 and bfloat16 agree, and the output keeps the dtype",
    "mechanism",
    "block",
    "image",
)
def dtypes(subject: Subject) -> None:
    truth = subject.run(subject.module(), *subject.sample(), weights=True)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, subject.coarse)):
        result = subject.run(subject.module(dtype), *subject.sample(dtype), weights=True)
        assert result.output.dtype == dtype, f"{dtype} in, {result.output.dtype} out"
        _check_near(result, truth, tolerance, f"in {dtype}")


@law("autocast: inputs of either dtype, output and weights near those in full", "block", "image")
def autocast(subject: Subject) -> None:
    """Layers hand bfloat16 on, while the context and the first layer's x stay float32."""
    truth = subject.run(subject.module(), *subject.sample(), weights=True)
    inputs = subject.sample(torch.float32)
    for halves in itertools.product((False, True), repeat=len(inputs)):
        module = subject.module(torch.float32)
        mixed = [x.bfloat16() if half else x for half, x in zip(halves, inputs)]
        what = f"of {' and '.join(str(x.dtype) for x in mixed)} under autocast"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = subject.run(module, *mixed, weights=True)
            loss = result.output.square().sum()
        _check_near(result, truth, subject.coarse, what)
        finite_gradients(module, loss, what)


def _check_near(result: Result, truth: Result, tolerance: float, what: str) -> None:
    close(result.output, truth.output, tolerance, f"output {what}")
    wanted = all_weights(truth)
    for label, weights in all_weights(result).items():
        close(weights, wanted[label], tolerance, f"{label} {what}")
