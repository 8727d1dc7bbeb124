"""What a training tells whoever watches it; the base class says nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Now:
    """Where a training is.

    | field               | meaning                                                            |
    |---------------------|--------------------------------------------------------------------|
    | `step`, `steps`     | made, and how many there will be                                   |
    | `epoch`             | the current one, from 0                                            |
    | `loss`              | a target token's, over the last interval of the log; None at first |
    | `tokens_per_second` | target tokens, since this part of the run began; looks at the      |
    |                     | validation pairs do not count                                      |
    | `seconds_left`      | until the last step or the end of the time, whichever is first     |
    """

    step: int
    steps: int
    epoch: int
    loss: float | None
    tokens_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class Validated:
    """How a model does on the validation pairs; `loss` in nats a token, without smoothing."""

    loss: float
    accuracy: float
    bleu: float | None = None
    chrf: float | None = None


class Watcher:
    """Is told what happens, on the first process only."""

    def note(self, text: str) -> None:
        """Something that is said once."""

    def stepped(self, now: Now) -> None:
        """A step was made."""

    def validated(self, step: int, found: Validated, best: bool) -> None:
        """The validation pairs were looked at."""

    def done(self) -> None:
        """No more steps will follow."""
