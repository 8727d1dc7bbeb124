"""`regard.stitch`: one map over prompt and output from the steps of `generate()`."""

import pytest
import torch
from capture_models import fused, words
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import regard
from regard.errors import RegardError
from regard.recipe import Dot
from regard.record import Trace

WORDS, PROMPT, NEW = 24, 5, 6
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
GROUPS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TEXT = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": None}


def llama(ends=None, seed=0, **changes):
    torch.manual_seed(seed)
    options = {**SIZES, **GROUPS, **TEXT, "initializer_range": 0.3, "eos_token_id": ends}
    return LlamaForCausalLM(LlamaConfig(**(options | changes))).eval()


def mistral(window=4):
    torch.manual_seed(0)
    options = {**SIZES, **GROUPS, **TEXT, "initializer_range": 0.3, "eos_token_id": None}
    return MistralForCausalLM(MistralConfig(**options, sliding_window=window)).eval()


def gpt2(ends=None, seed=0):
    torch.manual_seed(seed)
    config = GPT2Config(
        **TEXT, n_embd=16, n_layer=2, n_head=4, initializer_range=0.3, eos_token_id=ends
    )
    return GPT2LMHeadModel(config).eval()


def t5():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    return T5ForConditionalGeneration(config).eval()


def bart():
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=WORDS,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        eos_token_id=None,
        forced_eos_token_id=None,
        pad_token_id=0,
        init_std=0.3,
    )
    return BartForConditionalGeneration(config).eval()


DECODERS = {"llama": llama, "gpt2": gpt2, "mistral": mistral}
every_decoder = pytest.mark.parametrize("build", DECODERS.values(), ids=DECODERS)
WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"do_sample": False, "num_beams": 3, "output_scores": True},
    "all beams": {
        "do_sample": False,
        "num_beams": 3,
        "num_return_sequences": 3,
        "output_scores": True,
    },
    "sampled beams": {"do_sample": True, "num_beams": 3, "output_scores": True},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def prompt(batch=2, length=PROMPT):
    return torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(1))


def generate(model, ids, way, **options):
    """What was captured, and what `generate` returned."""
    torch.manual_seed(3)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, **way, **options}
    with torch.no_grad(), regard.capture(model) as trace:
        output = model.generate(ids, return_dict_in_generate=True, **options)
    return trace, output


def forced(model, **inputs):
    """The attentions of one pass over all of it, as transformers gives them."""
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return model(**inputs, output_attentions=True)
    finally:
        model.set_attn_implementation("sdpa")


def fed(output, number, length):
    """How many positions of a returned sequence the model was fed."""
    beams = getattr(output, "beam_indices", None)
    if beams is None:
        return output.sequences.shape[1] - 1
    return length + int((beams[number] >= 0).sum()) - 1


def check(stitched, truth, output, length=PROMPT):
    """Rows of every returned sequence, as far as it was fed; nothing in the others."""
    assert len(stitched) == len(truth)
    for record, expected in zip(stitched, truth):
        weights = record.weights()
        assert weights.shape == record.shape and weights.shape[0] == len(output.sequences)
        for number, found in enumerate(weights):
            size = min(fed(output, number, length), found.shape[1])
            torch.testing.assert_close(
                found[:, :size, :size], expected[number, :, :size, :size], atol=1e-4, rtol=1e-4
            )
            assert (found[:, size:] == 0).all()
            assert (found[:, :size, size:] == 0).all()


@every_decoder
@every_way
def test_as_one_teacher_forced_pass(build, way):
    model, ids = build(), prompt()
    trace, output = generate(model, ids, way)
    stitched = regard.stitch(trace, output)
    sequences = output.sequences[:, :-1]
    truth = forced(model, input_ids=sequences, attention_mask=torch.ones_like(sequences))
    check(stitched, truth.attentions, output)
    assert stitched[0].shape[2:] == (PROMPT + NEW - 1,) * 2
    assert [record.call for record in stitched] == [1, 1]
    assert [record.attends for record in stitched] == ["self", "self"]


@pytest.mark.parametrize("build", [llama, gpt2])
@pytest.mark.parametrize("seed", range(4))
def test_beams_that_end_early(build, seed):
    """A finished sequence leaves its place to another: its rows end, its keys are its own."""
    model, ids = build(ends=[1, 5, 8, 11], seed=seed), prompt()
    trace, output = generate(model, ids, WAYS["all beams"])
    sequences = output.sequences[:, :-1]
    truth = forced(model, input_ids=sequences, attention_mask=torch.ones_like(sequences))
    check(regard.stitch(trace, output), truth.attentions, output)


