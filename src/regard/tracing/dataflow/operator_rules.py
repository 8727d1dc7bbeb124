"""Which operator does what to the tags: one rule for each, looked up by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.tracing.dataflow.dataflow import DataFlow, Rule
from regard.tracing.dataflow.tags import covers
from regard.types import Kind


def rule_of(name: str) -> Rule | None:
    """The rule of an operator, by the name of its packet, in-place forms included."""
    return _RULES.get(name) or (_RULES.get(name[:-1]) if name.endswith("_") else None)


def default_rule(flow: DataFlow, args: Any, kwargs: Any, out: Any) -> None:
    """The rule of operators that have none of their own and make something new."""
    flow.moves.unknown(_tensors(args), _tensors((out,)))


def _tensors(args: Any) -> list[Tensor]:
    tensors = []
    for arg in args:
        if isinstance(arg, Tensor):
            tensors.append(arg)
        elif isinstance(arg, list | tuple):
            tensors.extend(each for each in arg if isinstance(each, Tensor))
    return [tensor for tensor in tensors if not tensor.is_nested]


def _argument(args: Any, kwargs: Any, index: int, name: str, default: Any = None) -> Any:
    """An argument by position or name; the default where it is missing or None."""
    value = args[index] if len(args) > index else kwargs.get(name)
    return default if value is None else value


def _reduced_dims(tensor: Tensor, dims: Any) -> Sequence[int]:
    """The dimensions of a reduction, all where None are named."""
    if dims is None or isinstance(dims, bool):
        return range(tensor.dim())
    return [dims] if isinstance(dims, int) else list(dims)


def _both(args: Any) -> bool:
    return isinstance(args[1], Tensor) and isinstance(args[0], Tensor)


def _rescaled(factor: Any, *, above: bool) -> Kind:
    """What weights become when a number divides (`above` 1) or multiplies (at most 1) them."""
    shrinks = isinstance(factor, int | float) and (factor >= 1 if above else 0 <= factor <= 1)
    return "partial" if shrinks else "signed"


# f: the data flow, a: positional arguments, k: keyword arguments, out: the operator's output

_RULES: dict[str, Rule] = {}
_CALLS: dict[str, Rule] = {
    "_softmax _safe_softmax softmax": lambda f, a, k, out: f.softmaxes.softmax(a[0], a[1], out),
    "_masked_softmax": lambda f, a, k, out: f.softmaxes.softmax(
        a[0], _argument(a, k, 2, "dim", -1), out
    ),
    "_log_softmax log_softmax": lambda f, a, k, out: f.softmaxes.log_softmax(a[0], a[1], out),
    "_sparse_softmax": lambda f, a, k, out: f.candidates.unfollowed(
        "a softmax of a sparse tensor is not followed to values"
    ),
    "exp": lambda f, a, k, out: f.softmaxes.exponential(a[0], out),
    "logsumexp": lambda f, a, k, out: f.softmaxes.log_sum_exp(a[0], a[1], out),
    "sub": lambda f, a, k, out: (
        f.softmaxes.subtract(a[0], a[1], out)
        if _both(a)
        else f.pointwise.apply(_tensors(a[:2]), out)
    ),
    "div": lambda f, a, k, out: (
        f.softmaxes.divide(a[0], a[1], out)
        if _both(a)
        else f.pointwise.apply(_tensors(a[:2]), out, kind=_rescaled(a[1], above=True))
    ),
    "mul": lambda f, a, k, out: (
        f.softmaxes.multiply(a[0], a[1], out)
        if _both(a)
        else f.pointwise.apply(_tensors(a[:2]), out, kind=_rescaled(a[1], above=False))
    ),
    "native_dropout": lambda f, a, k, out: f.pointwise.dropout(a[0], out[0]),
    "bernoulli rand rand_like uniform randint randint_like": lambda f, a, k, out: f.pointwise.noise(
        out
    ),
    "arange ones full empty linspace eye scalar_tensor logspace ones_like full_like empty_like "
    "new_ones new_full new_empty fill lift_fresh_copy tril_indices triu_indices": (
        lambda f, a, k, out: f.pointwise.fixed(out)
    ),
    "zeros zeros_like new_zeros zero": lambda f, a, k, out: f.pointwise.fixed(out, zero=True),
    "masked_fill": lambda f, a, k, out: f.pointwise.filled(a[0], a[1], a[2], out),
    "clone _to_copy contiguous": lambda f, a, k, out: f.moves.copied(a[0], out),
    "index_add scatter_add": lambda f, a, k, out: f.softmaxes.scattered(
        a[1], a[2], a[3], out, f.tags.is_zero(a[0]) and k.get("alpha", 1) == 1
    ),
    "topk sort": lambda f, a, k, out: f.moves.selected(a[0], out[0]),
    "mm bmm": lambda f, a, k, out: f.products.product(a[0], a[1], out),
    "addmm baddbmm _addmm_activation": lambda f, a, k, out: f.products.product(a[1], a[2], out),
    "mv": lambda f, a, k, out: f.products.product(a[0], a[1].unsqueeze(1), out.unsqueeze(1)),
    "dot": lambda f, a, k, out: f.products.product(
        a[0].unsqueeze(0), a[1].unsqueeze(1), out.view(1, 1)
    ),
    "addmv": lambda f, a, k, out: f.products.product(a[1], a[2].unsqueeze(1), out.unsqueeze(1)),
    "linear_dynamic linear mkldnn_linear _linear_pointwise": lambda f, a, k, out: f.moves.linear(
        a[0], out
    ),
    "convolution _convolution mkldnn_convolution conv1d conv2d conv3d": lambda f, a, k, out: (
        f.moves.linear(a[0], out, features=1 if out.dim() > a[1].dim() - 1 else 0)
    ),
    "embedding": lambda f, a, k, out: f.moves.embedded(a[0], a[1], out),
    "index": lambda f, a, k, out: f.moves.indexed(a[0], a[1], out),
    "index_select": lambda f, a, k, out: f.moves.gathered(
        a[0], a[1], a[2], out, torch.index_select
    ),
    "gather": lambda f, a, k, out: f.moves.gathered(a[0], a[1], a[2], out, torch.gather),
    "repeat": lambda f, a, k, out: f.moves.repeated(a[0], out),
    # weights do not grow
    "where nan_to_num clamp clamp_min clamp_max tril triu relu abs": lambda f, a, k, out: (
        f.pointwise.apply(_tensors(a), out, kind="partial")
    ),
}
_RULES.update((name, rule) for names, rule in _CALLS.items() for name in names.split())


def _for(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_for("sum")
def _sum(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if isinstance(out, Tensor):
        f.softmaxes.summed(a[0], _reduced_dims(a[0], a[1] if len(a) > 1 else None), out)


@_for("add")
def _add(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if _both(a):
        f.pointwise.add(a[0], a[1], out)
    else:
        tiny = isinstance(a[1], int | float) and abs(a[1]) <= 1e-6  # against division by 0
        f.pointwise.apply(_tensors(a[:2]), out, shifted=not tiny)


@_for("logical_not", "bitwise_not")
def _not(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    f.pointwise.apply((a[0],), out)
    if a[0].dtype == torch.bool and out is not a[0]:
        f.pointwise.opposite(a[0], out)


@_for("copy")
def _copy_into(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    """`target.copy_(source)`, whole or a part of a storage."""
    target, source = a[0], a[1]
    if covers(target):
        f.tags.forget(target)
        f.moves.copied(source.expand(target.shape), target)
    else:
        f.writes.written(target, source)


@_for("index_put")
def _index_put(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    indexed = [dim for dim, index in enumerate(a[1]) if index is not None]
    adds = len(a) > 3 and a[3]
    if len(indexed) == 1 and not adds and not f.tags.is_weights(a[0]):
        f.writes.written_at(out, indexed[0], a[1][indexed[0]], a[2])
    else:
        _write_into(f, a, k, out)


@_for("index_copy", "scatter", "slice_scatter")
def _write_into(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if f.tags.is_weights(a[0]):  # some of them replaced
        f.pointwise.apply((a[0],), out, kind="partial")
    else:
        f.writes.written(out, _tensors(a)[-1])


@_for("scatter_reduce", "index_reduce")
def _scatter_reduce(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if a[4] == "sum":
        f.softmaxes.scattered(a[1], a[2], a[3], out, f.tags.is_zero(a[0]))
    else:
        f.writes.written(out, a[3])


@_for("linalg_vector_norm")
def _norm(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if len(a) > 1 and a[1] == 1:
        dims = a[2] if len(a) > 2 and a[2] is not None else range(a[0].dim())
        f.softmaxes.absolute_sum(a[0], dims, out)
    else:
        f.moves.unknown((a[0],), (out,))


@_for("cat", "stack", "hstack", "vstack")
def _cat(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if len(a[0]) == 1 and a[0][0].shape == out.shape:
        f.moves.copied(a[0][0], out)
    else:
        f.moves.concatenated(a[0], _argument(a, k, 1, "dim", 0), out)


@_for("_cdist_forward")
def _distances(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    left, right = (each.expand(*out.shape[:-2], *each.shape[-2:]) for each in a[:2])
    f.products.distances(left, right, out)


@_for(
    "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "transpose", "permute", "t", "expand",
    "split", "split_with_sizes", "slice", "select", "unbind", "squeeze", "unfold",
)  # fmt: skip
def _view(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if not a[0].is_nested:
        f.moves.viewed(a[0])


# What repeats a movement must not hold the tensor that was moved: only the settings.


@_for("roll")
def _roll(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    settings = a[1:]
    f.moves.moved(a[0], out, lambda numbers: torch.roll(numbers, *settings))


@_for("flip")
def _flip(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    dims = a[1]
    f.moves.moved(a[0], out, lambda numbers: numbers.flip(dims))


@_for("constant_pad_nd")
def _padded(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    pad = a[1]
    f.moves.moved(a[0], out, lambda numbers: torch.constant_pad_nd(numbers, pad, -1))


@_for("im2col")
def _patches(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    settings = a[1:]

    def again(numbers: Tensor) -> Tensor:  # padding is 0 there
        patches: Tensor = torch.ops.aten.im2col(numbers.double() + 1, *settings)
        return patches.long() - 1

    f.moves.windows(a[0], out, a[1], again)


@_for("mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "std", "median", "mode")
def _reduction(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    results = _tensors((out,) if isinstance(out, Tensor) else out)
    if len(a) > 1 and isinstance(a[1], Tensor):
        f.pointwise.apply(a[:2], results[0])
        return
    dims = _reduced_dims(a[0], _argument(a, k, 1, "dim"))
    for result in results:
        f.softmaxes.reduced(a[0], dims, result)


@_for(
    "native_layer_norm", "native_group_norm", "_fused_rms_norm", "native_batch_norm",
    "cudnn_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit",
    "repeat_interleave", "_unsafe_index", "unfold_copy", "glu",
)  # fmt: skip
def _moved(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    """Weights are not followed: only where axes and numbers come from."""
    result = out if isinstance(out, Tensor) else out[0]
    if f.tags.is_weights(a[0]) and result.shape == a[0].shape:
        f.pointwise.apply((a[0],), result)
        return
    alike = result.shape == a[0].shape and f.tags.is_moved(a[0])
    f.moves.moved(a[0], result, (lambda numbers: numbers) if alike else None)


@_for(
    "neg", "rsub", "tanh", "gelu", "silu", "sigmoid", "pow", "sqrt", "rsqrt",
    "reciprocal", "leaky_relu", "elu", "softplus",
    "sin", "cos", "maximum", "minimum", "addcmul", "lerp", "hardtanh", "mish",
    "gt", "lt", "ge", "le", "eq", "ne", "floor", "square", "expand_copy", "log", "sign",
    "bitwise_and", "bitwise_or", "logical_and", "logical_or", "floor_divide", "remainder",
    "cumsum", "erf", "addcdiv", "view_as_complex_copy",
)  # fmt: skip
def _pointwise(f: DataFlow, a: Any, k: Any, out: Any) -> None:
    if isinstance(out, Tensor):
        f.pointwise.apply(_tensors(a), out)
