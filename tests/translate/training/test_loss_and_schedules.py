"""The loss beside torch's, in plain loops; schedules at the points that define them."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from regard.translate.config import ForcingConfig, ScheduleConfig
from regard.translate.training import cross_entropy, forcing_at, rate_factor
from regard.translate.training.loss import last_cross_entropy


def plain(logits, target, smoothing):
    """Σ over places of -Σ_v q_v log p_v, in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for row, token in zip(logits.double(), target.tolist()):
        log_p = row - row.logsumexp(0)
        q = torch.full_like(row, smoothing / len(row))
        q[token] += 1 - smoothing
        total = total - (q * log_p).sum()
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_cross_entropy_is_the_plain_sum(smoothing, dtype):
    torch.manual_seed(0)
    logits = (5 * torch.randn(7, 11)).to(dtype).requires_grad_()
    target = torch.randint(0, 11, (7,))
    loss = cross_entropy(logits, target, smoothing)
    expected = plain(logits, target, smoothing)
    precise = 1e-12 if dtype == torch.float64 else 1e-5
    assert loss.item() == pytest.approx(expected.item(), rel=precise)
    (given,) = torch.autograd.grad(2.5 * loss, logits)
    (wanted,) = torch.autograd.grad(2.5 * expected, logits)
    assert given.dtype == dtype
    torch.testing.assert_close(given, wanted)


def test_cross_entropy_passes_gradcheck_and_agrees_with_torch():
    torch.manual_seed(1)
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, target, 0.2), (logits,))
    wanted = F.cross_entropy(logits, target, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(cross_entropy(logits, target, 0.2), wanted)


@pytest.mark.parametrize("size", [6, 300_000])  # many rows at once, and a row at a time
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_last_cross_entropy_is_cross_entropy_in_the_memory_of_the_logits(size, dtype):
    torch.manual_seed(2)
    inputs = torch.randn(3, size).to(dtype).requires_grad_()
    target = torch.tensor([0, 5, 2])
    wanted = cross_entropy(inputs, target, 0.2)
    (expected,) = torch.autograd.grad(3 * wanted, inputs)
    logits = inputs * 1
    loss = last_cross_entropy(logits, target, 0.2)
    torch.testing.assert_close(loss, wanted, rtol=0, atol=0)
    (given,) = torch.autograd.grad(3 * loss, inputs, retain_graph=True)
    torch.testing.assert_close(given, expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, inputs)


def test_cross_entropy_survives_large_logits_and_no_places():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([0]), 0.0)
    loss.backward()
    assert loss.item() == 0 and logits.grad.abs().max() == 0
    none = torch.zeros(0, 5, requires_grad=True)
    cross_entropy(none, torch.zeros(0, dtype=torch.long), 0.1).backward()
    assert none.grad.shape == (0, 5)


def test_smoothing_has_its_least_loss_at_the_smoothed_target():
    target = torch.tensor([1])
    best = torch.tensor([[0.1 / 4, 0.9 + 0.1 / 4, 0.1 / 4, 0.1 / 4]]).log().requires_grad_()
    cross_entropy(best, target, 0.1).backward()
    torch.testing.assert_close(best.grad, torch.zeros(1, 4), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["constant", "inverse-square-root", "linear", "cosine", "halving"])
def test_the_rate_warms_up_and_never_jumps_up(name):
    schedule = ScheduleConfig(name, warmup=10, floor=0.1)
    factors = [rate_factor(schedule, step, 100, step / 5) for step in range(130)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(factors[9:]))
    assert min(factors) > 0


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_decays_end_at_their_floor(name):
    schedule = ScheduleConfig(name, warmup=10, floor=0.1)
    assert rate_factor(schedule, 99, 100, 5) == pytest.approx(0.1)
    assert rate_factor(schedule, 54, 100, 5) == pytest.approx(0.55)
    assert rate_factor(schedule, 500, 100, 5) == pytest.approx(0.1)


def test_inverse_square_root_is_vaswanis():
    schedule = ScheduleConfig("inverse-square-root", warmup=40)
    for now in (1, 39, 40, 41, 1000):
        expected = min(now**-0.5, now * 40**-1.5) * 40**0.5
        assert rate_factor(schedule, now - 1, 0, 1) == pytest.approx(expected)


def test_luongs_halving():
    """Rate 1 for five epochs, then halved every epoch (Luong et al., 2015, section 4.1)."""
    schedule = ScheduleConfig("halving", halve_after=5.0, halve_every=1.0)
    found = [rate_factor(schedule, step, 1000, step / 10) for step in range(80)]
    expected = [0.5 ** max(0, step // 10 - 4) for step in range(80)]
    assert found == expected


def test_forcing_goes_from_start_to_end():
    for name in ("linear", "exponential", "inverse-sigmoid"):
        config = ForcingConfig(name, start=0.9, end=0.2, steps=1000)
        found = [forcing_at(config, step) for step in range(0, 3000, 10)]
        assert found[0] == pytest.approx(0.9, abs=0.01)
        assert found[-1] == pytest.approx(0.2, abs=0.01)
        assert all(later <= earlier for earlier, later in pairwise(found))
    assert forcing_at(ForcingConfig("constant", start=0.5), 10**6) == 0.5


def test_inverse_sigmoid_is_bengios():
    config = ForcingConfig("inverse-sigmoid", start=1.0, end=0.0, steps=1000)
    assert forcing_at(config, 500) == pytest.approx(0.5)
    k = 1 / (1 / forcing_at(config, 0) - 1)  # k / (k + 1) at step 0
    assert forcing_at(config, 300) == pytest.approx(k / (k + math.exp(300 / k)))
    assert forcing_at(config, 10**9) == 0
