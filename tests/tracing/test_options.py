"""Options of a capture: which sites, what is held of them, how much, and by which path."""

import re
from itertools import accumulate

import pytest
import torch
from capture_models import Attention, Ring, Stack, fused, handmade, words
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.profiler import ProfilerActivity, profile

import regard
from regard.errors import RegardError
from regard.record import Site

# -- where


class Model(nn.Module):
    """Names with numbers, of fused and of hand-written attention."""

    def __init__(self):
        super().__init__()
        self.encoder = Stack(Attention(), Attention(False), Attention())
        self.pool = Attention(False)

    def forward(self, x):
        return self.pool(self.encoder(x))


SITES = ["encoder.layers.0", "encoder.layers.1", "encoder.layers.2", "pool"]
WHERE = {
    "everything": (None, SITES),
    "glob": ("encoder.*", SITES[:3]),
    "glob in the middle": ("*.layers.[02]", SITES[:3:2]),
    "the very name": ("pool", SITES[3:]),
    "regex": (re.compile(r"layers\.[12]$"), SITES[1:3]),
    "regex anywhere": (re.compile("oo"), SITES[3:]),
    "layer": (1, SITES[1:2]),
    "first layer": (0, SITES[:1]),
    "range": (range(1, 3), SITES[1:3]),
    "layers": ([0, 2], SITES[:3:2]),
    "of several kinds": ([2, "pool", re.compile(r"\.0$")], [SITES[0], SITES[2], SITES[3]]),
    "nested lists": ([[0], (2,)], SITES[:3:2]),
    "tuple": (("pool", 1), [SITES[1], SITES[3]]),
    "generator": ((n for n in (0, 1)), SITES[:2]),
    "function of the class": (lambda site: site.module_class == "Attention", SITES),
    "function of the path": (lambda site: site.path.endswith("2"), SITES[2:3]),
    "function of the layer": (lambda site: (site.layer or 0) > 0, SITES[1:3]),
}


