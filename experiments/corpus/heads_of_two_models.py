"""What the heads of a sentence encoder and of a language model do, and how many sentences tell it.

MiniLM (6 layers of 12 heads) and SmolLM2 (30 of 9) read the same sentences, one half of them image
captions (multi30k), the other everyday sentences (Tatoeba). Which heads are of which type, and how
large a sample gives the same types; where sinks live; how distance grows with depth.

    REGARD_DATA=... python experiments/corpus/heads_of_two_models.py [--quick] [--out FOLDER]
        [--models minilm smollm2] [--sentences 20000] [--only-show] [--keep]

The folder holds what each 500 sentences add: the same command continues a run that was stopped, and
--only-show reads what there is so far. --keep writes the table, the figures and the picture to
results/ and docs/images. All 20,000 sentences take SmolLM2 about an hour of one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import regard
from regard.aggregate.statistics.head_sums import RATIOS
from regard.aggregate.statistics.head_types import TYPES
from regard.corpus import (
    CATEGORIES,
    CoAttention,
    Collection,
    Corpus,
    Figures,
    Shares,
    Sharpness,
    StrongestPairs,
    load,
)
from regard.corpus.collection import layer_numbers
from regard.corpus.run_folder import RunFolder
from regard.corpus.state import State

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
PICTURE = ROOT / "docs/images/heads-of-two-models.png"
TITLES = {"minilm": "MiniLM", "smollm2": "SmolLM2"}
SHARD = 500  # sentences whose numbers are saved together
SMALL = (10, 30, 100)  # sizes of samples that are collected by themselves
LARGE = (500, 1000, 2000, 5000, 10_000)  # those that shards add up to
SAMPLES = 8  # of each size, at most


def sentences(number: int) -> list[str]:
    """As many captions as everyday sentences, all different, in random order."""
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("set REGARD_DATA to the folder that holds multi30k/ and tatoeba/")
    data = Path(os.environ["REGARD_DATA"])
    with gzip.open(data / "multi30k" / "train.en.gz", "rt", encoding="utf-8") as file:
        captions = [line.strip() for line in file]
    with gzip.open(data / "tatoeba" / "eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
        everyday = [line.split("\t")[0].strip() for line in file]
    chooser = random.Random(0)
    halves = [sorted({line for line in lines if line}) for lines in (captions, everyday)]
    for half in halves:
        chooser.shuffle(half)
    return [text for pair in zip(*halves) for text in pair][:number]


def collect(name: str, texts: list[str], out: Path) -> None:
    """All sentences, and samples of few."""
    from regard.cli import packaged

    loaded = getattr(packaged, name)()
    model = getattr(loaded.model, "model", loaded.model)  # without the scores of words
    for size in SMALL:
        for sample in range(SAMPLES):
            some = texts[sample * SHARD : sample * SHARD + size]
            if len(some) == size:
                corpus = Corpus(some, loaded.tokenizer, batch_size=100)
                folder = out / f"{name}-{size}-{sample}"
                regard.collect(model, corpus, [Figures()], out=folder, resume=True)
    asked = [
        Figures(),
        Sharpness(bins=128),
        Shares(["punctuation", "word"]),
        CoAttention(CATEGORIES),
        StrongestPairs(3),
    ]
    corpus = Corpus(texts, loaded.tokenizer, batch_size=100, shard_size=SHARD)
    regard.collect(model, corpus, asked, out=out / name, resume=True)


def keep_run(source: Path, kept: Path) -> None:
    """What was collected in a folder, without the texts, which are not ours to pass on."""
    run = load(source)
    named = {name: run.state.statistics[name] for name in run if name != "strongest_pairs"}
    state = State(named, examples=run.examples, tokens=run.tokens)
    for site, parts in run.state.sites.items():
        state.sites[site] = {name: parts[name] for name in named}
    settings = RunFolder(source).settings()
    asked = {name: settings["statistics"][name] for name in named}
    shutil.rmtree(kept, ignore_errors=True)
    folder = RunFolder(kept)
    folder.begin(settings | {"statistics": asked}, resume=False)
    folder.finish(state)


# -- figures


def types_of(collection: Collection) -> list[list[str]]:
    """The type of each head, by layer."""
    return [figures.names for figures in collection["figures"].values()]


def samples_of(name: str, out: Path) -> dict[int, list[list[list[str]]]]:
    """Types by size of the sample, for several samples of each size that share no sentence."""
    samples: dict[int, list[list[list[str]]]] = {}
    for size in SMALL:
        folders = (out / f"{name}-{size}-{sample}" for sample in range(SAMPLES))
        samples[size] = [types_of(load(folder)) for folder in folders if folder.exists()]
    asked = {"figures": Figures()}
    shards = list(RunFolder(out / name).states(asked))
    for size in LARGE:
        of_each = size // SHARD
        for start in range(0, min(len(shards), SAMPLES * of_each) - of_each + 1, of_each):
            state = State(asked)
            for shard in shards[start : start + of_each]:
                state.merge(shard)
            samples.setdefault(size, []).append(types_of(Collection(state)))
    return {size: some for size, some in samples.items() if len(some) > 1}


def agreement(first: list[list[str]], second: list[list[str]]) -> float:
    """The share of heads that are of the same type in both."""
    pairs = [pair for layers in zip(first, second) for pair in zip(*layers)]
    return sum(one == other for one, other in pairs) / len(pairs)


def measured(name: str, out: Path) -> dict[str, Any]:
    """The figures of a model, as JSON keeps them."""
    collection = load(out / name)
    order = sorted(zip(layer_numbers(collection.sites), collection.sites))
    heads = [collection["figures"][site] for _, site in order]
    received = [collection["co_attention"][site].received.mean for _, site in order]
    types = [figures.names for figures in heads]
    stability = {}
    for size, some in samples_of(name, out).items():
        pairs = [(a, b) for index, a in enumerate(some) for b in some[:index]]
        stability[size] = [agreement(*pair) for pair in pairs]
    held = [
        shares.get(kind, 0.0)
        for figures in heads
        for kind, shares in zip(figures.names, figures.type_shares)
    ]

    def by_layer(figure: str) -> list[float]:
        return [float(each.figures[figure].mean.nanmean()) for each in heads]

    def to_category(category: str) -> list[float]:
        return [float(each[:, CATEGORIES.index(category)].mean()) for each in received]

    distance = [each.figures["distance"] for each in heads]
    even = [float((each.profile.even @ each.profile.offset.abs()).mean()) for each in heads]
    return {
        "sentences": collection.examples,
        "tokens": collection.tokens,
        "types": types,
        "agreement": stability,
        "held": held,
        "first": by_layer("sink"),
        "special": to_category("special"),
        "punctuation": to_category("punctuation"),
        "distance": [float(each.mean.mean()) for each in distance],
        "without_sinks": [distance_without_sinks(collection, site) for _, site in order],
        "even_distance": statistics.mean(even),
    }


def distance_without_sinks(collection: Collection, site: str) -> float:
    """Mean distance of what no sink receives, over the heads of a layer."""
    rest = collection.state.sites[site]["figures"]["rest"].arrays
    column = list(RATIOS).index("distance")
    return float(rest["total"][:, column].sum() / rest["number"][:, column].sum())


def table(figures: dict[str, dict[str, Any]]) -> str:
    """All figures as text."""
    lines = [__doc__.splitlines()[0]]
    for name, model in figures.items():
        heads = [kind for layer in model["types"] for kind in layer]
        lines += ["", f"{TITLES[name]}: {model['sentences']} sentences, {model['tokens']} tokens"]
        counts = Counter(heads).most_common()
        lines.append("heads by type: " + ", ".join(f"{kind} {count}" for kind, count in counts))
        lines.append(
            f"a head is of its type in {statistics.median(model['held']):.0%} of single sentences "
            "(median over heads)"
        )
        lines.append("sentences  samples  same type in two samples: mean, least")
        for size, shares in model["agreement"].items():
            samples = round((1 + (1 + 8 * len(shares)) ** 0.5) / 2)
            mean, least = statistics.mean(shares), min(shares)
            lines.append(f"{size:>9}  {samples:>7}  {mean:>6.1%}  {least:>6.1%}")
        lines.append(f"distance of even attention: {model['even_distance']:.2f}")
        lines.append("layer  first  special  punctuation  distance  without sinks")
        keys = ("first", "special", "punctuation", "distance", "without_sinks")
        for layer, (first, special, marks, *distances) in enumerate(zip(*map(model.get, keys))):
            shares = f"{first:5.2f}  {special:7.2f}  {marks:11.2f}"
            lines.append(f"{layer:>5}  {shares}  {distances[0]:8.2f}  {distances[1]:13.2f}")
    return "\n".join(lines) + "\n"


# -- picture

_SHADES = {  # of types, light to dark also in grey; the sign tells them apart
    "sink": "#e9e9e9",
    "special": "#e9e9e9",
    "broad": "#ffffff",
    "mixed": "#ffffff",
    "previous": "#7fb2d9",
    "next": "#7fb2d9",
    "self": "#7fb2d9",
    "local": "#b9d7ee",
    "positional": "#b9d7ee",
    "induction": "#d98c3f",
    "duplicate": "#d98c3f",
    "content": "#f2c894",
    "sharp": "#f2c894",
}
_STYLES = {
    "minilm": {"color": "#1f5f99", "marker": "o", "markersize": 3.5},
    "smollm2": {"color": "#c25f0a", "marker": "s", "markersize": 3, "linestyle": "--"},
}


def draw(figures: dict[str, dict[str, Any]], path: Path) -> None:
    """Types of all heads; below, samples, sinks and distance."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    size = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    with pyplot.rc_context(size):
        figure = pyplot.figure(figsize=(6.8, 4.6), layout="constrained")
        upper, lower = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        widths = [len(model["types"]) + 3 for model in figures.values()]
        grids = upper.subplots(1, len(figures), width_ratios=widths, squeeze=False)[0]
        for axis, (name, model) in zip(grids, figures.items()):
            _types(axis, model["types"], f"{TITLES[name]}, {model['sentences']:,} sentences")
        present = {kind for model in figures.values() for row in model["types"] for kind in row}
        signs = [f"{TYPES[kind].sign} {kind}" for kind in TYPES if kind in present]
        upper.supxlabel("   ".join(signs), fontsize=7)
        samples, sinks, distance = lower.subplots(1, 3)
        for name, model in figures.items():
            style = _STYLES[name]
            sizes = [int(number) for number in model["agreement"]]
            means = [statistics.mean(shares) for shares in model["agreement"].values()]
            samples.semilogx(sizes, means, label=TITLES[name], **style)
            layers = len(model["first"])
            depth = [(layer + 0.5) / layers for layer in range(layers)]
            sinks.plot(depth, model["first"], **style)
            if max(model["special"]) > 0.01:
                pale = style | {"linestyle": ":", "markersize": 2.5, "markerfacecolor": "white"}
                sinks.plot(depth, model["special"], label=f"{TITLES[name]}: special tokens", **pale)
            distance.plot(depth, model["distance"], **style)
            pale = style | {"linestyle": ":", "markersize": 2.5, "markerfacecolor": "white"}
            distance.plot(depth, model["without_sinks"], **pale)
        samples.set(xlabel="sentences of a sample", ylabel="same type in two samples")
        samples.set_ylim(top=1.0)
        samples.legend(frameon=False, loc="lower right")
        sinks.set(xlabel="depth", ylabel="weight on the first token", ylim=(0, 1))
        sinks.legend(frameon=False, fontsize=7, loc="lower right")
        distance.set(xlabel="depth", ylabel="distance in tokens")
        distance.set_ylim(bottom=0)
        distance.plot([], [], "k:o", markersize=2.5, markerfacecolor="white", label="without sinks")
        distance.legend(frameon=False, fontsize=7, loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        pyplot.close(figure)


def _types(axis: Any, types: list[list[str]], title: str) -> None:
    """A grid of signs: layers to the right, heads down."""
    for layer, heads in enumerate(types):
        for head, kind in enumerate(heads):
            axis.bar(layer, 1, 1, head - 0.5, color=_SHADES[kind], edgecolor="white", linewidth=0.5)
            axis.text(layer, head, TYPES[kind].sign, ha="center", va="center", fontsize=6)
    layers, heads = len(types), len(types[0])
    axis.set(xlim=(-0.5, layers - 0.5), ylim=(heads - 0.5, -0.5), xlabel="layer", ylabel="head")
    axis.set(xticks=range(0, layers, 5), yticks=range(0, heads, 4))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=8)


# -- the command


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("heads_of_two_models"))
    parser.add_argument("--models", nargs="+", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="MiniLM and 1,000 sentences, a minute")
    parser.add_argument("--only-show", action="store_true", help="read no further sentences")
    parser.add_argument("--keep", action="store_true", help="write results/ and the picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.quick:
            options.out, options.models, options.sentences = Path(folder), ["minilm"], 1000
        if not options.only_show:
            texts = sentences(options.sentences)
            for name in options.models:
                collect(name, texts, options.out)
        exact = {name: measured(name, options.out) for name in options.models}
        figures = json.loads(json.dumps(exact), parse_float=lambda text: round(float(text), 4))
        if options.keep:
            keep_run(options.out / "minilm", RESULTS / "minilm")
    sys.stdout.write(table(figures))
    if options.keep:
        RESULTS.mkdir(exist_ok=True)
        stem = RESULTS / Path(__file__).stem
        stem.with_suffix(".txt").write_text(table(figures), encoding="utf-8")
        stem.with_suffix(".json").write_text(json.dumps(figures) + "\n", encoding="utf-8")
        draw(figures, PICTURE)


if __name__ == "__main__":
    main()
