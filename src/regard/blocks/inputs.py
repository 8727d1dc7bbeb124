"""The inputs of a block before it attends: checks, states by name, padding zeroed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from regard import checks, masks
from regard.blocks.attention_block import AttentionBlock
from regard.contract import BlockOutput, Mechanism, RecurrentState, State
from regard.errors import DtypeError, RegardError, StateError
from regard.masks import Mask
from regard.mechanisms.inputs import finite
from regard.softmax import autocasting
from regard.types import Shape


def check_features(
    block: nn.Module, which: str, features: Tensor, width: int | None, x: Tensor
) -> None:
    """Raise where `features` (batch, position, width) do not fit; names axis, size, expectation."""
    name = type(block).__name__
    argument = f"{name}: {which}"
    if not isinstance(features, Tensor):
        hint = " (its .output; Stack([...]) puts blocks together)"
        raise DtypeError(
            f"{argument} is {type(features).__name__}, expected features (batch, position, width)"
            + (hint if isinstance(features, BlockOutput) else "")
        )
    checks.refuse_nested(name, **{which: features})
    axes = {"batch": x.shape[0], "position": None, "width": width}
    checks.check_features(argument, features, axes, batch="as x")
    if not autocasting(features.device):
        checks.check_dtype(argument, features, x, "x")
    checks.check_module_dtype(argument, features, block)


def default_causal(block: AttentionBlock, causal: bool | None, state: Any) -> bool:
    """Whether a call is causal; by default with a state, or where the block is."""
    return block.causal or state not in (None, False) if causal is None else causal


def prepare_x(
    block: AttentionBlock,
    attention: Mechanism,
    x: Tensor,
    width: int,
    *,
    mask: Mask | Tensor | None,
    causal: bool,
    past: Any,
) -> Tensor:
    """The checked input of a self-attention, with NaN and inf zeroed in padding."""
    check_features(block, "x", x, width, x)
    shape = attention_shape(attention, x, past_length(past) + x.shape[1])
    return without_padding(x, resolve_mask(block, "mask", mask, shape, causal=causal), shape)


def refuse_context(block: nn.Module, context: Tensor | None, context_mask: Any) -> None:
    """Raise on a context where nothing attends to it."""
    for name, passed in (("context", context), ("context_mask", context_mask)):
        if passed is not None:
            raise RegardError(
                f"{type(block).__name__}: {name} was given, but nothing here attends to a context; "
                "a DecoderBlock does"
            )


def context_or_state(
    block: nn.Module,
    attention: Mechanism,
    x: Tensor,
    context: Tensor | None,
    *,
    mask: Mask | Tensor | None,
    past: Any,
    width: int | None = None,
    norm: nn.Module | None = None,
) -> tuple[Tensor | None, State | RecurrentState | None]:
    """The keys of a cross-attention: the normed context, or the state that holds it.

    Args:
        block: whose context it is; errors name it.
        attention: attends from `x` to the context.
        x: (batch, position, width).
        context: (batch, context position, width); None where `past` holds it.
        mask: the block's `context_mask`.
        past: the `State` of the last call, True to start one, or None.
        width: features of the context; any when None.
        norm: a module on the context; none when None.
    """
    name = type(block).__name__
    if isinstance(past, State | RecurrentState):
        if context is not None:
            raise StateError(f"{name}: the state holds the context; do not pass it again")
        resolve_mask(block, "context_mask", mask, attention_shape(attention, x, past.keys))
        return None, past
    if context is None:
        raise RegardError(
            f"{name}: context is missing, expected (batch, context position, width) to attend "
            "to, or a state that holds it"
        )
    check_features(block, "context", context, width, x)
    context = context.to(x.dtype)  # another one only under autocast
    shape = attention_shape(attention, x, context.shape[1])
    whole = resolve_mask(block, "context_mask", mask, shape)
    context = without_padding(context, whole, shape)
    context = context if norm is None else norm(context)
    if not past:
        return context, None
    keep = masks.lasting(whole, x.shape[0])
    return None, attention.fix(context, mask=None if keep is None else masks.padding(keep))


def states_by_name(block: nn.Module, state: Any, *names: str) -> dict[str, Any]:
    """For each attention its state: None, True to start one, or the `State` of the last call."""
    if state is None or isinstance(state, bool):
        return dict.fromkeys(names, state or None)
    if not isinstance(state, dict) or sorted(state) != sorted(names):
        held = sorted(state) if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"{type(block).__name__}: state is {held}, expected the .state of this block's last "
            f"call, with {sorted(names)}, or True to start one"
        )
    return state


def resolve_mask(
    block: nn.Module, which: str, mask: Mask | Tensor | None, shape: Shape, *, causal: bool = False
) -> Mask | None:
    """The mask of an attention inside; errors name the argument of the block."""
    if mask is None:
        return None
    try:
        return masks.resolve(mask, causal, shape)
    except RegardError as error:
        raise type(error)(f"{type(block).__name__}: {which}: {error}") from None


def without_padding(features: Tensor, mask: Mask | None, shape: Shape) -> Tensor:
    """`features`, the last of the keys, with NaN and inf zeroed where no query attends.

    An attention ignores such positions, but norms and residuals would carry NaN into the gradients
    of their parameters.
    """
    alive = None if mask is None else mask.alive(shape.queries, shape.keys, features.device)
    if alive is None:
        return features
    return finite(features, alive[..., shape.keys - features.shape[1] :])


def attention_shape(attention: Mechanism, x: Tensor, keys: int) -> Shape:
    """The shape of an attention of `x` to a number of keys."""
    return Shape(x.shape[0], getattr(attention, "n_heads", 1), x.shape[1], keys)


def past_length(state: Any) -> int:
    """The number of keys in earlier calls, dropped ones too."""
    if isinstance(state, RecurrentState):
        return state.keys
    return state.length if isinstance(state, State) else 0
