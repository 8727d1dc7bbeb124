"""The best continuations of all hypotheses of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.translate.tokens import END

FIRST = END  #: PAD and BEGIN come before it and are never produced
_GROUP = 64  # tokens whose largest logit is found first
_PIECE = 1 << 17  # logits processed at once, so that intermediate results stay in the cache


class Candidates(NamedTuple):
    """Continuations of each sentence, best first; impossible ones score -inf.

    `row` is the hypothesis that `token` continues, counted over all sentences.
    """

    score: Float[Tensor, "sentence candidate"]
    row: Int[Tensor, "sentence candidate"]
    token: Int[Tensor, "sentence candidate"]


def best_candidates(
    logits: Float[Tensor, "row vocabulary"],
    scores: Float[Tensor, "sentence beam"],
    count: int,
    *,
    forbidden: Sequence[int] = (),
    forced: Int[Tensor, " sentence"] | None = None,
) -> Candidates:
    """The `count` best continuations of each sentence, or fewer if there are fewer.

    A candidate's score is that of its hypothesis plus log softmax(logits) over the whole
    vocabulary. Ties are in the order of hypothesis, then token.

    Args:
        logits: of the next token of each hypothesis.
        scores: log-probability of each hypothesis so far.
        count: how many candidates.
        forbidden: tokens that are not allowed, besides PAD and BEGIN.
        forced: the token each sentence must produce; -1 where it is free.
    """
    sentences, beams = scores.shape
    values, tokens = largest(logits[:, FIRST:], count + len(forbidden))
    most = torch.maximum(values[:, :1], logits[:, :FIRST].amax(1, keepdim=True))
    whole = log_sum_exp(logits, most)
    tokens = tokens + FIRST
    for token in forbidden:
        values = values.masked_fill(tokens == token, -torch.inf)
    if forced is not None:
        values, tokens = _forced(logits, values, tokens, forced.repeat_interleave(beams))
    totals = (values.to(scores.dtype) - whole).view(sentences, beams, -1)
    totals = (totals + scores[..., None]).flatten(1)  # (sentence, beam · candidate)
    score, order = totals.sort(dim=1, descending=True, stable=True)
    score, order = score[:, :count], order[:, :count]
    first = torch.arange(sentences, device=logits.device)[:, None] * beams
    row = first + order // values.shape[1]
    return Candidates(score, row, tokens.view(sentences, -1).gather(1, order))


def _forced(
    logits: Tensor, values: Tensor, tokens: Tensor, forced: Tensor
) -> tuple[Tensor, Tensor]:
    """Where a row has a forced token, that one is its only candidate."""
    bound = (forced >= 0)[:, None]
    token = forced.clamp_min(0)[:, None]
    first = torch.arange(values.shape[1], device=values.device) == 0
    only = logits.gather(1, token).where(first, -torch.inf)
    return only.where(bound, values), token.where(bound & first, tokens)


def log_sum_exp(
    logits: Float[Tensor, "row vocabulary"], most: Float[Tensor, "row 1"]
) -> Float[Tensor, "row 1"]:
    """log Σ exp(logits), in float32 or finer: what turns a logit into a log-probability.

    `most` is the largest of each row, which the caller knows anyway.
    """
    most = most.to(torch.promote_types(logits.dtype, torch.float32))
    rows = max(1, _PIECE // max(1, logits.shape[1]))
    pieces = zip(logits.split(rows), most.split(rows))
    sums = [(piece - top).exp_().sum(1, keepdim=True) for piece, top in pieces]
    return torch.cat(sums).log_().add_(most)


def largest(
    values: Float[Tensor, "row position"], count: int
) -> tuple[Float[Tensor, "row chosen"], Int[Tensor, "row chosen"]]:
    """The `count` largest of each row and their positions; of equal ones the first come first.

    Numbers are compared in float32. The largest lie in the groups with the largest maxima, so most
    positions are read only once.
    """
    count = min(count, values.shape[1])
    if values.shape[1] <= 8 * _GROUP or values.shape[1] <= 2 * count * _GROUP:
        positions = _first_largest(values, count)
        return values.gather(1, positions), positions
    whole = values.shape[1] // _GROUP * _GROUP
    grouped = values[:, :whole].unflatten(1, (-1, _GROUP))  # (row, group, position)
    groups = _first_largest(grouped.amax(2), count).sort(dim=1).values
    within = torch.arange(_GROUP, device=values.device)
    positions = (groups[..., None] * _GROUP + within).flatten(1)
    rest = torch.arange(whole, values.shape[1], device=values.device)
    positions = torch.cat([positions, rest.expand(len(positions), -1)], dim=1)
    candidates = values.gather(1, positions)
    best = _first_largest(candidates, count)
    return candidates.gather(1, best), positions.gather(1, best)


def _first_largest(values: Float[Tensor, "row position"], count: int) -> Int[Tensor, "row chosen"]:
    """Positions of the largest, by integer keys that are unique within a row.

    The bits of a float32 are ordered as the numbers are, once those of negative ones are inverted.
    The position, counted from the end, fills the low bits.
    """
    if count == 1:
        return values.argmax(1, keepdim=True)
    bits = (values.float() + 0.0).view(torch.int32).long()  # + 0.0: no -0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    size = values.shape[1]
    backwards = torch.arange(size - 1, -1, -1, device=values.device)
    return size - 1 - (ordered * size + backwards).topk(count, dim=1).values % size
