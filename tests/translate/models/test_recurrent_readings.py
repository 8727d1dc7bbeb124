"""The recurrent models against plain readings of their equations, and torch's own cells."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from translator_laws import LENGTHS, SOURCE, TARGET, model_of, same, sentences, targets

from regard.mechanisms import GeneralScore, LocalMonotonic, Luong
from regard.translate.models.attentions import LocalSourceAttention
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.cells import GRU, LSTM, Cell
from regard.translate.models.encoders import BidirectionalLayer

SIZES = {"embedding": 6, "hidden": 8, "dropout": 0.0}


def shaken(module: nn.Module) -> nn.Module:
    torch.manual_seed(5)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def copied(cell: Cell, into: nn.RNNBase, suffix: str = "") -> None:
    """Give torch's recurrent layer the parameters of a cell."""
    with torch.no_grad():
        for name, linear in (("ih", cell.from_input), ("hh", cell.from_state)):
            getattr(into, f"weight_{name}_l0{suffix}").copy_(linear.weight)
            getattr(into, f"bias_{name}_l0{suffix}").copy_(linear.bias)


@pytest.mark.parametrize(("kind", "theirs"), [(GRU, nn.GRU), (LSTM, nn.LSTM)])
def test_both_directions_are_torchs_packed_ones(kind, theirs):
    layer = shaken(BidirectionalLayer(kind(6, 8), kind(6, 8)))
    reference = theirs(6, 8, bidirectional=True, batch_first=True).double()
    copied(layer.forwards, reference)
    copied(layer.backwards, reference, "_reverse")
    inputs, (_, mask) = torch.randn(3, max(LENGTHS), 6, dtype=torch.float64), sentences()
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    outputs, last = reference(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    last = last[0] if isinstance(last, tuple) else last
    annotations, summary = layer(inputs, mask)
    same(annotations[mask], expected[mask])
    same(summary, torch.cat([last[0], last[1]], -1))


@pytest.mark.parametrize("kind", [GRU, LSTM])
def test_a_sentence_without_a_token_is_read_as_zeros(kind):
    layer = shaken(BidirectionalLayer(kind(6, 8), kind(6, 8)))
    mask = torch.tensor([[True, True], [False, False]])
    annotations, summary = layer(torch.randn(2, 2, 6, dtype=torch.float64), mask)
    assert annotations.isfinite().all() and (summary[1] == 0).all() and (summary[0] != 0).all()


def gru(cell: Cell, inputs: Tensor, state: Tensor) -> Tensor:
    """One step for one row, gate by gate."""
    reset_in, update_in, new_in = (cell.from_input.weight @ inputs + cell.from_input.bias).split(8)
    reset_own, update_own, new_own = (cell.from_state.weight @ state + cell.from_state.bias).split(
        8
    )
    reset, update = (reset_in + reset_own).sigmoid(), (update_in + update_own).sigmoid()
    new = (new_in + reset * new_own).tanh()
    return (1 - update) * new + update * state


def read(model, row: int, length: int) -> tuple[Tensor, Tensor]:
    """Annotations of one sentence alone, token by token, and the decoder's first state."""
    source, _ = sentences()
    embedded = model.embeddings.source.weight[source[row, :length]]
    layer = model.encoder.layers[0]
    there, back = [], []
    forward, backward = torch.zeros(2, 8, dtype=torch.float64)
    for place in range(length):
        forward = gru(layer.forwards, embedded[place], forward)
        backward = gru(layer.backwards, embedded[length - 1 - place], backward)
        there.append(forward)
        back.insert(0, backward)
    annotations = torch.cat([torch.stack(there), torch.stack(back)], -1)
    bridge = model.decoder.bridge.layers[0]
    first = bridge.weight @ torch.cat([forward, backward]) + bridge.bias
    return annotations, first.tanh()


def test_bahdanau_is_its_equations():
    model = model_of(lambda: build_model(ModelConfig("bahdanau", **SIZES), SOURCE, TARGET))
    decoder, additive = model.decoder, model.decoder.look.mechanism
    target = targets()
    decoded = model.decode(model.encode(*sentences()), target, weights=True)
    for row, length in enumerate(LENGTHS):
        annotations, state = read(model, row, length)
        for place, token in enumerate(target[row]):
            embedded = model.embeddings.target.weight[token]
            scores = torch.stack(
                [
                    additive.vector
                    @ (additive.to_query.weight @ state + additive.to_key.weight @ note).tanh()
                    for note in annotations
                ]
            )
            weights = scores.exp() / scores.exp().sum()
            context = sum(weight * note for weight, note in zip(weights, annotations))
            state = gru(decoder.cells.layers[0], torch.cat([embedded, context]), state)
            linear = decoder.readout.linear
            features = linear.weight @ torch.cat([state, embedded, context]) + linear.bias
            same(decoded.features[row, place], features.tanh())
            same(decoded.weights["cross"][row, 0, place, :length], weights)


@pytest.mark.parametrize("feeding", [False, True])
def test_luong_general_is_its_equations(feeding):
    config = ModelConfig("luong-general", input_feeding=feeding, **SIZES)
    model = model_of(lambda: build_model(config, SOURCE, TARGET))
    decoder, score = model.decoder, model.decoder.look.mechanism.score
    target = targets()
    decoded = model.decode(model.encode(*sentences()), target, weights=True)
    for row, length in enumerate(LENGTHS):
        annotations, state = read(model, row, length)
        fed = torch.zeros(8 if feeding else 0, dtype=torch.float64)
        for place, token in enumerate(target[row]):
            embedded = torch.cat([model.embeddings.target.weight[token], fed])
            state = gru(decoder.cells.layers[0], embedded, state)
            scores = torch.stack([state @ score.to_key.weight @ note for note in annotations])
            weights = scores.exp() / scores.exp().sum()
            context = sum(weight * note for weight, note in zip(weights, annotations))
            linear = decoder.readout.linear
            features = (linear.weight @ torch.cat([context, state]) + linear.bias).tanh()
            fed = features if feeding else fed
            same(decoded.features[row, place], features)
            same(decoded.weights["cross"][row, 0, place, :length], weights)


def test_tutorial_never_sees_the_keys():
    """Its weights are softmax(W [embedded; state]) over the true length, whatever stands there."""
    model = model_of(
        lambda: build_model(ModelConfig("tutorial", longest=15, **SIZES), SOURCE, TARGET)
    )
    source, mask = sentences()
    encoded = model.encode(source, mask)
    state, tokens = model.start(encoded), targets()[:, 0]
    weights = model.step(encoded, state, tokens, weights=True).weights["cross"]
    query = torch.cat([model.embeddings.target(tokens), state["cells"][0][0]], -1)
    scores = model.decoder.look.mechanism.score.to_scores(query)[:, : mask.shape[1]]
    same(weights[:, 0], scores.masked_fill(~mask, -torch.inf).softmax(-1))
    other = model.encode(source.flip(0).where(mask, 0), mask)
    same(model.step(other, state, tokens, weights=True).weights["cross"], weights)
    assert model.longest_source == 16


def test_local_m_is_the_mechanisms_window_until_the_source_ends():
    torch.manual_seed(0)
    score = shaken(GeneralScore(4, 5))
    look = LocalSourceAttention(Luong(score), 5, reach=2)
    query, keys = torch.randn(1, 12, 4).double(), torch.randn(1, 7, 5).double()
    mask, steps = torch.ones(1, 7, dtype=torch.bool), torch.arange(12)[None]
    weights = look(query, look.fix(keys, mask), mask, steps, weights=True).weights
    window = Luong(score, window=LocalMonotonic(2))(query, keys, weights=True).weights
    same(weights[:, :, :7], window[:, :, :7])
    assert (weights[:, :, 7:, :4] == 0).all()
    same(weights.sum(-1), torch.ones(1, 1, 12).double())


def test_reading_backwards_is_reading_the_reversed_sentence():
    sizes = {**SIZES, "bidirectional": False}
    config = ModelConfig("luong-general", reverse_source=True, **sizes)
    model = model_of(lambda: build_model(config, SOURCE, TARGET))
    plain = model_of(lambda: build_model(ModelConfig("luong-general", **sizes), SOURCE, TARGET))
    plain.load_state_dict(model.state_dict())
    source, mask = sentences()
    length = LENGTHS[2]
    reversed_ = source[2:, :length].flip(1)
    expected = plain.decode(plain.encode(reversed_, mask[2:, :length]), targets(1), weights=True)
    found = model.decode(model.encode(source[2:], mask[2:]), targets(1), weights=True)
    same(found.features, expected.features)
    same(found.weights["cross"][..., :length], expected.weights["cross"].flip(-1))
