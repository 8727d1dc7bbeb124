"""What a page shows first: a picture under its attention, or the head that aligns two texts.

A map of all heads is the start of everything else; of two texts, one head tells more. It is the one
whose rows differ most: H(mean of the rows) − mean of H(row), the nats that a query tells about its
key. A head that looks at the same keys whoever asks has none, however sharp it is. Over a picture,
tokens that ask it begin with that head too, and with the one whose row is farthest from the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.kernel.reduce import reduce
from regard.kernel.reducers import Entropy, ReceivedAttention
from regard.record import Record

_PLACES = {"view", "part", "layer", "head", "mode", "zoom"}
_LONG = 4  # keys for each query from which the matrix is cropped,
_MANY = 200  # if there are so many keys
_HELD = 0.85  # share of the attention that is in sight then: silence and sinks are not
_MARGIN = 0.05  # of what is in sight, at either side


def opening(parts: Sequence[tuple[str, Sequence[Record]]], example: int, start: str) -> str:
    """The fields of a link to what is shown first; none where `start` says what is.

    Args:
        parts: name and records of each stack of layers.
        example: which example of the batch.
        start: what was asked for.
    """
    asked = _asked(start)
    crosses = [number for number, (name, _) in enumerate(parts) if name.split()[0] == "cross"]
    if not crosses or asked & _PLACES:
        return ""
    part = crosses[0]
    records = parts[part][1]
    if not _are_shares(records):
        return ""
    layer, head, received = _clearest(records, example)
    place = f"view=matrix&part={part}&layer={layer}&head={head}"
    zoom = _crop(received, records[layer].shape.queries)
    if zoom is None and len(parts) == len(records) == records[0].shape.heads == 1:
        return ""  # there is nothing else to open
    return place if zoom is None else f"{place}&zoom={zoom}"


def opening_of_picture(
    parts: Sequence[tuple[int, Sequence[Record]]], example: int, start: str
) -> str:
    """The same for a page with a picture, of which several tokens ask.

    Args:
        parts: number and records of each stack of layers whose keys are the picture, and whose
            queries are not.
        example: which example of the batch.
        start: what was asked for.
    """
    if _asked(start) & (_PLACES | {"selected"}):
        return ""
    for part, records in parts:
        if _are_shares(records) and min(record.shape.queries for record in records) > 1:
            layer, head, received = _clearest(records, example)
            weights = records[layer].weights()[example, head].detach().double().cpu()
            surprise = torch.special.xlogy(weights, weights) - torch.special.xlogy(
                weights, received
            )
            query = int(surprise.nansum(1).argmax())
            return f"part={part}&layer={layer}&head={head}&selected={query}"
    return ""


def _asked(start: str) -> set[str]:
    return {name for name, _ in parse_qsl(start, keep_blank_values=True)}


def _are_shares(records: Sequence[Record]) -> bool:
    return all(record.kind in ("distribution", "partial") for record in records)


def _clearest(records: Sequence[Record], example: int) -> tuple[int, int, Float[Tensor, " key"]]:
    """Layer and head whose queries tell most about their keys, and what each key receives there."""
    shared, received = zip(*(_alignment(record, example) for record in records))
    best = [float(nats.max()) for nats in shared]
    layer = best.index(max(best))
    head = int(shared[layer].argmax())
    return layer, head, received[layer][head]


def _alignment(
    record: Record, example: int
) -> tuple[Float[Tensor, " head"], Float[Tensor, "head key"]]:
    """What a query tells about its key in each head, and what each key receives."""
    entropy, received = reduce(record.recipe.plain().detach(), [Entropy(), ReceivedAttention()])
    sums = received[example].double().cpu()
    shares = sums / sums.sum(1, keepdim=True).clamp_min(torch.finfo(sums.dtype).tiny)
    marginal = torch.special.entr(shares).sum(1)
    return marginal - entropy[example].double().cpu().mean(1), shares


def _crop(shares: Float[Tensor, " key"], queries: int) -> str | None:
    """All rows, and the fewest columns that hold most of the attention, where these are few."""
    keys = len(shares)
    if keys < max(_MANY, _LONG * queries):
        return None
    before = F.pad(shares.cumsum(0), (1, 0))  # (key + 1,)
    ends = torch.searchsorted(before, before[:-1] + _HELD)
    widths = torch.where(ends <= keys, ends - torch.arange(keys), 2 * keys)
    first = int(widths.argmin())
    last = int(ends[first])
    margin = max(1, round(_MARGIN * (last - first)))
    first, last = max(0, first - margin), min(keys, last + margin)
    return None if last - first > keys // 2 else f"0,{first},{queries},{last}"
