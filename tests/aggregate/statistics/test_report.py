"""The table of heads: planted heads get their names, real ones too; how it prints."""

import math
import pickle
import sys

import pytest
import torch
from torch import nn

import regard
from regard.aggregate.statistics.head_statistics import FIGURES, head_statistics
from regard.aggregate.statistics.head_types import NAMES, TYPES, head_types
from regard.aggregate.statistics.report import HeadRow, Report
from regard.cli import packaged
from regard.errors import RegardError, UnavailableError
from regard.mechanisms import DeltaRule, MultiHead

N = 48
TOKENS = torch.randint(0, 24, (N,), generator=torch.Generator().manual_seed(5))


def noisy(weights: torch.Tensor, share: float = 0.1, causal: bool = False) -> torch.Tensor:
    """A planted pattern with some even attention beside it; rows of nothing get that alone."""
    even = torch.ones(N, N, dtype=torch.float64)
    even = even.tril() if causal else even
    even = even / even.sum(-1, keepdim=True)
    empty = weights.sum(-1, keepdim=True) == 0
    return torch.where(empty, even, (1 - share) * weights + share * even)


def towards(pick, causal: bool = True) -> torch.Tensor:
    """Each query looks at the keys that `pick` names, alike."""
    weights = torch.zeros(N, N, dtype=torch.float64)
    for i in range(N):
        keys = [j for j in pick(i) if 0 <= j < N]
        weights[i, keys] = 1 / max(1, len(keys))
    return noisy(weights, causal=causal)


def copies(i: int, after: int) -> list[int]:
    return [j for j in range(1, i - 1) if j >= after and TOKENS[j - after] == TOKENS[i]]


def anywhere(i: int, last: int) -> list[int]:
    """One key that has nothing to do with where the query is."""
    random = torch.Generator().manual_seed(i)
    return torch.randint(1, last + 1, (1,), generator=random).tolist() if last else [0]


CAUSAL = {
    "previous": towards(lambda i: [i - 1]),
    "self": towards(lambda i: [i]),
    "sink": towards(lambda i: [0]),
    "broad": towards(lambda i: []),
    "local": towards(lambda i: [i, i - 1, i - 2, i - 3]),
    "induction": towards(lambda i: copies(i, 1)),
    "duplicate": towards(lambda i: copies(i, 0)),
    "positional": towards(lambda i: range(i - 12, i - 5)),
    "content": towards(lambda i: anywhere(i, i)),
}
FULL = {
    **{name: CAUSAL[name] for name in ("previous", "self", "sink")},
    "next": towards(lambda i: [i + 1], causal=False),
    "broad": towards(lambda i: [], causal=False),
    "local": towards(lambda i: range(i - 2, i + 3), causal=False),
    "special": towards(lambda i: [N - 1], causal=False),
    "positional": towards(lambda i: range(i + 6, i + 12), causal=False),
    "content": towards(lambda i: anywhere(i, N - 1), causal=False),
}


@pytest.mark.parametrize("planted", [CAUSAL, FULL], ids=["causal", "full"])
def test_planted_heads_get_their_names(planted):
    weights = torch.stack(list(planted.values()))[None]
    found = Report.of(weights, tokens=TOKENS, special=[N - 1])
    assert [row.type for row in found] == list(planted)
    for row in found:
        figure = TYPES[row.type].figure
        if row.type in ("previous", "next", "self", "sink", "special", "induction", "duplicate"):
            assert getattr(row, figure) > 0.85


def test_planted_figures():
    weights = torch.stack([CAUSAL["previous"], CAUSAL["sink"], CAUSAL["local"]])[None]
    before, sink, near = Report.of(weights, window=3)
    even = 1 / torch.arange(1, N + 1, dtype=torch.float64)
    assert before.previous == pytest.approx(0.9 + 0.1 * even[1:].mean().item())
    assert sink.sink == pytest.approx(0.9 + 0.1 * even.mean().item())
    assert sink.peak == pytest.approx(sink.sink)
    assert near.local > 0.9 and near.effective == pytest.approx(4.5, abs=0.5)
    assert before.positional > 0.8 > 0.2 > sink.positional


