"""Multi-head latent attention: the paper in loops, DeepSeek's module, and a small state."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import RegardError, ShapeError
from regard.mechanisms import Alibi, MultiHeadLatent


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def turned(features: Tensor, position: int) -> Tensor:
    """Rotary position embedding, pair by pair."""
    half = len(features) // 2
    result = features.clone()
    for i in range(half):
        angle = position * 10000 ** (-i / half)
        a, b = features[i], features[i + half]
        result[i] = a * math.cos(angle) - b * math.sin(angle)
        result[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return result


def rms(features: Tensor, gain: Tensor) -> Tensor:
    return gain * features / ((features**2).mean() + 1e-6).sqrt()


@torch.no_grad()
def in_loops(attn: MultiHeadLatent, x: Tensor) -> tuple[Tensor, Tensor]:
    """Causal output and weights of one sentence (position, width), equations 9 to 19."""
    n, h = len(x), attn.n_heads
    latents = [rms(attn.to_latent.weight @ token, attn.latent_norm.weight) for token in x]
    rotary = [turned(attn.to_rotary_key.weight @ token, t) for t, token in enumerate(x)]
    weights, output = torch.zeros(h, n, n, dtype=x.dtype), torch.zeros_like(x)
    for t in range(n):
        query = x[t]
        if isinstance(attn.query_norm, nn.RMSNorm):
            query = rms(attn.to_query_latent.weight @ query, attn.query_norm.weight)
        queries = (attn.to_query.weight @ query).reshape(h, -1)
        heads = []
        for i in range(h):
            content, position = queries[i][: attn.head_width], queries[i][attn.head_width :]
            position = turned(position, t)
            w_uk = attn.to_key.weight[i * attn.head_width : (i + 1) * attn.head_width]
            w_uv = attn.to_value.weight[i * attn.value_width : (i + 1) * attn.value_width]
            exps = []
            for j in range(t + 1):
                score = content @ (w_uk @ latents[j]) + position @ rotary[j]
                exps.append(math.exp(score / math.sqrt(attn.head_width + attn.rotary_width)))
            for j in range(t + 1):
                weights[i, t, j] = exps[j] / sum(exps)
            heads.append(sum(weights[i, t, j] * (w_uv @ latents[j]) for j in range(t + 1)))
        output[t] = attn.to_output.weight @ torch.cat(heads)
    return output, weights


@pytest.mark.parametrize("query_latent_width", [None, 7])
def test_is_the_paper(query_latent_width: int | None) -> None:
    attn = MultiHeadLatent(
        12, 3, latent_width=5, value_width=2, query_latent_width=query_latent_width
    ).double()
    for name, parameter in attn.named_parameters():
        if "norm" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    x = normal(2, 6, 12)
    attended = attn(x, causal=True, weights=True)
    for example in range(2):
        output, weights = in_loops(attn, x[example])
        torch.testing.assert_close(attended.output[example], output)
        torch.testing.assert_close(attended.weights[example], weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_absorbed_and_expanded_forms_agree(dtype: torch.dtype) -> None:
    """Few queries with a state are absorbed, all at once without one are not."""
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    attn = MultiHeadLatent(16, 4, latent_width=12).to(dtype).eval()
    x = torch.randn(2, 9, 16).to(dtype)
    expanded = attn(x, causal=True, weights=True)
    assert expanded.recipe.key.shape[1] == 4  # every head has its keys
    state, outputs, rows = attn.begin(x[:, :0]), [], []
    for t in range(9):
        step = attn(x[:, t : t + 1], causal=True, state=state, weights=True)
        assert step.recipe.key.shape[1] == 1  # all heads share the latents
        state = step.state
        outputs.append(step.output)
        rows.append(torch.nn.functional.pad(step.weights, (0, 8 - t)))
    assert (torch.cat(outputs, 1) - expanded.output).abs().max() < tolerance
    assert (torch.cat(rows, 2) - expanded.weights).abs().max() < tolerance


def test_absorbs_where_it_costs_less() -> None:
    """Products for each key and head: expanding d_c (d_h + dᵥ), a query 2 d_c − d_h − dᵥ more."""
    attn = MultiHeadLatent(1024, 8, latent_width=512, head_width=128)
    assert attn.absorbs(170)
    assert not attn.absorbs(171)  # 171 · 768 > 512 · 256
    assert MultiHeadLatent(64, 2, latent_width=16).absorbs(10**6)  # latents narrower than a head
    assert not MultiHeadLatent(8, 1, latent_width=8).absorbs(1)  # one head shares with nobody
    long = attn(torch.randn(1, 171, 1024), state=True, weights=True)
    assert long.recipe.key.shape[1] == 8


@pytest.mark.parametrize("n_heads", [2, 8])
def test_state_holds_latent_and_one_rotary_key(n_heads: int) -> None:
    """d_c + d_r numbers a position, whatever the heads; multi-head would hold 2 · 64."""
    attn = MultiHeadLatent(64, n_heads, latent_width=20, rotary_width=4)
    state = attn(torch.randn(3, 10, 64), causal=True, state=True).state
    nbytes = state.key[:, :, :10].nbytes + state.value[:, :, :10].nbytes
    assert nbytes == 3 * 10 * (20 + 4) * 4
    fixed = attn.fix(torch.randn(3, 10, 64))
    assert fixed.key.nbytes + fixed.value.nbytes == 3 * 10 * (20 + 4) * 4


def test_gradients_of_both_forms_agree() -> None:
    attn, x = MultiHeadLatent(16, 4, latent_width=12).double(), normal(1, 3, 16)
    gradients = []
    for options in ({}, {"state": True}):
        attn.zero_grad()
        attended = attn(x, causal=True, weights=True, **options)
        assert attended.recipe.key.shape[1] == (1 if options else 4)
        attended.output.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in attn.parameters()])
    for expanded, absorbed in zip(*gradients):
        torch.testing.assert_close(absorbed, expanded)


def test_padding_may_hold_nan_in_the_absorbed_form() -> None:
    attn = MultiHeadLatent(16, 4, latent_width=12).double()
    x, query = normal(1, 7, 16), normal(1, 1, 16)
    keep = torch.tensor([[True] * 5 + [False] * 2])
    dirty = x.masked_fill(~keep[..., None], torch.nan)
    want = attn(query, x, mask=masks.padding(keep), weights=True)
    got = attn(query, state=attn.fix(dirty, mask=masks.padding(keep)), weights=True)
    assert got.recipe.key.shape[1] == 1
    torch.testing.assert_close(got.output, want.output)
    assert not got.weights[..., 5:].any()


@pytest.mark.parametrize("query_rank", [None, 24])
def test_is_deepseeks_attention(query_rank: int | None) -> None:
    """transformers' DeepSeek-V3 on CPU, weights copied; it pairs rotary features as neighbours."""
    transformers = pytest.importorskip("transformers")
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    config = transformers.DeepseekV3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=query_rank,
        kv_lora_rank=20,
        qk_nope_head_dim=8,
        qk_rope_head_dim=6,
        v_head_dim=10,
        rope_theta=10000.0,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    theirs = modeling.DeepseekV3Attention(config, 0).eval()
    embedding = modeling.DeepseekV3RotaryEmbedding(config)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = MultiHeadLatent(
        32,
        4,
        latent_width=20,
        head_width=8,
        value_width=10,
        rotary_width=6,
        query_latent_width=query_rank,
    ).eval()
    copy_deepseek(theirs, ours)
    x, positions = torch.randn(2, 7, 32), torch.arange(7)[None]
    causal = torch.full((7, 7), -torch.inf).triu(1)[None, None]
    with torch.no_grad():
        output, weights = theirs(x, embedding(x, positions), causal)
        mine = ours(x, causal=True, weights=True)
        step = ours(x[:, 6:], causal=True, state=ours.begin(x[:, :6]), weights=True)
    torch.testing.assert_close(mine.output, output, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(mine.weights, weights, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(step.output, output[:, 6:], atol=2e-5, rtol=2e-5)


@torch.no_grad()
def copy_deepseek(theirs: torch.nn.Module, ours: MultiHeadLatent) -> None:
    """Their weights into ours; rotary features from neighbours (2i, 2i + 1) to halves."""
    apart = torch.cat(
        [torch.arange(0, ours.rotary_width, 2), torch.arange(1, ours.rotary_width, 2)]
    )
    queries = theirs.q_proj if theirs.q_b_proj is None else theirs.q_b_proj
    by_head = queries.weight.unflatten(0, (ours.n_heads, -1)).clone()
    by_head[:, ours.head_width :] = by_head[:, ours.head_width + apart]
    ours.to_query.weight.copy_(by_head.flatten(0, 1))
    if theirs.q_b_proj is not None:
        ours.to_query_latent.weight.copy_(theirs.q_a_proj.weight)
        ours.query_norm.weight.copy_(theirs.q_a_layernorm.weight)
    latent, rotary = theirs.kv_a_proj_with_mqa.weight.split([ours.latent_width, ours.rotary_width])
    ours.to_latent.weight.copy_(latent)
    ours.to_rotary_key.weight.copy_(rotary[apart])
    ours.latent_norm.weight.copy_(theirs.kv_a_layernorm.weight)
    keys_values = theirs.kv_b_proj.weight.unflatten(0, (ours.n_heads, -1))
    key, value = keys_values.split([ours.head_width, ours.value_width], dim=1)
    ours.to_key.weight.copy_(key.flatten(0, 1))
    ours.to_value.weight.copy_(value.flatten(0, 1))
    ours.to_output.weight.copy_(theirs.o_proj.weight)


@pytest.mark.compiled
def test_a_compiled_step_is_absorbed() -> None:
    attn, x = MultiHeadLatent(16, 4, latent_width=12).eval(), torch.randn(2, 6, 16)
    torch.compiler.reset()
    step = torch.compile(attn, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        full, state = attn(x, causal=True).output, attn.begin(x[:, :3])
        for t in range(3, 6):
            attended = step(x[:, t : t + 1], causal=True, state=state)
            state = attended.state
            torch.testing.assert_close(attended.output, full[:, t : t + 1])


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_arguments_say_what_was_expected() -> None:
    with pytest.raises(ShapeError, match="width 10 is not a multiple of n_heads 4"):
        MultiHeadLatent(10, 4, latent_width=4)
    with pytest.raises(ShapeError, match="n_heads=0, expected at least 1"):
        MultiHeadLatent(10, 0, latent_width=4)
    with pytest.raises(ShapeError, match="rotary_width is 3, expected an even number from 2"):
        MultiHeadLatent(12, 2, latent_width=4)
    with pytest.raises(RegardError, match=r"rotary=Alibi\(\), expected a part, as Rotary\(\)"):
        MultiHeadLatent(16, 4, latent_width=4, rotary=Alibi(4))
    attn, x = MultiHeadLatent(16, 4, latent_width=4), torch.randn(1, 3, 16)
    with pytest.raises(RegardError, match="value was passed apart from the keys, expected none"):
        attn(x, x, x.clone())
    with pytest.raises(RegardError, match="value was passed apart from the keys"):
        attn.fix(x, x.clone())
    other = MultiHeadLatent(16, 4, latent_width=6).fix(x)
    with pytest.raises(ShapeError, match="state: value: axis width has size 6, expected 4"):
        attn(x, state=other)
