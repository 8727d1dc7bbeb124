"""`[training]`: batches, optimiser, schedules, teacher forcing, validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from regard.translate.config.tables import check_numbers

Metric = Literal["loss", "bleu", "chrf"]


@dataclass(frozen=True)
class OptimiserConfig:
    """The optimiser.

    | field          | meaning                                                                  |
    |----------------|--------------------------------------------------------------------------|
    | `name`         | Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019), or      |
    |                | gradient descent without momentum                                        |
    | `rate`         | the learning rate, which `training.schedule` changes                     |
    | `beta1`        | of Adam: the share of the mean gradient that a step keeps                |
    | `beta2`        | of Adam: the share of the mean squared gradient that a step keeps        |
    | `epsilon`      | of Adam: what is added to the root of that mean, against division by 0   |
    | `weight_decay` | so much of each parameter is added to its gradient; with AdamW, so much  |
    |                | of it, times the rate, is taken off it                                   |
    | `clip`         | the longest gradient, of all parameters together; 0 for any length       |
    """

    SHORT: ClassVar[str] = "name"
    name: Literal["adam", "adamw", "sgd"] = "adam"
    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        check_numbers("training.optimiser", self, above_0=("rate", "epsilon"))
        check_numbers("training.optimiser", self, below_1=("beta1", "beta2"))
        check_numbers("training.optimiser", self, at_least_0=("weight_decay", "clip"))


@dataclass(frozen=True)
class ScheduleConfig:
    """The schedule of the learning rate.

    | field         | meaning                                                                   |
    |---------------|---------------------------------------------------------------------------|
    | `name`        | how it goes after `warmup` steps                                          |
    | `warmup`      | steps in which it grows evenly up to `training.optimiser.rate`            |
    | `floor`       | the share of it that `linear` and `cosine` end with, at the last step     |
    | `halve_after` | `halving` keeps it for so many epochs,                                    |
    | `halve_every` | and then halves it every so many (Luong et al., 2015, section 4.1)        |
    """

    SHORT: ClassVar[str] = "name"
    name: Literal["constant", "inverse-square-root", "linear", "cosine", "halving"] = "constant"
    warmup: int = 0
    floor: float = 0.0
    halve_after: float = 5.0
    halve_every: float = 1.0

    def __post_init__(self) -> None:
        check_numbers("training.schedule", self, at_least_0=("warmup", "halve_after"))
        check_numbers("training.schedule", self, shares=("floor",), above_0=("halve_every",))


@dataclass(frozen=True)
class ForcingConfig:
    """The probability that the decoder is given the true last token (Bengio et al., 2015).

    | field   | meaning                                                                         |
    |---------|---------------------------------------------------------------------------------|
    | `name`  | how it goes from `start` to `end`; `constant` stays at `start`                  |
    | `start` | where it begins; `training.forcing = 0.5` is the constant probability 0.5       |
    | `end`   | where it goes                                                                   |
    | `steps` | how fast: `linear` is at `end` after so many steps, `exponential` has a         |
    |         | hundredth of the way left then, and `inverse-sigmoid` is halfway at half of     |
    |         | them. This one comes near `start` and `end` and is at neither: of the way,      |
    |         | 1 / (k + 1) lacks at step 0 and after `steps`, where k ln k = `steps` / 2       |
    |         | (a 756th with 10,000 steps, a seventh with 20)                                  |
    """

    SHORT: ClassVar[str] = "start"
    name: Literal["constant", "linear", "exponential", "inverse-sigmoid"] = "constant"
    start: float = 1.0
    end: float = 0.0
    steps: int = 10_000

    def __post_init__(self) -> None:
        check_numbers("training.forcing", self, shares=("start", "end"), above_0=("steps",))


@dataclass(frozen=True)
class ValidationConfig:
    """When to validate, and what follows.

    | field       | meaning                                                                     |
    |-------------|-----------------------------------------------------------------------------|
    | `every`     | steps between two looks; 0 for the end of each epoch                        |
    | `metric`    | what is best: the least loss, or the most BLEU or chrF by greedy search     |
    | `patience`  | stop after so many looks without a better one; 0 for never. Looks within    |
    |             | the warm-up (`training.schedule.warmup`) do not count                       |
    | `average`   | how many of the best parameters are averaged at the end                     |
    | `sentences` | most sentences that are translated for a look; 0 for all                    |
    """

    every: int = 0
    metric: Metric = "loss"
    patience: int = 0
    average: int = 5
    sentences: int = 0

    def __post_init__(self) -> None:
        check_numbers("training.validation", self, at_least_0=("every", "patience", "sentences"))
        check_numbers("training.validation", self, above_0=("average",))


@dataclass(frozen=True)
class TrainingConfig:
    """Length of the training, batches, optimisation.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `start`            | a checkpoint to begin with, its vocabularies and its weights; with   |
    |                    | it, `[vocabulary]` is not used                                       |
    | `epochs`, `steps`  | the end: whichever comes first; `steps` 0 for no limit               |
    | `batch_tokens`     | tokens of a batch, padding included, on each process                 |
    | `batch_sentences`  | sentences of a batch instead, when not 0                             |
    | `accumulate`       | batches whose gradients make one step                                |
    | `label_smoothing`  | the share of the target that is spread evenly over the vocabulary    |
    | `precision`        | float32, bfloat16 autocast or float64                                |
    | `seed`             | of all that is random: first parameters, order of the data, dropout, |
    |                    | teacher forcing; another number gives another run                    |
    | `log_every`        | steps between two lines of the log                                   |
    | `save_every`       | steps between two savings of everything that resuming needs          |
    | `tensorboard`      | also write events for TensorBoard                                    |
    | `optimiser`        | how parameters move: `OptimiserConfig`                               |
    | `schedule`         | how the learning rate goes: `ScheduleConfig`                         |
    | `forcing`          | how often the decoder is given the true token: `ForcingConfig`       |
    | `validation`       | when to look at the validation pairs: `ValidationConfig`             |
    """

    start: str = ""
    epochs: int = 20
    steps: int = 0
    batch_tokens: int = 4096
    batch_sentences: int = 0
    accumulate: int = 1
    label_smoothing: float = 0.1
    precision: Literal["32", "bf16", "64"] = "32"
    seed: int = 0
    log_every: int = 50
    save_every: int = 500
    tensorboard: bool = False
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    forcing: ForcingConfig = field(default_factory=ForcingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    def __post_init__(self) -> None:
        positive = ("epochs", "batch_tokens", "accumulate", "log_every", "save_every")
        check_numbers("training", self, above_0=positive, below_1=("label_smoothing",))
        check_numbers("training", self, at_least_0=("steps", "batch_sentences"), seeds=("seed",))
