"""What an edit does at each attention operator: reads its arguments, and returns its output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.bias import bias_block
from regard.editing.attention import attend, mix, with_past
from regard.editing.plan import Plan, by_head
from regard.errors import UnavailableError
from regard.interception import Operator
from regard.interception.scaled_dot_product import four_axes
from regard.kernel import blockwise, fused, image_windows
from regard.masks import Mask, clean
from regard.recipe import Dot, Flex, Projected
from regard.tracing.operators import FLEX_ARGUMENTS, reader_of
from regard.tracing.softmax_axes import SoftmaxAxes
from regard.types import Shape, whole

Arguments = dict[str, Any]


@runtime_checkable
class Planner(Protocol):
    """What is to change at the operator that is about to run."""

    def plan(
        self,
        shape: Shape,
        like: Tensor,
        mask: Callable[[], Tensor | None] = lambda: None,
        gathered: bool = False,
        visible: bool = False,
    ) -> Plan | None:
        """The changes at an attention of this shape, with the dtype and device of `like`; None if
        there are none.

        `mask` gives a boolean or additive mask, or masked scores, of four axes; `visible` tells
        that the model is given the weights, so that they show all factors.
        """

    def refuse(self, reason: str) -> None:
        """Raise if something is to change here."""

    @property
    def axes(self) -> SoftmaxAxes | None:
        """The axes of the softmax here, if they are known."""


#: Operators that are changed with all they contain.
FUSED = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    "flex_attention",
    fused.OPERATOR,
)
#: Operators that cannot be changed.
CLOSED = (blockwise.OPERATOR, image_windows.OPERATOR)
SOFTMAXES = (
    "softmax.int",
    "softmax.int_out",
    "special_softmax",
    "_softmax",
    "_softmax.out",
    "_safe_softmax",
)


def scaled_dot_product(arguments: Arguments, planner: Planner, whole_weights: bool) -> Any:
    """`F.scaled_dot_product_attention`; None if nothing changes."""
    tensors = [arguments[name] for name in ("query", "key", "value")]
    if any(tensor.is_nested for tensor in tensors):
        planner.refuse("its tensors are nested")
        return None
    mask, causal = arguments.get("attn_mask"), arguments.get("is_causal", False)
    rank = tensors[0].dim()
    axes = planner.axes if rank != 4 else None
    if mask is not None and rank != 4:
        mask = mask.expand(*tensors[0].shape[:-2], *mask.shape[-2:])
    on_heads = four_axes if rank == 4 else _arrangement(rank, axes)
    query, key, value = (on_heads(tensor) for tensor in tensors)
    mask = None if mask is None else on_heads(mask)
    plan = planner.plan(
        Shape(query.shape[0], query.shape[1], query.shape[2], key.shape[2]),
        query,
        lambda: with_past(mask, query, key) if causal else mask,
    )
    if plan is None:
        return None
    output = attend(
        plan,
        query,
        key,
        value,
        mask,
        dropout=arguments.get("dropout_p", 0.0),
        causal=causal,
        scale=arguments.get("scale"),
        whole=whole_weights,
    )
    if rank == 4:
        return output
    like = tensors[0].new_empty(1).expand(*tensors[0].shape[:-1], output.shape[-1])
    return output.reshape(like.shape) if axes is None else axes.restore(output, like).contiguous()


def _arrangement(rank: int, axes: SoftmaxAxes | None) -> Callable[[Tensor], Tensor]:
    """Brings queries, keys, values or masks into four axes, as capture does: by the axes that it
    learned of the scores, else with all leading axes as the batch."""
    if axes is not None and len(axes.dims) == rank and axes.dim == rank - 1:
        return axes.arrange
    return lambda tensor: tensor.reshape(-1, 1, *tensor.shape[-2:])


def flash(arguments: Arguments, planner: Planner, whole_weights: bool, run: Any) -> Any:
    """The kernel of it on a CPU, called by name, as `regard.attend` does.

    The log-sum-exp stays that of the unchanged attention: it belongs to a recipe that does not
    know of the change.
    """
    output = scaled_dot_product(arguments, planner, whole_weights)
    return None if output is None else (output, run()[1])


def own_attention(arguments: Arguments, planner: Planner, whole_weights: bool) -> Any:
    """Attention of a recipe of this library: one call, whatever it would be cut into."""
    recipe: Dot = arguments["recipe"]
    assert recipe.value is not None
    _, heads, queries, keys = recipe.shape

    def pairs() -> Tensor | None:
        return None if recipe.mask is None else recipe.mask.dense(queries, keys, recipe.device)

    plan = planner.plan(recipe.shape, recipe.query, pairs)
    if plan is None:
        return None
    alive = None if recipe.mask is None else recipe.mask.alive(queries, keys, recipe.device)
    key, value = clean(recipe.key, alive), clean(recipe.value, alive)
    dropout = arguments["dropout"]
    everything = whole(queries, keys)
    if recipe.sink is not None:
        scores = recipe.scores(everything)
        values = by_head(plan.values(value), heads)
        return mix(plan, scores, values, dropout, recipe.sink).to(value.dtype), None
    mask, added = pairs(), bias_block(recipe.bias, everything)
    if added is not None:
        mask = added if mask is None else torch.where(mask, added, -torch.inf)
    output = attend(
        *(plan, recipe.query, key, value, mask),
        dropout=dropout,
        scale=recipe.scale,
        whole=whole_weights,
    )
    return output, None


def native_attention(arguments: Arguments, planner: Planner, whole_weights: bool) -> Any:
    """torch's native multi-head attention, which projects and attends."""
    recipe = _projected("_native_multi_head_attention", arguments)
    need_weights = arguments.get("need_weights", True)
    plan = planner.plan(recipe.shape, recipe.input, visible=need_weights)
    if plan is None:
        return None
    if need_weights:
        dot = recipe.plain()
        weights = plan.softmax(dot.scores(whole(dot.shape.queries, dot.shape.keys)))
        assert recipe.value is not None
        mixed = plan.outputs(weights @ plan.values(recipe.value))
        average = arguments.get("average_attn_weights", True)
        told = weights.mean(1) if average else weights
    else:
        mixed, told = _mixed(recipe, plan, whole_weights), recipe.input.new_empty(0)
    output = F.linear(
        mixed.transpose(1, 2).flatten(2), arguments["proj_weight"], arguments["proj_bias"]
    )
    return _like(arguments["query"], output), told


