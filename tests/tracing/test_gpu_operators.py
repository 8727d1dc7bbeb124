"""Attention operators of GPUs, read through stand-ins on the CPU. None was run on a GPU."""

from __future__ import annotations

import pytest
import torch
from gpu_operators import alibi, band, packed_band, stand_ins, weigh
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

import regard
from regard.recipe import Dot

HEADS, WIDTH = 4, 8
SCALE = WIDTH**-0.5
ATEN = torch.ops.aten
STARTS = torch.tensor([0, 13, 30, 40], dtype=torch.int32)
KEY_STARTS = torch.tensor([0, 20, 37, 50], dtype=torch.int32)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


@pytest.fixture(autouse=True, scope="module")
def _operators():
    with stand_ins():
        yield


class Model(nn.Module):
    """Projections around `attend`, which takes and gives (batch, position, head, width)."""

    def __init__(self, attend, groups=HEADS, dtype=torch.float32):
        super().__init__()
        self.attend = attend
        generator = torch.Generator().manual_seed(0)
        self.projections = nn.ModuleList(
            nn.Linear(16, heads * WIDTH, bias=False) for heads in (HEADS, groups, groups)
        )
        for weight in self.parameters():
            weight.data = 0.5 * torch.randn(weight.shape, generator=generator)
        self.to(dtype)

    def parts(self, x: Tensor, context: Tensor) -> list[Tensor]:
        sides = zip(self.projections, (x, context, context))
        return [project(side).unflatten(-1, (-1, WIDTH)) for project, side in sides]

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.attend(*self.parts(x, context))


def sides(queries: int, keys: int, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, queries, 16, generator=generator).to(dtype)
    return x, x if keys == queries else torch.randn(1, keys, 16, generator=generator).to(dtype)


def on_heads(operator, *args, **kwargs):
    """An operator that takes (batch, head, position, width)."""

    def attend(*parts: Tensor) -> Tensor:
        out = getattr(ATEN, operator)(*(part.transpose(1, 2) for part in parts), *args, **kwargs)
        return out[0].transpose(1, 2)

    return attend


def flash_attn(causal, left=-1, right=-1, softcap=0.0, slopes=None):
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operator = torch.ops.flash_attn._flash_attn_forward
        return operator(q, k, v, 0.0, SCALE, causal, left, right, softcap, slopes, False)[0]

    return attend


def flash_attn_varlen(starts, key_starts, causal, *args, **kwargs):
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operator = torch.ops.flash_attn._flash_attn_varlen_forward
        parts = (q[0], k[0], v[0], starts, key_starts, 20, 20)
        return operator(*parts, 0.0, SCALE, causal, *args, **kwargs)[0][None]

    return attend


def torch_varlen(starts, key_starts, **options):
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return varlen_attn(q[0], k[0], v[0], starts, key_starts, 20, 20, **options)[None]

    return attend


def aten_flash(starts, key_starts, causal, **options):
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = (q, k, v) if starts is None else (q[0], k[0], v[0])
        out = ATEN._flash_attention_forward(
            *parts, starts, key_starts, 20, 20, 0.0, causal, False, **options
        )[0]
        return out if starts is None else out[None]

    return attend


FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"
CUDNN = "_scaled_dot_product_cudnn_attention"
MPS = "_scaled_dot_product_attention_math_for_mps"
BIAS = torch.randn(1, HEADS, 40, 50, generator=torch.Generator().manual_seed(2))
MASK = (BIAS > 0).index_fill(2, torch.tensor([3]), False)  # row 3 sees nothing
EMPTY = torch.tensor([0, 13, 13, 40], dtype=torch.int32)
PADDED = torch.tensor([0, 13, 30, 36], dtype=torch.int32)  # four positions belong to nobody


def end(queries, keys, left=-1, right=0):
    """A band aligned at the bottom right."""
    return band(queries, keys, left, right, keys - queries)


