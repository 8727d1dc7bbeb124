"""`[training]`: batches, optimiser, schedules, teacher forcing, validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from regard.tables import check_numbers

Metric = Literal["loss", "bleu", "chrf"]


@dataclass(frozen=True)
class OptimiserConfig:
    """The optimiser.

    | field          | meaning                                                                  |
    |----------------|--------------------------------------------------------------------------|
    | `name`         | Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019), or      |
    |                | gradient descent without momentum                                        |
    | `rate`         | the learning rate, which `training.schedule` changes                     |
    | `beta1`        | of Adam: decay of the mean gradient                                      |
    | `beta2`        | of Adam: decay of the mean squared gradient                              |
    | `epsilon`      | of Adam: added to the denominator                                        |
    | `weight_decay` | L2 penalty on the gradient; decoupled with AdamW                         |
    | `clip`         | maximum gradient norm over all parameters; 0 for no clipping             |
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
    | `name`        | the schedule after `warmup` steps                                         |
    | `warmup`      | steps of linear warm-up to `training.optimiser.rate`                      |
    | `floor`       | final share of the rate for `linear` and `cosine`, at the last step       |
    | `halve_after` | of `halving` (Luong et al., 2015, section 4.1): epochs before the first   |
    | `halve_every` | of `halving`: epochs between halvings                                     |
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
    """The probability that the decoder is fed the true previous token (Bengio et al., 2015).

    | field   | meaning                                                                         |
    |---------|---------------------------------------------------------------------------------|
    | `name`  | the curve from `start` to `end`; `constant` stays at `start`                    |
    | `start` | initial probability; `training.forcing = 0.5` is short for it                   |
    | `end`   | final probability                                                               |
    | `steps` | duration: `linear` reaches `end` after this many steps, `exponential` has 1 %   |
    |         | of the way left, `inverse-sigmoid` is halfway at half of them; it only          |
    |         | approaches both ends, by 1 / (k + 1) of the way, with k ln k = `steps` / 2      |
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
    | `every`     | steps between validations; 0 for the end of each epoch                      |
    | `metric`    | lowest loss, or highest BLEU or chrF by greedy search                       |
    | `patience`  | stop after this many validations without improvement, those during warm-up  |
    |             | not counted; 0 for never                                                    |
    | `average`   | number of best checkpoints to average at the end                            |
    | `sentences` | maximum number of sentences to translate per validation; 0 for all          |
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
class GuidanceConfig:
    """Guided alignment: a head learns to look where a statistical aligner links the pairs.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `weight`  | of its loss beside the cross-entropy; 0 for no guidance                     |
    | `head`    | the head, such as `1.cross:0`; when empty `align`, else the first head of   |
    |           | the last layer but one                                                      |
    | `reading` | whose row belongs to a word: the step that predicts it ("output") or is     |
    |           | fed it ("input"); "usual" is the model's own, "input" for `align`           |
    """

    SHORT: ClassVar[str] = "weight"
    weight: float = 0.0
    head: str = ""
    reading: Literal["usual", "output", "input"] = "usual"

    def __post_init__(self) -> None:
        check_numbers("training.guidance", self, at_least_0=("weight",))


@dataclass(frozen=True)
class TrainingConfig:
    """Length of the training, batches, optimisation.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `start`            | a checkpoint to start from, instead of `[vocabulary]` and new weights |
    | `epochs`, `steps`  | maximum length; `steps` 0 for no limit                               |
    | `batch_tokens`     | maximum tokens per batch and process, padding included               |
    | `batch_sentences`  | maximum sentences per batch instead, when not 0                      |
    | `accumulate`       | batches per step (gradient accumulation)                             |
    | `label_smoothing`  | label smoothing                                                      |
    | `sample_pieces`    | subword regularisation: α with which each epoch draws other pieces   |
    |                    | of the training sentences; 0 for none                                |
    | `precision`        | float32, bfloat16 autocast or float64                                |
    | `seed`             | random seed of parameters, data order, dropout and teacher forcing   |
    | `log_every`        | steps between log lines                                              |
    | `save_every`       | steps between saves of the state for resuming                        |
    | `tensorboard`      | also write events for TensorBoard                                    |
    | `optimiser`        | `OptimiserConfig`                                                    |
    | `schedule`         | `ScheduleConfig`                                                     |
    | `forcing`          | `ForcingConfig`                                                      |
    | `validation`       | `ValidationConfig`                                                   |
    | `guidance`         | `GuidanceConfig`                                                     |
    """

    start: str = ""
    epochs: int = 20
    steps: int = 0
    batch_tokens: int = 4096
    batch_sentences: int = 0
    accumulate: int = 1
    label_smoothing: float = 0.1
    sample_pieces: float = 0.0
    precision: Literal["32", "bf16", "64"] = "32"
    seed: int = 0
    log_every: int = 50
    save_every: int = 500
    tensorboard: bool = False
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    forcing: ForcingConfig = field(default_factory=ForcingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)

    def __post_init__(self) -> None:
        positive = ("epochs", "batch_tokens", "accumulate", "log_every", "save_every")
        check_numbers("training", self, above_0=positive, below_1=("label_smoothing",))
        check_numbers("training", self, shares=("sample_pieces",))
        check_numbers("training", self, at_least_0=("steps", "batch_sentences"), seeds=("seed",))
