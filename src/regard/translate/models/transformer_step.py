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
    part = plain_part(sublayer)
    if part is None:
        x, attended = sublayer(x, state=state)
        return x, attended.state
    entered = sublayer.enter(x)
    key, value = part.prepare(entered, entered)
    after = state.append(key, value, 1)
    mixed = attend(queries_of(part, entered), after.key, after.value).output
    return sublayer.leave(x, part.to_output(mixed.transpose(1, 2).flatten(2))), after


def step_cross(
    sublayer: Sublayer, x: Features, state: State, hidden: Tensor, weights: bool
) -> tuple[Tensor, Tensor | None]:
    """The stream (sentence, beam, width) after an attention to a fixed state, and the weights.

    `hidden` is added to the scores: -inf at padding.
    """
    part = plain_part(sublayer)
    if part is None:
        x, attended = sublayer(x, bias=hidden, state=state, weights=weights)
        return x, attended.weights
    queries = queries_of(part, sublayer.enter(x))
    attended = attend(queries, state.key, state.value, bias=hidden, weights=weights)
    answer = part.to_output(attended.output.transpose(1, 2).flatten(2))
    return sublayer.leave(x, answer), attended.weights


def plain_part(sublayer: Sublayer) -> MultiHead | None:
    """The attention, if it is plain softmax(q·k) and not observed; else None."""
    part = sublayer.part
    if type(part) is not MultiHead or is_observed(part) or is_observed(sublayer):
        return None
    if part.training and part.dropout:
        return None
    own = part.sinks, part.softcap, part.score_function, part.mixture, part.gate
    more = part.position, part.window, *own
    plain = all(one is None for one in more) and part.scale == part.head_width**-0.5
    return part if plain and isinstance(part.normaliser, Softmax) else None


def queries_of(part: MultiHead, x: Tensor) -> Tensor:
    """Queries of (row, position, width), one set a head."""
    queries = part.to_query(x).unflatten(-1, (part.n_heads, part.head_width))
    normed: Tensor = part.query_norm(queries.transpose(1, 2))  # (row, head, position, head width)
    return normed
