"""Kendall's τ_b against counting pairs, and against figures of scipy.stats.kendalltau 1.17.1."""

import itertools
import math

import pytest
import torch

from regard import explain
from regard.explain import agreement


def counted(first, second):
    """(concordant − discordant) / √((pairs − ties of one) (pairs − ties of the other))."""
    concordant = discordant = ties_first = ties_second = pairs = 0
    for i, j in itertools.combinations(range(len(first)), 2):
        pairs += 1
        ties_first += first[i] == first[j]
        ties_second += second[i] == second[j]
        same = (first[i] - first[j]) * (second[i] - second[j])
        concordant += same > 0
        discordant += same < 0
    return (concordant - discordant) / math.sqrt((pairs - ties_first) * (pairs - ties_second))


@pytest.mark.parametrize(
    ("first", "second", "scipy"),
    [
        ([1, 2, 3, 4, 5], [3, 1, 2, 5, 4], 0.4),
        ([1, 1, 2, 3, 3, 3], [2, 1, 1, 4, 4, 5], 0.6689936080056726),
        ([0.1, 0.1, 0.1, 0.2], [4, 3, 2, 1], -0.7071067811865476),
        ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 8, 7], 0.9285714285714286),
    ],
)
def test_worked_values(first, second, scipy):
    got = float(explain.kendall(torch.tensor(first).double(), torch.tensor(second).double()))
    assert got == pytest.approx(scipy, abs=1e-12) == pytest.approx(counted(first, second))


@pytest.mark.parametrize("length", [2, 9, 300])
def test_many_at_once(length):
    generator = torch.Generator().manual_seed(length)
    values = torch.randint(0, 1 + length // 2, (4, length), generator=generator).double()
    values[:, 0], values[:, 1] = -1.0, -2.0  # none is the same everywhere
    got = agreement.pairwise(values)
    for i in range(4):
        for j in range(4):
            want = counted(values[i].tolist(), values[j].tolist())
            assert float(got[i, j]) == pytest.approx(want, abs=1e-8)


def test_no_order_has_no_agreement():
    assert explain.kendall(torch.zeros(4), torch.rand(4)).isnan()


def test_sizes_must_fit(without_shape_checks):
    with pytest.raises(ValueError, match=r"\(3,\) and \(4,\)"):
        explain.kendall(torch.rand(3), torch.rand(4))
