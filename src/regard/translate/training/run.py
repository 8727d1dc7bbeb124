"""A training from its configuration to its scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.translate.checkpoint import FILE, load_checkpoint, load_weights
from regard.translate.config import Config
from regard.translate.models.build import build
from regard.translate.training.corpus import (
    Pairs,
    fingerprint,
    read_data,
    train_vocabularies,
    within,
)
from regard.translate.training.final_scores import FinalScores, as_json, final_scores
from regard.translate.training.folder import RunFolder, average_files
from regard.translate.training.logs import CsvLog, EventLog, Log
from regard.translate.training.loop import Ending, Loop, Setting
from regard.translate.training.processes import new_fabric
from regard.translate.training.random_states import (
    random_states_kept,
    restore_random_states,
    seed_all,
)
from regard.translate.training.state import Position, State, load_state, restore_optimiser
from regard.translate.training.stepper import Stepper, new_optimiser
from regard.translate.training.stopping import Asked, Best, Clock, asked_by_signal
from regard.translate.training.watch import Watcher
from regard.translate.training.word_vectors import freeze_vectors, put_vectors
from regard.whole_files import write_text


@dataclass(frozen=True)
class Trained:
    """What came of a training.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `folder`  | where everything lies                                                       |
    | `ending`  | why it ended: `finished`, `no better`, `time`, or `asked` (by a signal)     |
    | `step`    | steps made, with those before it was resumed                                |
    | `seconds` | time spent, likewise                                                        |
    | `best`    | the best looks at the validation pairs                                      |
    | `scores`  | by translator and part: `{("best", "test"): …}`; none where it was `asked`  |
    """

    folder: RunFolder
    ending: Ending
    step: int
    seconds: float
    best: Best
    scores: dict[tuple[str, str], FinalScores] = field(default_factory=dict)


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    watcher: Watcher | None = None,
) -> Trained:
    """Train a translator, as the configuration says, into a folder.

    SIGTERM and SIGINT let it finish its step, save and return. Under torchrun every process calls
    this; the first one writes.

    Args:
        config: data, vocabularies, model, training, search.
        out: the folder; it must be empty or not there, unless `resume`.
        resume: go on where the run in the folder was left, exactly; begin where there is none.
        minutes: end after so much time, counted from now.
        watcher: who is told what happens.
    """
    clock = Clock(minutes)
    folder = RunFolder(Path(out))
    folder.check(resume)
    watcher = Watcher() if watcher is None else watcher
    with random_states_kept(), asked_by_signal() as asked:
        state = load_state(folder.last) if resume and folder.last.exists() else None
        if state is not None:
            _check_settings(state.config, config)
        fabric = new_fabric(config.training.precision)
        told = watcher if fabric.is_global_zero else Watcher()
        return _train(fabric, config, folder, state, clock, asked, told)


def _train(
    fabric: Any,
    config: Config,
    folder: RunFolder,
    state: State | None,
    clock: Clock,
    asked: Asked,
    watcher: Watcher,
) -> Trained:
    pairs = read_data(config.data)
    setting = _set_up(fabric, config, folder, state, pairs)
    reports = []
    if state is None:
        reports = put_vectors(config.vectors, setting.vocabularies, setting.model)
    freeze_vectors(config.vectors, setting.model)
    position = Position(ranks=fabric.world_size, data=setting.data)
    if state is not None:
        _check_surroundings(state.position, position)
        position = state.position
        clock.earlier = position.seconds
    optimiser = new_optimiser(config.training.optimiser, setting.model)
    stepper = Stepper(fabric, setting.model, optimiser, setting.train, config.training)
    if state is None:
        seed_all(config.training.seed + fabric.global_rank)
    else:
        restore_optimiser(optimiser, state.optimiser)
        restore_random_states(state.random[fabric.global_rank])
    if fabric.is_global_zero:
        folder.begin(config)
        watcher.note("\n".join([_summary(setting, pairs, position), *map(str, reports)]))
    pending = torch.zeros(0, dtype=torch.float64) if state is None else state.pending
    with _opened_logs(setting, position.step) as logs:
        loop = Loop(
            setting, stepper, position, pending,
            clock=clock, asked=asked, logs=logs, watcher=watcher,
        )  # fmt: skip
        ending = loop.run()
        if ending == "time" and not loop.best.holds(loop.position.step):
            loop.look()
    watcher.done()
    scores = {}
    if fabric.is_global_zero and ending != "asked":
        scores = _finish(setting, pairs, loop.best, watcher)
    fabric.barrier()
    return Trained(folder, ending, loop.position.step, clock.total, loop.best, scores)


def _set_up(
    fabric: Any, config: Config, folder: RunFolder, state: State | None, pairs: Pairs
) -> Setting:
    """Vocabularies, examples and the model; from the state where there is one."""
    if state is not None:
        vocabularies = state.vocabularies
    else:
        vocabularies = train_vocabularies(config.vocabulary, pairs.train)
    seed_all(config.training.seed)
    model = build(config.model, len(vocabularies.source), len(vocabularies.target))
    if state is not None:
        load_weights(folder.last, model, state.weights)
    train = within(vocabularies.examples(pairs.train), model.longest_source)
    valid = within(vocabularies.examples(pairs.valid), model.longest_source)
    return Setting(
        fabric, config, folder, vocabularies, model, train, valid, pairs.valid, fingerprint(train)
    )


def _check_settings(before: Config, now: Config) -> None:
    """Refuse to go on with another model, optimiser or frozen part."""
    tables = before.table(), now.table()
    held = [(config.vectors.frozen, *config.vectors.files) for config in (before, now)]
    if held[0] != held[1]:
        raise RegardError(
            f"the run began with {before.vectors} and cannot be resumed with {now.vectors}"
        )
    names = before.training.optimiser.name, now.training.optimiser.name
    if names[0] != names[1]:
        raise RegardError(
            f"training.optimiser.name is {names[1]!r}, but the run began with {names[0]!r}: it "
            "cannot be resumed with another one"
        )
    for part in ("vocabulary", "model"):
        for key, value in tables[0][part].items():
            if tables[1][part][key] != value:
                raise RegardError(
                    f"{part}.{key} is {tables[1][part][key]!r}, but the run began with {value!r}: "
                    "it cannot be resumed with another one"
                )


def _check_surroundings(before: Position, now: Position) -> None:
    """Refuse to go on with other data or other processes."""
    if now.ranks != before.ranks:
        raise RegardError(
            f"the run began with {before.ranks} processes and cannot be resumed with {now.ranks}"
        )
    if now.data != before.data:
        raise RegardError("the training pairs are not those that the run began with")


@contextmanager
def _opened_logs(setting: Setting, after: int) -> Iterator[list[Log]]:
    """The logs, on the first process."""
    logs: list[Log] = []
    if setting.fabric.is_global_zero:
        logs.append(CsvLog(setting.folder.log, after))
        if setting.config.training.tensorboard:
            logs.append(EventLog(setting.folder.events, after))
    try:
        yield logs
    finally:
        for log in logs:
            log.close()


def _finish(
    setting: Setting, pairs: Pairs, best: Best, watcher: Watcher
) -> dict[tuple[str, str], FinalScores]:
    """Average the best parameters, and score what there is."""
    folder = setting.folder
    folder.publish(best.kept[0].step)
    kept = [folder.kept(one.step) for one in best.kept]
    header, _ = FILE.read(kept[0])
    extra = {"steps": [one.step for one in best.kept]}
    FILE.write(folder.average, average_files(kept), {**header, "extra": extra})
    scores, search = {}, setting.config.search
    for name, path in (("best", folder.best), ("average", folder.average)):
        checkpoint = load_checkpoint(path, setting.fabric.device)
        for part, found in (("valid", pairs.valid), ("test", pairs.test)):
            if found:
                watcher.note(f"translating the {part} pairs with the {name} translator")
                scores[name, part] = final_scores(checkpoint, found, search, setting.fabric.device)
    write_text(folder.scores, as_json(scores, search))
    return scores


def _summary(setting: Setting, pairs: Pairs, position: Position) -> str:
    parameters = sum(one.numel() for one in setting.model.parameters())
    both = setting.vocabularies
    begin = f"from step {position.step}" if position.step else "from the beginning"
    return (
        f"{pairs.report}\n"
        f"{len(setting.train):,} pairs to learn from, {len(pairs.valid):,} to validate with, "
        f"{len(pairs.test):,} to test with\n"
        f"{len(both.source):,} and {len(both.target):,} entries in the vocabularies\n"
        f"{setting.config.model.name} with {parameters:,} parameters, trained {begin} on "
        f"{setting.fabric.world_size} × {setting.fabric.device}"
    )
