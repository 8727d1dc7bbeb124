"""Graft parts alone on disk, and back onto a fresh copy of the base."""

import copy

import pytest
import torch
from graft_models import PARTS, WIDTH, Small, batch, pooling, wake
from safetensors.torch import load_file, save_file

from regard.errors import RegardError
from regard.grafting import Latents, OutputAttention, ReuseLayer, States, ZeroProjection, graft
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import GatedFlow, WeightedAggregation


@pytest.mark.parametrize("name", PARTS)
def test_there_and_back(name, tmp_path):
    base, given = Small(), batch()
    fresh = copy.deepcopy(base)
    part = PARTS[name]()
    grafted = graft(base, part, name="mine")
    wake(part)
    file = grafted.save(tmp_path / "part.safetensors")
    assert all(key.startswith("regard_graft.mine.") for key in load_file(file))
    assert len(load_file(file)) == len(part.state_dict())
    assert [one.name for one in tmp_path.iterdir()] == ["part.safetensors"]
    graft(fresh, PARTS[name]()).load(file)
    assert torch.equal(fresh(**given), base(**given))


def test_the_state_dict_of_the_model_has_it_too():
    model, given = Small(), batch()
    part = pooling()
    graft(model, part)
    wake(part)
    twin = Small()
    graft(twin, pooling())
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(**given), model(**given))


@pytest.fixture
def saved(tmp_path):
    base = Small()
    fresh = copy.deepcopy(base)
    return graft(base, pooling()).save(tmp_path / "part.safetensors"), fresh


def refused(model, part, file, text):
    before = {key: tensor.clone() for key, tensor in part.state_dict().items()}
    with pytest.raises(RegardError, match=text):
        graft(model, part).load(file)
    assert all(torch.equal(before[key], tensor) for key, tensor in part.state_dict().items())


def test_another_site_is_refused(saved):
    file, fresh = saved
    text = r"was saved with reads='layers\.1', but this graft has reads='layers\.0'"
    refused(fresh, pooling(reads="layers.0"), file, text)


def test_another_part_is_refused(saved):
    file, fresh = saved
    refused(fresh, PARTS["gating"](), file, "class='OutputAttention', but .* class='ReuseLayer'")
    sites = {"reads": "layers.1", "into": "classifier", "mask": "attention_mask"}
    two = OutputAttention(
        DotProduct(), query=Latents(2, WIDTH), join=ZeroProjection(2 * WIDTH, 3), **sites
    )
    refused(fresh, two, file, r"is \(.*\), expected \(.*\)")


def test_another_base_is_refused(saved):
    file, fresh = saved
    with torch.no_grad():
        fresh.embed.bias[0] += 1
    refused(
        fresh,
        pooling(),
        file,
        r"another base model: 1 of \d+ tensors differ here, the first is 'embed\.bias'",
    )

    class Other(Small):
        pass

    refused(Other(), pooling(), file, "saved from a Small, but this model is a Other")
    more = Small()
    more.more = torch.nn.Linear(1, 1)
    refused(more, pooling(), file, "another base model: this one also has 'more.bias'")


def test_files_that_are_no_grafts(saved, tmp_path):
    _, fresh = saved
    grafted = graft(fresh, pooling())
    with pytest.raises(RegardError, match=r"is saved as \.safetensors, got 'part\.pt'"):
        grafted.save(tmp_path / "part.pt")
    with pytest.raises(RegardError, match="there is no file"):
        grafted.load(tmp_path / "none.safetensors")
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(1)}, other)
    with pytest.raises(RegardError, match="but not a graft of regard"):
        grafted.load(other)
    other.write_bytes(b"nothing")
    with pytest.raises(RegardError, match="is not a safetensors file"):
        grafted.load(other)


def test_other_settings_with_the_same_tensors_are_refused(tmp_path):
    def built(heads, causal, layer=None):
        sites = {"reads": "layers.0", "into": "layers.2"}
        if layer is not None:
            return ReuseLayer(layer, **sites)
        return OutputAttention(
            MultiHead(WIDTH, heads, dropout=0.1 * heads), query=States(causal=causal),
            join=ZeroProjection(WIDTH, WIDTH), **sites,
        )  # fmt: skip

    base = Small()
    cases = [
        (built(2, True), built(4, True), r"attention\.n_heads=2, .* has attention\.n_heads=4"),
        (built(2, True), built(2, False), r"query\.causal=True, but .* query\.causal=False"),
        (
            built(0, 0, GatedFlow(8, 2)),
            built(0, 0, GatedFlow(8, 2, gate="tanh")),
            r"layer\.gate='sigmoid', but this graft has layer\.gate='tanh'",
        ),
    ]
    for mine, other, text in cases:
        fresh = copy.deepcopy(base)
        handle = graft(base, mine)
        file = handle.save(tmp_path / "part.safetensors")
        handle.remove()
        graft(fresh, copy.deepcopy(mine)).load(file)
        refused(copy.deepcopy(base), other, file, text)


def test_a_weighting_of_heads_is_saved_with_its_part(tmp_path):
    def built(weighting):
        layer = WeightedAggregation(8, 2, heads=torch.tensor(weighting))
        return ReuseLayer(layer, reads="layers.0", into="layers.2")

    base = Small()
    fresh = copy.deepcopy(base)
    file = graft(base, built([1.0, 0.0])).save(tmp_path / "part.safetensors")
    other = built([0.0, 1.0])
    graft(fresh, other).load(file)
    assert other.layer.heads.shares.tolist() == [1.0, 0.0]


def test_buffers_that_moved_are_named(tmp_path):
    base = Small()
    base.norm = torch.nn.BatchNorm1d(WIDTH)
    fresh = copy.deepcopy(base)
    handle = graft(base, pooling())
    base.norm(torch.randn(4, WIDTH))
    text = r"[23] of them are buffers, as 'norm\.running_mean', which move in train mode"
    refused(fresh, pooling(), handle.save(tmp_path / "part.safetensors"), text)
