"""Gates of convolutional networks, recorded on request: `capture(gates=True)`."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from targets import negatives, targets
from targets.comparing import sampled
from torch import nn

import regard
from regard import plots

B, C, H, W = 2, 6, 5, 3


def image(*shape):
    return torch.randn(*(shape or (B, C, H, W)), generator=torch.Generator().manual_seed(0))


class Squeeze(nn.Module):
    """Squeeze-and-excitation as its authors write it; `bound` makes the gate, which is kept."""

    def __init__(self, channels=C, bound=torch.sigmoid):
        super().__init__()
        self.down, self.up, self.bound = nn.Linear(channels, 2), nn.Linear(2, channels), bound

    def gate_of(self, x):
        return self.bound(self.up(torch.relu(self.down(x.mean((2, 3))))))

    def forward(self, x):
        self.gate = self.gate_of(x)  # (batch, channel)
        return x * self.gate[:, :, None, None]


class Spatial(nn.Module):
    """The spatial half of CBAM: the mean and the largest over channels, convolved."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x):
        pooled = torch.cat([x.amax(1, keepdim=True), x.mean(1, keepdim=True)], 1)
        self.gate = self.conv(pooled).sigmoid()
        return self.gate * x


class Network(nn.Module):
    """A convolution, and a gate onto what it gives."""

    def __init__(self, gate, channels=C):
        super().__init__()
        self.conv, self.block = nn.Conv2d(channels, channels, 3, padding=1), gate

    def forward(self, x):
        return self.block(F.relu(self.conv(x)))


def captured(model, *args, **options):
    """The trace of one run, whose output is that of a plain one."""
    plain = model(*args)
    with regard.capture(model, gates=True, **options) as trace:
        output = model(*args)
    assert torch.equal(output, plain) and trace.notes == []
    return trace


def unseen(model, *args):
    """Nothing was recorded, and that is said."""
    with pytest.warns(regard.CaptureWarning, match="no attention and no gate"):
        trace = captured_quietly(model, *args)
    assert len(trace) == 0
    return trace


def captured_quietly(model, *args):
    with regard.capture(model, gates=True) as trace:
        model(*args)
    return trace


def test_a_channel_gate():
    model = Network(Squeeze())
    (record,) = captured(model, image())
    assert record.kind == "gate" and record.shape == (B, 1, 1, C) and record.recipe.grid is None
    assert record.name == "block" and record.module_class == "Squeeze"
    assert record.operator == "sigmoid" and ":" in record.source
    assert torch.equal(record.weights()[:, 0, 0], model.block.gate)


def test_a_spatial_gate():
    model = Network(Spatial())
    (record,) = captured(model, image())
    assert record.kind == "gate" and record.shape == (B, 1, 1, H * W)
    assert record.recipe.grid == (H, W)
    assert torch.equal(record.weights()[:, 0, 0], model.block.gate.flatten(1))


BOUNDED = {
    "sigmoid": torch.sigmoid,
    "hard sigmoid": F.hardsigmoid,
    "hard sigmoid by hand": lambda z: F.relu6(z + 3) / 6,
    "hard sigmoid by clamp": lambda z: (z / 6 + 0.5).clamp(0, 1),
    "clamp, two steps": lambda z: z.clamp(min=0).clamp_max(1.0),
    "sigmoid by hand": lambda z: 1 / (1 + torch.exp(-z)),
    "tanh": lambda z: 0.5 * (torch.tanh(z) + 1),
    "tanh, squared by itself": lambda z: 1 - (1 - z.sigmoid()) * z.sigmoid(),
    "gaussian": lambda z: torch.exp(-(z**2) / 2),
    "inverse sigmoid": lambda z: 1 - z.sigmoid(),
    "in place": lambda z: z.clone().sigmoid_(),
    "half precision": lambda z: z.sigmoid().bfloat16().float(),
}


