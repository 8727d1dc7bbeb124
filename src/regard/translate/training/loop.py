"""The training loop: steps, log lines, validation, saved states; and who is told about them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.translate.checkpoint import Checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.data import Examples, Pair
from regard.translate.models.contract import TranslationModel
from regard.translate.training.blocks import Blocks
from regard.translate.training.corpus import Vocabularies
from regard.translate.training.folder import Log, RunFolder
from regard.translate.training.guidance import head_entry
from regard.translate.training.piece_sampling import sampled_examples
from regard.translate.training.processes import random_states_of_ranks, sum_over_ranks
from regard.translate.training.resuming import Position, State, optimiser_tensors, save_state
from regard.translate.training.schedules import forcing_at, rate_factor
from regard.translate.training.scoring import (
    loss_and_accuracy,
    score_pairs,
    spread,
    translate_texts,
)
from regard.translate.training.step import Step, Stepper, plan_epoch
from regard.translate.training.stopping import Best, Clock, StopRequest


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training.

    | field               | meaning                                                            |
    |---------------------|--------------------------------------------------------------------|
    | `step`, `steps`     | made, and how many there will be; None if that is not known        |
    | `share`             | of the training that is done, from 0 to 1, by steps or epochs      |
    | `epoch`             | the current one, from 0                                            |
    | `loss`              | a target token's, over the last interval of the log, or, before    |
    |                     | the first, over the steps so far                                   |
    | `tokens_per_second` | target tokens, since this part of the run began; looks at the      |
    |                     | validation pairs do not count                                      |
    | `seconds_left`      | until the last step or the end of the time, whichever is first     |
    """

    step: int
    steps: int | None
    share: float
    epoch: int
    loss: float | None
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class Validation:
    """Scores on the validation pairs; `loss` is in nats per token, without label smoothing."""

    loss: float
    accuracy: float
    bleu: float | None = None
    chrf: float | None = None


class Watcher:
    """Receives events of a training, on the first process only; override what you need."""

    def note(self, text: str) -> None:
        """A message."""

    def stepped(self, progress: TrainingProgress) -> None:
        """After each step."""

    def validated(self, step: int, validation: Validation, best: bool) -> None:
        """After each validation; `best` if it is the best so far."""

    def done(self) -> None:
        """After the last step."""


Ending = Literal["finished", "no better", "time", "asked"]
_MEASURED = 0.4  # share of a time limit after which the time of the end is measured
_SAMPLE = 64  # pairs that are translated for that
_BETWEEN_TALKS = 1.0  # seconds, about, after which several processes agree whether to end


@dataclass(frozen=True)
class TrainingSetup:
    """What a training works with; does not change during a run.

    `train` are the training examples, or a sample of those that are streamed; `scored` is how many
    sentences are translated at the end.
    """

    fabric: Any
    config: Config
    folder: RunFolder
    vocabularies: Vocabularies
    model: TranslationModel
    train: Examples
    valid: Examples
    valid_pairs: list[Pair]
    scored: int = 0

    @property
    def checkpoint(self) -> Checkpoint:
        """The translator with its current weights."""
        both = self.vocabularies
        return Checkpoint(self.config, both.source, both.target, self.model)


