"""Steps beside a plain loop: sentence by sentence, with the formulas of the papers, in float64."""

import itertools
from dataclasses import replace

import pytest
import torch

from regard.translate.config import OptimiserConfig, TrainingConfig
from regard.translate.data import Examples, collate
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.tokens import BEGIN, END
from regard.translate.training.processes import new_fabric
from regard.translate.training.step import Step, Stepper, new_optimiser

SIZE = 11
RATES = (0.05, 0.02, 0.08)  # of the steps; that of the configuration is another
SENTENCES = [
    ([4, 5, 6], [7, 8]), ([9], [4, 5, 6, 7]), ([10, 4, 5, 7, 8], [9]), ([6, 6], [10, 4, 9]),
    ([8, 7, 4], [5, 5, 5, 6, 7]), ([5], [8]), ([7, 9, 10], [6, 4]),
]  # fmt: skip
EXAMPLES = Examples(*([[*tokens, END] for tokens in side] for side in zip(*SENTENCES)))
BATCHES = [[[0, 1], [2]], [[3, 4, 5]], [[6, 2, 1], [0], [4]]]  # of each step

#: What a configuration says; the first is the plainest there is.
CASES = {
    "plain": {"name": "sgd", "clip": 0.0},
    "clip": {"name": "sgd", "clip": 0.05},
    "clip-more": {"name": "sgd", "clip": 0.02},
    "smoothing": {"name": "sgd", "clip": 0.0, "smoothing": 0.3},
    "decay": {"name": "sgd", "clip": 0.0, "weight_decay": 0.7},
    "adam": {"name": "adam", "clip": 0.0},
    "adam-clip": {"name": "adam", "clip": 0.05, "epsilon": 1e-2},
    "adam-beta1": {"name": "adam", "clip": 0.0, "beta1": 0.3},
    "adam-beta2": {"name": "adam", "clip": 0.0, "beta2": 0.5},
    "adam-epsilon": {"name": "adam", "clip": 0.0, "epsilon": 1e-2},
    "adam-decay": {"name": "adam", "clip": 0.0, "weight_decay": 0.7},
    "adamw": {"name": "adamw", "clip": 0.0, "weight_decay": 0.7},
    "adamw-betas": {
        "name": "adamw", "clip": 0.0, "weight_decay": 0.7, "beta1": 0.2, "beta2": 0.4,
    },
    "everything": {
        "name": "adamw", "clip": 0.05, "weight_decay": 0.4, "beta1": 0.7, "beta2": 0.6,
        "epsilon": 1e-3, "smoothing": 0.2,
    },
}  # fmt: skip


def config_of(case, precision="64"):
    optimiser = {"rate": 123.0, **CASES[case]}
    smoothing = optimiser.pop("smoothing", 0.0)
    return TrainingConfig(
        label_smoothing=smoothing, precision=precision, optimiser=OptimiserConfig(**optimiser)
    )


