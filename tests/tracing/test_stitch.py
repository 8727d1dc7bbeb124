"""`regard.stitch`: one map over prompt and output from the steps of `generate()`."""

import pytest
import torch
from stitch_models import NEW, PROMPT, WAYS, bart, generate, gpt2, llama, mistral, prompt, t5

import regard
from regard.recipe import Dot

DECODERS = {"llama": llama, "gpt2": gpt2, "mistral": mistral}
every_decoder = pytest.mark.parametrize("build", DECODERS.values(), ids=DECODERS)
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


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
    again = regard.load_trace(whole.save(tmp_path / "whole.safetensors"))
    assert torch.equal(again[1].weights(), whole[1].weights())
    told = whole.with_tokens([str(n) for n in range(PROMPT + NEW - 1)])
    assert told[0].key_tokens[-1] == str(PROMPT + NEW - 2)


def test_of_a_trace_that_was_saved(tmp_path):
    trace, output = generate(llama(), prompt(), WAYS["beams"])
    again = regard.load_trace(trace.save(tmp_path / "steps.safetensors"))
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