def test_some_of_those_do_end_early():
    ended = 0
    for seed in range(4):
        _, output = generate(llama([1, 5, 8, 11], seed), prompt(), WAYS["all beams"])
        ended += int((output.beam_indices < 0).any(1).sum())
    assert ended >= 4


def test_the_check_can_fail():
    model, ids = llama(), prompt()
    trace, output = generate(model, ids, WAYS["all beams"])
    sequences = output.sequences[:, :-1]
    truth = forced(model, input_ids=sequences, attention_mask=torch.ones_like(sequences)).attentions
    stitched = regard.stitch(trace, output)
    for wrong in (truth[::-1], [w.flip(1) for w in truth], [w.flip(0) for w in truth]):
        with pytest.raises(AssertionError):
            check(stitched, wrong, output)


@every_decoder
def test_eager_attention(build):
    """Weights the model made itself, a matrix a step."""
    model, ids = build(), prompt()
    model.set_attn_implementation("eager")
    trace, output = generate(model, ids, WAYS["beams"])
    sequences = output.sequences[:, :-1]
    truth = forced(model, input_ids=sequences, attention_mask=torch.ones_like(sequences))
    check(regard.stitch(trace, output), truth.attentions, output)


@pytest.mark.parametrize("way", ["greedy", "beams"])
def test_prompts_of_different_lengths(way):
    """Padded on the left, as generation wants it."""
    model, ids = llama(), prompt()
    mask = torch.ones_like(ids)
    mask[1, :2] = ids[1, :2] = 0
    trace, output = generate(model, ids, WAYS[way], attention_mask=mask)
    more = torch.ones(2, NEW - 1, dtype=torch.long)
    whole = torch.cat([mask, more], 1)
    places = (whole.cumsum(1) - 1).clamp_min(0)
    truth = forced(
        model, input_ids=output.sequences[:, :-1], attention_mask=whole, position_ids=places
    )
    for record, expected in zip(regard.stitch(trace, output), truth.attentions, strict=True):
        for number in range(2):
            rows = whole[number].bool()  # a row of padding attends to nothing that means anything
            torch.testing.assert_close(
                record.weights()[number, :, rows], expected[number, :, rows], atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("length", [1, 2, 9])
def test_prompts_of_any_length(length):
    model, ids = llama(), prompt(1, length)
    trace, output = generate(model, ids, WAYS["greedy"])
    truth = forced(model, input_ids=output.sequences[:, :-1])
    check(regard.stitch(trace, output), truth.attentions, output, length)


@pytest.mark.parametrize("length", [2, 4, 9])
def test_a_sliding_window(length):
    """The cache forgets: keys stand at their own places all the same."""
    model, ids = mistral(window=4), prompt(2, length)
    trace, output = generate(model, ids, WAYS["greedy"])
    truth = forced(model, input_ids=output.sequences[:, :-1])
    stitched = regard.stitch(trace, output)
    check(stitched, truth.attentions, output, length)
    last = stitched[0].weights()[:, :, -1]
    assert (last[..., :-4] == 0).all() and (last[..., -4:] > 0).all()


@pytest.mark.parametrize("build", [llama, mistral])
def test_a_static_cache(build):
    model, ids = build(), prompt()
    trace, output = generate(
        model, ids, WAYS["greedy"], cache_implementation="static", disable_compile=True
    )
    truth = forced(model, input_ids=output.sequences[:, :-1])
    check(regard.stitch(trace, output), truth.attentions, output)


@pytest.mark.parametrize("way", ["greedy", "beams", "all beams", "sampling"])
@pytest.mark.parametrize("build", [t5, bart])
def test_an_encoder_and_a_decoder(build, way):
    model, ids = build(), prompt(2, 7)
    trace, output = generate(model, ids, WAYS[way])
    stitched = regard.stitch(trace, output)
    many = len(output.sequences) // 2
    truth = forced(
        model,
        input_ids=ids.repeat_interleave(many, 0),
        decoder_input_ids=output.sequences[:, :-1],
    )
    for found, expected in zip(stitched.encoder_attentions, truth.encoder_attentions, strict=True):
        torch.testing.assert_close(found, expected[::many], atol=1e-4, rtol=1e-4)
    for form in ("decoder_attentions", "cross_attentions"):
        for found, expected in zip(getattr(stitched, form), getattr(truth, form), strict=True):
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_what_generate_returned_in_its_plainest_form():
    model, ids = llama(), prompt()
    with torch.no_grad(), regard.capture(model) as trace:
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
        )
    with_output, without = regard.stitch(trace, output), regard.stitch(trace)
    for one, other in zip(with_output, without, strict=True):
        assert torch.equal(one.weights(), other.weights())


