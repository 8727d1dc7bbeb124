"""Laws of outputs and weights."""

from __future__ import annotations

import torch

from regard.kernel.reducers import Entropy, HeadMean
from regard.recipe import per_head
from regard.testing.law import law
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


@law("in eval mode weights times values are the mixed values, and the recipe gives both again")
def weights_times_values(subject: Subject) -> None:
    attended = call(subject.module(), *subject.inputs(), weights=True)
    weights, recipe = weights_of(attended), attended.recipe
    if recipe is None or recipe.value is None:
        raise Unchecked("no recipe with values is kept, so the mixed values cannot be seen")
    close(recipe.weights(), weights, 1e-9, "recipe.weights()")
    close(weights @ per_head(recipe.value, weights.shape[1]), recipe.mixed(), 1e-9, "mixed values")
    with torch.no_grad():
        close(recipe.mixed(), recipe.mixed(), 0.0, "recipe.mixed() asked twice")
        columns = slice(0, max(1, recipe.shape.keys // 2))
        close(recipe.weights(columns=columns), weights[..., columns], 1e-9, "a block of weights")


@law("the output does not depend on whether weights or reductions are asked")
def asking_changes_nothing(subject: Subject) -> None:
    inputs = subject.inputs(torch.float32)
    for training in (False, True):
        outputs = []
        for options in ({}, {"weights": True}, {"reduce": [Entropy()]}):
            module = subject.module(torch.float32).train(training)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                outputs.append(call(module, *inputs, **options).output)
        for other in outputs[1:]:
            same = torch.equal(outputs[0], other)
            assert same, f"training={training}: the output moved when weights were asked"


@law("reductions equal the same question put to the full weights, detached, in the order asked")
def reductions(subject: Subject) -> None:
    subject.takes("reduce")
    inputs = subject.inputs()
    attended = call(subject.module(), *inputs, weights=True, reduce=[HeadMean(), Entropy()])
    weights = weights_of(attended).detach()
    mean, entropy = attended.reductions
    close(mean, weights.mean(1), 1e-9, "HeadMean")
    close(entropy, -torch.xlogy(weights, weights).sum(-1), 1e-8, "Entropy")
    assert not mean.requires_grad, "a reduction is still in the graph"


@law("a number added to some scores by `bias` changes the weights, and one added to all does not")
def bias(subject: Subject) -> None:
    subject.takes("bias")
    query, key, value = subject.inputs()
    module = subject.module()
    plain = weights_of(call(module, query, key, value, weights=True))
    ramp = torch.linspace(-2, 2, key.shape[1], dtype=query.dtype)[None, None, None]
    tilted = weights_of(call(module, query, key, value, bias=ramp, weights=True))
    assert not torch.allclose(plain, tilted), "bias was accepted and never applied"
    if subject.kind == "distribution":
        shift = torch.full_like(ramp, 3.0)
        shifted = weights_of(call(module, query, key, value, bias=shift, weights=True))
        close(shifted, plain, 1e-9, "weights after adding one number to every score")


@law("permuting the keys permutes the weights and leaves the output")
def key_permutation(subject: Subject) -> None:
    if subject.traits.order_matters or subject.traits.self_only:
        raise Unchecked("the module declares that order matters")
    query, key, value = subject.inputs()
    order = torch.randperm(key.shape[1], generator=torch.Generator().manual_seed(5))
    module = subject.module()
    before = call(module, query, key, value, weights=True)
    after = call(module, query, key[:, order], value[:, order], weights=True)
    close(after.output, before.output, 1e-9, "output after permuting the keys")
    close(
        weights_of(after), weights_of(before)[..., order], 1e-9, "weights after permuting the keys"
    )


@law("float32, float64 and bfloat16 agree, and the output keeps the dtype")
def dtypes(subject: Subject) -> None:
    truth = call(subject.module(), *subject.inputs(), weights=True)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 6e-2)):
        attended = call(subject.module(dtype), *subject.inputs(dtype), weights=True)
        assert attended.output.dtype == dtype, f"{dtype} in, {attended.output.dtype} out"
        close(attended.output, truth.output, tolerance, f"output in {dtype}")
        close(weights_of(attended), weights_of(truth), tolerance, f"weights in {dtype}")
