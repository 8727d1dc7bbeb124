"""HyperLSTM beside an LSTM of equal size, predicting the next character of real text.

The text is the reference manual that Python carries for `help()` (`pydoc_data.topics`, about half a
million characters), so its size depends on the version of Python. The last tenth is held out. Each
model has an embedding, one recurrent layer and a linear layer. Layer norm, which the paper's
HyperLSTM has and `torch.nn.LSTM` has not, helps by itself, so there are three models: torch's LSTM,
an LSTM with the very norm of the HyperLSTM, and the HyperLSTM. The widths of the first two are
chosen so that all parameters together are as many as those of the third. Ha, Dai & Le 2016 compare
them on Penn Treebank and enwik8, with 1000 units and more and long trainings; this is the same
comparison as small as it can be. Neither the learning rate nor the initial values were tuned for
any of the models.

    python experiments/mechanisms/hyper_lstm.py [--seeds 3] [--updates 200] [--picture FILE.png]

prints bits a character on the held-out text, and draws where the HyperLSTM changes its weights.
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics
import re
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.memory import HyperLSTM
from regard.memory.hyper_lstm import LSTMUpdate
from regard.plots import Heatmap

EMBEDDING, HIDDEN, HYPER = 32, 128, 32
BATCH, LENGTH = 32, 64


class Predictor(nn.Module):
    """Characters to scores of the next one; `recurrent` is called as `torch.nn.LSTM` is."""

    def __init__(self, symbols: int, recurrent: nn.Module, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, EMBEDDING)
        self.recurrent = recurrent
        self.to_scores = nn.Linear(hidden, symbols)

    def forward(self, characters: Tensor, state=None):
        output, state = self.recurrent(self.embedding(characters), state)
        return self.to_scores(output), state


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class NormedLSTM(nn.Module):
    """A HyperLSTM without its hypernetwork: an LSTM with the same layer norm, started alike."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.from_x = nn.Linear(width, 4 * hidden, bias=False)
        self.from_hidden = nn.Linear(hidden, 4 * hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(4, hidden))
        self.update = LSTMUpdate(hidden, layer_norm=True, forget_bias=1.0)
        nn.init.xavier_uniform_(self.from_x.weight)
        with torch.no_grad():
            for gate in self.from_hidden.weight.chunk(4):
                nn.init.orthogonal_(gate)

    def forward(self, x: Tensor, state=None):
        zeros = x.new_zeros(len(x), self.bias.shape[1])
        hidden, cell = (zeros, zeros) if state is None else state
        outputs = []
        for from_x in self.from_x(x).unbind(1):
            sums = (from_x + self.from_hidden(hidden)).unflatten(-1, (4, -1)) + self.bias
            hidden, cell, _ = self.update(sums, cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1), (hidden, cell)


def lstm(hidden: int) -> nn.Module:
    """torch's LSTM, its forget gates open at the start as those of the others."""
    recurrent = nn.LSTM(EMBEDDING, hidden, batch_first=True)
    with torch.no_grad():
        recurrent.bias_hh_l0[hidden : 2 * hidden] += 1.0
    return recurrent


RECURRENT = {
    "LSTM": lstm,
    "LSTM, layer norm": lambda hidden: NormedLSTM(EMBEDDING, hidden),
    "HyperLSTM": lambda hidden: HyperLSTM(EMBEDDING, hidden, hyper_width=HYPER),
}


def predictor(name: str, symbols: int) -> Predictor:
    """The model of this name with as many parameters as the HyperLSTM, as nearly as can be."""

    def parameters(name: str, hidden: int) -> int:
        with torch.device("meta"):  # sizes alone
            return size(Predictor(symbols, RECURRENT[name](hidden), hidden))

    wanted = parameters("HyperLSTM", HIDDEN)
    hidden = min(
        range(HIDDEN, 2 * HIDDEN), key=lambda hidden: abs(parameters(name, hidden) - wanted)
    )
    return Predictor(symbols, RECURRENT[name](hidden), hidden)


def corpus() -> tuple[Tensor, Tensor, list[str]]:
    """Characters to train on, characters held out, and the symbols they stand for."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    symbols = sorted(set(text))
    codes_of = {symbol: code for code, symbol in enumerate(symbols)}
    codes = torch.tensor([codes_of[symbol] for symbol in text])
    cut = len(codes) * 9 // 10
    return codes[:cut], codes[cut:], symbols


def streams(codes: Tensor, count: int) -> Tensor:
    """(stream, character): consecutive text in each row."""
    return codes[: len(codes) // count * count].unflatten(0, (count, -1))


def detached(state):
    return (
        type(state)(*map(Tensor.detach, state))
        if hasattr(state, "_fields")
        else tuple(map(Tensor.detach, state))
    )


def train(model: Predictor, codes: Tensor, updates: int) -> None:
    """Truncated backpropagation through consecutive pieces; the rate falls to 0 in a line."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / updates)
    rows, state, start = streams(codes, BATCH), None, 0
    for _ in range(updates):
        if start + LENGTH + 1 > rows.shape[1]:
            state, start = None, 0
        piece = rows[:, start : start + LENGTH + 1]
        scores, state = model(piece[:, :-1], state)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), piece[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        state, start = detached(state), start + LENGTH


@torch.no_grad()
def bits(model: Predictor, codes: Tensor) -> float:
    """Bits a character on text that the model has not seen."""
    rows = streams(codes, 64)
    scores, _ = model(rows[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
    return loss.item() / math.log(2)


@torch.no_grad()
def draw(model: Predictor, codes: Tensor, symbols: list[str], path: Path) -> None:
    """How much the factors of W_h h change at each character of a line, for each gate."""
    text = "".join(symbols[code] for code in codes.tolist())
    line = re.search(r"\n([A-Z][a-z]+ [a-z ,]{30,40}) ", text[1000:])
    assert line is not None, "the held-out text has no line of plain words"
    start, stop = line.start(1) + 1000, line.end(1) + 1000
    _, state = model(codes[None, start - 500 : start - 1])
    inputs = model.embedding(codes[None, start - 1 : stop])
    factors = model.recurrent(inputs, state, weights=True).weights["scale_hidden"][0]
    Heatmap(
        factors.diff(dim=1).abs().mean(-1),  # (gate, character)
        rows=["input", "forget", "candidate", "output"],
        columns=list(text[start:stop].replace(" ", "␣")),
        title="Where a HyperLSTM changes its weights",
        row_title="gate",
        column_title="character",
        value_title="mean change of the factors",
    ).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seen, held_out, symbols = corpus()
    print(
        f"{len(seen):,} characters to train on, {len(held_out):,} held out, {len(symbols)} "
        f"symbols, {options.updates} updates of {BATCH} × {LENGTH}"
    )
    for name in RECURRENT:
        results, start = [], time.process_time()
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            model = predictor(name, len(symbols))
            train(model, seen, options.updates)
            results.append(bits(model, held_out))
        spread = statistics.stdev(results) if len(results) > 1 else 0.0
        each = ", ".join(f"{result:.3f}" for result in results)
        print(
            f"{name:18} {model.to_scores.in_features} units  {size(model):,} parameters  "
            f"{statistics.mean(results):.3f} ± {spread:.3f} bits a character (seeds {each}), "
            f"{time.process_time() - start:.0f} s of processor",
            flush=True,
        )
    if options.picture is not None:
        draw(model, held_out, symbols, options.picture)


if __name__ == "__main__":
    main()
