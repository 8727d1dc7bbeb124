"""Pictures of captured attention: the numbers in a spec are those of the trace."""

import pytest
import torch
from torch import nn

import regard
from regard import plots
from regard.aggregate import Words
from regard.blocks import EncoderBlock, FeedForward, PreNorm, Stack
from regard.errors import RegardError, ShapeError
from regard.mechanisms import DeltaRule, MultiHead

WORDS = ["[CLS]", "un", "##believable", "news", "[SEP]"]


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    with regard.capture(model, tokens=WORDS, grad=True) as found:
        out = model(torch.randn(2, 5, 16))
    out[:, 0].sum().backward()
    return found


@pytest.fixture(scope="module")
def translation():
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 2, 2, 32, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model) as found:
        model(torch.randn(1, 6, 16), torch.randn(1, 4, 16))
    return found


def test_a_heatmap_has_the_tokens_and_the_weights(trace):
    spec = plots.heatmap(trace[1], heads=2, example=1)
    torch.testing.assert_close(spec.values, trace[1].weights()[1, 2])
    assert list(spec.rows) == list(spec.columns) == WORDS
    assert spec.title == "layer 1, head 2"
    assert plots.heatmap(trace[0]).title.endswith("mean of heads")


def test_a_heatmap_in_words(trace):
    words = Words.of("unbelievable news", [(0, 0), (0, 2), (2, 12), (13, 17), (0, 0)], WORDS)
    spec = plots.heatmap(trace[0], words=words)
    assert spec.rows == ["[CLS]", "unbelievable", "news", "[SEP]"]
    torch.testing.assert_close(spec.values.sum(-1), torch.ones(4))


def test_a_grid_of_all_heads_with_their_types(trace):
    spec = plots.grid(trace, example=1)
    assert [tuple(maps.shape) for maps in spec.maps] == [(4, 5, 5)] * 3
    torch.testing.assert_close(spec.maps[2], trace[2].weights()[1])
    types = [row.type for row in trace.report()]
    assert [name for names in spec.names for name in names] == types
    assert plots.grid(list(trace.attentions)).names is None


def test_a_grid_names_the_kind_of_heads_that_have_no_type(tmp_path):
    torch.manual_seed(0)
    layers = [MultiHead(16, 2), DeltaRule(16, 2)]
    blocks = [EncoderBlock(PreNorm(16, layer), PreNorm(16, FeedForward(16))) for layer in layers]
    with torch.no_grad(), regard.capture(Stack(blocks)) as both:
        Stack(blocks)(torch.randn(1, 5, 16), causal=True)
    types = [row.type for row in both.report()]
    assert plots.grid(both).names == [types, ["signed", "signed"]]
    alone = both.layers(1)
    assert plots.grid(alone).names == [["signed", "signed"]]
    pictures = [
        plots.grid(alone, colour=colour).save(tmp_path / f"{colour}.png").read_bytes()
        for colour in ("log", "linear")
    ]
    assert pictures[0] == pictures[1]  # a logarithm would show all negative weights alike


def test_a_grid_of_long_attention_is_pooled():
    weights = torch.rand(1, 2, 500, 400).softmax(-1)
    spec = plots.grid([weights])
    assert max(spec.maps[0].shape[1:]) <= 96
    torch.testing.assert_close(spec.maps[0].mean(), weights.mean(), atol=1e-5, rtol=0)


def test_alignment(translation):
    source, target = list("abcdef"), list("wxyz")
    spec = plots.alignment(translation, layer=1, heads="max", source=source, target=target)
    torch.testing.assert_close(spec.values, translation.cross_attentions[1].amax(1)[0])
    assert (spec.rows, spec.columns) == (target, source)
    assert (spec.row_title, spec.column_title) == ("target", "source")
    mean = plots.alignment(translation).values
    torch.testing.assert_close(mean, torch.stack(translation.cross_attentions).mean((0, 2))[0])


def test_statistics_by_head_and_by_layer(trace):
    report = trace.report()
    spec = plots.by_head(report, "distance")
    assert spec.values.shape == (3, 4) and spec.value_title == "mean distance, tokens"
    assert spec.values[2, 1] == pytest.approx(report[2, 1].distance, rel=1e-5)
    lines = plots.profile(report, "entropy")
    assert lines.values.shape == (4, 3) and list(lines.lines)[1] == "head 1"


@pytest.mark.parametrize("how", ["rollout", "relevance", "mean"])
def test_a_sentence_in_colours(trace, how):
    ask = {"rollout": regard.rollout, "relevance": regard.relevance, "mean": regard.mean_attention}
    spec = plots.text(trace, 3, how=how, example=1, special=True)
    torch.testing.assert_close(spec.values, ask[how](trace, 3)[1])
    assert spec.words == WORDS and list(spec.marked) == [3] and "news" in spec.title
    aside = plots.text(trace, 3, how=how, example=1)
    torch.testing.assert_close(aside.values[1:4], spec.values[1:4])
    assert aside.values.isnan().tolist() == [True, False, False, False, True]
    assert aside.title == f"{how} to “news”; [CLS], [SEP] set aside"


def test_a_sentence_in_words(trace):
    words = Words.of("unbelievable news", [(0, 0), (0, 2), (2, 12), (13, 17), (0, 0)], WORDS)
    spec = plots.text(trace, 1, words=words)
    pieces = regard.rollout(trace, [1, 2])[0].mean(0)
    truth = torch.stack([pieces[0], pieces[1] + pieces[2], pieces[3], pieces[4]])
    torch.testing.assert_close(spec.values[1:3], truth[1:3])
    assert list(spec.marked) == [1] and spec.values.isnan().tolist() == [True, False, False, True]


