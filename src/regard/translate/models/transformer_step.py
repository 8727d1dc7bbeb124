"""One step of a Transformer's attentions, without what only longer inputs need.

A step has one position a row, and what it attends to has been checked and cleaned before: the
general way through a mechanism would take longer to find this out than to attend.
"""

from __future__ import annotations

from torch import Tensor

from regard.blocks import Sublayer
from regard.contract import State
from regard.kernel.attend import attend
from regard.mechanisms import MultiHead
from regard.recipe import Softmax
from regard.translate.models.observed import is_observed
from regard.types import Features


def step_self(sublayer: Sublayer, x: Features, state: State) -> tuple[Tensor, State]:
    """The stream after a self-attention of one more position, (row, 1, width), and its state."""
    attention = plain_attention(sublayer)
    if attention is None:
        x, attended = sublayer(x, state=state)
        return x, attended.state
    entered = sublayer.enter(x)
    key, value = attention.prepare(entered, entered)
    after = state.append(key, value, 1)
    mixed = attend(queries_of(attention, entered), after.key, after.value).output
    return sublayer.leave(x, attention.to_output(mixed.transpose(1, 2).flatten(2))), after


def step_cross(
    sublayer: Sublayer, x: Features, state: State, hidden: Tensor, weights: bool
) -> tuple[Tensor, Tensor | None]:
    """The stream (sentence, beam, width) after an attention to a fixed state, and the weights.

    `hidden` is added to the scores: -inf at padding.
    """
    attention = plain_attention(sublayer)
    if attention is None:
        x, attended = sublayer(x, bias=hidden, state=state, weights=weights)
        return x, attended.weights
    queries = queries_of(attention, sublayer.enter(x))
    attended = attend(queries, state.key, state.value, bias=hidden, weights=weights)
    answer = attention.to_output(attended.output.transpose(1, 2).flatten(2))
    return sublayer.leave(x, answer), attended.weights


def plain_attention(sublayer: Sublayer) -> MultiHead | None:
    """The attention, if it is plain softmax(q·k) and not observed; else None."""
    attention = sublayer.part
    if type(attention) is not MultiHead or is_observed(attention) or is_observed(sublayer):
        return None
    if attention.training and attention.dropout:
        return None
    options = ("sinks", "softcap", "score_function", "mixture", "gate", "position", "window")
    plain = all(getattr(attention, option) is None for option in options)
    scaled = attention.scale == attention.head_width**-0.5
    return attention if plain and scaled and isinstance(attention.normaliser, Softmax) else None


def queries_of(attention: MultiHead, x: Tensor) -> Tensor:
    """Queries of (row, position, width), one set a head."""
    queries = attention.to_query(x).unflatten(-1, (attention.n_heads, attention.head_width))
    queries = queries.transpose(1, 2)  # (row, head, position, head width)
    normed: Tensor = attention.query_norm(queries)
    return normed
