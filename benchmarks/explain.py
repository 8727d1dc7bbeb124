"""Which aggregation of attention is most faithful, on real sentences and on a planted truth.

*minilm*: all-MiniLM-L6-v2, a sentence encoder of 6 layers and 12 heads. What is explained is how
near a sentence is to its paraphrase, the cosine of their embeddings. Every aggregation, and the
baselines, are measured with three ways to take words out.

*planted*: a two-layer classifier, trained here, where one token of twelve bears the label, so that
the true explanation is known. Once with the layer norm before each part, once after.

    python benchmarks/explain.py [--quick] [--only STUDY ...] [--figure FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers: nothing here is downloaded

import torch
from torch import Tensor

from regard import explain
from regard.cli import packaged
from regard.explain.aggregations import aggregated

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "explain"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed
from explain_models import LENGTH, sentences, trained

# Sentences and paraphrases, written for this study.
PAIRS = [
    ("The old lighthouse keeper rowed back before the storm reached the bay.",
     "Ahead of bad weather, the man of the lighthouse returned in his boat."),
    ("Two children were feeding bread to the ducks beside the frozen pond.",
     "Near an icy pond, kids gave the ducks something to eat."),
    ("Prices of wheat rose sharply after the dry summer in the south.",
     "A drought made grain more expensive."),
    ("She forgot her umbrella on the train and walked home in the rain.",
     "Having left it in the carriage, she got wet on the way to her house."),
    ("The committee will vote on the new school budget next Tuesday evening.",
     "Money for education is to be decided by the board next week."),
    ("My neighbour plays the cello every morning before breakfast.",
     "The person next door practises a string instrument early in the day."),
    ("Doctors found that the medicine lowered blood pressure in most patients.",
     "According to physicians, the drug helps against hypertension."),
    ("The bakery on the corner sells the best rye bread in town.",
     "You get excellent loaves at the shop of the baker down the street."),
    ("A fox slipped through the fence and carried off three hens at night.",
     "Some chickens were stolen by a wild animal after dark."),
    ("The engineers repaired the broken bridge in less than two weeks.",
     "Fixing the damaged crossing took the builders only a few days."),
    ("He learned to swim in the cold lake behind his grandfather's farm.",
     "As a boy he was taught swimming in chilly water in the country."),
    ("The museum closed its doors because the roof was leaking badly.",
     "Visitors cannot see the exhibition, since water comes in from above."),
    ("After the match the players thanked their fans for coming so far.",
     "The team was grateful to supporters who had travelled."),
    ("Fresh snow covered the mountain road, so the bus could not pass.",
     "Public transport stopped in the hills because of winter weather."),
    ("The judge asked the witness to repeat what she had seen that night.",
     "In court, a woman was told to describe the events again."),
    ("Our cat sleeps on the warm radiator whenever it is cold outside.",
     "In winter the pet likes to lie on the heating."),
    ("The company moved its factory abroad and dismissed four hundred workers.",
     "Hundreds lost their jobs when production went to another country."),
    ("Astronomers discovered a small planet circling a distant red star.",
     "A new world was found in orbit around a faraway sun."),
    ("The recipe needs two eggs, a cup of sugar and some ripe lemons.",
     "For the cake take citrus fruit, something sweet and eggs."),
    ("The pianist broke a string in the middle of the second concerto.",
     "During the performance the instrument was damaged."),
    ("Thousands of birds cross the strait every autumn on their way to Africa.",
     "Flocks migrate south over the sea before winter."),
    ("The mayor promised cheaper tickets for students and pensioners.",
     "Young and old people will pay less to travel, says the head of the city."),
    ("I lost my keys somewhere between the office and the supermarket.",
     "I cannot open my door, having dropped something on the way from work."),
    ("The river flooded the lower fields twice in the spring of that year.",
     "High water stood on the meadows more than once."),
    ("Volunteers planted two thousand young oaks along the old railway line.",
     "New trees were put beside the disused tracks by helpers."),
    ("The pilot landed the small plane safely on a narrow gravel strip.",
     "An aircraft came down without harm on a rough runway."),
    ("Her first novel tells of a fisherman who cannot swim.",
     "The book she wrote is about a man at sea who fears water."),
    ("The password must have eight letters and at least one number.",
     "Choose a secret code that is long enough and contains a digit."),
    ("Workers found Roman coins while digging the new underground station.",
     "Ancient money came to light during construction of the metro."),
    ("The dentist told him to stop drinking coffee after every meal.",
     "To protect his teeth he was advised to give up a hot drink."),
    ("A power failure stopped the lifts and left the upper floors in the dark.",
     "Without electricity nobody could ride up, and the lights went out."),
    ("The teacher read the poem aloud twice before anyone dared to speak.",
     "The class kept silent while verses were recited."),
]  # fmt: skip


DUELS = [
    ("relevance", "gradient norm"),
    ("gradient norm", "mean attention"),
    ("random", "input × gradient"),
]


def minilm(quick: bool) -> explain.Evaluation:
    """The table of every aggregation on sentences and their paraphrases."""
    with packaged.quietly():
        loaded = packaged.minilm()
    model, tokenizer = loaded.model, loaded.tokenizer
    pairs = PAIRS[:12] if quick else PAIRS

    def embed(**inputs: Tensor) -> Tensor:
        hidden = model(**inputs).last_hidden_state
        real = inputs["attention_mask"][..., None]
        return (hidden * real).sum(1) / real.sum(1)

    sentences, paraphrases = (
        tokenizer(list(texts), return_tensors="pt", padding=True) for texts in zip(*pairs)
    )
    with torch.no_grad():
        meant = embed(**paraphrases)
    ways = [explain.AttentionMask(), explain.MaskToken(tokenizer.mask_token_id)]
    ways += [explain.MeanEmbedding(), explain.Forbid()]
    print(f"\nMiniLM: {len(pairs)} sentences, how near each is to its paraphrase\n")
    result = explain.recommend(
        embed,
        dict(sentences),
        explain.Similarity(meant),
        special=tokenizer,
        replacements=ways[:2] if quick else ways,
        seeds=3 if quick else 10,
    )
    print("\nby how much the first is better than the second, and whether by more than chance")
    for first, second in DUELS:
        for way in result.replacements:
            gain = result.over(first, second, replacement=way)
            sure = "yes" if result.beats(first, second, replacement=way) else "no"
            print(f"{first:14}  {second:16}  {way:16}  {gain}  {sure}")
    return result


def planted(quick: bool) -> None:
    """How often each aggregation puts the token that bears the label first, over seeds."""
    seeds = range(1 if quick else 3)
    columns: list[dict[str, list[float]]] = []
    for pre_norm in (True, False):
        hits: dict[str, list[float]] = {}
        for seed in seeds:
            model = trained(150, seed, pre_norm=pre_norm, dropout=0.0).eval()
            ids, _, places = sentences(200, torch.Generator().manual_seed(99))
            data = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            task = explain.Task(model, data, special=[0], batch_size=200)
            for name, found in points(task).items():
                first = found.masked_fill(~task.removable, -torch.inf).argmax(1)
                falls = explain.comprehensiveness(task, found, bins=[1 / LENGTH]).mean()
                misses = explain.sufficiency(task, found, bins=[1 / LENGTH]).mean()
                values = [float((first == places).double().mean()), float(falls), float(misses)]
                hits.setdefault(name, []).append(values)
        columns.append(hits)
    print(f"\nPlanted: how often the token that bears the label is first, {len(seeds)} models;")
    print("top-1 comprehensiveness and sufficiency. Norm before each part | after it\n")
    for name in columns[0]:
        cells = []
        for hits in columns:
            means = torch.tensor(hits[name]).mean(0).tolist()
            cells.append(f"{100 * means[0]:4.0f} %  {means[1]:.2f}  {means[2]:.2f}")
        print(f"{name:22}" + "  |  ".join(cells))


def points(task: explain.Task) -> dict[str, Tensor]:
    """Every aggregation, the gradient baselines, and random."""
    found, _ = aggregated(task)
    found["gradient norm"] = explain.gradient_norm(task)
    found["input × gradient"] = explain.input_gradient(task)
    found["integrated gradients"] = explain.integrated_gradients(task)
    found["random"] = torch.rand(task.removable.shape, generator=torch.Generator().manual_seed(0))
    return found


def draw(result: explain.Evaluation, path: Path) -> None:
    """Comprehensiveness of each method with its interval, and the deletion curves of some."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ways = result.replacements
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    bars, curves = figure.subplots(1, 2, width_ratios=[3, 2])
    order = result.ranking()[::-1]
    height = 0.8 / len(ways)
    for number, way in enumerate(ways):
        found = [result.interval(method, replacement=way) for method in order]
        bars.barh(
            [row + (number - (len(ways) - 1) / 2) * height for row in range(len(order))],
            [one.mean for one in found],
            height,
            xerr=[[one.mean - one.low for one in found], [one.high - one.mean for one in found]],
            label=f"removed: {way}",
            error_kw={"linewidth": 0.8},
        )
    bars.set_yticks(range(len(order)), order)
    bars.set_xlabel("comprehensiveness, with 95 % intervals: higher is better")
    figure.legend(loc="outside lower left", ncols=len(ways))
    best = result.best() or result.ranking()[0]
    for method in dict.fromkeys([best, "gradient norm", "mean attention", "rollout", "random"]):
        one = result.of(method)
        curves.plot(one.shares, one.deletion, marker="o", markersize=3, label=method)
    curves.set_xlabel(f"share of tokens {ways[0]}, best first")
    curves.set_ylabel("similarity to the paraphrase")
    curves.legend()
    figure.savefig(path, dpi=110)
    print(f"figure: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer sentences, models and draws")
    parser.add_argument("--only", nargs="+", choices=["minilm", "planted"])
    parser.add_argument("--figure", type=Path, help="where the picture of MiniLM goes")
    asked = parser.parse_args()
    restart_where_needed()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    if asked.only is None or "minilm" in asked.only:
        result = minilm(asked.quick)
        if asked.figure is not None:
            draw(result, asked.figure)
    if asked.only is None or "planted" in asked.only:
        planted(asked.quick)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
