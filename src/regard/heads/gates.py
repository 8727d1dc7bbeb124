"""Learned gates on heads: which heads a model can do without.

A gate z in [0, 1] has weight on 0 and on 1 exactly, and can still be differentiated through: a
relaxed coin s is stretched to (γ, ζ) and cut off at 0 and 1. The hard concrete distribution of
Louizos, Welling and Kingma 2018 ("Learning sparse neural networks through L0 regularization",
equations 10 to 12); for heads Voita et al. 2019 ("Analyzing multi-head self-attention", section 5).

    s = σ((log u − log(1 − u) + log α) / β),  u uniform        z = min(1, max(0, s (ζ − γ) + γ))
    P(z ≠ 0) = σ(log α − β log(−γ / ζ))

The loss is that of the model, with each head times its gate, plus a penalty on Σ P(z ≠ 0).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from regard.anatomy.head_sites import Sites, head_sites
from regard.errors import RegardError
from regard.heads.head_mask import Row, scaled_heads
from regard.heads.importance import Calls, HeadImportance, score_table, survey
from regard.heads.passes import Loss, Run, losses_of, run_on, undisturbed
from regard.progress import progress

_EDGE = 1e-6  # uniform numbers keep this far from 0 and 1, where the logarithm ends


class HardConcrete(nn.Module):
    """Gates of the hard concrete distribution.

    Calling it samples the gates in training mode. In eval mode the gates are deterministic:
    min(1, max(0, σ(log α)(ζ − γ) + γ)).

    | here          | paper | meaning                                                |
    |---------------|-------|--------------------------------------------------------|
    | `log_alpha`   | log α | learned; above 0 a gate is rather open                 |
    | `temperature` | β     | towards 0 the gates become coins                       |
    | `stretch`     | γ, ζ  | how far beyond 0 and 1 the coin is stretched           |

    Args:
        count: how many gates.
        temperature: above 0; 1/3 as Voita et al., Louizos et al. take 2/3.
        stretch: one number below 0 and one above 1.
        start: `log_alpha` of every gate in the beginning.

    >>> import torch
    >>> from regard.heads import HardConcrete
    >>> gates = HardConcrete(3)
    >>> bool(((gates() >= 0) & (gates() <= 1)).all()), gates.eval()()
    (True, tensor([1., 1., 1.], grad_fn=<ClampBackward1>))
    """

    def __init__(
        self,
        count: int,
        *,
        temperature: float = 1 / 3,
        stretch: tuple[float, float] = (-0.1, 1.1),
        start: float = 2.5,
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise RegardError(f"temperature={temperature}, expected a number above 0")
        if not (stretch[0] < 0 and stretch[1] > 1):
            raise RegardError(f"stretch={stretch}, expected one number below 0 and one above 1")
        self.temperature = temperature
        self.stretch = stretch
        self.log_alpha = nn.Parameter(torch.full((count,), float(start)))

    def forward(self, generator: torch.Generator | None = None) -> Tensor:
        """Gates (count,); drawn with `generator` in training."""
        if not self.training:
            return self._cut(self.log_alpha.sigmoid())
        device = self.log_alpha.device if generator is None else generator.device
        uniform = torch.rand(self.log_alpha.shape, generator=generator, device=device)
        noise = uniform.to(self.log_alpha).clamp(_EDGE, 1 - _EDGE).logit()
        return self._cut(((noise + self.log_alpha) / self.temperature).sigmoid())

    def open_probability(self) -> Tensor:
        """P(z ≠ 0) of every gate, (count,)."""
        low, high = self.stretch
        return (self.log_alpha - self.temperature * math.log(-low / high)).sigmoid()

    def penalty(self) -> Tensor:
        """The expected number of gates that are not 0, Σ P(z ≠ 0)."""
        return self.open_probability().sum()

    def _cut(self, coin: Tensor) -> Tensor:
        low, high = self.stretch
        return (coin * (high - low) + low).clamp(0.0, 1.0)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{len(self.log_alpha)}, temperature {self.temperature:.3g}, stretch {self.stretch}"


@dataclass(frozen=True, eq=False)
class LearnedGates:
    """What was learned: how likely each head's gate is open, and the gates themselves."""

    importance: HeadImportance  #: P(z ≠ 0) of each head
    gates: HardConcrete  #: all heads in one row, in the order of `importance`
    losses: Tensor  #: of the model with gates, without the penalty, (step,)

    def closed(self, below: float = 0.5) -> dict[str, list[int]]:
        """Heads whose gate is open less likely than this, as `regard.prune` takes them."""
        count = int((self.importance.scores < below).sum())
        return self.importance.least(count)

    def __repr__(self) -> str:
        heads = sum(len(closed) for closed in self.closed().values())
        return f"{self.importance!r}\n{heads} of {len(self.gates.log_alpha)} gates are closed"