def test_the_figures_are_those_of_head_statistics():
    weights = torch.stack(list(CAUSAL.values()))[None]
    (found,) = head_statistics(weights, tokens=TOKENS)
    for row in Report.of(weights, tokens=TOKENS):
        for name in FIGURES:
            want = float(getattr(found, name)[row.head])
            assert getattr(row, name) == pytest.approx(want, nan_ok=True)


def test_permuting_heads_permutes_rows():
    weights = torch.stack(list(CAUSAL.values()))[None]
    order = torch.randperm(len(CAUSAL), generator=torch.Generator().manual_seed(0))
    plain, turned = Report.of(weights), Report.of(weights[:, order])
    assert [row.type for row in turned] == [plain[i].type for i in order.tolist()]


def figures(**known: float) -> dict[str, torch.Tensor]:
    values = {**dict.fromkeys(FIGURES, 0.0), "evenness": 0.7, "positional": 0.5, **known}
    return {name: torch.tensor([value, 0.0]) for name, value in values.items()}


def head_type(*arguments) -> tuple[str, bool]:
    """The type of the first of two heads."""
    types = head_types(*arguments)
    return NAMES[types.numbers[0]], bool(types.with_sink[0])


@pytest.mark.parametrize(
    ("known", "repeats", "type"),
    [
        ({}, 0, "mixed"),
        ({"previous": 0.4}, 0, "previous"),
        ({"previous": 0.39}, 0, "mixed"),
        ({"previous": 0.41, "itself": 0.5}, 0, "self"),
        ({"induction": 0.4, "peak": 0.9, "sink": 0.9}, 10, "induction"),
        ({"induction": 0.4, "peak": 0.9, "sink": 0.9}, 9, "sink"),
        ({"evenness": 0.85}, 0, "broad"),
        ({"peak": 0.4}, 0, "sink"),
        ({"peak": 0.6, "special": 0.6, "sink": 0.1}, 0, "special"),
        ({"peak": 0.5, "special": 0.6, "sink": 0.5}, 0, "sink"),
        ({"local": 0.6, "positional": 0.9}, 0, "local"),
        ({"positional": 0.6}, 0, "positional"),
        ({"positional": 0.3, "evenness": 0.6, "peak": 0.3}, 0, "content"),
        ({"positional": 0.3, "evenness": 0.6, "peak": 0.31}, 0, "mixed"),
        ({"positional": 0.3, "evenness": 0.61}, 0, "mixed"),
        ({"positional": math.nan, "evenness": 0.6}, 0, "sharp"),
        (dict.fromkeys(FIGURES, math.nan), 99, "mixed"),
    ],
)
def test_thresholds(known, repeats, type):
    assert head_type(figures(**known), repeats) == (type, False)


@pytest.mark.parametrize(
    ("aside", "rest", "named"),
    [
        (0.4, {"previous": 0.4}, ("previous", True)),
        (0.39, {"previous": 0.9}, ("sink", False)),
        (0.9, {"previous": 0.9}, ("previous", True)),
        (0.91, {"previous": 0.9}, ("sink", False)),
        (0.6, {}, ("mixed", True)),
        (0.6, {"evenness": 0.85}, ("sink", False)),
        (0.6, {"peak": 0.4}, ("sink", False)),
        (0.6, {"induction": 0.4}, ("induction", True)),
    ],
)
def test_what_is_left_without_the_sink_names_a_head(aside, rest, named):
    assert head_type(figures(peak=0.5, aside=aside), 10, figures(**rest)) == named


@pytest.mark.parametrize("planted", [CAUSAL, FULL], ids=["causal", "full"])
@pytest.mark.parametrize("small", [1 << 15, 0], ids=["stacked", "walked"])
def test_planted_heads_keep_their_names_beside_a_sink(planted, small, monkeypatch):
    monkeypatch.setattr(sys.modules["regard.kernel.reduce"], "_SMALL_MATRIX", small)
    weights = 0.4 * torch.stack(list(planted.values()))
    weights[..., 0] += 0.6
    for row, name in zip(Report.of(weights[None], tokens=TOKENS, special=[N - 1]), planted):
        bare = name in ("sink", "special", "broad")
        assert row.label == ("sink" if bare else f"{name}, with a sink"), row
        assert row.aside >= 0.6


