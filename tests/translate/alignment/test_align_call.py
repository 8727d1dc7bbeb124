"""`align`: which head, reading and rule give the links, in one call."""

import pytest
import torch

from regard.errors import RegardError, UnavailableError
from regard.translate.alignment import (
    Gold,
    Head,
    Sentence,
    above,
    align,
    by_agreement,
    by_error,
    error_rate,
    flipped,
    force,
    save_preferred_head,
    symmetrise,
    usual_head,
)
from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.vocabulary import WordVocabulary

SOURCES = ["the cat sleeps", "a dog", "yes sir"]
TARGETS = ["le chat dort", "un chien", "oui monsieur !"]
GOLD = [Gold.of({(0, 0), (1, 1), (2, 2)}), Gold.of({(0, 0), (1, 1)}), Gold.of({(0, 0)}, {(1, 1)})]
READINGS = ("input", "output")


def checkpoint(seed, sources, targets, name="transformer"):
    """A model that was not trained."""
    source, target = (WordVocabulary.train(texts, size=20) for texts in (sources, targets))
    inner = {"heads": 2, "feed_forward": 8} if name == "transformer" else {}
    torch.manual_seed(seed)
    config = ModelConfig(name, embedding=8, hidden=8, layers=2, **inner)
    model = build_model(config, len(source), len(target))
    return Checkpoint(Config(model=config), source, target, model)


@pytest.fixture(scope="module")
def forward():
    return checkpoint(0, SOURCES, TARGETS)


@pytest.fixture(scope="module")
def backward():
    return checkpoint(1, TARGETS, SOURCES)


def heads(model, sources, targets, reading):
    """What all heads attended to."""
    return force(
        model.model,
        [Sentence.spaced(text, model.source) for text in sources],
        [Sentence.spaced(text, model.target) for text in targets],
    ).heads(reading)


def test_without_anything_to_choose_by_the_usual_head_is_read(forward):
    alignment = align(forward, SOURCES, TARGETS)
    expected = heads(forward, SOURCES, TARGETS, "input")
    assert (alignment.head, alignment.reading) == (usual_head(expected.heads), "input")
    assert alignment.links == expected.links(alignment.head)
    assert (alignment.backward_head, alignment.backward_reading, alignment.error) == (None,) * 3
    assert alignment.why.startswith("the usual one")


def test_gold_chooses_head_and_reading(forward):
    alignment = align(forward, SOURCES, TARGETS, gold=GOLD)
    errors = {
        (reading, best.head): best.error
        for reading in READINGS
        for best in by_error(heads(forward, SOURCES, TARGETS, reading), GOLD)
    }
    assert alignment.error.error == min(error.error for error in errors.values())
    assert alignment.error == errors[alignment.reading, alignment.head]
    assert alignment.error == error_rate(alignment.links, GOLD)
    assert alignment.why == "least alignment error"


def test_agreement_chooses_heads_and_readings_of_both_directions(forward, backward):
    alignment = align(forward, SOURCES, TARGETS, backward=backward, symmetriser="union")
    there = {reading: heads(forward, SOURCES, TARGETS, reading) for reading in READINGS}
    back = {reading: heads(backward, TARGETS, SOURCES, reading) for reading in READINGS}
    most = max(
        by_agreement(there[one], back[other])[0].agreement for one in READINGS for other in READINGS
    )
    assert alignment.why == f"most agreement of both directions, {100 * most:.1f} %"
    links = there[alignment.reading].links(alignment.head)
    others = back[alignment.backward_reading].links(alignment.backward_head)
    expected = [symmetrise(a, flipped(b), "union") for a, b in zip(links, others)]
    assert alignment.links == expected


@pytest.mark.parametrize("head", ["1.cross:1", Head("1.cross", 1)])
@pytest.mark.parametrize("rule", [0.2, "0.2", above(0.2)])
def test_a_named_head_reading_and_rule(forward, head, rule):
    alignment = align(forward, SOURCES, TARGETS, head=head, reading="output", rule=rule)
    assert (alignment.head, alignment.reading) == (Head("1.cross", 1), "output")
    assert alignment.why == "as was asked"
    expected = heads(forward, SOURCES, TARGETS, "output").links(alignment.head, above(0.2))
    assert alignment.links == expected


def test_one_named_head_leaves_the_other_to_be_chosen(forward, backward):
    named = align(forward, SOURCES, TARGETS, backward=backward, backward_head="0.cross:1")
    assert named.backward_head == Head("0.cross", 1) and "most agreement" in named.why
    both = align(
        forward, SOURCES, TARGETS, backward=backward, head="0.cross", backward_head="0.cross:1"
    )
    assert both.head == Head("0.cross", None) and both.why == "as was asked"


def test_a_preferred_head_is_read_from_the_file(forward, tmp_path):
    path = tmp_path / "small.safetensors"
    save_checkpoint(path, forward)
    save_preferred_head(path, Head("1.cross", 1), "output")
    alignment = align(path, SOURCES, TARGETS)
    assert (alignment.head, alignment.reading) == (Head("1.cross", 1), "output")
    assert alignment.why == "as the checkpoint remembers"
    assert align(load_checkpoint(path), SOURCES, TARGETS, reading="input").reading == "input"
    assert align(path, SOURCES, TARGETS, gold=GOLD).why == "least alignment error"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "9.cross"}, "head 9.cross, expected one of 0.cross:0"),
        ({"backward_head": "0.cross"}, "backward_head is 0.cross, but there is no backward"),
        (
            {"rule": "best"},
            "rule best, expected strongest, mutual or a number above 0 and at most 1",
        ),
        ({"rule": 2.0}, "rule 2.0, expected strongest, mutual or a number above 0 and at most 1"),
        ({"symmetriser": "all"}, "'all', expected one of intersection"),
        ({"gold": GOLD[:1]}, "3 sentences have links, but 1 have gold links"),
    ],
)
def test_what_is_refused(forward, options, message):
    with pytest.raises(RegardError, match=message):
        align(forward, SOURCES, TARGETS, **options)


def test_texts_and_models_that_cannot_be_aligned(forward):
    with pytest.raises(RegardError, match="there are no sentences"):
        align(forward, [], [])
    with pytest.raises(RegardError, match="there are 3 sources, but 2 targets"):
        align(forward, SOURCES, TARGETS[:2])
    with pytest.raises(UnavailableError, match="no attention from target to source, so nothing"):
        align(checkpoint(2, SOURCES, TARGETS, "none"), SOURCES, TARGETS)
