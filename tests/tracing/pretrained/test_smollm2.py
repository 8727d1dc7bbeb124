"""SmolLM2-135M: known heads, and `generate()` with real text stitched into one map."""

import copy

import pytest
import torch
from loaders import smollm2

import regard

PROMPTS = ["The capital of France is", "Once upon a time there was a little"]
STEPS = 6


@pytest.fixture(scope="module")
def model():
    return smollm2()[0]


@pytest.fixture(scope="module")
def twin(model):
    """The same weights in the eager implementation."""
    other = copy.copy(model)  # parameters are shared
    eager = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager")
    eager.load_state_dict(other.state_dict(), assign=True)
    eager.tie_weights()
    return eager.eval()


def prompt(text: str) -> dict[str, torch.Tensor]:
    return dict(smollm2()[1](text, return_tensors="pt"))


def test_it_speaks(model):
    with torch.no_grad():
        said = model.generate(**prompt(PROMPTS[0]), max_new_tokens=2, do_sample=False)
    assert smollm2()[1].decode(said[0]) == f"{PROMPTS[0]} Paris."


def test_induction_heads(model):
    """On a repeated sequence they attend to what followed the same token before (Olsson 2022)."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(1000, 40_000, (1, 40), generator=generator)
    ids = torch.cat([half, half], 1)
    with torch.no_grad():
        trace = regard.trace(model, ids)
    assert len(trace) == 30
    n = half.shape[1]
    second = torch.arange(n, 2 * n)

    def induction(layer: int, head: int) -> float:
        weights = trace[f"model.layers.{layer}.self_attn"].weights()[0, head]
        return weights[second, second - n + 1].mean().item()

    assert induction(18, 6) > 0.6
    assert induction(17, 3) > 0.5
    assert induction(0, 0) < 0.2, "not every head"


def check(model, twin, trace, output, prompt_length):
    """Every layer and returned sequence against one teacher-forced pass of the eager twin."""
    stitched = regard.stitch(trace, output)
    assert stitched.names() == [f"model.layers.{i}.self_attn" for i in range(30)]
    fed = output.sequences[:, :-1]
    with torch.no_grad():
        for row, sequence in enumerate(fed):
            length = prompt_length + _steps(sequence[prompt_length:])
            want = twin(sequence[None, :length], output_attentions=True).attentions
            for got, true in zip(stitched, want, strict=True):
                mine = got.weights()[row : row + 1, :, :length, :length]
                torch.testing.assert_close(mine, true, atol=1e-4, rtol=0, msg=got.name)


def _steps(generated: torch.Tensor) -> int:
    """How many of the generated tokens come before the padding that follows an end."""
    ended = (generated == 2).nonzero()
    return int(ended[0]) if len(ended) else len(generated)


@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": False},
        {"do_sample": True, "top_k": 20, "num_return_sequences": 2},
        {"num_beams": 3, "num_return_sequences": 2},
    ],
    ids=["greedy", "two sampled", "two of three beams"],
)
def test_generation_stitches_into_the_teacher_forced_map(model, twin, how):
    given = prompt(PROMPTS[1])
    more = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": STEPS}
    with torch.no_grad():
        torch.manual_seed(0)
        plain = model.generate(**given, **how, **more).sequences
        torch.manual_seed(0)
        with regard.capture(model) as trace:
            output = model.generate(**given, **how, **more)
    assert torch.equal(output.sequences, plain), "the capture changed nothing"
    assert len(trace.steps) == STEPS
    check(model, twin, trace, output, given["input_ids"].shape[1])


def test_keys_are_held_once_not_once_a_step(model):
    """Each step sees all keys before it; held anew they would grow with the square."""

    def held(steps: int) -> int:
        with torch.no_grad(), regard.capture(model, where=range(3)) as trace:
            model.generate(
                **prompt(PROMPTS[0]), max_new_tokens=steps, min_new_tokens=steps, do_sample=False
            )
        return trace.nbytes

    assert held(24) < 2.3 * held(12)


def test_a_padded_batch_of_prompts(model, twin):
    tokenizer = smollm2()[1]
    tokenizer.padding_side = "left"
    given = dict(tokenizer(PROMPTS, return_tensors="pt", padding=True))
    with torch.no_grad():
        with regard.capture(model) as trace:
            output = model.generate(
                **given, max_new_tokens=4, do_sample=False, return_dict_in_generate=True
            )
        fed = output.sequences[:, :-1]
        more = fed.shape[1] - given["attention_mask"].shape[1]
        mask = torch.nn.functional.pad(given["attention_mask"], (0, more), value=1)
        places = (mask.cumsum(-1) - 1).clamp_min(0)
        want = twin(
            fed, attention_mask=mask, position_ids=places, output_attentions=True
        ).attentions
    for got, true in zip(regard.stitch(trace, output), want, strict=True):
        real = mask.bool()
        for row in range(len(mask)):  # rows of padding mean nothing
            mine, theirs = got.weights()[row][:, real[row]], true[row][:, real[row]]
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0, msg=got.name)
