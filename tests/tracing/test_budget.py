"""`max_bytes`: what is held stays below it, and what is dropped is named."""

import math

import pytest
import torch
from allocations import kept_bytes, peak_bytes
from capture_models import Ring, fused, handmade, words
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import RegardError
from regard.tracing.recorder import checked_bytes


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("keep", ["recipe", "weights"])
def test_a_budget(build, keep):
    model, x = build(4), words(2, 5, 8)
    with regard.capture(model, keep=keep) as whole:
        model(x)
    most = whole[:2].nbytes
    with (
        pytest.warns(
            regard.CaptureWarning, match=rf"layers\.[23]: .* bytes more.*max_bytes={most:,}"
        ),
        regard.capture(model, keep=keep, max_bytes=most) as trace,
    ):
        model(x)
    assert trace.nbytes <= most
    assert [record.held for record in trace] == [keep, keep, "dropped", "dropped"]
    dropped = [note.where for note in trace.notes if note.kind == "dropped"]
    assert dropped == ["layers.2", "layers.3"]
    torch.testing.assert_close(trace[1].weights(), whole[1].weights())


def test_a_budget_that_fits_drops_nothing():
    model, x = fused(), words(2, 5, 8)
    most = regard.trace(model, x).nbytes
    with regard.capture(model, max_bytes=most) as trace:
        model(x)
    assert trace.notes == [] and trace.nbytes == most
    with pytest.warns(regard.CaptureWarning), regard.capture(model, max_bytes=most - 1) as trace:
        model(x)
    assert [record.held for record in trace] == ["recipe", "dropped"]


def test_a_budget_counts_what_is_shared_once():
    class Shares(nn.Module):
        def forward(self, x):
            for _ in range(3):
                F.scaled_dot_product_attention(x, x, x)
            return x

    model, x = Shares(), words(1, 2, 50, 4)
    lse = 4 * 2 * 50
    with regard.capture(model, max_bytes=x.nbytes + 3 * lse) as trace:
        model(x)
    assert trace.notes == [] and trace.nbytes == x.nbytes + 3 * lse


def test_a_budget_counts_outputs_and_values():
    model, x = fused(1), words(2, 5, 8)
    most = regard.trace(model, x).nbytes
    for option in ("outputs", "values"):
        with (
            pytest.warns(regard.CaptureWarning),
            regard.capture(model, max_bytes=most, **{option: True}) as trace,
        ):
            model(x)
        assert trace.nbytes <= most and trace[0].held == "dropped"
        assert trace[0].output is None


class Grows(nn.Module):
    """A cache by concatenation."""

    keys = None

    def forward(self, x):
        self.keys = x if self.keys is None else torch.cat([self.keys, x], 2)
        return F.scaled_dot_product_attention(x, self.keys, self.keys)


@pytest.mark.parametrize("path", ["auto", "full"])
def test_a_budget_of_a_growing_cache(path):
    """Each step is charged its new keys; after the budget is spent nothing more is kept."""
    traces = []

    def run():
        model = Grows()
        with (
            pytest.warns(regard.CaptureWarning, match="max_bytes"),
            torch.no_grad(),
            regard.capture(model, max_bytes=4000, path=path) as trace,
        ):
            [model(words(1, 2, 1, 8, seed=step)) for step in range(200)]
        traces.append(trace)

    run()
    kept = kept_bytes(run)
    trace = traces[-1]
    held = [record.held for record in trace]
    assert held[0] == "recipe" and held[-1] == "dropped"
    assert 0 < trace.nbytes <= 4000
    first = held.index("dropped")
    assert first > 15  # whole caches would have passed it at the eighth step
    for record in trace[:first]:
        record.weights()
    assert kept <= 4000 + 64 * len(held)  # allocations are rounded up


@pytest.mark.parametrize("path", ["auto", "full"])
def test_a_budget_of_a_static_cache(path):
    """Copies that are made before the cache is overwritten count."""
    model = Ring(50)
    with (
        pytest.warns(regard.CaptureWarning, match="max_bytes"),
        torch.no_grad(),
        regard.capture(model, max_bytes=10_000, path=path) as trace,
    ):
        [model(words(1, 1, 8, seed=step)) for step in range(20)]
    assert trace.nbytes <= 10_000
    assert trace[0].held == "recipe" and trace[-1].held == "dropped"


