"""What grafting refuses, and what it says."""

import pytest
import torch
from graft_models import Small, batch, decoding, outside, pooling, reusing
from torch import nn
from torch.nn import functional as F

from regard.blocks import NearIdentityWarning
from regard.errors import (
    DtypeError,
    MaskError,
    RegardError,
    ShapeError,
    StateError,
    UnavailableError,
)
from regard.grafting import (
    GraftWarning,
    Latents,
    OutputAttention,
    ReuseLayer,
    States,
    ZeroProjection,
    graft,
    grafts,
)
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import WeightedAggregation


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
    sites = {"query": Latents(1, 8), "reads": "", "into": "", "join": ZeroProjection(8, 3)}
    with pytest.raises(
        RegardError, match=r"OutputAttention: mask is a tensor \(2, 5\), expected the name of the"
    ):
        OutputAttention(DotProduct(), **sites, mask=torch.ones(2, 5))
    with pytest.raises(RegardError, match="OutputAttention: reads=3, expected a module's path"):
        OutputAttention(DotProduct(), **{**sites, "reads": 3})
    with pytest.raises(RegardError, match="ReuseLayer: mask is 3, expected the name"):
        ReuseLayer(WeightedAggregation(8, 2), reads="", into="", mask=3)
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


class Regular(Small):
    """With a module whose output is (batch, width), and whose width it does not say."""

    def __init__(self):
        super().__init__()
        self.regular = nn.Identity()
        self.classifier.register_forward_pre_hook(lambda _, given: (self.regular(given[0]),))


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
        ("regular", "classifier"): (
            ShapeError,
            r"graft 'output' \(reads 'regular', into 'classifier'\): .* has 2 axes \(2, 8\), "
            r"expected \(batch, position, width\)",
        ),
        ("layers.1:x", "classifier"): (RegardError, "the output is one tensor, it has no field"),
    }
    for (reads, into), (error, text) in cases.items():
        model = Regular()
        grafted = graft(model, pooling(reads=reads, into=into))
        with pytest.raises(error, match=text):
            model(**given)
        grafted.remove()


def asking(attention, query, reads, into, width):
    return OutputAttention(
        attention, query=query, reads=reads, into=into, join=ZeroProjection(8, width)
    )


def test_widths_that_do_not_fit_are_told_when_grafting_where_they_are_known():
    states = States(causal=False)
    cases = [
        (DotProduct(), Latents(1, 8), "layers.1", "classifier", 4,
         r"into='classifier' has 3 features, but join is for 4: ZeroProjection\(context width, 3"),
        (DotProduct(), Latents(1, 6), "embed", "classifier", 3,
         r"reads='embed' has 8 features, but DotProduct takes keys of 6 here"),
        (MultiHead(8, 2), Latents(1, 6), "layers.1", "classifier", 3,
         r"query=Latents\(…, 6\), but MultiHead takes queries of 8 features"),
        (MultiHead(8, 2), states, "layers.1", "classifier", 3,
         r"the output of into='classifier' is the query, and has 3 features, but MultiHead takes "
         r"queries of 8; join where states are that wide, as before a projection to the vocab"),
    ]  # fmt: skip
    model = Small()
    before = outside(model)
    for *given, text in cases:
        with pytest.raises(ShapeError, match=text):
            graft(model, asking(*given))
    with pytest.raises(ShapeError, match="into='embed' has 8 features, but what is joined has 6"):
        graft(model, ReuseLayer(WeightedAggregation(6, 2), reads="layers.0", into="embed"))
    assert outside(model) == before


def test_widths_that_show_in_a_pass_are_told_with_the_name_of_the_graft():
    cases = [
        (DotProduct(), Latents(1, 8), 4, "state: axis width has size 8, expected 4"),
        (
            MultiHead(6, 2),
            States(causal=False),
            8,
            "output of into='layers.2' is the query, and has 8",
        ),
    ]
    for attention, query, width, text in cases:
        model = Small()
        query = Latents(1, 8, everywhere=True) if isinstance(query, Latents) else query
        graft(model, asking(attention, query, "layers.1", "layers.2", width), name="mine")
        with pytest.raises(ShapeError, match=rf"graft 'mine' \(reads 'layers\.1', .*: .*{text}"):
            model(**batch())


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


def test_unprojected_states_that_ask_themselves():
    model = nn.Sequential(nn.Linear(4, 8), nn.Identity())
    join = ZeroProjection(8, 8)
    with pytest.warns(NearIdentityWarning, match="nearly the identity"):
        OutputAttention(DotProduct(), query=States(causal=False), reads="0", into="0", join=join)
    graft(
        model,
        OutputAttention(DotProduct(), query=States(causal=False), reads="0", into="1", join=join),
    )
    with pytest.warns(NearIdentityWarning, match="nearly the identity"):  # the very same tensor
        model(torch.randn(2, 5, 4))
    OutputAttention(MultiHead(8, 2), query=States(causal=False), reads="0", into="0", join=join)
    OutputAttention(DotProduct(), query=Latents(1, 8), reads="0", into="0", join=join)


def test_a_graft_that_fails_leaves_no_trace():
    class Bare(nn.Module):
        forward = max

    class Model(Small):
        def __init__(self):
            super().__init__()
            self.bare = Bare()

    model, given = Model(), batch()
    before, plain = outside(model), model(**given)
    with pytest.raises(UnavailableError, match=r"of 'bare' \(Bare\) is not a Python function"):
        graft(model, pooling(into="bare"), freeze=True)
    assert outside(model) == before and grafts(model) == {}
    graft(model, pooling())
    before = outside(model)
    with pytest.raises(UnavailableError, match="forward of 'bare'"):
        graft(model, decoding(into="bare"))
    assert outside(model) == before and list(grafts(model)) == ["output"]
    assert torch.equal(model(**given), plain)


def test_copies_for_data_parallel_are_refused():
    model = Small()
    graft(model, pooling())
    modules = list(model.modules())
    with pytest.raises(UnavailableError, match=r"nn\.DataParallel copies a model without its"):
        [module._replicate_for_data_parallel() for module in modules]  # as DataParallel does


def test_running_statistics_move_though_frozen():
    model = Small()
    model.norm = nn.BatchNorm1d(8)
    with pytest.warns(GraftWarning, match="running statistics of 'norm' still move"):
        graft(model, pooling(), freeze=True)