#: What attends, (queries, keys), who may, other scores, and whether its log-sum-exp is kept.
CASES = {
    "flash": (on_heads(FLASH), (40, 50), None, {}, True),
    "flash causal": (on_heads(FLASH, 0.0, True), (40, 40), end(40, 40), {}, True),
    "flash causal, more keys": (on_heads(FLASH, 0.0, True), (40, 50), end(40, 50), {}, True),
    "flash causal, fewer keys": (on_heads(FLASH, 0.0, True), (50, 40), end(50, 40), {}, True),
    "efficient causal, more keys": (
        on_heads(EFFICIENT, None, True, 0.0, True), (40, 50), band(40, 50, right=0), {}, True,
    ),
    "efficient causal, fewer keys": (
        on_heads(EFFICIENT, None, True, 0.0, True), (50, 40), band(50, 40, right=0), {}, True,
    ),
    "efficient biased": (
        on_heads(EFFICIENT, BIAS, True), (40, 50), None, {"bias": BIAS}, True,
    ),
    "efficient without lse": (
        on_heads(EFFICIENT, None, False, 0.0, True), (40, 50), band(40, 50, right=0), {}, False,
    ),
    "cudnn causal, more keys": (
        on_heads(CUDNN, None, True, 0.0, True), (40, 50), band(40, 50, right=0), {}, True,
    ),
    "cudnn biased": (on_heads(CUDNN, BIAS, True), (40, 50), None, {"bias": BIAS}, True),
    "cudnn without lse": (on_heads(CUDNN, None, False), (40, 50), None, {}, False),
    "mps": (on_heads(MPS, enable_gqa=True), (40, 50), None, {}, False),
    "mps, one key": (on_heads(MPS, enable_gqa=True), (40, 1), None, {}, False),
    "mps causal": (
        on_heads(MPS, None, 0.0, True, enable_gqa=True), (40, 50), band(40, 50, right=0), {}, False,
    ),
    "mps masked": (on_heads(MPS, MASK, enable_gqa=True), (40, 50), MASK, {}, False),
    "mps biased": (on_heads(MPS, BIAS, enable_gqa=True), (40, 50), None, {"bias": BIAS}, False),
    "flash_attn": (flash_attn(False), (40, 50), None, {}, True),
    "flash_attn causal, more keys": (flash_attn(True), (40, 50), end(40, 50), {}, True),
    "flash_attn causal, fewer keys": (flash_attn(True), (50, 40), end(50, 40), {}, True),
    "flash_attn window": (flash_attn(False, 7, 2), (40, 50), end(40, 50, 7, 2), {}, True),
    "flash_attn softcap": (
        flash_attn(True, 7, 0, 3.0), (40, 40), end(40, 40, 7), {"softcap": 3.0}, True,
    ),
    "flash_attn alibi": (
        flash_attn(True, slopes=SLOPES), (40, 50), end(40, 50),
        {"bias": alibi(SLOPES, 40, 50)}, False,
    ),
    "flash_attn alibi both ways": (
        flash_attn(False, slopes=SLOPES[None]), (40, 50), None,
        {"bias": alibi(SLOPES, 40, 50)}, False,
    ),
    "flash_attn varlen": (
        flash_attn_varlen(STARTS, KEY_STARTS, False), (40, 50),
        packed_band(STARTS, KEY_STARTS, 40, 50), {}, True,
    ),
    "flash_attn varlen causal": (
        flash_attn_varlen(STARTS, STARTS, True), (40, 40),
        packed_band(STARTS, STARTS, 40, 40, right=0), {}, True,
    ),
    "flash_attn varlen window, more keys": (
        flash_attn_varlen(STARTS, KEY_STARTS, True, 4, 0), (40, 50),
        packed_band(STARTS, KEY_STARTS, 40, 50, 4, 0), {}, True,
    ),
    "flash_attn varlen causal, fewer keys": (
        flash_attn_varlen(KEY_STARTS, STARTS, True), (50, 40),
        packed_band(KEY_STARTS, STARTS, 50, 40, right=0), {}, True,
    ),
    "flash_attn varlen, an empty sequence": (
        flash_attn_varlen(STARTS, EMPTY, False, 5, 5), (40, 40),
        packed_band(STARTS, EMPTY, 40, 40, 5, 5), {}, True,
    ),
    "flash_attn varlen, positions left over": (
        flash_attn_varlen(PADDED, PADDED.clone(), True), (40, 40),
        packed_band(PADDED, PADDED, 40, 40, right=0), {}, True,
    ),
    "flash_attn varlen, keys left over": (
        flash_attn_varlen(STARTS, STARTS, True), (40, 50),
        packed_band(STARTS, STARTS, 40, 50, right=0), {}, True,
    ),
    "flash_attn varlen softcap, alibi": (
        flash_attn_varlen(STARTS, STARTS, True, -1, -1, 3.0, SLOPES), (40, 40),
        packed_band(STARTS, STARTS, 40, 40, right=0),
        {"bias": alibi(SLOPES, 40, 40), "softcap": 3.0}, False,
    ),
    "varlen_attn": (
        torch_varlen(STARTS, KEY_STARTS, enable_gqa=True), (40, 50),
        packed_band(STARTS, KEY_STARTS, 40, 50), {}, True,
    ),
    "varlen_attn causal": (
        torch_varlen(STARTS, KEY_STARTS, window_size=(-1, 0), enable_gqa=True), (40, 50),
        packed_band(STARTS, KEY_STARTS, 40, 50, right=0), {}, True,
    ),
    "varlen_attn window": (
        torch_varlen(STARTS, STARTS, window_size=(3, 1), enable_gqa=True), (40, 40),
        packed_band(STARTS, STARTS, 40, 40, 3, 1), {}, True,
    ),
    "aten flash forward causal": (aten_flash(None, None, True), (40, 50), end(40, 50), {}, True),
    "aten flash forward, packed": (
        aten_flash(STARTS, KEY_STARTS, True, window_size_left=4), (40, 50),
        packed_band(STARTS, KEY_STARTS, 40, 50, 4, 0), {}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_weights_lse_and_mixed_values_are_those_of_the_operator(case, dtype, groups):
    attend, sizes, allowed, scores, lse_kept = CASES[case]
    model, inputs = Model(attend, groups, dtype), sides(*sizes, dtype)
    with torch.no_grad():
        plain = model(*inputs)
        with regard.capture(model, values=True) as trace:
            output = model(*inputs)
        query, key, _ = (part.transpose(1, 2) for part in model.parts(*inputs))
    truth, lse = weigh(query, key, allowed, **scores)
    assert torch.equal(output, plain)
    assert trace.notes == [] and len(trace) == 1
    (record,) = trace
    assert record.attends == ("self" if sizes[0] == sizes[1] else "cross")
    torch.testing.assert_close(record.weights().double(), truth, rtol=0, atol=2e-6)
    (entropy,) = record.reduce(regard.Entropy())
    wanted = -torch.special.xlogy(truth, truth).sum(-1)
    torch.testing.assert_close(entropy.double(), wanted, rtol=0, atol=2e-5)
    assert (record.recipe.lse is not None) == lse_kept
    if lse_kept:
        alive = lse.isfinite()
        kept = record.recipe.lse.double()
        torch.testing.assert_close(kept[alive], lse[alive], rtol=0, atol=2e-5)
        assert (kept[~alive] == 0).all()
    slack = 1e-5 if dtype == torch.float32 else 2e-2  # of the output's own rounding
    torch.testing.assert_close(record.mixed(), output.transpose(1, 2), rtol=0, atol=slack)


def test_the_operator_of_the_cpu_stays_aligned_at_the_top_left():
    def attend(*parts):
        parts = [part.transpose(1, 2) for part in parts]
        return F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2)

    model, inputs = Model(attend), sides(40, 50)
    with torch.no_grad(), regard.capture(model) as trace:
        model(*inputs)
    query, key, _ = (part.transpose(1, 2) for part in model.parts(*inputs))
    truth, _ = weigh(query, key, band(40, 50, right=0))
    assert trace[0].operator == "_scaled_dot_product_flash_attention_for_cpu"
    torch.testing.assert_close(trace[0].weights().double(), truth, rtol=0, atol=2e-6)


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_mps_takes_three_axes_and_five(lead):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*lead, HEADS, 6, WIDTH, generator=generator)
    mask = torch.rand(*lead[1:], 1, 6, 6, generator=generator) > 0.3

    class Plain(nn.Module):
        def forward(self, x):
            return ATEN._scaled_dot_product_attention_math_for_mps(x, x, x, mask)[0]

    trace = regard.trace(Plain(), x)
    flat = x.reshape(-1, HEADS, 6, WIDTH)
    truth, _ = weigh(flat, flat, mask.expand(*lead, 1, 6, 6).reshape(-1, 1, 6, 6))
    torch.testing.assert_close(trace[0].weights().double(), truth, rtol=0, atol=2e-6)


