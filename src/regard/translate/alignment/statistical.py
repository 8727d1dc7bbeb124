"""Word alignment by counting, without a network: what guidance teaches an attention.

Two hidden Markov models (Vogel et al., 1996), one for each direction, which begin with the
translation table of IBM's first model (Brown et al., 1993) and are trained to agree (Liang et al.,
2006, "Alignment by agreement"): what one of them counts is what both believe. For the direction
from e to f, position j of f is explained by position i of e, or by none, with

    p(i | i') ∝ jump[i − i'],   p(f_j | e_i) = table[e_i, f_j],   p(none) = 0.1.

Tables are the means of a Dirichlet posterior in the logarithm (α = 0.01), which keeps rare words
from explaining everything around them. A pair of positions is a link if the geometric mean of both
directions' posteriors is at least a half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RegardError
from regard.progress import progress
from regard.translate.alignment.links import Links
from regard.translate.data.batches import padded

_PRIOR = 0.01  # α of the tables
_NONE = 0.1  # probability of no counterpart
_REACH = 20  # jumps of more positions count as this many
_LEAST = 1e-12  # of a table, so that every sentence is possible
_CELLS = 1 << 18  # pairs of positions in a batch


@dataclass(frozen=True, eq=False)
class _Batch:
    """Pairs of like length; `entries` are rows of the table of all pairs of words that meet."""

    indices: list[int]
    source: Int[Tensor, "pair source"]
    source_mask: Bool[Tensor, "pair source"]
    target: Int[Tensor, "pair target"]
    target_mask: Bool[Tensor, "pair target"]
    entries: Int[Tensor, "pair target source"]

    @property
    def mask(self) -> Bool[Tensor, "pair target source"]:
        return self.target_mask[:, :, None] & self.source_mask[:, None]


def statistical_links(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    iterations: int = 5,
    threshold: float = 0.5,
    show: bool | None = False,
) -> list[Links]:
    """Links (source position, target position) of each pair, learned from these pairs alone.

    >>> links = statistical_links([[5, 6], [5], [6, 5]], [[8, 9], [8], [9, 8]])
    >>> [sorted(pair_links) for pair_links in links]
    [[(0, 0), (1, 1)], [(0, 0)], [(0, 0), (1, 1)]]

    Args:
        sources: the sentences as numbers of words or pieces.
        targets: their translations.
        iterations: passes over the pairs, of each of the two models.
        threshold: least geometric mean of the posteriors of both directions.
        show: whether to draw a progress bar; on a terminal when None.
    """
    if len(sources) != len(targets):
        raise RegardError(f"there are {len(sources)} sources, but {len(targets)} targets")
    if iterations < 1:
        raise RegardError(f"iterations is {iterations}, expected at least 1")
    full = [i for i, pair in enumerate(zip(sources, targets)) if pair[0] and pair[1]]
    links: list[Links] = [frozenset()] * len(sources)
    if not full:
        return links
    model = _Aligner(_batches(full, sources, targets))
    with progress("aligning", 2 * iterations + 1, show) as advance, torch.no_grad():
        for _ in range(iterations):
            model.count(markov=False)
            advance(1)
        for _ in range(iterations):
            model.count(markov=True)
            advance(1)
        for batch in model.batches:
            forward, backward, _ = model.posteriors(batch, markov=True)
            chosen = (forward * backward).sqrt() >= threshold
            for index, matrix in zip(batch.indices, chosen):
                links[index] = frozenset((s, t) for t, s in matrix.nonzero().tolist())
        advance(1)
    return links


def _batches(
    indices: list[int], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[_Batch]:
    """Pairs of like length together, and the table that their words need."""
    order = sorted(indices, key=lambda i: (len(sources[i]), len(targets[i])))
    groups: list[list[int]] = [[]]
    longest = 0
    for index in order:
        cells = len(sources[index]) * max(longest, len(targets[index]))
        if groups[-1] and (len(groups[-1]) + 1) * cells > _CELLS:
            groups.append([])
            longest = 0
        groups[-1].append(index)
        longest = max(longest, len(targets[index]))
    parts = [
        (*_numbered([sources[i] for i in group]), *_numbered([targets[i] for i in group]))
        for group in groups
    ]
    width = 1 + max(int(target.max()) for _, _, target, _ in parts)
    keys = [source[:, None] * width + target[:, :, None] for source, _, target, _ in parts]
    _, flat = torch.cat([key.flatten() for key in keys]).unique(return_inverse=True)
    entries = flat.int().split([key.numel() for key in keys])
    return [
        _Batch(group, *part, entry.view(key.shape))
        for group, part, key, entry in zip(groups, parts, keys, entries)
    ]


def _numbered(sentences: list[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Words from 1, since 0 is padding; and a mask that is True at words."""
    return padded([[word + 1 for word in sentence] for sentence in sentences])


