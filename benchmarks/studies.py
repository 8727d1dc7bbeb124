"""Aggregations on trained models whose attention has a known truth.

*atoms*: RXNMapper, an ALBERT on chemical reactions. One of its heads maps each atom of the product
to the atom of the reactants that it was. How often does each way to aggregate find the right one,
and is that head found without knowing it? The reactions were written and mapped by hand.

*induction*: SmolLM2, a Llama. Its induction heads, measured once before, are layer 18 head 6 and
layer 17 head 3. Does the report put them on top?

    python benchmarks/studies.py [--quick] [--only STUDY ...] [--figures FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers: nothing here is downloaded

import torch
from timing import table
from torch import Tensor

import regard
from regard.cli import packaged
from regard.plots import by_head

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed
from reactions import MORE, REACTIONS, sides


class Example(NamedTuple):
    """A reaction, the letters of its atoms, and the model's attention."""

    tokens: list[str]
    inputs: dict[str, Tensor]
    old: str
    new: str
    trace: regard.Trace
    residual: regard.ResidualStream


Maps = Callable[[Any, Example, list[int]], Tensor]  # model, example, rows: (row, key)


def _captured(model: Any, inputs: dict[str, Tensor]) -> tuple[regard.Trace, regard.ResidualStream]:
    residual = regard.ResidualStream(model)
    with torch.no_grad(), regard.capture(model, values=True) as trace, residual:
        model(**inputs)
    return trace, residual


def _of_trace(ask: Callable[[regard.Trace, list[int]], Tensor]) -> Maps:
    return lambda model, example, rows: ask(example.trace, rows)[0]


def _by_gradient(ask: Callable[[regard.Trace, int], Tensor]) -> Maps:
    """One backward pass for each row: of the logit of the token that stands there."""

    def maps(model: Any, example: Example, rows: list[int]) -> Tensor:
        found = []
        for row in rows:
            with regard.capture(model, grad=True) as trace:
                logits = model(**example.inputs).logits
            logits[0, row, example.inputs["input_ids"][0, row]].backward()
            found.append(ask(trace, row)[0])
            model.zero_grad()
        return torch.stack(found)

    return maps


def _with_around(ask: Callable[..., Tensor], **how: Any) -> Maps:
    """Ways that need the surroundings of the attention."""
    return lambda model, example, rows: ask(example.trace, example.residual, rows, **how)[0]


def _alti_mean(trace: regard.Trace, residual: regard.ResidualStream, rows: list[int]) -> Tensor:
    return regard.alti(trace, residual, rows, layers="each").mean(0)


def ways() -> dict[str, Maps]:
    """Every aggregation, as a function of the model."""
    mean, rollout = regard.mean_attention, regard.rollout
    return {
        "mean of heads, last layer": _of_trace(lambda t, rows: mean(t, rows, layers="last")),
        "mean of heads and layers": _of_trace(lambda t, rows: mean(t, rows)),
        "largest head, mean of layers": _of_trace(lambda t, rows: mean(t, rows, heads="max")),
        "rollout": _of_trace(lambda t, rows: rollout(t, rows)),
        "rollout, largest head": _of_trace(lambda t, rows: rollout(t, rows, heads="max")),
        "flow": _of_trace(lambda t, rows: regard.attention_flow(t, rows)),
        "norms of what is taken": _with_around(regard.norm_attention),
        "ALTI, mean of layers": _with_around(_alti_mean),
        "ALTI": _with_around(regard.alti),
        "gradient × attention": _by_gradient(regard.gradient_attention),
        "relevance": _by_gradient(regard.relevance),
    }


