"""What a training works with, made from its configuration; and what is said of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.translate.checkpoint import Checkpoint, load_checkpoint, load_weights
from regard.translate.config import Config
from regard.translate.data import Examples, collate
from regard.translate.models.build import build
from regard.translate.models.contract import TranslationModel
from regard.translate.models.embeddings import Embeddings
from regard.translate.training.corpus import (
    Pairs,
    Vocabularies,
    train_vocabularies,
    within,
)
from regard.translate.training.folder import RunFolder
from regard.translate.training.loop import Setting
from regard.translate.training.random_states import seed_all
from regard.translate.training.schedules import least_forcing
from regard.translate.training.state import Position, State

_MANY = 0.1  # of the validation sources: more of them in the training pairs is told


def set_up(
    fabric: Any, config: Config, folder: RunFolder, state: State | None, pairs: Pairs
) -> Setting:
    """Vocabularies, examples and the model; from the state where there is one."""
    start = None
    if state is not None:
        vocabularies = state.vocabularies
    elif config.training.start:
        start = _loaded_start(config)
        vocabularies = Vocabularies(start.source, start.target)
        config = replace(config, vocabulary=start.config.vocabulary)
    else:
        vocabularies = train_vocabularies(config.vocabulary, pairs.train)
    _check_tie(config, vocabularies)
    seed_all(config.training.seed)
    model = build(config.model, len(vocabularies.source), len(vocabularies.target))
    if config.training.precision == "64":
        model.double()  # before weights are put in, which would lose digits otherwise
    if state is not None:
        load_weights(folder.last, model, state.weights)
    if start is not None:
        model.load_state_dict(start.model.state_dict())
    train, valid = (
        _fitting(name, vocabularies.examples(found), model, config)
        for name, found in (("train", pairs.train), ("valid", pairs.valid))
    )
    if state is None and start is None:
        say_by_frequency(model, train)
    return Setting(fabric, config, folder, vocabularies, model, train, valid, pairs.valid)


@torch.no_grad()
def say_by_frequency(model: TranslationModel, examples: Examples) -> None:
    """Have the output layer say tokens as often as they come, before anything is learned.

    Otherwise that is what the first steps teach all at once, and with a tanh before the output
    layer it can be learned by driving every feature to 1 or -1, where nothing is learned any more.
    """
    said = torch.tensor([token for target in examples.target for token in target])
    embeddings = model.embeddings
    assert isinstance(embeddings, Embeddings)
    bias = embeddings.bias
    counts = torch.bincount(said, minlength=len(bias)).to(bias) + 1  # none is impossible
    bias.copy_((counts / counts.sum()).log())


def _loaded_start(config: Config) -> Checkpoint:
    """The checkpoint to begin with; its model must be the one that the configuration says."""
    try:
        start = load_checkpoint(config.training.start)
    except RegardError as error:
        raise RegardError(f"training.start: {error}") from error
    found, said = asdict(start.config.model), asdict(config.model)
    wrong = [name for name in found if name != "dropout" and found[name] != said[name]]
    if wrong:
        has = ", ".join(
            f"model.{name} is {said[name]!r}, but it is {found[name]!r}" for name in wrong
        )
        raise RegardError(f"{has} in {config.training.start}, with which training.start begins")
    return start


def _check_tie(config: Config, vocabularies: Vocabularies) -> None:
    """Refuse one embedding for two vocabularies, in which a number is two different words."""
    if config.model.tie == "all" and vocabularies.source is not vocabularies.target:
        raise RegardError(
            "model.tie is 'all', one embedding for both languages, but each has a vocabulary of "
            "its own: set vocabulary.joint = true, or model.tie = 'target'"
        )


def _fitting(part: str, examples: Examples, model: TranslationModel, config: Config) -> Examples:
    """The examples of a part that the model has places for; there must be some."""
    found = within(examples, model.longest_source)
    if not len(found):
        raise RegardError(
            f"there are no {part} pairs left: the sources of all {len(examples):,} are longer than "
            f"model.longest, which is {config.model.longest}"
        )
    return found


def check_search(setting: Setting) -> None:
    """Refuse, before the folder is begun, a search that the finished model could not serve."""
    penalty = setting.config.search.coverage_penalty
    if penalty and not setting.model.sites:
        raise RegardError(
            f"search.coverage_penalty is {penalty}, but model.name {setting.config.model.name!r} "
            "has no attention from target to source, which it counts; expected 0"
        )


def check_forcing(setting: Setting) -> None:
    """Ask the model, before the folder is begun, whether it can do without the true tokens."""
    least = least_forcing(setting.config.training.forcing)
    if least == 1.0:
        return
    batch = collate(setting.train, [0])
    try:
        with torch.no_grad(), setting.fabric.autocast():
            encoded = setting.model.encode(batch.source, batch.source_mask)
            setting.model.decode(encoded, batch.target_in, forcing=least)
    except RegardError as error:
        raise RegardError(
            f"training.forcing goes down to {least}, which model.name "
            f"{setting.config.model.name!r} cannot do: {error}"
        ) from error


def summary(setting: Setting, pairs: Pairs, position: Position) -> str:
    """The data, the vocabularies and the model in a few lines."""
    parameters = sum(one.numel() for one in setting.model.parameters())
    both = setting.vocabularies
    start = setting.config.training.start
    begin = f"from the weights of {Path(start).name}" if start else "from the beginning"
    begin = f"from step {position.step}" if position.step else begin
    return (
        f"{pairs.report}\n"
        f"{_without_places(setting, pairs)}"
        f"{_known_already(pairs)}"
        f"{len(setting.train):,} pairs to learn from, {len(setting.valid):,} to validate with, "
        f"{len(pairs.test):,} to test with\n"
        f"{len(both.source):,} and {len(both.target):,} entries in the vocabularies\n"
        f"{setting.config.model.name} with {parameters:,} parameters, trained {begin} on "
        f"{setting.fabric.world_size} × {setting.fabric.device}\n"
        f"{_about_losses(setting.config)}"
    )


def _about_losses(config: Config) -> str:
    """What the losses are, and what that of training has that validation has not."""
    training = config.training
    on = {
        "dropout": config.model.dropout > 0,
        "label smoothing": training.label_smoothing > 0,
        "tokens of its own": least_forcing(training.forcing) < 1,
    }
    more = " and ".join(name for name, is_on in on.items() if is_on)
    steps = "the last step" if training.log_every == 1 else f"the last {training.log_every} steps"
    said = f"losses are nats a target token; that of training is of {steps}"
    return f"{said}, with {more}, which validation has not" if more else said


def _known_already(pairs: Pairs) -> str:
    """A line where a good part of the validation sentences are learned from, too."""
    learned = {pair.source for pair in pairs.train}
    known = sum(pair.source in learned for pair in pairs.valid)
    if known <= _MANY * len(pairs.valid):
        return ""
    return (
        f"{known:,} of {len(pairs.valid):,} validation sources are among the training pairs: their "
        "scores flatter\n"
    )


def _without_places(setting: Setting, pairs: Pairs) -> str:
    """A line on the pairs that the model has no places for, where there are any."""
    train = len(pairs.train) - len(setting.train)
    valid = len(pairs.valid) - len(setting.valid)
    if not train and not valid:
        return ""
    return (
        f"longer than model.longest ({setting.config.model.longest}), left out: {train:,} training "
        f"pairs, {valid:,} validation pairs\n"
    )
