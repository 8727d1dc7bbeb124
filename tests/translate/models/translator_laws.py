"""The laws of the translation contract, each a function of a way to build a model.

`build()` makes a small model for `SOURCE` and `TARGET` tokens; `model_of` shakes its parameters, so
that nothing holds only because something is still 0, and turns training off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.translate.models.contract import DecoderOutput, TranslationModel, select
from regard.translate.models.transformer import Transformer
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN

SOURCE, TARGET = 17, 19
LENGTHS = (13, 1, 4)  # beyond the reach of a local window
Build = Callable[[], TranslationModel]
LAWS: dict[str, Callable[[Build], None]] = {}


def law(check: Callable[[Build], None]) -> Callable[[Build], None]:
    """Enter a check into the list under its own name."""
    LAWS[check.__name__] = check
    return check


def model_of(build: Build, dtype: torch.dtype = torch.float64) -> TranslationModel:
    torch.manual_seed(3)
    model = build().to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def sentences(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Sources of `LENGTHS`, padded on the right, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(UNKNOWN + 1, SOURCE, (3, max(LENGTHS)), generator=generator)
    lengths = torch.tensor(LENGTHS)[:, None]
    places = torch.arange(max(LENGTHS))
    source = source.masked_fill(places == lengths - 1, END).masked_fill(places >= lengths, PAD)
    return source, places < lengths


def targets(rows: int = 3, length: int = 5, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(UNKNOWN + 1, TARGET, (rows, length), generator=generator)
    target[:, 0] = BEGIN
    return target


def same(first: Tensor, second: Tensor) -> None:
    loose = {torch.float64: 1e-10, torch.float32: 1e-5}[first.dtype]
    torch.testing.assert_close(first, second, rtol=loose, atol=loose)


def same_decoding(first: DecoderOutput, second: DecoderOutput) -> None:
    same(first.features, second.features)
    assert first.weights.keys() == second.weights.keys()
    for site, weights in first.weights.items():
        same(weights, second.weights[site])


def _stepped_equals_decoded(build: Build, beams: int, dtype: torch.dtype) -> None:
    model = model_of(build, dtype)
    encoded = model.encode(*sentences())
    target = targets(3 * beams)
    rows = torch.arange(3).repeat_interleave(beams)
    decoded = model.decode(encoded.select(rows), target, weights=True)
    logits = model.logits(decoded.features)
    state = model.start(encoded, beams)
    for place in range(target.shape[1]):
        stepped = model.step(encoded, state, target[:, place], weights=True)
        same(stepped.logits, logits[:, place])
        assert stepped.weights.keys() == decoded.weights.keys()
        for site, weights in stepped.weights.items():
            same(weights, decoded.weights[site][:, :, place])
        state = stepped.state


@law
def steps_equal_decode(build: Build) -> None:
    _stepped_equals_decoded(build, 1, torch.float64)
    _stepped_equals_decoded(build, 1, torch.float32)


@law
def steps_of_beams_equal_decode(build: Build) -> None:
    _stepped_equals_decoded(build, 3, torch.float64)
    _stepped_equals_decoded(build, 3, torch.float32)


@law
def rows_can_change_places(build: Build) -> None:
    """As search does: after a step the rows of a sentence follow other rows, in another order."""
    model = model_of(build)
    encoded = model.encode(*sentences())
    target = targets(6)
    came_from = torch.tensor([1, 1, 2, 3, 5, 4])
    state = model.start(encoded, 2)
    for place in range(2):
        state = model.step(encoded, state, target[:, place]).state
    stepped = model.step(encoded, select(state, came_from), target[:, 2], weights=True)
    whole = torch.cat([target[came_from, :2], target[:, 2:3]], 1)
    rows = torch.arange(3).repeat_interleave(2)
    decoded = model.decode(encoded.select(rows), whole, weights=True)
    same(stepped.logits, model.logits(decoded.features[:, 2]))
    for site, weights in stepped.weights.items():
        same(weights, decoded.weights[site][:, :, 2])


@law
def padding_changes_nothing(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    target = targets()
    decoded = model.decode(model.encode(source, mask), target, weights=True)
    longer = nn.functional.pad(source, (0, 3))
    longer_mask = nn.functional.pad(mask, (0, 3))
    for filling in (PAD, END, SOURCE - 1):
        filled = torch.where(longer_mask, longer, filling)
        again = model.decode(model.encode(filled, longer_mask), target, weights=True)
        same(decoded.features, again.features)
        for site, weights in again.weights.items():
            same(decoded.weights[site], weights[..., :-3])
            assert (weights[..., -3:] == 0).all()


@law
def a_sentence_alone_is_its_row(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    target = targets()
    decoded = model.decode(model.encode(source, mask), target, weights=True)
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        encoded = model.encode(source[one, :length], mask[one, :length])
        alone = model.decode(encoded, target[one], weights=True)
        same(alone.features, decoded.features[one])
        for site, weights in alone.weights.items():
            same(weights, decoded.weights[site][one, ..., :length])


@law
def selected_sentences_are_the_same(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    chosen = torch.tensor([2, 0, 2])
    target = targets()
    selected = model.decode(model.encode(source, mask).select(chosen), target, weights=True)
    same_decoding(
        selected, model.decode(model.encode(source[chosen], mask[chosen]), target, weights=True)
    )


@law
def weights_are_what_their_kind_says(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    target = targets(length=9)
    decoded = model.decode(model.encode(source, mask), target, weights=True)
    assert {site: weights.shape[1] for site, weights in decoded.weights.items()} == model.sites
    for weights in decoded.weights.values():
        assert weights.shape == (3, weights.shape[1], 9, max(LENGTHS))
        assert (weights >= 0).all()
        assert (weights.transpose(1, 3)[~mask] == 0).all()
        total = weights.sum(-1)
        if model.kind == "distribution":
            same(total, torch.ones_like(total))
        else:
            assert model.kind == "partial"
            assert (total > 0).all() and (total <= 1 + 1e-12).all() and (total < 0.99).any()


@law
def attention_inside_the_encoder_is_shown(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    assert model.encode(source, mask).weights == {}
    for weights in model.encode(source, mask, weights=True).weights.values():
        assert weights.shape[0] == 3 and weights.shape[2:] == (max(LENGTHS), max(LENGTHS))
        for row, length in enumerate(LENGTHS):
            kept = weights[row, :, :length]
            assert (kept[..., length:] == 0).all()
            same(kept.sum(-1), torch.ones_like(kept.sum(-1)))


@law
def asking_for_weights_changes_nothing(build: Build) -> None:
    model = model_of(build).train()
    source, mask = sentences()
    features = []
    for weights in (False, True):
        torch.manual_seed(0)
        encoded = model.encode(source, mask, weights=weights)
        decoded = model.decode(encoded, targets(), weights=weights)
        assert weights or decoded.weights == {}
        features.append(decoded.features)
    same(*features)


@law
def later_tokens_are_not_seen(build: Build) -> None:
    model = model_of(build)
    encoded = model.encode(*sentences())
    target = targets()
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] - UNKNOWN) % (TARGET - UNKNOWN - 1) + UNKNOWN + 1
    before, after = (model.decode(encoded, given).features for given in (target, changed))
    same(before[:, :3], after[:, :3])
    assert (before[:, 3] - after[:, 3]).abs().amax(-1).min() > 1e-6


@law
def the_source_matters(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    other = source.clone()
    other[0, 0] = source[0, 0] % (SOURCE - UNKNOWN - 1) + UNKNOWN + 1
    first, second = (
        model.decode(model.encode(given, mask), targets()).features for given in (source, other)
    )
    assert (first[0] - second[0]).abs().max() > 1e-6
    same(first[1:], second[1:])


@law
def gradients_reach_every_parameter(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    chosen = torch.ones(3, 5, dtype=torch.bool)
    model(source, mask, targets(), chosen).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"no gradient reaches {name}"
        assert parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
        if not name.endswith("to_key.bias"):  # it moves all scores of a row alike: nothing changes
            assert parameter.grad.abs().max() > 1e-12, f"the gradient of {name} is 0"


@law
def forward_gives_the_chosen_places(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    target = targets()
    chosen = torch.arange(5) < torch.tensor([[5], [2], [3]])
    logits = model.logits(model.decode(model.encode(source, mask), target).features)
    assert logits.shape == (3, 5, TARGET)
    same(model(source, mask, target, chosen), logits[chosen])


@law
def half_precision_is_near(build: Build) -> None:
    source, mask = sentences()
    logits: list[Tensor] = []
    for dtype in (torch.float64, torch.bfloat16):
        model = model_of(build)
        for parameter in model.parameters():
            parameter.data.mul_(0.3)
        model = model.to(dtype)
        logits.append(model(source, mask, targets(), mask.new_ones(3, 5)).double())
    assert logits[1].isfinite().all()
    torch.testing.assert_close(logits[1], logits[0], atol=0.05, rtol=0.05)


@law
def autocast_is_near_and_learns(build: Build) -> None:
    model = model_of(build, torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(0.3)
    source, mask = sentences()
    everywhere = mask.new_ones(3, 5)
    exact = model(source, mask, targets(), everywhere)
    with torch.autocast("cpu", torch.bfloat16):
        near = model(source, mask, targets(), everywhere)
        loss = near.float().logsumexp(-1).sum()
    torch.testing.assert_close(near.float(), exact, atol=0.05, rtol=0.05)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@law
def no_sentences_are_no_error(build: Build) -> None:
    model = model_of(build)
    source, mask = sentences()
    encoded = model.encode(source[:0], mask[:0])
    assert model.decode(encoded, targets()[:0]).features.shape[:2] == (0, 5)
    stepped = model.step(encoded, model.start(encoded, 2), targets()[:0, 0])
    assert stepped.logits.shape == (0, TARGET)


@law
def a_longer_source_than_it_can_read_is_refused(build: Build) -> None:
    model = model_of(build)
    if model.longest_source is None:
        return
    source = torch.full((1, model.longest_source + 1), END)
    with pytest.raises(RegardError, match=f"at most {model.longest_source}"):
        model.encode(source, source == END)


@law
def guesses_take_the_place_of_tokens(build: Build) -> None:
    """Without forcing the model goes on from its own best guesses; with it half, from some."""
    model = model_of(build)
    encoded = model.encode(*sentences())
    target = targets(length=7)
    if isinstance(model, Transformer):
        with pytest.raises(RegardError, match=r"forcing is 0\.0, expected 1"):
            model.decode(encoded, target, forcing=0.0)
        return
    decoded = model.decode(encoded, target, forcing=0.0, weights=True)
    guesses = model.logits(decoded.features).argmax(-1)
    own = torch.cat([target[:, :1], guesses[:, :-1]], 1)
    assert (own != target).any()
    same_decoding(decoded, model.decode(encoded, own, weights=True))

    def half(seed: int) -> Any:
        torch.manual_seed(seed)
        return model.decode(encoded, target, forcing=0.5).features

    assert (half(0) == half(0)).all() and (half(0) != half(1)).any()
    with pytest.raises(RegardError, match=r"forcing=1\.5, expected a probability from 0 to 1"):
        model.decode(encoded, target, forcing=1.5)
