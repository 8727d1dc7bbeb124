"""Grafts in training: checkpointing, several processes, steps of an optimiser."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graft_models import PARTS, Small, batch, pooling, reusing, wake

from regard.errors import UnavailableError
from regard.grafting import graft


def gradients(model, *batches):
    model.zero_grad()
    outputs = [model(**given) for given in batches]  # all passes before one backward
    sum(output.square().sum() for output in outputs).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters()}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_a_site_that_is_read_may_be_checkpointed(name, fused):
    model = Small(fused)
    part = PARTS[name]()
    graft(model, part)
    wake(part)
    first, second = batch(), batch()
    expected = gradients(model, first, second)
    calls = []
    part.register_forward_pre_hook(lambda *_: calls.append(1))
    model.checkpointing, model.checkpointed = "again", range(2)  # not the site that is changed
    for key, gradient in gradients(model, first, second).items():
        torch.testing.assert_close(gradient, expected[key], msg=key)
    assert len(calls) == 2  # once a pass, never in the backward pass
    assert not model.regard_graft.passes.running


@pytest.mark.parametrize("checkpointing", ["again", "reentrant"])
@pytest.mark.parametrize("name", ["decoding", "reusing", "gating"])
def test_a_site_that_is_changed_may_not(name, checkpointing):
    model, given = Small(checkpointing=checkpointing), batch()
    given["x"].requires_grad_()
    graft(model, PARTS[name](), freeze=True)
    with pytest.raises(
        UnavailableError, match=r"into='layers\.2' is inside an activation checkpoint, which runs"
    ):
        model(**given)
    model.checkpointing = "again"
    with torch.no_grad():  # nothing is recomputed
        checkpointed = model(**given)
        model.checkpointing = ""
        assert torch.equal(model(**given), checkpointed)


def test_the_whole_model_may_be_computed_again():
    model = Small()
    part = reusing()
    graft(model, part)
    wake(part)
    given = batch()
    expected = gradients(model, given)
    model.zero_grad()
    output = torch.utils.checkpoint.checkpoint(model, **given, use_reentrant=False)
    output.square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


def test_reading_in_a_reentrant_checkpoint_is_refused_by_name():
    given = batch()
    given["x"].requires_grad_()
    model = Small(checkpointing="reentrant")
    graft(model, pooling())
    with pytest.raises(UnavailableError, match=r"reads='layers\.1' is inside a reentrant checkp"):
        model(**given)
    model = Small(checkpointing="reentrant")
    part = pooling()
    graft(model, part, freeze=True)  # no gradient is lost: only the part is trained
    given = batch()
    with pytest.warns(UserWarning, match="None of the inputs"):
        model(**given).sum().backward()
    assert part.join.project.weight.grad.abs().sum() > 0


def test_a_graft_learns_what_the_mean_cannot_tell():
    """The label is in one position, marked; the base sees the mean over positions."""
    x = torch.randn(64, 5, 4) * 0.1
    place, labels = torch.randint(0, 5, (64,)), torch.randint(0, 3, (64,))
    x[torch.arange(64), place, 0] = 3.0
    x[torch.arange(64), place, 1:] += 3.0 * torch.nn.functional.one_hot(labels, 3)
    x[:, :, 1:] -= x[:, :, 1:].mean(1, keepdim=True)
    model = Small()
    part = pooling(reads="embed")
    graft(model, part, freeze=True)
    before = {name: one.clone() for name, one in model.state_dict().items() if "graft" not in name}
    optimiser = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.1)
    losses = []
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    now = model.state_dict()
    assert all(torch.equal(now[name], one) for name, one in before.items())


def test_two_processes(tmp_path):
    """Real DDP on gloo: gradients of two halves of a batch are those of the batch."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "graft_ddp.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
