"""Records whose axes are not known: they say so, and answer nothing that depends on them."""

import pickle

import pytest
import torch
from record_examples import record, words

import regard
from regard import plots, viewer
from regard.errors import ShapeError, UnavailableError
from regard.recipe import Given
from regard.record import Trace
from regard.record.table import html

WEIGHTS = words(8, 5, 5).softmax(-1)  # two examples of four heads, or one of eight, or none


class Folded(torch.nn.Module):
    """Eight matrices, and nothing tells of what."""

    def forward(self, x):
        query = x.reshape(-1)[:160].reshape(8, 5, 4)
        return (query @ query.mT).softmax(-1) @ query


def unknown():
    return record("layer.attn", Given(WEIGHTS[None]), axes_known=False, attends="self")


def test_it_is_said_wherever_a_record_is_shown():
    assert "(1, 8, 5, 5), axes unknown" in repr(unknown())
    trace = Trace([unknown(), record("layer.1")])
    for shown in (repr(trace), html(trace)):
        assert shown.count("(1, 8, 5, 5), axes unknown") == 1
    assert "unknown" not in repr(record("layer.1", attends="self"))


def test_weights_are_given_as_they_lie():
    assert torch.equal(unknown().weights()[0], WEIGHTS)
    (entropy,) = unknown().reduce(regard.Entropy())
    assert entropy.shape == (1, 8, 5)


PER_HEAD = {
    "report": lambda found: Trace([found]).report(),
    "head statistics": lambda found: regard.aggregate.head_statistics(found),
    "heads": lambda found: found.of_heads(0),
    "heads of a trace": lambda found: Trace([found]).heads(0),
    "divergence": lambda found: regard.aggregate.head_divergence(found),
    "mean of heads": lambda found: found.reduce(regard.Entropy(), regard.HeadMean()),
    "max of heads, of a trace": lambda found: Trace([found]).reduce(regard.HeadMax()),
    "fuse": lambda found: regard.combine_heads(found),
    "fuse a trace": lambda found: regard.combine_heads(Trace([found])),
    "rollout": lambda found: regard.rollout(Trace([found])),
    "relevance": lambda found: regard.relevance(Trace([found])),
    "attentions": lambda found: Trace([found]).attentions,
    "heatmap": lambda found: plots.heatmap(found),
    "grid": lambda found: plots.grid(Trace([found]), types=False),
    "page": lambda found: viewer.page(found),
    "reuse": lambda found: regard.reuse.source.source_of(found),
    "stitch": lambda found: regard.stitch(
        Trace([found, record("layer.attn", Given(WEIGHTS[None]), axes_known=False, step=1, call=2)])
    ),
}


@pytest.mark.parametrize("ask", PER_HEAD.values(), ids=PER_HEAD)
def test_what_depends_on_axes_is_refused(ask):
    with pytest.raises(
        UnavailableError,
        match=r"layer\.attn: the order of the axes of its weights \(1, 8, 5, 5\) is not known, so "
        r"per-head statistics .* guesses; .*record\.with_axes\('batch head query key'\)",
    ):
        ask(unknown())


def test_a_notebook_shows_the_table_instead():
    assert "axes unknown" in Trace([unknown()])._repr_html_()


ORDERS = {
    "head query key": WEIGHTS[None],
    "batch query key": WEIGHTS[:, None],
    "batch head query key": WEIGHTS[None],
    "head, batch, query, key": WEIGHTS[:, None],
    "1 batch query key": WEIGHTS[:, None],
}


@pytest.mark.parametrize("axes", ORDERS)
def test_axes_can_be_said(axes):
    found = unknown().with_axes(axes)
    assert found.site.axes_known and found.shape == ORDERS[axes].shape
    assert torch.equal(found.weights(), ORDERS[axes])
    assert found.of_heads(0).shape.heads == 1 and "unknown" not in repr(found)


def test_keys_may_lie_anywhere():
    lying = record("layer.attn", Given(WEIGHTS.mT[None], None, "distribution"), axes_known=False)
    assert torch.equal(lying.with_axes("head key query").weights()[0], WEIGHTS)


def test_axes_of_size_1_need_no_name():
    """Wherever they lie: captured weights have them after the first axis, too."""
    with pytest.warns(regard.CaptureWarning, match="axes are not known"):
        found = regard.trace(Folded(), words(2, 5, 16))[0]
    assert found.shape == (8, 1, 5, 5)
    named = found.with_axes("(batch head) query key", head=4)
    assert torch.equal(named.weights(), found.weights().view(2, 4, 5, 5))


