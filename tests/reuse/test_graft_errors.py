"""What grafting refuses, and what it says."""

import pytest
import torch
from graft_models import Small, batch, pooling, reusing
from torch import nn
from torch.nn import functional as F

from regard.errors import (
    DtypeError,
    MaskError,
    RegardError,
    ShapeError,
    StateError,
    UnavailableError,
)
from regard.mechanisms import DotProduct
from regard.reuse import (
    Latents,
    OutputAttention,
    ReuseLayer,
    ZeroProjection,
    graft,
)


def test_a_wrong_site_names_the_nearest():
    model = Small()
    with pytest.raises(
        RegardError,
        match=r"reads='layer\.1': Small has no module of that path; the nearest are 'layers\.1'",
    ):
        graft(model, pooling(reads="layer.1"))
    with pytest.raises(RegardError, match=r"into='clasifier'.*nearest are 'classifier'"):
        graft(model, pooling(into="clasifier"))
    with pytest.raises(
        RegardError,
        match=r"mask='mask': Small.forward has no such input; the nearest are .*'attention_mask'",
    ):
        graft(model, pooling(mask="mask"))
    with pytest.raises(RegardError, match="expected a module's path"):
        graft(model, pooling(reads="layers.1#0"))
    assert "regard_graft" not in dict(model.named_modules())


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_arguments():
    model = Small()
    with pytest.raises(RegardError, match="part is DotProduct, expected an OutputAttention"):
        graft(model, DotProduct())
    with pytest.raises(RegardError, match=r"model is int, expected an nn\.Module"):
        graft(3, pooling())
    with pytest.raises(RegardError, match="attention=DotProduct, expected a Mechanism"):
        OutputAttention(
            DotProduct, query=Latents(1, 8), reads="", into="", join=ZeroProjection(8, 3)
        )
    with pytest.raises(RegardError, match=r"query=8, expected Latents \| States"):
        OutputAttention(DotProduct(), query=8, reads="", into="", join=ZeroProjection(8, 3))
    with pytest.raises(RegardError, match=r"join=None with a Linear"):
        ReuseLayer(nn.Linear(2, 2), reads="", into="")
    part = pooling()
    graft(model, part, name="mine")
    with pytest.raises(RegardError, match="this part is on the model already"):
        graft(model, part)
    with pytest.raises(RegardError, match=r"name='mine' is taken; there are \['mine'\]"):
        graft(model, pooling(), name="mine")
    for name in ("a.b", "train", ""):
        with pytest.raises(RegardError, match="expected a plain word"):
            graft(model, pooling(), name=name)


def test_sizes_and_places_that_do_not_fit():
    given = batch()
    cases = {
        ("layers.1", "layers.2"): (
            ShapeError,
            r"the state has 3 axes \(2, 5, 8\), expected \(batch, width\)",
        ),
        ("layers.2", "layers.1"): (
            StateError,
            "'layers.2' did not run before 'layers.1' in this pass",
        ),
        ("layers", "classifier"): (StateError, "'layers' did not run before 'classifier'"),
        ("layers.1", "layers"): (StateError, "nothing was joined, since 'layers' did not run"),
        ("classifier", "classifier"): (
            ShapeError,
            r"has 2 axes \(2, 3\), expected \(batch, position, width\)",
        ),
        ("layers.1:x", "classifier"): (RegardError, "the output is one tensor, it has no field"),
    }
    for (reads, into), (error, text) in cases.items():
        model = Small()
        grafted = graft(model, pooling(reads=reads, into=into))
        with pytest.raises(error, match=text):
            model(**given)
        grafted.remove()
    model = Small()
    part = OutputAttention(
        DotProduct(), query=Latents(1, 8), reads="layers.1", into="classifier",
        join=ZeroProjection(8, 4),
    )  # fmt: skip
    graft(model, part)
    with pytest.raises(ShapeError, match="state: axis width has size 3, expected 4"):
        model(**given)


def test_masks_that_do_not_fit():
    model, given = Small(), batch()
    graft(model, pooling())
    with pytest.raises(
        DtypeError, match=r"is torch\.float32, expected torch\.bool or whole numbers"
    ):
        model(given["x"], given["attention_mask"].float())


def test_a_mask_of_other_axes():
    class Loose(Small):
        def forward(self, x, attention_mask=None):
            return super().forward(x)

    model = Loose()
    graft(model, pooling())
    with pytest.raises(MaskError, match=r"is \(2, 1, 5\), expected \(batch, key\)"):
        model(torch.randn(2, 5, 4), torch.ones(2, 1, 5, dtype=torch.bool))


def test_a_state_changed_in_place_is_noticed():
    class Writes(Small):
        def forward(self, x, attention_mask=None):
            x = self.layers[1](self.embed(x), None)
            x += 1
            return self.classifier(x.mean(1))

    model = Writes()
    graft(model, pooling())
    with pytest.raises(
        StateError, match=r"output of 'layers.1', \(2, 5, 8\), was changed in place"
    ):
        model(torch.randn(2, 5, 4))


def test_a_site_without_attention_or_with_two():
    for reads, text in {
        "layers.0.feed": "no attention was seen inside 'layers.0.feed'",
        "": "3 attentions ran inside",
    }.items():
        model = Small()
        graft(model, reusing(reads=reads, into="layers.2" if reads else ""))
        with pytest.raises(UnavailableError, match=text):
            model(**batch())


def test_wrapped_models_are_refused_by_name():
    with pytest.raises(UnavailableError, match="already wrapped by DataParallel"):
        graft(nn.DataParallel(Small()), pooling())
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        script = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UnavailableError, match="RecursiveScriptModule cannot be changed"):
        graft(script, pooling())


def test_a_stranger_in_between():
    model = Small()
    grafted = graft(model, pooling())
    ours = model.classifier.forward
    model.classifier.forward = lambda x: ours(x)
    with pytest.raises(StateError, match="the forward of 'classifier' was replaced"):
        grafted.remove()
    model.classifier.forward = ours
    grafted.remove()


def test_a_forward_that_was_there_before_comes_back():
    model = Small()
    mine = model.classifier.forward = lambda x: F.linear(x, model.classifier.weight)
    plain = model(**(given := batch()))
    grafted = graft(model, pooling())
    assert torch.equal(model(**given), plain)
    grafted.remove()
    assert model.classifier.__dict__["forward"] is mine
