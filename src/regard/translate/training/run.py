"""A training from its configuration to its final scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.files import write_text
from regard.translate.checkpoint import FILE, add_extra, load_checkpoint
from regard.translate.confidence import Familiarity, extra_entry
from regard.translate.config import Config
from regard.translate.training.corpus import Pairs, fingerprint, read_data
from regard.translate.training.folder import (
    CsvLog,
    EventLog,
    Log,
    RunFolder,
    average_files,
    event_writer,
)
from regard.translate.training.guidance import head_entry
from regard.translate.training.loop import Ending, Loop, TrainingSetup, Watcher
from regard.translate.training.processes import new_fabric
from regard.translate.training.resuming import (
    Position,
    State,
    changed_settings,
    check_settings,
    check_surroundings,
    load_state,
    random_states_kept,
    restore_optimiser,
    restore_random_states,
    seed_all,
)
from regard.translate.training.scoring import FinalScores, as_json, calibrated, final_scores
from regard.translate.training.setup import (
    check_forcing,
    check_search,
    freeze_vectors,
    new_blocks,
    put_vectors,
    set_up,
    summary,
)
from regard.translate.training.step import Stepper, new_optimiser
from regard.translate.training.stopping import Best, Clock, StopRequest, stop_on_signal


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `folder`  | the folder of the run                                                       |
    | `ending`  | why it ended: `finished`, `no better`, `time`, or `asked` (by a signal)     |
    | `step`    | number of steps, including those before it was resumed                      |
    | `seconds` | time spent, likewise                                                        |
    | `best`    | the steps with the best validation scores                                   |
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
) -> TrainingResult:
    """Train a translator into a folder.

    On SIGTERM or SIGINT it finishes the current step, saves and returns; before the first step and
    during final scoring there is nothing to save, and it returns after the current phase. A second
    signal interrupts. Under torchrun every process calls this; the first one writes.

    Args:
        config: data, vocabularies, model, training, search.
        out: the folder; empty or new, unless `resume` is set.
        resume: continue the run in the folder exactly where it stopped, or start one.
        minutes: time limit, counted from now.
        watcher: receives progress and validation results.
    """
    if not isinstance(config, Config):
        raise RegardError(
            f"train: config is {config!r:.60}, expected a Config: Config.from_file(path) reads "
            "one, Config.from_table(table) makes one of a dict"
        )
    clock = Clock(minutes)
    folder = RunFolder(Path(out))
    folder.check(resume)
    watcher = Watcher() if watcher is None else watcher
    with random_states_kept(), stop_on_signal() as asked:
        state = load_state(folder.last) if resume and folder.last.exists() else None
        if state is not None:
            check_settings(state.config, config)
            clock.earlier = state.position.seconds
        if config.training.tensorboard:
            event_writer()
        fabric = new_fabric(config.training.precision)
        told = watcher if fabric.is_global_zero else Watcher()
        for line in [] if state is None else changed_settings(state.config, config):
            told.note(line)
        with folder.created() if fabric.is_global_zero else nullcontext():
            try:
                return _train(fabric, config, folder, state, clock, asked, told)
            except _StoppedBeforeSteps:
                position = Position() if state is None else state.position
                best = Best.of(config.training.validation, position.best)
                return TrainingResult(folder, "asked", position.step, clock.total, best)


class _StoppedBeforeSteps(Exception):
    """A stop was requested before the first step: there is nothing to save."""


def _train(
    fabric: Any,
    config: Config,
    folder: RunFolder,
    state: State | None,
    clock: Clock,
    asked: StopRequest,
    watcher: Watcher,
) -> TrainingResult:
    pairs = read_data(config.data)
    _go_on_unless(asked, fabric)
    setting = set_up(fabric, config, folder, state, pairs)
    check_forcing(setting)
    check_search(setting)
    reports = []
    if state is None:
        reports = put_vectors(config.vectors, setting.vocabularies, setting.model)
    freeze_vectors(config.vectors, setting.model)
    data = fingerprint(setting.train) if pairs.stream is None else pairs.stream.checksum
    position = Position(ranks=fabric.world_size, data=data, valid=fingerprint(setting.valid))
    if state is not None:
        check_surroundings(state.position, position)
        position = replace(state.position, valid=position.valid)
    optimiser = new_optimiser(config.training.optimiser, setting.model)
    blocks = new_blocks(setting, pairs)
    stepper = Stepper(fabric, setting.model, optimiser, setting.train, config.training)
    if state is None:
        seed_all(config.training.seed + fabric.global_rank)
    else:
        restore_optimiser(optimiser, state.optimiser)
        restore_random_states(state.random[fabric.global_rank])
    _go_on_unless(asked, fabric)
    if fabric.is_global_zero:
        folder.begin(setting.config)
        watcher.note("\n".join([summary(setting, pairs, position), *map(str, reports)]))
    pending = torch.zeros(0, dtype=torch.float64) if state is None else state.pending
    with _opened_logs(setting, position.step) as logs:
        loop = Loop(
            setting, stepper, blocks, position, pending,
            clock=clock, asked=asked, logs=logs, watcher=watcher,
        )  # fmt: skip
        ending = loop.run()
        if _wants_a_look(loop, ending):
            loop.look_and_log()
    watcher.done()
    scores: dict[tuple[str, str], FinalScores] | None = {}
    if fabric.is_global_zero and ending != "asked":
        scores = finish(setting, pairs, loop.best, asked, watcher)
    ending = fabric.broadcast("asked" if scores is None else ending)
    fabric.barrier()
    return TrainingResult(folder, ending, loop.position.step, clock.total, loop.best, scores or {})


def _go_on_unless(asked: StopRequest, fabric: Any) -> None:
    """Raise if a stop was requested before the first step; the first process decides for all."""
    if fabric.broadcast(bool(asked)):
        raise _StoppedBeforeSteps


def _wants_a_look(loop: Loop, ending: Ending) -> bool:
    """Whether to validate once more: nothing was validated yet, or not since time ran out."""
    if ending == "asked":
        return False
    return not loop.best.kept or (ending == "time" and not loop.best.holds(loop.position.step))


@contextmanager
def _opened_logs(setting: TrainingSetup, after: int) -> Iterator[list[Log]]:
    """The logs; none except on the first process."""
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


def finish(
    setting: TrainingSetup, pairs: Pairs, best: Best, asked: StopRequest, watcher: Watcher
) -> dict[tuple[str, str], FinalScores] | None:
    """Average the best parameters and score the translators; None if a stop is requested.

    Resuming repeats all of it.
    """
    folder, search = setting.folder, setting.config.search
    folder.prune(best)
    _write_translators(folder, best, head_entry(setting.config.training.guidance, setting.model))
    scores = {}
    size = len(setting.vocabularies.source)
    familiarity = Familiarity.measured(setting.train.source, setting.valid.source, size)
    for name, path in (("best", folder.best), ("average", folder.average)):
        checkpoint = load_checkpoint(path, setting.fabric.device)
        for split, split_pairs in (("valid", pairs.valid), ("test", pairs.test)):
            if asked:
                return None
            if split_pairs:
                watcher.note(f"translating the {split} pairs with the {name} translator")
                scores[name, split] = final_scores(
                    checkpoint, split_pairs, search, setting.fabric.device
                )
        if asked:
            return None
        if "confidence" not in checkpoint.extra:  # it was calibrated before it was resumed
            confidence = calibrated(checkpoint, pairs.valid, search, setting.fabric.device)
            add_extra(path, extra_entry(familiarity) | extra_entry(confidence))
    if asked:
        return None
    write_text(folder.scores, as_json(scores, search))
    return scores


def _write_translators(folder: RunFolder, best: Best, head: dict[str, Any]) -> None:
    """Write the best and the averaged translator, unless they are there (with a preferred head).

    `head` is the guided one, which both remember.
    """
    steps = [ranked.step for ranked in best.kept]
    if _extra(folder.best).get("step") != steps[0]:
        folder.publish(steps[0])
    if _extra(folder.average).get("steps") != steps:
        kept = [folder.kept(step) for step in steps]
        header = FILE.header(kept[0])
        FILE.write(
            folder.average, average_files(kept), {**header, "extra": {"steps": steps, **head}}
        )


def _extra(path: Path) -> dict[str, Any]:
    """The `extra` of a translator's file; empty if there is no file."""
    if not path.exists():
        return {}
    extra: dict[str, Any] = FILE.header(path).get("extra", {})
    return extra
