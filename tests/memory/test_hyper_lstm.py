"""HyperLSTM: a loop over steps and gates from the paper, torch's LSTM, its start, its trace."""

import importlib.util
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.errors import DtypeError, RegardError, ShapeError, StateError, UnavailableError
from regard.memory import HyperLSTM, HyperState

SCRIPT = Path(__file__).parents[2] / "experiments" / "mechanisms" / "hyper_lstm.py"


def varied(lstm):
    """Parameters off their initial values, so that the hypernetwork has something to say."""
    for parameter in lstm.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    return lstm


def sigmoid(numbers):
    return 1 / (1 + (-numbers).exp())


def normalised(numbers, gain, offset):
    mean = numbers.mean()
    return gain * (numbers - mean) / ((numbers - mean).square().mean() + 1e-3).sqrt() + offset


def lstm_step(sums, cell, update):
    """i, f, g, o of one example; Ba et al. 2016 where there is a norm."""
    if update.gain is not None:
        sums = [normalised(sums[y], update.gain[y], update.offset[y]) for y in range(4)]
    i, f, g, o = sums
    cell = sigmoid(f + update.forget_bias) * cell + sigmoid(i) * g.tanh()
    norm = update.cell_norm
    shown = cell if norm is None else normalised(cell, norm.weight, norm.bias)
    return sigmoid(o) * shown.tanh(), cell


def by_loop(lstm, x):
    """Ha et al. 2016, appendix A.2.2, one example; every gate has matrices of its own."""
    units, hyper, width = lstm.hidden_width, lstm.hyper_width, lstm.embedding_width
    h, c = torch.zeros(2, units, dtype=x.dtype)
    hat_h, hat_c = torch.zeros(2, hyper, dtype=x.dtype)
    hat_matrix = torch.cat([lstm.hyper_from_main.weight, lstm.hyper_from_x.weight], dim=1)
    outputs = []
    for x_t in x:
        hat_x = torch.cat([h, x_t])
        hat_sums = []
        for y in range(4):
            rows = slice(y * hyper, (y + 1) * hyper)
            hat_sums.append(
                hat_matrix[rows] @ hat_x
                + lstm.hyper_from_hidden.weight[rows] @ hat_h
                + lstm.hyper_from_x.bias[rows]
            )
        hat_h, hat_c = lstm_step(hat_sums, hat_c, lstm.hyper_update)
        sums = []
        for y in range(4):
            d = []
            for source in range(3):  # hidden, x, bias
                start = (source * 4 + y) * width
                rows = slice(start, start + width)
                z = lstm.to_embedding.weight[rows] @ hat_h + lstm.to_embedding.bias[rows]
                d.append(lstm.scale[source, y].T @ z)
            rows = slice(y * units, (y + 1) * units)
            sums.append(
                d[0] * (lstm.from_hidden.weight[rows] @ h)
                + d[1] * (lstm.from_x.weight[rows] @ x_t)
                + d[2]
                + lstm.bias[y]
            )
        h, c = lstm_step(sums, c, lstm.update)
        outputs.append(h)
    return torch.stack(outputs), c


@torch.no_grad()
@pytest.mark.parametrize("layer_norm", [True, False])
def test_it_is_the_paper_s_recurrence(layer_norm):
    lstm = varied(HyperLSTM(3, 5, hyper_width=4, embedding_width=2, layer_norm=layer_norm)).double()
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    output, state = lstm(x)
    for example in range(2):
        hidden, cell = by_loop(lstm, x[example])
        torch.testing.assert_close(output[example], hidden)
        torch.testing.assert_close(state.cell[example], cell)
        torch.testing.assert_close(state.hidden[example], hidden[-1])


@torch.no_grad()
def test_with_constant_factors_it_is_torch_s_lstm():
    """Factors of 1 and no shift: the hypernetwork has no say."""
    lstm = HyperLSTM(3, 5, hyper_width=4, layer_norm=False, forget_bias=0.0)
    lstm.scale[:2], lstm.scale[2] = 1 / lstm.embedding_width, 0.0
    lstm.bias.normal_()
    theirs = nn.LSTM(3, 5, batch_first=True)
    theirs.weight_ih_l0.copy_(lstm.from_x.weight)
    theirs.weight_hh_l0.copy_(lstm.from_hidden.weight)
    theirs.bias_ih_l0.copy_(lstm.bias.flatten())
    theirs.bias_hh_l0.zero_()
    x = torch.randn(2, 7, 3)
    (output, state), (expected, (hidden, cell)) = lstm(x), theirs(x)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(state.hidden, hidden[0])
    torch.testing.assert_close(state.cell, cell[0])


@torch.no_grad()
def test_it_starts_with_factors_of_a_tenth():
    lstm = HyperLSTM(3, 5, hyper_width=4, embedding_width=8)
    weights = lstm(torch.randn(2, 6, 3), weights=True).weights
    for name in ("scale_hidden", "scale_x"):
        torch.testing.assert_close(weights[name], torch.full((2, 4, 6, 5), 0.1))
    assert not weights["shift"].any()
    for linear, units in ((lstm.from_hidden, 5), (lstm.hyper_from_hidden, 4)):
        for gate in linear.weight.chunk(4):
            torch.testing.assert_close(gate @ gate.T, torch.eye(units))


