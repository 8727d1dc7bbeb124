"""Attention of our own over images keeps its grid when it is captured inside of a network."""

import pytest
import torch
from torch import nn

import regard
from regard import plots
from regard.vision import GeneralisedSpatial, OutputOnly

IMAGE = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))


def network(stride):
    torch.manual_seed(0)
    attention = GeneralisedSpatial(16, 4, stride=stride)
    return nn.Sequential(nn.Conv2d(3, 16, 1), attention, OutputOnly()).eval()


def captured(model, **options):
    with torch.no_grad(), regard.capture(model, **options) as trace:
        model(IMAGE[None])
    return trace


@pytest.mark.parametrize(("stride", "grid"), [(1, (6, 8)), (2, (3, 4))])
@pytest.mark.parametrize("path", ["full", "auto"])
def test_the_grid_of_the_keys(stride, grid, path, tmp_path):
    model = network(stride)
    for _ in range(2):  # the second pass on the cheaper path, where there is one
        record = captured(model, path=path)[0]
        with torch.no_grad():
            truth = model[1](model[0](IMAGE[None]), weights=True)
        assert record.recipe.grid == truth.recipe.grid == grid
        torch.testing.assert_close(record.weights(), truth.weights)
        overlay = plots.overlay(record, IMAGE, token=7)
        torch.testing.assert_close(overlay.values, truth.weights[0, :, 7].mean(0).view(grid))
    regard.Trace([record]).save(tmp_path / "trace.safetensors")
    assert regard.load_trace(tmp_path / "trace.safetensors")[0].recipe.grid == grid


def test_distances_of_a_captured_attention_are_lengths():
    model = network(1)
    (captured_distance,) = captured(model)[0].reduce(regard.Distance())
    with torch.no_grad():
        (truth,) = model[1](model[0](IMAGE[None]), reduce=[regard.Distance()]).reductions
    torch.testing.assert_close(captured_distance, truth)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_page_shows_it_over_the_image(stride, tmp_path):
    trace = captured(network(stride))
    assert trace.save(tmp_path / "page.html", image=IMAGE).stat().st_size > 1000
    assert trace.save(tmp_path / "bare.html").stat().st_size > 1000


def test_attention_without_a_grid_has_none():
    model = regard.mechanisms.MultiHead(16, 2)
    with torch.no_grad(), regard.capture(model) as trace:
        model(torch.randn(1, 5, 16))
    assert trace[0].recipe.grid is None