def atoms(quick: bool, figures: Path | None) -> None:
    """How often each aggregation maps an atom of the product to the right atom."""
    model = _reader()
    with packaged.quietly():
        encode = packaged.rxnmapper().encode
    examples = []
    for text, old, new in list({**REACTIONS, **MORE}.values())[: 2 if quick else None]:
        found = encode(text)
        examples.append(
            Example(found.tokens, found.inputs, old, new, *_captured(model, found.inputs))
        )
    every = _head_scores(examples)
    layer, head = _farthest(examples)
    scores = {
        f"layer {layer} head {head}, the one that looks farthest": float(every[layer, head]),
        "layer 10 head 5, the one of the paper": float(every[10, 5]),
    }
    for name, way in ways().items():
        if not (quick and name == "flow"):
            scores[name] = _score(model, examples, way)
    count = sum(len(example.new) for example in examples)
    by_chance = sum(len(one.new) / len(sides(one.tokens)[0]) for one in examples)
    scores["chance"] = by_chance / count
    rows = [[name, f"{100 * score:.0f} %"] for name, score in scores.items()]
    table(f"{count} atoms of {len(examples)} reactions mapped right", ["by", "right"], rows)
    best = int(every.argmax())
    print(f"best of the 96 heads: layer {best // 8} head {best % 8}, {100 * every.max():.0f} %")
    print(f"heads above one half: {int((every > 0.5).sum())}")
    if figures is not None:
        _draw(every, scores, figures / "atoms.png")


def _reader() -> Any:
    """The model with its language head, so that there is a target to take gradients of."""
    place = packaged.folder("rxnmapper", "rxnmapper==0.4.3")
    place = place / "models/transformers/albert_heads_8_uspto_all_1310k"
    with packaged.quietly():
        model = packaged.transformers().AlbertForMaskedLM.from_pretrained(place)
    return model.eval()


def _farthest(examples: list[Example]) -> tuple[int, int]:
    """The head whose mean distance over the reactions is the largest, by `trace.report()`."""
    total = torch.zeros(12, 8)
    for example in examples:
        distances = [row.distance for row in example.trace.report()]
        total += torch.tensor(distances).view(12, 8) / len(example.tokens)
    return divmod(int(total.argmax()), 8)


def _head_scores(examples: list[Example]) -> Tensor:
    """(layer, head): how often each head by itself points at the right atom."""
    total = torch.zeros(12, 8)
    for example in examples:
        before, after = sides(example.tokens)
        for layer, record in enumerate(example.trace):
            found = record.weights()[0][:, after][:, :, before].argmax(-1)  # (head, atom)
            total[layer] += torch.tensor([_right(head, example) for head in found])
    return total / sum(len(example.new) for example in examples)


def _right(atoms: Tensor, example: Example) -> int:
    """How many atoms of the product are mapped to the right one, by its place."""
    letters = (example.old[atom] for atom in atoms.tolist())
    return sum(letter == wanted for letter, wanted in zip(letters, example.new))


def _score(model: Any, examples: list[Example], way: Maps) -> float:
    right = count = 0
    for example in examples:
        before, after = sides(example.tokens)
        right += _right(way(model, example, after)[:, before].argmax(-1), example)
        count += len(example.new)
    return right / count


def _draw(every: Tensor, scores: dict[str, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, across) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    image = left.imshow(100 * every, vmin=0, vmax=100, cmap="viridis")
    left.set(xlabel="head", ylabel="layer", title="atoms mapped right by each head, %")
    figure.colorbar(image, ax=left)
    names = list(scores)[::-1]
    across.barh(names, [100 * scores[name] for name in names], color="#4c72b0")
    across.set(xlim=(0, 100), xlabel="atoms mapped right, %", title="by each aggregation")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"wrote {path.name}")


def induction(quick: bool, figures: Path | None) -> None:
    """Where the report puts the induction heads, on random tokens said twice."""
    subject = packaged.smollm2()
    length = 32 if quick else 96
    once = torch.randint(1000, 40000, (1, length), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([once, once], dim=1)
    with torch.no_grad(), regard.capture(subject.model) as trace:
        subject.model(input_ids=ids)
    report = trace.report(tokens=ids)
    rows = [
        [str(place), str(row.layer), str(row.head), f"{row.induction:.2f}", row.type]
        for place, row in enumerate(report.best("induction", 8), 1)
    ]
    head = ["", "layer", "head", "induction", "type"]
    table(f"induction score of 270 heads, {length} random tokens said twice", head, rows)
    if figures is not None:
        by_head(report, "induction", title="SmolLM2").save(figures / "induction.png")


STUDIES = {"atoms": atoms, "induction": induction}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer examples, under a minute")
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--figures", type=Path, help="folder to draw pictures into")
    options = parser.parse_args()
    restart_where_needed()
    for name in options.only:
        STUDIES[name](options.quick, options.figures)


if __name__ == "__main__":
    main()
