"""Head importance: against the chain rule written out, finite differences, models cut by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

import regard
from regard.aggregate.importance import HeadImportance, head_importance
from regard.aggregate.masking import head_mask
from regard.aggregate.sites import head_sites
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.mechanisms import MultiHead

WIDTH, HEADS, LENGTH, BATCH = 16, 4, 6, 3
TEXT = {
    "vocab_size": 50,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {
    "vocab_size": 50,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "decoder_start_token_id": 2,
    **SPECIAL,
}

# family -> model class, configuration, attentions in the order in which they run
FAMILIES = {
    "bert": (
        hf.BertModel,
        lambda: hf.BertConfig(**TEXT),
        [f"encoder.layer.{i}.attention.self" for i in range(2)],
    ),
    "roberta": (
        hf.RobertaModel,
        lambda: hf.RobertaConfig(**TEXT, **SPECIAL),
        [f"encoder.layer.{i}.attention.self" for i in range(2)],
    ),
    "distilbert": (
        hf.DistilBertModel,
        lambda: hf.DistilBertConfig(
            vocab_size=50, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=24
        ),
        [f"transformer.layer.{i}.attention" for i in range(2)],
    ),
    "gpt2": (
        hf.GPT2Model,
        lambda: hf.GPT2Config(vocab_size=50, n_embd=WIDTH, n_layer=2, n_head=HEADS, **SPECIAL),
        [f"h.{i}.attn" for i in range(2)],
    ),
    "llama": (
        hf.LlamaModel,
        lambda: hf.LlamaConfig(**TEXT, num_key_value_heads=2, **SPECIAL),
        [f"layers.{i}.self_attn" for i in range(2)],
    ),
    "t5": (
        hf.T5Model,
        lambda: hf.T5Config(
            vocab_size=50, d_model=WIDTH, d_kv=4, d_ff=24, num_layers=2, num_heads=HEADS
        ),
        [
            *(f"encoder.block.{i}.layer.0.SelfAttention" for i in range(2)),
            *(
                f"decoder.block.{i}.layer.{name}"
                for i in range(2)
                for name in ("0.SelfAttention", "1.EncDecAttention")
            ),
        ],
    ),
    "marian": (
        hf.MarianModel,
        lambda: hf.MarianConfig(**PAIR),
        [
            *(f"encoder.layers.{i}.self_attn" for i in range(2)),
            *(f"decoder.layers.{i}.{name}_attn" for i in range(2) for name in ("self", "encoder")),
        ],
    ),
}


def built(family: str, dtype=torch.float64) -> nn.Module:
    """A small model with weights large enough that heads differ."""
    torch.manual_seed(0)
    kind, config, _ = FAMILIES[family]
    model = kind(config()).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.2 / math.sqrt(parameter.shape[-1]))
    return model


def words(family: str, batch: int = BATCH) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (batch, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if family in ("t5", "marian"):
        given["decoder_input_ids"] = torch.randint(3, 50, (batch, 4), generator=generator)
    return given


def hidden_loss(output, inputs) -> torch.Tensor:
    """One number for each example, from a position that is never padded."""
    last = output[0] if isinstance(output, tuple) else output.last_hidden_state
    direction = torch.linspace(-1, 1, last.shape[-1], dtype=last.dtype)
    return ((last * direction).sum(-1) ** 2)[:, 1]


def encoder(layers: int = 2, *, batch_first: bool = True, **more) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=batch_first, dropout=0.1)
    model = nn.TransformerEncoder(layer, layers, **more).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def by_chain_rule(
    model, inputs, loss, projections: dict[str, nn.Module]
) -> dict[str, torch.Tensor]:
    """|⟨head, ∂L/∂head⟩| of each example run alone, averaged: {name: (head,)}."""
    totals = {name: torch.zeros(HEADS, dtype=torch.float64) for name in projections}
    batch = len(inputs["input_ids"])
    for example in range(batch):
        alone = {key: value[example : example + 1] for key, value in inputs.items()}
        heads = {}

        def keep(name, into):
            def hook(module, given):
                given[0].retain_grad()
                into[name] = given[0]

            return hook

        handles = [
            m.register_forward_pre_hook(keep(name, heads)) for name, m in projections.items()
        ]
        loss(model(**alone), alone).sum().backward()
        for handle in handles:
            handle.remove()
        for name, head in heads.items():
            product = (head * head.grad).unflatten(-1, (HEADS, -1))
            totals[name] += product.sum((0, 1, 3)).abs() / batch
    return totals


# -- by gradient


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_of_the_mask_is_head_times_gradient(family):
    model, inputs = built(family), words(family)
    found = head_importance(model, [inputs], hidden_loss)
    assert list(found.names) == FAMILIES[family][2]
    projections = {site.name: site.projection for site in head_sites(model)}
    for name, score in by_chain_rule(model, inputs, hidden_loss, projections).items():
        assert score.max() > 1e-3
        torch.testing.assert_close(found[name], score, rtol=1e-8, atol=1e-12)


def layer_by_hand(layer: nn.TransformerEncoderLayer, x, heads_seen: list):
    """A post-norm layer of torch in evaluation mode, written out; its heads are put in a list."""
    attention = layer.self_attn
    query, key, value = (
        F.linear(x, weight, bias).unflatten(-1, (HEADS, -1)).transpose(-2, -3)
        for weight, bias in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3))
    )
    weights = (query @ key.mT / math.sqrt(WIDTH // HEADS)).softmax(-1)
    heads = (weights @ value).transpose(-2, -3)  # (batch, query, head, width)
    heads.retain_grad()
    heads_seen.append(heads)
    x = layer.norm1(x + attention.out_proj(heads.flatten(-2)))
    return layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_layers_against_one_written_out(batch_first):
    model = encoder(batch_first=batch_first, enable_nested_tensor=False).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    turn = (lambda y: y) if batch_first else (lambda y: y.transpose(0, 1))
    loss = lambda output, inputs: turn(output)[:, 0, :5].pow(3).sum(-1)
    found = head_importance(model, [turn(x)], loss)
    want = [torch.zeros(HEADS, dtype=torch.float64) for _ in model.layers]
    for example in x:
        seen, y = [], example[None]
        y = y.clone().requires_grad_()
        for layer in model.layers:
            y = layer_by_hand(layer, y, seen)
        loss(turn(y), None).sum().backward()
        for row, heads in zip(want, seen):
            row += (heads * heads.grad).detach().sum((0, 1, 3)).abs() / BATCH
    torch.testing.assert_close(found.scores, torch.stack(want), rtol=1e-8, atol=1e-12)


def test_the_slope_is_that_of_the_loss_when_the_mask_moves():
    model, inputs = built("bert"), words("bert", batch=1)
    found = head_importance(model, [inputs], hidden_loss)
    step = 1e-5
    for layer, head in [(0, 1), (1, 2)]:
        at = []
        for sign in (1, -1):
            mask = torch.ones(2, HEADS, dtype=torch.float64)
            mask[layer, head] += sign * step
            with torch.no_grad(), head_mask(model, mask):
                at.append(hidden_loss(model(**inputs), inputs).item())
        slope = (at[0] - at[1]) / (2 * step)
        assert found.scores[layer, head].item() == pytest.approx(abs(slope), rel=1e-6)


def test_the_absolute_value_comes_before_the_mean():
    """Two examples whose slopes are opposite: their mean is 0, the importance is not."""
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64).expand(2, -1, -1)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss = lambda output, inputs: output[0][:, 0].sum(-1) * sign
    together = head_importance(model, [(x, x, x)], loss).scores
    alone = head_importance(
        model, [(x[:1], x[:1], x[:1])], lambda output, inputs: output[0][:, 0].sum(-1)
    ).scores
    assert together.min() > 1e-3
    torch.testing.assert_close(together, alone)


def test_batches_count_by_their_examples():
    model, inputs = built("bert"), words("bert", batch=5)
    parts = [{k: v[:2] for k, v in inputs.items()}, {k: v[2:] for k, v in inputs.items()}]
    torch.testing.assert_close(
        head_importance(model, iter(parts), hidden_loss).scores,
        head_importance(model, [inputs], hidden_loss).scores,
    )


class SequenceFirst(nn.Module):
    """Attention of one's own over (position, batch, width)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.num_heads = HEADS

    def forward(self, x):
        q, k, v = (
            f(x).transpose(0, 1).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)  # (batch, head, position, width)
        return x + self.o(mixed.transpose(1, 2).flatten(2).transpose(0, 1))


