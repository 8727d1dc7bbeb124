"""Two layers of attention learn to continue what repeats; one layer and none cannot.

Letters follow each other as a Markov chain draws them, and each text is a piece of 8 to 24 letters
that repeats. Models of attention alone, without norms and feed-forward parts (Elhage et al. 2021,
"A mathematical framework for transformer circuits"):

- Without a layer, embedding times unembedding is the bigram table.
- With one, scores are a sum over paths: the direct one, and one through each head, whose weights
  come from a letter-by-letter QK matrix and a bias for the distance, and whose answer from a
  letter-by-letter OV matrix. Both are read from a Record.
- With two, a head looks for what came before its own letter, and copies what followed: induction.
  It forms within few steps, and the loss of repeats falls below that of one layer in the same
  moment (Olsson et al. 2022,
  "In-context learning and induction heads"). Prefix matching is the weight that a letter gives to
  the one after its last occurrence, in texts of random letters that repeat.

With the induction head silenced the model no longer copies. Where the second layer has four heads,
all become induction heads, and no single one is needed.

    python experiments/studies/induction.py [--quick] [--picture FILE]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main, signed_map
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.cli.packaged.studies.induction import HEADS, LETTERS, AttentionOnly
from regard.editing import silence
from regard.types import Block

LENGTH, BATCH = 48, 64
PERIODS = (8, 24)  # letters before a text repeats
HALF = 20  # letters of a probe, each of them different; it has them twice
EVERY = 10  # steps between two measurements of prefix matching
WINDOW = 5  # measurements over which a fall or a rise is looked for


class Source:
    """Texts of a random Markov chain, each a piece that repeats."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        exponential = torch.empty(len(LETTERS), len(LETTERS)).exponential_(generator=self.generator)
        self.chain = exponential**2 / (exponential**2).sum(-1, keepdim=True)

    def texts(self, count: int) -> tuple[Tensor, Tensor]:
        """Letters (text, position), and which of them repeat an earlier one."""
        first = torch.randint(len(LETTERS), (count,), generator=self.generator)
        letters = [first]
        for _ in range(1, PERIODS[1]):
            following = self.chain[letters[-1]]
            letters.append(torch.multinomial(following, 1, generator=self.generator)[:, 0])
        period = torch.randint(PERIODS[0], PERIODS[1] + 1, (count, 1), generator=self.generator)
        positions = torch.arange(LENGTH)
        return torch.stack(letters, 1).gather(1, positions % period), positions >= period + 1


def probes(count: int, seed: int) -> Tensor:
    """Random letters, all different, twice in a row: (text, 2 · HALF)."""
    generator = torch.Generator().manual_seed(seed)
    halves = [torch.randperm(len(LETTERS), generator=generator)[:HALF] for _ in range(count)]
    return torch.stack(halves).repeat(1, 2)


@torch.no_grad()
def prefix_matching(model: AttentionOnly, letters: Tensor) -> Tensor:
    """What a letter's second occurrence gives to the letter after its first: of each head."""
    with regard.capture(model) as trace:
        model(letters)
    queries = torch.arange(HALF, 2 * HALF - 1)
    scores = [record.weights()[:, :, queries, queries - HALF + 1] for record in trace]
    return torch.cat([score.mean((0, 2)) for score in scores])  # (head of all layers,)


@torch.no_grad()
def copying(model: AttentionOnly, letters: Tensor) -> float:
    """How often the second half of a probe is continued as the first one was."""
    guesses = model(letters).argmax(-1)
    return (guesses[:, HALF:-1] == letters[:, HALF + 1 :]).float().mean().item()


@dataclass(frozen=True)
class Training:
    """A trained model, and by step the loss of repeats and the prefix matching of its last head."""

    model: AttentionOnly
    losses: Tensor
    matching: Tensor

    @property
    def final(self) -> float:
        return self.losses[-10:].mean().item()


