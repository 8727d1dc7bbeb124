"""A script for test_process_safety: one way to run a captured model, in a process of its own.

    python process_safety.py CONTEXT POSITION PATH

It fails where records are wrong, the output changes, or torch does not work afterwards.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from capture_models import Stack, fused, handmade, words
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import regard

aten = torch.ops.aten


class CountsOperators(TorchDispatchMode):
    """A mode of the user's, which must see what it would see without a capture.

    But for what a record needs to hold a tensor: `detach`, and a question about dtypes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func not in (aten.detach.default, aten.promote_types.default)
        return func(*args, **(kwargs or {}))


class CountsFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CONTEXTS = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "deterministic": deterministic,
    "dispatch_mode": CountsOperators,
    "function_mode": CountsFunctions,
}


def jvp(f, x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel of the CPU has no forward derivative
        return torch.func.jvp(f, (x,), (x,))[1]


#: Transforms of a function, in the place of a context.
TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x[None]),
    "jvp": jvp,
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x)[0],
    "jacrev": lambda f, x: torch.func.jacrev(lambda x: f(x).sum((0, 1)))(x),
}
POSITIONS = ("outside", "inside", "around_one")
PATHS = ("full", "auto", "fused")
PASSES = 4


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def is_inside(turn: int, position: str) -> bool:
    """Whether a pass runs in the context; one of several, or all of them."""
    return position != "around_one" or turn == 2


def run(model: nn.Module, x: Tensor, context: str, position: str, capturing) -> tuple:
    """Outputs of some passes, the trace, and what the user's mode counted."""
    if context in TRANSFORMS:
        return *run_transformed(model, x, TRANSFORMS[context], position, capturing), []
    around = CONTEXTS[context]() if position == "outside" else nullcontext()
    outputs, counted = [], []
    with around, capturing as trace:
        counted.append(around)
        if position == "inside":
            with CONTEXTS[context]() as around:
                outputs = [model(x) for _ in range(PASSES)]
                counted.append(around)
        else:
            for turn in range(PASSES):
                inside = position == "around_one" and is_inside(turn, position)
                with CONTEXTS[context]() if inside else nullcontext() as around:
                    outputs.append(model(x))
                    counted.append(around)
    return outputs, trace, [mode.count for mode in counted if hasattr(mode, "count")]


def run_transformed(model: nn.Module, x: Tensor, transform, position: str, capturing) -> tuple:
    """Outputs and the trace where a capture lies in the transformed function, or around it."""
    traces = []

    def passes(x: Tensor) -> Tensor:
        return sum(model(x) for _ in range(PASSES))

    def captured(x: Tensor) -> Tensor:
        with capturing as trace:
            traces.append(trace)
            return passes(x)

    if position == "outside":
        return [transform(captured, x)], traces[0]
    with capturing as trace:
        if position == "inside":
            return [transform(passes, x)], trace
        turns = range(PASSES)
        return [transform(model, x) if is_inside(t, position) else model(x) for t in turns], trace


def state() -> tuple:
    """What of the dispatcher a capture might leave behind."""
    return (
        str(torch._C._dispatch_tls_local_include_set()),
        str(torch._C._dispatch_tls_local_exclude_set()),
        _get_current_dispatch_mode_stack(),
        _get_current_function_mode_stack(),
        len(nn.modules.module._global_forward_pre_hooks),
        len(nn.modules.module._global_forward_hooks),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def torch_works() -> None:
    x = torch.randn(2, 2, 4, 8, requires_grad=True)
    x.softmax(-1).sum().backward()
    F.linear(x, torch.randn(3, 8)).exp().sum().item()
    F.scaled_dot_product_attention(x, x, x).sum().backward()
    with torch.inference_mode():
        F.scaled_dot_product_attention(x, x, x).add(1)
    torch.zeros(3).add_(1)
    model, x = fused(), words(2, 5, 8)
    with regard.capture(model) as trace:
        model(x)
    for record, truth in zip(trace, model.weigh(x), strict=True):
        torch.testing.assert_close(record.weights(), truth.detach())


def check(trace: regard.Trace, truth: list[Tensor], passes: list[int], tolerance: float) -> None:
    assert [record.step for record in trace] == [step for step in passes for _ in truth]
    for index, record in enumerate(trace):
        expected = truth[index % len(truth)]
        assert record.shape == expected.shape, (record.shape, expected.shape)
        torch.testing.assert_close(
            record.weights().float(), expected.float(), atol=tolerance, rtol=tolerance
        )


def unread(context: str, path: str) -> bool:
    """Where the fused path has no fused operator to read: it says so."""
    return path == "fused" and context in ("sdpa_kernel", "jvp")


def main(context: str, position: str, path: str) -> None:
    builds = [fused, handmade, encoder] if path != "fused" else [fused]
    for build in builds:
        torch.manual_seed(0)
        model, x = build().eval(), words(2, 5, 8)
        before = state()
        expected, _, counted = run(model, x, context, position, nullcontext())
        with torch.no_grad():
            if isinstance(model, Stack):
                truth = model.weigh(x)
            else:
                with regard.capture(model, path="full") as trace:
                    model(x)
                truth = [record.weights() for record in trace]
        missed = (
            [t for t in range(PASSES) if is_inside(t, position)] if unread(context, path) else []
        )
        for _ in range(2):  # the second capture begins with what the first one learned
            with warnings.catch_warnings():
                if missed:
                    warnings.simplefilter("ignore", regard.CaptureWarning)
                outputs, trace, seen = run(
                    model, x, context, position, regard.capture(model, path=path)
                )
            for output, plain in zip(outputs, expected, strict=True):
                assert torch.equal(output, plain)
            if context != "function_mode":  # a capture asks torch for this and that
                assert seen == counted, (seen, counted)
            steps = [step for step in range(PASSES) if step not in missed]
            check(trace, truth, steps, 2e-2 if context == "autocast" else 1e-5)
            assert bool(trace.notes) == bool(missed), trace.notes
            assert state() == before, (state(), before)
    torch_works()


if __name__ == "__main__":
    warnings.simplefilter("error", regard.CaptureWarning)
    main(*sys.argv[1:])
    print("fine")
