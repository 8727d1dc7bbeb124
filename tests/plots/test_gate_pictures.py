"""Gates and attention over the positions of an image: drawn over it, or channel by channel."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import regard
from regard import plots
from regard.contract import Attended
from regard.errors import RegardError, ShapeError
from regard.recipe import Edges, Given
from regard.vision import Axial, GeneralisedSpatial, LocalSelfAttention, ShiftedWindow

ROWS, COLUMNS, CHANNELS = 3, 5, 4
IMAGE = torch.rand(3, 30, 50, generator=torch.Generator().manual_seed(0))


class Gated(nn.Module):
    """Channels, then positions."""

    def __init__(self):
        super().__init__()
        self.conv, self.mix = nn.Conv2d(3, CHANNELS, 1), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        x = self.conv(x)
        x = x * self.mix(x.mean((2, 3))).sigmoid()[..., None, None]
        return x * x.mean(1, keepdim=True).sigmoid()


@pytest.fixture
def trace():
    torch.manual_seed(0)
    model = Gated()
    with torch.no_grad(), regard.capture(model, gates=True) as trace:
        model(torch.randn(2, 3, ROWS, COLUMNS))
    return trace


def test_a_gate_of_positions_is_shown_as_it_is(trace, tmp_path):
    spec = plots.overlay(trace[1], IMAGE, example=1)
    assert torch.equal(spec.values, trace[1].weights()[1, 0, 0].view(ROWS, COLUMNS))
    assert spec.title == "Gated#2" and spec.marked is None and spec.image.shape == (30, 50, 3)
    assert spec.save(tmp_path / "gate.png").stat().st_size > 1000


def test_of_a_trace_its_one_gate_of_positions(trace):
    spec = trace.plot("overlay", image=IMAGE)
    assert torch.equal(spec.values, plots.overlay(trace[1], IMAGE).values)
    twice = regard.Trace([*trace, trace[1]])
    with pytest.raises(RegardError, match=r"2 gates of positions \(Gated#2, Gated#2\): take one"):
        plots.overlay(twice, IMAGE)
    with pytest.raises(RegardError, match="no gate of positions"):
        plots.overlay(trace[:1], IMAGE)


def test_channels_have_no_place_in_an_image(trace):
    with pytest.raises(RegardError, match=r"Gated is a gate of channels.*channels\(\) draws it"):
        plots.overlay(trace[0], IMAGE)
    with pytest.raises(ShapeError, match="5 × 5 patches, but the gate has 15 positions"):
        plots.overlay(trace[1], IMAGE, patches=(5, 5))


def test_a_gate_of_channels_as_lines(trace, tmp_path):
    for attention in (trace[0], trace):
        spec = plots.channels(attention)
        assert torch.equal(spec.values, trace[0].weights()[:, 0, 0])
        assert spec.lines == ["example 0", "example 1"] and spec.place_title == "channel"
    assert spec.save(tmp_path / "channels.png").stat().st_size > 1000
    assert trace.plot("channels").title == "Gated"
    with pytest.raises(RegardError, match=r"expected a gate of channels.*overlay\(\)"):
        plots.channels(trace[1])


def local_attention():
    """Each position looks at itself and at the one to its right, in its row."""
    places = torch.arange(ROWS * COLUMNS)
    right = torch.where(places % COLUMNS < COLUMNS - 1, places + 1, places)
    weights = torch.rand(1, 2, 2 * len(places), generator=torch.Generator().manual_seed(0))
    edges = Edges.between(
        places.repeat(2),
        torch.cat([places, right]),
        weights / 2,
        queries=len(places),
        keys=len(places),
        of="partial",
    )
    return replace(edges, grid=(ROWS, COLUMNS))


def test_local_attention_knows_its_grid(tmp_path):
    recipe = local_attention()
    attended = Attended(torch.zeros(1), recipe=recipe)
    spec = plots.overlay(attended, IMAGE, token=7)
    assert torch.allclose(spec.values.flatten(), recipe.weights()[0, :, 7].mean(0))
    assert spec.marked == (1, 2) and spec.values.count_nonzero() == 2
    assert spec.save(tmp_path / "local.png").stat().st_size > 1000


def test_patches_and_ways_that_are_named_come_first():
    weights = torch.rand(1, 1, 12, 12).softmax(-1)
    recipe = Given(weights, grid=(3, 4))
    assert plots.overlay([recipe], IMAGE, patches=(4, 3)).values.shape == (4, 3)
    rollout = plots.overlay([recipe], IMAGE, how="rollout")
    assert torch.equal(rollout.values.flatten(), regard.rollout(weights, 0)[0])
    assert not torch.equal(rollout.values, plots.overlay([recipe], IMAGE).values)


def test_an_attended_without_a_recipe():
    with pytest.raises(RegardError, match="holds no recipe: ask with weights=True"):
        plots.overlay(Attended(torch.zeros(1)), IMAGE)


@pytest.mark.parametrize(
    "module",
    [
        GeneralisedSpatial(8, 2),
        GeneralisedSpatial(8, 2, stride=2),
        LocalSelfAttention(8, 2),
        Axial(8, 2, axis="row"),
        ShiftedWindow(8, 2, window=2),
    ],
    ids=lambda module: f"{type(module).__name__}-{getattr(module, 'stride', 1)}",
)
def test_every_attention_of_an_image_knows_its_grid(module):
    attended = module(torch.randn(1, 8, 4, 6), weights=True)
    overlay = plots.overlay(attended, torch.rand(4, 6, 3), token=7)
    grid = attended.recipe.grid
    assert overlay.title == "mean to position 7" and tuple(overlay.values.shape) == grid
    torch.testing.assert_close(overlay.values, attended.weights[0, :, 7].mean(0).view(grid))


@pytest.mark.parametrize("shape", [(1, 30, 50), (30, 50, 1)])
def test_a_grey_image_has_three_equal_colours(trace, shape, tmp_path):
    grey = torch.rand(30, 50)
    spec = plots.overlay(trace[1], grey.view(shape))
    assert torch.equal(spec.image, torch.stack([grey] * 3, -1))
    assert spec.save(tmp_path / "grey.png").stat().st_size > 1000


def test_a_narrow_image_of_three_colours_stays_one(trace):
    assert plots.overlay(trace[1], torch.rand(3, 30, 1)).image.shape == (30, 1, 3)
