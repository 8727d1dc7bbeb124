"""Attention in windows, laid over the image at its places."""

import pytest
import torch

import regard
from regard import plots
from regard.cli import packaged
from regard.errors import RegardError, ShapeError

IMAGE = torch.rand(3, 60, 80)


def by_hand(weights, windows, size, patches, shift, first, looks):
    """What each patch receives, one patch after the other: `looks` says who is asked."""
    (down, across), (height, width) = windows, size
    rows, columns = patches

    def where(row, column):
        """Window and place in it of a patch."""
        row, column = (row - shift) % (down * height), (column - shift) % (across * width)
        window = (row // height) * across + column // width
        return window, (row % height) * width + column % width

    values = torch.zeros(rows, columns, dtype=torch.float64)
    asking: dict[int, list[int]] = {}
    for row in range(rows):
        for column in range(columns):
            if looks(row, column):
                window, place = where(row, column)
                asking.setdefault(window, []).append(place)
    for row in range(rows):
        for column in range(columns):
            window, place = where(row, column)
            for query in asking.get(window, []):
                share = weights[first + window, :, query, place].mean() / len(asking[window])
                values[row, column] += share
    return values


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("token", [None, 0, 13, -1])
@pytest.mark.parametrize("patches", [None, (5, 7)])
def test_every_window_lies_at_its_place(shift, token, patches):
    torch.manual_seed(0)
    windows, size = (2, 3), (3, 3)
    weights = torch.randn(2 * 6, 2, 9, 9, dtype=torch.float64).softmax(-1)
    spec = plots.windows(
        weights, IMAGE, windows=windows, patches=patches, token=token, shift=shift, example=1
    )
    rows, columns = patches or (6, 9)
    looks = lambda row, column: token is None or row * columns + column == token % (rows * columns)
    want = by_hand(weights, windows, size, (rows, columns), shift, 6, looks)
    torch.testing.assert_close(spec.values, want, atol=1e-8, rtol=0)
    marked = None if token is None else divmod(token % (rows * columns), columns)
    assert spec.marked == marked and spec.clip == (token is None)
    begins = range(shift or 3, rows, 3), range(shift or 3, columns, 3)
    assert [list(places) for places in spec.edges] == [list(places) for places in begins]


def test_windows_that_are_no_squares():
    torch.manual_seed(0)
    weights = torch.randn(4, 1, 6, 6, dtype=torch.float64).softmax(-1)
    spec = plots.windows(weights, IMAGE, windows=(2, 2), patches=(4, 6))
    want = by_hand(weights, (2, 2), (2, 3), (4, 6), 0, 0, lambda row, column: True)
    torch.testing.assert_close(spec.values, want, atol=1e-8, rtol=0)


def test_one_head_and_the_picture(tmp_path):
    weights = torch.rand(6, 2, 9, 9).softmax(-1)
    spec = plots.windows(weights, IMAGE, windows=(2, 3), heads=1, token=4)
    one = plots.windows(weights[:, 1:], IMAGE, windows=(2, 3), token=4)
    torch.testing.assert_close(spec.values, one.values)
    assert spec.save(tmp_path / "windows.png").stat().st_size > 10_000
    drawn = plots.Overlay(spec.image, spec.values, spec.title, spec.marked)
    assert drawn._repr_png_() != spec._repr_png_(), "the edges of windows are drawn"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"windows": (2, 2)}, r"2 × 2 windows, but the attention is \(6, 2, 9, 9\)"),
        ({"windows": (2, 3), "patches": (7, 7)}, "reach over 6 × 9"),
        ({"windows": (2, 3), "example": 1}, "example=1"),
        ({"windows": (2, 3), "token": 54}, "token=54, expected from 0 to 53"),
        ({"windows": (2, 3), "token": True}, "expected one position"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_refused(options, said):
    with pytest.raises(RegardError, match=said):
        plots.windows(torch.rand(6, 2, 9, 9).softmax(-1), IMAGE, **options)


def test_windows_of_unknown_form_are_refused():
    with pytest.raises(ShapeError, match="6 positions in a window are no square"):
        plots.windows(torch.rand(4, 1, 6, 6).softmax(-1), IMAGE, windows=(2, 2))
    with pytest.raises(RegardError, match="2 layers, expected one"):
        plots.windows([torch.rand(4, 1, 4, 4).softmax(-1)] * 2, IMAGE, windows=(2, 2))


def test_the_windows_of_a_trained_model():
    """TinyViT of MobileSAM: 25 windows of 14 × 14 fill 64 × 64 patches and a margin."""
    model, image = packaged.mobilesam().model, torch.rand(3, 1024, 1024)
    with torch.inference_mode(), regard.capture(model, where="*layers.2.blocks.0.attn") as trace:
        model.image_encoder(model.preprocess(255 * image)[None])
    (record,) = trace
    spec = trace.plot("windows", image=image, windows=(5, 5), patches=(64, 64))
    weights = record.weights().mean(1).double()  # (window, query, key)
    row, column = 26, 40
    window, place = (row // 14) * 5 + column // 14, (row % 14) * 14 + column % 14
    torch.testing.assert_close(
        spec.values[row, column].double(), weights[window, :, place].mean(), atol=1e-6, rtol=0
    )
    total = spec.values[14:28, 28:42].sum()
    assert float(total) == pytest.approx(1.0, abs=1e-4), "a whole window's attention is all there"
    one = plots.windows(record, image, windows=(5, 5), patches=(64, 64), token=row * 64 + column)
    assert float(one.values.sum()) == pytest.approx(1.0, abs=1e-4)
    inside = one.values[14:28, 28:42]
    assert float(inside.sum()) == pytest.approx(float(one.values.sum())), "its own window alone"


def test_no_windows_are_refused():
    with pytest.raises(RegardError, match="0 × 1 windows, but the attention is"):
        plots.windows(torch.full((4, 1, 4, 4), 0.25), torch.rand(8, 8, 3), windows=(0, 1))
