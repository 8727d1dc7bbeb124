"""Models whose layers do not all follow each other: pooling, class attention, latents, decoders.

Each error names the record, its size, why it does not fit, and what to hand over instead; what it
offers is tried.
"""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.errors import RegardError, ShapeError, UnavailableError


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Pooled(nn.Module):
    """An encoder whose output one learned query pools."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.probe = nn.Parameter(torch.randn(1, 1, 8))
        self.pool = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.pool(self.probe.expand(len(x), -1, -1), x, x)[0][:, 0]


class CaiT(nn.Module):
    """Patches attend to each other; then a class token attends to itself and the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.class_blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        token = self.token.expand(len(x), -1, -1)
        for block in self.class_blocks:
            token = token + block(token, torch.cat([token, x], 1))
        return token[:, 0]


class Latents(nn.Module):
    """A Perceiver: latents read the input, then each other."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 5, 8))
        self.cross = Attention()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(len(x), -1, -1)
        latents = latents + self.cross(latents, x)
        for block in self.blocks:
            latents = latents + block(latents)
        return latents.mean(1)


def traced(model: nn.Module, *inputs: Tensor) -> regard.Trace:
    torch.manual_seed(0)
    with regard.capture(model, grad=True, values=True) as trace:
        output = model(*inputs)
    (output if isinstance(output, Tensor) else output[0]).flatten()[0].backward()
    return trace


@pytest.fixture
def pooled():
    return traced(Pooled(), torch.randn(1, 9, 8))


@pytest.fixture
def class_attention():
    trace = traced(CaiT(), torch.randn(1, 9, 8))
    return trace.relabel({"class_blocks.0": "cross", "class_blocks.1": "self"})


@pytest.fixture
def latents():
    return traced(Latents(), torch.randn(1, 9, 8))


@pytest.fixture
def perceiver():
    transformers = pytest.importorskip("transformers")
    config = transformers.PerceiverConfig(
        num_latents=6, d_latents=16, d_model=12, num_blocks=1, num_self_attends_per_block=2,
        num_self_attention_heads=4, num_cross_attention_heads=4,
    )  # fmt: skip
    trace = traced(transformers.PerceiverModel(config).eval(), torch.randn(1, 20, 12))
    return trace.relabel({trace[0].name: "unknown"})  # as where nothing tells self from cross


chained = pytest.mark.parametrize("ask", [regard.rollout, regard.attention_flow, regard.relevance])


def offered(error: Exception, trace: regard.Trace) -> list[regard.Record]:
    """The records that a message offers, by the code it prints."""
    code = re.search(r"\[r for r in trace if ([^\[\]]|\[[^\]]*\])*\]", str(error))
    assert code is not None, str(error)
    return eval(code[0], {"trace": trace})


@chained
def test_a_pooling_query_is_named_and_left_out(pooled, ask):
    with pytest.raises(ShapeError) as raised:
        ask(pooled)
    text = str(raised.value)
    assert text.startswith(
        "pool: 1 query × 9 keys cannot be chained with other layers: one query pools the sequence"
    )
    assert "3 of the layers can be (blocks.0 … blocks.2)" in text
    assert "trace['pool'].weights() has its own map" in text
    assert ask(offered(raised.value, pooled)).shape == (1, 9, 9)


def test_a_pooling_query_in_a_list_of_tensors():
    square, pool = torch.full((1, 2, 9, 9), 1 / 9), torch.full((1, 2, 1, 9), 1 / 9)
    with pytest.raises(ShapeError, match=r"layer 2: 1 query × 9 keys .*Leave it out of the list"):
        regard.rollout([square, square, pool])


@chained
def test_a_perceiver_of_transformers(perceiver, ask):
    with pytest.raises(
        ShapeError, match=r"6 queries × 20 keys cannot be chained .* reads other positions than"
    ) as raised:
        ask(perceiver)
    assert str(raised.value).startswith(perceiver[0].name)
    assert ask(offered(raised.value, perceiver)).shape == (1, 6, 6)


@pytest.mark.parametrize("ask", [regard.mean_attention, regard.gradient_attention])
def test_means_over_layers_of_different_sizes(perceiver, ask):
    with pytest.raises(ShapeError, match=f"as in {perceiver[0].name}; layers of diff") as raised:
        ask(perceiver)
    assert ask(offered(raised.value, perceiver)).shape[-1] == 6


def test_a_stack_of_two_lengths(pooled):
    longer = traced(Pooled(), torch.randn(1, 12, 8))
    with pytest.raises(ShapeError, match=r"12 positions, expected batch 1, 9 pos.* as in blocks.0"):
        regard.rollout([*pooled[:3], *longer[:2]])


def test_only_parts_that_are_there_are_offered(latents):
    sites = r"part='encoder' \(blocks.0 and 2 more\) or part='cross' \(cross\)"
    for ask in (
        regard.rollout,
        regard.attention_flow,
        regard.mean_attention,
        regard.gradient_attention,
    ):
        with pytest.raises(RegardError, match=f"self- and cross-attention; say which: {sites}"):
            ask(latents)
    with pytest.raises(UnavailableError, match=f"part='decoder': no such .* captured; say {sites}"):
        regard.rollout(latents, part="decoder")
    with pytest.raises(UnavailableError, match=f"no self-attention in its decoder; .*{sites}"):
        regard.relevance(latents)
    assert regard.rollout(latents, part="encoder").shape == (1, 5, 5)
    assert regard.relevance(latents, part="encoder").shape == (1, 5, 5)
    with pytest.raises(ShapeError, match=r"cross: 5 queries × 9 keys .*reads another sequence"):
        regard.rollout(latents, part="cross")


def test_attentions_name_what_to_take(latents):
    with pytest.raises(UnavailableError, match=r"take trace.encoder_attentions \(blocks.0 and 2"):
        latents.attentions  # noqa: B018
    with pytest.raises(UnavailableError, match=r"and trace.cross_attentions \(cross\)$"):
        latents.attentions  # noqa: B018


def test_class_attention(class_attention):
    one_query = r"class_blocks.1: 1 query × 10 keys cannot be chained"
    with pytest.raises(ShapeError, match=one_query):
        regard.rollout(class_attention, part="decoder")
    with pytest.raises(ShapeError, match=rf"{one_query}.*say what to follow: part='encoder' \(bl"):
        regard.relevance(class_attention)
    assert regard.relevance(class_attention, part="encoder").shape == (1, 9, 9)


def test_a_step_of_generation():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4,
        decoder_start_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        model.generate(torch.randint(1, 50, (1, 9)), max_new_tokens=4, do_sample=False)
    with pytest.raises(ShapeError, match=r"1 query × 4 keys .*a step of generate\(\)") as raised:
        regard.rollout(trace.steps[-1], part="decoder")
    assert "regard.stitch(trace, output) joins the steps" in str(raised.value)


def test_records_of_two_passes_are_not_chained():
    model = Pooled()
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(2):
            model(torch.randn(1, 9, 8))
    with pytest.raises(RegardError, match=r"2 passes of the model; take one, as trace.steps"):
        regard.rollout([r for r in trace if r.shape.queries == r.shape.keys])


# -- reports


def test_a_report_of_a_perceiver(latents):
    report = latents.report()
    assert [row.name for row in report] == [name for name in latents.names() for _ in range(2)]
    assert all(row.distance != row.distance for row in report[:2])  # another sequence: none
    assert all(row.distance == row.distance for row in report[2:])
    with pytest.raises(RegardError, match=r"tokens: of which .*part='encoder' \(blocks.0 and 2 m"):
        latents.report(tokens=list("abcdefghi"))
    assert len(latents.report(tokens=list("abcde"), part="encoder")) == 6


def test_a_report_where_self_or_cross_is_not_known(perceiver):
    assert perceiver[0].attends == "unknown"
    report = perceiver.report()
    assert all(row.distance != row.distance for row in report[:4])
    (note,) = [note for note in report.notes if "not known" in note]
    assert note.startswith(perceiver[0].name) and "'self'}) says otherwise" in note
    known = perceiver.relabel({perceiver[0].name: "self"}).report()
    assert all(row.distance == row.distance for row in known)
    assert not any("not known" in note for note in known.notes)


def test_tokens_of_one_of_two_sequences(perceiver):
    tokens = [str(number) for number in range(20)]
    with pytest.raises(RegardError, match=r"Layers have \[6, 20\] keys; report") as raised:
        perceiver.report(tokens=tokens)
    code = re.search(r"regard\.Trace\(.*\)$", str(raised.value))
    assert code is not None
    some = eval(code[0], {"regard": regard, "trace": perceiver})
    assert len(some.report(tokens=tokens)) == 4


def test_cross_attention_that_is_not_known(perceiver):
    name = perceiver[0].name
    for ask in (
        lambda: perceiver.cross_attentions,
        lambda: perceiver.encoder_attentions,
        lambda: regard.rollout(perceiver, part="encoder"),
    ):
        with pytest.raises(UnavailableError, match=rf"{name} \(6 × 20\) may be") as raised:
            ask()
    code = re.search(r"trace\.relabel\(.*\)$", str(raised.value))
    assert code is not None
    assert len(eval(code[0], {"trace": perceiver}).cross_attentions) == 1


# -- what is no attention


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (nn.Linear(2, 2), r"not a Linear; run it in a capture: regard.trace\(model, inputs\)"),
        (None, "not None; transformers gives attentions with output_attentions=True only"),
    ],
)
def test_what_else_to_hand_over(thing, said):
    with pytest.raises(RegardError, match=said):
        regard.rollout(thing)


@pytest.mark.parametrize(("eager", "said"), [(True, r"output\.attentions$"), (False, "it has no")])
def test_the_output_of_a_model(eager, said):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    output = model(torch.randint(0, 50, (1, 5)), output_attentions=eager)
    with pytest.raises(RegardError, match=said):
        regard.rollout(output)
    if eager:
        assert regard.rollout(output.attentions).shape == (1, 5, 5)
