"""`regard.stitch` refuses an output of another run, beams without their places, and no steps."""

import pytest
import torch
from capture_models import fused, words
from stitch_models import NEW, PROMPT, WAYS, generate, llama, prompt

import regard
from regard.errors import RegardError
from regard.record import Trace


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
