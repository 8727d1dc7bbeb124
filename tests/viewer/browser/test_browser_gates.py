"""Gates in a real browser: over the picture by their own grids; channels as a matrix."""

import pytest
from playwright.sync_api import expect
from viewer_traces import gated


@pytest.fixture(scope="module")
def gated_trace():
    return gated()


@pytest.mark.parametrize(("part", "site", "rows", "columns"), [(1, 1, 6, 8), (2, 3, 3, 4)])
def test_a_gate_lies_over_the_picture_by_its_own_grid(
    open_page, gated_trace, part, site, rows, columns
):
    record = gated_trace.trace[site]
    assert record.recipe.grid == (rows, columns)
    looking = open_page(gated_trace, f"view=image&part={part}&layer=0&head=0")
    expect(looking.page.locator(".image-title")).to_have_text("gate")
    expect(looking.page.locator(".image-chips")).to_be_hidden()
    box = looking.by("image-canvas").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(16 / 12, abs=0.02)
    row, column = 1, columns - 1
    looking.hover_patch(row, column, rows, columns)
    expect(looking.by("tooltip")).to_contain_text(f"row {row + 1}, column {column + 1}")
    value = float(record.weights()[0, 0, 0, row * columns + column])
    assert float(looking.hovered_weight()) == pytest.approx(value, abs=1e-6)


def test_channels_are_not_over_the_picture(open_page, gated_trace):
    looking = open_page(gated_trace, "view=image&part=0&layer=0&head=0")
    expect(looking.by("image-canvas")).to_be_hidden()
    expect(looking.page.get_by_text("Neither side of this attention")).to_be_visible()
    looking.view("matrix")
    assert looking.errors == []
