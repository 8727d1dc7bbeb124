"""The decomposable attention model: its size, its equations in loops, order, padding, learning."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.blocks import DecomposableClassifier

INTRA = pytest.mark.parametrize("intra", [False, True], ids=["plain", "intra"])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def drawn(intra: bool) -> DecomposableClassifier:
    """Words of 6 features, width 5, parameters large enough for attention to matter."""
    model = DecomposableClassifier(6, 5, intra=intra)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model.double().eval()


def mix(scores: list[list[float]], values: Tensor) -> Tensor:
    rows = []
    for row in scores:
        total = sum(map(math.exp, row))
        rows.append(sum(math.exp(e) / total * value for e, value in zip(row, values)))
    return torch.stack(rows)


@torch.no_grad()
def reading(model: DecomposableClassifier, a: Tensor, b: Tensor) -> Tensor:
    """Class scores of one pair of sentences, (word, feature) each."""

    def own(x: Tensor) -> Tensor:
        f, table = model.intra.features, model.distance.table[0]  # offsets −11 … 11
        places = range(len(x))
        scores = [[float(f(x[i]) @ f(x[j])) for j in places] for i in places]
        for i in places:
            for j in places:  # more than ten words apart share one number
                scores[i][j] += float(table[11 + max(-11, min(11, j - i))])
        return torch.cat([x, mix(scores, x)], 1)

    a, b = a @ model.project.weight.T, b @ model.project.weight.T
    if model.intra is not None:
        a, b = own(a), own(b)
    f, g = model.attend.features, model.compare
    e = [[float(f(x) @ f(y)) for y in b] for x in a]
    beta, alpha = mix(e, b), mix([list(column) for column in zip(*e)], a)
    first = sum(g(torch.cat([a[i], beta[i]])) for i in range(len(a)))
    second = sum(g(torch.cat([b[j], alpha[j]])) for j in range(len(b)))
    return model.aggregate(torch.cat([first, second]))


@pytest.mark.parametrize(("intra", "size"), [(False, 381_803), (True, 582_226)])
def test_it_is_as_large_as_the_papers(intra: bool, size: int) -> None:
    model = DecomposableClassifier(intra=intra)
    assert sum(parameter.numel() for parameter in model.parameters()) == size
    assert model.project.bias is None


@INTRA
def test_attend_compare_aggregate_in_loops(intra: bool) -> None:
    model, a, b = drawn(intra), normal(2, 14, 6), normal(2, 5, 6)
    blocked = model(a, b, weights=True)
    expected = torch.stack([reading(model, a[n], b[n]) for n in range(2)])
    torch.testing.assert_close(blocked.output, expected, rtol=1e-12, atol=1e-12)
    shapes = {"first": (2, 1, 14, 5), "second": (2, 1, 5, 14)}
    if intra:
        shapes |= {"intra_first": (2, 1, 14, 14), "intra_second": (2, 1, 5, 5)}
    assert {n: tuple(a.weights.shape) for n, a in blocked.attentions.items()} == shapes


@INTRA
def test_word_order_matters_only_within_sentences(intra: bool) -> None:
    model, a, b = drawn(intra).float(), torch.randn(3, 7, 6), torch.randn(3, 5, 6)
    with torch.no_grad():
        mixed = model(a[:, torch.randperm(7)], b[:, torch.randperm(5)]).output
        output = model(a, b).output
    gap = (mixed - output).abs().max() / output.abs().max()
    assert gap > 1e-2 if intra else gap < 1e-5


@INTRA
def test_padding_is_as_if_it_were_not_there(intra: bool) -> None:
    """With NaN in the padding; outputs and every parameter's gradient are those of the short."""
    model, a, b = drawn(intra), normal(2, 4, 6), normal(2, 5, 6)

    def gradients(output: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(output.square().sum(), list(model.parameters())))

    short = model(a, b).output
    nothing = torch.full((2, 3, 6), math.nan, dtype=torch.float64)
    long_a, long_b = torch.cat([a, nothing], 1), torch.cat([b, nothing], 1)
    real = [torch.arange(n + 3).expand(2, -1) < n for n in (4, 5)]
    long = model(long_a, long_b, first_keep=real[0], second_keep=real[1]).output
    torch.testing.assert_close(long, short, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(long), gradients(short), rtol=1e-9, atol=1e-9)


def test_words_are_summed_and_not_averaged() -> None:
    """Every word twice: attention mixes the same, so the sums are twice as large."""
    model, a, b, sums = drawn(False), normal(1, 4, 6), normal(1, 3, 6), []
    handle = model.aggregate.register_forward_hook(lambda module, args, out: sums.append(args[0]))
    model(a, b)
    model(torch.cat([a, a], 1), torch.cat([b, b], 1))
    handle.remove()
    torch.testing.assert_close(sums[1], 2 * sums[0], rtol=1e-12, atol=1e-12)
    assert sums[0].abs().max() > 0.1


def entailment(words: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Four of eight words, and a word that is among them (0), is not (1), or is the opposite of
    one of them (2)."""
    order, label = torch.rand(n, 8).argsort(1), torch.randint(3, (n,))
    place = torch.where(label == 1, 4, 0)
    second = words[order[torch.arange(n), place]]
    return (
        words[order[:, :4]],
        torch.where(label == 2, -1, 1)[:, None, None] * second[:, None],
        label,
    )


def test_it_learns_what_follows_from_a_sentence() -> None:
    """With the paper's optimiser and start; chance is a third, and the second sentence alone gives
    two thirds."""
    words = 8 * F.normalize(torch.randn(8, 16), dim=-1)
    model = DecomposableClassifier(16, 64, dropout=0.0)
    optimiser = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for _ in range(800):
        first, second, label = entailment(words, 64)
        optimiser.zero_grad()
        F.cross_entropy(model(first, second).output, label).backward()
        optimiser.step()
    first, second, label = entailment(words, 1000)
    assert float((model(first, second).output.argmax(-1) == label).double().mean()) > 0.9
