"""Sliding-window states: the masked full pass, from the keys that later queries can see."""

import pytest
import torch

import regard
from regard import masks
from regard.bias import CachedBias, GappedBias
from regard.blocks import DecoderBlock, EncoderBlock, FeedForward, PreNorm, Stack
from regard.errors import MaskError, RegardError, ShapeError, StateError
from regard.kernel.position_encodings import AlibiBias
from regard.mechanisms import Alibi, DotProduct, MultiHead, RelativeBias, Rotary, Window
from regard.types import whole

LENGTH = 24
X = torch.randn(2, LENGTH, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
REAL = torch.ones(2, LENGTH, dtype=torch.bool)
REAL[0, :2], REAL[1, 9:12] = False, False
NUMBERS = torch.arange(LENGTH)[None] // 10


def relative():
    position = RelativeBias(4, 3)
    torch.nn.init.normal_(position.table)
    return position


POSITIONS = {"none": lambda: None, "rotary": Rotary, "alibi": lambda: Alibi(4), "table": relative}
MASKS = {  # of the queries from `start` on, and all keys up to `stop`
    "none": lambda start, stop: None,
    "padding": lambda start, stop: masks.padding(REAL[:, :stop]),
    "segments": lambda start, stop: masks.segments(NUMBERS[:, start:stop], NUMBERS[:, :stop]),
    "narrower": lambda start, stop: masks.window(3, 0),
    "other": lambda start, stop: ~masks.window(1, 0) | masks.window(0, 0),
    "tensor": lambda start, stop: REAL[:, None, None, :stop],
}


def build(position=None, window=(4, 0), **more):
    return MultiHead(16, 4, position=position, window=window, **more).double().eval()


def walk(attn, sizes, mask=MASKS["none"], bias=None):
    """Steps of these sizes: outputs, weights over the whole text, states."""
    state, start, outputs, rows, states = True, 0, [], [], []
    for size in sizes:
        stop = start + size
        more = {} if bias is None else {"bias": bias[..., :stop]}
        step = attn(
            X[:, start:stop],
            causal=True,
            mask=mask(start, stop),
            state=state,
            weights=True,
            **more,
        )
        state, keys = step.state, step.weights.shape[3]
        row = step.weights.new_zeros(2, 4, size, LENGTH)
        row[..., state.positions(keys)] = step.weights
        outputs.append(step.output)
        rows.append(row)
        states.append(state)
        start = stop
    return torch.cat(outputs, 1), torch.cat(rows, 2), states


def streamed(attn, x, left, first, slopes=None):
    """The loop of StreamingLLM: each query meets a cache of the first keys and the last ones, whose
    positions are their places in it. Rotary unless there are slopes, then ALiBi."""
    width, outputs = 4, []

    def turned(feature, position):
        result = feature.clone()
        for pair in range(width // 2):
            angle = torch.tensor(position * 10000.0 ** (-2 * pair / width), dtype=torch.float64)
            low, high = feature[..., pair], feature[..., pair + width // 2]
            result[..., pair] = low * angle.cos() - high * angle.sin()
            result[..., pair + width // 2] = low * angle.sin() + high * angle.cos()
        return result

    queries, keys, values = (
        project(x).unflatten(-1, (4, width))
        for project in (attn.to_query, attn.to_key, attn.to_value)
    )
    for t in range(x.shape[1]):
        cache = [j for j in range(t + 1) if j < first or j >= t - left]
        last, scores = len(cache) - 1, []
        for position, j in enumerate(cache):
            if slopes is None:
                pair = turned(queries[:, t], last), turned(keys[:, j], position)
                scores.append((pair[0] * pair[1]).sum(-1) / width**0.5)
            else:
                product = (queries[:, t] * keys[:, j]).sum(-1) / width**0.5
                scores.append(product - slopes * (last - position))
        weights = torch.stack(scores, -1).softmax(-1)  # (batch, head, place)
        mixed = torch.einsum("bhp,bphw->bhw", weights, values[:, cache])
        outputs.append(attn.to_output(mixed.flatten(1)))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_positions_in_the_cache_follow_the_paper(position, first):
    part = POSITIONS[position]()
    attn = build(part, Window(4, 0, first=first, in_cache=True))
    slopes = part.slopes.double() if position == "alibi" else None
    expected = streamed(attn, X, 4, first, slopes)
    torch.testing.assert_close(attn(X, causal=True).output, expected, atol=1e-10, rtol=1e-10)
    for sizes in ([1] * LENGTH, [7, 1, 1, 5, 2, 8]):
        outputs, _, states = walk(attn, sizes)
        torch.testing.assert_close(outputs, expected, atol=1e-10, rtol=1e-10)
        assert states[-1].keys == 4 + first
    in_text = build(POSITIONS[position](), Window(4, 0, first=first))
    in_text.load_state_dict(attn.state_dict())
    same = torch.allclose(in_text(X, causal=True).output, expected)
    assert same == (first == 0)  # the distances within a window are the same in both


def test_a_cached_bias_of_some_heads_is_some_of_it():
    bias = CachedBias(AlibiBias(torch.tensor([0.5, 2.0])), 2, 5)
    full = bias.block(whole(9, 9))
    assert full[0, 0, 8, :3].tolist() == [-2.5, -2.0, -3.0]  # at most 5 before, then the window
    assert torch.equal(bias.block(whole(9, 9).over(slice(1, 4))), full[..., 1:4])
    assert torch.equal(bias.at(0, 1).block(whole(9, 9)), full[:, 1:])
    assert torch.equal(bias.of_heads([1]).block(whole(9, 9)), full[:, 1:])
    assert bias.heads == 2 and not bias.requires_grad


#: Every mask with every position, kept first keys or none; with a graph and without one in turn, so
#: that each mask meets both at every position.
TOGETHER = [
    pytest.param(position, first, mask, (i + j + first) % 2 == 0, id=f"{first}-{name}-{title}")
    for first in (0, 3)
    for i, (name, position) in enumerate(POSITIONS.items())
    for j, (title, mask) in enumerate(MASKS.items())
]


@pytest.mark.parametrize(("position", "first", "mask", "grad"), TOGETHER)
def test_steps_equal_the_masked_full_pass(position, first, mask, grad):
    attn = build(position(), Window(4, 0, first=first))
    bias = torch.randn(1, 4, 1, LENGTH, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        full = attn(X, causal=True, mask=mask(0, LENGTH), bias=bias, weights=True)
        for sizes in ([1] * LENGTH, [7, 1, 1, 5, 2, 8], [LENGTH]):
            outputs, weights, states = walk(attn, sizes, mask, bias)
            torch.testing.assert_close(outputs, full.output, atol=1e-10, rtol=1e-10)
            torch.testing.assert_close(weights, full.weights, atol=1e-10, rtol=1e-10)
            assert states[-1].keys == 4 + first and states[-1].length == LENGTH
            assert states[-1].positions().tolist() == [*range(first), *range(LENGTH - 4, LENGTH)]


def test_a_window_of_three_keeps_two_keys_after_forty_steps():
    attn = build(window=(2, 0))
    state = True
    with torch.no_grad():
        for _ in range(40):
            step = attn(X[:, :1], causal=True, state=state, weights=True)
            state = step.state
    assert step.weights.shape == (2, 4, 1, 3)
    assert (state.keys, state.dropped, state.length, state.step) == (2, 38, 40, 40)
    assert state.key.untyped_storage().nbytes() < 2 * 4 * 4 * 8 * 2 * (2 + 64)  # and no others
    assert "dropped=38" in repr(state)


def test_a_long_prompt_is_not_kept_in_memory():
    attn = build(window=Window(4, 0, first=1))
    long = torch.randn(1, 500, 16, dtype=torch.float64)
    with torch.no_grad():
        state = attn(long, causal=True, state=True).state
        begun = attn(long[:, :1], causal=True, state=attn.begin(long)).state
    for kept in (state, begun):
        assert kept.keys == 5
        assert kept.key.untyped_storage().nbytes() < 16 * 8 * 100


@pytest.mark.parametrize("first", [0, 2])
def test_two_continuations_of_one_windowed_state_are_both_right(first):
    attn = build(Rotary(), Window(4, 0, first=first))
    with torch.no_grad():
        trunk = attn(X[:, :9], causal=True, state=True).state
        trunk = attn(X[:, 9:10], causal=True, state=trunk).state
        held = trunk.key.clone()
        for tail in (X[:, 10:14], X[:, 14:18], X[:, 18:22]):
            state, outputs = trunk, []
            for position in range(4):
                step = attn(tail[:, position : position + 1], causal=True, state=state)
                state = step.state
                outputs.append(step.output)
            whole = attn(torch.cat([X[:, :10], tail], 1), causal=True).output[:, 10:]
            torch.testing.assert_close(torch.cat(outputs, 1), whole)
        assert torch.equal(trunk.key, held)


def test_a_step_of_a_window_copies_its_own_keys_alone():
    attn = build(window=(4, 0))
    with torch.no_grad():
        state = attn(X, causal=True, state=True).state
        for _ in range(2):
            state = attn(X[:, :1], causal=True, state=state).state
        buffer = state.buffer.tensors[0]
        for _ in range(40):
            state = attn(X[:, :1], causal=True, state=state).state
    assert state.buffer.tensors[0] is buffer and state.keys == 4


def test_gradients_reach_the_keys_that_are_kept():
    attn, x = build(Rotary(), Window(4, 0, first=2)), X.clone().requires_grad_()
    whole = torch.autograd.grad(attn(x, causal=True).output.square().sum(), x)[0]
    state, total = True, 0.0
    for position in range(LENGTH):
        step = attn(x[:, position : position + 1], causal=True, state=state)
        state, total = step.state, total + step.output.square().sum()
    torch.testing.assert_close(torch.autograd.grad(total, x)[0], whole)


def test_remembered_padding_is_that_of_the_keys_that_are_kept():
    attn = build(Rotary(), Window(4, 0, first=1))
    full = attn(X, causal=True, mask=masks.padding(REAL | (torch.arange(LENGTH) > 11))).output
    state = attn(X[:, :12], causal=True, mask=masks.padding(REAL[:, :12]), state=True).state
    assert state.padding.shape == (2, 5)
    for position in range(12, LENGTH):  # no mask: what the state remembers counts
        step = attn(X[:, position : position + 1], causal=True, state=state)
        state = step.state
        torch.testing.assert_close(step.output[:, 0], full[:, position])


def test_more_queries_than_keys_reach_back_as_far_as_before():
    attn = build(window=(4, 0))
    state, keys = attn.begin(X[:, :2]), 2
    for _ in range(6):  # three queries against one more key, each time
        step = attn(X[:, keys : keys + 3], X[:, keys : keys + 1], causal=True, state=state)
        state, keys = step.state, keys + 1
        whole = attn(X[:, keys - 1 : keys + 2], X[:, :keys], causal=True).output
        torch.testing.assert_close(step.output, whole)
    assert state.keys == 6


def test_queries_that_see_dropped_keys_are_refused():
    attn = build(window=(4, 0))
    state = attn(X, causal=True, state=True).state
    with pytest.raises(StateError, match=r"keys 0 to 19 were dropped, but a query .* from 18 on"):
        attn(X[:, :3], X[:, :1], causal=True, state=state)
    with pytest.raises(StateError, match="from 16 on; pass at most as many queries as new keys"):
        build(window=(8, 0))(X[:, :1], causal=True, state=state)
    with pytest.raises(StateError, match="to the module that made the state"):
        build(window=Window(4, 0, first=1))(X[:, :1], causal=True, state=state)
    with pytest.raises(StateError, match="keys 0 to 19 were dropped"):
        build(window=None)(X[:, :1], causal=True, state=state)


def test_masks_and_biases_span_the_text():
    attn = build(window=(4, 0))
    state = attn(X, causal=True, state=True).state
    with pytest.raises(MaskError, match="axis key has size 5, expected 25"):
        attn(X[:, :1], state=state, mask=masks.padding(REAL[:, :5]))
    with pytest.raises(ShapeError, match="bias: axis key has size 5, expected 25 or 1"):
        attn(X[:, :1], state=state, bias=torch.zeros(1, 1, 1, 5, dtype=torch.float64))


@pytest.mark.usefixtures("without_shape_checks")
def test_a_window_is_two_numbers_or_a_part():
    with pytest.raises(RegardError, match="window=3, expected a Window or a tuple of two"):
        MultiHead(16, 4, window=3)
    with pytest.raises(MaskError, match="left=-1, expected a number >= 0"):
        Window(-1)
    with pytest.raises(MaskError, match="in_cache=True, expected a number for left"):
        Window(None, in_cache=True)
    assert "window(4, 0, first=2)" in repr(build(window=Window(4, first=2)))


def test_reductions_are_over_the_keys_that_were_attended_to():
    attn = build(window=(4, 0))
    state = attn(X, causal=True, state=True).state
    step = attn(
        X[:, :1], causal=True, state=state, weights=True, reduce=[regard.ReceivedAttention()]
    )
    torch.testing.assert_close(step.reductions[0], step.weights.sum(2))
    torch.testing.assert_close(step.weights @ step.recipe.value, step.recipe.mixed())


def test_fixed_states_and_other_mechanisms_drop_nothing():
    attn = build(window=(4, 0))
    assert attn(X[:, :2], state=attn.fix(X)).state.keys == LENGTH
    assert DotProduct()(X, state=True).state.dropped == 0
    assert build(window=(None, 0))(X, state=True).state.dropped == 0


def blocks():
    def sublayer():
        window = Window(3, 0, first=1)
        return PreNorm(16, MultiHead(16, 4, position=Rotary(), window=window))

    yield Stack([EncoderBlock(sublayer(), PreNorm(16, FeedForward(16))) for _ in range(2)]), ()
    cross, change = PreNorm(16, MultiHead(16, 4)), PreNorm(16, FeedForward(16))
    yield DecoderBlock(sublayer(), cross, change), (X[:, :5],)


@pytest.mark.parametrize(("block", "context"), list(blocks()), ids=["stack", "decoder"])
def test_blocks_go_on_from_windows(block, context):
    block, real = block.double().eval(), masks.padding(REAL)
    full = block(X, *context, causal=True, mask=real).output
    state, outputs = True, []
    for position in range(LENGTH):
        step = block(
            X[:, position : position + 1],
            *(context if state is True else ()),
            causal=True,
            mask=masks.padding(REAL[:, : position + 1]),
            state=state,
        )
        state = step.state
        outputs.append(step.output)
    real = REAL[..., None]
    torch.testing.assert_close(torch.cat(outputs, 1) * real, full * real)


@pytest.mark.parametrize("first", [0, 2])
def test_capture_reads_the_steps_of_a_window(first):
    attn = build(Rotary(), Window(4, 0, first=first))
    with torch.no_grad():
        _, expected, states = walk(attn, [1] * LENGTH)
        with regard.capture(attn) as trace:
            state = True
            for position in range(LENGTH):
                state = attn(X[:, position : position + 1], causal=True, state=state).state
    assert len(trace) == LENGTH
    for position, (record, state) in enumerate(zip(trace, states)):
        positions = state.positions(record.shape.keys)
        torch.testing.assert_close(
            record.weights(), expected[:, :, position : position + 1, positions]
        )


def test_a_gapped_bias_is_that_of_the_text():
    bias, gap = AlibiBias(torch.tensor([0.5, 2.0])), slice(2, 7)
    text = bias.block(whole(3, 12))
    left = torch.cat([text[..., :2], text[..., 7:]], -1)
    gapped = GappedBias(bias, gap.start, gap.stop)
    assert torch.equal(gapped.block(whole(3, 7)), left)
    for start, stop in ((0, 1), (0, 4), (3, 6), (2, 2)):
        part = whole(3, 7).over(slice(start, stop))
        assert torch.equal(gapped.block(part), left[..., start:stop])
    assert torch.equal(gapped.at(0, 1).block(whole(3, 7)), left[:, 1:])
    assert torch.equal(gapped.of_heads([1]).block(whole(3, 7)), left[:, 1:])
    assert gapped.heads == 2 and not gapped.requires_grad


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_goes_on_from_a_window():
    attn = MultiHead(16, 4, position=Rotary(), window=Window(4, 0, first=1)).eval()
    compiled, x = torch.compile(attn, backend="aot_eager"), X.float()
    with torch.no_grad():
        expected = attn(x[:, :14], causal=True).output
        state = attn(x[:, :12], causal=True, state=True).state
        for position in (12, 13):
            step = compiled(x[:, position : position + 1], causal=True, state=state)
            state = step.state
            torch.testing.assert_close(
                step.output[:, 0], expected[:, position], atol=1e-5, rtol=1e-5
            )
    assert state.keys == 5 and state.dropped == 9
