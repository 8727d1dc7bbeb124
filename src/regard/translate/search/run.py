"""`search`, and `search_steps` for those who watch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import RegardError
from regard.translate.models.contract import TranslationModel
from regard.translate.models.modes import evaluating
from regard.translate.search.beams import Beams, Found
from regard.translate.search.hypothesis import Hypothesis
from regard.translate.search.rules import Rules, check_source, prefix_table


def search(
    model: TranslationModel,
    source: Int[Tensor, "sentence source"],
    mask: Bool[Tensor, "sentence source"],
    *,
    beam: int = 1,
    n_best: int = 1,
    length_penalty: float = 0.6,
    coverage_penalty: float = 0.0,
    shortest: int = 0,
    longest: int | None = None,
    prefix: Sequence[Sequence[int]] | None = None,
    unknown: bool = True,
    weights: bool = True,
) -> list[list[Hypothesis]]:
    """The best translations of each sentence, best first.

    Hypotheses are ranked by log P / ((5 + length) / 6)^α + β Σᵢ log min(coverageᵢ, 1), with α the
    length penalty and β the coverage penalty (Wu et al. 2016, equation 14); `length` counts `END`.
    With a beam of 1 the search is greedy. What a sentence gets does not depend on those beside it.

    Args:
        model: any translation model; it runs in eval mode and is left as it was.
        source: tokens of the sentences, each with `END`, padded on the right.
        mask: True at tokens.
        beam: hypotheses kept of each sentence.
        n_best: how many are returned, at most; fewer where the search ended with fewer.
        length_penalty: 0 ranks by probability alone; more favours long translations.
        coverage_penalty: more favours translations that have looked at every source token.
        shortest: tokens that must be said before `END`.
        longest: the most tokens, `END` among them; when None, twice the source and 10 more, behind
            `shortest` and the prefix. A hypothesis cut there does not end with `END`.
        prefix: for each sentence the tokens it must begin with.
        unknown: whether `UNKNOWN` may be said.
        weights: also return the target-to-source attentions, where the model has them.
    """
    rules = Rules(
        beam, n_best, length_penalty, coverage_penalty, shortest, longest, unknown, weights
    )
    beams = _begin(model, source, mask, rules, prefix)
    with evaluating(model):
        while not beams.over:
            beams.advance()
    return _collect(beams, len(source))


def search_steps(
    model: TranslationModel,
    source: Int[Tensor, "1 source"],
    mask: Bool[Tensor, "1 source"],
    *,
    beam: int = 1,
    length_penalty: float = 0.6,
    coverage_penalty: float = 0.0,
    shortest: int = 0,
    longest: int | None = None,
    prefix: Sequence[Sequence[int]] | None = None,
    unknown: bool = True,
    weights: bool = True,
) -> Iterator[Hypothesis]:
    """The search for one sentence, watched: after every step the best hypothesis so far.

    It may still be open, and may later be overtaken by another. The last is what `search` returns.
    """
    rules = Rules(beam, 1, length_penalty, coverage_penalty, shortest, longest, unknown, weights)
    if len(source) != 1:
        raise RegardError(f"search_steps: source has {len(source)} sentences, expected 1")
    beams = _begin(model, source, mask, rules, prefix)
    while not beams.over:
        with evaluating(model):
            beams.advance()
        if not beams.over:
            yield _best_so_far(beams)
    yield _collect(beams, 1)[0][0]


@torch.no_grad()
def _begin(
    model: TranslationModel,
    source: Tensor,
    mask: Tensor,
    rules: Rules,
    prefix: Sequence[Sequence[int]] | None,
) -> Beams:
    check_source(model, source, mask, rules)
    forced = prefix_table(prefix, len(source), source.device)
    with evaluating(model):
        return Beams(model, model.read(source, mask), rules, forced)


def _collect(beams: Beams, sentences: int) -> list[list[Hypothesis]]:
    """The `n_best` of each sentence; of equal ones the first found comes first."""
    if sentences == 0:
        return []
    if not beams.found:
        raise _nothing(0)
    found = _joined(beams.found)
    ranked: list[list[int]] = [[] for _ in range(sentences)]
    scores = found.score.tolist()
    for place, sentence in enumerate(found.sentence.tolist()):
        ranked[sentence].append(place)
    for number, places in enumerate(ranked):
        if not places:
            raise _nothing(number)
        places.sort(key=lambda place: -scores[place])
        del places[beams.rules.n_best :]
    chosen = torch.tensor([place for places in ranked for place in places])
    hypotheses = iter(_hypotheses(beams, _joined([found], chosen.to(found.score.device))))
    return [[next(hypotheses) for _ in places] for places in ranked]


def _joined(found: list[Found], chosen: Tensor | None = None) -> Found:
    """All that was found, or the chosen of it."""
    leaves = [(f.sentence, *f.ends, f.log_probability, f.score) for f in found]
    joined = [torch.cat(parts) for parts in zip(*leaves)]
    if chosen is not None:
        joined = [part[chosen] for part in joined]
    sentence, step, row, token, log_probability, score = joined
    return Found(sentence, type(found[0].ends)(step, row, token), log_probability, score)


def _hypotheses(beams: Beams, found: Found) -> list[Hypothesis]:
    tokens, weights = beams.history.trace(found.ends)
    lengths = (found.ends.step + 1).tolist()
    values = zip(tokens.tolist(), found.score.tolist(), found.log_probability.tolist(), lengths)
    return [
        Hypothesis(
            said[:length],
            score,
            log_probability,
            {site: seen[place, :, :length] for site, seen in weights.items()},
        )
        for place, (said, score, log_probability, length) in enumerate(values)
    ]


def _best_so_far(beams: Beams) -> Hypothesis:
    """The best of what is finished and of the first open hypothesis of the only sentence."""
    first = beams.sentences.new_zeros(1)
    log_probability = beams.scores[:, :1]
    score = beams.worth(log_probability, first[:, None], len(beams.history))
    open_one = Found(first, beams.history.open_ends(first), log_probability[0], score[0])
    found = _joined([*beams.found, open_one])
    return _hypotheses(beams, _joined([found], found.score.argmax()[None]))[0]


def _nothing(sentence: int) -> RegardError:
    return RegardError(
        f"search: sentence {sentence} has no hypothesis; the model's logits are NaN or -inf for "
        "every token that may be said"
    )