@pytest.mark.parametrize("bound", BOUNDED.values(), ids=BOUNDED)
def test_functions_that_bound(bound):
    model = Network(Squeeze(bound=bound))
    (record,) = captured(model, image())
    assert torch.equal(record.weights()[:, 0, 0], model.block.gate)


UNBOUNDED = {
    "none": lambda z: z,
    "relu": torch.relu,
    "twice a sigmoid": lambda z: 2 * z.sigmoid(),
    "one and a tanh": lambda z: 1 + z.tanh(),
    "tanh": torch.tanh,
    "softmax": lambda z: z.softmax(-1),
    "softplus": F.softplus,
    "a standard deviation": lambda z: (z.var(-1, keepdim=True) + 1e-5).rsqrt() + 0 * z,
    "clamp to six": lambda z: z.clamp(0, 6),
    "is it there": lambda z: (z > 0).float(),
    "clamp by tensors": lambda z: z.clamp(torch.zeros_like(z), torch.ones_like(z)),
}


@pytest.mark.parametrize("bound", UNBOUNDED.values(), ids=UNBOUNDED)
def test_functions_that_do_not(bound):
    unseen(Network(Squeeze(bound=bound)), image())


class Excite(Squeeze):
    """Squeeze-and-excitation with parts of its own, as in most repositories."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(self.down, nn.ReLU(inplace=True), self.up, nn.Sigmoid())

    def gate_of(self, x):
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    def forward(self, x):
        self.gate = self.gate_of(x)
        return x * self.gate.view(*self.gate.shape, 1, 1).expand_as(x)


class InPlace(Squeeze):
    def forward(self, x):
        self.gate = self.gate_of(x)
        return x.mul_(self.gate[:, :, None, None])


class ByEinsum(Squeeze):
    def forward(self, x):
        self.gate = self.gate_of(x)
        return torch.einsum("bchw,bc->bchw", x, self.gate)


class ChannelsLast(Squeeze):
    """Of (batch, height, width, channel) inside; the convolution has made the channels."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).contiguous()
        self.gate = self.bound(self.up(self.down(x.mean((1, 2)))))
        return (x * self.gate[:, None, None]).permute(0, 3, 1, 2)


class BeforeActivation(Squeeze):
    """Computed from what comes of x, and multiplied onto x itself."""

    def forward(self, x):
        self.gate = self.gate_of(F.silu(x).contiguous())
        return x * self.gate[..., None, None]


@pytest.mark.parametrize("kind", [Excite, InPlace, ByEinsum, ChannelsLast, BeforeActivation])
def test_spellings(kind):
    model = Network(kind())
    (record,) = captured(model, image())
    assert record.name == "block" and record.recipe.grid is None
    assert torch.equal(record.weights()[:, 0, 0], model.block.gate)


class Both(nn.Module):
    """CBAM whose halves return their gates: they are multiplied outside of them."""

    class Channel(Squeeze):
        def forward(self, x):
            return self.gate_of(x)[..., None, None]

    def __init__(self):
        super().__init__()
        self.channel, self.conv = self.Channel(), nn.Conv2d(1, 1, 3, padding=1)
        self.spatial = nn.Sequential(self.conv, nn.Sigmoid())

    def forward(self, x):
        x = x * self.channel(x)
        return x * self.spatial(x.mean(1, keepdim=True))


def test_a_gate_is_named_by_the_module_that_made_it():
    """A sequence of layers is no such module: what it belongs to is."""
    trace = captured(Network(Both()), image())
    assert trace.names() == ["block.channel", "block"]
    assert [record.recipe.grid for record in trace] == [None, (H, W)]


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1), (7, 2)])
def test_narrow_images(size):
    """One position alone: nothing is broadcast, and the pooling tells."""
    model = Network(Squeeze())
    (record,) = captured(model, image(B, C, *size))
    assert record.shape == (B, 1, 1, C)
    if size != (1, 1):
        (record,) = captured(Network(Spatial()), image(B, C, *size))
        assert record.recipe.grid == size