def new_model(dtype=torch.float64, scale=1.0):
    """The same at every call; a larger scale has it guess more surely."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(ModelConfig("bahdanau", embedding=6, hidden=8, dropout=0.0), SIZE, SIZE)
    with torch.no_grad():
        model.embeddings.output.mul_(scale)
    return model.to(dtype)


def new_stepper(model, config):
    optimiser = new_optimiser(config.optimiser, model)
    return Stepper(new_fabric(config.precision), model, optimiser, EXAMPLES, config)


def step_of(batches):
    tokens = sum(len(EXAMPLES.target[number]) for batch in batches for number in batch)
    return Step(batches, tokens)


def stepped(case):
    """Losses and parameters of three steps, as training makes them."""
    model = new_model()
    stepper = new_stepper(model, config_of(case))
    losses = [
        stepper.make(step_of(batches), rate, 1.0).item() for batches, rate in zip(BATCHES, RATES)
    ]
    return losses, [parameter.detach() for parameter in model.parameters()]


def sentence_loss(model, number, smoothing):
    """-Σ q log p of one sentence, alone and without padding."""
    source, target = (torch.tensor([side[number]]) for side in (EXAMPLES.source, EXAMPLES.target))
    given = torch.cat([torch.tensor([[BEGIN]]), target[:, :-1]], 1)
    decoded = model.decode(model.encode(source, torch.ones_like(source, dtype=torch.bool)), given)
    log_p = model.logits(decoded.features)[0].log_softmax(-1)  # (target, vocabulary)
    q = torch.full_like(log_p, smoothing / SIZE)
    q[torch.arange(len(q)), target[0]] += 1 - smoothing
    return -(q * log_p).sum()


def clipped(gradients, most):
    """Not longer than `most`, all of them together; torch adds 1e-6 to the length."""
    length = sum(one.square().sum() for one in gradients).sqrt()
    shrink = min(1.0, most / (length.item() + 1e-6)) if most else 1.0
    return [one * shrink for one in gradients]


def moved(parameter, gradient, memory, time, rate, config):
    """Where a parameter goes: gradient descent; Adam (Kingma and Ba, 2015, algorithm 1); AdamW
    (Loshchilov and Hutter, 2019, algorithm 2, whose λ is times the rate here)."""
    decay = config.weight_decay
    if config.name == "adamw":
        parameter = parameter - rate * decay * parameter
    else:
        gradient = gradient + decay * parameter
    if config.name == "sgd":
        return parameter - rate * gradient
    memory["m"] = config.beta1 * memory.get("m", 0) + (1 - config.beta1) * gradient
    memory["v"] = config.beta2 * memory.get("v", 0) + (1 - config.beta2) * gradient**2
    mean = memory["m"] / (1 - config.beta1**time)
    square = memory["v"] / (1 - config.beta2**time)
    return parameter - rate * mean / (square.sqrt() + config.epsilon)


def plainly(case):
    """The same steps in a plain loop."""
    model, config = new_model(), config_of(case)
    parameters = list(model.parameters())
    memories = [{} for _ in parameters]
    losses = []
    for time, (batches, rate) in enumerate(zip(BATCHES, RATES), start=1):
        numbers = list(itertools.chain(*batches))
        tokens = sum(len(EXAMPLES.target[number]) for number in numbers)
        loss = sum(sentence_loss(model, number, config.label_smoothing) for number in numbers)
        gradients = torch.autograd.grad(loss / tokens, parameters)
        gradients = clipped(gradients, config.optimiser.clip)
        with torch.no_grad():
            for one, gradient, memory in zip(parameters, gradients, memories):
                one.copy_(moved(one, gradient, memory, time, rate, config.optimiser))
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_a_plain_loop(case):
    losses, parameters = stepped(case)
    wanted_losses, wanted = plainly(case)
    assert losses == pytest.approx(wanted_losses, rel=1e-9)
    for found, expected in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_every_case_ends_elsewhere():
    """Otherwise a case of the test above could not tell its setting from none."""
    ends = {case: torch.cat([one.flatten() for one in plainly(case)[1]]) for case in CASES}
    for one, other in itertools.combinations(CASES, 2):
        assert (ends[one] - ends[other]).abs().max() > 1e-3, (one, other)


def test_a_step_without_a_rate_stays_where_it_is():
    """The rate is that of the call, whatever the configuration says."""
    model = new_model()
    new_stepper(model, config_of("everything")).make(step_of([[0, 1]]), 0.0, 1.0)
    for found, before in zip(model.parameters(), new_model().parameters(), strict=True):
        assert torch.equal(found, before)


def rolled_out(model, numbers):
    """The loss of sentences whose decoder is given its own best guesses."""
    total = 0.0
    for number in numbers:
        source = torch.tensor([EXAMPLES.source[number]])
        encoded = model.encode(source, torch.ones_like(source, dtype=torch.bool))
        state, given = model.start(encoded), torch.tensor([BEGIN])
        for token in EXAMPLES.target[number]:
            said = model.step(encoded, state, given)
            total -= said.logits[0].log_softmax(0)[token].item()
            state, given = said.state, said.logits.argmax(-1)
    return total


def test_without_forcing_the_model_is_given_its_own_guesses():
    model, numbers = new_model(scale=20.0), [0, 1, 2, 3]
    with torch.no_grad():
        own = rolled_out(model, numbers)
        taught = sum(sentence_loss(model, number, 0.0).item() for number in numbers)
    assert abs(own - taught) > 1
    for forcing, wanted in ((0.0, own), (1.0, taught)):
        stepper = new_stepper(new_model(scale=20.0), config_of("plain"))
        found = stepper.make(step_of([numbers[:2], numbers[2:]]), 0.1, forcing)
        assert found.item() == pytest.approx(wanted, rel=1e-9)


def test_the_probability_of_forcing_reaches_the_model():
    model, found = new_model(), []
    model.register_forward_pre_hook(lambda module, given: found.append(given[4]))
    stepper = new_stepper(model, config_of("plain"))
    for forcing in (0.25, 0.75):
        stepper.make(step_of([[0, 1], [2]]), 0.1, forcing)
    assert found == [0.25, 0.25, 0.75, 0.75]


def autocast_loss(model, numbers, dtype):
    batch = collate(EXAMPLES, numbers)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        logits = model(batch.source, batch.source_mask, batch.target_in, batch.target_mask)
    target = batch.target_out[batch.target_mask]
    return torch.nn.functional.cross_entropy(logits.float(), target, reduction="sum")


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_precision_computes_in_its_dtype(precision):
    """Logits in bfloat16 and parameters in float32; loss and gradient of torch's own autocast."""
    numbers = [0, 1, 2, 3]
    dtype = {"32": torch.float32, "bf16": torch.bfloat16}[precision]
    plain = new_model(torch.float32)
    loss = autocast_loss(plain, numbers, dtype)
    step = step_of([numbers])
    gradients = torch.autograd.grad(loss / step.tokens, list(plain.parameters()))

    model, seen = new_model(torch.float32), []
    model.register_forward_hook(lambda module, given, logits: seen.append(logits.dtype))
    stepper = new_stepper(model, replace(config_of("plain"), precision=precision))
    found = stepper.make(step, 1.0, 1.0)
    assert seen == [dtype]
    assert found.item() == pytest.approx(loss.item(), rel=1e-6)
    for after, before, gradient in zip(
        model.parameters(), plain.parameters(), gradients, strict=True
    ):
        assert after.dtype == torch.float32
        torch.testing.assert_close(before - after, gradient, rtol=1e-2, atol=1e-4)


def test_bfloat16_has_another_loss_than_float32():
    """Otherwise the losses of the test above could not tell them apart."""
    numbers, model = [0, 1, 2, 3], new_model(torch.float32)
    exact, rounded = (
        autocast_loss(model, numbers, dtype).item() for dtype in (torch.float32, torch.bfloat16)
    )
    assert 1e-5 < abs(rounded / exact - 1) < 1e-2