def test_the_sink_is_told_for_each_example():
    """Padding before the second text: its first word lies elsewhere."""
    text = torch.zeros(12, 12, dtype=torch.float64)
    text[:, 0] = 0.6
    text[range(1, 12), range(11)] += 0.4
    text[0, 0] = 1.0
    padded = torch.zeros(16, 16, dtype=torch.float64)
    padded[4:, 4:] = text
    whole = torch.zeros(16, 16, dtype=torch.float64)
    whole[:12, :12] = text
    whole[12:] = whole[11]
    real = torch.ones(2, 16, dtype=torch.bool)
    real[0, 12:] = real[1, :4] = False
    (row,) = Report.of(torch.stack([whole, padded])[:, None], real=real)
    (alone,) = Report.of(text[None, None])
    assert row.label == alone.label == "previous, with a sink"
    assert row.aside == pytest.approx(alone.aside)


@pytest.mark.parametrize("small", [1 << 15, 0], ids=["stacked", "walked"])
def test_figures_of_the_rest_are_shares_of_it(small, monkeypatch):
    """Where each row leaves as much, they are the figures of the rows divided by it."""
    monkeypatch.setattr(sys.modules["regard.kernel.reduce"], "_SMALL_MATRIX", small)
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(1, 2, N, N, generator=generator, dtype=torch.float64).pow(8)
    weights[..., 5] = 0.0
    weights = weights / weights.sum(3, keepdim=True)
    sunk = 0.5 * weights
    sunk[..., 5] = 0.5
    tokens = torch.randint(0, 9, (N,), generator=generator)
    (found,) = head_statistics(sunk, tokens=tokens)
    (alone,) = head_statistics(weights, tokens=tokens)
    assert found.rest is not None and alone.rest is None
    assert found.aside.tolist() == [0.5, 0.5]
    for name in ("entropy", "effective", "distance", "spread", "itself", "local", "peak"):
        torch.testing.assert_close(found.rest[name], getattr(alone, name))
    for name in ("induction", "duplicate"):
        torch.testing.assert_close(found.rest[name], getattr(alone, name))
    for name in ("previous", "next"):  # of the queries beside the sink there is none
        scale = (N - 1) / (N - 2)
        torch.testing.assert_close(found.rest[name], scale * getattr(alone, name))
    in_sight = math.log(N - 1) / math.log(N)
    torch.testing.assert_close(found.rest["evenness"], alone.evenness / in_sight)


class TestReport:
    @pytest.fixture
    def found(self):
        return Report.of([torch.stack(list(CAUSAL.values()))[None]] * 2, tokens=TOKENS)

    def test_it_is_a_sequence_of_rows(self, found):
        assert len(found) == len(list(found)) == 2 * len(CAUSAL)
        assert isinstance(found[0], HeadRow) and found[-1].layer == 1
        assert found[1, 2] is found[len(CAUSAL) + 2]
        assert [row.head for row in found[:3]] == [0, 1, 2]
        with pytest.raises(KeyError, match=r"\(layer, head\) \(2, 0\); there are layers \[0, 1\]"):
            found[2, 0]

    def test_heads_of_a_type(self, found):
        assert [(row.layer, row.head) for row in found.heads("previous")] == [(0, 0), (1, 0)]
        assert found.heads("next") == []
        with pytest.raises(RegardError, match="type='prev', expected one of previous, next, self"):
            found.heads("prev")

    def test_the_best(self, found):
        best = found.best("induction", 3)
        assert [row.type for row in best[:2]] == ["induction"] * 2 and len(best) == 3
        assert found.best("self", 1)[0].type == "self" == found.best("itself", 1)[0].type
        assert found.best("broad", 1)[0].type == "broad"
        with pytest.raises(RegardError, match="best: 'mixed', expected one of self, entropy"):
            found.best("mixed")

    def test_what_is_not_known_has_no_best(self):
        bare = Report.of(CAUSAL["previous"][None, None])
        with pytest.raises(RegardError, match=r"no head has 'induction'.*need tokens="):
            bare.best("induction")

    def test_columns(self, found):
        columns = found.to_dict()
        assert list(columns)[:4] == ["layer", "head", "name", "type"]
        assert all(len(column) == len(found) for column in columns.values())
        assert columns["previous"][0] == found[0].previous

    def test_counts(self, found):
        assert found.counts() == dict.fromkeys(CAUSAL, 2)

    def test_it_survives_pickling(self, found):
        assert repr(pickle.loads(pickle.dumps(found))) == repr(found)


