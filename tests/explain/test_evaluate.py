"""Tables of what was measured, and verdicts that can go either way."""

import sys

import pytest
import torch
from explain_models import CLS, padded, same, untrained

import regard
from regard import RegardError, explain
from regard.explain import evaluation_result


def test_truth_beats_random_and_its_reverse_does_not(additive):
    model, ids, truth = additive
    noise = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1))
    given = {"truth": truth, "reverse": -truth, "noise": noise}
    result = explain.evaluate(model, ids, given, same, replacements=explain.ZeroEmbedding())
    for metric in evaluation_result.METRICS:
        assert result.beats_random("truth", metric)
        assert not result.beats_random("reverse", metric)
        assert not result.beats_random("noise", metric)
        assert result.best(metric) == "truth"
        order = result.ranking(metric)
        assert order[-1] == "reverse" and set(order[:3]) == {
            "truth",
            "input × gradient",
            "integrated gradients",
        }
    assert "zero embedding: truth is the most faithful" in result.verdict()
    place = result.methods.index
    agree = result.agreement
    assert float(agree[place("truth"), place("reverse")]) == pytest.approx(-1)
    assert float(agree[place("truth"), place("input × gradient")]) == pytest.approx(1)
    assert abs(float(agree[place("truth"), place("random")])) < 0.15


def test_it_says_plainly_that_none_beats_random(additive):
    model, ids, truth = additive
    generator = torch.Generator().manual_seed(2)
    given = {f"noise {i}": torch.rand(ids.shape, generator=generator) for i in range(8)}
    result = explain.evaluate(model, ids, {**given, "reverse": -truth}, same)
    assert result.best() is None
    assert "NONE of the methods beats random" in str(result)
    assert "NONE of the methods beats random" in result._repr_html_()


def test_luck_is_rare():
    """Of nine useless methods none beats random, in nearly all of many evaluations."""
    lucky = 0
    for trial in range(60):
        generator = torch.Generator().manual_seed(trial)
        values = torch.randn(10, 40, generator=generator).double()
        methods = [*(f"noise {i}" for i in range(9)), "random"]
        measured = {
            ("way", method): evaluation_result.Measurement(
                method,
                "way",
                {"comprehensiveness": values[i]},
                torch.zeros(1),
                torch.zeros(1),
                torch.zeros(1),
            )
            for i, method in enumerate(methods)
        }
        result = evaluation_result.Evaluation(measured, methods, torch.eye(10), 40, seed=trial)
        lucky += result.best() is not None
    assert lucky <= 4  # 2.5 % would be 1.5


def test_few_examples_prove_nothing(additive):
    model, ids, truth = additive
    result = explain.evaluate(model, ids[:4], {"truth": truth[:4]}, same)
    assert result.over("truth", "random").low > 0, "an interval of few examples is too sure"
    assert not result.beats_random("truth")
    assert "too few examples to tell any method from random; at least 8" in result.verdict()


def test_the_table(additive):
    model, ids, truth = additive
    ways = [explain.ZeroEmbedding(), explain.MeanEmbedding()]
    result = explain.evaluate(model, ids, {"<truth>": truth}, same, replacements=ways)
    assert result.replacements == ["zero embedding", "mean embedding"]
    text = str(result)
    assert "40 examples; target: same; intervals of 95 % over examples" in text
    assert "removed: zero embedding" in text and "removed: mean embedding" in text
    rows = result.rows("sufficiency", "mean embedding")
    assert [row[0] for row in rows] == result.ranking("sufficiency", "mean embedding")
    mean, low, high = result.interval("<truth>", "sufficiency", "mean embedding")
    assert low < mean < high
    assert f"{mean:.3f} [{low:.3f}, {high:.3f}]" in text
    assert "<truth>" not in result._repr_html_() and "&lt;truth&gt;" in result._repr_html_()
    assert "comprehensiveness" in repr(result.of("<truth>"))
    with pytest.raises(RegardError, match="metric='speed'"):
        result.interval("<truth>", "speed")
    with pytest.raises(RegardError, match="was not measured"):
        result.of("nothing")


def test_replacements_that_disagree_are_told():
    def measured(method, way, value):
        noise = torch.randn(30, generator=torch.Generator().manual_seed(len(method))).double()
        values = {"comprehensiveness": value + 0.1 * noise}
        return evaluation_result.Measurement(method, way, values, *[torch.zeros(1)] * 3)

    means = {"a": (0.9, 0.3), "b": (0.4, 0.8), "random": (0.0, 0.0)}
    both = {
        (way, method): measured(method, way, means[method][i])
        for i, way in enumerate(["first", "second"])
        for method in means
    }
    result = evaluation_result.Evaluation(both, list(means), torch.eye(3), 30)
    assert result.best(replacement="first") == "a" and result.best(replacement="second") == "b"
    assert "The replacements do not agree" in result.verdict()