PAGES = torch.zeros(3, 2, dtype=torch.int32)
LENGTHS = torch.tensor([5, 6, 7], dtype=torch.int32)


@pytest.mark.parametrize(
    ("attend", "reason"),
    [
        (flash_attn_varlen(STARTS, STARTS, True, block_table=PAGES), "block_table is given"),
        (flash_attn_varlen(STARTS, STARTS, True, leftpad_k=LENGTHS), "leftpad_k is given"),
        (flash_attn_varlen(STARTS, STARTS, True, seqused_k=LENGTHS), "seqused_k is given"),
        (
            flash_attn_varlen(STARTS, STARTS, True, -1, -1, 0.0, SLOPES.expand(3, HEADS)),
            r"alibi_slopes has shape \(3, 4\)",
        ),
        (torch_varlen(STARTS, STARTS, seqused_k=LENGTHS), "seqused_k is given"),
        (aten_flash(STARTS, None, True), "starts of the queries' sequences, none for the keys"),
        (aten_flash(STARTS, STARTS, True, block_table=PAGES), "block_table is given"),
    ],
)
def test_what_cannot_be_read_is_named(attend, reason):
    model, inputs = Model(attend), sides(40, 40)
    with torch.no_grad():
        plain = model(*inputs)
        with (
            pytest.warns(regard.CaptureWarning, match=f"cannot be read: .*{reason}"),
            regard.capture(model) as trace,
        ):
            output = model(*inputs)
    assert torch.equal(output, plain) and len(trace) == 0
    (note,) = trace.notes
    assert note.kind == "unread" and note.where == "Model"


