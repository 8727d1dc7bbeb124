"""Drawing translations instead of searching for the best: one token after the other, by chance."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.translate.search.candidates import FIRST, Candidates, log_sum_exp
from regard.translate.search.options import SearchOptions


def uniforms(
    source: Int[Tensor, "sentence source"],
    mask: Bool[Tensor, "sentence source"],
    limits: Int[Tensor, " row"],
    samples: int,
    seed: int,
) -> Float[Tensor, "row step"]:
    """Numbers from 0 to below 1, one for each step of each sample; float64.

    They depend on the seed, the sentence and the number of its sample alone, so that the samples of
    a sentence do not depend on the rest of the batch. No global generator is touched.
    """
    longest = int(limits.max()) if len(limits) else 0
    rows = []
    for tokens, present in zip(source.tolist(), mask.tolist()):
        sentence = [token for token, is_token in zip(tokens, present) if is_token]
        for sample in range(samples):
            digest = hashlib.blake2b(f"{seed} {sample} {sentence}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
            rows.append(torch.rand(longest, dtype=torch.float64, generator=generator))
    drawn = torch.stack(rows) if rows else torch.zeros(0, longest, dtype=torch.float64)
    return drawn.to(source.device)


def drawn_candidates(
    logits: Float[Tensor, "row vocabulary"],
    scores: Float[Tensor, "row 1"],
    chance: Float[Tensor, " row"],
    options: SearchOptions,
    *,
    forbidden: Sequence[int] = (),
    forced: Int[Tensor, " row"] | None = None,
) -> Candidates:
    """One token a row, drawn by inverting the distribution function at `chance`.

    The score is that of `best_candidates`, of the distribution before temperature, top-k and top-p.

    Args:
        logits: of the next token of each row.
        scores: log-probability of each row so far.
        chance: from 0 to below 1.
        options: temperature, top-k and top-p.
        forbidden: tokens that are not allowed, besides PAD and BEGIN.
        forced: the token each row must produce; -1 where it is free.
    """
    possible = logits[:, FIRST:].double()
    if forbidden:
        possible = possible.clone()
        possible[:, [token - FIRST for token in forbidden]] = -torch.inf
    values, order = possible.sort(dim=1, descending=True, stable=True)
    if options.top_k:
        values, order = values[:, : options.top_k], order[:, : options.top_k]
    shares = (values / options.temperature).softmax(1)
    totals = shares.cumsum(1)
    kept = totals - shares < options.top_p  # the first that reach it together, at least one
    whole = (shares * kept).sum(1)
    last = kept.sum(1) - 1
    rank = torch.minimum((totals <= (chance * whole)[:, None]).sum(1), last)
    token = order.gather(1, rank[:, None]) + FIRST
    if forced is not None:
        token = torch.where(forced >= 0, forced, token[:, 0])[:, None]
    most = logits.amax(1, keepdim=True)
    score = logits.gather(1, token).to(scores.dtype) - log_sum_exp(logits, most) + scores
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    return Candidates(score, rows, token)
