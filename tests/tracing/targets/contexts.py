"""One small model, hand-written and fused, run in every way that people run models."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import Case, Target, dense
from .small import BATCH, HEADS, LENGTH, WIDTH, Checkpointed, CustomLayer, Layer, small
from .small import truth as truth_of

Change = Callable[[nn.Sequential], Any]


def _case(
    fused: bool,
    change: Change = lambda model: model,
    call: Callable[[Case], Any] | None = None,
    grad: bool = False,
    tolerance: float = 1e-5,
    layer: Callable[..., Layer] = Layer,
) -> Case:
    layers = small(fused, layer).eval()
    x = (torch.randn(BATCH, LENGTH, WIDTH) * 2).requires_grad_(grad)
    truth, expected = truth_of(layers, x)
    return Case(change(layers), (x,), {}, truth, expected, tolerance, call)


# Ways to run.


def _forward(case: Case) -> Any:
    return case.model.forward(*case.args)


def _in_thread(case: Case) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(case.model, *case.args).result()


def _inference_inside(case: Case) -> Any:
    with torch.inference_mode():
        return case.model(*case.args)


def _vmap(case: Case) -> Any:
    return torch.func.vmap(case.model)(*case.args)


def _backward(case: Case) -> Any:
    """`.backward()`, which re-entrant checkpoints need; gradients are part of the output."""
    case.model.zero_grad(set_to_none=True)
    output = case.model(*case.args)
    output.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in case.model.parameters()]
    case.model.zero_grad(set_to_none=True)
    case.args[0].grad = None
    return (output.detach(), *grads)


def _func_grad(case: Case) -> Any:
    parameters = dict(case.model.named_parameters())

    def loss(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        output = torch.func.functional_call(case.model, values, case.args)
        return output.square().sum(), output

    grads, output = torch.func.grad(loss, has_aux=True)(parameters)
    return (output, *grads.values())


def _functional(fused: bool) -> Case:
    """The model's own parameters are empty; what runs is handed in."""
    case = _case(fused)
    parameters = {name: p.detach().clone() for name, p in case.model.named_parameters()}
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.zero_()

    def call(case: Case) -> Any:
        prefix = "" if isinstance(case.model, nn.Sequential) else "inner."  # wrapped by a test
        values = {prefix + name: value for name, value in parameters.items()}
        return torch.func.functional_call(case.model, values, case.args)

    return Case(case.model, case.args, {}, case.truth, case.expected, call=call)


def _twice(case: Case) -> Any:
    return case.model(*case.args), case.model(*case.args)


def _called_twice(fused: bool) -> Case:
    case = _case(fused)
    both = (case.expected, case.expected)
    return Case(case.model, case.args, {}, case.truth * 2, both, call=_twice)


def _shared(fused: bool) -> Case:
    """One layer that is two: as in ALBERT."""
    layer, x = Layer(fused), torch.randn(BATCH, LENGTH, WIDTH)
    truth, expected = truth_of([layer, layer], x)
    return Case(nn.Sequential(layer, layer), (x,), {}, truth, expected)


def _function(fused: bool) -> Case:
    """Not a module at all."""
    case = _case(fused)
    layers = case.model

    def function(x: Tensor) -> Tensor:
        return layers(x)

    return Case(function, case.args, {}, case.truth, case.expected)


@torch.no_grad()
def _autocast(fused: bool) -> Case:
    """Truth from the bfloat16 projections; next layers get what this run of a layer gives."""
    layers, x, truth = small(fused).eval(), torch.randn(BATCH, LENGTH, WIDTH), []
    y = x
    with torch.autocast("cpu", torch.bfloat16):
        for layer in layers:
            query, key = (dense.heads(p(y).float(), HEADS) for p in (layer.query, layer.key))
            truth.append(dense.weights(query, key))
            y = layer(y)
    # Hand-written scores are rounded to bfloat16, by 2**-8 below 2; see `spellings`.
    return Case(layers, (x,), {}, truth, tolerance=1e-5 if fused else 2.0**-8)


def _quantised(fused: bool) -> Case:
    """The truth is that of the quantised projections, which only run in the operator itself."""
    layers = torch.ao.quantization.quantize_dynamic(small(fused).eval(), {nn.Linear})
    x = torch.randn(BATCH, LENGTH, WIDTH) * 2
    truth, expected = truth_of(layers, x)
    return Case(layers, (x,), {}, truth, expected)


def _normed(model: nn.Sequential) -> nn.Sequential:
    """Parameters that are computed at every call."""
    for layer in model:
        for projection in (layer.query, layer.key, layer.value):
            nn.utils.parametrizations.weight_norm(projection)
    return model


