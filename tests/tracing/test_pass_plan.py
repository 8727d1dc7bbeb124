"""Plans: what one full pass told of a model serves later passes, and is never believed too long."""

import copy
import gc
import weakref

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from capture_ways import check, every_kind
from targets import targets
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

import regard
from regard.record.stored_attention import Layout
from regard.tracing.pass_plan import arrangement_of


class Log(list):
    """No plain list, which would be a setting."""


class Looks(nn.Module):
    """Notes for each pass whether data was followed."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.followed = inner, Log()

    def forward(self, *args, **kwargs):
        self.followed.append(_get_current_dispatch_mode() is not None)
        return self.inner(*args, **kwargs)


def captured(model, *inputs, passes=1, **options):
    with regard.capture(model, **options) as trace:
        for _ in range(passes):
            model(*inputs)
    return trace


def alike(trace, other):
    """The same records, whichever way they were read."""
    for one, two in zip(trace, other, strict=True):
        assert (one.name, one.step, one.source) == (two.name, two.step, two.source)
        assert (one.operator, one.attends, one.kind) == (two.operator, two.attends, two.kind)
        assert one.shape == two.shape
        torch.testing.assert_close(one.weights(), two.weights())
    assert trace.other_softmaxes == other.other_softmaxes and trace.notes == other.notes


def test_keywords_are_part_of_a_kind_of_call():
    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = handmade()

        def forward(self, *, ids=None, states=None):
            return self.attention(states if ids is None else ids)

    model = Looks(Switch())
    for keyword in ({"ids": words(2, 5, 8)}, {"states": words(2, 5, 8)}):
        with regard.capture(model):
            model(**keyword)
    assert model.followed == [True, True]


@every_kind
def test_a_second_capture_follows_no_data(build):
    model, x = Looks(build()), words(2, 5, 8)
    first = captured(model, x, passes=2)
    second = captured(model, x, passes=2)
    assert model.followed == [True, False, False, False]
    alike(first, second)
    check(second, model.inner.weigh(x) * 2)


def test_torch_attention_with_weights_is_learned():
    """Batch and heads are one axis of its softmax."""
    model = Looks(nn.MultiheadAttention(8, 2, batch_first=True))
    for batch in (2, 3):
        x = words(batch, 5, 8)
        full, plan = (captured(model, x, x, x, path=path) for path in ("full", "auto"))
        again = captured(model, x, x, x)
        alike(full, plan)
        alike(full, again)
        assert again[0].shape == (batch, 2, 5, 5)
    assert model.followed == [True, True, False] * 2


@pytest.mark.parametrize("training", [True, False])
@every_kind
def test_sizes_that_change(build, training):
    model = build().train(training)
    for shape in [(2, 5, 8), (2, 7, 8), (1, 5, 8), (3, 1, 8), (1, 1, 8), (2, 5, 8), (4, 3, 8)]:
        x = words(*shape)
        for _ in range(2):
            check(captured(model, x), model.weigh(x))


def test_dropout_is_learned():
    model = Looks(handmade(2, dropout=0.5)).train()
    x = words(2, 5, 8)
    for _ in range(3):
        trace = captured(model, x)
        check(trace, [layer.weights for layer in model.inner.layers])
    assert model.followed == [True, False, False]


def test_gates_and_labels_are_learned():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.router = Attention(False), nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            x = self.attention(x)
            gates = self.router(x).softmax(-1)
            outputs = torch.stack([expert(x) for expert in self.experts], -1)
            return (outputs @ gates[..., None]).squeeze(-1)

    model, x = Looks(Routed()), words(2, 5, 8)
    first, second = captured(model, x), captured(model, x)
    assert model.followed == [True, False] and len(first.other_softmaxes) == 1
    alike(first, second)


# -- a model that changes


def test_a_setting_that_changes():
    model, x = Looks(handmade()), words(2, 5, 8)
    captured(model, x)
    for layer in model.inner.layers:
        layer.fused = True
    trace = captured(model, x)
    assert model.followed == [True, True] and trace.notes == []
    check(trace, model.inner.weigh(x))


def test_a_setting_in_a_shared_object_changes():
    class Config:
        fused = True

        def __init__(self):
            self.implementation = "fused"

    class Configured(Attention):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def forward(self, x):
            self.__dict__["fused"] = self.config.implementation == "fused"
            return super().forward(x)

    config = Config()
    model, x = Looks(Stack(Configured(config), Configured(config))), words(2, 5, 8)
    captured(model, x)
    config.implementation = "by hand"
    trace = captured(model, x)
    assert trace.notes == []
    check(trace, model.inner.weigh(x))


def test_a_module_that_is_replaced():
    model, x = Looks(fused()), words(2, 5, 8)
    captured(model, x)
    model.inner.layers[1] = Attention(False)
    trace = captured(model, x)
    assert model.followed == [True, True] and trace.notes == []
    check(trace, model.inner.weigh(x))


def test_a_hook_that_attends():
    model, x = Looks(fused(1)), words(2, 5, 8)
    captured(model, x)
    extra = Attention(False)
    handle = model.inner.layers[0].register_forward_hook(lambda m, args, out: extra(out))
    trace = captured(model, x)
    handle.remove()
    assert model.followed == [True, True] and len(trace) == 2


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
def test_calls_of_another_kind_are_learned_apart(context):
    model, x = Looks(fused(1)), words(2, 5, 8)
    captured(model, x)
    with context():
        captured(model, x)
        captured(model, x)
    model(x)
    captured(model, x)
    assert model.followed == [True, True, False, False, False]


class Branch(nn.Module):
    """Attends in one of two ways, by what the input holds."""

    def __init__(self, fused):
        super().__init__()
        self.one, self.two = Attention(), Attention(fused)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else self.two(x)


def test_a_branch_is_missed_once_and_said():
    model, x = Looks(Branch(False)), words(2, 5, 8).abs()
    captured(model, x)
    with pytest.warns(regard.CaptureWarning, match=r"inner.two: _softmax ran.*weights are missing"):
        captured(model, -x)
    for y in (x, -x, x):  # such calls are never believed again
        trace = captured(model, y)
        check(trace, [(model.inner.one if y is x else model.inner.two).weigh(y)])
    assert model.followed == [True, False, True, True, True]


def test_a_fused_branch_is_read_all_the_same():
    model, x = Branch(True), words(2, 5, 8).abs()
    captured(model, x)
    trace = captured(model, -x)
    check(trace, [model.two.weigh(-x)])
    assert trace.notes == []


def test_attention_that_stays_away_is_said():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = fused(2).layers

        def forward(self, x):
            x = self.layers[0](x)
            return self.layers[1](x) if x.shape[1] < 6 else torch.ops.aten.sin(x)

    model = Sometimes()
    captured(model, words(2, 5, 8))
    with pytest.warns(regard.CaptureWarning, match="layers.1: did not attend in a pass"):
        captured(model, words(2, 7, 8))
    assert captured(model, words(2, 7, 8)).notes == []  # read fully


@pytest.mark.parametrize("build", [handmade, fused])
def test_an_empty_batch_attends_to_nothing(build):
    """Torch may leave early there: that says nothing about other passes."""
    model, x = Looks(build()), words(2, 5, 8)
    with regard.capture(model) as trace:
        for size in (2, 2, 0, 2):
            model(x[:size])
    assert trace.notes == []
    assert [record.step for record in trace if record.shape.batch] == [0, 0, 1, 1, 3, 3]
    assert model.followed == [True, False, True, False]


def test_a_label_that_a_later_call_contradicts(tmp_path):
    """A query that sums up its keys is a position among them, until a decoder goes on with it."""
    target = next(t for t in targets() if t.name == "labels_begun_by_the_encoder")
    case = target.case()
    for options in ({}, {}, {"keep": tmp_path}):
        with regard.capture(case.model, **options) as trace:
            case.run()
        assert [record.attends for record in trace] == ["unknown"] * 3
    assert [record.attends for record in regard.load_trace(tmp_path)] == ["unknown"] * 3


def test_a_query_that_is_a_part_of_the_keys_is_another_kind_of_call():
    class Ask(nn.Module):
        def forward(self, query, keys):
            return (query[:, None] @ keys.mT).softmax(-1) @ keys

    model, keys = Ask(), torch.randn(2, 5, 4)
    with regard.capture(model) as trace:
        model(keys[:, -1], keys)
        model(torch.randn(2, 4), keys)
    assert [record.attends for record in trace] == ["self", "cross"]


def test_scores_that_serve_only_when_they_are_many():
    class Long(nn.Module):
        def forward(self, x):
            weights = (x @ x.mT).softmax(-1)
            extra = weights @ x if x.shape[1] > 6 else 0.0
            return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0] + extra

    model = Looks(Long())
    assert [len(captured(model, words(2, n, 8))) for n in (5, 5, 9)] == [1, 1, 2]
    assert model.followed == [True, False, True]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("changed", ["mask", "key", "weights", "query"])
def test_tables_that_every_pass_writes_to(changed, context):
    """Between learned passes and in them: what is held stays what it was."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.zeros(1, 1, 5, 5))
            self.register_buffer("keys", torch.zeros(2, 2, 5, 8))

        def forward(self, x, step):
            if changed == "mask":
                self.mask.fill_(0.0)[..., step:] = -torch.inf
                return F.scaled_dot_product_attention(x, x, x, attn_mask=self.mask), None
            if changed == "key":
                self.keys.copy_(x * step)
                return F.scaled_dot_product_attention(x, self.keys, x), None
            weights = (x * step @ x.mT).softmax(-1)
            return weights @ x, weights

    def trace(model, **options):
        x = words(2, 2, 5, 8)
        with context(), regard.capture(model, **options) as kept:
            for step in torch.arange(1, 5):
                _, weights = model(x, step)
                if changed == "weights":
                    weights.zero_()
                if changed == "query":
                    x.add_(1.0)
        return kept

    kept = trace(Table())
    alike(kept, trace(Table(), path="full", keep="weights"))


