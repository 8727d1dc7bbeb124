"""After a capture everything is as before: generated for every target and every way to end."""

import gc
import random
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.eval_frame as eval_frame
import torch.nn.functional as F
from targets import Case, Target, negatives, targets
from targets.comparing import params, same, sampled, tensors
from torch import Tensor, nn
from torch.nn.attention import flex_attention
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import regard

EVERY = [target for target in (*targets(), *negatives()) if target.group != "sizes"]


class Midway(Exception):
    """What a broken model raises."""


class Raises(nn.Module):
    """Runs the model, attention and all, and then fails."""

    def __init__(self, inner: Callable) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> None:
        self.inner(*args, **kwargs)
        raise Midway


def _raise(*_: Any, **__: Any) -> None:
    raise Midway


def _raising(case: Case, target: Target) -> Case:
    """The last part that the model calls fails; where none can be told, the model at its end."""
    called: list[nn.Module] = []
    if isinstance(case.model, nn.Module) and not target.compiled:
        hook = nn.modules.module.register_module_forward_pre_hook(lambda m, _: called.append(m))
        try:
            case.run()
        finally:
            hook.remove()
    parts = [m for m in called if not [*m.children()] and not isinstance(m, torch.jit.ScriptModule)]
    if parts and not any(isinstance(m, nn.TransformerEncoderLayer) for m in called):
        parts[-1].forward = _raise
        return case
    return replace(case, model=Raises(case.model))


def _bad(case: Case, _: Target) -> Case:
    """An input of the wrong width; words, where any width will do."""

    def widened(x: Any) -> Any:
        return F.pad(x, (0, 1)) if isinstance(x, Tensor) and x.is_floating_point() else x

    bad = replace(case, args=tuple(map(widened, case.args)))
    if _attempt(bad) is None:
        bad = replace(case, args=("words",) * len(case.args))
    assert _attempt(bad) is not None
    return bad


def _attempt(case: Case) -> type[Exception] | None:
    try:
        case.run()
    except Exception as error:
        return type(error)
    return None


def _of_torch() -> dict[str, Any]:
    """What a capture might turn, all over torch and Python."""
    module = nn.modules.module
    numpy_state = np.random.get_state()
    return {
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "function modes": _get_current_function_mode_stack(),
        **{
            name: list(value.items()) if isinstance(value, dict) else value
            for name, value in vars(module).items()
            if name.startswith("_global_")
        },
        "compiler stance": eval_frame._stance,
        "flex attention": flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG,
        "jit": torch._C._get_graph_executor_optimize(),
        "dtype and device": (torch.get_default_dtype(), torch.get_default_device()),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "backends": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
        ),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "saved tensors": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "hooks of Python": (sys.gettrace(), sys.getprofile(), threading.getprofile()),
        "collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "functions": [torch.softmax, torch.bmm, torch.matmul, F.softmax, F.linear, F.dropout],
        "attention": [F.scaled_dot_product_attention, F.multi_head_attention_forward],
        "methods": [nn.Module.__call__, nn.Module._call_impl, Tensor.softmax, Tensor.__matmul__],
        "other seeds": (random.getstate(), numpy_state[1].tolist(), numpy_state[2]),
    }


def _of_model(model: Any) -> dict[str, Any]:
    if not isinstance(model, nn.Module):
        return {"model": dict(vars(model))}
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        name: {
            "class": type(module),
            "attributes": sorted(vars(module)),
            "training": module.training,
            "hooks": {hook: list(getattr(module, hook).items()) for hook in hooks},
            "forward": vars(module).get("forward"),
        }
        for name, module in model.named_modules()
    }


def _parameters(model: Any) -> list[tuple[str, Tensor]]:
    if not isinstance(model, nn.Module):
        return []
    return [*model.named_parameters(), *model.named_buffers()]


def _of_parameters(model: Any) -> list[Any]:
    return [
        (name, p.data_ptr(), p._version, p.requires_grad, p.grad is None, type(p))
        for name, p in _parameters(model)
        if not p.is_inference()  # those have no version
    ]


def _everything(case: Case) -> dict[str, Any]:
    return {
        **_of_torch(),
        "modules": _of_model(case.model),
        "parameters": _of_parameters(case.model),
    }


