"""Which operator does what to the tags: one small rule for each, looked up by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.tracing.flow import Flow
from regard.tracing.tags import covers
from regard.types import Kind

Rule = Callable[[Flow, Any, Any, Any], None]  # flow, args, kwargs, output
_RULES: dict[str, Rule] = {}


def rule_of(name: str) -> Rule | None:
    """The rule of an operator, by the name of its packet, in-place forms included."""
    return _RULES.get(name) or (_RULES.get(name[:-1]) if name.endswith("_") else None)


def _for(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _scaled(factor: Any, *, above: bool) -> Kind:
    """What weights become when a number divides (`above` 1) or multiplies (at most 1) them."""
    plain = isinstance(factor, int | float) and (factor >= 1 if above else 0 <= factor <= 1)
    return "partial" if plain else "signed"


def _tensors(args: Any) -> list[Tensor]:
    tensors = []
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg)
        elif isinstance(arg, list | tuple):
            tensors.extend(part for part in arg if isinstance(part, Tensor))
    return [tensor for tensor in tensors if not tensor.is_nested]


@_for("_softmax", "_safe_softmax", "softmax")
def _softmax(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.softmax(args[0], args[1], out)


@_for("_masked_softmax")
def _masked_softmax(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    dim = args[2] if len(args) > 2 and args[2] is not None else kwargs.get("dim")
    flow.softmax(args[0], -1 if dim is None else dim, out)


@_for("_log_softmax", "log_softmax")
def _log_softmax(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.log_softmax(args[0], args[1], out)


@_for("_sparse_softmax")
def _sparse_softmax(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.unfollowed("a softmax of a sparse tensor is not followed to values")


@_for("exp")
def _exp(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.exponential(args[0], out)


@_for("logsumexp")
def _logsumexp(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.log_sum_exp(args[0], args[1], out)


@_for("sum")
def _sum(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(out, Tensor):
        dims = args[1] if len(args) > 1 and args[1] is not None else range(args[0].dim())
        flow.summed(args[0], [dims] if isinstance(dims, int) else dims, out)


@_for("add")
def _add(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(args[1], Tensor) and isinstance(args[0], Tensor):
        flow.add(args[0], args[1], out)
    else:
        tiny = isinstance(args[1], int | float) and abs(args[1]) <= 1e-6  # against division by 0
        flow.pointwise(_tensors(args[:2]), out, shifted=not tiny)


@_for("sub")
def _sub(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(args[1], Tensor) and isinstance(args[0], Tensor):
        flow.subtract(args[0], args[1], out)
    else:
        flow.pointwise(_tensors(args[:2]), out)


@_for("div")
def _div(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(args[1], Tensor) and isinstance(args[0], Tensor):
        flow.divide(args[0], args[1], out)
    else:
        flow.pointwise(_tensors(args[:2]), out, kind=_scaled(args[1], above=True))


@_for("mul")
def _mul(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(args[1], Tensor) and isinstance(args[0], Tensor):
        flow.multiply(args[0], args[1], out)
    else:
        flow.pointwise(_tensors(args[:2]), out, kind=_scaled(args[1], above=False))


@_for("native_dropout")
def _native_dropout(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.dropout(args[0], out[0])


@_for("bernoulli", "rand", "rand_like", "uniform", "randint", "randint_like")
def _noise(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.noise(out)


@_for(
    "arange", "ones", "full", "empty", "linspace", "eye", "scalar_tensor", "logspace",
    "ones_like", "full_like", "empty_like", "new_ones", "new_full", "new_empty", "fill",
    "lift_fresh_copy", "tril_indices", "triu_indices",
)  # fmt: skip
def _constant(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.fixed(out)


@_for("zeros", "zeros_like", "new_zeros", "zero")
def _zeros(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.fixed(out, zero=True)


@_for("logical_not", "bitwise_not")
def _not(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.pointwise((args[0],), out)
    if args[0].dtype == torch.bool and out is not args[0]:
        flow.opposite(args[0], out)


@_for("masked_fill")
def _masked_fill(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.filled(args[0], args[1], args[2], out)


@_for("clone", "_to_copy", "contiguous")
def _copy(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.copied(args[0], out)


@_for("copy")
def _copy_into(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    """`target.copy_(source)`, whole or a part of a storage."""
    target, source = args[0], args[1]
    if covers(target):
        flow.forget(target)
        flow.copied(source.expand(target.shape), target)
    else:
        flow.written(target, source)


@_for("index_put")
def _index_put(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    at = [dim for dim, index in enumerate(args[1]) if index is not None]
    added = len(args) > 3 and args[3]
    if len(at) == 1 and not added and not flow.is_weights(args[0]):
        flow.written_at(out, at[0], args[1][at[0]], args[2])
    else:
        _write_into(flow, args, kwargs, out)


@_for("index_copy", "scatter", "slice_scatter")
def _write_into(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if flow.is_weights(args[0]):  # some of them replaced
        flow.pointwise((args[0],), out, kind="partial")
        return
    flow.written(out, _tensors(args)[-1])


@_for("index_add", "scatter_add")
def _scatter_add(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    plain = flow.is_zero(args[0]) and kwargs.get("alpha", 1) == 1
    flow.scattered(args[1], args[2], args[3], out, plain)


@_for("scatter_reduce", "index_reduce")
def _scatter_reduce(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if args[4] == "sum":
        flow.scattered(args[1], args[2], args[3], out, flow.is_zero(args[0]))
    else:
        flow.written(out, args[3])


@_for("topk", "sort")
def _selected(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.selected(args[0], out[0])


@_for("linalg_vector_norm")
def _norm(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    order = args[1] if len(args) > 1 else 2
    dims = args[2] if len(args) > 2 and args[2] is not None else range(args[0].dim())
    if order == 1:
        flow.absolute_sum(args[0], dims, out)
    else:
        flow.unknown((args[0],), (out,))


def default_rule(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    """Any operator that makes something new and has no rule of its own."""
    flow.unknown(_tensors(args), _tensors((out,)))


@_for("cat", "stack", "hstack", "vstack")
def _cat(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if len(args[0]) == 1 and args[0][0].shape == out.shape:
        flow.copied(args[0][0], out)
    else:
        flow.concatenated(args[0], dim, out)


@_for("mm", "bmm")
def _product(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.product(args[0], args[1], out)


@_for("_cdist_forward")
def _distances(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    left, right = (each.expand(*out.shape[:-2], *each.shape[-2:]) for each in args[:2])
    flow.distances(left, right, out)


@_for("addmm", "baddbmm", "_addmm_activation")
def _added_product(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.product(args[1], args[2], out)


@_for("mv")
def _matrix_vector(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.product(args[0], args[1].unsqueeze(1), out.unsqueeze(1))


@_for("dot")
def _vectors(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.product(args[0].unsqueeze(0), args[1].unsqueeze(1), out.view(1, 1))


@_for("addmv")
def _added_matrix_vector(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.product(args[1], args[2].unsqueeze(1), out.unsqueeze(1))


@_for("linear_dynamic", "linear", "mkldnn_linear", "_linear_pointwise")
def _linear(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.linear(args[0], out)


@_for("convolution", "_convolution", "mkldnn_convolution", "conv1d", "conv2d", "conv3d")
def _convolution(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.linear(args[0], out, features=1 if out.dim() > args[1].dim() - 1 else 0)


@_for("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "transpose", "permute", "t", "expand",
      "split", "split_with_sizes", "slice", "select", "unbind", "squeeze", "unfold")  # fmt: skip
def _view(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if not args[0].is_nested:
        flow.viewed(args[0])


@_for("embedding")
def _embedding(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.embedded(args[0], args[1], out)


@_for("index")
def _index(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.indexed(args[0], args[1], out)


@_for("index_select")
def _index_select(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    dim, index = args[1:3]
    flow.gathered(args[0], dim, index, out, torch.index_select)


@_for("gather")
def _gather(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    dim, index = args[1:3]
    flow.gathered(args[0], dim, index, out, torch.gather)


@_for("roll")
def _roll(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    settings = args[1:]
    flow.moved(args[0], out, lambda numbers: torch.roll(numbers, *settings))


@_for("flip")
def _flip(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    dims = args[1]
    flow.moved(args[0], out, lambda numbers: numbers.flip(dims))


@_for("constant_pad_nd")
def _padded(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    pad = args[1]
    flow.moved(args[0], out, lambda numbers: torch.constant_pad_nd(numbers, pad, -1))


@_for("im2col")
def _patches(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    settings = args[1:]

    def again(numbers: Tensor) -> Tensor:  # padding is 0 there
        patches: Tensor = torch.ops.aten.im2col(numbers.double() + 1, *settings)
        return patches.long() - 1

    flow.windows(args[0], out, args[1], again)


@_for("repeat")
def _repeat(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    flow.repeated(args[0], out)


@_for("mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "std", "median", "mode")
def _reduction(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    results = _tensors((out,) if isinstance(out, Tensor) else out)
    if len(args) > 1 and isinstance(args[1], Tensor):
        flow.pointwise(args[:2], results[0])
        return
    dims = args[1] if len(args) > 1 and args[1] is not None else kwargs.get("dim")
    dims = range(args[0].dim()) if dims is None or isinstance(dims, bool) else dims
    for result in results:
        flow.reduced(args[0], [dims] if isinstance(dims, int) else list(dims), result)


@_for(
    "native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm",
    "cudnn_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit",
    "repeat_interleave", "_unsafe_index", "unfold_copy", "glu",
)  # fmt: skip
def _moved(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    """Weights are not followed: only where axes and numbers come from."""
    result = out if isinstance(out, Tensor) else out[0]
    if flow.is_weights(args[0]) and result.shape == args[0].shape:
        flow.pointwise((args[0],), result)
        return
    alike = result.shape == args[0].shape and flow.is_moved(args[0])
    flow.moved(args[0], result, (lambda numbers: numbers) if alike else None)


@_for("where", "nan_to_num", "clamp", "clamp_min", "clamp_max", "tril", "triu", "relu", "abs")
def _cut(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    """Place by place, and weights do not grow."""
    flow.pointwise(_tensors(args), out, kind="partial")


@_for(
    "neg", "rsub", "tanh", "gelu", "silu", "sigmoid", "pow", "sqrt", "rsqrt",
    "reciprocal", "leaky_relu", "elu", "softplus",
    "sin", "cos", "maximum", "minimum", "addcmul", "lerp", "hardtanh", "mish",
    "gt", "lt", "ge", "le", "eq", "ne", "floor", "square", "expand_copy", "log", "sign",
    "bitwise_and", "bitwise_or", "logical_and", "logical_or", "floor_divide", "remainder",
    "cumsum", "erf", "addcdiv", "view_as_complex_copy",
)  # fmt: skip
def _pointwise(flow: Flow, args: Any, kwargs: Any, out: Any) -> None:
    if isinstance(out, Tensor):
        flow.pointwise(_tensors(args), out)