def _trace(model: nn.Sequential, warm: bool) -> Any:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    traced = torch.jit.trace(model, (x,), check_trace=False)
    for _ in range(3 if warm else 0):  # the executor specialises what has run twice
        traced(x)
    return traced


def _script(model: nn.Sequential, warm: bool) -> Any:
    scripted = torch.jit.script(model)
    for _ in range(3 if warm else 0):
        scripted(torch.randn(BATCH, LENGTH, WIDTH))
    return scripted


def _export(model: nn.Sequential) -> Any:
    return torch.export.export(model, (torch.randn(BATCH, LENGTH, WIDTH),)).module()


def _compile(model: nn.Sequential, warm: bool, **options: Any) -> Any:
    torch.compiler.reset()
    compiled = torch.compile(model, **options)
    if warm:
        compiled(torch.randn(BATCH, LENGTH, WIDTH))
    return compiled


def _compile_layers(model: nn.Sequential) -> nn.Sequential:
    torch.compiler.reset()
    for layer in model:
        layer.compile(backend="eager")
    return model


@contextmanager
def process_group(rank: int = 0, size: int = 1, store: Any = None) -> Iterator[None]:
    store = dist.HashStore() if store is None else store
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


_JIT = ("ignore:`torch.jit.*` is deprecated:DeprecationWarning",)
_LEAF = ("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",)
_AO = (
    "ignore:torch.ao.quantization is deprecated:DeprecationWarning",
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel and:UserWarning",
)

#: name -> (what builds the case from `fused`, what the target has besides)
_CONTEXTS: dict[str, tuple[Callable[[bool], Case], dict[str, Any]]] = {
    "plain": (_case, {}),
    "direct_forward": (partial(_case, call=_forward), {}),
    "sequential": (partial(_case, change=lambda m: nn.Sequential(nn.Identity(), m)), {}),
    "called_twice": (_called_twice, {}),
    "shared_layer": (_shared, {}),
    "function": (_function, {}),
    "backward_inside": (partial(_case, call=_backward, grad=True), {}),
    "autograd_function": (partial(_case, layer=CustomLayer), {}),
    "weight_norm": (partial(_case, change=_normed), {}),
    "functional_call": (_functional, {}),
    "func_grad": (partial(_case, call=_func_grad), {}),
    "vmap": (partial(_case, call=_vmap), {}),
    "no_grad": (_case, {"around": torch.no_grad}),
    "inference_mode": (_case, {"around": torch.inference_mode}),
    "inference_mode_inside": (partial(_case, call=_inference_inside), {}),
    "autocast": (_autocast, {"around": partial(torch.autocast, "cpu", torch.bfloat16)}),
    "thread": (partial(_case, call=_in_thread), {}),
    "checkpoint_reentrant": (
        partial(_case, change=partial(Checkpointed, reentrant=True), call=_backward, grad=True),
        {},
    ),
    "checkpoint": (
        partial(_case, change=partial(Checkpointed, reentrant=False), call=_backward, grad=True),
        {},
    ),
    "data_parallel": (partial(_case, change=nn.DataParallel), {}),
    "ddp": (
        partial(_case, change=nn.parallel.DistributedDataParallel),
        {"around": process_group},
    ),
    "quantised": (_quantised, {"warns": _AO}),
    "jit_script": (partial(_case, change=partial(_script, warm=False)), {"warns": _JIT}),
    "jit_script_warm": (partial(_case, change=partial(_script, warm=True)), {"warns": _JIT}),
    "jit_trace": (partial(_case, change=partial(_trace, warm=False)), {"warns": _JIT}),
    "jit_trace_warm": (partial(_case, change=partial(_trace, warm=True)), {"warns": _JIT}),
    "export": (partial(_case, change=_export), {"compiled": True}),
    "compile_eager": (
        partial(_case, change=partial(_compile, warm=True, backend="eager", fullgraph=True)),
        {"compiled": True},
    ),
    "compile_cold": (
        partial(_case, change=partial(_compile, warm=False)),
        {"compiled": True, "warns": _JIT},
    ),
    "compile": (
        partial(_case, change=partial(_compile, warm=True)),
        {"compiled": True, "warns": _JIT},
    ),
    "compile_layers": (partial(_case, change=_compile_layers), {"compiled": True, "warns": _LEAF}),
}

TARGETS = [
    Target(f"{name}_{kind}", "contexts", partial(build, fused), **options)
    for name, (build, options) in _CONTEXTS.items()
    for kind, fused in (("by_hand", False), ("fused", True))
    if (name, kind) != ("autograd_function", "fused")
]