def encoder_layer(arguments: Arguments, planner: Planner, whole_weights: bool) -> Any:
    """torch's fast path of a whole encoder layer."""
    recipe = _projected("_transformer_encoder_layer_fwd", arguments)
    plan = planner.plan(recipe.shape, recipe.input)
    if plan is None:
        return None
    width, epsilon = arguments["embed_dim"], arguments["eps"]

    def norm(x: Tensor, number: int) -> Tensor:
        weight, bias = arguments[f"norm_weight_{number}"], arguments[f"norm_bias_{number}"]
        return F.layer_norm(x, (width,), weight, bias, epsilon)

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, arguments["ffn_weight_1"], arguments["ffn_bias_1"])
        inner = F.gelu(inner) if arguments["use_gelu"] else F.relu(inner)
        return F.linear(inner, arguments["ffn_weight_2"], arguments["ffn_bias_2"])

    mixed = _mixed(recipe, plan, whole_weights).transpose(1, 2).flatten(2)
    x = recipe.input + F.linear(mixed, arguments["proj_weight"], arguments["proj_bias"])
    if arguments["norm_first"]:
        x = x + feed_forward(norm(x, 2))
    else:
        x = norm(x, 1)
        x = norm(x + feed_forward(x), 2)
    return _like(arguments["src"], x)


def flex(arguments: Arguments, planner: Planner, whole_weights: bool) -> Any:
    """Flex attention: its score and mask functions are evaluated for all pairs."""
    reader = reader_of("flex_attention")
    assert reader is not None
    reading = reader(arguments, (None, None), lambda bias: None)
    recipe, value = reading.recipe, reading.value
    assert isinstance(recipe, Flex) and value is not None
    plan = planner.plan(recipe.shape, recipe.query)
    if plan is None:
        return None
    scores = recipe.scores(whole(recipe.shape.queries, recipe.shape.keys))
    heads = recipe.shape.heads
    values = plan.values(value).to(scores.dtype)
    output = mix(plan, scores, values.repeat_interleave(heads // values.shape[1], 1))
    total = torch.logsumexp(scores, -1) / math.log(2)  # flex tells it to base 2
    return output.to(value.dtype), total, scores.amax(-1)


def softmax(axes: SoftmaxAxes, arguments: Arguments, planner: Planner) -> Tensor | None:
    """A softmax that a model wrote itself."""
    scores = arguments["self"]
    dtype = torch.float32 if arguments.get("half_to_float") else arguments.get("dtype")
    arranged = axes.arrange(scores)
    batch, heads, queries, columns = arranged.shape
    keys = columns - axes.before - axes.after
    end = axes.before + keys

    def seen() -> Tensor:
        return arranged.detach()[..., axes.before : end]

    plan = planner.plan(Shape(batch, heads, queries, keys), scores, seen, axes.gathered)
    if plan is None:
        return None
    if plan.new_values:
        raise UnavailableError(
            f"replace_values(): '{plan.call.site.name}' writes its softmax itself, and its values "
            "are not seen; replace weights, or use a model with fused attention"
        )
    weights = plan.softmax(arranged, axes.before, axes.after, dtype)
    for factor in (plan.value_factor, plan.output):
        if factor is not None:
            keyed = factor.to(weights.dtype)
            if factor.shape[3] != 1 and (axes.before or axes.after):
                keyed = F.pad(keyed, (axes.before, axes.after), value=1.0)
            weights = weights * keyed
    restored = axes.restore(weights, scores)
    out = arguments.get("out")
    return restored if out is None else out.copy_(restored)


def named(operator: Operator, args: Any, kwargs: Any) -> Arguments:
    """The arguments of a call by name."""
    names: tuple[str, ...] = operator.names or FLEX_ARGUMENTS
    arguments: Arguments = dict(zip(names, args)) | kwargs
    return arguments


def _projected(name: str, arguments: Arguments) -> Projected:
    reader = reader_of(name)
    assert reader is not None
    recipe = reader(arguments, None, lambda bias: None).recipe
    assert isinstance(recipe, Projected)
    return recipe.with_value()


def _mixed(recipe: Projected, plan: Plan, whole_weights: bool) -> Tensor:
    dot = recipe.plain()
    mask: Mask | None = dot.mask
    pairs = None if mask is None else mask.dense(dot.shape.queries, dot.shape.keys, dot.device)
    assert dot.value is not None
    return attend(plan, dot.query, dot.key, dot.value, pairs, whole=whole_weights)


def _like(source: Tensor, output: Tensor) -> Tensor:
    """Nested where the input was."""
    if not source.is_nested:
        return output
    lengths = [len(example) for example in source.unbind()]
    examples = [example[:length] for example, length in zip(output, lengths)]
    return torch.nested.nested_tensor(examples)