# -- memory


def test_memory_grows_with_the_length_not_its_square():
    model = llama()
    sizes, stitched = {}, {}
    for new in (20, 40, 80):
        trace, output = generate(model, prompt(1), WAYS["greedy"], max_new_tokens=new)
        sizes[new] = trace.nbytes
        whole = regard.stitch(trace, output)
        stitched[new] = whole.nbytes
        assert isinstance(whole[0].recipe, Dot)
    for found in (sizes, stitched):
        assert found[80] - found[40] < 2.2 * (found[40] - found[20])


def test_beams_in_memory():
    model = llama()
    sizes = {}
    for new in (20, 40, 80):
        trace, _ = generate(model, prompt(1), WAYS["beams"], max_new_tokens=new)
        sizes[new] = trace.nbytes
    assert sizes[80] - sizes[40] < 2.2 * (sizes[40] - sizes[20])


# -- what a stitched trace is


def test_a_stitched_trace_is_a_trace(tmp_path):
    trace, output = generate(llama(), prompt(), WAYS["greedy"])
    whole = regard.stitch(trace, output)
    assert whole.names() == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert len(whole.attentions) == 2 and whole.notes == trace.notes
    mean = whole.reduce(regard.HeadMean())["model.layers.1.self_attn"][0]
    torch.testing.assert_close(mean, whole[1].weights().mean(1))
    again = regard.load(whole.save(tmp_path / "whole.safetensors"))
    assert torch.equal(again[1].weights(), whole[1].weights())
    told = whole.with_tokens([str(n) for n in range(PROMPT + NEW - 1)])
    assert told[0].key_tokens[-1] == str(PROMPT + NEW - 2)


def test_of_a_trace_that_was_saved(tmp_path):
    trace, output = generate(llama(), prompt(), WAYS["beams"])
    again = regard.load(trace.save(tmp_path / "steps.safetensors"))
    for one, other in zip(regard.stitch(trace, output), regard.stitch(again, output), strict=True):
        assert torch.equal(one.weights(), other.weights())


def test_some_layers_and_heads():
    trace, output = generate(llama(), prompt(), WAYS["greedy"])
    whole = regard.stitch(trace, output)
    some = regard.stitch(trace.layers(1).heads(0, 3), output)
    assert some.names() == ["model.layers.1.self_attn"]
    torch.testing.assert_close(some[0].weights(), whole[1].weights()[:, [0, 3]])


def test_weights_and_files_stitch_too(tmp_path):
    model, ids = llama(), prompt()
    trace, output = generate(model, ids, WAYS["greedy"])
    whole = regard.stitch(trace, output)
    for keep in ("weights", tmp_path):
        with torch.no_grad(), regard.capture(model, keep=keep) as kept:
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
            )
        for one, other in zip(whole, regard.stitch(kept, output), strict=True):
            torch.testing.assert_close(one.weights(), other.weights())


# -- what cannot be stitched


def test_nothing_ran_twice():
    with pytest.raises(RegardError, match=r"stitch: no module ran more than once.*generate"):
        regard.stitch(regard.trace(fused(), words(1, 5, 8)))
    with pytest.raises(RegardError, match="stitch: the trace is empty"):
        regard.stitch(Trace())


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("output", "said"),
    [
        (5, "output is int, expected what generate"),
        ("text", "output is str"),
        ([[1, 2]], "output is list"),
        (torch.zeros(2, 11), r"output is \(2, 11\) of torch.float32, expected the token numbers"),
        (torch.zeros(11, dtype=torch.long), r"output is \(11,\) of torch.int64"),
    ],
    ids=["number", "text", "list", "logits", "one sequence"],
)
def test_an_output_that_is_none(output, said):
    trace, _ = generate(llama(), prompt(), WAYS["greedy"])
    with pytest.raises(RegardError, match=f"stitch: {said}"):
        regard.stitch(trace, output)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_other_way_round():
    trace, output = generate(llama(), prompt(), WAYS["greedy"])
    with pytest.raises(RegardError, match="stitch: Tensor, expected the trace first"):
        regard.stitch(output.sequences, trace)