@torch.no_grad()
def test_gates_come_back_for_every_step():
    lstm, x = varied(HyperLSTM(3, 5, hyper_width=4)), torch.randn(2, 6, 3)
    answer = lstm(x, weights=True)
    assert [record.name for record in answer.trace] == ["gates", "scale_hidden", "scale_x", "shift"]
    gates, signed = answer.trace["gates"], answer.trace["scale_x"]
    assert (gates.kind, tuple(gates.shape)) == ("gate", (2, 3, 6, 5))
    assert (signed.kind, tuple(signed.shape)) == ("signed", (2, 4, 6, 5))
    assert torch.equal(gates.weights(), answer.weights["gates"])
    received = answer.trace.reduce(regard.ReceivedAttention())["gates"][0]
    torch.testing.assert_close(received, answer.weights["gates"].sum(2))
    # the gates explain the output: c_t = f c_{t-1} + i g, h_t = o tanh(LN(c_t))
    admit, keep, release = answer.weights["gates"].unbind(1)
    assert (answer.output.abs() <= release).all()
    step = lstm(x[:, :1], weights=True)
    later = lstm(x[:, 1:2], step.state, weights=True)
    torch.testing.assert_close(later.weights["gates"][:, 1, 0], keep[:, 1])
    candidate = (later.state.cell - keep[:, 1] * step.state.cell) / admit[:, 1]
    assert (candidate.abs() <= 1 + 1e-4).all()


def test_a_trace_has_to_be_asked_for():
    with pytest.raises(UnavailableError, match="no weights were kept; call it with weights=True"):
        HyperLSTM(3, 5)(torch.randn(1, 2, 3)).trace  # noqa: B018
    assert "output=(1, 2, 5) float32" in repr(HyperLSTM(3, 5)(torch.randn(1, 2, 3)))


def test_an_output_is_not_indexed():
    """`lstm(x)[0]` is a habit from `torch.nn.LSTM`, whose tuple it is not."""
    answer = HyperLSTM(3, 5)(torch.randn(1, 2, 3))
    text = "HyperOutput[0]: no tuple; write `lstm(x).output`, or `output, state = lstm(x)`"
    with pytest.raises(RegardError, match=re.escape(text)):
        answer[0]
    output, state = answer
    assert output is answer.output and state is answer.state


@pytest.mark.usefixtures("without_shape_checks")
def test_packed_sequences_are_refused():
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 4, 3), [4, 2], batch_first=True)
    text = (
        "HyperLSTM: x is a PackedSequence, expected a tensor (batch, step, width): "
        "x, lengths = torch.nn.utils.rnn.pad_packed_sequence(x, batch_first=True); steps behind "
        "the end of a sequence change no output before it"
    )
    with pytest.raises(ShapeError, match=re.escape(text)):
        HyperLSTM(3, 5)(packed)


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_states_are_named():
    lstm, x = HyperLSTM(3, 5, hyper_width=4), torch.randn(2, 6, 3)
    state = lstm(x).state
    for wrong, error, text in (
        ("zeros", StateError, "state is str, expected a HyperState, the .state of the call before"),
        (
            state._replace(cell=torch.zeros(2, 4)),
            ShapeError,
            "state: cell has shape (2, 4), expected (2, 5): batch, units",
        ),
        (
            HyperState(*(tensor[:1] for tensor in state)),
            ShapeError,
            "state: hidden has shape (1, 5), expected (2, 5)",
        ),
        (
            HyperState(*(tensor.double() for tensor in state)),
            DtypeError,
            "state: hidden is torch.float64, expected torch.float32 as x",
        ),
    ):
        with pytest.raises(error, match=re.escape(f"HyperLSTM: {text}")):
            lstm(x, wrong)
    with pytest.raises(RegardError, match="HyperLSTM: hyper_width=0, expected a whole number"):
        HyperLSTM(3, 5, hyper_width=0)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("hyper_lstm_characters", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_experiment_compares_equal_sizes(script):
    wanted = script.size(script.predictor("HyperLSTM", 100))
    for name in script.RECURRENT:
        assert abs(script.size(script.predictor(name, 100)) / wanted - 1) < 0.01
    assert script.predictor("HyperLSTM", 100).to_scores.in_features == script.HIDDEN


def test_the_experiment_has_the_layer_norm_of_a_hyper_lstm(script):
    """With all factors 1 and no shift a HyperLSTM is the LSTM with layer norm that is compared."""
    torch.manual_seed(0)
    hyper, normed = HyperLSTM(3, 5, hyper_width=4), script.NormedLSTM(3, 5)
    hyper.load_state_dict(normed.state_dict(), strict=False)
    with torch.no_grad():
        hyper.scale[:2] = 1 / hyper.embedding_width
    x = torch.randn(2, 6, 3)
    torch.testing.assert_close(normed(x)[0], hyper(x).output)
    _, state = normed(x[:, :2])
    torch.testing.assert_close(normed(x[:, 2:], state)[0], normed(x)[0][:, 2:])


def test_streams_are_consecutive(script):
    codes = torch.arange(40) % 5
    assert script.streams(codes, 3).tolist() == codes[:39].view(3, 13).tolist()


@pytest.mark.slow
def test_it_learns_characters(script):
    """After the experiment's 200 updates all predict far better than character frequencies do."""
    seen, held_out, symbols = script.corpus()
    counts = torch.bincount(seen, minlength=len(symbols)) + 1.0
    frequencies = -(counts / counts.sum()).log()[held_out].mean().item() / math.log(2)
    for name in script.RECURRENT:
        torch.manual_seed(0)
        model = script.predictor(name, len(symbols))
        script.train(model, seen, updates=200)
        assert script.bits(model, held_out) < frequencies - 1.4
