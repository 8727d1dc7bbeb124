"""Stand-alone self-attention: the paper's sum in loops, gradients, and what is at the border."""

import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import DtypeError, ShapeError
from regard.kernel.image_windows import local_attention
from regard.vision import LocalSelfAttention


def attention(channels: int = 8, n_heads: int = 2, **options: object) -> LocalSelfAttention:
    torch.manual_seed(0)
    return LocalSelfAttention(channels, n_heads, **({"size": 3} | options)).double()


@torch.no_grad()
def in_loops(attn: LocalSelfAttention, image: Tensor) -> tuple[Tensor, Tensor]:
    """Output (channel, row, column) and weights (head, row, column, row, column) of one image."""
    _, height, width = image.shape
    reach = attn.size // 2

    def features(project: nn.Conv2d, head: int, row: int, column: int) -> Tensor:
        """W x of one head at one position, group by group."""
        ins = image[:, row, column].chunk(project.groups)
        outs = project.weight[:, :, 0, 0].chunk(project.groups)
        whole = torch.cat([matrix @ part for matrix, part in zip(outs, ins)])
        return whole.chunk(attn.n_heads)[head]

    output = torch.zeros(attn.to_value.weight.shape[0], height, width, dtype=image.dtype)
    weights = torch.zeros(attn.n_heads, height, width, height, width, dtype=image.dtype)
    for head in range(attn.n_heads):
        for i in range(height):
            for j in range(width):
                query = attn.scale * features(attn.to_query, head, i, j)
                exps = {}
                for a in range(max(0, i - reach), min(height, i + reach + 1)):
                    for b in range(max(0, j - reach), min(width, j + reach + 1)):
                        relative = torch.cat(
                            [attn.row[head, a - i + reach], attn.column[head, b - j + reach]]
                        )
                        key = features(attn.to_key, head, a, b)
                        exps[a, b] = math.exp(query @ key + query @ relative)
                mixed = 0.0
                for (a, b), exp in exps.items():
                    weights[head, i, j, a, b] = exp / sum(exps.values())
                    value = features(attn.to_value, head, a, b)
                    mixed = mixed + weights[head, i, j, a, b] * value
                output.unflatten(0, (attn.n_heads, -1))[head, :, i, j] = mixed
    return output, weights


CASES = {
    "plain": ({}, (5, 4)),
    "5 × 5": ({"size": 5}, (4, 6)),
    "wider than the image": ({"size": 7}, (2, 3)),
    "one position": ({"size": 3}, (1, 1)),
    "1 × 1": ({"size": 1}, (2, 3)),
    "groups": ({"groups": 2}, (3, 4)),
    "more channels": ({"out_channels": 12}, (3, 3)),
    "scaled": ({"scale": 0.5}, (3, 4)),
}