@pytest.mark.parametrize("attention", ["module", "decoder"])
def test_one_argument_given_twice_is_another_kind_of_call(attention):
    x, y = words(2, 5, 8), words(2, 5, 8, seed=1)
    model, calls = nn.MultiheadAttention(8, 2, batch_first=True), [(x, x, x), (x, y, y)]
    labels = [["self"], ["cross"]]
    if attention == "decoder":
        model = nn.TransformerDecoderLayer(8, 2, batch_first=True).eval()
        calls, labels = [(x, x), (x, y)], [["self", "self"], ["self", "cross"]]
    for _ in range(2):
        for arguments, label in zip(calls, labels):
            assert [record.attends for record in captured(model, *arguments)] == label


def test_heads_given_by_the_call():
    class Folded(nn.Module):
        def forward(self, x, heads):
            batch, length, _ = x.shape
            x = x.view(batch, length, heads, -1).transpose(1, 2).reshape(batch * heads, length, -1)
            return (x @ x.mT).softmax(-1) @ x

    model, x = Folded(), nn.Linear(8, 8)(words(4, 5, 8))
    shapes = [tuple(captured(model, x, heads)[0].shape) for heads in (2, 2, 4)]
    assert shapes == [tuple(captured(Folded(), x, heads)[0].shape) for heads in (2, 2, 4)]