@pytest.mark.parametrize("key_starts", [KEY_STARTS, STARTS])
def test_alibi_between_sequences_of_other_lengths_is_named(key_starts):
    attend = flash_attn_varlen(STARTS, key_starts, True, -1, -1, 0.0, SLOPES)
    model, inputs = Model(attend), sides(40, 50)
    with pytest.warns(
        regard.CaptureWarning, match="alibi_slopes is given, and the .* of other lengths"
    ):
        trace = regard.trace(model, *inputs)
    assert len(trace) == 0


@pytest.mark.parametrize(
    ("name", "attend"),
    [
        ("flash_attn::_flash_attn_forward", flash_attn(False)),
        ("aten::_flash_attention_forward", aten_flash(None, None, False)),
    ],
)
def test_a_registered_reader_comes_before_ours(name, attend):
    model, inputs = Model(attend), sides(40, 40)

    def reads(args, kwargs, out):
        return Dot(args[0].transpose(1, 2), args[1].transpose(1, 2), scale=0.0)

    regard.register_recipe(name, reads)
    try:
        trace = regard.trace(model, *inputs)
    finally:
        regard.register_recipe(name, None)
    assert torch.allclose(trace[0].weights(), torch.tensor(1 / 40))


@pytest.mark.parametrize("attend", [aten_flash(None, None, True), aten_flash(STARTS, STARTS, True)])
def test_gradient_and_output_have_the_axes_of_a_record(attend):
    model, inputs = Model(attend), sides(40, 40)
    direction = torch.randn(1, 40, HEADS, WIDTH, generator=torch.Generator().manual_seed(3))
    plain = torch.autograd.grad((model(*inputs) * direction).sum(), list(model.parameters()))
    with regard.capture(model, grad=True, outputs=True) as trace:
        output = model(*inputs)
    captured = torch.autograd.grad((output * direction).sum(), list(model.parameters()))
    assert all(map(torch.equal, plain, captured))
    value = model.parts(*inputs)[2].transpose(1, 2)
    torch.testing.assert_close(trace[0].gradient(), direction.transpose(1, 2) @ value.mT)
    assert torch.equal(trace[0].output, output.transpose(1, 2))
