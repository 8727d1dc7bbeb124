"""A frozen MiniLM with a grafted output attention, against mean pooling with a linear layer.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2 -d FOLDER
    python experiments/graft/study.py FOLDER

Writes results.json beside this file, and docs/images/graft-reviews.png. Arms, three seeds each:

| arm             | what is trained                                                               |
|-----------------|-------------------------------------------------------------------------------|
| mean            | mean pooling of the last states, linear layer                                 |
| mean, longer    | the same, for as many steps again                                             |
| graft, layer 4  | "mean", frozen; one learned query on the states of layer 4, joined to logits  |
| graft, last     | the same query on the last states                                             |
| uniform graft   | as "graft, layer 4", but every position has the same weight                   |

A first trial had the last states only, at a rate of 1e-3, and was scored on the same test: no gain,
and a loss with `MultiHead(384, 4)`. Layer and rate were then chosen on the last 500 of the training
sentences.
The encoder is frozen and in eval mode in every arm, so its states are computed once and replayed.
Of the first seed, the graft is also put on the real encoder: its answers are compared, and drawn.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from reviews import Review, load
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

import regard
from regard import plots
from regard.cli import packaged
from regard.grafting import Latents, OutputAttention, ZeroProjection, graft
from regard.mechanisms import DotProduct

TRAIN, TEST, LONGEST, EPOCHS, BATCH, RATE, SEEDS = 3000, 1500, 48, 10, 64, 3e-3, (0, 1, 2)
HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs/images/graft-reviews.png"


class Classifier(nn.Module):
    """An encoder, the mean of its states, a linear layer."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(384, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        real = attention_mask[..., None].to(states.dtype)
        return self.classifier((states * real).sum(1) / real.sum(1))


