"""Self- or cross-attention: whether queries and keys come from one input, by the data flow."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any

from torch import Tensor

from regard.record.site import Attends
from regard.tracing.dataflow.axes import Origin, apart
from regard.tracing.dataflow.axis_roles import Contraction, Roles
from regard.tracing.dataflow.dataflow import DataFlow
from regard.tracing.dataflow.tags import Candidate, TagStore


def of_operator(query: Tensor, key: Tensor, dataflow: DataFlow) -> Attends:
    """The label of a fused operator, by what its queries and keys were made from."""
    if key is query:
        return "self"
    tags = dataflow.tags
    sides = (tags.sources(query), tags.sources(key))
    if query.is_nested or query.dim() != 4 or key.dim() != 4:
        return _label(sides)
    if dataflow.products.meet_others(query, key):
        return "cross"
    positions = [[origin for _, origin in tags.sliced_dims(tensor)[-2]] for tensor in (query, key)]
    return _label_by_positions(sides, *positions) or _label(
        sides,
        *(  # a slice of a longer table of positions may be shared by two inputs
            {each.ancestor for each in origins if each.ancestor.size == each.size}
            for origins in positions
        ),
    )


def of_softmax(
    candidate: Candidate, contraction: Contraction, roles: Roles, tags: TagStore, *, late: bool
) -> Attends:
    """The label of a softmax of the model's own, by the two sides of its scores or the axes of
    queries and keys.

    `late`: the product has some of the keys only.
    """
    if candidate.segments is not None:
        chosen = {origin.ancestor for origin in tags.chosen_from(candidate.segments)}
        edge = contraction.value_dims[candidate.key]
        if chosen and edge:
            return "self" if edge[-1][1].ancestor in chosen else "cross"
        return _label(candidate.sides)
    query, key = ([axis.origin for axis in role] for role in (roles.query, roles.key))
    label = None if late else _label_by_positions(candidate.sides, query, key)
    return label or _label(
        candidate.sides,
        {origin.ancestor for origin in query},
        {origin.ancestor for origin in key},
    )


def _label_by_positions(
    sides: Any, queries: Sequence[Origin], keys: Sequence[Origin]
) -> Attends | None:
    """Cross between disjoint slices of one axis; unknown between a single query, whose position is
    unknown, and a slice of the axis it may come from."""
    if apart(queries, keys):
        return "cross"
    alike = sides is not None and bool(sides[0] & sides[1])
    if alike and not queries and len(keys) == 1:
        extent = keys[0].extent
        if extent is not None and len(extent) < keys[0].ancestor.size:
            return "unknown"
    return None


def _label(
    sides: Any, queries: Set[Origin] = frozenset(), keys: Set[Origin] = frozenset()
) -> Attends:
    """Self if queries and keys share their axis, or the two sides of the scores an input; cross if
    two inputs are known and differ; unknown if the queries come from more inputs than the keys and
    are not as many."""
    if queries and queries == keys:
        return "self"
    learned = all(origin.kind == "parameter" for origin in queries)
    if queries and keys and learned and all(origin.kind != "parameter" for origin in keys):
        return "cross"  # learned queries that attend to an input
    if sides is None or not sides[0] or not sides[1]:
        return "unknown"
    if not sides[0] & sides[1]:
        return "cross"
    counts = [math.prod(origin.size for origin in axes) for axes in (queries, keys)]
    unequal = bool(keys) and counts[0] != counts[1]  # one query has no axis
    return "unknown" if unequal and not sides[0] <= sides[1] else "self"