def train(heads: tuple[int, ...], steps: int, seed: int) -> Training:
    torch.manual_seed(seed)
    source, model = Source(seed), AttentionOnly(heads)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    probe = probes(16, seed)
    losses, matching, recent = [], [], []
    for step in range(steps + 1):
        letters, repeats = source.texts(BATCH)
        scores = model(letters)[:, :-1]
        loss = F.cross_entropy(scores.transpose(1, 2), letters[:, 1:], reduction="none")
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
        recent.append(loss.detach()[repeats[:, 1:]].mean())
        if step % EVERY == 0:
            losses.append(torch.stack(recent).mean())
            recent.clear()
            if len(heads) > 1:
                matching.append(prefix_matching(model, probe)[-1])
    return Training(model, torch.stack(losses), torch.stack(matching) if matching else losses[0])


def divergence_from_counts(model: AttentionOnly, source: Source) -> float:
    """KL of a model without layers from counted bigrams, in nats a letter."""
    letters, _ = source.texts(20_000)
    pairs = (letters[:, :-1] * len(LETTERS) + letters[:, 1:]).flatten()
    counts = pairs.bincount(minlength=len(LETTERS) ** 2).reshape(len(LETTERS), -1) + 1e-9
    following = counts / counts.sum(1, keepdim=True)
    with torch.no_grad():
        learned = model(torch.arange(len(LETTERS))[:, None])[:, 0].log_softmax(-1)
    divergences = (following * (following.log() - learned)).sum(1)
    return (divergences * counts.sum(1) / counts.sum()).sum().item()


@dataclass(frozen=True)
class Circuits:
    """One layer as matrices: QK (head, query, key) and OV (head, letter, next letter)."""

    query_key: Tensor
    output_value: Tensor
    direct: Tensor  #: the path past the heads, (letter, next letter)

    @classmethod
    @torch.no_grad()
    def of(cls, model: AttentionOnly) -> Circuits:
        """Read from the record of one pass over the alphabet, in which each letter meets each."""
        alphabet = torch.arange(len(LETTERS))[None]
        with regard.capture(model, values=True) as trace:
            model(alphabet)
        recipe = trace[0].recipe
        query, key, value = recipe.query[0], recipe.key[0], recipe.value[0]
        (layer,) = model.layers
        of_head = layer.to_output.weight.unflatten(1, (layer.n_heads, -1))  # (width, head, value)
        written = torch.einsum("hlv,whv->hlw", value, of_head)
        return cls(
            recipe.scale * query @ key.mT,
            model.to_scores(written),
            model.to_scores(model.embed.weight),
        )

    @torch.no_grad()
    def scores(self, model: AttentionOnly, letters: Tensor) -> Tensor:
        """What the paths add up to: (text, position, letter)."""
        length = letters.shape[1]
        alone = self.query_key[:, letters[:, :, None], letters[:, None]].transpose(0, 1)
        bias = model.layers[0].position.bias().block(Block(0, length, 0, length, length, length))
        future = torch.ones(length, length).triu(1) > 0
        weights = (alone + bias).masked_fill(future, -torch.inf).softmax(-1)
        answers = self.output_value[:, letters].transpose(0, 1)  # (text, head, position, letter)
        return self.direct[letters] + (weights @ answers).sum(1)

    def copying(self) -> Tensor:
        """Σ λ / Σ |λ| over the eigenvalues of each head's OV matrix: 1 where it copies."""
        values = torch.linalg.eigvals(self.output_value)
        return values.real.sum(-1) / values.abs().sum(-1)


def moment(curve: Tensor) -> int:
    """The step in the middle of the steepest change of a curve."""
    changes = (curve[WINDOW:] - curve[:-WINDOW]).abs()
    return (int(changes.argmax()) * 2 + WINDOW) * EVERY // 2


def without_each_head(model: AttentionOnly, letters: Tensor) -> dict[str, float]:
    """Copying with one head silenced, by the name of the head."""
    accuracies = {}
    for number, layer in enumerate(model.layers):
        for head in range(layer.n_heads):
            with regard.edit(model, silence(heads=head, where=f"layers.{number}")):
                accuracies[f"{number}.{head}"] = copying(model, letters)
    return accuracies


@dataclass(frozen=True)
class Shown:
    """Curves of training, the circuits of one layer, and copying without each head."""

    one_layer: Training
    two_layers: Training
    circuits: Circuits
    knocked_out: dict[str, float]


