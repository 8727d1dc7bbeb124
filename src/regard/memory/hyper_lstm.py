"""HyperLSTM: a small LSTM that rescales the weights of a larger one at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import DtypeError, RegardError, ShapeError, StateError, UnavailableError
from regard.memory.checks import check_features
from regard.memory.steps import step_trace
from regard.record import Trace
from regard.softmax import autocasting
from regard.types import Features, Kind, Weights, brief, register_pytree

#: What the weights are named, and what they are.
KINDS: dict[str, Kind] = {
    "gates": "gate",
    "scale_hidden": "signed",
    "scale_x": "signed",
    "shift": "signed",
}


class HyperState(NamedTuple):
    """Both LSTMs between two steps."""

    hidden: Float[Tensor, "batch hidden_width"]
    cell: Float[Tensor, "batch hidden_width"]
    hyper_hidden: Float[Tensor, "batch hyper_width"]
    hyper_cell: Float[Tensor, "batch hyper_width"]


@dataclass(frozen=True, eq=False, repr=False)
class HyperOutput:
    """What a HyperLSTM returns; `output, state = lstm(x)` works as with `torch.nn.LSTM`.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `output`  | hidden states of all steps, (batch, step, hidden width)                     |
    | `state`   | after the last step                                                         |
    | `weights` | by name, each (batch, gate, step, unit); None when not asked                |

    Names of the weights: `gates` (input, forget, output), and what the hypernetwork emitted for the
    gates input, forget, candidate, output: `scale_hidden` and `scale_x`, the factors of W_h h and
    W_x x, and `shift`, which is added.
    """

    output: Float[Tensor, "batch step hidden_width"]
    state: HyperState
    weights: dict[str, Weights] | None = None

    def __repr__(self) -> str:
        return brief(self)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.output, self.state))

    def __getitem__(self, index: object) -> NoReturn:
        raise RegardError(
            f"HyperOutput[{index!r}]: no tuple; write `lstm(x).output`, or "
            "`output, state = lstm(x)`"
        )

    @property
    def trace(self) -> Trace:
        """The weights as records: heads are gates, queries steps, keys units."""
        if self.weights is None:
            raise UnavailableError(
                "HyperLSTM: no weights were kept; call it with weights=True to get a trace"
            )
        return step_trace("HyperLSTM", self.weights, KINDS)


register_pytree(HyperOutput)


class HyperLSTM(nn.Module):
    """y_t = LN(d_h ∘ W_h h_{t−1} + d_x ∘ W_x x_t + b) for each gate y, d = W_z z, z from ĥ_t.

    Ha, Dai & Le 2016, "HyperNetworks", section 3.2 and appendix A.2.2: a second, smaller LSTM reads
    [h_{t−1}; x_t] and emits embeddings z for each gate. These become a factor for each row of the
    weights, and a bias. So the weights change from step to step, at the price of vectors.

    | here              | paper            | meaning                                            |
    |-------------------|------------------|----------------------------------------------------|
    | `hyper_hidden`    | ĥ                | hidden state of the small LSTM                     |
    | `embedding_width` | N_z              | numbers in each z                                  |
    | `to_embedding`    | W_ĥh, W_ĥx, W_ĥb | ĥ to the z of hidden, x and bias, for each gate    |
    | `scale`           | W_hz, W_xz, W_bz | z to a factor, or a bias, for each unit            |
    | `bias`            | b_0              | the bias that stays                                |

    It starts as an LSTM with all weights scaled by 0.1: z begins at 1 (weight 0, bias 1), `scale`
    at 0.1 / N_z and 0 for the bias; recurrent weights are orthogonal.

    Called as `torch.nn.LSTM(batch_first=True)` with one layer: x and a state in, outputs and a
    state out; gates in torch's order: input, forget, candidate, output. Stack several for more
    layers.

    Departures. The paper's equations take z from ĥ_{t−1}; here it comes from ĥ_t, as in the
    authors' code, so that x_t acts on its own step. In that code `to_embedding` has no bias for b,
    and with layer norm the small LSTM has none; here both do. There is no dropout of the candidate.

    Args:
        width: features of x.
        hidden_width: units of the main LSTM.
        hyper_width: units of the small LSTM.
        embedding_width: numbers in each embedding.
        layer_norm: whether each gate, and the cell on its way out, is normalised, in both LSTMs.
        forget_bias: added to the forget gates of both, behind the norm.

    >>> import torch
    >>> from regard.memory import HyperLSTM
    >>> lstm, x = HyperLSTM(8, 16, hyper_width=4), torch.randn(2, 5, 8)
    >>> output, state = lstm(x)
    >>> output.shape, state.hidden.shape, state.hyper_hidden.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 16]), torch.Size([2, 4]))
    >>> lstm(x, weights=True).trace["gates"]
    Record('gates': cross gate, 3 heads, 5 × 16, batch 2, recipe)
    """

    def __init__(
        self,
        width: int,
        hidden_width: int,
        *,
        hyper_width: int = 64,
        embedding_width: int = 4,
        layer_norm: bool = True,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "hidden_width": hidden_width, "hyper_width": hyper_width}
        check_sizes("HyperLSTM", **sizes, embedding_width=embedding_width)
        self.width, self.hidden_width, self.hyper_width = width, hidden_width, hyper_width
        self.embedding_width = embedding_width
        self.from_x = nn.Linear(width, 4 * hidden_width, bias=False)
        self.from_hidden = nn.Linear(hidden_width, 4 * hidden_width, bias=False)
        self.bias = nn.Parameter(torch.zeros(4, hidden_width))
        self.hyper_from_x = nn.Linear(width, 4 * hyper_width)
        self.hyper_from_main = nn.Linear(hidden_width, 4 * hyper_width, bias=False)
        self.hyper_from_hidden = nn.Linear(hyper_width, 4 * hyper_width, bias=False)
        self.to_embedding = nn.Linear(hyper_width, 12 * embedding_width)
        self.scale = nn.Parameter(torch.empty(3, 4, embedding_width, hidden_width))
        self.update = LSTMUpdate(hidden_width, layer_norm, forget_bias)
        self.hyper_update = LSTMUpdate(hyper_width, layer_norm, forget_bias)
        self._start()

    def _start(self) -> None:
        for linear in (self.from_x, self.hyper_from_x, self.hyper_from_main):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.hyper_from_x.bias)
        with torch.no_grad():
            for linear in (self.from_hidden, self.hyper_from_hidden):
                for gate in linear.weight.chunk(4):
                    nn.init.orthogonal_(gate)
            weight = self.to_embedding.weight.unflatten(0, (3, -1))  # for hidden, x, bias
            bias = self.to_embedding.bias.unflatten(0, (3, -1))
            weight[:2], bias[:2] = 0.0, 1.0
            weight[2].normal_(std=0.01)
            bias[2] = 0.0
            self.scale[:2], self.scale[2] = 0.1 / self.embedding_width, 0.0

    def forward(
        self, x: Features, state: HyperState | None = None, *, weights: bool = False
    ) -> HyperOutput:
        """Run over a sequence.

        Args:
            x: (batch, step, width).
            state: of the call before, to go on from; zeros when None.
            weights: also return gates and factors of every step, and with them a trace.
        """
        check_features(self, "x", x, self.width, ("batch", "step"))
        state = self._begin(x) if state is None else self._checked(x, state)
        from_x = self.from_x(x).unflatten(-1, (4, -1))  # all steps at once
        hyper_from_x = self.hyper_from_x(x).unflatten(-1, (4, -1))
        outputs = [from_x[:, :0, 0]]
        steps: list[tuple[Tensor, ...]] = []
        for step in range(x.shape[1]):
            state, gates, scales = self._step(from_x[:, step], hyper_from_x[:, step], state)
            outputs.append(state.hidden[:, None])
            if weights:
                steps.append((gates, *scales))
        matrices = None
        if weights:
            empty = from_x.transpose(1, 2)[:, :, :0]  # (batch, 4, 0, unit)
            columns = list(zip(*steps)) if steps else [()] * len(KINDS)
            matrices = {
                name: torch.cat([empty[:, :3] if name == "gates" else empty, *_rows(column)], dim=2)
                for name, column in zip(KINDS, columns)
            }
        return HyperOutput(torch.cat(outputs, dim=1), state, matrices)

    def _step(
        self,
        from_x: Float[Tensor, "batch 4 hidden_width"],
        hyper_from_x: Float[Tensor, "batch 4 hyper_width"],
        state: HyperState,
    ) -> tuple[HyperState, Tensor, tuple[Tensor, ...]]:
        """One step of both: the state, the gates, and the factors and shifts they had."""
        hidden, cell, hyper_hidden, hyper_cell = state
        hyper_sums = self.hyper_from_main(hidden) + self.hyper_from_hidden(hyper_hidden)
        hyper_hidden, hyper_cell, _ = self.hyper_update(
            hyper_from_x + hyper_sums.unflatten(-1, (4, -1)), hyper_cell
        )
        embeddings = self.to_embedding(hyper_hidden).unflatten(-1, (12, -1)).transpose(0, 1)
        scales = torch.bmm(embeddings, self.scale.flatten(0, 1))  # (3 · 4, batch, unit)
        scales = scales.unflatten(0, (3, 4)).transpose(1, 2)  # (3, batch, 4, unit)
        of_hidden, of_x, shift = scales.unbind(0)
        from_hidden = self.from_hidden(hidden).unflatten(-1, (4, -1))
        sums = of_hidden * from_hidden + of_x * from_x + (shift + self.bias)
        hidden, cell, gates = self.update(sums, cell)
        return HyperState(hidden, cell, hyper_hidden, hyper_cell), gates, (of_hidden, of_x, shift)

    def _begin(self, x: Tensor) -> HyperState:
        main = x.new_zeros(x.shape[0], self.hidden_width)
        hyper = x.new_zeros(x.shape[0], self.hyper_width)
        return HyperState(main, main, hyper, hyper)

    def _checked(self, x: Tensor, state: HyperState) -> HyperState:
        if not isinstance(state, tuple) or len(state) != 4:
            raise StateError(
                f"HyperLSTM: state is {type(state).__name__}, expected a HyperState, the .state of "
                "the call before"
            )
        widths = (self.hidden_width, self.hidden_width, self.hyper_width, self.hyper_width)
        for name, tensor, width in zip(HyperState._fields, state, widths):
            if tensor.shape != (x.shape[0], width):
                raise ShapeError(
                    f"HyperLSTM: state: {name} has shape {tuple(tensor.shape)}, expected "
                    f"{(x.shape[0], width)}: batch, units"
                )
            if tensor.dtype != x.dtype and not autocasting(x.device):
                raise DtypeError(
                    f"HyperLSTM: state: {name} is {tensor.dtype}, expected {x.dtype} as x"
                )
        return HyperState(*state)

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        return (
            f"{self.width}, {self.hidden_width}, hyper_width={self.hyper_width}, "
            f"embedding_width={self.embedding_width}"
        )


class LSTMUpdate(nn.Module):
    """Gates, cell and hidden state of an LSTM from the sums of its gates, normalised or not.

    Ba, Kiros & Hinton 2016, "Layer normalization", with a norm for each gate by itself.
    """

    def __init__(self, width: int, layer_norm: bool, forget_bias: float) -> None:
        super().__init__()
        self.forget_bias, self.cell_norm = forget_bias, None
        self.register_parameter("gain", None)
        self.register_parameter("offset", None)
        if layer_norm:
            self.gain = nn.Parameter(torch.ones(4, width))
            self.offset = nn.Parameter(torch.zeros(4, width))
            self.cell_norm = nn.LayerNorm(width, eps=1e-3)  # the authors' epsilon

    def forward(
        self, sums: Float[Tensor, "batch 4 width"], cell: Float[Tensor, "batch width"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden state, cell, and the gates input, forget and output, (batch, 3, width)."""
        if self.gain is not None:
            sums = nn.functional.layer_norm(sums, sums.shape[-1:], eps=1e-3)
            sums = sums * self.gain + self.offset
        into, forget, candidate, out = sums.unbind(1)
        gates = torch.stack([into, forget + self.forget_bias, out], dim=1).sigmoid()
        input_gate, forget_gate, output_gate = gates.unbind(1)
        cell = forget_gate * cell + input_gate * candidate.tanh()
        readout = cell if self.cell_norm is None else self.cell_norm(cell)
        return output_gate * readout.tanh(), cell, gates


def _rows(steps: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """(batch, gate, unit) of each step, with an axis for the steps."""
    return tuple(step[:, :, None] for step in steps)