@pytest.mark.parametrize("made", [False, True], ids=["keys", "weights"])
def test_a_budget_of_tensors_that_are_used_again(made):
    """Held by reference they cost once; copied before each change they cost every time."""

    class Reuses(nn.Module):
        def forward(self, x):
            room = (x @ x.mT).softmax(-1) if made else x.clone()
            for _ in range(10):
                if made:
                    torch.softmax(x @ x.mT, -1, out=room)
                    room @ x
                else:
                    F.scaled_dot_product_attention(x, room, room)
                room.mul_(2)
            return x

    model, x = Reuses(), words(1, 2, 50, 8)
    most = 4 * (4 * 2 * 50 * 50 if made else x.nbytes)
    with (
        pytest.warns(regard.CaptureWarning, match="max_bytes"),
        torch.no_grad(),
        regard.capture(model, max_bytes=most) as trace,
    ):
        model(x)
    held = [record.held for record in trace]
    assert len(held) == 10 and "dropped" in held and "recipe" in held
    assert trace.nbytes <= most
    for record in trace:
        if record.held == "recipe" and made:
            torch.testing.assert_close(record.weights(), (x @ x.mT).softmax(-1))


def test_a_budget_of_one_tensor_that_becomes_many_copies():
    """Five records share their keys, which fit; a change would make five copies, which do not."""

    class Shares(nn.Module):
        def forward(self, x):
            key = x.clone()
            for _ in range(5):
                F.scaled_dot_product_attention(x, key, key)
            key.mul_(2)
            return x

    model, x = Shares(), words(1, 2, 50, 8)
    most = 4 * x.nbytes + 5 * 4 * 2 * 50
    with (
        pytest.warns(regard.CaptureWarning, match="max_bytes"),
        torch.no_grad(),
        regard.capture(model, max_bytes=most) as trace,
    ):
        model(x)
    held = [record.held for record in trace]
    assert trace.nbytes <= most and len(held) == 5
    assert 1 <= held.count("recipe") < 5 and held.count("recipe") + held.count("dropped") == 5
    for record in trace:
        if record.held == "recipe":
            truth = (x @ x.mT * 8**-0.5).softmax(-1)
            torch.testing.assert_close(record.weights(), truth)


@pytest.mark.parametrize("keep", ["recipe", "weights"])
def test_a_budget_is_kept_before_memory_is_taken(keep):
    """Peak memory of a capture that may hold nothing is that of no capture."""
    model, x = fused(6), words(1, 512, 8)

    with torch.no_grad():
        plain = peak_bytes(lambda: model(x))

        def captured():
            with pytest.warns(regard.CaptureWarning), regard.capture(model, keep=keep, max_bytes=0):
                model(x)

        assert peak_bytes(captured) < plain + 200_000  # one matrix would be 2 MB

        def all_of_it():
            with regard.capture(model, keep="weights"):
                model(x)

        assert peak_bytes(all_of_it) > plain + 6 * 2_000_000


@pytest.mark.parametrize(
    ("words_", "size"),
    [
        ("1GB", 10**9),
        ("500 MB", 500 * 10**6),
        ("2GiB", 2 << 30),
        (" 1.5 kB ", 1500),
        ("4 kib", 4096),
        ("10K", 10_000),
        ("300 B", 300),
        ("0", 0),
        (1e9, 10**9),
    ],
)
def test_a_budget_in_words(words_, size):
    assert checked_bytes(words_) == size


@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_a_budget_in_words_is_kept():
    model = fused(2)
    for budget, held in (("0 B", "dropped"), ("1 MB", "recipe")):
        with regard.capture(model, max_bytes=budget) as trace:
            model(words(2, 5, 8))
        assert {record.held for record in trace} == {held}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "most", ["much", "1 GBB", "-1 GB", "1e9", "", True, 1.5, math.nan, math.inf, [1]], ids=repr
)
def test_a_budget_that_is_none(most):
    with pytest.raises(RegardError, match=r"max_bytes=.*expected a number of bytes.*'500 MB'"):
        regard.capture(None, max_bytes=most)


@pytest.mark.parametrize("most", [-1, -(10**9)])
def test_a_budget_below_nothing(most):
    with pytest.raises(RegardError, match=f"max_bytes={most}"):
        regard.capture(None, max_bytes=most)
