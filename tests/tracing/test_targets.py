"""Every target is found: so many sites, in this order, with these weights, output unchanged."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from targets import Case, Target, contexts, gaps, negatives, targets, unknown
from targets.comparing import close, compare, params, same, sampled

import regard


def explained(target: Target, case: Case) -> Any:
    """The output of a model without regard: weights that are right give it."""
    plain = case.run()
    if not target.name.startswith("autocast_"):  # its output has roundings that no formula gives
        assert case.expected is not None
        close(plain, case.expected)
    return plain


@pytest.mark.parametrize("target", params(targets()))
def test_found(target: Target) -> None:
    """Twice: the second capture may follow a plan that the first one learned."""
    with target.around():
        case = target.case()
        plain = explained(target, case)
        for _ in range(2):
            with regard.capture(case.model) as trace:
                output = case.run()
            if target.compiled:  # capture runs it eagerly: the last bits are those of eager models
                close(output, plain)
                with torch.compiler.set_stance("force_eager"):
                    same(output, case.run())
            else:
                same(output, plain)
            assert trace.notes == []
            compare(case, [record.weights() for record in trace])
            assert [tuple(record.shape) for record in trace] == [tuple(w.shape) for w in case.truth]
            assert case.attends is None or [record.attends for record in trace] == case.attends


#: How else a trace may hold what it saw.
KEPT: dict[str, dict[str, Any]] = {
    "weights": {"keep": "weights"},
    "disk": {},
    "reducers": {"keep": [regard.FullWeights()]},
    "gradients": {"grad": True},
    "values": {"values": True},
}


@pytest.mark.parametrize(
    "target", sampled(t for t in targets() if not t.compiled and t.group != "sizes")
)
def test_found_however_kept(target: Target, tmp_path: Path) -> None:
    """Weights are the same whatever is held, also where the model overwrites its tensors later."""
    with target.around():
        case = target.case()
        plain = case.run()
        for kept, options in KEPT.items():
            where = {"keep": tmp_path} if kept == "disk" else options
            with regard.capture(case.model, path="full", **where) as trace:
                output = case.run()
            same(output, plain)
            assert trace.notes == [], kept
            if kept == "reducers":
                compare(case, [record.reductions[0] for record in trace])
            else:
                compare(case, [record.weights() for record in trace])
        with regard.capture(case.model) as around, regard.capture(case.model) as inside:
            output = case.run()
        same(output, plain)
        for trace in (around, inside):
            assert trace.notes == [], "nested"
            compare(case, [record.weights() for record in trace])


def warned(target: Target, warning: str) -> Iterator[regard.Trace]:
    """Two traces of a target whose capture warns, and changes nothing."""
    case = target.case()
    plain = case.run() if target.group == "negatives" else explained(target, case)
    for _ in range(2):
        with pytest.warns(UserWarning, match=warning), regard.capture(case.model) as trace:
            output = case.run()
        same(output, plain)
        yield trace


@pytest.mark.parametrize("target", params(negatives()))
def test_nothing_found(target: Target) -> None:
    traces = list(warned(target, "no attention"))
    for trace in traces:
        assert len(trace) == 0
        assert all(note.kind == "empty" for note in trace.notes)
    assert traces[0].other_softmaxes == traces[1].other_softmaxes


@pytest.mark.parametrize("target", params(gaps()))
def test_what_is_missed_is_not_missed_silently(target: Target) -> None:
    """When one of these is found, it belongs with the targets."""
    for trace in warned(target, "regard.capture"):
        assert len(trace) == 0
        assert trace.notes


@pytest.mark.parametrize("target", params(unknown()))
def test_axes_that_cannot_be_told_are_said_to_be_unknown(target: Target) -> None:
    for trace in warned(target, "(is|are) not known"):
        assert not trace[0].site.axes_known
        with pytest.raises(regard.RegardError, match="with_axes"):
            trace[0].of_heads(0)


def test_a_wrong_truth_is_noticed() -> None:
    """The comparison can fail: on a number, on an axis, on the order and on the count."""
    case = next(t for t in targets() if t.name == "spelled_matmul").case()
    truth = case.truth[0]
    compare(case, [truth])
    for wrong in (
        [truth + 2e-5],
        [truth.flip(1)],
        [truth.transpose(1, 2)],
        [truth, truth],
        [truth * torch.nan],
        [],
    ):
        with pytest.raises(AssertionError):
            compare(case, wrong)
    with pytest.raises(AssertionError):
        compare(replace(case, truth=[truth.roll(1, -1)]), [truth])


def _rank(rank: int, folder: str) -> None:
    """One of two processes that train together: each captures its own part."""
    store = dist.FileStore(f"{folder}/store", 2)
    with contexts.process_group(rank, 2, store):
        for target in (t for t in targets() if t.name.startswith("ddp_")):
            case = target.case()
            plain = case.run()
            with regard.capture(case.model) as trace:
                output = case.run()
                output.square().sum().backward()
            same(output, plain)
            assert trace.notes == []
            compare(case, [record.weights() for record in trace])
            grads = [parameter.grad.clone() for parameter in case.model.parameters()]
            case.model.zero_grad()
            case.run().square().sum().backward()
            same(grads, [parameter.grad for parameter in case.model.parameters()])
            # gloo's threads hold what backward left in its context, and need Python to let it go:
            # a process group that ends meanwhile waits for them for ever.
            time.sleep(0.3)


def test_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
