"""Laws of outputs and weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from regard.kernel.reducers import Entropy, HeadMean
from regard.recipe import per_head
from regard.testing.law import law
from regard.testing.laws_errors import refuses
from regard.testing.subject import Subject, Unchecked, call, close, largest, weights_of


@law("output is (batch, query, width), weights are (batch, head, query, key), None when not asked")
def shapes(subject: Subject) -> None:
    query, key, value = subject.inputs()
    module = subject.module()
    attended = call(module, query, key, value, weights=True)
    weights = weights_of(attended)
    assert attended.output.dim() == 3, f"output has {attended.output.dim()} axes, expected 3"
    assert attended.output.shape[:2] == query.shape[:2], (
        f"output is {tuple(attended.output.shape)}, expected {tuple(query.shape[:2])} and a width"
    )
    assert weights.dim() == 4, f"weights have {weights.dim()} axes, expected 4: the head axis too"
    expected = (query.shape[0], weights.shape[1], query.shape[1], key.shape[1])
    assert weights.shape == expected, f"weights are {tuple(weights.shape)}, expected {expected}"
    quiet = call(module, query, key, value)
    assert quiet.weights is None, "weights came although they were not asked for"
    assert quiet.recipe is None, "the recipe was kept although nothing was asked of it"


@law("rows sum as the declared kind says")
def row_sums(subject: Subject) -> None:
    weights = weights_of(call(subject.module(), *subject.inputs(), weights=True))
    kind, sums = subject.kind, weights.sum(-1)
    if subject.traits.hard:
        assert ((weights == 0) | (weights == 1)).all(), "a hard weight is neither 0 nor 1"
    if kind in ("distribution", "partial"):
        assert (weights >= 0).all(), (
            f"a {kind} has a negative weight, {float(weights.detach().min()):.3g}"
        )
    if kind == "distribution":
        close(sums, torch.ones_like(sums), 1e-6, "row sums of a distribution")
    elif kind == "partial":
        assert (sums <= 1 + 1e-6).all(), f"a partial row sums to {largest(sums):.6g}, above 1"
    else:
        raise Unchecked(f"rows of kind {kind!r} have no law for their sums")


@law("the recipe is of the kind that the module declares")
def declared_kind(subject: Subject) -> None:
    recipe = call(subject.module(), *subject.inputs(), weights=True).recipe
    if recipe is None:
        raise Unchecked("no recipe is kept")
    declared, kind = subject.kind, recipe.kind
    assert kind == declared, f"the module declares kind {declared!r}, its recipe is {kind!r}"


@law("the output is made with the returned weights: a value moves it as far as its weight says")
def weights_of_the_output(subject: Subject) -> None:
    """∂ output[q] / ∂ value[k] = Σₕ weights[h, q, k] Gₕ, where Gₕ is what projections make of a
    value: the same for every key. So for each query the gradient lies in the span of the weights.
    """
    if subject.traits.self_only:
        raise Unchecked("the module attends to itself only")
    module = subject.module()
    if subject.traits.points:
        attended = call(module, *subject.inputs(), weights=True)
        close(attended.output, weights_of(attended)[:, 0], 0.0, "the output, which is the weights")
        return
    subject.takes("value")
    heads = weights_of(call(module, *subject.inputs(), weights=True)).shape[1]
    keys = min(subject.sizes.keys + heads, subject.traits.longest or 2**30)
    query, key, value = subject.inputs(keys=keys)  # more keys than heads, or any gradient fits
    value = value.clone().requires_grad_()
    attended = call(module, query, key, value, weights=True)
    weights, output = weights_of(attended).detach(), attended.output
    assert output.requires_grad, "the output does not depend on `value`"
    random = torch.Generator().manual_seed(6)
    along = torch.randn(output.shape[-1], generator=random, dtype=torch.float64)
    for (example, row), number in _entries((output * along).sum(-1)):
        (gradient,) = torch.autograd.grad(number, value, retain_graph=True, allow_unused=True)
        attends = bool(weights[example, :, row].any())  # a hard choice may be of no key
        moved = gradient is not None and bool(gradient.any())
        assert moved or not attends, "the output does not depend on `value`"
        by_head = weights[example, :, row].mT.double()  # (key, head)
        spanned = by_head @ torch.linalg.pinv(by_head) @ gradient[example]
        what = "what the returned weights explain of the output's gradient by the values"
        close(spanned, gradient[example], 10 * subject.fine, what)


def _entries(matrix: Tensor) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """The entries of a (batch, query) tensor and where they are."""
    for example, row in itertools.product(*map(range, matrix.shape)):
        yield (example, row), matrix[example, row]


@law("an example's output and weights do not depend on the others of its batch")
def examples_apart(subject: Subject) -> None:
    alone, others = subject.inputs(), subject.inputs(seed=8)
    query, key, value = (torch.cat(pair) for pair in zip(alone, others))
    inputs = (query, query, query) if subject.traits.self_only else (query, key, value)
    module, batch = subject.module(), subject.sizes.batch
    want, got = (call(module, *given, weights=True) for given in (alone, inputs))
    close(got.output[:batch], want.output, subject.fine, "output beside other examples")
    close(weights_of(got)[:batch], weights_of(want), subject.fine, "weights beside other examples")


@law("in eval mode weights times values are the mixed values, and the recipe gives both again")
def weights_times_values(subject: Subject) -> None:
    attended = call(subject.module(), *subject.inputs(), weights=True)
    weights, recipe = weights_of(attended), attended.recipe
    if recipe is None or (recipe.value is None and not subject.traits.points):
        raise Unchecked("no recipe with values is kept, so the mixed values cannot be seen")
    close(recipe.weights(), weights, subject.fine, "recipe.weights()")
    mixed = weights
    if recipe.value is not None:
        mixed = weights @ per_head(recipe.value, weights.shape[1])
    close(recipe.mixed(), mixed, subject.fine, "mixed values")
    with torch.no_grad():
        close(recipe.mixed(), recipe.mixed(), 0.0, "recipe.mixed() asked twice")
        columns = slice(0, max(1, recipe.shape.keys // 2))
        close(
            recipe.weights(columns=columns),
            weights[..., columns],
            subject.fine,
            "a block of weights",
        )


@law("the output does not depend on whether weights or reductions are asked")
def asking_changes_nothing(subject: Subject) -> None:
    inputs = subject.inputs(torch.float32)
    for training in (False, True):
        outputs = []
        asked: list[dict[str, Any]] = [{}, {"weights": True}]
        if subject.reduces:
            asked.append({"reduce": [subject.reducer]})
        for options in asked:
            module = subject.module(torch.float32).train(training)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                outputs.append(call(module, *inputs, **options).output)
        for other in outputs[1:]:
            same = torch.equal(outputs[0], other)
            assert same, f"training={training}: the output moved when weights were asked"


@law("reductions equal the same question put to the full weights, detached, in the order asked")
def reductions(subject: Subject) -> None:
    inputs = subject.inputs()
    asked = [HeadMean(), subject.reducer]
    attended = call(subject.module(), *inputs, weights=True, reduce=asked)
    weights = weights_of(attended).detach()
    mean, other = attended.reductions
    close(mean, weights.mean(1), subject.fine, "HeadMean")
    assert not mean.requires_grad, "a reduction is still in the graph"
    if isinstance(asked[1], Entropy):
        entropy = -torch.xlogy(weights, weights).sum(-1)
        close(other, entropy, 10 * subject.fine, "Entropy")
        return
    close(other, weights.sum(2), 10 * subject.fine, "Received")
    refuses(lambda: call(subject.module(), *inputs, reduce=[Entropy()]), "Entropy", "logarithm")


@law("a number added to some scores by `bias` changes the weights, and one added to all does not")
def bias(subject: Subject) -> None:
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


@law("permuting the keys permutes the weights and leaves the output")
def key_permutation(subject: Subject) -> None:
    if subject.traits.order_matters or subject.traits.self_only:
        raise Unchecked("the module declares that order matters")
    query, key, value = subject.inputs()
    order = torch.randperm(key.shape[1], generator=torch.Generator().manual_seed(5))
    module = subject.module()
    before = call(module, query, key, value, weights=True)
    after = call(module, query, key[:, order], value[:, order], weights=True)
    want = before.output[..., order] if subject.traits.points else before.output
    close(after.output, want, subject.fine, "output after permuting the keys")
    close(
        weights_of(after),
        weights_of(before)[..., order],
        subject.fine,
        "weights after permuting the keys",
    )


@law("float32, float64 and bfloat16 agree, and the output keeps the dtype")
def dtypes(subject: Subject) -> None:
    truth = call(subject.module(), *subject.inputs(), weights=True)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 6e-2)):
        attended = call(subject.module(dtype), *subject.inputs(dtype), weights=True)
        assert attended.output.dtype == dtype, f"{dtype} in, {attended.output.dtype} out"
        close(attended.output, truth.output, tolerance, f"output in {dtype}")
        close(weights_of(attended), weights_of(truth), tolerance, f"weights in {dtype}")
