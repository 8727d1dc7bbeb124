"""The decisive experiment: one token of twelve bears the label, and the truth is known.

A two-layer classifier learns it, with tokens kept out of attention at random, so that it knows
what to say when the token is not there: one half. Following a true explanation for one token then
takes the probability from 1 to 1/2, and that token alone keeps it at 1.
"""

import pytest
import torch
from explain_models import CLS, LENGTH, sentences, trained

from regard import explain
from regard.explain.aggregations import AGGREGATIONS, aggregated

ONE = [1 / LENGTH]  # a bin of one token
CLASSIC = ["mean attention", "rollout", "relevance", "norm attention", "gradient × attention"]


@pytest.fixture(scope="module")
def planted():
    """The model, and sentences it has not seen."""
    state = torch.get_rng_state()
    model = trained(110)
    torch.set_rng_state(state)
    ids, labels, places = sentences(100, torch.Generator().manual_seed(99))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        assert torch.equal(model.eval()(**data).argmax(-1), labels), "it learned its task"
    return model, data, places


@pytest.fixture(scope="module")
def found(planted):
    model, data, _ = planted
    task = explain.Task(model, data, special=[CLS], batch_size=200)
    attributions, reasons = aggregated(task)
    assert not reasons and list(attributions) == list(AGGREGATIONS)
    return task, attributions


@pytest.mark.parametrize("method", CLASSIC)
def test_every_method_points_at_the_token(planted, found, method):
    task, attributions = found
    first = attributions[method].masked_fill(~task.removable, -torch.inf).argmax(-1)
    assert torch.equal(first, planted[2])


def test_random_points_at_it_by_chance(planted, found):
    task, _ = found
    drawn = torch.rand(50, *task.removable.shape, generator=torch.Generator().manual_seed(0))
    first = drawn.masked_fill(~task.removable, -torch.inf).argmax(-1)
    hits = float((first == planted[2]).double().mean())
    assert hits == pytest.approx(1 / LENGTH, abs=0.015)


@pytest.mark.parametrize("method", CLASSIC)
def test_the_figures(found, method):
    task, attributions = found
    assert float(task.original.mean()) > 0.99
    falls = explain.comprehensiveness(task, attributions[method], bins=ONE)
    misses = explain.sufficiency(task, attributions[method], bins=ONE)
    assert float(falls.mean()) == pytest.approx(0.5, abs=0.015)
    assert float(misses.mean()) == pytest.approx(0.0, abs=0.005)


def test_recommend_finds_them_all_faithful(planted, capsys):
    model, data, _ = planted
    result = explain.recommend(model, data, special=[CLS], bins=ONE, batch_size=200)
    shown = capsys.readouterr().out
    assert shown.strip() == str(result).strip() and "beats random" in shown
    for method in CLASSIC:
        assert result.beats_random(method) and result.beats_random(method, "sufficiency")
        assert result.interval(method, "deletion").high < result.interval("random", "deletion").low
    chance = result.of("random").values
    assert float(chance["comprehensiveness"].mean()) == pytest.approx(0.5 / 12, abs=0.02)
    assert float(chance["sufficiency"].mean()) == pytest.approx(0.5 * 11 / 12, abs=0.03)
    assert not result.beats_random("random") and result.best() in AGGREGATIONS
    assert "Not told apart from it" in result.verdict()


@pytest.mark.parametrize(
    "way", [explain.MeanEmbedding(), explain.MaskToken(3)], ids=lambda way: way.name
)
def test_other_replacements_agree_on_who_is_better(planted, found, way):
    """They show the model what it never saw in training, so the figures differ; the order not."""
    task, attributions = found
    rollout = explain.comprehensiveness(task, attributions["rollout"], way, bins=ONE)
    chance = torch.rand(task.removable.shape, generator=torch.Generator().manual_seed(0))
    random = explain.comprehensiveness(task, chance, way, bins=ONE)
    assert float(rollout.mean()) > 0.25 > 0.1 > float(random.mean())
