"""The verdicts of `benchmarks/capture_packages.py` can tell right from wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.record import Note

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from capture_rivals.packages import measure, truth

X = (2, 5, 12)  # batch, length, features; three heads


class Attention(nn.Module):
    """Three heads, with a softmax of its own or fused."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.num_heads, self.fused = 3, fused
        self.qkv = nn.Linear(12, 36)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).view(*X[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = (query @ key.mT).softmax(-1) @ value
        return mixed.transpose(1, 2).flatten(2)


def captured(fused: bool = False) -> tuple[regard.Trace, list[Tensor]]:
    torch.manual_seed(0)
    model, x, calls = Attention(fused), torch.randn(X), []
    with torch.no_grad():
        with truth.recorded(calls):
            model(x)
        with regard.capture(model) as trace:
            model(x)
    return trace, [call.weights for call in calls]


@pytest.mark.parametrize("fused", [False, True])
def test_the_recorded_truth_is_what_capture_reads(fused: bool) -> None:
    trace, weights = captured(fused)
    assert measure.compared(trace, weights, "self") == (measure.EXACT, "")


def test_the_dense_weights_of_grouped_heads_and_a_mask_mix_values_as_the_operator_does() -> None:
    query, key = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 7, 4)
    value, mask = torch.randn(2, 3, 7, 4), torch.rand(5, 7) > 0.4
    calls: list[truth.Call] = []
    with truth.recorded(calls):
        mixed = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    torch.testing.assert_close(calls[0].weights @ value.repeat_interleave(2, 1), mixed)


def test_functions_are_restored() -> None:
    before = torch.softmax, F.softmax, torch.Tensor.softmax, F.scaled_dot_product_attention
    with pytest.raises(ValueError, match="inside"), truth.recorded([]):
        raise ValueError("inside")
    assert before == (
        torch.softmax,
        F.softmax,
        torch.Tensor.softmax,
        F.scaled_dot_product_attention,
    )
    assert "softmax" not in vars(torch.Tensor)


def test_another_order_of_axes_is_wrong() -> None:
    trace, (weights,) = captured()
    verdict, detail = measure.compared(trace, [weights.transpose(0, 1)], "self")
    assert verdict == measure.WRONG
    assert detail.startswith("axes: Attention (2, 3, 5, 5), expected (3, 2, 5, 5)")


def test_other_values_are_wrong() -> None:
    trace, (weights,) = captured()
    verdict, detail = measure.compared(trace, [weights.flip(-1).square()], "self")
    assert (verdict, detail[:6]) == (measure.WRONG, "values")


def test_nan_is_right_only_where_the_truth_is_nan() -> None:
    weights = torch.rand(1, 1, 2, 2)
    broken = weights.clone()
    broken[..., 0] = float("nan")
    assert not measure.close(broken, weights)
    assert measure.close(weights, broken)


def test_a_site_too_many_is_wrong() -> None:
    trace, _ = captured()
    verdict, detail = measure.compared(trace, [], None)
    assert (verdict, detail) == (measure.WRONG, "extra site Attention (2, 3, 5, 5)")


def test_a_site_too_few_is_missing_and_silence_is_told_from_a_note() -> None:
    trace, (weights,) = captured()
    sites = [weights, torch.rand(2, 3, 5, 8)]
    assert measure.compared(trace, sites, "self")[0] == measure.SILENT
    trace.notes.append(Note("unread", "there", "not read"))
    assert measure.compared(trace, sites, "self")[0] == measure.NOTED


def test_a_wrong_label_is_wrong_and_an_unknown_one_is_not() -> None:
    trace, weights = captured()
    verdict, detail = measure.compared(trace, weights, "cross")
    assert (verdict, detail) == (measure.WRONG, "label: Attention is cross, not self")
    unknown = trace.relabel({"Attention": "unknown"})
    assert measure.compared(unknown, weights, "cross")[0] == measure.EXACT


def test_the_reading_that_was_read_is_named() -> None:
    trace, (weights,) = captured()
    readings = {"full": torch.rand(2, 3, 10, 10), "windows": weights}
    assert measure.compared(trace, [readings], "self") == (measure.EXACT, "windows")


def test_gathered_keys_are_scattered_to_their_places() -> None:
    weights = torch.tensor([[[[0.25, 0.75], [0.5, 0.5]]]])
    full = truth.scattered(weights, torch.tensor([[2, 0], [1, -1]]), 3)
    assert full.tolist() == [[[[0.75, 0.0, 0.25], [0.0, 0.5, 0.0]]]]


def test_edges_become_a_dense_matrix_of_targets_and_sources() -> None:
    edges = torch.tensor([[0, 2], [1, 1]])  # 0 → 1, 2 → 1
    full = truth.dense(torch.tensor([0.25, 0.75]), edges, 3)
    assert full[0, 0].tolist() == [[0.0, 0.0, 0.0], [0.25, 0.0, 0.75], [0.0, 0.0, 0.0]]