@pytest.mark.parametrize("place", [0, -1])
def test_examples_along_another_axis_are_told_apart(place):
    """As many positions as examples, so that shapes alone would mislead.

    One layer, read at the first or last position: then the first or last example alone would too.
    """
    torch.manual_seed(0)
    model = SequenceFirst().double()
    x = torch.randn(4, 4, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output[place].square().sum(-1)  # (batch,)
    found = head_importance(model, [x], loss).scores
    each = [head_importance(model, [x[:, b : b + 1]], loss).scores for b in range(4)]
    torch.testing.assert_close(found, torch.stack(each).mean(0))


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_backward_pass_serves_all_examples(batch_first, monkeypatch):
    model = encoder(batch_first=batch_first, enable_nested_tensor=False)
    shape = (5, LENGTH, WIDTH) if batch_first else (LENGTH, 5, WIDTH)
    data = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    passes, plain = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: (passes.append(1), plain(*a, **k))[1]
    )
    head_importance(
        model, data, lambda output, inputs: output.sum(-1).square().sum(int(batch_first))
    )
    assert len(passes) == 2 + 3, "two to see that examples are apart, then one a batch"


def test_examples_that_meet_in_the_loss():
    """A loss within the batch: ∂L_b/∂ξ goes through every example."""
    model, inputs = built("bert"), words("bert", batch=4)

    def loss(output, inputs):
        first = F.normalize(output.last_hidden_state[:, 0], dim=-1)
        return F.cross_entropy(first @ first.T, torch.arange(4).roll(1), reduction="none")

    found = head_importance(model, [inputs], loss).scores
    mask = torch.ones(2, HEADS, dtype=torch.float64, requires_grad=True)
    with head_mask(model, mask):
        losses = loss(model(**inputs), inputs)
    slopes = [torch.autograd.grad(one, mask, retain_graph=True)[0].abs() for one in losses]
    torch.testing.assert_close(found, torch.stack(slopes).mean(0))


