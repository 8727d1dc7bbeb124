"""A change that must matter: another source under a decoder whose state is held."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from regard.translate.checks.probe import TARGET, Probe, Tokens, rounding
from regard.translate.tokens import PAD

_MOVES = 1e-6  # weights, or logits as a share of the largest, that differ by more have moved
_PAIRS = 8  # of sources that take each other's place


def check_encoder_use(probe: Probe) -> tuple[bool | None, str]:
    """Hold the decoder's state and put another source under it: weights and logits have to move.

    The state is that of one source after some words; a step is then made over what the encoder made
    of another source of the same length. Weights that compare the state with the source (its keys)
    move, in one state or another: a state may well look at the end of any sentence. Weights made of
    the state alone are the same to the last bit in every state. Where another state and another
    word do not move them either, they are constant, and nothing can be told. Logits that never move
    are those of a decoder that throws away what it looks at.
    """
    source = probe.sources(_PAIRS, max(probe.lengths))
    other_source = probe.others(source, probe.source_size)
    moves = _moved_by_source(probe, source, other_source)
    if moves is None:
        return False, "the translation does not depend on the source at all: any text has the same"
    depends = f"the translation depends on the source (another one moves the logits by {moves:.2g})"
    if not probe.model.sites:
        return None, f"there is no attention from target to source; {depends}"
    moved = _exchange(probe, source, other_source)
    held = f"with the decoder's state held and another source under it, in {_PAIRS * TARGET} states"
    if moved.logits <= _MOVES * max(1.0, moved.largest):
        return False, (
            f"{held}, no logit moved: the decoder does not use what it looks at, whatever its "
            f"weights show; {depends}"
        )
    looked = f"what is looked at moves the logits (by up to {moved.logits:.2g})"
    still = [site for site, size in moved.by_source.items() if size <= _MOVES]
    by_state = [site for site in still if moved.by_state[site] > _MOVES]
    if by_state:
        return False, (
            f"{held}, the weights of {', '.join(by_state)} stayed as they were: they come from the "
            "decoder alone and never see the source words, so they cannot be read as an alignment; "
            f"{looked}; {depends}"
        )
    if still:
        return None, (
            f"the weights of {', '.join(still)} are the same whatever the source and whatever the "
            "decoder's state: nothing has been learned there yet, or one place gets all of it; "
            f"{looked}; {depends}"
        )
    least = min(moved.by_source.values())
    return True, (
        f"{held}, the weights moved (up to {100 * least:.3g} % of a row went elsewhere): they "
        f"compare the state with the source; {looked}; {depends}"
    )


@dataclass(frozen=True)
class _Movement:
    """The most that anything moved over all states.

    | field       | meaning                                                                   |
    |-------------|---------------------------------------------------------------------------|
    | `by_source` | of each site's weights, the share that another source moved elsewhere     |
    | `by_state`  | the same for another state and another word                               |
    | `logits`    | of the logits, with another source                                        |
    | `largest`   | the largest logit                                                         |
    """

    by_source: dict[str, float]
    by_state: dict[str, float]
    logits: float
    largest: float


def _exchange(probe: Probe, source: Tokens, other_source: Tokens) -> _Movement:
    """Go along a target over each source; at every step put the second under the first's state.

    The words are different ones in every row, so that there are as many states as rows and steps.
    """
    model = probe.model
    first, second = (model.encode(tokens, tokens != PAD) for tokens in (source, other_source))
    state, other_state = model.start(first), model.start(second)
    words = probe.targets(_PAIRS)
    other_words = probe.words(_PAIRS, TARGET, probe.target_size)
    by_source, by_state = dict.fromkeys(model.sites, 0.0), dict.fromkeys(model.sites, 0.0)
    logits, largest = 0.0, 0.0
    for word, other_word in zip(words.unbind(1), other_words.unbind(1)):
        held = probe.step(first, state, word)
        source_changed = probe.step(second, state, word)
        state_changed = probe.step(first, other_state, other_word)
        for site, weights in held.weights.items():
            for most, changed in ((by_source, source_changed), (by_state, state_changed)):
                most[site] = max(most[site], _elsewhere(weights, changed.weights[site]))
        logits = max(logits, float((held.logits - source_changed.logits).abs().max()))
        largest = max(largest, float(held.logits.abs().max()))
        state = held.state
        other_state = probe.step(second, other_state, other_word).state
    return _Movement(by_source, by_state, logits, largest)


def _moved_by_source(probe: Probe, source: Tokens, other_source: Tokens) -> float | None:
    """How far another source moves the logits of one target; None where it moves nothing."""
    target = probe.targets(1).expand(len(source), -1)
    first, second = (
        probe.run(tokens, tokens != PAD, target)[0] for tokens in (source, other_source)
    )
    moved = float((first - second).abs().max())
    return None if moved <= rounding(first) else moved


def _elsewhere(
    here: Float[Tensor, "row head source"], there: Float[Tensor, "row head source"]
) -> float:
    """The largest part of a row's mass that lies elsewhere."""
    return float((here.double() - there.double()).abs().sum(-1).max()) / 2