def test_a_baseline_that_is_better_is_named(additive):
    model, ids, truth = additive
    noisy = truth + 1.5 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(3))
    result = explain.evaluate(model, ids, {"noisy": noisy}, same)
    assert result.best() == "noisy"
    assert "Without attention, " in result.verdict() and "did better" in result.verdict()


def test_the_same_seed_gives_the_same_and_batches_change_nothing_but_chance():
    model, data = untrained(), padded(8)
    given = torch.rand(8, 13, generator=torch.Generator().manual_seed(0))
    one, again = (explain.evaluate(model, data, {"mine": given}, special=[CLS]) for _ in range(2))
    assert str(one) == str(again)
    halves = [{name: value[rows] for name, value in data.items()} for rows in
              (slice(0, 3), slice(3, 8))]  # fmt: skip
    loader = (half for half in halves)
    listed = explain.evaluate(
        model, loader, {"mine": [given[:3], given[3:]]}, special=[CLS], batch_size=2
    )
    for metric, values in one.of("mine").values.items():
        torch.testing.assert_close(listed.of("mine").values[metric], values, rtol=0, atol=1e-10)


def test_labels_and_masks_are_cut_with_their_examples():
    model, data = untrained(), padded(8)
    labels = torch.arange(8) % 2
    mask = (data["attention_mask"] == 1) & (data["input_ids"] != CLS)
    mask[:, 2] = False
    given = {"mine": torch.rand(8, 13)}
    whole, cut = (
        explain.evaluate(model, data, given, labels, removable=mask, batch_size=size)
        for size in (100, 3)
    )
    for metric, values in whole.of("mine").values.items():
        torch.testing.assert_close(cut.of("mine").values[metric], values, rtol=0, atol=1e-10)


def test_features_of_a_position_are_added_up(additive):
    model, ids, truth = additive
    wide = torch.stack([truth * 2, -truth], -1)
    result = explain.evaluate(model, ids, {"wide": wide, "narrow": truth}, same)
    for wide_values, values in zip(
        result.of("wide").values.values(), result.of("narrow").values.values()
    ):
        assert torch.equal(wide_values, values)


def test_examples_without_anything_to_remove_are_left_out():
    data = padded(6)
    data["attention_mask"][1] = 0
    data["attention_mask"][1, 0] = 1
    given = {"mine": torch.rand(6, 13)}
    result = explain.evaluate(untrained(), data, given, special=[CLS])
    assert result.left_out == 1 and "6 examples, 1 left out" in str(result)
    assert result.of("mine").values["insertion"].isnan().tolist() == [False, True] + [False] * 4
    assert not torch.tensor(result.interval("mine")).isnan().any()
    assert not result.of("mine").deletion.isnan().any()
    keep = [0, 2, 3, 4, 5]
    some = {name: value[keep] for name, value in data.items()}
    without = explain.evaluate(untrained(), some, {"mine": given["mine"][keep]}, special=[CLS])
    assert without.interval("mine") == result.interval("mine")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"random": torch.rand(5, 13)}, {}, "names of baselines"),
        ({"a": torch.rand(4, 13)}, {}, "4 examples, the data has 5"),
        ({"a": torch.rand(5, 12)}, {}, r"expected \(5, 13\)"),
        ({"a": "text"}, {}, "a tensor for each batch"),
        ({}, {"seeds": 0}, "seeds=0"),
        ({}, {"replacements": []}, "at least one"),
        ({}, {"replacements": [explain.AttentionMask(), explain.AttentionMask()]}, "its own name"),
        ({}, {"target": [0, 1]}, "target: 2 for 1 batches"),
    ],
)
def test_what_is_refused(given, options, message):
    with pytest.raises(RegardError, match=message):
        explain.evaluate(untrained(), padded(), given, special=[CLS], **options)
    with pytest.raises(RegardError, match="empty list"):
        explain.evaluate(untrained(), [], {}, special=[CLS])


def test_a_bar_is_drawn_where_somebody_watches(capsys, monkeypatch):
    model, data = untrained(), padded()
    explain.evaluate(model, data, {}, special=[CLS])
    assert capsys.readouterr().err == "", "no terminal, no bar"
    explain.evaluate(model, data, {}, special=[CLS], show_progress=True)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    explain.evaluate(model, data, {}, special=[CLS])
    with pytest.raises(regard.RegardError, match=r"regard\[cli\]"):
        explain.evaluate(model, data, {}, special=[CLS], show_progress=True)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replacements": ["mask"]}, "replacements: 'mask'"),
        ({"bins": 2.0}, r"bins=\(2.0,\)"),
        ({"special": "[CLS]"}, "expected a tokenizer, or a list of token numbers"),
        ({"attributions": torch.ones(2, 2)}, "expected tensors by name"),
    ],
)
def test_arguments_that_are_something_else(options, said):
    model, inputs = untrained(), padded()
    given = {"attributions": {}, "special": [CLS], **options}
    with pytest.raises(RegardError, match=said):
        explain.evaluate(model, inputs, given.pop("attributions"), **given)
