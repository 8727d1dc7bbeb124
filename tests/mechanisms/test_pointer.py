"""Pointer: equation 3 in loops, and sorting more numbers than it was trained with."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard import RegardError, masks
from regard.mechanisms import Additive, Pointer


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_is_the_paper() -> None:
    torch.manual_seed(0)
    attn = Pointer(4, 3, width=5).double()
    for parameter in attn.parameters():
        nn.init.normal_(parameter)
    decoder, encoder = normal(2, 3, 4), normal(2, 6, 3)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    attended = attn(decoder, encoder, mask=masks.padding(keep), weights=True)
    for b, i in ((b, i) for b in range(2) for i in range(3)):
        real = [j for j in range(6) if keep[b, j]]
        exps = {}
        for j in real:
            hidden = attn.to_key.weight @ encoder[b, j] + attn.to_query.weight @ decoder[b, i]
            exps[j] = math.exp(float(attn.vector.detach() @ hidden.detach().tanh()))
        for j in range(6):
            probability = exps[j] / sum(exps.values()) if j in real else 0.0
            assert attended.output[b, i, j].item() == pytest.approx(probability)
    torch.testing.assert_close(attended.output, attended.weights[:, 0], rtol=0, atol=0)
    logs = Pointer.log_probabilities(attended)
    torch.testing.assert_close(logs.exp(), attended.output)
    assert logs.requires_grad


def test_log_probabilities_do_not_underflow() -> None:
    attn = Pointer(1, 1, width=1)
    for parameter in attn.parameters():
        nn.init.constant_(parameter, 500.0)
    attended = attn(torch.zeros(1, 1, 1), torch.tensor([[[1.0], [-1.0]]]), weights=True)
    assert attended.output[0, 0].tolist() == [1.0, 0.0]
    logs = Pointer.log_probabilities(attended)
    assert logs[0, 0].tolist() == [0.0, -1000.0]
    logs[0, 0, 1].backward()
    assert attn.vector.grad.item() == -2.0  # the output's own gradient would be 0


def test_what_cannot_be_asked_says_so() -> None:
    attn, keys = Pointer(4, 3, width=5), torch.randn(1, 6, 3)
    query = torch.randn(1, 2, 4)
    with pytest.raises(RegardError, match="the recipe is None, expected that of a Pointer"):
        Pointer.log_probabilities(attn(query, keys))
    with pytest.raises(RegardError, match="Pointer: value was passed apart from the keys"):
        attn(query, keys, torch.randn(1, 6, 3))
    with pytest.raises(RegardError, match="state: key: axis width has size 7, expected 5"):
        attn(query, state=Pointer(4, 3, width=7).fix(keys))
    with pytest.raises(RegardError, match="state: value: axis width has size 3, expected 0"):
        attn(query, state=Additive(4, 3, width=5).fix(keys))


NUMBERS, START = 20, 20


def drawn(count: int, length: int) -> Tensor:
    """Different numbers below 20, (count, length)."""
    return torch.rand(count, NUMBERS).argsort(1)[:, :length]


def test_sorts_more_numbers_than_it_was_trained_with() -> None:
    """Points at the numbers in order, given the last one. Trained with 5, it sorts 15, which an
    output over 5 places cannot name. Seeds 0 to 2: all of 500 in order for 10 and 15 numbers."""
    torch.manual_seed(0)
    keys, queries = nn.Embedding(NUMBERS, 32), nn.Embedding(NUMBERS + 1, 32)
    attn = Pointer(32, 32, width=64)
    model = nn.ModuleList([keys, queries, attn])
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        numbers = drawn(64, 5)
        order = numbers.argsort(1)
        last = torch.cat([torch.full((64, 1), START), numbers.gather(1, order)[:, :-1]], 1)
        logs = Pointer.log_probabilities(attn(queries(last), keys(numbers), weights=True))
        loss = -logs.gather(2, order[..., None]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    numbers = drawn(500, 15)
    state, last, order = attn.fix(keys(numbers)), torch.full((500,), START), []
    for _ in range(15):
        order.append(attn(queries(last)[:, None], state=state).output[:, 0].argmax(-1))
        last = numbers.gather(1, order[-1][:, None])[:, 0]
    right = (torch.stack(order, 1) == numbers.argsort(1)).all(1)
    assert right.float().mean() > 0.98