def test_an_output_of_another_run():
    trace, output = generate(llama(), prompt(), WAYS["greedy"])
    for wrong in (prompt(), output.sequences[:, :-2], torch.cat([output.sequences, prompt()], 1)):
        with pytest.raises(
            RegardError, match=rf"has {wrong.shape[1]} positions.*fed 10, so 11.*another run"
        ):
            regard.stitch(trace, wrong)


def test_beams_of_another_run():
    model = llama()
    trace, _ = generate(model, prompt(1), WAYS["beams"])
    _, other = generate(model, prompt(2), WAYS["beams"])
    with pytest.raises(RegardError, match=r"name example [345], the model ran on 3: .*another run"):
        regard.stitch(trace, other)


def test_one_step_and_an_output_that_is_not_its():
    model, ids = llama(), prompt()
    with torch.no_grad(), regard.capture(model) as trace:
        model(ids)
    with pytest.raises(RegardError, match=r"has 5 positions.*fed 5, so 6"):
        regard.stitch(trace, ids)
    with pytest.raises(RegardError, match="expected what generate"):
        regard.stitch(trace, model(ids))


def test_embeddings_instead_of_words():
    """`generate` then returns the new words alone."""
    model, ids = llama(), prompt()
    given = {"inputs_embeds": model.get_input_embeddings()(ids)}
    with torch.no_grad(), regard.capture(model) as trace:
        output = model.generate(
            **given, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
        )
    assert output.shape == (2, NEW)
    assert regard.stitch(trace, output)[0].shape == (2, 4, PROMPT + NEW - 1, PROMPT + NEW - 1)


def test_beams_without_their_indices():
    model, ids = llama(), prompt()
    with torch.no_grad(), regard.capture(model) as trace:
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            num_beams=3,
            do_sample=False,
        )
    with pytest.raises(RegardError, match=r"2 sequences.*ran on 6.*output_scores=True"):
        regard.stitch(trace, output)


def test_another_number_of_sequences():
    trace, output = generate(llama(), prompt(), WAYS["greedy"])
    with pytest.raises(
        RegardError,
        match=r"1 sequences were returned, the model ran on 2: .*another run, or .*beam",
    ):
        regard.stitch(trace, output.sequences[:1])


def test_all_beams_without_their_indices():
    """As many sequences as beams: the numbers agree, but beams have changed their places."""
    model, ids = llama(), prompt()
    trace, output = generate(model, ids, WAYS["all beams"])
    assert not torch.equal(output.beam_indices, output.beam_indices[:, :1].expand(-1, NEW))
    with pytest.raises(RegardError, match="beam"):
        regard.stitch(trace, output.sequences)


def test_reductions_cannot_be_stitched():
    model, ids = llama(), prompt()
    with torch.no_grad(), regard.capture(model, keep=[regard.Entropy()]) as trace:
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW)
    with pytest.raises(RegardError, match="only reductions were kept"):
        regard.stitch(trace, output)


def test_passes_that_do_not_follow_each_other():
    """Two texts behind each other are not one: nothing of the second has seen the first."""
    model = llama()
    with torch.no_grad(), regard.capture(model) as trace:
        model(prompt(1, 5))
        model(prompt(1, 7))
    with pytest.raises(RegardError, match="stitch"):
        regard.stitch(trace)


def test_two_generations_in_one_capture():
    model, ids = llama(), prompt()
    with torch.no_grad(), regard.capture(model) as trace:
        for _ in range(2):
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False
            )
    with pytest.raises(RegardError, match=f"step {NEW} .*a second run begins there"):
        regard.stitch(trace, output)
    half = len(trace) // 2
    for part in (trace[:half], trace[half:]):
        assert regard.stitch(part, output)[0].shape.queries == PROMPT + NEW - 1


def test_without_a_cache():
    """Every step runs over all of it again."""
    model, ids = llama(), prompt()
    trace, output = generate(model, ids, WAYS["greedy"], use_cache=False)
    with pytest.raises(RegardError, match=r"without a cache.*last step alone has the whole map"):
        regard.stitch(trace, output)
