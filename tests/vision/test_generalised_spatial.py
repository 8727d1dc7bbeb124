"""Generalised spatial attention: equations 2 to 4 in loops, and what each term alone is."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.vision import GeneralisedSpatial


def attention(terms: str = "1111", n_heads: int = 2, stride: int = 1) -> GeneralisedSpatial:
    torch.manual_seed(0)
    attn = GeneralisedSpatial(8, n_heads, terms=terms, stride=stride).double()
    nn.init.constant_(attn.gain, 0.7)
    return attn


def picture(*size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*size, generator=generator, dtype=torch.float64)


def embedding(offset: int, width: int) -> Tensor:
    """Sines, then cosines, of an offset along one axis, wavelengths up to 2π · 1000."""
    angles = [offset / 1000 ** (2 * i / width) for i in range(width // 2)]
    numbers = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    return torch.tensor(numbers, dtype=torch.float64)


@torch.no_grad()
def in_loops(attn: GeneralisedSpatial, image: Tensor) -> tuple[Tensor, Tensor]:
    """Output (channel, row, column) and weights (head, query, key) of one image."""
    channels, height, width = image.shape
    heads, size = attn.n_heads, channels // attn.n_heads
    e1, e2, e3, e4 = (digit == "1" for digit in attn.terms)
    queries = list(itertools.product(range(height), range(width)))
    keys = [(y, x) for y, x in queries if y % attn.stride == 0 and x % attn.stride == 0]
    weights = torch.zeros(heads, len(queries), len(keys), dtype=torch.float64)
    mixed = torch.zeros(heads, size, height, width, dtype=torch.float64)

    def of_head(module: nn.Module, vector: Tensor, head: int) -> Tensor:
        return (module.weight.flatten(1) @ vector).view(heads, size)[head]

    for head in range(heads):
        for i, (y, x) in enumerate(queries):
            scores = []
            for v, u in keys:
                score = 0.0
                query = of_head(attn.to_query, image[:, y, x], head) if e1 or e2 else None
                key = of_head(attn.to_key, image[:, v, u], head) if e1 or e3 else None
                if e2 or e4:
                    relative = of_head(attn.to_row, embedding(v - y, channels // 2), head)
                    across = of_head(attn.to_column, embedding(u - x, channels // 2), head)
                    relative = relative / math.sqrt(2) + across / math.sqrt(2)
                score += query @ key if e1 else 0.0
                score += query @ relative if e2 else 0.0
                score += attn.key_bias[head] @ key if e3 else 0.0
                score += attn.offset_bias[head] @ relative if e4 else 0.0
                scores.append(float(score))
            exps = [math.exp(score - max(scores)) for score in scores]
            for j, ((v, u), exp) in enumerate(zip(keys, exps)):
                weights[head, i, j] = exp / sum(exps)
                value = of_head(attn.to_value, image[:, v, u], head)
                mixed[head, :, y, x] += weights[head, i, j] * value
    projected = torch.einsum("oc,cyx->oyx", attn.to_output.weight[:, :, 0, 0], mixed.flatten(0, 1))
    return image + attn.gain * (projected + attn.to_output.bias[:, None, None]), weights


@pytest.mark.parametrize("terms", ["1111", "1000", "0100", "0010", "0001", "0110", "1011"])
def test_is_the_paper(terms: str) -> None:
    attn, image = attention(terms), picture(1, 8, 3, 4)
    attended = attn(image, weights=True)
    output, weights = in_loops(attn, image[0])
    torch.testing.assert_close(attended.weights[0], weights)
    torch.testing.assert_close(attended.output[0], output)


@pytest.mark.parametrize("size", [(4, 5), (1, 3), (1, 1)], ids=str)
def test_keys_of_every_second_row_and_column(size: tuple[int, int]) -> None:
    attn, image = attention(stride=2), picture(1, 8, *size)
    attended = attn(image, weights=True)
    output, weights = in_loops(attn, image[0])
    torch.testing.assert_close(attended.weights[0], weights)
    torch.testing.assert_close(attended.output[0], output)
    assert attended.recipe.grid == (-(-size[0] // 2), -(-size[1] // 2))


def test_starts_as_the_identity() -> None:
    image = torch.randn(2, 8, 5, 4)
    assert torch.equal(GeneralisedSpatial(8, 2)(image).output, image)
    attn = GeneralisedSpatial(8, 2)
    attn(image).output.sum().backward()
    assert attn.gain.grad != 0


def test_keys_alone_are_one_map_for_all_queries() -> None:
    weights = attention("0010")(picture(2, 8, 4, 5), weights=True).weights
    torch.testing.assert_close(weights, weights[:, :, :1].expand_as(weights), rtol=0, atol=0)
    assert weights[0, 0, 0].std() > 0.01  # and it is not uniform


def test_content_alone_is_an_unscaled_dot_product() -> None:
    attn, image = attention("1000"), picture(2, 8, 4, 5)
    query, key = (
        project(image).flatten(2).unflatten(1, (2, 4)) for project in (attn.to_query, attn.to_key)
    )
    expected = (query.mT @ key).softmax(-1)
    torch.testing.assert_close(attn(image, weights=True).weights, expected)


def test_offsets_alone_are_one_kernel_for_all_positions() -> None:
    weights = attention("0001")(picture(1, 8, 5, 5), weights=True).weights[0].unflatten(2, (5, 5))
    first, second = weights[:, 6], weights[:, 12]  # (1, 1) and (2, 2)
    ratio = first[:, :4, :4] / second[:, 1:, 1:]  # equal but for the sum that each is divided by
    torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))


def test_vectors_start_in_the_range_of_the_authors() -> None:
    attn = GeneralisedSpatial(64, 4)
    bound = (2 * 16) ** -0.5
    for vector in (attn.key_bias, attn.offset_bias):
        assert vector.shape == (4, 16) and 0.9 * bound < vector.abs().max() <= bound


def test_terms_that_are_left_out_have_no_parameters() -> None:
    names = {name for name, _ in GeneralisedSpatial(8, 2, terms="0010").named_parameters()}
    value = {"to_value.weight", "to_output.weight", "to_output.bias", "gain"}
    assert names == value | {"to_key.weight", "key_bias"}


@pytest.mark.parametrize("terms", ["111", "0000", "1121", "11111"])
def test_another_code_is_refused(terms: str) -> None:
    with pytest.raises(RegardError, match=f"terms='{terms}', expected four digits with at least"):
        GeneralisedSpatial(8, 2, terms=terms)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="6 channels over n_heads=2, expected a multiple of the"):
        GeneralisedSpatial(6, 2)
    with pytest.raises(RegardError, match="stride=0, expected at least 1"):
        GeneralisedSpatial(8, 2, stride=0)
