"""Grafting on a small model: nothing changes, something is learned, everything comes back."""

import copy
import inspect
import pickle
import threading

import pytest
import torch
from graft_models import PARTS, Small, batch, decoding, gating, outside, pooling, reusing, wake
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import (
    DtypeError,
    MaskError,
    RegardError,
    ShapeError,
    StateError,
    UnavailableError,
)
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import Concatenation, GatedFlow, OffsetBins, WeightedAggregation
from regard.reuse.graft import (
    Grafted,
    Latents,
    OutputAttention,
    ReuseLayer,
    States,
    ZeroProjection,
    graft,
    grafts,
)


def bits(tensor):
    return tensor.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[tensor.element_size()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_outputs_are_bit_for_bit_what_they_were(name, fused, dtype):
    for training in (True, False):
        model = Small(fused).to(dtype).train(training)
        given = batch()
        given["x"] = given["x"].to(dtype)
        before = model(**given)
        part = PARTS[name]()
        grafted = graft(model, part)
        after = model(**given)
        assert torch.equal(bits(after), bits(before))
        wake(part)
        moved = model(**given)
        assert moved.dtype == dtype and moved.isfinite().all() and not torch.equal(moved, before)
        grafted.remove()
        assert torch.equal(bits(model(**given)), bits(before))


def test_minus_zero_stays_minus_zero():
    join = ZeroProjection(4, 3)
    state = torch.tensor([[-0.0, 0.0, 1.0]])
    assert torch.equal(bits(join(state, torch.randn(1, 4))), bits(state))


def test_pooling_equals_a_loop_over_positions():
    model, given = Small().double(), batch()
    given["x"] = given["x"].double()
    plain = model(**given)
    seen = []
    handle = model.layers[1].register_forward_hook(lambda _, args, out: seen.append(out))
    model(**given)
    handle.remove()
    part = pooling()
    graft(model, part)
    wake(part)
    expected = plain.clone()
    for b in range(2):
        states = [seen[0][b, s] for s in range(5) if given["attention_mask"][b, s]]
        scores = [(part.query.latents[0] @ state / 8**0.5).exp() for state in states]
        shares = [score / sum(scores) for score in scores]
        context = sum(share * state for share, state in zip(shares, states))
        expected[b] -= part.join.project.weight @ context + part.join.project.bias
    torch.testing.assert_close(model(**given), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("fused", [True, False])
def test_reuse_equals_a_loop_with_the_weights_of_the_layer(fused):
    model, given = Small(fused).double(), batch()
    given["x"] = given["x"].double()
    with regard.capture(model) as trace:
        model(**given)
    weights = trace["layers.0.attention"].weights()
    states = []
    handle = model.layers[2].register_forward_hook(lambda _, args, out: states.append(out))
    model(**given)
    handle.remove()
    part = reusing()
    graft(model, part)
    wake(part)
    expected = states[0].clone()
    for b in range(2):
        for i in range(5):
            mixed = torch.zeros(8).double()
            for j in range(5):
                for head in range(2):
                    place = slice(4 * head, 4 * head + 4)
                    mixed[place] += weights[b, head, i, j] * states[0][b, j, place]
            made = part.layer.project.weight @ mixed
            expected[b, i] -= part.join.project.weight @ made + part.join.project.bias
    found = []
    handle = model.layers[2].register_forward_hook(lambda _, args, out: found.append(out))
    model(**given)
    handle.remove()
    torch.testing.assert_close(found[0], expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_padding_moves_nothing(name, fused):
    model, given = Small(fused), batch()
    part = PARTS[name]()
    graft(model, part)
    wake(part)
    before = model(**given)
    flipped = {**given, "x": given["x"].clone()}
    flipped["x"][1, 3:] *= -1e3
    torch.testing.assert_close(model(**flipped), before)
    flipped["x"][1, 0] *= -1
    assert not torch.allclose(model(**flipped)[1], before[1])


@pytest.mark.parametrize("name", ["pooling", "decoding"])
def test_nan_in_padding_reaches_nothing(name):
    class Spoils(nn.Module):
        def __init__(self):
            super().__init__()
            self.states, self.last = nn.Linear(4, 8), nn.Linear(8, 8)

        def forward(self, x, attention_mask):
            return self.last(self.states(x)[:, 0])

    model, given = Spoils(), batch()
    part = OutputAttention(
        DotProduct() if name == "pooling" else MultiHead(8, 2),
        query=Latents(2, 8) if name == "pooling" else States(causal=False),
        reads="states",
        into="last",
        join=ZeroProjection(16 if name == "pooling" else 8, 8),
        mask="attention_mask",
    )
    graft(model, part)
    wake(part)
    before = model(**given)
    given["x"][1, 3:] = torch.nan
    after = model(**given)
    torch.testing.assert_close(after, before)
    after.sum().backward()
    assert all(one.grad.isfinite().all() for one in part.parameters())


def test_a_mask_that_says_padding():
    class Inverted(Small):
        def forward(self, x, padded):
            return super().forward(x, (~padded).long())

    torch.manual_seed(1)
    model, given = Small(), batch()
    other = Inverted()
    other.load_state_dict(model.state_dict())
    part = pooling()
    graft(model, part)
    wake(part)
    same = copy.deepcopy(part)
    same.mask = "~padded"
    graft(other, same)
    torch.testing.assert_close(
        other(given["x"], given["attention_mask"] == 0), model(**given), atol=0, rtol=0
    )


def test_positional_inputs_and_none():
    model, given = Small(), batch()
    part = pooling()
    graft(model, part)
    wake(part)
    named = model(**given)
    assert torch.equal(model(given["x"], given["attention_mask"]), named)
    assert model(given["x"]).isfinite().all()


def test_a_batch_that_is_all_padding_gets_no_context():
    model, given = Small(), batch()
    given["attention_mask"] = torch.zeros(2, 5, dtype=torch.long)
    part = pooling()
    graft(model, part)
    before = model(**given)
    wake(part)
    bias = part.join.project.bias
    torch.testing.assert_close(model(**given), before - bias, equal_nan=True)


@pytest.mark.parametrize("name", PARTS)
def test_everything_comes_back(name):
    model = Small().eval()
    model.layers[1].register_forward_hook(lambda *_: None)
    model.embed.weight.requires_grad_(False)
    before = outside(model)
    grafted = graft(model, PARTS[name](), freeze=True)
    added = set(model.state_dict()) - set(before["keys"])
    assert added and all(key.startswith("regard_graft.") for key in added)
    assert [p for n, p in model.named_parameters() if p.requires_grad and "graft" not in n] == []
    assert all(p.requires_grad for p in grafted.part.parameters())
    part = grafted.remove()
    assert outside(model) == before
    assert "removed" in repr(grafted) and grafts(model) == {}
    with pytest.raises(StateError, match="is not on the model any more"):
        grafted.remove()
    graft(model, part)


def test_everything_comes_back_after_an_error_in_the_middle():
    model, given = Small(), batch()
    before, plain = outside(model), model(**given)
    handle = model.layers[2].register_forward_hook(lambda *_: 1 / 0)
    grafted = graft(model, pooling())
    with pytest.raises(ZeroDivisionError):
        model(**given)
    handle.remove()
    assert torch.equal(model(**given), plain)  # nothing of the broken pass is left
    grafted.remove()
    assert outside(model) == before


def test_several_grafts_in_any_order_of_removal():
    for first, second in ((0, 1), (1, 0)):
        model, given = Small(), batch()
        before, plain = outside(model), model(**given)
        parts = [pooling(), decoding(), gating(), pooling()]
        handles = [graft(model, part, freeze=i < 2) for i, part in enumerate(parts)]
        assert list(grafts(model)) == ["output", "output_2", "reuse", "output_3"]
        assert torch.equal(model(**given), plain)
        wake(parts[2])
        alone = model(**given)
        handles[first].remove()
        frozen = [p.requires_grad for n, p in model.named_parameters() if "graft" not in n]
        assert not any(frozen)
        assert torch.equal(model(**given), alone)
        handles[second].remove()
        assert model.embed.weight.requires_grad
        handles[3].remove()
        assert not torch.equal(model(**given), plain)
        handles[2].remove()
        assert outside(model) == before


def test_gradients_reach_the_part_and_the_base_unless_frozen():
    for freeze in (True, False):
        for name in PARTS:
            model = Small()
            part = PARTS[name]()
            graft(model, part, freeze=freeze)
            wake(part)
            model(**batch()).sum().backward()
            assert all(p.grad is not None for p in part.parameters())
            assert (model.embed.weight.grad is None) == freeze


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_go_through_the_weights(fused):
    model = Small(fused).double()
    part = ReuseLayer(GatedFlow(8, 2), reads="layers.0.attention", into="layers.2")
    graft(model, part)
    wake(part)
    given = batch()
    given["x"] = given["x"].double()
    through = torch.autograd.grad(model(**given).sum(), model.layers[0].attention.qkv.weight)[0]
    step = 1e-6
    for place in ((0, 0), (9, 3)):
        with torch.no_grad():
            model.layers[0].attention.qkv.weight[place] += step
            up = model(**given).sum()
            model.layers[0].attention.qkv.weight[place] -= 2 * step
            down = model(**given).sum()
            model.layers[0].attention.qkv.weight[place] += step
        torch.testing.assert_close(through[place], (up - down) / (2 * step), atol=1e-7, rtol=1e-6)
    part.layer.gain.data.zero_()
    without = torch.autograd.grad(model(**given).sum(), model.layers[0].attention.qkv.weight)[0]
    assert not torch.allclose(through, without)


@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_keeps_its_fast_path(norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    x, padded = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    part = ReuseLayer(WeightedAggregation(8, 2), reads="layers.0.self_attn", into="layers.2")
    pooled = OutputAttention(
        DotProduct(),
        query=Latents(2, 8, everywhere=True),
        reads="layers.1",
        into="",
        join=ZeroProjection(16, 8),
        mask="~src_key_padding_mask",
    )
    with torch.no_grad(), torch.profiler.profile() as before:
        plain = model(x, src_key_padding_mask=padded)
    graft(model, part)
    graft(model, pooled)
    with torch.no_grad(), torch.profiler.profile() as after:
        assert torch.equal(model(x, src_key_padding_mask=padded), plain)
    fast = "aten::_transformer_encoder_layer_fwd"
    for run in (before, after):
        assert sum(event.count for event in run.key_averages() if event.key == fast) == 3
    wake(part)
    wake(pooled)
    with torch.no_grad():
        quick = model(x, src_key_padding_mask=padded)
    slow = model(x, src_key_padding_mask=padded)  # with a gradient: not the fast path
    torch.testing.assert_close(quick[0], slow[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(quick[1, :3], slow[1, :3], atol=1e-4, rtol=1e-4)


def test_torch_attention_weights_are_its_own():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)
            self.last = nn.Identity()

        def forward(self, x, y):
            _, self.weights = self.attention(x, y, y, average_attn_weights=False)
            return self.last(y.transpose(0, 1))

    model = Cross().double()
    x, y = torch.randn(5, 2, 8).double(), torch.randn(4, 2, 8).double()

    class Taken(nn.Module):
        def forward(self, features, recipe, mask):
            self.recipe = recipe
            return features

    taken = Taken()
    graft(model, ReuseLayer(taken, reads="attention", into="last", join=ZeroProjection(8, 8)))
    model(x, y)
    torch.testing.assert_close(taken.recipe.weights(), model.weights, atol=1e-8, rtol=0)


def test_causal_states_do_not_see_the_future():
    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.last(self.first(x))

    line = Line()
    part = OutputAttention(
        MultiHead(8, 2), query=States(causal=True), reads="first", into="last",
        join=ZeroProjection(8, 8),
    )  # fmt: skip
    graft(line, part)
    wake(part)
    x = torch.randn(1, 6, 4)
    before = line(x)
    x[:, 4:] *= 1e4
    torch.testing.assert_close(line(x)[:, :4], before[:, :4])


def test_a_copy_has_grafts_of_its_own():
    model, given = Small(), batch()
    plain = model(**given)
    graft(model, reusing(), freeze=True)
    graft(model, pooling())
    twin = copy.deepcopy(model)
    wake(twin.regard_graft.output)
    assert not torch.equal(twin(**given), plain)
    assert torch.equal(model(**given), plain)
    for handle in grafts(twin).values():
        assert isinstance(handle, Grafted) and handle.model is twin
        handle.remove()
    assert torch.equal(twin(**given), plain) and "regard_graft" not in dict(twin.named_children())
    assert twin.embed.weight.requires_grad and not model.embed.weight.requires_grad
    assert list(grafts(model)) == ["reuse", "output"]


def test_a_grafted_model_is_pickled_whole():
    model, given = Small(), batch()
    part = decoding()
    graft(model, part)
    wake(part)
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(**given), model(**given))
    assert [handle.model is twin for handle in grafts(twin).values()] == [True]


@pytest.mark.parametrize("name", PARTS)
def test_autocast_and_empty_batches(name):
    model, given = Small().eval(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        plain = model(**given)
        part = PARTS[name]()
        graft(model, part)
        after = model(**given)
        assert after.dtype == plain.dtype and torch.equal(after, plain)
        wake(part)
        assert model(**given).isfinite().all()
    assert model(torch.randn(0, 5, 4), torch.ones(0, 5, dtype=torch.long)).shape == (0, 3)


def test_threads_do_not_mix_their_passes():
    model = Small().eval()
    part = decoding()
    graft(model, part)
    wake(part)
    inputs = [batch() for _ in range(4)]
    expected = [model(**given).detach() for given in inputs]
    wrong = []

    def run(number):
        for _ in range(20):
            with torch.no_grad():
                if not torch.equal(model(**inputs[number]), expected[number]):
                    wrong.append(number)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert wrong == []


def test_capture_sees_the_new_attention_by_name():
    model, given = Small(), batch()
    graft(model, pooling())
    with regard.capture(model) as trace:
        model(**given)
    record = trace["regard_graft.output.attention"]
    assert record.weights().shape == (2, 1, 1, 5)
    assert record.weights()[1, 0, 0, 3:].eq(0).all()


def test_the_signature_is_still_the_models():
    model = Small()
    before = inspect.signature(model.forward)
    graft(model, pooling())
    assert inspect.signature(model.forward) == before


def test_a_sequential_and_concatenated_channels():
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    model.eval()
    x = torch.randn(2, 6, 4)
    plain = model(x)
    part = ReuseLayer(Concatenation(8, OffsetBins(2, 4)), reads="1.self_attn", into="")
    grafted = graft(model, part)
    assert torch.equal(model(x), plain)
    wake(part)
    assert not torch.equal(model(x), plain)
    grafted.remove()
    assert len(model) == 2


def test_modules_that_run_several_times():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(8, 8), nn.Identity()

        def forward(self, x):
            for _ in range(3):
                x = self.layer(x).tanh()
            return self.last(x)

    def part(reads, into="last"):
        return OutputAttention(
            DotProduct(), query=States(causal=False), reads=reads, into=into,
            join=ZeroProjection(8, 8),
        )  # fmt: skip

    model, x = Shared(), torch.randn(2, 4, 8)
    plain = model(x)
    grafted = graft(model, part("layer"))
    with pytest.raises(
        StateError, match=r"'layer' ran 3 times before 'last'; say which, as 'layer#3'"
    ):
        model(x)
    grafted.remove()
    made = []
    for call in (1, 2):
        one = part(f"layer#{call}")
        grafted = graft(model, one)
        assert torch.equal(model(x), plain)
        torch.manual_seed(0)
        wake(one)
        made.append(model(x))
        grafted.remove()
    assert not torch.allclose(*made)
    third = part("layer#1", "layer#3")
    graft(model, third)
    wake(third)
    assert not torch.equal(model(x), plain)


def test_fields_of_outputs():
    class Returns(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.states, self.form = nn.Linear(4, 8), form

        def forward(self, x):
            y = self.states(x)
            return self.form(y)

    x = torch.randn(2, 3, 4)
    forms = {
        "": lambda y: (None, y),
        ":1": lambda y: [y * 2, y],
        ":logits": lambda y: {"extra": y * 2, "logits": y},
        ":output": lambda y: regard.Attended(y),
    }
    for field, form in forms.items():
        model = Returns(form)
        part = OutputAttention(
            DotProduct(), query=States(causal=False), reads="states", into=field,
            join=ZeroProjection(8, 8),
        )  # fmt: skip
        graft(model, part)
        wake(part)
        before, after = form(model.states(x)), model(x)
        assert type(before) is type(after)
        pick = {"": lambda o: o[1], ":1": lambda o: o[1], ":logits": lambda o: o["logits"]}
        one = pick.get(field, lambda o: o.output)
        assert not torch.equal(one(before), one(after))
        if field in (":1", ":logits"):
            other = (lambda o: o[0]) if field == ":1" else (lambda o: o["extra"])
            assert torch.equal(other(before), other(after))


# -- errors


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