def test_one_example():
    (record,) = captured(Network(Squeeze()), image(1, C, H, W))
    assert record.shape == (1, 1, 1, C)


@pytest.mark.parametrize("dim", [1, 3])
def test_sequences_and_volumes(dim):
    """Where a convolution has made the channels, any number of axes will do."""
    conv = {1: nn.Conv1d, 3: nn.Conv3d}[dim](C, C, 1)

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.mix = conv, nn.Linear(C, C)

        def forward(self, x):
            x = self.conv(x)
            gate = self.mix(x.flatten(2).mean(-1)).sigmoid()
            x = x * gate.view(*gate.shape, *[1] * dim)
            return x * x.amax(1, keepdim=True).sigmoid()

    channel, spatial = captured(Gated(), image(B, C, *[3] * dim))
    assert channel.shape.keys == C and spatial.shape.keys == 3**dim
    assert spatial.recipe.grid is None


# What is no gate.


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.twice = nn.Conv2d(C, C, 1), nn.Conv2d(C, 2 * C, 1)
        self.scale, self.norm = nn.Parameter(torch.randn(C, 1, 1)), nn.BatchNorm2d(C)
        self.lstm, self.cell = nn.LSTM(C, C, batch_first=True), nn.LSTMCell(C, C)
        self.gru, self.classify = nn.GRUCell(C, C), nn.Linear(C, C)
        self.attend = nn.MultiheadAttention(C, 2, batch_first=True)


def layer_scale(self, x):
    return x + self.scale.sigmoid() * self.conv(x)


def batch_norm(self, x):
    return self.norm(self.conv(x)) * 0.5


def norm_by_hand(self, x):
    x = self.conv(x)
    return (x - x.mean((2, 3), keepdim=True)) * (x.var((2, 3), keepdim=True) + 1e-5).rsqrt()


def response_norm(self, x):
    x = self.conv(x)
    norms = x.norm(dim=(2, 3), keepdim=True)
    return x + x * (norms / norms.mean(1, keepdim=True))


def dropped_channels(self, x):
    return F.dropout2d(self.conv(x), 0.5, training=True)


def dropped_paths(self, x):
    x = self.conv(x)
    return x * torch.empty_like(x[:, :1, :1, :1]).bernoulli_(0.5)


def padding_mask(self, x):
    x = self.conv(x)
    return x * (x.abs().sum(1, keepdim=True) > 1).float()


def gated_linear_unit(self, x):
    return F.glu(self.twice(x), 1)


def gated_by_hand(self, x):
    value, gate = self.twice(x).chunk(2, 1)
    return value * gate.sigmoid()


def swish_by_hand(self, x):
    x = self.conv(x)
    return x * x.sigmoid()


def swish_of_a_pixel(self, x):
    x = self.conv(x[:, :, :1, :1])
    return x * x.sigmoid()


def recurrent(self, x):
    return self.lstm(x.flatten(2).mT)[0]


def cells(self, x):
    state = x.mean((2, 3))
    for step in x.flatten(2).unbind(-1):
        state = self.gru(step, self.cell(step, (state, state))[0])
    return state


def classifier(self, x):
    return self.classify(self.conv(x).mean((2, 3))).sigmoid()


def weighted_loss(self, x):
    chances = self.classify(self.conv(x).mean((2, 3))).sigmoid()
    return (chances * F.logsigmoid(self.classify(x.mean((2, 3))))).mean()


def of_another_input(self, x):
    """A gate that the image it scales has no part in: the channels of its mirror image."""
    return self.conv(x) * self.classify(x.flip(-1).mean((2, 3))).sigmoid()[..., None, None]


def rows_of_channels(self, x):
    """Coordinate attention: a number for each row of each channel."""
    x = self.conv(x)
    return x * self.conv(x.mean(3, keepdim=True)).sigmoid()


def over_the_batch(self, x):
    x = self.conv(x)
    return x * x.mean((0, 2, 3), keepdim=True).sigmoid()