def test_an_image_under_attention():
    weights = [torch.rand(1, 2, 13, 13).softmax(-1) for _ in range(2)]
    image = torch.rand(3, 30, 40)
    spec = plots.overlay(weights, image, patches=(3, 4))
    torch.testing.assert_close(spec.values.flatten(), regard.rollout(weights, 0)[0, 1:])
    assert spec.image.shape == (30, 40, 3) and spec.marked is None
    assert plots.overlay(weights, image, patches=(3, 4), token=6, how="mean").marked == (1, 1)
    with pytest.raises(ShapeError, match="4 × 4 patches"):
        plots.overlay(weights, image, patches=(4, 4))


def test_a_trace_plots_itself(trace, translation, tmp_path):
    assert isinstance(trace.plot(), plots.Grid)
    assert isinstance(trace[:1].plot(), plots.Heatmap)
    assert isinstance(trace.plot("by_head", figure="sink"), plots.Heatmap)
    assert isinstance(trace.plot("profile"), plots.Profile)
    assert isinstance(translation.plot("alignment"), plots.Heatmap)
    assert isinstance(trace.plot("text", token=0), plots.Text)
    assert trace.plot().save(tmp_path / "grid.png").stat().st_size > 1000


def test_a_trace_plots_as_the_function_of_that_name(trace):
    """Several layers are no heat map, whoever is asked."""
    for draw in (lambda: trace.plot("heatmap"), lambda: plots.heatmap(trace)):
        with pytest.raises(
            RegardError, match=r"heatmap: 3 layers, expected one, as trace\[0\]; grid"
        ):
            draw()
    spec = trace[1:2].plot("heatmap", heads=2)
    torch.testing.assert_close(spec.values, trace[1].weights()[0, 2])


def test_options_that_a_picture_does_not_have(trace):
    said = (
        r"plot\('heatmap'\): got an unexpected keyword argument 'layer'; it takes heads, example, w"
    )
    with pytest.raises(RegardError, match=said):
        trace.plot("heatmap", layer=1)
    with pytest.raises(RegardError, match=r"plot\('text'\): missing a required argument: 'token'"):
        trace.plot("text")


class Loop(nn.Module):
    """A decoder that attends once for each word that it writes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 1, batch_first=True)

    def forward(self, memory):
        state = torch.zeros(1, 1, 8)
        for _ in range(4):
            state = self.attention(state, memory, memory, need_weights=False)[0].tanh() + 1
        return state


def test_steps_of_a_decoder_loop_are_no_layers():
    torch.manual_seed(0)
    trace = regard.trace(Loop().eval(), torch.randn(1, 6, 8))
    trace = trace.relabel(dict.fromkeys(trace.names(), "cross"))
    said = r"alignment: attention ran 4 times in one pass: regard\.stitch\(trace\) joins .*layer=0"
    with pytest.raises(RegardError, match=said):
        plots.alignment(trace)
    rows = torch.cat([record.weights()[0, 0] for record in trace])
    torch.testing.assert_close(plots.alignment(regard.stitch(trace)).values, rows)
    torch.testing.assert_close(plots.alignment(trace, layer=2).values, rows[2:3])
    assert repr(trace.report()).startswith("Report of 4 heads in 4 calls of 1 layer\n")
    assert repr(trace[:1].report()).startswith("Report of 1 head in 1 layer\n")
    assert "cross distribution, 1 head, 1 × 6, batch 1" in repr(trace[0])


def test_what_is_refused(trace):
    with pytest.raises(RegardError, match="expected one of heatmap"):
        trace.plot("pie")
    with pytest.raises(RegardError, match="example=2"):
        plots.heatmap(trace[0], example=2)
    with pytest.raises(RegardError, match="3 layers"):
        plots.heatmap(list(trace))
    with pytest.raises(RegardError, match="how='magic'"):
        plots.text(trace, 0, how="magic")
    with pytest.raises(RegardError, match="figure='colour'"):
        plots.by_head(trace.report(), "colour")
    with pytest.raises(RegardError, match="trace is empty"):
        regard.Trace().plot()


def test_a_trace_of_encoder_and_decoder_is_drawn(translation):
    assert len(translation.plot().maps) == 6
    assert len(plots.grid(translation, part="decoder").maps) == 2
    assert plots.text(translation, 0, part="encoder").values.shape == (6,)


def test_tokens_outside_and_words_without_special_ones(trace):
    with pytest.raises(RegardError, match="token=100"):
        plots.text(trace, 100)
    words = Words.of("unbelievable news", [(0, 0), (0, 2), (2, 12), (13, 17), (0, 0)], WORDS)
    spec = plots.text(trace, 0, words=words.without_special())
    assert list(spec.words) == ["unbelievable", "news"]


def test_images_that_are_not_square_or_not_from_0_to_1():
    weights = [torch.rand(1, 2, 201, 201).softmax(-1)]
    with pytest.raises(ShapeError, match="patches="):
        plots.overlay(weights, torch.rand(80, 160, 3))
    with pytest.raises(RegardError, match="divide by 255"):
        plots.overlay(weights, 255 * torch.rand(80, 160, 3), patches=(10, 20))