def test_one_example_without_a_batch_axis():
    model = nn.MultiheadAttention(WIDTH, HEADS).double()
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output[0].square().sum()[None]
    lone = head_importance(model, [(x, x, x)], loss).scores
    x = x[:, None]
    torch.testing.assert_close(lone, head_importance(model, [(x, x, x)], loss).scores)


def test_bfloat16_is_near_single_precision():
    model, inputs = built("bert", torch.float32), words("bert")
    want = head_importance(model, [inputs], hidden_loss).scores
    got = head_importance(model.to(torch.bfloat16), [inputs], hidden_loss).scores
    assert got.dtype == torch.float64
    assert ((got - want).abs() / want.max()).max() < 0.05


def test_regards_own_attention():
    torch.manual_seed(0)
    model = MultiHead(WIDTH, HEADS, n_groups=2, sinks=True).double()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output.output[:, 0].square().sum(-1)
    found = head_importance(model, [x], loss)
    assert found.names == ("MultiHead",) and found.scores.shape == (1, HEADS)
    heads = []
    handle = model.to_output.register_forward_pre_hook(lambda m, given: heads.append(given[0]))
    losses = loss(model(x), x)
    handle.remove()
    slope = torch.autograd.grad(losses.sum(), heads)[0]
    want = (heads[0] * slope).unflatten(-1, (HEADS, -1)).sum((1, 3)).abs().mean(0)
    torch.testing.assert_close(found.scores[0], want)