def test_rows_must_still_sum_to_1():
    """The axis that does is named; a kind that promises nothing is let be."""
    lying = record("layer.attn", Given(WEIGHTS[None], None, "distribution"), axes_known=False)
    said = (
        r"layer\.attn: rows do not sum to 1 over the last axis \(one sums to [\d.]+\)\. The axis "
        r"that axes='batch head key query' calls 'query' does: are the keys there\?"
    )
    with pytest.raises(ShapeError, match=said):
        lying.with_axes("batch head key query")
    signed = record("layer.attn", Given(WEIGHTS[None], None, "signed"), axes_known=False)
    assert torch.equal(signed.with_axes("batch head key query").weights()[0], WEIGHTS.mT)


def test_rows_of_nan_can_be_named():
    """A row whose mask leaves no key."""
    weights = WEIGHTS[None].clone()
    weights[:, :, 0] = torch.nan
    lying = record("layer.attn", Given(weights, None, "distribution"), axes_known=False)
    assert lying.with_axes("batch head query key").shape == (1, 8, 5, 5)


def test_a_capture_keeps_no_mean_over_unknown_heads():
    model = Folded()
    with (
        pytest.warns(regard.CaptureWarning) as said,
        regard.capture(model, keep=[regard.Entropy(), regard.HeadMean()]) as trace,
    ):
        model(words(2, 5, 16))
    assert trace[0].held == "dropped" and len(said) == 2
    (note,) = (note for note in trace.notes if note.kind == "dropped")
    assert "HeadMean: the head axis is not" in note.text and "record.with_axes" in note.text


def test_axes_that_lie_in_one_are_in_brackets():
    found = unknown().with_axes("(batch head) query key", head=4)
    assert torch.equal(found.weights(), WEIGHTS.view(2, 4, 5, 5))
    found = unknown().with_axes("(head batch) query key", head=4, batch=2)
    assert torch.equal(found.weights(), WEIGHTS.view(4, 2, 5, 5).transpose(0, 1))
    assert len(Trace([found]).report()) == 4


def test_words_stay_where_they_fit():
    found = unknown().with_tokens(list("abcde"), [list("abcde")])
    told = found.with_axes("(batch head) query key", head=4)
    assert told.query_tokens == list("abcde") and told.key_tokens is None


@pytest.mark.parametrize(
    ("axes", "sizes", "text"),
    [
        ("query key", {}, r"names 2 axes of 4; weights are \(1, 8, 5, 5\) as they lie"),
        ("batch head query key more", {}, "names 5 axes of 4"),
        ("head head query key", {}, "'batch', 'head', each once"),
        ("head query word", {}, "expected 'query' and 'key'"),
        (
            "(batch head) query key",
            {},
            r"\(batch head\) has size 8: say the size of one, as head=4",
        ),
        ("(batch head) query key", {"head": 3}, "has size 8, which is no multiple of head=3"),
        ("(batch head) query key", {"head": 0}, "no multiple of head=0"),
        ("(batch head) query key", {"head": 4, "batch": 1}, "no multiple of batch=1, head=4"),
        ("head query key", {"head": 8}, "head=8: axes='head query key' has no such axis in brack"),
        ("head 1 query key", {}, "the axis called 1 has size 8"),
        (["head"], {}, r"axes=\['head'\], expected words in a string"),
    ],
)
def test_names_that_do_not_fit_are_refused(without_shape_checks, axes, sizes, text):
    with pytest.raises(ShapeError, match=f"layer.attn: .*{text}"):
        unknown().with_axes(axes, **sizes)


def test_it_is_saved_and_pickled(tmp_path):
    trace = Trace([unknown(), record("layer.1")])
    loaded = regard.load_trace(trace.save(tmp_path / "trace.safetensors"))
    assert [found.site.axes_known for found in loaded] == [False, True]
    assert [found.site for found in loaded] == [found.site for found in trace]
    assert not pickle.loads(pickle.dumps(unknown())).site.axes_known


def test_a_file_from_before_has_known_axes(tmp_path):
    """Sites of such files say nothing of axes; those written now do not either, if known."""
    from safetensors import safe_open

    file = Trace([record("layer.1")]).save(tmp_path / "trace.safetensors")
    with safe_open(file, "pt") as opened:
        assert "axes_known" not in opened.metadata()["trace"]
    assert regard.load_trace(file)[0].site.axes_known