NEGATIVES = [
    layer_scale, batch_norm, norm_by_hand, response_norm, dropped_channels, dropped_paths,
    padding_mask, gated_linear_unit, gated_by_hand, swish_by_hand, swish_of_a_pixel, recurrent,
    cells, classifier, weighted_loss, of_another_input, rows_of_channels, over_the_batch,
]  # fmt: skip


@pytest.mark.parametrize("forward", NEGATIVES, ids=lambda forward: forward.__name__)
def test_no_gate(forward):
    model = type("Model", (Parts,), {"forward": forward})()
    unseen(model, image())


@pytest.mark.filterwarnings("ignore:regard.capture:UserWarning")
@pytest.mark.parametrize(
    "target", sampled(t for t in negatives() if t.name != "not_squeeze_excite")
)
def test_no_gate_among_what_is_no_attention(target):
    case = target.case()
    assert len(captured_quietly(case.model, *case.args)) == 0


def test_the_negative_that_is_a_gate():
    case = next(t for t in negatives() if t.name == "not_squeeze_excite").case()
    (record,) = captured_quietly(case.model, *case.args)
    assert record.kind == "gate" and record.shape == (2, 1, 1, 16)


@pytest.mark.parametrize(
    "target", sampled((t for t in targets() if not t.compiled and t.group != "sizes"), every=12)
)
def test_attention_is_what_it_was(target):
    with target.around(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = target.case()
        with regard.capture(case.model, gates=True) as trace:
            case.run()
    assert [tuple(record.shape) for record in trace] == [tuple(w.shape) for w in case.truth]
    assert all(record.kind != "gate" for record in trace)


def test_nothing_unless_asked():
    model = Network(Squeeze())
    with (
        pytest.warns(regard.CaptureWarning, match="no attention was seen"),
        regard.capture(model) as trace,
    ):
        model(image())
    assert len(trace) == 0


# A model that has both.


class Hybrid(nn.Module):
    """A gated convolution, then attention over positions."""

    def __init__(self):
        super().__init__()
        self.stem = Network(Squeeze())
        self.attend = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        return self.attend(x, x, x, need_weights=False)[0]


@pytest.fixture
def hybrid():
    torch.manual_seed(0)
    model = Hybrid().eval()
    with torch.no_grad():
        return captured(model, image())


def test_beside_attention(hybrid):
    assert hybrid.names() == ["stem.block", "attend"]
    assert [record.kind for record in hybrid] == ["gate", "distribution"]
    assert str(hybrid).startswith("Trace of 1 attention and 1 gate, ")


def test_what_needs_attention_leaves_gates_aside(hybrid):
    (weights,) = hybrid.attentions
    assert weights.shape == (B, 2, H * W, H * W)
    attention = regard.Trace([hybrid["attend"]])
    assert torch.equal(regard.rollout(hybrid), regard.rollout(attention))
    assert torch.equal(regard.mean_attention(hybrid), regard.mean_attention(attention))
    assert [row.name for row in hybrid.report()] == ["attend", "attend"]
    assert len(plots.grid(hybrid).maps) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda trace: trace.attentions,
        lambda trace: trace.cross_attentions,
        regard.rollout,
        regard.mean_attention,
        regard.attention_flow,
        lambda trace: trace.report(),
        plots.grid,
    ],
)
def test_gates_alone_are_refused_with_the_reason(hybrid, ask):
    with pytest.raises(regard.RegardError, match=r"the trace has gates alone \(stem.block"):
        ask(hybrid[:1])


def test_a_gate_is_no_layer_of_a_rollout(hybrid):
    with pytest.raises(regard.RegardError, match=r"stem.block: 1 query × 6 keys cannot be chained"):
        regard.rollout([hybrid[0]])


