"""Laws of blocks: outputs and the weights inside."""

from __future__ import annotations

import itertools

import torch

from regard.kernel.reducers import HeadMean, ReceivedAttention
from regard.recipe import Mixture
from regard.testing.block_law import (
    all_weights,
    attends_itself,
    block_law,
    check_shape,
    finite_gradients,
    needs_scores,
    run,
    sides,
    takes_context,
    takes_sets,
)
from regard.testing.subject import Subject, Unchecked, close
from regard.tracing import capture


@block_law("the output has x's shape, each attention is named, its weights have four axes")
def shapes(subject: Subject) -> None:
    inputs, module = sides(subject), subject.module()
    x, blocked = inputs[0], run(module, *inputs, weights=True)
    check_shape(subject, blocked.output, x, "a plain call")
    lengths = {"self": x.shape[1], "cross": inputs[-1].shape[1]}
    for name, weights in all_weights(blocked).items():
        kind = name.split(".")[-1]
        assert kind in lengths, f"an attention is named {name!r}, expected self or cross"
        assert weights.dim() == 4, f"weights of {name} have {weights.dim()} axes, expected 4"
        expected = (x.shape[0], weights.shape[1], x.shape[1], lengths[kind])
        if takes_sets(subject):  # learned queries ask, or are asked, or both
            expected = (x.shape[0], *weights.shape[1:])
        assert weights.shape == expected, (
            f"weights of {name} are {tuple(weights.shape)}, expected {expected}"
        )
    if attends_itself(subject):
        all_weights(blocked, "self")
    if takes_context(subject):
        all_weights(blocked, "cross")
    for name, attended in run(module, *inputs).attentions.items():
        assert attended.weights is None, f"weights of {name} came although they were not asked"
        assert attended.recipe is None, f"the recipe of {name} was kept although nothing was asked"


@block_law("reductions of every attention are those of its weights")
def reductions(subject: Subject) -> None:
    subject.takes("reduce")
    inputs, module = sides(subject), subject.module()
    blocked = run(module, *inputs, weights=True, reduce=[ReceivedAttention(), HeadMean()])
    for name, weights in all_weights(blocked).items():
        received, mean = blocked.attentions[name].reductions
        close(received, weights.sum(2), 1e-9, f"Received of {name}")
        close(mean, weights.mean(1), 1e-9, f"HeadMean of {name}")
    plain = run(module, *inputs).output
    assert torch.equal(blocked.output, plain), "the output moved when reductions were asked"


@block_law("the output does not depend on whether weights are asked, in training neither")
def asking_changes_nothing(subject: Subject) -> None:
    inputs = sides(subject, torch.float32)
    for training in (False, True):
        outputs = []
        for options in ({}, {"weights": True}):
            module = subject.module(torch.float32).train(training)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                outputs.append(run(module, *inputs, **options).output)
        same = torch.equal(*outputs)
        assert same, f"training={training}: the output moved when weights were asked"


@block_law("the returned weights are those that made the output, as capture sees them")
def weights_of_the_output(subject: Subject) -> None:
    needs_scores(subject, "capture sees no weights there")
    inputs, module = sides(subject), subject.module()
    blocked = run(module, *inputs, weights=True)
    returned = all_weights(blocked)
    if any(isinstance(attended.recipe, Mixture) for attended in blocked.attentions.values()):
        raise Unchecked("capture sees the attentions that a mixture is made of, one by one")
    with torch.no_grad(), capture(module) as trace:
        run(module, *inputs)
    seen = list(trace)
    if len(seen) != len(returned):
        raise Unchecked(f"capture saw {len(seen)} attentions, {len(returned)} were returned")
    for record, (name, weights) in zip(seen, returned.items()):
        here = record.weights()[..., -weights.shape[-1] :]  # a sink is one more key in front
        close(weights, here, 1e-9, f"weights of {name}, against those of {record.name}")


@block_law("returned weights are those before dropout")
def weights_before_dropout(subject: Subject) -> None:
    """In training the first attention sees what it sees in eval, unless the input is dropped."""
    inputs, module = sides(subject), subject.module()
    in_eval = all_weights(run(module, *inputs, weights=True))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        in_training = all_weights(run(module.train(), *inputs, weights=True))
    first = next(iter(in_eval))
    close(in_training[first], in_eval[first], 1e-9, f"weights of {first} in training")
    for name, weights in in_training.items():
        touched = (weights == 0) & (in_eval[name] > 0)
        assert not touched.any(), f"weights of {name} are 0 where dropout fell"


@block_law("float32, float64 and bfloat16 agree, and the output keeps the dtype")
def dtypes(subject: Subject) -> None:
    truth = run(subject.module(), *sides(subject), weights=True)
    wanted = all_weights(truth)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 8e-2)):
        blocked = run(subject.module(dtype), *sides(subject, dtype), weights=True)
        assert blocked.output.dtype == dtype, f"{dtype} in, {blocked.output.dtype} out"
        close(blocked.output, truth.output, tolerance, f"output in {dtype}")
        for name, weights in all_weights(blocked).items():
            close(weights, wanted[name], tolerance, f"weights of {name} in {dtype}")


@block_law("autocast: x and context of either dtype, outputs and weights near those in full")
def autocast(subject: Subject) -> None:
    """Layers hand bfloat16 on, while the context and the first layer's x stay float32."""
    truth = run(subject.module(), *sides(subject), weights=True)
    wanted, inputs = all_weights(truth), sides(subject, torch.float32)
    for low in itertools.product((False, True), repeat=len(inputs)):
        module = subject.module(torch.float32)
        given = [x.bfloat16() if half else x for half, x in zip(low, inputs)]
        what = " and ".join(str(x.dtype) for x in given)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            blocked = run(module, *given, weights=True)
            loss = blocked.output.square().sum()
        close(blocked.output, truth.output, 8e-2, f"output of {what} under autocast")
        for name, weights in all_weights(blocked).items():
            close(weights, wanted[name], 8e-2, f"weights of {name} of {what} under autocast")
        finite_gradients(module, loss, f"{what} under autocast")