class Stored(nn.Module):
    """States that a layer gave, by the number of the sentence."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, rows: Tensor) -> Tensor:
        return self.states[rows]


class Replay(nn.Module):
    """In the place of the encoder, with its layers 4 and 5 under the paths they have there."""

    def __init__(self, fourth: Tensor, last: Tensor) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleDict({"4": Stored(fourth), "5": Stored(last)})

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        self.encoder.layer["4"](input_ids)
        return BaseModelOutput(last_hidden_state=self.encoder.layer["5"](input_ids))


def part(layer: int, *, scale: float | None = None) -> OutputAttention:
    return OutputAttention(
        DotProduct(scale=scale),
        query=Latents(1, 384),
        reads=f"encoder.encoder.layer.{layer}",
        into="classifier",
        join=ZeroProjection(384, 2),
        mask="attention_mask",
    )


GRAFTS: dict[str, Callable[[], OutputAttention]] = {
    "graft, layer 4": lambda: part(4),
    "graft, last": lambda: part(5),
    "uniform graft": lambda: part(4, scale=0.0),
}


def trained(model: Classifier, mask: Tensor, labels: Tensor, seed: int) -> None:
    """Ten passes over the sentences of a replayed encoder."""
    order = torch.Generator().manual_seed(seed)
    wanted = [one for one in model.parameters() if one.requires_grad]
    optimiser = torch.optim.Adam(wanted, lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels), generator=order).split(BATCH):
            loss = F.cross_entropy(model(rows, mask[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


@torch.no_grad()
def answers(model: Classifier, given: dict[str, Tensor]) -> Tensor:
    """The class of each sentence."""
    parts = []
    for rows in torch.arange(len(given["input_ids"])).split(100):
        parts.append(model(**{key: one[rows] for key, one in given.items()}).argmax(-1))
    return torch.cat(parts)


@torch.no_grad()
def replayed(encoder: nn.Module, given: dict[str, Tensor]) -> Replay:
    """The states of layers 4 and 5, computed once."""
    found = []
    for rows in torch.arange(len(given["input_ids"])).split(100):
        some = {key: one[rows] for key, one in given.items()}
        states = encoder(**some, output_hidden_states=True).hidden_states
        found.append((states[5], states[6]))  # the first are those of the embedding
    return Replay(*(torch.cat(each) for each in zip(*found)))


def drawn(
    model: Classifier, tokenizer: Any, reviews: list[Review], given: dict[str, Tensor]
) -> None:
    """What the new attention looks at, in sentences of the test set."""
    rows = []
    for number in range(6):
        one = {key: tensor[number : number + 1] for key, tensor in given.items()}
        length = int(one["attention_mask"].sum())
        with torch.no_grad(), regard.capture(model, where="regard_graft.*") as trace:
            said = model(**one).argmax(-1).item()
        weights = trace["regard_graft.output.attention"].weights()[0].mean(0)[0, :length]
        tokens = tokenizer.convert_ids_to_tokens(one["input_ids"][0, :length])
        title = f"rated {_word(reviews[number].label)}, said {_word(said)}"
        rows.append(plots.Text(tokens, weights, title))
    plots.Rows(rows).save(PICTURE)


def _word(label: int) -> str:
    return "good" if label else "bad"


def main(folder: Path) -> None:
    start = time.time()
    torch.set_num_threads(1)
    loaded = packaged.minilm()
    encoder, tokenizer = loaded.model.requires_grad_(False), loaded.tokenizer
    train, test = load(folder, TRAIN, TEST)
    sides = []
    for reviews in (train, test):
        texts = [review.text for review in reviews]
        given = tokenizer(
            texts, return_tensors="pt", padding="max_length", truncation=True, max_length=LONGEST
        )
        kept = {key: given[key] for key in ("input_ids", "attention_mask")}
        sides.append((kept, torch.tensor([review.label for review in reviews])))
    (known, known_labels), (unknown, labels) = sides
    replay, test_replay = replayed(encoder, known), replayed(encoder, unknown)
    mask = known["attention_mask"]
    numbers = {"input_ids": torch.arange(len(labels)), "attention_mask": unknown["attention_mask"]}
    print(f"states: {time.time() - start:.0f} s", flush=True)
    found: dict[str, list[float]] = {}

    def score(name: str, model: Classifier) -> Tensor:
        said = answers(model, numbers)
        found.setdefault(name, []).append(100 * float((said == labels).double().mean()))
        return said

    for seed in SEEDS:
        torch.manual_seed(seed)
        base = Classifier(replay)
        trained(base, mask, known_labels, seed)
        tried = Classifier(test_replay)
        tried.classifier = base.classifier
        score("mean", tried)
        for name, build in GRAFTS.items():
            torch.manual_seed(seed)
            on_base = graft(base, build(), freeze=True)
            trained(base, mask, known_labels, seed + 100)
            on_test = graft(tried, on_base.remove())
            said = score(name, tried)
            learned = on_test.remove()
            if name == "graft, layer 4" and seed == 0:
                real = Classifier(encoder).eval()
                real.classifier = base.classifier
                graft(real, learned)
                agreement = float((answers(real, unknown) == said).double().mean())
                drawn(real, tokenizer, test, unknown)
        longer = copy.deepcopy(base.classifier)
        base.classifier = longer
        trained(base, mask, known_labels, seed + 100)
        tried.classifier = longer
        score("mean, longer", tried)
        print(seed, {name: round(each[-1], 2) for name, each in found.items()}, flush=True)
    counts = {
        name: sum(one.numel() for one in build().parameters()) for name, build in GRAFTS.items()
    }
    counts["mean"] = counts["mean, longer"] = sum(one.numel() for one in longer.parameters())
    good = round(float(labels.float().mean()), 3)
    settings = {
        "train": len(train), "test": len(test), "longest": LONGEST, "epochs": EPOCHS,
        "batch": BATCH, "rate": RATE, "share of good in test": good,
    }  # fmt: skip
    results = {
        "settings": settings,
        "accuracy": {name: [round(one, 2) for one in each] for name, each in found.items()},
        "mean and spread": {
            name: [round(statistics.mean(each), 2), round(statistics.stdev(each), 2)]
            for name, each in found.items()
        },
        "parameters trained": counts,
        "answers of the real encoder that are those of the replay": agreement,
        "seconds": round(time.time() - start),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