@pytest.mark.parametrize(("before", "after"), [(-1, -2), ([False], [True])])
def test_settings_that_hash_alike_or_lie_in_a_list(before, after):
    class Switched(nn.Module):
        def __init__(self, setting):
            super().__init__()
            self.setting, self.project = setting, nn.Linear(8, 8)

        def forward(self, x, y):
            other = y if self.setting in (-1, [False]) else x
            return F.scaled_dot_product_attention(
                *(self.project(z)[:, None] for z in (x, other, other))
            )

    model, x, y = Switched(before), words(2, 5, 8), words(2, 5, 8, seed=1)
    captured(model, x, y)
    model.setting = after
    assert captured(model, x, y)[0].attends == "self"


@pytest.mark.parametrize("build", [fused, lambda: nn.Sequential(fused())])
def test_a_model_is_copied_and_saved_in_a_capture(build, tmp_path):
    model, x = build(), words(2, 5, 8)
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(3):
            model(x)
            copies = [copy.deepcopy(model)]
            torch.save(model, tmp_path / "model.pt")
            copies.append(torch.load(tmp_path / "model.pt", weights_only=False))
            for each in copies:
                assert torch.equal(each(x), model(x))
    assert len(trace) == 2 * 3 * 3, "copies are other models"


def test_one_line_that_is_self_and_cross_is_not_learned():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

        def attend(self, x, y):
            scores = self.query(x) @ self.key(y).mT
            return scores.softmax(-1) @ y

        def forward(self, x, y):
            return self.attend(x, x), self.attend(x, y)

    model = Looks(Both())
    for _ in range(2):
        trace = captured(model, words(2, 5, 8), words(2, 4, 8, seed=1))
        assert [record.attends for record in trace] == ["self", "cross"]
    assert model.followed == [True, True]


