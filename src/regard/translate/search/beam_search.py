"""`beam_search` and its result, and `beam_search_steps` to watch it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.anatomy.modes import evaluation_mode
from regard.errors import RegardError
from regard.translate.models.contract import TranslationModel
from regard.translate.search.beams import Beams, FinishedHypotheses
from regard.translate.search.options import (
    SearchOptions,
    check_n_best,
    check_source,
    prefix_table,
)
from regard.translate.search.sampling import uniforms


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation of one sentence.

    | field             | meaning                                                              |
    |-------------------|----------------------------------------------------------------------|
    | `tokens`          | without `BEGIN`; the last is `END`, unless the limit was reached     |
    | `score`           | the ranking criterion of `regard.translate.search.beam_search`       |
    | `log_probability` | log P(tokens), without penalties                                     |
    | `weights`         | by site, (head, target, source): a row for each of `tokens`          |
    """

    tokens: list[int]
    score: float
    log_probability: float
    weights: dict[str, Float[Tensor, "head target source"]] = field(default_factory=dict)


def beam_search(
    model: TranslationModel,
    source: Int[Tensor, "sentence source"],
    mask: Bool[Tensor, "sentence source"],
    options: SearchOptions | None = None,
    *,
    n_best: int = 1,
    prefix: Sequence[Sequence[int]] | None = None,
    weights: bool = True,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence, best first.

    Hypotheses are ranked by log P / ((5 + length) / 6)^α + β Σᵢ log min(coverageᵢ, 1), with α the
    length penalty and β the coverage penalty (Wu et al. 2016, equation 14); `length` counts `END`.
    With a beam of 1 the search is greedy. With `options.sample` the hypotheses are independent
    samples instead, in the order they were drawn. The result of a sentence does not depend on the
    others.

    Args:
        model: any translation model; it runs in eval mode, and its mode is restored.
        source: tokens of the sentences, each with `END`, padded on the right.
        mask: True at tokens.
        options: beam width, penalties and lengths; the defaults of `SearchOptions` when None.
        n_best: maximum number of hypotheses returned, fewer if the search ended with fewer; the
            number of samples.
        prefix: for each sentence, the tokens it must begin with.
        weights: also return target-to-source attention, if the model has it.
    """
    options = SearchOptions() if options is None else options
    beams = _begin(model, source, mask, options, n_best, prefix, weights)
    with evaluation_mode(model):
        while not beams.over:
            beams.advance()
    if not options.sample:
        return _collect(beams, len(source))
    samples = [sample for (sample,) in _collect(beams, len(source) * n_best)]
    return [samples[start : start + n_best] for start in range(0, len(samples), n_best)]


def beam_search_steps(
    model: TranslationModel,
    source: Int[Tensor, "1 source"],
    mask: Bool[Tensor, "1 source"],
    options: SearchOptions | None = None,
    *,
    prefix: Sequence[Sequence[int]] | None = None,
    weights: bool = True,
) -> Iterator[Hypothesis]:
    """`beam_search` of one sentence, yielding the best hypothesis so far after every step.

    It may be unfinished, and may be overtaken later. The last one is what `beam_search` returns.
    """
    options = SearchOptions() if options is None else options
    if len(source) != 1:
        raise RegardError(f"beam_search_steps: source has {len(source)} sentences, expected 1")
    beams = _begin(model, source, mask, options, 1, prefix, weights)
    while not beams.over:
        with evaluation_mode(model):
            beams.advance()
        if not beams.over:
            yield _best_so_far(beams)
    yield _collect(beams, 1)[0][0]


@torch.no_grad()
def _begin(
    model: TranslationModel,
    source: Tensor,
    mask: Tensor,
    options: SearchOptions,
    n_best: int,
    prefix: Sequence[Sequence[int]] | None,
    weights: bool,
) -> Beams:
    check_n_best(n_best, options)
    check_source(model, source, mask, options)
    forced = prefix_table(prefix, len(source), source.device)
    with evaluation_mode(model):
        encoded = model.encode(source, mask)
        if not options.sample:
            return Beams(model, encoded, options, forced, n_best=n_best, weights=weights)
        rows = torch.arange(len(source), device=source.device).repeat_interleave(n_best)
        encoded, forced = encoded.select(rows), forced[rows]  # each sample searches by itself
        limits = options.limits(encoded.mask, forced)
        chances = uniforms(source, mask, limits, n_best, options.seed)
        alone = replace(options, beam=1)
        return Beams(model, encoded, alone, forced, chances=chances, weights=weights)


def _collect(beams: Beams, sentences: int) -> list[list[Hypothesis]]:
    """The `n_best` of each sentence; of equal ones, the first found comes first."""
    if sentences == 0:
        return []
    if not beams.finished:
        raise _no_hypothesis(0)
    finished = _joined(beams.finished)
    ranked: list[list[int]] = [[] for _ in range(sentences)]
    scores = finished.score.tolist()
    for index, sentence in enumerate(finished.sentence.tolist()):
        ranked[sentence].append(index)
    for number, indices in enumerate(ranked):
        if not indices:
            raise _no_hypothesis(number)
        indices.sort(key=lambda index: -scores[index])
        del indices[beams.n_best :]
    chosen = torch.tensor([index for indices in ranked for index in indices])
    hypotheses = iter(_hypotheses(beams, _joined([finished], chosen.to(finished.score.device))))
    return [[next(hypotheses) for _ in indices] for indices in ranked]


def _joined(batches: list[FinishedHypotheses], chosen: Tensor | None = None) -> FinishedHypotheses:
    """All finished hypotheses, or the chosen ones."""
    leaves = [(f.sentence, *f.ends, f.log_probability, f.score) for f in batches]
    joined = [torch.cat(tensors) for tensors in zip(*leaves)]
    if chosen is not None:
        joined = [tensor[chosen] for tensor in joined]
    sentence, step, row, token, log_probability, score = joined
    ends = type(batches[0].ends)(step, row, token)
    return FinishedHypotheses(sentence, ends, log_probability, score)


def _hypotheses(beams: Beams, finished: FinishedHypotheses) -> list[Hypothesis]:
    targets, weights = beams.history.trace(finished.ends)
    lengths = (finished.ends.step + 1).tolist()
    scores, log_probabilities = finished.score.tolist(), finished.log_probability.tolist()
    return [
        Hypothesis(
            tokens[:length],
            score,
            log_probability,
            {site: heads[row, :, :length] for site, heads in weights.items()},
        )
        for row, (tokens, score, log_probability, length) in enumerate(
            zip(targets.tolist(), scores, log_probabilities, lengths)
        )
    ]


def _best_so_far(beams: Beams) -> Hypothesis:
    """The best of the finished hypotheses and the first open one of the only sentence."""
    first = beams.sentences.new_zeros(1)
    log_probability = beams.scores[:, :1]
    score = beams.worth(log_probability, first[:, None], len(beams.history))
    ends = beams.history.open_ends(first)
    unfinished = FinishedHypotheses(first, ends, log_probability[0], score[0])
    candidates = _joined([*beams.finished, unfinished])
    return _hypotheses(beams, _joined([candidates], candidates.score.argmax()[None]))[0]


def _no_hypothesis(sentence: int) -> RegardError:
    return RegardError(
        f"search: sentence {sentence} has no hypothesis; the model's logits are NaN or -inf for "
        "every token that is allowed"
    )