def test_the_learned_path_is_not_taken(hybrid):
    """A plan of attention alone is learned first; a capture of gates must not follow it."""
    model, x = Hybrid().eval(), image()
    with torch.no_grad():
        for _ in range(2):
            with regard.capture(model) as trace:
                model(x)
        assert trace.names() == ["attend"]
        with regard.capture(model, gates=True) as trace:
            for _ in range(3):
                model(x)
        assert trace.names()[2::2] == ["stem.block#2", "stem.block#3"] and len(trace) == 6
        with regard.capture(model) as trace:
            model(x)
    assert trace.names() == ["attend"]


# What records can do.


def test_reduced_saved_and_loaded(tmp_path):
    model = Network(Spatial())
    trace = captured(model, image())
    (record,) = trace
    (received,) = record.reduce(regard.ReceivedAttention())
    assert torch.equal(received[:, 0], model.block.gate.flatten(1))
    with pytest.raises(regard.RegardError, match="gate"):
        record.reduce(regard.Entropy())
    again = regard.load_trace(trace.save(tmp_path / "gates.safetensors"))
    assert again[0].kind == "gate" and again[0].recipe.grid == (H, W)
    assert torch.equal(again[0].weights(), record.weights())
    assert torch.equal(copy.deepcopy(record).weights(), record.weights())


@pytest.mark.parametrize("kept", ["weights", "disk", "reducers"])
def test_however_kept(kept, tmp_path):
    keep = {"weights": "weights", "disk": tmp_path, "reducers": [regard.ReceivedAttention()]}[kept]
    model = Network(Spatial())
    (record,) = captured(model, image(), keep=keep)
    found = record.reductions[0] if kept == "reducers" else record.weights()[:, 0]
    assert torch.equal(found[:, 0], model.block.gate.flatten(1))
    if kept != "reducers":
        assert record.recipe.grid == (H, W)


def test_a_gate_that_is_overwritten_later():
    class Overwrites(Squeeze):
        def forward(self, x):
            output = super().forward(x)
            self.before = self.gate.clone()
            self.gate.zero_()
            return output

    model = Network(Overwrites())
    with torch.no_grad():
        (record,) = captured(model, image())
    assert torch.equal(record.weights()[:, 0, 0], model.block.before)


@pytest.mark.parametrize("kind", [Squeeze, Excite, Spatial])
def test_gradients(kind):
    model = Network(kind())
    with regard.capture(model, gates=True, grad=True, outputs=True) as trace:
        output = model(image())
        model.block.gate.retain_grad()
        output.square().sum().backward()
    expected = model.block.gate.grad.flatten(1)
    torch.testing.assert_close(trace[0].gradient()[:, 0, 0], expected)
    assert torch.equal(trace[0].output, output)


def test_in_the_graph():
    model = Network(Squeeze())
    with regard.capture(model, gates=True, attached=True) as trace:
        model(image())
    trace[0].weights().sum().backward()
    assert model.block.down.weight.grad.abs().sum() > 0


def test_no_values():
    (record,) = captured(Network(Squeeze()), image(), values=True)
    with pytest.raises(regard.RegardError, match="a gate multiplies, and mixes no values"):
        record.mixed()


def test_filters_and_tokens():
    model = nn.Sequential(Network(Squeeze()), Network(Spatial()))
    words = [str(number) for number in range(C)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = captured_quietly(model, image())
        with regard.capture(model, gates=True, where="0.*", tokens=words) as some:
            model(image())
    assert trace.names() == ["0.block", "1.block"] and some.names() == ["0.block"]
    assert some[0].key_tokens is None  # channels are no words


def test_inference_mode_and_half_precision():
    model = Network(Squeeze()).bfloat16()
    with torch.inference_mode():
        (record,) = captured(model, image().bfloat16())
    assert record.weights().dtype == torch.float32
    assert torch.equal(record.weights()[:, 0, 0], model.block.gate.float())


def test_the_fused_path_is_refused():
    with pytest.raises(regard.RegardError, match="gates=True needs path='full' or 'auto'"):
        regard.capture(Network(Squeeze()), gates=True, path="fused")
