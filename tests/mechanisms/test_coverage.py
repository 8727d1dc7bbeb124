"""Coverage: equations 10 to 13 in loops, its state, and fewer repetitions."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import ShapeError
from regard.mechanisms import Coverage, coverage_loss


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def attention() -> Coverage:
    torch.manual_seed(0)
    attn = Coverage(4, 3, width=5).double()
    for parameter in attn.parameters():
        nn.init.normal_(parameter)
    return attn.eval()


@torch.no_grad()
def in_loops(attn: Coverage, queries: Tensor, keys: Tensor) -> tuple[Tensor, list[float]]:
    """Weights (query, key) and the loss of every query, for one sentence."""
    covered = [0.0] * len(keys)
    rows, losses = [], []
    for query in queries:
        exps = []
        for key, c in zip(keys, covered):
            hidden = attn.to_key.weight @ key + attn.to_query.weight @ query + attn.to_query.bias
            exps.append(math.exp(attn.vector @ (hidden + c * attn.to_coverage).tanh()))
        row = [e / sum(exps) for e in exps]
        losses.append(sum(min(a, c) for a, c in zip(row, covered)))
        covered = [a + c for a, c in zip(row, covered)]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64), losses


def test_is_the_paper() -> None:
    attn = attention()
    queries, keys = normal(2, 5, 4), normal(2, 6, 3)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    attended = attn(queries, keys, mask=masks.padding(keep), weights=True)
    losses = coverage_loss(attended.weights)
    for b, real in enumerate((6, 4)):
        weights, loss = in_loops(attn, queries[b], keys[b, :real])
        torch.testing.assert_close(attended.weights[b, 0, :, :real], weights)
        torch.testing.assert_close(attended.output[b], weights @ keys[b, :real])
        assert losses[b, 0].tolist() == pytest.approx(loss)
    assert not attended.weights[1, ..., 4:].any()


def test_state_goes_on_where_the_last_call_stopped() -> None:
    attn = attention()
    queries, keys = normal(2, 5, 4), normal(2, 6, 3)
    full = attn(queries, keys, weights=True)
    first = attn(queries[:, :2], state=attn.fix(keys), weights=True)
    second = attn(queries[:, 2:], state=first.state, weights=True)
    torch.testing.assert_close(torch.cat([first.weights, second.weights], 2), full.weights)
    # The old state is as it was: a beam may go on from it again.
    again = attn(queries[:, 2:], state=first.state, weights=True)
    torch.testing.assert_close(again.weights, second.weights, rtol=0, atol=0)


def test_half_precision_keeps_small_additions() -> None:
    """400 even weights for 500 queries: bfloat16 alone would stop adding 1/400 near 1/2."""
    attn = Coverage(4, 3, width=5).to(torch.bfloat16).eval()
    nn.init.zeros_(attn.vector)
    state = attn.fix(torch.randn(1, 400, 3, dtype=torch.bfloat16))
    for _ in range(500):
        state = attn(torch.zeros(1, 1, 4, dtype=torch.bfloat16), state=state).state
    covered = state.key[..., -2:].float().sum(-1)
    torch.testing.assert_close(covered, torch.full((1, 1, 400), 500 / 400), rtol=0.01, atol=0)


def test_starts_as_additive_attention_and_coverage_learns() -> None:
    torch.manual_seed(0)
    attn, query = Coverage(4, 3, width=5), torch.randn(1, 1, 4).expand(1, 3, 4)
    weights = attn(query, torch.randn(1, 6, 3), weights=True).weights
    torch.testing.assert_close(weights[:, :, 0], weights[:, :, 2])  # nothing is remembered yet
    weights.square().sum().backward()
    assert attn.to_coverage.grad.any()


def test_loss_counts_what_is_read_again() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])[None, None]
    assert coverage_loss(rows)[0, 0].tolist() == [0.0, 0.0, 1.0]
    assert coverage_loss(rows[:, :, :0]).shape == (1, 1, 0)


def test_another_modules_state_is_refused() -> None:
    state = Coverage(4, 3, width=7).fix(torch.randn(1, 6, 3))
    with pytest.raises(ShapeError, match="state: key: axis width has size 9, expected 7"):
        Coverage(4, 3, width=5)(torch.randn(1, 2, 4), state=state)


@pytest.mark.parametrize(("coverage", "low", "high"), [(True, 0.0, 0.2), (False, 0.8, 0.9)])
def test_repetition_falls(coverage: bool, low: float, high: float) -> None:
    """Six keys are to be read in falling order of a feature, by queries that are all alike: only
    the coverage can say what was read. Share of reads that repeat one, seeds 0 to 2: 0.06 to 0.09
    with coverage, 5/6 without."""
    torch.manual_seed(0)
    attn, query = Coverage(4, 8, width=16), nn.Parameter(torch.randn(4))
    attn.to_coverage.requires_grad_(coverage)
    trained = [parameter for parameter in attn.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam([*trained, query], lr=2e-2)

    def read(count: int) -> tuple[Tensor, Tensor]:
        keys = torch.randn(count, 6, 8)
        weights = attn(query.expand(count, 6, 4), keys, weights=True).weights
        return weights[:, 0], keys[..., 0].argsort(1, descending=True)

    for _ in range(300):
        weights, order = read(32)
        loss = -weights.gather(2, order[..., None]).log().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        choices = read(300)[0].argmax(-1)
    different = sum(len(set(row)) for row in choices.tolist()) / choices.numel()
    assert low <= 1 - different <= high