# -- by leaving out


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_leaving_out_is_the_loss_of_a_model_cut_by_hand(family):
    model, inputs = built(family), words(family)
    found = head_importance(model, [inputs], hidden_loss, "leave_out")
    with torch.no_grad():
        whole = hidden_loss(model(**inputs), inputs).mean()
        for name, head in [(found.names[0], 2), (found.names[-1], 0)]:
            other = copy.deepcopy(model)
            site = next(site for site in head_sites(other) if site.name == name)
            weight = site.projection.weight if family != "gpt2" else site.projection.weight.T
            weight[:, head * 4 : head * 4 + 4] = 0
            want = hidden_loss(other(**inputs), inputs).mean() - whole
            assert abs(want) > 1e-4
            torch.testing.assert_close(found[name][head], want)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_keeps_its_fast_path_when_heads_are_left_out():
    """In evaluation with padding torch's encoder gives zeros there; a loss may rely on it."""
    model = encoder().eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, 3:] = True
    run = lambda model, x: model(x, src_key_padding_mask=padding)
    loss = lambda output, inputs: output.square().sum((1, 2))
    found = head_importance(model, [x], loss, "leave_out", run=run)
    with torch.no_grad():
        assert run(model, x)[1, 3:].eq(0).all(), "the fast path"
        whole = loss(run(model, x), x).mean()
        other = copy.deepcopy(model)
        other.layers[1].self_attn.out_proj.weight[:, 4:8] = 0
        want = loss(run(other, x), x).mean() - whole
    torch.testing.assert_close(found.scores[1, 1], want)
    assert found.names == ("layers.0.self_attn", "layers.1.self_attn")


# -- modules that run several times


@pytest.fixture(scope="module")
def albert():
    torch.manual_seed(0)
    config = hf.AlbertConfig(**{**TEXT, "num_hidden_layers": 3}, embedding_size=8)
    return hf.AlbertModel(config, add_pooling_layer=False).double().eval()


PLACE = "encoder.albert_layer_groups.0.albert_layers.0.attention"


@pytest.mark.parametrize("method", ["gradient", "leave_out"])
def test_every_call_of_a_shared_layer_has_a_row(albert, method):
    inputs = words("bert")
    found = head_importance(albert, [inputs], hidden_loss, method)
    assert found.names == tuple(f"{PLACE}#{call}" for call in (1, 2, 3))
    assert found.scores.shape == (3, HEADS)
    trace = regard.trace(albert, **inputs)
    assert all(name in trace or trace[name] is not None for name in found.names)
    if method == "leave_out":
        calls = 0

        def without(module, given):
            nonlocal calls
            calls += 1
            if calls == 2:
                heads = given[0].clone()
                heads[..., 4:8] = 0
                return (heads,)
            return None

        with torch.no_grad():
            whole = hidden_loss(albert(**inputs), inputs).mean()
            dense = albert.get_submodule(PLACE).dense
            handle = dense.register_forward_pre_hook(without)
            want = hidden_loss(albert(**inputs), inputs).mean() - whole
            handle.remove()
        torch.testing.assert_close(found[f"{PLACE}#2"][1], want)


def test_calls_share_a_mask_when_asked(albert):
    inputs = words("bert")
    found = head_importance(albert, [inputs], hidden_loss, calls="shared")
    assert found.names == (PLACE,)
    slopes = []
    for example in range(BATCH):
        mask = torch.ones(1, HEADS, dtype=torch.float64, requires_grad=True)
        with head_mask(albert, mask):
            loss = hidden_loss(albert(**inputs), inputs)[example]
        slopes.append(torch.autograd.grad(loss, mask)[0].abs())
    torch.testing.assert_close(found.scores, torch.stack(slopes).mean(0))
    each = head_importance(albert, [inputs], hidden_loss)
    assert (each.scores.sum(0) >= found.scores[0] - 1e-12).all(), "|a + b| ≤ |a| + |b|"