def learn_gates(
    model: nn.Module,
    data: Iterable[Any],
    loss: Loss,
    *,
    penalty: float = 0.02,
    steps: int = 200,
    rate: float = 0.1,
    model_rate: float = 0.0,
    seed: int = 0,
    calls: Calls = "each",
    sites: Sites = None,
    run: Run | None = None,
    show_progress: bool = True,
) -> LearnedGates:
    """Learn which heads can be closed at little loss. The same seed gives the same gates.

    Args:
        model: any module with attention that `head_sites` finds.
        data: batches, iterated as often as needed: a list or a loader.
        loss: of what the model returned and the batch; (batch,) or one number, to be averaged.
        penalty: what one open head costs, in units of the loss.
        steps: how many batches are learned from, by Adam.
        rate: learning rate of the gates.
        model_rate: learning rate of the model's own parameters, those that ask for gradients.
            0 freezes them and runs the model in evaluation mode; else they are changed, in the
            mode the model is in.
        seed: of the gates' noise.
        calls, sites, run, show_progress: as for `head_importance`.

    >>> import torch, regard
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.randn(4, 5, 8)
    >>> learned = regard.heads.learn_gates(
    ...     model, [(x, x, x)], lambda output, inputs: output[0].square().mean((1, 2)), steps=3
    ... )
    >>> learned.importance.scores.shape, learned.losses.shape
    (torch.Size([1, 2]), torch.Size([3]))
    """
    if steps < 1:
        raise RegardError(f"steps={steps}, expected at least 1")
    if penalty < 0 or rate <= 0 or model_rate < 0:
        raise RegardError(
            f"penalty={penalty}, rate={rate}, model_rate={model_rate}: expected numbers from 0 on, "
            "a rate above 0"
        )
    run = run or run_on
    chosen = head_sites(model, sites)
    frozen = model_rate == 0
    with undisturbed(model, frozen=frozen, eval_mode=frozen), _own_gradients(model):
        rows, batches = survey(model, data, calls, chosen, run, masked=True)
        gates = HardConcrete(sum(row.site.n_heads for row in rows))
        gates.to(next(model.parameters()).device)
        optimiser = torch.optim.Adam([{"params": [gates.log_alpha], "lr": rate}])
        if not frozen:
            asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
            optimiser.add_param_group({"params": asking, "lr": model_rate})
        noise = torch.Generator().manual_seed(seed)

        losses = []
        with (
            torch.enable_grad(),
            progress("learning gates", steps, None if show_progress else False) as advance,
        ):
            for inputs in islice(_again(batches, data), steps):
                with scaled_heads(_split(gates(noise), rows)):
                    mean = losses_of(loss, run(model, inputs), inputs).mean()
                optimiser.zero_grad()
                (mean + penalty * gates.penalty()).backward()
                optimiser.step()
                losses.append(mean.detach())
                advance()
    gates.eval()
    open_probability = _split(gates.open_probability().detach().double().cpu(), rows)
    importance = score_table(rows, list(open_probability.values()), "gates")
    return LearnedGates(importance, gates, torch.stack(losses))


def _split(gates: Tensor, rows: Sequence[Row]) -> dict[Row, Tensor]:
    """Gates of all heads, by row."""
    return dict(zip(rows, gates.split([row.site.n_heads for row in rows])))


def _again(batches: Iterator[Any], data: Iterable[Any]) -> Iterator[Any]:
    """The batches that are left, then all of them, over and over."""
    yield from batches
    while True:
        fresh = iter(data)
        try:
            first = next(fresh)
        except StopIteration:
            raise RegardError(
                "data ran out before the last step and cannot be iterated again: give a list or a "
                "loader"
            ) from None
        yield from chain([first], fresh)


@contextmanager
def _own_gradients(model: nn.Module) -> Iterator[None]:
    """Set the parameters' gradients aside within a block."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in gradients:
            parameter.grad = grad
