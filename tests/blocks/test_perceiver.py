"""The Perceiver: its equations in loops, the paper's sizes, order, inputs, learning, capture."""

import block_readings as readings
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import regard
from regard import RegardError, masks
from regard.blocks.sets import FourierFeatures, Perceiver
from regard.errors import MaskError, ShapeError


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def small(inputs=6, **options):
    """Width 8, 3 latents, 3 repeats, parameters large enough for attention to matter."""
    sizes = {"n_repeats": 3, "n_layers": 2, "n_heads": 2, **options}
    model = Perceiver(inputs, 8, 3, **sizes).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@torch.no_grad()
def reading(model, inputs, cross_order, layer_order, keeps=None):
    """Latents of one example; `inputs` by name, each (position, width)."""
    latents = model.latents.array
    for cross, layers in zip(cross_order, layer_order):
        for name, features in inputs.items():
            keep = [True] * len(features) if keeps is None else keeps[name]
            block = model.crosses[cross][name]
            latents = readings.cross_attend(block, latents, features, lambda i, j, k=keep: k[j])
        for layer in model.transformers[layers].blocks:
            latents = readings.latent_layer(layer, latents)
    return latents


@pytest.mark.parametrize(
    ("unshared", "cross_order", "layer_order"),
    [
        ("first cross", (0, 1, 1), (0, 0, 0)),
        ("first repeat", (0, 1, 1), (0, 1, 1)),
        ("all", (0, 1, 2), (0, 1, 2)),
    ],
)
def test_it_is_its_equations_in_loops(unshared, cross_order, layer_order):
    model, x = small(unshared=unshared, cross_heads=2), normal(2, 5, 6)
    want = [reading(model, {"input": each}, cross_order, layer_order) for each in x]
    torch.testing.assert_close(model(x).output, torch.stack(want), rtol=1e-8, atol=1e-8)


def test_several_inputs_are_read_in_turn():
    model = small({"image": 6, "audio": 4})
    x = {"image": normal(1, 5, 6), "audio": normal(1, 7, 4)}
    keeps = {"image": [True] * 5, "audio": [True, False] * 3 + [False]}
    mask = {"audio": masks.padding(torch.tensor([keeps["audio"]]))}
    want = reading(model, {n: f[0] for n, f in x.items()}, (0, 1, 1), (0, 0, 0), keeps)
    blocked = model(x, mask=mask, weights=True, reduce=[regard.ReceivedAttention()])
    torch.testing.assert_close(blocked.output[0], want, rtol=1e-8, atol=1e-8)
    repeat = ["image.cross", "audio.cross", "0.self", "1.self"]
    assert list(blocked.attentions) == [f"{r}.{name}" for r in range(3) for name in repeat]
    for name, attended in blocked.attentions.items():
        keys = {"image": 5, "audio": 7}.get(name.split(".")[1], 3)
        assert attended.weights.shape == (1, 1 if "cross" in name else 2, 3, keys)
        torch.testing.assert_close(attended.reductions[0], attended.weights.sum(2))
    assert (blocked.attentions["2.audio.cross"].weights[..., 1::2] == 0).all()


def test_padding_of_one_input_equals_deletion():
    model = small({"image": 6, "audio": 4})
    image, audio = normal(2, 5, 6), normal(2, 3, 4)
    padded = torch.cat([audio, torch.full((2, 4, 4), torch.nan, dtype=torch.float64)], 1)
    keep = torch.arange(7).expand(2, -1) < 3
    got = model({"audio": padded, "image": image}, mask={"audio": masks.padding(keep)}).output
    want = model({"image": image, "audio": audio}).output
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_an_empty_input_among_others():
    model = small({"image": 6, "audio": 4})
    x = {"image": normal(2, 5, 6), "audio": normal(2, 0, 4)}
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    masked = {"image": x["image"], "audio": normal(2, 3, 4)}
    want = model(masked, mask={"audio": masks.padding(nothing)}).output
    torch.testing.assert_close(model(x).output, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("unshared", "n_repeats", "millions"),
    [("first cross", 8, 44.9), ("all", 8, 326.2), ("first cross", 1, 42.1)],
)
def test_it_is_as_large_as_the_papers(unshared, n_repeats, millions):
    """Tables 6 and 7: with weight sharing, without it, and with a single cross-attend."""
    with torch.device("meta"):
        model = Perceiver(261, 1024, 512, unshared=unshared, n_repeats=n_repeats)
        classes = nn.Linear(1024, 1000)
    size = sum(p.numel() for module in (model, classes) for p in module.parameters())
    assert round(size / 1e6, 1) == millions


def test_pixels_in_another_order_with_their_positions_change_nothing():
    """The paper's permuted ImageNet (table 2), where accuracy is 78.0 both ways."""
    features, image = FourierFeatures((16, 16), 6), torch.randn(2, 16, 16, 3)
    model = Perceiver(3 + features.width, 32, 8, n_repeats=4, n_layers=2).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    x, order = features(image), torch.randperm(256)
    output = model(x).output
    torch.testing.assert_close(model(x[:, order]).output, output, rtol=0, atol=1e-5)
    without_positions = features(image.flatten(1, 2)[:, order].reshape(image.shape))
    assert (model(without_positions).output - output).abs().max() > 1e-2


