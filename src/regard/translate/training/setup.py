"""What a training works with, built from its configuration, and the summary of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.errors import RegardError, ShapeError
from regard.translate.checkpoint import Checkpoint, load_checkpoint, load_weights
from regard.translate.config import Config, VectorsConfig
from regard.translate.data import Examples, Pair, collate
from regard.translate.models.build import build_model
from regard.translate.models.contract import TranslationModel
from regard.translate.models.embeddings import Embeddings
from regard.translate.training.blocks import Block, Blocks, StreamedBlocks, WholeBlock
from regard.translate.training.corpus import (
    Pairs,
    Vocabularies,
    train_vocabularies,
    within,
)
from regard.translate.training.folder import RunFolder
from regard.translate.training.guidance import new_guidance
from regard.translate.training.loop import TrainingSetup
from regard.translate.training.piece_sampling import check_piece_sampling
from regard.translate.training.resuming import Position, State, seed_all
from regard.translate.training.schedules import least_forcing
from regard.translate.training.scoring import translations_at_the_end
from regard.translate.vectors import VectorReport, load_vectors
from regard.translate.vocabulary import WordVocabulary


def put_vectors(
    config: VectorsConfig, vocabularies: Vocabularies, model: TranslationModel
) -> list[VectorReport]:
    """Load pretrained word vectors into a model's embeddings; returns a report per file."""
    reports = []
    for side, file in config.files.items():
        vocabulary = getattr(vocabularies, side)
        assert isinstance(vocabulary, WordVocabulary)  # `Config` refuses others
        try:
            reports.append(load_vectors(file, vocabulary, _embedding(model, side)))
        except ShapeError as error:
            raise ShapeError(
                f"vectors.{side}: {error}; model.embedding (a Transformer's model.hidden) says how "
                "wide it is"
            ) from error
    return reports


def freeze_vectors(config: VectorsConfig, model: TranslationModel) -> None:
    """Freeze embeddings with pretrained vectors, if the configuration says so."""
    for side in config.files:
        _embedding(model, side).weight.requires_grad_(not config.frozen)


def _embedding(model: TranslationModel, side: str) -> nn.Embedding:
    embedding: nn.Embedding = getattr(model.embeddings, side)
    return embedding


_MANY = 0.1  # of the validation sources: more of them in the training pairs is told


def set_up(
    fabric: Any, config: Config, folder: RunFolder, state: State | None, pairs: Pairs
) -> TrainingSetup:
    """Vocabularies, examples and the model; from a saved state if there is one."""
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
    check_piece_sampling(config.training, vocabularies)
    seed_all(config.training.seed)
    model = build_model(config.model, len(vocabularies.source), len(vocabularies.target))
    if config.training.precision == "64":
        model.double()  # before weights are put in, which would lose digits otherwise
    if state is not None:
        load_weights(folder.last, model, state.weights)
    if start is not None:
        model.load_state_dict(start.model.state_dict())
    train, valid = (
        fitting(name, vocabularies.examples(split_pairs), model, config)
        for name, split_pairs in (("train", pairs.train), ("valid", pairs.valid))
    )
    if state is None and start is None:
        say_by_frequency(model, train)
    scored = translations_at_the_end(pairs.valid, pairs.test)
    return TrainingSetup(
        fabric, config, folder, vocabularies, model, train, valid, pairs.valid, scored
    )


def new_blocks(setting: TrainingSetup, pairs: Pairs) -> Blocks:
    """The training examples in blocks, aligned where a head is guided."""
    model, training = setting.model, setting.config.training

    def block(examples: Examples) -> Block:
        guided = training.guidance.weight > 0
        return Block(examples, new_guidance(training.guidance, model, examples) if guided else None)

    def block_of(block_pairs: list[Pair]) -> Block:
        examples = setting.vocabularies.examples(block_pairs)
        return block(fitting("train", examples, model, setting.config))

    if pairs.stream is None:
        return WholeBlock(block(setting.train))
    return StreamedBlocks(pairs.stream, training.seed, block_of)


@torch.no_grad()
def say_by_frequency(model: TranslationModel, examples: Examples) -> None:
    """Initialise the output bias with the log frequencies of target tokens.

    Otherwise the first steps learn them, and with a tanh before the output layer that can drive
    every feature to saturation, where gradients vanish.
    """
    tokens = torch.tensor([token for target in examples.target for token in target])
    embeddings = model.embeddings
    assert isinstance(embeddings, Embeddings)
    bias = embeddings.bias
    counts = torch.bincount(tokens, minlength=len(bias)).to(bias) + 1  # none is impossible
    bias.copy_((counts / counts.sum()).log())


