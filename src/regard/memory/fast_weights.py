"""Fast weights of 1992: a slow network writes the weights of a fast one, step by step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard import masks
from regard.checks import check_sizes
from regard.contract import Attended, RecurrentState
from regard.errors import DtypeError, RegardError, ShapeError, StateError, UnavailableError
from regard.kernel.attend import run
from regard.memory.checks import check_features
from regard.recipe import Delta, Linear, Recurrent
from regard.softmax import autocasting
from regard.types import Features, Kind


class FastWeights(nn.Module):
    """[FROM_t, TO_t, q_t] = S(x_t), W_t = W_{t−1} + TO_t ⊗ FROM_t, y_t = W_t q_t.

    Schmidhuber 1992, "Learning to control fast-weight memories: an alternative to dynamic recurrent
    networks", section 2: a slow network S, trained by gradient descent, changes the weights W of a
    fast one at every step. FROM is what is called a key today, TO a value, and the sum of outer
    products is linear attention without its denominator (Schlag et al. 2021).

    | here           | paper    | meaning                                                    |
    |----------------|----------|------------------------------------------------------------|
    | `slow`         | S        | x to FROM, TO and the fast network's input                 |
    | `key_width`    |          | numbers in FROM and in q                                   |
    | `value_width`  |          | numbers in TO and in y                                     |
    | `squash`       | σ, eq. 1 | W_t = σ(W_{t−1} + TO ⊗ FROM): bounded weights              |
    | `state.memory` | Wᵀ       | (batch, 1, key width, value width)                         |

    y is a sum of the TO of all steps so far. Its coefficients are the implied weights, q_t ·
    FROM_s: signed, (batch, 1, step, step). Whole sequences are worked on in chunks of matrix
    products, and give what the steps give. With `squash` W is no such sum: steps are then a loop,
    and there are no weights to give.

    With `rule="delta"` S also emits β = σ(·), and W_t = W_{t−1} + β (TO − W_{t−1} FROM) ⊗ FROM:
    what is written replaces what FROM held (Schlag et al. 2021, eq. 24). FROM and q are then
    divided by their lengths, without which the rule diverges.

    Departures. The paper's fast network is any feed-forward network on x; here it is one linear
    layer on q. The paper reads W_{t−1} and writes afterwards; here a step reads what it wrote, as
    linear attention does. FROM and TO of the paper are outputs of squashing units: put those into
    `slow`.

    Args:
        width: features of x.
        key_width: numbers in FROM and q.
        value_width: numbers in TO and y.
        slow: S, a module from (batch, step, width) to (batch, step, `emitted`), in the order FROM,
            TO, q and, for the delta rule, β before its sigmoid; a linear layer when None.
        rule: "sum", or "delta".
        squash: σ, a function of each weight, as `torch.tanh`; none when None.

    >>> import torch
    >>> from regard.memory import FastWeights
    >>> memory = FastWeights(8, 4, 6)
    >>> attended = memory(torch.randn(2, 10, 8), weights=True)
    >>> attended.output.shape, attended.weights.shape, attended.state.memory.shape
    (torch.Size([2, 10, 6]), torch.Size([2, 1, 10, 10]), torch.Size([2, 1, 4, 6]))
    """

    kind: Kind = "signed"

    def __init__(
        self,
        width: int,
        key_width: int,
        value_width: int,
        *,
        slow: nn.Module | None = None,
        rule: str = "sum",
        squash: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        check_sizes("FastWeights", width=width, key_width=key_width, value_width=value_width)
        if rule not in ("sum", "delta"):
            raise RegardError(f"FastWeights: rule={rule!r}, expected 'sum' or 'delta'")
        if rule == "delta" and squash is not None:
            raise RegardError("FastWeights: squash with rule='delta', which bounds W by itself")
        self.width, self.key_width, self.value_width = width, key_width, value_width
        self.rule, self.squash = rule, squash
        self.slow = nn.Linear(width, self.emitted) if slow is None else slow

    @property
    def emitted(self) -> int:
        """How many numbers the slow network emits at a step."""
        return 2 * self.key_width + self.value_width + (self.rule == "delta")

    def forward(
        self, x: Features, *, state: RecurrentState | None = None, weights: bool = False
    ) -> Attended:
        """Write and read, step after step.

        Args:
            x: (batch, step, width).
            state: the `.state` of the call before, to go on from; W begins at 0 when None.
            weights: also return the implied weights of this call's steps; what is read of an
                earlier state has none, and `recipe.mixed()` adds it.
        """
        check_features(self, "x", x, self.width, ("batch", "step"))
        if weights and self.squash is not None:
            raise UnavailableError(
                "FastWeights: weights with squash: a squashed W is no sum of what was written, so "
                "its parts have no weights; use squash=None"
            )
        recipe = self.recipe(x, self._memory(x, state))
        attended = run(recipe, weights=weights) if self.squash is None else self._squashed(recipe)
        new = attended.state
        assert isinstance(new, RecurrentState)
        if state is not None:
            new = state.followed_by(new)
        return attended.finished(attended.output[:, 0], new)

    def recipe(self, x: Features, memory: Tensor | None = None) -> Recurrent:
        """What the slow network emits, as a recipe: FROM are its keys, TO its values."""
        emitted = self.slow(x)
        expected = (*x.shape[:2], self.emitted)
        if not isinstance(emitted, Tensor) or emitted.shape != expected:
            got = tuple(emitted.shape) if isinstance(emitted, Tensor) else type(emitted).__name__
            raise ShapeError(
                f"FastWeights: slow gave {got}, expected {expected}: batch, steps, and the numbers "
                "of FROM, TO and query" + ", and one for β" * (self.rule == "delta")
            )
        widths = [self.key_width, self.value_width, self.key_width, int(self.rule == "delta")]
        key, value, query, strength = emitted[:, None].split(widths, dim=-1)
        mask = masks.causal()
        if self.rule == "sum":
            return Linear(
                query, key, value, mask=mask, memory=memory, normalised=False, of="signed"
            )
        query, key = (nn.functional.normalize(side, dim=-1) for side in (query, key))
        strength = strength[..., 0].sigmoid()  # (batch, 1, step)
        return Delta(query, key, strength, value, mask=mask, memory=memory)

    def _memory(self, x: Tensor, state: RecurrentState | None) -> Tensor | None:
        """Wᵀ before the first step; None where nothing was written."""
        if state is None:
            return None
        if not isinstance(state, RecurrentState):
            raise StateError(
                f"FastWeights: state is {type(state).__name__}, expected a RecurrentState, the "
                ".state of the call before"
            )
        expected = (x.shape[0], 1, self.key_width, self.value_width)
        if state.memory.shape != expected:
            raise ShapeError(
                f"FastWeights: state: memory has shape {tuple(state.memory.shape)}, expected "
                f"{expected}: batch, 1, key width, value width; another module made this state"
            )
        dtype = torch.promote_types(x.dtype, torch.float32)
        if state.memory.dtype != dtype and not autocasting(x.device):
            raise DtypeError(
                f"FastWeights: state is {state.memory.dtype}, expected {dtype} for {x.dtype} x"
            )
        return state.memory

    def _squashed(self, recipe: Recurrent) -> Attended:
        """A loop over the steps, each of which squashes all of W."""
        assert recipe.value is not None and self.squash is not None
        batch, _, steps, _ = recipe.shape
        query, key, value = (
            side[:, 0].to(recipe.dtype) for side in (recipe.query, recipe.key, recipe.value)
        )
        memory = query.new_zeros(batch, self.key_width, self.value_width)
        if recipe.memory is not None:
            memory = recipe.memory[:, 0]
        outputs = [query.new_zeros(batch, 0, self.value_width)]
        with torch.autocast(query.device.type, enabled=False):  # W adds up in float32
            for step in range(steps):
                now = slice(step, step + 1)
                memory = self.squash(torch.baddbmm(memory, key[:, now].mT, value[:, now]))
                outputs.append(torch.bmm(query[:, now], memory))
        output = torch.cat(outputs, dim=1)[:, None].to(recipe.value.dtype)
        written = torch.full((batch,), steps, device=query.device)
        return Attended(output, state=RecurrentState(memory[:, None], written, steps, True, steps))

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        squash = "" if self.squash is None else ", squashed"
        return f"{self.width} to {self.key_width} × {self.value_width}, rule {self.rule}{squash}"
