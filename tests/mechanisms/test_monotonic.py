"""Monotonic attention: expected and hard alignments in loops, and speech that arrives in time."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard import RegardError, masks
from regard.mechanisms import Monotonic
from regard.mechanisms.monotonic import arrivals


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def attention(noise: float = 1.0) -> Monotonic:
    torch.manual_seed(1)
    attn = Monotonic(4, 3, width=5, noise=noise).double()
    for parameter in attn.parameters():
        nn.init.normal_(parameter)
    nn.init.constant_(attn.gain, 3.0)
    nn.init.constant_(attn.offset, -0.3)
    return attn


@torch.no_grad()
def energies(attn: Monotonic, queries: Tensor, keys: Tensor) -> list[list[float]]:
    vector = attn.vector / sum(number**2 for number in attn.vector).sqrt()
    rows = []
    for query in queries:
        hidden = [
            attn.to_query.weight @ query + attn.to_query.bias + attn.to_key.weight @ key
            for key in keys
        ]
        rows.append([float(attn.gain * (vector @ sums.tanh()) + attn.offset) for sums in hidden])
    return rows


def expected_alignment(chances: list[list[float]]) -> Tensor:
    """α_ij = p_ij Σ_{k ≤ j} α_{i−1,k} Π_{l=k}^{j−1} (1 − p_il), from α_0 = (1, 0, 0, …)."""
    before, rows = [1.0] + [0.0] * (len(chances[0]) - 1), []
    for p in chances:
        row = []
        for j in range(len(p)):
            total = 0.0
            for k in range(j + 1):
                total += before[k] * math.prod(1 - p[m] for m in range(k, j))
            row.append(p[j] * total)
        rows.append(row)
        before = row
    return torch.tensor(rows, dtype=torch.float64)


def hard_alignment(energy: list[list[float]]) -> Tensor:
    """The first key from the last one on whose energy is above 0; nothing once there is none."""
    rows = torch.zeros(len(energy), len(energy[0]), dtype=torch.float64)
    position = 0
    for i, row in enumerate(energy):
        while position < len(row) and row[position] <= 0:
            position += 1
        if position < len(row):
            rows[i, position] = 1.0
    return rows


@pytest.mark.parametrize("training", [True, False])
def test_is_the_paper(training: bool) -> None:
    attn = attention(noise=0.0).train(training)
    queries, keys = normal(3, 6, 4), normal(3, 7, 3)
    keep = torch.tensor([[True] * 7, [True] * 7, [True] * 4 + [False] * 3])
    attended = attn(queries, keys, mask=masks.padding(keep), weights=True)
    for b, real in enumerate((7, 7, 4)):
        energy = energies(attn, queries[b], keys[b, :real])
        want = hard_alignment(energy)
        if training:
            want = expected_alignment([[1 / (1 + math.exp(-e)) for e in row] for row in energy])
        torch.testing.assert_close(attended.weights[b, 0, :, :real], want)
        torch.testing.assert_close(attended.output[b], want @ keys[b, :real])
    assert attended.weights.sum(-1).max() <= 1 + 1e-12


def test_the_hard_alignment_is_a_sample_of_the_expected_one() -> None:
    """20 000 readings, each key stopped at with its probability, against α."""
    torch.manual_seed(0)
    p = torch.rand(4, 6)
    alignment = expected_alignment(p.tolist())
    counts, position = torch.zeros(4, 6), torch.zeros(20000, dtype=torch.long)
    for i in range(4):
        stops = torch.rand(20000, 6) < p[i]
        stops &= torch.arange(6) >= position[:, None]
        position = torch.where(stops.any(1), stops.int().argmax(1), 6)
        counts[i] = nn.functional.one_hot(position, 7)[:, :6].float().mean(0)
    assert (counts - alignment).abs().max() < 0.02  # five deviations of 20 000 draws


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_parallel_form_survives_sure_stops(dtype: torch.dtype, tolerance: float) -> None:
    """Fifty keys with p = 1 − e⁻⁶⁰: Π (1 − p) underflows, and dividing by it gives NaN."""
    torch.manual_seed(0)
    energy = torch.randn(2, 130, dtype=dtype) - 2
    energy[:, 20:70] = 60.0
    start = torch.zeros(2, 130, dtype=dtype)
    start[0, 0], start[1, [3, 30, 75]] = 1.0, torch.tensor([0.25, 0.25, 0.5], dtype=dtype)
    energy.requires_grad_()
    go_on = (-energy).sigmoid()
    reached = arrivals(start, go_on)
    rows, here = [], torch.zeros(2, dtype=dtype)
    for j in range(130):
        here = start[:, j] + (here * go_on[:, j - 1] if j else 0.0)
        rows.append(here)
    assert (reached - torch.stack(rows, 1)).abs().max() < tolerance
    dividing = go_on.cumprod(1) * (start / go_on.cumprod(1)).cumsum(1)
    assert not dividing.isfinite().all()
    (energy.sigmoid() * reached).square().sum().backward()
    assert energy.grad.isfinite().all()


def test_noise_is_drawn_in_training_alone() -> None:
    attn, queries, keys = attention(), normal(1, 3, 4), normal(1, 7, 3)
    attn.train()
    first, second = (attn(queries, keys, weights=True).weights for _ in range(2))
    assert not torch.allclose(first, second)
    attn.eval()
    first, second = (attn(queries, keys, weights=True).weights for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("training", [True, False])
def test_a_reading_waits_for_keys_that_come_later(training: bool) -> None:
    """Keys in two parts: what ran off the first goes on with the second."""
    attn = attention(noise=0.0).train(training)
    queries, keys = normal(8, 4, 4), normal(8, 8, 3)
    start = attn(queries[:, :2], keys[:, :3], state=True, weights=True)
    later = attn(queries[:, 2:], keys[:, 3:], state=start.state, weights=True)
    early = torch.ones(1, 1, 4, 8, dtype=torch.bool)
    early[:, :, :2, 3:] = False  # the first two queries cannot see the second part
    full = attn(queries, keys, mask=early, weights=True)
    torch.testing.assert_close(start.weights, full.weights[:, :, :2, :3])
    torch.testing.assert_close(later.weights, full.weights[:, :, 2:])
    assert full.weights[:, :, 2:, 3:].any()


def test_autocast_keeps_the_alignment() -> None:
    """Energies are compared with 0 in float32, whatever autocast makes of the projections."""
    attn = attention().float().eval()
    queries, keys = torch.randn(1, 3, 4), torch.randn(1, 7, 3)
    with torch.autocast("cpu", torch.bfloat16):
        attended = attn(queries, keys, weights=True)
    assert attended.weights.dtype == torch.float32
    assert torch.equal(attended.weights, attn(queries, keys, weights=True).weights)


@pytest.mark.compiled
def test_compiles_in_training() -> None:
    attn = attention(noise=0.0).train()
    queries, keys = normal(2, 3, 4), normal(2, 7, 3)
    torch.compiler.reset()
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(queries, keys).output, attn(queries, keys).output)


def test_a_negative_noise_is_refused() -> None:
    with pytest.raises(RegardError, match=r"noise=-1\.0, expected a deviation of at least 0"):
        Monotonic(4, 3, width=5, noise=-1.0)


SYMBOLS, SEGMENTS, LONGEST = 6, 4, 3


def speech(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frames of four symbols, each held for one to three frames, with the parity of its segment;
    which frames are real; the symbols; the frame at which each begins."""
    lengths = torch.randint(1, LONGEST + 1, (count, SEGMENTS))
    begins = lengths.cumsum(1) - lengths
    symbols = torch.randint(SYMBOLS, (count, SEGMENTS))
    time = torch.arange(SEGMENTS * LONGEST)
    segment = (time[:, None] >= begins[:, None]).sum(-1) - 1  # (count, frame)
    features = [
        nn.functional.one_hot(symbols.gather(1, segment), SYMBOLS),
        nn.functional.one_hot(segment % 2, 2),
    ]
    return torch.cat(features, -1).float(), time < lengths.sum(1, keepdim=True), symbols, begins