@pytest.mark.parametrize(("options", "size"), CASES.values(), ids=CASES)
def test_is_the_paper(options: dict[str, object], size: tuple[int, int]) -> None:
    attn = attention(**options)
    images = torch.randn(2, 8, *size, dtype=torch.float64)
    attended = attn(images, weights=True)
    offsets = attended.recipe.offsets(reach=(attn.size // 2, attn.size // 2))
    for example, image in enumerate(images):
        output, weights = in_loops(attn, image)
        torch.testing.assert_close(attended.output[example], output)
        dense = weights.flatten(3).flatten(1, 2)
        torch.testing.assert_close(attended.weights[example], dense)
        centre = offsets.weights[example, :, :, :, attn.size // 2, attn.size // 2]
        torch.testing.assert_close(centre, dense.diagonal(dim1=1, dim2=2).view(centre.shape))


def test_query_times_key_is_summed_over_channels() -> None:
    """The best-known port takes a softmax for each channel: weights that no head axis can hold.

    Here all channels of a head are mixed with one weight: with equal values in all of them the
    mixed channels are equal too.
    """
    attn = attention()
    nn.init.ones_(attn.to_value.weight)
    output = attn(torch.randn(1, 8, 5, 5, dtype=torch.float64)).output.unflatten(1, (2, -1))
    torch.testing.assert_close(output, output[:, :, :1].expand_as(output))


def test_nothing_outside_of_the_image_gets_weight() -> None:
    """In a corner there are four neighbours; with equal scores each has a quarter."""
    attn = attention()
    nn.init.zeros_(attn.to_query.weight)
    offsets = attn(torch.randn(1, 8, 4, 4, dtype=torch.float64), weights=True).recipe.offsets()
    assert offsets.weights[0, 0, 0, 0].tolist() == [[0, 0, 0], [0, 0.25, 0.25], [0, 0.25, 0.25]]
    torch.testing.assert_close(offsets.weights.sum((-1, -2)), torch.ones(1, 2, 4, 4).double())


def test_gradients_and_their_gradients() -> None:
    torch.manual_seed(0)
    maps = [torch.randn(1, 2, 2, 2, 3, dtype=torch.float64) for _ in range(3)]
    added = [torch.randn(1, 2, size, 2, 3, dtype=torch.float64) for size in (1, 3)]
    inputs = [tensor.requires_grad_() for tensor in (*maps, *added)]
    assert torch.autograd.gradcheck(local_attention, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(local_attention, inputs, fast_mode=True)


def test_parameters_of_the_resnet() -> None:
    """ResNet-50 has 25,557,032 parameters. With local attention in the place of its sixteen 3 × 3
    convolutions the paper states 18.0 M (table 1)."""
    total = 25_557_032
    for channels, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        with torch.device("meta"):
            attn = LocalSelfAttention(channels)
        local = sum(parameter.numel() for parameter in attn.parameters())
        total += blocks * (local - 9 * channels**2)
    assert total == pytest.approx(18.0e6, rel=0.005)


def test_half_precision_is_weighed_in_float32() -> None:
    image = torch.randn(1, 8, 5, 4, dtype=torch.float64)
    truth = attention()(image, weights=True)
    half = attention().bfloat16()(image.bfloat16(), weights=True)
    assert half.output.dtype == torch.bfloat16 and half.weights.dtype == torch.float32
    torch.testing.assert_close(half.weights.double(), truth.weights, atol=0.05, rtol=0)


REFUSED = {
    "odd width": ({"channels": 6, "n_heads": 2}, r"6 output channels over n_heads=2, .* 2 · n_h"),
    "even size": ({"size": 4}, "size=4, expected an odd number"),
    "groups": ({"groups": 3}, "groups=3, expected a divisor of 8 and 8 channels"),
}


@pytest.mark.parametrize(("options", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ShapeError, match=f"LocalSelfAttention: {text}"):
        attention(**options)


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (0, 0)], ids=str)
def test_an_empty_image_is_refused(without_shape_checks: None, size: tuple[int, int]) -> None:
    with pytest.raises((ShapeError, DtypeError), match="LocalSelfAttention: image: axis"):
        attention()(torch.zeros(1, 8, *size, dtype=torch.float64))


def test_no_examples_are_no_error() -> None:
    attended = attention()(torch.zeros(0, 8, 3, 4, dtype=torch.float64), weights=True)
    assert attended.output.shape == (0, 8, 3, 4) and attended.weights.shape == (0, 2, 12, 12)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attention = nn.Conv2d(3, 8, 1), LocalSelfAttention(8, 2, size=3)

    def forward(self, image: Tensor) -> Tensor:
        return self.attention(self.stem(image)).output


@pytest.mark.parametrize("path", ["full", "auto"])
def test_capture_sees_it_with_its_grid(path: str) -> None:
    torch.manual_seed(0)
    network, image = Network().eval(), torch.randn(2, 3, 4, 5)
    expected = network.attention(network.stem(image), weights=True)
    for _ in range(2):  # the second pass follows what the first has learned
        with torch.no_grad(), regard.capture(network, path=path, values=True) as trace:
            network(image)
        (record,) = trace
        assert (record.name, record.attends, record.n_edges) == ("attention", "self", 20 * 9)
        assert torch.equal(record.weights(), expected.weights)
        assert torch.equal(record.offsets().weights, expected.recipe.offsets().weights)
        torch.testing.assert_close(record.mixed(), expected.recipe.mixed())


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own
def test_transforms_of_torch_func() -> None:
    """Forward mode, grad and vmap, where one operator of our own would have no rule."""
    module, image = LocalSelfAttention(8, 2, size=3).double(), torch.randn(1, 8, 5, 4).double()
    tangent = torch.randn_like(image)

    def output(image: Tensor) -> Tensor:
        return module(image).output

    forwards = torch.func.jvp(output, (image,), (tangent,))[1]
    quotient = (output(image + 1e-6 * tangent) - output(image - 1e-6 * tangent)) / 2e-6
    torch.testing.assert_close(forwards, quotient, rtol=1e-6, atol=1e-6)

    leaf = image.clone().requires_grad_()
    output(leaf).square().sum().backward()
    by_func = torch.func.grad(lambda image: output(image).square().sum())
    torch.testing.assert_close(by_func(image), leaf.grad)
    each = torch.func.vmap(lambda image: by_func(image[None])[0])(image)
    torch.testing.assert_close(each, leaf.grad)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in its compiler
def test_channels_last_compiles_with_inductor() -> None:
    module = LocalSelfAttention(8, 2, size=3)
    image = torch.randn(2, 8, 5, 4).contiguous(memory_format=torch.channels_last)
    attended = torch.compile(module, fullgraph=True)(image, weights=True)
    torch.testing.assert_close(attended.output, module(image).output)


def test_no_channels_are_refused() -> None:
    with pytest.raises(ShapeError, match="0 output channels"):
        LocalSelfAttention(0, 1)