def test_torch_attention_that_runs_twice():
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            for _ in range(2):
                x = x + self.attention(x, x, x)[0]
            return x

    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    loss = lambda output, inputs: output[:, 0].square().sum(-1)
    each = head_importance(Twice(), [x], loss)
    assert each.names == ("attention#1", "attention#2")
    with pytest.raises(RegardError, match=r"attention runs several times .* calls='shared'"):
        head_importance(Twice(), [x], loss, "leave_out")
    assert head_importance(Twice(), [x], loss, "leave_out", calls="shared").scores.shape == (1, 4)


# -- the answer


def test_scores_weigh_the_heads_of_a_rollout():
    model, inputs = built("bert"), words("bert", batch=2)
    weights = head_importance(model, [inputs], hidden_loss).weights()
    torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))
    with torch.no_grad():
        trace = regard.trace(model, **inputs)
    got = regard.rollout(trace, token=0, heads=weights)
    maps = [
        torch.einsum("bhqk,h->bqk", record.weights(), share)
        for record, share in zip(trace, weights)
    ]
    eye = torch.eye(LENGTH, dtype=torch.float64)
    want = (0.5 * eye + 0.5 * maps[1]) @ (0.5 * eye + 0.5 * maps[0])
    torch.testing.assert_close(got, want[:, 0])


def test_shares_of_heads_that_harm_or_do_nothing():
    scores = torch.tensor([[3.0, 1.0, -2.0], [0.0, -1.0, 0.0], [1.0, 1.0, float("nan")]])
    found = HeadImportance(("a", "b", "c"), scores.double(), "leave_out")
    want = torch.tensor([[0.75, 0.25, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]])
    torch.testing.assert_close(found.weights(), want.double())
    assert found["c"].tolist() == [1.0, 1.0] and found[0].tolist() == [3.0, 1.0, -2.0]
    assert found.least(2) == {"a": [2], "b": [1]}
    assert found.most(3) == {"a": [0, 1], "c": [0]} and found.least(0) == {}
    torch.testing.assert_close(
        found.normalised()["c"], torch.full((2,), 0.5**0.5, dtype=torch.float64)
    )
    with pytest.raises(RegardError, match="count=9, expected from 0 to 8 heads"):
        found.least(9)
    with pytest.raises(RegardError, match=r"no attention is named 'd'; there are \['a'"):
        found["d"]


def test_the_table():
    scores = torch.tensor([[5e-3, 2.5e-4], [1e-5, float("nan")]], dtype=torch.float64)
    text = repr(HeadImportance(("attention.a", "b"), scores, "gradient"))
    assert [line.split() for line in text.splitlines()] == [
        ["Head", "importance", "by", "gradient,", "times", "1e-3:", "2", "×", "2"],
        ["attention", "0", "1"],
        ["attention.a", "5.00", "0.25"],
        ["b", "0.01"],
    ]
    assert len({len(line) for line in text.splitlines()[1:3]}) == 1, "columns are aligned"


def test_layers_with_different_numbers_of_heads():
    torch.manual_seed(0)
    model = nn.Sequential(MultiHeadOnly(2), MultiHeadOnly(4))
    x = torch.randn(2, LENGTH, WIDTH)
    found = head_importance(model, [x], lambda output, inputs: output[:, 0].square().sum(-1))
    assert found.scores.isnan().tolist() == [[False, False, True, True], [False] * 4]
    assert found[0].shape == (2,) and (found.weights()[0, 2:] == 0).all()


