"""Additive attention: its equation in loops, its start, U·h once a sentence, the reversal toy."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import masks
from regard.mechanisms import Additive


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def drawn() -> Additive:
    """Queries of 6, keys of 4, hidden 5, and no parameter near the 0 it starts at."""
    attn = Additive(6, 4, width=5).double()
    for parameter in attn.parameters():
        nn.init.normal_(parameter)
    return attn


@torch.no_grad()
def reading(attn: Additive, state: Tensor, notes: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and contexts of one sentence: states (query, 6) against annotations (key, 4)."""
    wa, ua, va = attn.to_query.weight, attn.to_key.weight, attn.vector
    weights = torch.zeros(len(state), len(notes), dtype=torch.float64)
    contexts = torch.zeros(len(state), notes.shape[1], dtype=torch.float64)
    for i in range(len(state)):
        hidden = [torch.tanh(wa @ state[i] + ua @ note) for note in notes]  # without vₐ: vectors
        exps = [math.exp(sum(va[n] * h[n] for n in range(5))) for h in hidden]
        for j in range(len(notes)):
            weights[i, j] = exps[j] / sum(exps)
            contexts[i] += weights[i, j] * notes[j]
    return weights, contexts


@pytest.mark.parametrize("fixed", [False, True])
def test_the_equation_in_loops(fixed: bool) -> None:
    attn, states, notes, lengths = drawn(), normal(2, 3, 6), normal(2, 5, 4), [5, 3]
    mask = masks.lengths(torch.tensor(lengths), 5)
    if fixed:
        attended = attn(states, state=attn.fix(notes), mask=mask, weights=True)
    else:
        attended = attn(states, notes, mask=mask, weights=True)
    for b, length in enumerate(lengths):
        weights, contexts = reading(attn, states[b], notes[b, :length])
        torch.testing.assert_close(attended.weights[b, 0, :, :length], weights, rtol=0, atol=1e-12)
        torch.testing.assert_close(attended.output[b], contexts, rtol=0, atol=1e-12)
    assert not attended.weights[1, :, :, 3:].any()


@pytest.mark.parametrize("keys", [1, 3, 7, 10, 49])
def test_every_weight_is_one_over_the_length_at_the_start(keys: int) -> None:
    attn = Additive(16, 16, width=8)
    weights = attn(torch.randn(4, 6, 16), torch.randn(4, keys, 16), weights=True).weights
    assert torch.equal(weights, torch.full((4, 1, 6, keys), 1 / keys))  # a deviation of 0.0


def test_the_first_step_moves_the_vector_alone() -> None:
    attn, query, key = Additive(16, 16, width=8), torch.randn(4, 3, 16), torch.randn(4, 9, 16)
    target = torch.randn(4, 3, 16)

    def gradients() -> list[bool]:
        attn.zero_grad()
        (attn(query, key).output - target).square().sum().backward()
        return [bool(part.grad.any()) for part in (attn.to_query.weight, attn.to_key.weight)]

    assert gradients() == [False, False]
    assert attn.vector.grad.any()
    with torch.no_grad():
        attn.vector -= 0.1 * attn.vector.grad
    assert gradients() == [True, True]


def test_the_matrices_start_with_deviation_a_thousandth() -> None:
    attn = Additive(200, 300, width=250)
    for linear in (attn.to_query, attn.to_key):
        weight = linear.weight.detach()
        assert linear.bias is None
        assert float(weight.std()) == pytest.approx(0.001, rel=0.02)
        assert abs(float(weight.mean())) < 2e-5
        assert weight.abs().max() > 0.0035  # normal, not uniform
    assert attn.vector.shape == (250,) and not attn.vector.any()


def test_a_fixed_state_projects_the_annotations_once() -> None:
    attn, notes, calls = drawn(), normal(2, 5, 4), []
    handle = attn.to_key.register_forward_hook(lambda module, args, out: calls.append(args[0]))
    state = attn.fix(notes)
    for step in range(4):
        attended = attn(normal(2, 1, 6), state=state)
        state = attended.state
        assert state.step == step + 1
    assert len(calls) == 1
    attn(normal(2, 1, 6), notes)
    assert len(calls) == 2  # the hook does count
    handle.remove()


class Reverser(nn.Module):
    """A GRU encoder and decoder of 48; the decoder looks with its previous state, if at all."""

    def __init__(self, attn: Additive | None) -> None:
        super().__init__()
        context = 0 if attn is None else 96
        self.attn = attn
        self.source, self.target = nn.Embedding(10, 16), nn.Embedding(11, 16)
        self.encoder = nn.GRU(16, 48, bidirectional=True, batch_first=True)
        self.start = nn.Linear(48, 48)
        self.cell = nn.GRUCell(16 + context, 48)
        self.logits = nn.Linear(48 + context, 10)

    def forward(self, words: Tensor, taught: Tensor | None = None) -> Tensor:
        """Logits (batch, word, symbol), of the taught words or running free."""
        notes, last = self.encoder(self.source(words))
        hidden = self.start(last[1]).tanh()  # the backward state at the first word
        state = None if self.attn is None else self.attn.fix(notes)
        word, logits = torch.full((len(words),), 10), []
        for i in range(words.shape[1]):
            seen = []
            if self.attn is not None:
                seen = [self.attn(hidden[:, None], state=state).output[:, 0]]
            hidden = self.cell(torch.cat([self.target(word), *seen], -1), hidden)
            logits.append(self.logits(torch.cat([hidden, *seen], -1)))
            word = logits[-1].argmax(-1) if taught is None else taught[:, i]
        return torch.stack(logits, 1)


def free_running_accuracy(attn: Callable[[], Additive | None]) -> float:
    """At length 10, after 1200 steps of 64 sentences of 6 to 10 symbols."""
    model = Reverser(attn())
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(1200):
        words = torch.randint(10, (64, int(torch.randint(6, 11, ()))))
        wanted = words.flip(1)
        optimiser.zero_grad()
        F.cross_entropy(model(words, wanted).flatten(0, 1), wanted.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    words = torch.randint(10, (1000, 10))
    with torch.no_grad():
        return float((model(words).argmax(-1) == words.flip(1)).double().mean())


@pytest.mark.slow  # the translators' reversal toy says the same sooner
def test_a_decoder_with_attention_reverses_and_one_without_does_not() -> None:
    assert free_running_accuracy(lambda: Additive(48, 96, width=48)) >= 0.9
    assert free_running_accuracy(lambda: None) <= 0.7