def test_keys_are_projected_once_for_all_repeats_that_share_them():
    model, calls = small(n_repeats=5), []
    for number in range(2):
        part = model.crosses[number]["input"].cross_attention.part
        part.to_key.register_forward_hook(lambda *_, number=number: calls.append(number))
    model(normal(2, 5, 6))
    assert calls == [0, 1]


class Answers(nn.Module):
    """The value of one pixel, asked for by its position in a second input."""

    def __init__(self):
        super().__init__()
        self.features = FourierFeatures((4, 4), 4)
        inputs = {"image": 1 + self.features.width, "question": self.features.width}
        self.perceiver = Perceiver(inputs, 32, 4, n_repeats=2, n_layers=1, n_heads=4)
        self.out = nn.Linear(32, 2)

    def forward(self, image, place, **asked):
        positions = self.features(image[..., :0])  # of every pixel, without its value
        question = positions[torch.arange(len(place)), place, None]
        x = {"image": self.features(image), "question": question}
        blocked = self.perceiver(x, **asked)
        return self.out(blocked.output.mean(1)), blocked.attentions


def questions(n):
    image, place = torch.randint(2, (n, 4, 4, 1)) * 2.0 - 1, torch.randint(16, (n,))
    return image, place, (image.flatten(1)[torch.arange(n), place] > 0).long()


def test_it_learns_where_to_look(without_shape_checks):
    """The image comes before the question: only the second repeat can look for the pixel.

    Over four seeds all answers are right, and the weight of the asked pixel is 0.06 in the first
    repeat (1/16, a guess) and 0.68 to 0.93 in the second.
    """
    model = Answers()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        image, place, answer = questions(64)
        optimiser.zero_grad()
        cross_entropy(model(image, place)[0], answer).backward()
        optimiser.step()
    image, place, answer = questions(500)
    with torch.no_grad():
        scores, attentions = model(image, place, weights=True)
    assert (scores.argmax(-1) == answer).double().mean() > 0.97  # chance is a half
    asked = [
        attentions[f"{repeat}.image.cross"].weights.mean((1, 2))[torch.arange(500), place].mean()
        for repeat in range(2)
    ]
    assert asked[0] < 0.15 and asked[1] > 0.5


def test_capture_gives_every_attention_in_order():
    model = small({"image": 6, "audio": 4}, n_repeats=2).float()
    x = {"image": torch.randn(2, 5, 6), "audio": torch.randn(2, 7, 4)}
    with torch.no_grad(), regard.capture(model) as trace:
        attentions = model(x, weights=True).attentions
    assert len(trace) == len(attentions) == 8
    for record, (name, attended) in zip(trace, attentions.items()):
        assert record.site.axes_known
        assert record.attends == name.split(".")[-1], name
        torch.testing.assert_close(record.weights(), attended.weights)
    assert trace[0].name == "crosses.0.image.cross_attention.part"


def test_training_and_eval_differ_by_dropout_alone():
    x = torch.randn(2, 5, 6)
    plain, dropping = small().float(), small(dropout=0.5).float()
    assert torch.equal(plain.train()(x).output, plain.eval()(x).output)
    assert not torch.equal(dropping.train()(x).output, dropping.train()(x).output)
    assert torch.equal(dropping.eval()(x).output, dropping.eval()(x).output)


def test_errors_say_what_was_expected(without_shape_checks):
    model = small({"image": 6, "audio": 4})
    image, audio = normal(2, 5, 6), normal(2, 7, 4)
    short = masks.padding(torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(RegardError, match=r"x is Tensor, expected a mapping from .*'image', 'au"):
        model(image)
    with pytest.raises(RegardError, match=r"x has \['image'\], expected \['image', 'audio'\]"):
        model({"image": image})
    with pytest.raises(RegardError, match=r"mask has \['text'\], expected \['image', 'audio'\]"):
        model({"image": image, "audio": audio}, mask={"text": None})
    with pytest.raises(ShapeError, match=r"x\['audio'\]: axis width has size 6, expected 4"):
        model({"image": image, "audio": image})
    with pytest.raises(ShapeError, match=r"x\['audio'\]: axis batch has size 1, expected 2"):
        model({"image": image, "audio": audio[:1]})
    with pytest.raises(MaskError, match=r"Perceiver: mask\['audio'\].* key has size 5"):
        model({"image": image, "audio": audio}, mask={"audio": short})
    with pytest.raises(RegardError, match="unshared='some', expected one of"):
        Perceiver(6, 8, 3, unshared="some")
    with pytest.raises(ShapeError, match="cross-attention to 'input' has width 6, expected a mult"):
        Perceiver(6, 8, 3, cross_heads=4)
    with pytest.raises(ShapeError, match="n_repeats=0, n_layers=6, expected at least one of each"):
        Perceiver(6, 8, 3, n_repeats=0)