class MultiHeadOnly(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, heads, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


# -- where the heads are


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_are_those_of_a_trace(family):
    model, inputs = built(family), words(family)
    with torch.no_grad():
        trace = regard.trace(model, **inputs)
    sites = {site.name: site for site in head_sites(model)}
    assert sorted(sites) == sorted(trace.names())
    assert all(sites[record.name].n_heads == record.shape.heads for record in trace)


class Homegrown(nn.Module):
    """Names that nobody could guess."""

    def __init__(self):
        super().__init__()
        self.mixer = nn.Linear(WIDTH, 3 * WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.mixer(x).chunk(3, -1)
        )
        return self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_sites_can_be_given():
    model = nn.Sequential(Homegrown(), Homegrown())
    x = torch.randn(2, LENGTH, WIDTH)
    loss = lambda output, inputs: output[:, 0].square().sum(-1)
    with pytest.raises(
        UnavailableError, match=r"no attention .* in Sequential; say where .*sites="
    ):
        head_importance(model, [x], loss)
    found = head_importance(model, [x], loss, sites={"0.last": HEADS, "1.last": HEADS})
    assert found.names == ("0", "1") and (found.scores > 0).all()
    for sites, told in [
        ({"2.last": 4}, "no module '2.last'"),
        ({"0.last": 3}, "takes 16 features, which 3 heads do not share evenly"),
        ({"0": 4}, "'0' is a Homegrown, expected a linear layer"),
    ]:
        with pytest.raises(RegardError, match=told):
            head_importance(model, [x], loss, sites=sites)


def test_some_of_the_sites():
    model, inputs = built("bert"), words("bert")
    all_of_it = head_importance(model, [inputs], hidden_loss)
    some = head_importance(model, [inputs], hidden_loss, sites=head_sites(model)[1:])
    torch.testing.assert_close(some.scores, all_of_it.scores[1:])


def test_a_mask_needs_a_place_and_a_number_for_each_head():
    model = encoder()
    with pytest.raises(ShapeError, match=r"mask \(2, 3, 1\), expected \(layer, head\): 2 rows"):
        head_mask(model, torch.ones(2, 3, 1)).__enter__()
    with pytest.raises(ShapeError, match=r"layers.0.self_attn has 4 heads, not \(3,\)"):
        head_mask(model, torch.ones(2, 3)).__enter__()
    with pytest.raises(RegardError, match="no attention is named 'x'"):
        head_mask(model, {"x": torch.ones(4)}).__enter__()
    nn.utils.parametrizations.weight_norm(model.layers[1].self_attn.out_proj)
    with pytest.raises(UnavailableError, match=r"layers.1.self_attn: .* is not a plain parameter"):
        head_mask(model, torch.ones(2, 4)).__enter__()


# -- no trace is left


def state(model):
    """What must be as before."""
    return (
        [module.training for module in model.modules()],
        [parameter.requires_grad for parameter in model.parameters()],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [sorted(vars(module)) for module in model.modules()],
        [parameter.clone() for parameter in model.parameters()],
        torch.get_rng_state(),
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    )


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return one == other


@pytest.mark.parametrize("method", ["gradient", "leave_out", "gates"])
@pytest.mark.parametrize("which", ["torch", "bert"])
def test_the_model_is_as_it_was(method, which, monkeypatch):
    from regard.aggregate import gates

    learn = gates.learn_gates
    monkeypatch.setattr(gates, "learn_gates", lambda *a, **k: learn(*a, **k, steps=2))
    if which == "torch":
        model, inputs = encoder(enable_nested_tensor=False), torch.randn(2, LENGTH, WIDTH).double()
        loss = lambda output, inputs: output[:, 0].square().sum(-1)
    else:
        model, inputs, loss = built("bert"), words("bert"), hidden_loss
    model.train()
    some = next(iter(model.parameters()))
    some.requires_grad_(False)
    last = list(model.parameters())[-1]
    last.grad = torch.ones_like(last)
    next(model.children()).eval()
    before = state(model)
    head_importance(model, [inputs, inputs], loss, method)
    assert same(before, state(model))

    count = 0

    def fails(output, inputs):
        nonlocal count
        count += 1
        if count == 2:
            raise RuntimeError("stop")
        return loss(output, inputs)

    with pytest.raises(RuntimeError, match="stop"):
        head_importance(model, [inputs, inputs], fails, method)
    assert same(before, state(model))


class Noisy(nn.Module):
    """Draws random numbers whatever the mode."""

    def __init__(self):
        super().__init__()
        self.attend = MultiHeadOnly(4)

    def forward(self, x):
        return self.attend(x + torch.randn_like(x))


def test_random_numbers_are_the_same_with_and_without_a_head():
    model = Noisy()
    with torch.no_grad():
        model.attend.attend.out_proj.weight[:, :4] = 0  # head 0 says nothing
    chance = torch.get_rng_state()
    data = [torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))]
    loss = lambda output, inputs: output.square().sum((1, 2))
    head_importance(model, data, loss, "gradient")
    assert torch.equal(chance, torch.get_rng_state())
    found = head_importance(model, data, loss, "leave_out")
    assert torch.equal(chance, torch.get_rng_state())
    assert found.scores[0, 0] == 0 and (found.scores[0, 1:] != 0).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inside_a_block_without_gradients(mode):
    model, inputs = built("bert"), words("bert")
    want = head_importance(model, [inputs], hidden_loss).scores
    with mode():
        got = head_importance(model, [inputs], hidden_loss).scores
    torch.testing.assert_close(got, want)


