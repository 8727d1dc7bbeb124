"""Checks of a translation model that a learner would want to make, each with a plain verdict.

They know the contract of a model and nothing of its inside. They are experiments: change what must
not matter and nothing may move; change what must matter and something has to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RegardError
from regard.translate.models.contract import Decoded, TranslationModel
from regard.translate.models.modes import evaluating
from regard.translate.tokens import BEGIN, END, NAMES, PAD

_SAME = 1e-4  # how far rounding may move logits, as a share of the largest
_MOVES = 1e-6  # weights that differ by more have moved
_TARGET = 8  # tokens the decoder is given
_LENGTHS = (7, 5, 3)  # of the sources, their end included
_EXTRA = 4  # further places of padding
_PAIRS = 8  # of sources that take each other's place

Tokens = Int[Tensor, "batch place"]


@dataclass(frozen=True)
class Verdict:
    """What a check found: `passed` is None where it does not apply, and `why` says it plainly."""

    name: str
    passed: bool | None
    why: str

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        return {True: "passed", False: "failed", None: "not applicable"}[self.passed]


def check_model(model: TranslationModel, source_size: int, *, seed: int = 0) -> list[Verdict]:
    """Run all checks on a model, trained or not.

    >>> from regard.translate.models.build import ModelConfig, build
    >>> model = build(ModelConfig("tutorial", embedding=8, hidden=8), 20, 20)
    >>> [(verdict.name, verdict.word) for verdict in check_model(model, 20)]
    [('causal', 'passed'), ('padding', 'passed'), ('uses the encoder', 'failed')]

    Args:
        model: any model under the contract. It is run in eval mode and left as it was.
        source_size: how many tokens its source vocabulary has.
        seed: of the tokens it is tried with.
    """
    with evaluating(model), torch.inference_mode():
        probe = _Probe.of(model, source_size, seed)
        return [check_causal(probe), check_padding(probe), check_encoder_use(probe)]


@dataclass(frozen=True, eq=False)
class _Probe:
    """A model and tokens to try it with."""

    model: TranslationModel
    source_size: int
    target_size: int
    random: torch.Generator
    device: torch.device

    @classmethod
    def of(cls, model: TranslationModel, source_size: int, seed: int) -> _Probe:
        limit = model.longest_source
        if limit is not None and limit < max(_LENGTHS) + _EXTRA:
            raise RegardError(
                f"check_model: the model reads at most {limit} tokens, "
                f"but the checks need {max(_LENGTHS) + _EXTRA}"
            )
        device = next(model.parameters()).device
        one = torch.full((1, 1), END, device=device)
        encoded = model.encode(one, one != PAD)
        decoded = model.decode(encoded, torch.full_like(one, BEGIN))
        target_size = model.logits(decoded.features).shape[-1]
        for side, size in (("source", source_size), ("target", target_size)):
            if size < len(NAMES) + 2:
                raise RegardError(
                    f"check_model: the {side} vocabulary has {size} tokens, "
                    f"expected at least {len(NAMES) + 2}"
                )
        random = torch.Generator().manual_seed(seed)
        return cls(model, source_size, target_size, random, device)

    def words(self, rows: int, places: int, size: int) -> Tokens:
        """Any tokens but the special ones."""
        made = torch.randint(len(NAMES), size, (rows, places), generator=self.random)
        return made.to(self.device)

    def sources(self, rows: int, places: int) -> Tokens:
        """Sources of this length, their end included."""
        end = torch.full((rows, 1), END, device=self.device)
        return torch.cat([self.words(rows, places - 1, self.source_size), end], 1)

    def targets(self, rows: int) -> Tokens:
        """What a decoder is given."""
        begin = torch.full((rows, 1), BEGIN, device=self.device)
        return torch.cat([begin, self.words(rows, _TARGET - 1, self.target_size)], 1)

    def others(self, tokens: Tokens, size: int) -> Tokens:
        """Another token in the place of each; special ones stay."""
        first = len(NAMES)
        shift = torch.randint(1, size - first, tokens.shape, generator=self.random)
        turned = (tokens - first + shift.to(self.device)) % (size - first) + first
        return torch.where(tokens < first, tokens, turned)

    def run(
        self,
        source: Int[Tensor, "batch source"],
        mask: Bool[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
    ) -> tuple[Float[Tensor, "batch target vocabulary"], Decoded]:
        """Logits (batch, target, vocabulary), and the weights beside them."""
        encoded = self.model.encode(source, mask)
        decoded = self.model.decode(encoded, target, weights=bool(self.model.sites))
        return self.model.logits(decoded.features).double(), decoded


def check_causal(probe: _Probe) -> Verdict:
    """Change the target from each place on: what was said before it must not move."""
    cuts = torch.arange(1, _TARGET, device=probe.device)
    source = probe.sources(1, max(_LENGTHS)).expand(len(cuts), -1)
    target = probe.targets(1).expand(len(cuts), -1)
    later = torch.arange(_TARGET, device=probe.device) >= cuts[:, None]  # (cut, place)
    changed = torch.where(later, probe.others(target, probe.target_size), target)
    before, after = (probe.run(source, source != PAD, one)[0] for one in (target, changed))
    moved = (after - before).abs().amax(-1)  # (cut, place)
    early, late = float(moved[~later].max()), float(moved[later].max())
    bound = _bound(before)
    if early > bound:
        why = (
            f"changing later target words moved earlier logits by {early:.2g}: the decoder sees "
            "the future while it learns, and cannot when it translates"
        )
        return Verdict("causal", False, why)
    if late <= bound:
        why = "no logit moved, earlier or later: the decoder does not look at the target at all"
        return Verdict("causal", None, why)
    why = (
        f"changing later target words moved later logits by {late:.2g} and earlier ones by "
        f"{early:.2g}: the decoder sees the past alone"
    )
    return Verdict("causal", True, why)


def check_padding(probe: _Probe) -> Verdict:
    """Read sentences alone, then padded and together: nothing may move."""
    sources = [probe.sources(1, size) for size in _LENGTHS]
    target = probe.targets(1)
    alone = [probe.run(source, source != PAD, target) for source in sources]
    moved, leaked, bound = 0.0, 0.0, 0.0
    for extra, filler in ((0, PAD), (_EXTRA, PAD), (_EXTRA, len(NAMES))):
        width = max(_LENGTHS) + extra
        batch = torch.full((len(sources), width), filler, device=probe.device)
        mask = torch.zeros_like(batch, dtype=torch.bool)
        for row, source in enumerate(sources):
            batch[row, : source.shape[1]] = source[0]
            mask[row, : source.shape[1]] = True
        logits, decoded = probe.run(batch, mask, target.expand(len(sources), -1))
        for row, (expected, _) in enumerate(alone):
            moved = max(moved, float((logits[row] - expected[0]).abs().max()))
            bound = max(bound, _bound(expected))
        for weights in decoded.weights.values():  # (batch, head, target, source)
            behind = weights.masked_fill(mask[:, None, None], 0)
            leaked = max(leaked, float(behind.abs().max()))
    if leaked > 0:
        why = f"a place of padding got attention, {leaked:.2g}: the mask is not applied to it"
        return Verdict("padding", False, why)
    if moved > bound:
        why = (
            f"padding, or other sentences in the batch, moved the logits by {moved:.2g}: a "
            "translation depends on the company it is in"
        )
        return Verdict("padding", False, why)
    padded = "and no padding got attention" if probe.model.sites else "so padding is not read"
    why = f"padding and other sentences in the batch moved the logits by {moved:.2g}, {padded}"
    return Verdict("padding", True, why)


def check_encoder_use(probe: _Probe) -> Verdict:
    """Hold the decoder's state and put another source under it: the weights have to move.

    The state before the first word is that of one source; a step is then made over what the encoder
    made of another source of the same length. Weights that compare the state with the source (its
    keys) move. Weights made of the state alone are the same to the last bit. Where another state
    and another word do not move them either, they are constant, and nothing can be told.
    """
    name, model = "uses the encoder", probe.model
    one = probe.sources(_PAIRS, max(_LENGTHS))
    other = probe.others(one, probe.source_size)
    depends = _depends_on_source(probe, one, other)
    if not model.sites:
        return Verdict(name, None, f"there is no attention from target to source; {depends}")
    first, second = (model.encode(source, source != PAD) for source in (one, other))
    states = model.start(first), model.start(second)
    begin = torch.full((_PAIRS,), BEGIN, device=probe.device)
    word = probe.words(_PAIRS, 1, probe.target_size)[:, 0]
    held, source_changed, state_changed = (
        model.step(encoded, state, token, weights=True).weights
        for encoded, state, token in (
            (first, states[0], begin),
            (second, states[0], begin),
            (first, states[1], word),
        )
    )
    moved = {site: _difference(held[site], source_changed[site]) for site in model.sites}
    still = [site for site, size in moved.items() if size <= _MOVES]
    if still and all(_difference(held[site], state_changed[site]) <= _MOVES for site in still):
        why = (
            f"the weights of {', '.join(still)} are the same whatever the source and whatever the "
            f"decoder's state: nothing has been learned there yet; {depends}"
        )
        return Verdict(name, None, why)
    if still:
        why = (
            f"with the decoder's state held and another source under it, the weights of "
            f"{', '.join(still)} stayed as they were: they come from the decoder alone and never "
            f"see the source words, so they cannot be read as an alignment; {depends}"
        )
        return Verdict(name, False, why)
    least = min(moved.values())
    why = (
        f"with the decoder's state held and another source under it, the weights moved (by "
        f"{100 * least:.2g} % of their mass): they compare the state with the source; {depends}"
    )
    return Verdict(name, True, why)


def _depends_on_source(probe: _Probe, one: Tokens, other: Tokens) -> str:
    target = probe.targets(1).expand(len(one), -1)
    first, second = (probe.run(source, source != PAD, target)[0] for source in (one, other))
    moved = float((first - second).abs().max())
    if moved <= _bound(first):
        return "the translation does not depend on the source at all"
    return f"the translation depends on the source (another one moves the logits by {moved:.2g})"


def _difference(
    here: Float[Tensor, "row head source"], there: Float[Tensor, "row head source"]
) -> float:
    """The largest part of a row's mass that lies elsewhere."""
    return float((here.double() - there.double()).abs().sum(-1).max()) / 2


def _bound(logits: Float[Tensor, "batch target vocabulary"]) -> float:
    return _SAME * max(1.0, float(logits.abs().max()))
