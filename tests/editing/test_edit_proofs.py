"""What an edit must do if it does what it says."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES
from induction import Induction, accuracy, repeated
from test_edit_families import hidden

import regard
from regard import masks
from regard.editing import allow, forbid, replace, silence
from regard.heads import head_mask, head_sites

CASES = [
    (name, implementation)
    for name in ("bert", "gpt2", "llama", "t5", "whisper", "albert", "vit")
    for implementation in ("sdpa", "eager")
]


@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_a_run_patched_into_itself_changes_nothing(name: str, implementation: str) -> None:
    model, inputs = FAMILIES[name].build(implementation), FAMILIES[name].inputs()
    with torch.no_grad():
        plain = hidden(model(**inputs))
        trace = regard.trace(model, **inputs)
        with regard.edit(model, replace(trace), like=trace) as edits:
            patched = hidden(model(**inputs))
    assert sum(edits.touched[0].values()) == len(trace)
    for ours, theirs in zip(patched, plain):
        assert (ours - theirs).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_knockout_is_the_eager_mask(name: str, implementation: str) -> None:
    family = FAMILIES[name]
    model, twin = family.build(implementation), family.build("eager").double()
    words = family.inputs()["input_ids"]
    allowed = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    allowed[:, :, 7:, 3] = False
    allowed[:, :, 5, 1:3] = False
    if name == "mistral":
        allowed &= torch.ones(12, 12, dtype=torch.bool).triu(-4)
    added = torch.zeros(allowed.shape, dtype=torch.float64)
    added = added.masked_fill(~allowed, torch.finfo(torch.float64).min)
    changes = [forbid(queries=slice(7, None), keys=3), forbid(queries=5, keys=[1, 2])]
    with torch.no_grad():
        truth = hidden(twin(input_ids=words, attention_mask=added))[0]
        for edit in (changes, [allow(masks.pairs(allowed))]):
            with regard.edit(model, *edit):
                output = hidden(model(input_ids=words))[0]
            assert (output - truth).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_silence_is_a_zeroed_slice_of_the_output_projection(name: str) -> None:
    model, inputs = FAMILIES[name].build("sdpa"), FAMILIES[name].inputs()
    sites = head_sites(model)
    mask = torch.ones(len(sites), 4)
    mask[0, 1] = mask[1, 3] = 0
    changes = [
        silence(heads=head, where=lambda site, path=path: site.path == path)
        for head, path in ((1, sites[0].name), (3, sites[1].name))
    ]
    with torch.no_grad():
        with regard.edit(model, *changes):
            silenced = hidden(model(**inputs))[0]
        with head_mask(model, mask):
            masked = hidden(model(**inputs))[0]
        regard.prune(model, {sites[0].name: [1], sites[1].name: [3]})
        pruned = hidden(model(**inputs))[0]
    assert torch.equal(silenced, masked)
    assert (silenced - pruned).abs().max() <= 1e-6


@pytest.mark.parametrize("fused", [True, False])
def test_induction(fused: bool) -> None:
    """One head at a time: copying needs the previous-token head and the induction head alone."""
    model, words = Induction(fused), repeated()
    distance = 17  # from a word to what followed it the first time
    offset = torch.arange(36)[:, None] - torch.arange(36)
    without = lambda lag: masks.pairs((offset != lag)[None, None])
    for broken in (
        silence(heads=0, where="layers.1"),
        silence(heads=0, where="layers.0"),
        allow(without(distance), heads=0, where="layers.1"),
    ):
        with regard.edit(model, broken):
            assert accuracy(model, words) < 0.1, broken  # chance
    assert accuracy(model, words) > 0.96
    for kept in (
        silence(heads=1),
        replace("previous", heads=0, where="layers.0"),
        replace("uniform", heads=1),
        allow(without(distance - 1), heads=0, where="layers.1"),
    ):
        with regard.edit(model, kept):
            assert accuracy(model, words) > 0.96, kept


def test_patching_finds_the_heads_that_copy() -> None:
    model = Induction(fused=True)
    clean = repeated()[:1]
    corrupted = clean.clone()
    corrupted[0, 17] = clean[0, 0]  # the word before is another one: the answer changes

    def metric(output: torch.Tensor) -> torch.Tensor:
        return output[0, 34, clean[0, 17]] - output[0, 34, corrupted[0, 17]]

    values = regard.patch(model, clean, corrupted, metric=metric, what="values")
    assert values.rows == ["layers.0", "layers.1"] and values.columns == range(2)
    assert values.top(1)[0][:2] == ("layers.1", 0)
    assert values["layers.1", 0] > 0.9 and abs(values["layers.1", 1]) < 0.1
    assert "effect 1 restores the clean run" in repr(values)
    weights = regard.patch(model, clean, corrupted, metric=metric, by="position")
    assert tuple(weights.values.shape) == (2, 36)
    drawn = regard.plots.effects(values)
    assert drawn.rows == values.rows and torch.equal(drawn.values, values.values.float())


def test_knockout_finds_the_edge_that_copies() -> None:
    model, words = Induction(fused=False), repeated()[:1]
    answer = int(words[0, 6])

    def metric(output: torch.Tensor) -> torch.Tensor:
        return output[0, 5 + 18].log_softmax(-1)[answer]

    edges = {"to what followed": (5 + 18, 6), "to its neighbour": (5 + 18, 7)}
    effects = regard.knockout(model, words, edges, metric=metric)
    assert effects.columns == ["layers.0", "layers.1"]
    assert effects["to what followed", "layers.1"] < -0.5
    assert abs(effects["to its neighbour", "layers.1"]) < 0.05
    with torch.no_grad():
        plain = float(metric(model(words)))
    assert effects.target is None and effects.reference == pytest.approx(plain)
    by_word = regard.knockout(
        model,
        words,
        {"a": ("w23", "w6")},
        metric=metric,
        tokens=[f"w{number}" for number in range(36)],
        window=2,
    )
    assert by_word["a", "layers.0"] == pytest.approx(
        effects["to what followed", "layers.1"], abs=1e-4
    )