def study(quick: bool, seed: int) -> Outcome:
    none, one, two, wide = (
        train(heads, 450 if quick else 600, seed) for heads in ((), (4,), HEADS, (4, 4))
    )
    circuits = Circuits.of(one.model)
    letters, _ = Source(1000 + seed).texts(BATCH)
    with torch.no_grad():
        apart = (circuits.scores(one.model, letters) - one.model(letters)).abs().max().item()
    probe = probes(64, 1000 + seed)
    knocked_out = without_each_head(two.model, probe)
    others = [accuracy for name, accuracy in knocked_out.items() if name != "1.0"]
    shared = [
        accuracy
        for name, accuracy in without_each_head(wide.model, probe).items()
        if name.startswith("1.")
    ]
    between = abs(moment(one.losses - two.losses) - moment(two.matching))
    figures = [
        Figure(
            "no layer: divergence from counted bigrams",
            0.0,
            divergence_from_counts(none.model, Source(seed)),
            0.01,
            "counts",
        ),
        Figure("one layer: |scores − sum of its paths|", 0.0, apart, 1e-4, "Elhage et al. 2021"),
        Figure(
            "one layer: copying of OV, Σλ / Σ|λ|, best head",
            0.8,
            circuits.copying().max().item(),
            0.0,
            "our guess: 1 only copies",
            "at least",
            asserted=False,
        ),
        Figure(
            "loss of repeats, one layer over two",
            2.0,
            one.final / two.final,
            0.0,
            "two layers copy",
            "at least",
        ),
        Figure(
            "prefix matching of layer 1's head",
            0.8,
            prefix_matching(two.model, probe)[-1].item(),
            0.0,
            "1 only matches",
            "at least",
        ),
        Figure("steps from its rise to the fall of the loss", 0, between, 50, "Olsson et al. 2022"),
        Figure("copying, all heads", 1.0, copying(two.model, probe), 0.05, "1"),
        Figure(
            "copying, induction head out", 0.15, knocked_out["1.0"], 0.0, "chance: 0.04", "at most"
        ),
        Figure("copying, another head out", 0.9, max(others), 0.0, "unharmed", "at least"),
        Figure(
            "copying, one of four induction heads out",
            0.5,
            min(shared),
            0.0,
            "the others copy",
            "at least",
        ),
    ]
    return Outcome(figures, Shown(one, two, circuits, knocked_out), two.model)


def draw(outcome: Outcome, figure: Any) -> None:
    """Curves of training, the circuits of a copying head, and copying without each head."""
    shown = outcome.shown
    curves, query_key, output_value, bars = figure.subplots(1, 4, width_ratios=[1.5, 1, 1, 0.9])
    steps = [EVERY * number for number in range(len(shown.two_layers.losses))]
    curves.plot(steps, shown.two_layers.losses.numpy(), color="C0", label="loss, two layers")
    ones = shown.one_layer.losses.numpy()
    curves.plot([EVERY * n for n in range(len(ones))], ones, color="0.6", label="loss, one layer")
    curves.plot(
        steps,
        shown.two_layers.matching.numpy(),
        color="C1",
        linestyle="--",
        label="prefix matching",
    )
    curves.set(xlabel="step", ylabel="nats, and weight")
    curves.legend(frameon=False, fontsize=7)
    head = int(shown.circuits.copying().argmax())
    for axis, matrix, labels in (
        (query_key, shown.circuits.query_key[head], ("QK", "key", "query")),
        (output_value, shown.circuits.output_value[head], ("OV", "next letter", "letter")),
    ):
        signed_map(figure, axis, matrix, place="bottom")
        title, across, down = labels
        axis.set_title(f"{title}, one layer", fontsize=8)
        axis.set(xlabel=across, ylabel=down)
        ticks = range(0, len(LETTERS), 5)  # a, f, k, p, u and z
        axis.set_xticks(ticks, LETTERS[::5], fontsize=6)
        axis.set_yticks(ticks, LETTERS[::5], fontsize=6)
    names = list(shown.knocked_out)
    colours = ["C1" if name == "1.0" else "0.6" for name in names]
    bars.barh(names, list(shown.knocked_out.values()), color=colours)
    bars.invert_yaxis()
    bars.set(xlabel="copying without", ylabel="head", xlim=(0, 1))


if __name__ == "__main__":
    main(__doc__, study, draw)