class Loop:
    """Runs the steps of a training, from any position.

    Args:
        setting: what it works with.
        stepper: performs a step.
        blocks: the training examples.
        position: where to start.
        pending: losses of steps that are not logged yet.
        clock: elapsed time and the limit.
        asked: whether a stop was requested.
        logs: where log rows go.
        watcher: receives events.
    """

    def __init__(
        self,
        setting: TrainingSetup,
        stepper: Stepper,
        blocks: Blocks,
        position: Position,
        pending: Tensor,
        *,
        clock: Clock,
        asked: StopRequest,
        logs: list[Log],
        watcher: Watcher,
    ) -> None:
        self.setting = setting
        self.training = setting.config.training
        self.stepper = stepper
        self.blocks = blocks
        self.position = position
        self.begun = position
        self.best = Best.of(self.training.validation, position.best)
        first = setting.fabric.global_rank == 0  # the sums of all processes are in it
        self.pending = list((pending if first else torch.zeros_like(pending)).unbind())
        self.clock = clock
        self.asked = asked
        self.logs = logs
        self.watcher = watcher
        self.loss: float | None = None
        self.pending_tokens = position.pending_tokens
        self.looked = 0.0  # seconds spent with the validation pairs
        self.next_talk = position.step + 1  # the step after which processes agree again
        self.logged = (clock.here, position.tokens)
        self.set_up = clock.here
        self.plan: list[Step] = []
        self.planned = (-1, 0)  # the epoch and block of the plan
        self.total = self._total()
        self.begun_share = self._share()
        self.used: tuple[float | None, float | None] = None, None  # rate and forcing of a step

    def run(self) -> Ending:
        """Run the remaining steps; returns why it ended."""
        if self._no_better():
            return "no better"
        self._tell_of_warm_up()
        self.stepper.wrapped.train()
        while not self._over():
            self._make()
            ending = self._after()
            if ending is not None:
                return ending
        return "finished"

    def look(self) -> Validation:
        """Validate, and keep the parameters if they are among the best."""
        fabric, step, begun = self.setting.fabric, self.position.step, self.clock.here
        validation: Validation = fabric.broadcast(
            self._validated() if fabric.is_global_zero else None
        )
        self._check_finite("validation loss", [torch.tensor(validation.loss)])
        guessing = math.log(len(self.setting.vocabularies.target))
        if validation.loss > guessing:
            self.watcher.note(
                f"step {step:,}: the training diverges: a validation loss of {validation.loss:.2f} "
                f"is worse than guessing among all tokens ({guessing:.2f}); a lower "
                "training.optimiser.rate, or a longer training.schedule.warmup, may help"
            )
        self.stepper.wrapped.train()
        self.best = self.best.look(step, getattr(validation, self.best.metric))
        if step <= self.training.schedule.warmup:  # the rate is low still: patience waits
            self.best = replace(self.best, since=0)
        if fabric.is_global_zero:
            if self.best.holds(step):
                self._keep(validation)
            best = self.best.kept[0].step == step and validation.loss <= guessing
            self.watcher.validated(step, validation, best)
        self.looked += self.clock.here - begun
        return validation

    def look_and_log(self) -> None:
        """Validate, and log the result."""
        self._log({"kind": "valid", **asdict(self.look())})

    def _make(self) -> None:
        """Run a step and advance the position."""
        self._load_plan()
        before = self.position
        step = self.plan[before.place]
        self.used = self.rate, self.forcing
        self.pending.append(self.stepper.make(step, *self.used))
        last = before.place + 1 == len(self.plan)
        epochs, block = divmod(before.block + last, self.blocks.count)
        self.position = replace(
            before,
            step=before.step + 1,
            epoch=before.epoch + epochs,
            block=block,
            place=0 if last else before.place + 1,
            tokens=before.tokens + step.tokens,
        )
        self.pending_tokens += step.tokens

    def _after(self) -> Ending | None:
        """Log, validate and save as due after a step; returns why to end, if so."""
        step, last = self.position.step, self._over()
        if step % self.training.log_every == 0 or last:
            self._log_losses()
        every = self.training.validation.every
        epoch_ends = self.position.block == self.position.place == 0
        due = last or (step % every == 0 if every else epoch_ends)
        if due:
            self.look_and_log()
        ending = self._ending()
        if due or ending is not None or step % self.training.save_every == 0:
            self._save()
        if self.setting.fabric.is_global_zero:
            self.watcher.stepped(self._progress())
        return ending

    def _over(self) -> bool:
        steps = self.training.steps
        done = bool(steps) and self.position.step >= steps
        return done or self.position.epoch >= self.training.epochs

    def _ending(self) -> Ending | None:
        """Why to end early; the first process decides for all."""
        if self._no_better():
            return "no better"
        fabric = self.setting.fabric
        if fabric.is_global_zero:
            self._reserve()
        own: Ending | None = "asked" if self.asked else "time" if self.clock.over else None
        if fabric.world_size == 1:
            return own
        if self.position.step < self.next_talk:
            return None
        ending: Ending | None
        ending, pause = fabric.broadcast((own, self._steps_until_talk()))
        self.next_talk = self.position.step + pause
        return ending

    def _reserve(self) -> None:
        """Once, reserve the time that the last validation and the final scores will take.

        It is measured on some pairs when a part of the time is over: a model that has learned
        nothing yet says more.
        """
        clock, setting = self.clock, self.setting
        if clock.limit is None or clock.reserved or clock.here < _MEASURED * clock.limit:
            return
        begun = clock.here
        self._validated()
        validated = clock.here
        sample = [pair.source for pair in spread(setting.valid_pairs, _SAMPLE)]
        translate_texts(setting.checkpoint, sample, setting.config.search, setting.fabric.device)
        scoring = (clock.here - validated) / len(sample) * setting.scored
        clock.reserved = validated - begun + scoring
        self.stepper.wrapped.train()
        self.looked += clock.here - begun
        if clock.reserved > clock.limit - clock.here:
            self.watcher.note(
                f"the scores at the end take about {clock.reserved:.0f} s, more than is left of "
                "the time limit; fewer pairs to validate and to test with take less, or "
                "search.beam = 1"
            )

    def _steps_until_talk(self) -> int:
        """Steps until processes agree again whether to end: agreeing waits for the device."""
        steps = self.position.step - self.begun.step
        seconds_per_step = max(self.clock.here - self.set_up - self.looked, 1e-9) / max(steps, 1)
        return max(1, int(_BETWEEN_TALKS / seconds_per_step))

    def _no_better(self) -> bool:
        patience = self.training.validation.patience
        return bool(patience) and self.best.since >= patience

    def _tell_of_warm_up(self) -> None:
        """Warn if the whole training is warm-up."""
        warmup = self.training.schedule.warmup
        if self.total is not None and self.total < warmup:
            self.watcher.note(
                f"training.schedule.warmup is {warmup:,} steps, but the training has {self.total:,}"
                ": its rate never gets to training.optimiser.rate; a shorter warm-up, or more "
                "epochs, will learn more"
            )

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        schedule, rate = self.training.schedule, self.training.optimiser.rate
        return rate * rate_factor(schedule, self.position.step, self.total, self._epochs())

    @property
    def forcing(self) -> float:
        """The probability of teacher forcing in the next step."""
        return forcing_at(self.training.forcing, self.position.step)

    def _validated(self) -> Validation:
        setting, validation = self.setting, self.training.validation
        device = setting.fabric.device
        setting.model.eval()
        with setting.fabric.autocast():
            loss, accuracy = loss_and_accuracy(setting.model, setting.valid, self.training, device)
            if validation.metric == "loss":
                return Validation(loss, accuracy)
            pairs = setting.valid_pairs[: validation.sentences or None]
            greedy = setting.config.search.greedy
            scores = score_pairs(setting.checkpoint, pairs, greedy, device)
        return Validation(loss, accuracy, scores.bleu.value, scores.chrf.value)

    def _keep(self, validation: Validation) -> None:
        step = self.position.step
        head = head_entry(self.training.guidance, self.setting.model)
        extra = {"step": step, "valid": asdict(validation), **head}
        kept = replace(self.setting.checkpoint, extra=extra)
        save_checkpoint(self.setting.folder.kept(step), kept)
        if self.best.kept[0].step == step:
            self.setting.folder.publish(step)

    def _log_losses(self) -> None:
        losses = self._pending_losses()
        self.loss = losses.sum().item() / max(self.pending_tokens, 1)
        now = self.clock.here - self.looked
        speed = (self.position.tokens - self.logged[1]) / max(now - self.logged[0], 1e-9)
        self._log({"kind": "train", "loss": self.loss, "tokens_per_second": speed})
        self.pending, self.pending_tokens = [], 0
        self.logged = (now, self.position.tokens)

    def _log(self, row: dict[str, Any]) -> None:
        common = {
            "step": self.position.step,
            "epoch": self.position.epoch,
            "rate": self.used[0],
            "forcing": self.used[1],
            "tokens": self.position.tokens,
            "seconds": self.clock.total,
        }
        for log in self.logs:
            log.write(common | row)

    def _pending_losses(self) -> Tensor:
        """Losses that are not logged yet, one per step, summed over processes."""
        own = torch.stack(self.pending) if self.pending else torch.zeros(0, dtype=torch.float64)
        losses = sum_over_ranks(self.setting.fabric, own).cpu()
        self._check_finite("loss", [losses])
        return losses

    def _check_finite(self, what: str, tensors: list[Tensor]) -> None:
        if all(bool(tensor.isfinite().all()) for tensor in tensors):
            return
        raise RegardError(
            f"the {what} is not finite any more at step {self.position.step}: a lower "
            "training.optimiser.rate or training.optimiser.clip may help; the state before is in "
            f"{self.setting.folder.last}, if one was saved"
        )

    def _save(self) -> None:
        """Save the state for resuming; only then delete checkpoints that are no longer kept."""
        setting = self.setting
        self._check_finite("model", list(setting.model.parameters()))
        self.position = replace(
            self.position,
            seconds=self.clock.total,
            best=self.best.table(),
            pending_tokens=self.pending_tokens,
            threads=torch.get_num_threads(),
        )
        state = State(
            position=self.position,
            config=setting.config,
            vocabularies=setting.vocabularies,
            weights=setting.model.state_dict(),
            optimiser=optimiser_tensors(self.stepper.optimiser),
            random=random_states_of_ranks(setting.fabric),
            pending=self._pending_losses(),
        )
        if setting.fabric.is_global_zero:
            save_state(setting.folder.last, state)
            setting.folder.prune(self.best)

    def _progress(self) -> TrainingProgress:
        seconds, share = self.clock.here - self.set_up, self._share()
        seconds_left = seconds * (1 - share) / max(share - self.begun_share, 1e-9)
        if self.clock.limit is not None:
            seconds_left = min(seconds_left, max(self.clock.limit - self.clock.here, 0.0))
        loss = self.loss
        if loss is None and self.pending:
            whole = torch.stack(self.pending).sum().item() * self.setting.fabric.world_size
            loss = whole / max(self.pending_tokens, 1)  # other processes have like sentences
        return TrainingProgress(
            step=self.position.step,
            steps=self.total,
            share=share,
            epoch=self.position.epoch,
            loss=loss,
            tokens_per_second=(self.position.tokens - self.begun.tokens)
            / max(seconds - self.looked, 1e-9),
            seconds_left=seconds_left,
        )

    def _load_plan(self) -> None:
        """Plan the steps of the current block, unless that is done."""
        at = self.position.epoch, self.position.block
        if self.planned == at:
            return
        block, setting, fabric = self.blocks.at(*at), self.setting, self.setting.fabric
        order = at[0] * self.blocks.count + at[1]
        if self.training.sample_pieces:
            examples = sampled_examples(
                block.examples,
                setting.vocabularies,
                self.training,
                order,
                setting.model.longest_source,
            )
            block = replace(block, examples=examples)
        self.stepper.enter(block)
        self.plan = plan_epoch(
            block.examples, self.training, order, fabric.global_rank, fabric.world_size
        )
        self.planned = at

    def _total(self) -> int | None:
        """How many steps the training will have; None if an epoch has an unknown number."""
        steps = self.training.steps
        if self.blocks.count > 1:
            return steps or None
        self._load_plan()
        epochs = len(self.plan) * self.training.epochs
        return min(epochs, steps) if steps else epochs

    def _epochs(self) -> float:
        """How many epochs have been made, the current one in part."""
        position, part = self.position, 0.0
        if position.place:
            self._load_plan()
            part = position.place / len(self.plan)
        return position.epoch + (position.block + part) / self.blocks.count

    def _share(self) -> float:
        """The share of the training that is done."""
        shares = [self._epochs() / self.training.epochs]
        if self.training.steps:
            shares.append(self.position.step / self.training.steps)
        return min(1.0, max(shares))
