"""regard on a task: its own data, model, batches and training step, with a stopwatch on the steps.

.venv/bin/python benchmarks/translate_rivals/regard_worker.py TASK
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from meter import Meter, Task

from regard.mechanisms import Additive
from regard.translate.config import OptimiserConfig, TrainingConfig
from regard.translate.data import Examples, read_pairs
from regard.translate.models.attentions import SourceAttention
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.contract import TranslationModel
from regard.translate.models.decoders import PreviousState, Wiring
from regard.translate.models.variants import read_by
from regard.translate.training.processes import new_fabric
from regard.translate.training.step import Step, Stepper, new_optimiser, plan_epoch
from regard.translate.vocabulary import WordVocabulary

RATE = 3e-4


def model_config(task: Task) -> ModelConfig:
    shape = task.shape
    if task.model == "recurrent":
        return ModelConfig(
            "bahdanau",
            embedding=shape["embedding"],
            hidden=shape["hidden"],
            dropout=task.dropout,
        )
    return ModelConfig(
        "transformer",
        embedding=shape["hidden"],
        hidden=shape["hidden"],
        layers=shape["layers"],
        heads=shape["heads"],
        feed_forward=shape["feed_forward"],
        dropout=task.dropout,
    )


def new_model(task: Task, source_size: int, target_size: int) -> TranslationModel:
    """The model that training would build; by hand where its encoder is narrower than its decoder,
    which the configuration cannot say."""
    config, narrow = model_config(task), task.shape.get("encoder", task.shape["hidden"])
    if narrow == config.hidden:
        return build_model(config, source_size, target_size)
    read = read_by(replace(config, hidden=narrow), source_size, target_size)
    parts, context = replace(read, config=config), read.encoder.width
    look = SourceAttention(Additive(config.hidden, context, width=config.hidden), context)
    cells = parts.cells(config.embedding + context)
    readout = parts.readout(config.hidden + config.embedding + context)
    return parts.translator(PreviousState(cells, parts.bridge(cells), look, readout, Wiring()))


def vocabulary(task: Task, language: str) -> WordVocabulary:
    words = (Path(task.data) / f"words.{language}").read_text(encoding="utf-8").splitlines()
    return WordVocabulary(words, cut="spaces")


def steps(examples: Examples, config: TrainingConfig) -> Iterator[Step]:
    for epoch in range(config.epochs):
        yield from plan_epoch(examples, config, epoch)


def main() -> None:
    torch.set_num_threads(1)
    task = Task.from_arguments()
    torch.manual_seed(task.seed)
    source, target = vocabulary(task, "en"), vocabulary(task, "fr")
    data = Path(task.data)
    examples = Examples.of(read_pairs(data / "train.en", data / "train.fr"), source, target)
    model = new_model(task, len(source), len(target))
    config = TrainingConfig(
        batch_sentences=task.sentences,
        label_smoothing=0.0,
        seed=task.seed,
        optimiser=OptimiserConfig(rate=RATE, beta2=0.999, epsilon=1e-8, clip=1.0),
    )
    optimiser = new_optimiser(config.optimiser, model)
    stepper = Stepper(new_fabric("32"), model, optimiser, examples, config)
    stepper.wrapped.train()
    meter = Meter(task)
    meter.parameters = sum(parameter.numel() for parameter in model.parameters())
    for step in steps(examples, config):
        if meter.done:
            break
        stepper.make(step, RATE, 1.0)
        lengths = [len(examples.target[number]) for number in step.batches[0]]
        meter.update(tokens=step.tokens, sentences=len(lengths), places=len(lengths) * max(lengths))
    meter.report()


if __name__ == "__main__":
    main()