ENDINGS = {"success": lambda case, _: case, "raises": _raising, "bad_input": _bad}


@pytest.mark.usefixtures("without_shape_checks")  # beartype draws from Python's random numbers
@pytest.mark.parametrize("target", sampled(EVERY))
def test_everything_is_as_before(target: Target) -> None:
    for ending in ENDINGS:
        _check_ending(target, ending)


def _check_ending(target: Target, ending: str) -> None:
    with target.around():
        case = target.case()
        case = ENDINGS[ending](case, target)
        expected = _attempt(case)
        assert (expected is None) == (ending == "success")
        draws = torch.get_rng_state()
        values = [p.detach().clone() for _, p in _parameters(case.model)]
        before = _everything(case)

        if target.compiled and expected is not None:
            expected = Exception  # the compiler wraps what the eager model raises
        ends = nullcontext() if expected is None else pytest.raises(expected)
        with ends, regard.capture(case.model):
            case.run()

        after = _everything(case)
        changed = {
            name: (before[name], after[name]) for name in before if before[name] != after[name]
        }
        assert changed == {}, ending
        assert ending != "success" or torch.equal(torch.get_rng_state(), draws)
        same([p.detach() for _, p in _parameters(case.model)], values)


def _eager(target: Target) -> AbstractContextManager[Any]:
    """As capture runs it. Two runs of an optimised model may differ in their last bits already."""
    if target.name.startswith("jit_"):
        return torch.jit.optimized_execution(False)
    return torch.compiler.set_stance("force_eager") if target.compiled else nullcontext()


def _grads(case: Case, output: Any) -> list[Tensor | None]:
    """Of every parameter and input, for a loss of every output that has a gradient."""
    inputs = [x for x in case.args if isinstance(x, Tensor) and x.requires_grad]
    over = [p for _, p in _parameters(case.model) if p.requires_grad] + inputs
    loss = sum(x.double().square().sum() for x in tensors(output) if x.requires_grad)
    return list(torch.autograd.grad(loss, over, allow_unused=True))


#: Nothing has a gradient here, or the gradients are part of the output already.
_NO_GRADS = ("function_", "functional_call_", "func_grad_", "backward_", "checkpoint", "quantised_")
_NO_GRADS += ("inference_mode_", "not_soft_argmax", "cache_written_in_place")
DIFFERENTIABLE = [
    target
    for target in EVERY
    if target.around not in (torch.no_grad, torch.inference_mode)
    and (not target.name.startswith(_NO_GRADS) or target.name == "not_soft_argmax_2d")
]


@pytest.mark.parametrize("target", sampled(DIFFERENTIABLE))
def test_gradients_are_the_same(target: Target) -> None:
    """Taken inside the capture, and after it."""
    with target.around():
        case = target.case()
        with _eager(target):
            plain = _grads(case, case.run())
        with regard.capture(case.model, path="full"):
            inside = _grads(case, case.run())
        with regard.capture(case.model, path="full"):
            output = case.run()
        with _eager(target):
            after = _grads(case, output)
    for grads in (inside, after):
        assert [g is None for g in grads] == [g is None for g in plain]
        assert any(g is not None for g in grads)
        same([g for g in grads if g is not None], [g for g in plain if g is not None])


@pytest.mark.parametrize("target", sampled(t for t in EVERY if t.group != "negatives"))
def test_nothing_is_kept_alive(target: Target) -> None:
    """When the trace is gone, no parameter and no input remembers it."""
    with target.around():
        case = target.case()
        with regard.capture(case.model) as trace:
            case.run()
        held = [*(p for _, p in _parameters(case.model)), *tensors([case.args, case.kwargs])]
        del trace
        for tensor in held:
            assert vars(tensor.untyped_storage()) == {}
            assert not tensor._backward_hooks


@pytest.mark.parametrize(
    "target", params(t for t in targets() if t.name.startswith("compile_eager_"))
)
def test_a_compiled_model_is_not_compiled_again(target: Target) -> None:
    case = target.case()
    case.run()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    with regard.capture(case.model):
        case.run()
    case.run()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