class TestPrinting:
    def test_a_short_report_is_a_table(self):
        weights = torch.stack(list(CAUSAL.values()))[None]
        lines = repr(Report.of(weights, tokens=TOKENS)).splitlines()
        assert lines[0] == f"Report of {len(CAUSAL)} heads in 1 layer"
        assert lines[1].startswith("previous 1, self 1, induction 1")
        assert lines[2].split()[:5] == ["layer", "head", "type", "entropy", "even"]
        assert len({len(line.rstrip()) for line in lines[2 : 4 + len(CAUSAL)]}) == 1, "aligned"
        assert lines[4].split()[:3] == ["0", "0", "previous"]
        assert "spec" not in lines[2].split(), "columns of nothing are left out"
        assert lines[-1] == "special needs special=, or words as tokens="

    def test_a_long_report_is_a_grid_and_the_clearest(self):
        weights = torch.stack(list(CAUSAL.values()))[None]
        shown = repr(Report.of([weights] * 12, tokens=TOKENS))
        lines = shown.splitlines()
        lines = lines[lines.index("") :]
        assert lines[1] == "layer  0 1 2 3 4 5 6 7 8"
        assert lines[2] == "    0  p o s b l i d + c" and lines[13].startswith("   11  p o s")
        assert "the clearest of each type, 27 of 108 heads; report.table() has all" in shown
        assert len(lines) < 60 and max(map(len, lines)) <= 120

    def test_html_is_escaped_and_whole(self):
        row = Report.of(CAUSAL["previous"][None, None])[0]
        named = HeadRow(**{**row.__dict__, "name": "<b>site</b>"})
        html = Report([named] * 50, notes=["a < b"], sites=True)._repr_html_()
        assert html.count("&lt;b&gt;site&lt;/b&gt;") == 50 and "<b>" not in html
        assert "a &lt; b" in html and html.count("<tr>") == 51

    def test_nothing(self):
        assert repr(Report([])) == "Report of no heads" and "no heads" in Report([])._repr_html_()


def encoder_decoder(length: int = 12) -> regard.Trace:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 2, 2, 16, batch_first=True, dropout=0.0).eval()
    with torch.no_grad():
        return regard.trace(model, torch.randn(2, length, 16), torch.randn(2, 5, 16))


class TestTraces:
    def test_an_encoder_decoder_model_is_reported_whole(self):
        trace = encoder_decoder()
        found = trace.report()
        assert [row.name for row in found][::2] == trace.names()
        assert [row.layer for row in found][::2] == list(range(6)), "the paths' numbers repeat"
        cross = [row for row in found if "multihead_attn" in row.name]
        assert len(cross) == 4 and all(math.isnan(row.previous) for row in cross)
        assert "decoder.layers.1.multihead_attn" in repr(found), "sites tell them apart"

    def test_one_part_of_it(self):
        real = torch.tensor([[1] * 12, [1] * 6 + [0] * 6])
        trace = encoder_decoder()
        with pytest.raises(RegardError, match=r"real: of which sequence.*part='encoder'"):
            trace.report(real=real)
        found = trace.report(real=real, part="encoder")
        assert len(found) == 4 and {row.layer for row in found} == {0, 1}
        assert "site" not in repr(found)
        assert all(math.isnan(row.distance) for row in trace.report(part="cross"))

    def test_layers_keep_their_numbers(self):
        layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
        with torch.no_grad():
            trace = regard.trace(model, torch.randn(1, 6, 16))
        assert {row.layer for row in trace[2:].report()} == {2, 3}

    def test_what_cannot_be_answered_is_refused(self):
        layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        x = torch.randn(1, 4, 8)
        with pytest.raises(UnavailableError, match="the trace is empty"):
            regard.Trace().report()
        with torch.no_grad():
            trace = regard.trace(layer, x, x, x)
            with regard.capture(layer) as twice:
                layer(x, x, x)
                layer(x, x, x)
        with pytest.raises(RegardError, match=r"2 passes.*trace.steps\[0\]"):
            twice.report()
        assert len(twice.steps[0].report()) == 2
        trace[0].drop()
        with pytest.raises(UnavailableError, match="dropped"):
            trace.report()
        with pytest.raises(UnavailableError, match="signed weights are no shares"):
            Report.of(torch.randn(1, 1, 3, 3), kind="signed")

    def test_layers_of_signed_weights_are_left_out(self):
        torch.manual_seed(0)
        x = torch.randn(1, 6, 8)
        hybrid = nn.Module()
        hybrid.layers = nn.ModuleList([DeltaRule(8, 2), MultiHead(8, 2)])
        with torch.no_grad(), regard.capture(hybrid) as trace:
            for layer in hybrid.layers:
                x = layer(x, causal=True).output
        report = trace.report()
        assert [(row.layer, row.head) for row in report] == [(1, 0), (1, 1)]
        assert "layers.0: left out, as signed weights are no shares of a whole" in report.notes
        assert report.table() == trace.layers(1).report().table()