class _Direction:
    """The model that explains one side by the other: a table, a table of none, and jumps."""

    def __init__(self, entries: int, given: Tensor, said: Tensor) -> None:
        self.given = given  # (entry): the word that explains
        self.said = said  # (entry): the word that is explained
        self.table = torch.ones(entries)
        self.none = torch.ones(int(said.max()) + 1)
        self.jumps = torch.ones(2 * _REACH + 1)

    def learn(self, counts: Tensor, none: Tensor, jumps: Tensor) -> None:
        """Tables of counts."""
        kinds = torch.bincount(self.given).float()
        totals = torch.zeros(len(kinds), dtype=torch.float64).index_add_(0, self.given, counts)
        whole = torch.digamma(totals + _PRIOR * kinds)[self.given]
        self.table = (torch.digamma(counts + _PRIOR) - whole).exp().clamp_min(_LEAST).float()
        seen = len(none)
        whole = torch.digamma(none.sum() + _PRIOR * seen)
        self.none = (torch.digamma(none + _PRIOR) - whole).exp().clamp_min(_LEAST).float()
        if jumps.sum() > 0:
            self.jumps = ((jumps + 1) / (jumps + 1).sum()).float()


class _Aligner:
    """Both directions, trained together."""

    def __init__(self, batches: list[_Batch]) -> None:
        self.batches = batches
        size = 1 + max(int(batch.entries.max()) for batch in batches)
        source, target = (torch.zeros(size, dtype=torch.long) for _ in range(2))
        for batch in batches:
            entries = batch.entries.flatten().long()
            source[entries] = batch.source[:, None].expand_as(batch.entries).flatten()
            target[entries] = batch.target[:, :, None].expand_as(batch.entries).flatten()
        self.forward = _Direction(size, source, target)
        self.backward = _Direction(size, target, source)

    def count(self, *, markov: bool) -> None:
        """One iteration of expectation and maximisation."""
        size = len(self.forward.table)
        counts = [torch.zeros(size, dtype=torch.float64) for _ in range(2)]
        none = [torch.zeros(len(side.none), dtype=torch.float64) for side in self._sides]
        jumps = [torch.zeros(2 * _REACH + 1, dtype=torch.float64) for _ in range(2)]
        for batch in self.batches:
            forward, backward, extra = self.posteriors(batch, markov=markov)
            both = forward * backward if markov else None
            words = (batch.target, batch.source)
            for side, own in enumerate((forward, backward)):
                agreed = own if both is None else both
                counts[side].index_add_(
                    0, batch.entries.flatten().long(), agreed.flatten().double()
                )
                none[side].index_add_(0, words[side].flatten(), extra[side][0].flatten().double())
                jumps[side] += extra[side][1]
        for side, direction in enumerate(self._sides):
            direction.learn(counts[side], none[side], jumps[side])

    @property
    def _sides(self) -> tuple[_Direction, _Direction]:
        return self.forward, self.backward

    def posteriors(
        self, batch: _Batch, *, markov: bool
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Posteriors of both directions, (pair, target, source) each; and what else is counted.

        That is for each direction the posterior of none, (pair, position), and the jumps.
        """
        sides = []
        for side, direction in enumerate(self._sides):
            table = direction.table[batch.entries.long()] * batch.mask
            given_mask, said, said_mask = batch.source_mask, batch.target, batch.target_mask
            if side:
                table = table.transpose(1, 2)
                given_mask, said, said_mask = batch.target_mask, batch.source, batch.source_mask
            none = direction.none[said] * _NONE
            if markov:
                sides.append(_markov(direction.jumps, table, none, given_mask, said_mask))
            else:
                sides.append(_independent(table, none, given_mask, said_mask))
        (forward, *first), (backward, *second) = sides
        return forward, backward.transpose(1, 2), [tuple(first), tuple(second)]  # type: ignore[list-item]


def _independent(
    table: Float[Tensor, "pair said given"],
    none: Float[Tensor, "pair said"],
    given_mask: Bool[Tensor, "pair given"],
    said_mask: Bool[Tensor, "pair said"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Posteriors of IBM's first model: every position is as likely."""
    table = table * (1 - _NONE) / given_mask.sum(1)[:, None, None]
    whole = (table.sum(2) + none).clamp_min(1e-30)
    return table / whole[..., None], none / whole * said_mask, torch.zeros(1)


def _markov(
    jumps: Float[Tensor, " jump"],
    table: Float[Tensor, "pair said given"],
    none: Float[Tensor, "pair said"],
    given_mask: Bool[Tensor, "pair given"],
    said_mask: Bool[Tensor, "pair said"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Posteriors by the forward-backward algorithm.

    A state is a position of the given side, or none after that position (Och & Ney, 2003, section
    2.1): from both the next jump starts at the position.
    """
    pairs, length, size = table.shape
    positions = torch.arange(size)
    offsets = (positions - positions[:, None]).clamp(-_REACH, _REACH) + _REACH  # (from, to)
    move = jumps[offsets] * given_mask[:, None]  # (pair, from, to)
    move = move / move.sum(2, keepdim=True).clamp_min(1e-30) * (1 - _NONE)
    start = jumps[(positions + 1).clamp(max=_REACH) + _REACH] * given_mask
    start = start / start.sum(1, keepdim=True)
    # Behind the end of what is said nothing is asked of a state.
    table = torch.where(said_mask[..., None], table, 0.0)
    none = torch.where(said_mask, none, 1.0)
    states = start.new_empty(length, pairs, size)  # forward, of positions
    nones = torch.empty_like(states)  # forward, of none after them
    scales = start.new_empty(length, pairs, 1)
    before = start
    for step in range(length):
        arrived = start * (1 - _NONE) if step == 0 else (before[:, None] @ move)[:, 0]
        state = arrived * table[:, step]
        empty = before * none[:, step, None]
        scale = (state + empty).sum(1, keepdim=True).clamp_min(1e-30)
        states[step], nones[step], scales[step] = state / scale, empty / scale, scale
        before = states[step] + nones[step]
    after = torch.ones_like(start)
    posterior, nothing = torch.empty_like(table), torch.empty_like(none)
    moved = torch.zeros_like(move)
    for step in reversed(range(length)):
        posterior[:, step] = states[step] * after
        nothing[:, step] = (nones[step] * after).sum(1)
        reached = table[:, step] * after / scales[step]  # (pair, to)
        if step:
            left = states[step - 1] + nones[step - 1]
            moved += left[:, :, None] * reached[:, None]
            after = (move @ reached[..., None])[..., 0] + none[:, step, None] / scales[step] * after
    counts = torch.zeros(2 * _REACH + 1, dtype=torch.float64)
    counts.index_add_(0, offsets.flatten(), (moved * move).sum(0).flatten().double())
    return posterior, nothing * said_mask, counts