def test_learns_to_align_online() -> None:
    """The soft alignment is trained by the symbols alone; the hard one then stops at the first
    frame of every segment. Seeds 0 to 2: symbols and frames all right."""
    torch.manual_seed(0)
    attn, to_symbol = Monotonic(2, SYMBOLS + 2, width=16), nn.Linear(SYMBOLS + 2, SYMBOLS)
    steps = nn.functional.one_hot(torch.arange(SEGMENTS) % 2, 2).float()
    optimiser = torch.optim.Adam([*attn.parameters(), *to_symbol.parameters()], lr=1e-2)
    for _ in range(250):
        frames, real, symbols, _ = speech(32)
        output = attn(steps.expand(32, -1, -1), frames, mask=masks.padding(real)).output
        loss = nn.functional.cross_entropy(to_symbol(output).mT, symbols)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    attn.eval()
    frames, real, symbols, begins = speech(300)
    with torch.no_grad():
        attended = attn(steps.expand(300, -1, -1), frames, mask=masks.padding(real), weights=True)
    assert (to_symbol(attended.output).argmax(-1) == symbols).float().mean() > 0.98
    assert (attended.weights[:, 0].argmax(-1) == begins).float().mean() > 0.95
    # Online: the third symbol needs no frame behind the one it stops at.
    heard = int(begins[0, 2]) + 1
    part = attn(steps[None, :3], frames[:1, :heard]).output
    torch.testing.assert_close(part, attended.output[:1, :3])
