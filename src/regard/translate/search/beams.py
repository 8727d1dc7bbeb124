"""The loop of greedy and beam search, over `TranslationModel.step`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.translate.models.contract import EncoderOutput, StepOutput, TranslationModel, select
from regard.translate.search.candidates import Candidates, best_candidates
from regard.translate.search.history import Ends, History
from regard.translate.search.options import SearchOptions, check_vocabulary
from regard.translate.search.sampling import drawn_candidates
from regard.translate.tokens import BEGIN, END

UNSEEN = 1e-6  #: minimum coverage of a source token: windows leave some at 0


def per_length(
    log_probability: Float[Tensor, "*hypothesis"], length: int | Tensor, alpha: float
) -> Float[Tensor, "*hypothesis"]:
    """log P / lp, with lp = ((5 + |Y|) / 6)^α (Wu et al. 2016, equation 14); |Y| counts `END`."""
    return log_probability / ((5 + length) / 6) ** alpha


def coverage_term(
    coverage: Float[Tensor, "hypothesis source"],
    mask: Bool[Tensor, "hypothesis source"],
    beta: float,
) -> Float[Tensor, " hypothesis"]:
    """cp = β Σᵢ log min(coverageᵢ, 1) (Wu et al. 2016, equation 14): at most 0.

    `coverage` sums a source token's weights over the target, each the mean over sites and heads.
    """
    logs = coverage.clamp(UNSEEN, 1.0).log()
    return beta * logs.masked_fill(~mask, 0.0).sum(1)


class FinishedHypotheses(NamedTuple):
    """Finished hypotheses: their sentences, last steps and scores."""

    sentence: Tensor
    ends: Ends
    log_probability: Tensor
    score: Tensor


class Beams:
    """The hypotheses of a batch of sentences, taken one step further at a time.

    A sentence leaves the batch when it has as many finished hypotheses as the beam is wide, when
    it has reached its limit, or when no open hypothesis can still become one of its `n_best`: an
    open one only loses probability, so its score is bounded by ending now with probability 1.

    Args:
        model: any translation model.
        encoded: the sentences, read.
        options: how to search.
        prefix: (sentence, forced): the tokens each must begin with, then -1.
        chances: (sentence, step): by which tokens are drawn; None to search for the best.
        n_best: how many hypotheses are returned.
        weights: whether to keep target-to-source attention.
    """

    def __init__(
        self,
        model: TranslationModel,
        encoded: EncoderOutput,
        options: SearchOptions,
        prefix: Tensor,
        *,
        chances: Tensor | None = None,
        n_best: int = 1,
        weights: bool = True,
    ) -> None:
        device, sentences = encoded.mask.device, len(encoded.mask)
        self.model = model
        self.options = options
        self.n_best = n_best
        self.weights = weights
        self.history = History()
        self.finished: list[FinishedHypotheses] = []
        self.encoded = encoded
        self.sentences = torch.arange(sentences, device=device)
        self.prefix = prefix
        self.chances = chances
        self.limits = options.limits(encoded.mask, prefix)
        self.state = model.start(encoded, 1)
        self.tokens = torch.full((sentences,), BEGIN, device=device)
        self.scores: Float[Tensor, "sentence beam"] = torch.zeros(sentences, 1, device=device)
        self.coverage: Float[Tensor, "row source"] | None = None
        self._finished = torch.zeros(sentences, dtype=torch.long, device=device)
        self._best = torch.full((sentences, n_best), -torch.inf, device=device)

    @property
    def over(self) -> bool:
        """Whether no sentence is left."""
        return len(self.sentences) == 0

    @torch.no_grad()
    def advance(self) -> None:
        """Extend all hypotheses by one token."""
        options, step = self.options, len(self.history)
        needed = bool(self.model.sites) and (self.weights or options.coverage_penalty > 0)
        stepped = self.model.step(self.encoded, self.state, self.tokens, weights=needed)
        if step == 0:
            check_vocabulary(self.prefix, stepped.logits.shape[1])
        self.history.saw(stepped.weights if self.weights else {})
        self._cover(stepped)
        candidates = self._candidates(stepped.logits, step)
        last = self.limits <= step + 1
        self._finish(candidates, last, step)
        self._go_on(candidates, last, stepped.state, step)

    def _candidates(self, logits: Tensor, step: int) -> Candidates:
        """The best continuations of each sentence, or the one that was drawn."""
        scores = self.scores.to(torch.promote_types(logits.dtype, torch.float32))
        forced = self.prefix[:, step] if step < self.prefix.shape[1] else None
        forbidden = self.options.forbidden(step)
        if self.chances is None:
            count = self.options.candidates
            return best_candidates(logits, scores, count, forbidden=forbidden, forced=forced)
        chance = self.chances[:, step]
        return drawn_candidates(
            logits, scores, chance, self.options, forbidden=forbidden, forced=forced
        )

    def _cover(self, stepped: StepOutput) -> None:
        """Accumulate the attention of each hypothesis, if coverage counts."""
        if self.options.coverage_penalty:
            heads = torch.cat(list(stepped.weights.values()), dim=1)  # (row, all heads, source)
            now = heads.mean(1)
            self.coverage = now if self.coverage is None else self.coverage + now

    def worth(self, log_probability: Tensor, rows: Tensor, length: int) -> Tensor:
        """The score of hypotheses that continue these rows; all (sentence, hypothesis)."""
        score = per_length(log_probability, length, self.options.length_penalty)
        if self.coverage is None:
            return score
        mask = self.encoded.mask.repeat_interleave(rows.shape[1], dim=0)
        covered = coverage_term(self.coverage[rows.flatten()], mask, self.options.coverage_penalty)
        return score + covered.view_as(score)

    def _finish(self, candidates: Candidates, last: Tensor, step: int) -> None:
        """Keep the candidates that end: of the first `beam`, and at the limit all of those."""
        first = Candidates(*(field[:, : self.options.beam] for field in candidates))
        ends = ((first.token == END) | last[:, None]) & (first.score > -torch.inf)
        where = ends.nonzero(as_tuple=True)
        if len(where[0]) == 0:
            return
        score = self.worth(first.score, first.row, step + 1)
        self._finished = self._finished + ends.sum(1)
        both = torch.cat([self._best.to(score), score.where(ends, -torch.inf)], dim=1)
        self._best = both.topk(self.n_best, dim=1).values
        row, token = first.row[where], first.token[where]
        at = Ends(torch.full_like(row, step), row, token)
        sentence = self.sentences[where[0]]
        self.finished.append(FinishedHypotheses(sentence, at, first.score[where], score[where]))

    def _go_on(self, candidates: Candidates, last: Tensor, state: object, step: int) -> None:
        """The best candidates that do not end are the next hypotheses of those not yet done."""
        score, row, token = self._open(candidates)
        best = score[:, 0]
        done = last | (self._finished >= self.options.beam) | (best == -torch.inf)
        if self.options.beam > 1:  # else a sentence with anything finished is done
            done = done | (self._best[:, -1] >= self._reach(best, step))
        stay = (~done).nonzero()[:, 0]
        if len(stay) < len(done):
            self._leave(stay)
            score, row, token = score[stay], row[stay], token[stay]
        elif self.options.beam == 1:  # every row is where it was
            self.scores, self.tokens, self.state = score, token[:, 0], state
            self.history.went_on(row[:, 0], token[:, 0])
            return
        self.scores, self.tokens = score, token.flatten()
        rows = row.flatten()
        self.state = select(state, rows)
        self.coverage = None if self.coverage is None else self.coverage[rows]
        self.history.went_on(rows, self.tokens)

    def _open(self, candidates: Candidates) -> Candidates:
        """The first `beam` of those that do not end."""
        if self.options.beam == 1:  # if the only one ends, its sentence is done
            return candidates
        score = candidates.score.masked_fill(candidates.token == END, -torch.inf)
        score, order = score.sort(dim=1, descending=True, stable=True)
        score, order = score[:, : self.options.beam], order[:, : self.options.beam]
        return Candidates(score, candidates.row.gather(1, order), candidates.token.gather(1, order))

    def _reach(self, best: Tensor, step: int) -> Tensor:
        """The most that the best open hypothesis of each sentence can come to be worth."""
        alpha = self.options.length_penalty
        soon, late = per_length(best, step + 2, alpha), per_length(best, self.limits, alpha)
        return torch.maximum(soon, late)

    def _leave(self, stay: Tensor) -> None:
        """Only these sentences remain."""
        self.encoded = self.encoded.select(stay)
        self.sentences, self.prefix = self.sentences[stay], self.prefix[stay]
        self.limits, self._finished = self.limits[stay], self._finished[stay]
        self._best = self._best[stay]
        self.chances = None if self.chances is None else self.chances[stay]
