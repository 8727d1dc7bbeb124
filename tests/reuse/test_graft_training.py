"""Grafts in training: checkpointing, several processes, steps of an optimiser."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graft_models import PARTS, Small, batch, decoding, pooling, reusing, wake

from regard.errors import UnavailableError
from regard.reuse import graft


def gradients(model, *batches):
    model.zero_grad()
    outputs = [model(**given) for given in batches]  # all passes before one backward
    sum(output.square().sum() for output in outputs).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters()}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_checkpointing_gives_the_same_gradients(name, fused):
    model = Small(fused)
    part = PARTS[name]()
    graft(model, part)
    wake(part)
    first, second = batch(), batch()
    expected = gradients(model, first, second)
    calls = []
    part.register_forward_pre_hook(lambda *_: calls.append(1))
    model.checkpointing = "again"
    found = gradients(model, first, second)
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], msg=key)
    inside = name != "pooling"  # its site is outside what is computed again
    assert len(calls) == (4 if inside else 2)
    passes = model.regard_graft.passes
    assert not passes._here.under_way
    del found
    assert len(passes._kept) == 0  # nothing outlives its graph


def test_nothing_outlives_its_graph_with_two_grafts_one_after_the_other():
    model = Small(checkpointing="again")
    for part in (decoding(reads="embed", into="layers.0"), decoding(reads="layers.1")):
        graft(model, part)
        wake(part)
    kept = model.regard_graft.passes._kept
    given = batch()
    for _ in range(2):
        output = model(**given)
        assert len(kept) == 2
        output.sum().backward()
        del output
        assert len(kept) == 0
    output = model(**given)  # and without a backward pass
    del output
    assert len(kept) == 0
    found = gradients(model, given)
    model.checkpointing = ""
    expected = gradients(model, given)
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], msg=key)


def test_two_passes_of_other_values_are_not_mixed_up():
    model = Small(checkpointing="again")
    part = decoding()
    graft(model, part)
    wake(part)
    one, two = batch(), batch()
    alone = [gradients(model, given) for given in (one, two)]
    both = gradients(model, one, two)
    for key in both:
        torch.testing.assert_close(both[key], alone[0][key] + alone[1][key], msg=key)
    assert not torch.allclose(alone[0]["embed.weight"], alone[1]["embed.weight"])


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


def test_reentrant_checkpoints_are_refused_by_name():
    given = batch()
    given["x"].requires_grad_()
    for name in ("pooling", "reusing"):
        model = Small(checkpointing="reentrant")
        graft(model, PARTS[name]())
        with pytest.raises(
            UnavailableError, match=r"'layers\.\d(\.attention)?' runs inside a reentrant"
        ):
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