@pytest.mark.compiled
def test_a_compiled_model():
    model, inputs = built("bert"), words("bert")
    want = head_importance(model, [inputs], hidden_loss)
    compiled = torch.compile(model, backend="eager")
    compiled(**inputs)
    got = head_importance(compiled, [inputs], hidden_loss)
    assert got.names == want.names
    torch.testing.assert_close(got.scores, want.scores)


# -- what is refused


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda output, inputs: output[:, 0].square().sum(), r"one number for inputs of 2 rows"),
        (lambda output, inputs: output.square().sum(-1), r"loss gave \(2, 6\), expected"),
        (lambda output, inputs: 1.0, "loss gave float, expected"),
        (lambda output, inputs: output[:, 0, 0].detach(), "no gradient by the heads"),
    ],
)
def test_losses_that_are_refused(loss, told):
    with pytest.raises(RegardError, match=told):
        head_importance(MultiHeadOnly(4), [torch.randn(2, LENGTH, WIDTH)], loss)


@pytest.mark.usefixtures("without_shape_checks")
def test_other_input_that_is_refused():
    loss = lambda output, inputs: output[:, 0, 0]
    x = torch.randn(2, LENGTH, WIDTH)
    for call, told in [
        (lambda: head_importance(MultiHeadOnly(4), [], loss), "data is empty"),
        (lambda: head_importance(MultiHeadOnly(4), [x], loss, "norm"), "method='norm', expected"),
        (lambda: head_importance(MultiHeadOnly(4), ["x"], loss), "an element is a str"),
        (lambda: head_importance(len, [x], loss), "expected an nn.Module"),
        (lambda: head_importance(MultiHeadOnly(4), [x], loss, calls="all"), "calls='all'"),
        (lambda: head_importance(MultiHeadOnly(4), [x], loss, sites=[3]), "sites: 3, expected"),
    ]:
        with pytest.raises(RegardError, match=told):
            call()


def test_one_number_is_enough_for_one_example():
    x = torch.randn(1, LENGTH, WIDTH)
    model = MultiHeadOnly(4)
    lone = head_importance(model, [x], lambda output, inputs: output[0, 0].square().sum())
    each = head_importance(model, [x], lambda output, inputs: output[:, 0].square().sum(-1))
    torch.testing.assert_close(lone.scores, each.scores)


def test_attention_whose_projection_never_runs():
    class Functional(Homegrown):
        def forward(self, x):
            return F.linear(self.mixer(x)[..., :WIDTH], self.last.weight)

    with pytest.raises(UnavailableError, match=r"none of the 1 output projections .* ran"):
        head_importance(
            Functional(),
            [torch.randn(1, LENGTH, WIDTH)],
            lambda output, inputs: output[:, 0, 0],
            sites={"last": 4},
        )