def test_weights_that_meet_their_values_after_the_pass():
    """A softmax that was no concern of the pass turns out to be attention."""

    class Weighs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.query, self.key = Attention(), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.layer(x)
            return (self.query(x) @ self.key(x).mT).softmax(-1), x

    model, x = Looks(Weighs()), words(2, 5, 8)
    for _ in range(3):
        with regard.capture(model) as trace:
            for _ in range(2):
                weights, values = model(x)
                weights @ values
        assert len(trace) == 4
    assert model.followed == [True] * 6


def test_changes_in_place_are_not_learned():
    class Overwrites(nn.Module):
        def forward(self, x):
            weights = (x @ x.mT).softmax(-1)
            mixed = weights @ x
            weights.zero_()
            return mixed

    model, x = Looks(Overwrites()), words(2, 5, 8)
    with torch.no_grad():
        for _ in range(2):
            trace = captured(model, x)
            torch.testing.assert_close(trace[0].weights()[:, 0], (x @ x.mT).softmax(-1))
    assert model.followed == [True, True]


@pytest.mark.parametrize("batch", [1, 2])
def test_keys_that_grow_from_one(batch):
    """A cache in the model's own hands: the first step has one key, and says nothing of others."""

    class Caches(nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = []

        def forward(self, x):
            self.keys.append(x)
            keys = torch.cat(self.keys, 2)
            return (x @ keys.mT).softmax(-1) @ keys

    model, x = Looks(Caches()), words(batch, 2, 1, 4)
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(4):
            model(x)
    assert [record.shape for record in trace] == [(batch, 2, 1, keys) for keys in (1, 2, 3, 4)]
    assert model.followed == [True, False, False, False] and trace.notes == []


# -- options


@pytest.mark.parametrize(
    "options", [{"values": True}, {"outputs": True}, {"attached": True}], ids=str
)
def test_options_that_need_more_follow_data(options):
    model, x = Looks(handmade(1)), words(2, 5, 8)
    captured(model, x)
    trace = captured(model, x, **options)
    assert model.followed == [True, True]
    check(list(trace), model.inner.weigh(x))
    if "values" in options:
        assert trace[0].mixed() is not None
    if "outputs" in options:
        assert trace[0].output is not None
    if "attached" in options:
        assert trace[0].weights().requires_grad


@pytest.mark.parametrize("keep", ["weights", [regard.FullWeights()]], ids=str)
@every_kind
def test_a_learned_model_however_kept(build, keep):
    model, x = Looks(build()), words(2, 5, 8)
    captured(model, x)
    trace = captured(model, x, keep=keep)
    assert model.followed == [True, False]
    for record, truth in zip(trace, model.inner.weigh(x), strict=True):
        weights = record.weights() if keep == "weights" else record.reductions[0]
        torch.testing.assert_close(weights, truth.detach())


@every_kind
def test_filters(build):
    """A capture of some sites learns nothing for one of all; one of all serves any filter."""
    model, x = Looks(build()), words(2, 5, 8)
    some = captured(model, x, passes=2, where="*layers.0")
    check(some, model.inner.weigh(x)[:1] * 2)
    check(captured(model, x), model.inner.weigh(x))
    check(captured(model, x, where="*layers.1"), model.inner.weigh(x)[1:])
    assert model.followed == [True, False, True, False]


def test_a_direct_forward_is_read():
    """No hook tells of it, so it is followed, whatever was learned."""
    model, x = fused(), words(2, 5, 8)
    captured(model, x)
    with regard.capture(model) as trace:
        model.forward(x)
    check(trace, model.weigh(x))


def test_attention_between_learned_passes():
    """No hook tells of a method that is called directly; it is read when attention runs."""

    class Methods(nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.fused = fused

        def forward(self, x):
            if self.fused:
                return F.scaled_dot_product_attention(x, x, x)
            return (x @ x.mT / 2).softmax(-1) @ x

        def attend(self, x):
            return (x @ x.mT / 2).softmax(-1) @ x

    x = words(2, 2, 5, 4)
    truth = (x @ x.mT / 2).softmax(-1)
    for model in (Methods(True), Methods(False)):
        captured(model, x)
        with regard.capture(model) as trace:
            for run in (model, model.forward, model, model.attend, model):
                run(x)
                x.softmax(-1)
        check(trace, [truth] * 5)
        assert [record.step for record in trace] == [0, 0, 1, 1, 2]
        assert {record.attends for record in trace} == {"self"}


def test_learned_passes_with_checkpoints():
    """Backward runs the forward again, and that is no attention of its own."""

    class Checkpoints(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = handmade()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    model, x = Looks(Checkpoints()), words(2, 5, 8)
    with regard.capture(model) as trace:
        for _ in range(3):
            model(x).sum().backward()
    assert model.followed == [True, False, False] and trace.notes == []
    check(trace, model.inner.inner.weigh(x) * 3)


@every_kind
def test_a_part_that_is_called_between_passes(build):
    model, x = build(), words(2, 5, 8)
    captured(model, x)
    with regard.capture(model) as trace:
        model(x)
        model.layers[0](x)
        model(x)
    check(trace, [*model.weigh(x), model.layers[0].weigh(x), *model.weigh(x)])
    assert [record.step for record in trace] == [0, 0, 0, 1, 1]


def test_flex_attention_that_comes_up_later_is_said():
    from torch.nn.attention.flex_attention import flex_attention

    class Flexes(nn.Module):
        def __init__(self):
            super().__init__()
            self.passes = 0

        def forward(self, x):
            self.passes += 1
            attend = flex_attention if self.passes == 2 else F.scaled_dot_product_attention
            return attend(x, x, x)

    model, x = Flexes(), words(1, 2, 16, 16)
    with (
        pytest.warns(regard.CaptureWarning, match="flex_attention ran"),
        torch.no_grad(),
        regard.capture(model) as trace,
    ):
        [model(x) for _ in range(3)]
    assert [record.step for record in trace] == [0, 2]


def test_plans_do_not_keep_a_model():
    model, x = fused(), words(2, 5, 8)
    captured(model, x)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


# -- axes


def test_axes_of_a_softmax():
    """(batch · head, query, key): two roles in one dim, of which the heads are fixed."""
    geometry = ((6, 5, 7), (35, 7, 1), 0)
    layout = Layout((((2, 105),), ((3, 35),), ((5, 7),), ((7, 1),)), 0)
    arrangement = arrangement_of(layout, 2, geometry)
    weights = torch.rand(12, 4, 9).softmax(-1)
    some = frozenset({2})
    grown = arrangement.layout(weights, -1, frozenset())
    assert torch.equal(grown.view(weights), weights.unflatten(0, (4, 3)))
    assert arrangement.layout(torch.rand(10, 4, 9), -1, some) is None  # not a multiple of the heads
    assert arrangement.layout(weights, 1, some) is None
    assert arrangement.layout(weights[0], -1, some) is None


@pytest.mark.parametrize(
    "axes",
    [
        (((2, 105),), ((3, 35),), ((5, 7),), ((6, 1),)),  # a key that was cut off
        (((6, 35),), (), ((5, 7),), ()),  # keys that are not there
        (((2, 105),), (), ((3, 35), (5, 7)), ((7, 1),)),  # no heads in the merged dim
    ],
)
def test_axes_that_are_not_learned(axes):
    assert arrangement_of(Layout(axes, 0), 2, ((6, 5, 7), (35, 7, 1), 0)) is None


@every_kind
def test_a_trace_is_freed_with_its_last_name(build):
    """No cycle: what a trace holds must not wait for the collector of garbage."""
    model, x = build(), words(2, 5, 8)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            there = weakref.ref(captured(model, x))
            assert there() is None
    finally:
        gc.enable()