class TestRealModels:
    TEXT = "The animal didn't cross the street because it was too tired."

    def test_minilm_has_a_previous_token_head(self):
        with packaged.quietly():
            loaded = packaged.minilm()
        encoded = loaded.encode(self.TEXT)
        with torch.no_grad(), regard.capture(loaded.model, tokens=encoded.tokens) as trace:
            loaded.model(**encoded.inputs)
        found = trace.report()
        assert len(found) == 72
        assert found[0, 2].type == "previous" and found[0, 2].previous > 0.95
        assert (found.best("previous", 1)[0].layer, found.best("previous", 1)[0].head) == (0, 2)
        ends = trace[0].weights()[0, 2][:, [0, -1]]  # [CLS] and [SEP]
        assert found[0, 2].special == pytest.approx(ends.sum(-1).mean().item(), abs=1e-5)
        assert "too few to name a head" in repr(found), "one word occurs twice"

    def test_padding_changes_nothing(self):
        with packaged.quietly():
            loaded = packaged.minilm()
        batch = loaded.tokenizer(
            ["see that girl run", self.TEXT], return_tensors="pt", padding=True
        )
        alone = loaded.tokenizer("see that girl run", return_tensors="pt")
        with torch.no_grad():
            padded = regard.trace(loaded.model, **batch)
            single = regard.trace(loaded.model, **alone)
        one = regard.Trace([_example(record, 0) for record in padded])
        got = one.report(batch["input_ids"][:1], real=batch["attention_mask"][:1])
        want = single.report(alone["input_ids"])
        for mine, theirs in zip(got, want, strict=True):
            for name in FIGURES:
                assert getattr(mine, name) == pytest.approx(
                    getattr(theirs, name), abs=2e-4, nan_ok=True
                ), name

    def test_smollm2_has_its_induction_heads_on_top(self):
        """Random tokens, twice: an induction head looks at what followed the same token before."""
        model = packaged.smollm2().model
        generator = torch.Generator().manual_seed(0)
        half = torch.randint(1000, 40_000, (1, 40), generator=generator)
        ids = torch.cat([half, half], 1)
        with torch.no_grad():
            trace = regard.trace(model, ids)
        found = trace.report(ids)
        best = found.best("induction", 5)
        assert [(row.layer, row.head) for row in best[:2]] == [(18, 6), (17, 3)]
        assert best[0].induction > 0.8 and best[0].type == best[1].type == "induction"
        second = torch.arange(40, 80)
        weights = trace["model.layers.18.self_attn"].weights()[0, 6]
        followed = weights[second, second - 39].mean().item()
        assert best[0].induction == pytest.approx(followed, abs=1e-5)


def _example(record: regard.Record, number: int) -> regard.Record:
    from regard.record.stored_attention import StoredRecipe

    recipe = record.recipe.map(lambda tensor: tensor[number : number + 1])
    return record._copy(held=StoredRecipe(recipe), shape=recipe.shape)