@pytest.mark.parametrize(("where", "names"), WHERE.values(), ids=WHERE)
def test_where(where, names):
    model, x = Model(), words(2, 5, 8)
    with regard.capture(model) as whole:
        model(x)
    with regard.capture(model, where=where) as trace:
        model(x)
    assert trace.names() == names
    for record in trace:
        torch.testing.assert_close(record.weights(), whole[record.name].weights())
        assert record.attends == whole[record.name].attends


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
def test_where_on_every_path(path):
    model, x = fused(3), words(2, 5, 8)
    with regard.capture(model, where=[0, 2], path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.names() == [f"layers.{n}{call}" for call in ("", "#2", "#3") for n in (0, 2)]


def test_a_predicate_is_given_a_site():
    seen = []
    model = Model()
    with regard.capture(model, where=lambda site: seen.append(site) or True):
        model(words(2, 5, 8))
    assert {site.path for site in seen} == set(SITES)
    assert all(isinstance(site, Site) for site in seen)


@pytest.mark.parametrize("path", ["auto", "full", "fused"])
def test_a_filter_that_matches_nothing_names_the_sites(path):
    model = Stack(Attention(), Attention())
    with (
        pytest.warns(regard.CaptureWarning, match=r"matched none of 2 sites.*layers\.0, layers\.1"),
        regard.capture(model, where="decoder.*", path=path) as trace,
    ):
        model(words(2, 5, 8))
    assert len(trace) == 0 and [note.kind for note in trace.notes] == ["filter"]


def test_what_a_filter_left_out_is_not_called_unseen():
    """`attention` by its name, and it ran without a record: because nobody asked."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.self_attn = Attention(), Attention(False)

        def forward(self, x):
            return self.self_attn(self.attention(x))

    model = Named()
    with regard.capture(model, where="attention") as trace:
        model(words(2, 5, 8))
    assert trace.names() == ["attention"] and trace.notes == []


class Counts(regard.Reducer):
    """How many matrices it was shown, over all records."""

    shown = 0

    def start(self, matrix):
        type(self).shown += 1

    def tile(self, rows, columns, log_weights, weights):
        pass

    def merge(self, other):
        pass

    def result(self):
        return torch.zeros(())


@pytest.mark.parametrize("path", ["full", "auto"])
@pytest.mark.parametrize("build", [fused, handmade])
def test_unmatched_sites_cost_nothing(build, path):
    """Nothing is held of them, and no reducer is shown them."""
    model, x = build(4), words(2, 5, 8)
    for keep in ("recipe", "weights"):
        sizes = {}
        for where in (0, None):
            with regard.capture(model, where=where, keep=keep, path=path) as trace:
                model(x)
            sizes[where] = trace.nbytes
        assert sizes[None] == 4 * sizes[0]
    for where, matrices in ((2, 4), (range(4), 16)):
        Counts.shown = 0
        with regard.capture(model, where=where, keep=[Counts()], path=path):
            model(x)
        assert Counts.shown >= matrices and Counts.shown % matrices == 0
        assert where != 2 or Counts.shown < 16


def test_unmatched_sites_take_no_memory_in_passing():
    model, x = fused(4), words(1, 256, 8)

    def run(where):
        with torch.no_grad(), regard.capture(model, where=where, keep="weights"):
            model(x)

    matrix = 4 * 2 * 256 * 256
    one, four = (_peak_bytes(lambda where=where: run(where)) for where in (3, range(4)))
    assert four - one > 2.5 * matrix


@pytest.mark.parametrize(
    "where",
    [3.5, True, [], object(), ["a", 2.5], b"encoder"],
    ids=["float", "bool", "empty", "object", "list", "bytes"],
)
def test_where_that_means_nothing(where):
    with pytest.raises(RegardError, match="where="):
        regard.capture(None, where=where)


# -- keep


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_keep_weights(build, path):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model, keep="weights", path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.notes == [] and len(trace) == 6
    for record, truth in zip(trace, model.weigh(x) * 3):
        torch.testing.assert_close(record.weights(), truth.detach())
        assert record.held == "weights" and record.nbytes == 4 * 2 * 2 * 5 * 5


def test_kept_weights_are_not_the_models_memory():
    """A model may use its matrix again; what is kept as weights is kept."""

    class Reuses(nn.Module):
        def forward(self, x):
            weights = (x @ x.mT).softmax(-1)
            out = weights @ x
            weights.zero_()
            return out

    model, x = Reuses(), words(2, 5, 8)
    reducers = [regard.Weights()]
    for keep in ("weights", reducers):
        with torch.no_grad(), regard.capture(model, keep=keep) as trace:
            model(x)
        found = trace[0].weights() if keep == "weights" else trace[0].reductions[0]
        torch.testing.assert_close(found, (x @ x.mT).softmax(-1)[:, None])


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_keep_reductions(build, path):
    model, x = build(), words(2, 5, 8)
    asked = [regard.Entropy(), regard.HeadMean(), regard.TopK(2)]
    with regard.capture(model, keep=asked, path=path) as trace:
        for _ in range(3):
            model(x)
    assert trace.notes == [] and len(trace) == 6
    for record, truth in zip(trace, model.weigh(x) * 3):
        entropy, mean, top = record.reductions
        torch.testing.assert_close(mean, truth.detach().mean(1))
        torch.testing.assert_close(entropy, -(truth * truth.log()).sum(-1).detach())
        torch.testing.assert_close(top.weights, truth.detach().topk(2).values)
        assert record.held == "reductions"
        assert record.nbytes == sum(x.nbytes for x in (entropy, mean, *top))
        assert not any(x.requires_grad for x in (entropy, mean, top.weights))


def test_one_reducer_needs_no_list():
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, keep=regard.Entropy()) as trace:
        model(x)
    assert trace[0].reductions[0].shape == (2, 2, 5)


def test_reductions_hold_nothing_of_the_model():
    """With answers of one number a row, memory does not grow with the keys or the layers."""
    model, x = fused(4), words(1, 256, 8)
    with torch.no_grad(), regard.capture(model, keep=[regard.Entropy()]) as trace:
        model(x)
    storages = {
        r.reductions[0].untyped_storage().data_ptr(): r.reductions[0].untyped_storage()
        for r in trace
    }
    assert sum(storage.nbytes() for storage in storages.values()) <= 4 * 4 * 2 * 256 + 1024
    assert trace.nbytes == 4 * 4 * 2 * 256


def test_keep_on_disk(tmp_path):
    model, x = (
        Stack(
            Attention(), Attention(False), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        ),
        words(2, 5, 8),
    )
    model.eval()
    folder = tmp_path / "new" / "folder"
    with torch.no_grad():
        with regard.capture(model) as plain:
            model(x)
        with regard.capture(model, keep=folder, values=True, tokens=list("abcde")) as trace:
            model(x)
    assert [file.name for file in sorted(folder.glob("*.safetensors"))] == [
        f"{n:06d}.safetensors" for n in (1, 2, 3)
    ]
    loaded = regard.load(folder)
    for one, other, again in zip(plain, trace, loaded, strict=True):
        assert other.held == "disk" and other.nbytes == 0 and other.value_held
        for found in (other, again):
            assert found.site == one.site and found.query_tokens == list("abcde")
            assert torch.equal(found.weights(), one.weights())
            assert found.mixed().shape == (2, 2, 5, 4)
    torch.testing.assert_close(trace.heads(1)[0].weights(), plain[0].weights()[:, 1:])
    mean = trace.reduce(regard.HeadMean())
    torch.testing.assert_close(mean["layers.1"][0], plain[1].weights().mean(1))


def test_disk_keeps_outputs_and_notes(tmp_path):
    model, x = Stack(Attention()), words(2, 5, 8)
    with regard.capture(model, keep=tmp_path, outputs=True) as trace:
        model(x)
    loaded = regard.load(tmp_path)
    torch.testing.assert_close(loaded[0].output, model.layers[0].mixed.detach())
    assert loaded.notes == trace.notes


def test_many_passes_on_disk_come_back_in_order(tmp_path):
    model = fused(1)
    with torch.no_grad(), regard.capture(model, keep=tmp_path) as trace:
        for length in range(1, 13):
            model(words(1, length, 8))
    assert trace.notes == []
    assert [record.shape.keys for record in regard.load(tmp_path)] == list(range(1, 13))
    assert regard.load(tmp_path).names() == trace.names()


def test_a_folder_that_holds_records_is_refused(tmp_path):
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, keep=tmp_path):
        model(x)
    with pytest.raises(RegardError, match="already holds records"):
        regard.capture(model, keep=tmp_path)


def test_a_record_whose_file_went_away(tmp_path):
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, keep=tmp_path) as trace:
        model(x)
    (tmp_path / "000001.safetensors").unlink()
    with pytest.raises(RegardError, match=r"no file .*000001"):
        trace[0].weights()


def test_a_full_disk_does_not_break_the_model(tmp_path, monkeypatch):
    model, x = fused(1), words(2, 5, 8)
    expected = model(x)

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with (
        pytest.warns(regard.CaptureWarning, match=r"layers\.0.*no space left"),
        regard.capture(model, keep=tmp_path) as trace,
    ):
        assert torch.equal(model(x), expected)
    assert [note.kind for note in trace.notes] == ["error"]


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("matrix", r"keep='matrix', expected 'recipe', 'weights'"),
        ([], r"keep=\[\], expected a list of reducers"),
        ([3], "keep has 3, which is not a Reducer"),
        ([regard.Entropy], "which is not a Reducer"),
        (None, "keep=None"),
        ("/tmp/folder", r"a folder as pathlib\.Path"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_keep_that_means_nothing(keep, said):
    with pytest.raises(RegardError, match=said):
        regard.capture(None, keep=keep)


# -- max_bytes


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
    kept = _kept_bytes(run)
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


@pytest.mark.parametrize("keep", ["recipe", "weights"])
def test_a_budget_is_kept_before_memory_is_taken(keep):
    """Peak memory of a capture that may hold nothing is that of no capture."""
    model, x = fused(6), words(1, 512, 8)

    with torch.no_grad():
        plain = _peak_bytes(lambda: model(x))

        def captured():
            with pytest.warns(regard.CaptureWarning), regard.capture(model, keep=keep, max_bytes=0):
                model(x)

        assert _peak_bytes(captured) < plain + 200_000  # one matrix would be 2 MB

        def all_of_it():
            with regard.capture(model, keep="weights"):
                model(x)

        assert _peak_bytes(all_of_it) > plain + 6 * 2_000_000


def _allocated(run):
    """Bytes that torch allocated and freed, in order, while `run` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [
        (event.start_ns(), event.nbytes())
        for event in found.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    assert events
    return [size for _, size in sorted(events)]


def _peak_bytes(run):
    """The most that was allocated at once."""
    run()
    return max(accumulate(_allocated(run)))


def _kept_bytes(run):
    """What is still there afterwards."""
    return sum(_allocated(run))


@pytest.mark.parametrize("most", [-1, -(10**9)])
def test_a_budget_below_nothing(most):
    with pytest.raises(RegardError, match=f"max_bytes={most}"):
        regard.capture(None, max_bytes=most)


# -- values, outputs, tokens


def test_values_of_fused_and_handmade_attention():
    for groups in (1, 2):
        model = Stack(*(Attention(kind, groups) for kind in (True, False, True, False)))
        with regard.capture(model, values=True) as trace:
            model(words(2, 5, 8))
        for record, layer in zip(trace, model.layers):
            assert record.value_held
            torch.testing.assert_close(record.mixed(), layer.mixed.detach())


def test_values_with_causal_masks():
    model = fused(2, causal=True)
    with regard.capture(model, values=True) as trace:
        model(words(2, 5, 8))
    for record, layer in zip(trace, model.layers):
        torch.testing.assert_close(record.mixed(), layer.mixed.detach())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_values_of_native_attention(norm_first, padded):
    """What the encoder layer's fast path mixes shows only in its output."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval()
    x = words(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    with torch.no_grad(), regard.capture(layer, values=True) as trace:
        out = layer(x, src_key_padding_mask=mask)
        assert "encoder_layer" in trace[0].operator
        mixed = trace[0].mixed().transpose(1, 2).flatten(2)
        after = x + layer.self_attn.out_proj(mixed)
        if not norm_first:
            after = layer.norm1(after)
        fed = layer.norm2(after) if norm_first else after
        expected = after + layer.linear2(layer.linear1(fed).relu())
        expected = expected if norm_first else layer.norm2(expected)
    real = slice(None) if mask is None else ~mask
    torch.testing.assert_close(expected[real], out[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_values_of_multi_head_attention(need_weights, grad):
    module, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), words(2, 5, 8)
    with torch.set_grad_enabled(grad), regard.capture(module, values=True) as trace:
        out, _ = module(x, x, x, need_weights=need_weights)
    mixed = module.out_proj(trace[0].mixed().transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixed, out, atol=1e-5, rtol=1e-5)


class Spelt(nn.Module):
    """A spelling of weights times values: gives (batch, head, query, width) beside its output."""

    num_heads = 2

    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling
        self.query, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        query, value = self.query(x), self.value(x)
        self.mixed = self.spelling(query, value)
        return self.mixed * 1.0


def _heads(x):
    return x.unflatten(-1, (2, 4)).transpose(1, 2)


def _weigh(query):
    return (_heads(query) @ _heads(query).mT).softmax(-1)


def _head_major(query, value):
    def cut(x):
        return x.view(*x.shape[:2], 2, 4).permute(2, 0, 1, 3).reshape(-1, x.shape[1], 4)

    weights = torch.bmm(cut(query), cut(query).transpose(1, 2)).softmax(2)
    return torch.bmm(weights, cut(value)).view(2, -1, *query.shape[1:2], 4).transpose(0, 1)


def _one_by_one(query, value):
    return torch.stack(
        [_weigh(query[n : n + 1])[0] @ _heads(value[n : n + 1])[0] for n in range(len(query))]
    )


SPELLINGS = {
    "matmul": lambda q, v: _weigh(q) @ _heads(v),
    "einsum": lambda q, v: torch.einsum("bhqk,bhkd->bhqd", _weigh(q), _heads(v)),
    "einsum, heads last": lambda q, v: torch.einsum(
        "bhqk,bkhd->bqhd", _weigh(q), v.unflatten(-1, (2, 4))
    ).transpose(1, 2),
    "values first": lambda q, v: (_heads(v).mT @ _weigh(q).mT).mT,
    "bmm": lambda q, v: torch.bmm(_weigh(q).flatten(0, 1), _heads(v).flatten(0, 1)).unflatten(
        0, (-1, 2)
    ),
    "head-major": _head_major,
    "einsum, heads first": lambda q, v: torch.einsum(
        "hbqk,hbkd->hbqd", _weigh(q).transpose(0, 1).contiguous(), _heads(v).transpose(0, 1)
    ).transpose(0, 1),
    "multiply and sum": lambda q, v: (_weigh(q)[..., None] * _heads(v)[:, :, None]).sum(3),
    "one value for all heads": lambda q, v: _weigh(q) @ v[:, None, :, :4],
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_values_in_any_spelling_are_right_or_refused(spelling):
    model, x = Spelt(spelling), words(3, 5, 8)
    with regard.capture(model, values=True) as trace:
        model(x)
    assert trace[0].shape == (3, 2, 5, 5)
    if trace[0].value_held:
        torch.testing.assert_close(trace[0].mixed(), model.mixed.detach())
    else:
        with pytest.raises(RegardError, match="without values"):
            trace[0].mixed()


def test_values_are_held_in_the_common_spellings():
    for name in ("matmul", "einsum", "bmm", "head-major", "values first"):
        model = Spelt(SPELLINGS[name])
        with regard.capture(model, values=True) as trace:
            model(words(3, 5, 8))
        assert trace[0].value_held, name


def test_values_of_flex():
    class Flexible(nn.Module):
        def forward(self, x):
            return flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: s + h * (q - k))

    model, x = Flexible(), words(2, 2, 5, 4)
    with torch.no_grad(), regard.capture(model, values=True, outputs=True) as trace:
        out = model(x)
    torch.testing.assert_close(trace[0].mixed(), out)
    torch.testing.assert_close(trace[0].output, out)


@pytest.mark.parametrize("build", [fused, handmade])
def test_outputs(build):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model, outputs=True) as trace:
        model(x)
    for record, layer in zip(trace, model.layers):
        assert record.output.numel() == layer.mixed.numel() and not record.output.requires_grad
        torch.testing.assert_close(record.output.reshape(layer.mixed.shape), layer.mixed.detach())


def test_tokens():
    model = Ring(6)
    with torch.no_grad(), regard.capture(model, tokens=list("abcdef")) as trace:
        model(words(1, 6, 8))
        model(words(1, 1, 8))
    assert trace[0].query_tokens == trace[0].key_tokens == list("abcdef")
    assert trace[1].query_tokens is None and trace[1].key_tokens == list("abcdef")


# -- paths


def records(model, x, path, passes=3, **options):
    with torch.no_grad(), regard.capture(model, path=path, **options) as trace:
        for _ in range(passes):
            model(x)
    return trace


@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"causal": True}], ids=str)
def test_every_path_gives_the_same_records(options):
    model, x = fused(2, **options), words(2, 5, 8)
    full, auto, cheap = (records(model, x, path) for path in ("full", "auto", "fused"))
    for one, two, three in zip(full, auto, cheap, strict=True):
        assert one.name == two.name == three.name and one.step == two.step == three.step
        assert one.operator == two.operator == three.operator
        assert one.source == two.source == three.source and one.attends == two.attends == "self"
        assert torch.equal(one.weights(), two.weights())
        assert torch.equal(one.weights(), three.weights())
        assert repr(one.recipe) == repr(two.recipe) == repr(three.recipe)
        assert one.nbytes == two.nbytes == three.nbytes


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_every_path_reads_masks(context, masked):
    class Masked(nn.Module):
        def forward(self, x, mask):
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    model, x = Masked(), words(2, 2, 5, 4)
    allowed = torch.ones(5, 5).tril().bool()
    added = torch.zeros(5, 5).masked_fill(~allowed, -torch.inf)
    mask = {None: None, "bool": allowed, "float": added + 0.5 * allowed}[masked]
    scores = x @ x.mT / 2
    truth = (scores if mask is None else scores + added).softmax(-1)
    for path in ("auto", "full", "fused"):
        with context(), regard.capture(model, path=path) as trace:
            for _ in range(3):
                model(x, mask)
        assert len(trace) == 3
        for record in trace:
            torch.testing.assert_close(record.weights(), truth)


def test_the_cheap_path_is_taken():
    """After one full pass no dispatch mode is on any more: that is what makes it cheap."""
    seen = []

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fused(1)

        def forward(self, x):
            seen.append(torch.utils._python_dispatch._get_current_dispatch_mode() is not None)
            return self.inner(x)

    model, x = Looks(), words(2, 5, 8)
    for path, modes in (
        ("auto", [True, False, False]),
        ("full", [True] * 3),
        ("fused", [False] * 3),
    ):
        seen.clear()
        trace = records(model, x, path)
        assert seen == modes and len(trace) == 3 and trace.notes == []


@pytest.mark.parametrize("keep", ["recipe", "weights", [regard.Entropy()]], ids=str)
def test_the_cheap_path_is_taken_whatever_is_kept(keep):
    """Making weights is regard's own softmax, not the model's."""
    model, x = fused(), words(2, 5, 8)
    trace = records(model, x, "auto", 5, keep=keep)
    assert trace.notes == [] and len(trace) == 10


@pytest.mark.parametrize("build", [handmade, lambda: Stack(Attention(), Attention(False))])
def test_models_with_a_softmax_stay_on_the_full_path(build):
    model, x = build(), words(2, 5, 8)
    trace = records(model, x, "auto", 4)
    assert trace.notes == [] and len(trace) == 8
    for record, truth in zip(trace, model.weigh(x) * 4):
        torch.testing.assert_close(record.weights(), truth.detach())


class Changes(nn.Module):
    """Fused attention, and from some pass on a softmax of its own."""

    def __init__(self, when):
        super().__init__()
        self.fused, self.made, self.when, self.passes = Attention(), Attention(False), when, 0

    def forward(self, x):
        self.passes += 1
        return self.made(x) if self.passes >= self.when else self.fused(x)


def run_with_warning(model, x, passes, said, **options):
    with (
        pytest.warns(regard.CaptureWarning, match=said),
        torch.no_grad(),
        regard.capture(model, **options) as trace,
    ):
        [model(x) for _ in range(passes)]
    return trace


@pytest.mark.parametrize("when", [2, 3])
def test_a_softmax_that_comes_up_later(when):
    """It is noticed; the passes after it are read fully, and the note says what was missed."""
    model, x = Changes(when), words(2, 5, 8)
    trace = run_with_warning(model, x, 6, r"made: _softmax ran.*cannot read.*later passes")
    assert [note.kind for note in trace.notes] == ["changed"]
    assert [record.step for record in trace if record.path == "made"] == list(range(when, 6))
    assert [record.step for record in trace if record.path == "fused"] == list(range(when - 1))
    for record in trace:
        truth = (model.made if record.path == "made" else model.fused).weigh(x)
        torch.testing.assert_close(record.weights(), truth.detach())


def test_the_fused_path_stays_as_asked():
    model, x = Changes(3), words(2, 5, 8)
    trace = run_with_warning(
        model, x, 6, r"made: _softmax ran.*cannot read.*weights are not there.*'full'", path="fused"
    )
    assert [note.kind for note in trace.notes] == ["changed"]
    assert {record.path for record in trace} == {"fused"} and len(trace) == 2


@pytest.mark.parametrize("path", ["auto", "fused"])
def test_a_softmax_in_the_last_pass_is_said_too(path):
    """No later pass is there to change on, and still it must not be silent."""
    model, x = Changes(3), words(2, 5, 8)
    trace = run_with_warning(model, x, 3, "softmax", path=path)
    assert [note.kind for note in trace.notes] == ["changed"]
    assert [record.path for record in trace] == ["fused", "fused"]


def test_the_fused_path_on_a_handmade_model_is_not_silent():
    model, x = handmade(1), words(2, 5, 8)
    with pytest.warns(regard.CaptureWarning), regard.capture(model, path="fused") as trace:
        model(x)
    assert len(trace) == 0 and trace.notes


def test_softmax_outside_the_model_does_not_matter():
    model, x = fused(1), words(2, 5, 8)
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(4):
            model(x).softmax(-1)
    assert trace.notes == [] and len(trace) == 4