def _loaded_start(config: Config) -> Checkpoint:
    """The checkpoint to start from; its model must match the configuration."""
    try:
        start = load_checkpoint(config.training.start)
    except RegardError as error:
        raise RegardError(f"training.start: {error}") from error
    stored, configured = asdict(start.config.model), asdict(config.model)
    different = [name for name in stored if name != "dropout" and stored[name] != configured[name]]
    if different:
        differences = ", ".join(
            f"model.{name} is {configured[name]!r}, but it is {stored[name]!r}"
            for name in different
        )
        raise RegardError(
            f"{differences} in {config.training.start}, with which training.start begins"
        )
    return start


def _check_tie(config: Config, vocabularies: Vocabularies) -> None:
    """Refuse a shared embedding for two different vocabularies."""
    if config.model.tie == "all" and vocabularies.source is not vocabularies.target:
        raise RegardError(
            "model.tie is 'all', one embedding for both languages, but each has a vocabulary of "
            "its own: set vocabulary.joint = true, or model.tie = 'target'"
        )


def fitting(split: str, examples: Examples, model: TranslationModel, config: Config) -> Examples:
    """The examples that are not too long for the model; an error if there are none."""
    fitting = within(examples, model.longest_source)
    if not len(fitting):
        raise RegardError(
            f"there are no {split} pairs left: the sources of all {len(examples):,} are longer "
            f"than model.longest, which is {config.model.longest}"
        )
    return fitting


def check_search(setting: TrainingSetup) -> None:
    """Refuse search options that the model does not support, before anything is written."""
    penalty = setting.config.search.coverage_penalty
    if penalty and not setting.model.sites:
        raise RegardError(
            f"search.coverage_penalty is {penalty}, but model.name {setting.config.model.name!r} "
            "has no attention from target to source, which it counts; expected 0"
        )


def check_forcing(setting: TrainingSetup) -> None:
    """Refuse teacher forcing below 1 if the model needs it, before anything is written."""
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


def summary(setting: TrainingSetup, pairs: Pairs, position: Position) -> str:
    """A summary of data, vocabularies and model."""
    parameters = sum(parameter.numel() for parameter in setting.model.parameters())
    vocabularies = setting.vocabularies
    start = setting.config.training.start
    begin = f"from the weights of {Path(start).name}" if start else "from the beginning"
    begin = f"from step {position.step}" if position.step else begin
    return (
        f"{pairs.report}\n"
        f"{_without_places(setting, pairs)}"
        f"{_known_already(pairs)}"
        f"{_learned(setting, pairs)} pairs to learn from{_where(pairs)}, "
        f"{len(setting.valid):,} to validate with, {len(pairs.test):,} to test with\n"
        f"{len(vocabularies.source):,} and {len(vocabularies.target):,} entries in the "
        "vocabularies\n"
        f"{setting.config.model.name} with {parameters:,} parameters, trained {begin} on "
        f"{setting.fabric.world_size} × {setting.fabric.device}\n"
        f"{_about_losses(setting.config)}"
    )


def _about_losses(config: Config) -> str:
    """The unit of losses, and how training and validation loss differ."""
    training = config.training
    on = {
        "dropout": config.model.dropout > 0,
        "label smoothing": training.label_smoothing > 0,
        "sampled pieces": training.sample_pieces > 0,
        "tokens of its own": least_forcing(training.forcing) < 1,
    }
    more = " and ".join(name for name, is_on in on.items() if is_on)
    steps = "the last step" if training.log_every == 1 else f"the last {training.log_every} steps"
    text = f"losses are nats a target token; that of training is of {steps}"
    return f"{text}, with {more}, which validation has not" if more else text


def _learned(setting: TrainingSetup, pairs: Pairs) -> str:
    return f"{len(setting.train) if pairs.stream is None else pairs.count:,}"


def _where(pairs: Pairs) -> str:
    """From how many files pairs are read, if they are read in every epoch."""
    stream = pairs.stream
    if stream is None:
        return ""
    files = "1 file" if len(stream.files) == 1 else f"{len(stream.files):,} files"
    return f" (read from {files} in every epoch, {stream.buffer:,} at a time)"


def _known_already(pairs: Pairs) -> str:
    """A warning if many validation sources are in the training data."""
    if pairs.known <= _MANY * len(pairs.valid):
        return ""
    return (
        f"{pairs.known:,} of {len(pairs.valid):,} validation sources are among the training pairs: "
        "their scores flatter\n"
    )


def _without_places(setting: TrainingSetup, pairs: Pairs) -> str:
    """How many pairs are too long for the model, if any."""
    train = len(pairs.train) - len(setting.train)
    valid = len(pairs.valid) - len(setting.valid)
    if not train and not valid:
        return ""
    sample = "" if pairs.stream is None else f"of a sample of {len(pairs.train):,} "
    return (
        f"longer than model.longest ({setting.config.model.longest}), left out: {sample}{train:,} "
        f"training pairs, {valid:,} validation pairs\n"
    )
